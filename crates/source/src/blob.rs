//! Stretches of files of the host: archives, and what lies in them in one piece.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};

/// A stretch of a file.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub file: Arc<File>,
    pub start_bytes: u64,
    pub len_bytes: u64,
    /// For messages.
    pub name: String,
}

impl Blob {
    /// A whole file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::host(path))?;
        let len_bytes = file.metadata().map_err(Error::host(path))?.len();
        Ok(Self {
            file: Arc::new(file),
            start_bytes: 0,
            len_bytes,
            name: path.display().to_string(),
        })
    }

    /// All of it, if it is no longer than that.
    pub fn read_all(&self, bytes_max: u64) -> Result<Vec<u8>> {
        let failed = Error::host(&self.name);
        if self.len_bytes > bytes_max {
            return Err(failed(io::Error::other(format!("more than {bytes_max} bytes"))));
        }
        let mut bytes = vec![0; self.len_bytes as usize];
        self.file.read_exact_at(&mut bytes, self.start_bytes).map_err(failed)?;
        Ok(bytes)
    }

    pub fn reader(&self) -> BlobReader {
        BlobReader {
            blob: self.clone(),
            at_bytes: 0,
        }
    }
}

/// Reads a blob from its start.
#[derive(Debug)]
pub(crate) struct BlobReader {
    blob: Blob,
    at_bytes: u64,
}

impl Read for BlobReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.blob.len_bytes - self.at_bytes;
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let done = self
            .blob
            .file
            .read_at(&mut buf[..len], self.blob.start_bytes + self.at_bytes)?;
        self.at_bytes += done as u64;
        Ok(done)
    }
}
