//! Kills the mount's process while SQLite commits, and looks at the database.
//!
//! A round: `cowshed mount -f` serves an image; transactions run, each acknowledged when its commit has returned; at a
//! random moment the process is killed. Then the database, opened through a new mount or (every few rounds) through the
//! kernel's, must pass SQLite's own check and be as after the last acknowledged transaction, or the one under way.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cowshed_harness::{KernelMount, LoopDevice, progs, scratch_dir};
use cowshed_kill9::daemon::{Daemon, run as command};

use crate::database::{self, Journal};

/// The kernel and the checkers judge after so many rounds, and after the last.
const ROUNDS_PER_JUDGEMENT: u64 = 10;
/// What SQLite may take to notice that the mount is gone.
const STUCK: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub rounds: u64,
    /// Transactions of the first run, which is not killed.
    pub transactions: i64,
    /// The program to kill.
    pub cowshed: PathBuf,
    pub progress: bool,
}

/// What all rounds together did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub rounds: u64,
    /// Transactions that were acknowledged.
    pub transactions: i64,
    /// Rounds in which the transaction under way was there.
    pub ahead: u64,
}

struct Place {
    dir: tempfile::TempDir,
    cowshed: PathBuf,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn mount(&self) -> Result<Daemon> {
        let (image, dir, log) = (self.path("image"), self.path("fuse"), self.path("log"));
        Daemon::start(&self.cowshed, &image, &dir, "noatime", &log)
    }
    fn database(&self) -> PathBuf {
        self.path("fuse").join("database")
    }
}

/// Runs all rounds.
pub fn run(config: &Config) -> Result<Summary> {
    let place = Place {
        dir: scratch_dir()?,
        cowshed: config.cowshed.clone(),
    };
    for name in ["fuse", "kernel"] {
        std::fs::create_dir(place.path(name))?;
    }
    let image = place.path("image");
    command(&config.cowshed, &["mkfs", "-q", "-b", "1g", &image.to_string_lossy()])?;
    let mut done = without_a_journal(&place, config.transactions)?;
    let mut summary = Summary::default();
    let mut random = config.seed;
    for round in 0..config.rounds {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_millis(10 + (random >> 33) % 400);
        let acknowledged = until_killed(&place, done, delay).with_context(|| format!("round {round}"))?;
        let is_judged = round % ROUNDS_PER_JUDGEMENT == 0 || round + 1 == config.rounds;
        let found = if is_judged {
            by_kernel(&place)
        } else {
            by_ourselves(&place)
        };
        let found = found.with_context(|| format!("round {round}, after transaction {acknowledged}"))?;
        ensure!(
            (acknowledged..=acknowledged + 1).contains(&found),
            "round {round}: transaction {acknowledged} was acknowledged, {found} is there"
        );
        summary.ahead += u64::from(found > acknowledged);
        done = found;
        summary.rounds += 1;
        if config.progress && round % 10 == 9 {
            eprintln!("{} rounds, {done} transactions", round + 1);
        }
    }
    summary.transactions = done;
    Ok(summary)
}

/// Makes the database and runs transactions; no second file appears beside it for them.
fn without_a_journal(place: &Place, transactions: i64) -> Result<i64> {
    let daemon = place.mount()?;
    let mut connection = database::open(&place.database(), Journal::Delete)?;
    // Making or removing any name would move the time of the directory.
    let changed = || -> Result<_> { Ok(std::fs::metadata(place.path("fuse"))?.modified()?) };
    // The transaction that makes the database is SQLite's own affair: it has a journal.
    database::fill(&mut connection)?;
    let before = changed()?;
    for n in 1..=transactions {
        database::transact(&mut connection, n)?;
    }
    ensure!(changed()? == before, "SQLite made a journal");
    ensure!(
        database::verify(&connection)? == transactions,
        "transactions are missing"
    );
    drop(connection);
    daemon.stop()?;
    Ok(transactions)
}

/// Runs transactions until the process is killed; how many were acknowledged, those before included.
fn until_killed(place: &Place, done: i64, delay: Duration) -> Result<i64> {
    let mut daemon = place.mount()?;
    let acknowledged = Arc::new(AtomicI64::new(done));
    let path = place.database();
    let worker = {
        let acknowledged = acknowledged.clone();
        std::thread::spawn(move || -> Result<()> {
            let mut connection = database::open(&path, Journal::Delete)?;
            loop {
                let next = acknowledged.load(Ordering::SeqCst) + 1;
                match database::transact(&mut connection, next) {
                    Ok(()) => acknowledged.store(next, Ordering::SeqCst),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    };
    std::thread::sleep(delay);
    let is_early = worker.is_finished();
    daemon.kill()?;
    let killed_at = Instant::now();
    while !worker.is_finished() {
        ensure!(
            killed_at.elapsed() < STUCK,
            "SQLite hangs in calls to a mount whose process is dead"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    let end = worker.join().map_err(|_| anyhow!("the worker panicked"))?;
    let said = daemon.said();
    daemon.unmount_dead()?;
    if is_early {
        bail!("SQLite failed before the kill: {end:?}\n{said}");
    }
    ensure!(
        !said.contains("ERROR") && !said.contains("panicked"),
        "the process complained:\n{said}"
    );
    Ok(acknowledged.load(Ordering::SeqCst))
}

fn by_ourselves(place: &Place) -> Result<i64> {
    let daemon = place.mount()?;
    let found = verify_at(&place.database())?;
    daemon.stop()?;
    Ok(found)
}

fn by_kernel(place: &Place) -> Result<i64> {
    let image = place.path("image");
    let device = LoopDevice::attach(&image)?;
    let mount = KernelMount::new("btrfs", &[device.path()], &place.path("kernel"), "noatime")?;
    let found = verify_at(&mount.dir().join("database"));
    mount.unmount()?;
    drop(device);
    let options = progs::CheckOptions {
        data_csum: true,
        lowmem: false,
    };
    let report = progs::check(&image, options)?;
    ensure!(report.clean, "btrfs check complains:\n{}", report.output);
    found
}

fn verify_at(path: &Path) -> Result<i64> {
    let connection = database::open(path, Journal::Delete)?;
    database::verify(&connection)
}
