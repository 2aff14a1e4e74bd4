//! Logs made by hand: single rules; in [`refused`] what no log may say, in [`old`] what kernels
//! once wrote. What the kernel writes now is compared in `testing/logcases`.

mod old;
mod refused;

use std::collections::BTreeMap;
use std::sync::Arc;

use btrfs_check::{CheckOptions, check};
use btrfs_format::builder::{HeaderFields, LeafBuilder};
use btrfs_format::features::header_flags;
use btrfs_format::items::{DirItem, FileExtent, InodeExtref, InodeItem, InodeRef, file_extent_type, file_type};
use btrfs_format::{BlockExpect, Corrupt, Generation, Key, KeyType, LogicalAddr, ObjectId, TreeBlock, TreeId, hash};
use btrfs_image::{MkfsOptions, mkfs};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, On};
use cowshed_vfs::{Context, FileSystem, Lookup, NodeId, OpenFlags, OpenRequest, WriteFlags};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::dir::names::{self, NewName};
use crate::error::Result;
use crate::file::replay::data_of_file;
use crate::files::EngineOptions;
use crate::fs::{Fs, MountOptions};
use crate::log::{dir_range_item, dir_range_key, root_item, root_key};
use crate::mount::Mount;
use crate::object::flags::NODATASUM;
use crate::staged::Staged;
use crate::testing::Dice;
use btrfs_store::space::BlockKind;
use btrfs_store::tree::RootPtr;
use btrfs_store::volume::{OpenOptions, Rescue, Volume};
use cowshed_runtime::FixedEnv;

static CTX: Context = Context::root();
const NODESIZE: u32 = 16384;
/// What [`Base::new`] makes: the root directory's entries, in the order of their indices from 2.
const ROOT: u64 = 256;
const OLD: u64 = 257;
const SUB: u64 = 258;
const X: u64 = 259;
const OTHER: u64 = 260;
const FILE_MODE: u32 = 0o100_644;
const DIR_MODE: u32 = 0o040_755;

type Items = BTreeMap<Key, Vec<u8>>;
type Item = (Key, Vec<u8>);

/// `old`, `sub/x` with a block of data, `other/`, and the name `vol` of a subvolume; with the
/// places where a log may lie.
struct Base {
    device: MemDevice,
    generation: Generation,
    log_root: LogicalAddr,
    log: LogicalAddr,
    in_use: LogicalAddr,
    /// A free block of data.
    data: LogicalAddr,
    /// The data of `x`.
    x_data: LogicalAddr,
}

fn open(device: &Arc<dyn BlockDevice>, read_only: bool, no_log_replay: bool) -> Result<Arc<Mount>> {
    let options = OpenOptions {
        read_only,
        rescue: Rescue {
            no_log_replay,
            ..Rescue::default()
        },
        ..OpenOptions::default()
    };
    let engine_options = EngineOptions {
        commit_interval_s: 0,
        ..EngineOptions::default()
    };
    let volume = Volume::open(vec![device.clone()], &options)?;
    Mount::open(volume, Arc::new(FixedEnv::default()), engine_options)
}

impl Base {
    fn new() -> Base {
        let device = Arc::new(MemDevice::new("memory", 256 << 20));
        let blocks: Arc<dyn BlockDevice> = device.clone();
        let mut options = MkfsOptions::new([0x5a; 16]);
        options.nodesize_bytes = Some(NODESIZE);
        mkfs(std::slice::from_ref(&blocks), &options).unwrap();
        let fs = Fs::new(open(&blocks, false, false).unwrap(), MountOptions::default()).unwrap();
        let request = OpenRequest {
            flags: OpenFlags::WRITE,
            kill_suidgid: false,
        };
        fs.create(&CTX, NodeId::ROOT, b"old", 0o644, &request).unwrap();
        let sub = fs.mkdir(&CTX, NodeId::ROOT, b"sub", 0o755).unwrap();
        let (x, opened) = fs.create(&CTX, sub.node, b"x", 0o644, &request).unwrap();
        let block = [7; 4096];
        fs.write(&CTX, x.node, opened.handle, 0, &block, WriteFlags::default())
            .unwrap();
        fs.mkdir(&CTX, NodeId::ROOT, b"other", 0o755).unwrap();
        let mount = fs.mount().clone();
        mount.close().unwrap();
        drop(fs);
        // Allocated and never committed: free, as a log's blocks are.
        let mount = open(&blocks, false, false).unwrap();
        let alloc = || mount.store().space().alloc_block(BlockKind::Metadata).unwrap();
        let mut reserved = mount.store().space().reserve_data(4096).unwrap();
        let (data, _) = mount.store().space().alloc_data(&mut reserved, 4096).unwrap();
        drop(reserved);
        let tree = mount.store().forest().require(TreeId::FS).unwrap();
        let base = Base {
            data,
            x_data: data_of_file(&tree, ObjectId(X)).unwrap()[0].0,
            generation: mount.store().txn().running(),
            log_root: alloc(),
            log: alloc(),
            in_use: mount.store().forest().require(TreeId::FS).unwrap().root().addr,
            device: device.snapshot(),
        };
        mount.store().txn().abort("the test stops here");
        base
    }

    fn leaf(&self, volume: &Volume, addr: LogicalAddr, items: &Items) -> std::result::Result<TreeBlock, Corrupt> {
        let mut leaf = LeafBuilder::new(NODESIZE as usize);
        for (key, bytes) in items {
            leaf.push(*key, &[bytes]);
        }
        let header = HeaderFields {
            fsid: volume.metadata_fsid(),
            chunk_tree_uuid: volume.chunk_tree_uuid(),
            addr,
            generation: self.generation,
            owner: TreeId::TREE_LOG,
            level: 0,
            flags: header_flags::CURRENT,
        };
        let expect = BlockExpect {
            addr,
            fsid: volume.metadata_fsid(),
            csum_type: volume.csum_type(),
            sectorsize_bytes: volume.sectorsize_bytes(),
            level: Some(0),
            generation: Some(self.generation),
            first_key: None,
            tree: Some(TreeId::TREE_LOG),
        };
        TreeBlock::seal(leaf.finish(&header), &expect)
    }

    /// A volume that crashed with this log; `None` where no verified block could hold it.
    fn crashed(&self, subvol: TreeId, items: &Items) -> Option<Arc<dyn BlockDevice>> {
        let device: Arc<dyn BlockDevice> = Arc::new(self.device.snapshot());
        let volume = Volume::open(vec![device.clone()], &OpenOptions::default()).unwrap();
        let log = self.leaf(&volume, self.log, items).ok()?;
        let ptr = RootPtr {
            addr: self.log,
            generation: self.generation,
            level: 0,
        };
        let roots = Items::from([(root_key(subvol), root_item(ptr).as_bytes().to_vec())]);
        let roots = self.leaf(&volume, self.log_root, &roots).unwrap();
        volume
            .write(&[(self.log, log.bytes()), (self.log_root, roots.bytes())])
            .unwrap();
        let mut sb = volume.superblock();
        sb.log_root = self.log_root.into();
        volume.write_superblocks(&sb).unwrap();
        Some(device)
    }

    fn crashed_with(&self, items: Vec<Item>) -> Arc<dyn BlockDevice> {
        self.crashed(TreeId::FS, &items.into_iter().collect())
            .expect("the log is a valid block")
    }

    /// Replays for good, lets orphans go, and has the result judged.
    fn replayed(&self, items: Vec<Item>) -> Fs {
        let device = self.crashed_with(items);
        let seen = Fs::new(open(&device, true, false).unwrap(), MountOptions::default()).unwrap();
        let before = entries(&seen, NodeId::ROOT);
        let fs = Fs::new(open(&device, false, false).unwrap(), MountOptions::default()).unwrap();
        assert_eq!(
            before,
            entries(&fs, NodeId::ROOT),
            "a read-only mount sees what a writable one makes"
        );
        fs.mount().commit().unwrap();
        assert!(!fs.mount().store().volume().has_log());
        let report = check(&[device], &CheckOptions::default());
        assert!(report.is_clean(), "{report}");
        fs
    }
}

fn entries(fs: &Fs, dir: NodeId) -> Vec<String> {
    let mut names = Vec::new();
    let mut sink = |entry: cowshed_vfs::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        std::ops::ControlFlow::Continue(())
    };
    fs.readdir(&CTX, dir, cowshed_vfs::Handle::NONE, 0, &mut sink).unwrap();
    names.retain(|name| name != "." && name != "..");
    names
}

fn lookup(fs: &Fs, dir: NodeId, name: &str) -> cowshed_vfs::Entry {
    match fs.lookup(&CTX, dir, name.as_bytes()).unwrap() {
        Lookup::Found(entry) => entry,
        other => panic!("{name}: {other:?}"),
    }
}

fn inode(ino: u64, mode: u32, nlink: u32, generation: u64) -> Item {
    let mut item = InodeItem::new_zeroed();
    item.generation = U64::new(generation);
    item.transid = U64::new(1);
    item.mode = U32::new(mode);
    item.nlink = U32::new(nlink);
    item.nbytes = U64::new(0x5a5a_5a5a);
    (
        Key::new(ObjectId(ino), KeyType::INODE_ITEM, 0),
        item.as_bytes().to_vec(),
    )
}

fn inode_ref(ino: u64, dir: u64, names: &[(u64, &str)]) -> Item {
    let mut bytes = Vec::new();
    for (index, name) in names {
        let head = InodeRef {
            index: U64::new(*index),
            name_len: U16::new(name.len() as u16),
        };
        bytes.extend([head.as_bytes(), name.as_bytes()].concat());
    }
    (Key::new(ObjectId(ino), KeyType::INODE_REF, dir), bytes)
}

fn extref(ino: u64, dir: u64, index: u64, name: &str) -> Item {
    let head = InodeExtref {
        parent_objectid: U64::new(dir),
        index: U64::new(index),
        name_len: U16::new(name.len() as u16),
    };
    let key = Key::new(
        ObjectId(ino),
        KeyType::INODE_EXTREF,
        hash::extref_hash(ObjectId(dir), name.as_bytes()),
    );
    (key, [head.as_bytes(), name.as_bytes()].concat())
}

fn dir_index(dir: u64, index: u64, name: &str, ino: u64) -> Item {
    let head = DirItem {
        location: Key::new(ObjectId(ino), KeyType::INODE_ITEM, 0).into(),
        transid: U64::new(1),
        data_len: U16::new(0),
        name_len: U16::new(name.len() as u16),
        ty: file_type::REG_FILE,
    };
    (
        names::index_key(ObjectId(dir), index),
        [head.as_bytes(), name.as_bytes()].concat(),
    )
}

fn dir_range(dir: u64, first: u64, last: u64) -> Item {
    (
        dir_range_key(ObjectId(dir), first),
        dir_range_item(last).as_bytes().to_vec(),
    )
}

fn extent(ino: u64, start: u64, addr: u64, len: u64) -> Item {
    let mut item = FileExtent::new_zeroed();
    item.generation = U64::new(1);
    item.ty = file_extent_type::REG;
    item.disk_bytenr = U64::new(addr);
    item.disk_num_bytes = U64::new(len);
    item.num_bytes = U64::new(len);
    item.ram_bytes = U64::new(len);
    (
        Key::new(ObjectId(ino), KeyType::EXTENT_DATA, start),
        item.as_bytes().to_vec(),
    )
}

/// An inode that says that its data has no checksums.
fn unsummed(ino: u64) -> Item {
    let (key, bytes) = inode(ino, FILE_MODE, 1, 1);
    let mut item = InodeItem::read_from_bytes(&bytes).unwrap();
    item.size = U64::new(4096);
    item.flags = U64::new(NODATASUM);
    (key, item.as_bytes().to_vec())
}

fn sum_of(addr: u64) -> Item {
    let key = Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, addr);
    (key, vec![1, 2, 3, 4])
}

#[test]
fn what_a_logged_range_lacks_is_gone_with_all_below() {
    // Overlapping ranges, as the kernel writes them.
    let items = vec![
        inode(ROOT, DIR_MODE, 1, 1),
        dir_range(ROOT, 2, 3),
        dir_range(ROOT, 3, 3),
    ];
    let fs = Base::new().replayed(items);
    assert_eq!(entries(&fs, NodeId::ROOT), ["other"]);
    let tree = fs.mount().store().forest().require(TreeId::FS).unwrap();
    for gone in [OLD, SUB, X] {
        let key = Key::new(ObjectId(gone), KeyType::INODE_ITEM, 0);
        assert!(tree.get(&key).unwrap().is_none(), "inode {gone} is deleted");
    }
}

#[test]
fn names_come_from_references_of_both_kinds_and_from_indices() {
    let items = vec![
        inode(ROOT, DIR_MODE, 1, 1),
        dir_index(ROOT, 20, "index", X),
        dir_index(ROOT, 21, "nobody", 999),
        inode(OLD, FILE_MODE, 3, 1),
        inode_ref(OLD, ROOT, &[(2, "old"), (22, "new")]),
        extref(OLD, OTHER, 5, "far"),
        // The parent was not logged, and does not exist.
        inode_ref(OLD, 777, &[(2, "lost")]),
    ];
    let fs = Base::new().replayed(items);
    assert_eq!(entries(&fs, NodeId::ROOT), ["old", "sub", "other", "index", "new"]);
    let other = lookup(&fs, NodeId::ROOT, "other").node;
    assert_eq!(entries(&fs, other), ["far"]);
    assert_eq!(lookup(&fs, other, "far").attr.nlink, 3);
    assert_eq!(lookup(&fs, NodeId::ROOT, "index").attr.nlink, 2);
}

#[test]
fn an_inode_that_was_logged_without_a_name_is_not_there() {
    let items = vec![
        inode(300, FILE_MODE, 0, 1),
        inode_ref(300, ROOT, &[(9, "ghost")]),
        extent(300, 0, 1 << 40, 4096),
    ];
    let fs = Base::new().replayed(items);
    assert_eq!(entries(&fs, NodeId::ROOT), ["old", "sub", "other"]);
}

#[test]
fn a_directory_that_moved_leaves_its_old_name() {
    let items = vec![inode(SUB, DIR_MODE, 1, 1), inode_ref(SUB, OTHER, &[(2, "moved")])];
    let fs = Base::new().replayed(items);
    assert_eq!(entries(&fs, NodeId::ROOT), ["old", "other"]);
    let other = lookup(&fs, NodeId::ROOT, "other").node;
    let moved = lookup(&fs, other, "moved");
    assert_eq!((entries(&fs, moved.node), moved.attr.nlink), (vec!["x".into()], 1));
}

#[test]
fn the_replays_commit_leaves_the_log_whole() {
    let base = Base::new();
    let device = base.crashed_with(many_files());
    let volume = || Volume::open(vec![device.clone()], &OpenOptions::default()).unwrap();
    let log_bytes = || {
        let (volume, mut bytes) = (volume(), vec![0; NODESIZE as usize * 2]);
        for (addr, part) in [base.log_root, base.log]
            .iter()
            .zip(bytes.chunks_mut(NODESIZE as usize))
        {
            let at = volume.map(*addr, NODESIZE.into()).unwrap()[0].copies[0];
            device.read_at(at.offset, part).unwrap();
        }
        bytes
    };
    let before = log_bytes();
    let mount = open(&device, false, false).unwrap();
    mount.close().unwrap();
    assert!(!volume().has_log());
    assert!(
        before == log_bytes(),
        "a crash before the new superblock would find the log"
    );
}

/// Forty new files, with names.
fn many_files() -> Vec<Item> {
    (0..40)
        .flat_map(|i| {
            [
                inode(300 + i, FILE_MODE, 1, 0),
                inode_ref(300 + i, ROOT, &[(20 + i, &format!("n{i}"))]),
            ]
        })
        .collect()
}

#[test]
fn whatever_fails_while_a_log_is_replayed_the_next_mount_has_all_of_it() {
    let crashed = Base::new().crashed_with(many_files());
    let copy = || Arc::new(MemDevice::copy_of("copy", crashed.as_ref()).unwrap());
    for on in [On::Read, On::Write, On::Flush] {
        let mut nth = 0;
        loop {
            let (device, plan) = (copy(), FaultPlan::new());
            let faulty: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(device.clone(), plan.clone()));
            plan.add(Fault::error(on, nth).forever());
            let opened = open(&faulty, false, false);
            let is_done = opened.is_ok();
            if let Ok(mount) = opened {
                mount.store().txn().abort("the test stops here");
            }
            let device: Arc<dyn BlockDevice> = device;
            let fs = Fs::new(open(&device, false, false).unwrap(), MountOptions::default()).unwrap();
            assert_eq!(entries(&fs, NodeId::ROOT).len(), 43, "{on:?} {nth} failed");
            fs.mount().close().unwrap();
            let report = check(&[device], &CheckOptions::default());
            assert!(report.is_clean(), "{on:?} {nth} failed: {report}");
            if is_done {
                break;
            }
            nth += 1;
        }
        assert!(nth > 1, "{on:?}: {nth}");
    }
}

#[test]
fn a_read_only_mount_replays_and_writes_nothing() {
    let crashed = Base::new().crashed_with(many_files());
    let log = cowshed_device_sim::Log::new();
    let device: Arc<dyn BlockDevice> = Arc::new(log.record(crashed));
    let fs = Fs::new(open(&device, true, false).unwrap(), MountOptions::default()).unwrap();
    assert_eq!(entries(&fs, NodeId::ROOT).len(), 43);
    assert!(
        fs.create(
            &CTX,
            NodeId::ROOT,
            b"not",
            0o644,
            &OpenRequest {
                flags: OpenFlags::WRITE,
                kill_suidgid: false
            }
        )
        .is_err()
    );
    fs.destroy();
    assert!(log.take().is_empty(), "nothing was written, and nothing flushed");
}

#[test]
fn an_inode_may_say_that_its_new_data_has_no_checksums() {
    let base = Base::new();
    let data = base.data.get();
    let fs = base.replayed(vec![unsummed(OLD), extent(OLD, 0, data, 4096)]);
    assert_eq!(lookup(&fs, NodeId::ROOT, "old").attr.size_bytes, 4096);
    // What it had before goes with its old end.
    let (key, mut cut) = unsummed(X);
    InodeItem::mut_from_bytes(&mut cut).unwrap().size = U64::new(0);
    let fs = Base::new().replayed(vec![(key, cut)]);
    let sub = lookup(&fs, NodeId::ROOT, "sub").node;
    assert_eq!(lookup(&fs, sub, "x").attr.size_bytes, 0);
}

#[test]
fn no_log_takes_the_name_of_a_subvolume_away() {
    let base = Base::new();
    let device: Arc<dyn BlockDevice> = Arc::new(base.device.snapshot());
    let mount = open(&device, false, false).unwrap();
    let tree = mount.store().forest().require(TreeId::FS).unwrap();
    let mut staged = Staged::new(&tree);
    let new = NewName {
        dir: ObjectId(ROOT),
        name: b"vol",
        index: 9,
        location: Key::new(ObjectId(300), KeyType::ROOT_ITEM, u64::MAX),
        ty: file_type::DIR,
        generation: mount.store().txn().running(),
    };
    names::insert(&mut staged, &new).unwrap();
    mount.store().txn().join().apply_unreserved(staged.into_batch());
    let mut shared = super::Shared::new(&mount);
    let mut replay = super::Replay {
        log: tree.clone(),
        tree: tree.clone(),
        shared: &mut shared,
        inodes: Default::default(),
        ignored: Default::default(),
        flipped: Default::default(),
        touched: Default::default(),
        named_dirs: Default::default(),
    };
    let error = replay.unlink(ObjectId(ROOT), b"vol").unwrap_err().to_string();
    assert!(error.contains("is a subvolume's"), "{error}");
    let error = replay.unlink(ObjectId(ROOT), b"absent").unwrap_err().to_string();
    assert!(error.contains("has no entry by hash"), "{error}");
    mount.store().txn().abort("the test stops here");
}

#[test]
fn nologreplay_is_for_reading() {
    let base = Base::new();
    let device = base.crashed_with(vec![
        inode(OLD, FILE_MODE, 2, 1),
        inode_ref(OLD, ROOT, &[(2, "old"), (9, "n")]),
    ]);
    let error = open(&device, false, true).unwrap_err().to_string();
    assert!(error.contains("read-only"), "{error}");
    let fs = Fs::new(open(&device, true, true).unwrap(), MountOptions::default()).unwrap();
    assert_eq!(entries(&fs, NodeId::ROOT), ["old", "sub", "other"]);
    let fs = Fs::new(open(&device, true, false).unwrap(), MountOptions::default()).unwrap();
    assert_eq!(entries(&fs, NodeId::ROOT), ["old", "sub", "other", "n"]);
}
