//! `btrfs inspect-internal`.

mod dump_super;
mod dump_tree;
mod resolve;
mod tree_stats;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use super::place::{Found, Images, Place};
use super::say::{Voice, print, reason, refuse};
use super::unknown::Words;

#[derive(Args, Debug)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub struct InspectArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Show superblocks
    DumpSuper(dump_super::DumpSuperArgs),
    /// Show the blocks of trees
    DumpTree(dump_tree::DumpTreeArgs),
    /// Show how large trees are, and how they lie on the volume
    TreeStats(tree_stats::TreeStatsArgs),
    /// Show the number of the subvolume that a path is in
    Rootid {
        /// A file or directory
        path: PathBuf,
    },
    /// Show the path of a subvolume
    SubvolidResolve {
        /// Its number
        id: String,
        /// A directory on the volume
        path: PathBuf,
    },
    /// Show the paths of an inode
    InodeResolve {
        /// Accepted
        #[arg(short)]
        verbose: bool,
        /// Its number
        inode: String,
        /// A directory of the subvolume that it is in
        path: PathBuf,
    },
    /// Show the files that have data at an address of the volume
    LogicalResolve(resolve::LogicalArgs),
    /// Show how small a device can be made: not implemented yet
    #[command(hide = true)]
    MinDevSize(Words),
    /// Show where a swap file lies: not implemented yet
    #[command(hide = true)]
    MapSwapfile(Words),
}

pub fn run(args: &InspectArgs, voice: Voice) -> Result<u8> {
    match &args.what {
        What::DumpSuper(args) => dump_super::run(args),
        What::DumpTree(args) => dump_tree::run(args),
        What::TreeStats(args) => tree_stats::run(args),
        What::Rootid { path } => root_id(path),
        What::SubvolidResolve { id, path } => resolve::subvolume(id, path),
        What::InodeResolve { inode, path, .. } => resolve::inode(inode, path),
        What::LogicalResolve(args) => resolve::logical(args, voice),
        What::MinDevSize(_) => refuse("inspect-internal min-dev-size"),
        What::MapSwapfile(_) => refuse("inspect-internal map-swapfile"),
    }
}

fn root_id(path: &Path) -> Result<u8> {
    let mut images = Images::to_read();
    let place: Place = match images.found(path)? {
        Ok(Found::Place(place)) => place,
        Ok(Found::Elsewhere { .. }) => bail!("not a btrfs filesystem: {}", path.display()),
        Err(error) => bail!("cannot access '{}': {}", path.display(), reason(&error)),
    };
    match place.tree() {
        Ok(id) => print(id)?,
        Err(error) => bail!("failed to lookup root id: {}", reason(&error)),
    }
    Ok(0)
}
