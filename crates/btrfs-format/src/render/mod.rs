//! Blocks and superblocks for people and for programs: text in the manner of
//! `btrfs inspect-internal dump-tree` and `dump-super`, and JSON of the same fields.

mod items;
mod superblock;
mod value;

use std::fmt;

use serde_json::{Map, Value, json};

use crate::block::{TreeBlock, leaf_capacity_bytes, node_capacity_ptrs};
use crate::features::header_flags;
use crate::ids::ObjectId;
use crate::key::{Key, KeyType};

pub use superblock::{superblock_json, superblock_text};
pub use value::{key_text, objectid_text, uuid_text};

const HEADER_FLAG_NAMES: &[(u64, &str)] = &[(header_flags::WRITTEN, "WRITTEN"), (header_flags::RELOC, "RELOC")];
/// The header's flags below the back reference revision.
const HEADER_FLAG_MASK: u64 = (1 << header_flags::BACKREF_REV_SHIFT) - 1;

/// A block as text: a header, then items or pointers.
pub fn block_text(block: &TreeBlock) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_block(block, &mut out);
    out
}

impl fmt::Display for TreeBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_block(self, f)
    }
}

fn write_block(block: &TreeBlock, out: &mut impl fmt::Write) -> fmt::Result {
    let header = block.header();
    let (addr, owner) = (block.addr(), objectid_text(block.owner().object_id(), KeyType::UNTYPED));
    let (count, generation) = (block.len(), block.generation());
    let (kind, free) = if block.is_leaf() {
        let capacity = leaf_capacity_bytes(block.bytes().len());
        ("leaf", capacity.saturating_sub(block.used_bytes()))
    } else {
        let capacity = node_capacity_ptrs(block.bytes().len());
        ("node", capacity.saturating_sub(count))
    };
    write!(out, "{kind} {addr} ")?;
    if !block.is_leaf() {
        write!(out, "level {} ", block.level())?;
    }
    writeln!(
        out,
        "items {count} free space {free} generation {generation} owner {owner}"
    )?;
    let flags = header.flags.get();
    writeln!(
        out,
        "{kind} {addr} flags {:#x}({}) backref revision {}",
        flags & HEADER_FLAG_MASK,
        value::names_text(flags & HEADER_FLAG_MASK, HEADER_FLAG_NAMES, ""),
        flags >> header_flags::BACKREF_REV_SHIFT
    )?;
    writeln!(out, "fs uuid {}", uuid_text(&header.fsid))?;
    writeln!(out, "chunk uuid {}", uuid_text(&header.chunk_tree_uuid))?;
    for (slot, head) in block.item_headers().iter().enumerate() {
        let (key, data) = block.item(slot);
        let (offset, size) = (head.offset, head.size);
        writeln!(
            out,
            "\titem {slot} key {} itemoff {offset} itemsize {size}",
            key_text(&key)
        )?;
        items::describe(&key, data).text("\t\t", out)?;
    }
    for ptr in block.key_ptrs() {
        let key = key_text(&ptr.key.into());
        writeln!(out, "\tkey {key} block {} gen {}", ptr.blockptr, ptr.generation)?;
    }
    Ok(())
}

/// An item's fields as text, a line each, without key.
pub fn item_text(key: &Key, data: &[u8]) -> String {
    let mut out = String::new();
    let _ = items::describe(key, data).text("", &mut out);
    out
}

/// An item's fields as JSON, its key among them.
pub fn item_json(key: &Key, data: &[u8]) -> Value {
    let mut item = Map::new();
    items::describe(key, data).json(&mut item);
    item.insert("key".into(), value::key_json(key));
    Value::Object(item)
}

/// A block as JSON.
pub fn block_json(block: &TreeBlock) -> Value {
    let header = block.header();
    let flags = header.flags.get();
    let mut out = json!({
        "addr": block.addr().get(),
        "level": block.level(),
        "generation": block.generation().get(),
        "owner": block.owner().get(),
        "owner_name": objectid_text(block.owner().object_id(), KeyType::UNTYPED),
        "flags": crate::features::flag_names(flags & HEADER_FLAG_MASK, HEADER_FLAG_NAMES),
        "backref_revision": flags >> header_flags::BACKREF_REV_SHIFT,
        "fs_uuid": uuid_text(&header.fsid),
        "chunk_uuid": uuid_text(&header.chunk_tree_uuid),
    });
    let contents: Vec<Value> = if block.is_leaf() {
        let items = (0..block.len()).map(|slot| block.item(slot));
        items.map(|(key, data)| item_json(&key, data)).collect()
    } else {
        let ptrs = block.key_ptrs().iter().map(|ptr| {
            let key = value::key_json(&ptr.key.into());
            json!({ "key": key, "block": ptr.blockptr.get(), "generation": ptr.generation.get() })
        });
        ptrs.collect()
    };
    if let Value::Object(map) = &mut out {
        let name = if block.is_leaf() { "items" } else { "children" };
        map.insert(name.into(), Value::Array(contents));
    }
    out
}

/// The name of a tree, or its number.
pub fn tree_text(tree: crate::TreeId) -> String {
    objectid_text(ObjectId(tree.get()), KeyType::UNTYPED)
}

#[cfg(test)]
mod tests {
    use zerocopy::{FromZeros, IntoBytes};

    use super::*;
    use crate::items::{DirItem, FileExtent};

    #[test]
    fn items_are_objects_with_their_fields() {
        let mut extent = FileExtent::new_zeroed();
        extent.ty = 1;
        extent.disk_bytenr.set(1 << 24);
        extent.disk_num_bytes.set(8192);
        extent.num_bytes.set(4096);
        let key = Key::new(ObjectId(257), KeyType::EXTENT_DATA, 0);
        assert_eq!(
            item_json(&key, extent.as_bytes()),
            json!({
                "key": { "objectid": 257, "type": "EXTENT_DATA", "offset": 0 },
                "generation": 0, "type": 1, "compression": 0,
                "disk_bytenr": 16_777_216, "disk_num_bytes": 8192,
                "offset": 0, "num_bytes": 4096, "ram_bytes": 0,
            })
        );
    }

    #[test]
    fn entries_are_lists_and_odd_names_are_hexadecimal() {
        let entry = |name: &[u8]| {
            let mut head = DirItem::new_zeroed();
            head.name_len.set(name.len() as u16);
            head.ty = 1;
            [head.as_bytes(), name].concat()
        };
        let data = [entry(b"name"), entry(b"\xff")].concat();
        let item = item_json(&Key::new(ObjectId(256), KeyType::DIR_ITEM, 0), &data);
        assert_eq!(item["entries"][0]["name"], "name");
        assert_eq!(item["entries"][0]["type"], "FILE");
        assert_eq!(item["entries"][1]["name"], json!({ "hex": "ff" }));
        assert_eq!(item["entries"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn short_items_are_described_as_far_as_they_go() {
        for ty in 0..=u8::MAX {
            for len in 0..60 {
                let key = Key::new(ObjectId(0), KeyType(ty), 0);
                item_text(&key, &vec![1; len]);
                item_json(&key, &vec![1; len]);
            }
        }
    }
}
