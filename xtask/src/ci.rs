//! What `make test` and CI run, in order of what fails fastest.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::process::ExitStatus;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args as ClapArgs;
use cowshed_harness::{limit, need};

use crate::run::SHARE_MAX;
use crate::{arrows, engine_lints, failures, hunt, licenses, real, run};

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
    /// Run nothing but the shares of the long runs, with what was built before
    #[arg(long, conflicts_with = "tests_only")]
    shares_only: bool,
}

pub fn main(args: &Args) -> Result<()> {
    if args.shares_only {
        return shares();
    }
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
    }
    run::build_tests(BUILD_MAX)?;
    let mut tests = run::cargo(&["test", "--workspace", "--no-fail-fast"]);
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        // Tests of mounts and devices wait for a quarter of their time.
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        tests.env("RUST_TEST_THREADS", (2 * processors).to_string());
    }
    // Tests leave the processors idle for half of the time.
    let shares = Beside::start("shares of the long runs, beside the tests", &["ci", "--shares-only"])?;
    let tests = failures::run_tests_within(TESTS_MAX, "tests", &mut tests);
    let shares = shares.end();
    tests?;
    shares?;
    over_io_uring()?;
    kernel_volumes()?;
    println!("== all passed in {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// A seeded share of each long run.
fn shares() -> Result<()> {
    real::share()?;
    if need::kernel_btrfs().is_some() {
        crate::long::all_log_cases()?;
    }
    crate::long::kill9_share()?;
    crate::long::sqlite_share()
}

/// This program once more, as it was built with all others, at work beside them. Its output is kept
/// until it has ended.
struct Beside {
    title: &'static str,
    output: File,
    running: JoinHandle<Result<ExitStatus>>,
}

impl Beside {
    fn start(title: &'static str, args: &[&str]) -> Result<Beside> {
        let output = tempfile::tempfile()?;
        // The file of the one that runs is gone where that was built anew.
        let mut command = run::built("xtask", args);
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        let running = std::thread::spawn(move || limit::status_within(&mut command, SHARE_MAX));
        Ok(Beside { title, output, running })
    }

    /// Waits for it, prints what it said, and fails where it failed.
    fn end(mut self) -> Result<()> {
        let status = self.running.join().map_err(|_| anyhow!("{} panicked", self.title))?;
        println!("== {}", self.title);
        self.output.seek(SeekFrom::Start(0))?;
        std::io::copy(&mut self.output, &mut std::io::stdout())?;
        let status = status.with_context(|| self.title.to_owned())?;
        ensure!(status.success(), "{} failed: {status}", self.title);
        Ok(())
    }
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
