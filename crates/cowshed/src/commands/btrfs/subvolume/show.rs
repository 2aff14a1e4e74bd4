//! `subvolume show`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use btrfs_format::features::root_flags;
use btrfs_format::items::Timespec;
use clap::Args;
use uuid::Uuid;

use super::super::place::Images;
use super::super::roots::{Root, Roots, TOP_LEVEL};
use super::super::say::{reason, uuid, warning};
use crate::commands::offline::image_of;
use crate::people::{local_time_text, printable};

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct ShowArgs {
    /// The subvolume of this number, on the volume of the path
    #[arg(short = 'r', long, value_name = "ID", conflicts_with = "uuid")]
    rootid: Option<u64>,
    /// The subvolume of this uuid, on the volume of the path
    #[arg(short = 'u', long, value_name = "UUID")]
    uuid: Option<Uuid>,
    /// Accepted, as the other units: nothing in the output has one
    #[arg(short = 'b', long)]
    raw: bool,
    #[arg(short = 'h', long, hide = true)]
    human_readable: bool,
    #[arg(short = 'H', hide = true)]
    si_human: bool,
    #[arg(long, hide = true)]
    iec: bool,
    #[arg(long, hide = true)]
    si: bool,
    #[arg(short = 'k', long, hide = true)]
    kbytes: bool,
    #[arg(short = 'm', long, hide = true)]
    mbytes: bool,
    #[arg(short = 'g', long, hide = true)]
    gbytes: bool,
    #[arg(short = 't', long, hide = true)]
    tbytes: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// A subvolume
    path: PathBuf,
}

pub fn run(args: &ShowArgs) -> Result<u8> {
    let whole = whole(&args.path)?;
    let failed = |error| anyhow!("Could not search B-tree: {}", reason(&error));
    let mut images = Images::to_read();
    let by_path = args.rootid.is_none() && args.uuid.is_none();
    let (place, own) = match by_path {
        true => images.subvolume(&whole)?,
        false => (images.anything(&whole)?, 0),
    };
    let roots = Roots::load(&place).map_err(failed)?;
    let found = match (args.rootid, args.uuid) {
        (Some(id), _) => roots.find(id),
        (None, Some(wanted)) => {
            let mut all = roots.iter().filter(|root| !root.is_deleted());
            let found = all.find(|root| root.item.uuid == *wanted.as_bytes());
            if found.is_none() {
                bail!("can't find uuid '{wanted}' on '{}'", whole.display());
            }
            found
        }
        (None, None) => roots.find(own),
    };
    let Some(root) = found.filter(|root| !root.is_deleted()) else {
        bail!("Subvolume not found: No such file or directory");
    };
    let text = text(&roots, root).map_err(failed)?;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    if root.item.received_uuid != [0; 16] && !is_read_only(root) {
        warning(
            "the subvolume is read-write and has received_uuid set,\n\t don't use it for incremental send. Please see \
             section\n\t 'SUBVOLUME FLAGS' in manual page btrfs-subvolume for\n\t further information.",
        );
    }
    Ok(0)
}

/// A path without symbolic links.
fn whole(path: &Path) -> Result<PathBuf> {
    if image_of(path).is_some() {
        return Ok(path.to_owned());
    }
    let failed = |error| anyhow!("cannot find real path for '{}': {}", path.display(), reason(&error));
    path.canonicalize().map_err(failed)
}

fn text(roots: &Roots<'_>, root: &Root) -> std::io::Result<String> {
    let item = &root.item;
    let name = root.name.as_ref().map(|name| printable(OsStr::from_bytes(&name.name)));
    let path = match root.id == TOP_LEVEL {
        true => "/".to_owned(),
        false => printable(OsStr::from_bytes(&roots.path(root, 0)?)),
    };
    let created = time(item.otime).unwrap_or_else(|| "-".to_owned());
    let lines = [
        ("Name:", name.unwrap_or_else(|| "<FS_TREE>".to_owned())),
        ("UUID:", uuid(item.uuid)),
        ("Parent UUID:", uuid(item.parent_uuid)),
        ("Received UUID:", uuid(item.received_uuid)),
        ("Creation time:", created.clone()),
        ("Subvolume ID:", root.id.to_string()),
        ("Generation:", item.generation.to_string()),
        ("Gen at creation:", item.otransid.to_string()),
        ("Parent ID:", root.parent().to_string()),
        ("Top level ID:", root.parent().to_string()),
        ("Flags:", if is_read_only(root) { "readonly" } else { "-" }.to_owned()),
        ("Send transid:", item.stransid.to_string()),
        // btrfs(8) shows the time of creation for what was not sent.
        ("Send time:", time(item.stime).unwrap_or(created)),
        ("Receive transid:", item.rtransid.to_string()),
        ("Receive time:", time(item.rtime).unwrap_or_else(|| "-".to_owned())),
    ];
    let mut text = format!("{path}\n");
    for (what, value) in lines {
        // Writing to a string cannot fail.
        let tabs = if what.len() < 7 {
            "\t\t\t"
        } else if what.len() < 15 {
            "\t\t"
        } else {
            "\t"
        };
        let _ = writeln!(text, "\t{what} {tabs}{value}");
    }
    text.push_str("\tSnapshot(s):\n");
    if item.uuid != [0; 16] {
        for snapshot in roots.nested(TOP_LEVEL) {
            if snapshot.item.parent_uuid == item.uuid {
                let path = roots.path(snapshot, 0)?;
                let _ = writeln!(text, "\t\t\t\t{}", printable(OsStr::from_bytes(&path)));
            }
        }
    }
    Ok(text)
}

fn is_read_only(root: &Root) -> bool {
    root.item.subvolume_flags() & root_flags::SUBVOL_RDONLY != 0
}

fn time(time: Timespec) -> Option<String> {
    let secs = time.sec.get().cast_signed();
    (secs != 0).then(|| local_time_text(secs, true))
}
