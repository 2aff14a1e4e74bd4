//! `cowshed send`: writes read-only subvolumes as a stream, with the flags and the words of
//! `btrfs send`.
//!
//! The volume is read by this process, also where another one serves a mount of it: what is
//! read-only does not change, and stays as long as the mount has it in use. So sending takes
//! nothing from those who use the mount.

use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write, stdout};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use btrfs_format::TreeId;
use btrfs_stream::{Version, Writer};
use clap::Args;
use cowshed_btrfs::send::{self, Request};
use cowshed_vfs::{Context, SubvolumeInfo, Subvolumes as _};

use super::committed::{Named, Source};

/// Of the output: larger than a command.
const BUFFER_BYTES: usize = 256 << 10;

#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Each SUBVOL is a read-only subvolume: a directory on a mount of cowshed's, or IMAGE:/PATH on a volume that is not \
mounted. All are on one volume.")]
pub struct SendArgs {
    /// With several subvolumes: no end between them, and no header
    #[arg(short = 'e')]
    pub no_end_between: bool,
    /// Send what differs from this subvolume, which the receiver has
    #[arg(short, long, value_name = "SUBVOL")]
    pub parent: Option<PathBuf>,
    /// The receiver has this subvolume: share its extents. May be given several times. Without a
    /// parent one of these is it, that with the most in common
    #[arg(short, long = "clone-src", value_name = "SUBVOL")]
    pub clone_sources: Vec<PathBuf>,
    /// Write to FILE instead of the standard output
    #[arg(short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Leave data out, and name the ranges that changed
    #[arg(long)]
    pub no_data: bool,
    /// Version of the stream, 1 (default) or 2; 0: the newest
    #[arg(long, value_name = "N")]
    pub proto: Option<u32>,
    /// Send compressed data as it lies; implies version 2
    #[arg(long)]
    pub compressed_data: bool,
    /// Print what is sent
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,
    /// Print errors alone
    #[arg(short, long)]
    pub quiet: bool,
    /// Read-only subvolumes
    #[arg(required = true)]
    pub subvolumes: Vec<PathBuf>,
}

impl SendArgs {
    /// Where errors alone are asked for in another way, too.
    pub fn with_quiet(&self, is_quiet: bool) -> SendArgs {
        SendArgs {
            quiet: self.quiet || is_quiet,
            ..self.clone()
        }
    }
}

impl SendArgs {
    /// Of the stream; 0: the newest.
    pub fn version(&self) -> u32 {
        self.proto.unwrap_or(if self.compressed_data { 2 } else { 1 })
    }
}

pub fn run(args: &SendArgs) -> Result<u8> {
    let version = match args.version() {
        0 | 2 => Version::V2,
        1 if args.compressed_data => bail!("--compressed-data needs --proto 2"),
        1 => Version::V1,
        other => bail!("version {other} of the stream is not known: 1 and 2 are"),
    };
    let source = Source::open(&args.subvolumes[0], "send")?;
    let parent = args.parent.as_deref().map(|path| to_send(&source, path)).transpose()?;
    let clones = args.clone_sources.iter().map(|path| to_send(&source, path));
    let clones = clones.collect::<Result<Vec<_>>>()?;
    let wanted = args.subvolumes.iter().map(|path| to_send(&source, path));
    let wanted = wanted.collect::<Result<Vec<_>>>()?;
    let output: Box<dyn Write> = match &args.file {
        Some(path) => Box::new(File::create(path).with_context(|| path.display().to_string())?),
        None if stdout().is_terminal() => bail!("not to a terminal: redirect the output, or use -f"),
        None => Box::new(stdout().lock()),
    };
    let mut output = BufWriter::with_capacity(BUFFER_BYTES, output);
    let mut had: Vec<Named> = Vec::new();
    for (n, (path, wanted)) in args.subvolumes.iter().zip(wanted).enumerate() {
        let parent = match (&parent, n) {
            (Some(parent), 0) => Some(parent.id),
            _ if args.parent.is_none() && clones.is_empty() => None,
            (Some(_), _) => had.last().map(|named| named.id),
            // That which it was made of last.
            (None, _) => nearest(&source, &wanted, clones.iter().chain(&had)),
        };
        if !args.quiet {
            crate::people::warn(format_args!("At subvol {}", path.display()));
        }
        let request = Request {
            subvolume: wanted.id,
            parent,
            sources: clones.iter().chain(&had).map(|named| named.id).collect(),
            name: wanted.name.clone(),
            is_compressed: args.compressed_data,
            is_without_data: args.no_data,
        };
        let mut writer = match n > 0 && args.no_end_between {
            true => Writer::continued(&mut output, version),
            false => Writer::new(&mut output, version)?,
        };
        let reopen: send::Reopen<'_> = &|| source.reopen();
        let reopen = source.is_mounted().then_some(reopen);
        let sent = send::send(&source.mount, reopen, &request, &mut writer);
        sent.with_context(|| format!("{}: not sent", path.display()))?;
        had.push(wanted);
    }
    output.flush()?;
    Ok(0)
}

fn to_send(source: &Source, path: &Path) -> Result<Named> {
    let named = source.subvolume(path)?;
    if named.name.is_empty() {
        bail!("{}: not sent: it has no name", path.display());
    }
    if !named.is_read_only {
        bail!("{}: not sent: the subvolume is not read-only", path.display());
    }
    Ok(named)
}

/// The one that a subvolume was made of, or that was made of the same: the youngest that is not
/// younger.
fn nearest<'a>(source: &Source, wanted: &Named, all: impl Iterator<Item = &'a Named>) -> Option<TreeId> {
    let infos = || -> Result<Vec<SubvolumeInfo>, cowshed_vfs::Error> {
        let (mut found, mut from) = (Vec::new(), 0);
        while let Some((info, _)) = source.fs.next(&Context::root(), from)? {
            from = info.id + 1;
            found.push(info);
        }
        Ok(found)
    };
    let infos = infos().unwrap_or_default();
    let info = |id: TreeId| infos.iter().find(|info| info.id == id.get());
    let of = info(wanted.id)?;
    let is_akin = |other: &SubvolumeInfo| {
        other.parent_uuid == of.parent_uuid && of.parent_uuid != [0; 16] || other.uuid == of.parent_uuid
    };
    let candidates = all.filter_map(|named| info(named.id)).filter(|other| is_akin(other));
    let older = candidates.filter(|other| other.created_generation <= of.created_generation);
    older
        .max_by_key(|other| other.changed_generation)
        .map(|other| TreeId(other.id))
}
