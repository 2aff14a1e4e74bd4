//! Random damage to volumes of XFS: what `xfs_repair -n` reports, `xfs-check` reports, too.
//!
//! Each round damages one of the corpus' volumes from a seed that is printed when the round fails.
//! `COWSHED_SEED=n` runs one seed, `COWSHED_ROUNDS=n` more or fewer of them. `xfs_repair -n` leaves
//! the log alone; so does the checker here. Its exit status is 1 for a dirty log, whatever else it
//! finds: what counts is what it says beyond what it says of the volume without damage.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::Rng;
use cowshed_fuzz::xfs::{Base, Damage, bases};
use cowshed_harness::{need, run_raw, scratch_dir};
use xfs_check::{CheckOptions, check};

const ROUND_TIME_MAX: Duration = Duration::from_secs(20);

/// How the two judge: found by both, by ours alone, by neither, by xfs_repair alone.
#[derive(Clone, Debug, Default)]
struct Counts([u32; 4]);

#[test]
fn what_the_stock_checker_finds_is_found() -> Result<()> {
    let Some(()) = need::tool("xfs_repair") else {
        return Ok(());
    };
    let bases = bases()?.into_iter().map(Sound::new).collect::<Result<Vec<_>>>()?;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("COWSHED_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("COWSHED_ROUNDS").unwrap_or(30),
    };
    let (mut counts, mut missed) = (vec![Counts::default(); bases.len()], Vec::new());
    let is_one = seeds.end == seeds.start + 1;
    for seed in seeds {
        let at = seed as usize % bases.len();
        let (which, said) = round(&bases[at], seed)?;
        counts[at].0[which] += 1;
        if which == 3 {
            missed.push(said);
        }
    }
    for (sound, Counts([both, alone, neither, missed])) in bases.iter().zip(&counts) {
        let name = sound.base.name;
        println!("{name}: {both} found by both, {alone} by us alone, {neither} by neither, {missed} missed");
        assert!(is_one || *both > 0, "{name}: no damage is found");
    }
    assert!(
        missed.is_empty(),
        "xfs_repair -n finds faults that we miss:\n{}",
        missed.join("\n")
    );
    Ok(())
}

/// A volume without damage.
struct Sound {
    base: Base,
    /// What the stock checker says of it.
    said: BTreeSet<String>,
}

impl Sound {
    fn new(base: Base) -> Result<Sound> {
        let kinds = base.kinds.len();
        assert!(kinds >= 14, "{}: {kinds} kinds of metadata", base.name);
        let report = check(Arc::new(base.device.snapshot()), &CheckOptions::default());
        assert!(report.is_clean(), "{}: {report}", base.name);
        let dir = scratch_dir()?;
        let (found, lines) = stock(&base.device, &dir.path().join("sound.img"))?;
        assert_eq!(found, base.name == "xfs-log", "{}: {lines:?}", base.name);
        let said = lines.into_iter().collect();
        Ok(Sound { base, said })
    }
}

/// Does the stock checker find faults? And what it says.
fn stock(device: &MemDevice, path: &Path) -> Result<(bool, Vec<String>)> {
    device.save(path)?;
    let judged = run_raw("xfs_repair", &["-n".as_ref(), "-f".as_ref(), path.as_os_str()])?;
    let text = [&judged.stderr[..], &judged.stdout[..]].concat();
    let text = String::from_utf8_lossy(&text);
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("Phase") && !line.starts_with("        - "));
    Ok((!judged.status.success(), lines.map(str::to_owned).collect()))
}

/// Which of [`Counts`] the round belongs to, and what was damaged and found.
fn round(sound: &Sound, seed: u64) -> Result<(usize, String)> {
    let base = &sound.base;
    let device = base.device.snapshot();
    // The image is not cut short: the stock checker has no answer to that.
    let mut rng = Rng::new(seed);
    let damage = Damage::make(&device, &base.kinds, &mut rng);
    let dir = scratch_dir()?;
    let (fails, lines) = stock(&device, &dir.path().join("damaged.img"))?;
    let news: Vec<String> = lines.into_iter().filter(|line| !sound.said.contains(line)).collect();
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let start = Instant::now();
    let check = || check(device.clone(), &CheckOptions::default());
    let report = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    let report = report.unwrap_or_else(|_| panic!("panic with COWSHED_SEED={seed}"));
    let took = start.elapsed();
    assert!(took < ROUND_TIME_MAX, "COWSHED_SEED={seed} took {took:?}");
    let which = match (fails && !news.is_empty(), report.is_clean()) {
        (true, false) => 0,
        (false, false) => 1,
        (false, true) => 2,
        (true, true) => 3,
    };
    let (done, news) = (damage.done.join("\n"), news.join("\n"));
    Ok((which, format!("COWSHED_SEED={seed}, {}\n{done}\n{news}\n", base.name)))
}
