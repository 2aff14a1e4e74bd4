//! What a test needs from the machine.
//!
//! ```no_run
//! # use cowshed_harness::need;
//! # fn test() {
//! let Some(()) = need::kernel_btrfs() else { return };
//! # }
//! ```
//! A missing need prints one line and the test returns. With `CI=true` in the environment it panics
//! instead: what CI does not run is never run.

use std::path::Path;

/// `None`, with a line that says so, if `have` is false: for what has no function of its own here.
pub fn require(have: bool, what: &str) -> Option<()> {
    judge(have, what, std::env::var_os("CI").is_some_and(|value| value == "true"))
}

fn judge(have: bool, what: &str, under_ci: bool) -> Option<()> {
    if have {
        return Some(());
    }
    assert!(!under_ci, "needs {what}, and nothing may be skipped under CI");
    eprintln!("SKIP: needs {what}");
    None
}

pub fn root() -> Option<()> {
    require(rustix::process::geteuid().is_root(), "root")
}

/// A program that can be found in `PATH` or in the directories of the administrator.
pub fn tool(name: &str) -> Option<()> {
    require(find_tool(name), &format!("the program {name}"))
}

/// A program that has several names, by distribution: the one that it has here.
pub fn any_tool<'n>(names: &[&'n str]) -> Option<&'n str> {
    let name = names.iter().find(|name| find_tool(name));
    require(name.is_some(), &format!("the program {}", names.join(" or ")))?;
    name.copied()
}

fn find_tool(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(Into::into))
        .any(|dir| !dir.as_os_str().is_empty() && dir.join(name).is_file())
}

/// The device of FUSE, openable by us.
pub fn fuse() -> Option<()> {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    require(opened.is_ok(), "/dev/fuse")
}

/// A file system that the kernel has (built in or loaded).
pub fn kernel_fs(name: &str) -> Option<()> {
    let list = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let mut have = list.lines().any(|line| line.split_whitespace().last() == Some(name));
    if !have && rustix::process::geteuid().is_root() && find_tool("modprobe") {
        have = crate::run("modprobe", &["-q", name]).is_ok();
    }
    require(have, &format!("{name} in the kernel"))
}

pub fn loop_devices() -> Option<()> {
    root()?;
    require(Path::new("/dev/loop-control").exists(), "loop devices")
}

/// Everything for a test that lets the kernel mount a volume: root, loop devices, btrfs,
/// btrfs-progs.
pub fn kernel_btrfs() -> Option<()> {
    loop_devices()?;
    tool("mkfs.btrfs")?;
    tool("btrfs")?;
    tool("mount")?;
    kernel_fs("btrfs")
}

/// Everything for a test that lets the kernel mount an XFS volume: root, loop devices, XFS,
/// xfsprogs.
pub fn kernel_xfs() -> Option<()> {
    loop_devices()?;
    tool("mkfs.xfs")?;
    tool("xfs_db")?;
    tool("xfs_io")?;
    tool("mount")?;
    kernel_fs("xfs")
}

/// Linux that passes sync(2) and syncfs(2) on to FUSE mounts of block devices.
pub fn syncfs_of_block_devices() -> Option<()> {
    linux((6, 18), "passes syncfs on to mounts of block devices")
}

/// Linux whose btrfs has an ioctl that waits for deleted subvolumes.
pub fn waits_for_subvolumes() -> Option<()> {
    linux((6, 13), "has an ioctl that waits for deleted subvolumes")
}

/// Linux that expires the names which it remembers of a FUSE mount, so that several mounts show one
/// subvolume.
pub fn names_that_expire() -> Option<()> {
    linux((6, 16), "expires names of FUSE mounts")
}

/// Linux that asks FUSE mounts for files without a name (`O_TMPFILE`).
pub fn nameless_files() -> Option<()> {
    linux((6, 1), "passes O_TMPFILE on to FUSE mounts")
}

/// Linux that asks FUSE mounts for the time of birth.
pub fn birth_times() -> Option<()> {
    linux((6, 6), "passes statx on to FUSE mounts")
}

/// Linux that lets FUSE mounts zero ranges.
pub fn zeroed_ranges() -> Option<()> {
    linux((5, 14), "passes FALLOC_FL_ZERO_RANGE on to FUSE mounts")
}

/// Linux of this version or later, which does something.
fn linux(version: (u32, u32), does: &str) -> Option<()> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (major, minor) = version;
    let what = format!("Linux {major}.{minor}, which {does}; this is {}", release.trim());
    require(is_since(&release, version), &what)
}

/// Is `6.18.44-vendor` such a version, or a later one?
fn is_since(release: &str, version: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= version,
        _ => false,
    }
}

/// Of which share of a long run a test judges: another one each day, or the one of `COWSHED_SEED`.
/// Printed, so that a failing test can be run again.
pub fn share_seed(what: &str) -> u64 {
    const DAY_S: u64 = 24 * 3600;
    let asked = std::env::var("COWSHED_SEED").ok();
    let asked = asked.map(|seed| {
        seed.parse()
            .unwrap_or_else(|_| panic!("COWSHED_SEED={seed} is no number"))
    });
    let today = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| now.as_secs() / DAY_S)
    };
    let seed = asked.unwrap_or_else(today);
    println!("{what}: COWSHED_SEED={seed}");
    seed
}

#[cfg(test)]
mod tests {
    use super::{is_since, judge};

    #[test]
    fn versions_are_numbers() {
        for (release, is_new) in [
            ("6.18.44-vendor", true),
            ("6.18-rc1", true),
            ("7.0.0", true),
            ("6.9.1", false),
            ("5.15.0-100-generic", false),
            ("unknown", false),
        ] {
            assert_eq!(is_since(release, (6, 18)), is_new, "{release}");
        }
    }

    #[test]
    fn what_is_there_is_not_skipped() {
        assert_eq!(judge(true, "a thing", true), Some(()));
        assert_eq!(judge(false, "a thing", false), None);
    }

    #[test]
    #[should_panic(expected = "needs a thing")]
    fn ci_skips_nothing() {
        judge(false, "a thing", true);
    }

    #[test]
    fn a_tool_is_there_or_not() {
        assert!(super::find_tool("sh"));
        assert!(!super::find_tool("no-program-has-this-name"));
    }
}
