//! The command line: what there is to say, and its help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(
    name = "cowshed",
    version,
    about = "Copy-on-write file systems in user space: make, mount, check and inspect btrfs volumes",
    long_about = "Makes, mounts, checks and inspects btrfs volumes without a kernel driver and without root. \
                  The volumes are Linux's own: the kernel and btrfs-progs read and write them too.",
    disable_help_subcommand = true,
    arg_required_else_help = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a volume on image files or devices
    Mkfs(super::commands::mkfs::MkfsArgs),
    /// Mount a volume on a directory
    Mount(MountArgs),
    /// Unmount; returns when everything is on disk
    Umount(UmountArgs),
    /// Write everything of a mount to disk, also where sync(1) does not
    Sync(super::commands::sync::SyncArgs),
    /// Check a volume for faults, without changing it
    Check(super::commands::check::CheckArgs),
    /// Show what lies on a volume: superblocks, trees, chunks, extents, blocks
    Inspect(super::commands::inspect::InspectArgs),
    /// List directories of a volume that is not mounted
    Ls(super::commands::ls::LsArgs),
    /// Print files of a volume that is not mounted
    Cat(super::commands::cat::CatArgs),
    /// Show what is known of a file of a volume that is not mounted
    Stat(super::commands::stat::StatArgs),
    /// Copy a file of a mount by sharing its extents
    Clone(super::commands::extents::clone::CloneArgs),
    /// Share the extents of files that hold the same
    Dedupe(super::commands::extents::dedupe::DedupeArgs),
    /// Swap the contents of two files in one step
    Exchange(super::commands::extents::exchange::ExchangeArgs),
    /// Show where a file lies, as filefrag -v
    Fiemap(super::commands::extents::fiemap::FiemapArgs),
    /// Show what files take on disk, by kind of compression
    Compsize(super::commands::extents::compsize::CompsizeArgs),
    /// Rewrite files that lie in many small extents
    Defrag(super::commands::extents::defrag::DefragArgs),
    /// Print a completion script for a shell
    Completions(super::commands::docs::CompletionsArgs),
    /// Write the manual pages
    #[command(hide = true)]
    Man(super::commands::docs::ManArgs),
}

/// How a volume is opened by the commands that read files without mounting.
#[derive(Args, Debug)]
pub struct ReadArgs {
    /// Another device of the same volume
    #[arg(short = 'D', long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// Options as mount has them: subvol=, subvolid=, degraded, rescue=
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Options of -o, as in btrfs(5) and mount(8):
  ro, rw                    read-only, read-write (default)
  subvol=PATH, subvolid=ID  the subvolume to show (default: the volume's default subvolume)
  device=PATH               a further device of the volume, besides the targets
  commit=SECONDS            seconds between commits that nobody asked for (default 30)
  relatime, noatime, strictatime, nodiratime
  nodatasum, nodatacow      for files made from now on
  compress=HOW, compress-force=HOW
                            compress what is written: zlib[:1-9], lzo, zstd[:-15..15], no; force: without looking first
  discard=HOW, nodiscard    give freed space back to the device, an image file gets holes: async (default, some
                            seconds later), sync (with each commit; also discard alone), no
  degraded                  mount although devices are missing
  rescue=usebackuproot:nologreplay:ignoredatacsums:...
  max_memory=SIZE           bound for pending changes and cached blocks, with k, m or g (default: a quarter of RAM)
  allow_other               let other users enter (root: default); private: only the user who mounts
  default_permissions       the kernel checks permissions
  suid, dev, exec, sync, dirsync and their opposites
  fsname=NAME               shown as the source instead of the first target
  noloop                    do not attach a loop device to an image file (root only)
  log=FILE                  where the background process writes its messages (default: syslog)")]
pub struct MountArgs {
    /// Image files or block devices of one volume, then the mount point
    #[arg(required = true, num_args = 2.., value_names = ["TARGET", "MOUNTPOINT"])]
    pub paths: Vec<PathBuf>,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground and log to the terminal
    #[arg(short, long)]
    pub foreground: bool,
    /// Mount read-only
    #[arg(short, long)]
    pub read_only: bool,
    /// Say more (with -f); twice: much more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Internal: this process is the background one
    #[arg(long, hide = true)]
    pub daemon: bool,
}

#[derive(Args, Debug)]
pub struct UmountArgs {
    /// Mount points
    #[arg(required = true)]
    pub mountpoints: Vec<PathBuf>,
    /// Take it out of the tree now; it ends when nobody uses it any more
    #[arg(short, long)]
    pub lazy: bool,
}
