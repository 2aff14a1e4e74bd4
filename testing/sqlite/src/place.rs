//! An image with a database on it, looked at by us through a mount, or by the kernel.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use cowshed_harness::{KernelMount, LoopDevice, progs, scratch_dir};
use cowshed_kill9::daemon::{Daemon, run as command};
use rusqlite::Connection;

use crate::database::{self, Journal};

const DATABASE: &str = "database";
/// What SQLite calls its rollback journal.
const JOURNAL: &str = "database-journal";

/// The programs that are killed.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Serves the mount.
    pub cowshed: PathBuf,
    /// Runs SQLite: this program.
    pub this: PathBuf,
}

/// How many rounds of a kind, and with what.
#[derive(Clone, Debug)]
pub struct Rounds {
    pub seed: u64,
    pub count: u64,
    pub programs: Programs,
    /// Say how far it is.
    pub progress: bool,
}

/// A scratch directory with an image, and mount points.
pub struct Place {
    dir: tempfile::TempDir,
    pub programs: Programs,
}

impl Place {
    /// With a fresh image of so many MiB.
    pub fn new(programs: &Programs, image_mib: u64) -> Result<Place> {
        let place = Place {
            dir: scratch_dir()?,
            programs: programs.clone(),
        };
        for name in ["fuse", "kernel"] {
            std::fs::create_dir(place.path(name))?;
        }
        let (size, image) = (format!("{image_mib}m"), place.path("image"));
        command(
            &programs.cowshed,
            &["mkfs", "-q", "-b", &size, &image.to_string_lossy()],
        )?;
        Ok(place)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn mount(&self) -> Result<Daemon> {
        let (image, dir, log) = (self.path("image"), self.mounted(), self.path("log"));
        Daemon::start(&self.programs.cowshed, &image, &dir, "noatime", &log)
    }

    /// The directory that the volume is mounted on.
    pub fn mounted(&self) -> PathBuf {
        self.path("fuse")
    }

    pub fn database(&self) -> PathBuf {
        self.mounted().join(DATABASE)
    }

    fn journal(&self) -> PathBuf {
        self.mounted().join(JOURNAL)
    }

    /// Is there a journal at all?
    pub fn has_journal(&self) -> bool {
        self.journal().exists()
    }

    /// Is there a journal that says something? It begins with a zero, or is empty, until it is
    /// whole: SQLite takes no notice of what is left of one that it was killed in making, and lets
    /// it lie.
    pub fn has_hot_journal(&self) -> bool {
        let mut first = [0];
        let len = std::fs::File::open(self.journal()).and_then(|mut file| file.read(&mut first));
        len.is_ok_and(|len| len > 0) && first != [0]
    }

    /// Looks at the database through the mount that is there, as a program that has just been
    /// started. It leaves no journal.
    pub fn look<T>(&self, judge: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let found = judge_at(&self.database(), judge)?;
        ensure!(!self.has_hot_journal(), "a journal stays beside the database");
        Ok(found)
    }

    /// Through a mount of its own.
    pub fn by_ourselves<T>(&self, judge: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let daemon = self.mount()?;
        let found = self.look(judge)?;
        daemon.stop()?;
        Ok(found)
    }

    /// Through the kernel's mount, then by `btrfs check`.
    pub fn by_kernel<T>(&self, judge: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let image = self.path("image");
        let device = LoopDevice::attach(&image)?;
        let mount = KernelMount::new("btrfs", &[device.path()], &self.path("kernel"), "noatime")?;
        let found = judge_at(&mount.dir().join(DATABASE), judge);
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
}

fn judge_at<T>(path: &Path, judge: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
    let connection = database::open(path, Journal::Delete)?;
    judge(&connection).context("the database")
}

/// What the mount's process has logged is no complaint.
pub fn check_said(said: &str) -> Result<()> {
    let is_complaint = said.contains("ERROR") || said.contains("panicked");
    ensure!(!is_complaint, "the process complained:\n{said}");
    Ok(())
}
