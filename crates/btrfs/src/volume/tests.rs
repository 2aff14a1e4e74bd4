//! Volumes made by mkfs.btrfs and the kernel, opened here; faults planted one by one.

use std::path::Path;
use std::sync::Arc;

use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeBlock, TreeId, view};
use cowshed_device::{BlockDevice, FileDevice, MemDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need};

use super::*;
use crate::tree::BlockPtr;

/// Copies of a volume's images in memory.
fn in_memory(images: &[impl AsRef<Path>]) -> Vec<Arc<MemDevice>> {
    images
        .iter()
        .enumerate()
        .map(|(index, path)| {
            let file = FileDevice::open(path, OpenMode::ReadOnly).expect("an image opens");
            Arc::new(MemDevice::copy_of(format!("disk{index}"), &file).expect("an image is read"))
        })
        .collect()
}

fn open(devices: &[Arc<MemDevice>], options: &OpenOptions) -> Result<Arc<Volume>> {
    let devices = devices.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect();
    Volume::open(devices, options)
}

fn made(options: &VolumeOptions) -> Vec<Arc<MemDevice>> {
    in_memory(KernelVolume::make(options).expect("mkfs.btrfs makes a volume").images())
}

fn root_ptr(volume: &Volume) -> BlockPtr {
    let sb = volume.superblock();
    BlockPtr {
        addr: sb.root.into(),
        generation: sb.generation.into(),
        level: sb.root_level,
        first_key: None,
    }
}

/// All leaves of a tree, in order.
fn leaves(volume: &Volume, ptr: BlockPtr, tree: TreeId, out: &mut Vec<TreeBlock>) {
    let block = volume.read_block(&ptr, tree).expect("a tree of the kernel reads");
    if block.is_leaf() {
        return out.push(block);
    }
    for slot in 0..block.len() {
        let (addr, generation) = block.child(slot);
        let child = BlockPtr {
            addr,
            generation,
            level: block.level() - 1,
            first_key: Some(block.key(slot)),
        };
        leaves(volume, child, tree, out);
    }
}

fn tree(volume: &Volume, id: TreeId) -> Vec<(Key, Vec<u8>)> {
    let mut out = Vec::new();
    leaves(volume, root_ptr(volume), TreeId::ROOT, &mut out);
    let items = |blocks: &[TreeBlock]| -> Vec<(Key, Vec<u8>)> {
        let slots = |b: &TreeBlock| (0..b.len()).map(|s| (b.key(s), b.data(s).to_vec())).collect::<Vec<_>>();
        blocks.iter().flat_map(slots).collect()
    };
    let (_, root) = items(&out)
        .into_iter()
        .find(|(key, _)| key.objectid == id.object_id() && key.ty == KeyType::ROOT_ITEM)
        .expect("the tree has a root item");
    let root = view::root_item(&root).expect("a root item");
    let ptr = BlockPtr {
        addr: root.bytenr.into(),
        generation: root.generation.into(),
        level: root.level,
        first_key: None,
    };
    let mut blocks = Vec::new();
    leaves(volume, ptr, id, &mut blocks);
    items(&blocks)
}

#[test]
fn what_mkfs_makes_opens() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    for (devices, data, metadata) in [
        (1, "single", "single"),
        (1, "single", "dup"),
        (1, "dup", "dup"),
        (2, "raid0", "raid1"),
        (2, "raid1", "raid1"),
        (3, "raid1c3", "raid1c3"),
        (4, "raid1c4", "raid1c4"),
        (4, "raid10", "raid10"),
        (3, "raid0", "raid0"),
    ] {
        let options = VolumeOptions::devices(devices, data, metadata);
        let disks = made(&options);
        let volume = open(&disks, &OpenOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", options.describe()));
        assert_eq!(volume.devices().len(), devices);
        assert!(!tree(&volume, TreeId::EXTENT).is_empty());
        let profiles: Vec<_> = volume
            .chunks()
            .iter()
            .map(|c| c.profile().name().to_lowercase())
            .collect();
        assert!(profiles.contains(&metadata.to_lowercase()), "{profiles:?}");
    }
}
