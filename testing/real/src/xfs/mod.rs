//! XFS volumes of every kind that Linux and mkfs.xfs make, as Cowshed reads them.

mod compare;
mod kinds;
mod matrix;
mod proto;

use anyhow::Result;
use clap::Subcommand;

#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Volumes of every kind: the kernel fills them, Cowshed mounts them, and both show the same
    Matrix(matrix::Args),
}

pub fn main(args: &Args) -> Result<()> {
    match &args.command {
        Command::Matrix(args) => matrix::main(args),
    }
}
