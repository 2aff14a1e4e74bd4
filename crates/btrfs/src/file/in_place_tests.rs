//! Writing in place: where it happens, where it must not, and that no other file or snapshot shows
//! it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use btrfs_format::{Generation, Key, LogicalAddr, TreeId};
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_device_sim::Log;
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_harness::{KernelVolume, VolumeOptions, need};
use cowshed_vfs::{FallocateFlags, FileSystem};

use super::WriteCtx;
use super::items::{self, Change};
use super::kernel_tests::{content, lookup, run};
use super::place::new_extent;
use super::tests::{Bench, mount_device, plain, set_range};
use crate::block::BLOCK;
use crate::error::{Error, StoreError};
use crate::extent::{Extent, Kind, OnDisk, Walk};
use crate::fs::MountOptions;
use crate::mount::Mount;
use crate::object::Inode;
use crate::testing::SetOnDrop;
use btrfs_store::space::Budget;

fn nodatacow() -> MountOptions {
    MountOptions {
        nodatacow: true,
        nodatasum: true,
        ..MountOptions::default()
    }
}

fn write(bench: &mut Bench, file: usize, at: u64, data: &[u8]) {
    super::write(bench.mount(), &bench.inode(file), at, data, WriteCtx::default()).unwrap();
    set_range(&mut bench.files[file], at, data);
}

fn extents(mount: &Mount, inode: &Arc<Inode>) -> Vec<(u64, OnDisk)> {
    super::write_back(mount, inode).unwrap();
    let all = Walk::new(&inode.tree, inode.ino, 0..u64::MAX)
        .unwrap()
        .collect()
        .unwrap();
    all.iter()
        .filter_map(|e| e.on_disk().map(|disk| (e.start, *disk)))
        .collect()
}

#[test]
fn nodatacow_files_are_overwritten_in_place_until_shared() {
    let mut bench = Bench::new(256 << 20, plain, nodatacow());
    bench.create();
    bench.create();
    write(&mut bench, 0, 0, &[1; 100_000]);
    let place = extents(bench.mount(), &bench.inode(0));
    let stays = |bench: &mut Bench, byte: u8| {
        write(bench, 0, 5000, &vec![byte; 20_000]);
        extents(bench.mount(), &bench.inode(0)) == place
    };
    assert!(stays(&mut bench, 2), "not committed yet");
    bench.mount().sync().unwrap();
    assert!(stays(&mut bench, 3), "committed");
    bench.remount();
    assert!(stays(&mut bench, 4), "of an earlier mount");

    let (from, to) = (bench.inode(0), bench.inode(1));
    super::clone_range(bench.mount(), &from, 0, &to, 0, 0).unwrap();
    bench.files[1] = bench.files[0].clone();
    assert!(!stays(&mut bench, 5), "a clone that the extent tree does not know yet");
    bench.compare(1, "the clone has the old data");
    bench.mount().sync().unwrap();
    bench.check("with a clone");

    // Alone again: only when a crash cannot bring the clone back.
    super::truncate(bench.mount(), &to, 0).unwrap();
    bench.files[1].clear();
    bench.mount().sync().unwrap();
    let place = extents(bench.mount(), &bench.inode(0));
    super::clone_range(bench.mount(), &from, 0, &to, 0, 0).unwrap();
    bench.mount().sync().unwrap();
    super::truncate(bench.mount(), &to, 0).unwrap();
    write(&mut bench, 0, 90_000, &[6; 10]);
    assert_ne!(extents(bench.mount(), &bench.inode(0)), place, "not durable yet");
    bench.mount().sync().unwrap();
    let place = extents(bench.mount(), &bench.inode(0));
    write(&mut bench, 0, 90_000, &[7; 10]);
    assert_eq!(extents(bench.mount(), &bench.inode(0)), place);
    (0..2).for_each(|file| bench.compare(file, "at the end"));
    bench.check("at the end");
    bench.judge_by_kernel();
}

#[test]
fn a_clone_within_a_file_is_not_overwritten_with_its_origin() {
    let mut bench = Bench::new(256 << 20, plain, nodatacow());
    bench.create();
    write(&mut bench, 0, 0, &[1; 40_960]);
    let inode = bench.inode(0);
    super::clone_range(bench.mount(), &inode, 0, &inode, 65_536, 40_960).unwrap();
    set_range(&mut bench.files[0], 65_536, &[1; 40_960]);
    for when in ["pending", "committed"] {
        write(&mut bench, 0, 8192, &[2; 4096]);
        write(&mut bench, 0, 65_536 + 16_384, &[3; 4096]);
        bench.mount().sync().unwrap();
        bench.compare(0, when);
    }
    bench.check("at the end");
    bench.judge_by_kernel();
}

#[test]
fn a_full_volume_takes_what_needs_no_space() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    (0..3).for_each(|_| bench.create());
    let keep = FallocateFlags::empty();
    super::fallocate(bench.mount(), &bench.inode(0), keep, 0, 1 << 20).unwrap();
    bench.files[0] = vec![0; 1 << 20];
    write(&mut bench, 1, 0, &[1; 50_000]);
    bench.mount().sync().unwrap();
    for piece_bytes in [1 << 20, 4096] {
        let piece = vec![7; piece_bytes];
        let fill = |at| super::write(bench.mount(), &bench.inode(2), at, &piece, WriteCtx::default());
        let start = bench.inode(2).attr_now().size;
        let mut at = start;
        while fill(at).is_ok() {
            at += piece_bytes as u64;
        }
        let inode = bench.inode(2);
        bench.files[2] = vec![7; inode.attr_now().size as usize];
    }
    let data = [9; 10_000];
    let refused = super::write(bench.mount(), &bench.inode(1), 100, &data, WriteCtx::default());
    assert!(matches!(refused, Err(Error::Store(StoreError::NoSpace))), "{refused:?}");
    bench.compare(1, "refused, and as before");
    for at in [0, 20_000, 300_000, (1 << 20) - 10_000] {
        write(&mut bench, 0, at, &data);
        bench.compare(0, "in place");
    }
    // Written now, it is copied on write like everything else: the space is used up.
    let again = super::write(bench.mount(), &bench.inode(0), 300_000, &data, WriteCtx::default());
    assert!(matches!(again, Err(Error::Store(StoreError::NoSpace))), "{again:?}");
    (0..2).for_each(|file| bench.compare(file, "at the end"));
    bench.check("at the end");
    bench.judge_by_kernel();
}

/// Fills a volume up to the last block.
fn fill(bench: &mut Bench, file: usize) {
    for piece_bytes in [1 << 20, 4096] {
        let piece = vec![7; piece_bytes];
        let append = |bench: &Bench| {
            let inode = bench.inode(file);
            let at = inode.attr_now().size;
            super::write(bench.mount(), &inode, at, &piece, WriteCtx::default())
        };
        while append(bench).is_ok() {}
    }
    bench.files[file] = vec![7; bench.inode(file).attr_now().size as usize];
}

/// As [`fill`], with preallocated space.
fn allocate_rest(bench: &Bench, file: usize) {
    let (rest, mut at) = (bench.inode(file), 0);
    for len in [1 << 20, 4096] {
        while super::fallocate(bench.mount(), &rest, FallocateFlags::KEEP_SIZE, at, len).is_ok() {
            at += len;
        }
    }
}

/// As on the kernel's side: also where a gap is left behind the end, in which nothing has to be
/// zeroed.
#[test]
fn a_full_volume_takes_what_was_preallocated_behind_the_end() {
    for adjust in [plain, |options: &mut btrfs_image::MkfsOptions| {
        options.features.no_holes = false
    }] {
        let mut bench = Bench::new(128 << 20, adjust, MountOptions::default());
        (0..4).for_each(|_| bench.create());
        for (file, len) in [(1, 5000), (2, 8192)] {
            write(&mut bench, file, 0, &vec![file as u8; len]);
        }
        bench.mount().sync().unwrap();
        for file in 0..3 {
            super::fallocate(bench.mount(), &bench.inode(file), FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
        }
        fill(&mut bench, 3);
        for file in 0..3 {
            write(&mut bench, file, 50_050, &[9; 10_000]);
            write(&mut bench, file, 100_000, &[10; 100]);
            bench.compare(file, "behind the end");
        }
        let behind = super::write(bench.mount(), &bench.inode(0), 2 << 20, b"nothing", WriteCtx::default());
        assert!(matches!(behind, Err(Error::Store(StoreError::NoSpace))), "{behind:?}");
        bench.judge("at the end");
    }
}

#[test]
fn a_full_volume_shares_what_it_has() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    (0..7).for_each(|_| bench.create());
    write(&mut bench, 0, 0, &[1; 40_960]);
    write(&mut bench, 1, 0, &[1; 40_960]);
    write(&mut bench, 2, 0, &[2; 500]);
    write(&mut bench, 3, 0, &[3; 5000]);
    write(&mut bench, 4, 0, &[4; 50_001]);
    bench.mount().sync().unwrap();
    allocate_rest(&bench, 6);
    bench.mount().sync().unwrap();
    let inodes: Vec<_> = (0..7).map(|file| bench.inode(file)).collect();
    let mount = bench.mount();
    let clone = |src: usize, dst: usize, at: u64| super::clone_range(mount, &inodes[src], 0, &inodes[dst], at, 0);
    for (src, dst, at, why) in [
        (0, 3, 81_920, "zeros behind the old end"),
        (2, 5, 0, "inline content is copied"),
    ] {
        let refused = clone(src, dst, at);
        assert!(
            matches!(refused, Err(Error::Store(StoreError::NoSpace))),
            "{why}: {refused:?}"
        );
    }
    clone(4, 5, 0).unwrap();
    clone(0, 5, 81_920).unwrap_err();
    clone(0, 1, 81_920).unwrap();
    let same = super::dedupe_range(mount, &inodes[0], 0, &inodes[1], 0, 40_960).unwrap();
    assert_eq!(same, cowshed_vfs::Dedupe::Same(40_960));
    let (whole, first) = (bench.files[4].clone(), bench.files[0].clone());
    bench.files[5] = whole;
    set_range(&mut bench.files[1], 81_920, &first);
    drop(inodes);
    bench.judge("at the end");
}

/// What is there needs no space, whatever the offsets are and whether the size may change.
#[test]
fn a_full_volume_allocates_what_is_allocated() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    (0..4).for_each(|_| bench.create());
    write(&mut bench, 0, 0, &[1; 40_960]);
    write(&mut bench, 1, 0, &[2; 8192]);
    write(&mut bench, 2, 0, &[3; 10_001]);
    bench.mount().sync().unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    super::fallocate(bench.mount(), &bench.inode(1), keep, 0, 65_536).unwrap();
    allocate_rest(&bench, 3);
    let any = FallocateFlags::empty();
    super::fallocate(bench.mount(), &bench.inode(0), any, 16_384, 8192).unwrap();
    super::fallocate(bench.mount(), &bench.inode(0), any, 100, 40_000).unwrap();
    super::fallocate(bench.mount(), &bench.inode(2), any, 1, 10_000).unwrap();
    super::fallocate(bench.mount(), &bench.inode(1), any, 10, 50_000).unwrap();
    bench.files[1].resize(50_010, 0);
    let more = super::fallocate(bench.mount(), &bench.inode(0), any, 0, 65_536);
    assert!(matches!(more, Err(Error::Store(StoreError::NoSpace))), "{more:?}");
    bench.judge("at the end");
}

#[test]
fn a_full_volume_overwrites_nodatacow_files() {
    let mut bench = Bench::new(128 << 20, plain, nodatacow());
    (0..2).for_each(|_| bench.create());
    write(&mut bench, 0, 0, &[1; 500_000]);
    let piece = vec![7; 1 << 20];
    let mut at = 0;
    while super::write(bench.mount(), &bench.inode(1), at, &piece, WriteCtx::default()).is_ok() {
        at += piece.len() as u64;
    }
    bench.files[1] = vec![7; bench.inode(1).attr_now().size as usize];
    bench.mount().sync().unwrap();
    for round in 2..20_u8 {
        write(&mut bench, 0, u64::from(round) * 20_001, &[round; 30_000]);
        bench.compare(0, "in place");
    }
    bench.check("at the end");
    bench.judge_by_kernel();
}

/// Gives an empty file an extent item that nothing else knows of, as a stranger's volume may have
/// it.
fn plant(mount: &Mount, inode: &Arc<Inode>, addr: LogicalAddr, len_bytes: u64, is_prealloc: bool) {
    let extent = Extent {
        start: 0,
        len_bytes,
        generation: Generation(1),
        kind: Kind::Disk(new_extent(addr, len_bytes, is_prealloc)),
    };
    let mut change = Change::default();
    change.plan.edits.insert(0, Some(extent));
    let reservation = mount.reserve(Budget::WRITE_EXTENT).unwrap();
    items::apply(mount, inode, change, reservation, |attr, _| {
        (attr.attr.size, attr.disk_size, attr.attr.nbytes) = (len_bytes, len_bytes, len_bytes);
    });
}

/// An item may say that its data lies where a tree block is, or in space that is free and will be
/// allocated, or on a part of another file's extent: the extent tree knows of no such extent.
#[test]
fn nothing_is_written_in_place_where_the_extent_tree_knows_no_extent() {
    const LEN: u64 = 4 * BLOCK;
    for is_prealloc in [false, true] {
        let mut bench = Bench::new(128 << 20, plain, nodatacow());
        (0..5).for_each(|_| bench.create());
        write(&mut bench, 0, 0, &[1; 8 * BLOCK as usize]);
        bench.mount().sync().unwrap();
        let mount = bench.mount();
        let block = mount.store().forest().require(TreeId::CSUM).unwrap().root().addr;
        let mut space = mount.store().space().reserve_data(LEN).unwrap();
        let (free, len_bytes) = mount.store().space().alloc_data(&mut space, LEN).unwrap();
        mount.store().space().unalloc_data(free, len_bytes);
        drop(space);
        let others = extents(mount, &bench.inode(0))[0].1.addr;
        let places = [(1, block), (2, free), (3, others)];
        for (file, addr) in places {
            plant(mount, &bench.inode(file), addr, LEN, is_prealloc);
        }
        bench.remount();
        for (file, addr) in places {
            let (mount, inode) = (bench.mount(), bench.inode(file));
            super::write(mount, &inode, 0, &[9; BLOCK as usize], WriteCtx::default()).unwrap();
            let found = extents(mount, &inode);
            assert_ne!(found[0].1.addr, addr, "file {file}, preallocated: {is_prealloc}");
        }
        allocate_rest(&bench, 4);
        for (file, _) in places {
            let (mount, inode) = (bench.mount(), bench.inode(file));
            let refused = super::write(mount, &inode, 2 * BLOCK, &[9; BLOCK as usize], WriteCtx::default());
            assert!(
                matches!(refused, Err(Error::Store(StoreError::NoSpace))),
                "file {file}: {refused:?}"
            );
        }
        bench.mount().sync().unwrap();
        bench.remount();
        bench.compare(0, "another file's data");
        let sums = bench.mount().store().forest().require(TreeId::CSUM).unwrap();
        assert_eq!(sums.root().addr, block);
        assert!(sums.get(&Key::MIN).unwrap().is_none(), "the block can be read");
    }
}

/// Whatever a clone shows after a crash is what its origin held when it was made.
#[test]
fn no_crash_shows_a_clone_what_its_origin_was_overwritten_with() {
    const BYTES: usize = 8 * BLOCK as usize;
    let mut bench = Bench::new(128 << 20, plain, nodatacow());
    (0..2).for_each(|_| bench.create());
    write(&mut bench, 0, 0, &[1; BYTES]);
    bench.mount().close().unwrap();
    let log = Log::new();
    let fs = mount_device(Arc::new(log.record(Arc::new(bench.device.snapshot()))), &nodatacow());
    let mount = fs.mount();
    let (origin, clone) = (lookup(&fs, "file0"), lookup(&fs, "file1"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in (2..=250).cycle() {
                if stop.load(Ordering::Acquire) {
                    return;
                }
                super::write(mount, &origin, 0, &[byte; BYTES], WriteCtx::default()).unwrap();
                super::write_back(mount, &origin).unwrap();
            }
        });
        let _stop = SetOnDrop(&stop);
        for _ in 0..12 {
            super::clone_range(mount, &origin, 0, &clone, 0, 0).unwrap();
            mount.commit().unwrap();
            super::truncate(mount, &clone, 0).unwrap();
            mount.commit().unwrap();
        }
    });
    let events = log.take();
    mount.store().txn().abort("a crash");
    let images = Options {
        exhaustive_images_max: 4,
        prefix_images_max: 3,
        sampled_images: 3,
        torn_images: 0,
        tear_bytes: 4096,
        ..Options::default()
    };
    let (mut number, mut with_clone) = (0, 0);
    for image in CrashImages::new(&[bench.device.snapshot()], &events, images) {
        number += 1;
        let when = image.to_string();
        let device: Arc<dyn BlockDevice> = Arc::new(image.devices.into_iter().next().unwrap());
        let fs = mount_device(device, &nodatacow());
        let seen = content(&fs, "file1");
        assert!(
            seen.iter().all(|b| *b == seen[0]),
            "{when}: the clone has parts of two versions"
        );
        with_clone += usize::from(!seen.is_empty());
        fs.mount().store().txn().abort("seen");
    }
    assert!(with_clone > 10, "{with_clone} images of {number} have a clone");
}

/// The kernel makes files, some of them with snapshots and clones, and reads what we wrote over
/// them.
#[test]
fn snapshots_of_the_kernel_keep_what_we_overwrite() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let old: Vec<u8> = (0..300_000_u32).map(|i| (i / 7) as u8).collect();
    let fill = |dir: &Path| {
        run("chattr", &["+C", "."], dir);
        std::fs::create_dir(dir.join("inherits"))?;
        for name in ["shared", "cloned", "inherits/other"] {
            std::fs::write(dir.join(name), &old)?;
        }
        run("sync", &["-f", "shared"], dir);
        run("btrfs", &["subvolume", "snapshot", ".", "snap"], dir);
        for name in ["alone", "origin"] {
            std::fs::write(dir.join(name), &old)?;
        }
        run("cp", &["--reflink=always", "origin", "clone"], dir);
        run("fallocate", &["-l", "300000", "prealloc"], dir);
        Ok(())
    };
    volume.with_mount(fill).unwrap();
    let names = ["shared", "cloned", "alone", "origin", "prealloc"];
    let device = FileDevice::open(volume.image(), OpenMode::ReadWrite).unwrap();
    let fs = mount_device(Arc::new(device), &MountOptions::default());
    let mut new = old.clone();
    let mut sparse = vec![0; 300_000];
    for round in 1..4_u8 {
        for name in names {
            let inode = lookup(&fs, name);
            let before = extents(fs.mount(), &inode);
            let at = 10_000 * u64::from(round);
            super::write(fs.mount(), &inode, at, &[round; 50_000], WriteCtx::default()).unwrap();
            let is_in_place = before == extents(fs.mount(), &inode);
            let expected = name == "alone";
            assert!(
                is_in_place == expected || round > 1,
                "{name}, round {round}: in place is {is_in_place}"
            );
        }
        set_range(&mut new, 10_000 * u64::from(round), &[round; 50_000]);
        set_range(&mut sparse, 10_000 * u64::from(round), &[round; 50_000]);
        fs.mount().sync().unwrap();
    }
    assert!(content(&fs, "shared") == new);
    fs.destroy();
    drop(fs);
    volume.assert_clean();
    let read = |dir: &Path| {
        for name in ["shared", "cloned", "alone", "origin"] {
            assert!(std::fs::read(dir.join(name))? == new, "the kernel reads {name}");
        }
        assert!(
            std::fs::read(dir.join("prealloc"))? == sparse,
            "the kernel reads what was preallocated"
        );
        for name in [
            "snap/shared",
            "snap/cloned",
            "snap/inherits/other",
            "inherits/other",
            "clone",
        ] {
            assert!(std::fs::read(dir.join(name))? == old, "the kernel reads {name}");
        }
        Ok(())
    };
    volume.with_mount(read).unwrap();
}
