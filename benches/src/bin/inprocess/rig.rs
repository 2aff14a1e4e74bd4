//! A new volume, mounted within this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use btrfs_image::{MkfsOptions, mkfs};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_benches::allocations::live_bytes;
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_btrfs::{EngineOptions, Mount};
use cowshed_device::{BlockDevice, FileDevice, MemDevice, OpenMode};
use cowshed_runtime::{Env, SystemEnv};
use cowshed_vfs::{Context, FileSystem as _, InitInfo, NodeId};

pub static CALLER: Context = Context::root();

const DEVICE_BYTES: u64 = 24 << 30;

pub struct Rig {
    pub fs: Fs,
    /// The directory that all measurements work in.
    pub dir: NodeId,
    image: Option<PathBuf>,
    memory: Option<Arc<MemDevice>>,
}

impl Rig {
    pub fn make(image: Option<&Path>, memory_bytes_max: u64) -> Result<Rig> {
        Self::with(image, memory_bytes_max, MountOptions::default(), Arc::new(SystemEnv))
    }

    pub fn with(
        image: Option<&Path>,
        memory_bytes_max: u64,
        mount_options: MountOptions,
        env: Arc<dyn Env>,
    ) -> Result<Rig> {
        let mut memory = None;
        let device: Arc<dyn BlockDevice> = match image {
            Some(path) => {
                std::fs::File::create(path)?.set_len(DEVICE_BYTES)?;
                Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?)
            }
            None => memory.insert(Arc::new(MemDevice::new("memory", DEVICE_BYTES))).clone(),
        };
        mkfs(std::slice::from_ref(&device), &MkfsOptions::new([7; 16]))?;
        let volume = Volume::open(vec![device], &OpenOptions::default())?;
        let options = EngineOptions {
            commit_interval_s: 0,
            memory_bytes_max,
            ..EngineOptions::default()
        };
        let engine = Mount::open(volume, env, options)?;
        let fs = Fs::new(engine, mount_options)?;
        fs.init(&InitInfo::TRUSTED)?;
        let dir = fs.mkdir(&CALLER, NodeId::ROOT, b"d", 0o755)?.node;
        Ok(Rig {
            fs,
            dir,
            image: image.map(Path::to_owned),
            memory,
        })
    }

    /// Bytes of this process's memory that are the volume.
    pub fn device_memory_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, |m| m.used_bytes())
    }

    pub fn commit(&self) -> Result<()> {
        Ok(self.fs.mount().sync()?)
    }

    /// All on disk, no block in memory.
    pub fn cool(&self) -> Result<()> {
        self.commit()?;
        self.fs.mount().store().nodes().drop_clean();
        Ok(())
    }

    /// Bytes that are allocated, with nothing pending and no block cached. Without those of a
    /// volume in memory.
    pub fn live_bytes_settled(&self) -> Result<i64> {
        /// The overlays of a commit are freed in the background: as long as it goes on, and so much
        /// longer.
        const PAUSE: Duration = Duration::from_millis(300);
        self.cool()?;
        let mut live = live_bytes();
        loop {
            std::thread::sleep(PAUSE);
            let before = std::mem::replace(&mut live, live_bytes());
            if live >= before {
                return Ok(live - self.device_memory_bytes().cast_signed());
            }
        }
    }

    /// Unmounts, has the volume checked, and removes it.
    #[expect(clippy::disallowed_methods, reason = "somebody watches")]
    pub fn finish(self, check: Option<&str>) -> Result<()> {
        let Rig { fs, image, .. } = self;
        fs.destroy();
        drop(fs);
        let Some(image) = image else { return Ok(()) };
        if let Some(check) = check {
            let mut words = check.split_whitespace();
            let program = words.next().context("--check names a command")?;
            let status = std::process::Command::new(program)
                .args(words)
                .arg(&image)
                .stdout(std::process::Stdio::null())
                .status()?;
            ensure!(status.success(), "{check} found something wrong");
        }
        std::fs::remove_file(image)?;
        Ok(())
    }
}
