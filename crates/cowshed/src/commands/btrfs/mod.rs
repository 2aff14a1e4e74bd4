//! The command line of btrfs-progs, as `btrfs` or `cowshed btrfs`. Words, flags,
//! output and exit codes are those of btrfs(8), on mounts of ours and of the kernel, and on images.

pub mod calls;
mod check;
mod device;
mod filesystem;
mod help;
mod inspect;
pub mod place;
mod property;
mod receive;
mod restore;
pub mod roots;
mod say;
mod send;
pub mod shares;
mod space;
pub mod subvolume;
mod table;
mod units;
mod unknown;
mod volume;

use std::ffi::OsString;

use anyhow::{Result, bail};
use clap::{ArgMatches, Args, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};

pub use say::LIKE_VERSION;
use say::{Voice, error};

use crate::commands::receive::ReceiveArgs;
use crate::commands::send::SendArgs;
use crate::lazy_args::Lazy;
use crate::people::is_broken_pipe;

/// The name that the program is called by.
pub const NAME: &str = "btrfs";

#[derive(Parser, Debug)]
#[command(
    name = "btrfs",
    about = "Manage btrfs volumes: mounts of cowshed's and of the kernel's, and images (IMAGE:/PATH)",
    disable_version_flag = true
)]
struct Cli {
    #[command(flatten)]
    args: BtrfsArgs,
    /// Print version
    #[arg(long)]
    version: bool,
}

#[derive(Args, Debug)]
#[command(
    infer_subcommands = true,
    disable_help_subcommand = true,
    after_help = "\
Each command takes the output format, the words and the exit codes of btrfs(8). A path is a directory on a mount, or \
IMAGE:/PATH on a volume that is not mounted. Commands may be shortened."
)]
pub struct BtrfsArgs {
    /// Print errors alone
    #[arg(short, long)]
    quiet: bool,
    /// Print more, where a command has more to say
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Form of the output
    #[arg(long, value_enum, ignore_case = true, default_value_t = Format::Text)]
    format: Format,
    /// Say what would be done, and do nothing: for subvolume delete
    #[arg(long)]
    dry_run: bool,
    /// quiet is as -q; the others are accepted
    #[arg(long, value_enum, value_name = "LEVEL", default_value_t = Log::Default)]
    log: Log,
    #[command(subcommand)]
    group: Option<Group>,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, ValueEnum, PartialEq, Eq)]
enum Log {
    Default,
    Info,
    Verbose,
    Debug,
    Quiet,
}

#[derive(Subcommand, Debug)]
enum Group {
    /// Make, list and delete subvolumes and snapshots
    Subvolume(Lazy<subvolume::SubvolumeArgs>),
    /// Space, devices, labels of volumes
    Filesystem(Lazy<filesystem::FilesystemArgs>),
    /// Properties of subvolumes, files and volumes
    Property(Lazy<property::PropertyArgs>),
    /// What lies where on a volume
    InspectInternal(Lazy<inspect::InspectArgs>),
    /// Devices of volumes
    Device(Lazy<device::DeviceArgs>),
    /// Check a volume that is not mounted, without changing it
    Check(Lazy<check::CheckArgs>),
    /// Write read-only subvolumes as a stream
    Send(Lazy<SendArgs>),
    /// Receive subvolumes from a stream
    Receive(Lazy<ReceiveArgs>),
    /// Get files off a damaged volume that is not mounted
    Restore(Lazy<restore::RestoreArgs>),
    /// Print the version
    Version,
    /// Print what commands there are
    Help(help::HelpArgs),
    /// What there is of btrfs(8) beside this
    #[command(flatten)]
    Unknown(unknown::Unknown),
}

/// Its command line.
pub fn command() -> Command {
    Cli::command()
}

/// Runs the command with the arguments behind its name. Returns its exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> u8 {
    let words = std::iter::once(OsString::from(NAME)).chain(words_for_clap(args));
    let parsed = Cli::command().try_get_matches_from(words).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches)?;
        Ok((cli, names(&matches)))
    });
    let (cli, names) = match parsed {
        Ok(parsed) => parsed,
        Err(wrong) => {
            // A terminal that is gone is no matter here.
            let _ = wrong.print();
            return u8::from(wrong.use_stderr());
        }
    };
    if cli.version {
        return version();
    }
    match cli.args.check_options(&names).and_then(|()| dispatch(&cli.args)) {
        Ok(code) => code,
        // The reader of the output has what it wanted.
        Err(failed) if is_broken_pipe(&failed) => 0,
        Err(failed) => {
            error(format_args!("{failed:#}"));
            1
        }
    }
}

/// The names of the command and its groups, in full.
fn names(matches: &ArgMatches) -> Vec<String> {
    let mut names = Vec::new();
    let mut below = matches.subcommand();
    while let Some((name, matches)) = below {
        names.push(name.to_owned());
        below = matches.subcommand();
    }
    names
}

/// Commands of groups that know `--format json`.
const WITH_JSON: &[[&str; 2]] = &[["filesystem", "df"], ["device", "stats"]];
/// The command that knows `--dry-run`.
const WITH_DRY_RUN: [&str; 2] = ["subvolume", "delete"];

impl BtrfsArgs {
    /// Refuses options that the command does not know. As in btrfs(8), those that change nothing
    /// and are in no group ignore them.
    fn check_options(&self, names: &[String]) -> Result<()> {
        let is_of_group = names.len() > 1;
        let is_json = self.format == Format::Json;
        if is_json && is_of_group && !WITH_JSON.iter().any(|known| names == known) {
            bail!("output format json is unsupported for this command");
        }
        let can_change = is_of_group || names == ["receive"];
        if let Some(name) = names.last().filter(|_| self.dry_run && can_change)
            && names != WITH_DRY_RUN
        {
            bail!("--dry-run option not supported for {name}");
        }
        Ok(())
    }
}

/// `defragment -cHOW` has its value without a space and without an equals sign: that is put in.
fn words_for_clap(words: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut is_defragment = false;
    words.map(move |word| {
        let Some(text) = word.to_str() else {
            return word;
        };
        is_defragment |= text.starts_with("def") && "defragment".starts_with(text);
        match text.split_once('c') {
            Some((flags, how)) if is_defragment && !how.is_empty() && !how.starts_with('=') => {
                let are_flags = flags
                    .strip_prefix('-')
                    .is_some_and(|flags| flags.chars().all(|c| "rfv".contains(c)));
                if are_flags {
                    format!("{flags}c={how}").into()
                } else {
                    word
                }
            }
            _ => word,
        }
    })
}

/// Runs the command that was asked for. Returns its exit code.
pub fn dispatch(args: &BtrfsArgs) -> Result<u8> {
    let voice = Voice {
        is_quiet: args.quiet || args.log == Log::Quiet,
        is_verbose: args.verbose > 0 || matches!(args.log, Log::Verbose | Log::Debug),
        is_json: args.format == Format::Json,
        is_dry_run: args.dry_run,
    };
    match &args.group {
        Some(Group::Subvolume(args)) => subvolume::run(args, voice),
        Some(Group::Filesystem(args)) => filesystem::run(args, voice),
        Some(Group::Property(args)) => property::run(args),
        Some(Group::InspectInternal(args)) => inspect::run(args, voice),
        Some(Group::Device(args)) => device::run(args, voice),
        Some(Group::Check(args)) => check::run(args),
        Some(Group::Send(args)) => send::run(args, voice),
        Some(Group::Receive(args)) => receive::run(args, voice),
        Some(Group::Restore(args)) => restore::run(args, voice),
        Some(Group::Version) => Ok(version()),
        Some(Group::Help(args)) => Ok(help::run(args, command())),
        Some(Group::Unknown(what)) => unknown::refuse(what),
        None => {
            crate::people::warn_part(command().render_help());
            Ok(1)
        }
    }
}

fn version() -> u8 {
    // The reader of the output may be gone.
    let _ = say::print(format_args!("{LIKE_VERSION} (cowshed {})", env!("CARGO_PKG_VERSION")));
    0
}
