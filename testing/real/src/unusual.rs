//! Calls that programs make now and then, beside the kernel's btrfs: one script runs on both, and
//! says the same of each call but for [`DIFFERENCES`].

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use cowshed_harness::{KernelVolume, kernel};

use crate::cowshed::run_in;
use crate::site::Site;

const SCRIPT: &str = include_str!("unusual/calls.py");

/// A call, what it gives on the kernel's btrfs and on a mount of ours, and why.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    // FUSE has no reads that do not wait.
    ("read without waiting", "5", "ENOTSUP"),
    // Linux sends the same request for a file that is opened with O_TRUNC, whose times change.
    ("mtime of truncate of an empty file", "False", "True"),
    // Ours asks at each call, and the kernel when a file is opened.
    ("write to what became append-only", "1", "EPERM"),
    ("write to what became immutable", "1", "EPERM"),
    // Files of FUSE can be polled, and are always ready.
    ("regular file in epoll", "EPERM", "None"),
    // FUSE passes neither on.
    ("freeze", "0", "ENOTSUP"),
    ("swap to a file", "0", "EINVAL"),
    ("number of the subvolume by statx", "True", "False"),
    // FUSE's answer to statfs has no id of the file system.
    ("watch of a volume with file ids", "0", "ENODEV"),
    // A server that allows them is told callers only in requests that create an inode.
    ("idmapped mount", "0", "EINVAL"),
];

/// A call that Linux passes on to FUSE from a version on, and what it gives on ours before.
const PASSED_ON_SINCE: &[((u32, u32), &str, &str)] = &[
    ((5, 14), "fallocate 0x10", "ENOTSUP"),
    ((5, 14), "fallocate 0x11", "ENOTSUP"),
    ((6, 1), "link a temporary file", "ENOTSUP"),
    ((6, 1), "link a exclusive file", "ENOTSUP"),
    ((6, 8), "watch of a directory with file ids", "ENODEV"),
];

/// `kernels`: an empty volume for the kernel; none if the mount is the kernel's.
pub fn run(site: &mut Site<'_>, kernels: Option<&KernelVolume>) -> Result<()> {
    let ours = lines(site.path())?;
    let Some(kernels) = kernels else { return Ok(()) };
    let kernels = kernels.with_mount(lines)?;
    let mut wrong = Vec::new();
    for (call, theirs) in &kernels {
        let found = ours.get(call).map_or("nothing", String::as_str);
        let is_old = |since: &(u32, u32)| kernel::kernel_version() < *since;
        let lacks = PASSED_ON_SINCE.iter().find(|(_, name, _)| name == call);
        let wanted = match DIFFERENCES.iter().find(|(name, ..)| name == call) {
            Some((_, kernels, own)) if kernels == theirs => own,
            _ => match lacks {
                Some((since, _, own)) if is_old(since) => own,
                _ => theirs.as_str(),
            },
        };
        if found != wanted {
            wrong.push(format!("{call}: the kernel's btrfs gives {theirs}, ours {found}"));
        }
    }
    for (call, ..) in DIFFERENCES {
        ensure!(kernels.contains_key(*call), "{call} is a difference of no call");
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(ours.len() == kernels.len(), "other calls than on the kernel's btrfs");
    println!("{} calls as on the kernel's btrfs", kernels.len());
    Ok(())
}

/// What the script says of each call in a fresh directory of a mount.
fn lines(mount: &Path) -> Result<BTreeMap<String, String>> {
    let scratch = tempfile::tempdir()?;
    let script = scratch.path().join("calls.py");
    std::fs::write(&script, SCRIPT)?;
    let dir = mount.join("calls");
    std::fs::create_dir(&dir)?;
    let (script, dir) = (script.display().to_string(), dir.display().to_string());
    let text = run_in(Path::new("/"), Path::new("timeout"), &["120", "python3", &script, &dir])?;
    ensure!(text.ends_with("-- end\n"), "the calls end early:\n{text}");
    let mut lines = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with("-- ")) {
        let (call, result) = line.split_once(": ").context("a line is a call and its result")?;
        let before = lines.insert(call.to_owned(), result.to_owned());
        ensure!(before.is_none(), "two calls are named {call}");
    }
    Ok(lines)
}
