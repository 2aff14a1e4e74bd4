//! Calls on extended attributes: permissions, the effect on mode and flags, one batch for each
//! change.

use std::sync::Arc;

use btrfs_store::space::Budget;
use cowshed_vfs::acl::{Acl, DEFAULT_NAME};
use cowshed_vfs::xattr::{self as rules, CAPABILITY_NAME, Namespace, Use};
use cowshed_vfs::{Access, Error as Errno, SetXattrFlags, perm};

use crate::access::{Caller, check_changeable};
use crate::error::Result;
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::Inode;
use crate::staged::Staged;
use crate::xattr::{Effect, for_each_name, load, props, space_of, stage_remove, stage_set};

fn check(caller: &Caller<'_>, inode: &Inode, name: &[u8], what: Use) -> Result<Namespace> {
    let space = space_of(name)?;
    rules::check(&caller.ctx.creds, &inode.vfs_attr(), space, what)?;
    if space == Namespace::User {
        let want = if what == Use::Get { Access::READ } else { Access::WRITE };
        caller.need(inode, want)?;
    }
    Ok(space)
}

/// The value of an attribute for a caller. Errors: `NoData`, `NotSupported`.
pub(crate) fn get(caller: &Caller<'_>, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
    // Probes of inodes without attributes are by far the most frequent.
    if inode.xattrs.is_known_empty() && space_of(name).is_ok() {
        return Err(Errno::NoData.into());
    }
    check(caller, inode, name, Use::Get)?;
    Ok(load(inode, name)?.ok_or(Errno::NoData)?)
}

/// The names that a caller may see, each with a NUL after it.
pub(crate) fn list(caller: &Caller<'_>, inode: &Inode) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    for_each_name(inode, |name| {
        if rules::is_listed(&caller.ctx.creds, space_of(name)) {
            out.extend_from_slice(name);
            out.push(0);
        }
    })?;
    Ok(out)
}

/// Sets an attribute. Errors: see [`cowshed_vfs::FileSystem::setxattr`].
pub(crate) fn set(
    files: &Files,
    caller: &Caller<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
    value: &[u8],
    flags: SetXattrFlags,
) -> Result<()> {
    if value.len() > rules::VALUE_BYTES_MAX {
        return Err(Errno::TooBig.into());
    }
    change(files, caller, inode, name, Some(value), flags)
}

/// Removes an attribute. Errors: `NoData`, `NotPermitted`.
pub(crate) fn remove(files: &Files, caller: &Caller<'_>, inode: &Arc<Inode>, name: &[u8]) -> Result<()> {
    change(files, caller, inode, name, None, SetXattrFlags::empty())
}

fn change(
    files: &Files,
    caller: &Caller<'_>,
    inode: &Arc<Inode>,
    name: &[u8],
    value: Option<&[u8]>,
    flags: SetXattrFlags,
) -> Result<()> {
    let name_space = space_of(name)?;
    check_changeable(files, inode)?;
    let space = files.reserve(Budget::XATTR)?;
    let _lock = inode.lock.write();
    if name == CAPABILITY_NAME && value.is_none() {
        // Linux removes them in the name of the caller that changes contents. It also does so,
        // unchecked, for a chown that names neither owner nor group, which any user may try: that
        // one gets its answer, and nothing happens.
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
        Namespace::Property => Some(props::effect(inode, name, value)?),
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
        Namespace::AccessAcl | Namespace::DefaultAcl => effect_of_list(caller, inode, name, value, flags)?,
        Namespace::Property | Namespace::User | Namespace::Trusted | Namespace::Security => effect_of_property
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
    let now = files.store().env().now();
    let (join, mut staged) = prepare_and_join(files, |generation| {
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

/// What setting or removing a list does: the access list shares its bits with the mode, and is not
/// stored where the mode says the same.
fn effect_of_list(
    caller: &Caller<'_>,
    inode: &Inode,
    name: &[u8],
    value: Option<&[u8]>,
    flags: SetXattrFlags,
) -> Result<Effect> {
    let list = match value {
        Some(value) => Acl::parse(value)?,
        None => None,
    };
    let mut effect = Effect {
        value: None,
        mode: None,
        flags: None,
    };
    let Some(list) = list else { return Ok(effect) };
    if name == DEFAULT_NAME {
        if !inode.is_dir() {
            return Err(Errno::AccessDenied.into());
        }
        effect.value = Some(list.to_bytes());
        return Ok(effect);
    }
    let attr = inode.attr_now();
    let mut mode = (attr.mode & !0o777) | list.mode_bits();
    if flags.contains(SetXattrFlags::KILL_SGID) {
        mode &= !perm::SET_GID;
    } else if caller.checks {
        mode = perm::perm_for_chmod(&caller.ctx.creds, mode, attr.gid);
    }
    effect.mode = Some(mode);
    effect.value = (!list.is_mode()).then(|| list.to_bytes());
    Ok(effect)
}
