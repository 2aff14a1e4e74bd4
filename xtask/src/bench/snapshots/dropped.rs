//! A subvolume of very many files is deleted: until it is gone, and how long the fsyncs of another
//! program take meanwhile, beside those before.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow};

use super::{Lines, Rig, open_dir, percentile, timed};

/// How long fsyncs are measured before.
const BEFORE: Duration = Duration::from_secs(3);
const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 1024;

pub fn run(rig: &Rig<'_>) -> Result<Lines> {
    // Alone, then beside a program that syncs.
    rig.many_files("first", rig.args.files)?;
    rig.many_files("second", rig.args.files)?;
    let top = open_dir(&rig.mnt())?;
    let go = |name: &str| {
        timed(|| {
            cowshed_harness::delete_subvolume(&top, name)?;
            rig.wait_for_drops()
        })
    };
    let (alone, ()) = go("first")?;
    let (without, ()) = synced(rig, || {
        std::thread::sleep(BEFORE);
        Ok(())
    })?;
    let (with, (beside, ())) = synced(rig, || go("second"))?;
    let mut lines = Lines::new();
    lines.push(("drop of the tree, alone".into(), alone));
    lines.push(("drop of the tree, beside fsyncs".into(), beside));
    for (what, mut ms) in [("before", without), ("during the drop", with)] {
        for percent in [50, 99] {
            let line = format!("fsync of a block {what}, p{percent}");
            lines.push((line, percentile(&mut ms, percent)?));
        }
    }
    Ok(lines)
}

/// Milliseconds of each fsync of a program while something runs.
fn synced<T>(rig: &Rig<'_>, what: impl FnOnce() -> Result<T>) -> Result<(Vec<f64>, T)> {
    let file = File::create(rig.mnt().join("synced"))?;
    file.write_all_at(&vec![1; BLOCK_BYTES * BLOCKS as usize], 0)?;
    rig.sync()?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let measured = scope.spawn(|| {
            let mut all = Vec::new();
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                file.write_all_at(&[2; BLOCK_BYTES], number % BLOCKS * BLOCK_BYTES as u64)?;
                all.push(timed(|| Ok(file.sync_data()?))?.0);
            }
            anyhow::Ok(all)
        });
        let done = what();
        is_over.store(true, Ordering::Relaxed);
        let all = measured.join().map_err(|_| anyhow!("the program panicked"))??;
        Ok((all, done?))
    })
}
