//! Real trees and real programs on a mount, judged by the kernel and btrfs-progs. Root only.

mod aio;
mod choice;
mod cowshed;
mod direct;
mod levels;
mod matrix;
mod queue;
mod raw;
mod realtree;
mod realwork;
mod site;
mod tools;
mod unusual;
mod xfs;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Real trees and real programs on a mount, judged by the kernel and btrfs-progs")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Volumes of every kind: the kernel makes them, Cowshed reads and changes them, the kernel
    /// judges and changes them
    Matrix(matrix::Args),
    /// XFS: volumes of the kernel, read
    Xfs(xfs::Args),
    /// Real directory trees copied by cp and rsync, compared through the kernel
    Realtree(realtree::Args),
    /// Files of all sizes under every algorithm and level of compression, written and read by
    /// Cowshed and the kernel in turn
    Levels(levels::Args),
    /// Ordinary programs at work on a mount: git, tar, dpkg, SQLite, cargo, fs_mark, fio,
    /// stress-ng, fsx, pjdfstest
    Realwork(realwork::Args),
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Matrix(args) => matrix::main(&args),
        Command::Xfs(args) => xfs::main(&args),
        Command::Realtree(args) => realtree::main(&args),
        Command::Levels(args) => levels::main(&args),
        Command::Realwork(args) => realwork::main(&args),
    }
}
