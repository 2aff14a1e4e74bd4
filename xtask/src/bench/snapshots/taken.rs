//! How long one call takes that makes a snapshot of a large tree: idle, beside a program that
//! makes, renames and syncs files in it (little dirty data), and beside one that overwrites blocks
//! and never syncs (much of it).

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};
use cowshed_device_sim::Rng;

use super::{Lines, Rig, open_dir, percentile, timed};

/// Of the file that is overwritten.
const DATA_BLOCKS: u64 = 64 << 8;
const BLOCK_BYTES: usize = 4096;
/// Between two snapshots: a load is to get on.
const PAUSE: Duration = Duration::from_millis(20);

type Load = fn(&Path, &AtomicBool) -> Result<()>;

pub fn run(rig: &Rig<'_>) -> Result<Lines> {
    let tree = rig.many_files("tree", rig.args.files)?;
    std::fs::write(tree.join("data"), vec![1; DATA_BLOCKS as usize * BLOCK_BYTES])?;
    std::fs::create_dir(tree.join("work"))?;
    rig.sync()?;
    let loads: [(&str, Load); 3] = [
        ("idle", nothing),
        ("beside synced files", synced_files),
        ("beside dirty data", dirty_data),
    ];
    let mut lines = Lines::new();
    for (what, load) in loads {
        let mut ms = beside(rig, &tree, what, load)?;
        for percent in [50, 99] {
            let line = format!("snapshot, {what}, p{percent}");
            lines.push((line, percentile(&mut ms, percent)?));
        }
    }
    Ok(lines)
}

/// Milliseconds of each snapshot while a load runs.
fn beside(rig: &Rig<'_>, tree: &Path, what: &str, load: Load) -> Result<Vec<f64>> {
    let (source, top) = (open_dir(tree)?, open_dir(&rig.mnt())?);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| load(tree, &is_over));
        let taken = take(rig, &source, &top, what);
        is_over.store(true, Ordering::Relaxed);
        loaded.join().map_err(|_| anyhow!("the load panicked"))??;
        taken
    })
}

fn take(rig: &Rig<'_>, source: &File, top: &File, what: &str) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for number in 0..rig.args.snapshots {
        let name = format!("{what} {number}");
        let (ms, ()) = timed(|| Ok(cowshed_harness::snapshot(source, top, &name, true)?))?;
        all.push(ms);
        std::thread::sleep(PAUSE);
    }
    Ok(all)
}

fn nothing(_: &Path, _: &AtomicBool) -> Result<()> {
    Ok(())
}

fn synced_files(tree: &Path, is_over: &AtomicBool) -> Result<()> {
    let work = tree.join("work");
    let mut number = 0_u64;
    while !is_over.load(Ordering::Relaxed) {
        let (new, kept) = (work.join("new"), work.join(format!("kept-{}", number % 100)));
        let file = File::create(&new)?;
        file.write_all_at(&[2; BLOCK_BYTES], 0)?;
        file.sync_all()?;
        std::fs::rename(&new, &kept)?;
        number += 1;
    }
    Ok(())
}

fn dirty_data(tree: &Path, is_over: &AtomicBool) -> Result<()> {
    let file = OpenOptions::new().write(true).open(tree.join("data"))?;
    let mut dice = Rng::new(1);
    while !is_over.load(Ordering::Relaxed) {
        let at = dice.below(DATA_BLOCKS) * BLOCK_BYTES as u64;
        file.write_all_at(&[3; BLOCK_BYTES], at)?;
    }
    Ok(())
}
