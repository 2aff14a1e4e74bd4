//! What was made, in the words and the order of mkfs.btrfs, and as JSON.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use btrfs_image::plan::ChunkKind;
use btrfs_image::size::pretty_bytes;
use btrfs_image::{ChunkReport, DeviceReport, Discarded, MkfsOptions, MkfsReport, Profile};
use cowshed::image::SubvolumeKind;
use cowshed_vfs::Compression;

use super::features;
use crate::people::{printable, say};
use crate::sys;

/// In the words of mkfs.btrfs. A file that was made just now had nothing to discard.
pub fn print_discards(report: &MkfsReport, made: &[PathBuf]) {
    for device in &report.devices {
        let is_new = made.iter().any(|path| path.display().to_string() == device.name);
        match device.discarded {
            Discarded::All if !is_new => {
                let size = pretty_bytes(device.total_bytes);
                say(format_args!("Performing full device TRIM {} ({size}) ...", device.name));
            }
            Discarded::NotDone => say(format_args!(
                "{}: cannot discard, its old contents stay until overwritten",
                device.name
            )),
            Discarded::All | Discarded::NotAsked => {}
        }
    }
}

/// The program, as mkfs.btrfs names itself first.
pub fn print_headline() {
    say(format_args!("cowshed {}\n", env!("CARGO_PKG_VERSION")));
}

/// Where files of `--rootdir` come from, and how they are stored.
pub fn print_source(
    rootdir: &Path,
    compress: Option<Compression>,
    subvolumes: &[(SubvolumeKind, PathBuf)],
    shrinks: bool,
) {
    let whole = rootdir.canonicalize().unwrap_or_else(|_| rootdir.to_owned());
    line("Rootdir from:", printable(whole));
    line("  Compress:", compress.map_or("no".to_owned(), |how| how.to_string()));
    for (kind, path) in subvolumes {
        let kind = match (kind.is_default, kind.read_only) {
            (false, false) => "rw",
            (false, true) => "ro",
            (true, false) => "drw",
            (true, true) => "dro",
        };
        line(&format!("  Subvolume ({kind}):"), printable(path));
    }
    line("  Shrink:", yes_or_no(shrinks));
}

/// The volume, line by line as mkfs.btrfs describes it.
pub fn print(report: &MkfsReport, options: &MkfsOptions) {
    let settings = &report.settings;
    let label = match options.label.is_empty() {
        true => "(null)",
        false => &options.label,
    };
    line("Label:", label);
    line("UUID:", uuid::Uuid::from_bytes(options.uuid));
    line("Node size:", settings.nodesize());
    let page_bytes = rustix::param::page_size();
    let sectors = options.sectorsize_bytes;
    line("Sector size:", format_args!("{sectors}\t(CPU page size: {page_bytes})"));
    line("Filesystem size:", pretty_bytes(report.total_bytes));
    say("Block group profiles:");
    for (what, profile, bytes) in block_groups(report) {
        say(format_args!("  {what:<18}{profile:<10}{:>15}", pretty_bytes(bytes)));
    }
    let is_ssd = |device: &DeviceReport| {
        sys::queue_attribute(Path::new(&device.name), "rotational").is_some_and(|text| text == "0")
    };
    line("SSD detected:", yes_or_no(report.devices.iter().any(is_ssd)));
    let is_zoned = |device: &DeviceReport| {
        sys::queue_attribute(Path::new(&device.name), "zoned").is_some_and(|text| text != "none")
    };
    line("Zoned device:", yes_or_no(report.devices.iter().any(is_zoned)));
    let mut features = features::of(&settings.features);
    let has_raid1c34 = |chunk: &ChunkReport| matches!(chunk.profile, Profile::Raid1c3 | Profile::Raid1c4);
    if report.chunks.iter().any(has_raid1c34) {
        features.push("raid1c34");
    }
    line("Features:", features.join(", "));
    line("Checksum:", options.csum_type.name());
    line("Number of devices:", report.devices.len());
    say("Devices:\n   ID        SIZE  PATH");
    for device in &report.devices {
        let size = pretty_bytes(device.total_bytes);
        say(format_args!("{:>5}  {size:>10}  {}", device.devid, device.name));
    }
    say("");
}

fn line(what: &str, value: impl Display) {
    say(format_args!("{what:<20}{value}"));
}

fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

/// What each type has: its name, profile and bytes.
fn block_groups(report: &MkfsReport) -> Vec<(&'static str, String, u64)> {
    let kinds = [
        (ChunkKind::Data, "Data:"),
        (ChunkKind::Metadata, "Metadata:"),
        (ChunkKind::Mixed, "Data+Metadata:"),
        (ChunkKind::System, "System:"),
    ];
    let mut all = Vec::new();
    for (kind, what) in kinds {
        let chunks = report.chunks.iter().filter(|chunk| chunk.kind == kind);
        let Some(first) = chunks.clone().next() else { continue };
        let profile = match first.profile {
            Profile::Single => "single".to_owned(),
            other => other.to_string().to_uppercase(),
        };
        all.push((what, profile, chunks.map(|chunk| chunk.length_bytes).sum()));
    }
    all
}

pub fn json(report: &MkfsReport, options: &MkfsOptions) -> serde_json::Value {
    serde_json::json!({
        "label": options.label,
        "uuid": uuid::Uuid::from_bytes(options.uuid).to_string(),
        "nodesize": report.settings.nodesize(),
        "sectorsize": options.sectorsize_bytes,
        "total_bytes": report.total_bytes,
        "used_bytes": report.used_bytes,
        "csum": options.csum_type.name(),
        "chunks": report.chunks.iter().map(|c| serde_json::json!({
            "type": format!("{:?}", c.kind).to_lowercase(), "profile": c.profile.to_string(), "length": c.length_bytes,
        })).collect::<Vec<_>>(),
        "devices": report.devices.iter().map(|d| serde_json::json!({
            "devid": d.devid, "uuid": uuid::Uuid::from_bytes(d.uuid).to_string(),
            "path": d.name, "total_bytes": d.total_bytes, "discarded": d.discarded == Discarded::All,
        })).collect::<Vec<_>>(),
    })
}
