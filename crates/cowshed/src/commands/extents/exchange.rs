//! `cowshed exchange`: two files swap their contents, or parts of them, in one step.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use super::remap::Exchange;
use super::{RangeArg, open_to_write, remap};

#[derive(Args, Debug)]
#[command(after_help = "\
After a crash both have been exchanged, or neither. Without --range the whole contents are, sizes included. Owners, modes
and extended attributes stay where they are. On XFS, too (Linux 6.10).")]
pub struct ExchangeArgs {
    /// The one file
    first: PathBuf,
    /// The other
    second: PathBuf,
    /// Only this range: OFFSET_IN_FIRST:LENGTH:OFFSET_IN_SECOND, with k, m or g, in multiples of 4096
    #[arg(long, value_name = "RANGE")]
    range: Option<RangeArg>,
    /// Only look whether it could be done
    #[arg(long)]
    dry_run: bool,
}

pub fn run(args: &ExchangeArgs) -> Result<u8> {
    let (a, b) = (open_to_write(&args.first)?, open_to_write(&args.second)?);
    let what = Exchange {
        a_offset: args.range.map_or(0, |r| r.src_offset),
        b_offset: args.range.map_or(0, |r| r.dst_offset),
        len_bytes: args.range.map_or(0, |r| r.len_bytes),
        to_eof: args.range.is_none(),
        dry_run: args.dry_run,
    };
    remap::exchange_range(&a, &b, &what)
        .with_context(|| format!("exchanging {} and {}", args.first.display(), args.second.display()))?;
    Ok(0)
}
