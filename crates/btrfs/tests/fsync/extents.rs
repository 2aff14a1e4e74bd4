//! Files of many small extents, changed at random and synced: each fsync may be the last thing that
//! reaches the disk, and then the kernel's replay and ours must both give the file as it was.
//!
//! `COWSHED_EXTENTS_SEED` runs one seed, `COWSHED_EXTENTS_SEEDS` more of them.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_btrfs::fs::MountOptions;
use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_vfs::{Algorithm, Compression, FallocateFlags, FileSystem, Handle, InitInfo, SetAttr};

use crate::dice::{Dice, for_each_seed};
use crate::rig::{ROOT, Rig, kernel_can};
use crate::seen::{Content, after_crash};

const FILES: usize = 3;
const SYNCS: usize = 24;
/// One of each kind of volume and mount.
const SEEDS_IN_CI: u64 = 6;
/// Of a file: so many that most operations meet several extents.
const FILE_BLOCKS: usize = 96;
const BLOCK: u64 = 4096;

fn size(bytes: u64) -> SetAttr {
    SetAttr {
        size_bytes: Some(bytes),
        ..SetAttr::default()
    }
}

/// One operation on one of the files; what it refuses is fine.
fn operation(rig: &Rig, dice: &mut Dice) -> String {
    let name = |n: usize| format!("f{n}");
    let (file, other) = (name(dice.below(FILES)), name(dice.below(FILES)));
    let node = rig.node(&file).unwrap();
    let at = dice.below(FILE_BLOCKS) as u64 * BLOCK;
    let blocks_max = if dice.below(8) == 0 { 60 } else { 6 };
    let len = (dice.below(blocks_max) as u64 + 1) * BLOCK;
    let odd = dice.below(BLOCK as usize) as u64;
    let kind = dice.below(20);
    let fallocate = |mode| _ = rig.fs.fallocate(&ROOT, node, Handle::NONE, at, len, mode);
    let keep = FallocateFlags::KEEP_SIZE;
    match kind {
        0..=5 => rig.write(&file, at, &vec![odd as u8 | 1; len as usize]),
        6 => rig.write(&file, at + odd, &vec![odd as u8 | 1; 1 + odd as usize / 2]),
        7 => _ = rig.setattr(&file, &size(at + odd)),
        8 => _ = rig.setattr(&file, &size(at)),
        9..=11 => fallocate(keep | FallocateFlags::PUNCH_HOLE),
        12 => fallocate(FallocateFlags::empty()),
        13 => fallocate(keep),
        14 => fallocate(FallocateFlags::ZERO_RANGE),
        15 => fallocate(FallocateFlags::COLLAPSE_RANGE),
        16 => fallocate(FallocateFlags::INSERT_RANGE),
        17 => _ = rig.setattr(&file, &size(0)),
        _ => {
            let to = (
                rig.node(&other).unwrap(),
                Handle::NONE,
                dice.below(FILE_BLOCKS) as u64 * BLOCK,
            );
            let _ = rig.fs.copy_file_range(&ROOT, (node, Handle::NONE, at), to, len);
        }
    }
    format!("{kind}: {file} {other} {at} {len} {odd}")
}

/// Size, blocks and contents of a file.
fn ours(rig: &Rig, name: &str) -> (u64, u64, Content) {
    let attr = rig.attr(name).unwrap();
    (attr.size_bytes, attr.blocks_512, Content(rig.read(name)))
}

fn run(seed: u64) -> (u64, u64) {
    let mut dice = Dice::new(seed);
    let mut options = VolumeOptions::default();
    if seed % 2 == 1 {
        options.features = vec!["^no-holes"];
    }
    let mut mount_options = MountOptions::default();
    match seed % 6 {
        2 | 3 => {
            let how = Compression::new(Algorithm::Zstd, 0);
            mount_options.compress = Some(CompressPolicy { how, force: true });
        }
        4 => mount_options.nodatacow = true,
        5 => mount_options.nodatasum = true,
        _ => {}
    }
    let volume = KernelVolume::make(&options).expect("mkfs.btrfs");
    let rig = Rig::mounted(volume, mount_options, InitInfo::TRUSTED);
    let mut history = vec![format!("seed {seed}")];
    let make = |n: usize| rig.create(&format!("f{n}")).unwrap().attr.ino;
    let inodes: Vec<_> = (0..FILES).map(make).collect();
    for sync in 0..SYNCS {
        if dice.below(5) == 0 {
            history.push("sync".into());
            rig.commit();
        }
        for _ in 0..[1, 4, 30][dice.below(3)] {
            history.push(operation(&rig, &mut dice));
        }
        let file = dice.below(FILES);
        let name = format!("f{file}");
        history.push(format!("fsync {name}"));
        rig.fsync(&name);
        if sync % 2 == 0 {
            continue;
        }
        let now = ours(&rig, &name);
        let cut = KernelVolume::copy_of(&[rig.image()]).unwrap();
        let seen = after_crash(rig.image());
        let found = &seen[&inodes[file]];
        let kernel = (found.size, found.blocks, found.content.clone());
        assert!(
            kernel == now,
            "{}\nthe kernel\n{kernel:?}\nnot\n{now:?}",
            history.join("\n")
        );
        let again = Rig::on(cut);
        let replayed = ours(&again, &name);
        assert!(
            replayed == now,
            "{}\nwe\n{replayed:?}\nnot\n{now:?}",
            history.join("\n")
        );
        again.finish();
    }
    let stats = rig.fs.mount().log_stats();
    assert_eq!(stats.failed, 0, "a log that could not be written on a healthy device");
    rig.finish();
    (stats.syncs, stats.commits)
}

#[test]
fn extents_are_as_they_were_synced() {
    if !kernel_can() {
        return;
    }
    let (logs, commits) = for_each_seed("EXTENTS", SEEDS_IN_CI, run);
    assert!(logs > commits, "{logs} logs and {commits} commits");
}

/// The last blocks that a file can have, with and without items for holes.
#[test]
fn extents_at_the_largest_offsets_are_as_they_were_synced() {
    if !kernel_can() {
        return;
    }
    const END: u64 = i64::MAX as u64;
    let last = END & !(BLOCK - 1);
    for features in [vec![], vec!["^no-holes"]] {
        let options = VolumeOptions {
            features: features.clone(),
            ..VolumeOptions::default()
        };
        let rig = Rig::on(KernelVolume::make(&options).expect("mkfs.btrfs"));
        rig.create("f").unwrap();
        rig.commit();
        let node = rig.node("f").unwrap();
        let keep = FallocateFlags::KEEP_SIZE;
        let fallocate = |at, len, mode| rig.fs.fallocate(&ROOT, node, Handle::NONE, at, len, mode);
        let steps: [&dyn Fn(); 7] = [
            &|| rig.write("f", last - 3 * BLOCK, &[1; 2 * BLOCK as usize]),
            &|| _ = fallocate(last - 10 * BLOCK, 10 * BLOCK, keep),
            &|| _ = rig.setattr("f", &size(END)).unwrap(),
            &|| _ = fallocate(last - 2 * BLOCK, BLOCK, keep | FallocateFlags::PUNCH_HOLE),
            &|| _ = rig.setattr("f", &size(BLOCK)).unwrap(),
            &|| _ = fallocate(last - BLOCK, END - last + BLOCK, keep),
            &|| _ = fallocate(0, END, keep | FallocateFlags::PUNCH_HOLE),
        ];
        // What lies behind the first of the blocks that are written, to the end.
        let written = last - 3 * BLOCK;
        let seen = |rig: &Rig| {
            let attr = rig.attr("f").unwrap();
            let mut tail = vec![0; (END - written) as usize];
            let node = rig.node("f").unwrap();
            let len = rig.fs.read(&ROOT, node, Handle::NONE, written, &mut tail).unwrap();
            tail.truncate(len);
            (attr.size_bytes, attr.blocks_512, Content(tail))
        };
        for (n, step) in steps.iter().enumerate() {
            step();
            rig.fsync("f");
            let now = seen(&rig);
            let [ours, kernel] = [(); 2].map(|()| KernelVolume::copy_of(&[rig.image()]).unwrap());
            let found = kernel
                .with_mount(|dir| {
                    let file = std::fs::File::open(dir.join("f"))?;
                    let mut tail = Vec::new();
                    let mut at_end = &file;
                    at_end.seek(SeekFrom::Start(written))?;
                    at_end.take(END - written).read_to_end(&mut tail)?;
                    let meta = file.metadata()?;
                    Ok((meta.size(), meta.blocks(), Content(tail)))
                })
                .expect("the kernel replays the log");
            kernel.assert_clean();
            assert!(
                found == now,
                "{features:?}, step {n}: the kernel\n{found:?}\nnot\n{now:?}"
            );
            let again = Rig::on(ours);
            let found = seen(&again);
            assert!(found == now, "{features:?}, step {n}: we\n{found:?}\nnot\n{now:?}");
            again.finish();
            if n == 3 {
                rig.commit();
            }
        }
        let stats = rig.fs.mount().log_stats();
        assert!(stats.failed == 0 && stats.syncs > 0, "{stats:?}");
        rig.finish();
    }
}
