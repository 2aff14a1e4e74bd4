//! Volumes that mkfs.btrfs and the kernel made: nothing is to be said against them.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use btrfs_check::{CheckOptions, FindingId, Report, Severity, check};
use btrfs_format::ChecksumType;
use btrfs_image::MkfsOptions;
use cowshed_device::{BlockDevice, FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, matrix_full, need, progs, run, shell};

fn check_images(images: &[PathBuf]) -> Result<Report> {
    let devices = images
        .iter()
        .map(|image| -> Result<Arc<dyn BlockDevice>> {
            Ok(Arc::new(FileDevice::open_with(
                image,
                OpenMode::ReadOnly,
                Locking::Unlocked,
            )?))
        })
        .collect::<Result<Vec<_>>>()?;
    let options = CheckOptions {
        data_csums: true,
        threads: 2,
        ..CheckOptions::default()
    };
    Ok(check(&devices, &options))
}

fn assert_clean(what: &str, report: &Report) {
    assert!(report.is_clean(), "{what}:\n{report}");
}

/// Sums that `btrfs check` prints and ours must equal.
fn assert_same_sums(report: &Report, output: &str) {
    let number = |name: &str| -> Option<u64> {
        let line = output.lines().find(|line| line.contains(name))?;
        line.split(|c: char| !c.is_ascii_digit())
            .find_map(|word| word.parse().ok())
    };
    let sums = &report.statistics;
    for (name, ours) in [
        ("bytes used", sums.bytes_used),
        ("total csum bytes", sums.csum_bytes),
        ("total tree bytes", sums.tree_bytes),
        ("total fs tree bytes", sums.fs_tree_bytes),
        ("total extent tree bytes", sums.extent_tree_bytes),
        ("file data blocks allocated", sums.data_allocated_bytes),
        (" referenced", sums.data_referenced_bytes),
    ] {
        assert_eq!(Some(ours), number(name), "{name} in:\n{output}");
    }
}

fn judge(options: &VolumeOptions, volume: &KernelVolume) -> Result<()> {
    let theirs = volume.check(progs::CheckOptions {
        data_csum: true,
        ..Default::default()
    })?;
    // btrfs-progs 6.2 takes what it rebuilds from parity for a copy, and finds it wrong.
    let parity = ["raid5", "raid6"].map(Some).contains(&options.data);
    assert!(theirs.clean || parity, "{}: {}", options.describe(), theirs.output);
    let report = check_images(volume.images())?;
    assert_clean(&options.describe(), &report);
    assert!(report.statistics.data_verified_bytes > 0 || options.mount_options.starts_with("nodata"));
    if !parity {
        assert_same_sums(&report, &theirs.output);
    }
    Ok(())
}

#[test]
fn every_kind_of_volume_is_clean() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    for options in matrix_full() {
        let volume = KernelVolume::make_populated(&options, 7, 60)?;
        judge(&options, &volume).with_context(|| options.describe())?;
    }
    Ok(())
}

/// What the harness's trees do not hold: fragments, punched holes, many links, moved subvolumes,
/// orphans.
#[test]
fn aged_volume_is_clean() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let new = VolumeOptions {
        size_bytes: 1 << 30,
        ..VolumeOptions::default()
    };
    // Large enough for caches of version 1, which the kernel keeps for block groups from 100 MiB.
    let old = VolumeOptions {
        size_bytes: 2 << 30,
        features: vec!["^no-holes"],
        runtime_features: vec!["^free-space-tree"],
        mount_options: "space_cache=v1",
        ..VolumeOptions::default()
    };
    for options in [new, old] {
        let volume = KernelVolume::make(&options)?;
        volume.with_mount(|root| {
            shell(
                root,
                r#"
                mkdir many links; for i in $(seq 3000); do echo $i > many/file-with-a-name-$i; done
                for i in $(seq 200); do ln many/file-with-a-name-1 links/$(printf 'x%.0s' {1..200})$i; done
                btrfs -q subvolume create sv; cp -r many sv/; btrfs filesystem sync .; btrfs -q subvolume snapshot sv s1; btrfs -q subvolume snapshot -r . s2
                for i in $(seq 1 3 3000); do rm many/file-with-a-name-$i sv/many/file-with-a-name-$i; done
                head -c 8M /dev/urandom > r; btrfs filesystem sync .; cp --reflink=always r r2; cp --reflink=always r s1/r
                for i in $(seq 0 40); do head -c 4096 /dev/urandom | dd of=r bs=4k seek=$((i*7)) conv=notrunc,fsync status=none; done
                fallocate -p -o 1M -l 300k r2; fallocate -p -o 2050k -l 1k r2; fallocate -l 5M pre
                head -c 100k /dev/urandom | dd of=pre bs=4k seek=30 conv=notrunc status=none
                truncate -s 100M holes; echo end >> holes; truncate -s 30M holes
                btrfs -q subvolume create inner; mv inner sv/moved; btrfs -q subvolume snapshot sv s3
                btrfs -q subvolume delete s1; btrfs -q subvolume create gone; btrfs -q subvolume delete gone
                "#,
            )
        })?;
        judge(&options, &volume)?;
        // Relocation writes blocks of its own kind into the trees.
        let mounted = volume.mount()?;
        mounted.btrfs(&["balance", "start", "--full-balance", "{}"])?;
        mounted.unmount_quietly()?;
        judge(&options, &volume)?;
    }
    Ok(())
}

/// A subvolume half deleted, as an unmount leaves it: what is gone already is not missed, shared or
/// not.
///
/// How far the kernel gets before the unmount is its matter: larger trees until one is caught in
/// the middle.
#[test]
fn interrupted_subvolume_deletion_is_clean() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    for files in [60_000, 120_000, 240_000, 480_000] {
        if deletions_cut_short(files)? > 0 {
            return Ok(());
        }
    }
    panic!("no deletion was caught in the middle");
}

/// Deletes a subvolume of so many files and its snapshot; returns how often an unmount caught that
/// in the middle.
fn deletions_cut_short(files: u32) -> Result<usize> {
    let options = VolumeOptions {
        size_bytes: 2 << 30,
        node_bytes: Some(4096),
        ..VolumeOptions::default()
    };
    let volume = KernelVolume::make(&options)?;
    volume.with_mount(|root| {
        let script = format!(
            "btrfs -q subvolume create sv; mkdir sv/d; cd sv/d; seq -f 'a-name-that-fills-the-leaf-%.0f' {files} | xargs touch; \
             cd ../..; btrfs filesystem sync .; btrfs -q subvolume snapshot sv snap; rm snap/d/a-name-that-fills-the-leaf-*777"
        );
        shell(root, &script)
    })?;
    let mut cut = 0;
    for subvolume in ["sv", "snap"] {
        volume.with_mount(|root| {
            let script = format!("btrfs -q subvolume delete {subvolume}; btrfs filesystem sync .");
            shell(root, &script)
        })?;
        for round in 0..4 {
            let report = check_images(volume.images())?;
            assert_clean(&format!("deleting {subvolume}, round {round}"), &report);
            cut += progs::dump_tree(volume.images(), &["-t", "root"])?
                .lines()
                .filter(|line| line.contains("drop_progress key (") && !line.contains("key (0 "))
                .count();
            volume.with_mount(|root| shell(root, "btrfs filesystem sync ."))?;
        }
    }
    Ok(cut)
}

/// A log of fsync is legal, and named.
#[test]
fn dirty_log_is_a_note() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let volume = KernelVolume::make(&VolumeOptions::default())?;
    let mounted = volume.mount_with("commit=1000")?;
    shell(
        mounted.dir(),
        "mkdir d; for i in 1 2 3; do echo $i > d/$i; done; btrfs filesystem sync .; echo more > d/4; sync d/4; head -c 100k /dev/urandom > d/5; sync d/5",
    )?;
    let copy = KernelVolume::copy_of(volume.images())?;
    mounted.unmount()?;
    let report = check_images(copy.images())?;
    assert_clean("a dirty log", &report);
    assert!(report.has(FindingId::LogPresent), "{report}");
    Ok(())
}

/// The other id that a volume may show to the world.
#[test]
fn changed_fsid_is_clean() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let Some(()) = need::tool("btrfstune") else {
        return Ok(());
    };
    let volume = KernelVolume::make(&VolumeOptions::default())?;
    run("btrfstune", &["-f", "-m", volume.image().to_str().context("text")?])?;
    assert_clean("metadata_uuid", &check_images(volume.images())?);
    Ok(())
}

#[test]
fn missing_device_is_reported_once() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let volume = KernelVolume::make_populated(&VolumeOptions::devices(2, "raid1", "raid1"), 1, 50)?;
    let report = check_images(&volume.images()[..1])?;
    let found: Vec<_> = report
        .counts
        .iter()
        .filter(|(id, _)| id.severity() > Severity::Note)
        .collect();
    assert_eq!(found, [(&FindingId::DeviceMissing, &1)], "{report}");
    Ok(())
}

/// btrfs-progs 6.2 cannot make a block-group tree; our mkfs can, and the kernel fills the volume.
#[test]
fn block_group_tree_is_clean() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    for csum in ChecksumType::ALL {
        let memory = Arc::new(MemDevice::new("volume", 1 << 30));
        let device: Arc<dyn BlockDevice> = memory.clone();
        let mut options = MkfsOptions::new([csum.to_raw() as u8 + 1; 16]);
        options.features.apply("block-group-tree")?;
        options.csum_type = csum;
        btrfs_image::mkfs(&[device], &options)?;
        let volume = KernelVolume::from_memory(&[memory.snapshot()])?;
        assert_clean("new", &check_images(volume.images())?);
        volume.with_mount(|root| {
            shell(
                root,
                "mkdir d; for i in $(seq 500); do echo $i > d/$i; done; head -c 50M /dev/urandom > r; cp --reflink=always r r2; \
                 btrfs -q subvolume snapshot . snap; rm d/*3; btrfs filesystem sync .",
            )
        })?;
        let report = check_images(volume.images())?;
        assert_clean(csum.name(), &report);
        assert!(report.statistics.extents > 10);
    }
    Ok(())
}
