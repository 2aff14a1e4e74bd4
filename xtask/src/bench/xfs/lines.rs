//! The lines of the table, in groups: each group begins with a new mount.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::super::loads::generate;
use super::Args;
use crate::run;

/// In what a line is shown.
#[derive(Clone, Copy)]
pub enum Unit {
    /// So many of them a second.
    Files,
    Reads,
    /// Bytes a second of the large file.
    Bytes,
    Millis,
}

/// What a line does.
#[derive(Clone, Copy)]
enum Work {
    /// The load generator, with these arguments; `#` stands for the number of the unit.
    Load(&'static [&'static str]),
    /// A shell command in the mount's directory.
    Shell(&'static str),
}

pub struct Line {
    pub name: &'static str,
    pub unit: Unit,
    work: Work,
}

const fn load(name: &'static str, unit: Unit, arguments: &'static [&'static str]) -> Line {
    let work = Work::Load(arguments);
    Line { name, unit, work }
}

const fn shell(name: &'static str, command: &'static str) -> Line {
    let (unit, work) = (Unit::Millis, Work::Shell(command));
    Line { name, unit, work }
}

pub const GROUPS: &[&[Line]] = &[
    &[
        load("stat, cold", Unit::Files, &["stat", "#"]),
        load("stat, warm", Unit::Files, &["stat", "#"]),
    ],
    &[load(
        "stat, cold, random order",
        Unit::Files,
        &["stat", "#", "--shuffled"],
    )],
    &[load("small files read, cold", Unit::Files, &["read-files", "#"])],
    &[load(
        "small files read, cold, random order",
        Unit::Files,
        &["read-files", "#", "--shuffled"],
    )],
    &[load("readdir, cold", Unit::Files, &["readdir"])],
    &[load("readdir + stat, cold", Unit::Files, &["readdir-stat"])],
    &[
        shell("ls -lR, cold", "ls -lR tree > /dev/null"),
        shell("ls -lR, warm", "ls -lR tree > /dev/null"),
    ],
    &[
        shell("find, cold", "find tree > /dev/null"),
        shell("find, warm", "find tree > /dev/null"),
    ],
    &[
        // Without a match it exits with 1.
        shell("grep -r, cold", "! grep -rq 'no file has this line' tree"),
        shell("grep -r, warm", "! grep -rq 'no file has this line' tree"),
    ],
    &[load("stream read, cold", Unit::Bytes, &["stream-read"])],
    &[load("random 4k read, cold", Unit::Reads, &["random-read", "#"])],
    &[load(
        "random 4k read, direct",
        Unit::Reads,
        &["random-read", "#", "--direct"],
    )],
    &[
        load("SEEK_HOLE, cold", Unit::Millis, &["seek-hole"]),
        load("SEEK_HOLE, warm", Unit::Millis, &["seek-hole"]),
    ],
];

impl Unit {
    /// How many there are.
    pub fn amount(self, args: &Args) -> u64 {
        match self {
            Unit::Files => args.files(),
            Unit::Reads => args.random_reads(),
            Unit::Bytes => args.stream_mib() << 20,
            Unit::Millis => 1,
        }
    }
}

impl Line {
    /// Seconds it took.
    pub fn run(&self, mountpoint: &Path, args: &Args) -> Result<f64> {
        match self.work {
            Work::Load(arguments) => {
                let amount = self.unit.amount(args).to_string();
                let arguments: Vec<_> = arguments.iter().map(|a| if *a == "#" { &amount } else { *a }).collect();
                generate(mountpoint, &arguments)
            }
            Work::Shell(command) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", command]).current_dir(mountpoint);
                let started = Instant::now();
                run::output(&mut shell)?;
                Ok(started.elapsed().as_secs_f64())
            }
        }
    }
}
