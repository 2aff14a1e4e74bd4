//! The long runs of `cowshed-real`, with the command under test built beside it.

use anyhow::{Context, Result};

use crate::run::{self, SHARE_MAX};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// With optimisation
    #[arg(long)]
    release: bool,
    /// What the run itself takes: `--help` tells
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

pub fn main(what: &str, args: &Args) -> Result<()> {
    let own: Vec<&str> = args.args.iter().map(String::as_str).collect();
    build_and_run(what, &own, args.release)
}

/// The shares of CI: a small one of each, of the matrix another one for each commit.
pub fn share() -> Result<()> {
    let seed = seed();
    println!("== seed of the matrix: {seed}");
    let seed = seed.to_string();
    for args in [
        &["matrix", "--count", "3", "--entries", "100", "--seed", &seed][..],
        &["xfs", "matrix", "--small", "--count", "2", "--seed", &seed],
        &["realtree", "--small"],
        &["levels", "--one-in", "12", "--seed", &seed],
        &["realwork", "--small"],
    ] {
        run::run_within(SHARE_MAX, args[0], &mut run::built("cowshed-real", args))?;
    }
    Ok(())
}

/// From the commit; 1 where there is no git.
fn seed() -> u32 {
    let commit = run::output(&mut run::command("git", &["rev-parse", "HEAD"])).unwrap_or_default();
    commit
        .get(..6)
        .and_then(|digits| u32::from_str_radix(digits, 16).ok())
        .unwrap_or(1)
}

fn build_and_run(what: &str, args: &[&str], release: bool) -> Result<()> {
    let mut build = vec!["build", "--quiet", "-p", "cowshed", "-p", "cowshed-real"];
    if release {
        build.push("--release");
    }
    run::run("building cowshed and cowshed-real", &mut run::cargo(&build))?;
    let profile = if release { "release" } else { "debug" };
    let program = run::target().join(profile).join("cowshed-real");
    let program = program.to_str().context("a path in UTF-8")?;
    run::run(what, run::command(program, &[what]).args(args))
}
