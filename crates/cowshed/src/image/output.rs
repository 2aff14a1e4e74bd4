//! Where an image is written: to a file that appears when it is complete, or to one where it is.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cowshed_device::{BlockDevice, FileDevice, OpenMode};

use super::error::{Error, Result};
use super::new_file::NewFile;

/// An image in the making. Unless it is finished, nothing of it stays.
pub(super) struct Output {
    path: PathBuf,
    new: NewFile,
}

impl Output {
    /// A new file that is to become `path`, as large as `size_bytes` and all hole.
    pub(super) fn new(path: &Path, size_bytes: u64) -> Result<(Self, Arc<dyn BlockDevice>)> {
        let new = NewFile::create(path).map_err(Error::output(path))?;
        new.file().set_len(size_bytes).map_err(Error::output(path))?;
        let device = FileDevice::of_file(reopened(&new, path)?, path)?;
        let output = Self {
            path: path.to_owned(),
            new,
        };
        Ok((output, Arc::new(device)))
    }

    /// A path by which it can be opened meanwhile.
    pub(super) fn open_path(&self) -> PathBuf {
        self.new.open_path()
    }

    /// Gives up its name: it goes with the last that has it open.
    pub(super) fn into_unnamed(self) -> Result<File> {
        reopened(&self.new, &self.path)
    }

    /// Cuts it to its size, and gives it its name. Everything is on disk when this returns.
    pub(super) fn finish(self, size_bytes: u64) -> Result<()> {
        self.new.file().set_len(size_bytes).map_err(Error::output(&self.path))?;
        self.new.finish().map_err(Error::output(&self.path))
    }
}

/// The same file with a position, and locks, of its own.
fn reopened(new: &NewFile, path: &Path) -> Result<File> {
    let file = File::options().read(true).write(true).open(new.open_path());
    file.map_err(Error::output(path))
}

/// A file that is written where it is.
pub(super) struct InPlace {
    path: PathBuf,
    /// What it had before; `None`: it was not there.
    old_bytes: Option<u64>,
    is_done: bool,
}

impl InPlace {
    /// The file, with room for `size_bytes` at least.
    pub(super) fn new(path: &Path, size_bytes: u64) -> Result<(Self, Arc<dyn BlockDevice>)> {
        let old_bytes = match fs::metadata(path) {
            Ok(metadata) => Some(metadata.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::output(path)(error)),
        };
        let mut options = File::options();
        options.write(true).create(old_bytes.is_none());
        let file = options.open(path).map_err(Error::output(path))?;
        let place = Self {
            path: path.to_owned(),
            old_bytes,
            is_done: false,
        };
        if old_bytes.unwrap_or_default() < size_bytes {
            file.set_len(size_bytes).map_err(Error::output(path))?;
        }
        let device = FileDevice::open(path, OpenMode::ReadWrite)?;
        Ok((place, Arc::new(device)))
    }

    /// Cuts it to its size. Everything is on disk when this returns.
    pub(super) fn finish(mut self, size_bytes: u64) -> Result<()> {
        let cut = || {
            let file = File::options().write(true).open(&self.path)?;
            file.set_len(size_bytes)?;
            file.sync_all()
        };
        cut().map_err(Error::output(&self.path))?;
        self.is_done = true;
        Ok(())
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        // The first error is the one to report.
        let _ = match self.old_bytes {
            None => fs::remove_file(&self.path),
            Some(bytes) => File::options()
                .write(true)
                .open(&self.path)
                .and_then(|file| file.set_len(bytes)),
        };
    }
}
