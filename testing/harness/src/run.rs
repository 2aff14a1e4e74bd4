//! Runs a program and says what it said when it fails. All have a limit, [`limit::PROGRAM_MAX`].

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Result, bail};

use crate::limit;

fn command(program: &str, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C");
    command
}

/// Runs the program to its end, with input from nowhere; whatever it answers is an `Ok`.
pub fn run_raw(program: &str, args: &[impl AsRef<OsStr>]) -> Result<Output> {
    output(&mut command(program, args))
}

/// btrfs-progs look at all loop devices, to see whether a volume is mounted, and give up where one
/// that a test beside detaches is gone when its turn comes: they are run again.
fn output(command: &mut Command) -> Result<Output> {
    let mut tries = 20;
    loop {
        let output = limit::output(command)?;
        let said = String::from_utf8_lossy(&output.stderr);
        if tries == 0 || output.status.success() || !said.contains("check mount status") {
            return Ok(output);
        }
        tries -= 1;
    }
}

/// Runs the program; its standard output if it succeeds.
pub fn run(program: &str, args: &[impl AsRef<OsStr>]) -> Result<String> {
    run_command(&mut command(program, args))
}

/// Runs the program in a directory.
pub fn run_in(dir: &Path, program: &str, args: &[impl AsRef<OsStr>]) -> Result<String> {
    run_command(command(program, args).current_dir(dir))
}

/// Runs a script in a directory. It ends with the first of its commands that fails.
pub fn shell(dir: &Path, script: &str) -> Result<String> {
    run_in(dir, "bash", &["-ec", script])
}

fn run_command(command: &mut Command) -> Result<String> {
    let output = output(command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{} {}` failed with {}:\n{text}{complaint}",
            command.get_program().to_string_lossy(),
            args.join(" "),
            output.status
        );
    }
    Ok(text)
}
