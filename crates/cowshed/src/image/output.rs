//! A file that appears when it is complete: written under another name beside its place, then
//! renamed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cowshed_device::{BlockDevice, FileDevice, OpenMode};

use super::error::{Error, Result};

/// Outputs that this process has begun: several may have the same name.
static OUTPUTS: AtomicU64 = AtomicU64::new(0);

/// A file in the making. Unless it is finished, it is removed.
pub(super) struct Output {
    path: PathBuf,
    beside: Option<PathBuf>,
}

impl Output {
    /// A new file beside `path`, as large as `size_bytes` and all hole.
    pub(super) fn new(path: &Path, size_bytes: u64) -> Result<(Self, Arc<dyn BlockDevice>)> {
        let name = path.file_name().ok_or_else(|| {
            let error = std::io::Error::from(std::io::ErrorKind::InvalidInput);
            Error::output(path)(error)
        })?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        let nth = OUTPUTS.fetch_add(1, Ordering::Relaxed);
        hidden.push(format!(".{}-{nth}.part", std::process::id()));
        let beside = path.with_file_name(hidden);
        let file = File::options().write(true).create_new(true).open(&beside);
        let file = file.map_err(Error::output(&beside))?;
        let output = Self {
            path: path.to_owned(),
            beside: Some(beside.clone()),
        };
        file.set_len(size_bytes).map_err(Error::output(&beside))?;
        let device = FileDevice::open(&beside, OpenMode::ReadWrite)?;
        Ok((output, Arc::new(device)))
    }

    /// Where it is meanwhile.
    pub(super) fn beside(&self) -> &Path {
        self.beside.as_deref().unwrap_or(&self.path)
    }

    /// Takes its name away: it goes with the last that has it open.
    pub(super) fn into_unnamed(self) -> Result<File> {
        let beside = self.beside.clone().unwrap_or_default();
        File::open(&beside).map_err(Error::output(&beside))
    }

    /// Cuts it to its size, and gives it its name. Everything is on disk when this returns.
    pub(super) fn finish(mut self, size_bytes: u64) -> Result<()> {
        let Some(beside) = self.beside.clone() else {
            return Ok(());
        };
        let file = File::options()
            .write(true)
            .open(&beside)
            .map_err(Error::output(&beside))?;
        file.set_len(size_bytes).map_err(Error::output(&beside))?;
        file.sync_all().map_err(Error::output(&beside))?;
        fs::rename(&beside, &self.path).map_err(Error::output(&self.path))?;
        self.beside = None;
        let dir = match self.path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(Error::output(dir))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            // The first error is the one to report.
            let _ = fs::remove_file(beside);
        }
    }
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
