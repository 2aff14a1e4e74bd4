//! Operations ([`crate::workload`]) on a mount.

use cowshed_vfs::{
    Dedupe, Defrag, Entry, Error, Exchange, FallocateFlags, FileSystem, FlagChange, Group, Handle, Lookup, NodeId,
    OpenFlags, OpenRequest, RenameFlags, Result, SetAttr, SetXattrFlags, Volume, WriteFlags,
};

use crate::desk::Desk;
use crate::rig::{Fs, ROOT};
use crate::workload::{Op, Staged, bytes};

/// Applies operations below one directory of a mount.
#[derive(Clone, Copy)]
pub struct Player<'f> {
    pub fs: &'f Fs,
    pub root: NodeId,
    /// Where groups stay open. Without one they do not begin.
    pub desk: Option<&'f Desk>,
}

/// A node that is looked up and not given back yet.
struct Held<'f> {
    fs: &'f Fs,
    entry: Entry,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.entry.node, 1);
    }
}

impl<'f> Player<'f> {
    pub fn new(fs: &'f Fs) -> Player<'f> {
        Player {
            fs,
            root: NodeId::ROOT,
            desk: None,
        }
    }

    /// One whose groups stay open.
    pub fn with_desk(fs: &'f Fs, desk: &'f Desk) -> Player<'f> {
        Player {
            desk: Some(desk),
            ..Player::new(fs)
        }
    }

    fn child(&self, parent: NodeId, name: &str) -> Result<Held<'f>> {
        match self.fs.lookup(&ROOT, parent, name.as_bytes())? {
            Lookup::Found(entry) => Ok(Held { fs: self.fs, entry }),
            Lookup::Absent { .. } => Err(Error::NotFound),
        }
    }

    fn held(&self, path: &str) -> Result<Option<Held<'f>>> {
        let mut held: Option<Held<'f>> = None;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            let parent = held.as_ref().map_or(self.root, |h| h.entry.node);
            held = Some(self.child(parent, name)?);
        }
        Ok(held)
    }

    /// Does something with the node behind a path.
    pub fn at<T>(&self, path: &str, what: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        let held = self.held(path)?;
        what(held.as_ref().map_or(self.root, |h| h.entry.node))
    }

    /// The node behind a path and its inode number. The caller forgets it, unless it is the root.
    pub(crate) fn keep(&self, path: &str) -> Result<(NodeId, u64)> {
        match self.held(path)?.map(std::mem::ManuallyDrop::new) {
            Some(held) => Ok((held.entry.node, held.entry.attr.ino)),
            None => Ok((self.root, self.fs.getattr(&ROOT, self.root, None)?.ino)),
        }
    }

    /// Does something with the directory and the last name of a path.
    fn name<T>(&self, path: &str, what: impl FnOnce(NodeId, &[u8]) -> Result<T>) -> Result<T> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.at(parent, |dir| what(dir, name.as_bytes()))
    }

    /// The file, made where it is missing.
    fn file<T>(&self, path: &str, what: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        let request = OpenRequest {
            flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
            kill_suidgid: false,
        };
        match self.held(path) {
            Err(Error::NotFound) => {}
            other => return what(other?.map_or(self.root, |h| h.entry.node)),
        }
        self.name(path, |dir, name| {
            let (entry, opened) = self.fs.create(&ROOT, dir, name, 0o644, &request)?;
            let held = Held { fs: self.fs, entry };
            let result = what(held.entry.node);
            self.fs.release(held.entry.node, opened.handle);
            result
        })
    }

    fn write(&self, path: &str, offset: u64, data: &[u8]) -> Result<()> {
        self.file(path, |node| {
            let none = WriteFlags::empty();
            self.fs.write(&ROOT, node, Handle::NONE, offset, data, none).map(drop)
        })
    }

    fn write_sync(&self, path: &str, offset: u64, data: &[u8], data_only: bool) -> Result<()> {
        let sync = match data_only {
            true => OpenFlags::DATA_SYNC,
            false => OpenFlags::SYNC,
        };
        let request = OpenRequest {
            flags: OpenFlags::WRITE | sync,
            kill_suidgid: false,
        };
        self.file(path, |node| {
            let opened = self.fs.open(&ROOT, node, &request)?;
            let none = WriteFlags::empty();
            let written = self.fs.write(&ROOT, node, opened.handle, offset, data, none);
            self.fs.release(node, opened.handle);
            written.map(drop)
        })
    }

    fn tmpfile(&self, dir: &str, to: &str, data: &[u8], fsync: bool) -> Result<()> {
        let request = OpenRequest {
            flags: OpenFlags::READ | OpenFlags::WRITE,
            kill_suidgid: false,
        };
        let (entry, opened) = self.at(dir, |dir| self.fs.tmpfile(&ROOT, dir, 0o644, &request))?;
        let held = Held { fs: self.fs, entry };
        let node = held.entry.node;
        let fill = || {
            let none = WriteFlags::empty();
            self.fs.write(&ROOT, node, opened.handle, 0, data, none)?;
            if fsync {
                self.fs.fsync(&ROOT, node, opened.handle, false)?;
            }
            self.link(node, to)
        };
        let result = fill();
        self.fs.release(node, opened.handle);
        result
    }

    fn link(&self, node: NodeId, to: &str) -> Result<()> {
        let linked = self.name(to, |dir, name| self.fs.link(&ROOT, node, dir, name))?;
        self.fs.forget(linked.node, 1);
        Ok(())
    }

    fn fsync(&self, path: &str, data_only: bool) -> Result<()> {
        self.at(path, |node| self.fs.fsync(&ROOT, node, Handle::NONE, data_only))
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        self.name(from, |dir, name| {
            self.name(to, |new_dir, new_name| {
                self.fs.rename(&ROOT, dir, name, new_dir, new_name, flags)
            })
        })
    }

    /// Applies one operation.
    pub fn apply(&self, op: &Op) -> Result<()> {
        let fs = self.fs;
        if let Some(desk) = self.desk {
            desk.note(self, op);
        }
        match op {
            Op::Write {
                path,
                offset,
                len,
                fill,
            } => self.write(path, *offset, &bytes(*fill, *len)),
            Op::WriteSync {
                path,
                offset,
                len,
                fill,
                data_only,
            } => self.write_sync(path, *offset, &bytes(*fill, *len), *data_only),
            Op::Tmpfile {
                dir,
                to,
                len,
                fill,
                fsync,
            } => self.tmpfile(dir, to, &bytes(*fill, *len), *fsync),
            Op::Truncate { path, size_bytes } => self.set(
                path,
                SetAttr {
                    size_bytes: Some(*size_bytes),
                    ..SetAttr::default()
                },
            ),
            Op::Chmod { path, perm } => self.set(
                path,
                SetAttr {
                    perm: Some(*perm),
                    ..SetAttr::default()
                },
            ),
            Op::Preallocate {
                path,
                offset,
                len,
                keep_size,
            } => {
                let mut how = FallocateFlags::empty();
                how.set(FallocateFlags::KEEP_SIZE, *keep_size);
                self.fallocate(path, *offset, *len, how)
            }
            Op::Zero { path, offset, len } => self.fallocate(path, *offset, *len, FallocateFlags::ZERO_RANGE),
            Op::CloneRange {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => self.at(from, |from| {
                self.file(to, |to| {
                    fs.clone_range(None, (from, *from_offset), (to, *to_offset), *len)
                })
            }),
            Op::Dedupe { .. } => self.dedupe(op).map(drop),
            Op::Defrag { .. } => self.defrag(op).map(drop),
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
            Op::Group { writes, commit } => self.group(writes, *commit),
            Op::Begin { .. } | Op::Stage { .. } | Op::End { .. } => self.desk.ok_or(Error::Invalid)?.apply(self, op),
            // A file that is not there is not made: a commit beside us may see it without its mark.
            Op::Flags { path, flags } => {
                self.at(path, |node| fs.set_flags(&ROOT, node, &FlagChange::Attributes(*flags)))
            }
            Op::Punch { path, offset, len } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                self.fallocate(path, *offset, *len, how)
            }
            Op::Clone { from, to, len } => self.at(from, |from| {
                self.file(to, |to| {
                    // As programs do: fewer bytes than asked for are the end of the file, or an error to come.
                    let mut at = 0;
                    while at < *len {
                        let (src, dst) = ((from, Handle::NONE, at), (to, Handle::NONE, at));
                        match fs.copy_file_range(&ROOT, src, dst, *len - at)? {
                            0 => break,
                            copied => at += copied,
                        }
                    }
                    Ok(())
                })
            }),
            Op::Rename { from, to } => self.rename(from, to, RenameFlags::empty()),
            Op::Exchange { from, to } => self.rename(from, to, RenameFlags::EXCHANGE),
            Op::Link { from, to } => self.at(from, |node| self.link(node, to)),
            Op::Unlink { path } => self.name(path, |dir, name| fs.unlink(&ROOT, dir, name)),
            Op::Symlink { path, target } => self.name(path, |dir, name| {
                let made = fs.symlink(&ROOT, dir, name, target.as_bytes())?;
                fs.forget(made.node, 1);
                Ok(())
            }),
            Op::Mkdir { path } => self.name(path, |dir, name| {
                let made = fs.mkdir(&ROOT, dir, name, 0o755)?;
                fs.forget(made.node, 1);
                Ok(())
            }),
            Op::Rmdir { path } => self.name(path, |dir, name| fs.rmdir(&ROOT, dir, name)),
            Op::SetXattr { path, name, len, fill } => {
                let value = bytes(*fill, *len);
                let how = SetXattrFlags::empty();
                self.at(path, |node| fs.setxattr(&ROOT, node, name.as_bytes(), &value, how))
            }
            Op::RemoveXattr { path, name } => self.at(path, |node| fs.removexattr(&ROOT, node, name.as_bytes())),
            Op::Fsync { path } => self.fsync(path, false),
            Op::Fdatasync { path } => self.fsync(path, true),
            Op::Sync => fs.syncfs(&ROOT, NodeId::ROOT),
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
                self.fs.dedupe_range((from, *from_offset), (to, *to_offset), *len)
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
        self.at(path, |node| self.fs.defragment(node, range, &what))
    }

    fn group(&self, writes: &[Staged], commit: bool) -> Result<()> {
        let mut group = self.fs.volume().clone().begin_group()?;
        // One file is made with the group, as by a write. Several are not: a commit beside us may see some of them.
        let one_file = writes
            .iter()
            .all(|write| Some(&write.path) == writes.first().map(|w| &w.path));
        if !one_file {
            writes.iter().try_for_each(|write| self.held(&write.path).map(drop))?;
        }
        // A group's files are held until its end.
        let mut held = Vec::new();
        for write in writes {
            self.file(&write.path, |_| Ok(()))?;
            let Some(file) = self.held(&write.path)? else {
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
        self.at(path, |node| self.fs.setattr(&ROOT, node, None, &set).map(drop))
    }

    fn fallocate(&self, path: &str, offset: u64, len: u64, how: FallocateFlags) -> Result<()> {
        self.at(path, |node| {
            self.fs.fallocate(&ROOT, node, Handle::NONE, offset, len, how)
        })
    }
}

/// Makes a group happen. A failure of the volume is an I/O error, but for want of space.
pub(crate) fn commit_group(group: Box<dyn Group>) -> Result<()> {
    group.commit(Handle::NONE).map_err(|failure| match failure.error() {
        Error::ReadOnly => Error::Io,
        error => error,
    })
}
