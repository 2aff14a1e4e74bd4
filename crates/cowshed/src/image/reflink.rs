//! Contents that an image file shares with the files of its sources, on file systems of the host
//! that can (btrfs, XFS, bcachefs).

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use btrfs_image::MkfsError;
use btrfs_image::build::Cloner;
use cowshed_source::Content;
use rustix::fs::{copy_file_range, ioctl_ficlone};

/// Shares blocks of the sources with an image file.
pub(super) struct Reflinks {
    image: File,
    path: PathBuf,
    /// Where the volume begins in it.
    start_bytes: u64,
    /// File systems of the sources, by device number, which were tried.
    can: Mutex<HashSet<u64>>,
}

impl Reflinks {
    pub(super) fn new(path: &Path, start_bytes: u64) -> io::Result<Self> {
        Ok(Self {
            image: File::options().read(true).write(true).open(path)?,
            path: path.to_owned(),
            start_bytes,
            can: Mutex::default(),
        })
    }

    /// Fails where the two files are on file systems that do not share.
    fn try_once(&self, source: &File) -> io::Result<()> {
        let mut can = self.can.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dev = source.metadata()?.dev();
        if !can.contains(&dev) {
            let probe = self.path.with_extension("probe");
            let file = File::options().write(true).create_new(true).open(&probe)?;
            let cloned = ioctl_ficlone(&file, source);
            std::fs::remove_file(&probe)?;
            cloned?;
            can.insert(dev);
        }
        Ok(())
    }

    /// Such a copy shares wherever that is possible, and `try_once` has seen that it is.
    fn copy(&self, source: &File, within: Range<u64>, to_bytes: u64) -> io::Result<()> {
        let (mut from, mut to) = (within.start, to_bytes);
        while from < within.end {
            let len = usize::try_from(within.end - from).unwrap_or(usize::MAX);
            if copy_file_range(source, Some(&mut from), &self.image, Some(&mut to), len)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

impl Cloner for Reflinks {
    fn share(&self, content: &Content, within: Range<u64>, device_offset_bytes: u64) -> Result<bool, MkfsError> {
        let opened = content.open()?;
        let Some(file) = opened.host_file() else {
            return Ok(false);
        };
        let to = self.start_bytes + device_offset_bytes;
        let shared = self.try_once(file).and_then(|()| self.copy(file, within, to));
        shared.map_err(|source| opened.refuse_sharing(source))?;
        // Its checksums are those of what was read before.
        opened.check_unchanged()?;
        Ok(true)
    }
}
