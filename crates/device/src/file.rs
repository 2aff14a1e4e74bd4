//! Regular files and block devices as devices.
//!
//! A writer excludes every other writer and reader, of this process too, by flock(2); on a block
//! device it also claims the device (`O_EXCL`), which the kernel refuses while it is mounted. An
//! image file that the kernel has mounted through a loop device is taken as well. The page cache
//! lies below: a flush is fdatasync(2).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::block_device::batch;
use crate::mounted::{LETS_GO_AFTER, LOOK_EVERY};
use crate::{BlockDevice, Error, Op, OpenMode, ReadOp, Result, check_access, mounted, sys};

/// The sector size that an image file is taken to have.
const FILE_SECTOR_SIZE_BYTES: u32 = 512;

/// Whether to keep others out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Locking {
    /// Readers share, a writer is alone; neither opens beside a writable mount of the kernel.
    Locked,
    /// As `Locked`, but a block device is not claimed: for a caller that mounts it through the
    /// kernel next, which claims it.
    LockedForMount,
    /// As `Locked`, but of a block device only the claim counts, which excludes writers and mounts:
    /// for programs whose parent holds the lock, as systemd's do.
    Claimed,
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
    /// As far as the kernel says, when it was asked first.
    discard_granularity: OnceLock<Option<u64>>,
    /// Cleared when the device turns out not to support it.
    can_discard: AtomicBool,
}

fn lock(file: &File, mode: OpenMode) -> std::result::Result<(), TryLockError> {
    let until = Instant::now() + LETS_GO_AFTER;
    loop {
        let locked = match mode {
            OpenMode::ReadOnly => file.try_lock_shared(),
            OpenMode::ReadWrite => file.try_lock(),
        };
        match locked {
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK_EVERY),
            locked => return locked,
        }
    }
}

impl FileDevice {
    /// Opens a regular file or block device, locked.
    ///
    /// `Error::Busy` if it is locked by another process for longer than a second,
    /// `Error::NotABlockDevice` for a directory, pipe or the like.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<FileDevice> {
        Self::open_with(path, mode, Locking::Locked)
    }

    pub fn open_with(path: impl AsRef<Path>, mode: OpenMode, locking: Locking) -> Result<FileDevice> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let failed = |source: io::Error| Error::io(&name, Op::Open, 0, source);

        let kind = kind_of(&name, &std::fs::metadata(path).map_err(failed)?)?;
        let mut flags = libc::O_CLOEXEC;
        if kind == Kind::Block && mode == OpenMode::ReadWrite && matches!(locking, Locking::Locked | Locking::Claimed) {
            // Without O_CREAT, on a block device: claim it, fail if it is claimed.
            flags |= libc::O_EXCL;
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

    /// Makes a regular file of that size, all of it a hole, and opens it locked for writing. An
    /// existing file is an error, so that no volume is overwritten by mistake.
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
            // It is ours and empty; the first error is the one to report.
            let _ = std::fs::remove_file(path);
            return Err(failed(error));
        }
        Self::from_file(file, path, OpenMode::ReadWrite, Locking::Locked)
    }

    /// Takes a regular file that is open to be read and written, and locks it. `path` is its name
    /// in messages; the file may have none of its own.
    pub fn of_file(file: File, path: impl AsRef<Path>) -> Result<FileDevice> {
        Self::from_file(file, path.as_ref(), OpenMode::ReadWrite, Locking::Locked)
    }

    fn from_file(file: File, path: &Path, mode: OpenMode, locking: Locking) -> Result<FileDevice> {
        let name = path.display().to_string();
        let failed = |source: io::Error| Error::io(&name, Op::Open, 0, source);
        // Asked of what was opened, not of the path: the path may name something else by now.
        let kind = kind_of(&name, &file.metadata().map_err(failed)?)?;
        let is_locked_by_parent = locking == Locking::Claimed && kind == Kind::Block;
        if locking != Locking::Unlocked && !is_locked_by_parent {
            match lock(&file, mode) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(Error::Busy { device: name.into() }),
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
        // The size may have changed until the lock was there.
        let metadata = file.metadata().map_err(failed)?;
        // With the lock in hand: a mount of our own holds it, so what is found is the kernel's.
        if matches!(locking, Locking::Locked | Locking::Claimed) && mounted::excludes(&metadata, mode) {
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
            discard_granularity: OnceLock::new(),
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

    fn find_discard_granularity(&self) -> Option<u64> {
        let metadata = self.file.metadata().ok()?;
        match self.kind {
            // Behind the end there is nothing that could be punched out: only the answer counts.
            Kind::Regular => match sys::punch_hole(&self.file, metadata.len(), u64::from(FILE_SECTOR_SIZE_BYTES)) {
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => None,
                Ok(()) | Err(_) => Some(metadata.blksize().max(FILE_SECTOR_SIZE_BYTES.into())),
            },
            Kind::Block => sys::block_device_discard_granularity(metadata.rdev()),
        }
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
        batch::read(self, reads, &PageCache(self))
    }

    fn flush(&self) -> Result<()> {
        self.file.sync_data().map_err(self.failed(Op::Flush, 0))
    }

    fn discard_granularity_bytes(&self) -> Option<u64> {
        if self.is_read_only() || !self.can_discard.load(Ordering::Relaxed) {
            return None;
        }
        *self.discard_granularity.get_or_init(|| self.find_discard_granularity())
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

/// The kernel's, before a file.
struct PageCache<'d>(&'d FileDevice);

impl batch::Cache for PageCache<'_> {
    /// "No" also of a file system that does not know without waiting (tmpfs, FUSE), and of a kernel
    /// that cannot be asked.
    fn read_if_there(&self, offset_bytes: u64, bufs: &mut [IoSliceMut<'_>]) -> bool {
        let len_bytes: usize = bufs.iter().map(|b| b.len()).sum();
        // A file may have grown beyond what the device promises.
        check_access(self.0, Op::Read, offset_bytes, len_bytes as u64).is_ok()
            && sys::preadv_nowait(&self.0.file, bufs, offset_bytes).is_ok_and(|n| n == len_bytes)
    }

    fn announce(&self, offset_bytes: u64, len_bytes: u64) {
        sys::will_need(&self.0.file, offset_bytes, len_bytes);
    }
}

impl Drop for FileDevice {
    /// Gives the lock up by name. Closing alone does that only when the last copy of the descriptor
    /// goes, and a process that another thread is just starting holds one until it executes its
    /// program.
    fn drop(&mut self) {
        if let Err(error) = self.file.unlock() {
            tracing::debug!(device = self.name, %error, "does not unlock");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_device::batch::Cache as _;

    const SIZE_BYTES: usize = 8 << 20;

    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as usize % limit
        }
    }

    /// A device of bytes that differ from each other, and these bytes.
    fn filled(dir: &tempfile::TempDir) -> (FileDevice, Vec<u8>) {
        let mut dice = Dice(1);
        let bytes: Vec<u8> = (0..SIZE_BYTES).map(|_| dice.below(256) as u8).collect();
        let device = FileDevice::create(dir.path().join("image"), SIZE_BYTES as u64).unwrap();
        device.write_at(0, &bytes).unwrap();
        device.flush().unwrap();
        (device, bytes)
    }

    fn set_len(device: &FileDevice, size_bytes: usize) {
        device.file.set_len(size_bytes as u64).unwrap();
    }

    type Batch = fn(&FileDevice, &mut [ReadOp<'_>]) -> Result<()>;

    /// Reads in the order given.
    fn read_places(device: &FileDevice, places: &[(usize, usize)], batch: Batch) -> Result<Vec<Vec<u8>>> {
        let mut bufs: Vec<_> = places.iter().map(|(_, len_bytes)| vec![0xee; *len_bytes]).collect();
        let mut reads: Vec<_> = places
            .iter()
            .zip(&mut bufs)
            .map(|((offset_bytes, _), buf)| ReadOp {
                offset_bytes: *offset_bytes as u64,
                buf,
            })
            .collect();
        batch(device, &mut reads)?;
        Ok(bufs)
    }

    /// Some apart, some side by side, some over each other.
    fn random_places(dice: &mut Dice) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        let mut end = 0;
        for _ in 0..1 + dice.below(60) {
            let len_bytes = 1 + dice.below(40_000);
            let start = if dice.below(3) == 0 {
                end
            } else {
                dice.below(SIZE_BYTES)
            };
            let start = start.min(SIZE_BYTES - len_bytes);
            places.push((start, len_bytes));
            end = start + len_bytes;
        }
        places
    }

    #[test]
    fn batches_give_the_same_bytes_whatever_is_in_memory_and_many_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (device, bytes) = filled(&dir);
        let (device, bytes) = (&device, &bytes);
        std::thread::scope(|scope| {
            for seed in 0..6 {
                scope.spawn(move || {
                    let mut dice = Dice(seed);
                    for _ in 0..40 {
                        let places = random_places(&mut dice);
                        match dice.below(3) {
                            0 => sys::forget(&device.file, 0, 0),
                            1 => sys::forget(&device.file, dice.below(SIZE_BYTES) as u64, 2 << 20),
                            _ => {}
                        }
                        let ways: [Batch; 2] = [
                            |device, reads| device.read_batch(reads),
                            |device, reads| batch::read(device, reads, &batch::NoCache),
                        ];
                        for way in ways {
                            let found = read_places(device, &places, way).unwrap();
                            for (found, (start, len_bytes)) in found.iter().zip(&places) {
                                let expected = &bytes[*start..][..*len_bytes];
                                assert!(found == expected, "seed {seed}: {len_bytes} bytes at {start}");
                            }
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_in_memory_is_had_without_waiting_where_the_file_system_knows() {
        let dir = tempfile::tempdir().unwrap();
        let (device, bytes) = filled(&dir);
        let mut buf = vec![0; 70_000];
        device.read_at(12_345, &mut buf).unwrap();
        buf.fill(0);
        let (first, second) = buf.split_at_mut(1000);
        let mut bufs = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let is_there = PageCache(&device).read_if_there(12_345, &mut bufs);
        let refusal = sys::preadv_nowait(&device.file, &mut bufs, 12_345).err();
        let knows = refusal.is_none_or(|error| error.raw_os_error() != Some(libc::EOPNOTSUPP));
        assert_eq!(is_there, knows);
        assert!(!knows || buf == bytes[12_345..][..70_000]);

        sys::forget(&device.file, 0, 0);
        let mut buf = [0; 512];
        let mut is_there = |offset: usize| {
            PageCache(&device).read_if_there(offset as u64, &mut [IoSliceMut::new(&mut buf)])
                && buf == bytes[offset..][..512]
        };
        assert!(!(0..SIZE_BYTES).step_by(1 << 20).all(&mut is_there), "it does not wait");
    }

    #[test]
    fn a_batch_stays_within_the_device_though_the_file_has_grown() {
        let dir = tempfile::tempdir().unwrap();
        let (device, _) = filled(&dir);
        set_len(&device, 2 * SIZE_BYTES);
        device.file.write_all_at(&[1; 8192], SIZE_BYTES as u64).unwrap();
        let places = [(0, 4096), (8192, 4096), (SIZE_BYTES - 1, 2), (SIZE_BYTES + 4096, 4096)];
        let failure = read_places(&device, &places, |device, reads| device.read_batch(reads)).unwrap_err();
        assert!(
            matches!(failure, Error::OutOfRange { op: Op::Read, offset_bytes, .. } if offset_bytes == SIZE_BYTES as u64 - 1),
            "{failure}"
        );
    }

    #[test]
    fn a_batch_that_fails_says_where_in_the_midst_of_what_is_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let (device, bytes) = filled(&dir);
        let places = [
            (0, 4096),
            (SIZE_BYTES / 2 - 100, 200),
            (8192, 4096),
            (SIZE_BYTES - 512, 512),
        ];
        let batch: Batch = |device, reads| device.read_batch(reads);
        let read = read_places(&device, &places, batch).unwrap();
        assert!(read[2] == bytes[8192..][..4096]);
        set_len(&device, SIZE_BYTES / 2);
        let failure = read_places(&device, &places, batch).unwrap_err();
        let Error::Io {
            device: name,
            op: Op::Read,
            offset_bytes,
            source,
        } = &failure
        else {
            panic!("{failure}")
        };
        assert_eq!(&**name, device.name());
        assert_eq!(*offset_bytes as usize, SIZE_BYTES / 2 - 100);
        assert_eq!(source.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_batch_of_a_file_that_cannot_be_read_fails_with_its_reason() {
        let dir = tempfile::tempdir().unwrap();
        let (mut device, _) = filled(&dir);
        device.file = OpenOptions::new().write(true).open(device.path()).unwrap();
        let failure = read_places(&device, &[(8192, 4096), (4096, 10)], |device, reads| {
            device.read_batch(reads)
        });
        let failure = failure.unwrap_err();
        assert!(
            matches!(
                &failure,
                Error::Io {
                    op: Op::Read,
                    offset_bytes: 4096,
                    ..
                }
            ),
            "{failure}"
        );
        assert_eq!(failure.os_error().and_then(io::Error::raw_os_error), Some(libc::EBADF));
    }

    #[test]
    fn open_waits_for_a_lock_that_is_about_to_be_released() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = FileDevice::create(&path, 1 << 20).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(LETS_GO_AFTER / 10);
                drop(device);
            });
            FileDevice::open(&path, OpenMode::ReadWrite).unwrap();
        });
    }

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
