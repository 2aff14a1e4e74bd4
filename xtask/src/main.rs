//! Everything a developer runs: `cargo xtask --help`.

mod bench;
mod ci;
mod licenses;
mod run;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Everything a developer of Cowshed runs")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What `make test` and CI run: formatting, lints, licences, all tests, and a seeded share of the long runs
    Ci(ci::Args),
    /// Measure a mount against the kernel's btrfs; writes the table in docs/performance.md
    Bench(bench::Args),
    /// Check that every dependency's licence is on the list in deny.toml
    Licenses,
}

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Bench(args) => bench::main(&args),
        Command::Ci(args) => ci::main(&args),
        Command::Licenses => licenses::main(),
    }
}
