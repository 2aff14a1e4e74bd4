//! Listing directories.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use cowshed_vfs::{FileKind, Handle};

use super::node::Node;
use super::{Error, Metadata, Result};

/// Names that are fetched at a time.
const BATCH: usize = 512;

/// A name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    dir: Arc<Node>,
    name: OsString,
    kind: FileKind,
    ino: u64,
}

impl DirEntry {
    /// The name, without the directory's path.
    pub fn name(&self) -> &OsStr {
        &self.name
    }
    /// What it leads to.
    pub fn kind(&self) -> FileKind {
        self.kind
    }
    /// The inode number, as a mount shows it.
    pub fn ino(&self) -> u64 {
        self.ino
    }
    /// What is known of it; a symbolic link is not followed.
    ///
    /// # Errors
    /// It was removed since, or cannot be read.
    pub fn metadata(&self) -> Result<Metadata> {
        let read = || {
            let node = self.dir.lookup(self.name.as_encoded_bytes())?;
            node.ok_or(cowshed_vfs::Error::NotFound)?.attr()
        };
        read().map(Metadata).map_err(Error::at(&self.name))
    }
}

/// The names in a directory, in the order of their making, without `.` and `..`.
///
/// Names that are there throughout come exactly once; what is made or removed meanwhile comes once
/// or not at all.
#[derive(Debug)]
pub struct ReadDir {
    dir: Arc<Node>,
    path: PathBuf,
    batch: VecDeque<DirEntry>,
    cookie: u64,
    ended: bool,
}

impl ReadDir {
    pub(super) fn new(dir: Arc<Node>, path: PathBuf) -> ReadDir {
        ReadDir {
            dir,
            path,
            batch: VecDeque::new(),
            cookie: 0,
            ended: false,
        }
    }

    fn fill(&mut self) -> cowshed_vfs::Result<()> {
        let (dir, batch, mut last, mut full) = (self.dir.clone(), &mut self.batch, self.cookie, false);
        let mut take = |entry: cowshed_vfs::DirEntry<'_>| {
            if batch.len() == BATCH {
                full = true;
                return ControlFlow::Break(());
            }
            last = entry.cookie;
            if entry.name != b"." && entry.name != b".." {
                batch.push_back(DirEntry {
                    dir: dir.clone(),
                    name: OsString::from_vec(entry.name.to_vec()),
                    kind: entry.kind,
                    ino: entry.ino,
                });
            }
            ControlFlow::Continue(())
        };
        let node = &self.dir;
        node.fs()
            .readdir(node.ctx(), node.id(), Handle::NONE, self.cookie, &mut take)?;
        self.cookie = last;
        self.ended = !full;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty()
            && !self.ended
            && let Err(error) = self.fill()
        {
            self.ended = true;
            return Some(Err(Error::at(&self.path)(error)));
        }
        self.batch.pop_front().map(Ok)
    }
}
