//! What the roots of earlier commits are kept apart from: writes, the log, blocks that were not
//! committed, and file systems that were on the device before.

use std::fs;
use std::path::{Path, PathBuf};

use btrfs_format::block::{HEADER_BYTES, Header};
use cowshed_harness::{KernelVolume, VolumeOptions, need, shell};
use zerocopy::FromBytes as _;

use crate::mount::{Guard, can_mount, unmount};
use crate::roots::{
    LETTER, Unchanged, candidates, change, change_blocks, contents, is_root_tree, kernel_volume, lose_roots,
    own_volume, volume_with_deleted,
};
use crate::support::run;

/// Addresses of candidates of the top level, the newest first.
fn top_levels(image: &Path) -> Vec<u64> {
    let list = run("inspect find-root -o fs --json {}", &[image]).ok().json();
    let all = list.as_array().unwrap().iter();
    all.map(|root| root["address"].as_u64().unwrap()).collect()
}

#[test]
fn volume_is_not_written_by_a_root_of_the_top_level() {
    let Some(()) = can_mount() else { return };
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = own_volume(dir.path());
    let _unchanged = Unchanged::new(&image);
    let root = top_levels(&image)[1];
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let _guard = Guard(&at);
    for options in ["", "rw,", "discard,", "degraded,"] {
        let line = format!("mount -o {options}rescue=fsroot={root} {{}} {{}}");
        run(&line, &[&image, &at]).fails(&["read-only"]);
    }
    run(
        &format!("mount -o ro,discard,rescue=fsroot={root} {{}} {{}}"),
        &[&image, &at],
    )
    .ok();
    // Its checksums are not those of the newest commit.
    assert!(at.join("d/gone-2").exists() && fs::read(at.join("d/gone-2")).is_err());
    assert_eq!(fs::read(at.join("d/kept")).unwrap(), b"a\n");
    assert!(fs::write(at.join("new"), "").is_err());
    assert!(shell(&at, "touch d/kept").is_err());
    assert!(shell(&at, "mount -o remount,rw .; touch d/kept").is_err());
    unmount(&at);
}

/// A crash leaves a file in the log alone. Only the current root has it.
#[test]
fn log_is_replayed_neither_into_older_roots_nor_onto_the_device() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = dir.path().join("crashed.img");
    let script = format!(
        "echo a > early; sync -f .; echo b > other; sync -f .; echo c > logged; sync logged; cp --sparse=always {} {}",
        volume.image().display(),
        image.display()
    );
    volume.with_mount(|root| shell(root, &script)).unwrap();
    let _unchanged = Unchanged::new(&image);
    assert!(
        run("ls {}", &[&image]).ok().text().contains("logged"),
        "there is no log"
    );
    for (mode, roots) in [("root", candidates(&image)), ("fsroot", top_levels(&image))] {
        let mut seen = 0;
        for root in roots {
            // Blocks of a root that was replaced within its commit may be gone.
            let ran = run(&format!("ls -o rescue={mode}={root} {{}}"), &[&image]);
            if ran.code == 0 {
                seen += usize::from(ran.text().contains("early"));
                assert!(!ran.text().contains("logged"), "{mode}={root}");
            }
        }
        assert!(seen > 0, "{mode}");
    }
}

/// Changes the header of the oldest root of the root tree, in all copies.
fn change_oldest(image: &Path, change: impl Fn(&mut Header)) {
    let oldest = *candidates(image).last().unwrap();
    let changed = change_blocks(image, |header, block| {
        let is_wanted = is_root_tree(header) && header.bytenr.get() == oldest;
        if is_wanted {
            change(Header::mut_from_bytes(&mut block[..HEADER_BYTES]).unwrap());
        }
        is_wanted
    });
    assert!(changed > 0);
}

/// As a crash leaves it in the midst of a commit, or an older file system with the same uuid.
#[test]
fn salvage_prefers_roots_that_were_committed() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = own_volume(dir.path());
    change_oldest(&image, |header| {
        header.generation = (header.generation.get() + 100).into();
    });
    let listed = candidates(&image);
    lose_roots(&image, false);
    let _unchanged = Unchanged::new(&image);
    // It leads to files, and is the newest one.
    let text = run(&format!("ls -o rescue=root={} {{}}", listed[0]), &[&image])
        .ok()
        .text();
    assert!(text.contains("gone-1"), "{text}");
    let text = run("ls -o rescue=salvage {}", &[&image]).ok().text();
    assert!(text.contains("later") && !text.contains("gone-1"), "{text}");
}

#[test]
fn roots_of_a_file_system_that_was_there_before_with_the_same_uuid_are_not_found() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = own_volume(dir.path());
    let oldest = *candidates(&image).last().unwrap();
    run(&format!("ls -o rescue=root={oldest} {{}}"), &[&image]).ok();
    change_oldest(&image, |header| header.chunk_tree_uuid = [7; 16]);
    assert!(!candidates(&image).contains(&oldest));
    let ran = run(&format!("ls -o rescue=root={oldest} {{}}"), &[&image]);
    ran.fails(&["no intact block of this volume"]);
}

/// An image that is written is open as it is now.
#[test]
fn cp_within_one_image_takes_no_options_of_reading() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = volume_with_deleted(dir.path(), "deleted.img");
    let _unchanged = Unchanged::new(&image);
    let all = candidates(&image);
    let inside = |path: &str| PathBuf::from(format!("{}:{path}", image.display()));
    let line = format!("cp -o rescue=root={} {{}} {{}}", all[1]);
    run(&line, &[&inside("/later"), &inside("/copy")]).fails_with(1, &["not read with -o"]);
    // By way of the host it can be done.
    let out = dir.path().join("one");
    let copied = all.iter().any(|root| {
        let line = format!("cp -o rescue=root={root} {{}} {{}}");
        run(&line, &[&inside("/letters/one"), &out]).code == 0
    });
    assert!(copied && fs::read(&out).unwrap() == LETTER.repeat(1000));
}

/// The same of leaves of the chunk tree.
#[test]
fn chunk_tree_is_made_up_of_leaves_that_were_committed() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = kernel_volume();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let [sound, out, image] = ["sound", "out", "image"].map(|name| dir.path().join(name));
    run("extract {} {}", &[volume.image(), &sound]).ok();
    fs::copy(volume.image(), &image).unwrap();
    let list = run("inspect find-root -o chunk --json {}", &[&image]).ok().json();
    let older = list[1]["address"].as_u64().expect("there is an older leaf");
    let changed = change_blocks(&image, |header, block| {
        let is_wanted = header.bytenr.get() == older;
        if is_wanted {
            let header = Header::mut_from_bytes(&mut block[..HEADER_BYTES]).unwrap();
            header.generation = (header.generation.get() + 100).into();
            header.chunk_tree_uuid = [7; 16];
        }
        is_wanted
    });
    assert!(changed > 0);
    lose_roots(&image, true);
    let _unchanged = Unchanged::new(&image);
    run("extract -o rescue=salvage {} {}", &[&image, &out]).ok();
    assert!(contents(&out) == contents(&sound));
}

/// What was written over a file since is not taken for its contents.
#[test]
fn data_is_compared_with_the_checksums_of_the_older_root() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = dir.path().join("reused.img");
    run("mkfs -q -b 256m {}", &[&image]).ok();
    let old = LETTER.repeat(1 << 20);
    let new = vec![0x5a; 32 << 20];
    let write_new = |volume: &cowshed::Volume| (0..5).try_for_each(|n| volume.write(format!("new-{n}"), &new));
    change(
        &image,
        &[
            &|volume| volume.write("old", &old),
            &|volume| volume.remove_file("old"),
            &write_new,
        ],
    );
    let _unchanged = Unchanged::new(&image);
    let mut refused = 0;
    for root in candidates(&image) {
        for mode in ["", ":salvage"] {
            let ran = run(&format!("cat -o rescue=root={root}{mode} {{}} /old"), &[&image]);
            match ran.code {
                0 => assert!(ran.out == old, "by the root at {root}"),
                _ => refused += usize::from(ran.err.contains("checksum")),
            }
            assert!(!ran.out.contains(&0x5a));
        }
    }
    assert!(refused > 0, "nothing was written over the file");
}
