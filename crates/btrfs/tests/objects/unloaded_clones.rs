//! Clones of trees whose files are not in memory: what the kernel wrote and reads again, and what
//! comes into memory and goes while the clone is made.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use btrfs_format::items::InodeItem;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, view};
use btrfs_store::space::Budget;
use btrfs_store::txn::Batch;
use cowshed_harness::threads::SetOnDrop;
use cowshed_harness::tree::{self, Compare, MakeOptions};
use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_vfs::{
    FallocateFlags, FileSystem, Handle, RenameFlags, SetAttr, SetTime, Timestamp, TreeCloneStep, WriteFlags,
};
use zerocopy::IntoBytes;

use crate::rig::{ROOT, Rig, can_run, kernel_can};
use crate::tree_clones::{assert_same, begin, bytes, clone_tree, describe, file, fill, finish, read, unread, write};

#[test]
fn clone_of_what_linux_wrote_is_the_same_to_linux() {
    if !kernel_can() {
        return;
    }
    let options = VolumeOptions {
        size_bytes: 768 << 20,
        ..VolumeOptions::default()
    };
    let volume = KernelVolume::make(&options).expect("mkfs.btrfs");
    let mounted = volume.mount_with("compress=zstd,noatime").expect("mounts");
    let src = mounted.dir().join("src");
    std::fs::create_dir(&src).unwrap();
    tree::make(&src, &MakeOptions::new(17, 800)).expect("a tree");
    cowshed_harness::create_subvolume(&File::open(&src).unwrap(), "nested").expect("a subvolume");
    let below = MakeOptions {
        total_bytes: 4 << 20,
        ..MakeOptions::new(18, 100)
    };
    tree::make(&src.join("nested"), &below).expect("a tree");
    mounted.unmount().unwrap();
    // Nothing of it is in memory.
    let rig = unread(volume);
    let progress = clone_tree(&rig, "src", "dst");
    // The second one finds directories and linked files there.
    clone_tree(&rig, "src", "again");
    let volume = rig.finish();
    let mounted = volume.mount_with("noatime").expect("mounts");
    let [src, dst, again] = ["src", "dst", "again"].map(|name| tree::snapshot(&mounted.dir().join(name)).unwrap());
    assert_eq!(src.len() as u64, progress.entries);
    let all = Compare {
        atime: true,
        holes: true,
        ..Compare::copy()
    };
    src.diff(&dst, &all).assert_none();
    src.diff(&again, &all).assert_none();
    mounted.unmount().unwrap();
    volume.assert_clean();
}

#[test]
fn clone_of_what_we_wrote_is_the_same_after_a_mount() {
    if !can_run() {
        return;
    }
    for (nodesize, features) in [(16384, vec![]), (4096, vec!["^no-holes"])] {
        let options = VolumeOptions {
            node_bytes: Some(nodesize),
            features,
            ..VolumeOptions::default()
        };
        let rig = unread(KernelVolume::make(&options).expect("mkfs.btrfs"));
        fill(&rig);
        let rig = unread(rig.finish());
        clone_tree(&rig, "src", "dst");
        // Some is in the running transaction, and some in none of the objects that made it.
        file(&rig, "src/a/later", &bytes(77, 20_000));
        file(&rig, "src/a/inline", &bytes(78, 200));
        rig.set_xattr("src/a/later", "user.later", b"value").unwrap();
        rig.fs.mount().objects().inodes.drop_idle();
        clone_tree(&rig, "src", "dst2");
        rig.commit();
        assert_same(&rig, "src", "dst2");
        rig.unlink("src/a/later").unwrap();
        rig.unlink("src/a/inline").unwrap();
        let rig = unread(rig.finish());
        assert_eq!(read(&rig, "dst2/a/later"), bytes(77, 20_000));
        assert_eq!(read(&rig, "dst2/a/inline"), bytes(78, 200));
        rig.unlink("dst2/a/later").unwrap();
        rig.unlink("dst2/a/inline").unwrap();
        let kept = |top| {
            let mut all = describe(&rig, top);
            // Its names changed.
            all.remove("/a");
            all
        };
        assert_eq!(kept("src"), kept("dst"));
        assert_eq!(kept("src"), kept("dst2"));
        rig.finish();
    }
}

#[test]
fn file_that_another_replaces_meanwhile_is_not_missing() {
    if !can_run() {
        return;
    }
    let rig = unread(KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs"));
    rig.mkdir("src").unwrap();
    for n in 0..400 {
        file(&rig, &format!("src/f{n}"), &bytes(n, 3000));
    }
    let rig = unread(rig.finish());
    let mut walk = begin(&rig, &ROOT, "src", "dst").unwrap();
    while walk.progress().entries < 2 {
        assert_eq!(walk.step(&ROOT).unwrap(), TreeCloneStep::More);
    }
    // The rest of the first names is listed.
    for n in 0..400 {
        file(&rig, "new", &bytes(n + 1000, 3000));
        rig.rename("new", &format!("src/f{n}"), RenameFlags::empty()).unwrap();
    }
    assert_eq!(finish(&mut *walk, &ROOT).unwrap(), []);
    drop(walk);
    let mut names = rig.names("dst");
    names.sort();
    names.dedup();
    assert!(names.len() >= 128, "{}", names.len());
    for name in names {
        let n: u64 = name[1..].parse().unwrap();
        let content = read(&rig, &format!("dst/{name}"));
        assert!(content == bytes(n, 3000) || content == bytes(n + 1000, 3000), "{name}");
    }
    rig.finish();
}

/// Takes a flag from an inode's item, as other programs may have left it.
fn without_flag(rig: &Rig, ino: ObjectId, flag: u64) {
    let store = rig.fs.mount().store();
    let tree = store.forest().require(TreeId::FS).unwrap();
    let key = Key::new(ino, KeyType::INODE_ITEM, 0);
    let item = tree.get(&key).unwrap().unwrap();
    let mut inode = *view::fixed::<InodeItem>(&item).unwrap();
    assert_ne!(inode.flags.get() & flag, 0, "it is there");
    inode.flags = (inode.flags.get() & !flag).into();
    let space = rig.fs.mount().reserve(Budget::SETATTR).unwrap();
    let mut batch = Batch::new();
    batch.put(&tree, key, inode.as_bytes());
    store.txn().join().apply(batch, space);
    rig.commit();
}

/// What is preallocated is written in place, whether the inode says that it has any or not.
#[test]
fn preallocated_space_without_its_flag_is_not_written_in_place_after_a_clone() {
    const PREALLOC: u64 = 1 << 4;
    if !can_run() {
        return;
    }
    let rig = unread(KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs"));
    rig.mkdir("src").unwrap();
    file(&rig, "src/f", &bytes(5, 4096));
    let node = rig.node("src/f").unwrap();
    rig.fs
        .fallocate(&ROOT, node, Handle::NONE, 0, 1 << 20, FallocateFlags::empty())
        .unwrap();
    let ino = ObjectId(rig.attr("src/f").unwrap().ino);
    let rig = unread(rig.finish());
    without_flag(&rig, ino, PREALLOC);
    let rig = unread(rig.finish());
    clone_tree(&rig, "src", "dst");
    // In the transaction of the clone.
    write(&rig, "src/f", 4096, &bytes(6, 100_000));
    rig.commit();
    assert_eq!(read(&rig, "src/f")[4096..104_096], bytes(6, 100_000));
    assert!(read(&rig, "dst/f")[4096..].iter().all(|b| *b == 0));
    let rig = unread(rig.finish());
    let copy = read(&rig, "dst/f");
    assert_eq!(copy[..4096], bytes(5, 4096));
    assert!(copy[4096..].iter().all(|b| *b == 0));
    rig.finish();
}

const HOT_BYTES: usize = 40_000;

/// Every third file is changed all the time: its content is one byte, again and again.
fn fill_for_churn(rig: &Rig) {
    rig.mkdir("src").unwrap();
    for dir in 0..3 {
        rig.mkdir(&format!("src/d{dir}")).unwrap();
        for n in 0..120_u64 {
            let path = format!("src/d{dir}/f{n}");
            match n % 6 {
                0 | 3 => file(rig, &path, &[0; HOT_BYTES]),
                1 => file(rig, &path, &bytes(n, 700)),
                2 => file(rig, &path, &bytes(n, 30_000)),
                4 => {
                    file(rig, &path, &bytes(n, 9_000));
                    write(rig, &path, 100_000, &bytes(n, 5_000));
                }
                _ => drop(rig.symlink(&path, format!("target-{n}").as_bytes()).unwrap()),
            }
            if n % 4 == 1 {
                rig.set_xattr(&path, "trusted.n", &bytes(n, 20 + n as usize)).unwrap();
            }
            let set = SetAttr {
                uid: Some(1000 + n as u32),
                mtime: Some(SetTime::At(Timestamp::new(1_000_000 + n as i64, 7))),
                ..SetAttr::default()
            };
            rig.setattr(&path, &set).unwrap();
        }
        rig.link(&format!("src/d{dir}/f2"), &format!("src/d{dir}/link"))
            .unwrap();
    }
}

fn churn(rig: &Rig, is_over: &AtomicBool, rounds: &AtomicU64) {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    while !is_over.load(Ordering::Relaxed) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        let path = format!("src/d{}/f{}", x % 3, (x >> 8) % 40 * 3);
        let other = format!("{path}-moved");
        match (x >> 32) % 8 {
            0 => drop(rig.rename(&path, &other, RenameFlags::empty())),
            1 => drop(rig.rename(&other, &path, RenameFlags::empty())),
            2 => drop(rig.unlink(&path)),
            3 if !rig.exists(&path) => {
                if let Ok(entry) = rig.create(&path) {
                    rig.fs.forget(entry.node, 1);
                }
            }
            _ => {
                // A file that was just made is empty, or as long as the others.
                let Ok(node) = rig.node(&path) else { continue };
                let data = vec![round as u8; HOT_BYTES];
                let _ = rig.fs.write(&ROOT, node, Handle::NONE, 0, &data, WriteFlags::empty());
                rig.fs.forget(node, u64::MAX);
            }
        }
        // Now and then the objects go out of memory.
        if round.is_multiple_of(7) {
            rig.fs.mount().objects().inodes.drop_idle();
        }
    }
}

#[test]
fn clone_beside_changes_keeps_what_does_not_change_and_tears_nothing() {
    if !can_run() {
        return;
    }
    let rig = unread(KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs"));
    fill_for_churn(&rig);
    // Nothing is in memory.
    let rig = unread(rig.finish());
    let (is_over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let clones = 12;
    std::thread::scope(|scope| {
        let churned = scope.spawn(|| churn(&rig, &is_over, &rounds));
        let over = SetOnDrop(&is_over);
        for n in 0..clones {
            let before = rounds.load(Ordering::Relaxed);
            let mut walk = begin(&rig, &ROOT, "src", &format!("dst{n}")).unwrap();
            assert_eq!(finish(&mut *walk, &ROOT).unwrap(), []);
            if n % 3 == 2 {
                rig.commit();
            }
            while rounds.load(Ordering::Relaxed) < before + 200 && !churned.is_finished() {
                std::thread::yield_now();
            }
        }
        drop(over);
        churned.join().unwrap();
    });
    rig.commit();
    let rig = unread(rig.finish());
    let is_hot = |path: &str| {
        let number = path.rsplit_once("/f").and_then(|(_, n)| n.split('-').next());
        number.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n % 3 == 0)
    };
    let cold = |top: &str| {
        let mut all = describe(&rig, top);
        all.retain(|path, _| !is_hot(path));
        // Times of directories change with their names.
        all.retain(|_, text| !text.starts_with("Directory"));
        all
    };
    let src = cold("src");
    assert_eq!(src.len(), 3 * 81, "what does not change");
    let (mut hot, mut versions) = (0, std::collections::BTreeSet::new());
    for n in 0..clones {
        let top = format!("dst{n}");
        let copy = cold(&top);
        for (path, text) in &src {
            assert_eq!(Some(text), copy.get(path), "{top}{path}");
        }
        for dir in 0..3 {
            for name in rig.names(&format!("{top}/d{dir}")) {
                let path = format!("{top}/d{dir}/{name}");
                if !is_hot(&path) {
                    continue;
                }
                let content = read(&rig, &path);
                assert!([0, HOT_BYTES].contains(&content.len()), "{path}: {}", content.len());
                assert!(content.iter().all(|b| *b == content[0]), "{path} is torn");
                versions.extend(content.first().copied());
                hot += 1;
            }
        }
    }
    assert!(
        hot > 500 && versions.len() > 20,
        "{hot} files, {} versions",
        versions.len()
    );
    rig.finish();
}
