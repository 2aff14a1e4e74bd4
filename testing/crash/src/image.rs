//! Image files as devices in memory.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use cowshed_device::{BlockDevice as _, MemDevice};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

const READ_BYTES: u64 = 1 << 20;

/// A copy of the file as it is now; holes are not read.
pub fn load_image(path: &Path) -> Result<MemDevice> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let size = file.metadata()?.len();
    let device = MemDevice::new(path.display().to_string(), size);
    let mut buf = vec![0; READ_BYTES as usize];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(device),
            Err(error) => return Err(error).context("SEEK_DATA"),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(at)).context("SEEK_HOLE")?;
        while at < end {
            let part = &mut buf[..(end - at).min(READ_BYTES) as usize];
            file.read_exact_at(part, at)?;
            device.write_at(at, part)?;
            at += part.len() as u64;
        }
    }
}
