//! What stays open between operations: files by slot, atomic groups by number.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::AddAssign;

use cowshed_vfs::{Error, FileKind, FileSystem, Group, Handle, Ioctl, NodeId, Result, Volume, WriteFlags};

use super::data::bytes;
use super::op::Op;
use super::walk::{READ_WRITE, ROOT, Slots, Walk};

const START_ATOMIC_WRITE: u32 = 0xf501;
const COMMIT_ATOMIC_WRITE: u32 = 0xf502;
const ABORT_ATOMIC_WRITE: u32 = 0xf505;

/// What became of groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub begun: usize,
    /// Of these, by a handle.
    pub of_handles: usize,
    /// With another one open.
    pub committed_beside: usize,
    /// Of these, with more than one file.
    pub several_files_beside: usize,
    /// Of these, with a file that another open one has, too.
    pub same_file: usize,
    pub aborted_beside: usize,
    /// A second handle asked for a group on the file.
    pub refused: usize,
    /// Operations outside of an open group on a file of it.
    pub on_files: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.begun += other.begun;
        self.of_handles += other.of_handles;
        self.committed_beside += other.committed_beside;
        self.several_files_beside += other.several_files_beside;
        self.same_file += other.same_file;
        self.aborted_beside += other.aborted_beside;
        self.refused += other.refused;
        self.on_files += other.on_files;
    }
}

/// A file of a group, held until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct File {
    node: NodeId,
    ino: u64,
    handle: Handle,
    is_staged: bool,
}

struct Open {
    /// `None`: it is the handle's.
    group: Option<Box<dyn Group>>,
    files: Vec<File>,
}

/// What is open. It goes before the mount does.
#[derive(Default)]
pub struct Desk {
    pub(super) slots: Slots,
    open: RefCell<BTreeMap<u8, Open>>,
    counts: Cell<Counts>,
}

impl Desk {
    pub fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn count(&self, what: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        what(&mut counts);
        self.counts.set(counts);
    }

    /// An operation that belongs to no group is about to be done.
    pub(super) fn note<V: Volume + 'static>(&self, walk: &Walk<'_, V>, op: &Op) {
        let open = self.open.borrow();
        let inos = open.values().flat_map(|open| open.files.iter().map(|file| file.ino));
        let inos: Vec<u64> = inos.collect();
        if inos.is_empty() {
            return;
        }
        let ino = |path: &String| walk.at(path, |node| Ok(walk.fs.getattr(&ROOT, node, None)?.ino));
        let hits = |path: &String| ino(path).is_ok_and(|ino| inos.contains(&ino));
        if op.paths().iter().any(hits) {
            self.count(|counts| counts.on_files += 1);
        }
    }

    /// Begins, stages or ends. Errors: `Invalid` (another operation, a group of that number is
    /// open, or it has no such file), `BadHandle` (none is), `Busy` (another handle's group has the
    /// file), and those of opening and writing.
    pub(super) fn apply<V: Volume + 'static>(&self, walk: &Walk<'_, V>, op: &Op) -> Result<()> {
        match op {
            Op::Begin {
                group,
                paths,
                by_handle,
            } => self.begin(walk, *group, paths, *by_handle),
            Op::Stage {
                group,
                file,
                offset,
                len,
                fill,
            } => self.stage(walk, (*group, *file), *offset, &bytes(*fill, *len)),
            Op::End { group, commit } => self.end(walk, *group, *commit),
            _ => Err(Error::Invalid),
        }
    }

    fn begin<V: Volume + 'static>(
        &self,
        walk: &Walk<'_, V>,
        group: u8,
        paths: &[String],
        by_handle: bool,
    ) -> Result<()> {
        let mut open = self.open.borrow_mut();
        if open.contains_key(&group) || paths.is_empty() || (by_handle && paths.len() > 1) {
            return Err(Error::Invalid);
        }
        let mut files = Vec::new();
        let begun = paths.iter().try_for_each(|path| {
            files.push(open_file(walk, path)?);
            Ok(())
        });
        let has_group = |file: &File| {
            let of_handles = open.values().filter(|open| open.group.is_none());
            of_handles
                .flat_map(|open| &open.files)
                .any(|other| other.ino == file.ino)
        };
        let begun = begun.and_then(|()| match by_handle {
            true => {
                let started = ioctl(walk, &files[0], START_ATOMIC_WRITE);
                let is_refused = started == Err(Error::Busy);
                assert_eq!(is_refused, has_group(&files[0]), "one file has one handle's group");
                self.count(|counts| counts.refused += usize::from(is_refused));
                started
            }
            false => Ok(()),
        });
        if let Err(error) = begun {
            files.iter().for_each(|file| let_go(walk, file));
            return Err(error);
        }
        self.count(|counts| {
            counts.begun += 1;
            counts.of_handles += usize::from(by_handle);
        });
        let library = match by_handle {
            true => None,
            false => Some(walk.fs.volume().clone().begin_group()?),
        };
        open.insert(group, Open { group: library, files });
        Ok(())
    }

    fn stage<V: Volume + 'static>(
        &self,
        walk: &Walk<'_, V>,
        (group, file): (u8, u8),
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let mut open = self.open.borrow_mut();
        let Open { group, files } = open.get_mut(&group).ok_or(Error::BadHandle)?;
        let file = files.get_mut(usize::from(file)).ok_or(Error::Invalid)?;
        match group {
            Some(group) => group.write(&ROOT, file.node, offset, data, WriteFlags::empty())?,
            None => {
                let none = WriteFlags::empty();
                let written = walk.fs.write(&ROOT, file.node, file.handle, offset, data, none)?;
                assert_eq!(written, data.len(), "a group takes all of a write");
            }
        }
        file.is_staged = true;
        Ok(())
    }

    fn end<V: Volume + 'static>(&self, walk: &Walk<'_, V>, group: u8, commit: bool) -> Result<()> {
        let Open { group, files } = self.open.borrow_mut().remove(&group).ok_or(Error::BadHandle)?;
        self.count_end(&files, commit);
        let result = match group {
            Some(group) if commit => commit_group(group),
            Some(group) => {
                drop(group);
                Ok(())
            }
            None if commit => ioctl(walk, &files[0], COMMIT_ATOMIC_WRITE),
            None => ioctl(walk, &files[0], ABORT_ATOMIC_WRITE),
        };
        files.iter().for_each(|file| let_go(walk, file));
        result
    }

    fn count_end(&self, files: &[File], commit: bool) {
        let open = self.open.borrow();
        let staged = || files.iter().filter(|file| file.is_staged);
        if open.is_empty() || staged().count() == 0 {
            return;
        }
        let is_elsewhere = |file: &File| open.values().any(|open| open.files.iter().any(|f| f.ino == file.ino));
        self.count(|counts| match commit {
            true => {
                counts.committed_beside += 1;
                counts.several_files_beside += usize::from(staged().count() > 1);
                counts.same_file += usize::from(staged().any(is_elsewhere));
            }
            false => counts.aborted_beside += 1,
        });
    }
}

fn open_file<V: Volume + 'static>(walk: &Walk<'_, V>, path: &str) -> Result<File> {
    walk.at(path, |node| {
        let attr = walk.fs.getattr(&ROOT, node, None)?;
        if attr.kind != FileKind::Regular {
            return Err(Error::Invalid);
        }
        let opened = walk.fs.open(&ROOT, node, &READ_WRITE)?;
        Ok(File {
            node,
            ino: attr.ino,
            handle: opened.handle,
            is_staged: false,
        })
    })
}

fn let_go<V: Volume + 'static>(walk: &Walk<'_, V>, file: &File) {
    walk.fs.release(file.node, file.handle);
}

fn ioctl<V: Volume + 'static>(walk: &Walk<'_, V>, file: &File, cmd: u32) -> Result<()> {
    let call = Ioctl {
        cmd,
        arg: 0,
        compat: false,
    };
    walk.fs
        .ioctl(&ROOT, file.node, file.handle, &call, &[], &mut [])
        .map(drop)
}

/// Makes a group happen. A failure of the volume is an I/O error, but for want of space.
pub(super) fn commit_group(group: Box<dyn Group>) -> Result<()> {
    group.commit(Handle::NONE).map_err(|failure| match failure.error() {
        Error::ReadOnly => Error::Io,
        error => error,
    })
}
