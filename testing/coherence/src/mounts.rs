//! A volume with a pool, and its mounts by the command under test.

use std::ffi::OsStr;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cowshed_harness::{KernelMount, LoopDevice, limit, progs, scratch_dir};
use tempfile::TempDir;

use crate::variant::Variant;

/// The ordinary user.
pub const USER: u32 = 1000;
/// The pool's name in the volume.
const POOL: &str = "pool";
const VOLUME_BYTES: u64 = 1 << 30;

/// A volume, mounted or not.
pub struct Volume {
    variant: Variant,
    scratch: TempDir,
    /// The commands where an ordinary user can start them.
    pub cowshed: PathBuf,
    pub own: PathBuf,
    mounted: Vec<PathBuf>,
}

/// Runs a program as a user, with a limit on its time.
fn run(program: &Path, args: &[&OsStr], user: Option<u32>) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let out = limit::output(&mut command)?;
    let text = [out.stdout, out.stderr]
        .map(|text| String::from_utf8_lossy(&text).into_owned())
        .concat();
    ensure!(out.status.success(), "{command:?}: {}\n{text}", out.status);
    Ok(text)
}

impl Volume {
    /// Makes it, with an empty pool that all users may work on.
    pub fn make(variant: Variant, cowshed: &Path, own: &Path) -> Result<Volume> {
        let scratch = scratch_dir()?;
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755))?;
        let place = |program: &Path| -> Result<PathBuf> {
            if !variant.is_users {
                return Ok(program.into());
            }
            let to = scratch.path().join(program.file_name().context("a program's name")?);
            std::fs::copy(program, &to)?;
            Ok(to)
        };
        let (cowshed, own) = (place(cowshed)?, place(own)?);
        let mut volume = Volume {
            variant,
            scratch,
            cowshed,
            own,
            mounted: Vec::new(),
        };
        let image = volume.image();
        std::fs::File::create_new(&image)?.set_len(VOLUME_BYTES)?;
        let mkfs = ["mkfs", "-q", "-f"].map(OsStr::new);
        run(&volume.cowshed, &[&mkfs[..], &[image.as_os_str()]].concat(), None)?;
        volume.make_pool()?;
        if variant.is_users {
            chown(&image, Some(USER), Some(USER))?;
        }
        Ok(volume)
    }

    fn make_pool(&mut self) -> Result<()> {
        let dir = self.mount("noloop", None)?;
        let pool = dir.join(POOL);
        match self.variant.has_two {
            true => cowshed_harness::create_subvolume(&std::fs::File::open(&dir)?, POOL)?,
            false => std::fs::create_dir(&pool)?,
        }
        std::fs::set_permissions(&pool, Permissions::from_mode(0o777))?;
        if self.variant.is_users {
            chown(&pool, Some(USER), Some(USER))?;
        }
        self.unmount()
    }

    pub fn image(&self) -> PathBuf {
        self.scratch.path().join("volume.img")
    }

    /// A file beside the volume, which workers can write.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn log(&self) -> PathBuf {
        self.beside("cowshed.log")
    }

    fn user(&self) -> Option<u32> {
        self.variant.is_users.then_some(USER)
    }

    fn mount(&mut self, options: &str, user: Option<u32>) -> Result<PathBuf> {
        let dir = self.beside(&format!("mnt{}", self.mounted.len()));
        let log = self.log();
        for path in [&dir, &log] {
            if !path.exists() {
                match path == &dir {
                    true => std::fs::create_dir(path)?,
                    false => std::fs::write(path, "")?,
                }
                if user.is_some() {
                    chown(path, user, user)?;
                }
            }
        }
        if user.is_some() {
            [&dir, &log].into_iter().try_for_each(|path| chown(path, user, user))?;
        }
        let options = match self.mounted.is_empty() {
            true => format!("{options},log={}", log.display()),
            false => options.into(),
        };
        let image = self.image();
        let args = ["mount", "-o", &options].map(OsStr::new);
        let args = [&args[..], &[image.as_os_str(), dir.as_os_str()]].concat();
        run(&self.cowshed, &args, user)?;
        self.mounted.push(dir.clone());
        Ok(dir)
    }

    /// Mounts it as the variant has it. The pools of all mounts.
    pub fn mount_all(&mut self) -> Result<Vec<PathBuf>> {
        let user = self.user();
        let whole = self.mount(self.variant.options, user)?.join(POOL);
        if !self.variant.has_two {
            return Ok(vec![whole]);
        }
        let options = format!("{},subvol={POOL}", self.variant.options);
        Ok(vec![whole, self.mount(&options, user)?])
    }

    /// Unmounts all. Errors: the process that served it has logged something.
    pub fn unmount(&mut self) -> Result<()> {
        let user = self.user().filter(|_| self.log_is_users());
        while let Some(dir) = self.mounted.last() {
            run(&self.cowshed, &["umount".as_ref(), dir.as_os_str()], user)?;
            self.mounted.pop();
        }
        let said = std::fs::read_to_string(self.log())?;
        ensure!(said.is_empty(), "the process of the mount has logged:\n{said}");
        Ok(())
    }

    fn log_is_users(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(self.log()).is_ok_and(|log| log.uid() == USER)
    }

    /// Both checkers, data included, of the unmounted volume.
    pub fn check(&self) -> Result<()> {
        let image = self.image();
        run(
            &self.cowshed,
            &["check".as_ref(), "--check-data-csum".as_ref(), image.as_os_str()],
            None,
        )
        .context("cowshed check")?;
        let options = progs::CheckOptions {
            data_csum: true,
            ..progs::CheckOptions::default()
        };
        let report = progs::check(&image, options)?;
        ensure!(report.clean, "btrfs check:\n{}", report.output);
        Ok(())
    }

    /// Lets the kernel's btrfs show the pool.
    pub fn by_kernel<T>(&self, look: impl FnOnce(&Path) -> T) -> Result<T> {
        let device = LoopDevice::attach_with(self.image(), true, 512)?;
        let dir = self.beside("kernel");
        std::fs::create_dir_all(&dir)?;
        let mount = KernelMount::new("btrfs", &[device.path()], &dir, "ro")?;
        let seen = look(&dir.join(POOL));
        mount.unmount()?;
        Ok(seen)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        for dir in self.mounted.iter().rev() {
            let _ = cowshed_harness::run("umount", &["-l".as_ref(), dir.as_os_str()]);
        }
    }
}
