//! `cowshed exchange`: two files swap their contents, or parts of them, in one step.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use cowshed_vfs::Freshness;
use cowshed_vfs::Timestamp;

use super::exchange_range::Exchange;
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
    /// Only this range: OFFSET_IN_FIRST:LENGTH:OFFSET_IN_SECOND, with k, m or g, in multiples of
    /// 4096
    #[arg(long, value_name = "RANGE")]
    range: Option<RangeArg>,
    /// Only what is written in FIRST, in whole blocks; what SECOND has where FIRST has holes or
    /// preallocated space stays
    #[arg(long)]
    only_written: bool,
    /// Only look whether it could be done
    #[arg(long)]
    dry_run: bool,
    /// Only if SECOND is still as it was: the output of stat -c '%i %.9Y %.9Z' SECOND from when it
    /// was read. Elsewhere than on a mount of ours this is refused
    #[arg(long, value_name = "STAMP", value_parser = parse_stamp)]
    if_fresh: Option<Freshness>,
    /// On disk when the command returns
    #[arg(long)]
    fsync: bool,
}

/// `INODE MTIME CTIME`, times in seconds with nine digits behind the point.
fn parse_stamp(text: &str) -> Result<Freshness, String> {
    let mut words = text.split_whitespace();
    let found = (|| {
        let ino = words.next()?.parse().ok()?;
        let (mtime, ctime) = (parse_time(words.next()?)?, parse_time(words.next()?)?);
        words.next().is_none().then_some(Freshness { ino, mtime, ctime })
    })();
    found.ok_or_else(|| "a stamp is what stat -c '%i %.9Y %.9Z' says".into())
}

/// A sign stands for all of it: -5.25 is three quarters of a second after -6.
fn parse_time(text: &str) -> Option<Timestamp> {
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let (secs, nanos) = digits.split_once('.')?;
    let is_whole = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
    if !is_whole(secs) || !is_whole(nanos) || nanos.len() != 9 {
        return None;
    }
    let (secs, nanos): (i64, u32) = (secs.parse().ok()?, nanos.parse().ok()?);
    Some(match (is_negative, nanos) {
        (false, _) => Timestamp::new(secs, nanos),
        (true, 0) => Timestamp::new(-secs, 0),
        (true, _) => Timestamp::new(-secs - 1, 1_000_000_000 - nanos),
    })
}

pub fn run(args: &ExchangeArgs) -> Result<u8> {
    let (a, b) = (open_to_write(&args.first)?, open_to_write(&args.second)?);
    let what = Exchange {
        a_offset: args.range.map_or(0, |r| r.src_offset),
        b_offset: args.range.map_or(0, |r| r.dst_offset),
        len_bytes: args.range.map_or(0, |r| r.len_bytes),
        to_eof: args.range.is_none(),
        only_written: args.only_written,
        fresh_b: args.if_fresh,
        dry_run: args.dry_run,
        sync: args.fsync,
    };
    remap::exchange_range(&a, &b, &what)
        .with_context(|| format!("exchanging {} and {}", args.first.display(), args.second.display()))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_read() {
        let stamp = parse_stamp("257 1700000000.000000001 -5.250000000").unwrap();
        assert_eq!(
            (stamp.ino, stamp.mtime, stamp.ctime),
            (257, Timestamp::new(1_700_000_000, 1), Timestamp::new(-6, 750_000_000))
        );
        for bad in [
            "",
            "257",
            "257 1.0 2.0",
            "257 1.000000001",
            "x 1.000000001 1.000000001",
            "1 1.000000001 1.000000001 1",
        ] {
            assert!(parse_stamp(bad).is_err(), "{bad}");
        }
    }
}
