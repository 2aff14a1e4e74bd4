//! Kills under the load of ordinary programs: SQLite, or dbench beside a [`Ledger`].
//!
//! After each kill the image is replayed by the kernel and by us, both checkers look at the
//! results, the trees must be the same byte for byte, and what was acknowledged must be there.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cowshed_crash::load_image;
use cowshed_harness::{Keep, limit, scratch_dir};
use cowshed_logcases::roads;
use cowshed_model::Rng;

use crate::daemon::{Daemon, run as command};
use crate::ledger::Ledger;
use crate::rounds::Config;
use crate::sqlite::Rows;
use crate::tides;

const IMAGE_BYTES: &str = "1g";
const SMALL_IMAGE_BYTES: &str = "256m";
const ROUNDS_PER_IMAGE: u64 = 20;
const NODE_BYTES: [u32; 3] = [16384, 4096, 65536];
const DBENCH_CLIENTS: &str = "4";
/// What the loads may take to notice that the mount is gone.
const STUCK: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Load {
    /// Random operations, compared with a model
    Model,
    /// Databases with synchronous=FULL
    Sqlite,
    /// dbench, and files whose every step is written down
    Dbench,
    /// A small volume, filled and emptied with data and names by turns, and files whose every step
    /// is written down
    Tides,
}

/// Runs all rounds; says what they did.
pub fn run(config: &Config, load: Load, options: &str) -> Result<String> {
    let started = Instant::now();
    let mut volume: Option<Volume> = None;
    let (mut steps, mut logs, mut full) = (0, 0, 0);
    for round in 0..config.rounds {
        if round % ROUNDS_PER_IMAGE == 0 {
            volume = None;
        }
        let nodes = NODE_BYTES[(round / ROUNDS_PER_IMAGE % 3) as usize];
        let volume = match &mut volume {
            Some(volume) => volume,
            None => volume.insert(Volume::new(config, load, nodes)?),
        };
        let mut dice = Rng::new(config.seed.wrapping_mul(1_000_003).wrapping_add(round));
        let before = volume.steps();
        let has_log = volume
            .round(config, load, options, &mut dice)
            .with_context(|| format!("round {round} (seed {}, {load:?})", config.seed))?;
        steps += volume.steps().saturating_sub(before);
        full += volume.full.swap(0, Ordering::Relaxed);
        logs += u64::from(has_log);
        if config.progress && round % 10 == 9 {
            eprintln!(
                "{} rounds, {steps} steps acknowledged, {logs} logs, {full} times full",
                round + 1
            );
        }
    }
    Ok(format!(
        "{} kills under {load:?}: {steps} steps acknowledged, {logs} logs replayed, {full} times full, {:.0} s",
        config.rounds,
        started.elapsed().as_secs_f64()
    ))
}

/// An image, and what is known of it.
struct Volume {
    dir: tempfile::TempDir,
    ledger: Ledger,
    rows: Rows,
    /// How often there was no space.
    full: AtomicU64,
}

impl Volume {
    fn new(config: &Config, load: Load, node_bytes: u32) -> Result<Volume> {
        let dir = scratch_dir()?;
        std::fs::create_dir(dir.path().join("fuse"))?;
        let (node, image) = (node_bytes.to_string(), dir.path().join("image"));
        let bytes = if load == Load::Tides {
            SMALL_IMAGE_BYTES
        } else {
            IMAGE_BYTES
        };
        let args = ["mkfs", "-q", "-b", bytes, "-n", &node, &image.to_string_lossy()];
        command(&config.cowshed, &args)?;
        Ok(Volume {
            dir,
            ledger: Ledger::default(),
            rows: Rows::default(),
            full: AtomicU64::new(0),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn steps(&self) -> u64 {
        self.ledger.steps() + self.rows.steps()
    }

    /// Load, kill, judgement. Was there a log?
    fn round(&mut self, config: &Config, load: Load, options: &str, dice: &mut Rng) -> Result<bool> {
        let (image, fuse, log) = (self.path("image"), self.path("fuse"), self.path("log"));
        let options = match options {
            "" => "noatime".to_owned(),
            more => format!("noatime,{more}"),
        };
        let options = [&options[..], &config.transport].join(",");
        let mut daemon = Daemon::start(&config.cowshed, &image, &fuse, &options, &log)?;
        let delay = Duration::from_millis(50 + dice.below(1200));
        let worked = match load {
            Load::Sqlite => work_and_kill(&mut daemon, delay, |root| self.rows.work(root)),
            Load::Dbench => {
                self.ledger.recover(&fuse)?;
                let ledger = Mutex::new((&mut self.ledger, dice));
                work_and_kill(&mut daemon, delay, |root| {
                    let _bench = start_dbench(root)?;
                    let mut guard = ledger.lock().map_err(|_| anyhow!("a panic"))?;
                    let (ledger, dice) = &mut *guard;
                    ledger.work(root, dice)
                })
            }
            Load::Tides => {
                self.ledger.recover(&fuse)?;
                let (seed, full) = (dice.next_u64(), &self.full);
                let ledger = Mutex::new((&mut self.ledger, dice));
                work_and_kill(&mut daemon, delay, |root| {
                    std::thread::scope(|scope| {
                        let tides = scope.spawn(|| tides::work(root, seed));
                        let mut guard = ledger.lock().map_err(|_| anyhow!("a panic"))?;
                        let (ledger, dice) = &mut *guard;
                        let worked = ledger.work(root, dice);
                        let times = tides.join().map_err(|_| anyhow!("the tides panicked"))??;
                        full.fetch_add(times, Ordering::Relaxed);
                        worked
                    })
                })
            }
            Load::Model => bail!("the model has rounds of its own"),
        };
        let said = daemon.said();
        daemon.unmount_dead()?;
        worked?;
        ensure!(
            !said.contains("ERROR") && !said.contains("panicked"),
            "the process complained:\n{said}"
        );
        self.judge(&image)
    }

    fn judge(&mut self, image: &Path) -> Result<bool> {
        let crash = roads::Crash::new(load_image(image)?)?;
        self.judge_crash(&crash).map_err(|error| {
            let error = error.context(format!("log: {}", crash.has_log));
            Keep::new(None).devices("kill9", [&crash.device], error)
        })?;
        Ok(crash.has_log)
    }

    fn judge_crash(&mut self, crash: &roads::Crash) -> Result<()> {
        let found = roads::kernel_replays(&crash.device).context("the kernel")?;
        let ours = roads::we_replay(&crash.device, false).context("we")?;
        roads::same(&found, &ours).context("the kernel (left) and we")?;
        self.ledger.settle(&found)?;
        self.rows.settle(&found, self.dir.path())
    }
}

/// A program in a process group of its own, which ends with this value, all of it.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        if let Err(error) = limit::kill(&mut self.0) {
            eprintln!("{error:#}");
        }
    }
}

/// dbench in a directory of its own; it ends by itself only when its files fail.
fn start_dbench(root: &Path) -> Result<Group> {
    let dir = root.join("dbench");
    let _ = std::fs::create_dir(&dir);
    let started = Command::new("dbench")
        .args(["-D", &dir.to_string_lossy(), "-t", "600", DBENCH_CLIENTS])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    started.map(Group).context("starting dbench")
}

/// Lets the load work on the mount, and kills the mount's process after a while.
fn work_and_kill(daemon: &mut Daemon, delay: Duration, work: impl Fn(&Path) -> Result<()> + Sync) -> Result<()> {
    let dir = daemon.dir.clone();
    std::thread::scope(|scope| {
        let working = scope.spawn(|| work(&dir));
        let started = Instant::now();
        while started.elapsed() < delay && !working.is_finished() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let early = working.is_finished();
        let killed = daemon.kill();
        let killed_at = Instant::now();
        while !working.is_finished() {
            if killed_at.elapsed() > STUCK {
                eprintln!("the load hangs in calls to a mount whose process is dead");
                let _ = daemon.unmount_dead();
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let worked = working.join().map_err(|_| anyhow!("the load panicked"))?;
        killed?;
        worked?;
        ensure!(!early, "the load ended before the kill:\n{}", daemon.said());
        Ok(())
    })
}
