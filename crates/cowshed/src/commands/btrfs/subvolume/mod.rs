//! `btrfs subvolume`, and `cowshed subvolume`, which is the same.

mod defaults;
mod delete;
mod find_new;
mod list;
mod make;
mod show;
mod sync;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::say::{Voice, refuse};
use crate::lazy_args::Lazy;

#[derive(Args, Debug)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub struct SubvolumeArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Make empty subvolumes
    Create {
        /// Make missing directories above them, too
        #[arg(short, long)]
        parents: bool,
        /// Quota groups to add them to: not implemented yet
        #[arg(short = 'i', value_name = "QGROUPID")]
        qgroups: Vec<String>,
        /// Where they shall be
        #[arg(required = true)]
        dests: Vec<PathBuf>,
    },
    /// Delete subvolumes and all that is in them
    Delete(Lazy<delete::DeleteArgs>),
    /// List subvolumes
    List(Lazy<list::ListArgs>),
    /// Make a snapshot of a subvolume
    Snapshot {
        /// Nothing in it can be changed
        #[arg(short, long)]
        readonly: bool,
        /// Quota groups to add it to: not implemented yet
        #[arg(short = 'i', value_name = "QGROUPID")]
        qgroups: Vec<String>,
        /// A subvolume
        source: PathBuf,
        /// Where the snapshot shall be; in a directory that exists it gets the source's name
        dest: PathBuf,
    },
    /// Show which subvolume is mounted where no other is asked for
    GetDefault {
        /// A directory on the volume
        path: PathBuf,
    },
    /// Have a subvolume mounted where no other is asked for
    SetDefault {
        /// A subvolume, or the number of one
        subvolume: PathBuf,
        /// A directory on the volume, with a number
        path: Option<PathBuf>,
    },
    /// List the files of a subvolume that were written lately
    FindNew {
        /// A subvolume
        path: PathBuf,
        /// Extents of this transaction and later ones
        #[arg(value_name = "LASTGEN")]
        generation: String,
    },
    /// Show what is known of a subvolume
    Show(Lazy<show::ShowArgs>),
    /// Wait until deleted subvolumes are gone
    Sync(Lazy<sync::SyncArgs>),
}

pub fn run(args: &SubvolumeArgs, voice: Voice) -> Result<u8> {
    match &args.what {
        What::Create { qgroups, .. } if !qgroups.is_empty() => refuse("subvolume create -i"),
        What::Snapshot { qgroups, .. } if !qgroups.is_empty() => refuse("subvolume snapshot -i"),
        What::Create { parents, dests, .. } => make::create(dests, *parents, voice),
        What::Snapshot {
            readonly, source, dest, ..
        } => make::snapshot(source, dest, *readonly, voice),
        What::Delete(args) => delete::run(args, voice),
        What::List(args) => list::run(args),
        What::Show(args) => show::run(args),
        What::GetDefault { path } => defaults::show(path),
        What::SetDefault { subvolume, path } => defaults::set(subvolume, path.as_deref()),
        What::FindNew { path, generation } => find_new::run(path, generation),
        What::Sync(args) => sync::run(args),
    }
}

/// As [`run`], for `cowshed subvolume`: failures are 2 there.
pub fn run_as_own(args: &SubvolumeArgs) -> Result<u8> {
    match run(args, Voice::default())? {
        0 => Ok(0),
        _ => Ok(2),
    }
}
