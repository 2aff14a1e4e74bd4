//! Changing attributes, and stripping what a write by another user must not leave.

use std::sync::Arc;

use btrfs_format::Generation;
use cowshed_vfs::perm::{self, Strips};
use cowshed_vfs::xattr::CAPABILITY_NAME;
use cowshed_vfs::{Context, Error as Errno, FileKind, PERM_MASK, SetAttr, SetTime, Timestamp};

use crate::access::{Caller, check_writable};
use crate::error::Result;
use crate::file;
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::{Inode, InodeAttr, flags};
use crate::staged::Staged;
use crate::xattr::{self, acl};
use btrfs_store::space::{Budget, MetaReservation};

/// Set-user-id and set-group-id.
const SET_ID_MASK: u32 = 0o6000;

/// How a change of attributes is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// By a path, not by a descriptor of an open file.
    pub(super) is_by_path: bool,
    /// Pages that were changed through a mapping may come yet.
    pub(super) may_be_mapped: bool,
}

/// Changes attributes, all or none. Errors: see [`cowshed_vfs::FileSystem::setattr`].
pub(super) fn setattr(
    files: &Files,
    caller: &Caller<'_>,
    inode: &Arc<Inode>,
    set: &SetAttr,
    asked: Asked,
) -> Result<()> {
    check_writable(files, inode)?;
    check_flags(inode, set)?;
    if caller.checks {
        let list = acl::access_list(inode)?;
        perm::check_setattr(&caller.ctx.creds, &inode.vfs_attr(), list.as_deref(), set)?;
    }
    if asked.is_by_path && changes_nothing(inode, set)? {
        return Ok(());
    }
    // Before the size changes: after `NoSpace` the file is as it was. What cuts a file is a
    // deletion, for which there always is.
    let mut budget = budget(inode);
    budget.is_release = set.size_bytes.is_some_and(|size| size < inode.attr_now().size);
    let space = files.reserve(budget)?;
    if let Some(size) = set.size_bytes {
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Errno::IsDirectory.into()),
            _ => return Err(Errno::Invalid.into()),
        }
        if size > i64::MAX.cast_unsigned() {
            return Err(Errno::FileTooBig.into());
        }
        file::truncate(files, inode, size)?;
    }
    let kills = set.uid.is_some() || set.gid.is_some() || set.kill_suidgid;
    if matches!(set.mtime, Some(SetTime::At(_))) && asked.may_be_mapped {
        inode.attr.lock().times_set = Some(Box::new(files.store().env().now()));
    }
    let _lock = inode.lock.write();
    change(files, inode, space, kills, |attr, now| {
        apply(caller, inode.kind(), set, attr, now);
    })
}

/// truncate(2) to the size that the file has, which leaves its times. Not for size 0: front ends
/// get the same request for an empty file that is opened with O_TRUNC, and that sets the times.
fn changes_nothing(inode: &Inode, set: &SetAttr) -> Result<bool> {
    let attr = inode.attr_now();
    let size_alone = SetAttr {
        size_bytes: Some(attr.size),
        kill_suidgid: set.kill_suidgid,
        ..SetAttr::default()
    };
    if !inode.is_regular() || attr.size == 0 || *set != size_alone {
        return Ok(false);
    }
    Ok(!set.kill_suidgid || attr.mode & SET_ID_MASK == 0 && !has_capability(inode)?)
}

/// The set-id bits that a change of content by this caller takes away.
pub(super) fn strips_of(ctx: &Context, inode: &Inode) -> Strips {
    let attr = inode.attr_now();
    Strips::by(&ctx.creds, attr.mode & PERM_MASK, attr.gid)
}

/// Strips set-id bits and capabilities before a write on behalf of a caller that may not keep them.
pub(super) fn strip_privileges(files: &Files, inode: &Arc<Inode>, strips: Strips) -> Result<()> {
    if strips == Strips::Nothing && !has_capability(inode)? {
        return Ok(());
    }
    let space = files.reserve(budget(inode))?;
    let _lock = inode.lock.write();
    change_unasked(files, inode, space, |attr, _| {
        attr.mode = attr.mode & !PERM_MASK | strips.apply(attr.mode & PERM_MASK);
    })
}

/// Strips capabilities before a change of content that takes the set-id bits along itself.
pub(super) fn strip_capability(files: &Files, inode: &Arc<Inode>) -> Result<()> {
    if !has_capability(inode)? {
        return Ok(());
    }
    let space = files.reserve(budget(inode))?;
    let _lock = inode.lock.write();
    change_unasked(files, inode, space, |_, _| {})
}

/// A file capability that goes with a change of contents which is about to be judged.
pub(super) struct Capability<'a> {
    files: &'a Files,
    inode: &'a Arc<Inode>,
    /// `None`: there is none.
    space: Option<MetaReservation>,
}

impl<'a> Capability<'a> {
    /// Sets space aside for its removal. No lock may be held.
    pub(crate) fn of(files: &'a Files, inode: &'a Arc<Inode>) -> Result<Self> {
        let space = match has_capability(inode)? {
            true => Some(files.reserve(budget(inode))?),
            false => None,
        };
        Ok(Self { files, inode, space })
    }

    /// Takes it away. The caller holds the operation lock for writing.
    pub(crate) fn strip(self) -> Result<()> {
        match self.space {
            Some(space) => change_unasked(self.files, self.inode, space, |_, _| {}),
            None => Ok(()),
        }
    }
}

/// For one [`change`].
fn budget(inode: &Inode) -> Budget {
    if inode.xattrs.is_known_empty() {
        Budget::SETATTR
    } else {
        Budget::XATTR
    }
}

fn has_capability(inode: &Inode) -> Result<bool> {
    Ok(!inode.xattrs.is_known_empty() && xattr::load(inode, CAPABILITY_NAME)?.is_some())
}

/// Applies `edit` to the attributes, and what a new mode or owner does to xattrs. The caller holds
/// the operation lock for writing.
fn change(
    files: &Files,
    inode: &Arc<Inode>,
    space: MetaReservation,
    kills_capability: bool,
    edit: impl Fn(&mut InodeAttr, Timestamp),
) -> Result<()> {
    let has_xattrs = !inode.xattrs.is_known_empty();
    let now = files.store().env().now();
    let (join, mut staged) = prepare_and_join(files, |generation| {
        let mut staged = Staged::new(&inode.tree);
        if has_xattrs {
            stage_xattrs(&mut staged, inode, kills_capability, &edit, generation, now)?;
        }
        Ok(staged)
    })?;
    let mut state = inode.attr.lock();
    let kept_ctime = state.attr.ctime;
    edit(&mut state.attr, now);
    let ctime = (state.attr.ctime != kept_ctime).then_some(state.attr.ctime);
    touch_inode(&mut state, join.generation(), ctime.unwrap_or(now));
    staged.put(inode.key(), inode.item_bytes(&state));
    join.apply(staged.into_batch(), space);
    drop(state);
    drop(join);
    if has_xattrs {
        inode.xattrs.forget_lists();
    }
    Ok(())
}

/// Takes the capability away, and applies `edit`, on behalf of a call that did not name these
/// attributes. The caller holds the operation lock for writing.
fn change_unasked(
    files: &Files,
    inode: &Arc<Inode>,
    space: MetaReservation,
    edit: impl Fn(&mut InodeAttr, Timestamp),
) -> Result<()> {
    change(files, inode, space, true, edit)?;
    inode.unasked.note();
    Ok(())
}

fn stage_xattrs(
    staged: &mut Staged<'_>,
    inode: &Inode,
    kills_capability: bool,
    edit: &impl Fn(&mut InodeAttr, Timestamp),
    generation: Generation,
    now: Timestamp,
) -> Result<()> {
    let old = inode.attr_now();
    let mut new = old;
    edit(&mut new, now);
    if new.mode != old.mode
        && let Some(list) = acl::access_list(inode)?
    {
        let mut list = (*list).clone();
        list.set_mode(new.mode & PERM_MASK);
        xattr::stage_set(staged, inode.ino, acl::ACCESS_NAME, &list.to_bytes(), generation)?;
    }
    if kills_capability {
        xattr::stage_remove(staged, inode.ino, CAPABILITY_NAME)?;
    }
    Ok(())
}

fn apply(caller: &Caller<'_>, kind: FileKind, set: &SetAttr, attr: &mut InodeAttr, now: Timestamp) {
    let mut perm_bits = attr.mode & PERM_MASK;
    if set.size_bytes.is_some() {
        attr.mtime = now;
    }
    if set.kill_suidgid {
        perm_bits = Strips::demanded(&caller.ctx.creds, perm_bits, attr.gid).apply(perm_bits);
    }
    if set.uid.is_some() || set.gid.is_some() {
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        perm_bits = perm::perm_after_chown(kind, perm_bits);
    }
    if let Some(wanted) = set.perm {
        perm_bits = wanted & PERM_MASK;
        if caller.checks {
            perm_bits = perm::perm_for_chmod(&caller.ctx.creds, perm_bits, attr.gid);
        }
    }
    attr.mode = attr.mode & !PERM_MASK | perm_bits;
    for (wanted, field) in [(set.atime, &mut attr.atime), (set.mtime, &mut attr.mtime)] {
        match wanted {
            Some(SetTime::Now) => *field = now,
            Some(SetTime::At(time)) => *field = time,
            None => {}
        }
    }
    attr.ctime = set.ctime.unwrap_or(now);
}

/// What immutable and append-only inodes allow.
fn check_flags(inode: &Inode, set: &SetAttr) -> Result<()> {
    let bits = inode.flags();
    let is_time_given = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
    let changes_more_than_now = set.perm.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.size_bytes.is_some()
        || is_time_given(set.atime)
        || is_time_given(set.mtime);
    let refused = bits & flags::IMMUTABLE != 0 || (bits & flags::APPEND != 0 && changes_more_than_now);
    if refused || inode.is_placeholder() {
        return Err(Errno::NotPermitted.into());
    }
    Ok(())
}
