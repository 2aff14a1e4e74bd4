//! Scripts as system calls, on any mount.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use cowshed_harness::{dedupe_range, run, write_through_map};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};

use crate::op::{How, Kind, Op, Prealloc};

/// What direct I/O needs a buffer to be aligned to.
const BLOCK_BYTES: usize = 4096;

/// Plays operations below a directory.
#[derive(Debug)]
pub struct Linux {
    root: PathBuf,
    slots: BTreeMap<String, File>,
}

impl Linux {
    pub fn new(root: &Path) -> Linux {
        Linux {
            root: root.into(),
            slots: BTreeMap::new(),
        }
    }

    pub fn apply(&mut self, op: &Op) -> Result<()> {
        self.run(op).with_context(|| format!("{op:?}"))
    }

    fn path(&self, name: &str) -> PathBuf {
        match self.slots.get(name) {
            Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => self.root.join(name),
        }
    }

    /// A descriptor for reading and writing, of a directory for reading.
    fn file(&self, name: &str, flags: OFlags) -> Result<File> {
        let path = self.path(name);
        let is_dir = path.is_dir();
        Ok(OpenOptions::new()
            .read(true)
            .write(!is_dir)
            .custom_flags(flags.bits() as i32)
            .open(path)?)
    }

    fn create(&self, name: &str) -> Result<File> {
        if self.slots.contains_key(name) {
            return self.file(name, OFlags::empty());
        }
        let mut options = OpenOptions::new();
        Ok(options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(self.path(name))?)
    }

    fn run(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Create(..) | Op::Mkdir(..) | Op::Mknod(..) | Op::Symlink(..) | Op::InPlace(..) => self.make(op),
            Op::Flags(path, flags) => {
                let file = self.file(path, OFlags::empty())?;
                Ok(rustix::fs::ioctl_setflags(
                    &file,
                    rustix::fs::IFlags::from_bits_retain(*flags as _),
                )?)
            }
            Op::Subvolume(..) | Op::Snapshot(..) | Op::DeleteSubvolume(..) => self.subvolume(op),
            Op::Write(..) | Op::Scatter(..) | Op::Truncate(..) | Op::Fallocate(..) => self.data(op),
            Op::Clone(..) | Op::Dedupe(..) => self.share(op),
            Op::SetXattr(..) | Op::RemoveXattr(..) | Op::Chmod(..) | Op::Chown(..) | Op::Utime(..) => self.change(op),
            Op::Rename(..) | Op::Whiteout(..) | Op::Exchange(..) | Op::Link(..) | Op::Unlink(..) | Op::Rmdir(..) => {
                self.name(op)
            }
            Op::Many(..) | Op::ManyLinks(..) | Op::UnlinkEvery(..) => self.many(op),
            Op::Tmpfile(slot, dir) => {
                let flags = OFlags::TMPFILE | OFlags::RDWR;
                let fd = rustix::fs::open(self.path(dir), flags, Mode::from_raw_mode(0o644))?;
                self.slots.insert(slot.clone(), fd.into());
                Ok(())
            }
            Op::Open(slot, path) => {
                let file = self.file(path, OFlags::empty())?;
                self.slots.insert(slot.clone(), file);
                Ok(())
            }
            Op::Close(slot) => {
                self.slots.remove(slot);
                Ok(())
            }
            // Dentries and inodes; the page cache stays.
            Op::Drop => Ok(std::fs::write("/proc/sys/vm/drop_caches", "2")?),
            Op::Fsync(path) => Ok(self.file(path, OFlags::empty())?.sync_all()?),
            Op::Fdatasync(path) => Ok(self.file(path, OFlags::empty())?.sync_data()?),
            Op::Sync => Ok(rustix::fs::syncfs(File::open(&self.root)?)?),
        }
    }

    fn make(&self, op: &Op) -> Result<()> {
        match op {
            Op::Create(path) => self.create(path).map(drop),
            Op::Mkdir(path) => Ok(std::fs::create_dir(self.path(path))?),
            Op::Mknod(kind, path) => {
                let (kind, dev) = match kind {
                    Kind::Fifo => (FileType::Fifo, 0),
                    Kind::Char => (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
                    Kind::Socket => (FileType::Socket, 0),
                };
                let mode = Mode::from_raw_mode(0o644);
                Ok(rustix::fs::mknodat(CWD, self.path(path), kind, mode, dev)?)
            }
            Op::Symlink(target, path) => Ok(std::os::unix::fs::symlink(target, self.path(path))?),
            Op::InPlace(path) => {
                let file = self.create(path)?;
                Ok(rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::NOCOW)?)
            }
            _ => unreachable!("makes nothing"),
        }
    }

    fn subvolume(&self, op: &Op) -> Result<()> {
        let (verb, paths) = match op {
            Op::Subvolume(path) => ("create", vec![path]),
            Op::Snapshot(from, to) => ("snapshot", vec![from, to]),
            Op::DeleteSubvolume(path) => ("delete", vec![path]),
            _ => unreachable!("no subvolume"),
        };
        let mut args = vec![PathBuf::from("subvolume"), PathBuf::from(verb)];
        args.extend(paths.into_iter().map(|path| self.path(path)));
        run("btrfs", &args).map(drop)
    }

    fn share(&self, op: &Op) -> Result<()> {
        match op {
            Op::Clone(from, from_offset, to, to_offset, len) => {
                let (from, to) = (self.file(from, OFlags::empty())?, self.create(to)?);
                let (mut at, mut to_at) = (*from_offset, *to_offset);
                let end = at + len;
                while at < end {
                    let left = (end - at) as usize;
                    let done = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left)?;
                    anyhow::ensure!(done > 0, "the source is too short");
                }
            }
            Op::Dedupe(from, from_offset, to, to_offset, len) => {
                let (from, to) = (self.file(from, OFlags::empty())?, self.file(to, OFlags::empty())?);
                let shared = dedupe_range(&from, *from_offset, &to, *to_offset, *len)?;
                anyhow::ensure!(shared == *len, "{shared} of {len} bytes are the same");
            }
            _ => unreachable!("shares nothing"),
        }
        Ok(())
    }

    fn data(&self, op: &Op) -> Result<()> {
        match op {
            Op::Write(How::Mapped, path, offset, data) => {
                write_through_map(&self.file(path, OFlags::empty())?, *offset, data)?;
            }
            Op::Write(How::Direct, path, offset, data) => {
                drop(self.create(path)?);
                let mut room = vec![0; data.len() + BLOCK_BYTES];
                let start = room.as_ptr().align_offset(BLOCK_BYTES);
                let aligned = &mut room[start..start + data.len()];
                aligned.copy_from_slice(data);
                self.file(path, OFlags::DIRECT)?.write_all_at(aligned, *offset)?;
            }
            Op::Write(how, path, offset, data) => {
                let flags = match how {
                    How::Sync => OFlags::SYNC,
                    How::DataSync => OFlags::DSYNC,
                    How::Plain | How::Mapped | How::Direct => OFlags::empty(),
                };
                drop(self.create(path)?);
                self.file(path, flags)?.write_all_at(data, *offset)?;
            }
            Op::Scatter(path, count, step, letter) => {
                let file = self.create(path)?;
                for n in 0..*count {
                    file.write_all_at(&[*letter; 4096], n * step)?;
                }
            }
            Op::Truncate(path, size) => self.file(path, OFlags::empty())?.set_len(*size)?,
            Op::Fallocate(how, path, offset, len) => {
                let flags = match how {
                    Prealloc::Extend => FallocateFlags::empty(),
                    Prealloc::KeepSize => FallocateFlags::KEEP_SIZE,
                    Prealloc::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Prealloc::Zero => FallocateFlags::ZERO_RANGE,
                };
                rustix::fs::fallocate(self.create(path)?, flags, *offset, *len)?;
            }
            _ => unreachable!("no data"),
        }
        Ok(())
    }

    fn change(&self, op: &Op) -> Result<()> {
        match op {
            Op::SetXattr(path, name, value) => {
                rustix::fs::setxattr(self.path(path), name.as_str(), value, XattrFlags::empty())?;
            }
            Op::RemoveXattr(path, name) => rustix::fs::removexattr(self.path(path), name.as_str())?,
            Op::Chmod(path, mode) => rustix::fs::chmod(self.path(path), Mode::from_raw_mode(*mode))?,
            Op::Chown(path, id) => std::os::unix::fs::chown(self.path(path), Some(*id), Some(*id))?,
            Op::Utime(path, secs) => {
                let time = Timespec {
                    tv_sec: *secs,
                    tv_nsec: 0,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rustix::fs::utimensat(CWD, self.path(path), &times, AtFlags::empty())?;
            }
            _ => unreachable!("no attribute"),
        }
        Ok(())
    }

    fn name(&self, op: &Op) -> Result<()> {
        match op {
            Op::Rename(from, to) => std::fs::rename(self.path(from), self.path(to))?,
            Op::Whiteout(from, to) => {
                rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), RenameFlags::WHITEOUT)?;
            }
            Op::Exchange(from, to) => {
                rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), RenameFlags::EXCHANGE)?;
            }
            Op::Link(from, to) => {
                let follow = match self.slots.contains_key(from) {
                    true => AtFlags::SYMLINK_FOLLOW,
                    false => AtFlags::empty(),
                };
                rustix::fs::linkat(CWD, self.path(from), CWD, self.path(to), follow)?;
            }
            Op::Unlink(path) => std::fs::remove_file(self.path(path))?,
            Op::Rmdir(path) => std::fs::remove_dir(self.path(path))?,
            _ => unreachable!("no name"),
        }
        Ok(())
    }

    fn many(&self, op: &Op) -> Result<()> {
        let numbered = |prefix: &str, n: u64| self.path(&format!("{prefix}{n}"));
        match op {
            Op::Many(prefix, count) => {
                for n in 0..*count {
                    File::create_new(numbered(prefix, n))?;
                }
            }
            Op::ManyLinks(from, prefix, count) => {
                for n in 0..*count {
                    std::fs::hard_link(self.path(from), numbered(prefix, n))?;
                }
            }
            Op::UnlinkEvery(nth, prefix, count) => {
                for n in (0..*count).step_by(*nth as usize) {
                    std::fs::remove_file(numbered(prefix, n))?;
                }
            }
            _ => unreachable!("not many"),
        }
        Ok(())
    }
}
