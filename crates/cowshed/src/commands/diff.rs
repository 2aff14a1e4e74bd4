//! `cowshed diff`: how two subvolumes of a volume differ.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufWriter, Write as _, stdout};
use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use cowshed_btrfs::Mount;
use cowshed_btrfs::diff::{self, Difference};
use cowshed_vfs::FileKind;
use serde_json::{Value, json};

use super::committed::Source;
use super::offline::image_of;
use super::sync;
use crate::people::{bytes_json, printable, size_text};

/// What a commit may replace beneath a comparison that began before it.
const TRIES: usize = 10;

#[derive(Args, Debug)]
#[command(after_help = "\
A and B are subvolumes of one volume: directories on a mount of cowshed's, or IMAGE:/PATH on a volume that is not \
mounted. They are compared as they are on disk; of a mount, everything is written first.\n\n\
Letters: A added, D deleted, R renamed or linked, M content, m attributes. Content is compared by extents: what was \
written anew counts as changed, whatever was there. The exit code is 0 also where there are differences.")]
pub struct DiffArgs {
    /// The subvolume that was
    a: PathBuf,
    /// The subvolume that is
    b: PathBuf,
    /// With the number of bytes that changed, and a sum
    #[arg(long, conflicts_with = "json")]
    stat: bool,
    /// Show inodes of which only times or directory entries differ, too
    #[arg(long)]
    times: bool,
    /// Print a line of JSON for each inode, with all ranges
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DiffArgs) -> Result<u8> {
    if image_of(&args.b).is_none() {
        sync::mount_of(&args.b).with_context(|| args.b.display().to_string())?;
    }
    let source = Source::open(&args.a, "diff")?;
    let (old, new) = (source.subvolume(&args.a)?.id, source.subvolume(&args.b)?.id);
    let mut mount = source.mount.clone();
    let mut tries = 1;
    // Nothing is printed before all is known: it may have to begin anew.
    let all = loop {
        let mut all = Vec::new();
        let done = diff::diff(&mount, (old, new), &mut |found| {
            if args.times || !is_of_times_alone(&found) {
                all.push(found);
            }
            ControlFlow::Continue(())
        });
        match done {
            Ok(()) => break all,
            Err(error) => {
                let fresh = if source.is_mounted() {
                    source.reopen().ok()
                } else {
                    None
                };
                match fresh.filter(|fresh| tries < TRIES && generation(fresh) > generation(&mount)) {
                    Some(fresh) => mount = fresh,
                    None => bail!("{} and {}: {error}", args.a.display(), args.b.display()),
                }
                tries += 1;
            }
        }
    };
    let mut out = BufWriter::new(stdout().lock());
    let mut sum = Sum::default();
    for found in &all {
        let text = match args.json {
            true => format!("{}\n", found_json(found)),
            false => lines(found, args.stat, &mut sum),
        };
        out.write_all(text.as_bytes())?;
    }
    if args.stat {
        writeln!(
            out,
            "{} added, {} deleted, {} renamed, {} changed; {} of data",
            sum.added,
            sum.deleted,
            sum.renamed,
            sum.changed,
            size_text(sum.bytes)
        )?;
    }
    out.flush()?;
    Ok(0)
}

fn generation(mount: &Arc<Mount>) -> u64 {
    mount.store().volume().superblock().generation.get()
}

/// A directory in which names came and went, and whatever else is none of its own.
fn is_of_times_alone(found: &Difference) -> bool {
    let attributes = &found.attributes;
    let has_others = attributes.mode || attributes.owner || attributes.flags || !attributes.xattrs.is_empty();
    let is_in_both = found.old_size.is_some() && found.new_size.is_some();
    is_in_both && !has_others && found.added.is_empty() && found.removed.is_empty() && !has_content(found)
}

fn has_content(found: &Difference) -> bool {
    found.kind == FileKind::Regular && (!found.ranges.is_empty() || found.old_size != found.new_size)
}

#[derive(Default)]
struct Sum {
    added: u64,
    deleted: u64,
    renamed: u64,
    changed: u64,
    bytes: u64,
}

fn shown(found: &Difference, path: &[u8]) -> String {
    let mut text = printable(OsStr::from_bytes(path));
    if path.is_empty() {
        text.push('.');
    }
    if found.kind == FileKind::Directory {
        text.push('/');
    }
    text
}

fn changed_bytes(found: &Difference) -> u64 {
    match (found.old_size, found.new_size) {
        (None, Some(size)) if found.kind == FileKind::Regular => size,
        _ => found
            .ranges
            .iter()
            .map(|range: &Range<u64>| range.end - range.start)
            .sum(),
    }
}

fn lines(found: &Difference, with_bytes: bool, sum: &mut Sum) -> String {
    let mut text = String::new();
    let bytes = changed_bytes(found);
    sum.bytes += bytes;
    let size = match with_bytes && found.kind == FileKind::Regular && bytes > 0 {
        true => format!("  {}", size_text(bytes)),
        false => String::new(),
    };
    // Writing to a string cannot fail.
    match (found.old_size, found.new_size) {
        (None, _) => {
            sum.added += 1;
            for path in &found.added {
                let _ = writeln!(text, "A  {}{size}", shown(found, path));
            }
        }
        (_, None) => {
            sum.deleted += 1;
            for path in &found.removed {
                let _ = writeln!(text, "D  {}", shown(found, path));
            }
        }
        _ => {
            sum.changed += u64::from(found.added.is_empty() && found.removed.is_empty());
            sum.renamed += u64::from(!(found.added.is_empty() && found.removed.is_empty()));
            names(found, &mut text);
            let path = found.kept.as_ref().or(found.added.first());
            let path = path.map(|path| shown(found, path)).unwrap_or_default();
            if has_content(found) {
                let _ = writeln!(text, "M  {path}{size}");
            } else if found.added.is_empty() && found.removed.is_empty() || has_attributes(found) {
                let _ = writeln!(text, "m  {path}{}", attributes(found));
            }
        }
    }
    text
}

/// Names of an inode that is in both.
fn names(found: &Difference, text: &mut String) {
    let mut added = found.added.iter();
    for old in &found.removed {
        let _ = match added.next() {
            Some(new) => writeln!(text, "R  {} -> {}", shown(found, old), shown(found, new)),
            None => writeln!(text, "D  {}", shown(found, old)),
        };
    }
    let existing = found.kept.as_ref().or(found.removed.first());
    for new in added {
        let existing = existing.map(|path| shown(found, path)).unwrap_or_default();
        let _ = writeln!(text, "R  {existing} => {}", shown(found, new));
    }
}

fn has_attributes(found: &Difference) -> bool {
    let attributes = &found.attributes;
    attributes.mode || attributes.owner || attributes.flags || !attributes.xattrs.is_empty()
}

fn attributes(found: &Difference) -> String {
    let attributes = &found.attributes;
    let mut all: Vec<String> = [
        (attributes.mode, "mode"),
        (attributes.owner, "owner"),
        (attributes.flags, "flags"),
        (attributes.mtime && !has_attributes(found), "times"),
    ]
    .into_iter()
    .filter(|(differs, _)| *differs)
    .map(|(_, name)| name.to_owned())
    .collect();
    all.extend(attributes.xattrs.iter().map(|name| printable(OsStr::from_bytes(name))));
    match all.is_empty() {
        true => String::new(),
        false => format!("  ({})", all.join(", ")),
    }
}

fn found_json(found: &Difference) -> Value {
    let paths = |paths: &[Vec<u8>]| Value::from(paths.iter().map(|path| bytes_json(path)).collect::<Vec<_>>());
    let attributes = &found.attributes;
    let ranges = found
        .ranges
        .iter()
        .map(|range| json!([range.start, range.end - range.start]));
    json!({
        "inode": found.inode,
        "kind": format!("{:?}", found.kind).to_lowercase(),
        "removed": paths(&found.removed),
        "added": paths(&found.added),
        "path": found.kept.as_ref().map(|path| bytes_json(path)),
        "old_size": found.old_size,
        "new_size": found.new_size,
        "ranges": ranges.collect::<Vec<_>>(),
        "mode": attributes.mode,
        "owner": attributes.owner,
        "mtime": attributes.mtime,
        "flags": attributes.flags,
        "xattrs": attributes.xattrs.iter().map(|name| bytes_json(name)).collect::<Vec<_>>(),
    })
}
