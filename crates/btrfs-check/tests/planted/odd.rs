//! What other programs and old kernels leave, and what is no fault: planted into sound volumes as
//! faults are, and not found. Each case was seen on a volume that Linux mounts and `btrfs check`
//! passes.

use std::fs;

use anyhow::{Context, Result};
use btrfs_check::{FindingId, Severity};
use btrfs_format::features::{block_group, super_flags};
use btrfs_format::items::{InodeItem, RootItem};
use btrfs_format::{Key, KeyType, ObjectId, TreeId, Uuid};
use cowshed_device::{BlockDevice, FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need, progs, shell};

use crate::image::{Image, Item};
use crate::{Bases, bases, check_devices};

const FS: TreeId = TreeId::FS;
const MIRROR: u64 = 64 << 20;

fn of(object: ObjectId, ty: KeyType) -> impl Fn(&Item) -> bool {
    move |item| item.key.objectid == object && item.key.ty == ty
}

fn named(image: &Image, name: &str) -> ObjectId {
    let is_index = |item: &Item| item.key.ty == KeyType::DIR_INDEX && item.data.ends_with(name.as_bytes());
    let entry = image.find(FS, is_index);
    ObjectId(u64::from_le_bytes(entry.data[..8].try_into().expect("eight bytes")))
}

/// Notes do not count.
fn assert_no_fault(what: &str, image: Image) {
    let report = check_devices(&image.into_devices());
    let faults = report.counts.keys().filter(|id| id.severity() != Severity::Note);
    assert_eq!(faults.count(), 0, "{what}:\n{report}");
}

/// The zero byte at the end of a target is stored, and counted.
fn end_target_with_zero(bases: &Bases) -> Image {
    let mut image = bases.main.snapshot();
    let link = named(&image, "symlink");
    image.edit_leaf(FS, |items| {
        let mut found = false;
        for item in items.iter_mut().filter(|item| item.key.objectid == link) {
            if item.key.ty == KeyType::EXTENT_DATA {
                item.data.push(0);
                let ram_bytes = u64::from_le_bytes(item.data[8..16].try_into().expect("eight bytes")) + 1;
                item.data[8..16].copy_from_slice(&ram_bytes.to_le_bytes());
                found = true;
            }
        }
        found
    });
    image.edit_as(FS, of(link, KeyType::INODE_ITEM), |inode: &mut InodeItem| {
        inode.size = (inode.size.get() + 1).into();
        inode.nbytes = (inode.nbytes.get() + 1).into();
    });
    image
}

#[test]
fn what_old_programs_leave_is_no_fault() {
    let Some(bases) = bases() else { return };
    assert_no_fault("a symbolic link that counts its zero byte", end_target_with_zero(bases));

    let mut image = bases.main.snapshot();
    let dir = ObjectId::FIRST_FREE;
    let inode = image.find(FS, of(dir, KeyType::INODE_ITEM)).data;
    image.insert(TreeId::UUID, Key::new(dir, KeyType::INODE_ITEM, 0), inode);
    let reference = image.find(FS, of(dir, KeyType::INODE_REF)).data;
    image.insert(TreeId::UUID, Key::new(dir, KeyType::INODE_REF, dir.get()), reference);
    assert_no_fault("a directory in the uuid tree", image);

    let mut image = bases.main.snapshot();
    image.edit_super(|sb| sb.flags = (sb.flags.get() | super_flags::METADUMP_V2).into());
    image.device.write_at(MIRROR, &[0; 4096]).expect("memory");
    // Data that was not dumped.
    let data = image
        .chunks
        .iter()
        .find(|chunk| chunk.ty & block_group::DATA != 0)
        .expect("a chunk");
    let (place, len) = (data.offsets[0], usize::try_from(data.len).expect("a length"));
    image.device.write_at(place, &vec![0; len]).expect("memory");
    assert_no_fault("a dump restored, with one superblock", image);

    let mut image = bases.main.snapshot();
    let before = image.superblock().dev_item.bytes_used.get() - (1 << 20);
    image.edit_super(|sb| sb.dev_item.bytes_used = before.into());
    assert_no_fault("bytes used as of before chunks were removed", image);
}

#[test]
fn a_file_whose_extents_are_being_dropped_is_no_fault() {
    let Some(bases) = bases() else { return };
    let mut image = bases.main.snapshot();
    let file = named(&image, "random");
    image.edit_as(FS, of(file, KeyType::INODE_ITEM), |inode: &mut InodeItem| {
        inode.nlink = 0.into();
        inode.nbytes = (inode.nbytes.get() + 4096).into();
    });
    let report = check_devices(&image.into_devices());
    assert!(report.has(FindingId::InodeNlink), "{report}");
    assert!(!report.has(FindingId::FileNbytes), "{report}");
}

/// Before Linux 3.6 no root item names the subvolume that a snapshot is of.
#[test]
fn snapshots_without_a_parent_inherit_entries_of_subvolumes() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let volume = KernelVolume::make(&VolumeOptions::default())?;
    volume.with_mount(|root| {
        shell(
            root,
            "mkdir d; btrfs -q subvolume create d/inner; btrfs -q subvolume snapshot . whole",
        )
    })?;
    let file = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked)?;
    let mut image = Image::new(MemDevice::copy_of("volume", &file)?);
    let whole = |item: &Item| item.key.ty == KeyType::ROOT_ITEM && item.key.objectid.get() == 257;
    image.edit_as(TreeId::ROOT, whole, |item: &mut RootItem| {
        assert_ne!(item.parent_uuid, Uuid::default());
        item.parent_uuid = Uuid::default();
    });
    assert_no_fault("a snapshot of a directory with a subvolume", image);
    Ok(())
}

/// The checksums of data to which only the log leads may be in the volume already.
#[test]
fn checksums_of_logged_data_are_no_orphans() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let volume = KernelVolume::make(&VolumeOptions::default())?;
    let copy = volume.dir().join("with-log");
    volume.with_mount(|root| {
        shell(root, "sync -f .; head -c 4096 /dev/urandom > file; sync file")?;
        fs::copy(volume.image(), &copy)?;
        Ok(())
    })?;
    let dump = progs::dump_tree(&[&copy], &[])?;
    let addr: u64 = dump
        .lines()
        .find_map(|line| {
            line.trim()
                .strip_prefix("extent data disk byte ")?
                .split(' ')
                .next()?
                .parse()
                .ok()
        })
        .context("no extent in the log")?;
    let file = FileDevice::open_with(&copy, OpenMode::ReadOnly, Locking::Unlocked)?;
    let mut image = Image::new(MemDevice::copy_of("volume", &file)?);
    assert_ne!(image.superblock().log_root.get(), 0);
    let mut data = vec![0; 4096];
    let place = image.places(addr)[0];
    image.device.read_at(place, &mut data)?;
    let sum = image
        .superblock()
        .checksum_type()
        .context("a known checksum")?
        .compute(&data);
    let key = |addr| Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, addr);
    image.insert(TreeId::CSUM, key(addr), sum[..4].to_vec());
    assert_no_fault("checksums of logged data", image.snapshot());

    image.insert(TreeId::CSUM, key(addr + (1 << 20)), vec![0; 4]);
    let report = check_devices(&image.into_devices());
    assert!(report.has(FindingId::CsumOrphan), "{report}");
    Ok(())
}

/// Its first block groups are of other profiles, and go when those asked for are made.
#[test]
fn free_space_of_the_first_block_groups_of_mkfs_is_no_fault() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    for (data, metadata) in [("dup", "single"), ("dup", "dup"), ("single", "single")] {
        let volume = KernelVolume::make(&VolumeOptions {
            data: Some(data),
            metadata: Some(metadata),
            ..VolumeOptions::default()
        })?;
        volume.with_mount(|root| shell(root, "head -c 1M /dev/urandom > file"))?;
        let file = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked)?;
        let image = Image::new(MemDevice::copy_of("volume", &file)?);
        assert_no_fault(&format!("data {data}, metadata {metadata}"), image);
    }
    Ok(())
}
