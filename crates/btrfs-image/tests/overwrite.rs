//! What mkfs does to devices that hold something, that fail, or that lose power.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use btrfs_format::superblock::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{BlockExpect, ChecksumType, Superblock, TreeBlock};
use btrfs_image::plan::{GENERATION, VolumePlan};
use btrfs_image::{Discarded, MkfsError, MkfsOptions, Profile, mkfs, signature};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, Log, On};
use cowshed_harness::{need, run, scratch_dir};
use zerocopy::FromBytes;

const SIZE_BYTES: u64 = 256 << 20;

fn options(uuid: u8) -> MkfsOptions {
    let mut options = MkfsOptions::new([uuid; 16]);
    options.force = true;
    options
}

fn plan(devices: usize, options: &MkfsOptions) -> VolumePlan {
    let names: Vec<String> = (0..devices).map(|index| format!("disk{index}")).collect();
    let sizes: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), SIZE_BYTES)).collect();
    VolumePlan::empty(options.settle(&sizes).unwrap()).unwrap()
}

/// The superblock of a device at one of its places, if it is whole.
fn superblock(device: &dyn BlockDevice, offset: u64) -> Option<Superblock> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(offset, &mut bytes).ok()?;
    let sb = Superblock::read_from_bytes(&bytes).ok()?;
    let csum_type = ChecksumType::from_raw(sb.csum_type.get())?;
    (sb.magic == MAGIC && sb.csum == sb.compute_csum(csum_type)).then_some(sb)
}

/// Fails where a copy of a block of the plan is not what it should be.
fn check_blocks(devices: &[MemDevice], plan: &VolumePlan) -> Result<()> {
    for placed in &plan.trees {
        for (addr, level, _) in placed.blocks() {
            let expect = BlockExpect {
                addr,
                fsid: plan.settings.uuid,
                csum_type: plan.settings.csum_type,
                sectorsize_bytes: plan.settings.sectorsize_bytes,
                level: Some(level),
                generation: Some(GENERATION),
                first_key: None,
                tree: Some(placed.tree.id),
            };
            let chunk = plan.chunks.chunk_of(addr).expect("planned");
            for copy in chunk.map(addr, plan.settings.nodesize() as u64) {
                let mut bytes = vec![0; plan.settings.nodesize()];
                devices[copy.device].read_at(copy.offset_bytes, &mut bytes)?;
                TreeBlock::verify(bytes, &expect)?;
            }
        }
    }
    Ok(())
}

#[test]
fn superblock_is_written_after_its_volume() -> Result<()> {
    for device_count in [1, 2] {
        let (old, mut new) = (options(1), options(2));
        new.nodesize_bytes = Some(4096);
        new.csum_type = ChecksumType::Xxhash64;
        let (old_plan, new_plan) = (plan(device_count, &old), plan(device_count, &new));
        let bases: Vec<Arc<MemDevice>> = (0..device_count)
            .map(|index| Arc::new(MemDevice::new(format!("disk{index}"), SIZE_BYTES)))
            .collect();
        let plain: Vec<Arc<dyn BlockDevice>> = bases.iter().map(|base| Arc::clone(base) as _).collect();
        mkfs(&plain, &old)?;
        let bases: Vec<MemDevice> = bases.iter().map(|base| base.snapshot()).collect();

        let log = Log::new();
        let recorded: Vec<Arc<dyn BlockDevice>> = bases
            .iter()
            .map(|base| Arc::new(log.record(Arc::new(base.snapshot()))) as _)
            .collect();
        mkfs(&recorded, &new)?;
        log.mark(1);
        let events = log.take();
        let (mut olds, mut nones, mut news) = (0, 0, 0);
        for image in CrashImages::new(&bases, &events, Options::default()) {
            let found: Vec<Superblock> = image
                .devices
                .iter()
                .flat_map(|device| SUPERBLOCK_OFFSETS.map(|offset| superblock(device, offset)))
                .flatten()
                .collect();
            let (is_old, is_new) = (
                found.iter().any(|sb| sb.fsid == old.uuid),
                found.iter().any(|sb| sb.fsid == new.uuid),
            );
            ensure!(!(is_old && is_new), "two volumes at once");
            ensure!(
                is_new || image.last_mark().is_none(),
                "no volume after mkfs has returned"
            );
            if is_old {
                olds += 1;
                check_blocks(&image.devices, &old_plan).with_context(|| format!("the old volume in {image}"))?;
            } else if is_new {
                news += 1;
                check_blocks(&image.devices, &new_plan).with_context(|| format!("the new volume in {image}"))?;
            } else {
                nones += 1;
            }
        }
        assert!(
            olds > 0 && nones > 0 && news > 0,
            "{olds} {nones} {news}: all phases were seen"
        );
    }
    Ok(())
}

#[test]
fn every_failing_write_and_flush_is_reported() {
    for on in [On::Read, On::Write, On::Flush] {
        let mut failures = 0;
        loop {
            let faults = FaultPlan::new();
            faults.add(Fault::error(on, failures));
            let below = Arc::new(MemDevice::new("disk", SIZE_BYTES));
            let device: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(below, faults));
            match mkfs(&[device], &options(1)) {
                Ok(_) => break,
                Err(MkfsError::Device(_)) => failures += 1,
                Err(other) => panic!("{on:?} {failures}: {other}"),
            }
        }
        assert!(failures > 0, "{on:?} can fail");
    }
}

#[test]
fn device_in_use_is_refused_and_untouched() -> Result<()> {
    let device = Arc::new(MemDevice::new("disk", SIZE_BYTES));
    device.write_at(0, b"XFSB")?;
    let log = Log::new();
    let recorded: Arc<dyn BlockDevice> = Arc::new(log.record(device));
    let mut gentle = options(1);
    gentle.force = false;
    let error = mkfs(&[Arc::clone(&recorded)], &gentle).unwrap_err();
    assert_eq!(
        error.to_string(),
        "disk: holds an XFS file system (signature at byte 0); force overwrites it"
    );
    assert!(log.is_empty(), "a refused device is not written to");
    let report = mkfs(&[Arc::clone(&recorded)], &options(1))?;
    assert_eq!(report.devices[0].wiped.len(), 1);
    let error = mkfs(&[recorded], &gentle).unwrap_err();
    assert!(error.to_string().contains("holds a btrfs volume"), "{error}");
    Ok(())
}

#[test]
fn read_only_device_is_refused() {
    let device = MemDevice::new("disk", SIZE_BYTES);
    device.set_read_only(true);
    let error = mkfs(&[Arc::new(device)], &options(1)).unwrap_err();
    assert_eq!(error.to_string(), "disk is read-only");
}

#[test]
fn no_old_signature_survives() -> Result<()> {
    let plan_bytes = 120 << 20;
    for discard in [false, true] {
        let device = Arc::new(MemDevice::new("disk", SIZE_BYTES));
        mkfs(&[Arc::clone(&device) as _], &options(1))?;
        device.write_at(SIZE_BYTES - 512, b"EFI PART")?;
        device.write_at(510, &[0x55, 0xaa])?;
        device.write_at(SIZE_BYTES - 0x10000, b"\xfc\x4e\x2b\xa9")?;
        let mut small = options(2);
        (small.byte_count, small.discard) = (Some(plan_bytes), discard);
        mkfs(&[Arc::clone(&device) as _], &small)?;
        let left = signature::probe(device.as_ref())?;
        let names: Vec<&str> = left.iter().map(|s| s.name).collect();
        assert_eq!(names, ["a btrfs volume", "a copy of a btrfs superblock"]);
        assert_eq!(superblock(device.as_ref(), 64 << 20).unwrap().fsid, [2; 16]);
    }
    // A volume that ends before the second copy leaves none of the old one there.
    let device = Arc::new(MemDevice::new("disk", SIZE_BYTES));
    mkfs(&[Arc::clone(&device) as _], &options(1))?;
    let mut tiny = options(2);
    (tiny.byte_count, tiny.mixed, tiny.discard) = (Some(20 << 20), true, false);
    mkfs(&[Arc::clone(&device) as _], &tiny)?;
    assert!(superblock(device.as_ref(), 64 << 20).is_none());
    Ok(())
}

#[test]
fn nothing_is_written_beyond_byte_count() -> Result<()> {
    let device = Arc::new(MemDevice::new("disk", SIZE_BYTES));
    let mut small = options(1);
    small.byte_count = Some(115_000_000);
    // The last bytes of a device are wiped in any case: signatures lie there.
    let tail_bytes = SIZE_BYTES - 115_000_000 - (2 << 20);
    device.write_at(115_000_000, &vec![7; tail_bytes as usize])?;
    device.write_at(80 << 20, &[7; 4096])?;
    let report = mkfs(&[Arc::clone(&device) as _], &small)?;
    assert_eq!(report.total_bytes, 115_000_000 - 115_000_000 % 4096);
    assert_eq!(report.devices[0].discarded, Discarded::All);
    let mut tail = vec![0; tail_bytes as usize];
    device.read_at(115_000_000, &mut tail)?;
    assert!(tail.iter().all(|&byte| byte == 7));
    let mut middle = [7; 4096];
    device.read_at(80 << 20, &mut middle)?;
    assert_eq!(middle, [0; 4096], "the volume's part is discarded");
    Ok(())
}

#[test]
fn a_failed_discard_is_reported_and_no_error() -> Result<()> {
    let device = Arc::new(MemDevice::new("disk", SIZE_BYTES));
    for (discard, fails, expected) in [
        (true, false, Discarded::All),
        (true, true, Discarded::NotDone),
        (false, false, Discarded::NotAsked),
    ] {
        let plan = FaultPlan::new();
        if fails {
            plan.add(Fault::error(On::Discard, 0));
        }
        let mut options = options(1);
        options.discard = discard;
        let report = mkfs(&[Arc::new(FaultyDevice::new(device.clone(), plan.clone()))], &options)?;
        assert_eq!(report.devices[0].discarded, expected);
        assert_eq!(plan.counts().discards, u64::from(discard));
    }
    Ok(())
}

#[test]
fn new_volume_leaves_image_sparse() -> Result<()> {
    let device = Arc::new(MemDevice::new("disk", 1 << 40));
    mkfs(&[Arc::clone(&device) as _], &options(1))?;
    // Ten blocks, nine of them and the chunk tree twice, and three superblocks, in pieces of 16
    // KiB.
    assert!(device.used_bytes() <= 23 * 16384, "{}", device.used_bytes());
    Ok(())
}

#[test]
fn contents_of_other_programs_are_recognised() -> Result<()> {
    for (program, args, name) in [
        ("mkfs.ext4", &["-q", "-F"][..], "an ext2, ext3 or ext4 file system"),
        ("mkfs.xfs", &["-q"], "an XFS file system"),
        ("mkfs.btrfs", &["-q"], "a btrfs volume"),
        ("mkswap", &["-q"], "a swap area"),
    ] {
        let Some(()) = need::tool(program) else { continue };
        let dir = scratch_dir()?;
        let image = dir.path().join("image");
        std::fs::File::create_new(&image)?.set_len(400 << 20)?;
        let path = image.to_str().expect("a temporary path is text");
        let args: Vec<&str> = args.iter().copied().chain([path]).collect();
        run(program, &args)?;
        let device = cowshed_device::FileDevice::open(&image, cowshed_device::OpenMode::ReadWrite)?;
        let found = signature::probe(&device)?;
        assert_eq!(found.first().map(|found| found.name), Some(name), "{program}");
        let mut single = options(3);
        single.metadata_profile = Some(Profile::Single);
        mkfs(&[Arc::new(device)], &single)?;
    }
    Ok(())
}
