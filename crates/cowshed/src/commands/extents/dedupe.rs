//! `cowshed dedupe`: files that hold the same come to share extents.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::{RangeArg, open_to_read, open_to_write, remap};
use crate::people::printable;

#[derive(Args, Debug)]
#[command(after_help = "\
Compares and shares in one step: no file can change in between. What differs stays as it is.
Exit codes: 0 all of it is shared, 1 something differs or cannot be shared, 2 something failed.")]
pub struct DedupeArgs {
    /// The file whose extents stay
    source: PathBuf,
    /// Files that shall share them
    #[arg(required = true)]
    dests: Vec<PathBuf>,
    /// Only this range: SRC_OFFSET:LENGTH:DST_OFFSET, with k, m or g
    #[arg(long, value_name = "RANGE")]
    range: Option<RangeArg>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Asked for at once: what the smallest limit takes (the kernel's btrfs compares so much at a time,
/// too).
const STEP_BYTES: u64 = 16 << 20;

/// What came out for one file.
struct Found {
    shared_bytes: u64,
    /// Where the first part lies that is not the same.
    differs_at: Option<u64>,
    /// What is less than a block, in the middle of one of the files: it cannot be shared.
    left_bytes: u64,
}

pub fn run(args: &DedupeArgs) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    let (mut code, mut all) = (0, Vec::new());
    for dest in &args.dests {
        match one(args, dest) {
            Ok(found) => {
                if found.differs_at.is_some() || found.left_bytes > 0 {
                    code = code.max(1);
                }
                if args.json {
                    all.push(json!({
                        "path": dest.to_string_lossy(),
                        "shared_bytes": found.shared_bytes,
                        "differs_at": found.differs_at,
                        "left_bytes": found.left_bytes,
                    }));
                    continue;
                }
                let differs = found
                    .differs_at
                    .map_or(String::new(), |at| format!(", differs in the part at {at}"));
                let left = match found.left_bytes {
                    0 => String::new(),
                    bytes => format!(", {bytes} at the end are no whole block"),
                };
                writeln!(
                    out,
                    "{}: {} bytes shared{differs}{left}",
                    printable(dest),
                    found.shared_bytes
                )?;
            }
            Err(error) => {
                crate::people::warn(format_args!("cowshed: {error:#}"));
                code = 2;
            }
        }
    }
    if args.json {
        writeln!(out, "{:#}", Value::Array(all))?;
    }
    Ok(code)
}

fn one(args: &DedupeArgs, dest: &Path) -> Result<Found> {
    let src = open_to_read(&args.source)?;
    // The owner of a file may do it, also without write permission.
    let dst = open_to_write(dest).or_else(|_| open_to_read(dest))?;
    let range = match args.range {
        Some(range) => range,
        None => RangeArg {
            src_offset: 0,
            len_bytes: src.metadata()?.len().min(dst.metadata()?.len()),
            dst_offset: 0,
        },
    };
    let mut found = Found {
        shared_bytes: 0,
        differs_at: None,
        left_bytes: 0,
    };
    let mut done = 0;
    while done < range.len_bytes {
        let len_bytes = (range.len_bytes - done).min(STEP_BYTES);
        let (from, to) = (range.src_offset + done, range.dst_offset + done);
        let shared = remap::dedupe_range(&src, from, &dst, to, len_bytes)
            .with_context(|| format!("{} and {}", args.source.display(), dest.display()))?;
        match shared {
            Some(0) => {
                found.left_bytes = range.len_bytes - done;
                break;
            }
            Some(bytes) => {
                found.shared_bytes += bytes;
                done += bytes;
            }
            None => {
                found.differs_at.get_or_insert(to);
                done += len_bytes;
            }
        }
    }
    Ok(found)
}
