//! Scripts on a mount in this process.

use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{
    Dedupe, Defrag, Entry, Error, Exchange, FallocateFlags, FileKind, FileSystem as _, FlagChange, Handle, Lookup,
    NodeId, OpenFlags, OpenRequest, RenameFlags, Result, SetAttr, SetTime, SetXattrFlags, Timestamp, Volume,
    WriteFlags,
};
use cowshed_vfs_ioctl::Front;

use super::data::bytes;
use super::desk::{Desk, commit_group};
use super::op::{BLOCK_BYTES, How, Kind, Op, Prealloc, Staged};
use super::walk::{READ_WRITE, ROOT, Walk};

/// Applies operations below one directory of a mount.
pub struct Player<'f, V: Volume + 'static> {
    walk: Walk<'f, V>,
    desk: Option<&'f Desk>,
}

impl<V: Volume + 'static> Clone for Player<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: Volume + 'static> Copy for Player<'_, V> {}

impl<'f, V: Volume + 'static> Player<'f, V> {
    /// One that holds nothing open: neither slots nor groups that stay open.
    pub fn new(fs: &'f Front<V>) -> Player<'f, V> {
        let root = NodeId::ROOT;
        Player {
            walk: Walk { fs, root, slots: None },
            desk: None,
        }
    }

    /// One that may hold things open.
    pub fn with_desk(fs: &'f Front<V>, desk: &'f Desk) -> Player<'f, V> {
        let mut player = Player::new(fs);
        player.walk.slots = Some(&desk.slots);
        player.desk = Some(desk);
        player
    }

    /// The same, below a directory, which the caller holds.
    pub fn below(mut self, root: NodeId) -> Player<'f, V> {
        self.walk.root = root;
        self
    }

    pub fn fs(&self) -> &'f Front<V> {
        self.walk.fs
    }

    /// Does something with the node behind a path.
    pub fn at<T>(&self, path: &str, what: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        self.walk.at(path, what)
    }

    /// The node behind a path and its inode number. The caller forgets it, unless it is the root.
    pub fn keep(&self, path: &str) -> Result<(NodeId, u64)> {
        match self.walk.held(path)?.map(std::mem::ManuallyDrop::new) {
            Some(held) => Ok((held.entry.node, held.entry.attr.ino)),
            None => {
                let root = self.walk.root;
                Ok((root, self.fs().getattr(&ROOT, root, None)?.ino))
            }
        }
    }

    fn write_at(&self, node: NodeId, handle: Handle, offset: u64, data: &[u8], flags: WriteFlags) -> Result<()> {
        let written = self.fs().write(&ROOT, node, handle, offset, data, flags)?;
        if written == data.len() {
            Ok(())
        } else {
            Err(Error::NoSpace)
        }
    }

    fn write(&self, path: &str, offset: u64, data: &[u8], how: How) -> Result<()> {
        let (flags, sync) = match how {
            How::Plain => (WriteFlags::empty(), None),
            How::Mapped => (WriteFlags::FROM_CACHE, None),
            How::Direct => (WriteFlags::DIRECT, None),
            How::Sync => (WriteFlags::empty(), Some(OpenFlags::SYNC)),
            How::DataSync => (WriteFlags::empty(), Some(OpenFlags::DATA_SYNC)),
        };
        self.walk.file(path, |node| {
            let Some(sync) = sync else {
                return self.write_at(node, Handle::NONE, offset, data, flags);
            };
            let request = OpenRequest {
                flags: OpenFlags::WRITE | sync,
                kill_suidgid: false,
            };
            let opened = self.fs().open(&ROOT, node, &request)?;
            let written = self.write_at(node, opened.handle, offset, data, flags);
            self.fs().release(node, opened.handle);
            written
        })
    }

    fn temporary(&self, dir: &str, to: &str, data: &[u8], fsync: bool) -> Result<()> {
        let fs = self.fs();
        let (entry, opened) = self.at(dir, |dir| fs.tmpfile(&ROOT, dir, 0o644, &READ_WRITE))?;
        let held = self.walk.hold(entry);
        let node = held.entry.node;
        let fill = || {
            self.write_at(node, opened.handle, 0, data, WriteFlags::empty())?;
            if fsync {
                fs.fsync(&ROOT, node, opened.handle, false)?;
            }
            self.link(node, to)
        };
        let result = fill();
        fs.release(node, opened.handle);
        result
    }

    fn made(&self, entry: Result<Entry>) -> Result<()> {
        entry.map(|entry| self.fs().forget(entry.node, 1))
    }

    fn link(&self, node: NodeId, to: &str) -> Result<()> {
        self.walk
            .name(to, |dir, name| self.made(self.fs().link(&ROOT, node, dir, name)))
    }

    fn fsync(&self, path: &str, data_only: bool) -> Result<()> {
        self.at(path, |node| self.fs().fsync(&ROOT, node, Handle::NONE, data_only))
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        self.walk.name(from, |dir, name| {
            self.walk.name(to, |new_dir, new_name| {
                self.fs().rename(&ROOT, dir, name, new_dir, new_name, flags)
            })
        })
    }

    /// Applies one operation. Those that only the kernel does are not supported.
    pub fn apply(&self, op: &Op) -> Result<()> {
        let fs = self.fs();
        if let Some(desk) = self.desk {
            desk.note(&self.walk, op);
        }
        match op {
            Op::Write {
                path,
                offset,
                data,
                how,
            } => self.write(path, *offset, &data.bytes(), *how),
            Op::Scatter { .. } | Op::Truncate { .. } | Op::Fallocate { .. } => self.data(op),
            Op::Copy { .. } | Op::CloneRange { .. } | Op::Swap { .. } => self.remap(op),
            Op::Dedupe { len, .. } => match self.dedupe(op)? {
                bytes if bytes == *len => Ok(()),
                _ => Err(Error::Invalid),
            },
            Op::Defrag { .. } => self.defrag(op).map(drop),
            Op::Group { writes, commit } => self.group(writes, *commit),
            Op::Begin { .. } | Op::Stage { .. } | Op::End { .. } => {
                self.desk.ok_or(Error::Invalid)?.apply(&self.walk, op)
            }
            Op::Tmpfile { .. } | Op::Open { .. } | Op::Close { .. } => self.slot(op),
            Op::Create { .. }
            | Op::InPlace { .. }
            | Op::Temporary { .. }
            | Op::Symlink { .. }
            | Op::Mknod { .. }
            | Op::Mkdir { .. }
            | Op::Many { .. }
            | Op::ManyLinks { .. } => self.make(op),
            Op::Rename { from, to } => self.rename(from, to, RenameFlags::empty()),
            Op::Whiteout { from, to } => self.rename(from, to, RenameFlags::WHITEOUT),
            Op::Exchange { from, to } => self.rename(from, to, RenameFlags::EXCHANGE),
            Op::Link { from, to } => self.at(from, |node| self.link(node, to)),
            Op::Unlink { path } => self.unlink(path),
            Op::UnlinkEvery { nth, prefix, count } => (0..*count)
                .step_by(*nth as usize)
                .try_for_each(|n| self.unlink(&format!("{prefix}{n}"))),
            Op::Rmdir { path } => self.walk.name(path, |dir, name| fs.rmdir(&ROOT, dir, name)),
            Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::Utime { .. }
            | Op::Flags { .. }
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. } => self.change(op),
            Op::Fsync { path } => self.fsync(path, false),
            Op::Fdatasync { path } => self.fsync(path, true),
            Op::Sync => fs.syncfs(&ROOT, NodeId::ROOT),
            // No node is remembered between two operations anyway.
            Op::Drop => Ok(()),
            Op::Subvolume { .. } | Op::Snapshot { .. } | Op::DeleteSubvolume { .. } => Err(Error::NotSupported),
        }
    }

    fn make(&self, op: &Op) -> Result<()> {
        let fs = self.fs();
        let named = |path: &str, make: &dyn Fn(NodeId, &[u8]) -> Result<Entry>| {
            self.walk.name(path, |dir, name| self.made(make(dir, name)))
        };
        match op {
            Op::Create { path } => self.walk.file(path, |_| Ok(())),
            Op::Many { prefix, count } => {
                (0..*count).try_for_each(|n| self.walk.file(&format!("{prefix}{n}"), |_| Ok(())))
            }
            Op::ManyLinks { from, prefix, count } => {
                let link = |n| self.at(from, |node| self.link(node, &format!("{prefix}{n}")));
                (0..*count).try_for_each(link)
            }
            Op::InPlace { path } => {
                self.walk.file(path, |_| Ok(()))?;
                self.flags(path, crate::op::chattr::NOCOW)
            }
            Op::Temporary { dir, to, data, fsync } => self.temporary(dir, to, &data.bytes(), *fsync),
            Op::Mkdir { path } => named(path, &|dir, name| fs.mkdir(&ROOT, dir, name, 0o755)),
            Op::Symlink { path, target } => named(path, &|dir, name| fs.symlink(&ROOT, dir, name, target.as_bytes())),
            Op::Mknod { path, kind } => {
                let (kind, rdev) = match kind {
                    Kind::Fifo => (FileKind::Fifo, 0),
                    Kind::Char => (FileKind::CharDevice, cowshed_vfs::rdev(1, 3)),
                    Kind::Socket => (FileKind::Socket, 0),
                };
                let perm = 0o644;
                named(path, &|dir, name| {
                    fs.mknod(&ROOT, dir, name, NewNode { kind, perm, rdev })
                })
            }
            _ => unreachable!("makes nothing"),
        }
    }

    fn unlink(&self, path: &str) -> Result<()> {
        self.walk.name(path, |dir, name| self.fs().unlink(&ROOT, dir, name))
    }

    fn slot(&self, op: &Op) -> Result<()> {
        let fs = self.fs();
        let slots = &self.desk.ok_or(Error::Invalid)?.slots;
        match op {
            Op::Tmpfile { slot, dir } => {
                let (entry, opened) = self.at(dir, |dir| fs.tmpfile(&ROOT, dir, 0o644, &READ_WRITE))?;
                slots.borrow_mut().insert(slot.clone(), (entry.node, opened.handle));
            }
            Op::Open { slot, path } => {
                let opened = self.walk.name(path, |dir, name| match fs.lookup(&ROOT, dir, name)? {
                    Lookup::Found(entry) => Ok((entry.node, fs.open(&ROOT, entry.node, &READ_WRITE)?.handle)),
                    Lookup::Absent { .. } => Err(Error::NotFound),
                })?;
                slots.borrow_mut().insert(slot.clone(), opened);
            }
            Op::Close { slot } => {
                let (node, handle) = slots.borrow_mut().remove(slot).ok_or(Error::BadHandle)?;
                fs.release(node, handle);
                fs.forget(node, 1);
            }
            _ => unreachable!("no slot"),
        }
        Ok(())
    }

    fn data(&self, op: &Op) -> Result<()> {
        match op {
            Op::Scatter {
                path,
                count,
                step,
                letter,
            } => self.walk.file(path, |node| {
                let block = [*letter; BLOCK_BYTES as usize];
                (0..*count).try_for_each(|n| self.write_at(node, Handle::NONE, n * step, &block, WriteFlags::empty()))
            }),
            Op::Truncate { path, size_bytes } => self.set(
                path,
                SetAttr {
                    size_bytes: Some(*size_bytes),
                    ..SetAttr::default()
                },
            ),
            Op::Fallocate { path, offset, len, how } => {
                let how = match how {
                    Prealloc::Extend => FallocateFlags::empty(),
                    Prealloc::KeepSize => FallocateFlags::KEEP_SIZE,
                    Prealloc::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Prealloc::Zero => FallocateFlags::ZERO_RANGE,
                };
                self.at(path, |node| {
                    self.fs().fallocate(&ROOT, node, Handle::NONE, *offset, *len, how)
                })
            }
            _ => unreachable!("no data"),
        }
    }

    fn remap(&self, op: &Op) -> Result<()> {
        let fs = self.fs();
        match op {
            Op::CloneRange {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => self.at(from, |from| {
                self.walk.file(to, |to| {
                    fs.clone_range(None, (from, *from_offset), (to, *to_offset), *len)
                })
            }),
            Op::Copy {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => self.at(from, |from| {
                self.walk.file(to, |to| {
                    // As programs do: fewer bytes than asked for are the end of the file, or an
                    // error to come.
                    let mut done = 0;
                    while done < *len {
                        let source = (from, Handle::NONE, from_offset + done);
                        let target = (to, Handle::NONE, to_offset + done);
                        match fs.copy_file_range(&ROOT, source, target, *len - done)? {
                            0 => break,
                            copied => done += copied,
                        }
                    }
                    Ok(())
                })
            }),
            Op::Swap { a, b, offset, len } => self.at(a, |one| {
                let what = Exchange {
                    a_offset: *offset,
                    b_offset: *offset,
                    len_bytes: len.unwrap_or(0),
                    to_eof: len.is_none(),
                    only_written: false,
                    fresh_b: None,
                    dry_run: false,
                };
                self.at(b, |other| fs.exchange_range(None, one, other, &what))
            }),
            _ => unreachable!("remaps nothing"),
        }
    }

    /// A file that is not there is not made: a commit beside us may see it without its mark.
    fn flags(&self, path: &str, flags: u32) -> Result<()> {
        self.at(path, |node| {
            self.fs().set_flags(&ROOT, node, &FlagChange::Attributes(flags))
        })
    }

    fn change(&self, op: &Op) -> Result<()> {
        let fs = self.fs();
        let none = SetAttr::default();
        match op {
            Op::Chmod { path, perm } => self.set(
                path,
                SetAttr {
                    perm: Some(*perm),
                    ..none
                },
            ),
            Op::Chown { path, id } => self.set(
                path,
                SetAttr {
                    uid: Some(*id),
                    gid: Some(*id),
                    ..none
                },
            ),
            Op::Utime { path, secs } => {
                let time = Some(SetTime::At(Timestamp::new(i64::from(*secs), 0)));
                self.set(
                    path,
                    SetAttr {
                        atime: time,
                        mtime: time,
                        ..none
                    },
                )
            }
            Op::Flags { path, flags } => self.flags(path, *flags),
            Op::SetXattr { path, name, value } => {
                let how = SetXattrFlags::empty();
                self.at(path, |node| {
                    fs.setxattr(&ROOT, node, name.as_bytes(), &value.bytes(), how)
                })
            }
            Op::RemoveXattr { path, name } => self.at(path, |node| fs.removexattr(&ROOT, node, name.as_bytes())),
            _ => unreachable!("changes no attribute"),
        }
    }

    /// How many bytes of a [`Op::Dedupe`] are shared now.
    pub fn dedupe(&self, op: &Op) -> Result<u64> {
        let Op::Dedupe {
            from,
            from_offset,
            to,
            to_offset,
            len,
        } = op
        else {
            return Err(Error::Invalid);
        };
        let found = self.at(from, |from| {
            self.at(to, |to| {
                self.fs().dedupe_range((from, *from_offset), (to, *to_offset), *len)
            })
        })?;
        Ok(match found {
            Dedupe::Same(bytes) => bytes,
            Dedupe::Differs => 0,
        })
    }

    /// How many bytes a [`Op::Defrag`] has written.
    pub fn defrag(&self, op: &Op) -> Result<u64> {
        let Op::Defrag {
            path,
            offset,
            len,
            target_bytes,
            compress,
        } = op
        else {
            return Err(Error::Invalid);
        };
        let what = Defrag {
            target_bytes: *target_bytes,
            compress: *compress,
        };
        let range = *offset..offset.saturating_add(*len);
        self.at(path, |node| self.fs().defragment(node, range, &what))
    }

    fn group(&self, writes: &[Staged], commit: bool) -> Result<()> {
        let mut group = self.fs().volume().clone().begin_group()?;
        // One file is made with the group, as by a write. Several are not: a commit beside us may
        // see some of them.
        let one_file = writes
            .iter()
            .all(|write| Some(&write.path) == writes.first().map(|w| &w.path));
        if !one_file {
            writes
                .iter()
                .try_for_each(|write| self.walk.held(&write.path).map(drop))?;
        }
        // A group's files are held until its end.
        let mut held = Vec::new();
        for write in writes {
            self.walk.file(&write.path, |_| Ok(()))?;
            let Some(file) = self.walk.held(&write.path)? else {
                return Err(Error::IsDirectory);
            };
            let data = bytes(write.fill, write.len);
            group.write(&ROOT, file.entry.node, write.offset, &data, WriteFlags::empty())?;
            held.push(file);
        }
        if !commit {
            return Ok(());
        }
        commit_group(group)
    }

    fn set(&self, path: &str, set: SetAttr) -> Result<()> {
        self.at(path, |node| self.fs().setattr(&ROOT, node, None, &set).map(drop))
    }
}
