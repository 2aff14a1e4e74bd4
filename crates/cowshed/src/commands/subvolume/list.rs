//! `subvolume list` and `subvolume show`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed_vfs::Timestamp;
use cowshed_vfs_ioctl::wire::{SubvolumePage, Time};
use serde_json::{Value, json};
use uuid::Uuid;

use super::calls::{self, path_of};
use crate::people::{bytes_json, printable, time_text};

/// Number of the top level.
const TOP_LEVEL: u64 = 5;

#[derive(Args, Debug)]
pub struct ListArgs {
    /// A mount point, or a directory on a mount
    path: PathBuf,
    /// Show the number of the subvolume that each is in
    #[arg(short = 'p')]
    parent: bool,
    /// Show the uuid of each
    #[arg(short = 'u')]
    uuid: bool,
    /// Show the uuid of the subvolume that each is a snapshot of
    #[arg(short = 'q')]
    parent_uuid: bool,
    /// Show the uuid that each was received under
    #[arg(short = 'R')]
    received_uuid: bool,
    /// Show the transaction in which each was made
    #[arg(short = 'c')]
    created: bool,
    /// Only those that are read-only
    #[arg(short = 'r')]
    readonly: bool,
    /// Only snapshots
    #[arg(short = 's')]
    snapshots: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// As btrfs(8) prints it: a dash for none.
fn uuid_text(uuid: [u8; 16]) -> String {
    match uuid == [0; 16] {
        true => "-".to_owned(),
        false => Uuid::from_bytes(uuid).to_string(),
    }
}

fn time_of(time: Time) -> String {
    time_text(Timestamp::new(time.secs.get(), time.nanos.get()), false)
}

pub fn run(args: &ListArgs) -> Result<u8> {
    let mut all = calls::all(&args.path).with_context(|| args.path.display().to_string())?;
    all.retain(|page| {
        page.id.get() != TOP_LEVEL
            && (!args.readonly || page.is_read_only.get() != 0)
            && (!args.snapshots || page.parent_uuid != [0; 16])
    });
    let text = match args.json {
        true => format!("{:#}\n", Value::from(all.iter().map(page_json).collect::<Vec<_>>())),
        false => all.iter().map(|page| line(args, page)).collect(),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(0)
}

fn line(args: &ListArgs, page: &SubvolumePage) -> String {
    let mut text = format!("ID {} gen {}", page.id, page.generation);
    // Writing to a string cannot fail.
    if args.created {
        let _ = write!(text, " cgen {}", page.created_generation);
    }
    if args.parent {
        let _ = write!(text, " parent {}", page.parent_id);
    }
    let _ = write!(text, " top level {}", page.parent_id);
    if args.snapshots {
        let _ = write!(text, " otime {}", time_of(page.created));
    }
    let uuids = [
        (args.parent_uuid, "parent_uuid", page.parent_uuid),
        (args.received_uuid, "received_uuid", page.received_uuid),
        (args.uuid, "uuid", page.uuid),
    ];
    for (_, name, uuid) in uuids.into_iter().filter(|(wanted, ..)| *wanted) {
        let _ = write!(text, " {name} {:<36}", uuid_text(uuid));
    }
    let _ = writeln!(text, " path {}", printable(OsStr::from_bytes(path_of(page))));
    text
}

fn page_json(page: &SubvolumePage) -> Value {
    let uuid = |uuid| match uuid_text(uuid) {
        none if none == "-" => Value::Null,
        text => Value::from(text),
    };
    json!({
        "id": page.id.get(),
        "parent_id": page.parent_id.get(),
        "path": bytes_json(path_of(page)),
        "is_read_only": page.is_read_only.get() != 0,
        "generation": page.generation.get(),
        "created_generation": page.created_generation.get(),
        "uuid": uuid(page.uuid),
        "parent_uuid": uuid(page.parent_uuid),
        "received_uuid": uuid(page.received_uuid),
        "created": time_of(page.created),
        "changed": time_of(page.changed),
    })
}

/// The page of the subvolume whose root directory this is.
fn page_of(path: &Path, all: &[SubvolumePage]) -> Result<SubvolumePage> {
    let id = calls::id_of(path).context("not a subvolume")?;
    match all.iter().find(|page| page.id.get() == id) {
        Some(page) => Ok(*page),
        None => bail!("subvolume {id} is not listed"),
    }
}

/// Paths of the subvolumes that are nested in one, the innermost first.
pub fn nested(path: &Path) -> Result<Vec<PathBuf>> {
    let all = calls::all(path).with_context(|| path.display().to_string())?;
    let top = page_of(path, &all).with_context(|| path.display().to_string())?;
    let mut below: Vec<PathBuf> = Vec::new();
    let mut above = vec![top.id.get()];
    while let Some(id) = above.pop() {
        for page in all.iter().filter(|page| page.parent_id.get() == id) {
            above.push(page.id.get());
            let tail = path_of(page)
                .get(path_of(&top).len() + usize::from(!path_of(&top).is_empty())..)
                .unwrap_or_default();
            below.push(path.join(OsStr::from_bytes(tail)));
        }
    }
    below.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    Ok(below)
}

pub fn show(path: &Path) -> Result<u8> {
    let all = calls::all(path).with_context(|| path.display().to_string())?;
    let page = page_of(path, &all).with_context(|| path.display().to_string())?;
    let shown = printable(OsStr::from_bytes(path_of(&page)));
    let name = shown.rsplit('/').next().unwrap_or_default();
    let flags = if page.is_read_only.get() != 0 { "readonly" } else { "-" };
    let snapshots = all
        .iter()
        .filter(|p| p.parent_uuid == page.uuid && page.uuid != [0; 16]);
    let lines = [
        ("Name:", name.to_owned()),
        ("UUID:", uuid_text(page.uuid)),
        ("Parent UUID:", uuid_text(page.parent_uuid)),
        ("Received UUID:", uuid_text(page.received_uuid)),
        ("Creation time:", time_of(page.created)),
        ("Subvolume ID:", page.id.to_string()),
        ("Generation:", page.generation.to_string()),
        ("Gen at creation:", page.created_generation.to_string()),
        ("Parent ID:", page.parent_id.to_string()),
        ("Top level ID:", page.parent_id.to_string()),
        ("Flags:", flags.to_owned()),
        ("Snapshot(s):", String::new()),
    ];
    let mut text = format!("{shown}\n");
    for (what, value) in lines {
        let _ = writeln!(text, "\t{what:<24}{value}");
    }
    for snapshot in snapshots {
        let _ = writeln!(text, "\t{:<24}{}", "", printable(OsStr::from_bytes(path_of(snapshot))));
    }
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(0)
}

pub fn show_default(path: &Path) -> Result<u8> {
    let id = calls::default_id(path).with_context(|| path.display().to_string())?;
    if id == TOP_LEVEL {
        println!("ID 5 (FS_TREE)");
        return Ok(0);
    }
    let all = calls::all(path).with_context(|| path.display().to_string())?;
    let Some(page) = all.iter().find(|page| page.id.get() == id) else {
        bail!("{}: subvolume {id}, the default, is not listed", path.display());
    };
    println!(
        "ID {id} gen {} top level {} path {}",
        page.generation,
        page.parent_id,
        printable(OsStr::from_bytes(path_of(page)))
    );
    Ok(0)
}
