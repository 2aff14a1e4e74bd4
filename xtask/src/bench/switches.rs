//! A build in which single mechanisms can be turned off, to see what each is worth.
//!
//! The switches exist with the feature `bench-switches` only. The program that has them is set aside under a name of its own: the
//! usual one has no trace of them.

use std::path::PathBuf;

use anyhow::Result;

use crate::run;

const PROGRAM: &str = "target/release/cowshed-with-switches";
/// Names of the mechanisms that are off: `crates/btrfs/src/switches.rs`.
pub const OFF: &str = "COWSHED_OFF";
/// A file to which each mount adds a line of what it did in its trees.
pub const COUNTERS: &str = "COWSHED_COUNTERS";

/// Builds the program with switches and sets it aside; then the usual one is in its place again.
pub fn build() -> Result<PathBuf> {
    let (usual, program) = (run::root().join("target/release/cowshed"), run::root().join(PROGRAM));
    let features = ["--features", "bench-switches"];
    let mut command = run::cargo(&["build", "--release", "--quiet", "-p", "cowshed"]);
    run::run("build with switches", command.args(features))?;
    std::fs::copy(usual, &program)?;
    super::build()?;
    Ok(program)
}
