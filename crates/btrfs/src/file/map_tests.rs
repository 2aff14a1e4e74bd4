//! Maps of files (holes, extents) and what remaps them, at sizes and in states that the random runs do not reach.

use std::sync::Arc;

use btrfs_image::{MkfsOptions, mkfs};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_vfs::{Context, FallocateFlags, FileSystem, NodeId, OpenFlags, OpenRequest, SeekKind};

use super::tests::mount_device;
use super::{BLOCK, WriteCtx};
use crate::fs::{Fs, MountOptions};
use crate::inode::Inode;
use crate::testing::Dice;

pub(super) fn new_volume(size_bytes: u64) -> (Arc<MemDevice>, Fs) {
    let device = Arc::new(MemDevice::new("memory", size_bytes));
    mkfs(&[device.clone() as Arc<dyn BlockDevice>], &MkfsOptions::new([0x5a; 16])).unwrap();
    let fs = mount_device(device.clone(), &MountOptions::default());
    (device, fs)
}

pub(super) fn create(fs: &Fs, name: &str) -> Arc<Inode> {
    let open = OpenRequest {
        flags: OpenFlags::WRITE,
        kill_suidgid: false,
    };
    let (entry, _) = fs
        .create(&Context::root(), NodeId::ROOT, name.as_bytes(), 0o644, &open)
        .unwrap();
    fs.inode(entry.node).unwrap()
}

pub(super) fn write(fs: &Fs, inode: &Arc<Inode>, at: u64, data: &[u8]) {
    let written = super::write(fs.engine(), inode, at, data, WriteCtx::default()).unwrap();
    assert_eq!(written, data.len());
}

/// All changes from data to holes and back, found by seeking.
fn borders(fs: &Fs, inode: &Arc<Inode>) -> Vec<u64> {
    let (mut found, mut at, mut what) = (Vec::new(), 0, SeekKind::Data);
    while let Ok(next) = super::seek(fs.engine(), inode, at, what) {
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
    assert_eq!(borders(&fs, &inode), borders_of(&model), "all in memory");
    fs.engine().sync().unwrap();
    assert_eq!(borders(&fs, &inode), borders_of(&model), "all in leaves");
    let mut dice = Dice::new(3);
    for round in 0..40 {
        for _ in 0..dice.below(20) {
            let block = dice.below(BLOCKS as u64 - 1);
            let is_write = dice.below(2) == 0;
            if is_write {
                write(&fs, &inode, block * BLOCK, &[8; BLOCK as usize]);
            } else {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                super::fallocate(fs.engine(), &inode, mode, block * BLOCK, BLOCK).unwrap();
            }
            model[block as usize] = is_write;
        }
        match round % 4 {
            0 => super::write_back_all(fs.engine()).unwrap(),
            1 => fs.engine().store.drop_clean(),
            2 => fs.engine().sync().unwrap(),
            _ => {}
        }
        assert_eq!(borders(&fs, &inode), borders_of(&model), "round {round}");
    }
    fs.engine().close().unwrap();
    drop(device);
}
