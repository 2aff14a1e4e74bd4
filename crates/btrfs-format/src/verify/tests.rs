//! Each refusal of a tree block, caused: a good leaf is built, one fault is planted, the error must
//! name it.

mod files;
mod headers;
mod volumes;

use zerocopy::{FromZeros, IntoBytes};

use crate::block::{BlockExpect, Corrupt, CorruptKind, TreeBlock};
use crate::builder::{HeaderFields, LeafBuilder};
use crate::csum::ChecksumType;
use crate::features::header_flags;
use crate::ids::{Generation, LogicalAddr, ObjectId, TreeId};
use crate::key::{Key, KeyType};

const NODESIZE: usize = 4096;
const ADDR: LogicalAddr = LogicalAddr(1 << 20);
const GENERATION: u64 = 50;

fn header(owner: TreeId, level: u8) -> HeaderFields {
    HeaderFields {
        fsid: [7; 16],
        chunk_tree_uuid: [9; 16],
        addr: ADDR,
        generation: Generation(GENERATION),
        owner,
        level,
        flags: header_flags::CURRENT,
    }
}

fn expect() -> BlockExpect {
    BlockExpect {
        addr: ADDR,
        fsid: [7; 16],
        csum_type: ChecksumType::Crc32c,
        sectorsize_bytes: 4096,
        level: None,
        generation: None,
        first_key: None,
        tree: None,
    }
}

fn key(objectid: u64, ty: KeyType, offset: u64) -> Key {
    Key::new(ObjectId(objectid), ty, offset)
}

type Items = Vec<(Key, Vec<u8>)>;

fn leaf_bytes(owner: TreeId, items: &[(Key, Vec<u8>)]) -> Vec<u8> {
    let mut leaf = LeafBuilder::new(NODESIZE);
    for (key, data) in items {
        leaf.push(*key, &[data]);
    }
    leaf.finish(&header(owner, 0))
}

/// Verifies a leaf of these items as if it came from a device: sealed, then read.
fn verify(owner: TreeId, items: &[(Key, Vec<u8>)]) -> Result<TreeBlock, Corrupt> {
    let sealed = TreeBlock::seal(leaf_bytes(owner, items), &expect())?;
    Ok(TreeBlock::verify(sealed.bytes(), &expect()).expect("what was sealed is accepted when read"))
}

#[track_caller]
fn accepts(owner: TreeId, items: &[(Key, Vec<u8>)]) {
    if let Err(e) = verify(owner, items) {
        panic!("{e}");
    }
}

/// The fault of the last item.
#[track_caller]
fn fault(owner: TreeId, items: &[(Key, Vec<u8>)]) -> CorruptKind {
    let corrupt = verify(owner, items).expect_err("the fault is refused");
    assert_eq!(corrupt.site.addr, ADDR);
    assert_eq!(corrupt.site.level, Some(0));
    assert_eq!(corrupt.site.slot, Some(items.len() as u32 - 1), "{corrupt}");
    corrupt.kind
}

/// That the last item's field of this name is refused.
#[track_caller]
fn refuses_field(owner: TreeId, items: &[(Key, Vec<u8>)], name: &str) {
    match fault(owner, items) {
        CorruptKind::ItemField {
            field,
            key,
            rule,
            found,
        } => {
            assert_eq!(field, name);
            assert!(!rule.holds(found));
            assert_eq!(key, items.last().unwrap().0);
        }
        other => panic!("{name}: {other}"),
    }
}

#[track_caller]
fn refuses_size(owner: TreeId, items: &[(Key, Vec<u8>)]) {
    match fault(owner, items) {
        CorruptKind::ItemSize { found, rule, .. } => assert!(!rule.holds(found)),
        other => panic!("{other}"),
    }
}

#[track_caller]
fn refuses_truncated(owner: TreeId, items: &[(Key, Vec<u8>)], name: &str) {
    match fault(owner, items) {
        CorruptKind::ItemTruncated { part, needs, left, .. } => {
            assert_eq!(part, name);
            assert!(needs > left);
        }
        other => panic!("{name}: {other}"),
    }
}

/// A field's name, and what breaks it.
type Fault<'a, T> = (&'a str, fn(&mut T));

/// Plants one fault into a structure and expects the field of that name to be refused.
fn each_field<T: IntoBytes + zerocopy::Immutable + Clone>(owner: TreeId, key: Key, good: &T, faults: &[Fault<'_, T>]) {
    accepts(owner, &[(key, good.as_bytes().to_vec())]);
    for (name, plant) in faults {
        let mut bad = good.clone();
        plant(&mut bad);
        refuses_field(owner, &[(key, bad.as_bytes().to_vec())], name);
    }
}

/// Every size but the right one is refused.
fn exact_size(owner: TreeId, key: Key, good: &[u8]) {
    accepts(owner, &[(key, good.to_vec())]);
    refuses_size(owner, &[(key, [good, &[0]].concat())]);
    if let Some((_, short)) = good.split_last() {
        refuses_size(owner, &[(key, short.to_vec())]);
    }
}

fn zeroed<T: FromZeros>() -> T {
    T::new_zeroed()
}
