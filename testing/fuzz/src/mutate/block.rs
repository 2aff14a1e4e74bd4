//! Changes within one tree block that know its structure.

use btrfs_format::block::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader, KEY_PTR_BYTES, KeyPtr};
use btrfs_format::items::*;
use btrfs_format::{Key, KeyType};
use cowshed_device_sim::Rng;
use zerocopy::IntoBytes;

use super::values;
use crate::layout::{Layout as Volume, count_of, header_of, items_of, pointers_of};

/// Key, start and length of each item's data within a leaf.
pub fn item_places(bytes: &[u8]) -> Vec<(Key, usize, usize)> {
    let heads = (0..count_of(bytes)).map_while(|slot| {
        let head = bytes.get(HEADER_BYTES + slot * ITEM_HEADER_BYTES..)?;
        zerocopy::FromBytes::read_from_prefix(head)
            .ok()
            .map(|(h, _): (ItemHeader, _)| h)
    });
    heads
        .map(|h| {
            (
                Key::from(h.key),
                HEADER_BYTES + h.offset.get() as usize,
                h.size.get() as usize,
            )
        })
        .filter(|(_, at, len)| at + len <= bytes.len())
        .collect()
}

/// Changes something, and says what.
pub fn edit(bytes: &mut Vec<u8>, volume: &Volume, rng: &mut Rng) -> String {
    if rng.one_in(25) {
        return edit_header(bytes, volume, rng);
    }
    if header_of(bytes).level > 0 {
        return edit_node(bytes, volume, rng);
    }
    match rng.below(20) {
        0..10 => edit_item_field(bytes, volume, rng),
        10..13 => edit_item_bytes(bytes, volume, rng),
        13 => edit_item_header(bytes, volume, rng),
        _ => rebuild_leaf(bytes, volume, rng),
    }
}

fn edit_header(bytes: &mut [u8], volume: &Volume, rng: &mut Rng) -> String {
    let fields = &Header::FIELDS[1..];
    let field = fields[rng.index(fields.len())];
    values::change(&mut bytes[field.offset_bytes..], 0, field.size_bytes, volume, rng);
    format!("header {}", field.name)
}

fn edit_node(bytes: &mut [u8], volume: &Volume, rng: &mut Rng) -> String {
    let count = count_of(bytes).min((bytes.len() - HEADER_BYTES) / KEY_PTR_BYTES);
    if count == 0 {
        return "nothing: an empty node".into();
    }
    let slot = rng.index(count);
    let at = HEADER_BYTES + slot * KEY_PTR_BYTES;
    let part = at..at + KEY_PTR_BYTES;
    match rng.below(4) {
        // A pointer to another block, its generation as it is there: loops, shared children, trees
        // that cross.
        0 | 1 => {
            let pointers = pointers_of(bytes);
            let mut pointer = pointers[slot];
            let other = &volume.blocks[rng.index(volume.blocks.len())];
            pointer.blockptr = other.addr.into();
            pointer.generation = other.generation.into();
            bytes[part].copy_from_slice(pointer.as_bytes());
            format!("pointer {slot} to block {}", other.addr)
        }
        2 => {
            let from = HEADER_BYTES + rng.index(count) * KEY_PTR_BYTES + 17;
            bytes.copy_within(from..from + 16, at + 17);
            format!("pointer {slot} doubled")
        }
        _ => {
            let fields = KeyPtr::FIELDS;
            let field = fields[rng.index(fields.len())];
            let within = if field.size_bytes > 8 {
                [0, 8, 9][rng.index(3)]
            } else {
                0
            };
            values::change(&mut bytes[part], field.offset_bytes + within, 8, volume, rng);
            format!("pointer {slot} {}", field.name)
        }
    }
}

fn edit_item_header(bytes: &mut [u8], volume: &Volume, rng: &mut Rng) -> String {
    let count = count_of(bytes).min((bytes.len() - HEADER_BYTES) / ITEM_HEADER_BYTES);
    if count == 0 {
        return "nothing: an empty leaf".into();
    }
    let slot = rng.index(count);
    let at = HEADER_BYTES + slot * ITEM_HEADER_BYTES;
    let (within, width) = [(0, 8), (8, 1), (9, 8), (17, 4), (21, 4)][rng.index(5)];
    values::change(bytes, at + within, width, volume, rng);
    format!("item {slot} header byte {within}")
}

/// The fixed structures in an item's data.
fn fields_of(ty: KeyType) -> &'static [FieldLayout] {
    match ty {
        KeyType::INODE_ITEM => InodeItem::FIELDS,
        KeyType::INODE_REF => InodeRef::FIELDS,
        KeyType::INODE_EXTREF => InodeExtref::FIELDS,
        KeyType::XATTR_ITEM | KeyType::DIR_ITEM | KeyType::DIR_INDEX => DirItem::FIELDS,
        KeyType::EXTENT_DATA => FileExtent::FIELDS,
        KeyType::ROOT_ITEM => RootItem::FIELDS,
        KeyType::ROOT_REF | KeyType::ROOT_BACKREF => RootRef::FIELDS,
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => ExtentItem::FIELDS,
        KeyType::EXTENT_DATA_REF => ExtentDataRef::FIELDS,
        KeyType::BLOCK_GROUP_ITEM => BlockGroupItem::FIELDS,
        KeyType::DEV_EXTENT => DevExtent::FIELDS,
        KeyType::DEV_ITEM => DevItem::FIELDS,
        KeyType::CHUNK_ITEM => ChunkHead::FIELDS,
        KeyType::FREE_SPACE_INFO => FreeSpaceInfo::FIELDS,
        _ => &[],
    }
}

fn edit_item_field(bytes: &mut [u8], volume: &Volume, rng: &mut Rng) -> String {
    let items = item_places(bytes);
    if items.is_empty() {
        return "nothing: an empty leaf".into();
    }
    // Types that are many do not drown the others.
    let wanted = items[rng.index(items.len())].0.ty;
    let wanted = if rng.one_in(2) {
        let mut types: Vec<_> = items.iter().map(|(key, ..)| key.ty).collect();
        types.dedup();
        types[rng.index(types.len())]
    } else {
        wanted
    };
    let same: Vec<_> = items.iter().filter(|(key, ..)| key.ty == wanted).collect();
    let (key, at, len) = *same[rng.index(same.len())];
    let fields = fields_of(key.ty);
    if fields.is_empty() {
        return edit_item_bytes(bytes, volume, rng);
    }
    let field = fields[rng.index(fields.len())];
    // Keys and other structures within: one of their numbers.
    let within = match field.size_bytes {
        0..=8 => 0,
        17 => [0, 8, 9][rng.index(3)],
        more => rng.index(more) & !3,
    };
    let width = field.size_bytes.min(8);
    let width = if field.size_bytes == 17 && within == 8 {
        1
    } else {
        width
    };
    values::change(
        &mut bytes[at..at + len],
        field.offset_bytes + within,
        width,
        volume,
        rng,
    );
    // Trees that lead elsewhere need the generation of what is there.
    if key.ty == KeyType::ROOT_ITEM && field.name == "bytenr" {
        let other = &volume.blocks[rng.index(volume.blocks.len())];
        let mut put = |name: &str, value: &[u8]| {
            if let Some(field) = fields.iter().find(|f| f.name == name) {
                let place = at + field.offset_bytes;
                if let Some(part) = bytes.get_mut(place..place + value.len()) {
                    part.copy_from_slice(value);
                }
            }
        };
        put("bytenr", &other.addr.to_le_bytes());
        put("generation", &other.generation.to_le_bytes());
        put("generation_v2", &other.generation.to_le_bytes());
        put("level", &[other.level]);
    }
    format!("{key} {}", field.name)
}

fn edit_item_bytes(bytes: &mut [u8], volume: &Volume, rng: &mut Rng) -> String {
    let items: Vec<_> = item_places(bytes).into_iter().filter(|(.., len)| *len > 0).collect();
    if items.is_empty() {
        return "nothing: no data".into();
    }
    let (key, at, len) = items[rng.index(items.len())];
    let within = rng.index(len);
    let width = 1 << rng.below(4);
    values::change(&mut bytes[at..at + len], within, width, volume, rng);
    format!("{key} byte {within}")
}

/// Changes that keep a leaf well-formed: what is wrong is what it says.
fn rebuild_leaf(bytes: &mut Vec<u8>, volume: &Volume, rng: &mut Rng) -> String {
    let mut items = items_of(bytes);
    if items.is_empty() {
        return "nothing: an empty leaf".into();
    }
    let slot = rng.index(items.len());
    let key = items[slot].0;
    let what = match rng.below(7) {
        0 => {
            let until = (slot + 1 + rng.index(2)).min(items.len());
            items.drain(slot..until);
            "taken out"
        }
        1 => {
            let mut copy = items[slot].clone();
            change_key(&mut copy.0, volume, rng);
            items.push(copy);
            "doubled under another key"
        }
        2 => {
            let len = items[slot].1.len();
            let new = match rng.below(4) {
                0 => len.saturating_sub(1 + rng.index(8)),
                1 => len + 1 + rng.index(32),
                2 => rng.index(len + 1),
                _ => 0,
            };
            items[slot].1.resize(new, 0);
            "resized"
        }
        3 => {
            let ty = key.ty;
            let same: Vec<_> = (0..items.len()).filter(|s| items[*s].0.ty == ty).collect();
            let other = same[rng.index(same.len())];
            items[slot].1 = items[other].1.clone();
            "with another's data"
        }
        4 => {
            let shift = values::other(0, volume, rng);
            let object = key.objectid;
            for item in items.iter_mut().filter(|i| i.0.objectid == object) {
                item.0.objectid.0 = object.0.wrapping_add(shift);
            }
            "moved with its object"
        }
        _ => {
            change_key(&mut items[slot].0, volume, rng);
            "under another key"
        }
    };
    items.sort_by_key(|(key, _)| *key);
    items.dedup_by_key(|(key, _)| *key);
    match build(bytes, &items) {
        Some(new) => {
            *bytes = new;
            format!("{key} {what}")
        }
        None => format!("nothing: {key} {what} does not fit"),
    }
}

fn change_key(key: &mut Key, volume: &Volume, rng: &mut Rng) {
    match rng.below(6) {
        0 | 1 => key.objectid.0 = values::other(key.objectid.0, volume, rng),
        2 => key.ty = KeyType(values::other(key.ty.0.into(), volume, rng) as u8),
        _ => key.offset = values::other(key.offset, volume, rng),
    }
}

/// A leaf of these items with the old one's header.
fn build(old: &[u8], items: &[(Key, Vec<u8>)]) -> Option<Vec<u8>> {
    let mut header = header_of(old);
    header.nritems = (items.len() as u32).into();
    let mut bytes = vec![0; old.len()];
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
    let mut end = old.len();
    for (slot, (key, data)) in items.iter().enumerate() {
        let head_at = HEADER_BYTES + slot * ITEM_HEADER_BYTES;
        end = end.checked_sub(data.len())?;
        if end < head_at + ITEM_HEADER_BYTES {
            return None;
        }
        bytes[end..end + data.len()].copy_from_slice(data);
        let head = ItemHeader {
            key: (*key).into(),
            offset: ((end - HEADER_BYTES) as u32).into(),
            size: (data.len() as u32).into(),
        };
        bytes[head_at..head_at + ITEM_HEADER_BYTES].copy_from_slice(head.as_bytes());
    }
    Some(bytes)
}

/// Gives a block the address of another (`fit` 1), its generation too (2), its owner and level too
/// (3).
pub fn copy_identity(bytes: &mut [u8], other: &[u8], fit: u64) {
    let (mut header, other) = (header_of(bytes), header_of(other));
    if fit >= 1 {
        header.bytenr = other.bytenr;
    }
    if fit >= 2 {
        header.generation = other.generation;
    }
    if fit >= 3 {
        header.owner = other.owner;
        header.level = other.level;
    }
    bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
}
