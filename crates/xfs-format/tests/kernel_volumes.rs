//! What Linux and xfsprogs write is accepted, structure by structure, and encodes to the same:
//! volumes made by mkfs.xfs, filled by the kernel. `xfs_db` says what the fields are.
//!
//! Skips with a line without root, loop devices or xfsprogs.

mod common;

use common::lab::{Lab, POPULATE, SHARE, need_kernel, need_progs};
use common::{Found, Volume};
use xfs_format::features::incompat;
use xfs_format::{Access, ReadLimit};

/// What the script leaves on every volume.
const KINDS: &[&str] = &[
    "bnobt",
    "cntbt",
    "inobt",
    "bmbt",
    "shortform directory with entries",
    "directory block",
    "directory data",
    "directory leaf",
    "directory leaf of several",
    "directory node",
    "directory free index",
    "entry",
    "free span",
    "symlink block",
    "short symlink",
    "shortform attributes",
    "attribute leaf",
    "remote value block",
    "device",
    "data root",
    "free inode",
];

fn populate_and_walk(mkfs: &str, size_mib: u32, bits: u64, script: &str, kinds: &[&str]) -> Found {
    let lab = Lab::new(mkfs, size_mib);
    if bits != 0 {
        lab.set_incompat(bits);
    }
    Volume::open(&lab.image).walk();
    lab.run("", script);
    let volume = Volume::open(&lab.image);
    assert_eq!(volume.superblock.access(ReadLimit::Kernel), Access::ReadWrite, "{mkfs}");
    let found = volume.walk();
    for kind in kinds {
        assert!(
            found.count(kind) > 0,
            "{mkfs}: no {kind} was there to be judged: {:?}",
            found.counts
        );
    }
    found
}

#[test]
fn structures_of_a_usual_volume_are_accepted() {
    let Some(()) = need_kernel() else { return };
    let script = format!("{POPULATE}{SHARE}");
    let mkfs = "-m rmapbt=1,reflink=1,bigtime=1,inobtcount=1 -i nrext64=1";
    populate_and_walk(mkfs, 400, 0, &script, KINDS);
}

#[test]
fn volumes_with_parent_pointers_and_exchange_are_accepted() {
    let Some(()) = need_kernel() else { return };
    let script = format!("{POPULATE}{SHARE}");
    let bits = incompat::PARENT | incompat::EXCHRANGE;
    let found = populate_and_walk("-m rmapbt=1 -i nrext64=1", 400, bits, &script, KINDS);
    assert!(found.count("parent pointer") > 9_000, "{:?}", found.counts);
    assert!(found.count("attribute node") > 0, "{:?}", found.counts);
}

#[test]
fn all_sizes_are_accepted() {
    let Some(()) = need_kernel() else { return };
    let small = "-b size=1k -i size=512 -n size=4k -m rmapbt=1,reflink=1";
    let found = populate_and_walk(small, 500, 0, &format!("{POPULATE}{SHARE}"), KINDS);
    for kind in ["rmapbt node", "bmbt", "refcountbt", "attribute node"] {
        assert!(found.count(kind) > 0, "no {kind}: {:?}", found.counts);
    }
    populate_and_walk(
        "-b size=4k -i size=2048 -n size=65536",
        400,
        0,
        POPULATE,
        &["directory node", "directory block"],
    );
    let large = "-b size=64k -i size=1024 -s size=4k";
    populate_and_walk(
        large,
        600,
        0,
        &format!("{POPULATE}{SHARE}"),
        &["directory node", "directory block", "remote value block"],
    );
}

#[test]
fn volumes_without_newer_features_are_accepted() {
    let Some(()) = need_kernel() else { return };
    let old = "-m finobt=0,rmapbt=0,reflink=0,bigtime=0,inobtcount=0 -i sparse=0,nrext64=0";
    let found = populate_and_walk(old, 400, 0, POPULATE, KINDS);
    assert_eq!(
        found.count("finobt") + found.count("rmapbt") + found.count("refcountbt"),
        0
    );
    // A new uuid leaves the old one in the metadata.
    let lab = Lab::new("", 320);
    common::lab::sh(&format!("xfs_admin -U generate {} >/dev/null", lab.image.display()));
    let volume = Volume::open(&lab.image);
    assert_ne!(volume.superblock.metadata_uuid(), volume.superblock.uuid);
    volume.walk();
}

#[test]
fn volumes_of_version_4_are_read() {
    let Some(()) = need_progs() else { return };
    // New kernels have no V4: mkfs.xfs fills the volume from a list.
    for (mkfs, is_ci) in [
        ("-m crc=0 -n ftype=0", false),
        ("-m crc=0,finobt=0 -n version=ci", true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list");
        let mut text = String::from("/\n0 0\nd--755 0 0\n");
        for i in 0..1200 {
            text.push_str(&format!("File_number_{i} ---644 1 2 {}\n", list.display()));
        }
        text.push_str(&format!(
            "sub d--755 0 0\nl l--777 0 0 {}\nnull c--666 0 0 1 3\n$\n$\n",
            "a".repeat(300)
        ));
        std::fs::write(&list, text).unwrap();
        let lab = Lab::new(&format!("{mkfs} -i size=256 -p {}", list.display()), 320);
        let volume = Volume::open(&lab.image);
        let g = &volume.geometry;
        assert!(!g.is_v5() && g.is_ascii_ci() == is_ci);
        assert!(matches!(
            volume.superblock.access(ReadLimit::Kernel),
            Access::ReadOnly { .. }
        ));
        let found = volume.walk();
        for kind in [
            "bnobt",
            "inobt",
            "directory node",
            "directory data",
            "symlink block",
            "device",
            "file",
        ] {
            assert!(found.count(kind) > 0, "{mkfs}: no {kind}: {:?}", found.counts);
        }
    }
}
