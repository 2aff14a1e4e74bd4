//! Extended attributes: `XATTR_ITEM` by hash of the whole name; colliding names share an item.
//!
//! Most inodes have none, and callers ask often: what is known about that is kept per inode ([`XattrCache`]), so that
//! asking an inode without attributes costs a load of one byte.

pub mod acl;
pub mod props;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use btrfs_format::items::{DirItem, file_type};
use btrfs_format::{Generation, Key, KeyType, ObjectId, hash, view};
use cowshed_vfs::acl::Acl;
use cowshed_vfs::xattr::{self as rules, Namespace, Use};
use cowshed_vfs::{Access, Error as Errno, SetXattrFlags};
use parking_lot::Mutex;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use crate::Engine;
use crate::dir::staged::Staged;
use crate::dir::{prepare_and_join, touch_inode};
use crate::error::{Error, Result, StoreError};
use crate::inode::Inode;
use crate::inode::access::{Caller, check_changeable};
use btrfs_store::space::Budget;

/// File capabilities: gone after a change of owner or content, as set-id bits are.
pub const CAPABILITY_NAME: &[u8] = b"security.capability";

const UNKNOWN: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

/// What is known of an inode's attributes.
#[derive(Debug, Default)]
pub struct XattrCache {
    /// Goes from UNKNOWN to NONE by a reader that found none, and to SOME before a writer adds one: a reader that was
    /// overtaken by a writer does not overwrite what that said.
    known: AtomicU8,
    lists: Mutex<Lists>,
}

/// Access lists as they were parsed last; the outer `None`: not known.
#[derive(Debug, Default)]
struct Lists {
    access: Option<Option<Arc<Acl>>>,
    default: Option<Option<Arc<Acl>>>,
}

impl XattrCache {
    /// For inodes that were just made.
    pub fn set_known_empty(&self) {
        self.known.store(NONE, Ordering::Release);
    }
    pub fn is_known_empty(&self) -> bool {
        self.known.load(Ordering::Acquire) == NONE
    }
    /// Asking whether there are any needs no search.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire) != UNKNOWN
    }
    pub(crate) fn set_some(&self) {
        self.known.store(SOME, Ordering::Release);
    }
    pub(crate) fn forget_lists(&self) {
        *self.lists.lock() = Lists::default();
    }
}

fn item_key(ino: ObjectId, name: &[u8]) -> Key {
    Key::new(ino, KeyType::XATTR_ITEM, hash::name_hash(name))
}

/// Does the inode have attributes at all?
pub(crate) fn has_any(inode: &Inode) -> Result<bool> {
    let cache = &inode.xattrs;
    match cache.known.load(Ordering::Acquire) {
        NONE => return Ok(false),
        SOME => return Ok(true),
        _ => {}
    }
    let first = inode
        .tree
        .cursor_type(Key::new(inode.ino, KeyType::XATTR_ITEM, 0))
        .next()?;
    let found = if first.is_some() { SOME } else { NONE };
    let _ = cache
        .known
        .compare_exchange(UNKNOWN, found, Ordering::AcqRel, Ordering::Acquire);
    Ok(first.is_some())
}

/// The value of an attribute, whoever asks.
pub fn load(inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>> {
    if !has_any(inode)? {
        return Ok(None);
    }
    let Some(item) = inode.tree.get(&item_key(inode.ino, name))? else {
        return Ok(None);
    };
    let found = view::dir_entries(&item).find(|e| e.name == name);
    Ok(found.map(|e| e.data.to_vec()))
}

/// Calls `sink` with each name.
pub fn for_each_name(inode: &Inode, mut sink: impl FnMut(&[u8])) -> Result<()> {
    if !has_any(inode)? {
        return Ok(());
    }
    let mut cursor = inode.tree.cursor_type(Key::new(inode.ino, KeyType::XATTR_ITEM, 0));
    while let Some((_, item)) = cursor.next()? {
        view::dir_entries(&item).for_each(|e| sink(e.name));
    }
    Ok(())
}

/// Stages the value of an attribute, new or not. Errors: `NoSpace` where it does not fit a leaf.
pub fn stage_set(
    staged: &mut Staged<'_>,
    ino: ObjectId,
    name: &[u8],
    value: &[u8],
    generation: Generation,
) -> Result<()> {
    let head_bytes = size_of::<DirItem>();
    let len = head_bytes + name.len() + value.len();
    let (Ok(data_len), Ok(name_len)) = (u16::try_from(value.len()), u16::try_from(name.len())) else {
        return Err(Error::Store(StoreError::NoSpace));
    };
    if len > staged.item_bytes_max() {
        return Err(Error::Store(StoreError::NoSpace));
    }
    let head = DirItem {
        location: Key::MIN.into(),
        transid: generation.into(),
        data_len: U16::new(data_len),
        name_len: U16::new(name_len),
        ty: file_type::XATTR,
    };
    let key = item_key(ino, name);
    let mut bytes = Vec::with_capacity(len);
    if let Some(item) = staged.get(&key)? {
        copy_others(&item, name, &mut bytes);
    }
    if bytes.len() + len > staged.item_bytes_max() {
        return Err(Error::Store(StoreError::NoSpace));
    }
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(value);
    staged.put(key, bytes);
    Ok(())
}

/// Stages the removal of an attribute; `false` where there is none.
pub fn stage_remove(staged: &mut Staged<'_>, ino: ObjectId, name: &[u8]) -> Result<bool> {
    let key = item_key(ino, name);
    let Some(item) = staged.get(&key)? else {
        return Ok(false);
    };
    if !view::dir_entries(&item).any(|e| e.name == name) {
        return Ok(false);
    }
    let mut rest = Vec::new();
    copy_others(&item, name, &mut rest);
    staged.put_or_delete(key, rest);
    Ok(true)
}

fn copy_others(item: &[u8], name: &[u8], out: &mut Vec<u8>) {
    for entry in view::dir_entries(item).filter(|e| e.name != name) {
        out.extend_from_slice(entry.head.as_bytes());
        out.extend_from_slice(entry.name);
        out.extend_from_slice(entry.data);
    }
}

fn check(caller: &Caller<'_>, inode: &Inode, name: &[u8], what: Use) -> Result<Namespace> {
    let space = Namespace::of(name)?;
    rules::check(&caller.ctx.creds, &inode.vfs_attr(), space, what)?;
    if space == Namespace::User {
        let want = if what == Use::Get { Access::READ } else { Access::WRITE };
        caller.need(inode, want)?;
    }
    Ok(space)
}

/// The value of an attribute for a caller. Errors: `NoData`, `NotSupported`.
pub fn get(caller: &Caller<'_>, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    // Probes of inodes without attributes are by far the most frequent.
    if inode.xattrs.is_known_empty() && Namespace::of(name).is_ok() {
        return Err(Errno::NoData.into());
    }
    check(caller, inode, name, Use::Get)?;
    Ok(load(inode, name)?.ok_or(Errno::NoData)?)
}

/// The names that a caller may see, each with a NUL after it.
pub fn list(caller: &Caller<'_>, inode: &Inode) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for_each_name(inode, |name| {
        if rules::is_listed(&caller.ctx.creds, name) {
            out.extend_from_slice(name);
            out.push(0);
        }
    })?;
    Ok(out)
}

/// Sets an attribute. Errors: see [`cowshed_vfs::FileSystem::setxattr`].
pub fn set(
    engine: &Engine,
    caller: &Caller<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
    value: &[u8],
    flags: SetXattrFlags,
) -> Result<()> {
    if value.len() > rules::VALUE_BYTES_MAX {
        return Err(Errno::TooBig.into());
    }
    change(engine, caller, inode, name, Some(value), flags)
}

/// Removes an attribute. Errors: `NoData`, `NotPermitted`.
pub fn remove(engine: &Engine, caller: &Caller<'_>, inode: &Arc<Inode>, name: &[u8]) -> Result<()> {
    change(engine, caller, inode, name, None, SetXattrFlags::empty())
}

fn change(
    engine: &Engine,
    caller: &Caller<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
    value: Option<&[u8]>,
    flags: SetXattrFlags,
) -> Result<()> {
    let name_space = Namespace::of(name)?;
    check_changeable(engine, inode)?;
    let space = engine.reserve(Budget::XATTR)?;
    let _lock = inode.lock.write();
    if name == CAPABILITY_NAME && value.is_none() {
        // Linux removes them in the name of the caller that changes contents. It also does so, unchecked, for a chown that names
        // neither owner nor group, which any user may try: that one gets its answer, and nothing happens.
        let is_allowed = Caller {
            checks: true,
            ..*caller
        }
        .need(inode, Access::WRITE);
        if is_allowed.is_err() && !caller.checks {
            return Ok(());
        }
        is_allowed?;
    } else {
        check(caller, inode, name, Use::Set)?;
    }
    let effect_of_property = match name_space {
        Namespace::Btrfs => Some(props::effect(inode, name, value)?),
        _ => None,
    };
    if effect_of_property.is_some() && props::is_ignored(inode) {
        return Ok(());
    }
    let exists = load(inode, name)?.is_some();
    if exists && flags.contains(SetXattrFlags::CREATE) {
        return Err(Errno::Exists.into());
    }
    if !exists && flags.contains(SetXattrFlags::REPLACE) {
        return Err(Errno::NoData.into());
    }
    let effect = match name_space {
        Namespace::AccessAcl | Namespace::DefaultAcl => acl::effect(caller, inode, name, value, flags)?,
        Namespace::Btrfs | Namespace::User | Namespace::Trusted | Namespace::Security => effect_of_property
            .unwrap_or_else(|| Effect {
                value: value.map(<[u8]>::to_vec),
                mode: None,
                flags: None,
            }),
    };
    let may_be_absent = value.is_some() || matches!(name_space, Namespace::AccessAcl | Namespace::DefaultAcl);
    if !exists && !may_be_absent {
        return Err(Errno::NoData.into());
    }
    let now = engine.store.env().now();
    let (join, mut staged) = prepare_and_join(engine, |generation| {
        let mut staged = Staged::new(&inode.tree);
        match &effect.value {
            Some(value) => stage_set(&mut staged, inode.ino, name, value, generation)?,
            None => drop(stage_remove(&mut staged, inode.ino, name)?),
        }
        Ok(staged)
    })?;
    if effect.value.is_some() {
        inode.xattrs.set_some();
    }
    let mut state = inode.attr.lock();
    if let Some(mode) = effect.mode.filter(|mode| *mode != state.attr.mode) {
        state.attr.mode = mode;
        inode.unasked.note();
    }
    state.attr.flags = effect.flags.unwrap_or(state.attr.flags);
    touch_inode(&mut state, join.generation(), now);
    staged.put(inode.key(), inode.item_bytes(&state));
    join.apply(staged.into_batch(), space);
    drop(state);
    drop(join);
    inode.xattrs.forget_lists();
    Ok(())
}

/// What setting or removing an attribute really does.
#[derive(Debug)]
struct Effect {
    /// What is stored; `None`: nothing, and what was there goes.
    value: Option<Vec<u8>>,
    /// A new mode.
    mode: Option<u32>,
    /// New inode flags.
    flags: Option<u64>,
}
