//! Scripts as calls of our engine, in this process.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use cowshed_btrfs::fs::Fs;
use cowshed_crash::rig::ROOT;
use cowshed_crash::tree::NOCOW;
use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{
    Dedupe, Error, FallocateFlags, FileKind, FileSystem as _, FlagChange, Handle, Lookup, NodeId, OpenFlags,
    OpenRequest, RenameFlags, SetAttr, SetTime, SetXattrFlags, Timestamp, Volume as _, WriteFlags,
};

use crate::op::{How, Kind, Op, Prealloc};

type VfsResult<T> = cowshed_vfs::Result<T>;

/// Plays operations on a mount in this process.
pub struct Ours<'f> {
    fs: &'f Fs,
    /// By name: the file held open.
    slots: BTreeMap<String, (NodeId, Handle)>,
}

const READ_WRITE: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

const fn request(flags: OpenFlags) -> OpenRequest {
    OpenRequest {
        flags,
        kill_suidgid: false,
    }
}

impl<'f> Ours<'f> {
    pub fn new(fs: &'f Fs) -> Ours<'f> {
        Ours {
            fs,
            slots: BTreeMap::new(),
        }
    }

    pub fn apply(&mut self, op: &Op) -> Result<()> {
        self.run(op).with_context(|| format!("{op:?}"))
    }

    /// Does something with the node behind a path; lookups are given back.
    fn at<T>(&self, path: &str, what: impl FnOnce(NodeId) -> VfsResult<T>) -> VfsResult<T> {
        if let Some((node, _)) = self.slots.get(path) {
            return what(*node);
        }
        let mut node = NodeId::ROOT;
        for name in path.split('/').filter(|name| *name != ".") {
            let found = self.fs.lookup(&ROOT, node, name.as_bytes());
            self.fs.forget(node, u64::from(node != NodeId::ROOT));
            match found? {
                Lookup::Found(entry) => node = entry.node,
                Lookup::Absent { .. } => return Err(Error::NotFound),
            }
        }
        let result = what(node);
        self.fs.forget(node, u64::from(node != NodeId::ROOT));
        result
    }

    /// Does something with the directory and the last name of a path.
    fn name<T>(&self, path: &str, what: impl FnOnce(NodeId, &[u8]) -> VfsResult<T>) -> VfsResult<T> {
        let (dir, name) = path.rsplit_once('/').unwrap_or((".", path));
        self.at(dir, |dir| what(dir, name.as_bytes()))
    }

    fn create(&self, path: &str) -> VfsResult<()> {
        if self.slots.contains_key(path) {
            return Ok(());
        }
        self.name(path, |dir, name| {
            let flags = READ_WRITE | OpenFlags::CREATE;
            let (entry, opened) = self.fs.create(&ROOT, dir, name, 0o644, &request(flags))?;
            self.fs.release(entry.node, opened.handle);
            self.fs.forget(entry.node, 1);
            Ok(())
        })
    }

    fn run(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Write(..) | Op::Scatter(..) | Op::Truncate(..) | Op::Fallocate(..) => self.data(op)?,
            Op::Clone(..) | Op::Dedupe(..) => self.share(op)?,
            Op::SetXattr(..) | Op::RemoveXattr(..) | Op::Chmod(..) | Op::Chown(..) | Op::Utime(..) => {
                self.change(op)?;
            }
            Op::Rename(..) | Op::Whiteout(..) | Op::Exchange(..) | Op::Link(..) | Op::Unlink(..) | Op::Rmdir(..) => {
                self.rename(op)?
            }
            Op::InPlace(path) => {
                self.create(path)?;
                self.flags(path, NOCOW)?;
            }
            Op::Flags(path, flags) => self.flags(path, *flags)?,
            Op::Create(path) => self.create(path)?,
            Op::Mkdir(..) | Op::Mknod(..) | Op::Symlink(..) => self.make(op)?,
            Op::Many(..) | Op::ManyLinks(..) | Op::UnlinkEvery(..) => self.many(op)?,
            Op::Tmpfile(slot, dir) => {
                let (entry, opened) = self.at(dir, |dir| self.fs.tmpfile(&ROOT, dir, 0o644, &request(READ_WRITE)))?;
                self.slots.insert(slot.clone(), (entry.node, opened.handle));
            }
            Op::Open(slot, path) => {
                let opened = self.name(path, |dir, name| match self.fs.lookup(&ROOT, dir, name)? {
                    Lookup::Found(entry) => {
                        let opened = self.fs.open(&ROOT, entry.node, &request(READ_WRITE))?;
                        Ok((entry.node, opened.handle))
                    }
                    Lookup::Absent { .. } => Err(Error::NotFound),
                })?;
                self.slots.insert(slot.clone(), opened);
            }
            Op::Close(slot) => {
                let (node, handle) = self.slots.remove(slot).context("not open")?;
                self.fs.release(node, handle);
                self.fs.forget(node, 1);
            }
            // Nobody remembers a node between two operations anyway.
            Op::Drop => {}
            Op::Fsync(path) => self.at(path, |node| self.fs.fsync(&ROOT, node, Handle::NONE, false))?,
            Op::Fdatasync(path) => self.at(path, |node| self.fs.fsync(&ROOT, node, Handle::NONE, true))?,
            Op::Sync => self.fs.syncfs(&ROOT, NodeId::ROOT)?,
            Op::Subvolume(_) | Op::Snapshot(..) | Op::DeleteSubvolume(_) => bail!("subvolumes are the kernel's"),
        }
        Ok(())
    }

    fn make(&self, op: &Op) -> VfsResult<()> {
        let fs = self.fs;
        let entry = match op {
            Op::Mkdir(path) => self.name(path, |dir, name| fs.mkdir(&ROOT, dir, name, 0o755)),
            Op::Mknod(kind, path) => {
                let (kind, rdev) = match kind {
                    Kind::Fifo => (FileKind::Fifo, 0),
                    Kind::Char => (FileKind::CharDevice, cowshed_vfs::rdev(1, 3)),
                    Kind::Socket => (FileKind::Socket, 0),
                };
                let new = NewNode {
                    kind,
                    perm: 0o644,
                    rdev,
                };
                self.name(path, |dir, name| fs.mknod(&ROOT, dir, name, new))
            }
            Op::Symlink(target, path) => self.name(path, |dir, name| fs.symlink(&ROOT, dir, name, target.as_bytes())),
            _ => unreachable!("makes nothing"),
        }?;
        fs.forget(entry.node, 1);
        Ok(())
    }

    fn data(&self, op: &Op) -> VfsResult<()> {
        let fs = self.fs;
        match op {
            Op::Write(how, path, offset, data) => {
                let flags = match how {
                    How::Plain => WriteFlags::empty(),
                    How::Sync | How::DataSync => WriteFlags::SYNC,
                    How::Mapped => WriteFlags::FROM_CACHE,
                    How::Direct => WriteFlags::DIRECT,
                };
                self.create(path)?;
                self.at(path, |node| self.write(node, *offset, data, flags))
            }
            Op::Scatter(path, count, step, letter) => {
                self.create(path)?;
                self.at(path, |node| {
                    (0..*count).try_for_each(|n| self.write(node, n * step, &[*letter; 4096], WriteFlags::empty()))
                })
            }
            Op::Truncate(path, size) => self.set(
                path,
                SetAttr {
                    size_bytes: Some(*size),
                    ..SetAttr::default()
                },
            ),
            Op::Fallocate(how, path, offset, len) => {
                let flags = match how {
                    Prealloc::Extend => FallocateFlags::empty(),
                    Prealloc::KeepSize => FallocateFlags::KEEP_SIZE,
                    Prealloc::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Prealloc::Zero => FallocateFlags::ZERO_RANGE,
                };
                self.create(path)?;
                self.at(path, |node| {
                    fs.fallocate(&ROOT, node, Handle::NONE, *offset, *len, flags)
                })
            }
            _ => unreachable!("no data"),
        }
    }

    fn share(&self, op: &Op) -> VfsResult<()> {
        let fs = self.fs;
        match op {
            Op::Clone(from, from_offset, to, to_offset, len) => {
                self.create(to)?;
                self.at(from, |from| {
                    self.at(to, |to| {
                        let mut done = 0;
                        while done < *len {
                            let source = (from, Handle::NONE, from_offset + done);
                            let target = (to, Handle::NONE, to_offset + done);
                            match fs.copy_file_range(&ROOT, source, target, len - done)? {
                                0 => return Err(Error::Invalid),
                                copied => done += copied,
                            }
                        }
                        Ok(())
                    })
                })
            }
            Op::Dedupe(from, from_offset, to, to_offset, len) => self.at(from, |from| {
                self.at(to, |to| {
                    match fs.dedupe_range((from, *from_offset), (to, *to_offset), *len)? {
                        Dedupe::Same(bytes) if bytes == *len => Ok(()),
                        _ => Err(Error::Invalid),
                    }
                })
            }),
            _ => unreachable!("shares nothing"),
        }
    }

    /// `chattr`
    fn flags(&self, path: &str, flags: u32) -> VfsResult<()> {
        let change = FlagChange::Attributes(flags);
        self.at(path, |node| self.fs.set_flags(&ROOT, node, &change))
    }

    fn write(&self, node: NodeId, offset: u64, data: &[u8], flags: WriteFlags) -> VfsResult<()> {
        let written = self.fs.write(&ROOT, node, Handle::NONE, offset, data, flags)?;
        assert_eq!(written, data.len(), "a write is whole");
        Ok(())
    }

    fn set(&self, path: &str, set: SetAttr) -> VfsResult<()> {
        self.at(path, |node| self.fs.setattr(&ROOT, node, None, &set).map(drop))
    }

    fn change(&self, op: &Op) -> VfsResult<()> {
        let fs = self.fs;
        let none = SetAttr::default();
        match op {
            Op::SetXattr(path, name, value) => {
                let flags = SetXattrFlags::empty();
                self.at(path, |node| fs.setxattr(&ROOT, node, name.as_bytes(), value, flags))
            }
            Op::RemoveXattr(path, name) => self.at(path, |node| fs.removexattr(&ROOT, node, name.as_bytes())),
            Op::Chmod(path, mode) => self.set(
                path,
                SetAttr {
                    perm: Some(*mode),
                    ..none
                },
            ),
            Op::Chown(path, id) => self.set(
                path,
                SetAttr {
                    uid: Some(*id),
                    gid: Some(*id),
                    ..none
                },
            ),
            Op::Utime(path, secs) => {
                let time = Some(SetTime::At(Timestamp::new(*secs, 0)));
                self.set(
                    path,
                    SetAttr {
                        atime: time,
                        mtime: time,
                        ..none
                    },
                )
            }
            _ => unreachable!("no attribute"),
        }
    }

    fn rename(&self, op: &Op) -> VfsResult<()> {
        let fs = self.fs;
        let (from, to, flags) = match op {
            Op::Rename(from, to) => (from, to, RenameFlags::empty()),
            Op::Whiteout(from, to) => (from, to, RenameFlags::WHITEOUT),
            Op::Exchange(from, to) => (from, to, RenameFlags::EXCHANGE),
            Op::Link(from, to) => return self.link(from, to),
            Op::Unlink(path) => return self.name(path, |dir, name| fs.unlink(&ROOT, dir, name)),
            Op::Rmdir(path) => return self.name(path, |dir, name| fs.rmdir(&ROOT, dir, name)),
            _ => unreachable!("no name"),
        };
        self.name(from, |dir, name| {
            self.name(to, |to_dir, to_name| {
                fs.rename(&ROOT, dir, name, to_dir, to_name, flags)
            })
        })
    }

    fn link(&self, from: &str, to: &str) -> VfsResult<()> {
        self.at(from, |node| {
            let linked = self.name(to, |dir, name| self.fs.link(&ROOT, node, dir, name))?;
            self.fs.forget(linked.node, 1);
            Ok(())
        })
    }

    fn many(&self, op: &Op) -> VfsResult<()> {
        match op {
            Op::Many(prefix, count) => (0..*count).try_for_each(|n| self.create(&format!("{prefix}{n}"))),
            Op::ManyLinks(from, prefix, count) => {
                (0..*count).try_for_each(|n| self.link(from, &format!("{prefix}{n}")))
            }
            Op::UnlinkEvery(nth, prefix, count) => (0..*count)
                .step_by(*nth as usize)
                .try_for_each(|n| self.name(&format!("{prefix}{n}"), |dir, name| self.fs.unlink(&ROOT, dir, name))),
            _ => unreachable!("not many"),
        }
    }
}
