//! `cowshed inspect`: the structures on a volume, for debugging. Reads only, also beside a writer.
//! And the account of a mounted volume's space.
//!
//! One module for each format; `inspect super` looks for the format itself, all other views belong
//! to one format, and say so where the volume is of another.

pub mod btrfs;
mod targets;
mod xfs;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};
use cowshed::formats::Format;

use crate::devices;

#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Superblocks
    #[command(visible_alias = "dump-super")]
    Super(btrfs::superblock::SuperArgs),
    /// btrfs: trees, block by block
    #[command(visible_alias = "dump-tree")]
    Tree(btrfs::tree::TreeArgs),
    /// btrfs: the chunk map, where logical addresses lie on devices
    Chunk(btrfs::chunk::ChunkArgs),
    /// btrfs: what lies at a logical address, and what refers to it
    Extent(btrfs::extent::ExtentArgs),
    /// btrfs: one tree block
    Block(btrfs::tree::BlockArgs),
    /// btrfs: roots of trees as of earlier commits, also where no superblock names them
    FindRoot(btrfs::find_root::FindRootArgs),
    /// btrfs: the space of a mounted volume, what there is, what is promised, and to which
    /// operations
    Space(btrfs::space::SpaceArgs),
    /// XFS: headers of free space (AGF), one for each allocation group
    Agf(xfs::groups::GroupArgs),
    /// XFS: headers of inodes (AGI), one for each allocation group
    Agi(xfs::groups::GroupArgs),
    /// XFS: lists of spare blocks (AGFL), one for each allocation group
    Agfl(xfs::groups::GroupArgs),
    /// XFS: a B-tree of an allocation group or of an inode, block by block
    Btree(xfs::btree::BtreeArgs),
    /// XFS: inodes
    Inode(xfs::inode::InodeArgs),
    /// XFS: the blocks of a directory
    Dir(xfs::dir::DirArgs),
    /// XFS: the blocks of an inode's extended attributes
    Attr(xfs::attr::AttrArgs),
    /// XFS: the records of the log
    Log(xfs::log::LogArgs),
}

pub fn run(args: &InspectArgs) -> Result<u8> {
    crate::log::to_terminal(0);
    let of_btrfs = |targets: &[PathBuf], what: &str| need(targets, Format::Btrfs, what);
    let of_xfs = |target: &PathBuf, what: &str| need(std::slice::from_ref(target), Format::Xfs, what);
    match &args.what {
        What::Super(args) => match args.target().map(|target| devices::format_at(target)) {
            Some(Format::Xfs) => xfs::superblock::run(args),
            Some(Format::Btrfs) | None => btrfs::superblock::run(args),
        },
        What::Tree(args) => {
            of_btrfs(args.targets(), "tree")?;
            btrfs::tree::run(args)
        }
        What::Chunk(args) => {
            of_btrfs(args.targets(), "chunk")?;
            btrfs::chunk::run(args)
        }
        What::Extent(args) => {
            of_btrfs(args.targets(), "extent")?;
            btrfs::extent::run(args)
        }
        What::Block(args) => {
            of_btrfs(args.targets(), "block")?;
            btrfs::tree::run_block(args)
        }
        What::FindRoot(args) => {
            of_btrfs(args.targets(), "find-root")?;
            btrfs::find_root::run(args)
        }
        What::Space(args) => btrfs::space::run(args),
        What::Agf(args) => {
            of_xfs(&args.target, "agf")?;
            xfs::groups::run_agf(args)
        }
        What::Agi(args) => {
            of_xfs(&args.target, "agi")?;
            xfs::groups::run_agi(args)
        }
        What::Agfl(args) => {
            of_xfs(&args.target, "agfl")?;
            xfs::groups::run_agfl(args)
        }
        What::Btree(args) => {
            of_xfs(&args.target, "btree")?;
            xfs::btree::run(args)
        }
        What::Inode(args) => {
            of_xfs(&args.target, "inode")?;
            xfs::inode::run(args)
        }
        What::Dir(args) => {
            of_xfs(&args.target, "dir")?;
            xfs::dir::run(args)
        }
        What::Attr(args) => {
            of_xfs(&args.target, "attr")?;
            xfs::attr::run(args)
        }
        What::Log(args) => {
            of_xfs(&args.target, "log")?;
            xfs::log::run(args)
        }
    }
}

fn need(targets: &[PathBuf], format: Format, what: &str) -> Result<()> {
    match targets.first() {
        Some(target) => devices::need_format(target, format, &format!("inspect {what}")),
        None => Ok(()),
    }
}
