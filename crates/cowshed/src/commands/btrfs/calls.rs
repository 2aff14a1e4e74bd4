//! The ioctls of subvolumes, on mounts of ours and on the kernel's btrfs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cowshed_vfs::{ItemKey, ItemSink, Search, SubvolumeUsage};
use cowshed_vfs_ioctl::wire::btrfs::{
    self, InoLookup, ReceivedSubvol, SearchArgs, SearchHeader, SearchKey, SubvolInfo, VolArgs, VolArgs2, put_text,
};
use cowshed_vfs_ioctl::wire::search::{SEARCH, SearchPage};
use cowshed_vfs_ioctl::wire::usage::{USAGE, UsagePage, op};
use cowshed_vfs_ioctl::wire::{self, Snapshot, SubvolumePage};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::commands::extents;
use crate::ioctl;
use crate::sys;

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

pub fn create_in(dir: &File, name: &OsStr) -> Result<()> {
    named(dir, btrfs::SUBVOL_CREATE, name)
}

pub fn delete(dir: &File, name: &OsStr) -> Result<()> {
    named(dir, btrfs::SNAP_DESTROY, name)
}

/// Deletes the subvolume of a number, on the volume that a file lies on.
pub fn delete_by_id(file: &File, id: u64) -> Result<()> {
    let mut args = VolArgs2::new_zeroed();
    args.flags = btrfs::SPEC_BY_ID.into();
    args.name[..8].copy_from_slice(&id.to_le_bytes());
    ioctl::call(file, btrfs::SNAP_DESTROY_V2, &mut args).map(drop)
}

pub fn snapshot_of(source: &File, dir: &File, name: &OsStr, readonly: bool) -> Result<()> {
    // Linux keeps what programs stored into mapped files until it is asked for it.
    sys::sync_file_system(source)?;
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

/// Makes a subvolume the default, by id.
pub fn set_default(file: &File, id: u64) -> Result<()> {
    let mut id = U64::new(id);
    ioctl::call(file, btrfs::DEFAULT_SUBVOL, &mut id).map(drop)
}

/// A call gives as many items as it has room for.
pub const NO_MAXIMUM: u32 = u32::MAX;

/// Shows items of a tree in key order, each with the transaction of its block. A call gives
/// `count_max` items at most. For mounts of ours: FUSE does not pass the ioctl with a larger
/// buffer. An item of more than 3,960 bytes is shown as empty.
pub fn search(file: &File, what: &Search, count_max: u32, take: ItemSink<'_>) -> Result<()> {
    let mut call = SearchArgs::new_zeroed();
    pages(&mut call, what, take, |call, first| {
        call.key = key_of(what, first, count_max);
        ioctl::call(file, btrfs::TREE_SEARCH, call)?;
        Ok((call.key.nr_items.get(), &call.buf))
    })
}

/// `BTRFS_IOC_TREE_SEARCH_V2`
const TREE_SEARCH_V2: u32 = 0xc070_9411;

/// Items are shorter than a block, and blocks have 64 KiB at most.
const SEARCH2_BYTES: usize = 64 << 10;

/// `struct btrfs_ioctl_search_args_v2`, with room for the items.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SearchArgs2 {
    key: SearchKey,
    buf_size: U64,
    buf: [u8; SEARCH2_BYTES],
}

/// As [`search`], for mounts of the kernel's btrfs; it shows items of any length whole.
pub fn search_by_kernel(file: &File, what: &Search, count_max: u32, take: ItemSink<'_>) -> Result<()> {
    let mut call = Box::new(SearchArgs2::new_zeroed());
    pages(&mut *call, what, take, |call, first| {
        call.key = key_of(what, first, count_max);
        call.buf_size = (SEARCH2_BYTES as u64).into();
        ioctl::call(file, TREE_SEARCH_V2, call)?;
        Ok((call.key.nr_items.get(), &call.buf))
    })
}

/// Shows items page by page. `page` fills `call` with the items from a key on, and returns their
/// number and their bytes.
fn pages<C>(
    call: &mut C,
    what: &Search,
    take: ItemSink<'_>,
    page: impl Fn(&mut C, ItemKey) -> Result<(u32, &[u8])>,
) -> Result<()> {
    let mut from = Some(what.from);
    while let Some(first) = from {
        let (count, items) = page(call, first)?;
        let Some(last) = show(items, count, take) else {
            return Ok(());
        };
        from = last.and_then(next_key).filter(|next| *next <= what.to);
    }
    Ok(())
}

/// As [`search`], of items of some types; it shows items of up to 15,968 bytes whole. For mounts of
/// ours. Errors: `ENOTTY` where the mount is served by a program older than this call.
pub fn search_types(file: &File, what: &Search, types: [u8; 4], take: ItemSink<'_>) -> Result<()> {
    let mut page = SearchPage::new_zeroed();
    page.key = key_of(what, what.from, NO_MAXIMUM);
    page.types = types;
    while page.is_end.get() == 0 {
        page.key.nr_items = NO_MAXIMUM.into();
        ioctl::call(file, SEARCH, &mut page)?;
        if show(&page.buf, page.key.nr_items.get(), take).is_none() {
            break;
        }
    }
    Ok(())
}

fn key_of(what: &Search, (object, ty, offset): ItemKey, count_max: u32) -> SearchKey {
    let mut key = SearchKey::new_zeroed();
    key.tree_id = what.tree.into();
    (key.min_objectid, key.max_objectid) = (object.into(), what.to.0.into());
    (key.min_type, key.max_type) = (U32::new(ty.into()), U32::new(what.to.1.into()));
    (key.min_offset, key.max_offset) = (offset.into(), what.to.2.into());
    (key.min_transid, key.max_transid) = (what.since.into(), what.until.into());
    key.nr_items = count_max.into();
    key
}

/// Shows items that were found; the key of the last, if there are any. `None` where no more are
/// wanted.
fn show(mut rest: &[u8], count: u32, take: ItemSink<'_>) -> Option<Option<ItemKey>> {
    let mut last = None;
    for _ in 0..count {
        let Ok((head, behind)) = SearchHeader::ref_from_prefix(rest) else {
            break;
        };
        let Some((item, behind)) = behind.split_at_checked(head.len.get() as usize) else {
            break;
        };
        let key = (head.objectid.get(), head.ty.get() as u8, head.offset.get());
        if take(key, item, head.transid.get()).is_break() {
            return None;
        }
        last = Some(key);
        rest = behind;
    }
    Some(last)
}

/// What each subvolume of the volume refers to, by number. Of mounts of ours.
pub fn usage(file: &File, mut progress: impl FnMut(u64, u64)) -> Result<Vec<SubvolumeUsage>> {
    let mut page = UsagePage::new_zeroed();
    page.op = op::BEGIN.into();
    ioctl::call(file, USAGE, &mut page)?;
    page.op = op::GO_ON.into();
    let mut all = Vec::new();
    loop {
        page.start = (all.len() as u64).into();
        ioctl::call(file, USAGE, &mut page)?;
        progress(page.blocks_done.get(), page.blocks_known.get());
        if page.is_done.get() == 0 {
            continue;
        }
        let count = page.count.get() as usize;
        if count == 0 {
            break;
        }
        all.extend(page.entries.iter().take(count).map(|entry| SubvolumeUsage {
            id: entry.id.get(),
            data_bytes: entry.data_bytes.get(),
            data_exclusive_bytes: entry.data_exclusive_bytes.get(),
            metadata_bytes: entry.metadata_bytes.get(),
            metadata_exclusive_bytes: entry.metadata_exclusive_bytes.get(),
        }));
    }
    page.op = op::END.into();
    ioctl::call(file, USAGE, &mut page)?;
    Ok(all)
}

fn next_key((object, ty, offset): ItemKey) -> Option<ItemKey> {
    match (offset.checked_add(1), ty.checked_add(1)) {
        (Some(offset), _) => Some((object, ty, offset)),
        (None, Some(ty)) => Some((object, ty, 0)),
        (None, None) => Some((object.checked_add(1)?, 0, 0)),
    }
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
    is_read_only(file)?;
    tree_of(file)
}

/// The number of the subvolume that an open file or directory is in.
pub fn tree_of(file: &File) -> Result<u64> {
    let mut call = InoLookup::new_zeroed();
    call.objectid = btrfs::ROOT_INO.into();
    ioctl::call(file, btrfs::INO_LOOKUP, &mut call)?;
    Ok(call.treeid.get())
}

/// The path of an inode from the root of a subvolume, with a slash behind it.
pub fn path_in(file: &File, tree: u64, inode: u64) -> Result<Vec<u8>> {
    let mut call = InoLookup::new_zeroed();
    (call.treeid, call.objectid) = (tree.into(), inode.into());
    ioctl::call(file, btrfs::INO_LOOKUP, &mut call)?;
    Ok(btrfs::text(&call.name).unwrap_or_default().to_vec())
}

/// The subvolume whose root directory this is can not be changed. Errors: as of [`id_of`].
pub fn is_read_only(root: &File) -> Result<bool> {
    let mut flags = U64::ZERO;
    ioctl::call(root, btrfs::SUBVOL_GETFLAGS, &mut flags)?;
    Ok(flags.get() & btrfs::RDONLY != 0)
}

/// Makes the subvolume whose root directory this is read-only, or writable.
pub fn set_read_only(root: &File, is_read_only: bool) -> Result<()> {
    let mut flags = U64::new(if is_read_only { btrfs::RDONLY } else { 0 });
    ioctl::call(root, btrfs::SUBVOL_SETFLAGS, &mut flags).map(drop)
}

/// What the subvolume of a file was received under; zeros where it was not.
pub fn received_uuid(file: &File) -> Result<[u8; 16]> {
    let mut info = SubvolInfo::new_zeroed();
    ioctl::call(file, btrfs::GET_SUBVOL_INFO, &mut info)?;
    Ok(info.received_uuid)
}

/// Clears the received uuid of the subvolume with this root directory.
pub fn forget_received(root: &File) -> Result<()> {
    let mut nothing = ReceivedSubvol::new_zeroed();
    ioctl::call(root, btrfs::SET_RECEIVED_SUBVOL, &mut nothing).map(drop)
}

/// Starts a commit and waits for it.
pub fn commit(file: &File) -> Result<()> {
    let mut transaction = U64::ZERO;
    ioctl::call(file, btrfs::START_SYNC, &mut transaction)?;
    ioctl::call(file, btrfs::WAIT_SYNC, &mut transaction).map(drop)
}
