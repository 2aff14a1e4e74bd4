//! One module for each command. A command returns the exit code: 0 all well, 1 something found, 2 (by error) failed.

pub mod cat;
pub mod check;
pub mod docs;
pub mod inspect;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod stat;
pub mod umount;

use anyhow::Result;

use crate::cli::{Cli, Command};

pub fn run(cli: &Cli) -> Result<u8> {
    match &cli.command {
        Command::Mkfs(args) => mkfs::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Check(args) => check::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Cat(args) => cat::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Completions(args) => docs::completions(args),
        Command::Man(args) => docs::man(args),
    }
}
