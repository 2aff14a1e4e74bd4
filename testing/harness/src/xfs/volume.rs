//! Scratch volumes of XFS on image files, for the kernel. They lie in memory (`/dev/shm`) if there
//! is room, and go with the value.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::volume::scratch_dir;
use crate::{KernelLog, KernelMount, LoopDevice, run};

/// What mkfs.xfs is told.
#[derive(Clone, Debug)]
pub struct XfsOptions {
    pub size_bytes: u64,
    /// Arguments, separated by blanks.
    pub mkfs: String,
    /// Sector size of the loop device.
    pub sector_bytes: u32,
    /// The log lies on a device of its own, of this size.
    pub log_bytes: Option<u64>,
    /// The volume has a realtime device of this size.
    pub realtime_bytes: Option<u64>,
}

impl XfsOptions {
    /// A volume of 400 MiB with these arguments of mkfs.xfs.
    pub fn new(mkfs: impl Into<String>) -> XfsOptions {
        XfsOptions {
            size_bytes: 400 << 20,
            mkfs: mkfs.into(),
            sector_bytes: 512,
            log_bytes: None,
            realtime_bytes: None,
        }
    }

    /// In one line, for people.
    pub fn describe(&self) -> String {
        let size = self.size_bytes >> 20;
        let log = self.log_bytes.map_or("", |_| " with an external log");
        let realtime = self.realtime_bytes.map_or("", |_| " with a realtime device");
        let mkfs = if self.mkfs.is_empty() { "defaults" } else { &self.mkfs };
        format!("{mkfs} ({size} MiB{log}{realtime})")
    }
}

/// A volume that mkfs.xfs made.
#[derive(Debug)]
pub struct XfsVolume {
    dir: TempDir,
    image: PathBuf,
    log: Option<PathBuf>,
    realtime: Option<PathBuf>,
    sector_bytes: u32,
}

impl XfsVolume {
    pub fn make(options: &XfsOptions) -> Result<XfsVolume> {
        let dir = scratch_dir()?;
        let file = |name: &str, bytes: u64| -> Result<PathBuf> {
            let path = dir.path().join(name);
            File::create_new(&path)?.set_len(bytes)?;
            Ok(path)
        };
        let image = file("volume.img", options.size_bytes)?;
        let log = options.log_bytes.map(|bytes| file("log.img", bytes)).transpose()?;
        let realtime = options
            .realtime_bytes
            .map(|bytes| file("realtime.img", bytes))
            .transpose()?;
        let mut args: Vec<String> = vec!["-q".into(), "-f".into()];
        args.extend(options.mkfs.split_whitespace().map(str::to_owned));
        if let Some(log) = &log {
            args.extend(["-l".into(), format!("logdev={}", log.display())]);
        }
        if let Some(realtime) = &realtime {
            args.extend(["-r".into(), format!("rtdev={}", realtime.display())]);
        }
        args.push(image.display().to_string());
        run("mkfs.xfs", &args)?;
        Ok(XfsVolume {
            dir,
            image,
            log,
            realtime,
            sector_bytes: options.sector_bytes,
        })
    }

    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The image of the external log.
    pub fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }

    /// The directory of the images; what a test puts there goes with the volume.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Lets the kernel mount it.
    pub fn mount_with(&self, options: &str) -> Result<XfsMounted> {
        let attach = |path: &PathBuf| LoopDevice::attach_with(path, false, self.sector_bytes);
        let mut loops = vec![attach(&self.image)?];
        let mut all: Vec<String> = vec![];
        if !options.is_empty() {
            all.push(options.into());
        }
        for (name, path) in [("logdev", &self.log), ("rtdev", &self.realtime)] {
            if let Some(path) = path {
                let device = attach(path)?;
                all.push(format!("{name}={}", device.path().display()));
                loops.push(device);
            }
        }
        let log = KernelLog::start()?;
        let dir = tempfile::Builder::new().prefix("mount").tempdir_in(self.dir.path())?;
        let mount = KernelMount::new("xfs", &[loops[0].path()], dir.path(), &all.join(","))?;
        Ok(XfsMounted {
            mount: Some(mount),
            _dir: dir,
            loops,
            log,
        })
    }

    /// Mounts read-only in a way that changes nothing.
    pub fn mount_untouched(&self) -> Result<XfsMounted> {
        self.mount_with("ro,norecovery,nouuid")
    }

    /// Mounts, does something, unmounts; an error if the kernel complained.
    pub fn with_mount<T>(&self, f: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let mounted = self.mount_with("")?;
        let result = f(mounted.dir())?;
        mounted.unmount_quietly()?;
        Ok(result)
    }

    /// As [`Self::with_mount`], read-only.
    pub fn with_mount_untouched<T>(&self, f: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let mounted = self.mount_untouched()?;
        let result = f(mounted.dir())?;
        mounted.unmount_quietly()?;
        Ok(result)
    }

    /// What xfs_db prints for these commands.
    pub fn db(&self, commands: &[&str]) -> Result<String> {
        let mut args = vec!["-r".to_owned()];
        if let Some(log) = &self.log {
            args.extend(["-l".into(), log.display().to_string()]);
        }
        args.extend(
            commands
                .iter()
                .flat_map(|command| ["-c".to_owned(), (*command).to_owned()]),
        );
        args.push(self.image.display().to_string());
        run("xfs_db", &args)
    }
}

/// A volume mounted by the kernel, until this value goes.
#[derive(Debug)]
pub struct XfsMounted {
    // In this order they go: the mount, its directory, the devices.
    mount: Option<KernelMount>,
    _dir: TempDir,
    loops: Vec<LoopDevice>,
    log: KernelLog,
}

impl XfsMounted {
    pub fn dir(&self) -> &Path {
        self.mount.as_ref().expect("mounted while it lives").dir()
    }

    pub fn unmount(mut self) -> Result<()> {
        self.mount.take().expect("mounted while it lives").unmount()
    }

    /// Unmounts; an error if the kernel has complained about the volume.
    pub fn unmount_quietly(mut self) -> Result<()> {
        self.mount.take().expect("mounted while it lives").unmount()?;
        let names: Vec<String> = self
            .loops
            .iter()
            .filter_map(|device| Some(device.path().file_name()?.to_string_lossy().into_owned()))
            .collect();
        let complaints = self
            .log
            .take_complaints(&names.iter().map(String::as_str).collect::<Vec<_>>())
            .context("the kernel's log")?;
        ensure!(
            complaints.is_empty(),
            "the kernel complains:\n{}",
            complaints.join("\n")
        );
        Ok(())
    }
}
