//! `cowshed inspect`: what lies on a volume, for people who look for a fault. Reads only, also beside a writer.

mod chunk;
mod extent;
mod reader;
mod superblock;
mod tree;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Superblocks
    #[command(visible_alias = "dump-super")]
    Super(superblock::SuperArgs),
    /// Trees, block by block
    #[command(visible_alias = "dump-tree")]
    Tree(tree::TreeArgs),
    /// The chunk map: where logical addresses lie on devices
    Chunk(chunk::ChunkArgs),
    /// What lies at a logical address, and who refers to it
    Extent(extent::ExtentArgs),
    /// One tree block
    Block(tree::BlockArgs),
}

/// The devices of the volume to look at.
#[derive(Args, Debug)]
struct Targets {
    /// Image files or block devices of one volume
    #[arg(required = true, value_name = "TARGET")]
    targets: Vec<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &InspectArgs) -> Result<u8> {
    crate::log::to_terminal(0);
    match &args.what {
        What::Super(args) => superblock::run(args),
        What::Tree(args) => tree::run(args),
        What::Chunk(args) => chunk::run(args),
        What::Extent(args) => extent::run(args),
        What::Block(args) => tree::run_block(args),
    }
}

/// A logical address: decimal, or hexadecimal with 0x.
fn address(text: &str) -> Result<u64> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let Ok(addr) = parsed else {
        bail!("{text:?} is no address")
    };
    Ok(addr)
}
