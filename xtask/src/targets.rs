//! Does the command compile for machines unlike this one? Types are checked; nothing is linked or
//! run, so that no compiler and no libraries of those systems are needed.
//!
//! Build scripts of dependencies compile C. A stub in the place of their compiler makes files
//! without contents, which `cargo check` never reads.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cowshed_harness::{limit, need};

use crate::run;

/// One of each kind: no Linux; big-endian, and no io_uring; words of 32 bits.
const TARGETS: &[&str] = &[
    "aarch64-apple-darwin",
    "s390x-unknown-linux-gnu",
    "armv7-unknown-linux-gnueabihf",
];
const INSTALL_MAX: Duration = Duration::from_secs(300);
/// Downloads fail now and then.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(20);
const CHECK_MAX: Duration = Duration::from_secs(3600);

/// Makes the file behind `-o`, or the archive that is the first argument with a dot.
const STUB: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        -o) : > "$2"; exit ;;
        *.a) : > "$1"; exit ;;
    esac
    shift
done
"#;

/// Checks the command for each target whose standard library rustup has or can install.
pub fn check() -> Result<()> {
    let rustup = need::require(has_rustup(), "rustup, for the standard libraries of other targets");
    let Some(()) = rustup else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let stub = dir.path().join("stub");
    fs::write(&stub, STUB)?;
    fs::set_permissions(&stub, fs::Permissions::from_mode(0o755))?;
    for target in TARGETS {
        install(target)?;
        let mut command = run::cargo(&["check", "--quiet", "--package", "cowshed", "--target", target]);
        use_stub(&mut command, target, &stub);
        run::run_within(CHECK_MAX, &format!("types of {target}"), &mut command)?;
    }
    Ok(())
}

fn has_rustup() -> bool {
    let mut command = Command::new("rustup");
    limit::output_within(command.arg("--version"), INSTALL_MAX).is_ok_and(|out| out.status.success())
}

fn install(target: &str) -> Result<()> {
    for tries_left in (0..TRIES).rev() {
        let mut command = Command::new("rustup");
        command.args(["target", "add", target]).stdin(Stdio::null());
        let out = limit::output_within(&mut command, INSTALL_MAX).context("rustup")?;
        if out.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&out.stderr);
        ensure!(tries_left > 0, "rustup target add {target}: {said}");
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn use_stub(command: &mut Command, target: &str, stub: &Path) {
    let suffix = target.replace('-', "_");
    for tool in ["CC", "CXX", "AR", "RANLIB"] {
        command.env(format!("{tool}_{suffix}"), stub);
    }
}
