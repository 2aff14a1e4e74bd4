//! Bad copies: one of two is healed by reading, the only one costs its file and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::items::{DevItem, FileExtent, InodeItem};
use btrfs_format::view::{FileExtentView, chunk, file_extent};
use btrfs_format::{KeyType, TreeId};
use btrfs_store::volume::{OpenOptions, Rescue, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_fuzz::layout::{Block, Place, items_of};
use cowshed_fuzz::seeds::{self, Base};
use cowshed_runtime::FixedEnv;
use cowshed_vfs::{Context, Error, FileKind, FileSystem, Handle, InitInfo, Lookup, NodeId, Result, SetAttr};
use zerocopy::FromBytes;

static ROOT: Context = Context::root();

struct Disks(Vec<Arc<MemDevice>>);

impl Disks {
    fn of(base: &Base) -> Disks {
        Disks(base.devices.iter().map(|d| Arc::new(d.snapshot())).collect())
    }
    fn mount(&self) -> Fs {
        self.mount_with(&OpenOptions::default()).expect("mounts")
    }
    fn mount_with(&self, open: &OpenOptions) -> cowshed_btrfs::error::Result<Fs> {
        let devices = self.0.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect();
        let volume = Volume::open(devices, open)?;
        let options = EngineOptions {
            commit_interval_s: 0,
            ..EngineOptions::default()
        };
        let engine = Mount::open(volume, Arc::new(FixedEnv::default()), options)?;
        let fs = Fs::new(engine, MountOptions::default())?;
        fs.init(&InitInfo::TRUSTED).expect("init");
        Ok(fs)
    }
    fn get(&self, (device, offset): Place, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0[device].read_at(offset, &mut bytes).expect("reads");
        bytes
    }
    fn spoil(&self, place: Place) {
        let mut bytes = self.get((place.0, place.1 + 300), 8);
        bytes.iter_mut().for_each(|b| *b ^= 0x55);
        self.0[place.0].write_at(place.1 + 300, &bytes).expect("writes");
    }
}

fn base(name: &str) -> Base {
    let all = seeds::all().expect("sound volumes");
    all.into_iter().find(|b| b.name == name).expect("a volume of this name")
}

fn read_file(fs: &Fs, node: NodeId) -> Result<Vec<u8>> {
    let size = fs.getattr(&ROOT, node, None)?.size_bytes as usize;
    let mut bytes = vec![0; size];
    let mut done = 0;
    while done < size {
        done += fs.read(&ROOT, node, Handle::NONE, done as u64, &mut bytes[done..])?;
    }
    Ok(bytes)
}

/// Every file by its path, and what reading it gives.
fn read_all(fs: &Fs) -> BTreeMap<String, Result<Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut todo = vec![(NodeId::ROOT, String::new())];
    while let Some((dir, path)) = todo.pop() {
        let mut names = Vec::new();
        let mut sink = |entry: cowshed_vfs::DirEntry<'_>| {
            names.push(entry.name.to_vec());
            ControlFlow::Continue(())
        };
        if let Err(error) = fs.readdir(&ROOT, dir, Handle::NONE, 0, &mut sink) {
            files.insert(path.clone(), Err(error));
        }
        for name in names.into_iter().filter(|n| n != b"." && n != b"..") {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            let node = match fs.lookup(&ROOT, dir, &name) {
                Ok(Lookup::Found(entry)) => entry,
                Ok(Lookup::Absent { .. }) => {
                    files.insert(path, Err(Error::NotFound));
                    continue;
                }
                Err(error) => {
                    files.insert(path, Err(error));
                    continue;
                }
            };
            match node.attr.kind {
                FileKind::Directory => todo.push((node.node, path)),
                FileKind::Regular => drop(files.insert(path, read_file(fs, node.node))),
                _ => {}
            }
        }
    }
    files
}

fn fs_blocks(base: &Base) -> Vec<&Block> {
    let is_fs = |b: &&Block| b.owner == TreeId::FS.0;
    base.layout.blocks.iter().filter(is_fs).collect()
}

/// Inode and extent of every extent on disk that a file of the top level has.
fn data_extents(base: &Base, disks: &Disks) -> Vec<(u64, FileExtent)> {
    let leaves = fs_blocks(base).into_iter().filter(|b| b.level == 0);
    let items = leaves.flat_map(|leaf| items_of(&base.layout.read(&disks.0, leaf)));
    let extents = items.filter_map(|(key, data)| match file_extent(&data) {
        Some(FileExtentView::Regular(e)) if key.ty == KeyType::EXTENT_DATA => Some((key.objectid.0, *e)),
        _ => None,
    });
    extents.filter(|(_, e)| e.disk_bytenr.get() != 0 && e.ty == 1).collect()
}

/// Places of the first copy, second copy of everything that reading all files reads: blocks, and
/// first sectors of data.
fn pairs(base: &Base, disks: &Disks, data: bool) -> BTreeSet<[Place; 2]> {
    let blocks = fs_blocks(base).into_iter().map(|b| b.copies.clone());
    let extents = data_extents(base, disks).into_iter().filter(|_| data);
    let extents = extents.map(|(_, e)| base.layout.places_of(e.disk_bytenr.get() + e.offset.get()));
    blocks
        .chain(extents)
        .map(|copies| copies.try_into().expect("two copies"))
        .collect()
}

#[test]
fn a_bad_copy_of_two_is_healed_by_reading() {
    for (name, data) in [
        ("own-raid1", true),
        ("own-16k", false),
        ("own-4k", false),
        ("kernel-raid1", true),
    ] {
        let base = base(name);
        let sound = Disks::of(&base);
        let expected = read_all(&sound.mount());
        assert!(
            expected.values().all(|r| r.is_ok()) && expected.len() > 50,
            "{name}: is sound"
        );
        let pairs = pairs(&base, &sound, data);
        // Which copy is read first is the engine's affair: spoil all the first ones, then all the
        // second ones.
        let mut healed = BTreeSet::new();
        for copy in [0, 1] {
            let disks = Disks::of(&base);
            pairs.iter().for_each(|pair| disks.spoil(pair[copy]));
            let fs = disks.mount();
            assert!(
                read_all(&fs) == expected,
                "{name}: something reads otherwise with copy {copy} bad"
            );
            for pair in &pairs {
                let now = disks.get(pair[copy], 4096);
                if now == sound.get(pair[copy], 4096) {
                    healed.insert(*pair);
                }
            }
            fs.destroy();
        }
        let left: Vec<_> = pairs.difference(&healed).collect();
        assert!(left.is_empty(), "{name}: read and not healed: {left:?}");
    }
}

#[test]
fn the_only_copy_of_data_costs_its_file_alone() {
    let base = base("own-16k");
    let sound = Disks::of(&base);
    let expected = read_all(&sound.mount());
    let mut tried = 0;
    for (ino, extent) in data_extents(&base, &sound).into_iter().step_by(5) {
        let disks = Disks::of(&base);
        let places = base.layout.places_of(extent.disk_bytenr.get() + extent.offset.get());
        assert_eq!(places.len(), 1, "data is single here");
        disks.spoil(places[0]);
        let fs = disks.mount();
        let mut lost = BTreeSet::new();
        for (path, now) in read_all(&fs) {
            if now != expected[&path] {
                assert_eq!(now, Err(Error::Io), "{path}: wrong data");
                lost.insert(fs_ino(&fs, &path));
            }
        }
        assert_eq!(lost, BTreeSet::from([ino]), "one file is lost");
        assert_still_writable(&fs);
        tried += 1;
    }
    assert!(tried > 5, "only {tried} extents");
}

#[test]
fn a_leaf_without_a_good_copy_costs_what_is_in_it() {
    let base = base("own-4k");
    let sound = Disks::of(&base);
    let expected = read_all(&sound.mount());
    let last_of = |items: &[(btrfs_format::Key, Vec<u8>)]| items.last().map(|(key, _)| *key);
    let leaves = || fs_blocks(&base).into_iter().filter(|b| b.level == 0);
    let all_items = leaves().map(|leaf| items_of(&base.layout.read(&sound.0, leaf)));
    let last = all_items.filter_map(|items| last_of(&items)).max();
    let (mut tried, mut last_tried) = (0, false);
    for leaf in leaves() {
        let items = items_of(&base.layout.read(&sound.0, leaf));
        let names = [KeyType::DIR_ITEM, KeyType::DIR_INDEX];
        // Without its names a directory is lost as a whole; that is another story.
        if items
            .iter()
            .any(|(key, _)| key.objectid.0 <= 257 || names.contains(&key.ty))
        {
            continue;
        }
        let within: BTreeSet<u64> = items.iter().map(|(key, _)| key.objectid.0).collect();
        let disks = Disks::of(&base);
        leaf.copies.iter().for_each(|copy| disks.spoil(*copy));
        let fs = disks.mount();
        let healthy = sound.mount();
        for (path, now) in read_all(&fs) {
            if expected.get(&path) != Some(&now) {
                assert_eq!(now, Err(Error::Io), "{path}: wrong data");
                assert!(within.contains(&fs_ino(&healthy, &path)), "{path} is not in that leaf");
            }
        }
        if last_of(&items) == last {
            // Which inode numbers are taken stands in the last leaf, with the orphans that a mount
            // looks for.
            assert_eq!(fs.mkdir(&ROOT, NodeId::ROOT, b"new", 0o755).map(|_| ()), Err(Error::Io));
            let set = SetAttr {
                perm: Some(0o700),
                ..SetAttr::default()
            };
            fs.setattr(&ROOT, NodeId::ROOT, None, &set)
                .expect("the root is elsewhere");
            fs.syncfs(&ROOT, NodeId::ROOT).expect("a commit");
            last_tried = true;
        } else {
            assert_still_writable(&fs);
        }
        tried += 1;
    }
    assert!(tried > 2 && last_tried, "only {tried} leaves, the last {last_tried}");
}

#[test]
fn a_damaged_subvolume_hides_no_name_beside_it() {
    let mut tried = 0;
    for base in seeds::all().expect("sound volumes") {
        let expected = read_all(&Disks::of(&base).mount());
        let disks = Disks::of(&base);
        let blocks = base.layout.blocks.iter();
        for leaf in blocks.filter(|b| b.level == 0 && TreeId(b.owner).is_subvolume() && b.owner != TreeId::FS.0) {
            leaf.copies.iter().for_each(|copy| disks.spoil(*copy));
            tried += 1;
        }
        let now = read_all(&disks.mount());
        assert_ne!(now.get(""), Some(&Err(Error::Io)), "{}: the top directory", base.name);
        for (path, contents) in expected {
            let is_below_damage =
                |(damaged, read): (&String, &Result<_>)| *read == Err(Error::Io) && path.starts_with(damaged.as_str());
            let is_same = now.get(&path) == Some(&contents);
            assert!(is_same || now.iter().any(is_below_damage), "{}: {path}", base.name);
        }
    }
    assert!(tried > 0, "no volume has a subvolume");
}

/// Read-only, with what `rescue=` allows.
fn rescued(rescue: Rescue) -> OpenOptions {
    OpenOptions {
        read_only: true,
        rescue,
        ..OpenOptions::default()
    }
}

#[test]
fn bad_roots_are_done_without_when_asked() {
    let bad_roots = Rescue {
        ignore_bad_roots: true,
        ..Rescue::default()
    };
    for name in ["own-16k", "kernel-4k-zstd", "kernel-old-zlib"] {
        let base = base(name);
        let expected = read_all(&Disks::of(&base).mount());
        for owner in [TreeId::EXTENT, TreeId::CSUM] {
            let disks = Disks::of(&base);
            let blocks = base.layout.blocks.iter().filter(|b| b.owner == owner.0);
            let root = blocks.max_by_key(|b| b.level).expect("the tree has a root");
            root.copies.iter().for_each(|copy| disks.spoil(*copy));
            // Ours has a tree of its own for block groups, and needs the extent tree only to write.
            if owner == TreeId::EXTENT && name != "own-16k" {
                assert!(disks.mount_with(&rescued(Rescue::default())).is_err(), "{name}");
            }
            let fs = disks.mount_with(&rescued(bad_roots)).expect("mounts");
            assert!(read_all(&fs) == expected, "{name}, without tree {owner}");
            let space = fs.statfs(&ROOT, NodeId::ROOT).expect("statfs");
            assert!(space.blocks > 0 && (owner != TreeId::EXTENT || space.blocks_free < space.blocks));
            fs.destroy();
        }
    }
}

/// Read-only, with `rescue=salvage`.
fn salvaging(disks: &Disks) -> cowshed_btrfs::error::Result<Fs> {
    disks.mount_with(&rescued(Rescue {
        salvage: true,
        ..Rescue::default()
    }))
}

/// The numbers of what a path leads through, itself included.
fn inos_along(fs: &Fs, path: &str) -> BTreeSet<u64> {
    let ends = path
        .char_indices()
        .filter(|(at, c)| *c == '/' && *at > 0)
        .map(|(at, _)| at);
    let mut inos: BTreeSet<u64> = ends.map(|end| fs_ino(fs, &path[..end])).collect();
    inos.insert(fs_ino(fs, path));
    inos
}

#[test]
fn with_salvage_walks_go_around_leaves_that_cannot_be_read() {
    let base = base("own-4k");
    let sound = Disks::of(&base);
    let healthy = sound.mount();
    let expected = read_all(&healthy);
    let mut tried = 0;
    for leaf in fs_blocks(&base).into_iter().filter(|b| b.level == 0) {
        let items = items_of(&base.layout.read(&sound.0, leaf));
        let within: BTreeSet<u64> = items.iter().map(|(key, _)| key.objectid.0).collect();
        // Without the top directory nothing is shown.
        if within.contains(&256) {
            continue;
        }
        let disks = Disks::of(&base);
        leaf.copies.iter().for_each(|copy| disks.spoil(*copy));
        let now = read_all(&salvaging(&disks).expect("mounts"));
        for (path, contents) in &expected {
            if inos_along(&healthy, path).is_disjoint(&within) {
                assert!(now.get(path) == Some(contents), "{path} is not in that leaf");
            }
        }
        tried += 1;
    }
    assert!(tried > 2, "only {tried} leaves");
}

/// Changes an item in each leaf of files that has one of the kind; all that lies behind it can be
/// read with `rescue=salvage`, and without it cannot.
fn each_is_salvaged(wanted: fn(&btrfs_format::Key, &[u8]) -> bool, damage: fn(&mut [u8])) {
    let base = base("own-4k");
    let sound = Disks::of(&base);
    let expected = read_all(&sound.mount());
    let mut tried = 0;
    for leaf in fs_blocks(&base).into_iter().filter(|b| b.level == 0) {
        let mut bytes = base.layout.read(&sound.0, leaf);
        let items = items_of(&bytes);
        let Some((_, data)) = items.iter().find(|(key, data)| wanted(key, data)) else {
            continue;
        };
        // Of items with the same bytes the one with the lowest key lies last.
        let at = bytes
            .windows(data.len())
            .rposition(|part| part == &data[..])
            .expect("the item");
        damage(&mut bytes[at..at + data.len()]);
        base.layout.seal(&mut bytes);
        let disks = Disks::of(&base);
        for (device, offset) in &leaf.copies {
            disks.0[*device].write_at(*offset, &bytes).expect("writes");
        }
        let plain = disks.mount_with(&rescued(Rescue::default()));
        assert!(plain.map_or(true, |plain| read_all(&plain).values().any(|read| read.is_err())));
        assert!(read_all(&salvaging(&disks).expect("mounts")) == expected);
        tried += 1;
    }
    assert!(tried > 2, "only {tried} leaves");
}

#[test]
fn with_salvage_files_without_a_type_have_that_of_their_items() {
    let is_file = |key: &btrfs_format::Key, data: &[u8]| {
        let inode = InodeItem::read_from_bytes(data).ok();
        key.ty == KeyType::INODE_ITEM && inode.is_some_and(|inode| inode.mode.get() & 0o170_000 == 0o100_000)
    };
    each_is_salvaged(is_file, |data| {
        InodeItem::mut_from_bytes(data).expect("an inode").mode = 0.into();
    });
}

#[test]
fn with_salvage_names_are_found_by_their_indices() {
    // Behind the head of the entry its name begins, which no longer has the hash of the key.
    each_is_salvaged(|key, _| key.ty == KeyType::DIR_ITEM, |data| data[30] ^= 1);
}

/// As with the kernel's `rescue=ignorebadroots`.
#[test]
fn chunk_that_leaves_its_device_is_borne_when_asked() {
    let base = base("own-16k");
    let expected = read_all(&Disks::of(&base).mount());
    let disks = Disks::of(&base);
    let leaf = base.layout.blocks.iter().find(|b| b.owner == TreeId::CHUNK.0);
    let leaf = leaf.filter(|b| b.level == 0).expect("one leaf has all chunks");
    let mut bytes = base.layout.read(&disks.0, leaf);
    let items = items_of(&bytes);
    let ends = items.iter().filter(|(key, _)| key.ty == KeyType::CHUNK_ITEM);
    let ends = ends.flat_map(|(_, data)| {
        let (head, stripes) = chunk(data).expect("a sound chunk");
        let ends = stripes.iter().map(|stripe| stripe.offset.get() + head.length.get());
        ends.collect::<Vec<_>>()
    });
    let end = ends.max().expect("a chunk");
    let is_device = |(key, _): &&(btrfs_format::Key, Vec<u8>)| key.ty == KeyType::DEV_ITEM;
    let (_, device) = items.iter().find(is_device).expect("a device");
    let at = bytes
        .windows(device.len())
        .position(|part| part == &device[..])
        .expect("the item");
    let item = DevItem::mut_from_bytes(&mut bytes[at..at + device.len()]).expect("a device item");
    item.total_bytes = (end - 4096).into();
    item.bytes_used = 0.into();
    base.layout.seal(&mut bytes);
    for (device, offset) in &leaf.copies {
        disks.0[*device].write_at(*offset, &bytes).expect("writes");
    }
    let refused = disks
        .mount_with(&rescued(Rescue::default()))
        .map(drop)
        .expect_err("refused");
    assert!(refused.to_string().contains("stripe leaves device 1"), "{refused}");
    let bad_roots = Rescue {
        ignore_bad_roots: true,
        ..Rescue::default()
    };
    assert!(
        disks
            .mount_with(&OpenOptions {
                rescue: bad_roots,
                ..OpenOptions::default()
            })
            .is_err()
    );
    let fs = disks.mount_with(&rescued(bad_roots)).expect("mounts");
    assert!(read_all(&fs) == expected, "all lies before the end");
}

#[test]
fn data_without_checksums_is_read_when_asked() {
    let base = base("own-16k");
    let expected = read_all(&Disks::of(&base).mount());
    let disks = Disks::of(&base);
    let is_csum_leaf = |b: &&Block| b.owner == TreeId::CSUM.0 && b.level == 0;
    for leaf in base.layout.blocks.iter().filter(is_csum_leaf) {
        leaf.copies.iter().for_each(|copy| disks.spoil(*copy));
    }
    let plain = disks.mount_with(&rescued(Rescue::default())).expect("mounts");
    assert!(read_all(&plain).values().any(|read| *read == Err(Error::Io)));
    drop(plain);
    let rescue = Rescue {
        ignore_data_csums: true,
        ..Rescue::default()
    };
    let fs = disks.mount_with(&rescued(rescue)).expect("mounts");
    assert!(read_all(&fs) == expected);
}

fn fs_ino(fs: &Fs, path: &str) -> u64 {
    let mut node = (NodeId::ROOT, 0);
    for name in path.split('/').filter(|n| !n.is_empty()) {
        match fs.lookup(&ROOT, node.0, name.as_bytes()) {
            Ok(Lookup::Found(entry)) => node = (entry.node, entry.attr.ino),
            other => panic!("{path}: {other:?}"),
        }
    }
    node.1
}

fn assert_still_writable(fs: &Fs) {
    fs.mkdir(&ROOT, NodeId::ROOT, b"still works", 0o755)
        .expect("a new directory");
    fs.syncfs(&ROOT, NodeId::ROOT).expect("a commit");
}
