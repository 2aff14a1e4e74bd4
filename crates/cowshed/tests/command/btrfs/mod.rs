//! The program called as `btrfs`, beside the stock one.

mod back_ends;
mod questions;
mod send_receive;
mod several_devices;
mod spread;
mod subvolumes;
mod tools;
mod words;

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cowshed_harness::{KernelVolume, Mounted as KernelMounted, VolumeOptions, limit, need};

use crate::mount::{Guard, unmount};
use crate::support::{COMMAND_MAX, COWSHED, run};

/// A zone that differs from UTC in hours and minutes, described without tables of the system.
const ZONE: &str = "ABC-5:45";

/// Which program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Stock,
    Ours,
}

impl Program {
    /// To run it by the name `btrfs`.
    pub fn command(self) -> Command {
        match self {
            Program::Stock => Command::new("btrfs"),
            Program::Ours => {
                let mut command = Command::new(COWSHED);
                command.arg0("btrfs");
                command
            }
        }
    }
}

/// What a run said. The name of the volume's root is `@` in it, whatever the root is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// A root directory: a path, or `IMAGE:` without a slash behind it.
pub struct At<'a> {
    pub program: Program,
    pub root: &'a str,
}

impl At<'_> {
    /// Runs a line of words; `@` stands for the root.
    pub fn run(&self, line: &str) -> Answer {
        self.run_as(line, 0)
    }

    pub fn run_as(&self, line: &str, uid: u32) -> Answer {
        let mut command = self.program.command();
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        self.answer(command, line)
    }

    /// In another time zone than the others.
    pub fn run_in(&self, line: &str, zone: &str) -> Answer {
        let program = match self.program {
            Program::Stock => "btrfs",
            Program::Ours => COWSHED,
        };
        let script = format!("export TZ={zone}; exec -a btrfs {program} \"$@\"");
        let mut command = Command::new("bash");
        command.args(["-c", &script, "bash"]);
        self.answer(command, line)
    }

    /// As [`Self::ok`], by a process whose umask is not that of the tests.
    #[track_caller]
    pub fn ok_with_umask(&self, umask: u32, line: &str) {
        let program = match self.program {
            Program::Stock => "btrfs",
            Program::Ours => COWSHED,
        };
        let mut command = Command::new("bash");
        let script = format!("umask {umask:04o}; exec -a btrfs {program} \"$@\"");
        command.args(["-c", &script, "bash"]);
        let answer = self.answer(command, line);
        assert_eq!(answer.code, 0, "{line}: {answer:?}");
    }

    fn answer(&self, mut command: Command, line: &str) -> Answer {
        // One byte more than a label can have.
        let too_long = "x".repeat(256);
        command
            .args(
                line.split_whitespace()
                    .map(|word| word.replace('@', self.root).replace("LONG", &too_long)),
            )
            .env("TZ", ZONE)
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        let output = limit::output_within(&mut command, COMMAND_MAX).unwrap_or_else(|e| panic!("{e:#}"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(self.root, "@");
        Answer {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// What a run that must succeed prints.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        let answer = self.run(line);
        assert_eq!(answer.code, 0, "{line}: {answer:?}");
        answer.out
    }
}

pub fn stock(root: &str) -> At<'_> {
    let program = Program::Stock;
    At { program, root }
}

pub fn ours(root: &str) -> At<'_> {
    let program = Program::Ours;
    At { program, root }
}

pub fn can_compare() -> Option<()> {
    need::root()?;
    need::fuse()?;
    need::tool("btrfs")?;
    need::kernel_btrfs()
}

pub fn text(path: &Path) -> String {
    path.to_str().expect("paths of tests are text").to_owned()
}

/// A volume of the kernel's, mounted by it so that reading changes nothing.
pub fn kernel_mount(volume: &KernelVolume) -> (KernelMounted, String) {
    let mounted = volume.mount_with("noatime,commit=1").unwrap();
    let root = text(&mounted.dir().canonicalize().unwrap());
    (mounted, root)
}

/// A fresh volume of the kernel's.
pub fn fresh() -> KernelVolume {
    let options = VolumeOptions {
        // The kernel drops deleted subvolumes after a commit.
        mount_options: "commit=1",
        ..VolumeOptions::default()
    };
    KernelVolume::make(&options).unwrap()
}

/// Runs with the volume mounted by us.
pub fn with_own_mount(volume: &KernelVolume, options: &str, act: impl FnOnce(&str)) {
    let mnt: PathBuf = volume.dir().join("own");
    std::fs::create_dir_all(&mnt).unwrap();
    let guard = Guard(&mnt);
    run(&format!("mount -o {options} {{}} {{}}"), &[volume.image(), &mnt]).ok();
    act(&text(&mnt.canonicalize().unwrap()));
    unmount(&mnt);
    drop(guard);
}
