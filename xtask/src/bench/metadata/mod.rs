//! `cargo xtask bench metadata`: names through a mount, on all sides in one run.
//!
//! - [`fs_mark`]: the yardstick, empty files made by several callers;
//! - [`names`], [`listing`]: one call on many names, with the duration of each;
//! - [`commands`]: programs that people wait for.
//!
//! The sides ([`column`]) take turns within each group of lines, each with a fresh volume, so that
//! a change of the machine's speed meets all of them.

mod callers;
mod calls;
mod column;
mod commands;
mod empty;
mod fs_mark;
mod group;
mod in_process;
mod interrupt;
mod listing;
mod names;
mod render;
mod results;
mod stats;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::Args as ClapArgs;

use super::{side, table};
use crate::run;
use column::{Column, Place};
use commands::{Sources, Work};
use group::Group;
use results::{Key, Results};
use stats::Sample;

const NAME: &str = "metadata";

#[derive(ClapArgs, Clone)]
pub struct Args {
    /// How much of the full load: 1 is 100,000 names a line, a million in a directory
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Runs of each side; the tables have the medians
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only groups and lines whose name contains one of these, separated by commas; groups:
    /// fs_mark, names, listing, tree, git, node_modules
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The sides, separated by commas; all that this machine has, unless given
    #[arg(long, value_delimiter = ',', value_parser = Column::parse)]
    sides: Vec<Column>,
    /// Callers of fs_mark, separated by commas
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 16])]
    callers: Vec<usize>,
    /// Loops of fs_mark
    #[arg(long, default_value_t = 10)]
    loops: usize,
    /// Files of each caller in each loop of fs_mark, at scale 1
    #[arg(long, default_value_t = 100_000)]
    files: usize,
    /// Upper bound on the files that fs_mark makes in a run, at scale 1: with more callers each
    /// makes fewer. All of them stay, in the memory of the machine
    #[arg(long, default_value_t = 4_000_000)]
    files_max: usize,
    /// Where the images lie
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// A real tree for `cp`, `tar`, `find` and so on, instead of a generated one
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Mount options of our side
    #[arg(long, default_value = "")]
    options: String,
    /// Print the tables, but leave docs/performance.md as it is
    #[arg(long)]
    dry_run: bool,
}

impl Args {
    /// Of `full` calls at scale 1, those of each caller.
    fn count(&self, full: u64, callers: usize) -> usize {
        const MIN: usize = 10;
        ((full as f64 * self.scale / callers as f64) as usize).max(MIN)
    }

    /// Files of each caller in each loop.
    fn fs_mark_files(&self, callers: usize) -> usize {
        let files = self.files.min(self.files_max / (self.loops * callers).max(1));
        self.count(files as u64, 1)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|wanted| name.contains(&wanted[..]))
    }

    #[cfg(test)]
    fn for_tests() -> Args {
        Args {
            scale: 1.0,
            runs: 1,
            only: Vec::new(),
            sides: Vec::new(),
            callers: vec![1, 2],
            loops: 10,
            files: 100_000,
            files_max: 4_000_000,
            dir: PathBuf::new(),
            tree: None,
            options: String::new(),
            dry_run: true,
        }
    }
}

/// One group on one side.
struct Bench<'a> {
    args: &'a Args,
    column: Column,
    group: Group,
    sources: &'a Sources,
    results: &'a mut Results,
}

impl Bench<'_> {
    fn record(&mut self, key: &Key, sample: Sample) {
        let (column, value) = (self.column.key(), sample.value);
        eprintln!("{column:>11} {:<28} {:>2} {value:>12.1}", key.name, key.callers);
        self.results.record(key, self.column, sample);
    }

    /// What a line leaves to be written is written outside of the next one's clock.
    fn sync(&self, place: &Place) -> Result<()> {
        run::output(Command::new("sync").arg("-f").arg(place.mountpoint())).map(drop)
    }

    fn run(&mut self) -> Result<()> {
        if self.column == Column::InProcess {
            return in_process::run(self);
        }
        let mut place = Place::new(self.column, &self.args.dir, &self.args.options)?;
        match self.group {
            Group::FsMark { callers } => fs_mark::run(self, &mut place, callers)?,
            Group::Names { callers } => names::run(self, &mut place, callers)?,
            Group::Listing => listing::run(self, &mut place)?,
            Group::Commands(work) => work.run(self, &mut place, self.sources)?,
        }
        place.finish()
    }
}

pub fn main(args: &Args) -> Result<()> {
    let columns = columns(args);
    let groups = Group::wanted(args);
    ensure!(!columns.is_empty() && !groups.is_empty(), "nothing to measure");
    super::build()?;
    if columns.iter().any(|column| column.is_empty_server()) {
        empty::build()?;
    }
    interrupt::clean_up_on_signals(&args.dir)?;
    let results = measure(args, &columns, &groups);
    interrupt::wait_if_interrupted();
    let results = results?;
    let text = render::render(&results, args);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    if let Some(svg) = render::picture(&results) {
        std::fs::write(run::root().join("docs").join(render::PICTURE), svg)?;
    }
    table::store_named_in("MOUNT.md", NAME, &render::for_users(&results))?;
    table::store_named(NAME, &text)
}

fn measure(args: &Args, columns: &[Column], groups: &[Group]) -> Result<Results> {
    let work = |group: &Group| match group {
        Group::Commands(work) => Some(*work),
        _ => None,
    };
    let works: Vec<Work> = groups.iter().filter_map(work).collect();
    let sources = Sources::make(&args.dir, args.scale, args.tree.as_deref(), &works)?;
    let mut results = Results::new(groups.iter().flat_map(|group| group.keys(args)));
    for round in 0..args.runs {
        for group in groups {
            // The first one may find colder caches: each side has its turn.
            for turn in 0..columns.len() {
                let column = columns[(turn + round) % columns.len()];
                if !group.has(column) {
                    continue;
                }
                side::touch_memory((args.scale * TOUCHED_BYTES) as u64);
                let mut bench = Bench {
                    args,
                    column,
                    group: *group,
                    sources: &sources,
                    results: &mut results,
                };
                let outcome = bench.run();
                outcome.with_context(|| format!("{}: {}", group.name(), column.title()))?;
            }
        }
    }
    Ok(results)
}

/// What a group fills of the machine's memory at scale 1, about.
const TOUCHED_BYTES: f64 = (2_u64 << 30) as f64;

/// The sides to measure; says which are missing.
fn columns(args: &Args) -> Vec<Column> {
    let wanted = if args.sides.is_empty() {
        &Column::ALL[..]
    } else {
        &args.sides
    };
    let is_there = |column: &Column| match column.missing() {
        Some(why) => {
            eprintln!("skipped: {}: {why}", column.title());
            false
        }
        None => true,
    };
    wanted.iter().copied().filter(is_there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_callers_make_fewer_files_each() {
        let args = Args::for_tests();
        assert_eq!(
            [1, 4, 16].map(|callers| args.fs_mark_files(callers)),
            [100_000, 100_000, 25_000]
        );
        let small = Args { scale: 0.05, ..args };
        assert_eq!([1, 16].map(|callers| small.fs_mark_files(callers)), [5000, 1250]);
        assert_eq!(small.count(100, 2), 10);
    }
}
