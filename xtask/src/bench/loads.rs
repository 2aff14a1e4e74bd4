//! The loads, in the groups that share a volume.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cowshed_harness::limit;

use crate::run;

/// How much there is to do.
pub struct Scale {
    pub factor: f64,
    pub tree: PathBuf,
}

impl Scale {
    pub fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.factor) as u64).max(10)
    }
    pub fn bytes(&self, full: u64) -> u64 {
        (((full as f64 * self.factor) as u64) >> 20).max(16) << 20
    }
}

/// How much of what a load does at scale 1.
#[derive(Clone, Copy)]
pub enum Amount {
    Files(u64),
    Bytes(u64),
    Blocks(u64),
    Tree,
}

pub enum Work {
    /// The load generator, with these arguments; `#` stands for the amount.
    Generator(&'static [&'static str]),
    CopyTree,
    RemoveTree,
}

pub struct Load {
    pub name: &'static str,
    pub amount: Amount,
    work: Work,
}

pub enum Step {
    Load(&'static Load),
    Remount,
}

pub struct Group {
    name: &'static str,
    pub steps: &'static [Step],
}

const FILES: Amount = Amount::Files(1_000_000);
const STREAM: Amount = Amount::Bytes(2 << 30);
const BUFFERED: Amount = Amount::Blocks(400_000);
const DIRECT: Amount = Amount::Blocks(100_000);
const SYNCED: Amount = Amount::Blocks(4_000);

const fn generator(name: &'static str, amount: Amount, arguments: &'static [&'static str]) -> Load {
    Load {
        name,
        amount,
        work: Work::Generator(arguments),
    }
}

const CREATE: Load = generator("create", FILES, &["create", "#"]);
const STAT_WARM: Load = generator("stat, warm", FILES, &["stat", "#"]);
const STAT_COLD: Load = generator("stat, cold", FILES, &["stat", "#"]);
const READDIR: Load = generator("readdir, cold", FILES, &["readdir"]);
const READDIR_STAT: Load = generator("readdir + stat, cold", FILES, &["readdir-stat"]);
const UNLINK: Load = generator("unlink", FILES, &["unlink", "#"]);
const UNLINK_COLD: Load = generator("unlink, cold", FILES, &["unlink", "#"]);
const STREAM_WRITE: Load = generator("stream write + fsync", STREAM, &["stream-write", "#"]);
const STREAM_READ: Load = generator("stream read, cold", STREAM, &["stream-read"]);
const READ_COLD: Load = generator("random 4k read, cold", BUFFERED, &["random-read", "#"]);
const READ_DIRECT: Load = generator("random 4k read, direct", DIRECT, &["random-read", "#", "--direct"]);
const WRITE: Load = generator("random 4k write + fsync", BUFFERED, &["random-write", "#"]);
const WRITE_DIRECT: Load = generator("random 4k write, direct", DIRECT, &["random-write", "#", "--direct"]);
const FSYNC: Load = generator("4k write, each fsynced", SYNCED, &["fsync", "#"]);
const COPY: Load = Load {
    name: "cp -a of a tree",
    amount: Amount::Tree,
    work: Work::CopyTree,
};
const REMOVE: Load = Load {
    name: "rm -r of a tree, cold",
    amount: Amount::Tree,
    work: Work::RemoveTree,
};

pub const GROUPS: &[Group] = &[
    Group {
        name: "names",
        steps: &[Step::Load(&CREATE), Step::Load(&STAT_WARM), Step::Load(&UNLINK)],
    },
    Group {
        name: "names-cold",
        steps: &[
            Step::Load(&CREATE),
            Step::Remount,
            Step::Load(&STAT_COLD),
            Step::Remount,
            Step::Load(&READDIR),
            Step::Remount,
            Step::Load(&READDIR_STAT),
            Step::Remount,
            Step::Load(&UNLINK_COLD),
        ],
    },
    Group {
        name: "data",
        steps: &[
            Step::Load(&STREAM_WRITE),
            Step::Remount,
            Step::Load(&STREAM_READ),
            Step::Remount,
            Step::Load(&READ_COLD),
            Step::Load(&READ_DIRECT),
            Step::Load(&WRITE),
            Step::Load(&WRITE_DIRECT),
            Step::Load(&FSYNC),
        ],
    },
    Group {
        name: "tree",
        steps: &[Step::Load(&COPY), Step::Remount, Step::Load(&REMOVE)],
    },
];

/// The names of all loads, in the order of the table.
pub fn all() -> impl Iterator<Item = &'static Load> {
    GROUPS.iter().flat_map(|g| g.steps).filter_map(|step| match step {
        Step::Load(load) => Some(*load),
        Step::Remount => None,
    })
}

impl Group {
    pub fn is_wanted(&self, only: &str) -> bool {
        self.name.contains(only)
            || self.steps.iter().any(|step| match step {
                Step::Load(load) => load.name.contains(only),
                Step::Remount => false,
            })
    }
}

impl Load {
    /// Runs on a mount; seconds it took. What it leaves in caches is synced before the next load,
    /// outside of the clock.
    pub fn run(&self, mountpoint: PathBuf, scale: &Scale) -> Result<f64> {
        let seconds = match self.work {
            Work::Generator(arguments) => self.generate(&mountpoint, arguments, scale)?,
            Work::CopyTree => timed(
                Command::new("cp")
                    .arg("-a")
                    .arg(&scale.tree)
                    .arg(mountpoint.join("tree")),
            )?,
            Work::RemoveTree => timed(Command::new("rm").arg("-r").arg(mountpoint.join("tree")))?,
        };
        run::output(Command::new("sync").arg("-f").arg(&mountpoint))?;
        Ok(seconds)
    }

    fn generate(&self, mountpoint: &Path, arguments: &[&str], scale: &Scale) -> Result<f64> {
        let amount = match self.amount {
            Amount::Files(full) | Amount::Blocks(full) => scale.count(full),
            Amount::Bytes(full) => scale.bytes(full),
            Amount::Tree => 0,
        };
        let amount = amount.to_string();
        let arguments: Vec<_> = arguments.iter().map(|a| if *a == "#" { &amount } else { *a }).collect();
        generate(mountpoint, &arguments)
    }
}

/// Runs the load generator; seconds it took.
pub fn generate(mountpoint: &Path, arguments: &[&str]) -> Result<f64> {
    let mut command = Command::new(run::released("cowshed-bench-load"));
    command.arg(mountpoint).args(arguments);
    let line: serde_json::Value = serde_json::from_str(&run::output(&mut command)?)?;
    line["wall_s"].as_f64().context("the load generator tells its time")
}

fn timed(command: &mut Command) -> Result<f64> {
    let started = Instant::now();
    let status = limit::status_within(command, Duration::MAX)?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(started.elapsed().as_secs_f64())
}
