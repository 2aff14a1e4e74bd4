//! The process that is killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cowshed_harness::limit;
use rustix::fs::statfs;

/// How long any command around a mount may take.
const COMMAND_MAX: Duration = Duration::from_secs(60);
const READY_MAX: Duration = Duration::from_secs(30);
const FUSE_MAGIC: i64 = 0x6573_5546;

/// A mount served by a process of ours.
pub struct Daemon {
    child: Child,
    pub dir: PathBuf,
    log: PathBuf,
}

/// Runs a command that may not hang.
pub fn run(program: &Path, args: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    let output = limit::output_within(&mut command, COMMAND_MAX)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} {args:?}: {}\n{text}",
        program.display(),
        output.status
    );
    Ok(text)
}

fn is_fuse(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|s| s.f_type == FUSE_MAGIC)
}

impl Daemon {
    /// Mounts, and returns when the mount answers.
    pub fn start(cowshed: &Path, image: &Path, dir: &Path, options: &str, log: &Path) -> Result<Daemon> {
        let errors = std::fs::File::create(log)?;
        let child = Command::new(cowshed)
            .args(["mount", "-f", "-o", options])
            .args([image, dir])
            .stdin(Stdio::null())
            .stdout(errors.try_clone()?)
            .stderr(errors)
            .spawn()
            .context("starting cowshed mount")?;
        let mut daemon = Daemon {
            child,
            dir: dir.into(),
            log: log.into(),
        };
        let started = Instant::now();
        while !is_fuse(dir) {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("cowshed mount ended with {status}:\n{}", daemon.said());
            }
            ensure!(
                started.elapsed() < READY_MAX,
                "the mount does not come up:\n{}",
                daemon.said()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(daemon)
    }

    /// What it has logged.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL. The mount stays behind, and answers every call with an error.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "the process had ended before it was killed, with {status}:\n{}",
                self.said()
            );
        }
        limit::kill(&mut self.child).map(drop)
    }

    /// Takes the mount of a dead process away.
    pub fn unmount_dead(&self) -> Result<()> {
        run(Path::new("umount"), &["-l", &self.dir.to_string_lossy()]).map(drop)
    }

    /// Unmounts in order; the process must end well.
    pub fn stop(mut self) -> Result<()> {
        cowshed_harness::unmount(&self.dir)?;
        match limit::wait(&mut self.child, READY_MAX)? {
            Some(status) => ensure!(status.success(), "cowshed mount ended with {status}:\n{}", self.said()),
            None => bail!("the process stays after the unmount:\n{}", self.said()),
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = limit::kill(&mut self.child);
        if is_fuse(&self.dir) || std::fs::metadata(&self.dir).is_err() {
            let _ = self.unmount_dead();
        }
    }
}
