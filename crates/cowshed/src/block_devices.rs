//! Block devices of this machine with volumes of btrfs: by their superblocks, and as the kernel's
//! driver knows them. The driver mounts a volume of several devices by one of them only if the
//! others were registered, which udev does where it runs.

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
    let bytes = superblock_bytes(path)?;
    let found = btrfs_format::view::fixed::<Superblock>(&bytes);
    found.filter(|sb| sb.magic == MAGIC).copied()
}

/// As [`superblock`]; `None` where it is damaged, too.
fn sound_superblock(path: &Path) -> Option<Superblock> {
    Superblock::verify(&superblock_bytes(path)?, SUPERBLOCK_OFFSETS.first().copied()).ok()
}

fn superblock_bytes(path: &Path) -> Option<Vec<u8>> {
    let device = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked).ok()?;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    let offset = *SUPERBLOCK_OFFSETS.first()?;
    if offset + bytes.len() as u64 > device.size_bytes() {
        return None;
    }
    device.read_at(offset, &mut bytes).ok()?;
    Some(bytes)
}

pub fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

/// All block devices, but those that others lie on: a member of an array shows what the array has.
pub fn all() -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/partitions").unwrap_or_default();
    let lines = table
        .lines()
        .skip(2)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let devices = lines.filter_map(|words| match words[..] {
        [major, minor, _, name] => (!is_held(major, minor)).then(|| Path::new("/dev").join(name)),
        _ => None,
    });
    devices.collect()
}

fn is_held(major: &str, minor: &str) -> bool {
    let holders = std::fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders"));
    holders.is_ok_and(|mut holders| holders.next().is_some())
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

/// The other devices of a volume, one for each number. Left out are those of which there are
/// several, such as an original and its copy, and those of another time: it is not known what
/// belongs together, and the caller has to name them.
pub fn others_of(path: &Path) -> Vec<PathBuf> {
    let Some(own) = sound_superblock(path).filter(|sb| sb.num_devices.get() > 1 && is_block_device(path)) else {
        return Vec::new();
    };
    let mut others: BTreeMap<u64, Vec<PathBuf>> = BTreeMap::new();
    for other in all() {
        let is_other = |sb: &Superblock| sb.fsid == own.fsid && sb.dev_item.devid != own.dev_item.devid;
        let Some(found) = sound_superblock(&other).filter(is_other) else {
            continue;
        };
        // The power may have failed between the superblocks of a commit.
        if found.generation.get().abs_diff(own.generation.get()) > 1 {
            tracing::warn!(device = %other.display(), "of the same volume at another time: not used");
            continue;
        }
        others.entry(found.dev_item.devid.get()).or_default().push(other);
    }
    let alone = others.into_values().filter_map(|mut paths| match paths.len() {
        1 => paths.pop(),
        _ => {
            tracing::warn!(?paths, "copies of one device: none of them is used");
            None
        }
    });
    alone.collect()
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
