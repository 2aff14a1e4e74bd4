//! Items of file trees.

use super::*;
use crate::hash::{extref_hash, name_hash};
use crate::items::*;
use crate::key::DiskKey;

const FS: TreeId = TreeId::FS;

fn inode() -> InodeItem {
    let mut inode: InodeItem = zeroed();
    inode.generation.set(3);
    inode.transid.set(GENERATION);
    inode.mode.set(0o100_644);
    inode.nlink.set(2);
    inode.size.set(10);
    inode
}
fn inode_key() -> Key {
    key(257, KeyType::INODE_ITEM, 0)
}

#[test]
fn malformed_inode_items_are_refused() {
    exact_size(FS, inode_key(), inode().as_bytes());
    each_field(
        FS,
        inode_key(),
        &inode(),
        &[
            ("generation", |i| i.generation.set(GENERATION + 1)),
            ("transid", |i| i.transid.set(GENERATION + 1)),
            ("size", |i| i.size.set(1 << 63)),
            ("mode", |i| i.mode.set(0o1_100_644)),
            ("file type", |i| i.mode.set(0o644)),
            ("file type", |i| i.mode.set(0o110_644)),
            ("links of a directory", |i| i.mode.set(0o040_755)),
            ("flags", |i| i.flags.set(1 << 12)),
            ("flags", |i| i.flags.set(1 << 33)),
            ("nanoseconds", |i| i.atime.nsec.set(1_000_000_000)),
            ("nanoseconds", |i| i.ctime.nsec.set(u32::MAX)),
            ("nanoseconds", |i| i.mtime.nsec.set(1_000_000_000)),
        ],
    );
    let data = inode().as_bytes().to_vec();
    refuses_field(FS, &[(key(255, KeyType::INODE_ITEM, 0), data.clone())], "inode number");
    let beyond = key(u64::MAX - 100, KeyType::INODE_ITEM, 0);
    refuses_field(FS, &[(beyond, data.clone())], "inode number");
    refuses_field(FS, &[(key(257, KeyType::INODE_ITEM, 1), data)], "key offset");
}

#[test]
fn inode_items_of_old_kernels_are_accepted() {
    let mut old = inode();
    old.otime.nsec.set(u32::MAX);
    old.reserved[3].set(5);
    old.nlink.set(0);
    accepts(FS, &[(inode_key(), old.as_bytes().to_vec())]);
    for number in [6, u64::MAX - 11] {
        accepts(
            TreeId::ROOT,
            &[(key(number, KeyType::INODE_ITEM, 0), old.as_bytes().to_vec())],
        );
    }
}

fn entry(location: Key, ty: u8, name: &[u8], data: &[u8]) -> Vec<u8> {
    let mut head: DirItem = zeroed();
    head.location = DiskKey::from(location);
    head.transid.set(7);
    head.data_len.set(data.len() as u16);
    head.name_len.set(name.len() as u16);
    head.ty = ty;
    [head.as_bytes(), name, data].concat()
}
fn file_entry(name: &[u8]) -> Vec<u8> {
    entry(inode_key(), file_type::REG_FILE, name, b"")
}
fn dir_item(name: &[u8], data: Vec<u8>) -> Items {
    vec![(key(256, KeyType::DIR_ITEM, name_hash(name)), data)]
}
fn dir_index(data: Vec<u8>) -> Items {
    vec![(key(256, KeyType::DIR_INDEX, 2), data)]
}
fn xattr(name: &[u8], data: Vec<u8>) -> Items {
    vec![(key(256, KeyType::XATTR_ITEM, name_hash(name)), data)]
}

#[test]
fn malformed_directory_entries_are_refused() {
    let good = file_entry(b"name");
    accepts(FS, &dir_item(b"name", good.clone()));
    accepts(FS, &dir_index(good.clone()));
    let subvolume = entry(key(300, KeyType::ROOT_ITEM, u64::MAX), file_type::DIR, b"name", b"");
    accepts(FS, &dir_item(b"name", subvolume));
    refuses_size(FS, &dir_item(b"name", vec![]));
    refuses_field(FS, &dir_item(b"other", good.clone()), "key offset");
    refuses_truncated(FS, &dir_item(b"name", good[..29].to_vec()), "entry");
    refuses_truncated(FS, &dir_item(b"name", good[..33].to_vec()), "name");
    let two = [good.clone(), good.clone()].concat();
    refuses_size(FS, &dir_index(two));
    for (ty, field) in [(file_type::XATTR, "entry type"), (200, "entry type")] {
        refuses_field(FS, &dir_index(entry(inode_key(), ty, b"name", b"")), field);
    }
    let with_data = entry(inode_key(), file_type::REG_FILE, b"name", b"x");
    refuses_field(FS, &dir_index(with_data), "data length");
    let mut any_transid: Vec<u8> = good;
    any_transid[17..25].copy_from_slice(b"whatever");
    accepts(FS, &dir_index(any_transid));
}

/// Two names with one hash, found by solving for the last four bytes: crc32c is linear.
#[test]
fn names_with_equal_hash_share_an_item() {
    let first = b"first".as_slice();
    let second = (0..u64::MAX)
        .map(|n| format!("x{n}"))
        .take(200_000)
        .find_map(|stem| {
            let target = name_hash(first) as u32;
            let tail = crc_tail(name_hash(stem.as_bytes()) as u32, target);
            let name = [stem.as_bytes(), &tail].concat();
            (!tail.contains(&0) && !tail.contains(&b'/')).then_some(name)
        })
        .unwrap();
    assert_eq!(name_hash(first), name_hash(&second));
    let both = [file_entry(first), file_entry(&second)].concat();
    accepts(FS, &dir_item(first, both.clone()));
    refuses_truncated(FS, &dir_item(first, both[..both.len() - 1].to_vec()), "name");
    let strange = [file_entry(first), file_entry(b"strange")].concat();
    refuses_field(FS, &dir_item(first, strange), "key offset");
}

/// Four bytes that turn the raw crc `from` into `to`.
fn crc_tail(from: u32, to: u32) -> [u8; 4] {
    let after = |bytes: u32| crate::hash::crc32c_raw(from, &bytes.to_le_bytes());
    let base = after(0);
    // Each input bit flips a fixed set of output bits: solve by elimination.
    let mut rows: Vec<(u32, u32)> = (0..32).map(|bit| (after(1 << bit) ^ base, 1 << bit)).collect();
    let (mut want, mut input) = (to ^ base, 0);
    for bit in 0..32 {
        let Some(at) = rows.iter().position(|(out, _)| out >> bit & 1 == 1) else {
            continue;
        };
        let (pivot_out, pivot_in) = rows.swap_remove(at);
        for (out, inp) in &mut rows {
            if *out >> bit & 1 == 1 {
                *out ^= pivot_out;
                *inp ^= pivot_in;
            }
        }
        if want >> bit & 1 == 1 {
            want ^= pivot_out;
            input ^= pivot_in;
        }
    }
    assert_eq!(want, 0);
    input.to_le_bytes()
}

#[track_caller]
fn refuses_name(items: &[(Key, Vec<u8>)]) {
    let kind = fault(FS, items);
    assert!(matches!(kind, CorruptKind::Name { .. }), "{kind}");
}

#[test]
fn impossible_names_are_refused() {
    let long = vec![b'n'; 256];
    for name in [b"".as_slice(), b".", b"..", b"a/b", b"a\0", &long] {
        refuses_name(&dir_index(file_entry(name)));
        refuses_name(&dir_item(name, file_entry(name)));
    }
    accepts(FS, &dir_index(file_entry(&long[1..])));
}

#[test]
fn entry_pointing_elsewhere_is_refused() {
    for location in [
        key(255, KeyType::INODE_ITEM, 0),
        key(257, KeyType::INODE_ITEM, 1),
        key(2, KeyType::ROOT_ITEM, 0),
        key(1 << 48, KeyType::ROOT_ITEM, 0),
        key(257, KeyType::DIR_ITEM, 0),
        Key::MIN,
    ] {
        let kind = fault(FS, &dir_index(entry(location, file_type::DIR, b"name", b"")));
        assert!(matches!(kind, CorruptKind::Location { location: found, .. } if found == location));
    }
}

#[test]
fn malformed_xattrs_are_refused() {
    let name = b"user.x";
    let good = entry(Key::MIN, file_type::XATTR, name, b"value");
    accepts(FS, &xattr(name, good.clone()));
    accepts(FS, &xattr(name, entry(Key::MIN, file_type::XATTR, name, &[1; 3500])));
    refuses_size(FS, &xattr(name, vec![]));
    refuses_truncated(FS, &xattr(name, good[..good.len() - 1].to_vec()), "data");
    refuses_field(FS, &xattr(b"user.y", good), "key offset");
    let plain = entry(Key::MIN, file_type::REG_FILE, name, b"value");
    refuses_field(FS, &xattr(name, plain), "entry type");
    let located = entry(inode_key(), file_type::XATTR, name, b"value");
    let kind = fault(FS, &xattr(name, located));
    assert!(matches!(kind, CorruptKind::Location { .. }));
    for name in [b"".as_slice(), b"user.\0", &[b'n'; 256]] {
        refuses_name(&xattr(name, entry(Key::MIN, file_type::XATTR, name, b"")));
    }
}

#[test]
fn malformed_inode_refs_are_refused() {
    let reference = |name: &[u8]| {
        let mut head: InodeRef = zeroed();
        head.index.set(2);
        head.name_len.set(name.len() as u16);
        [head.as_bytes(), name].concat()
    };
    let item = |data: Vec<u8>| vec![(key(257, KeyType::INODE_REF, 256), data)];
    accepts(FS, &item([reference(b"a"), reference(b"b")].concat()));
    accepts(FS, &item(reference(b"..")));
    refuses_size(FS, &item(vec![]));
    refuses_truncated(FS, &item(reference(b"a")[..9].to_vec()), "reference");
    refuses_truncated(FS, &item(reference(b"abc")[..12].to_vec()), "name");
    for name in [b"".as_slice(), b"a/b", b"\0", &[b'n'; 256]] {
        refuses_name(&item(reference(name)));
    }
}

#[test]
fn malformed_inode_extrefs_are_refused() {
    let reference = |name: &[u8]| {
        let mut head: InodeExtref = zeroed();
        head.parent_objectid.set(256);
        head.index.set(2);
        head.name_len.set(name.len() as u16);
        [head.as_bytes(), name].concat()
    };
    let at = |name: &[u8]| key(257, KeyType::INODE_EXTREF, extref_hash(ObjectId(256), name));
    accepts(FS, &[(at(b"a"), reference(b"a"))]);
    refuses_size(FS, &[(at(b"a"), vec![])]);
    refuses_truncated(FS, &[(at(b"a"), reference(b"a")[..17].to_vec())], "reference");
    refuses_truncated(FS, &[(at(b"abc"), reference(b"abc")[..20].to_vec())], "name");
    refuses_field(FS, &[(at(b"a"), reference(b"b"))], "key offset");
    refuses_name(&[(at(b""), reference(b""))]);
}

#[test]
fn item_without_its_inode_before_it_is_refused() {
    let other = (key(256, KeyType::INODE_ITEM, 0), inode().as_bytes().to_vec());
    for (ty, offset) in [
        (KeyType::INODE_REF, 256),
        (KeyType::INODE_EXTREF, 256),
        (KeyType::XATTR_ITEM, 0),
        (KeyType::DIR_ITEM, 0),
        (KeyType::DIR_INDEX, 2),
        (KeyType::EXTENT_DATA, 0),
    ] {
        let kind = fault(FS, &[other.clone(), (key(257, ty, offset), vec![])]);
        assert!(matches!(kind, CorruptKind::OtherObject { .. }), "{kind}");
    }
    // A log holds parts of inodes.
    let lone = (key(257, KeyType::DIR_INDEX, 2), file_entry(b"name"));
    accepts(TreeId::TREE_LOG, &[other, lone]);
}

fn extent() -> FileExtent {
    let mut extent: FileExtent = zeroed();
    extent.generation.set(GENERATION);
    extent.ram_bytes.set(16384);
    extent.ty = file_extent_type::REG;
    extent.disk_bytenr.set(1 << 24);
    extent.disk_num_bytes.set(16384);
    extent.offset.set(4096);
    extent.num_bytes.set(8192);
    extent
}
fn data_key(offset: u64) -> Key {
    key(257, KeyType::EXTENT_DATA, offset)
}
fn inline(len: usize, ram_bytes: u64, compression: u8) -> Vec<u8> {
    let mut head: FileExtentHead = zeroed();
    head.ram_bytes.set(ram_bytes);
    head.compression = compression;
    [head.as_bytes(), &vec![b'x'; len]].concat()
}

#[test]
fn malformed_regular_extents_are_refused() {
    exact_size(FS, data_key(4096), extent().as_bytes());
    each_field(
        FS,
        data_key(4096),
        &extent(),
        &[
            ("type", |e| e.ty = 3),
            ("compression", |e| e.compression = 4),
            ("encryption", |e| e.encryption = 1),
            ("other_encoding", |e| e.other_encoding.set(1)),
            ("generation", |e| e.generation.set(GENERATION + 1)),
            ("ram_bytes", |e| e.ram_bytes.set(16385)),
            ("disk_num_bytes", |e| e.disk_num_bytes.set(16385)),
            ("disk_bytenr", |e| e.disk_bytenr.set((1 << 24) + 1)),
            ("disk_bytenr", |e| e.disk_bytenr.set(0_u64.wrapping_sub(4096))),
            ("offset", |e| e.offset.set(1)),
            ("num_bytes", |e| e.num_bytes.set(1)),
            ("num_bytes", |e| e.num_bytes.set(0)),
            ("offset + num_bytes", |e| e.num_bytes.set(16384)),
            ("offset + num_bytes", |e| e.offset.set(0_u64.wrapping_sub(4096))),
            ("file offset", |e| e.num_bytes.set(0_u64.wrapping_sub(4096))),
        ],
    );
    let data = extent().as_bytes().to_vec();
    refuses_field(FS, &[(data_key(100), data.clone())], "file offset");
    refuses_truncated(FS, &[(data_key(0), data[..20].to_vec())], "extent");
}

#[test]
fn compressed_preallocated_and_hole_extents_are_judged() {
    let mut packed = extent();
    packed.compression = compression::ZSTD;
    packed.disk_num_bytes.set(4096);
    each_field(
        FS,
        data_key(0),
        &packed,
        &[
            ("offset + num_bytes", |e| e.ram_bytes.set(8192)),
            ("ram_bytes", |e| e.ram_bytes.set(132 << 10)),
            ("disk_num_bytes", |e| e.disk_num_bytes.set(132 << 10)),
            ("disk_num_bytes", |e| e.disk_num_bytes.set(0)),
            ("compression", |e| e.ty = file_extent_type::PREALLOC),
        ],
    );
    let mut prealloc = extent();
    prealloc.ty = file_extent_type::PREALLOC;
    accepts(FS, &[(data_key(0), prealloc.as_bytes().to_vec())]);
    // Old kernels understated `ram_bytes`.
    prealloc.ram_bytes.set(4096);
    accepts(FS, &[(data_key(0), prealloc.as_bytes().to_vec())]);
    let mut hole = extent();
    hole.disk_bytenr.set(0);
    hole.disk_num_bytes.set(0);
    hole.offset.set(0);
    hole.num_bytes.set(1 << 40);
    accepts(FS, &[(data_key(0), hole.as_bytes().to_vec())]);
}

#[test]
fn malformed_inline_extents_are_refused() {
    accepts(FS, &[(data_key(0), inline(100, 100, compression::NONE))]);
    accepts(FS, &[(data_key(0), inline(100, 4096, compression::LZO))]);
    refuses_size(FS, &[(data_key(0), inline(100, 99, compression::NONE))]);
    refuses_size(FS, &[(data_key(0), inline(100, u64::MAX, compression::NONE))]);
    refuses_field(FS, &[(data_key(0), inline(100, 4097, compression::ZLIB))], "ram_bytes");
    refuses_field(
        FS,
        &[(data_key(4096), inline(100, 100, compression::NONE))],
        "file offset",
    );
}

#[test]
fn overlapping_file_extents_are_refused() {
    let next = |at: u64| (data_key(at), extent().as_bytes().to_vec());
    let first = (data_key(0), extent().as_bytes().to_vec());
    accepts(FS, &[first.clone(), next(8192)]);
    let kind = fault(FS, &[first, next(4096)]);
    assert!(matches!(kind, CorruptKind::Overlap { prev_end: 8192, .. }));
    // Inline data stands for its whole sector, not more.
    let first = (data_key(0), inline(5, 5, compression::NONE));
    accepts(FS, &[first, next(4096)]);
}

#[test]
fn malformed_csum_items_are_refused() {
    let at = |address: u64| key(ObjectId::EXTENT_CSUM.get(), KeyType::EXTENT_CSUM, address);
    let tree = TreeId::CSUM;
    accepts(tree, &[(at(1 << 20), vec![1; 8]), (at((1 << 20) + 8192), vec![1; 4])]);
    let kind = fault(tree, &[(at(1 << 20), vec![1; 8]), (at((1 << 20) + 4096), vec![1; 4])]);
    assert!(matches!(kind, CorruptKind::Overlap { .. }));
    refuses_size(tree, &[(at(1 << 20), vec![])]);
    refuses_size(tree, &[(at(1 << 20), vec![1; 7])]);
    refuses_field(tree, &[(at(100), vec![1; 4])], "address");
    refuses_field(tree, &[(at(0_u64.wrapping_sub(4096)), vec![1; 8])], "address");
    refuses_field(tree, &[(key(5, KeyType::EXTENT_CSUM, 0), vec![1; 4])], "objectid");
}

#[test]
fn malformed_orphans_and_log_ranges_are_refused() {
    exact_size(FS, key(ObjectId::ORPHAN.get(), KeyType::ORPHAN_ITEM, 257), b"");
    refuses_field(FS, &[(key(7, KeyType::ORPHAN_ITEM, 257), vec![])], "objectid");
    let mut log: DirLogItem = zeroed();
    log.end.set(9);
    for ty in [KeyType::DIR_LOG_INDEX, KeyType::DIR_LOG_ITEM] {
        exact_size(TreeId::TREE_LOG, key(257, ty, 9), log.as_bytes());
        refuses_field(TreeId::TREE_LOG, &[(key(257, ty, 10), log.as_bytes().to_vec())], "end");
    }
}

#[test]
fn malformed_root_refs_are_refused() {
    let reference = |name: &[u8]| {
        let mut head: RootRef = zeroed();
        head.dirid.set(256);
        head.name_len.set(name.len() as u16);
        [head.as_bytes(), name].concat()
    };
    for ty in [KeyType::ROOT_REF, KeyType::ROOT_BACKREF] {
        let item = |data: Vec<u8>| vec![(key(5, ty, 300), data)];
        accepts(TreeId::ROOT, &item(reference(b"sub")));
        refuses_size(TreeId::ROOT, &item([reference(b"sub"), vec![0]].concat()));
        refuses_truncated(TreeId::ROOT, &item(reference(b"sub")[..20].to_vec()), "name");
        refuses_truncated(TreeId::ROOT, &item(vec![0; 17]), "reference");
        refuses_name(&item(reference(b"..")));
    }
}
