//! btrfs-progs as a judge.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;

use crate::{run, run_raw};

/// What `btrfs check` is asked to do besides its normal work.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Read all data and verify its checksums.
    pub data_csum: bool,
    /// The second implementation of the checker, which reports more precisely and finds other
    /// things.
    pub lowmem: bool,
}

#[derive(Clone, Debug)]
pub struct CheckReport {
    /// Standard output and error.
    pub output: String,
    pub clean: bool,
}

impl CheckReport {
    #[track_caller]
    pub fn assert_clean(&self) {
        assert!(self.clean, "btrfs check complains:\n{}", self.output);
    }
}

/// `btrfs check`, which never changes anything. The device must not be mounted. Of a volume of
/// several devices all must be block devices, of which any one is named here.
pub fn check(device: &Path, options: CheckOptions) -> Result<CheckReport> {
    let mut args: Vec<&OsStr> = vec!["check".as_ref(), "--readonly".as_ref()];
    if options.data_csum {
        args.push("--check-data-csum".as_ref());
    }
    if options.lowmem {
        args.extend(["--mode", "lowmem"].map(OsStr::new));
    }
    args.push(device.as_os_str());
    let output = run_raw("btrfs", &args)?;
    let text = [output.stdout, output.stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    // Some faults are only printed, and leave the exit status alone.
    let complains = text
        .lines()
        .any(|line| line.contains("ERROR") && !is_of_another_device(line));
    let clean = output.status.success() && text.contains("no error found") && !complains;
    Ok(CheckReport { output: text, clean })
}

/// Is this line about no device of the volume? In search of those, btrfs-progs look at all block
/// devices, and complain about the ones that go away meanwhile.
pub fn is_of_another_device(line: &str) -> bool {
    line.starts_with("ERROR: cannot scan /dev/")
}

/// `btrfs inspect-internal dump-tree` of all devices of a volume, with further arguments, such as
/// `["-t", "5"]`. The program does not search for devices: beside others that come and go it may
/// miss some.
pub fn dump_tree(devices: &[impl AsRef<Path>], args: &[&str]) -> Result<String> {
    let mut all: Vec<&OsStr> = ["inspect-internal", "dump-tree", "--noscan"].map(OsStr::new).into();
    all.extend(args.iter().map(|arg| OsStr::new(*arg)));
    all.extend(devices.iter().map(|device| device.as_ref().as_os_str()));
    run("btrfs", &all)
}

/// `btrfs inspect-internal dump-super -f`
pub fn dump_super(device: &Path) -> Result<String> {
    run(
        "btrfs",
        &[
            "inspect-internal".as_ref(),
            "dump-super".as_ref(),
            "-f".as_ref(),
            device.as_os_str(),
        ],
    )
}

/// Reads everything through the kernel and verifies it; an error if anything was wrong, corrected
/// or not.
pub fn scrub(mount_dir: &Path) -> Result<()> {
    let args = [
        "scrub".as_ref(),
        "start".as_ref(),
        "-B".as_ref(),
        "-R".as_ref(),
        mount_dir.as_os_str(),
    ];
    let text = run("btrfs", &args)?;
    for line in text.lines() {
        if let Some((name, value)) = line.trim().split_once(": ")
            && name.ends_with("_errors")
            && value != "0"
        {
            anyhow::bail!("scrub found {name}:\n{text}");
        }
    }
    Ok(())
}
