//! The command under test: run as a user would, never waited for without a limit.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use btrfs_check::CheckOptions;
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, kernel, limit, progs};
use tempfile::TempDir;

/// The first Linux that tells mounts of sync(2). What mounts say of older ones is no complaint.
const TELLS_SYNC: (u32, u32) = (6, 18);
const SYNC_WARNING: &str = "does not tell mounts of sync";

/// The binary that cargo built beside this one, or what `COWSHED_BIN` names.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("COWSHED_BIN") {
        return Ok(path.into());
    }
    let own = std::env::current_exe()?;
    let path = own.parent().context("our own directory")?.join("cowshed");
    if !path.exists() {
        bail!("{} is missing: cargo build -p cowshed", path.display());
    }
    Ok(path)
}

/// Runs a program with a limit on its time; its output is in the error if it fails.
pub fn run_in(dir: &Path, program: impl AsRef<OsStr>, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program.as_ref());
    command.args(args).current_dir(dir);
    let out = limit::output_within(&mut command, limit::PROGRAM_MAX)?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    if !out.status.success() {
        let tail = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(20)..].join("\n")
        };
        bail!(
            "{command:?}: {}\n{}\n{}",
            out.status,
            tail(&out.stdout),
            tail(&out.stderr)
        );
    }
    Ok(text)
}

/// A shell script with a limit on its time.
pub fn shell(dir: &Path, script: &str) -> Result<String> {
    run_in(dir, "bash", &["-euo", "pipefail", "-c", script])
}

/// A volume of so many bytes, made by our own mkfs.
pub fn made(size_bytes: u64) -> Result<KernelVolume> {
    let volume = KernelVolume::make(&VolumeOptions {
        size_bytes,
        ..VolumeOptions::default()
    })?;
    let image = volume.image().display().to_string();
    let mkfs = [&["mkfs", "-q", "-f"][..], kernel::mkfs_options(), &[&image]].concat();
    run_in(Path::new("/"), binary()?, &mkfs)?;
    Ok(volume)
}

/// `btrfs check` with data checksums, and our own checker.
pub fn judge(volume: &KernelVolume, when: &str) -> Result<()> {
    let report = volume.check(progs::CheckOptions {
        data_csum: true,
        ..progs::CheckOptions::default()
    })?;
    if !report.clean {
        bail!("btrfs check {when}:\n{}", report.output);
    }
    check(volume.images()).context(when.to_owned())
}

/// What our own checker says of an unmounted volume, checksums of data included.
fn check(images: &[PathBuf]) -> Result<()> {
    let devices = images
        .iter()
        .map(|image| Ok(Arc::new(FileDevice::open(image, OpenMode::ReadOnly)?) as Arc<dyn BlockDevice>))
        .collect::<Result<Vec<_>>>()?;
    let report = btrfs_check::check(
        &devices,
        &CheckOptions {
            data_csums: true,
            ..CheckOptions::default()
        },
    );
    if report.is_clean() {
        Ok(())
    } else {
        bail!("cowshed check:\n{report}")
    }
}

/// A volume mounted by Cowshed; killed and unmounted when a test ends early.
pub struct Mount {
    dir: TempDir,
    log: PathBuf,
    mounted: bool,
}

impl Mount {
    pub fn new(images: &[PathBuf], scratch: &Path, options: &str) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("m").tempdir_in(scratch)?;
        let log = scratch.join("cowshed.log");
        let options = if options.is_empty() {
            String::new()
        } else {
            format!("{options},")
        };
        let options = format!("{options}log={}", log.display());
        let mut args: Vec<&str> = vec!["mount", "-o", &options];
        let paths = images
            .iter()
            .map(|p| p.to_str().context("a path in UTF-8"))
            .collect::<Result<Vec<_>>>()?;
        args.extend(paths);
        args.push(dir.path().to_str().context("a path in UTF-8")?);
        run_in(scratch, binary()?, &args)?;
        Ok(Self {
            dir,
            log,
            mounted: true,
        })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Unmounts; an error if the daemon logged anything.
    pub fn unmount(mut self) -> Result<()> {
        let dir = self.dir.path().to_str().context("a path in UTF-8")?.to_owned();
        run_in(Path::new("/"), binary()?, &["umount", &dir])?;
        self.mounted = false;
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let is_complaint = |line: &&str| !(kernel::kernel_version() < TELLS_SYNC && line.contains(SYNC_WARNING));
        let head: Vec<_> = log.lines().filter(is_complaint).take(20).collect();
        if !head.is_empty() {
            bail!("the daemon complained:\n{}", head.join("\n"));
        }
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            let dir = self.dir.path().to_string_lossy().into_owned();
            let _ = cowshed_harness::run("umount", &["-l", &dir]);
        }
    }
}
