//! Items of checksums: how they join, and what readers find meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use btrfs_format::{ChecksumType, LogicalAddr};

use super::WriteCtx;
use super::csum::{csum_key, load};
use super::tests::Bench;
use crate::block::BLOCK;
use crate::fs::MountOptions;
use crate::mount::Mount;
use crate::testing::SetOnDrop;
use btrfs_store::tree::csum_item_bytes_max;

/// Addresses and lengths of the checksum items, in order.
fn items(mount: &Mount) -> Vec<(u64, usize)> {
    let cursor = mount.csum_tree().cursor(csum_key(0), csum_key(u64::MAX));
    let items = cursor.collect().unwrap();
    items.iter().map(|(key, item)| (key.offset, item.len())).collect()
}

/// Appends a block in a transaction of its own.
fn append(bench: &mut Bench, block: u64) {
    let inode = bench.inode(0);
    let data: Vec<u8> = (0..BLOCK).map(|at| (at ^ (block * 7)) as u8).collect();
    super::write(bench.mount(), &inode, block * BLOCK, &data, WriteCtx::default()).unwrap();
    bench.files[0].extend_from_slice(&data);
    super::write_back(bench.mount(), &inode).unwrap();
    bench.mount().commit().unwrap();
}

#[test]
fn checksums_of_neighbours_share_items_whichever_transaction_they_are_of() {
    for (nodesize, ty, blocks) in [
        (4096, ChecksumType::Crc32c, 600),
        (16_384, ChecksumType::Crc32c, 100),
        (4096, ChecksumType::Sha256, 100),
    ] {
        let adjust = |options: &mut btrfs_image::MkfsOptions| {
            options.nodesize_bytes = Some(nodesize);
            options.csum_type = ty;
        };
        let mut bench = Bench::new(256 << 20, adjust, MountOptions::default());
        bench.create();
        (0..blocks).for_each(|block| append(&mut bench, block));
        let items = items(bench.mount());
        let bytes_max = csum_item_bytes_max(bench.mount().store().nodes());
        let bytes = blocks as usize * ty.size_bytes();
        assert_eq!(items.iter().map(|(_, len)| len).sum::<usize>(), bytes);
        assert!(items.iter().all(|(_, len)| *len <= bytes_max), "{items:?}");
        // Each full, but where the allocator began anew.
        assert!(items.len() <= bytes.div_ceil(bytes_max) + 2, "{items:?}");
        bench.remount();
        bench.compare(0, "after a new mount");
        // A hole in the middle leaves the checksums on both sides of it.
        let inode = bench.inode(0);
        super::truncate(bench.mount(), &inode, blocks * BLOCK / 2).unwrap();
        bench.files[0].truncate((blocks * BLOCK / 2) as usize);
        bench.check("half of it");
        bench.compare(0, "half of it");
        bench.judge_by_kernel();
    }
}

#[test]
fn readers_find_checksums_while_items_join() {
    let mut bench = Bench::new(256 << 20, |_| (), MountOptions::default());
    bench.create();
    append(&mut bench, 0);
    let addr = items(bench.mount())[0].0;
    let mount = bench.fs.mount().clone();
    let (blocks, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Acquire) {
                let len_bytes = blocks.load(Ordering::Acquire) * BLOCK;
                let sums = load(&mount, LogicalAddr(addr), len_bytes).unwrap();
                assert_eq!(sums.len() as u64, len_bytes / BLOCK * 4);
            }
        });
        let _over = SetOnDrop(&is_over);
        for block in 1..300 {
            append(&mut bench, block);
            let (start, len) = items(bench.mount())[0];
            let known = start + len as u64 / 4 * BLOCK;
            blocks.store((known - addr) / BLOCK, Ordering::Release);
        }
    });
    assert!(blocks.load(Ordering::Relaxed) > 200, "blocks lie side by side");
}

/// A stranger's items may point anywhere, and be as long as all there is.
#[test]
fn checksums_of_what_cannot_be_are_not_there() {
    let mut bench = Bench::new(256 << 20, |_| (), MountOptions::default());
    bench.create();
    append(&mut bench, 0);
    let mount = bench.mount();
    let addr = LogicalAddr(items(mount)[0].0);
    assert!(load(mount, addr, 1 << 60).is_err());
    let last = u64::MAX - BLOCK + 1;
    let mut batch = btrfs_store::txn::Batch::new();
    batch.put(mount.csum_tree(), csum_key(last - BLOCK), [1; 8]);
    mount.store().txn().join().apply_unreserved(batch);
    assert!(super::csum::has_any(mount, LogicalAddr(last - 4 * BLOCK), 4 * BLOCK).unwrap());
    // Nothing of this may come to the disk.
    let mut batch = btrfs_store::txn::Batch::new();
    batch.delete(mount.csum_tree(), csum_key(last - BLOCK));
    mount.store().txn().join().apply_unreserved(batch);
}
