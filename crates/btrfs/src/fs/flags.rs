//! Changing inode flags: `chattr` and what goes with it.

use cowshed_vfs::{Algorithm, Error as Errno, ExtendedFlags, FlagChange};

use crate::access::{Caller, check_writable};
use crate::error::Result;
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::Inode;
use crate::object::flags::{self, CompressionProperty, FlagSubject};
use crate::staged::Staged;
use crate::xattr::{self, props};
use btrfs_store::space::Budget;

/// The flags after a change, and what becomes of the compression property.
fn compute(
    old: u64,
    change: &FlagChange,
    subject: FlagSubject,
) -> std::result::Result<(u64, Option<CompressionProperty>), Errno> {
    match *change {
        FlagChange::Attributes(wanted) => {
            flags::from_chattr(old, wanted, subject).map(|(new, property)| (new, Some(property)))
        }
        FlagChange::Extended(wanted) => {
            // Extent size hints and project ids are not in the format.
            let known = ExtendedFlags {
                xflags: wanted.xflags,
                ..ExtendedFlags::default()
            };
            if wanted != known {
                return Err(Errno::Invalid);
            }
            flags::from_xflags(old, wanted.xflags).map(|new| (new, None))
        }
    }
}

/// Changes the flags of an inode. Errors: see [`cowshed_vfs::Volume::set_flags`].
pub(super) fn change(files: &Files, caller: &Caller<'_>, inode: &Inode, change: &FlagChange) -> Result<()> {
    check_writable(files, inode)?;
    if inode.is_placeholder() {
        return Err(Errno::NotPermitted.into());
    }
    let space = files.reserve(Budget::XATTR)?;
    let _lock = inode.lock.write();
    let attr = inode.attr_now();
    let creds = &caller.ctx.creds;
    if caller.checks && !(creds.is_privileged() || creds.uid == attr.uid) {
        return Err(Errno::NotPermitted.into());
    }
    let subject = FlagSubject {
        is_regular: inode.is_regular(),
        is_empty: attr.size == 0,
        mount_nodatacow: files.objects().policy().nodatacow,
    };
    let (new, property) = compute(attr.flags, change, subject)?;
    let locks = flags::IMMUTABLE | flags::APPEND;
    if (new ^ attr.flags) & locks != 0 && caller.checks && !creds.is_privileged() {
        return Err(Errno::NotPermitted.into());
    }
    let now = files.store().env().now();
    let (join, mut staged) = prepare_and_join(files, |generation| {
        let mut staged = Staged::new(&inode.tree);
        match property {
            Some(CompressionProperty::Set) => {
                let name = props::COMPRESSION_NAME;
                let mounted = files.objects().policy().compress.map(|policy| policy.how.algorithm());
                let value = mounted.unwrap_or(Algorithm::Zlib).name().as_bytes();
                xattr::stage_set(&mut staged, inode.ino, name, value, generation)?;
            }
            Some(CompressionProperty::Remove) if !inode.xattrs.is_known_empty() => {
                xattr::stage_remove(&mut staged, inode.ino, props::COMPRESSION_NAME)?;
            }
            Some(CompressionProperty::Remove) | None => {}
        }
        Ok(staged)
    })?;
    if property == Some(CompressionProperty::Set) {
        inode.xattrs.set_some();
    }
    let mut state = inode.attr.lock();
    state.attr.flags = new;
    // For a front end no ioctl changes times.
    inode.unasked.note();
    touch_inode(&mut state, join.generation(), now);
    staged.put(inode.key(), inode.item_bytes(&state));
    join.apply(staged.into_batch(), space);
    Ok(())
}
