//! Whether the kernel has mounted what is about to be opened.
//!
//! flock(2) excludes only other callers of flock(2). A file system of the kernel does not call it;
//! it claims a block device, and through a loop device it writes to an image file that any process
//! may open. Two writers destroy a volume, so mounts are searched for here. A later mount cannot be
//! prevented.

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use crate::OpenMode;

/// A mount lets go of its volume a moment after umount(8) has returned: its process of the lock, and
/// Linux of the loop device. What is kept for longer is in use.
pub(crate) const LETS_GO_AFTER: Duration = Duration::from_secs(1);
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A writer cannot live beside any mount, a reader not beside one that writes.
pub(crate) fn excludes(file: &Metadata, mode: OpenMode) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let may_stay = |mount: &Mount<'_>| mode == OpenMode::ReadOnly && mount.is_read_only;
    if file.file_type().is_block_device() {
        // A writer has claimed it already, and that the kernel judges.
        return mode == OpenMode::ReadOnly
            && mounts(&table).any(|m| !m.is_ours && is_device(m.source, file.rdev()) && !may_stay(&m));
    }
    loop_devices_on(file).iter().any(|name| {
        let (ours, others): (Vec<_>, Vec<_>) = mounts(&table)
            .filter(|m| is_part_of(m.source, name))
            .partition(|m| m.is_ours);
        let shown = others.iter().any(|m| !may_stay(m));
        if others.is_empty() && !ours.is_empty() {
            return false; // and it is such a shell that has claimed the device
        }
        // The table does not show other name spaces' mounts, nor further devices of one volume.
        shown || (mode == OpenMode::ReadWrite && is_claimed(name))
    })
}

/// A mount that has a device below /dev as its source.
struct Mount<'a> {
    source: &'a str,
    /// The file system as a whole is read-only, not just this mount point.
    is_read_only: bool,
    /// A FUSE mount of our own. Its process would hold the lock, so it is dead, and the mount was
    /// not unmounted yet.
    is_ours: bool,
}

/// See proc_pid_mountinfo(5).
fn mounts(table: &str) -> impl Iterator<Item = Mount<'_>> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_once(" - ")?.1.split(' ');
        let is_ours = fields.next()? == "fuseblk.cowshed";
        let source = fields.next().filter(|source| source.starts_with("/dev/"))?;
        let is_read_only = fields.next()?.split(',').any(|option| option == "ro");
        Some(Mount {
            source,
            is_read_only,
            is_ours,
        })
    })
}

fn is_device(source: &str, number: u64) -> bool {
    std::fs::metadata(source).is_ok_and(|found| found.file_type().is_block_device() && found.rdev() == number)
}

/// Is it /dev/NAME, or a partition of that?
fn is_part_of(source: &str, name: &str) -> bool {
    match source.strip_prefix("/dev/").and_then(|rest| rest.strip_prefix(name)) {
        Some(rest) => rest.is_empty() || rest.starts_with('p'),
        None => false,
    }
}

/// The names of the loop devices on a file.
fn loop_devices_on(file: &Metadata) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else {
        return vec![]; // no loop devices without it
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter(|name| {
            name.starts_with("loop")
                && std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"))
                    .and_then(|path| std::fs::metadata(path.trim_end_matches('\n')))
                    .is_ok_and(|backing| (backing.dev(), backing.ino()) == (file.dev(), file.ino()))
        })
        .collect()
}

/// Whether a mount (or device mapper, swap ...) has claimed the device, and keeps it. One that was
/// unmounted lazily is in no table and has its device for a moment more. "No" where the process may
/// not open the device, and so cannot know.
fn is_claimed(name: &str) -> bool {
    let is_busy = || {
        let claim: std::io::Result<File> = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_EXCL)
            .open(format!("/dev/{name}"));
        claim.is_err_and(|error| error.kind() == ErrorKind::ResourceBusy)
    };
    let until = Instant::now() + LETS_GO_AFTER;
    while is_busy() {
        if Instant::now() >= until {
            return true;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_devices_are_read_from_the_table() {
        let table = "22 1 0:21 / /proc rw,nosuid - proc proc rw\n\
            30 22 0:50 / /a rw,relatime shared:1 - btrfs /dev/loop1 rw,ssd\n\
            31 22 0:51 / /b ro,relatime - fuseblk.cowshed /dev/loop12p1 ro,user_id=0\n";
        let found: Vec<_> = mounts(table).map(|m| (m.source, m.is_read_only, m.is_ours)).collect();
        assert_eq!(found, [("/dev/loop1", false, false), ("/dev/loop12p1", true, true)]);
        assert!(is_part_of("/dev/loop12p1", "loop12") && is_part_of("/dev/loop1", "loop1"));
        assert!(!is_part_of("/dev/loop12p1", "loop1"));
    }
}
