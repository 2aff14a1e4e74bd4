//! Subvolumes that the kernel made: crossing, numbering, stand-ins, read-only ones.

use std::collections::BTreeSet;

use btrfs_format::items::RootItem;
use btrfs_format::{Key, KeyType, TreeId};
use btrfs_store::space::Budget;
use btrfs_store::txn::Batch;
use cowshed_btrfs::fs::MountOptions;
use cowshed_btrfs::fs::SubvolChoice;
use cowshed_harness::{KernelVolume, VolumeOptions, run};
use cowshed_vfs::{Error, InitInfo, RenameFlags};

use zerocopy::{FromBytes, IntoBytes};

use crate::rig::{Rig, kernel_can};

fn with_subvolumes() -> KernelVolume {
    let volume = KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs");
    volume
        .with_mount(|root| {
            let at = |p: &str| root.join(p).to_str().unwrap().to_string();
            std::fs::write(at("top"), "t")?;
            run("btrfs", &["subvolume", "create", &at("sv")])?;
            std::fs::write(at("sv/x"), "x")?;
            std::fs::create_dir(at("sv/dir"))?;
            run("btrfs", &["subvolume", "create", &at("sv/dir/nested")])?;
            std::fs::write(at("sv/dir/nested/deep"), "d")?;
            run("btrfs", &["subvolume", "snapshot", &at("sv"), &at("snap")])?;
            run("btrfs", &["subvolume", "snapshot", "-r", &at("sv"), &at("frozen")])?;
            run("btrfs", &["subvolume", "set-default", &at("sv")])?;
            Ok(())
        })
        .expect("the kernel makes subvolumes");
    volume
}

fn mounted(volume: KernelVolume, subvol: SubvolChoice) -> Rig {
    let options = MountOptions {
        subvol,
        ..MountOptions::default()
    };
    Rig::mounted(volume, options, InitInfo::TRUSTED)
}

#[test]
fn names_cross_into_subvolumes_and_numbers_stay_unique() {
    if !kernel_can() {
        return;
    }
    let top = || SubvolChoice::Id(TreeId::FS);
    let rig = mounted(with_subvolumes(), top());
    let paths = [
        "",
        "top",
        "sv",
        "sv/x",
        "sv/dir",
        "sv/dir/nested",
        "sv/dir/nested/deep",
        "snap",
        "snap/x",
        "frozen/x",
    ];
    let numbers: Vec<u64> = paths.iter().map(|p| rig.attr(p).unwrap().ino).collect();
    assert_eq!(
        numbers.iter().collect::<BTreeSet<_>>().len(),
        paths.len(),
        "{numbers:?}"
    );
    assert_eq!(
        (numbers[0], numbers[1]),
        (256, 257),
        "the volume's own in what is mounted"
    );
    // Listings say the same numbers as stat, and dotdot leads out again.
    for dir in ["", "sv", "sv/dir", "sv/dir/nested", "snap/dir"] {
        for (name, _, ino) in rig.list_from(dir, 0, usize::MAX) {
            let expected = match name.as_str() {
                "." => rig.attr(dir).unwrap().ino,
                ".." => rig.attr(dir.rsplit_once('/').map_or("", |(up, _)| up)).unwrap().ino,
                _ => rig.attr(&format!("{dir}/{name}")).unwrap().ino,
            };
            assert_eq!(ino, expected, "{dir}/{name}");
        }
    }
    let rig = mounted(rig.finish(), top());
    let again: Vec<u64> = paths.iter().map(|p| rig.attr(p).unwrap().ino).collect();
    assert_eq!(numbers, again, "stable across mounts");
    rig.finish();
}

#[test]
fn work_in_several_subvolumes_at_once() {
    if !kernel_can() {
        return;
    }
    let rig = mounted(with_subvolumes(), SubvolChoice::Path(b"/".to_vec()));
    rig.create("sv/new").unwrap();
    rig.create("snap/new").unwrap();
    rig.unlink("snap/x").unwrap();
    rig.mkdir("sv/dir/nested/d").unwrap();
    assert!(rig.exists("sv/x"), "a snapshot is another subvolume");
    assert_eq!(rig.link("sv/x", "hard").unwrap_err(), Error::CrossDevice);
    let plain = RenameFlags::empty();
    assert_eq!(rig.rename("sv/x", "x", plain), Err(Error::CrossDevice));
    rig.rename("sv/dir/nested", "sv/moved", plain).unwrap();
    assert!(rig.exists("sv/moved/d") && !rig.exists("sv/dir/nested"));
    rig.rename("sv/moved", "sv/dir/nested", plain).unwrap();
    assert_eq!(rig.rmdir("sv"), Err(Error::NotEmpty));
    // Read-only.
    assert_eq!(rig.create("frozen/new").unwrap_err(), Error::ReadOnly);
    assert_eq!(rig.unlink("frozen/x"), Err(Error::ReadOnly));
    assert_eq!(rig.set_xattr("frozen/x", "user.a", b""), Err(Error::ReadOnly));
    let volume = rig.finish();
    volume
        .with_mount(|root| {
            // The default subvolume is sv.
            assert!(root.join("new").exists() && root.join("dir/nested/d").is_dir());
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_snapshot_has_a_stand_in_for_a_nested_subvolume() {
    if !kernel_can() {
        return;
    }
    let rig = mounted(with_subvolumes(), SubvolChoice::Id(TreeId::FS));
    let stand_in = rig.attr("snap/dir/nested").unwrap();
    assert_eq!((stand_in.ino, stand_in.perm, stand_in.nlink), (2, 0o755, 1));
    assert_eq!(rig.names("snap/dir/nested"), Vec::<String>::new());
    assert_eq!(rig.create("snap/dir/nested/x").unwrap_err(), Error::AccessDenied);
    assert!(!rig.exists("snap/dir/nested/deep"));
    rig.rmdir("snap/dir/nested").unwrap();
    assert_eq!(rig.names("snap/dir"), Vec::<String>::new());
    rig.rmdir("snap/dir").unwrap();
    assert!(rig.exists("sv/dir/nested/deep"));
    rig.finish();
}

/// The kernel would go on and leave the snapshot without its references.
#[test]
fn a_root_item_that_forgot_its_snapshot_ends_the_commit() {
    if !kernel_can() {
        return;
    }
    let options = VolumeOptions {
        node_bytes: Some(4096),
        ..VolumeOptions::default()
    };
    let volume = KernelVolume::make(&options).expect("mkfs.btrfs");
    volume
        .with_mount(|root| {
            let at = |p: &str| root.join(p).to_str().unwrap().to_string();
            run("btrfs", &["subvolume", "create", &at("sv")])?;
            // Several leaves: the root block alone is never shared.
            for n in 0..300 {
                std::fs::write(at(&format!("sv/{n}")), "content")?;
            }
            run("btrfs", &["subvolume", "snapshot", &at("sv"), &at("snap")])?;
            Ok(())
        })
        .expect("the kernel makes subvolumes");
    let rig = mounted(volume, SubvolChoice::Id(TreeId::FS));
    let engine = rig.fs.mount().clone();
    let tree = engine.store().forest().root_tree().clone();
    let sv = TreeId(256);
    let key = Key::new(sv.object_id(), KeyType::ROOT_ITEM, 0);
    let mut item = RootItem::read_from_bytes(&tree.get(&key).unwrap().expect("sv's root item")).unwrap();
    assert_ne!(item.last_snapshot.get(), 0);
    item.last_snapshot = 0.into();
    let reservation = engine.reserve(Budget::CREATE).unwrap();
    let mut batch = Batch::new();
    batch.put(&tree, key, item.as_bytes());
    engine.store().txn().join().apply(batch, reservation);
    rig.commit();
    rig.create("sv/new").unwrap();
    let error = engine.sync().unwrap_err().to_string();
    assert!(error.contains("newer than the last snapshot"), "{error}");
    assert!(engine.store().txn().is_aborted());
    assert_eq!(rig.create("sv/newer").unwrap_err(), Error::ReadOnly);
    drop((engine, tree));
    // What was there is there, in both.
    let rig = mounted(rig.unmount(), SubvolChoice::Id(TreeId::FS));
    assert_eq!((rig.names("sv").len(), rig.names("snap").len()), (300, 300));
    rig.finish();
}

#[test]
fn mounts_start_where_they_are_told() {
    if !kernel_can() {
        return;
    }
    let rig = mounted(with_subvolumes(), SubvolChoice::Default);
    assert_eq!(rig.names(""), ["x", "dir"], "the default subvolume");
    assert_eq!(rig.attr("").unwrap().ino, 256);
    assert_eq!(
        rig.list_from("", 0, 2)[1].2,
        256,
        "above the root of a mount is the root"
    );
    let volume = rig.finish();
    let rig = mounted(volume, SubvolChoice::Path(b"sv/dir/nested".to_vec()));
    assert_eq!(rig.names(""), ["deep"]);
    let volume = rig.finish();
    let engine = mounted(volume, SubvolChoice::Default).fs.mount().clone();
    let refused = |subvol| {
        let options = MountOptions {
            subvol,
            ..MountOptions::default()
        };
        cowshed_btrfs::fs::Fs::new(engine.clone(), options)
            .unwrap_err()
            .to_string()
    };
    let path = |p: &str| SubvolChoice::Path(p.into());
    assert_eq!(refused(path("none")), Error::NotFound.to_string());
    assert_eq!(refused(path("top")), Error::NotDirectory.to_string());
    assert_eq!(refused(path("sv/dir")), Error::Invalid.to_string());
    assert_eq!(refused(SubvolChoice::Id(TreeId(999))), Error::NotFound.to_string());
    let differing = SubvolChoice::PathOf(b"sv".to_vec(), TreeId::FS);
    assert_eq!(refused(differing), Error::Invalid.to_string());
    engine.close().unwrap();
}
