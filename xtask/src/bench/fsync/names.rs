//! A directory of very many empty files: fsync of it, sync, every thousandth deleted, fsync of it.
//!
//! Copies of our image, made right after each fsync, must show us and the kernel all names that are
//! there then.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rustix::fs::FallocateFlags;

use super::super::loads::generate;
use super::super::side::{Mounted, Removed, Setup, Side};
use super::super::table::{self, ratio, show_runs};
use super::answer::{Answer, State};
use super::{Args, Outcome, turns};
use crate::run;

const NODE_SIZES: [&str; 2] = ["16k", "64k"];
const FIRST: &str = "first fsync";
const SYNC: &str = "sync";
const SECOND: &str = "second fsync";
const EVERY: u64 = 1000;
/// No commit by the clock, however long the names take: an fsync after a commit has less to do. And
/// [`make_room`].
const OPTIONS: &str = "commit=3600,metadata_ratio=1";
/// Chunks for metadata that the kernel has beside the first one.
const ROOM_CHUNKS: u64 = 4;

/// Of metadata the kernel promises far more than a commit writes, out of what no chunk has yet: on
/// a small volume it runs out of promises at leaves of 64 KiB, and commits while the names are
/// made.
const IMAGE_BYTES: u64 = 200 << 30;
/// Where all of it goes. Memory that is touched for the first time costs more than what is
/// measured, on both sides, and now more, now less.
const TOUCHED_BYTES: u64 = 6 << 30;

/// What came of a step: how long it took, and what it has left on the device.
#[derive(Clone, Copy, Debug)]
struct Done {
    ms: f64,
    answer: Answer,
}

/// By node size, step and side.
type Results = BTreeMap<(&'static str, &'static str, Side), Vec<Done>>;

pub fn run(args: &Args, sides: &[Side]) -> Result<Outcome> {
    let mut results = Results::new();
    for node_size in NODE_SIZES {
        for (round, side) in turns(args, sides) {
            let setup = Setup {
                mkfs: &["-K", "-n", node_size],
                options: OPTIONS,
                image_bytes: Some(IMAGE_BYTES),
                touched_bytes: TOUCHED_BYTES,
                ..Setup::default()
            };
            let mounted = Mounted::with(side, &args.dir, &setup)?;
            // One crash of each kind is enough.
            let is_judged = round == 0 && side == Side::Ours && sides.contains(&Side::Kernel);
            for (step, done) in one_run(&mounted, args, is_judged)? {
                let Done { ms, answer } = done;
                eprintln!("{:>8} {node_size} {step:<14} {ms:>9.1} ms, {answer}", side.name());
                results.entry((node_size, step, side)).or_default().push(done);
            }
            mounted.finish()?;
        }
    }
    Ok(render(args, &results))
}

fn one_run(mounted: &Mounted, args: &Args, is_judged: bool) -> Result<[(&'static str, Done); 3]> {
    let (mnt, count) = (mounted.mountpoint(), args.files.to_string());
    make_room(&mnt)?;
    let mut before = State::read(&mounted.image())?;
    // Also what happened since the last step: a commit while names are made spares the fsync its
    // work.
    let mut done = |seconds: f64| -> Result<Done> {
        let after = State::read(&mounted.image())?;
        let answer = after.since(std::mem::replace(&mut before, after));
        Ok(Done {
            ms: seconds * 1e3,
            answer,
        })
    };
    generate(&mnt, &["create", &count])?;
    let first = done(generate(&mnt, &["sync-dir"])?)?;
    if is_judged {
        judge(mounted, args.files)?;
    }
    let started = std::time::Instant::now();
    run::output(Command::new("sync").arg("-f").arg(&mnt))?;
    let sync = done(started.elapsed().as_secs_f64())?;
    generate(&mnt, &["unlink", &count, "--every", &EVERY.to_string()])?;
    let second = done(generate(&mnt, &["sync-dir"])?)?;
    if is_judged {
        judge(mounted, args.files - args.files.div_ceil(EVERY))?;
    }
    Ok([(FIRST, first), (SYNC, sync), (SECOND, second)])
}

/// Sees to it that the kernel needs no new chunk for metadata: the slower the names are made, the
/// more often it writes and moves what it has of them, and keeps the old places until the commit,
/// up to several GiB. An fsync in a transaction that made a chunk is a commit.
///
/// With `metadata_ratio=1` it makes one for each chunk for data, and these are preallocated, which
/// takes no memory. Ours takes the option without effect, but gets the same file.
fn make_room(mnt: &Path) -> Result<()> {
    const CHUNK_BYTES: u64 = 1 << 30;
    let file = File::create(mnt.join("room"))?;
    for chunk in 0..ROOM_CHUNKS {
        rustix::fs::fallocate(&file, FallocateFlags::empty(), chunk * CHUNK_BYTES, CHUNK_BYTES)?;
        rustix::fs::syncfs(&file)?;
    }
    Ok(())
}

/// The power fails now: a copy of the image is judged by `cowshed check`; a read-only mount of ours
/// and then the kernel, which replays the log, have to find so many names in it; and `btrfs check`
/// judges what the kernel made of it.
fn judge(mounted: &Mounted, expected: u64) -> Result<()> {
    let crashed = Removed(mounted.image().with_extension("crashed"));
    let dir = Removed(mounted.image().with_extension("judge"));
    let (copy, mnt) = (&crashed.0, &dir.0);
    run::output(Command::new("cp").arg("--sparse=always").arg(mounted.image()).arg(copy))?;
    std::fs::create_dir_all(mnt)?;
    let ours = |what: &str| {
        let mut command = Command::new(run::released("cowshed"));
        command.arg(what);
        command
    };
    run::output(ours("check").arg(copy))?;
    let found = |mount: &mut Command, umount: &mut Command| {
        run::output(mount.arg(copy).arg(mnt))?;
        let found = count_names(&mnt.join("d"));
        run::output(umount.arg(mnt))?;
        found
    };
    let by_us = found(ours("mount").args(["-o", "ro"]), &mut ours("umount"))?;
    let by_kernel = found(Command::new("mount").args(["-o", "loop"]), &mut Command::new("umount"))?;
    run::output(Command::new("btrfs").args(["check", "--readonly"]).arg(copy))?;
    ensure!(
        (by_us, by_kernel) == (expected, expected),
        "after a crash we find {by_us} names, the kernel {by_kernel}, not {expected}"
    );
    eprintln!("after a crash we and the kernel find all {expected} names; both checks are content");
    Ok(())
}

fn count_names(dir: &Path) -> Result<u64> {
    let mut count = 0;
    for entry in std::fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        entry?;
        count += 1;
    }
    Ok(count)
}

fn render(args: &Args, results: &Results) -> Outcome {
    let mut text = format!(
        "{} empty files, medians of {} runs (lowest to highest), milliseconds. Ratio: how many times as fast as the kernel's btrfs. \
         The last columns: what the superblock says that each side has written.\n\n\
         | Leaves | step | kernel | Cowshed | ratio | kernel wrote | Cowshed wrote |\n|---|---|---:|---:|---:|---|---|\n",
        args.files, args.runs
    );
    let mut bars = Vec::new();
    for node_size in NODE_SIZES {
        for step in [FIRST, SYNC, SECOND] {
            let of = |side| results.get(&(node_size, step, side)).map_or(&[][..], |done| done);
            let ms = |side| of(side).iter().map(|done| done.ms).collect::<Vec<_>>();
            let [(kernel, kernel_wrote), (ours, we_wrote)] =
                [Side::Kernel, Side::Ours].map(|side| (ms(side), show_answers(of(side))));
            let [kernel_median, our_median] = [&kernel, &ours].map(|values| table::median(values));
            let _ = writeln!(
                text,
                "| {node_size} | {step} | {} | {} | {} | {kernel_wrote} | {we_wrote} |",
                show_runs(&kernel, 1),
                show_runs(&ours, 1),
                ratio(kernel_median, our_median),
            );
            if step != SYNC {
                for (side, value) in [(Side::Kernel, kernel_median), (Side::Ours, our_median)] {
                    let label = format!("{step}, {node_size}, {}", side.name());
                    bars.extend(value.map(|value| (label, value)));
                }
            }
        }
    }
    let title = format!("fsync of a directory of {} new files, ms", args.files);
    Outcome {
        text,
        picture: Some(("fsync.svg", table::bars(&title, &bars))),
    }
}

/// All that the runs answered; mostly it is one.
fn show_answers(runs: &[Done]) -> String {
    let answers: BTreeSet<Answer> = runs.iter().map(|done| done.answer).collect();
    let words: Vec<String> = answers.iter().map(Answer::to_string).collect();
    if words.is_empty() {
        "-".into()
    } else {
        words.join(" or ")
    }
}
