//! What needs no mount, or nothing but one: the checkers, opening a very large volume, and opening
//! one with a full log.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::view::{By, Format, Image, View, ours};
use super::{Args, Results, say};
use crate::run;

pub const CHECK: &str = "check";
pub const OPEN: &str = "mount of 100 TiB";
pub const REPLAY: &str = "open with a full log of 64 MiB";
const LARGE_BYTES: u64 = 100 << 40;
/// What opening may take, in seconds: a large volume, and one with a full log.
const OPEN_MAX: f64 = 1.0;
const REPLAY_MAX: f64 = 2.0;
/// Fills the log: many small transactions, and no sync.
const FILL_LOG: &str =
    "for i in 1 2 3 4; do (mkdir d$i; cd d$i; seq 1 50000 | xargs touch) & done; wait; xfs_io -x -c shutdown .";

/// `cowshed check` beside `xfs_repair -n`.
pub fn check(image: &Image, args: &Args, results: &mut Results) -> Result<()> {
    for _ in 0..args.runs {
        let mut repair = Command::new("xfs_repair");
        repair.args(["-n", "-f"]).arg(image.path());
        let mut check = ours("check");
        check.arg("-q").arg(image.path());
        for (by, command) in [(By::Kernel, &mut repair), (By::Dev, &mut check)] {
            if by == By::Kernel && args.ours {
                continue;
            }
            let started = Instant::now();
            run::output(command)?;
            note(results, CHECK, by, started);
        }
    }
    Ok(())
}

/// A sparse volume of 100 TiB, mounted.
pub fn open_large(top: &Path, args: &Args, results: &mut Results) -> Result<()> {
    // The size of the log is what mkfs has to write.
    let image = Image::new(top, Format::Xfs, LARGE_BYTES, &["-l", "size=64m"])?;
    for _ in 0..args.runs {
        for by in By::possible(!args.ours) {
            let started = Instant::now();
            let view = View::mount(&image, by)?;
            rustix::fs::statvfs(view.mountpoint())?;
            let seconds = note(results, OPEN, by, started);
            ensure!(by == By::Kernel || seconds < OPEN_MAX, "{OPEN}: {seconds:.2} s");
            view.unmount()?;
        }
    }
    Ok(())
}

/// A volume with a dirty log of 200,000 new files: the kernel mounts a copy, which recovers it
/// there, and ours recovers it in memory.
pub fn replay(top: &Path, args: &Args, results: &mut Results) -> Result<()> {
    let image = Image::new(top, Format::Xfs, 4 << 30, &["-l", "size=64m"])?;
    image.dirty(FILL_LOG)?;
    let copy = image.path().with_extension("copy");
    for _ in 0..args.runs {
        let mut look = ours("stat");
        look.arg(image.path()).arg("/");
        let started = Instant::now();
        run::output(&mut look)?;
        let seconds = note(results, REPLAY, By::Dev, started);
        ensure!(seconds < REPLAY_MAX, "{REPLAY}: {seconds:.2} s");
        if args.ours {
            continue;
        }
        let mut command = Command::new("cp");
        run::output(command.args(["--sparse=always"]).arg(image.path()).arg(&copy))?;
        let at = top.join("replayed");
        std::fs::create_dir_all(&at)?;
        let started = Instant::now();
        run::output(Command::new("mount").args(["-o", "loop"]).arg(&copy).arg(&at))?;
        note(results, REPLAY, By::Kernel, started);
        run::output(Command::new("umount").arg(&at))?;
    }
    Ok(())
}

/// Notes the seconds since then, and gives them.
fn note(results: &mut Results, name: &'static str, by: By, started: Instant) -> f64 {
    let seconds = started.elapsed().as_secs_f64();
    say(name, Format::Xfs, by, seconds);
    results.entry((name, Format::Xfs, by)).or_default().push(seconds);
    seconds
}
