//! `subvolume list`.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail};
use btrfs_format::Uuid;
use btrfs_format::features::root_flags;
use clap::Args;
use serde_json::{Value, json};

use super::super::place::Images;
use super::super::roots::{Root, Roots};
use super::super::say::{error, reason, uuid};
use crate::people::{bytes_json, local_time_text, printable};

#[derive(Args, Debug)]
pub struct ListArgs {
    /// A directory on the volume
    path: PathBuf,
    /// Only those whose names are in the subvolume of the path
    #[arg(short = 'o')]
    below: bool,
    /// Paths from the top level, with <FS_TREE> before those that are not in the subvolume of the
    /// path
    #[arg(short = 'a')]
    absolute: bool,
    /// Show the number of the subvolume that each is in
    #[arg(short = 'p')]
    parent: bool,
    /// Show the transaction in which each was made
    #[arg(short = 'c')]
    created: bool,
    /// Show the transaction in which each was written last: always so
    #[arg(short = 'g')]
    generation: bool,
    /// Show the uuid of each
    #[arg(short = 'u')]
    uuid: bool,
    /// Show the uuid of the subvolume that each is a snapshot of
    #[arg(short = 'q')]
    parent_uuid: bool,
    /// Show the uuid that each was received under
    #[arg(short = 'R')]
    received_uuid: bool,
    /// Only snapshots, with the time at which each was made
    #[arg(short = 's')]
    snapshots: bool,
    /// Only those that are read-only
    #[arg(short = 'r')]
    readonly: bool,
    /// Only those that are deleted and not gone yet
    #[arg(short = 'd')]
    deleted: bool,
    /// A table
    #[arg(short = 't', conflicts_with = "json")]
    table: bool,
    /// Only those written last in this transaction; +N: or later, -N: or earlier
    #[arg(short = 'G', value_name = "[+|-]N", allow_hyphen_values = true)]
    with_generation: Option<Bound>,
    /// Only those made in this transaction; +N: or later, -N: or earlier
    #[arg(short = 'C', value_name = "[+|-]N", allow_hyphen_values = true)]
    with_created: Option<Bound>,
    /// Order by gen, ogen, rootid, path; a minus before one: descending
    #[arg(long, value_name = "KEYS", value_delimiter = ',', allow_hyphen_values = true)]
    sort: Vec<Sort>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A filter by number: `N`, `+N` or `-N`.
#[derive(Clone, Copy, Debug)]
struct Bound {
    wanted: Ordering,
    number: u64,
}

impl FromStr for Bound {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (wanted, digits) = match text.split_at_checked(1) {
            Some(("+", digits)) => (Ordering::Greater, digits),
            Some(("-", digits)) => (Ordering::Less, digits),
            _ => (Ordering::Equal, text),
        };
        let number = digits
            .parse()
            .map_err(|_| format!("{digits} is not a valid numeric value"))?;
        Ok(Bound { wanted, number })
    }
}

impl Bound {
    fn holds(self, number: u64) -> bool {
        let found = number.cmp(&self.number);
        found == Ordering::Equal || found == self.wanted
    }
}

/// A key of the order.
#[derive(Clone, Copy, Debug)]
struct Sort {
    by: By,
    is_descending: bool,
}

#[derive(Clone, Copy, Debug)]
enum By {
    Generation,
    Created,
    Id,
    Path,
}

impl FromStr for Sort {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (is_descending, name) = match text.split_at_checked(1) {
            Some(("+", name)) => (false, name),
            Some(("-", name)) => (true, name),
            _ => (false, text),
        };
        let by = match name {
            "gen" => By::Generation,
            "ogen" => By::Created,
            "rootid" => By::Id,
            "path" => By::Path,
            _ => return Err("gen, ogen, rootid, path".to_owned()),
        };
        Ok(Sort { by, is_descending })
    }
}

/// A subvolume with the path that is shown.
struct Line<'a> {
    root: &'a Root,
    path: Vec<u8>,
}

impl Sort {
    fn compare(self, a: &Line<'_>, b: &Line<'_>) -> Ordering {
        let order = match self.by {
            By::Generation => a.root.item.generation.get().cmp(&b.root.item.generation.get()),
            By::Created => a.root.item.otransid.get().cmp(&b.root.item.otransid.get()),
            By::Id => a.root.id.cmp(&b.root.id),
            By::Path => a.path.cmp(&b.path),
        };
        if self.is_descending { order.reverse() } else { order }
    }
}

pub fn run(args: &ListArgs) -> Result<u8> {
    let failed = |error| anyhow!("can't perform the search: {}", reason(&error));
    let mut images = Images::to_read();
    let place = match images.directory(&args.path) {
        Ok(place) => place,
        Err(why) => {
            error(format_args!("{why:#}"));
            bail!("can't access '{}'", args.path.display());
        }
    };
    let own = place.tree().map_err(failed)?;
    let roots = Roots::load(&place).map_err(failed)?;
    let from = if args.absolute || args.below { 0 } else { own };
    let mut lines = Vec::new();
    for root in roots.iter().filter(|root| is_wanted(args, root, own)) {
        let mut path = roots.path(root, from).map_err(failed)?;
        if args.absolute && root.parent() != own {
            path.splice(..0, *b"<FS_TREE>/");
        }
        lines.push(Line { root, path });
    }
    lines.sort_by(|a, b| {
        let mut keys = args.sort.iter().map(|key| key.compare(a, b));
        keys.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    let text = match (args.json, args.table) {
        (true, _) => {
            let all: Vec<_> = lines.iter().map(json_of).collect();
            format!("{:#}\n", Value::from(all))
        }
        (_, true) => table(args, &lines),
        _ => text_of(args, &lines),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(0)
}

fn is_read_only(root: &Root) -> bool {
    root.item.subvolume_flags() & root_flags::SUBVOL_RDONLY != 0
}

fn is_wanted(args: &ListArgs, root: &Root, own: u64) -> bool {
    let item = &root.item;
    root.id >= 256
        && root.is_deleted() == args.deleted
        && (!args.below || args.absolute || root.parent() == own)
        && (!args.readonly || is_read_only(root))
        && (!args.snapshots || item.parent_uuid != [0; 16])
        && args
            .with_generation
            .is_none_or(|bound| bound.holds(item.generation.get()))
        && args.with_created.is_none_or(|bound| bound.holds(item.otransid.get()))
}

/// A column before the path: its name, and what makes the value.
type Column = (&'static str, fn(&Root) -> String);

fn columns(args: &ListArgs) -> Vec<Column> {
    fn padded(id: Uuid) -> String {
        format!("{:<36}", uuid(id))
    }
    let has_created = args.created || args.snapshots || args.with_created.is_some();
    let all: [(bool, Column); 9] = [
        (true, ("ID", |root| root.id.to_string())),
        (true, ("gen", |root| root.item.generation.to_string())),
        (has_created, ("cgen", |root| root.item.otransid.to_string())),
        (args.parent, ("parent", |root| root.parent().to_string())),
        (true, ("top level", |root| root.parent().to_string())),
        (
            args.snapshots,
            ("otime", |root| {
                local_time_text(root.item.otime.sec.get().cast_signed(), false)
            }),
        ),
        (args.parent_uuid, ("parent_uuid", |root| padded(root.item.parent_uuid))),
        (
            args.received_uuid,
            ("received_uuid", |root| padded(root.item.received_uuid)),
        ),
        (args.uuid, ("uuid", |root| padded(root.item.uuid))),
    ];
    let wanted = all.into_iter().filter(|(is_wanted, _)| *is_wanted);
    wanted.map(|(_, column)| column).collect()
}

fn text_of(args: &ListArgs, lines: &[Line<'_>]) -> String {
    let columns = columns(args);
    let mut text = String::new();
    for line in lines {
        for (name, value) in &columns {
            // Writing to a string cannot fail.
            let _ = write!(text, "{name} {} ", value(line.root));
        }
        let _ = writeln!(text, "path {}", printable(OsStr::from_bytes(&line.path)));
    }
    text
}

/// Columns end in tabs, that of the top level in two.
fn table(args: &ListArgs, lines: &[Line<'_>]) -> String {
    let columns = columns(args);
    let names = || columns.iter().map(|(name, _)| *name).chain(["path"]);
    let mut text = String::new();
    for name in names() {
        let _ = write!(text, "{name}\t");
    }
    text.push('\n');
    for name in names() {
        let _ = write!(text, "{}\t", "-".repeat(name.len()));
    }
    text.push('\n');
    for line in lines {
        for (name, value) in &columns {
            let tabs = if *name == "top level" { "\t\t" } else { "\t" };
            let _ = write!(text, "{}{tabs}", value(line.root));
        }
        let _ = writeln!(text, "{}", printable(OsStr::from_bytes(&line.path)));
    }
    text
}

fn json_of(line: &Line<'_>) -> Value {
    let item = &line.root.item;
    let optional = |id| match uuid(id) {
        none if none == "-" => Value::Null,
        text => Value::from(text),
    };
    json!({
        "id": line.root.id,
        "parent_id": line.root.parent(),
        "path": bytes_json(&line.path),
        "is_read_only": is_read_only(line.root),
        "generation": item.generation.get(),
        "created_generation": item.otransid.get(),
        "uuid": optional(item.uuid),
        "parent_uuid": optional(item.parent_uuid),
        "received_uuid": optional(item.received_uuid),
        "created": local_time_text(item.otime.sec.get().cast_signed(), true),
        "changed": local_time_text(item.ctime.sec.get().cast_signed(), true),
    })
}
