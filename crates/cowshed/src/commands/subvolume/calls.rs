//! The ioctls of subvolumes, on mounts of ours and on the kernel's btrfs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use btrfs_format::{Key, KeyType, ObjectId, TreeId, view};
use cowshed_vfs_ioctl::wire::btrfs::{self, InoLookup, SearchArgs, SearchHeader, VolArgs, VolArgs2, put_text};
use cowshed_vfs_ioctl::wire::{self, Snapshot, SubvolumePage};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros};

use crate::commands::{extents, sync};
use crate::ioctl;

fn put_name(field: &mut [u8], name: &OsStr) -> Result<()> {
    let name = name.as_bytes();
    // Linux has names of 255 bytes.
    if name.len() > 255 || !put_text(field, name) {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    Ok(())
}

fn named(dir: &File, cmd: u32, name: &OsStr) -> Result<()> {
    let mut args = VolArgs::new_zeroed();
    put_name(&mut args.name, name)?;
    ioctl::call(dir, cmd, &mut args).map(drop)
}

pub fn create(dir: &Path, name: &OsStr) -> Result<()> {
    create_in(&File::open(dir)?, name)
}

pub fn create_in(dir: &File, name: &OsStr) -> Result<()> {
    named(dir, btrfs::SUBVOL_CREATE, name)
}

pub fn delete(dir: &Path, name: &OsStr) -> Result<()> {
    named(&File::open(dir)?, btrfs::SNAP_DESTROY, name)
}

/// Deletes the subvolume of a number, on the volume that a path lies on.
pub fn delete_by_id(path: &Path, id: u64) -> Result<()> {
    let mut args = VolArgs2::new_zeroed();
    args.flags = btrfs::SPEC_BY_ID.into();
    args.name[..8].copy_from_slice(&id.to_le_bytes());
    ioctl::call(File::open(path)?, btrfs::SNAP_DESTROY_V2, &mut args).map(drop)
}

pub fn snapshot(source: &Path, dir: &Path, name: &OsStr, readonly: bool) -> Result<()> {
    snapshot_of(&File::open(source)?, &File::open(dir)?, name, readonly)
}

pub fn snapshot_of(source: &File, dir: &File, name: &OsStr, readonly: bool) -> Result<()> {
    // Linux keeps what programs stored into mapped files until it is asked for it.
    rustix::fs::syncfs(source)?;
    let Some(token) = extents::lend(source)? else {
        return snapshot_by_kernel(source, dir, name, readonly);
    };
    let mut call = Snapshot::new_zeroed();
    call.token = token;
    call.is_read_only = u32::from(readonly).into();
    put_name(&mut call.name, name)?;
    call.name_bytes = u32::try_from(name.len()).unwrap_or(u32::MAX).into();
    ioctl::call(dir, wire::SNAPSHOT, &mut call).map(drop)
}

fn snapshot_by_kernel(source: &File, dir: &File, name: &OsStr, readonly: bool) -> Result<()> {
    use std::os::fd::AsRawFd as _;
    let mut args = VolArgs2::new_zeroed();
    args.fd = i64::from(source.as_raw_fd()).into();
    args.flags = if readonly { btrfs::RDONLY } else { 0 }.into();
    put_name(&mut args.name, name)?;
    ioctl::call(dir, btrfs::SNAP_CREATE_V2, &mut args).map(drop)
}

/// Has the subvolume of a number mounted by default.
pub fn set_default(path: &Path, id: u64) -> Result<()> {
    let mut id = U64::new(id);
    ioctl::call(File::open(path)?, btrfs::DEFAULT_SUBVOL, &mut id).map(drop)
}

/// Number of the subvolume that is mounted by default.
pub fn default_id(path: &Path) -> Result<u64> {
    let mut default = TreeId::FS.get();
    search(path, ObjectId::ROOT_TREE_DIR, KeyType::DIR_ITEM, |_, item| {
        if let Some(entry) = view::dir_entries(item).find(|entry| entry.name == b"default") {
            default = Key::from(entry.head.location).objectid.get();
        }
    })?;
    Ok(default)
}

/// Numbers of the subvolumes that are deleted and not gone yet.
pub fn deleted(path: &Path) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    search(path, ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, |id, _| ids.push(id))?;
    Ok(ids)
}

/// Shows the items of one object and type in the tree of tree roots, with the offsets of their
/// keys.
fn search(path: &Path, object: ObjectId, ty: KeyType, mut take: impl FnMut(u64, &[u8])) -> Result<()> {
    let file = File::open(path)?;
    let mut from = Some(0);
    while let Some(offset) = from {
        let mut call = SearchArgs::new_zeroed();
        call.key.tree_id = TreeId::ROOT.get().into();
        (call.key.min_objectid, call.key.max_objectid) = (object.into(), object.into());
        (call.key.min_type, call.key.max_type) = (U32::new(ty.0.into()), U32::new(ty.0.into()));
        (call.key.min_offset, call.key.max_offset) = (offset.into(), u64::MAX.into());
        (call.key.max_transid, call.key.nr_items) = (u64::MAX.into(), u32::MAX.into());
        ioctl::call(&file, btrfs::TREE_SEARCH, &mut call)?;
        let mut rest = call.buf.as_slice();
        from = None;
        for _ in 0..call.key.nr_items.get() {
            let Ok((head, behind)) = SearchHeader::ref_from_prefix(rest) else {
                break;
            };
            let Some((item, behind)) = behind.split_at_checked(head.len.get() as usize) else {
                break;
            };
            take(head.offset.get(), item);
            from = head.offset.get().checked_add(1);
            rest = behind;
        }
    }
    Ok(())
}

/// All subvolumes of the volume that a path lies on, by number. Of mounts of ours.
pub fn all(path: &Path) -> Result<Vec<SubvolumePage>> {
    let file = File::open(path)?;
    let mut all = Vec::new();
    let mut from = 0;
    while let Some(page) = next(&file, from)? {
        from = page.id.get() + 1;
        all.push(page);
    }
    Ok(all)
}

/// The subvolume with the least number from `from` on. Of mounts of ours.
pub fn next(file: &File, from: u64) -> Result<Option<SubvolumePage>> {
    let mut page = SubvolumePage::new_zeroed();
    page.id = from.into();
    ioctl::call(file, wire::SUBVOLUME, &mut page).map_err(|error| match extents::is_unknown(&error) {
        true => Error::new(ErrorKind::Unsupported, "not on a mount of cowshed's"),
        false => error,
    })?;
    Ok((page.id.get() != 0).then_some(page))
}

/// The path of a subvolume, from the top level.
pub fn path_of(page: &SubvolumePage) -> &[u8] {
    let len = usize::try_from(page.path_bytes.get()).unwrap_or(usize::MAX);
    page.path.get(..len).unwrap_or(&page.path)
}

/// The number of the subvolume whose root directory this is. Errors: `EINVAL` where it is none.
pub fn id_of(path: &Path) -> Result<u64> {
    id_of_open(&File::open(path)?)
}

/// As [`id_of`], of an open directory.
pub fn id_of_open(file: &File) -> Result<u64> {
    let mut flags = 0u64;
    ioctl::call(file, btrfs::SUBVOL_GETFLAGS, &mut flags)?;
    let mut call = InoLookup::new_zeroed();
    call.objectid = btrfs::ROOT_INO.into();
    ioctl::call(file, btrfs::INO_LOOKUP, &mut call)?;
    Ok(call.treeid.get())
}

pub fn sync(dir: &Path) -> Result<()> {
    sync::mount_of(dir)
}
