//! `filesystem show`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use uuid::Uuid;

use super::super::place::{Images, Place};
use super::super::say::{error, reason};
use super::super::space::spaces;
use super::super::units::{LongUnits, Style};
use crate::block_devices::{self, superblock};
use crate::commands::mount_table;
use crate::commands::offline::image_of;
use crate::people::printable;

#[derive(Args, Debug)]
pub struct ShowArgs {
    #[command(flatten)]
    units: LongUnits,
    /// Only volumes on block devices, mounted or not
    #[arg(short = 'd', long)]
    all_devices: bool,
    /// Only volumes that are mounted
    #[arg(short = 'm', long)]
    mounted: bool,
    /// A directory on a mount, a device, an image, a uuid or a label; else all volumes are shown
    what: Option<PathBuf>,
}

/// A volume, as far as it is shown.
struct Shown {
    uuid: [u8; 16],
    label: Vec<u8>,
    devices: u64,
    used_bytes: u64,
    /// Number, size, bytes given to data and metadata, path. No path: a mount has it as missing.
    there: Vec<(u64, u64, u64, Option<String>)>,
}

/// What volumes are looked for by.
enum Wanted {
    All,
    Uuid(Uuid),
    Label(Vec<u8>),
}

impl Wanted {
    fn fits(&self, shown: &Shown) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Uuid(uuid) => *uuid.as_bytes() == shown.uuid,
            Wanted::Label(label) => *label == shown.label,
        }
    }
}

pub fn run(args: &ShowArgs) -> Result<u8> {
    let style = args.units.style();
    let Some(what) = &args.what else {
        for shown in &all(args, &Wanted::All) {
            print(shown, style)?;
        }
        return Ok(0);
    };
    let not_valid = || anyhow!("not a valid btrfs filesystem: {}", what.display());
    let found = match by_path(what)? {
        Some(shown) => vec![shown],
        None => {
            let text = what.to_string_lossy();
            let wanted = Uuid::try_parse(&text).map_or_else(|_| Wanted::Label(text.as_bytes().to_vec()), Wanted::Uuid);
            all(args, &wanted)
        }
    };
    if found.is_empty() {
        return Err(not_valid());
    }
    for shown in &found {
        print(shown, style)?;
    }
    Ok(0)
}

/// The volume that a path leads to; `None` where there is no such path.
fn by_path(path: &Path) -> Result<Option<Shown>> {
    let mut images = Images::to_read();
    if !images.has(path)? {
        return Ok(None);
    }
    if Images::is_device(path) {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let Some(mut shown) = of_device(&path) else {
            bail!("not a valid btrfs filesystem: {}", path.display());
        };
        let others = block_devices::others_of(&path);
        let others = others.iter().filter_map(|other| of_device(other));
        shown.there.extend(others.flat_map(|other| other.there));
        shown.there.sort_unstable();
        return Ok(Some(shown));
    }
    let is_whole = match image_of(path) {
        Some((_, inside)) => inside.iter().all(|byte| *byte == b'/'),
        // btrfs(8) looks for mount points.
        None => mount_table::on(&path.canonicalize()?)?.is_some(),
    };
    let found = images.anything(path).ok().filter(|_| is_whole);
    let Some(place) = found else {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        bail!("not a valid btrfs filesystem: {}", path.display());
    };
    Ok(Some(of_place(&place).map_err(|failed| anyhow!("{}", reason(&failed)))?))
}

/// A volume that is mounted, or opened by this process.
fn of_place(place: &Place) -> std::io::Result<Shown> {
    let facts = place.facts()?;
    let all = spaces(place)?;
    let used = all.iter().filter(|space| !space.is_global_reserve());
    let devices = place.devices()?.into_iter();
    let there = devices.map(|device| (device.id, device.total_bytes, device.used_bytes, device.name));
    Ok(Shown {
        uuid: facts.uuid,
        label: place.label()?,
        devices: facts.devices,
        used_bytes: used.map(|space| space.used_bytes).sum(),
        there: there.collect(),
    })
}

/// A volume of which only a device is known, as its superblock says.
fn of_device(path: &Path) -> Option<Shown> {
    let sb = superblock(path)?;
    let end = sb.label.iter().position(|byte| *byte == 0).unwrap_or(sb.label.len());
    let item = &sb.dev_item;
    let (id, size, used) = (item.devid.get(), item.total_bytes.get(), item.bytes_used.get());
    Some(Shown {
        uuid: sb.fsid,
        label: sb.label[..end].to_vec(),
        devices: sb.num_devices.get(),
        used_bytes: sb.bytes_used.get(),
        there: vec![(id, size, used, Some(path.display().to_string()))],
    })
}

/// Volumes that are mounted, then others on block devices.
fn all(args: &ShowArgs, wanted: &Wanted) -> Vec<Shown> {
    let (mut found, mut known) = (Vec::new(), BTreeSet::new());
    let mut take = |shown: Shown| {
        if wanted.fits(&shown) && known.insert(shown.uuid) {
            found.push(shown);
        }
    };
    if !args.all_devices {
        mounted().into_iter().for_each(&mut take);
    }
    if !args.mounted {
        let mut others: Vec<Shown> = Vec::new();
        for shown in block_devices::all().iter().filter_map(|path| of_device(path)) {
            match others.iter_mut().find(|other| other.uuid == shown.uuid) {
                Some(other) => other.there.extend(shown.there),
                None => others.push(shown),
            }
        }
        for shown in &mut others {
            shown.there.sort_unstable();
            shown.there.dedup_by_key(|(id, ..)| *id);
        }
        others.into_iter().for_each(take);
    }
    found
}

fn mounted() -> Vec<Shown> {
    let mounts = mount_table::all().unwrap_or_default();
    let of_btrfs = mounts.iter().filter(|mount| mount.kind == "btrfs" || mount.is_ours());
    let mut found = Vec::new();
    for mount in of_btrfs {
        let mut images = Images::to_read();
        let Ok(place) = images.anything(&mount.target) else {
            continue;
        };
        match of_place(&place) {
            Ok(shown) => found.push(shown),
            Err(failed) => error(format_args!(
                "getting device info for {} failed: {}",
                mount.target.display(),
                reason(&failed)
            )),
        }
    }
    found
}

fn print(shown: &Shown, style: Style) -> Result<()> {
    use std::os::unix::ffi::OsStrExt as _;
    let label = match shown.label.is_empty() {
        true => "none".to_owned(),
        false => format!("'{}'", printable(std::ffi::OsStr::from_bytes(&shown.label))),
    };
    let mut text = format!("Label: {label}  uuid: {}\n", Uuid::from_bytes(shown.uuid));
    // Writing to a string cannot fail.
    let used = style.text(shown.used_bytes);
    let _ = writeln!(text, "\tTotal devices {} FS bytes used {used}", shown.devices);
    for (id, size, used, path) in &shown.there {
        let (size, used) = (style.text(*size), style.text(*used));
        let _ = match path {
            Some(path) => writeln!(text, "\tdevid {id:>4} size {size} used {used} path {path}"),
            None => writeln!(text, "\tdevid {id:>4} size 0 used 0 path  MISSING"),
        };
    }
    if (shown.there.len() as u64) < shown.devices {
        text.push_str("\t*** Some devices missing\n");
    }
    text.push('\n');
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}
