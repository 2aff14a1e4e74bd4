//! Subvolumes that the kernel began to delete: we finish it.

use std::path::Path;

use cowshed_harness::{KernelVolume, VolumeOptions, progs, run};

use crate::rig::{Rig, kernel_can};

fn shell(root: &Path, script: &str) {
    let script = format!("cd '{}'; {script}", root.display());
    run("bash", &["-euo", "pipefail", "-c", &script]).expect("the script");
}

/// Trees that are gone in part.
fn cut_short(volume: &KernelVolume) -> usize {
    let dump = progs::dump_tree(volume.image(), &["-t", "root"]).expect("a dump");
    let progress = dump.lines().filter(|line| line.contains("drop_progress key ("));
    progress.filter(|line| !line.contains("key (0 ")).count()
}

/// How far the kernel gets before the unmount is its matter: larger trees until one is caught in the middle.
#[test]
fn a_deletion_that_the_kernel_began_is_finished() {
    if !kernel_can() {
        return;
    }
    for files in [60_000, 120_000, 240_000, 480_000] {
        if finish_deletions(files) > 0 {
            return;
        }
    }
    panic!("no deletion was caught in the middle");
}

/// Deletes a subvolume of so many files, then its snapshot; returns how many were caught in the middle.
fn finish_deletions(files: u32) -> usize {
    let mut volume = KernelVolume::make(&VolumeOptions {
        size_bytes: 2 << 30,
        node_bytes: Some(4096),
        ..VolumeOptions::default()
    })
    .expect("mkfs.btrfs");
    let by_kernel = |volume: &KernelVolume, script: &str| {
        let done = volume.with_mount(|root| {
            shell(root, script);
            Ok(())
        });
        done.expect("the kernel mounts");
    };
    let script = format!(
        "btrfs -q subvolume create sv; mkdir sv/d; cd sv/d; seq -f 'a-name-that-fills-the-leaf-%.0f' {files} | xargs touch; \
             cd ../..; btrfs filesystem sync .; btrfs -q subvolume snapshot sv snap; rm snap/d/a-name-that-fills-the-leaf-*777"
    );
    by_kernel(&volume, &script);
    let mut caught = 0;
    for (subvolume, left) in [("sv", vec!["snap"]), ("snap", vec![])] {
        by_kernel(
            &volume,
            &format!("btrfs -q subvolume delete {subvolume}; btrfs filesystem sync ."),
        );
        caught += cut_short(&volume);
        let rig = Rig::on(volume);
        rig.mkdir("new").expect("a directory");
        rig.commit();
        assert_eq!(rig.names("").len(), left.len() + 1);
        rig.rmdir("new").expect("empty");
        volume = rig.finish();
        assert_eq!(cut_short(&volume), 0, "{subvolume} is gone");
        if let Some(snapshot) = left.first() {
            let kept = volume
                .with_mount(|root| Ok(std::fs::read_dir(root.join(snapshot).join("d"))?.count()))
                .expect("the kernel mounts");
            let removed = (1..=files).filter(|n| n % 1000 == 777).count();
            assert_eq!(kept, files as usize - removed);
        }
    }
    caught
}
