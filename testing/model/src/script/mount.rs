//! Scripts as system calls, on any mount.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Error, Result};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cowshed_harness::{clone_range, dedupe_range, run, write_through_map};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};

use super::op::{How, Kind, Op, Prealloc};

/// What direct I/O needs a buffer to be aligned to.
const ALIGN_BYTES: usize = 4096;

/// Plays operations below a directory.
#[derive(Debug)]
pub struct MountPlayer {
    root: PathBuf,
    slots: BTreeMap<String, File>,
}

impl MountPlayer {
    pub fn new(root: &Path) -> MountPlayer {
        MountPlayer {
            root: root.into(),
            slots: BTreeMap::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        match self.slots.get(name) {
            Some(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            None => self.root.join(name.trim_end_matches('/')),
        }
    }

    /// A descriptor for reading and writing, of a directory for reading.
    fn file(&self, name: &str, flags: OFlags) -> Result<File> {
        let path = self.path(name);
        let is_dir = path.is_dir();
        OpenOptions::new()
            .read(true)
            .write(!is_dir)
            .custom_flags(flags.bits() as i32)
            .open(path)
    }

    fn create(&self, name: &str) -> Result<File> {
        if self.slots.contains_key(name) {
            return self.file(name, OFlags::empty());
        }
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o644)
            .open(self.path(name))
    }

    /// A file without a name.
    fn unnamed(&self, dir: &str) -> Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        Ok(rustix::fs::open(self.path(dir), flags, Mode::from_raw_mode(0o644))?.into())
    }

    /// Applies one operation. Those that Linux has no calls for are not supported
    /// ([`Op::is_linux`]).
    pub fn apply(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Create { .. }
            | Op::InPlace { .. }
            | Op::Temporary { .. }
            | Op::Mkdir { .. }
            | Op::Mknod { .. }
            | Op::Symlink { .. }
            | Op::Many { .. } => self.make(op)?,
            Op::Subvolume { path } => self.subvolume("create", &[path])?,
            Op::Snapshot { from, to } => self.subvolume("snapshot", &[from, to])?,
            Op::DeleteSubvolume { path } => self.subvolume("delete", &[path])?,
            Op::Write {
                path,
                offset,
                data,
                how,
            } => self.write(path, *offset, &data.bytes(), *how)?,
            Op::Scatter { .. } | Op::Truncate { .. } | Op::Fallocate { .. } => self.data(op)?,
            Op::Copy { .. } | Op::CloneRange { .. } | Op::Dedupe { .. } => self.share(op)?,
            Op::SetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::Utime { .. }
            | Op::Flags { .. } => self.change(op)?,
            Op::Rename { .. }
            | Op::Whiteout { .. }
            | Op::Exchange { .. }
            | Op::Link { .. }
            | Op::ManyLinks { .. }
            | Op::Unlink { .. }
            | Op::UnlinkEvery { .. }
            | Op::Rmdir { .. } => self.name(op)?,
            Op::Tmpfile { slot, dir } => {
                let file = self.unnamed(dir)?;
                self.slots.insert(slot.clone(), file);
            }
            Op::Open { slot, path } => {
                let file = self.file(path, OFlags::empty())?;
                self.slots.insert(slot.clone(), file);
            }
            Op::Close { slot } => drop(self.slots.remove(slot)),
            // Dentries and inodes; the page cache stays.
            Op::Drop => std::fs::write("/proc/sys/vm/drop_caches", "2")?,
            Op::Fsync { path } => self.file(path, OFlags::empty())?.sync_all()?,
            Op::Fdatasync { path } => self.file(path, OFlags::empty())?.sync_data()?,
            Op::Sync => rustix::fs::syncfs(File::open(&self.root)?)?,
            Op::Swap { .. }
            | Op::Group { .. }
            | Op::Begin { .. }
            | Op::Stage { .. }
            | Op::End { .. }
            | Op::Defrag { .. } => return Err(std::io::ErrorKind::Unsupported.into()),
        }
        Ok(())
    }

    fn make(&self, op: &Op) -> Result<()> {
        match op {
            Op::Create { path } => self.create(path).map(drop),
            Op::Mkdir { path } => std::fs::create_dir(self.path(path)),
            Op::Mknod { path, kind } => {
                let (kind, dev) = match kind {
                    Kind::Fifo => (FileType::Fifo, 0),
                    Kind::Char => (FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
                    Kind::Socket => (FileType::Socket, 0),
                };
                let mode = Mode::from_raw_mode(0o644);
                Ok(rustix::fs::mknodat(CWD, self.path(path), kind, mode, dev)?)
            }
            Op::Symlink { path, target } => std::os::unix::fs::symlink(target, self.path(path)),
            Op::InPlace { path } => {
                let file = self.create(path)?;
                Ok(rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::NOCOW)?)
            }
            Op::Temporary { dir, to, data, fsync } => {
                let file = self.unnamed(dir)?;
                file.write_all_at(&data.bytes(), 0)?;
                if *fsync {
                    file.sync_all()?;
                }
                let from = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
                Ok(rustix::fs::linkat(
                    CWD,
                    from,
                    CWD,
                    self.path(to),
                    AtFlags::SYMLINK_FOLLOW,
                )?)
            }
            Op::Many { prefix, count } => {
                (0..*count).try_for_each(|n| File::create_new(self.path(&format!("{prefix}{n}"))).map(drop))
            }
            _ => unreachable!("makes nothing"),
        }
    }

    fn subvolume(&self, verb: &str, paths: &[&String]) -> Result<()> {
        let mut args = vec![PathBuf::from("subvolume"), PathBuf::from(verb)];
        args.extend(paths.iter().map(|path| self.path(path)));
        run("btrfs", &args).map(drop).map_err(Error::other)
    }

    fn share(&self, op: &Op) -> Result<()> {
        match op {
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => {
                let (from, to) = (self.file(from, OFlags::empty())?, self.create(to)?);
                let (mut at, mut to_at) = (*from_offset, *to_offset);
                let end = at + len;
                while at < end {
                    let left = (end - at) as usize;
                    if rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), left)? == 0 {
                        break;
                    }
                }
                Ok(())
            }
            Op::CloneRange {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => {
                let (from, to) = (self.file(from, OFlags::empty())?, self.create(to)?);
                clone_range(&from, *from_offset, &to, *to_offset, *len)
            }
            Op::Dedupe {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => {
                let (from, to) = (self.file(from, OFlags::empty())?, self.file(to, OFlags::empty())?);
                match dedupe_range(&from, *from_offset, &to, *to_offset, *len)? {
                    shared if shared == *len => Ok(()),
                    shared => Err(Error::other(format!("{shared} of {len} bytes are the same"))),
                }
            }
            _ => unreachable!("shares nothing"),
        }
    }

    fn write(&self, path: &str, offset: u64, data: &[u8], how: How) -> Result<()> {
        let flags = match how {
            How::Plain => OFlags::empty(),
            How::Sync => OFlags::SYNC,
            How::DataSync => OFlags::DSYNC,
            How::Mapped => return write_through_map(&self.file(path, OFlags::empty())?, offset, data),
            How::Direct => OFlags::DIRECT,
        };
        drop(self.create(path)?);
        let file = self.file(path, flags)?;
        if how != How::Direct {
            return file.write_all_at(data, offset);
        }
        let mut room = vec![0; data.len() + ALIGN_BYTES];
        let start = room.as_ptr().align_offset(ALIGN_BYTES);
        let aligned = &mut room[start..start + data.len()];
        aligned.copy_from_slice(data);
        file.write_all_at(aligned, offset)
    }

    fn data(&self, op: &Op) -> Result<()> {
        match op {
            Op::Scatter {
                path,
                count,
                step,
                letter,
            } => {
                let file = self.create(path)?;
                (0..*count).try_for_each(|n| file.write_all_at(&[*letter; 4096], n * step))
            }
            Op::Truncate { path, size_bytes } => self.file(path, OFlags::empty())?.set_len(*size_bytes),
            Op::Fallocate { path, offset, len, how } => {
                let flags = match how {
                    Prealloc::Extend => FallocateFlags::empty(),
                    Prealloc::KeepSize => FallocateFlags::KEEP_SIZE,
                    Prealloc::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Prealloc::Zero => FallocateFlags::ZERO_RANGE,
                };
                let file = self.file(path, OFlags::empty())?;
                Ok(rustix::fs::fallocate(file, flags, *offset, *len)?)
            }
            _ => unreachable!("no data"),
        }
    }

    fn change(&self, op: &Op) -> Result<()> {
        match op {
            Op::SetXattr { path, name, value } => {
                let value = value.bytes();
                rustix::fs::setxattr(self.path(path), name.as_str(), &value, XattrFlags::empty())?;
            }
            Op::RemoveXattr { path, name } => rustix::fs::removexattr(self.path(path), name.as_str())?,
            Op::Chmod { path, perm } => rustix::fs::chmod(self.path(path), Mode::from_raw_mode(*perm))?,
            Op::Chown { path, id } => std::os::unix::fs::chown(self.path(path), Some(*id), Some(*id))?,
            Op::Utime { path, secs } => {
                let time = Timespec {
                    tv_sec: i64::from(*secs),
                    tv_nsec: 0,
                };
                let times = Timestamps {
                    last_access: time,
                    last_modification: time,
                };
                rustix::fs::utimensat(CWD, self.path(path), &times, AtFlags::empty())?;
            }
            Op::Flags { path, flags } => {
                let flags = rustix::fs::IFlags::from_bits_retain(*flags as _);
                rustix::fs::ioctl_setflags(self.file(path, OFlags::empty())?, flags)?;
            }
            _ => unreachable!("no attribute"),
        }
        Ok(())
    }

    fn name(&self, op: &Op) -> Result<()> {
        let rename = |from: &str, to: &str, flags| {
            Ok(rustix::fs::renameat_with(
                CWD,
                self.path(from),
                CWD,
                self.path(to),
                flags,
            )?)
        };
        match op {
            Op::Rename { from, to } => rename(from, to, RenameFlags::empty()),
            Op::Whiteout { from, to } => rename(from, to, RenameFlags::WHITEOUT),
            Op::Exchange { from, to } => rename(from, to, RenameFlags::EXCHANGE),
            Op::Link { from, to } => self.link(from, to),
            Op::ManyLinks { from, prefix, count } => {
                (0..*count).try_for_each(|n| self.link(from, &format!("{prefix}{n}")))
            }
            Op::Unlink { path } => std::fs::remove_file(self.path(path)),
            Op::UnlinkEvery { nth, prefix, count } => (0..*count)
                .step_by(*nth as usize)
                .try_for_each(|n| std::fs::remove_file(self.path(&format!("{prefix}{n}")))),
            Op::Rmdir { path } => std::fs::remove_dir(self.path(path)),
            _ => unreachable!("no name"),
        }
    }

    fn link(&self, from: &str, to: &str) -> Result<()> {
        let follow = match self.slots.contains_key(from) {
            true => AtFlags::SYMLINK_FOLLOW,
            false => AtFlags::empty(),
        };
        Ok(rustix::fs::linkat(CWD, self.path(from), CWD, self.path(to), follow)?)
    }
}
