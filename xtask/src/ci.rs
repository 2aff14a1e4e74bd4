//! What `make test` and CI run, in order of what fails fastest.

use std::time::Duration;

use anyhow::Result;
use clap::Args as ClapArgs;
use cowshed_harness::need;

use crate::run::SHARE_MAX;
use crate::{arrows, engine_lints, failures, hunt, licenses, real, run, side_by_side, targets};

/// What hangs, in a mount or in the kernel, is cut and named. These are several times what a slow
/// machine needs.
const QUICK_MAX: Duration = Duration::from_secs(600);
const BUILD_MAX: Duration = Duration::from_secs(3 * 3600);
const TESTS_MAX: Duration = Duration::from_secs(4 * 3600);

#[derive(ClapArgs)]
pub struct Args {
    /// Leave out formatting and lints
    #[arg(long)]
    tests_only: bool,
}

pub fn main(args: &Args) -> Result<()> {
    let started = std::time::Instant::now();
    if !args.tests_only {
        run::run_within(
            QUICK_MAX,
            "formatting",
            &mut run::cargo(&["fmt", "--all", "--", "--check"]),
        )?;
        arrows::check()?;
        hunt::check()?;
        licenses::main()?;
        run::run_within(
            BUILD_MAX,
            "lints",
            &mut run::cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]),
        )?;
        engine_lints::check()?;
        targets::check()?;
    }
    run::build_tests(BUILD_MAX)?;
    side_by_side::run(TESTS_MAX)?;
    over_io_uring()?;
    kernel_volumes()?;
    real::share()?;
    if need::kernel_btrfs().is_some() {
        crate::long::all_log_cases()?;
    }
    crate::long::kill9_share()?;
    crate::long::sqlite_share()?;
    crate::long::coherence_share()?;
    println!("== all passed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// The tests on mounts once more, served over io_uring, where the kernel has that. Its switch is
/// turned on for as long.
fn over_io_uring() -> Result<()> {
    const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";
    let Ok(before) = std::fs::read_to_string(SWITCH) else {
        println!("== skipped: mounts over io_uring: the kernel has none (Linux 6.14 and later)");
        return Ok(());
    };
    if std::fs::write(SWITCH, "1").is_err() {
        println!("== skipped: mounts over io_uring: only root can turn it on");
        return Ok(());
    }
    let args = ["test", "--quiet", "--workspace", "--test", "mounted"];
    let mut command = run::cargo(&args);
    command.env("COWSHED_TEST_TRANSPORT", "uring");
    let outcome = failures::run_tests_within(SHARE_MAX, "mounts over io_uring", &mut command);
    std::fs::write(SWITCH, before)?;
    outcome
}

/// Every block of volumes that the kernel filled, judged by the format's verifier. Its tests are
/// ignored elsewhere: they make volumes for most of a minute, and only root can.
fn kernel_volumes() -> Result<()> {
    if need::kernel_btrfs().is_none() || need::tool("python3").is_none() || need::tool("setfattr").is_none() {
        return Ok(());
    }
    // The last one writes the corpus of another test.
    let args = ["test", "--quiet", "--workspace", "--test", "kernel_volumes"];
    let mut command = run::cargo(&args);
    command.args(["--", "--ignored", "--skip", "write_corpus"]);
    failures::run_tests_within(SHARE_MAX, "volumes that the kernel filled", &mut command)
}
