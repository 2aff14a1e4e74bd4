//! The superblock for people and for programs.

use std::fmt::Write as _;

use cowshed_layout::hex;
use serde_json::{Map, Value, json};

use super::items::chunk;
use super::value::{Lines, key_json, key_text, uuid_text};
use crate::csum::ChecksumType;
use crate::features::{compat_ro, flag_names, incompat, super_flags};
use crate::superblock::{MAGIC, RootBackup, Superblock};
use crate::view;

/// The fields between the fsids and the device, in the order of `dump-super`.
fn numbers(sb: &Superblock) -> [(&'static str, u64); 19] {
    [
        ("generation", sb.generation.get()),
        ("root", sb.root.get()),
        ("sys_array_size", sb.sys_chunk_array_size.get().into()),
        ("chunk_root_generation", sb.chunk_root_generation.get()),
        ("root_level", sb.root_level.into()),
        ("chunk_root", sb.chunk_root.get()),
        ("chunk_root_level", sb.chunk_root_level.into()),
        ("log_root", sb.log_root.get()),
        ("log_root_transid (deprecated)", sb.log_root_transid_unused.get()),
        ("log_root_level", sb.log_root_level.into()),
        ("total_bytes", sb.total_bytes.get()),
        ("bytes_used", sb.bytes_used.get()),
        ("sectorsize", sb.sectorsize.get().into()),
        ("nodesize", sb.nodesize.get().into()),
        ("leafsize (deprecated)", sb.leafsize_unused.get().into()),
        ("stripesize", sb.stripesize.get().into()),
        ("root_dir", sb.root_dir_objectid.get()),
        ("num_devices", sb.num_devices.get()),
        ("compat_flags", sb.compat_flags.get()),
    ]
}

fn device_numbers(sb: &Superblock) -> [(&'static str, u64); 11] {
    let dev = &sb.dev_item;
    [
        ("type", dev.ty.get()),
        ("total_bytes", dev.total_bytes.get()),
        ("bytes_used", dev.bytes_used.get()),
        ("io_align", dev.io_align.get().into()),
        ("io_width", dev.io_width.get().into()),
        ("sector_size", dev.sector_size.get().into()),
        ("devid", dev.devid.get()),
        ("dev_group", dev.dev_group.get().into()),
        ("seek_speed", dev.seek_speed.into()),
        ("bandwidth", dev.bandwidth.into()),
        ("generation", dev.generation.get()),
    ]
}

/// The roots of a backup with generation and level.
fn backup_roots(backup: &RootBackup) -> [(&'static str, u64, u64, u8); 6] {
    [
        (
            "tree_root",
            backup.tree_root.get(),
            backup.tree_root_gen.get(),
            backup.tree_root_level,
        ),
        (
            "chunk_root",
            backup.chunk_root.get(),
            backup.chunk_root_gen.get(),
            backup.chunk_root_level,
        ),
        (
            "extent_root",
            backup.extent_root.get(),
            backup.extent_root_gen.get(),
            backup.extent_root_level,
        ),
        (
            "fs_root",
            backup.fs_root.get(),
            backup.fs_root_gen.get(),
            backup.fs_root_level,
        ),
        (
            "dev_root",
            backup.dev_root.get(),
            backup.dev_root_gen.get(),
            backup.dev_root_level,
        ),
        (
            "csum_root",
            backup.csum_root.get(),
            backup.csum_root_gen.get(),
            backup.csum_root_level,
        ),
    ]
}

fn csum_text(sb: &Superblock, ty: Option<ChecksumType>) -> (String, bool) {
    let used = ..ty.map_or(sb.csum.len(), ChecksumType::size_bytes);
    let matches = ty.is_some_and(|ty| sb.compute_csum(ty).get(used) == sb.csum.get(used));
    (hex(sb.csum.get(used).unwrap_or_default()), matches)
}

fn put(out: &mut String, name: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail; columns as `dump-super` has them.
    let tabs = if name.len() < 8 {
        "\t\t\t"
    } else if name.len() < 16 {
        "\t\t"
    } else {
        "\t"
    };
    let _ = writeln!(out, "{name}{tabs}{value}");
}

fn verdict(matches: bool) -> &'static str {
    if matches { "match" } else { "DON'T MATCH" }
}

fn put_flags(out: &mut String, bits: u64, names: &[(u64, &str)]) {
    if bits != 0 {
        let _ = writeln!(out, "\t\t\t( {} )", flag_names(bits, names).join(" |\n\t\t\t  "));
    }
}

/// A superblock as text.
pub fn superblock_text(sb: &Superblock) -> String {
    let mut out = String::new();
    let ty = sb.checksum_type();
    let (csum, matches) = csum_text(sb, ty);
    let name = ty.map_or("unknown", ChecksumType::name);
    put(&mut out, "csum_type", format_args!("{} ({name})", sb.csum_type));
    put(&mut out, "csum_size", ty.map_or(0, ChecksumType::size_bytes));
    put(&mut out, "csum", format_args!("0x{csum} [{}]", verdict(matches)));
    put(&mut out, "bytenr", sb.bytenr);
    put(&mut out, "flags", format_args!("{:#x}", sb.flags.get()));
    put_flags(&mut out, sb.flags.get(), super_flags::NAMES);
    let printable = |byte: u8| {
        if byte.is_ascii_graphic() || byte == b' ' {
            char::from(byte)
        } else {
            '.'
        }
    };
    let magic: String = sb.magic.iter().copied().map(printable).collect();
    let matches = verdict(sb.magic == MAGIC);
    put(&mut out, "magic", format_args!("{magic} [{matches}]"));
    put(&mut out, "fsid", uuid_text(&sb.fsid));
    put(&mut out, "metadata_uuid", uuid_text(&sb.metadata_fsid()));
    put(&mut out, "label", String::from_utf8_lossy(sb.label()));
    for (name, value) in numbers(sb) {
        if name == "compat_flags" {
            put(&mut out, name, format_args!("{value:#x}"));
        } else {
            put(&mut out, name, value);
        }
    }
    put(
        &mut out,
        "compat_ro_flags",
        format_args!("{:#x}", sb.compat_ro_flags.get()),
    );
    put_flags(&mut out, sb.compat_ro_flags.get(), compat_ro::NAMES);
    put(
        &mut out,
        "incompat_flags",
        format_args!("{:#x}", sb.incompat_flags.get()),
    );
    put_flags(&mut out, sb.incompat_flags.get(), incompat::NAMES);
    put(&mut out, "cache_generation", sb.cache_generation);
    put(&mut out, "uuid_tree_generation", sb.uuid_tree_generation);
    put(&mut out, "dev_item.uuid", uuid_text(&sb.dev_item.uuid));
    let (fsid, matches) = (uuid_text(&sb.dev_item.fsid), sb.dev_item.fsid == sb.metadata_fsid());
    put(&mut out, "dev_item.fsid", format_args!("{fsid} [{}]", verdict(matches)));
    for (name, value) in device_numbers(sb) {
        put(&mut out, &format!("dev_item.{name}"), value);
    }
    put_system_chunks(&mut out, sb);
    put_backups(&mut out, sb);
    out
}

fn put_system_chunks(out: &mut String, sb: &Superblock) {
    let _ = writeln!(out, "sys_chunk_array[{}]:", sb.sys_chunk_array.len());
    for (n, (key, lines)) in system_chunks(sb).into_iter().enumerate() {
        let _ = writeln!(out, "\titem {n} key {}", key_text(&key));
        let _ = lines.text("\t\t", out);
    }
}

/// The system chunks as described items.
fn system_chunks(sb: &Superblock) -> Vec<(crate::Key, Lines)> {
    use zerocopy::IntoBytes;
    view::system_chunks(sb.system_chunk_bytes())
        .map(|(key, head, stripes)| {
            let mut lines = Lines::default();
            let _ = chunk(&mut lines, &[head.as_bytes(), stripes.as_bytes()].concat());
            (key, lines)
        })
        .collect()
}

fn put_backups(out: &mut String, sb: &Superblock) {
    let _ = writeln!(out, "backup_roots[{}]:", sb.super_roots.len());
    for (n, backup) in sb.super_roots.iter().enumerate() {
        let _ = writeln!(out, "\tbackup {n}:");
        for (name, root, generation, level) in backup_roots(backup) {
            // As `dump-super` has it, with its two odd ones.
            let (prefix, tabs) = match name {
                "csum_root" => ("", "\t"),
                "fs_root" => ("backup_", "\t\t"),
                _ => ("backup_", "\t"),
            };
            let _ = writeln!(
                out,
                "\t\t{prefix}{name}:{tabs}{root}\tgen: {generation}\tlevel: {level}"
            );
        }
        let _ = writeln!(out, "\t\tbackup_total_bytes:\t{}", backup.total_bytes);
        let _ = writeln!(out, "\t\tbackup_bytes_used:\t{}", backup.bytes_used);
        let _ = writeln!(out, "\t\tbackup_num_devices:\t{}\n", backup.num_devices);
    }
}

/// A superblock as JSON.
pub fn superblock_json(sb: &Superblock) -> Value {
    let ty = sb.checksum_type();
    let (csum, matches) = csum_text(sb, ty);
    let mut out = Map::new();
    let mut set = |name: &str, value: Value| out.insert(name.to_owned(), value);
    set("csum_type", json!(ty.map(ChecksumType::name)));
    set("csum", json!(csum));
    set("csum_matches", json!(matches));
    set("bytenr", json!(sb.bytenr.get()));
    set("flags", json!(flag_names(sb.flags.get(), super_flags::NAMES)));
    set("fsid", json!(uuid_text(&sb.fsid)));
    set("metadata_uuid", json!(uuid_text(&sb.metadata_fsid())));
    set("label", json!(String::from_utf8_lossy(sb.label())));
    for (name, value) in numbers(sb) {
        set(name.trim_end_matches(" (deprecated)"), json!(value));
    }
    set(
        "compat_ro_flags",
        json!(flag_names(sb.compat_ro_flags.get(), compat_ro::NAMES)),
    );
    set(
        "incompat_flags",
        json!(flag_names(sb.incompat_flags.get(), incompat::NAMES)),
    );
    set("cache_generation", json!(sb.cache_generation.get()));
    set("uuid_tree_generation", json!(sb.uuid_tree_generation.get()));
    let mut dev: Map<String, Value> = device_numbers(sb)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), json!(value)))
        .collect();
    dev.insert("uuid".into(), json!(uuid_text(&sb.dev_item.uuid)));
    dev.insert("fsid".into(), json!(uuid_text(&sb.dev_item.fsid)));
    set("dev_item", Value::Object(dev));
    let chunks = system_chunks(sb).into_iter().map(|(key, lines)| {
        let mut item = Map::new();
        lines.json(&mut item);
        item.insert("key".into(), key_json(&key));
        Value::Object(item)
    });
    set("sys_chunk_array", chunks.collect());
    set("backup_roots", sb.super_roots.iter().map(backup_json).collect());
    Value::Object(out)
}

fn backup_json(backup: &RootBackup) -> Value {
    let mut out: Map<String, Value> = backup_roots(backup)
        .into_iter()
        .map(|(name, root, generation, level)| {
            let root = json!({ "bytenr": root, "generation": generation, "level": level });
            (name.to_owned(), root)
        })
        .collect();
    out.insert("total_bytes".into(), json!(backup.total_bytes.get()));
    out.insert("bytes_used".into(), json!(backup.bytes_used.get()));
    out.insert("num_devices".into(), json!(backup.num_devices.get()));
    Value::Object(out)
}
