//! Linux.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, fstatfs, statx};

/// The type of the file system that a file lies on, as `statfs` says it.
// The width of the field is the platform's.
#[allow(clippy::unnecessary_cast)]
pub fn file_system_type(file: &File) -> io::Result<i64> {
    Ok(fstatfs(file)?.f_type as i64)
}

/// Writes the file system that a file lies on to disk.
pub fn sync_file_system(file: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::syncfs(file)?)
}

/// The mount table of this process, as `/proc/self/mountinfo` has it.
pub fn mount_table() -> io::Result<Vec<u8>> {
    std::fs::read("/proc/self/mountinfo")
}

/// Number of the mount that a file lies on, as the mount table has it.
pub fn mount_id(file: &File) -> io::Result<u64> {
    Ok(statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?.stx_mnt_id)
}

/// What the kernel says of the queue of a block device, or of the device that it is a part of.
pub fn queue_attribute(device: &Path, name: &str) -> Option<String> {
    let meta = std::fs::metadata(device).ok()?;
    if !meta.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let device = format!("/sys/dev/block/{major}:{minor}");
    let read = |queue: &str| std::fs::read_to_string(format!("{device}/{queue}/{name}")).ok();
    let text = read("queue").or_else(|| read("../queue"))?;
    Some(text.trim_end().to_owned())
}

/// Whether a directory is the root of a mount. `None`: the kernel does not say (before 5.8).
pub fn is_mount_root(dir: &File) -> io::Result<Option<bool>> {
    let stat = statx(dir, "", AtFlags::EMPTY_PATH, StatxFlags::empty())?;
    let is_known = stat.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    Ok(is_known.then_some(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)))
}

/// Bytes of the machine's memory. `None`: not known.
pub fn memory_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// Whether the caller has a signal ignored, as nohup(1) does. False where /proc does not say.
pub fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 != 0
}
