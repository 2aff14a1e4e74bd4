//! Running commands: echoed, checked, with the output passed through.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cowshed_harness::limit;

/// Upper bound on the share of a long run that every CI run has.
pub const SHARE_MAX: Duration = Duration::from_secs(3600);

/// The repository's top directory.
pub fn root() -> PathBuf {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map_or(manifest.clone(), PathBuf::from)
}

/// A command in the repository's top directory.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

pub fn cargo(args: &[&str]) -> Command {
    let program = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    command(&program, args)
}

/// Where cargo puts what it builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// A program of the release build; in place of `cowshed` the one that `$COWSHED_PROGRAM` names, so
/// that builds can be compared.
pub fn released(program: &str) -> PathBuf {
    match std::env::var_os("COWSHED_PROGRAM") {
        Some(other) if program == "cowshed" => other.into(),
        _ => target().join("release").join(program),
    }
}

/// A program as [`build_tests`] left it.
pub fn built(program: &str, args: &[&str]) -> Command {
    command(&target().join("debug").join(program).to_string_lossy(), args)
}

/// Builds everything at once. One package alone would be built with other features of its
/// dependencies, and half of the workspace again with it.
pub fn build_tests(limit: Duration) -> Result<()> {
    let args = ["build", "--quiet", "--workspace", "--all-targets"];
    run_within(limit, "building everything", &mut cargo(&args))
}

/// Runs it, says how long it took, and fails where it fails. As long as it takes: for commands with
/// a user at the terminal.
pub fn run(title: &str, command: &mut Command) -> Result<()> {
    run_within(Duration::MAX, title, command)
}

/// As [`run`]; after the limit it is killed, with all that it has started, and has failed.
pub fn run_within(limit: Duration, title: &str, command: &mut Command) -> Result<()> {
    println!("== {title}");
    let started = Instant::now();
    let status = limit::status_within(command, limit).with_context(|| title.to_owned())?;
    println!("== {title}: {:.1} s", started.elapsed().as_secs_f64());
    ensure!(status.success(), "{title} failed: {command:?}: {status}");
    Ok(())
}

/// Runs it and returns what it printed to standard output. As long as it takes, and in our process
/// group: for commands that a user at the terminal may interrupt.
#[expect(clippy::disallowed_methods, reason = "somebody watches")]
pub fn output(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        out.status.success(),
        "{command:?}: {}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8(out.stdout)?)
}
