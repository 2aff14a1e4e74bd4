//! `cowshed defrag`: rewrites files that lie in many small extents.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use cowshed_vfs::{Algorithm, Compression};
use cowshed_vfs_ioctl::wire::{self, DefragRange, defrag};

use super::{each_file, open_to_read, open_to_write, parse_size};
use crate::ioctl;

#[derive(Args, Debug)]
#[command(after_help = "\
Extents that are shared with other files or snapshots are shared no more afterwards, and take space of their own. On a
btrfs of the kernel's, too.")]
pub struct DefragArgs {
    /// Files; with -r directories, too
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// All files below directories
    #[arg(short, long)]
    recursive: bool,
    /// Extents of this size and larger stay as they are, with k or m
    #[arg(short, long, value_name = "SIZE", default_value = "32m", value_parser = parse_size)]
    target: u64,
    /// Compress what is rewritten, and rewrite what is not compressed so: zlib, lzo or zstd, with a
    /// level as zstd:7
    #[arg(short, long, value_name = "HOW")]
    compress: Option<Compression>,
    /// Name each file
    #[arg(short, long)]
    verbose: bool,
}

pub fn run(args: &DefragArgs) -> Result<u8> {
    let (flags, compress) = args.compress.map_or((0, 0), number_of);
    each_file(&args.paths, args.recursive, &mut |path| {
        let file = open_to_write(path).or_else(|_| open_to_read(path))?;
        let mut call = DefragRange {
            len_bytes: u64::MAX.into(),
            extent_bytes_max: u32::try_from(args.target).unwrap_or(u32::MAX).into(),
            flags: flags.into(),
            compress: compress.into(),
            ..DefragRange::default()
        };
        ioctl::call(&file, wire::DEFRAG_RANGE, &mut call).with_context(|| path.display().to_string())?;
        if args.verbose {
            crate::people::say(crate::people::printable(path));
        }
        Ok(())
    })
}

/// Flags, and type and level in two bytes. A default level goes unsaid: older kernels know none.
pub fn number_of(how: Compression) -> (u64, u32) {
    let ty = match how.algorithm() {
        Algorithm::Zlib => 1,
        Algorithm::Lzo => 2,
        Algorithm::Zstd => 3,
    };
    if how == Compression::new(how.algorithm(), 0) {
        return (defrag::COMPRESS, ty);
    }
    let [level, ..] = how.level().to_le_bytes();
    (defrag::COMPRESS | defrag::LEVEL, ty | u32::from(level) << 8)
}
