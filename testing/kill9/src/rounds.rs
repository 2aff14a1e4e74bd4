//! Round after round on the same image.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_harness::{Keep, KernelMount, LoopDevice, progs, run as run_program, scratch_dir};
use cowshed_model::tree::{Tree, take_mount};
use cowshed_model::{Model, Name, Rng, pick};

use crate::daemon::{Daemon, run as command};
use crate::history::{History, NOW};
use crate::loader::{End, Loader};
use crate::verify::verify;

/// A directory that another thread works in; it is not compared.
const NOISE: &str = "noise";
const IMAGE_BYTES: &str = "2g";
/// A fresh image after so many rounds.
const ROUNDS_PER_IMAGE: u64 = 25;
const NODE_BYTES: [u32; 3] = [4096, 16384, 65536];
const SUBVOLUMES: [Name; 2] = [Name(8), Name(9)];
/// How long a loader without an answer may take to notice.
const STUCK: Duration = Duration::from_secs(30);

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub rounds: u64,
    /// The first round to make: the seed of a round follows from its number. One with a fresh image
    /// is a multiple of 25.
    pub from: u64,
    /// The program to kill.
    pub cowshed: PathBuf,
    /// More options of each mount: how it is served.
    pub transport: String,
    pub progress: bool,
}

/// What all rounds together did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub rounds: u64,
    pub operations: usize,
    /// Operations after the last acknowledged sync, in all.
    pub at_risk: usize,
    /// Of those, operations that were on disk all the same.
    pub kept: usize,
}

/// Runs all rounds.
pub fn run(config: &Config) -> Result<Summary> {
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut summary = Summary::default();
    let mut stable: Option<Stable> = None;
    for round in config.from..config.from + config.rounds {
        if round % ROUNDS_PER_IMAGE == 0 {
            stable = None;
        }
        let seed = config.seed.wrapping_mul(1_000_003).wrapping_add(round);
        let node_bytes = NODE_BYTES[((round / ROUNDS_PER_IMAGE) % 3) as usize];
        let place = match &mut stable {
            Some(place) => place,
            None => stable.insert(Stable::new(config, node_bytes)?),
        };
        place
            .round(config, seed, &mut summary)
            .with_context(|| format!("round {round} (seed {})", config.seed))?;
        summary.rounds += 1;
        if config.progress && round % 10 == 9 {
            eprintln!("{} rounds: {summary:?}", round + 1);
        }
    }
    Ok(summary)
}

/// An image and the directories around it.
struct Stable {
    dir: tempfile::TempDir,
    model: Model,
}

impl Stable {
    fn new(config: &Config, node_bytes: u32) -> Result<Stable> {
        let dir = scratch_dir()?;
        for name in ["fuse", "kernel"] {
            std::fs::create_dir(dir.path().join(name))?;
        }
        let image = dir.path().join("image");
        let node = node_bytes.to_string();
        command(
            &config.cowshed,
            &["mkfs", "-q", "-b", IMAGE_BYTES, "-n", &node, &image.to_string_lossy()],
        )?;
        let model = Model::new(node_bytes, Model::empty_root(0o755, NOW));
        let mut stable = Stable { dir, model };
        stable.make_subvolumes(&image)?;
        Ok(stable)
    }

    /// The kernel makes them.
    fn make_subvolumes(&mut self, image: &Path) -> Result<()> {
        let device = LoopDevice::attach(image)?;
        let mount = KernelMount::new("btrfs", &[device.path()], &self.path("kernel"), "noatime")?;
        let mut parent = (Model::ROOT, mount.dir().to_owned());
        // Each within the one before it.
        for name in SUBVOLUMES {
            let path = parent.1.join(OsString::from_vec(name.bytes()));
            run_program("btrfs", &["subvolume".as_ref(), "create".as_ref(), path.as_os_str()])?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
            let root = Model::empty_root(0o755, NOW);
            parent = (self.model.add_subvolume(parent.0, name, root), path);
        }
        mount.unmount()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn round(&mut self, config: &Config, seed: u64, summary: &mut Summary) -> Result<()> {
        let mut dice = Rng::new(seed);
        // Without logs a crash leaves a commit, and the whole tree is known.
        let options = *pick(
            &mut dice,
            &[
                "noatime,notreelog",
                "noatime,notreelog,commit=1",
                "noatime,notreelog,commit=1,max_memory=16m",
            ],
        );
        let mut daemon = Daemon::start(
            &config.cowshed,
            &self.path("image"),
            &self.path("fuse"),
            &[options, &config.transport].join(","),
            &self.path("log"),
        )?;
        let longest_ms = if dice.one_in(4) { 2500 } else { 600 };
        let delay = Duration::from_millis(20 + dice.below(longest_ms));
        let mut history = History::new(self.model.clone());
        let mut model = self.model.clone();
        let end = work_and_kill(&mut daemon, seed, delay, &mut model, &mut history);
        let said = daemon.said();
        let unmounted = daemon.unmount_dead();
        match end? {
            End::Killed => {}
            End::Wrong(what) => bail!("under load: {what}\n{}\n{said}", keep_trace(&history)),
        }
        unmounted?;
        ensure!(
            !said.contains("ERROR") && !said.contains("panicked"),
            "the process complained:\n{said}"
        );
        summary.operations += history.ops.len();
        summary.at_risk += history.ops.len() - history.floor;
        let point = self.judge(&history, &mut dice).map_err(|e| {
            let failure = e.context(keep_trace(&history));
            Keep::new(None).files("kill9", &[self.path("image")], failure)
        })?;
        summary.kept += point - history.floor;
        Ok(())
    }

    /// The judges, in order; the model becomes what is on disk.
    fn judge(&mut self, history: &History, dice: &mut Rng) -> Result<usize> {
        let image = self.path("image");
        self.check(&image).context("after the kill")?;
        // Read-only leaves orphans to us; read-write lets the kernel do what it does after a crash.
        let how = if dice.one_in(3) { "noatime" } else { "ro" };
        let scan = self.scan(&image, how).context("in the kernel's mount")?;
        let verdict = verify(history, &scan)?;
        if how != "ro" {
            self.check(&image).context("after the kernel's mount")?;
        }
        self.model = verdict.model;
        Ok(verdict.point)
    }

    fn scan(&self, image: &Path, how: &str) -> Result<Tree> {
        let device = LoopDevice::attach(image)?;
        let mount = KernelMount::new("btrfs", &[device.path()], &self.path("kernel"), how)?;
        let found = take_mount(mount.dir());
        mount.unmount()?;
        let mut found = found?;
        found.retain(|path, _| path.split('/').next() != Some(NOISE));
        Ok(found)
    }

    fn check(&self, image: &Path) -> Result<()> {
        let report = progs::check(
            image,
            progs::CheckOptions {
                data_csum: true,
                lowmem: false,
            },
        )?;
        ensure!(report.clean, "btrfs check complains:\n{}", report.output);
        let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, OpenMode::ReadOnly)?);
        let options = btrfs_check::CheckOptions {
            data_csums: true,
            ..btrfs_check::CheckOptions::default()
        };
        let report = btrfs_check::check(&[device], &options);
        ensure!(report.is_clean(), "the checker complains:\n{report}");
        Ok(())
    }
}

/// Writes the operations of a failed round to a file; says where.
fn keep_trace(history: &History) -> String {
    let path = std::env::temp_dir().join(format!("kill9-{}.trace", std::process::id()));
    let lines: Vec<String> = history.trace.iter().map(|op| format!("{op:?}\n")).collect();
    match std::fs::write(&path, lines.concat()) {
        Ok(()) => format!("the operations of the round are in {}", path.display()),
        Err(e) => format!("the operations of the round could not be kept: {e}"),
    }
}

/// Loads the mount until its process is killed.
fn work_and_kill(
    daemon: &mut Daemon,
    seed: u64,
    delay: Duration,
    model: &mut Model,
    history: &mut History,
) -> Result<End> {
    let dir = daemon.dir.clone();
    std::thread::scope(|scope| {
        let noise = scope.spawn(|| make_noise(&dir.join(NOISE), seed));
        let loading = scope.spawn(|| Loader::new(&dir, seed).work(model, history));
        let started = Instant::now();
        while started.elapsed() < delay && !loading.is_finished() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let early = loading.is_finished();
        let killed = daemon.kill();
        let killed_at = Instant::now();
        while !(loading.is_finished() && noise.is_finished()) {
            if killed_at.elapsed() > STUCK {
                eprintln!("threads hang in calls to a mount whose process is dead");
                let _ = daemon.unmount_dead();
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let end = loading.join().map_err(|_| anyhow!("the loader panicked"))?;
        noise.join().map_err(|_| anyhow!("the noise panicked"))?;
        killed?;
        match end {
            End::Killed if early => bail!("the mount failed before its process was killed:\n{}", daemon.said()),
            end => Ok(end),
        }
    })
}

/// Makes, rewrites, syncs and removes files until it fails.
fn make_noise(dir: &Path, seed: u64) {
    let mut dice = Rng::new(!seed);
    let _ = std::fs::create_dir(dir);
    loop {
        let path = dir.join(format!("noise-{}", dice.below(40)));
        let result = match dice.below(30) {
            0..5 => std::fs::remove_file(&path),
            5..10 => std::fs::rename(&path, dir.join(format!("noise-{}", dice.below(40)))),
            10 => std::fs::File::open(&path).and_then(|f| f.sync_all()),
            _ => std::fs::write(&path, vec![seed as u8; dice.below(300_000) as usize]),
        };
        match result {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return,
            _ => {}
        }
    }
}
