//! One module for each command. A command returns the exit code: 0 all well, 1 something found, 2 (by error) failed.

pub mod cat;
pub mod check;
pub mod docs;
pub mod extents;
pub mod inspect;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod stat;
pub mod sync;
pub mod umount;

use anyhow::Result;

use crate::cli::{Cli, Command};

pub fn run(cli: &Cli) -> Result<u8> {
    match &cli.command {
        Command::Mkfs(args) => mkfs::run(args),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Sync(args) => sync::run(args),
        Command::Check(args) => check::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Cat(args) => cat::run(args),
        Command::Stat(args) => stat::run(args),
        Command::Clone(args) => extents::clone::run(args),
        Command::Dedupe(args) => extents::dedupe::run(args),
        Command::Exchange(args) => extents::exchange::run(args),
        Command::Fiemap(args) => extents::fiemap::run(args),
        Command::Compsize(args) => extents::compsize::run(args),
        Command::Defrag(args) => extents::defrag::run(args),
        Command::Completions(args) => docs::completions(args),
        Command::Man(args) => docs::man(args),
    }
}
