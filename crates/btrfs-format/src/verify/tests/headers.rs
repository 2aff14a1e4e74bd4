//! Headers, order, bounds, nodes.

use super::*;
use crate::block::{HEADER_BYTES, KeyPtr};
use crate::builder::NodeBuilder;
use cowshed_layout::Rule;

fn any(n: u64) -> (Key, Vec<u8>) {
    (key(n, KeyType::STRING_ITEM, 0), vec![n as u8; 10])
}
fn good() -> Vec<u8> {
    leaf_bytes(TreeId::FS, &[any(1), any(2), any(3)])
}
fn node() -> Vec<u8> {
    let mut node = NodeBuilder::new(NODESIZE);
    for n in 1..5 {
        node.push(key(n, KeyType::INODE_ITEM, 0), LogicalAddr(n << 14), Generation(n));
    }
    node.finish(&header(TreeId::FS, 1))
}
/// Seals after the bytes at `at` were overwritten.
fn kind_with(mut bytes: Vec<u8>, at: usize, new: &[u8], expect: &BlockExpect) -> CorruptKind {
    bytes[at..at + new.len()].copy_from_slice(new);
    TreeBlock::seal(bytes, expect).expect_err("the fault is refused").kind
}
fn header_at(name: &str) -> usize {
    use crate::block::Header;
    use core::mem::offset_of;
    match name {
        "fsid" => offset_of!(Header, fsid),
        "bytenr" => offset_of!(Header, bytenr),
        "flags" => offset_of!(Header, flags),
        "owner" => offset_of!(Header, owner),
        "nritems" => offset_of!(Header, nritems),
        "level" => offset_of!(Header, level),
        other => panic!("{other}"),
    }
}
/// Where the header of an item lies.
fn item_at(slot: usize) -> usize {
    HEADER_BYTES + slot * 25
}

#[test]
fn checksum_covers_all_but_its_field() {
    let block = TreeBlock::seal(good(), &expect()).unwrap();
    for at in [32, 100, 2000, NODESIZE - 1] {
        let mut bytes = block.bytes().to_vec();
        bytes[at] ^= 1;
        let kind = TreeBlock::verify(bytes, &expect()).unwrap_err().kind;
        assert!(matches!(kind, CorruptKind::Csum { .. }), "{kind}");
    }
    assert!(matches!(
        TreeBlock::verify(vec![0; 20], &expect()).unwrap_err().kind,
        CorruptKind::Short { found: 20 }
    ));
    assert!(matches!(
        TreeBlock::seal(vec![0; 131_072], &expect()).unwrap_err().kind,
        CorruptKind::Short { .. }
    ));
}

#[test]
fn block_other_than_expected_is_refused() {
    let cases: &[Fault<'_, BlockExpect>] = &[
        ("bytenr", |e| e.addr = LogicalAddr(2 << 20)),
        ("fsid", |e| e.fsid = [8; 16]),
        ("level", |e| e.level = Some(1)),
        ("generation", |e| e.generation = Some(Generation(49))),
        ("first key", |e| e.first_key = Some(Key::MIN)),
    ];
    for (name, change) in cases {
        let mut other = expect();
        change(&mut other);
        match TreeBlock::seal(good(), &other).unwrap_err().kind {
            CorruptKind::Mismatch { field, .. } => assert_eq!(field, *name),
            kind => panic!("{name}: {kind}"),
        }
    }
}

#[test]
fn implausible_header_fields_are_refused() {
    let header_fault = |name: &str, value: u64, len: usize| {
        let kind = kind_with(good(), header_at(name), &value.to_le_bytes()[..len], &expect());
        matches!(kind, CorruptKind::Field { rule, found, .. } if !rule.holds(found))
    };
    assert!(header_fault("level", 8, 1));
    assert!(header_fault("flags", 1 << 56, 8), "not written");
    assert!(header_fault("flags", 2 << 56 | 1, 8), "unknown back reference revision");
    assert!(header_fault("owner", 0, 8));
}

#[test]
fn owner_that_does_not_fit_the_tree_is_refused() {
    let check = |owner: u64, tree: u64| {
        let bytes = leaf_bytes(TreeId(owner), &[any(1)]);
        let expect = BlockExpect {
            tree: Some(TreeId(tree)),
            ..expect()
        };
        match TreeBlock::seal(bytes, &expect) {
            Ok(_) => true,
            Err(Corrupt {
                kind: CorruptKind::Owner { .. },
                ..
            }) => false,
            Err(other) => panic!("{other}"),
        }
    };
    assert!(check(5, 5) && check(5, 256) && check(300, 5) && check(2, 2));
    assert!(check(256, TreeId::TREE_RELOC.get()));
    assert!(!check(2, 5) && !check(5, 2) && !check(2, 3) && !check(TreeId::DATA_RELOC.get(), 256));
    assert!(!check(1 << 48, 5), "a quota group is no subvolume");
}

#[test]
fn empty_leaf_is_refused_where_tree_is_never_empty() {
    for owner in [1, 2, 3, 4, 5, TreeId::DATA_RELOC.get()] {
        let corrupt = TreeBlock::seal(leaf_bytes(TreeId(owner), &[]), &expect()).unwrap_err();
        assert_eq!(corrupt.kind, CorruptKind::EmptyLeaf { owner: TreeId(owner) });
    }
    for owner in [7, 8, 9, 10, 256, TreeId::TREE_LOG.get()] {
        accepts(TreeId(owner), &[]);
    }
}

#[test]
fn unpacked_or_unordered_items_are_refused() {
    let count = |n: u32| kind_with(good(), header_at("nritems"), &n.to_le_bytes(), &expect());
    assert!(matches!(count(160), CorruptKind::Limit { limit: 159, .. }));
    assert!(matches!(count(u32::MAX), CorruptKind::Limit { .. }));
    // One more item than there is: a header of zeros.
    assert!(matches!(count(4), CorruptKind::KeyOrder { .. }));
    // A key that is not above the one before.
    let kind = kind_with(good(), item_at(1), &1_u64.to_le_bytes(), &expect());
    assert!(matches!(kind, CorruptKind::KeyOrder { .. }));
    for slot in 0..3 {
        for (offset, size) in [
            (0_u32, 10_u32),
            (u32::MAX, 10),
            (u32::MAX, u32::MAX),
            (10, u32::MAX),
            (3900, 9),
            (3900, 11),
            (3990, 10),
        ] {
            let new = [offset.to_le_bytes(), size.to_le_bytes()].concat();
            let kind = kind_with(good(), item_at(slot) + 17, &new, &expect());
            assert!(matches!(kind, CorruptKind::ItemBounds { .. }), "{kind}");
        }
    }
    // Data that grows into the item headers.
    let all = (NODESIZE - HEADER_BYTES) as u32;
    let new = [0_u32.to_le_bytes(), all.to_le_bytes()].concat();
    let kind = kind_with(good(), item_at(0) + 17, &new, &expect());
    assert!(matches!(kind, CorruptKind::ItemBounds { offset: 0, .. }));
}

#[test]
fn malformed_node_is_refused() {
    let block = TreeBlock::seal(node(), &expect()).unwrap();
    assert_eq!(block.len(), 4);
    let count = |n: u32| kind_with(node(), header_at("nritems"), &n.to_le_bytes(), &expect());
    assert!(matches!(count(0), CorruptKind::Limit { found: 0, .. }));
    assert!(matches!(count(122), CorruptKind::Limit { limit: 121, .. }));
    let at = HEADER_BYTES + 2 * size_of::<KeyPtr>();
    let ptr = |at: usize, value: u64| kind_with(node(), at, &value.to_le_bytes(), &expect());
    assert!(matches!(ptr(at, 2), CorruptKind::KeyOrder { .. }));
    let field = |kind| match kind {
        CorruptKind::Field { field, rule, .. } => (field, rule),
        other => panic!("{other}"),
    };
    assert_eq!(field(ptr(at + 17, 0)), ("child address", Rule::NonZero));
    assert_eq!(field(ptr(at + 17, 4097)), ("child address", Rule::AlignedTo(4096)));
    assert_eq!(field(ptr(at + 25, 51)), ("child generation", Rule::AtMost(50)));
}

#[test]
fn error_names_tree_block_level_and_slot() {
    let mut expect = expect();
    expect.tree = Some(TreeId::FS);
    let mut bytes = good();
    bytes[item_at(2) + 21..][..4].copy_from_slice(&11_u32.to_le_bytes());
    let text = TreeBlock::seal(bytes, &expect).unwrap_err().to_string();
    assert_eq!(
        text,
        "corrupt block: tree 5, block 1048576, level 0, slot 2: item out of place: data 3965+11, expected end 3975"
    );
}
