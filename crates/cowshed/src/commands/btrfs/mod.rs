//! The command people know: the program called as `btrfs`, and `cowshed btrfs`. Words, flags,
//! output and exit codes are those of btrfs(8), on mounts of ours and of the kernel, and on images.

pub mod calls;
mod place;
mod roots;
mod say;
pub mod subvolume;
mod unknown;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use anyhow::Result;
use clap::{Args, Command, CommandFactory as _, Parser, Subcommand, ValueEnum};

use say::{Voice, error};

/// The version of btrfs(8) whose output this is.
const LIKE_VERSION: &str = "btrfs-progs v6.2";

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
    /// Accepted: nothing more is printed
    #[arg(short, long, action = clap::ArgAction::Count)]
    _verbose: u8,
    /// Form of the output
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
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
    Subvolume(subvolume::SubvolumeArgs),
    /// Print the version
    Version,
    /// What there is of btrfs(8) beside this
    #[command(flatten)]
    Unknown(unknown::Unknown),
}

/// Is the program called by the name of this command?
pub fn is_named(program: Option<&OsStr>) -> bool {
    let name = program.and_then(|program| Path::new(program).file_name());
    name.is_some_and(|name| name == NAME)
}

/// Its command line.
pub fn command() -> Command {
    Cli::command()
}

/// Runs the command with the arguments behind its name. Returns its exit code.
pub fn run(args: impl Iterator<Item = OsString>) -> u8 {
    let words = std::iter::once(OsString::from(NAME)).chain(args);
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(wrong) => {
            // A terminal that is gone is no matter here.
            let _ = wrong.print();
            return u8::from(wrong.use_stderr());
        }
    };
    if cli.version {
        return version();
    }
    match dispatch(&cli.args) {
        Ok(code) => code,
        Err(failed) => {
            error(format_args!("{failed:#}"));
            1
        }
    }
}

/// Runs the command that was asked for. Returns its exit code.
pub fn dispatch(args: &BtrfsArgs) -> Result<u8> {
    let voice = Voice {
        is_quiet: args.quiet || args.log == Log::Quiet,
        is_json: args.format == Format::Json,
    };
    match &args.group {
        Some(Group::Subvolume(args)) => subvolume::run(args, voice),
        Some(Group::Version) => Ok(version()),
        Some(Group::Unknown(what)) => unknown::refuse(what),
        None => {
            eprint!("{}", command().render_help());
            Ok(1)
        }
    }
}

fn version() -> u8 {
    println!("{LIKE_VERSION} (cowshed {})", env!("CARGO_PKG_VERSION"));
    0
}
