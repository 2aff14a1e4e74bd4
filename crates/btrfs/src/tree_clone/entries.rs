//! Which entries of a directory the next step takes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::{ObjectId, TreeId};
use cowshed_vfs::{Access, Context, FileKind};

use super::batch::{Source, concerns_entry};
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
}

enum What {
    Name(Found),
    Top(Arc<Inode>),
}

impl Listed {
    /// The tree itself, under its new name.
    pub(super) fn top(name: &[u8], src: &Arc<Inode>) -> Self {
        Self {
            name: name.into(),
            what: What::Top(src.clone()),
        }
    }
}

/// What to do with the first entries.
pub(super) enum Choice {
    /// The first is gone, or not of the tree.
    Skip,
    /// The first cannot be cloned.
    Refuse(Error),
    /// The first is one more name of a file whose copy has this number.
    Link(Source, ObjectId),
    /// These are new.
    Make(Vec<Source>),
}

/// Reads the next names of a frame's source.
pub(super) fn list_some(frame: &mut Frame) -> Result<()> {
    let Some(src) = &frame.src else { return Ok(()) };
    frame.is_listed = true;
    dir::list(src, frame.cookie, |entry| {
        frame.queue.push_back(Listed {
            name: entry.name.into(),
            what: What::Name(entry.found),
        });
        frame.cookie = entry.cookie;
        if frame.queue.len() < NAMES_MAX {
            return Ok(ControlFlow::Continue(()));
        }
        frame.is_listed = false;
        Ok(ControlFlow::Break(()))
    })
}

/// Looks at the queue of a frame, which is not empty. Errors: those that end the walk.
pub(super) fn choose(
    files: &Files,
    ctx: &Context,
    frame: &Frame,
    links: &HashMap<(TreeId, ObjectId), (ObjectId, u32)>,
    newest: (TreeId, ObjectId),
) -> Result<Choice> {
    let mut chosen: Vec<Source> = Vec::with_capacity(frame.queue.len());
    for listed in &frame.queue {
        let is_first = chosen.is_empty();
        let inode = match load(files, frame, listed) {
            Ok(Some(inode)) => inode,
            Ok(None) if is_first => return Ok(Choice::Skip),
            Err(error) if is_first && concerns_entry(&error) => return Ok(Choice::Refuse(error)),
            Err(error) if is_first => return Err(error),
            Ok(None) | Err(_) => break,
        };
        let source = Source {
            name: listed.name.clone(),
            inode,
        };
        let inode = &source.inode;
        let refused = may_clone(ctx, inode).err();
        let is_newer =
            inode.is_dir() && inode.tree.id() == newest.0 && inode.ino >= newest.1 && !inode.is_placeholder();
        if refused.is_some() || is_newer {
            reclaim::settle(files, inode);
            return Ok(match (is_first, refused) {
                (false, _) => Choice::Make(chosen),
                (true, Some(error)) => Choice::Refuse(error),
                (true, None) => Choice::Skip,
            });
        }
        if !inode.is_dir() && inode.attr_now().nlink > 1 {
            let known = links.get(&(inode.tree.id(), inode.ino));
            match known {
                Some((copy, _)) if is_first => {
                    let copy = *copy;
                    return Ok(Choice::Link(source, copy));
                }
                Some(_) => {
                    reclaim::settle(files, inode);
                    break;
                }
                None if chosen.iter().any(|other| Arc::ptr_eq(&other.inode, inode)) => break,
                None => {}
            }
        }
        chosen.push(source);
    }
    Ok(Choice::Make(chosen))
}

fn load(files: &Files, frame: &Frame, listed: &Listed) -> Result<Option<Arc<Inode>>> {
    match (&listed.what, &frame.src) {
        (What::Top(inode), _) => Ok(Some(inode.clone())),
        (What::Name(found), Some(src)) => dir::load_target(files, src, &listed.name, found),
        (What::Name(_), None) => Ok(None),
    }
}

/// The caller may read the source, and make what it is.
fn may_clone(ctx: &Context, inode: &Inode) -> Result<()> {
    let caller = Caller { ctx, checks: true };
    match inode.kind() {
        FileKind::Regular => caller.need(inode, Access::READ),
        FileKind::Directory => caller.need(inode, Access::READ | Access::EXEC),
        kind => caller.need_node(kind, inode.attr_now().rdev),
    }
}
