//! Space on whole volumes: what the kernel wrote, read by us; what we write, judged by the kernel
//! and both checkers.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use btrfs_format::features::inode_flags;
use btrfs_format::hash::name_hash;
use btrfs_format::items::{DirItem, InodeRef, file_type};
use btrfs_format::items::{FileExtent, InodeItem, file_extent_type};
use btrfs_format::{DiskKey, Key, KeyType, LogicalAddr, ObjectId, TreeId, U16, U32, U64};
use cowshed_device::{BlockDevice, FileDevice, MemDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, matrix_small, need, run};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::*;
use crate::refs::{DataRef, RefChange, RefKind};
use crate::testing::{Dice, Engine, memory_device};
use crate::tree::{NodeStore, Tree};
use crate::txn::Batch;
use crate::volume::OpenOptions;

pub(super) const SECTOR: u64 = 4096;
const ROOT_DIR: ObjectId = ObjectId(256);

pub(super) fn devices(volume: &KernelVolume, mode: OpenMode) -> Vec<Arc<dyn BlockDevice>> {
    let open = |path| Arc::new(FileDevice::open(path, mode).unwrap()) as Arc<dyn BlockDevice>;
    volume.images().iter().map(open).collect()
}

fn open_space(volume: &KernelVolume) -> Arc<Space> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let volume = Volume::open(devices(volume, OpenMode::ReadOnly), &options).unwrap();
    let forest = Forest::new(Arc::new(NodeStore::new(volume.clone(), 64 << 20))).expect("nothing is read");
    Space::load(&volume, &forest).unwrap()
}

pub(super) fn open_engine(volume: &KernelVolume) -> Arc<Engine> {
    open_engine_on(devices(volume, OpenMode::ReadWrite))
}

pub(super) fn open_engine_on(devices: Vec<Arc<dyn BlockDevice>>) -> Arc<Engine> {
    Engine::open(devices)
}

/// Volumes of all profiles that we allocate on, big enough for a superblock copy to lie in a chunk.
pub(super) fn volumes() -> Vec<VolumeOptions> {
    let mut all = matrix_small();
    all.push(VolumeOptions::devices(1, "dup", "dup"));
    all.push(VolumeOptions::devices(1, "single", "single"));
    all.push(VolumeOptions::devices(3, "raid0", "raid1"));
    all.push(VolumeOptions::devices(3, "raid1c3", "raid1c3"));
    all.push(VolumeOptions::devices(4, "raid1c4", "raid1c4"));
    for options in &mut all {
        // Mounted twice below, filled by hand: what the data looks like does not matter here.
        options.mount_options = "";
    }
    all
}

/// Thousands of small files, every third of them removed: free space in pieces.
fn fragment(root: &std::path::Path) -> std::io::Result<()> {
    let name = |i: usize| root.join(format!("f{i}"));
    for i in 0..1500 {
        std::fs::write(name(i), vec![i as u8; 4096 * (1 + i % 3)])?;
        if i % 300 == 0 {
            std::fs::File::open(root)?.sync_all()?;
        }
    }
    for i in (0..1500).step_by(3) {
        std::fs::remove_file(name(i))?;
    }
    Ok(())
}

#[test]
fn free_space_of_kernel_volumes_is_what_the_extent_tree_leaves() {
    let Some(()) = need::kernel_btrfs() else { return };
    let mut bitmaps = 0;
    for options in volumes() {
        let volume = KernelVolume::make(&options).unwrap();
        volume.with_mount(|root| Ok(fragment(root)?)).unwrap();
        let space = open_space(&volume);
        let what = options.describe();
        let mut used = 0;
        for group in &space.all_groups() {
            used += group.used_bytes();
            let scanned = load::scan_extent_tree(&space.trees.extent, group, space.nodesize_bytes).unwrap();
            if let Some(tree) = &space.trees.free_space {
                let (free, is_bitmaps) = load::read_free_space_tree(tree, group).unwrap();
                bitmaps += usize::from(is_bitmaps);
                assert_eq!(free, scanned, "{what}, block group {}", group.shape.start);
            }
            space.ensure_loaded(group).unwrap();
        }
        assert_eq!(used, space.volume.superblock().bytes_used.get(), "{what}");
    }
    assert!(bitmaps > 0, "no volume was fragmented enough to have bitmaps");
}

#[test]
fn statfs_is_that_of_the_kernel() {
    let Some(()) = need::kernel_btrfs() else { return };
    for options in volumes() {
        let volume = KernelVolume::make(&options).unwrap();
        volume
            .with_mount(|root| Ok(std::fs::write(root.join("file"), vec![7; 5 << 20])?))
            .unwrap();
        // Mounted read-only it would leave the global reserve out.
        let mounted = volume.mount().unwrap();
        let dir = mounted.dir().to_string_lossy().into_owned();
        let theirs = run("stat", &["-f", "-c", "%b %f %a", &dir]).unwrap();
        mounted.unmount_quietly().unwrap();
        let stat = open_space(&volume).stat();
        let ours = [stat.total_bytes, stat.free_bytes, stat.available_bytes].map(|bytes| bytes / SECTOR);
        let ours = format!("{} {} {}", ours[0], ours[1], ours[2]);
        assert_eq!(ours, theirs.trim(), "{}", options.describe());
    }
}

/// A file in the top level without checksums whose extents tests make by hand.
pub(super) struct Filler {
    engine: Arc<Engine>,
    tree: Arc<Tree>,
    ino: u64,
    /// File offset, address, length.
    extents: Vec<(u64, LogicalAddr, u64)>,
    end: u64,
}

impl Filler {
    pub(super) fn create(engine: &Arc<Engine>, ino: u64) -> Self {
        let tree = engine.store.forest().require(TreeId::FS).unwrap();
        let name = format!("filler-{ino}");
        let reservation = engine.reserve(Budget::CREATE).unwrap();
        let join = engine.store.txn().join();
        let parent_key = Key::new(ROOT_DIR, KeyType::INODE_ITEM, 0);
        let mut parent = InodeItem::read_from_bytes(&tree.get(&parent_key).unwrap().unwrap()).unwrap();
        parent.size = U64::new(parent.size.get() + 2 * name.len() as u64);
        parent.transid = join.generation().into();
        let head = DirItem {
            location: DiskKey::from(Key::new(ObjectId(ino), KeyType::INODE_ITEM, 0)),
            transid: join.generation().into(),
            data_len: U16::new(0),
            name_len: U16::new(name.len() as u16),
            ty: file_type::REG_FILE,
        };
        let inode_ref = InodeRef {
            index: U64::new(ino),
            name_len: U16::new(name.len() as u16),
        };
        let mut batch = Batch::new();
        batch.put(&tree, parent_key, parent.as_bytes());
        let entry = [head.as_bytes(), name.as_bytes()].concat();
        let hash = name_hash(name.as_bytes());
        batch.put(&tree, Key::new(ROOT_DIR, KeyType::DIR_ITEM, hash), entry.clone());
        batch.put(&tree, Key::new(ROOT_DIR, KeyType::DIR_INDEX, ino), entry);
        let backref = Key::new(ObjectId(ino), KeyType::INODE_REF, ROOT_DIR.get());
        batch.put(&tree, backref, [inode_ref.as_bytes(), name.as_bytes()].concat());
        let this = Self {
            engine: engine.clone(),
            tree,
            ino,
            extents: Vec::new(),
            end: 0,
        };
        this.put_inode(&mut batch, join.generation());
        join.apply(batch, reservation);
        this
    }

    fn put_inode(&self, batch: &mut Batch, generation: Generation) {
        let mut inode = InodeItem::new_zeroed();
        inode.generation = generation.into();
        inode.transid = generation.into();
        inode.nlink = U32::new(1);
        inode.mode = U32::new(0o100_644);
        inode.size = U64::new(self.end);
        inode.nbytes = U64::new(self.extents.iter().map(|e| e.2).sum());
        inode.flags = U64::new(inode_flags::NODATASUM);
        batch.put(
            &self.tree,
            Key::new(ObjectId(self.ino), KeyType::INODE_ITEM, 0),
            inode.as_bytes(),
        );
    }

    fn key(&self, offset: u64) -> Key {
        Key::new(ObjectId(self.ino), KeyType::EXTENT_DATA, offset)
    }

    fn reference(&self, addr: LogicalAddr, len_bytes: u64, offset: u64, kind: RefKind) -> RefChange {
        let data_ref = DataRef {
            root: TreeId::FS,
            ino: ObjectId(self.ino),
            offset,
        };
        RefChange {
            addr,
            len_bytes,
            data_ref,
            kind,
        }
    }

    /// Appends up to `bytes`; gives what one allocation brought.
    pub(super) fn append(&mut self, bytes: u64) -> Result<u64> {
        let space = &self.engine.store.space();
        let mut data = space.reserve_data(bytes)?;
        let reservation = self.engine.reserve(Budget::WRITE_EXTENT)?;
        let (addr, len) = space.alloc_data(&mut data, bytes)?;
        let join = self.engine.store.txn().join();
        let extent = FileExtent {
            generation: join.generation().into(),
            ram_bytes: U64::new(len),
            compression: 0,
            encryption: 0,
            other_encoding: U16::new(0),
            ty: file_extent_type::REG,
            disk_bytenr: addr.into(),
            disk_num_bytes: U64::new(len),
            offset: U64::new(0),
            num_bytes: U64::new(len),
        };
        let mut batch = Batch::new();
        batch.put(&self.tree, self.key(self.end), extent.as_bytes());
        batch.reference(self.reference(addr, len, self.end, RefKind::New));
        self.extents.push((self.end, addr, len));
        self.end += len;
        self.put_inode(&mut batch, join.generation());
        join.apply(batch, reservation);
        Ok(len)
    }

    /// Makes a hole of some extents (volumes with no-holes: the item just goes).
    pub(super) fn punch(&mut self, mut which: impl FnMut(usize) -> bool) -> Result<()> {
        let reservation = self.engine.reserve(Budget::TRUNCATE)?;
        let join = self.engine.store.txn().join();
        let mut batch = Batch::new();
        let mut index = 0;
        let (gone, kept) = std::mem::take(&mut self.extents).into_iter().partition(|_| {
            index += 1;
            which(index - 1)
        });
        self.extents = kept;
        let gone: Vec<(u64, LogicalAddr, u64)> = gone;
        for (offset, addr, len) in gone {
            batch.delete(&self.tree, self.key(offset));
            batch.reference(self.reference(addr, len, offset, RefKind::Drop));
        }
        self.put_inode(&mut batch, join.generation());
        join.apply(batch, reservation);
        Ok(())
    }
}

/// What the trees say of every block group that is loaded must be what memory says once nothing is
/// in flight.
pub(super) fn assert_views_agree(space: &Space, when: &str) {
    let mut free = [0; 3];
    for group in &space.all_groups() {
        space.ensure_loaded(group).unwrap();
        let (holes, pinned, disk) = group.views();
        let mut disk = disk.unwrap();
        for range in &group.excluded {
            disk.remove(range.clone(), |_| {});
        }
        assert!(pinned.is_empty(), "{when}: pinned ranges after a commit");
        assert_eq!(holes, disk, "{when}: block group {}", group.shape.start);
        let scanned = load::scan_extent_tree(&space.trees.extent, group, space.nodesize_bytes).unwrap();
        assert_eq!(group.views().2.unwrap(), scanned, "{when}");
        if let Some(tree) = &space.trees.free_space {
            let (in_tree, _) = load::read_free_space_tree(tree, group).unwrap();
            assert_eq!(in_tree, scanned, "{when}: free-space tree of {}", group.shape.start);
        }
        free[pool_of(group.flags).unwrap() as usize] += holes.total_bytes();
    }
    for pool in POOLS {
        assert_eq!(space.ledger.pool(pool).free, free[pool as usize], "{when}: {pool:?}");
        assert_eq!(space.ledger.pool(pool).pinned, 0, "{when}: {pool:?}");
    }
}

/// Fills the volume in pieces, punches holes, fills those: with new chunks, full pools and bitmaps
/// on the way.
fn fill_and_punch(engine: Arc<Engine>, what: &str) {
    let mut dice = Dice::new(11);
    let mut filler = Filler::create(&engine, 257);
    let mut small = Filler::create(&engine, 258);
    for _ in 0..800 {
        small.append(SECTOR * (1 + dice.below(4))).unwrap();
    }
    while filler.append(SECTOR * (1 + dice.below(4000))).is_ok() {
        if dice.below(30) == 0 {
            engine.commit().unwrap();
        }
    }
    engine.commit().unwrap();
    assert_views_agree(engine.store.space(), &format!("{what}: full"));
    // A full volume can delete, and what it deleted comes back.
    small.punch(|i| i % 2 == 0).unwrap();
    filler.punch(|i| i % 3 == 0).unwrap();
    engine.commit().unwrap();
    assert_views_agree(engine.store.space(), &format!("{what}: punched"));
    for _ in 0..200 {
        small.append(SECTOR).unwrap();
    }
    engine.commit().unwrap();
    assert_views_agree(engine.store.space(), &format!("{what}: small again"));
    engine.close().unwrap();
    crate::testing::assert_nothing_reserved(engine.store.space());
}

#[test]
fn full_volumes_of_every_profile_stay_clean() {
    let Some(()) = need::kernel_btrfs() else { return };
    for options in volumes() {
        if options.features.contains(&"^no-holes") {
            continue; // The holes that the test makes would need items of their own.
        }
        let volume = KernelVolume::make(&options).unwrap();
        let what = options.describe();
        fill_and_punch(open_engine(&volume), &what);
        let report = btrfs_check::check(
            &devices(&volume, OpenMode::ReadOnly),
            &btrfs_check::CheckOptions::default(),
        );
        assert!(report.is_clean(), "{what}:\n{report}");
        let report = volume.check(cowshed_harness::progs::CheckOptions::default()).unwrap();
        assert!(report.clean, "{what}:\n{}", report.output);
        // The kernel goes on with it: reads the free space, allocates, frees, and complains about
        // nothing.
        volume
            .with_mount(|root| {
                std::fs::remove_file(root.join("filler-257"))?;
                std::fs::write(root.join("new"), vec![3; 3 << 20])?;
                Ok(())
            })
            .unwrap_or_else(|e| panic!("{what}: {e:#}"));
        let report = volume.check(cowshed_harness::progs::CheckOptions::default()).unwrap();
        assert!(report.clean, "{what}, after the kernel:\n{}", report.output);
        let space = open_space(&volume);
        for group in &space.all_groups() {
            space.ensure_loaded(group).unwrap();
        }
    }
}

/// A volume with the old cache of free space: we neither read nor write it, the superblock says
/// that it is stale, and the kernel makes a new one instead of trusting what it finds.
#[test]
fn the_kernel_discards_a_version_1_cache_after_us() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions {
        runtime_features: vec!["^free-space-tree"],
        mount_options: "space_cache=v1",
        ..VolumeOptions::default()
    })
    .unwrap();
    volume
        .with_mount(|root| {
            fragment(root)?;
            Ok(std::fs::write(root.join("big"), vec![5; 20 << 20])?)
        })
        .unwrap();
    let sb = open_space(&volume).volume.superblock();
    assert_eq!(
        sb.cache_generation.get(),
        sb.generation.get(),
        "the kernel wrote its cache"
    );
    let engine = open_engine(&volume);
    let mut filler = Filler::create(&engine, 100_000);
    for _ in 0..100 {
        filler.append(10 * SECTOR).unwrap();
    }
    engine.close().unwrap();
    let sb = engine.store.volume().superblock();
    assert!(sb.cache_generation.get() < sb.generation.get());
    drop((engine, filler));
    volume.assert_clean();
    // A kernel that trusted the cache would give the filler's extents away a second time.
    volume
        .with_mount(|root| Ok(std::fs::write(root.join("more"), vec![6; 200 << 20])?))
        .unwrap();
    volume.assert_clean();
    let space = open_space(&volume);
    assert_eq!(
        space.volume.superblock().cache_generation,
        space.volume.superblock().generation
    );
    for group in &space.all_groups() {
        space.ensure_loaded(group).unwrap();
    }
}

#[test]
fn a_volume_of_our_own_mkfs_fills_up_with_a_block_group_tree() {
    let device = Arc::new(MemDevice::new("memory", 600 << 20));
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    btrfs_image::mkfs(&devices, &btrfs_image::MkfsOptions::new([0x5b; 16])).unwrap();
    fill_and_punch(open_engine_on(devices.clone()), "own mkfs");
    let report = btrfs_check::check(&devices, &btrfs_check::CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::from_memory(std::slice::from_ref(&*device)).unwrap();
    volume
        .with_mount(|root| Ok(std::fs::remove_file(root.join("filler-257"))?))
        .unwrap();
    volume.assert_clean();
}

/// Several threads allocate, give back and commit at once: no byte is given twice, none is lost.
#[test]
fn allocation_goes_on_during_commits() {
    /// Extents that a thread holds, of 200 KiB on average.
    const HELD_MAX: usize = 500;
    let engine = open_engine_on(vec![memory_device(900 << 20, 16384)]);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let engine = engine.clone();
            scope.spawn(move || {
                let mut dice = Dice::new(100 + thread);
                let space = engine.store.space();
                let mut held: Vec<(LogicalAddr, u64)> = Vec::new();
                for _ in 0..4000 {
                    if let Ok(mut data) = space.reserve_data(SECTOR * (1 + dice.below(100))) {
                        let bytes = data.bytes();
                        let (addr, len) = space.alloc_data(&mut data, bytes).unwrap();
                        assert!(len > 0 && len <= bytes && addr.get() % SECTOR == 0);
                        held.push((addr, len));
                    }
                    // Bounded, so that the volume never fills up and no append below may fail.
                    if held.len() > HELD_MAX || (dice.below(3) == 0 && !held.is_empty()) {
                        let (addr, len) = held.swap_remove(dice.below(held.len() as u64) as usize);
                        space.unalloc_data(addr, len);
                    }
                }
                for (addr, len) in held {
                    space.unalloc_data(addr, len);
                }
            });
        }
        let mut filler = Filler::create(&engine, 257);
        for round in 0..60 {
            for _ in 0..20 {
                filler.append(SECTOR * 7).unwrap();
            }
            if round % 3 == 2 {
                filler.punch(|i| i % 5 == 0).unwrap();
            }
            engine.commit().unwrap();
        }
    });
    // A thread may have made a chunk after the last commit: its items are for the next one.
    engine.commit().unwrap();
    // Only what a commit freed is pinned, and nothing was pending.
    assert_views_agree(engine.store.space(), "after all threads");
    engine.close().unwrap();
    crate::testing::assert_nothing_reserved(engine.store.space());
}

/// What a commit writes is never more than what was counted for it.
#[test]
fn a_commit_writes_no_more_than_was_estimated() {
    for nodesize in [4096, 16384] {
        let engine = open_engine_on(vec![memory_device(2 << 30, nodesize)]);
        let mut dice = Dice::new(5);
        let mut fillers: Vec<_> = (0..40).map(|i| Filler::create(&engine, 300 + i * 1000)).collect();
        for round in 0..25 {
            for _ in 0..1 + dice.below(2000) {
                let filler = &mut fillers[dice.below(40) as usize];
                filler.append(SECTOR).unwrap();
            }
            if round % 4 == 3 {
                let filler = &mut fillers[dice.below(40) as usize];
                filler.punch(|_| dice.below(2) == 0).unwrap();
            }
            let space = engine.store.space();
            let estimate = space.ledger.estimate_blocks() + space.ledger.global_reserve_bytes() / u64::from(nodesize);
            let before = engine.commit_stats().blocks_written;
            engine.commit().unwrap();
            let written = engine.commit_stats().blocks_written - before;
            assert!(
                written <= estimate,
                "nodesize {nodesize}, round {round}: {written} > {estimate}"
            );
        }
        engine.close().unwrap();
    }
}

/// A reservation that cannot be had asks for write-back, then for a commit, and fails only then.
#[test]
fn reservations_flush_before_they_fail() {
    #[derive(Default)]
    struct Steps(parking_lot::Mutex<Vec<&'static str>>, AtomicU64);
    impl Flusher for Steps {
        fn count_leaves(&self) {
            self.0.lock().push("count");
        }
        fn write_back_data(&self) -> Result<()> {
            self.0.lock().push("write back");
            Ok(())
        }
        fn commit(&self) -> Result<()> {
            self.0.lock().push("commit");
            Ok(())
        }
        fn go_on_dropping(&self) -> Drops {
            Drops::None
        }
        fn pause(&self, _: Duration) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    let engine = open_engine_on(vec![memory_device(256 << 20, 16384)]);
    let steps = Arc::new(Steps::default());
    let flusher: std::sync::Weak<Steps> = Arc::downgrade(&steps);
    engine.store.space().set_flusher(flusher);
    let held = engine.store.space().reserve_data(1 << 20).unwrap();
    engine.store.space().note_pending(Growth { items: 1, bytes: 100 }, 0);
    assert!(matches!(
        engine.store.space().reserve_data(1 << 30),
        Err(Error::NoSpace)
    ));
    assert_eq!(*steps.0.lock(), ["write back", "commit"]);
    assert!(
        steps.1.swap(0, Ordering::Relaxed) > 0,
        "promised data might have come back"
    );
    drop(held);
    // Nothing dirty, nothing pending: neither step is called.
    engine.store.space().pending_frozen();
    engine.store.space().pending_merged();
    steps.0.lock().clear();
    assert!(matches!(
        engine.store.space().reserve_data(1 << 30),
        Err(Error::NoSpace)
    ));
    assert_eq!(*steps.0.lock(), [""; 0]);
    // Metadata that the caller itself was promised is no data, and not waited for.
    let own = engine.store.space().reserve_meta(Budget::SETATTR).unwrap();
    assert!(matches!(
        engine.store.space().reserve_data(1 << 30),
        Err(Error::NoSpace)
    ));
    assert_eq!(steps.1.load(Ordering::Relaxed), 0);
    drop(own);
}

/// Steps that bring no space are waited for a few times, the last one once, and none for what no
/// volume of the size could hold.
#[test]
fn waits_for_drops_that_bring_nothing_end() {
    struct Dropping(Drops, AtomicU64);
    impl Flusher for Dropping {
        fn count_leaves(&self) {}
        fn write_back_data(&self) -> Result<()> {
            Ok(())
        }
        fn commit(&self) -> Result<()> {
            Ok(())
        }
        fn go_on_dropping(&self) -> Drops {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0
        }
        fn pause(&self, _: Duration) {}
    }
    let engine = open_engine_on(vec![memory_device(256 << 20, 16384)]);
    let space = engine.store.space();
    for (drops, bytes, waits) in [
        (Drops::Step, 250 << 20, 5),
        (Drops::Over, 250 << 20, 1),
        (Drops::None, 250 << 20, 1),
        (Drops::Step, 1 << 30, 0),
    ] {
        let flusher = Arc::new(Dropping(drops, AtomicU64::new(0)));
        let weak: std::sync::Weak<Dropping> = Arc::downgrade(&flusher);
        space.set_flusher(weak);
        assert!(matches!(space.reserve_data(bytes), Err(Error::NoSpace)));
        assert_eq!(flusher.1.load(Ordering::Relaxed), waits, "{drops:?}, {bytes}");
    }
}

/// Trees that contradict each other end in an error that names the place, not in overwritten data.
#[test]
fn a_wrong_used_count_is_refused_when_space_is_needed() {
    let engine = open_engine_on(vec![memory_device(256 << 20, 16384)]);
    let space = engine.store.space();
    let group = space.pools[Pool::Metadata as usize].read()[0].clone();
    space.extent_removed(LogicalAddr(group.shape.start + group.shape.len_bytes / 2), 16384);
    let error = space.take_edits(Generation(9)).unwrap_err();
    assert!(error.to_string().contains("used"), "{error}");
}
