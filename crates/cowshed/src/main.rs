//! The command `cowshed`.

// They panic where the reader of the output is gone, in the midst of a change: people::say does
// not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;
mod commands;
mod daemon;
mod devices;
mod ioctl;
mod lazy_args;
mod local_time;
mod log;
mod memory;
mod mount_help;
mod mount_options;
mod mounts;
mod people;
mod unfinished;

use std::process::ExitCode;

use clap::Parser;

use commands::{btrfs, mkfs, mount_helper};

fn main() -> ExitCode {
    memory::join_freed_memory_at_once();
    let mut words = std::env::args_os();
    let program = words.next();
    if mount_helper::is_named(program.as_deref()) {
        return ExitCode::from(mount_helper::run(words));
    }
    if mkfs::is_named(program.as_deref()) {
        return ExitCode::from(mkfs::run_named());
    }
    if btrfs::is_named(program.as_deref()) || words.next().is_some_and(|word| word == btrfs::NAME) {
        return ExitCode::from(btrfs::run(words));
    }
    let cli = cli::Cli::parse();
    match cli::run(&cli) {
        Ok(code) => ExitCode::from(code),
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            crate::people::warn(format_args!("cowshed: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// The reader of our output has closed the pipe: not an error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}
