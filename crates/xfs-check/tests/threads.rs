//! What is found does not depend on the number of threads, or on which of them is faster.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cowshed_device::{BlockDevice as _, FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::need;
use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use xfs_check::{CheckOptions, FindingId, check};
use xfs_format::{Geometry, Ino, Superblock, crc};

/// More inodes than one thread reads in a row, in one group.
const FILES: usize = 12_000;
const WITH_DATA: usize = 400;

#[test]
fn files_with_one_block_are_named_in_one_order() -> Result<()> {
    const CORE_BYTES: usize = 176;
    const CRC_AT: usize = 100;
    let Some(()) = need::kernel_xfs() else { return Ok(()) };
    let volume = XfsVolume::make(&XfsOptions::new("-d agcount=2 -m rmapbt=0,reflink=0"))?;
    let inodes = volume.with_mount(|root| {
        let mut inodes = Vec::new();
        for n in 0..FILES {
            let path = root.join(n.to_string());
            fs::write(&path, if n % WITH_DATA == 7 { "data" } else { "" })?;
            if n % WITH_DATA == 7 {
                inodes.push(fs::metadata(path)?.ino());
            }
        }
        Ok(inodes)
    })?;
    let image = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked)?;
    let device = MemDevice::copy_of("volume", &image)?;
    let mut head = vec![0; 4096];
    device.read_at(0, &mut head)?;
    let geometry = Geometry::new(&Superblock::verify(&head)?)?;
    // All of them get the extent of the first one.
    let mut first = None;
    for ino in &inodes {
        let (group, within) = geometry.split_ino(Ino(*ino)).context("an inode")?;
        let at = geometry.ag_daddr(group, geometry.ino_block(within)).checked_bytes();
        let at = at.context("an address")? + u64::from(geometry.ino_offset_bytes(within));
        let mut inode = vec![0; geometry.inode_bytes as usize];
        device.read_at(at, &mut inode)?;
        let extent = inode[CORE_BYTES..CORE_BYTES + 16].to_vec();
        inode[CORE_BYTES..CORE_BYTES + 16].copy_from_slice(first.get_or_insert(extent));
        crc::store(&mut inode, CRC_AT);
        device.write_at(at, &inode)?;
    }
    let judge = |threads: usize| {
        let options = CheckOptions {
            threads,
            ..CheckOptions::default()
        };
        check(Arc::new(device.snapshot()), &options)
    };
    let expected = judge(1);
    assert_eq!(
        expected.counts.get(&FindingId::BlockTwice),
        Some(&(inodes.len() as u64 - 1))
    );
    for _ in 0..8 {
        assert_eq!(judge(4).to_string(), expected.to_string());
    }
    Ok(())
}
