//! `btrfs restore`: files off a damaged volume that is not mounted, as far as they can be read
//! (docs/rescue.md). Data is not compared with its checksums, as by the stock command.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::say::{Voice, refuse};
use crate::commands::files::{Restoring, restore};

#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// Only say which files would be restored
    #[arg(short = 'D', long)]
    dry_run: bool,
    /// Exit with 0 though files could not be restored
    #[arg(short, long)]
    ignore_errors: bool,
    /// Overwrite files that are there
    #[arg(short, long)]
    overwrite: bool,
    /// Owners, modes and times, too
    #[arg(short, long)]
    metadata: bool,
    /// Symbolic links, too
    #[arg(short = 'S', long)]
    symlink: bool,
    /// Snapshots, too
    #[arg(short, long)]
    snapshots: bool,
    /// Extended attributes, too
    #[arg(short, long)]
    xattr: bool,
    /// The subvolume of this number
    #[arg(short, long, value_name = "ID")]
    root: Option<u64>,
    /// Roots of all trees: not implemented yet
    #[arg(short, long, hide = true)]
    list_roots: bool,
    /// Not implemented yet
    #[arg(short = 'f', hide = true)]
    filesystem: Option<u64>,
    /// Not implemented yet
    #[arg(short = 't', hide = true)]
    tree: Option<u64>,
    /// Not implemented yet
    #[arg(short = 'u', long = "super", hide = true)]
    mirror: Option<u64>,
    /// Not implemented yet
    #[arg(short = 'd', hide = true)]
    find_dir: bool,
    /// Not implemented yet
    #[arg(long, hide = true)]
    path_regex: Option<String>,
    /// Not implemented yet
    #[arg(short = 'c', hide = true)]
    case: bool,
    /// A device or image
    device: PathBuf,
    /// A directory for the files
    path: Option<PathBuf>,
}

pub fn run(args: &RestoreArgs, voice: Voice) -> Result<u8> {
    for (is_given, name) in [
        (args.list_roots, "restore --list-roots"),
        (args.filesystem.is_some(), "restore -f"),
        (args.tree.is_some(), "restore -t"),
        (args.mirror.is_some(), "restore --super"),
        (args.find_dir, "restore -d"),
        (args.path_regex.is_some() || args.case, "restore --path-regex"),
    ] {
        if is_given {
            return refuse(name);
        }
    }
    let Some(dir) = &args.path else {
        bail!("no directory for the files is given");
    };
    let code = restore(&Restoring {
        image: &args.device,
        dir,
        subvolume: args.root.unwrap_or(5),
        is_dry_run: args.dry_run || voice.is_dry_run,
        overwrites: args.overwrite,
        metadata: args.metadata,
        symlinks: args.symlink,
        snapshots: args.snapshots,
        xattrs: args.xattr,
        is_verbose: voice.is_verbose,
    })?;
    Ok(if args.ignore_errors { 0 } else { code })
}
