//! The empty server: a file system in memory behind our transport, served by the `floor` example.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_harness::limit;

use super::super::side::Removed;
use crate::run;

/// What unmounting may take: the kernel gives back every inode, and files of a million names are
/// freed.
const ENDING_MAX: Duration = Duration::from_secs(120);

pub fn build() -> Result<()> {
    let args = [
        "build",
        "--release",
        "--quiet",
        "-p",
        "cowshed-fuse",
        "--example",
        "floor",
    ];
    run::run("release build of the empty server", &mut run::cargo(&args))
}

/// A mount of it. The server unmounts when its standard input ends, also when this process is
/// killed.
pub struct EmptyServer {
    server: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    mountpoint: PathBuf,
    /// Dropped last, when nothing is mounted there.
    _top: Removed,
}

impl EmptyServer {
    /// `transport`: `uring` or `dev`. Serves as a mount of ours does: the kernel checks
    /// permissions, files are opened.
    pub fn new(dir: &Path, transport: &str) -> Result<EmptyServer> {
        let top = dir.join(format!("cowshed-bench-{}-empty-{transport}", std::process::id()));
        let mountpoint = top.join("mnt");
        std::fs::create_dir_all(&mountpoint).with_context(|| mountpoint.display().to_string())?;
        let top = Removed(top);
        let mut command = Command::new(run::root().join("target/release/examples/floor"));
        command.arg(format!("transport={transport}")).args(["kernel", "open"]);
        command.arg(format!("serve={}", mountpoint.display()));
        // A group of its own: what interrupts us must leave it to unmount.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut server = command.spawn().with_context(|| format!("{command:?}"))?;
        let (Some(commands), Some(answers)) = (server.stdin.take(), server.stdout.take()) else {
            bail!("the empty server has no pipes");
        };
        let mut empty = EmptyServer {
            server,
            commands: Some(commands),
            answers: BufReader::new(answers),
            mountpoint,
            _top: top,
        };
        empty.wait_ready()?;
        Ok(empty)
    }

    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Unmounts and mounts again: the kernel has nothing of it in its caches afterwards.
    pub fn remount(&mut self) -> Result<()> {
        let commands = self.commands.as_mut().context("the empty server has ended")?;
        commands.write_all(b"remount\n")?;
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(line.trim_end() == "ready", "the empty server ended, or said {line:?}");
        Ok(())
    }

    pub fn finish(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        drop(self.commands.take());
        let ended = limit::wait(&mut self.server, ENDING_MAX)?;
        let status = ended.context("the empty server does not end")?;
        ensure!(status.success(), "the empty server: {status}");
        Ok(())
    }
}

impl Drop for EmptyServer {
    fn drop(&mut self) {
        if self.commands.is_some()
            && let Err(error) = self.end()
        {
            eprintln!("{}: {error:#}", self.mountpoint.display());
            let _ = limit::kill(&mut self.server);
        }
    }
}
