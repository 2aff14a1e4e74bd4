//! The command line: its commands, its help, and the way to each command.

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

#[cfg(not(target_os = "linux"))]
use crate::commands::no_mounts;
use crate::commands::{
    btrfs, build, cat, check, diff, docs, doctor, extents, files, inspect, ls, mkfs, mount, receive, send, stat, sync,
    umount,
};
use crate::lazy_args::Lazy;

#[derive(Parser, Debug)]
#[command(
    name = "cowshed",
    version,
    about = "Copy-on-write file systems in user space: make, mount, check and inspect volumes of btrfs; read XFS",
    long_about = "Makes, mounts, checks and inspects btrfs volumes without a kernel driver and without root, and \
                  mounts, reads, checks and inspects volumes of XFS. The volumes are Linux's own: the kernel and the \
                  formats' own programs read and write them too.",
    after_help = "IMAGE is an image file or block device, or a part of one: DISK:PARTITION by its number or name, \
                  DISK:@OFFSET from a byte on.",
    disable_help_subcommand = true,
    arg_required_else_help = true,
    args_override_self = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a volume on image files or devices
    Mkfs(Lazy<mkfs::MkfsArgs>),
    /// Build an image of what directories and archives hold
    Build(Lazy<Box<build::BuildArgs>>),
    /// Mount a volume on a directory
    ///
    /// The format is recognised. Volumes of XFS are mounted read-only.
    ///
    /// A volume that is mounted already can be mounted again by the same user, with another
    /// subvol=, read-only or not: the process that has it serves both, and ends with the last.
    /// Called as mount.cowshed or mount.fuse.cowshed, the program is the helper of mount(8) for
    /// /etc/fstab and mount -t cowshed.
    Mount(Lazy<mount::MountArgs>),
    /// Unmount; returns when everything is on disk
    Umount(Lazy<umount::UmountArgs>),
    /// Write everything of a mount to disk, also where sync(1) does not
    Sync(Lazy<sync::SyncArgs>),
    /// Check a volume for faults, without changing it
    ///
    /// The format is recognised: btrfs or XFS. What the log of a volume of XFS holds is replayed in
    /// memory first. Lists that do not fit memory lie in a temporary file (XFS).
    Check(Lazy<check::CheckArgs>),
    /// Show what lies on a volume: superblocks, trees, and the other structures of its format
    Inspect(Lazy<inspect::InspectArgs>),
    /// List directories of an image
    Ls(Lazy<ls::LsArgs>),
    /// Print files of an image
    Cat(Lazy<cat::CatArgs>),
    /// Show what is known of files of an image
    Stat(Lazy<stat::StatArgs>),
    #[command(flatten)]
    Files(Box<files::FileCommand>),
    /// Run the commands on files of an image, line by line
    ///
    /// A path is one in the image; host:PATH is one of the host. The lines may come by a pipe.
    Shell(Lazy<files::shell::ShellArgs>),
    /// The command of btrfs-progs, with its words, output and exit codes
    ///
    /// Called as btrfs (by a link of that name), the program is this command.
    Btrfs(Lazy<btrfs::BtrfsArgs>),
    /// Make, list and delete subvolumes and snapshots: btrfs subvolume
    #[command(visible_alias = "sub")]
    Subvolume(Lazy<btrfs::subvolume::SubvolumeArgs>),
    /// Show how two subvolumes differ
    Diff(Lazy<diff::DiffArgs>),
    /// Write read-only subvolumes as a stream
    Send(Lazy<send::SendArgs>),
    /// Receive subvolumes from a stream of btrfs send
    Receive(Lazy<receive::ReceiveArgs>),
    /// Copy a file or a whole tree of a mount by sharing extents
    Clone(Lazy<extents::clone::CloneArgs>),
    /// Share the extents of files that hold the same
    Dedupe(Lazy<extents::dedupe::DedupeArgs>),
    /// Swap the contents of two files in one step
    Exchange(Lazy<extents::exchange::ExchangeArgs>),
    /// Show where a file lies, as filefrag -v
    Fiemap(Lazy<extents::fiemap::FiemapArgs>),
    /// Show what files take on disk, by kind of compression
    Compsize(Lazy<extents::compsize::CompsizeArgs>),
    /// Rewrite files that lie in many small extents
    Defrag(Lazy<extents::defrag::DefragArgs>),
    /// Say what this machine lets mounts be, and what would make them faster
    Doctor(Lazy<doctor::DoctorArgs>),
    /// Print a completion script for a shell
    Completions(Lazy<docs::CompletionsArgs>),
    /// Write the manual pages
    #[command(hide = true)]
    Man(Lazy<docs::ManArgs>),
}

/// The command line as this system has it.
pub fn command() -> clap::Command {
    let command = Cli::command();
    #[cfg(not(target_os = "linux"))]
    let command = no_mounts::without_mounts(command);
    command
}

/// The command line of this process. One that is wrong ends the process, with what is wrong.
///
/// # Errors
/// A command that this system does not have.
pub fn parse() -> Result<Cli> {
    #[cfg(not(target_os = "linux"))]
    no_mounts::refuse(std::env::args_os().nth(1).as_deref())?;
    let parsed = Cli::from_arg_matches_mut(&mut command().get_matches());
    Ok(parsed.unwrap_or_else(|wrong| wrong.format(&mut command()).exit()))
}

/// Runs the command that was asked for. Returns its exit code.
pub fn run(cli: &Cli) -> Result<u8> {
    match &cli.command {
        Command::Mkfs(args) => mkfs::run(args),
        Command::Build(args) => Ok(build::run(args)),
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        Command::Sync(args) => sync::run(args),
        Command::Check(args) => check::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Ls(args) => ls::run(args, &files::Base::Host),
        Command::Cat(args) => cat::run(args, &files::Base::Host),
        Command::Stat(args) => stat::run(args, &files::Base::Host),
        Command::Shell(args) => files::shell::run(args),
        Command::Files(command) => match command.du_of_subvolumes() {
            Some(args) => btrfs::shares::run(&args.paths, args.json, args.human_readable),
            None => files::run(command, &files::Base::Host),
        },
        Command::Btrfs(args) => btrfs::dispatch(args),
        Command::Subvolume(args) => btrfs::subvolume::run_as_own(args),
        Command::Diff(args) => diff::run(args),
        Command::Send(args) => send::run(args),
        Command::Receive(args) => receive::run(args),
        Command::Clone(args) => extents::clone::run(args),
        Command::Dedupe(args) => extents::dedupe::run(args),
        Command::Exchange(args) => extents::exchange::run(args),
        Command::Fiemap(args) => extents::fiemap::run(args),
        Command::Compsize(args) => extents::compsize::run(args),
        Command::Defrag(args) => extents::defrag::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Completions(args) => docs::completions(args, command()),
        Command::Man(args) => docs::man(args, command()),
    }
}
