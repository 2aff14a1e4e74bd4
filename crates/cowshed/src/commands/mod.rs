//! One module for each command. A command returns the exit code: 0 all well, 1 something found, 2 (by error) failed.

pub mod mkfs;
pub mod mount;
pub mod umount;

use anyhow::Result;

use crate::cli::{Cli, Command};

pub fn run(cli: &Cli) -> Result<u8> {
    match &cli.command {
        Command::Mkfs(args) => mkfs::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
    }
}
