//! `btrfs restore`: files off a damaged volume that is not mounted, as far as they can be read
//! (docs/rescue.md). Data is not compared with its checksums, as by the stock command.

use std::path::PathBuf;

use anyhow::{Result, bail};
use btrfs_format::LogicalAddr;
use btrfs_format::render::key_text;
use btrfs_store::volume::Rescue;
use clap::Args;
use regex::bytes::{Regex, RegexBuilder};

use super::say::{Voice, number, print, refuse, warning};
use crate::commands::files::{Restoring, restore};
use crate::commands::inspect::btrfs::reader::Reader;

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
    /// List the roots of trees, and restore nothing
    #[arg(short, long)]
    list_roots: bool,
    /// By the root of the top level, or of a subvolume, at this address
    #[arg(short = 'f', value_name = "BYTENR", value_parser = number)]
    filesystem: Option<u64>,
    /// By the root of the root tree at this address: inspect find-root lists them
    #[arg(short = 't', value_name = "BYTENR", value_parser = number)]
    tree: Option<u64>,
    /// Not implemented yet
    #[arg(short = 'u', long = "super", hide = true)]
    mirror: Option<u64>,
    /// Not implemented yet
    #[arg(short = 'd', hide = true)]
    find_dir: bool,
    /// Only what has such a path, with its directories: ^/(|home(|/user(|/.*)))$
    #[arg(long, value_name = "REGEX")]
    path_regex: Option<String>,
    /// With --path-regex: take small and capital letters for the same
    #[arg(short = 'c')]
    case: bool,
    /// A device or image
    device: PathBuf,
    /// A directory for the files
    path: Option<PathBuf>,
}

pub fn run(args: &RestoreArgs, voice: Voice) -> Result<u8> {
    for (is_given, name) in [
        (args.mirror.is_some(), "restore --super"),
        (args.find_dir, "restore -d"),
    ] {
        if is_given {
            return refuse(name);
        }
    }
    if args.list_roots {
        return list_roots(args);
    }
    let Some(dir) = &args.path else {
        bail!("no directory for the files is given");
    };
    let code = restore(&Restoring {
        image: &args.device,
        dir,
        subvolume: args.root.unwrap_or(5),
        tree_root: args.tree,
        top_level_root: args.filesystem,
        paths: args
            .path_regex
            .as_deref()
            .map(|regex| paths(regex, args.case))
            .transpose()?,
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

fn paths(regex: &str, ignores_case: bool) -> Result<Regex> {
    let mut builder = RegexBuilder::new(regex);
    builder.unicode(false).dot_matches_new_line(true);
    match builder.case_insensitive(ignores_case).build() {
        Ok(regex) => Ok(regex),
        Err(error) => bail!("regex compilation failed: {error}"),
    }
}

/// The trees that the root tree names.
fn list_roots(args: &RestoreArgs) -> Result<u8> {
    crate::log::to_terminal(0);
    let rescue = Rescue {
        ignore_super_flags: true,
        salvage: true,
        tree_root: args.tree.map(LogicalAddr),
        ..Rescue::default()
    };
    let reader = Reader::open_with(std::slice::from_ref(&args.device), rescue)?;
    let roots = reader.roots_left(&mut |error| warning(format_args!("{error:#}")))?;
    for (key, addr, level) in roots {
        print(format_args!(" tree key {} {addr} level {level}", key_text(&key)))?;
    }
    Ok(0)
}
