//! Regular files and block devices as devices.
//!
//! A writer excludes every other writer and reader, of this process too, by flock(2); on a block device it also
//! claims the device (`O_EXCL`), which the kernel refuses while it is mounted. An image file that the kernel has mounted
//! through a loop device is taken as well. The page cache lies below: a flush is fdatasync(2).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{BlockDevice, Error, Op, ReadOp, Result, batch, check_access, mounted, sys};

/// The sector size that an image file is taken to have.
const FILE_SECTOR_SIZE_BYTES: u32 = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    ReadOnly,
    ReadWrite,
}

/// Whether to keep others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// Readers share, a writer is alone; nobody is beside a mount of the kernel that can write.
    Locked,
    /// As `Locked`, but a block device is not claimed: for who mounts it through the kernel next, which claims it.
    LockedForMount,
    /// For inspection only: what is read may be changing.
    Unlocked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Regular,
    Block,
}

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    name: String,
    kind: Kind,
    mode: OpenMode,
    size_bytes: u64,
    sector_size_bytes: u32,
    /// Cleared when the device turns out not to support it.
    can_discard: AtomicBool,
}

impl FileDevice {
    /// Opens a regular file or block device, locked.
    ///
    /// `Error::Busy` if somebody excludes us, `Error::NotABlockDevice` for a directory, pipe or the like.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<FileDevice> {
        Self::open_with(path, mode, Locking::Locked)
    }

    pub fn open_with(path: impl AsRef<Path>, mode: OpenMode, locking: Locking) -> Result<FileDevice> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |source: io::Error| Error::io(&name, Op::Open, 0, source);

        let kind = kind_of(&name, &std::fs::metadata(path).map_err(failed)?)?;
        let mut flags = libc::O_CLOEXEC;
        if kind == Kind::Block && mode == OpenMode::ReadWrite && locking == Locking::Locked {
            flags |= libc::O_EXCL; // without O_CREAT, on a block device: claim it, fail if it is claimed
        }
        let opened = OpenOptions::new()
            .read(true)
            .write(mode == OpenMode::ReadWrite)
            .custom_flags(flags)
            .open(path);
        let file = match opened {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => return Err(Error::Busy { device: name.into() }),
            opened => opened.map_err(failed)?,
        };
        Self::from_file(file, path, mode, locking)
    }

    /// Makes a regular file of that size, all of it a hole, and opens it locked for writing. An existing file is an
    /// error: nobody's volume is overwritten by mistake.
    pub fn create(path: impl AsRef<Path>, size_bytes: u64) -> Result<FileDevice> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |source: io::Error| Error::io(&name, Op::Open, 0, source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(failed)?;
        if let Err(error) = file.set_len(size_bytes) {
            let _ = std::fs::remove_file(path); // it is ours and empty; the first error is the one to report
            return Err(failed(error));
        }
        Self::from_file(file, path, OpenMode::ReadWrite, Locking::Locked)
    }

    fn from_file(file: File, path: &Path, mode: OpenMode, locking: Locking) -> Result<FileDevice> {
        let name = path.display().to_string();
        let failed = |source: io::Error| Error::io(&name, Op::Open, 0, source);
        if locking != Locking::Unlocked {
            let locked = match mode {
                OpenMode::ReadOnly => file.try_lock_shared(),
                OpenMode::ReadWrite => file.try_lock(),
            };
            match locked {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { device: name.into() }),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        // Asked of what was opened, not of the path: the path may name something else by now.
        let metadata = file.metadata().map_err(failed)?;
        let kind = kind_of(&name, &metadata)?;
        // With the lock in hand: a mount of our own holds it, so what is found is the kernel's.
        if locking == Locking::Locked && mounted::excludes(&metadata, mode) {
            return Err(Error::Busy { device: name.into() });
        }
        let (size_bytes, sector_size_bytes) = match kind {
            Kind::Regular => (metadata.len(), FILE_SECTOR_SIZE_BYTES),
            Kind::Block => (
                sys::block_device_size_bytes(&file).map_err(failed)?,
                sys::block_device_sector_size_bytes(&file).map_err(failed)?,
            ),
        };
        let can_discard = AtomicBool::new(true);
        Ok(FileDevice {
            file,
            path: path.to_owned(),
            name,
            kind,
            mode,
            size_bytes,
            sector_size_bytes,
            can_discard,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a block device, not a regular file.
    pub fn is_block_device(&self) -> bool {
        self.kind == Kind::Block
    }

    fn failed(&self, op: Op, offset_bytes: u64) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::io(&self.name, op, offset_bytes, source)
    }
}

fn kind_of(name: &str, metadata: &std::fs::Metadata) -> Result<Kind> {
    let file_type = metadata.file_type();
    let found = if file_type.is_file() {
        return Ok(Kind::Regular);
    } else if file_type.is_block_device() {
        return Ok(Kind::Block);
    } else if file_type.is_dir() {
        "a directory"
    } else if file_type.is_char_device() {
        "a character device"
    } else if file_type.is_fifo() {
        "a pipe"
    } else {
        "a socket"
    };
    Err(Error::NotABlockDevice {
        device: name.into(),
        found,
    })
}

/// Calls `step(done_bytes)` until all is done; a step that does nothing ends in `stalled`.
fn until_done(
    len_bytes: usize,
    stalled: ErrorKind,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done_bytes = 0;
    while done_bytes < len_bytes {
        match step(done_bytes) {
            Ok(0) => return Err(stalled.into()),
            Ok(n) => done_bytes += n,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl BlockDevice for FileDevice {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn sector_size_bytes(&self) -> u32 {
        self.sector_size_bytes
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_read_only(&self) -> bool {
        self.mode == OpenMode::ReadOnly
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        check_access(self, Op::Read, offset_bytes, buf.len() as u64)?;
        self.file
            .read_exact_at(buf, offset_bytes)
            .map_err(self.failed(Op::Read, offset_bytes))
    }

    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        check_access(self, Op::Write, offset_bytes, buf.len() as u64)?;
        self.file
            .write_all_at(buf, offset_bytes)
            .map_err(self.failed(Op::Write, offset_bytes))
    }

    fn read_vectored_at(&self, offset_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len_bytes: usize = bufs.iter().map(|b| b.len()).sum();
        check_access(self, Op::Read, offset_bytes, len_bytes as u64)?;
        let mut rest = bufs;
        until_done(len_bytes, ErrorKind::UnexpectedEof, |done_bytes| {
            let n = sys::preadv(&self.file, rest, offset_bytes + done_bytes as u64)?;
            IoSliceMut::advance_slices(&mut rest, n);
            Ok(n)
        })
        .map_err(self.failed(Op::Read, offset_bytes))
    }

    fn write_vectored_at(&self, offset_bytes: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        let len_bytes: usize = bufs.iter().map(|b| b.len()).sum();
        check_access(self, Op::Write, offset_bytes, len_bytes as u64)?;
        let mut own = bufs.to_vec();
        let mut rest = &mut own[..];
        until_done(len_bytes, ErrorKind::WriteZero, |done_bytes| {
            let n = sys::pwritev(&self.file, rest, offset_bytes + done_bytes as u64)?;
            IoSlice::advance_slices(&mut rest, n);
            Ok(n)
        })
        .map_err(self.failed(Op::Write, offset_bytes))
    }

    /// The kernel begins with all places at once; without, each read would wait for its own.
    fn read_batch(&self, reads: &mut [ReadOp<'_>]) -> Result<()> {
        batch::read(self, reads, |offset_bytes, len_bytes| {
            sys::will_need(&self.file, offset_bytes, len_bytes);
        })
    }

    fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(self.failed(Op::Flush, 0))
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        check_access(self, Op::Discard, offset_bytes, len_bytes)?;
        if len_bytes == 0 || !self.can_discard.load(Ordering::Relaxed) {
            return Ok(());
        }
        let done = match self.kind {
            Kind::Regular => sys::punch_hole(&self.file, offset_bytes, len_bytes),
            Kind::Block => sys::block_device_discard(&self.file, offset_bytes, len_bytes),
        };
        match done {
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                tracing::debug!(device = self.name, "does not discard");
                self.can_discard.store(false, Ordering::Relaxed);
                Ok(())
            }
            done => done.map_err(self.failed(Op::Discard, offset_bytes)),
        }
    }
}

impl Drop for FileDevice {
    /// Gives the lock up by name. Closing alone does that only when the last copy of the descriptor goes, and a process
    /// that another thread is just starting holds one until it executes its program.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!(device = self.name, %error, "does not unlock");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_goes_with_the_device_although_a_copy_of_the_descriptor_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 1 << 20).unwrap();
        let copy = device.file.try_clone().unwrap();
        assert!(matches!(
            FileDevice::open(&path, OpenMode::ReadOnly),
            Err(Error::Busy { .. })
        ));
        drop(device);
        FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
        drop(copy);
    }
}
