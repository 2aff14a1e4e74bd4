//! `btrfs check`: the independent checker under the flags and words of the stock command.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use super::say::{print, reason, refuse};
use crate::block_devices::superblock;
use crate::commands::check::{Judging, judge};

#[derive(Args, Debug)]
pub struct CheckArgs {
    /// Check although the volume is in use: what changes meanwhile looks like a fault
    #[arg(long)]
    force: bool,
    /// Change nothing, which is what is always done
    #[arg(long)]
    readonly: bool,
    /// Compare all data with its checksums
    #[arg(long)]
    check_data_csum: bool,
    /// Show progress
    #[arg(short, long)]
    progress: bool,
    /// original or lowmem: accepted
    #[arg(long, value_name = "MODE")]
    mode: Option<String>,
    /// Mend what is wrong: not implemented yet
    #[arg(long, hide = true)]
    repair: bool,
    #[arg(long, hide = true)]
    init_csum_tree: bool,
    #[arg(long, hide = true)]
    init_extent_tree: bool,
    #[arg(long, hide = true)]
    clear_ino_cache: bool,
    #[arg(long, hide = true)]
    clear_space_cache: Option<String>,
    #[arg(short, long = "super", hide = true)]
    super_copy: Option<String>,
    #[arg(short, long, hide = true)]
    backup: bool,
    #[arg(short = 'r', long, hide = true)]
    tree_root: Option<String>,
    #[arg(long, hide = true)]
    chunk_root: Option<String>,
    #[arg(short = 'Q', long, hide = true)]
    qgroup_report: bool,
    #[arg(short = 'E', long, hide = true)]
    subvol_extents: Option<String>,
    /// A device or image
    device: PathBuf,
}

impl CheckArgs {
    /// An option that is not there.
    fn unknown(&self) -> Option<&'static str> {
        let options = [
            (self.repair, "--repair"),
            (self.init_csum_tree, "--init-csum-tree"),
            (self.init_extent_tree, "--init-extent-tree"),
            (self.clear_ino_cache, "--clear-ino-cache"),
            (self.clear_space_cache.is_some(), "--clear-space-cache"),
            (self.super_copy.is_some(), "--super"),
            (self.backup, "--backup"),
            (self.tree_root.is_some(), "--tree-root"),
            (self.chunk_root.is_some(), "--chunk-root"),
            (self.qgroup_report, "--qgroup-report"),
            (self.subvol_extents.is_some(), "--subvol-extents"),
        ];
        options.iter().find(|(is_asked, _)| *is_asked).map(|(_, name)| *name)
    }
}

/// A line of output. The exit code is that of the check, also where the reader of the output is
/// gone.
fn say(text: impl std::fmt::Display) -> Result<()> {
    match print(text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

pub fn run(args: &CheckArgs) -> Result<u8> {
    if let Some(option) = args.unknown() {
        return refuse(&format!("check {option}"));
    }
    if let Some(mode) = args
        .mode
        .as_deref()
        .filter(|mode| !["original", "lowmem"].contains(mode))
    {
        bail!("unknown mode: {mode}");
    }
    let path = Path::new(&args.device);
    let shown = path.display();
    if let Err(error) = path.metadata() {
        bail!("mount check: cannot open {shown}: {}", reason(&error));
    }
    say(format_args!("Opening filesystem to check..."))?;
    let Some(superblock) = superblock(path) else {
        bail!("no valid Btrfs found on {shown}");
    };
    say(format_args!("Checking filesystem on {shown}"))?;
    say(format_args!("UUID: {}", uuid::Uuid::from_bytes(superblock.fsid)))?;
    let how = Judging {
        force: args.force,
        data_csums: args.check_data_csum,
        progress: args.progress,
    };
    let verdict = judge(std::slice::from_ref(&args.device), &how)?;
    crate::people::warn_part(verdict.findings);
    // The stock command does not say how much data it verified.
    let sums = verdict
        .sums
        .lines()
        .filter(|line| !line.starts_with("data bytes verified"));
    say(sums.collect::<Vec<_>>().join("\n"))?;
    Ok(u8::from(!verdict.is_clean))
}
