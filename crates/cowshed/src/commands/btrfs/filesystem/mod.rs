//! `btrfs filesystem`.

mod defragment;
mod df;
mod du;
pub mod label;
mod show;
pub mod usage;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};

use super::place::Images;
use super::say::{Voice, reason, refuse};
use super::unknown::Words;

#[derive(Args, Debug)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub struct FilesystemArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Show how much space data and metadata have, and use
    Df(df::DfArgs),
    /// Show what files take, and how much of it they share
    Du(du::DuArgs),
    /// Show volumes and their devices
    Show(show::ShowArgs),
    /// Write everything to disk
    Sync {
        /// A directory or file on the volume
        path: PathBuf,
    },
    /// Rewrite files that lie in many small extents
    #[command(visible_alias = "defrag")]
    Defragment(defragment::DefragmentArgs),
    /// Show or change the label of a volume
    Label(label::LabelArgs),
    /// Show how the space of devices is used
    Usage(usage::UsageArgs),
    /// Change the size of a volume: not implemented yet
    #[command(hide = true)]
    Resize(Words),
    /// Make a swap file: not implemented yet
    #[command(hide = true)]
    Mkswapfile(Words),
    /// Spread data over devices: not implemented yet
    #[command(hide = true)]
    Balance(Words),
}

pub fn run(args: &FilesystemArgs, voice: Voice) -> Result<u8> {
    match &args.what {
        What::Df(args) => df::run(args, voice),
        What::Du(args) => du::run(args),
        What::Show(args) => show::run(args),
        What::Sync { path } => sync(path),
        What::Defragment(args) => defragment::run(args, voice),
        What::Label(args) => label::run(args),
        What::Usage(args) => usage::run(args),
        What::Resize(_) => refuse("filesystem resize"),
        What::Mkswapfile(_) => refuse("filesystem mkswapfile"),
        What::Balance(_) => refuse("filesystem balance"),
    }
}

fn sync(path: &Path) -> Result<u8> {
    let mut images = Images::to_write();
    if !images.has(path)? {
        bail!("Could not open: No such file or directory");
    }
    // btrfs(8) takes anything that has the call.
    let Ok(place) = images.anything(path) else {
        bail!("Could not sync filesystem: Inappropriate ioctl for device");
    };
    if let Err(error) = place.commit() {
        bail!("Could not sync filesystem: {}", reason(&error));
    }
    drop(place);
    images.close()?;
    Ok(0)
}
