//! The ioctls of subvolumes, on mounts of ours and on the kernel's btrfs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use cowshed_vfs_ioctl::wire::{self, Snapshot, SubvolumePage, Token};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::commands::sync;
use crate::ioctl;

const SUBVOL_CREATE: u32 = 0x5000_940e;
const SNAP_DESTROY: u32 = 0x5000_940f;
const SNAP_CREATE_V2: u32 = 0x5000_9417;
const SUBVOL_GETFLAGS: u32 = 0x8008_9419;
const INO_LOOKUP: u32 = 0xd000_9412;
const RDONLY: u64 = 2;
/// The root directory of each subvolume.
const ROOT_INO: u64 = 256;

/// `struct btrfs_ioctl_ino_lookup_args`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct InoLookup {
    tree: u64,
    ino: u64,
    name: [u8; 4080],
}

/// `struct btrfs_ioctl_vol_args`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; 4088],
}

/// `struct btrfs_ioctl_vol_args_v2`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct VolArgs2 {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

fn put_name(field: &mut [u8], name: &OsStr) -> Result<()> {
    let name = name.as_bytes();
    // Linux has names of 255 bytes.
    if name.len() > 255 {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    field[..name.len()].copy_from_slice(name);
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
    named(dir, SUBVOL_CREATE, name)
}

pub fn delete(dir: &Path, name: &OsStr) -> Result<()> {
    named(&File::open(dir)?, SNAP_DESTROY, name)
}

pub fn snapshot(source: &Path, dir: &Path, name: &OsStr, readonly: bool) -> Result<()> {
    snapshot_of(&File::open(source)?, &File::open(dir)?, name, readonly)
}

pub fn snapshot_of(source: &File, dir: &File, name: &OsStr, readonly: bool) -> Result<()> {
    // What programs stored into mapped files lies with Linux until then.
    rustix::fs::syncfs(source)?;
    let mut token = Token([0; 16]);
    if ioctl::call(source, wire::LEND, &mut token).is_err() {
        return snapshot_by_kernel(source, dir, name, readonly);
    }
    // A mount shows each subvolume as a device of its own: the server knows its tokens.
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
    args.fd = source.as_raw_fd().into();
    args.flags = if readonly { RDONLY } else { 0 };
    put_name(&mut args.name, name)?;
    ioctl::call(dir, SNAP_CREATE_V2, &mut args).map(drop)
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
    ioctl::call(file, wire::SUBVOLUME, &mut page).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOTTY | libc::ENOSYS) => Error::new(ErrorKind::Unsupported, "not on a mount of cowshed's"),
        _ => error,
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
    ioctl::call(file, SUBVOL_GETFLAGS, &mut flags)?;
    let mut call = InoLookup::new_zeroed();
    call.ino = ROOT_INO;
    ioctl::call(file, INO_LOOKUP, &mut call)?;
    Ok(call.tree)
}

pub fn sync(dir: &Path) -> Result<()> {
    sync::mount_of(dir)
}
