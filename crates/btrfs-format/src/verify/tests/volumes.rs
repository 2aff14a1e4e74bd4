//! Items of the trees that hold the volume together.

use super::*;
use crate::features::{block_group as bg, extent_flags};
use crate::items::*;

const EXTENT: TreeId = TreeId::EXTENT;

fn root() -> RootItem {
    let mut root: RootItem = zeroed();
    root.generation.set(GENERATION);
    root.generation_v2.set(GENERATION);
    root.bytenr.set(1 << 20);
    root.refs.set(1);
    root.level = 2;
    root
}

#[test]
fn malformed_root_items_are_refused() {
    let at = key(300, KeyType::ROOT_ITEM, 0);
    exact_size(TreeId::ROOT, at, root().as_bytes());
    accepts(TreeId::ROOT, &[(at, root().as_bytes()[..ROOT_ITEM_V0_BYTES].to_vec())]);
    refuses_size(TreeId::ROOT, &[(at, root().as_bytes()[..238].to_vec())]);
    refuses_size(TreeId::ROOT, &[(at, root().as_bytes()[..240].to_vec())]);
    each_field(
        TreeId::ROOT,
        at,
        &root(),
        &[
            ("generation", |r| r.generation.set(GENERATION + 1)),
            ("generation_v2", |r| r.generation_v2.set(GENERATION + 1)),
            ("last_snapshot", |r| r.last_snapshot.set(GENERATION + 1)),
            ("bytenr", |r| r.bytenr.set(17)),
            ("level", |r| r.level = 8),
            ("drop_level", |r| r.drop_level = 8),
            ("drop_level", |r| r.drop_progress.objectid.set(256)),
            ("flags", |r| r.flags.set(2)),
        ],
    );
    let mut dropped = root();
    dropped.drop_progress.objectid.set(256);
    dropped.drop_level = 1;
    dropped.flags.set(1 | 1 << 48);
    accepts(TreeId::ROOT, &[(at, dropped.as_bytes().to_vec())]);
    let data = root().as_bytes().to_vec();
    refuses_field(TreeId::ROOT, &[(key(0, KeyType::ROOT_ITEM, 0), data.clone())], "tree");
    let reloc = |offset| key(TreeId::TREE_RELOC.get(), KeyType::ROOT_ITEM, offset);
    accepts(TreeId::ROOT, &[(reloc(5), data.clone())]);
    refuses_field(TreeId::ROOT, &[(reloc(0), data)], "key offset");
}

#[test]
fn items_of_wrong_size_are_refused() {
    let balance = ObjectId::BALANCE.get();
    let cache = ObjectId::FREE_SPACE.get();
    exact_size(TreeId::QUOTA, key(0, KeyType::QGROUP_INFO, 5), &[0; 40]);
    exact_size(TreeId::QUOTA, key(0, KeyType::QGROUP_LIMIT, 5), &[0; 40]);
    exact_size(TreeId::QUOTA, key(0, KeyType::QGROUP_STATUS, 0), &[0; 40]);
    exact_size(TreeId::QUOTA, key(0, KeyType::QGROUP_STATUS, 0), &[0; 32]);
    exact_size(TreeId::QUOTA, key(5, KeyType::QGROUP_RELATION, 6), &[]);
    exact_size(TreeId::ROOT, key(balance, KeyType::TEMPORARY_ITEM, 0), &[0; 448]);
    exact_size(TreeId::ROOT, key(cache, KeyType::UNTYPED, 1 << 20), &[0; 41]);
    exact_size(TreeId::DEV, key(0, KeyType::PERSISTENT_ITEM, 1), &[0; 40]);
    for ty in [KeyType::UUID_SUBVOL, KeyType::UUID_RECEIVED_SUBVOL] {
        exact_size(TreeId::UUID, key(1, ty, 2), &[0; 16]);
        refuses_size(TreeId::UUID, &[(key(1, ty, 2), vec![])]);
    }
    let replace = key(0, KeyType::DEV_REPLACE, 0);
    accepts(TreeId::DEV, &[(replace, vec![0; 72])]);
    refuses_size(TreeId::DEV, &[(replace, vec![0; 71])]);
}

fn chunk(ty: u64, stripes: u16) -> Vec<u8> {
    let mut head: ChunkHead = zeroed();
    head.length.set(8 << 20);
    head.owner.set(2);
    head.stripe_len.set(64 << 10);
    head.ty.set(ty);
    head.sector_size.set(4096);
    head.num_stripes.set(stripes);
    head.sub_stripes.set(if ty & bg::RAID10 != 0 { 2 } else { 1 });
    let mut data = head.as_bytes().to_vec();
    for n in 0..stripes {
        let mut stripe: Stripe = zeroed();
        stripe.devid.set(u64::from(n) + 1);
        stripe.offset.set(1 << 20);
        data.extend_from_slice(stripe.as_bytes());
    }
    data
}
fn chunk_item(data: Vec<u8>) -> Items {
    vec![(key(256, KeyType::CHUNK_ITEM, 16 << 20), data)]
}
/// A chunk with one field of its head changed.
fn chunk_with(ty: u64, stripes: u16, change: fn(&mut ChunkHead)) -> Items {
    use zerocopy::FromBytes;
    let mut data = chunk(ty, stripes);
    let (head, _) = ChunkHead::mut_from_prefix(&mut data).unwrap();
    change(head);
    chunk_item(data)
}

#[test]
fn malformed_chunks_are_refused() {
    let cases: &[(u64, &[u16], &[u16])] = &[
        (0, &[1], &[2]),
        (bg::DUP, &[2], &[1, 3]),
        (bg::RAID1, &[2], &[1, 3]),
        (bg::RAID1C3, &[3], &[2, 4]),
        (bg::RAID1C4, &[4], &[3, 5]),
        (bg::RAID0, &[1, 2, 9], &[]),
        (bg::RAID10, &[2, 4, 6], &[1, 3, 5]),
        (bg::RAID5, &[2, 3], &[1]),
        (bg::RAID6, &[3, 4], &[1, 2]),
    ];
    for (profile, good, bad) in cases {
        let ty = bg::METADATA | profile;
        for stripes in *good {
            accepts(TreeId::CHUNK, &chunk_item(chunk(ty, *stripes)));
        }
        for stripes in *bad {
            refuses_field(TreeId::CHUNK, &chunk_item(chunk(ty, *stripes)), "num_stripes");
        }
        refuses_field(TreeId::CHUNK, &chunk_item(chunk(ty, 0)), "num_stripes");
    }
    type Change = fn(&mut ChunkHead);
    let faults: &[(&str, Change)] = &[
        ("type", |c| c.ty.set(bg::DATA | 1 << 20)),
        ("profile", |c| c.ty.set(bg::DATA | bg::DUP | bg::RAID1)),
        ("usage", |c| c.ty.set(0)),
        ("usage", |c| c.ty.set(bg::SYSTEM | bg::DATA)),
        ("sector_size", |c| c.sector_size.set(512)),
        ("stripe_len", |c| c.stripe_len.set(4096)),
        ("length", |c| c.length.set(0)),
        ("length", |c| c.length.set(5000)),
        ("length", |c| c.length.set(1 << 50)),
    ];
    for (name, change) in faults {
        refuses_field(TreeId::CHUNK, &chunk_with(bg::DATA, 1, *change), name);
    }
    let raid10 = chunk_with(bg::DATA | bg::RAID10, 4, |c| c.sub_stripes.set(1));
    refuses_field(TreeId::CHUNK, &raid10, "sub_stripes");
}

#[test]
fn malformed_chunk_keys_and_stripes_are_refused() {
    let good = chunk(bg::DATA, 1);
    refuses_size(TreeId::CHUNK, &chunk_item(good[..47].to_vec()));
    refuses_size(TreeId::CHUNK, &chunk_item(good[..79].to_vec()));
    refuses_size(TreeId::CHUNK, &chunk_item([good.as_slice(), &[0]].concat()));
    let at = |objectid, offset| vec![(key(objectid, KeyType::CHUNK_ITEM, offset), good.clone())];
    refuses_field(TreeId::CHUNK, &at(1, 16 << 20), "objectid");
    refuses_field(TreeId::CHUNK, &at(256, 5), "logical address");
    refuses_field(TreeId::CHUNK, &at(256, 0_u64.wrapping_sub(4096)), "logical address");
    let mut no_device = good.clone();
    no_device[48] = 0;
    refuses_field(TreeId::CHUNK, &chunk_item(no_device), "stripe devid");
    let mut crooked = good.clone();
    crooked[56] = 1;
    refuses_field(TreeId::CHUNK, &chunk_item(crooked), "stripe offset");
}

#[test]
fn malformed_device_items_are_refused() {
    let at = key(1, KeyType::DEV_ITEM, 1);
    let mut dev: DevItem = zeroed();
    dev.devid.set(1);
    dev.total_bytes.set(1 << 30);
    dev.bytes_used.set(1 << 20);
    exact_size(TreeId::CHUNK, at, dev.as_bytes());
    each_field(
        TreeId::CHUNK,
        at,
        &dev,
        &[
            ("devid", |d| d.devid.set(2)),
            ("bytes_used", |d| d.bytes_used.set((1 << 30) + 1)),
        ],
    );
    let elsewhere = key(2, KeyType::DEV_ITEM, 1);
    refuses_field(TreeId::CHUNK, &[(elsewhere, dev.as_bytes().to_vec())], "objectid");
}

#[test]
fn malformed_device_extents_are_refused() {
    let at = |offset| key(1, KeyType::DEV_EXTENT, offset);
    let mut extent: DevExtent = zeroed();
    extent.chunk_tree.set(3);
    extent.chunk_objectid.set(256);
    extent.chunk_offset.set(16 << 20);
    extent.length.set(8 << 20);
    exact_size(TreeId::DEV, at(1 << 20), extent.as_bytes());
    each_field(
        TreeId::DEV,
        at(1 << 20),
        &extent,
        &[
            ("chunk_tree", |e| e.chunk_tree.set(2)),
            ("chunk_objectid", |e| e.chunk_objectid.set(255)),
            ("chunk_offset", |e| e.chunk_offset.set(1)),
            ("length", |e| e.length.set(0)),
            ("length", |e| e.length.set(100)),
            ("device offset", |e| e.length.set(0_u64.wrapping_sub(4096))),
        ],
    );
    let data = extent.as_bytes().to_vec();
    refuses_field(TreeId::DEV, &[(at(100), data.clone())], "device offset");
    refuses_field(
        TreeId::DEV,
        &[(key(0, KeyType::DEV_EXTENT, 1 << 20), data.clone())],
        "devid",
    );
    accepts(TreeId::DEV, &[(at(1 << 20), data.clone()), (at(9 << 20), data.clone())]);
    let kind = fault(TreeId::DEV, &[(at(1 << 20), data.clone()), (at(8 << 20), data)]);
    assert!(matches!(kind, CorruptKind::Overlap { prev_end, .. } if prev_end == 9 << 20));
}

fn extent(flags: u64, refs: u64) -> Vec<u8> {
    let mut head: ExtentItem = zeroed();
    head.refs.set(refs);
    head.generation.set(7);
    head.flags.set(flags);
    head.as_bytes().to_vec()
}
fn data_ref(root: u64, objectid: u64, offset: u64, count: u32) -> ExtentDataRef {
    let mut raw: ExtentDataRef = zeroed();
    raw.root.set(root);
    raw.objectid.set(objectid);
    raw.offset.set(offset);
    raw.count.set(count);
    raw
}
fn inline(ty: KeyType, offset: u64) -> Vec<u8> {
    [&[ty.0], offset.to_le_bytes().as_slice()].concat()
}
fn inline_data(raw: ExtentDataRef) -> Vec<u8> {
    [&[KeyType::EXTENT_DATA_REF.0], raw.as_bytes()].concat()
}
fn inline_shared(parent: u64, count: u32) -> Vec<u8> {
    [inline(KeyType::SHARED_DATA_REF, parent), count.to_le_bytes().to_vec()].concat()
}
fn data_item(parts: &[Vec<u8>]) -> Items {
    vec![(key(1 << 24, KeyType::EXTENT_ITEM, 8192), parts.concat())]
}
fn block_item(parts: &[Vec<u8>]) -> Items {
    vec![(key(1 << 24, KeyType::METADATA_ITEM, 1), parts.concat())]
}
fn data(refs: u64) -> Vec<u8> {
    extent(extent_flags::DATA, refs)
}
fn block(refs: u64) -> Vec<u8> {
    extent(extent_flags::TREE_BLOCK, refs)
}

#[test]
fn malformed_extent_items_are_refused() {
    accepts(EXTENT, &data_item(&[data(1), inline_data(data_ref(5, 257, 0, 1))]));
    accepts(EXTENT, &data_item(&[data(3)]));
    accepts(EXTENT, &block_item(&[block(1), inline(KeyType::TREE_BLOCK_REF, 5)]));
    refuses_truncated(EXTENT, &data_item(&[vec![0; 23]]), "extent");
    for (flags, refs) in [(0, 1), (3, 1), (1 | 1 << 5, 1), (1 | 1 << 8, 1), (1 << 8, 1)] {
        refuses_field(EXTENT, &data_item(&[extent(flags, refs)]), "flags");
    }
    refuses_field(EXTENT, &data_item(&[data(0)]), "refs");
    refuses_field(EXTENT, &block_item(&[data(1)]), "flags");
    let mut young = data(1);
    young[8..16].copy_from_slice(&(GENERATION + 1).to_le_bytes());
    refuses_field(EXTENT, &data_item(&[young]), "generation");
    let at = |objectid, ty, offset, data: Vec<u8>| vec![(key(objectid, ty, offset), data)];
    refuses_field(EXTENT, &at(5, KeyType::EXTENT_ITEM, 8192, data(1)), "address");
    refuses_field(EXTENT, &at(5, KeyType::METADATA_ITEM, 0, block(1)), "address");
    refuses_field(EXTENT, &at(1 << 24, KeyType::METADATA_ITEM, 8, block(1)), "level");
    refuses_field(EXTENT, &at(1 << 24, KeyType::EXTENT_ITEM, 0, data(1)), "length");
    refuses_field(EXTENT, &at(1 << 24, KeyType::EXTENT_ITEM, 100, data(1)), "length");
    let last = 0_u64.wrapping_sub(4096);
    refuses_field(EXTENT, &at(last, KeyType::EXTENT_ITEM, 8192, data(1)), "address");
}

#[test]
fn malformed_extents_without_skinny_metadata_are_refused() {
    let at = |len, data: Vec<u8>| vec![(key(1 << 24, KeyType::EXTENT_ITEM, len), data)];
    let info = |level: u8| [vec![0; 17], vec![level]].concat();
    let whole = |level| [block(1), info(level), inline(KeyType::TREE_BLOCK_REF, 5)].concat();
    accepts(EXTENT, &at(NODESIZE as u64, whole(7)));
    refuses_field(EXTENT, &at(NODESIZE as u64, whole(8)), "level");
    refuses_field(EXTENT, &at(8192, whole(0)), "length");
    refuses_truncated(EXTENT, &at(NODESIZE as u64, block(1)), "tree block info");
}

#[test]
fn overlapping_extents_are_refused() {
    let at = |address: u64| (key(address, KeyType::EXTENT_ITEM, 8192), data(1));
    accepts(EXTENT, &[at(1 << 24), at((1 << 24) + 8192)]);
    let kind = fault(EXTENT, &[at(1 << 24), at((1 << 24) + 4096)]);
    assert!(matches!(kind, CorruptKind::Overlap { .. }));
    let skinny = (key((1 << 24) - 4096, KeyType::METADATA_ITEM, 0), block(1));
    accepts(EXTENT, &[skinny, at(1 << 24)]);
    // Two items for one address.
    let twice = (key(1 << 24, KeyType::METADATA_ITEM, 0), block(1));
    let kind = fault(EXTENT, &[at(1 << 24), twice]);
    assert!(matches!(kind, CorruptKind::Overlap { .. }));
}

#[test]
fn malformed_inline_references_are_refused() {
    let file = data_ref(5, 257, 0, 1);
    refuses_truncated(
        EXTENT,
        &data_item(&[data(1), inline_data(file)[..28].to_vec()]),
        "data reference",
    );
    let block_ref = inline(KeyType::TREE_BLOCK_REF, 5);
    refuses_truncated(
        EXTENT,
        &block_item(&[block(1), block_ref[..8].to_vec()]),
        "inline reference",
    );
    let shared = inline_shared(1 << 20, 1);
    refuses_truncated(
        EXTENT,
        &data_item(&[data(1), shared[..12].to_vec()]),
        "shared data reference",
    );
    refuses_field(
        EXTENT,
        &data_item(&[data(1), inline_data(data_ref(5, 257, 0, 2))]),
        "inline references",
    );
    refuses_field(
        EXTENT,
        &block_item(&[block(1), block_ref.clone(), inline(KeyType::SHARED_BLOCK_REF, 1 << 20)]),
        "inline references",
    );
    for (name, bad) in [
        ("reference root", data_ref(2, 257, 0, 1)),
        ("reference root", data_ref(0, 257, 0, 1)),
        ("reference inode", data_ref(5, 255, 0, 1)),
        ("reference inode", data_ref(5, 6, 0, 1)),
        ("reference offset", data_ref(5, 257, 1, 1)),
        ("reference count", data_ref(5, 257, 0, 0)),
    ] {
        refuses_field(EXTENT, &data_item(&[data(1), inline_data(bad)]), name);
        let keyed = (key(1 << 24, KeyType::EXTENT_DATA_REF, 99), bad.as_bytes().to_vec());
        refuses_field(EXTENT, &[keyed], name);
    }
    // The cache of free space, of free inode numbers, and an offset below zero.
    for good in [
        data_ref(1, 300, 0, 1),
        data_ref(5, u64::MAX - 11, 0, 1),
        data_ref(5, 257, 0_u64.wrapping_sub(4096), 1),
    ] {
        accepts(EXTENT, &data_item(&[data(1), inline_data(good)]));
    }
    refuses_field(EXTENT, &data_item(&[data(1), inline_shared(1, 1)]), "reference parent");
    refuses_field(EXTENT, &data_item(&[data(1), inline_shared(0, 1)]), "reference parent");
    refuses_field(
        EXTENT,
        &data_item(&[data(1), inline_shared(4096, 0)]),
        "reference count",
    );
    refuses_field(
        EXTENT,
        &block_item(&[block(1), inline(KeyType::SHARED_BLOCK_REF, 1)]),
        "reference parent",
    );
    refuses_field(
        EXTENT,
        &block_item(&[block(1), inline(KeyType::TREE_BLOCK_REF, 0)]),
        "reference root",
    );
}

#[test]
fn inline_references_of_wrong_type_or_order_are_refused() {
    let wrong = [
        block_item(&[block(1), inline_data(data_ref(5, 257, 0, 1))]),
        block_item(&[block(1), inline_shared(4096, 1)]),
        data_item(&[data(1), inline(KeyType::TREE_BLOCK_REF, 5)]),
        data_item(&[data(1), inline(KeyType::SHARED_BLOCK_REF, 4096)]),
        data_item(&[data(1), vec![0]]),
    ];
    for items in wrong {
        let kind = fault(EXTENT, &items);
        assert!(matches!(kind, CorruptKind::InlineRefType { .. }), "{kind}");
    }
    let owner = inline(KeyType::EXTENT_OWNER_REF, 5);
    accepts(
        EXTENT,
        &data_item(&[data(1), owner, inline_data(data_ref(5, 257, 0, 1))]),
    );
    let (high, low) = (inline_shared(8192, 1), inline_shared(4096, 1));
    accepts(EXTENT, &data_item(&[data(2), high.clone(), low.clone()]));
    let upwards = data_item(&[data(2), low.clone(), high]);
    let types = data_item(&[data(2), low, inline_data(data_ref(5, 257, 0, 1))]);
    for items in [upwards, types] {
        let kind = fault(EXTENT, &items);
        assert!(matches!(kind, CorruptKind::InlineRefOrder { .. }), "{kind}");
    }
}

#[test]
fn malformed_keyed_references_are_refused() {
    let at = |ty, offset| key(1 << 24, ty, offset);
    let crooked = |ty, offset, data: &[u8]| vec![(key(5, ty, offset), data.to_vec())];
    let file = data_ref(5, 257, 0, 1);
    exact_size(EXTENT, at(KeyType::TREE_BLOCK_REF, 5), b"");
    exact_size(EXTENT, at(KeyType::SHARED_BLOCK_REF, 4096), b"");
    exact_size(EXTENT, at(KeyType::SHARED_DATA_REF, 4096), &[1, 0, 0, 0]);
    exact_size(EXTENT, at(KeyType::EXTENT_DATA_REF, 99), file.as_bytes());
    refuses_field(EXTENT, &[(at(KeyType::TREE_BLOCK_REF, 0), vec![])], "reference root");
    refuses_field(
        EXTENT,
        &[(at(KeyType::SHARED_BLOCK_REF, 1), vec![])],
        "reference parent",
    );
    refuses_field(
        EXTENT,
        &[(at(KeyType::SHARED_DATA_REF, 1), vec![1, 0, 0, 0])],
        "reference parent",
    );
    refuses_field(
        EXTENT,
        &[(at(KeyType::SHARED_DATA_REF, 4096), vec![0; 4])],
        "reference count",
    );
    refuses_field(EXTENT, &crooked(KeyType::TREE_BLOCK_REF, 5, b""), "address");
    refuses_field(
        EXTENT,
        &crooked(KeyType::SHARED_DATA_REF, 4096, &[1, 0, 0, 0]),
        "address",
    );
    refuses_field(
        EXTENT,
        &crooked(KeyType::EXTENT_DATA_REF, 9, file.as_bytes()),
        "address",
    );
}

#[test]
fn malformed_block_groups_are_refused() {
    let at = key(16 << 20, KeyType::BLOCK_GROUP_ITEM, 8 << 20);
    let mut group: BlockGroupItem = zeroed();
    group.used.set(8 << 20);
    group.chunk_objectid.set(256);
    group.flags.set(bg::METADATA | bg::DUP);
    exact_size(EXTENT, at, group.as_bytes());
    each_field(
        EXTENT,
        at,
        &group,
        &[
            ("used", |g| g.used.set((8 << 20) + 1)),
            ("chunk_objectid", |g| g.chunk_objectid.set(1)),
            ("type", |g| g.flags.set(bg::DATA | 1 << 11)),
            ("profile", |g| g.flags.set(bg::DATA | bg::RAID0 | bg::RAID1)),
            ("usage", |g| g.flags.set(bg::RAID1)),
            ("usage", |g| g.flags.set(bg::SYSTEM | bg::METADATA)),
        ],
    );
    let at = |address, len| vec![(key(address, KeyType::BLOCK_GROUP_ITEM, len), group.as_bytes().to_vec())];
    refuses_field(EXTENT, &at(16 << 20, 0), "length");
    refuses_field(EXTENT, &at(16 << 20, 5), "length");
    refuses_field(EXTENT, &at(5, 8 << 20), "address");
}

#[test]
fn malformed_free_space_items_are_refused() {
    let tree = TreeId::FREE_SPACE;
    let start = 16_u64 << 20;
    let info = |flags: u32| {
        let data = [1_u32.to_le_bytes(), flags.to_le_bytes()].concat();
        (key(start, KeyType::FREE_SPACE_INFO, 8 << 20), data)
    };
    let extent = |at: u64, len: u64| (key(at, KeyType::FREE_SPACE_EXTENT, len), vec![]);
    let bitmap = |at: u64, len: u64, bytes: usize| (key(at, KeyType::FREE_SPACE_BITMAP, len), vec![1; bytes]);
    exact_size(tree, info(0).0, &info(0).1);
    refuses_field(tree, &[info(2)], "flags");
    exact_size(tree, extent(start, 4096).0, b"");
    accepts(tree, &[info(0), extent(start, 4096), extent(start + 8192, 4096)]);
    refuses_field(tree, &[extent(start, 0)], "length");
    refuses_field(tree, &[extent(start, 100)], "length");
    refuses_field(tree, &[extent(5, 4096)], "address");
    let kind = fault(tree, &[extent(start, 8192), extent(start + 4096, 4096)]);
    assert!(matches!(kind, CorruptKind::Overlap { .. }));
    refuses_field(tree, &[info(0), extent(start, (8 << 20) + 4096)], "end");
    refuses_field(tree, &[info(1), extent(start, 4096)], "type");
    refuses_field(tree, &[info(0), bitmap(start, 8 << 20, 256)], "type");
    accepts(
        tree,
        &[
            info(1),
            bitmap(start, 8 << 20, 256),
            bitmap(start + (8 << 20), 9 * 4096, 2),
        ],
    );
    exact_size(tree, key(start, KeyType::FREE_SPACE_BITMAP, 8 << 20), &[0; 256]);
    refuses_field(tree, &[bitmap(start, (8 << 20) + 4096, 257)], "bits");
}

#[test]
fn unknown_types_are_not_judged() {
    accepts(TreeId::FS, &[(key(1, KeyType(77), 3), vec![1, 2, 3])]);
}
