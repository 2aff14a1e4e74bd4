//! Scratch volumes on image files, for the kernel.
//!
//! The images lie in memory (`/dev/shm`) if there is room, and go with the value. Two volumes with
//! the same fsid must not be attached at the same time when they have several devices: the kernel
//! would mix them up.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cowshed_device::MemDevice;
use tempfile::TempDir;

use crate::progs::{self, CheckOptions, CheckReport};
use crate::{KernelLog, KernelMount, LoopDevice, run, run_raw};

/// A private directory for images and mounts.
pub fn scratch_dir() -> Result<TempDir> {
    let shm = Path::new("/dev/shm");
    let parent = if shm.is_dir() {
        shm.to_owned()
    } else {
        std::env::temp_dir()
    };
    tempfile::Builder::new()
        .prefix("cowshed-")
        .tempdir_in(parent)
        .context("no place for a scratch directory")
}

/// What mkfs.btrfs is told. `Default` is one device with what mkfs.btrfs does by default.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    pub devices: usize,
    /// Of each device.
    pub size_bytes: u64,
    pub data: Option<&'static str>,
    pub metadata: Option<&'static str>,
    pub mixed: bool,
    pub csum: Option<&'static str>,
    pub node_bytes: Option<u32>,
    pub sector_bytes: Option<u32>,
    /// `-O`: names, with `^` in front to switch off.
    pub features: Vec<&'static str>,
    /// `-R`, likewise.
    pub runtime_features: Vec<&'static str>,
    pub label: Option<String>,
    pub uuid: Option<String>,
    pub root_dir: Option<PathBuf>,
    /// With what to mount the volume for filling it, such as `compress-force=zstd`.
    pub mount_options: &'static str,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            devices: 1,
            size_bytes: 512 << 20,
            data: None,
            metadata: None,
            mixed: false,
            csum: None,
            node_bytes: None,
            sector_bytes: None,
            features: Vec::new(),
            runtime_features: Vec::new(),
            label: None,
            uuid: None,
            root_dir: None,
            mount_options: "",
        }
    }
}

impl VolumeOptions {
    pub fn devices(count: usize, data: &'static str, metadata: &'static str) -> VolumeOptions {
        VolumeOptions {
            devices: count,
            data: Some(data),
            metadata: Some(metadata),
            ..VolumeOptions::default()
        }
    }

    /// In words, for the message of a failing test: the arguments of mkfs.btrfs and of mount.
    pub fn describe(&self) -> String {
        let args: Vec<_> = self
            .args()
            .iter()
            .map(|arg| arg.to_string_lossy().into_owned())
            .collect();
        format!(
            "{} device(s) of {} MiB, mkfs {}, mount '{}'",
            self.devices,
            self.size_bytes >> 20,
            args.join(" "),
            self.mount_options
        )
    }

    fn args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = Vec::new();
        let mut option = |name: &str, value: Option<OsString>| {
            if let Some(value) = value {
                args.extend([name.into(), value]);
            }
        };
        let joined = |list: &[&str]| (!list.is_empty()).then(|| list.join(",").into());
        option("-d", self.data.map(Into::into));
        option("-m", self.metadata.map(Into::into));
        option("--csum", self.csum.map(Into::into));
        option("-n", self.node_bytes.map(|n| n.to_string().into()));
        // Older programs take the page of the machine.
        option("-s", Some(self.sector_bytes.unwrap_or(4096).to_string().into()));
        option("-O", joined(&self.features));
        option("-R", joined(&self.runtime_features));
        option("-L", self.label.clone().map(Into::into));
        option("-U", self.uuid.clone().map(Into::into));
        option("-r", self.root_dir.clone().map(Into::into));
        if self.mixed {
            args.push("-M".into());
        }
        args
    }
}

/// A volume on image files of its own.
#[derive(Debug)]
pub struct KernelVolume {
    dir: TempDir,
    images: Vec<PathBuf>,
    mount_options: &'static str,
}

impl KernelVolume {
    /// Makes the images and runs mkfs.btrfs on them.
    pub fn make(options: &VolumeOptions) -> Result<KernelVolume> {
        let dir = scratch_dir()?;
        let images: Vec<PathBuf> = (0..options.devices)
            .map(|i| dir.path().join(format!("image{i}")))
            .collect();
        for image in &images {
            std::fs::File::create_new(image)?.set_len(options.size_bytes)?;
        }
        let mut args: Vec<OsString> = vec!["-q".into(), "-f".into()];
        args.extend(options.args());
        args.extend(images.iter().map(Into::into));
        run("mkfs.btrfs", &args)?;
        Ok(KernelVolume {
            dir,
            images,
            mount_options: options.mount_options,
        })
    }

    /// Takes the contents of memory devices, such as those of a crash image.
    pub fn from_memory(devices: &[MemDevice]) -> Result<KernelVolume> {
        let dir = scratch_dir()?;
        let mut images = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            let image = dir.path().join(format!("image{index}"));
            device
                .save(&image)
                .with_context(|| format!("cannot write {}", image.display()))?;
            images.push(image);
        }
        Ok(KernelVolume {
            dir,
            images,
            mount_options: "",
        })
    }

    /// Copies image files; holes stay holes.
    pub fn copy_of(sources: &[impl AsRef<Path>]) -> Result<KernelVolume> {
        let dir = scratch_dir()?;
        let mut images = Vec::new();
        for (index, source) in sources.iter().enumerate() {
            let image = dir.path().join(format!("image{index}"));
            run(
                "cp",
                &[
                    "--sparse=always".as_ref(),
                    source.as_ref().as_os_str(),
                    image.as_os_str(),
                ],
            )?;
            images.push(image);
        }
        Ok(KernelVolume {
            dir,
            images,
            mount_options: "",
        })
    }

    /// The image files, in the order of their device ids.
    pub fn images(&self) -> &[PathBuf] {
        &self.images
    }

    /// The image of a volume of one device.
    pub fn image(&self) -> &Path {
        assert_eq!(self.images.len(), 1, "the volume has several images");
        &self.images[0]
    }

    /// The directory of the images; what a test puts there goes with the volume.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Attaches the images and lets the kernel mount them.
    pub fn mount_with(&self, options: &str) -> Result<Mounted> {
        let loops = self.attach()?;
        let log = KernelLog::start()?; // not before: the loop device may have had another user
        let dir = tempfile::Builder::new().prefix("mount").tempdir_in(self.dir.path())?;
        let devices: Vec<&Path> = loops.iter().map(LoopDevice::path).collect();
        let mount = KernelMount::new("btrfs", &devices, dir.path(), options)?;
        Ok(Mounted {
            mount: Some(mount),
            _dir: dir,
            loops,
            log,
        })
    }

    /// Mounts with the options that the volume was made for.
    pub fn mount(&self) -> Result<Mounted> {
        self.mount_with(self.mount_options)
    }

    /// Mounts read-only in a way that changes nothing: neither replays a log nor touches a time.
    pub fn mount_untouched(&self) -> Result<Mounted> {
        self.mount_with("ro,rescue=nologreplay")
    }

    /// Mounts, does something, unmounts; an error if the kernel complained.
    pub fn with_mount<T>(&self, f: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let mounted = self.mount()?;
        let result = f(mounted.dir())?;
        mounted.unmount_quietly()?;
        Ok(result)
    }

    fn attach(&self) -> Result<Attached> {
        Attached::new(&self.images)
    }

    pub fn check(&self, options: CheckOptions) -> Result<CheckReport> {
        match &self.images[..] {
            [image] => progs::check(image, options),
            _ => self.with_devices(|device| progs::check(device, options)),
        }
    }

    /// The full verdict of btrfs-progs: structure and data checksums.
    #[track_caller]
    pub fn assert_clean(&self) {
        let report = self.check(CheckOptions {
            data_csum: true,
            lowmem: false,
        });
        report.expect("btrfs check runs").assert_clean();
    }

    /// Attaches all devices, makes them known to the kernel and hands the first to `f`.
    pub fn with_devices<T>(&self, f: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let loops = self.attach()?;
        if loops.devices.len() > 1 {
            let mut args: Vec<OsString> = vec!["device".into(), "scan".into()];
            args.extend(loops.iter().map(|device| device.path().into()));
            run("btrfs", &args)?;
        }
        f(loops.devices[0].path())
    }
}

/// The loop devices of a volume; the kernel forgets the volume when they go.
#[derive(Debug)]
struct Attached {
    devices: Vec<LoopDevice>,
}

impl Attached {
    fn new(images: &[PathBuf]) -> Result<Attached> {
        Ok(Attached {
            devices: images.iter().map(LoopDevice::attach).collect::<Result<_>>()?,
        })
    }

    fn iter(&self) -> std::slice::Iter<'_, LoopDevice> {
        self.devices.iter()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        for device in &self.devices {
            // Fails where the kernel does not know the device, which is the goal.
            let args = [
                "device".as_ref(),
                "scan".as_ref(),
                "--forget".as_ref(),
                device.path().as_os_str(),
            ];
            let _ = run_raw("btrfs", &args);
        }
    }
}

/// A volume mounted by the kernel, until this value goes.
#[derive(Debug)]
pub struct Mounted {
    // In this order they go: the mount, its directory, the devices.
    mount: Option<KernelMount>,
    _dir: TempDir,
    loops: Attached,
    log: KernelLog,
}

impl Mounted {
    pub fn dir(&self) -> &Path {
        self.mount.as_ref().expect("mounted while it lives").dir()
    }

    /// The block devices, in the order of the images.
    pub fn devices(&self) -> Vec<&Path> {
        self.loops.iter().map(LoopDevice::path).collect()
    }

    /// What the kernel said about our devices at the level of warnings or above, since the last
    /// call.
    pub fn take_complaints(&mut self) -> Result<Vec<String>> {
        let names: Vec<String> = self
            .loops
            .iter()
            .filter_map(|d| Some(d.path().file_name()?.to_string_lossy().into_owned()))
            .collect();
        self.log
            .take_complaints(&names.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Runs `btrfs` with the arguments, `{}` standing for the mount's directory.
    pub fn btrfs(&self, args: &[&str]) -> Result<String> {
        let dir = self.dir().to_str().context("the mount's path is text")?;
        run(
            "btrfs",
            &args.iter().map(|arg| arg.replace("{}", dir)).collect::<Vec<_>>(),
        )
    }

    pub fn unmount(mut self) -> Result<()> {
        self.mount.take().expect("mounted while it lives").unmount()
    }

    /// Unmounts; an error if the kernel has complained about the volume.
    pub fn unmount_quietly(mut self) -> Result<()> {
        self.mount.take().expect("mounted while it lives").unmount()?;
        let complaints = self.take_complaints()?;
        ensure!(
            complaints.is_empty(),
            "the kernel complains:\n{}",
            complaints.join("\n")
        );
        Ok(())
    }
}
