//! The model's operations as system calls on a mount.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cowshed_model::{At, Body, Generator, Id, Mix, Model, Op, Place, SLOTS, Touch, pattern, xattr_name};
use cowshed_vfs::FileKind;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use crate::history::{History, NOW};

/// Larger files are not made: all that is on disk is read back.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// How the loading ended.
#[derive(Debug)]
pub enum End {
    /// The mount is gone.
    Killed,
    /// A system call failed though the model says that it succeeds.
    Wrong(String),
}

/// Works on a mount.
pub struct Loader {
    root: PathBuf,
    slots: Vec<Option<File>>,
    generator: Generator,
}

type Done = Result<(), Errno>;

fn io(result: std::io::Result<()>) -> Done {
    result.map_err(|e| Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc_eio())))
}

const fn libc_eio() -> i32 {
    5
}

fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::IO)
}

impl Loader {
    pub fn new(root: &Path, seed: u64) -> Loader {
        let mix = Mix {
            no_remount: true,
            ..Mix::default()
        };
        Loader {
            root: root.into(),
            slots: (0..SLOTS).map(|_| None).collect(),
            generator: Generator::new(seed, mix),
        }
    }

    /// Works until the mount fails. The model and the history follow.
    pub fn work(&mut self, model: &mut Model, history: &mut History) -> End {
        loop {
            let op = as_linux_does(self.generator.draw(model));
            if !is_wanted(&op, model) {
                continue;
            }
            let synced = match &op {
                Op::Fsync { at } => model.resolve(at).ok(),
                _ => None,
            };
            // Only what succeeds is done: which error comes first is the kernel's own affair.
            if model.apply(&op, NOW).is_err() {
                continue;
            }
            history.ops.push(op.clone());
            history.trace.push(op.clone());
            match self.run(&op, model).and_then(|()| self.look(&op, model)) {
                Ok(None) => {}
                Ok(Some(wrong)) => return End::Wrong(format!("{op:?}: {wrong}")),
                Err(errno) if is_gone(errno) => {
                    history.is_last_open = true;
                    return End::Killed;
                }
                Err(errno) => return End::Wrong(format!("{op:?}: {errno}")),
            }
            match (&op, synced) {
                (Op::Sync, _) => history.synced(model),
                (_, Some(id)) => history.fsynced(id),
                _ => {}
            }
        }
    }

    /// Is the size of what was touched what the model says?
    fn look(&self, op: &Op, model: &Model) -> Result<Option<String>, Errno> {
        let Some(at) = op.touched().pop() else { return Ok(None) };
        let Ok(id) = model.resolve(&at) else { return Ok(None) };
        if !matches!(model.node(id).body, Body::File(_)) {
            return Ok(None);
        }
        let found = rustix::fs::stat(self.path(&at))?.st_size as u64;
        let expected = model.node(id).size_bytes();
        Ok((found != expected).then(|| format!("{found} bytes, expected {expected}")))
    }

    fn path(&self, at: &At) -> PathBuf {
        match at {
            At::Path(path) => {
                let mut all = self.root.clone();
                all.extend(path.iter().map(|n| std::ffi::OsString::from_vec(n.bytes())));
                all
            }
            At::Slot(slot) => {
                let fd = self.slots[usize::from(*slot)].as_ref().map_or(-1, AsRawFd::as_raw_fd);
                PathBuf::from(format!("/proc/self/fd/{fd}"))
            }
        }
    }

    fn place(&self, place: &Place) -> PathBuf {
        self.path(&place.dir)
            .join(std::ffi::OsString::from_vec(place.name.bytes()))
    }

    fn file(&self, at: &At) -> Result<File, Errno> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(0o400_000)
            .open(self.path(at));
        opened
            .or_else(|e| match at {
                // O_NOFOLLOW is for names; the way to a slot is a link.
                At::Slot(_) if e.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                    OpenOptions::new().read(true).write(true).open(self.path(at))
                }
                _ => Err(e),
            })
            .map_err(|e| Errno::from_raw_os_error(e.raw_os_error().unwrap_or(libc_eio())))
    }

    fn run(&mut self, op: &Op, model: &Model) -> Done {
        match op {
            Op::Create { .. } | Op::Mknod { .. } | Op::Mkdir { .. } | Op::Symlink { .. } => self.make(op),
            Op::Link { at, place } => {
                let flags = if matches!(at, At::Slot(_)) {
                    AtFlags::SYMLINK_FOLLOW
                } else {
                    AtFlags::empty()
                };
                rustix::fs::linkat(CWD, self.path(at), CWD, self.place(place), flags)
            }
            Op::Unlink { place } => rustix::fs::unlink(self.place(place)),
            Op::Rmdir { place } => rustix::fs::rmdir(self.place(place)),
            Op::Rename { from, to, flags } => {
                let flags = RenameFlags::from_bits_retain(flags.bits());
                rustix::fs::renameat_with(CWD, self.place(from), CWD, self.place(to), flags)
            }
            Op::Tmpfile {
                slot,
                dir,
                perm,
                exclusive,
            } => {
                let mut flags = OFlags::TMPFILE | OFlags::RDWR;
                flags.set(OFlags::EXCL, *exclusive);
                let fd = rustix::fs::open(self.path(dir), flags, Mode::from_raw_mode(*perm))?;
                self.slots[usize::from(*slot)] = Some(fd.into());
                Ok(())
            }
            Op::Open { slot, at } => {
                let id = model.slot(*slot).expect("applied before");
                let how = match model.node(id).kind {
                    FileKind::Regular => OFlags::RDWR,
                    FileKind::Directory => OFlags::RDONLY,
                    _ => OFlags::PATH | OFlags::NOFOLLOW,
                };
                let fd = rustix::fs::open(self.path(at), how, Mode::empty())?;
                self.slots[usize::from(*slot)] = Some(fd.into());
                Ok(())
            }
            Op::Close { slot } => {
                self.slots[usize::from(*slot)] = None;
                Ok(())
            }
            Op::Write { .. } | Op::Truncate { .. } | Op::Fallocate { .. } | Op::Read { .. } | Op::Copy { .. } => {
                self.data(op)
            }
            Op::SetXattr { .. } | Op::RemoveXattr { .. } | Op::Chmod { .. } | Op::Chown { .. } | Op::Utimes { .. } => {
                self.change(op)
            }
            Op::List { at } => {
                io(std::fs::read_dir(self.path(at)).and_then(|mut all| all.try_for_each(|e| e.map(drop))))
            }
            Op::Fsync { at } => {
                let id = model.resolve(at).expect("applied before");
                let how = if model.node(id).is_dir() {
                    OFlags::RDONLY
                } else {
                    OFlags::RDWR
                };
                rustix::fs::fsync(rustix::fs::open(self.path(at), how, Mode::empty())?)
            }
            Op::Sync => {
                let dir = rustix::fs::open(&self.root, OFlags::RDONLY, Mode::empty())?;
                rustix::fs::syncfs(&dir)?;
                // A mount that is not of a block device passes syncfs on only in part.
                rustix::fs::fsync(&dir)
            }
            other => unreachable!("{other:?} is not wanted"),
        }
    }

    fn make(&self, op: &Op) -> Done {
        match op {
            Op::Create {
                place,
                perm,
                exclusive,
                truncate,
            } => {
                let mut flags = OFlags::CREATE | OFlags::RDWR | OFlags::NONBLOCK;
                flags.set(OFlags::EXCL, *exclusive);
                flags.set(OFlags::TRUNC, *truncate);
                rustix::fs::open(self.place(place), flags, Mode::from_raw_mode(*perm)).map(drop)
            }
            Op::Mknod {
                place,
                kind,
                perm,
                rdev,
            } => {
                let kind = match kind {
                    FileKind::Fifo => FileType::Fifo,
                    FileKind::Socket => FileType::Socket,
                    FileKind::CharDevice => FileType::CharacterDevice,
                    FileKind::BlockDevice => FileType::BlockDevice,
                    _ => FileType::RegularFile,
                };
                let (major, minor) = ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xf_ff00));
                let device = rustix::fs::makedev(major, minor);
                rustix::fs::mknodat(CWD, self.place(place), kind, Mode::from_raw_mode(*perm), device)
            }
            Op::Mkdir { place, perm } => rustix::fs::mkdir(self.place(place), Mode::from_raw_mode(*perm)),
            Op::Symlink {
                place,
                target_bytes,
                fill,
            } => {
                let target = CString::new(Op::target(*target_bytes, *fill)).expect("letters");
                rustix::fs::symlink(target, self.place(place))
            }
            _ => unreachable!("only these are given"),
        }
    }

    fn data(&self, op: &Op) -> Done {
        match op {
            Op::Write {
                at,
                offset,
                len,
                fill,
                append,
            } => {
                let file = self.file(at)?;
                let offset = if *append {
                    rustix::fs::fstat(&file)?.st_size as u64
                } else {
                    *offset
                };
                io(file.write_all_at(&pattern(*fill, *len as usize), offset))
            }
            Op::Truncate { at, size } => rustix::fs::ftruncate(self.file(at)?, *size),
            Op::Fallocate { at, mode, offset, len } => rustix::fs::fallocate(
                self.file(at)?,
                FallocateFlags::from_bits_retain(mode.bits()),
                *offset,
                *len,
            ),
            Op::Read { at, offset, len } => {
                let mut buf = vec![0; *len as usize];
                rustix::io::pread(self.file(at)?, &mut buf, *offset).map(drop)
            }
            Op::Copy {
                src,
                src_offset,
                dst,
                dst_offset,
                len,
            } => {
                let (from, to) = (self.file(src)?, self.file(dst)?);
                // One call: a second one would see what the first one wrote.
                let (mut src, mut dst) = (*src_offset, *dst_offset);
                rustix::fs::copy_file_range(&from, Some(&mut src), &to, Some(&mut dst), *len as usize).map(drop)
            }
            _ => unreachable!("only these are given"),
        }
    }

    fn change(&self, op: &Op) -> Done {
        let at = &op.touched()[0];
        let path = self.path(at);
        // The way to a slot is a link that is to be followed.
        let follow = matches!(at, At::Slot(_));
        let flags = if follow {
            AtFlags::empty()
        } else {
            AtFlags::SYMLINK_NOFOLLOW
        };
        match op {
            Op::SetXattr {
                name, len, fill, flags, ..
            } => {
                let (name, value) = (xattr_name(*name), pattern(*fill, *len as usize));
                let flags = XattrFlags::from_bits_retain(flags.bits());
                if follow {
                    rustix::fs::setxattr(path, name, &value, flags)
                } else {
                    rustix::fs::lsetxattr(path, name, &value, flags)
                }
            }
            Op::RemoveXattr { name, .. } if follow => rustix::fs::removexattr(path, xattr_name(*name)),
            Op::RemoveXattr { name, .. } => rustix::fs::lremovexattr(path, xattr_name(*name)),
            Op::Chmod { perm, .. } => rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(*perm), AtFlags::empty()),
            Op::Chown { uid, gid, .. } => {
                let (uid, gid) = (uid.map(rustix::fs::Uid::from_raw), gid.map(rustix::fs::Gid::from_raw));
                rustix::fs::chownat(CWD, path, uid, gid, flags)
            }
            Op::Utimes { atime, mtime, .. } => {
                let times = Timestamps {
                    last_access: timespec(*atime),
                    last_modification: timespec(*mtime),
                };
                rustix::fs::utimensat(CWD, path, &times, flags)
            }
            _ => unreachable!("only these are given"),
        }
    }
}

fn timespec(touch: Touch) -> Timespec {
    match touch {
        Touch::Keep => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_OMIT,
        },
        Touch::Now => Timespec {
            tv_sec: 0,
            tv_nsec: rustix::fs::UTIME_NOW,
        },
        Touch::At(time) => Timespec {
            tv_sec: time.secs,
            tv_nsec: i64::from(time.nanos),
        },
    }
}

/// What reaches the file system of what a caller asks: directories are not made with set-id bits.
fn as_linux_does(op: Op) -> Op {
    match op {
        Op::Mkdir { place, perm } => Op::mkdir(place, perm & 0o1777),
        op => op,
    }
}

/// What can be done by one system call, with the same meaning, in bounds.
fn is_wanted(op: &Op, model: &Model) -> bool {
    let is_file = |at: &At| {
        model
            .resolve(at)
            .is_ok_and(|id| matches!(model.node(id).body, Body::File(_)))
    };
    let is_plain = |at: &At| model.resolve(at).is_ok_and(|id| is_file_or_dir(model, id));
    let fits = |offset: u64, len: u64| offset.saturating_add(len) <= FILE_BYTES_MAX;
    // Links at the end of a path would be followed by some calls and not by others.
    let is_free = |place: &Place| {
        let dir = model.resolve(&place.dir);
        dir.is_ok_and(|dir| matches!(model.child(dir, place.name), Ok(None)))
    };
    match op {
        Op::Seek { .. }
        | Op::Defrag { .. }
        | Op::Map { .. }
        | Op::Flags { .. }
        | Op::Property { .. }
        | Op::Clone { .. }
        | Op::Dedupe { .. }
        | Op::Exchange { .. }
        | Op::Stage { .. }
        | Op::EndGroup { .. }
        | Op::ReadStaged { .. }
        | Op::Commit
        | Op::Cool
        | Op::Remount => false,
        Op::Create { place, .. } => is_free(place),
        Op::Write { at, offset, len, .. } => is_file(at) && fits(*offset, u64::from(*len)),
        Op::Truncate { at, size } => is_file(at) && fits(*size, 0),
        Op::Fallocate { at, offset, len, .. } => is_file(at) && fits(*offset, *len),
        Op::Read { at, offset, .. } => is_file(at) && fits(*offset, 0),
        Op::Copy {
            src,
            src_offset,
            dst,
            dst_offset,
            len,
        } => is_file(src) && is_file(dst) && fits(*src_offset, *len) && fits(*dst_offset, *len),
        Op::Chmod { at, .. } | Op::Open { at, .. } | Op::Fsync { at } => is_plain(at),
        Op::Link { at, .. } => match at {
            At::Slot(_) => is_file(at),
            At::Path(_) => true,
        },
        Op::SetXattr { at, .. } | Op::RemoveXattr { at, .. } => is_plain(at) || matches!(at, At::Path(_)),
        _ => true,
    }
}

fn is_file_or_dir(model: &Model, id: Id) -> bool {
    matches!(model.node(id).body, Body::File(_) | Body::Dir { .. })
}
