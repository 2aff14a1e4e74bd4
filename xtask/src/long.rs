//! The long runs from seeds: the programs of `testing/`, built with what they need.

use anyhow::Result;
use clap::Args as ClapArgs;
use cowshed_harness::need;

use crate::run::{self, SHARE_MAX};

#[derive(ClapArgs)]
pub struct Args {
    /// Passed on: `--help` after `--` lists what there is
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

impl Args {
    /// The first one, and the others.
    pub fn split_first(&self) -> Option<(&str, &[String])> {
        let (first, rest) = self.args.split_first()?;
        Some((first, rest))
    }
}

/// Builds `packages` in release mode and runs the program of the first.
pub fn build_and_run(packages: &[&str], args: &[String]) -> Result<()> {
    let mut build = run::cargo(&["build", "--release", "--quiet"]);
    for package in packages {
        build.args(["-p", package]);
    }
    run::run("building", &mut build)?;
    let program = run::target().join("release").join(packages[0]);
    let mut command = run::command(&program.to_string_lossy(), &[]);
    run::run(packages[0], command.args(args))
}

/// `cargo xtask random`
pub fn random(args: &Args) -> Result<()> {
    build_and_run(&["cowshed-random"], &args.args)
}

/// `cargo xtask logcases`
pub fn logcases(args: &Args) -> Result<()> {
    build_and_run(&["cowshed-logcases"], &args.args)
}

/// `cargo xtask turns`
pub fn turns(args: &Args) -> Result<()> {
    build_and_run(&["cowshed-turns"], &args.args)
}

/// `cargo xtask coherence`
pub fn coherence(args: &Args) -> Result<()> {
    build_and_run(&["cowshed-coherence", "cowshed"], &args.args)
}

/// The share of coherence that every run of CI has: each kind of mount, other operations each day.
pub fn coherence_share() -> Result<()> {
    let seed = need::share_seed("coherence").to_string();
    let args = ["--rounds", "18", "--rounds-per-volume", "2", "--seed", &seed];
    let mut command = run::built("cowshed-coherence", &args);
    run::run_within(SHARE_MAX, "18 rounds of coherence", &mut command)
}

/// All named cases of what a crash after fsync leaves, on all roads: less than a minute.
pub fn all_log_cases() -> Result<()> {
    let mut command = run::built("cowshed-logcases", &[]);
    run::run_within(SHARE_MAX, "crashes after fsync, all cases", &mut command)
}

/// `cargo xtask kill9`
pub fn kill9(args: &Args) -> Result<()> {
    build_and_run(&["cowshed-kill9", "cowshed"], &args.args)
}

/// The share of the kill rounds that every run of CI has, with what the tests have built.
pub fn kill9_share() -> Result<()> {
    for (load, rounds) in [("model", "4"), ("sqlite", "3"), ("dbench", "3")] {
        let mut command = run::built("cowshed-kill9", &["--load", load, "--rounds", rounds]);
        let title = format!("{rounds} kills under load: {load}");
        run::run_within(SHARE_MAX, &title, &mut command)?;
    }
    Ok(())
}

/// `cargo xtask sqlite`
pub fn sqlite(args: &Args) -> Result<()> {
    build_and_run(&["cowshed-sqlite", "cowshed"], &args.args)
}

/// The share of SQLite's kills that every run of CI has.
pub fn sqlite_share() -> Result<()> {
    let args = ["kills", "--rounds", "10", "--transactions", "300"];
    let mut command = run::built("cowshed-sqlite", &args);
    run::run_within(SHARE_MAX, "10 kills under SQLite", &mut command)
}
