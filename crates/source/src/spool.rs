//! Contents of an archive that can be read only once: kept in a file without a name.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// What is copied at once.
const STEP_BYTES: usize = 1 << 20;

/// A temporary file without a name, which goes with the last of its contents.
#[derive(Debug)]
pub struct Spool {
    file: Arc<File>,
    end_bytes: u64,
    buf: Vec<u8>,
}

impl Spool {
    /// An empty one, on the file system of `dir`.
    pub fn new(dir: &Path) -> io::Result<Self> {
        Ok(Self {
            file: Arc::new(tempfile::tempfile_in(dir)?),
            end_bytes: 0,
            buf: vec![0; STEP_BYTES],
        })
    }

    /// The file.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Copies `len_bytes` from a stream; gives where they are. Errors: `UnexpectedEof` of the
    /// stream; those of the file system.
    pub fn put(&mut self, from: &mut dyn Read, len_bytes: u64) -> io::Result<u64> {
        let start = self.end_bytes;
        let mut left = len_bytes;
        while left > 0 {
            let step = usize::try_from(left).unwrap_or(STEP_BYTES).min(STEP_BYTES);
            from.read_exact(&mut self.buf[..step])?;
            self.file.write_all_at(&self.buf[..step], self.end_bytes)?;
            self.end_bytes += step as u64;
            left -= step as u64;
        }
        Ok(start)
    }
}
