//! Programs that people wait for, on a tree, a repository and a `node_modules`.
//!
//! What they work on is made once, outside of all mounts ([`Sources`]). Each program's output goes
//! to a file there, and its lines are counted: a side on which a program sees less has failed, not
//! won.

mod generate;
mod git;
mod node_modules;
mod tree;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cowshed_harness::limit;

use super::super::side::Removed;
use super::Bench;
use super::column::Place;
use super::results::{Key, Kind};
use super::stats::Sample;

pub use git::is_there as has_git;

/// Groups of lines that share a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Tree,
    Git,
    NodeModules,
}

impl Work {
    pub const ALL: [Work; 3] = [Work::Tree, Work::Git, Work::NodeModules];

    pub fn name(self) -> &'static str {
        match self {
            Work::Tree => "tree",
            Work::Git => "git",
            Work::NodeModules => "node_modules",
        }
    }

    pub fn lines(self) -> &'static [&'static str] {
        match self {
            Work::Tree => &tree::LINES,
            Work::Git => &git::LINES,
            Work::NodeModules => &node_modules::LINES,
        }
    }

    pub fn run(self, bench: &mut Bench<'_>, place: &mut Place, sources: &Sources) -> Result<()> {
        match self {
            Work::Tree => tree::run(bench, place, sources),
            Work::Git => git::run(bench, place, sources),
            Work::NodeModules => node_modules::run(bench, place, sources),
        }
    }
}

/// What the programs work on, in the machine's memory, and room for their output.
pub struct Sources {
    top: Removed,
    tree: Option<tree::Source>,
    git: Option<git::Source>,
    node_modules: Option<node_modules::Source>,
}

impl Sources {
    /// Makes those of these groups. `tree`: a real tree to use instead of a generated one.
    pub fn make(dir: &Path, scale: f64, tree: Option<&Path>, works: &[Work]) -> Result<Sources> {
        let top = dir.join(format!("cowshed-bench-{}-sources", std::process::id()));
        std::fs::create_dir(&top).with_context(|| top.display().to_string())?;
        let mut sources = Sources {
            top: Removed(top),
            tree: None,
            git: None,
            node_modules: None,
        };
        for work in works {
            match work {
                Work::Tree => sources.tree = Some(tree::Source::make(&sources, scale, tree)?),
                Work::Git => sources.git = Some(git::Source::make(&sources, scale)?),
                Work::NodeModules => sources.node_modules = Some(node_modules::Source::make(&sources, scale)?),
            }
        }
        Ok(sources)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.0.join(name)
    }

    /// Runs a program to its end, with its output in a file.
    fn run(&self, command: &mut Command) -> Result<Done> {
        let output = self.path("output");
        command.stdout(File::create(&output)?);
        let started = Instant::now();
        let status = limit::status_within(command, Duration::MAX)?;
        let ms = started.elapsed().as_secs_f64() * 1e3;
        ensure!(status.success(), "{command:?}: {status}");
        Ok(Done { ms, output })
    }
}

/// What a program did.
struct Done {
    ms: f64,
    output: PathBuf,
}

impl Done {
    fn lines(&self) -> Result<usize> {
        let output = std::fs::read(&self.output)?;
        Ok(output.iter().filter(|byte| **byte == b'\n').count())
    }

    fn bytes(&self) -> Result<u64> {
        Ok(std::fs::metadata(&self.output)?.len())
    }
}

/// A program with arguments, in a directory.
fn program(name: &str, args: &[&str], dir: &Path) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(dir);
    command
}

/// A file size's distribution: sizes at equal steps of probability, from the smallest to the
/// largest.
type Sizes = [u64];

/// Names below a directory, itself included.
fn count_names(sources: &Sources, dir: &Path) -> Result<usize> {
    sources.run(&mut program("find", &["."], dir))?.lines()
}

/// Fails unless both trees have the same names, and the same bytes in all files.
fn ensure_same(sources: &Sources, one: &Path, other: &Path) -> Result<()> {
    let mut diff = Command::new("diff");
    diff.args(["-r", "-q", "--no-dereference"]).arg(one).arg(other);
    sources.run(&mut diff).map(drop)
}

fn ensure_gone(path: &Path) -> Result<()> {
    ensure!(
        std::fs::symlink_metadata(path).is_err(),
        "{} is still there",
        path.display()
    );
    Ok(())
}

/// Records one line, and has what the program left written outside of the next one's clock.
fn record(bench: &mut Bench<'_>, place: &Place, name: &'static str, done: &Done) -> Result<()> {
    bench.record(&Key::new(Kind::Commands, name, 1), Sample::of_value(done.ms));
    bench.sync(place)
}
