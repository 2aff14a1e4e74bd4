//! readdir() of one large directory.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};

use super::calls::{self, Dir};
use super::column::Place;
use super::results::{Key, Kind};
use super::stats::{self, Sample};
use super::{Bench, callers};

pub const LINES: [&str; 2] = ["readdir, cold", "readdir, warm"];
/// Names at scale 1.
const NAMES: u64 = 1_000_000;
pub const CALLERS: [usize; 2] = [1, 2];

pub fn run(bench: &mut Bench<'_>, place: &mut Place) -> Result<()> {
    let names = bench.args.count(NAMES, 1);
    let path = place.mountpoint().join("names");
    let dir = Dir::open(&path, 0)?;
    callers::run(1, names, |_, n| calls::create(&dir, n))?;
    drop(dir);
    for callers in CALLERS {
        place.remount()?;
        for line in LINES {
            let sample = list(&path, callers, names)?;
            bench.record(&Key::new(Kind::Names, line, callers), sample);
        }
    }
    Ok(())
}

/// All callers list the directory at once. Names per second; the durations are those of getdents().
fn list(path: &Path, callers: usize, names: usize) -> Result<Sample> {
    let started = Instant::now();
    let ended: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(|| calls::list(path))).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut nanos = Vec::new();
    for caller in ended {
        let (found, calls) = caller.map_err(|_| anyhow!("a caller panicked"))??;
        ensure!(found == names, "{found} names listed, not {names}");
        nanos.extend(calls);
    }
    Ok(Sample {
        value: (callers * names) as f64 / seconds,
        latency_us: stats::latency_us(&mut nanos),
        last_over_best: None,
    })
}
