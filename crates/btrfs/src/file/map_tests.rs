//! Maps of files (holes, extents) and what remaps them, at sizes and in states that the random runs
//! do not reach.

use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeId};
use btrfs_image::{MkfsOptions, mkfs};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_harness::{KernelVolume, need};
use cowshed_vfs::{
    Context, Dedupe, Defrag, Error as Errno, Exchange, FallocateFlags, FileSystem, Lookup, MapKind, NodeId, OpenFlags,
    OpenRequest, SeekKind,
};

use super::map::map;
use super::tests::mount_device;
use super::{WriteCtx, freshness_of};
use crate::block::BLOCK;
use crate::fs::{Fs, MountOptions};
use crate::object::Inode;
use crate::testing::Dice;

fn new_volume(size_bytes: u64) -> (Arc<MemDevice>, Fs) {
    new_volume_with(size_bytes, false)
}

fn new_volume_with(size_bytes: u64, explicit_holes: bool) -> (Arc<MemDevice>, Fs) {
    let device = Arc::new(MemDevice::new("memory", size_bytes));
    let mut options = MkfsOptions::new([0x5a; 16]);
    if explicit_holes {
        options.features.no_holes = false;
    }
    mkfs(&[device.clone() as Arc<dyn BlockDevice>], &options).unwrap();
    let fs = mount_device(device.clone(), &MountOptions::default());
    (device, fs)
}

fn create(fs: &Fs, name: &str) -> Arc<Inode> {
    let open = OpenRequest {
        flags: OpenFlags::WRITE,
        kill_suidgid: false,
    };
    let (entry, _) = fs
        .create(&Context::root(), NodeId::ROOT, name.as_bytes(), 0o644, &open)
        .unwrap();
    fs.inode(entry.node).unwrap()
}

fn write(fs: &Fs, inode: &Arc<Inode>, at: u64, data: &[u8]) {
    let written = super::write(fs.mount(), inode, at, data, WriteCtx::default()).unwrap();
    assert_eq!(written, data.len());
}

/// All changes from data to holes and back, found by seeking.
fn borders(inode: &Arc<Inode>) -> Vec<u64> {
    let (mut found, mut at, mut what) = (Vec::new(), 0, SeekKind::Data);
    while let Ok(next) = super::seek(inode, at, what) {
        found.push(next);
        if next >= inode.attr_now().size {
            break;
        }
        at = next;
        what = match what {
            SeekKind::Data => SeekKind::Hole,
            SeekKind::Hole => SeekKind::Data,
        };
    }
    found
}

/// The same of a list that says for each block whether it has data; the file ends with data.
fn borders_of(blocks: &[bool]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut before = false;
    for (index, is_data) in blocks.iter().copied().chain([false]).enumerate() {
        if is_data != before {
            found.push(index as u64 * BLOCK);
        }
        before = is_data;
    }
    found
}

#[test]
fn seeking_goes_over_many_leaves_and_sees_what_is_pending() {
    const BLOCKS: usize = 6000;
    let (device, fs) = new_volume(256 << 20);
    let inode = create(&fs, "f");
    let mut model = vec![false; BLOCKS];
    for block in (1..BLOCKS).step_by(2) {
        write(&fs, &inode, block as u64 * BLOCK, &[7; BLOCK as usize]);
        model[block] = true;
    }
    assert_eq!(borders(&inode), borders_of(&model), "all in memory");
    fs.mount().sync().unwrap();
    assert_eq!(borders(&inode), borders_of(&model), "all in leaves");
    let mut dice = Dice::new(3);
    for round in 0..40 {
        for _ in 0..dice.below(20) {
            let block = dice.below(BLOCKS as u64 - 1);
            let is_write = dice.below(2) == 0;
            if is_write {
                write(&fs, &inode, block * BLOCK, &[8; BLOCK as usize]);
            } else {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                super::fallocate(fs.mount(), &inode, mode, block * BLOCK, BLOCK).unwrap();
            }
            model[block as usize] = is_write;
        }
        match round % 4 {
            0 => super::write_back_all(fs.mount()).unwrap(),
            1 => fs.mount().store().nodes().drop_clean(),
            2 => fs.mount().sync().unwrap(),
            _ => {}
        }
        assert_eq!(borders(&inode), borders_of(&model), "round {round}");
    }
    fs.mount().close().unwrap();
    drop(device);
}

fn size(inode: &Inode) -> u64 {
    inode.attr_now().size
}

fn content(fs: &Fs, inode: &Arc<Inode>) -> Vec<u8> {
    let mut all = vec![0xee; size(inode) as usize];
    assert_eq!(super::read(fs.mount(), inode, 0, &mut all).unwrap(), all.len());
    all
}

/// The checker finds nothing, the kernel neither, and it reads what we read.
fn judge(device: &Arc<MemDevice>, fs: Fs, names: &[&str]) {
    let contents: Vec<_> = names.iter().map(|name| content(&fs, &open(&fs, name))).collect();
    fs.mount().close().unwrap();
    drop(fs);
    let options = btrfs_check::CheckOptions {
        data_csums: true,
        ..Default::default()
    };
    let report = btrfs_check::check(&[device.clone() as Arc<dyn BlockDevice>], &options);
    assert!(report.is_clean(), "{report}");
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::from_memory(&[device.snapshot()]).unwrap();
    volume.assert_clean();
    let read = |dir: &std::path::Path| {
        for (name, content) in names.iter().zip(&contents) {
            assert!(
                std::fs::read(dir.join(name))? == *content,
                "the kernel reads {name} otherwise"
            );
        }
        Ok(())
    };
    volume.with_mount(read).unwrap();
}

fn open(fs: &Fs, name: &str) -> Arc<Inode> {
    match fs.lookup(&Context::root(), NodeId::ROOT, name.as_bytes()).unwrap() {
        Lookup::Found(entry) => fs.inode(entry.node).unwrap(),
        other => panic!("{name}: {other:?}"),
    }
}

fn kinds(fs: &Fs, inode: &Arc<Inode>) -> Vec<(MapKind, u64, u64, bool)> {
    let mut found = Vec::new();
    map(fs.mount(), inode, 0..u64::MAX, true, &mut |e| {
        found.push((e.kind, e.start, e.len_bytes, e.is_shared));
        ControlFlow::Continue(())
    })
    .unwrap();
    found
}

fn errno<T: std::fmt::Debug>(result: crate::error::Result<T>) -> Errno {
    match result {
        Err(crate::Error::Outcome(errno)) => errno,
        other => panic!("{other:?}"),
    }
}

const MIB: u64 = 1 << 20;

#[test]
fn a_clone_of_preallocated_space_is_preallocated_and_the_files_stay_apart() {
    let (device, fs) = new_volume(256 << 20);
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    let mount = fs.mount();
    super::fallocate(mount, &a, FallocateFlags::empty(), 0, MIB).unwrap();
    write(&fs, &a, 0, &[1; 8192]);
    super::clone_range(mount, &a, 0, &b, 0, 0).unwrap();
    let expected = [
        (MapKind::Data, 0, 8192, true),
        (MapKind::Unwritten, 8192, MIB - 8192, true),
    ];
    assert_eq!(kinds(&fs, &b), expected);
    assert_eq!(kinds(&fs, &a), expected);
    // In the transaction of the clone, and in a later one.
    for round in 0..3_u8 {
        let at = 16384 + u64::from(round) * 8192;
        write(&fs, &b, at, &[2 + round; 4096]);
        super::write_back_all(mount).unwrap();
        write(&fs, &a, at, &[12 + round; 4096]);
        super::write_back_all(mount).unwrap();
        mount.store().nodes().drop_clean();
        assert_eq!(content(&fs, &b)[at as usize..][..4096], [2 + round; 4096]);
        assert_eq!(content(&fs, &a)[at as usize..][..4096], [12 + round; 4096]);
        mount.sync().unwrap();
    }
    // Within one file.
    super::clone_range(mount, &a, 512 << 10, &a, 2 * MIB, 64 << 10).unwrap();
    write(&fs, &a, 512 << 10, &[7; 4096]);
    super::write_back_all(mount).unwrap();
    assert_eq!(content(&fs, &a)[2 * MIB as usize..][..4096], [0; 4096]);
    judge(&device, fs, &["a", "b"]);
}

#[test]
fn dedupe_shares_what_is_the_same_and_nothing_else() {
    let (device, fs) = new_volume(256 << 20);
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    let mount = fs.mount();
    write(&fs, &a, 0, &vec![5; 100_000]);
    write(&fs, &b, 0, &vec![5; 100_000]);
    let times = b.attr_now().mtime;
    let dedupe = |at, to, len| super::dedupe_range(mount, &a, at, &b, to, len);
    assert_eq!(dedupe(0, 0, 100_000).unwrap(), Dedupe::Same(100_000));
    assert_eq!(b.attr_now().mtime, times, "the content has not changed");
    assert!(kinds(&fs, &b).iter().all(|(_, _, _, is_shared)| *is_shared));
    assert_eq!(dedupe(0, 0, 10_000).unwrap(), Dedupe::Same(8192), "whole blocks");
    assert_eq!(dedupe(0, 0, 0).unwrap(), Dedupe::Same(0));
    assert_eq!(errno(dedupe(0, 0, 100_001)), Errno::Invalid);
    assert_eq!(errno(dedupe(1, 0, 4096)), Errno::Invalid);
    assert_eq!(errno(super::dedupe_range(mount, &a, 0, &a, 4096, 8192)), Errno::Invalid);
    write(&fs, &b, 50_000, &[6]);
    assert_eq!(dedupe(0, 0, 100_000).unwrap(), Dedupe::Differs);
    assert_eq!(content(&fs, &b)[50_000], 6);
    // All of it or nothing, as one FIDEDUPERANGE of as much on the kernel's btrfs.
    let large = vec![9; 40 << 20];
    let is_shared = || {
        kinds(&fs, &b)
            .iter()
            .map(|(.., is_shared)| *is_shared)
            .collect::<Vec<_>>()
    };
    write(&fs, &a, 0, &large);
    write(&fs, &b, 0, &large);
    write(&fs, &b, 30 << 20, &[8]);
    mount.sync().unwrap();
    assert_eq!(dedupe(0, 0, large.len() as u64).unwrap(), Dedupe::Differs);
    assert!(!is_shared().contains(&true), "nothing is shared");
    assert_eq!(
        errno(dedupe(0, 4096, large.len() as u64)),
        Errno::Invalid,
        "beyond the end"
    );
    write(&fs, &b, 30 << 20, &[9]);
    assert_eq!(
        dedupe(0, 0, large.len() as u64).unwrap(),
        Dedupe::Same(large.len() as u64)
    );
    assert!(!is_shared().contains(&false), "all is shared");
    judge(&device, fs, &["a", "b"]);
}

#[test]
fn clones_that_cannot_be_are_refused() {
    let (_device, fs) = new_volume(256 << 20);
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    let mount = fs.mount();
    write(&fs, &a, 0, &[1; 10_000]);
    write(&fs, &b, 0, &[2; 20_000]);
    let clone = |src: &Arc<Inode>, at, dst: &Arc<Inode>, to, len| super::clone_range(mount, src, at, dst, to, len);
    for (at, to, len) in [
        (1, 0, 4096),
        (0, 1, 4096),
        (0, 0, 100),
        (0, 0, 20_480),
        (12_288, 0, 0),
        (0, 0, 0),
    ] {
        assert_eq!(errno(clone(&a, at, &b, to, len)), Errno::Invalid, "{at} {to} {len}");
    }
    assert_eq!(errno(clone(&b, 0, &b, 4096, 8192)), Errno::Invalid);
    assert_eq!(errno(clone(&a, 0, &b, i64::MAX as u64 & !4095, 8192)), Errno::Invalid);
    b.attr.lock().attr.flags |= crate::object::flags::NODATASUM;
    assert_eq!(errno(clone(&a, 0, &b, 0, 4096)), Errno::Invalid);
    let plain = Exchange {
        a_offset: 0,
        b_offset: 0,
        len_bytes: 4096,
        to_eof: false,
        only_written: false,
        fresh_b: None,
        dry_run: false,
    };
    assert_eq!(errno(super::exchange_range(mount, &a, &b, &plain)), Errno::Invalid);
    b.attr.lock().attr.flags &= !crate::object::flags::NODATASUM;
    assert_eq!(content(&fs, &b), [2; 20_000], "nothing has changed");
    let fresh = freshness_of(&b);
    let exchange = |what: Exchange| super::exchange_range(mount, &a, &b, &what);
    exchange(Exchange {
        fresh_b: Some(fresh),
        dry_run: true,
        ..plain
    })
    .unwrap();
    assert_eq!(content(&fs, &b), [2; 20_000], "a dry run");
    write(&fs, &b, 0, &[3]);
    assert_eq!(
        errno(exchange(Exchange {
            fresh_b: Some(fresh),
            ..plain
        })),
        Errno::Busy
    );
    for bad in [
        Exchange { a_offset: 1, ..plain },
        Exchange {
            len_bytes: 100,
            ..plain
        },
        Exchange {
            len_bytes: 12_288,
            ..plain
        },
        Exchange {
            len_bytes: u64::MAX,
            ..plain
        },
    ] {
        assert_eq!(errno(exchange(bad)), Errno::Invalid, "{bad:?}");
    }
    assert_eq!(errno(super::exchange_range(mount, &b, &b, &plain)), Errno::Invalid);
}

#[test]
fn exchanges_match_a_model() {
    for explicit_holes in [false, true] {
        let (device, fs) = new_volume_with(256 << 20, explicit_holes);
        let mount = fs.mount();
        let names = ["a", "b", "c"];
        let inodes = names.map(|name| create(&fs, name));
        let mut models: [Vec<u8>; 3] = Default::default();
        let mut dice = Dice::new(11);
        let mut kept = 0;
        for step in 0..1000 {
            let (i, j) = (dice.below(3) as usize, dice.below(3) as usize);
            if dice.below(2) == 0 {
                // Small files are inline data.
                let at = if dice.below(3) == 0 { 0 } else { dice.below(60_000) };
                let data = vec![1 + dice.below(255) as u8; 1 + dice.below(9000) as usize];
                write(&fs, &inodes[i], at, &data);
                let end = at as usize + data.len();
                models[i].resize(models[i].len().max(end), 0);
                models[i][at as usize..end].copy_from_slice(&data);
            } else if dice.below(4) == 0 {
                let new_size = dice.below(3000);
                super::truncate(mount, &inodes[i], new_size).unwrap();
                models[i].resize(new_size as usize, 0);
            } else if dice.below(4) == 0 {
                let (at, len) = (dice.below(8) * BLOCK, (1 + dice.below(8)) * BLOCK);
                super::fallocate(mount, &inodes[i], FallocateFlags::KEEP_SIZE, at, len).unwrap();
            } else {
                let what = Exchange {
                    a_offset: dice.below(8) * BLOCK,
                    b_offset: dice.below(8) * BLOCK,
                    len_bytes: dice.below(6) * BLOCK,
                    to_eof: dice.below(2) == 0,
                    only_written: dice.below(2) == 0,
                    fresh_b: None,
                    dry_run: false,
                };
                let written = data_blocks(&fs, &inodes[i]);
                kept += u32::from(what.only_written && written.contains(&false));
                let done = super::exchange_range(mount, &inodes[i], &inodes[j], &what);
                exchange_model(&mut models, i, j, &what, &written, done.is_ok());
            }
            match dice.below(12) {
                0 => mount.sync().unwrap(),
                1 => super::write_back_all(mount).unwrap(),
                2 => mount.store().nodes().drop_clean(),
                _ => {}
            }
            for k in [i, j] {
                assert!(content(&fs, &inodes[k]) == models[k], "file {k} after step {step}");
            }
        }
        assert!(kept > 50, "{kept} exchanges of files that have holes");
        judge(&device, fs, &names);
    }
}

/// Of each block of a file: is data there?
fn data_blocks(fs: &Fs, inode: &Arc<Inode>) -> Vec<bool> {
    let mut blocks = vec![false; inode.attr_now().size.div_ceil(BLOCK) as usize];
    for (kind, start, len_bytes, _) in kinds(fs, inode) {
        if kind != MapKind::Unwritten {
            let found = (start / BLOCK) as usize..(start + len_bytes).div_ceil(BLOCK) as usize;
            let end = found.end.min(blocks.len());
            blocks[found.start.min(end)..end].fill(true);
        }
    }
    blocks
}

fn exchange_model(models: &mut [Vec<u8>; 3], i: usize, j: usize, what: &Exchange, written: &[bool], is_done: bool) {
    let (a_at, b_at) = (what.a_offset as usize, what.b_offset as usize);
    let (a_len, b_len) = (models[i].len(), models[j].len());
    let len = what.len_bytes as usize;
    let fits = if what.to_eof {
        a_at <= a_len && b_at <= b_len && i != j
    } else {
        a_at + len <= a_len && b_at + len <= b_len && (i != j || a_at + len <= b_at || b_at + len <= a_at)
    };
    assert!(
        is_done == fits || (i == j && len == 0),
        "{what:?} of {i} ({a_len}) and {j} ({b_len}): {is_done}"
    );
    if !is_done {
        return;
    }
    if what.only_written {
        let block = BLOCK as usize;
        let end = if what.to_eof { usize::MAX } else { a_at + len };
        let there = (a_at..end.min(a_len)).step_by(block).filter(|at| written[at / block]);
        for at in there.collect::<Vec<_>>() {
            for byte in at..(at + block).min(end) {
                let other = byte - a_at + b_at;
                let [a, b] = [(i, byte), (j, other)].map(|(file, at)| models[file].get(at).copied().unwrap_or(0));
                for (file, at, value) in [(i, byte, b), (j, other, a)] {
                    let reaches = models[file].len().max(at + 1);
                    models[file].resize(reaches, 0);
                    models[file][at] = value;
                }
            }
        }
        if what.to_eof {
            models[i].resize(a_at + b_len - b_at, 0);
            models[j].resize(b_at + a_len - a_at, 0);
        }
    } else if what.to_eof {
        let (a_tail, b_tail) = (models[i].split_off(a_at), models[j].split_off(b_at));
        models[i].extend(b_tail);
        models[j].extend(a_tail);
    } else {
        let (a, b) = (
            models[i][a_at..a_at + len].to_vec(),
            models[j][b_at..b_at + len].to_vec(),
        );
        models[i][a_at..a_at + len].copy_from_slice(&b);
        models[j][b_at..b_at + len].copy_from_slice(&a);
    }
}

#[test]
fn defragmenting_a_range_that_ends_within_a_block_keeps_the_block() {
    let (device, fs) = new_volume(256 << 20);
    let f = create(&fs, "f");
    for block in [0, 2, 4, 6, 1, 3, 5, 7] {
        write(&fs, &f, block * BLOCK, &[1 + block as u8; BLOCK as usize]);
        super::write_back_all(fs.mount()).unwrap();
    }
    let before = content(&fs, &f);
    let what = Defrag {
        target_bytes: MIB,
        compress: None,
    };
    let rewritten = super::defragment(fs.mount(), &f, 100..5 * BLOCK + 100, &what).unwrap();
    assert_eq!(rewritten, 6 * BLOCK);
    assert!(content(&fs, &f) == before);
    assert_eq!(
        super::defragment(fs.mount(), &f, 0..u64::MAX, &what).unwrap(),
        8 * BLOCK
    );
    assert_eq!(kinds(&fs, &f), [(MapKind::Data, 0, 8 * BLOCK, false)]);
    judge(&device, fs, &["f"]);
}

/// As the ioctl asks: a part at a time, from where the last answer ended.
#[test]
fn a_map_in_pages_gets_to_the_end_of_a_preallocated_extent_that_is_dirty_in_places() {
    let (_device, fs) = new_volume(256 << 20);
    let a = create(&fs, "a");
    super::fallocate(fs.mount(), &a, FallocateFlags::empty(), 0, MIB).unwrap();
    for at in (4096..MIB).step_by(5 * 4096) {
        write(&fs, &a, at, &[1; 8192]);
    }
    let all = kinds(&fs, &a);
    assert!(all.len() > 90, "{all:?}");
    let paged = in_pages(&fs, &a, 7, true, |_| ());
    assert_eq!(paged, all);
}

/// However many extents a hole takes the place of: a step has metadata for some of them.
#[test]
fn a_hole_that_is_cloned_over_many_extents_is_shared_in_steps() {
    let (device, fs) = new_volume(256 << 20);
    let (a, b) = (create(&fs, "a"), create(&fs, "b"));
    for at in (0..1000).map(|n| n * 8192) {
        write(&fs, &b, at, &[1; 4096]);
    }
    super::write_back(fs.mount(), &b).unwrap();
    super::truncate(fs.mount(), &a, 1000 * 8192).unwrap();
    write(&fs, &a, 500 * 8192, &[3; 4096]);
    let before = b.attr.lock().attr.sequence;
    super::clone_range(fs.mount(), &a, 0, &b, 0, 0).unwrap();
    let steps = b.attr.lock().attr.sequence - before;
    assert!((8..20).contains(&steps), "{steps} steps");
    assert!(content(&fs, &a) == content(&fs, &b));
    judge(&device, fs, &["a", "b"]);
}

/// Each page looks at some of what is dirty, not at all of it; what lands between two pages is in
/// the next one.
#[test]
fn a_map_in_pages_of_very_many_dirty_places_takes_about_as_long_as_a_whole_one() {
    const PLACES: u64 = 30_000;
    const PAGE: usize = 288;
    let (_device, fs) = new_volume(1 << 30);
    let (sparse, preallocated) = (create(&fs, "sparse"), create(&fs, "preallocated"));
    super::fallocate(
        fs.mount(),
        &preallocated,
        FallocateFlags::empty(),
        0,
        PLACES * 3 * BLOCK,
    )
    .unwrap();
    super::truncate(fs.mount(), &sparse, PLACES * 3 * BLOCK).unwrap();
    for inode in [&sparse, &preallocated] {
        (0..PLACES).for_each(|n| write(&fs, inode, (3 * n + 1) * BLOCK, &[1; BLOCK as usize]));
        let begin = std::time::Instant::now();
        let all = kinds(&fs, inode);
        let whole = begin.elapsed();
        let begin = std::time::Instant::now();
        assert!(in_pages(&fs, inode, PAGE, false, |_| ()) == all);
        let paged = begin.elapsed();
        assert!(paged < whole * 40, "whole {whole:?}, in pages {paged:?}");
        // The ranges are the same when they are on disk; of what they are each page says what it
        // sees.
        let ranges = |all: Vec<(MapKind, u64, u64, bool)>| all.into_iter().map(|e| (e.1, e.2)).collect::<Vec<_>>();
        let landing = in_pages(&fs, inode, PAGE, false, |pages| {
            if pages == 20 {
                super::write_back(fs.mount(), inode).unwrap();
            }
        });
        assert!(ranges(landing) == ranges(all));
    }
    fs.mount().close().unwrap();
}

/// A map that is asked for in pages, each from where the last one was broken off; pages must get
/// on.
fn in_pages(
    fs: &Fs,
    inode: &Arc<Inode>,
    page: usize,
    wants_shared: bool,
    mut between: impl FnMut(u32),
) -> Vec<(MapKind, u64, u64, bool)> {
    let (mut paged, mut from, mut pages) = (Vec::new(), Some(0), 0);
    while let Some(start) = from.take() {
        let mut count = 0;
        map(fs.mount(), inode, start..u64::MAX, wants_shared, &mut |e| {
            if count == page {
                assert!(e.start > start, "the same again from {start} on");
                from = Some(e.start);
                return ControlFlow::Break(());
            }
            count += 1;
            paged.push((e.kind, e.start, e.len_bytes, e.is_shared));
            ControlFlow::Continue(())
        })
        .unwrap();
        pages += 1;
        between(pages);
    }
    paged
}

/// Behind the end nothing is to be zeroed: what a hole covers in part stays allocated.
#[test]
fn a_hole_behind_the_end_leaves_blocks_that_it_covers_in_part() {
    let (device, fs) = new_volume(256 << 20);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // The kernel's for the first; in the block of the end it writes zeros instead.
    for (name, size, blocks) in [("a", 0, 14..24), ("b", 58_000, 15..24)] {
        let file = create(&fs, name);
        super::truncate(fs.mount(), &file, size).unwrap();
        super::fallocate(fs.mount(), &file, FallocateFlags::KEEP_SIZE, 8 * BLOCK, 16 * BLOCK).unwrap();
        super::fallocate(fs.mount(), &file, punch, 8 * BLOCK, 26_137).unwrap();
        let found: Vec<_> = kinds(&fs, &file)
            .iter()
            .map(|(_, start, len, _)| start / BLOCK..(start + len) / BLOCK)
            .collect();
        assert_eq!(found, [blocks], "{name}");
    }
    judge(&device, fs, &["a", "b"]);
}

/// What was written and is punched before the commit: references that cancel never reach the extent
/// tree.
#[test]
fn what_comes_and_goes_in_one_transaction_never_reaches_the_extent_tree() {
    let (device, fs) = new_volume(256 << 20);
    let a = create(&fs, "a");
    let mount = fs.mount();
    mount.sync().unwrap();
    let place = |at: u64| {
        let mut found = None;
        map(mount, &a, at..at + 1, false, &mut |e| {
            found = Some((LogicalAddr(e.disk_addr), e.disk_bytes));
            ControlFlow::Continue(())
        })
        .unwrap();
        found.expect("an extent")
    };
    let item = |(addr, len): (LogicalAddr, u64)| {
        let key = Key::new(ObjectId(addr.get()), KeyType::EXTENT_ITEM, len);
        let extents = mount.store().forest().require(TreeId::EXTENT).unwrap();
        extents.get(&key).unwrap().map(|item| item.to_vec())
    };
    // One that goes, and one that stays: with what it is looked for, it is found.
    write(&fs, &a, 0, &vec![1; 1 << 20]);
    super::write_back(mount, &a).unwrap();
    let gone = place(0);
    write(&fs, &a, 4 << 20, &[2; 8192]);
    super::write_back(mount, &a).unwrap();
    let stays = place(4 << 20);
    assert_eq!(mount.store().txn().pending_references(gone.0).len(), 1);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    super::fallocate(mount, &a, punch, 0, 2 << 20).unwrap();
    assert_eq!(mount.store().txn().pending_references(gone.0), [], "it nets to nothing");
    assert_eq!(mount.store().txn().pending_references(stays.0).len(), 1);
    mount.commit().unwrap();
    assert_eq!((item(gone), item(stays).is_some()), (None, true));
    // An extent of before is referred to once more and once less.
    let clone = |to: u64| super::clone_range(mount, &a, 4 << 20, &a, to, 8192).unwrap();
    let before = item(stays);
    clone(0);
    assert_eq!(mount.store().txn().pending_references(stays.0).len(), 1);
    super::fallocate(mount, &a, punch, 0, 8192).unwrap();
    assert_eq!(
        mount.store().txn().pending_references(stays.0),
        [],
        "one came, one went"
    );
    mount.commit().unwrap();
    assert_eq!(item(stays), before);
    judge(&device, fs, &["a"]);
}
