//! The command `cowshed`.

// They panic where the reader of the output is gone, in the midst of a change: people::say does
// not.
#![deny(clippy::print_stdout, clippy::print_stderr)]
// Elsewhere, what mounts alone use is not used: there are none.
#![cfg_attr(not(target_os = "linux"), allow(dead_code))]

mod block_devices;
mod cli;
mod commands;
#[cfg(target_os = "linux")]
mod daemon;
mod devices;
mod ioctl;
mod lazy_args;
mod local_time;
mod log;
mod memory;
mod mount_help;
mod mount_options;
#[cfg(target_os = "linux")]
mod mounts;
mod people;
mod sys;
mod unfinished;

use std::path::Path;
use std::process::ExitCode;

use commands::inspect::btrfs::find_root;
#[cfg(target_os = "linux")]
use commands::mount_helper;
use commands::{btrfs, mkfs};

/// musl's own serves one thread at a time.
#[cfg(all(target_os = "linux", target_env = "musl"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    memory::join_freed_memory_at_once();
    let mut words = std::env::args_os();
    let program = words.next();
    #[cfg(target_os = "linux")]
    if mount_helper::is_named(program.as_deref()) {
        return ExitCode::from(mount_helper::run(words));
    }
    let called = program.as_deref().and_then(|program| Path::new(program).file_name());
    let is_called = |name: &str| called.is_some_and(|called| called == name);
    if is_called(mkfs::NAME) {
        return ExitCode::from(mkfs::run_named());
    }
    if is_called(find_root::NAME) {
        return ExitCode::from(find_root::run_named());
    }
    if is_called(btrfs::NAME) || words.next().is_some_and(|word| word == btrfs::NAME) {
        return ExitCode::from(btrfs::run(words));
    }
    match cli::parse().and_then(|cli| cli::run(&cli)) {
        Ok(code) => ExitCode::from(code),
        Err(error) if people::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            crate::people::warn(format_args!("cowshed: {error:#}"));
            ExitCode::from(2)
        }
    }
}
