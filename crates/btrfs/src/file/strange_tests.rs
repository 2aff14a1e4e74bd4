//! Files as a crash, a stranger's tool or the kernel left them.

use btrfs_image::MkfsOptions;
use cowshed_vfs::{Context, Exchange, FallocateFlags, FileSystem, Lookup, NodeId, SetAttr};

use super::tests::{Bench, plain, set_range};
use super::{Group, WriteCtx};
use crate::block::BLOCK;
use crate::compression::compress::CompressPolicy;
use crate::error::{Error, StoreError};
use crate::fs::MountOptions;
use btrfs_store::space::{Budget, Purpose};

/// A crash leaves data behind the end: blocks reach the disk in any order, and the size in the item
/// stops at the first one that is missing. A file that grows must not show them.
#[test]
fn what_a_crash_left_behind_the_end_does_not_come_back() {
    const END: usize = 5000;
    for adjust in [plain, |options: &mut MkfsOptions| options.features.no_holes = false] {
        let mut bench = Bench::new(512 << 20, adjust, MountOptions::default());
        for file in 0..6 {
            bench.create();
            let (mount, inode) = (bench.mount(), bench.inode(file));
            super::write(mount, &inode, 0, &[7; 40_000], WriteCtx::default()).unwrap();
            super::write_back(mount, &inode).unwrap();
            let reservation = mount.reserve(Budget::TRUNCATE).unwrap();
            let _flush = inode.data.flush.lock();
            super::items::apply(
                mount,
                &inode,
                super::items::Change::default(),
                reservation,
                |attr, _| {
                    attr.attr.size = END as u64;
                    attr.disk_size = END as u64;
                },
            );
            bench.files[file] = vec![7; END];
        }
        bench.remount();
        let (mount, inodes) = (bench.mount(), (0..6).map(|n| bench.inode(n)).collect::<Vec<_>>());
        let mode = FallocateFlags::empty();
        super::truncate(mount, &inodes[0], 30_000).unwrap();
        super::write(mount, &inodes[1], 25_000, b"far away", WriteCtx::default()).unwrap();
        super::fallocate(mount, &inodes[2], mode, 20_000, 12_000).unwrap();
        super::clone_range(mount, &inodes[0], 0, &inodes[3], 24_576, 4096).unwrap();
        // Next to the end, which grows over nothing, and then farther.
        super::write(mount, &inodes[4], END as u64, &[8; 100], WriteCtx::default()).unwrap();
        super::truncate(mount, &inodes[4], 9000).unwrap();
        let mut group = Group::new(mount, crate::reclaim::close);
        group.write(mount, &inodes[5], 25_000, b"far away").unwrap();
        group.apply(mount).unwrap();
        let sizes = [30_000, 25_008, 32_000, 28_672, 9000, 25_008];
        for (file, size) in sizes.into_iter().enumerate() {
            bench.files[file].resize(size, 0);
        }
        set_range(&mut bench.files[1], 25_000, b"far away");
        set_range(&mut bench.files[5], 25_000, b"far away");
        set_range(&mut bench.files[3], 24_576, &[7; 4096]);
        set_range(&mut bench.files[4], END as u64, &[8; 100]);
        bench.judge("after files grew over what was left");
    }
}

/// Old tools wrote files of more than a block into their items. Such a file can be read and
/// deleted; what would change part of it is refused, and harms nothing else.
#[test]
fn inline_data_longer_than_a_block_is_not_taken_apart() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    (0..2).for_each(|_| bench.create());
    let inode = bench.inode(0);
    let content: Vec<u8> = (0..8000_u32).map(|i| (i / 40) as u8).collect();
    let mut batch = btrfs_store::txn::Batch::new();
    let item = crate::extent::encode_inline(&content, 8000, 0, btrfs_format::Generation(1));
    batch.put(&inode.tree, crate::extent::extent_key(inode.ino, 0), item);
    bench.mount().store().txn().join().apply_unreserved(batch);
    {
        let mut attr = inode.attr.lock();
        (attr.attr.size, attr.disk_size, attr.attr.nbytes) = (8000, 8000, 8000);
    }
    bench.files[0] = content;
    bench.compare(0, "as it was found");
    let mount = bench.mount();
    let is_refused = |result: crate::Result<()>, what: &str| {
        assert!(
            matches!(result, Err(Error::Store(StoreError::CorruptTree { .. }))),
            "{what}: {result:?}"
        );
    };
    let (other, ctx) = (bench.inode(1), WriteCtx::default());
    is_refused(super::clone_range(mount, &inode, 0, &other, 0, 0), "clone");
    is_refused(super::truncate(mount, &inode, 100), "truncate in the first block");
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    is_refused(super::fallocate(mount, &inode, zero, 0, 4096), "zero");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    is_refused(super::fallocate(mount, &inode, punch, 0, 4096), "punch");
    for at in [0, 5000] {
        super::write(mount, &inode, at, b"changed", ctx).unwrap();
        is_refused(super::write_back(mount, &inode), "write");
    }
    let mut group = super::Group::new(mount, crate::reclaim::close);
    group.write(mount, &inode, 4096, b"changed").unwrap();
    is_refused(group.apply(mount).map(|_| ()), "group");
    let exchange = Exchange {
        a_offset: 0,
        b_offset: 0,
        len_bytes: 4096,
        to_eof: false,
        only_written: false,
        fresh_b: None,
        dry_run: false,
    };
    super::write(mount, &other, 0, &[7; 9000], ctx).unwrap();
    is_refused(super::exchange_range(mount, &inode, &other, &exchange), "exchange");
    bench.files[1] = vec![7; 9000];
    for file in 0..2 {
        bench.compare(file, "after all that was refused");
    }
    super::truncate(bench.mount(), &inode, 0).unwrap();
    bench.files[0].clear();
    bench.mount().sync().unwrap();
    crate::testing::assert_nothing_reserved(bench.mount().store().space());
    bench.check("without it");
}

/// Inline data beside extents behind it: a whole block of it that is appended to, and inline data
/// that comes into a file with space preallocated behind its end.
#[test]
fn inline_data_with_extents_behind_it_is_what_the_kernel_reads() {
    let options = MountOptions {
        compress: Some(CompressPolicy {
            how: "zstd:3".parse().unwrap(),
            force: true,
        }),
        ..MountOptions::default()
    };
    let mut bench = Bench::new(256 << 20, plain, options);
    let write = |bench: &mut Bench, file: usize, at: u64, data: &[u8]| {
        super::write(bench.mount(), &bench.inode(file), at, data, WriteCtx::default()).unwrap();
        set_range(&mut bench.files[file], at, data);
    };
    (0..6).for_each(|_| bench.create());
    let sizes = [4096, 4096, 1000, 100_000, 4096, 1000];
    for (file, size) in sizes.into_iter().enumerate() {
        write(&mut bench, file, 0, &vec![file as u8 + 1; size]);
    }
    bench.mount().sync().unwrap();
    write(&mut bench, 0, 4096, &[9; 5000]);
    let mut group = super::Group::new(bench.mount(), crate::reclaim::close);
    group.write(bench.mount(), &bench.inode(1), 4096, &[8; 5000]).unwrap();
    set_range(&mut bench.files[1], 4096, &[8; 5000]);
    group.apply(bench.mount()).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    for file in [3, 5] {
        super::fallocate(bench.mount(), &bench.inode(file), keep, 151_552, 100_000).unwrap();
    }
    let exchange = Exchange {
        a_offset: 0,
        b_offset: 0,
        len_bytes: 0,
        to_eof: true,
        only_written: false,
        fresh_b: None,
        dry_run: false,
    };
    super::exchange_range(bench.mount(), &bench.inode(2), &bench.inode(3), &exchange).unwrap();
    bench.files.swap(2, 3);
    super::clone_range(bench.mount(), &bench.inode(4), 0, &bench.inode(5), 4096, 0).unwrap();
    let whole = bench.files[4].clone();
    set_range(&mut bench.files[5], 4096, &whole);
    bench.judge("inline data and what lies behind it");
}

/// The item of a file that was cut in memory has the old size while extents are dropped. Where that
/// fails, the new size must not go with the inode.
#[test]
fn size_of_a_truncation_that_failed_stays_when_the_inode_leaves_memory() {
    const FILES: usize = 500;
    let mut bench = Bench::new(256 << 20, plain, MountOptions::default());
    bench.create();
    let ctx = Context::root();
    let inode = bench.inode(0);
    super::write(bench.mount(), &inode, 0, &[7; 20_000], WriteCtx::default()).unwrap();
    bench.mount().sync().unwrap();
    // It ends beyond the biggest file. The verifier does not add these two up.
    let extent = crate::extent::Extent {
        start: (1 << 63) - BLOCK,
        len_bytes: 2 * BLOCK,
        generation: btrfs_format::Generation(1),
        kind: crate::extent::Kind::Hole,
    };
    let mut batch = btrfs_store::txn::Batch::new();
    batch.put(
        &inode.tree,
        crate::extent::extent_key(inode.ino, extent.start),
        extent.encode(),
    );
    bench.mount().store().txn().join().apply_unreserved(batch);
    drop(inode);
    // Nothing is open afterwards.
    bench.remount();
    let fs = &bench.fs;
    let node = match fs.lookup(&ctx, NodeId::ROOT, b"file0").unwrap() {
        Lookup::Found(entry) => entry.node,
        Lookup::Absent { .. } => panic!("the file is there"),
    };
    let set = SetAttr {
        size_bytes: Some(5000),
        ..SetAttr::default()
    };
    assert_eq!(fs.setattr(&ctx, node, None, &set), Err(cowshed_vfs::Error::Io));
    let table = &fs.mount().objects().inodes;
    table.set_files_max(0);
    for n in 0..FILES {
        let new = cowshed_vfs::fs::NewNode {
            kind: cowshed_vfs::FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        fs.mknod(&ctx, NodeId::ROOT, format!("other-{n}").as_bytes(), new)
            .unwrap();
    }
    assert!(table.counts().1 > FILES / 2, "{:?}", table.counts());
    assert_eq!(fs.getattr(&ctx, node, None).unwrap().size_bytes, 5000);
    bench.files[0] = vec![7; 5000];
    bench.compare(0, "in memory");
    bench.remount();
    bench.compare(0, "after a remount");
}

/// What is to happen before contents change (a capability goes) does not happen where they will
/// not.
#[test]
fn an_exchange_without_space_does_nothing_first() {
    let mut bench = Bench::new(128 << 20, plain, MountOptions::default());
    for file in 0..2 {
        bench.create();
        let (inode, byte) = (bench.inode(file), file as u8 + 1);
        super::write(
            bench.mount(),
            &inode,
            0,
            &[byte; 3 * BLOCK as usize],
            WriteCtx::default(),
        )
        .unwrap();
    }
    bench.mount().sync().unwrap();
    let (mount, a, b) = (bench.mount(), bench.inode(0), bench.inode(1));
    let what = Exchange {
        a_offset: 0,
        b_offset: 0,
        len_bytes: 2 * BLOCK,
        to_eof: false,
        only_written: false,
        fresh_b: None,
        dry_run: false,
    };
    let exchange = || {
        let is_first_done = std::cell::Cell::new(false);
        let first = Box::new(|| {
            is_first_done.set(true);
            Ok(())
        });
        let done = super::exchange_as(mount, [&a, &b], &what, ([WriteCtx::STRIPPING; 2], first));
        (done.is_ok(), is_first_done.get())
    };
    let budget = Budget {
        purpose: Purpose::Other,
        blocks: 1,
        is_release: false,
    };
    let held: Vec<_> = std::iter::from_fn(|| mount.store().space().reserve_meta(budget).ok()).collect();
    assert_eq!(exchange(), (false, false));
    drop(held);
    assert_eq!(exchange(), (true, true));
    let contents =
        [[2, 1], [1, 2]].map(|[new, old]| [vec![new; 2 * BLOCK as usize], vec![old; BLOCK as usize]].concat());
    bench.files = contents.into();
    drop((a, b));
    bench.check("at the end");
}
