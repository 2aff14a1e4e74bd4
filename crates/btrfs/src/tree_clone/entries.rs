//! Which entries of a directory the next step takes.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::{ObjectId, TreeId};
use cowshed_vfs::{Access, Context, FileKind};

use super::batch::{Object, Source, concerns_entry};
use super::{Frame, NAMES_MAX};
use crate::access::Caller;
use crate::dir::{self, Found};
use crate::error::{Error, Result};
use crate::files::Files;
use crate::object::Inode;
use crate::reclaim;

/// An entry that was listed.
pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    what: What,
    /// What its items say is not enough, or was not at some time.
    pub(super) must_load: bool,
}

enum What {
    Name(Found, FileKind),
    Top(Arc<Inode>),
}

impl Listed {
    /// The tree itself, under its new name.
    pub(super) fn top(name: &[u8], src: &Arc<Inode>) -> Self {
        Self {
            name: name.into(),
            what: What::Top(src.clone()),
            must_load: false,
        }
    }
}

/// What to do with the first entries.
pub(super) enum Choice<'q> {
    /// The first is gone, or not of the tree.
    Skip,
    /// The first cannot be cloned.
    Refuse(Error),
    /// The first is one more name of a file whose copy has this number.
    Link(Arc<Inode>, ObjectId),
    /// These are new.
    Make(Vec<Source<'q>>),
}

/// Reads the next names of a frame's source.
pub(super) fn list_some(frame: &mut Frame) -> Result<()> {
    let Some(src) = &frame.src else { return Ok(()) };
    if frame.cookie == 0 {
        // Not before: a name that is replaced in between would be behind the end.
        dir::begin_listing(src)?;
    }
    frame.is_listed = true;
    dir::list(src, frame.cookie, |entry| {
        frame.queue.push_back(Listed {
            name: entry.name.into(),
            what: What::Name(entry.found, entry.kind),
            must_load: false,
        });
        frame.cookie = entry.cookie;
        if frame.queue.len() < NAMES_MAX {
            return Ok(ControlFlow::Continue(()));
        }
        frame.is_listed = false;
        Ok(ControlFlow::Break(()))
    })
}

/// Files with more names: the copy, and how many names are left to find.
pub(super) type Links = HashMap<(TreeId, ObjectId), (ObjectId, u32)>;

/// Looks at the queue of a frame, which is not empty. Errors: those that end the walk.
pub(super) fn choose<'q>(
    files: &Files,
    ctx: &Context,
    src: Option<&Arc<Inode>>,
    queue: &'q VecDeque<Listed>,
    links: &Links,
    newest: (TreeId, ObjectId),
) -> Result<Choice<'q>> {
    let mut chosen: Vec<Source<'q>> = Vec::with_capacity(queue.len());
    for listed in queue {
        if let Some(source) = absent(files, src, listed) {
            chosen.push(source);
            continue;
        }
        let is_first = chosen.is_empty();
        let inode = match load(files, src, listed) {
            Ok(Some(inode)) => inode,
            Ok(None) if is_first => return Ok(Choice::Skip),
            Err(error) if is_first && concerns_entry(&error) => return Ok(Choice::Refuse(error)),
            Err(error) if is_first => return Err(error),
            Ok(None) | Err(_) => break,
        };
        let refused = may_clone(ctx, &inode).err();
        let is_newer =
            inode.is_dir() && inode.tree.id() == newest.0 && inode.ino >= newest.1 && !inode.is_placeholder();
        if refused.is_some() || is_newer {
            reclaim::settle(files, &inode);
            return Ok(match (is_first, refused) {
                (false, _) => Choice::Make(chosen),
                (true, Some(error)) => Choice::Refuse(error),
                (true, None) => Choice::Skip,
            });
        }
        if !inode.is_dir() && inode.attr_now().nlink > 1 {
            let known = links.get(&(inode.tree.id(), inode.ino));
            let is_same = |other: &Source<'_>| other.loaded().is_some_and(|other| Arc::ptr_eq(other, &inode));
            match known {
                Some((copy, _)) if is_first => return Ok(Choice::Link(inode, *copy)),
                Some(_) => {
                    reclaim::settle(files, &inode);
                    break;
                }
                None if chosen.iter().any(is_same) => break,
                None => {}
            }
        }
        chosen.push(Source {
            name: &listed.name,
            ino: inode.ino,
            kind: inode.kind(),
            object: Object::Loaded(inode),
        });
    }
    Ok(Choice::Make(chosen))
}

/// The entry as one whose inode is not in memory, if it is none. Directories are loaded: the walk
/// goes on in them.
fn absent<'q>(files: &Files, src: Option<&Arc<Inode>>, listed: &'q Listed) -> Option<Source<'q>> {
    let (What::Name(found, kind), Some(src)) = (&listed.what, src) else {
        return None;
    };
    let dir::Target::Inode(ino) = found.target else {
        return None;
    };
    if listed.must_load || *kind == FileKind::Directory {
        return None;
    }
    let mark = files.objects().inodes.get_or_mark(src.tree.id(), ino).err()?;
    Some(Source {
        name: &listed.name,
        ino,
        kind: *kind,
        object: Object::Absent(mark),
    })
}

fn load(files: &Files, src: Option<&Arc<Inode>>, listed: &Listed) -> Result<Option<Arc<Inode>>> {
    match (&listed.what, src) {
        (What::Top(inode), _) => Ok(Some(inode.clone())),
        (What::Name(found, _), Some(src)) => match dir::load_target(files, src, &listed.name, found)? {
            Some(inode) => Ok(Some(inode)),
            // Another one may have taken its place: the listing does not come to its entry.
            None => dir::lookup(files, src, &listed.name),
        },
        (What::Name(..), None) => Ok(None),
    }
}

/// The caller may read the source, and make what it is.
fn may_clone(ctx: &Context, inode: &Inode) -> Result<()> {
    let caller = Caller { ctx, checks: true };
    match inode.kind() {
        // No list is looked for.
        FileKind::Regular if ctx.creds.is_privileged() => Ok(()),
        FileKind::Regular => caller.need(inode, Access::READ),
        FileKind::Directory => caller.need(inode, Access::READ | Access::EXEC),
        kind => caller.need_node(kind, inode.attr_now().rdev),
    }
}
