//! Volumes made by mkfs.btrfs and the kernel, opened here; faults planted one by one.

use std::path::Path;
use std::sync::Arc;

use btrfs_format::items::{ChunkHead, STRIPE_LEN_BYTES, Stripe};
use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use btrfs_format::view::FileExtentView;
use btrfs_format::{
    HeaderFields, Key, KeyType, LogicalAddr, NodeBuilder, ObjectId, TreeBlock, TreeId, U16, U32, U64, view,
};
use cowshed_device::{BlockDevice, FileDevice, MemDevice, OpenMode};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, On};
use cowshed_harness::{KernelVolume, VolumeOptions, need};
use zerocopy::{FromZeros, IntoBytes as _};

use super::*;

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

/// Bytes that look like nothing, but the same each time.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A volume on which the kernel wrote these files.
fn with_files(options: &VolumeOptions, files: &[(&str, &[u8])]) -> (KernelVolume, Vec<Arc<MemDevice>>) {
    let kernel = KernelVolume::make(options).expect("mkfs.btrfs makes a volume");
    let write = |dir: &Path| {
        for (name, bytes) in files {
            std::fs::write(dir.join(name), bytes)?;
        }
        Ok(())
    };
    kernel.with_mount(write).expect("the kernel writes files");
    let disks = in_memory(kernel.images());
    (kernel, disks)
}

/// The extents of a file, by its name in the top directory: offset in the file and item.
fn extents(volume: &Volume, name: &str) -> Vec<(u64, Vec<u8>)> {
    let items = tree(volume, TreeId::FS);
    let (inode, _) = items
        .iter()
        .find(|(key, data)| {
            key.ty == KeyType::INODE_REF && view::inode_refs(data).any(|(_, found)| found == name.as_bytes())
        })
        .expect("the file is there");
    items
        .iter()
        .filter(|(key, _)| key.objectid == inode.objectid && key.ty == KeyType::EXTENT_DATA)
        .map(|(key, data)| (key.offset, data.clone()))
        .collect()
}

/// The stored checksums of a range.
fn csums(volume: &Volume, addr: LogicalAddr, len_bytes: u64) -> Vec<u8> {
    let size = volume.csum_type().size_bytes();
    let mut out = Vec::new();
    let mut at = addr.get();
    for (key, data) in tree(volume, TreeId::CSUM) {
        let end = key.offset + (data.len() / size * 4096) as u64;
        if key.offset <= at && at < end {
            let stop = end.min(addr.get() + len_bytes);
            let index = |pos: u64| ((pos - key.offset) / 4096) as usize * size;
            out.extend_from_slice(&data[index(at)..index(stop)]);
            at = stop;
        }
    }
    out
}

/// The first uncompressed extent of a file: logical address and length.
fn first_extent(volume: &Volume, name: &str) -> (LogicalAddr, u64) {
    let (_, item) = &extents(volume, name)[0];
    match view::file_extent(item) {
        Some(FileExtentView::Regular(extent)) => (extent.disk_bytenr.into(), extent.num_bytes.get()),
        other => panic!("not a regular extent: {other:?}"),
    }
}

fn flip(disk: &MemDevice, at: u64) {
    let mut byte = [0];
    disk.read_at(at, &mut byte).unwrap();
    disk.write_at(at, &[byte[0] ^ 0x40]).unwrap();
}

fn disk_of(disks: &[Arc<MemDevice>], at: PhysAddr) -> &MemDevice {
    &disks[at.dev.get() as usize - 1]
}

#[test]
fn every_copy_of_kernel_files_is_where_the_map_says() {
    let Some(()) = need::kernel_btrfs() else { return };
    let content = noise(3 << 20, 7);
    for (devices, data, metadata) in [
        (1, "dup", "dup"),
        (3, "raid0", "raid1"),
        (2, "raid1", "raid1"),
        (3, "raid1c3", "raid1c3"),
        (4, "raid10", "raid10"),
        (4, "raid1c4", "raid1c4"),
    ] {
        let (_kernel, disks) = with_files(&VolumeOptions::devices(devices, data, metadata), &[("f", &content)]);
        for parallel_devices in [false, true] {
            let options = OpenOptions {
                parallel_devices,
                ..OpenOptions::default()
            };
            let volume = open(&disks, &options).unwrap();
            for (offset, item) in extents(&volume, "f") {
                let Some(FileExtentView::Regular(extent)) = view::file_extent(&item) else {
                    panic!("an inline extent of 3 MiB");
                };
                let (addr, len) = (LogicalAddr::from(extent.disk_bytenr), extent.num_bytes.get());
                let expected = &content[offset as usize..][..len as usize];
                let mut buf = vec![0; len as usize];
                let sums = csums(&volume, addr, len);
                volume.read_data(addr, &mut buf, Some(&sums)).unwrap();
                assert!(buf == expected, "{data}: the file reads wrong");
                for piece in volume.map(addr, len).unwrap() {
                    let from = (piece.logical.get() - addr.get()) as usize;
                    let mut copy = vec![0; piece.len_bytes as usize];
                    for at in piece.copies.iter() {
                        disk_of(&disks, *at).read_at(at.offset, &mut copy).unwrap();
                        assert!(copy == expected[from..][..copy.len()], "{data}: {piece:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_bad_copy_of_a_block_is_healed_and_two_are_an_error() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    for (devices, profile) in [(1, "dup"), (2, "raid1"), (3, "raid1c3"), (4, "raid10")] {
        for victim in 0..2 {
            let disks = made(&VolumeOptions::devices(devices, "single", profile));
            let volume = open(&disks, &OpenOptions::default()).unwrap();
            let ptr = root_ptr(&volume);
            let pieces = volume.map(ptr.addr, volume.nodesize_bytes().into()).unwrap();
            let at = pieces[0].copies[victim];
            let mut before = vec![0; volume.nodesize_bytes() as usize];
            disk_of(&disks, at).read_at(at.offset, &mut before).unwrap();
            flip(disk_of(&disks, at), at.offset + 4000);
            // Which copy is read first is the volume's choice: make it find the bad one.
            for copy in pieces[0].copies.iter().filter(|c| c.dev != at.dev) {
                volume
                    .member(copy.dev)
                    .unwrap()
                    .suspect
                    .store(true, std::sync::atomic::Ordering::Relaxed);
            }
            volume.read_block(&ptr, TreeId::ROOT).unwrap();
            let mut after = before.clone();
            disk_of(&disks, at).read_at(at.offset, &mut after).unwrap();
            let corruptions: u64 = volume
                .devices()
                .iter()
                .map(|d| d.faults[DeviceFault::Corruption as usize])
                .sum();
            if corruptions > 0 {
                assert!(before == after, "{profile}: the bad copy was seen and not healed");
            } else {
                assert_eq!(
                    (profile, at.dev),
                    ("dup", pieces[0].copies[1 - victim].dev),
                    "the bad copy was not read"
                );
                flip(disk_of(&disks, at), at.offset + 4000);
            }
            for copy in pieces[0].copies.iter() {
                flip(disk_of(&disks, *copy), copy.offset + 4000);
            }
            let error = volume.read_block(&ptr, TreeId::ROOT).unwrap_err();
            assert!(matches!(error, Error::Corrupt(_)), "{error}");
            assert!(error.to_string().contains(&ptr.addr.to_string()), "{error}");
        }
    }
}

#[test]
fn bad_sectors_are_healed_or_named_and_the_others_are_read() {
    let Some(()) = need::kernel_btrfs() else { return };
    let content = noise(256 << 10, 3);
    let (_kernel, disks) = with_files(&VolumeOptions::devices(2, "raid1", "raid1"), &[("f", &content)]);
    let volume = open(&disks, &OpenOptions::default()).unwrap();
    let (addr, len) = first_extent(&volume, "f");
    let sums = csums(&volume, addr, len);
    let place = |sector: u64| volume.map(LogicalAddr(addr.get() + sector * 4096), 4096).unwrap()[0].copies;
    // One sector bad on each disk, not the same: between them the copies have everything.
    for copy in 0..2 {
        let at = place(5 + copy as u64)[copy];
        flip(disk_of(&disks, at), at.offset + 100);
    }
    // The third is bad on both.
    for at in place(9).iter() {
        flip(disk_of(&disks, *at), at.offset);
    }
    let mut buf = vec![0; len as usize];
    let bad = volume.read_data_partly(addr, &mut buf, Some(&sums)).unwrap();
    assert_eq!(bad.len(), 1);
    let hole = 9 * 4096;
    assert_eq!(bad[0].addr.get(), addr.get() + hole as u64);
    assert!(buf[..hole] == content[..hole] && buf[hole + 4096..] == content[hole + 4096..len as usize]);
    match volume.read_data(addr, &mut buf, Some(&sums)) {
        Err(Error::DataChecksum { addr: named }) => assert_eq!(named, bad[0].addr),
        other => panic!("{other:?}"),
    }
    // The copy that is read first was healed.
    let first = volume.copy_order(&volume.map(addr, 4096).unwrap()[0])[0];
    let at = place(5 + first as u64)[first];
    let mut healed = [0; 4096];
    disk_of(&disks, at).read_at(at.offset, &mut healed).unwrap();
    assert!(healed == content[(5 + first) * 4096..][..4096]);
    // Without checksums nothing is judged.
    volume.read_data(addr, &mut buf, None).unwrap();
}

#[test]
fn what_is_written_here_the_kernel_reads() {
    let Some(()) = need::kernel_btrfs() else { return };
    let old = noise(1 << 20, 11);
    let new = noise(1 << 20, 12);
    for (devices, data, metadata) in [(2, "raid1", "raid1"), (3, "raid0", "raid1"), (4, "raid10", "raid10")] {
        let mut options = VolumeOptions::devices(devices, data, metadata);
        options.mount_options = "nodatasum";
        let (_old, disks) = with_files(&options, &[("f", &old)]);
        let volume = open(&disks, &OpenOptions::default()).unwrap();
        for (offset, item) in extents(&volume, "f") {
            let Some(FileExtentView::Regular(extent)) = view::file_extent(&item) else {
                panic!("an inline extent of 1 MiB");
            };
            let part = &new[offset as usize..][..extent.num_bytes.get() as usize];
            volume.write(&[(extent.disk_bytenr.into(), part)]).unwrap();
        }
        let mut superblock = volume.superblock();
        superblock.cache_generation = 0.into();
        volume.flush().unwrap();
        volume.write_superblocks(&superblock).unwrap();
        volume.flush().unwrap();
        drop(_old);
        let disks: Vec<MemDevice> = disks.iter().map(|d| d.snapshot()).collect();
        let kernel = KernelVolume::from_memory(&disks).unwrap();
        kernel.assert_clean();
        let read = |dir: &Path| Ok(std::fs::read(dir.join("f"))?);
        assert!(
            kernel.with_mount(read).unwrap() == new,
            "{data}: the kernel reads something else"
        );
    }
}

#[test]
fn superblocks_carry_their_device_and_place() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let disks = made(&VolumeOptions::devices(2, "single", "raid1"));
    let volume = open(&disks, &OpenOptions::default()).unwrap();
    let mut superblock = volume.superblock();
    superblock.label[..4].copy_from_slice(b"moo\0");
    volume.write_superblocks(&superblock).unwrap();
    assert_eq!(&volume.superblock().label[..3], b"moo");
    for (index, disk) in disks.iter().enumerate() {
        for at in &SUPERBLOCK_OFFSETS[..2] {
            let mut bytes = vec![0; 4096];
            disk.read_at(*at, &mut bytes).unwrap();
            let found = Superblock::verify(&bytes, Some(*at)).unwrap();
            assert_eq!(found.dev_item.devid.get(), index as u64 + 1);
            assert_eq!(&found.label[..3], b"moo");
        }
    }
}

#[test]
fn a_damaged_first_superblock_has_stand_ins_and_a_wiped_one_only_for_reading() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let disks = made(&VolumeOptions::default());
    flip(&disks[0], SUPERBLOCK_OFFSETS[0] + 2000);
    open(&disks, &OpenOptions::default()).unwrap();
    disks[0].write_at(SUPERBLOCK_OFFSETS[0], &[0; 4096]).unwrap();
    let error = open(&disks, &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    open(&disks, &read_only).unwrap();
    disks[0].write_at(SUPERBLOCK_OFFSETS[1], &[0; 4096]).unwrap();
    let error = open(&disks, &read_only).unwrap_err();
    assert!(error.to_string().contains("not a btrfs device"), "{error}");
}

#[test]
fn missing_devices_are_borne_as_far_as_copies_reach() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let degraded = OpenOptions {
        degraded: true,
        ..OpenOptions::default()
    };
    let disks = made(&VolumeOptions::devices(2, "raid1", "raid1"));
    let error = open(&disks[..1], &OpenOptions::default()).unwrap_err();
    assert!(matches!(error, Error::MissingDevice { devid: DevId(2) }), "{error}");
    for one in [&disks[..1], &disks[1..]] {
        let volume = open(one, &degraded).unwrap();
        let ptr = root_ptr(&volume);
        let block = volume.read_block(&ptr, TreeId::ROOT).unwrap();
        volume.write(&[(ptr.addr, block.bytes())]).unwrap();
        volume.flush().unwrap();
    }
    let disks = made(&VolumeOptions::devices(3, "raid0", "raid1"));
    let error = open(&disks[..2], &degraded).unwrap_err();
    assert!(error.to_string().contains("RAID0"), "{error}");
}

#[test]
fn wrong_sets_of_devices_are_refused() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let disks = made(&VolumeOptions::default());
    let other = made(&VolumeOptions::default());
    let options = OpenOptions::default();
    let error = open(&[disks[0].clone(), other[0].clone()], &options).unwrap_err();
    assert!(error.to_string().contains("another volume"), "{error}");
    let twin = Arc::new(disks[0].snapshot());
    let error = open(&[disks[0].clone(), twin], &options).unwrap_err();
    assert!(error.to_string().contains("copies of the same device"), "{error}");
    assert!(matches!(open(&[], &options), Err(Error::Superblock { .. })));
    let parity = made(&VolumeOptions::devices(3, "raid5", "raid1"));
    let error = open(&parity, &options).unwrap_err();
    assert!(error.to_string().contains("RAID5"), "{error}");
}

/// Two disks in RAID1, each with a plan of faults.
fn faulty() -> (Arc<Volume>, [FaultPlan; 2]) {
    let disks = made(&VolumeOptions::devices(2, "raid1", "raid1"));
    let plans = [FaultPlan::new(), FaultPlan::new()];
    let devices = disks
        .iter()
        .zip(&plans)
        .map(|(disk, plan)| Arc::new(FaultyDevice::new(disk.clone(), plan.clone())) as Arc<dyn BlockDevice>)
        .collect();
    (Volume::open(devices, &OpenOptions::default()).unwrap(), plans)
}

fn fail(plan: &FaultPlan, on: On) {
    plan.add(Fault::error(on, 0).forever());
}

#[test]
fn writes_and_barriers_hold_while_a_copy_does() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let (volume, plans) = faulty();
    let ptr = root_ptr(&volume);
    let block = volume.read_block(&ptr, TreeId::ROOT).unwrap();
    let write = || volume.write(&[(ptr.addr, block.bytes())]);
    fail(&plans[0], On::Write);
    write().unwrap();
    volume.flush().unwrap();
    assert!(volume.device_lost_writes(DevId(1)) && !volume.device_lost_writes(DevId(2)));
    assert_eq!(volume.devices()[0].faults, [1, 0, 0, 0, 0]);
    // The write is on the second disk alone: its barrier must not fail.
    fail(&plans[1], On::Flush);
    assert!(matches!(volume.flush(), Err(Error::Device(_))));
    plans[1].clear();
    assert!(
        matches!(volume.flush(), Err(Error::Refused { .. })),
        "what was lost stays lost"
    );

    let (volume, plans) = faulty();
    fail(&plans[1], On::Flush);
    let addr = root_ptr(&volume).addr;
    volume.write(&[(addr, &[0; 4096])]).unwrap();
    volume.flush().expect("everything is on the first disk");
    fail(&plans[0], On::Write);
    fail(&plans[1], On::Write);
    assert!(matches!(volume.write(&[(addr, &[0; 4096])]), Err(Error::Device(_))));
}

#[test]
fn a_log_superblock_reaches_all_devices_or_fails() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let (volume, plans) = faulty();
    let mut superblock = volume.superblock();
    fail(&plans[1], On::Write);
    superblock.log_root = superblock.root;
    let error = volume
        .write_superblock_copies(&superblock, SuperblockCopies::First)
        .unwrap_err();
    assert!(matches!(error, Error::Device(_)), "{error}");
    assert!(!volume.has_log(), "what failed is not remembered");
    superblock.log_root = 0.into();
    superblock.generation = (superblock.generation.get() + 1).into();
    volume.write_superblocks(&superblock).unwrap();
    assert_eq!(volume.superblock().generation, superblock.generation);
}

#[test]
fn compressed_files_of_the_kernel_decompress() {
    let Some(()) = need::kernel_btrfs() else { return };
    let text: Vec<u8> = (0..40_000_u32)
        .flat_map(|n| format!("line {} of {}\n", n, n.wrapping_mul(2_654_435_761)).into_bytes())
        .collect();
    let mixed = [
        noise(50_000, 5),
        text[..90_000].to_vec(),
        noise(3_000, 6),
        vec![0; 200_000],
    ]
    .concat();
    let small = text[..1500].to_vec();
    for mount_options in [
        "compress-force=zlib",
        "compress-force=lzo",
        "compress-force=zstd",
        "compress-force=zstd:15",
    ] {
        let options = VolumeOptions {
            mount_options,
            ..VolumeOptions::default()
        };
        let files: [(&str, &[u8]); 3] = [("text", &text), ("mixed", &mixed), ("small", &small)];
        let (_kernel, disks) = with_files(&options, &files);
        let volume = open(&disks, &OpenOptions::default()).unwrap();
        let mut compressed = 0;
        for (name, content) in files {
            for (offset, item) in extents(&volume, name) {
                let (ty, bytes, ram_bytes) = match view::file_extent(&item) {
                    Some(FileExtentView::Inline { head, data }) => (head.compression, data.to_vec(), head.ram_bytes),
                    Some(FileExtentView::Regular(extent)) => {
                        let mut bytes = vec![0; extent.disk_num_bytes.get() as usize];
                        let addr = extent.disk_bytenr.into();
                        let sums = csums(&volume, addr, bytes.len() as u64);
                        volume.read_data(addr, &mut bytes, Some(&sums)).unwrap();
                        (extent.compression, bytes, extent.ram_bytes)
                    }
                    None => panic!("no extent item"),
                };
                let plain = if ty == 0 {
                    bytes
                } else {
                    compressed += 1;
                    cowshed_btrfs::compression::decompress::decompress(ty, &bytes, ram_bytes.get() as usize).unwrap()
                };
                let expected = &content[offset as usize..];
                let both = plain.len().min(expected.len());
                assert!(plain[..both] == expected[..both], "{mount_options}: {name} at {offset}");
                assert!(
                    plain[both..].iter().all(|b| *b == 0),
                    "{mount_options}: {name}: padding"
                );
            }
        }
        assert!(
            compressed > 8,
            "{mount_options}: only {compressed} extents are compressed"
        );
    }
}

#[test]
fn an_older_root_opens_read_only_when_asked_for() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (_kernel, disks) = with_files(&VolumeOptions::default(), &[("f", b"x")]);
    let volume = open(&disks, &OpenOptions::default()).unwrap();
    let ptr = root_ptr(&volume);
    for at in volume.map(ptr.addr, 16384).unwrap()[0].copies.iter() {
        flip(disk_of(&disks, *at), at.offset + 200);
    }
    let mut options = OpenOptions::default();
    options.rescue.use_backup_root = true;
    assert!(matches!(open(&disks, &options), Err(Error::Refused { .. })));
    options.read_only = true;
    let older = open(&disks, &options).unwrap();
    assert!(root_ptr(&older).generation < ptr.generation);
    assert!(!tree(&older, TreeId::EXTENT).is_empty());
}

#[test]
fn roots_of_the_past_open_read_only_alone() {
    let made = crate::testing::memory_volume(16384);
    let (device, root) = (made.devices()[0].device.clone().unwrap(), made.superblock().root.into());
    for (tree_root, top_level_root) in [(Some(root), None), (None, Some(root)), (Some(root), Some(root))] {
        let mut options = OpenOptions::default();
        options.rescue.tree_root = tree_root;
        options.rescue.top_level_root = top_level_root;
        let refused = Volume::open(vec![device.clone()], &options);
        assert!(matches!(refused, Err(Error::Refused { .. })));
        options.read_only = true;
        assert!(Volume::open(vec![device.clone()], &options).unwrap().is_read_only());
    }
}

/// Nodes of seven levels, each of which leads a hundred times to the one below; nothing can be read
/// at the end.
#[test]
fn salvage_of_nodes_that_share_their_children_ends() {
    const NODESIZE: u32 = 4096;
    let made = crate::testing::memory_volume(NODESIZE);
    let device = made.devices()[0].device.clone().unwrap();
    let mut superblock = made.superblock();
    let generation = superblock.generation.into();
    let addr_of = |level: u64| LogicalAddr(superblock.root.get() + (1 << 20) + level * u64::from(NODESIZE));
    for level in 1..8_u8 {
        let ptr = BlockPtr {
            addr: addr_of(level.into()),
            generation,
            level,
            first_key: None,
        };
        let mut node = NodeBuilder::new(NODESIZE as usize);
        for number in 0..100 {
            let key = Key::new(ObjectId(256 + number), KeyType::ROOT_ITEM, 0);
            node.push(key, addr_of(u64::from(level) - 1), generation);
        }
        let fields = HeaderFields {
            fsid: made.metadata_fsid(),
            chunk_tree_uuid: made.chunk_tree_uuid(),
            addr: ptr.addr,
            generation,
            owner: TreeId::ROOT,
            level,
            flags: btrfs_format::features::header_flags::CURRENT,
        };
        let block = TreeBlock::seal(node.finish(&fields), &made.expect(&ptr, TreeId::ROOT)).unwrap();
        for at in made.map(ptr.addr, NODESIZE.into()).unwrap()[0].copies.iter() {
            device.write_at(at.offset, block.bytes()).unwrap();
        }
    }
    superblock.root = addr_of(7).into();
    superblock.root_level = 7;
    superblock.super_roots = FromZeros::new_zeroed();
    let mut options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    options.rescue.salvage = true;
    for at in SUPERBLOCK_OFFSETS.into_iter().filter(|at| *at < device.size_bytes()) {
        superblock.bytenr = at.into();
        let mut bytes = superblock.as_bytes().to_vec();
        let sum = made.csum_type().compute(&bytes[32..]);
        bytes[..32].copy_from_slice(&sum);
        device.write_at(at, &bytes).unwrap();
    }
    // The root as it was is still there, but it is of the same generation and a lower level.
    assert!(Volume::open(vec![device], &options).is_err());
}

/// A reader that still has the places of a chunk that is gone may see one copy as it was and
/// another one overwritten by the next user of its room: nothing is repaired.
#[test]
fn what_lay_in_a_chunk_that_is_gone_is_not_repaired() {
    let volume = crate::testing::memory_volume(16384);
    let ptr = root_ptr(&volume);
    let expect = volume.expect(&ptr, TreeId::ROOT);
    let pieces = volume.map(ptr.addr, 16384).unwrap();
    let [_, second] = pieces[0].copies[..] else {
        panic!("metadata of one device is twice on it")
    };
    let device = volume.devices()[0].device.clone().unwrap();
    let read = || {
        let mut bytes = vec![0; 16384];
        device.read_at(second.offset, &mut bytes).unwrap();
        bytes
    };
    let good = read();
    device.write_at(second.offset, &[7; 16384]).unwrap();
    let logical = volume.chunks().lookup(ptr.addr).unwrap().logical();
    let chunk = volume.remove_chunk(logical).unwrap();
    volume.repair_block(&pieces, &expect);
    assert!(read() == [7; 16384], "nothing is written where the chunk was");
    // With the chunk there it is a bad copy.
    volume.add_chunk(Chunk::clone(&chunk)).unwrap();
    volume.repair_block(&pieces, &expect);
    assert!(read() == good, "healed");
}

#[test]
fn the_map_refuses_overlaps_and_knows_its_holes() {
    let chunk = |logical: u64, devices: u64| {
        let stripe = |dev| ChunkStripe {
            at: PhysAddr {
                dev: DevId(dev),
                offset: 1 << 20,
            },
            dev_uuid: [0; 16],
        };
        let flags = btrfs_format::features::block_group::DATA | Profile::Raid0.flag();
        let stripes = (1..=devices).map(stripe).collect();
        Chunk::new(LogicalAddr(logical), (1 << 20) * devices, flags, stripes)
    };
    let mut map = ChunkMap::default();
    map.insert(chunk(4 << 20, 2).unwrap()).unwrap();
    for overlapping in [3 << 20, 4 << 20, 5 << 20] {
        assert!(map.insert(chunk(overlapping, 2).unwrap()).is_err());
    }
    map.insert(chunk(6 << 20, 1).unwrap()).unwrap();
    // From the last stripe of one chunk into the next, and out of it.
    let pieces = map.pieces(LogicalAddr((6 << 20) - 4096), 8192).unwrap();
    let places: Vec<_> = pieces
        .iter()
        .map(|p| (p.copies[0].dev.get(), p.copies[0].offset, p.len_bytes))
        .collect();
    assert_eq!(places, [(2, (2 << 20) - 4096, 4096), (1, 1 << 20, 4096)]);
    match map.pieces(LogicalAddr((7 << 20) - 4096), 8192) {
        Err(Error::Unmapped { addr }) => assert_eq!(addr.get(), 7 << 20),
        other => panic!("{other:?}"),
    }
    assert!(map.pieces(LogicalAddr(u64::MAX), 2).is_err());
    assert!(chunk(u64::MAX - 4095, 1).is_err());
    assert!(chunk(0, 0).is_err());
    let item = item_of(&chunk(0, 2).unwrap(), 4096);
    let (head, stripes) = view::chunk(&item).unwrap();
    let back = Chunk::from_item(LogicalAddr(0), head, stripes, 4096).unwrap();
    assert_eq!(back, chunk(0, 2).unwrap());
}

/// The bytes of a chunk item.
fn item_of(chunk: &Chunk, sectorsize_bytes: u32) -> Vec<u8> {
    let head = ChunkHead {
        length: U64::new(chunk.length_bytes()),
        owner: TreeId::EXTENT.into(),
        stripe_len: U64::new(STRIPE_LEN_BYTES),
        ty: U64::new(chunk.flags()),
        io_align: U32::new(STRIPE_LEN_BYTES as u32),
        io_width: U32::new(STRIPE_LEN_BYTES as u32),
        sector_size: U32::new(sectorsize_bytes),
        num_stripes: U16::new(u16::try_from(chunk.stripes().len()).expect("a chunk of ours has few stripes")),
        sub_stripes: U16::new(chunk.profile().sub_stripes()),
    };
    let mut out = head.as_bytes().to_vec();
    for stripe in chunk.stripes() {
        let raw = Stripe {
            devid: stripe.at.dev.into(),
            offset: U64::new(stripe.at.offset),
            dev_uuid: stripe.dev_uuid,
        };
        out.extend_from_slice(raw.as_bytes());
    }
    out
}
