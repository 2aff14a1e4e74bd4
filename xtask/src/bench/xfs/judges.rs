//! What needs no mount, or nothing but one: the checkers, and opening a very large volume.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::Result;

use super::view::{By, Format, Image, View, ours};
use super::{Args, Results, say};
use crate::run;

pub const CHECK: &str = "check";
pub const OPEN: &str = "mount of 100 TiB";
const LARGE_BYTES: u64 = 100 << 40;

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
            note(results, OPEN, by, started);
            view.unmount()?;
        }
    }
    Ok(())
}

fn note(results: &mut Results, name: &'static str, by: By, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    say(name, Format::Xfs, by, seconds);
    results.entry((name, Format::Xfs, by)).or_default().push(seconds);
}
