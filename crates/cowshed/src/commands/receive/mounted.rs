//! A stream played onto a mount, by system calls.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use btrfs_stream::Time;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmod, chownat,
    fallocate, fstat, futimens, getxattr, linkat, mkdirat, mknodat, openat, removexattr, renameat, setxattr, symlinkat,
    unlinkat, utimensat,
};

use super::beneath::{Beneath, name_of, open_beneath};
use super::ioctls;
use super::limits::{CAPABILITIES, CAPABILITIES_BYTES_MAX, known_fallocate, owner};
use super::locks::Locks;
use super::other_process;
use super::player::{self, New, Options, Outcome, Shared, Start, Target, reader_of};
use super::sources::Sources;
use crate::commands::btrfs::calls;
use crate::commands::extents::remap;
use crate::commands::sync;

/// What a process may do with a new file until its mode comes.
const NEW_FILE: Mode = Mode::RUSR.union(Mode::WUSR);
const NEW_DIR: Mode = Mode::RWXU;

/// The width of the nanoseconds is the platform's.
fn timespec(tv_sec: i64, nanos: impl TryInto<i64>) -> Timespec {
    Timespec {
        tv_sec,
        tv_nsec: nanos.try_into().unwrap_or(0),
    }
}

/// Plays a stream onto a mount. `mount`: see [`Sources::new`].
pub fn receive(input: File, dir: &Path, mount: Option<&Path>, options: &Options<'_>) -> Result<Outcome> {
    // The process that serves the mount needs no system call for each change.
    if mount.is_none()
        && let Some(outcome) = other_process::ask(&input, dir, options)?
    {
        return Ok(outcome);
    }
    let mut target = Mounted::new(dir, mount).with_context(|| dir.display().to_string())?;
    player::play(&mut reader_of(input), &mut target, options)
}

/// A directory on a mount.
struct Mounted {
    dir: File,
    sources: Sources,
    current: Option<Current>,
}

/// The subvolume under way.
struct Current {
    beneath: Beneath,
    locks: Locks,
    uuid: [u8; 16],
    ctransid: u64,
    /// Number of the subvolume.
    id: u64,
    /// Times of the root directory. New inodes have their first name there, and the stream does not
    /// set its times again for that.
    root_times: Timestamps,
    /// The file that was written last.
    open: Option<(Vec<u8>, File)>,
}

impl Mounted {
    /// Receives into `dir`; see [`Sources::new`].
    fn new(dir: &Path, mount: Option<&Path>) -> Result<Self> {
        Ok(Self {
            dir: File::open(dir)?,
            sources: Sources::new(dir, mount)?,
            current: None,
        })
    }

    fn current(&mut self) -> Result<&mut Current> {
        self.current.as_mut().context("no subvolume has begun")
    }
}

impl Current {
    /// Does what may be forbidden by a flag of an inode at `path`, or of the directory that it is
    /// in: then the flag is taken away until the end, and it is done again.
    fn unlocked<T>(&mut self, paths: &[&[u8]], act: impl Fn(&mut Self) -> io::Result<T>) -> Result<T> {
        match act(self) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                match self.locks.unlock_all(&self.beneath, paths)? {
                    true => Ok(act(self)?),
                    false => Err(error.into()),
                }
            }
            done => Ok(done?),
        }
    }

    /// Has the file at `path` open for writing.
    fn open(&mut self, path: &[u8]) -> Result<&File> {
        if self.open.as_ref().is_none_or(|(open, _)| open != path) {
            self.open = None;
            let file = self.unlocked(&[path], |this| this.beneath.file(path, OFlags::RDWR))?;
            self.open = Some((path.to_owned(), file));
        }
        self.open.as_ref().map(|(_, file)| file).context("just opened")
    }

    /// Names or attributes change: what was written must be with the file system before that.
    fn close(&mut self) {
        self.open = None;
    }
}

impl Target for Mounted {
    fn begin(&mut self, start: &Start<'_>) -> Result<()> {
        let (above, name) = match start.path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (&start.path[..at], &start.path[at + 1..]),
            None => (&[][..], start.path),
        };
        let above = File::from(open_beneath(&self.dir, above, OFlags::RDONLY | OFlags::DIRECTORY)?);
        let os_name = std::os::unix::ffi::OsStrExt::from_bytes(name);
        match start.parent {
            None => calls::create_in(&above, os_name)?,
            Some(uuid) => {
                let parent = self.sources.find(uuid, None).context("the parent")?;
                calls::snapshot_of(parent, &above, os_name, false)?;
            }
        }
        let root = File::from(open_beneath(&above, name, OFlags::RDONLY | OFlags::DIRECTORY)?);
        let stat = fstat(&root)?;
        self.current = Some(Current {
            root_times: Timestamps {
                last_access: timespec(stat.st_atime, stat.st_atime_nsec),
                last_modification: timespec(stat.st_mtime, stat.st_mtime_nsec),
            },
            id: calls::id_of_open(&root)?,
            beneath: Beneath::new(root),
            locks: Locks::default(),
            uuid: start.uuid,
            ctransid: start.ctransid,
            open: None,
        });
        Ok(())
    }

    fn make(&mut self, path: &[u8], new: &New<'_>) -> Result<()> {
        let this = self.current()?;
        this.close();
        this.unlocked(&[path], |this| {
            let (dir, name) = this.beneath.place(path)?;
            match *new {
                New::File => {
                    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    openat(dir, name, flags, NEW_FILE).map(drop)?;
                }
                New::Dir => mkdirat(dir, name, NEW_DIR)?,
                New::Node { mode, rdev } => {
                    let kind = FileType::from_raw_mode(mode as u32);
                    mknodat(dir, name, kind, Mode::from_raw_mode(mode as u32 & 0o7777), rdev)?;
                }
                New::Fifo => mknodat(dir, name, FileType::Fifo, NEW_FILE, 0)?,
                New::Socket => mknodat(dir, name, FileType::Socket, NEW_FILE, 0)?,
                New::Symlink { target } => symlinkat(target, dir, name)?,
            }
            Ok(())
        })
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.close();
        this.unlocked(&[path, to], |this| {
            let (from_dir, from_name) = this.beneath.own_place(path)?;
            let (to_dir, to_name) = this.beneath.place(to)?;
            Ok(renameat(from_dir, from_name, to_dir, to_name)?)
        })?;
        this.beneath.forget();
        this.locks.renamed(path, to);
        Ok(())
    }

    fn link(&mut self, path: &[u8], existing: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.close();
        this.unlocked(&[path, existing], |this| {
            let (from_dir, from_name) = this.beneath.own_place(existing)?;
            let (to_dir, to_name) = this.beneath.place(path)?;
            Ok(linkat(from_dir, from_name, to_dir, to_name, AtFlags::empty())?)
        })
    }

    fn unlink(&mut self, path: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.close();
        this.unlocked(&[path], |this| {
            let (dir, name) = this.beneath.place(path)?;
            Ok(unlinkat(dir, name, AtFlags::empty())?)
        })?;
        this.locks.removed(path);
        Ok(())
    }

    fn rmdir(&mut self, path: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.close();
        this.unlocked(&[path], |this| {
            let (dir, name) = this.beneath.place(path)?;
            Ok(unlinkat(dir, name, AtFlags::REMOVEDIR)?)
        })?;
        this.beneath.forget();
        this.locks.removed(path);
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.close();
        this.unlocked(&[path], |this| {
            let node = this.beneath.node(path)?;
            Ok(setxattr(name_of(&node), name, value, XattrFlags::empty())?)
        })
    }

    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.close();
        this.unlocked(&[path], |this| {
            let node = this.beneath.node(path)?;
            Ok(removexattr(name_of(&node), name)?)
        })
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        Ok(self.current()?.open(path)?.write_all_at(data, offset)?)
    }

    fn share(&mut self, path: &[u8], range: &Shared<'_>) -> Result<()> {
        let this = self.current.as_mut().context("no subvolume has begun")?;
        let read = OFlags::RDONLY;
        let source = match range.uuid == this.uuid {
            true => this.beneath.file(range.path, read)?,
            false => {
                let root = self.sources.find(range.uuid, Some(this.id)).context("the source")?;
                Beneath::new(root.try_clone()?).file(range.path, read)?
            }
        };
        let file = this.open(path)?;
        if range.len_bytes == 0 {
            return Ok(());
        }
        remap::clone_range(&source, range.src_offset, file, range.dst_offset, range.len_bytes)?;
        Ok(())
    }

    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()> {
        Ok(self.current()?.open(path)?.set_len(size)?)
    }

    fn chmod(&mut self, path: &[u8], mode: u64) -> Result<()> {
        let this = self.current()?;
        this.close();
        let mode = Mode::from_raw_mode(mode as u32 & 0o7777);
        this.unlocked(&[path], |this| {
            let node = this.beneath.node(path)?;
            Ok(chmod(name_of(&node), mode)?)
        })
    }

    /// Linux takes capabilities away from a file that changes its owner. They were sent before it,
    /// by old kernels; new ones send them again.
    fn chown(&mut self, path: &[u8], uid: u64, gid: u64) -> Result<()> {
        let this = self.current()?;
        this.close();
        let (uid, gid) = owner(uid, gid)?;
        this.unlocked(&[path], |this| {
            let node = this.beneath.node(path)?;
            let mut kept = [0; CAPABILITIES_BYTES_MAX];
            let had = getxattr(name_of(&node), CAPABILITIES, &mut kept).ok();
            let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
            chownat(&node, "", Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), flags)?;
            if let Some(value) = had.and_then(|len| kept.get(..len)) {
                setxattr(name_of(&node), CAPABILITIES, value, XattrFlags::empty())?;
            }
            Ok(())
        })
    }

    fn utimes(&mut self, path: &[u8], atime: Time, mtime: Time) -> Result<()> {
        let this = self.current()?;
        this.close();
        let time = |time: Time| Timespec {
            tv_sec: time.secs,
            tv_nsec: time.nanos.into(),
        };
        let times = Timestamps {
            last_access: time(atime),
            last_modification: time(mtime),
        };
        if path.is_empty() {
            this.root_times = times.clone();
        }
        this.unlocked(&[path], |this| {
            let node = this.beneath.node(path)?;
            Ok(utimensat(
                &node,
                "",
                &times,
                AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW,
            )?)
        })
    }

    fn fallocate(&mut self, path: &[u8], mode: u32, offset: u64, len_bytes: u64) -> Result<()> {
        let flags = FallocateFlags::from_bits_truncate(known_fallocate(mode)?.bits());
        Ok(fallocate(self.current()?.open(path)?, flags, offset, len_bytes)?)
    }

    fn set_flags(&mut self, path: &[u8], flags: u64) -> Result<()> {
        let this = self.current()?;
        this.close();
        Ok(this.locks.set(&this.beneath, path, flags)?)
    }

    /// The data is on disk before the subvolume says that it is complete.
    fn finish(&mut self) -> Result<()> {
        let this = self.current()?;
        this.close();
        let times = this.root_times.clone();
        this.unlocked(&[b""], |this| Ok(futimens(this.beneath.root(), &times)?))?;
        this.locks.restore(&this.beneath).context("setting flags of inodes")?;
        let root = this.beneath.root();
        sync::mount_of_open(root).context("writing to disk")?;
        ioctls::set_received(root, this.uuid, this.ctransid).context("setting the received uuid")?;
        calls::set_read_only(root, true).context("making it read-only")?;
        self.current = None;
        Ok(())
    }
}
