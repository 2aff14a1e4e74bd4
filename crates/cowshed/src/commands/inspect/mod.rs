//! `cowshed inspect`: the structures on a volume, for debugging. Reads only, also beside a writer.
//! And the account of a mounted volume's space.

mod chunk;
mod extent;
mod reader;
mod space;
mod superblock;
mod targets;
mod tree;

use anyhow::Result;
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
    /// What lies at a logical address, and what refers to it
    Extent(extent::ExtentArgs),
    /// One tree block
    Block(tree::BlockArgs),
    /// The space of a mounted volume: what there is, what is promised, and to which operations
    Space(space::SpaceArgs),
}

pub fn run(args: &InspectArgs) -> Result<u8> {
    crate::log::to_terminal(0);
    match &args.what {
        What::Super(args) => superblock::run(args),
        What::Tree(args) => tree::run(args),
        What::Chunk(args) => chunk::run(args),
        What::Extent(args) => extent::run(args),
        What::Block(args) => tree::run_block(args),
        What::Space(args) => space::run(args),
    }
}
