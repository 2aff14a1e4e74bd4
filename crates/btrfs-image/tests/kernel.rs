//! The kernel and btrfs-progs judge what mkfs makes, and mkfs.btrfs says what it should look like.
//!
//! `cargo test -p btrfs-image -- --ignored` tries every combination; the usual run tries a share of
//! them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use btrfs_format::{ChecksumType, TreeId};
use btrfs_image::{MkfsOptions, NewSubvolume, Profile, mkfs};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_harness::{KernelVolume, VolumeOptions, need, progs, run};

const MIB: u64 = 1 << 20;
const UUID: [u8; 16] = [0x5e; 16];

/// A volume to make.
#[derive(Clone, Debug)]
struct Case {
    devices: usize,
    device_bytes: u64,
    options: MkfsOptions,
}

impl Case {
    fn new(devices: usize, device_bytes: u64, change: impl FnOnce(&mut MkfsOptions)) -> Self {
        let mut options = MkfsOptions::new(UUID);
        options.time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        options.label = "made by cowshed".into();
        change(&mut options);
        Self {
            devices,
            device_bytes,
            options,
        }
    }

    /// As the kernel must not see one volume twice, each is made with a uuid of its own.
    fn make(&self) -> Result<KernelVolume> {
        let mut options = self.options.clone();
        options.uuid = unique_uuid()?;
        KernelVolume::from_memory(&self.make_in_memory(&options)?)
    }

    fn make_in_memory(&self, options: &MkfsOptions) -> Result<Vec<MemDevice>> {
        let devices: Vec<Arc<MemDevice>> = (0..self.devices)
            .map(|index| Arc::new(MemDevice::new(format!("disk{index}"), self.device_bytes)))
            .collect();
        let dyn_devices: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|d| Arc::clone(d) as _).collect();
        mkfs(&dyn_devices, options)?;
        Ok(devices.iter().map(|device| device.snapshot()).collect())
    }

    /// Checked, mounted, written to, scrubbed, unmounted, checked again.
    fn judge(&self) -> Result<()> {
        let volume = self.make().with_context(|| format!("{self:?}"))?;
        self.judge_volume(&volume).with_context(|| format!("{self:?}"))
    }

    fn judge_volume(&self, volume: &KernelVolume) -> Result<()> {
        check_all(volume).context("before the kernel")?;
        let contents = vec![0xc5; 300_000];
        volume
            .with_mount(|dir| {
                ensure!(std::fs::read_dir(dir)?.next().is_none(), "a new volume is empty");
                std::fs::create_dir(dir.join("sub"))?;
                std::fs::write(dir.join("sub/file"), &contents)?;
                progs::scrub(dir)
            })
            .context("in the kernel")?;
        check_all(volume).context("after the kernel")?;
        volume.with_mount(|dir| {
            ensure!(std::fs::read(dir.join("sub/file"))? == contents, "the file reads back");
            Ok(())
        })
    }
}

fn unique_uuid() -> Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    Ok(u128::from_str_radix(&text.trim().replace('-', ""), 16)?.to_be_bytes())
}

/// Both checkers of btrfs-progs.
fn check_all(volume: &KernelVolume) -> Result<()> {
    for lowmem in [false, true] {
        let report = volume.check(progs::CheckOptions {
            data_csum: true,
            lowmem,
        })?;
        ensure!(report.clean, "btrfs check (lowmem: {lowmem}):\n{}", report.output);
    }
    Ok(())
}

/// Every pair of profiles, each checksum and each node size; mixed volumes too.
fn every_case() -> Vec<Case> {
    let mut cases = Vec::new();
    for csum_type in ChecksumType::ALL {
        for metadata in Profile::ALL {
            for data in Profile::ALL {
                for nodesize in [4096, 8192, 16384, 32768, 65536] {
                    let devices = metadata.devices_min().max(data.devices_min());
                    // Room enough for what the kernel reserves with large nodes.
                    cases.push(Case::new(devices, 1024 * MIB, |o| {
                        o.csum_type = csum_type;
                        o.metadata_profile = Some(metadata);
                        o.data_profile = Some(data);
                        o.nodesize_bytes = Some(nodesize);
                    }));
                }
            }
            for device_bytes in [96 * MIB, 300 * MIB] {
                cases.push(Case::new(metadata.devices_min(), device_bytes, |o| {
                    o.csum_type = csum_type;
                    o.mixed = true;
                    o.metadata_profile = Some(metadata);
                }));
            }
        }
    }
    cases
}

/// Numbers that are the same each time: splitmix64.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Subvolumes of a new volume, two of them in one item since their names have one hash, and one
/// within another.
#[test]
fn new_subvolumes_are_valid_for_the_kernel() {
    let Some(()) = need::kernel_btrfs() else { return };
    let subvolume = |parent, name: &str| NewSubvolume {
        parent: TreeId(parent),
        name: name.into(),
    };
    for nodesize in [4096, 16384] {
        let case = Case::new(1, 512 * MIB, |o| {
            o.nodesize_bytes = Some(nodesize);
            o.subvolumes = vec![
                subvolume(5, "qxjwxhwb"),
                subvolume(5, "tenodxqc"),
                subvolume(256, "inner"),
                subvolume(258, "deep"),
            ];
        });
        let volume = case.make().unwrap();
        check_all(&volume).unwrap();
        let look = |dir: &std::path::Path| {
            let list = run("btrfs", &["subvolume", "list", "-u", &dir.to_string_lossy()])?;
            let paths: Vec<_> = list.lines().filter_map(|line| line.split_once(" path ")).collect();
            let found: Vec<_> = paths.iter().map(|(_, path)| *path).collect();
            ensure!(
                found == ["qxjwxhwb", "tenodxqc", "qxjwxhwb/inner", "qxjwxhwb/inner/deep"],
                "{list}"
            );
            std::fs::write(dir.join("qxjwxhwb/inner/deep/file"), vec![1; 100_000])?;
            run(
                "btrfs",
                &["subvolume", "delete", &dir.join("tenodxqc").to_string_lossy()],
            )?;
            progs::scrub(dir)
        };
        volume.with_mount(look).unwrap();
        check_all(&volume).unwrap();
    }
}

#[test]
fn default_volume_satisfies_kernel_and_checkers() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    Case::new(1, 256 * MIB, |_| {}).judge()?;
    Case::new(3, 256 * MIB, |_| {}).judge()
}

#[test]
fn a_share_of_all_combinations_satisfies_kernel_and_checkers() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let mut state: u64 = 20_261_121;
    let cases = every_case();
    for _ in 0..8 {
        let index = draw(&mut state) % cases.len() as u64;
        cases[index as usize].judge()?;
    }
    Ok(())
}

#[test]
#[ignore = "a thousand volumes: some minutes"]
fn all_combinations_satisfy_kernel_and_checkers() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    let mut failed = Vec::new();
    let cases = every_case();
    let total = cases.len();
    for case in cases {
        if let Err(error) = case.judge() {
            eprintln!("FAILED: {error:#}");
            failed.push(format!("{error:#}"));
        }
    }
    ensure!(
        failed.is_empty(),
        "{} of {total} fail:\n{}",
        failed.len(),
        failed.join("\n")
    );
    Ok(())
}

#[test]
fn smallest_volumes_mount_and_check() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    for (metadata, data) in [
        (Profile::Single, Profile::Single),
        (Profile::Dup, Profile::Single),
        (Profile::Raid1, Profile::Single),
        (Profile::Raid10, Profile::Raid0),
        (Profile::Dup, Profile::Dup),
    ] {
        let bytes = btrfs_image::device_bytes_min(false, metadata, data);
        let devices = metadata.devices_min().max(data.devices_min());
        // Not with larger nodes: the kernel reserves for each operation by the node size, and gets
        // lost between allocating and dropping chunks (for ever: the volume cannot be unmounted) on
        // volumes this small, mkfs.btrfs's or ours.
        for nodesize in [4096, 16384] {
            Case::new(devices, bytes, |o| {
                o.metadata_profile = Some(metadata);
                o.data_profile = Some(data);
                o.nodesize_bytes = Some(nodesize);
            })
            .judge()?;
        }
    }
    for bytes in [16 * MIB, 17 * MIB, 29 * MIB, 30 * MIB, 50 * MIB] {
        Case::new(1, bytes, |o| o.mixed = true).judge()?;
        // mkfs.btrfs names 16 MiB as the minimum for these too, and then finds no room.
        for profile in [
            Profile::Dup,
            Profile::Raid0,
            Profile::Raid1,
            Profile::Raid10,
            Profile::Raid1c4,
        ] {
            Case::new(profile.devices_min(), bytes, |o| {
                (o.mixed, o.metadata_profile) = (true, Some(profile));
            })
            .judge()?;
        }
    }
    Ok(())
}

#[test]
fn volume_with_features_off_is_valid() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    for list in [
        "^free-space-tree",
        "^block-group-tree",
        "^no-holes",
        "^skinny-metadata",
        "^extref",
        "^extref,^skinny-metadata,^no-holes,^free-space-tree",
    ] {
        let mut case = Case::new(1, 256 * MIB, |_| {});
        case.options.features.apply(list)?;
        case.judge().context(list)?;
    }
    Ok(())
}

/// Lines of a dump that do not depend on uuids, times, transactions or the places of blocks.
fn stable_lines(dump: &str) -> Vec<String> {
    const CHANGING: [&str; 15] = [
        "device=",
        "uuid",
        "fsid",
        "generation",
        "leaf ",
        "ctime",
        "atime",
        "mtime",
        "otime",
        "csum\t",
        "root\t\t",
        "chunk_root\t",
        "backup",
        "csum_root",
        "tree key",
    ];
    dump.lines()
        .filter(|line| !line.is_empty() && !CHANGING.iter().any(|word| line.contains(word)))
        // mkfs.btrfs writes its very first chunk by hand, with other values in two fields that
        // nothing reads.
        .filter(|line| !line.contains("io_align 4096 io_width 4096") && !line.contains("io_align 65536"))
        .map(|line| line.trim().replace("sub_stripes 0", "sub_stripes 1"))
        .collect()
}

fn dump(volume: &KernelVolume, what: &[&str]) -> Result<String> {
    match what {
        ["super"] => progs::dump_super(&volume.images()[0]),
        args => progs::dump_tree(volume.images(), args),
    }
}

/// Sizes and profiles for which mkfs.btrfs leaves no choice of devices.
fn compared_cases() -> Vec<(Case, VolumeOptions)> {
    let mut cases = Vec::new();
    let mut put = |devices: usize, mib: u64, metadata: &'static str, data: &'static str, mixed: bool, nodesize: u32| {
        let case = Case::new(devices, mib * MIB, |o| {
            o.metadata_profile = Some(metadata.parse().expect("a profile"));
            o.data_profile = Some(data.parse().expect("a profile"));
            o.mixed = mixed;
            o.nodesize_bytes = Some(nodesize);
            // The installed btrfs-progs may be from before the block group tree.
            o.features.block_group_tree = Some(false);
        });
        let options = VolumeOptions {
            devices,
            size_bytes: mib * MIB,
            metadata: Some(metadata),
            data: Some(data),
            mixed,
            node_bytes: Some(nodesize),
            label: Some("made by cowshed".into()),
            ..VolumeOptions::default()
        };
        cases.push((case, options));
    };
    for mib in [110, 300, 1024, 3 * 1024, 5 * 1024, 20 * 1024, 60 * 1024] {
        put(1, mib, "dup", "single", false, 16384);
        put(1, mib, "single", "single", false, 16384);
        put(1, mib, "single", "single", true, 4096);
        put(2, mib, "raid1", "single", false, 16384);
        put(2, mib, "raid0", "single", false, 65536);
        put(2, mib, "single", "raid0", false, 4096);
        if mib >= 300 {
            put(1, mib, "dup", "dup", false, 16384);
            put(1, mib, "dup", "dup", true, 4096);
            put(2, mib, "raid1", "raid1", false, 16384);
            put(2, mib, "raid1", "raid1", true, 4096);
            put(2, mib, "raid10", "raid0", false, 16384);
            put(3, mib, "raid1c3", "raid1c3", false, 16384);
            put(4, mib, "raid10", "raid10", false, 16384);
            put(4, mib, "raid0", "raid0", false, 16384);
            put(4, mib, "raid1c4", "raid1c4", false, 16384);
        }
    }
    put(1, 46, "single", "single", false, 16384);
    put(2, 70, "raid0", "single", false, 16384);
    put(1, 30, "single", "single", true, 4096);
    cases
}

#[test]
fn chunks_and_items_equal_those_of_mkfs_btrfs() -> Result<()> {
    let Some(()) = need::kernel_btrfs() else { return Ok(()) };
    for (case, options) in compared_cases() {
        let (ours, theirs) = (case.make()?, KernelVolume::make(&options)?);
        for what in [
            &["-t", "chunk"][..],
            &["-t", "dev"],
            &["-t", "fs"],
            &["-t", "csum"],
            &["-t", "root"],
            &["super"],
        ] {
            let ours = stable_lines(&dump(&ours, what)?);
            let theirs = stable_lines(&dump(&theirs, what)?);
            let differ: Vec<_> = ours
                .iter()
                .zip(&theirs)
                .filter(|(ours, theirs)| ours != theirs)
                .collect();
            ensure!(
                ours == theirs,
                "{} {what:?}: {} and {} lines, these differ: {differ:#?}",
                options.describe(),
                ours.len(),
                theirs.len()
            );
        }
    }
    Ok(())
}

#[test]
fn same_options_give_same_bytes() -> Result<()> {
    let case = Case::new(2, 256 * MIB, |_| {});
    let read = |device: &MemDevice| -> Result<Vec<u8>> {
        let mut bytes = vec![0; device.size_bytes() as usize];
        device.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    let first = case.make_in_memory(&case.options)?;
    let second = case.make_in_memory(&case.options)?;
    for (first, second) in first.iter().zip(&second) {
        assert!(read(first)? == read(second)?);
    }
    Ok(())
}
