//! A repository: cloned, asked for its state, and switched to another branch.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::super::Bench;
use super::super::column::Place;
use super::generate::{self, Shape};
use super::{Sizes, Sources, record};
use crate::run;

pub const LINES: [&str; 4] = ["git clone", "git status, cold", "git status, warm", "git checkout"];
/// Files at scale 1.
const FILES: f64 = 10_000.0;
/// As of a tree of sources.
const SIZES: &Sizes = &[100, 600, 1200, 2500, 4000, 6500, 10_000, 16_000, 30_000, 90_000];
/// The other branch has one of so many files changed, and another one deleted.
const CHANGE_EVERY: usize = 6;

pub struct Source {
    path: PathBuf,
    /// Of the branches `main` and `other`.
    commits: [String; 2],
}

pub fn is_there() -> bool {
    run::output(Command::new("git").arg("--version")).is_ok()
}

impl Source {
    pub fn make(sources: &Sources, scale: f64) -> Result<Source> {
        let path = sources.path("repository");
        let shape = Shape {
            seed: 2,
            files: (FILES * scale).max(100.0) as usize,
            files_of_each_dir: 20,
            sizes: SIZES,
            link_every: 200,
        };
        generate::generate(&path, &shape)?;
        let git = |args: &[&str]| say(&path, args);
        git(&["init", "-q", "-b", "main"])?;
        let commit = || {
            git(&["add", "-A"])?;
            git(&["commit", "-q", "-m", "files"])?;
            git(&["rev-parse", "HEAD"])
        };
        let main = commit()?;
        git(&["checkout", "-q", "-b", "other"])?;
        generate::change(&path, &shape, CHANGE_EVERY)?;
        let other = commit()?;
        git(&["checkout", "-q", "main"])?;
        Ok(Source {
            path,
            commits: [main, other],
        })
    }
}

/// git without the configuration of the user and the machine.
fn git(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).args(["-c", "gc.auto=0"]).args(args);
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "bench");
        command.env(format!("GIT_{role}_EMAIL"), "bench@example.invalid");
        command.env(format!("GIT_{role}_DATE"), "2026-01-01T00:00:00Z");
    }
    command
}

/// What it prints.
fn say(dir: &Path, args: &[&str]) -> Result<String> {
    Ok(run::output(&mut git(dir, args))?.trim_end().to_owned())
}

pub fn run(bench: &mut Bench<'_>, place: &mut Place, sources: &Sources) -> Result<()> {
    let source = sources.git.as_ref().context("the repository was made")?;
    let (top, clone) = (place.mountpoint(), place.mountpoint().join("clone"));
    // An URL: of a path, git would copy or link the objects.
    let mut url = OsStr::new("file://").to_owned();
    url.push(&source.path);
    let done = sources.run(git(&top, &["clone", "-q"]).arg(url).arg(&clone))?;
    record(bench, place, LINES[0], &done)?;
    ensure!(
        say(&clone, &["rev-parse", "HEAD"])? == source.commits[0],
        "another commit was cloned"
    );
    place.remount()?;
    for line in &LINES[1..3] {
        let done = sources.run(&mut git(&clone, &["status", "--porcelain"]))?;
        record(bench, place, line, &done)?;
        ensure!(done.lines()? == 0, "{line} sees changes");
    }
    let done = sources.run(&mut git(&clone, &["checkout", "-q", "other"]))?;
    record(bench, place, LINES[3], &done)?;
    ensure!(
        say(&clone, &["rev-parse", "HEAD"])? == source.commits[1],
        "another commit was checked out"
    );
    // From the objects, not from what the index says of the files.
    say(&clone, &["rm", "-r", "-q", "--cached", "."])?;
    say(&clone, &["reset", "-q"])?;
    ensure!(
        say(&clone, &["status", "--porcelain"])?.is_empty(),
        "files differ from what was checked out"
    );
    Ok(())
}
