//! Everything a developer runs: `cargo xtask --help`.

mod arrows;
mod bench;
mod ci;
mod counts;
mod engine_lints;
mod failures;
mod fuzz;
mod hunt;
mod licenses;
mod long;
mod long_tests;
mod real;
mod run;
mod side_by_side;
mod sources;
mod targets;
mod xfs;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Everything a developer of Cowshed runs")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What `make test` and CI run: formatting, lints, licences, all tests, and a seeded share of
    /// the long runs
    Ci(ci::Args),
    /// Compare the tables of modules and arrows in docs/ARCHITECTURE.md with the imports in the
    /// code
    Arrows(arrows::Args),
    /// Check that the files and functions that documents name exist, the table "Where is ...?"
    /// first
    Hunt,
    /// Check that the engine crates take clocks, timers, threads and randomness from `Env`, and
    /// that their locks have a rank
    EngineLints,
    /// Sizes of the code, its circles, and what its own rules find in it
    Counts(counts::Args),
    /// Feed damaged volumes to the engine and the checker
    Fuzz(fuzz::Args),
    /// Measure a mount against the kernel's btrfs; writes the table in docs/performance.md
    Bench(bench::Args),
    /// Volumes of every kind, back and forth between the kernel and Cowshed
    Matrix(real::Args),
    /// Real directory trees copied onto a mount and compared through the kernel
    Realtree(real::Args),
    /// Ordinary programs and file-system test programs at work on a mount
    Realwork(real::Args),
    /// Files of all sizes under every algorithm and level of compression, through a mount and
    /// through the kernel
    Levels(real::Args),
    /// Random operations compared with a model, from a seed: --seed S --operations N ...
    Random(long::Args),
    /// The tests that take too long for every run: all ignored ones that judge something
    LongTests(long_tests::Args),
    /// Kill the mount's process under load and look at what is left: --rounds N --seed S
    Kill9(long::Args),
    /// What a crash after fsync leaves: all named cases on every road; with `--cuts N` instead,
    /// crash images of the kernel's btrfs on a recorded device, replayed by us and by the kernel
    Logcases(long::Args),
    /// The kernel and Cowshed take turns at volumes of snapshots, cut short by power failures:
    /// `--volumes N --seed S`
    Turns(long::Args),
    /// Many processes at once on one mount; then all that Linux caches is compared with the volume:
    /// `--rounds N --seed S [--variant NAME]`
    Coherence(long::Args),
    /// XFS: `logs --count N --seed S`, dirty logs of the kernel's, recovered by us and by the
    /// kernel; `matrix [--all] [--small]`, volumes of every kind, filled by the kernel and read
    Xfs(long::Args),
    /// SQLite with atomic writes on a mount: `kills --rounds N --transactions T`, `rate DIR`
    Sqlite(long::Args),
    /// Check that the command compiles for other systems, processors and C libraries
    Targets,
    /// Check that every dependency's licence is on the list in deny.toml
    Licenses,
    /// Judge crash images of recorded runs: `--images N --seed S [--kernel-images M] [--faults F]`
    Crash {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

/// Errors are printed without a backtrace: the message is what the reader needs, and last.
fn main() -> ExitCode {
    match run_command(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_command(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Arrows(args) => arrows::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Ci(args) => ci::main(&args),
        Command::Matrix(args) => real::main("matrix", &args),
        Command::Realtree(args) => real::main("realtree", &args),
        Command::Realwork(args) => real::main("realwork", &args),
        Command::Levels(args) => real::main("levels", &args),
        Command::Random(args) => long::random(&args),
        Command::LongTests(args) => long_tests::main(&args),
        Command::Kill9(args) => long::kill9(&args),
        Command::Logcases(args) => long::logcases(&args),
        Command::Turns(args) => long::turns(&args),
        Command::Coherence(args) => long::coherence(&args),
        Command::Xfs(args) => xfs::main(&args),
        Command::Sqlite(args) => long::sqlite(&args),
        Command::Hunt => hunt::check(),
        Command::EngineLints => engine_lints::check(),
        Command::Counts(args) => counts::main(&args),
        Command::Fuzz(args) => fuzz::main(&args),
        Command::Targets => targets::check(),
        Command::Licenses => licenses::main(),
        Command::Crash { args } => {
            let mut command = run::cargo(&["run", "--quiet", "--package", "cowshed-crash", "--"]);
            run::run("crash", command.args(args))
        }
    }
}
