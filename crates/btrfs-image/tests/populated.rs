//! The planner lays down more than an empty volume: trees of several levels, more chunks than the
//! first ones, data.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use btrfs_format::features::inode_flags;
use btrfs_format::hash::name_hash;
use btrfs_format::items::{DirItem, FileExtent, FileExtentHead, InodeItem, InodeRef, file_extent_type, file_type};
use btrfs_format::{DiskKey, Key, KeyType, LogicalAddr, ObjectId, TreeId, U16, U32, U64};
use btrfs_image::plan::{Contents, DataExtent, DataRef, GENERATION, PlannedTree, VolumePlanner};
use btrfs_image::{MkfsOptions, Overwrite, Profile, write_volume};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_harness::{KernelVolume, need};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const ROOT: ObjectId = ObjectId::FIRST_FREE;
const INLINE_BYTES: usize = 1500;
const EXTENT_BYTES: u64 = 64 << 10;

/// An inode with its name in the root directory; gives the bytes that the directory grows by.
fn put_file(tree: &mut PlannedTree, number: u64, index: u64, inode: &InodeItem) -> u64 {
    let (ino, name) = (ObjectId(number), format!("file-{number}"));
    let name = name.as_bytes();
    tree.insert(Key::new(ino, KeyType::INODE_ITEM, 0), inode.as_bytes());
    let name_len = U16::new(name.len() as u16);
    let back = InodeRef {
        index: U64::new(index),
        name_len,
    };
    tree.insert(
        Key::new(ino, KeyType::INODE_REF, ROOT.0),
        [back.as_bytes(), name].concat(),
    );
    let entry = DirItem {
        location: DiskKey::from(Key::new(ino, KeyType::INODE_ITEM, 0)),
        transid: GENERATION.into(),
        data_len: U16::new(0),
        name_len,
        ty: file_type::REG_FILE,
    };
    let entry = [entry.as_bytes(), name].concat();
    tree.insert(Key::new(ROOT, KeyType::DIR_ITEM, name_hash(name)), entry.clone());
    tree.insert(Key::new(ROOT, KeyType::DIR_INDEX, index), entry);
    2 * name.len() as u64
}

fn file_inode(size: u64, nbytes: u64, flags: u64) -> InodeItem {
    InodeItem {
        generation: GENERATION.into(),
        transid: GENERATION.into(),
        size: U64::new(size),
        nbytes: U64::new(nbytes),
        nlink: U32::new(1),
        mode: U32::new(0o100_644),
        flags: U64::new(flags),
        ..InodeItem::new_zeroed()
    }
}

fn inline_extent(byte: u8) -> Vec<u8> {
    let head = FileExtentHead {
        generation: GENERATION.into(),
        ram_bytes: U64::new(INLINE_BYTES as u64),
        ty: file_extent_type::INLINE,
        ..FileExtentHead::new_zeroed()
    };
    [head.as_bytes(), &[byte; INLINE_BYTES]].concat()
}

fn regular_extent(addr: LogicalAddr) -> FileExtent {
    FileExtent {
        generation: GENERATION.into(),
        ram_bytes: U64::new(EXTENT_BYTES),
        ty: file_extent_type::REG,
        disk_bytenr: addr.into(),
        disk_num_bytes: U64::new(EXTENT_BYTES),
        num_bytes: U64::new(EXTENT_BYTES),
        ..FileExtent::new_zeroed()
    }
}

/// `inline` files with their bytes in the tree, then `regular` ones with an extent of zeros without
/// checksums.
fn contents(planner: &mut VolumePlanner, inline: u64, regular: u64) -> Result<Contents> {
    let mut contents = Contents::empty(planner.settings());
    let tree = &mut contents.fs_tree;
    let mut dir_bytes = 0;
    for (number, index) in (257..).zip(2..).take((inline + regular) as usize) {
        if number < 257 + inline {
            let inode = file_inode(INLINE_BYTES as u64, INLINE_BYTES as u64, 0);
            dir_bytes += put_file(tree, number, index, &inode);
            tree.insert(
                Key::new(ObjectId(number), KeyType::EXTENT_DATA, 0),
                inline_extent(number as u8),
            );
            continue;
        }
        dir_bytes += put_file(
            tree,
            number,
            index,
            &file_inode(EXTENT_BYTES, EXTENT_BYTES, inode_flags::NODATASUM),
        );
        let addr = planner.take_data(EXTENT_BYTES)?;
        let extent = regular_extent(addr);
        tree.insert(Key::new(ObjectId(number), KeyType::EXTENT_DATA, 0), extent.as_bytes());
        contents.data_extents.push(DataExtent {
            addr,
            len_bytes: EXTENT_BYTES,
            refs: vec![DataRef {
                root: TreeId::FS,
                objectid: ObjectId(number),
                offset_bytes: 0,
                count: 1,
            }],
        });
    }
    let key = Key::new(ROOT, KeyType::INODE_ITEM, 0);
    let mut dir = InodeItem::read_from_bytes(tree.get(&key).expect("the root directory")).expect("an inode");
    dir.size = U64::new(dir_bytes);
    tree.replace(key, dir.as_bytes());
    Ok(contents)
}

fn unique_uuid() -> Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(u128::from_str_radix(&text.trim().replace('-', ""), 16)?.to_be_bytes())
}

fn judge(devices: usize, change: impl FnOnce(&mut MkfsOptions), inline: u64, regular: u64) -> Result<()> {
    // The kernel must not see one volume twice, whichever tests run beside this one.
    let mut options = MkfsOptions::new(unique_uuid()?);
    options.time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    change(&mut options);
    let devices: Vec<Arc<MemDevice>> = (0..devices)
        .map(|index| Arc::new(MemDevice::new(format!("disk{index}"), 512 << 20)))
        .collect();
    let sizes: Vec<(&str, u64)> = devices.iter().map(|d| (d.name(), d.size_bytes())).collect();
    let mut planner = VolumePlanner::new(options.settle(&sizes)?)?;
    let contents = contents(&mut planner, inline, regular)?;
    let plan = planner.finish(contents)?;
    let overwrite = Overwrite {
        force: false,
        discard: false,
    };
    let dyn_devices: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|d| Arc::clone(d) as _).collect();
    write_volume(&dyn_devices, plan, overwrite)?;
    let images: Vec<MemDevice> = devices.iter().map(|device| device.snapshot()).collect();
    let volume = KernelVolume::from_memory(&images)?;
    volume.assert_clean();
    volume.with_mount(|dir| {
        let mut seen = 0;
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().into_string().expect("a name of ours");
            let number: u64 = name.strip_prefix("file-").expect("a name of ours").parse()?;
            let expected = if number < 257 + inline {
                vec![number as u8; INLINE_BYTES]
            } else {
                vec![0; EXTENT_BYTES as usize]
            };
            ensure!(std::fs::read(entry.path())? == expected, "{name} differs");
            seen += 1;
        }
        ensure!(seen == inline + regular, "{seen} files");
        std::fs::write(dir.join("another"), vec![7; 1 << 20])?;
        Ok(())
    })?;
    volume.assert_clean();
    Ok(())
}

#[test]
fn full_chunk_is_followed_by_another() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    // 15 MB of inline files do not fit the 8 MiB of metadata, nor 32 MB of data the 8 MiB of data.
    judge(1, |o| o.metadata_profile = Some(Profile::Single), 10_000, 500)
}

#[test]
fn small_nodes_make_high_trees() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    judge(2, |o| o.nodesize_bytes = Some(4096), 20_000, 3000)
}

#[test]
fn volume_without_skinny_metadata_and_block_group_tree_is_valid() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let change = |o: &mut MkfsOptions| {
        o.nodesize_bytes = Some(4096);
        o.features.skinny_metadata = false;
        o.features.block_group_tree = Some(false);
        o.data_profile = Some(Profile::Raid10);
        o.metadata_profile = Some(Profile::Raid10);
    };
    judge(4, change, 3000, 3000)
}

#[test]
fn mixed_chunks_hold_data_and_metadata() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    judge(1, |o| o.mixed = true, 1000, 1000)
}
