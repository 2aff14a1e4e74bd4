//! `cowshed receive`: plays a stream of `btrfs send` onto a mount of ours, with the flags and the
//! words of `btrfs receive`.

#[cfg(target_os = "linux")]
mod beneath;
mod decode;
mod dump;
mod image;
#[cfg(target_os = "linux")]
mod ioctls;
mod limits;
mod locks;
#[cfg(target_os = "linux")]
mod mounted;
#[cfg(target_os = "linux")]
mod other_process;
pub mod player;
mod select;
#[cfg(target_os = "linux")]
mod sources;

use std::fs::File;
use std::io::stdin;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use image::Image;
#[cfg(target_os = "linux")]
pub use other_process::serve;
use player::{Loudness, Options, Outcome, reader_of};

#[cfg(not(target_os = "linux"))]
use crate::commands::no_mounts::receive as receive_onto_mount;
use crate::commands::offline::image_of;
#[cfg(target_os = "linux")]
use mounted::receive as receive_onto_mount;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
What arrives is read-only at the end and has the uuid of what was sent. After an error it stays writable, has no such \
uuid, and is incomplete: delete it. Nothing in a stream leads out of DIR, except that it may name subvolumes of the \
same volume to begin with or to share data with.")]
pub struct ReceiveArgs {
    /// A directory on a mount of cowshed's or of the kernel's btrfs, to put the subvolumes into; or
    /// IMAGE:/PATH, a directory of a volume that is not mounted
    #[arg(required_unless_present = "dump")]
    dir: Option<PathBuf>,
    /// Read the stream from FILE instead of the standard input
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Stop at the first end of a stream; else more may follow, up to the end of the input
    #[arg(short = 'e')]
    end_at_end: bool,
    /// Go on until so many errors came about; 0: always. What had errors stays incomplete
    #[arg(short = 'E', long, value_name = "NERR", default_value_t = 1)]
    max_errors: u64,
    /// Where the volume is mounted; else found from DIR upward
    #[arg(short = 'm', value_name = "ROOTMOUNT")]
    root_mount: Option<PathBuf>,
    /// Only check the stream, and print one line for each command
    #[arg(long, conflicts_with_all = ["dir", "max_errors", "root_mount"])]
    dump: bool,
    /// Accepted: compressed data is always decompressed, and compressed again as the mount says
    #[arg(long)]
    force_decompress: bool,
    /// Accepted: nothing leads out of DIR in any case
    #[arg(short = 'C', long)]
    chroot: bool,
    /// Print each command as it is done
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Print errors alone
    #[arg(short, long)]
    quiet: bool,
}

impl ReceiveArgs {
    /// Where less or more output is asked for in another way, too.
    pub fn with_voice(&self, is_quiet: bool, is_verbose: bool) -> ReceiveArgs {
        ReceiveArgs {
            quiet: self.quiet || is_quiet,
            verbose: self.verbose || is_verbose,
            ..self.clone()
        }
    }
}

pub fn run(args: &ReceiveArgs) -> Result<u8> {
    let input = match &args.file {
        Some(path) => File::open(path).with_context(|| path.display().to_string())?,
        None => File::from(stdin().as_fd().try_clone_to_owned()?),
    };
    let Some(dir) = args.dir.as_deref().filter(|_| !args.dump) else {
        return dump::run(&mut reader_of(input), args.end_at_end);
    };
    let outcome = receive(input, dir, args)?;
    match outcome {
        Outcome::Complete => Ok(0),
        Outcome::Incomplete => Ok(1),
    }
}

fn receive(input: File, dir: &Path, args: &ReceiveArgs) -> Result<Outcome> {
    let options = Options {
        end_at_end: args.end_at_end,
        errors_max: args.max_errors,
        loudness: Loudness::new(args.quiet, args.verbose),
        say: &|line| crate::people::warn(line),
    };
    let named = || dir.display().to_string();
    if let Some((image, path)) = image_of(dir) {
        let mut target = Image::open(image, path).with_context(named)?;
        let played = player::play(&mut reader_of(input), &mut target, &options);
        // What was received is kept, also where the stream was bad.
        let closed = target.close().with_context(|| image.display().to_string());
        let outcome = played?;
        closed?;
        return Ok(outcome);
    }
    if !dir.is_dir() {
        bail!("{}: not a directory", named());
    }
    receive_onto_mount(input, dir, args.root_mount.as_deref(), &options)
}
