//! Listing for front ends: `.` and `..` first, then names by index.

use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::ObjectId;
use cowshed_vfs::fs::{DirPlusSink, WantsNode};
use cowshed_vfs::{DirEntry, Entry, Error as Errno, FileKind, NodeId};

use super::Fs;
use crate::dir::{self, ListedEntry, Target};
use crate::error::Result;
use crate::object::Inode;

/// Cookies of the two names that every directory has; a name with index n has n + 1.
const COOKIE_SELF: u64 = 1;
const COOKIE_PARENT: u64 = 2;

impl Fs {
    /// A listing from the start is noted: it, and what goes on with it, ends with the names that
    /// there are now, or a caller that makes a name for each one it reads would never come to an
    /// end. The kernel's btrfs keeps that per open directory; we are not told of those, so that the
    /// latest beginning counts for all.
    pub(super) fn begin_listing(&self, dir: &Arc<Inode>, cookie: u64) -> Result<()> {
        if cookie == 0 {
            self.note_access(dir);
            if dir.is_dir() && !dir.is_placeholder() {
                dir::begin_listing(dir)?;
            }
        }
        Ok(())
    }

    /// Calls `sink` for each name, and what it leads to where that is one.
    pub(super) fn list(
        &self,
        dir: &Arc<Inode>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>, Option<&ListedEntry<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        if !dir.is_dir() {
            return Err(Errno::NotDirectory.into());
        }
        let dots = [(COOKIE_SELF, &b"."[..]), (COOKIE_PARENT, b"..")];
        for (own, name) in dots.into_iter().filter(|(own, _)| cookie < *own) {
            let ino = if own == COOKIE_SELF {
                self.numbering.shown_of(dir)
            } else {
                self.parent_number(dir)
            };
            let entry = DirEntry {
                name,
                ino,
                kind: FileKind::Directory,
                cookie: own,
            };
            if sink(entry, None).is_break() {
                return Ok(());
            }
        }
        if dir.is_placeholder() {
            return Ok(());
        }
        dir::list(dir, cookie, |listed| {
            let entry = DirEntry {
                name: listed.name,
                ino: self.number_in_listing(dir, listed),
                kind: listed.kind,
                cookie: listed.cookie,
            };
            Ok(sink(entry, Some(listed)))
        })
    }

    /// A parent that cannot be read is no reason not to list what is here.
    fn parent_number(&self, dir: &Arc<Inode>) -> u64 {
        if Arc::ptr_eq(dir, &self.root) {
            return self.numbering.shown_of(dir);
        }
        let parent = dir::parent_of(&self.mount, dir).unwrap_or_else(|error| {
            super::errno("readdir", error);
            None
        });
        match parent {
            Some((tree, ino)) => self.numbering.shown(tree, ino),
            None => self.numbering.shown_of(dir),
        }
    }

    /// A damaged subvolume has the number of its top directory, and `lookup` says what is wrong:
    /// the names beside it are listed all the same.
    fn number_in_listing(&self, dir: &Arc<Inode>, listed: &ListedEntry<'_>) -> u64 {
        match listed.found.target {
            Target::Inode(ino) => self.numbering.shown(dir.tree.id(), ino),
            // Only going there tells a subvolume from a stand-in for one.
            Target::Subvol(tree) => {
                let inode = dir::load_target(&self.mount, dir, listed.name, &listed.found);
                let inode = inode.unwrap_or_else(|error| {
                    super::errno("readdir", error);
                    None
                });
                match inode {
                    Some(inode) => self.numbering.shown_of(&inode),
                    None => self.numbering.shown(tree, ObjectId::FIRST_FREE),
                }
            }
        }
    }

    /// As [`Fs::list`], with the entry behind each name that is wanted, looked up once.
    pub(super) fn list_with_entries(
        &self,
        node: NodeId,
        cookie: u64,
        wants: WantsNode<'_>,
        sink: DirPlusSink<'_>,
    ) -> Result<()> {
        let dir = self.inode(node)?;
        self.begin_listing(&dir, cookie)?;
        self.list(&dir, cookie, &mut |dirent, listed| {
            let wanted = listed.filter(|_| wants(&dirent));
            let found = wanted.and_then(|listed| self.listed_entry(&dir, listed));
            let Some((inode, entry)) = found else {
                return sink(dirent, None);
            };
            let flow = sink(dirent, Some(&entry));
            if flow == ControlFlow::Break(()) {
                self.give_back(&inode, 1);
            }
            flow
        })
    }

    /// `None` where it cannot be read, which `lookup` will say in full.
    fn listed_entry(&self, dir: &Arc<Inode>, listed: &ListedEntry<'_>) -> Option<(Arc<Inode>, Entry)> {
        match dir::load_target(&self.mount, dir, listed.name, &listed.found) {
            Ok(inode) => inode.and_then(|inode| {
                let entry = self.entry_unless_gone(&inode)?;
                Some((inode, entry))
            }),
            Err(error) => {
                super::errno("readdirplus", error);
                None
            }
        }
    }
}
