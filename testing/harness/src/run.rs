//! Runs a program and says what it said when it fails.

use std::ffi::OsStr;
use std::process::{Command, Output};

use anyhow::{Result, bail};

use crate::limit;

/// Runs the program to its end, with input from nowhere; whatever it answers is an `Ok`. It has a limit, [`limit::PROGRAM_MAX`].
pub fn run_raw(program: &str, args: &[impl AsRef<OsStr>]) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(args).stdin(std::process::Stdio::null()).env("LC_ALL", "C");
    limit::output_within(&mut command, limit::PROGRAM_MAX)
}

/// Runs the program; its standard output if it succeeds.
pub fn run(program: &str, args: &[impl AsRef<OsStr>]) -> Result<String> {
    let output = run_raw(program, args)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let line: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{program} {}` failed with {}:\n{text}{complaint}",
            line.join(" "),
            output.status
        );
    }
    Ok(text)
}
