//! `inspect chunk`: the chunk map, with how much of each chunk is used.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::Result;
use btrfs_format::features::{block_group, compat_ro, flag_names};
use btrfs_format::items::BlockGroupItem;
use btrfs_format::{Key, KeyType, TreeId, view};
use btrfs_store::volume::Chunk;
use clap::Args;
use serde_json::{Value, json};

use super::super::targets::Targets;
use super::reader::Reader;

#[derive(Args, Debug)]
pub struct ChunkArgs {
    #[command(flatten)]
    targets: Targets,
}

impl ChunkArgs {
    pub fn targets(&self) -> &[PathBuf] {
        &self.targets.targets
    }
}

pub fn run(args: &ChunkArgs) -> Result<u8> {
    let reader = Reader::open(&args.targets.targets)?;
    let (used, code) = match used_bytes(&reader) {
        Ok(used) => (used, 0),
        Err(error) => {
            crate::people::warn(format_args!(
                "cowshed: how much of the chunks is used cannot be read: {error:#}"
            ));
            (HashMap::new(), 1)
        }
    };
    let chunks = reader.volume.chunks();
    let mut out = std::io::stdout().lock();
    if args.targets.json {
        let list: Vec<Value> = chunks.iter().map(|chunk| chunk_json(chunk, &used)).collect();
        writeln!(out, "{:#}", Value::Array(list))?;
    } else {
        let mut text = String::new();
        for device in reader.volume.devices() {
            let name = device.device.as_ref().map_or("(missing)", |d| d.name());
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "device {} total {} used {} path {name}",
                device.devid, device.total_bytes, device.bytes_used
            );
        }
        for chunk in chunks.iter() {
            write_chunk(&mut text, chunk, &used);
        }
        out.write_all(text.as_bytes())?;
    }
    out.flush()?;
    Ok(code)
}

/// Used bytes of each block group, by its address.
fn used_bytes(reader: &Reader) -> Result<HashMap<u64, u64>> {
    let separate = reader.volume.superblock().compat_ro_flags.get() & compat_ro::BLOCK_GROUP_TREE != 0;
    let tree = if separate { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
    let mut used = HashMap::new();
    let Some(root) = reader.root(tree)? else {
        anyhow::bail!("there is no tree {tree}")
    };
    // Each block group's item follows the extents before it: looked up by its chunk, not searched
    // for.
    for chunk in reader.volume.chunks().iter() {
        let key = Key::new(
            btrfs_format::ObjectId(chunk.logical().get()),
            KeyType::BLOCK_GROUP_ITEM,
            u64::MAX,
        );
        if let Some((found, data)) = reader.floor(root, &key)?
            && found.objectid == key.objectid
            && found.ty == key.ty
            && let Some(item) = view::fixed::<BlockGroupItem>(&data)
        {
            used.insert(chunk.logical().get(), item.used.get());
        }
    }
    Ok(used)
}

pub fn type_text(flags: u64) -> String {
    flag_names(flags & block_group::TYPE_MASK, block_group::NAMES).join("|")
}

fn write_chunk(text: &mut String, chunk: &Chunk, used: &HashMap<u64, u64>) {
    let used = used.get(&chunk.logical().get()).map_or("?".into(), u64::to_string);
    let _ = writeln!(
        text,
        "chunk {} length {} type {} profile {} used {used}",
        chunk.logical(),
        chunk.length_bytes(),
        type_text(chunk.flags()),
        chunk.profile().name()
    );
    for (index, stripe) in chunk.stripes().iter().enumerate() {
        let _ = writeln!(
            text,
            "\tstripe {index} device {} offset {}",
            stripe.at.dev, stripe.at.offset
        );
    }
}

fn chunk_json(chunk: &Chunk, used: &HashMap<u64, u64>) -> Value {
    let stripes: Vec<Value> = chunk
        .stripes()
        .iter()
        .map(|stripe| json!({ "devid": stripe.at.dev.get(), "offset": stripe.at.offset }))
        .collect();
    json!({
        "logical": chunk.logical().get(),
        "length": chunk.length_bytes(),
        "type": type_text(chunk.flags()),
        "profile": chunk.profile().name(),
        "used": used.get(&chunk.logical().get()),
        "stripes": stripes,
    })
}
