//! Block devices of this machine with volumes of btrfs: by their superblocks, and as the kernel's
//! driver knows them. It mounts a volume of several devices by one of them only if the others were
//! registered, which udev does where it runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use btrfs_format::Superblock;
use btrfs_format::superblock::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use cowshed_device::{BlockDevice as _, FileDevice, Locking, OpenMode};
use cowshed_vfs_ioctl::wire::btrfs::{DEVICES_READY, FORGET_DEV, SCAN_DEV, VolArgs, put_text};
use zerocopy::FromZeros as _;

use crate::ioctl;

/// Takes calls about devices that no mount is needed for.
const CONTROL: &str = "/dev/btrfs-control";

/// What stands there; `None` where it is no superblock.
pub fn superblock(path: &Path) -> Option<Superblock> {
    let device = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked).ok()?;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    let offset = *SUPERBLOCK_OFFSETS.first()?;
    if offset + bytes.len() as u64 > device.size_bytes() {
        return None;
    }
    device.read_at(offset, &mut bytes).ok()?;
    btrfs_format::view::fixed::<Superblock>(&bytes)
        .filter(|sb| sb.magic == MAGIC)
        .copied()
}

pub fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

/// All block devices, with a volume or not.
pub fn all() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

/// The devices of the volume of which one block device is named, as far as they can be read: as
/// btrfs-progs finds them. What else is named stays as it is.
pub fn with_others(named: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = named.to_vec();
    if let [path] = named {
        paths.extend(others_of(path));
    }
    paths
}

/// The other devices of a volume, one for each number: of several, such as the original and a copy,
/// the first of the youngest.
pub fn others_of(path: &Path) -> Vec<PathBuf> {
    let Some(own) = superblock(path).filter(|sb| sb.num_devices.get() > 1 && is_block_device(path)) else {
        return Vec::new();
    };
    let mut others: BTreeMap<u64, (u64, PathBuf)> = BTreeMap::new();
    for other in all() {
        let is_other = |sb: &Superblock| sb.fsid == own.fsid && sb.dev_item.devid != own.dev_item.devid;
        let Some(found) = superblock(&other).filter(is_other) else {
            continue;
        };
        let generation = found.generation.get();
        let known = others.get(&found.dev_item.devid.get());
        if known.is_none_or(|(youngest, _)| *youngest < generation) {
            others.insert(found.dev_item.devid.get(), (generation, other));
        }
    }
    others.into_values().map(|(_, path)| path).collect()
}

/// Tells the driver of a device of a volume. Errors: it is none, there is no driver, or the caller
/// may not.
pub fn register(path: &Path) -> Result<()> {
    call(SCAN_DEV, path).map(drop)
}

/// The driver forgets a device, or with an empty path all that are in no mounted volume.
pub fn forget(path: &Path) -> Result<()> {
    call(FORGET_DEV, path).map(drop)
}

/// Registers a device: are all devices of its volume known?
pub fn is_ready(path: &Path) -> Result<bool> {
    Ok(call(DEVICES_READY, path)? == 0)
}

fn call(command: u32, path: &Path) -> Result<i32> {
    let control = File::options().read(true).write(true).open(CONTROL)?;
    let mut args = VolArgs::new_zeroed();
    if !put_text(&mut args.name, path.as_os_str().as_bytes()) {
        return Err(Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    ioctl::call(&control, command, &mut args)
}
