//! Inodes without names: kept while they are used, deleted after, found again after a crash.

use btrfs_format::KeyType;
use cowshed_vfs::{Error, FileSystem, NodeId, OpenFlags, OpenRequest};

use crate::rig::{CREATE, ROOT, Rig, can_run};

#[test]
fn an_unlinked_file_goes_with_its_last_reference() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let entry = rig.create("f").unwrap();
    rig.set_xattr("f", "user.a", &[7; 3000]).unwrap();
    rig.set_xattr("f", "user.b", b"x").unwrap();
    rig.unlink("f").unwrap();
    assert_eq!(rig.orphans(), [entry.attr.ino]);
    assert_eq!(rig.fs.getattr(&ROOT, entry.node, None).unwrap().nlink, 0);
    assert_eq!(
        rig.fs.link(&ROOT, entry.node, NodeId::ROOT, b"again"),
        Err(Error::NotFound)
    );
    rig.fs.forget(entry.node, u64::MAX);
    assert_eq!(rig.orphans(), Vec::<u64>::new());
    assert!(rig.is_gone(entry.attr.ino));
    assert_eq!(rig.fs.getattr(&ROOT, entry.node, None), Err(Error::Stale));
    rig.finish();
}

#[test]
fn a_removed_directory_takes_no_names() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let dir = rig.mkdir("d").unwrap();
    rig.create("d/f").unwrap();
    assert_eq!(rig.rmdir("d"), Err(Error::NotEmpty));
    assert_eq!(rig.unlink("d"), Err(Error::IsDirectory));
    assert_eq!(rig.rmdir("d/f"), Err(Error::NotDirectory));
    rig.unlink("d/f").unwrap();
    rig.rmdir("d").unwrap();
    assert_eq!(rig.fs.mkdir(&ROOT, dir.node, b"x", 0o755), Err(Error::NotFound));
    assert_eq!(rig.names(""), Vec::<String>::new());
    assert_eq!(rig.attr("").unwrap().size_bytes, 0);
    rig.finish();
}

#[test]
fn a_crash_leaves_orphans_and_the_next_mount_deletes_them() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let mut nodes = Vec::new();
    for n in 0..20 {
        let name = format!("f{n}");
        let entry = rig.create(&name).unwrap();
        rig.set_xattr(&name, "user.x", &[1; 500]).unwrap();
        rig.unlink(&name).unwrap();
        nodes.push(entry.attr.ino);
    }
    rig.symlink("l", b"target").unwrap();
    rig.unlink("l").unwrap();
    assert_eq!(rig.orphans().len(), 21);
    rig.commit();
    // Without the end of the mount, which would delete them.
    let volume = rig.crash();
    let rig = Rig::on(volume);
    assert_eq!(rig.orphans(), Vec::<u64>::new(), "the mount deleted them");
    for ino in nodes {
        assert!(rig.is_gone(ino));
    }
    rig.finish();
}

#[test]
fn a_tmpfile_gets_its_first_name_by_link() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let (entry, opened) = rig.fs.tmpfile(&ROOT, NodeId::ROOT, 0o600, &CREATE).unwrap();
    assert_eq!((entry.attr.nlink, rig.orphans()), (0, vec![entry.attr.ino]));
    let (lost, lost_open) = rig.fs.tmpfile(&ROOT, NodeId::ROOT, 0o600, &CREATE).unwrap();
    rig.fs.link(&ROOT, entry.node, NodeId::ROOT, b"named").unwrap();
    assert_eq!(rig.orphans(), [lost.attr.ino]);
    assert_eq!(rig.attr("named").unwrap().nlink, 1);
    rig.fs.forget(lost.node, 1);
    rig.fs.release(lost.node, lost_open.handle);
    assert!(rig.is_gone(lost.attr.ino));
    let exclusive = OpenRequest {
        flags: CREATE.flags | OpenFlags::EXCLUSIVE,
        ..CREATE
    };
    let (never, _) = rig.fs.tmpfile(&ROOT, NodeId::ROOT, 0o600, &exclusive).unwrap();
    assert_eq!(rig.fs.link(&ROOT, never.node, NodeId::ROOT, b"x"), Err(Error::NotFound));
    rig.fs.release(entry.node, opened.handle);
    let rig = rig.remount();
    assert_eq!(rig.names(""), ["named"]);
    assert_eq!(rig.items(entry.attr.ino, KeyType::INODE_REF).len(), 1);
    rig.finish();
}

#[test]
fn numbers_are_not_given_twice() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let first = rig.create("a").unwrap();
    rig.unlink("a").unwrap();
    rig.fs.forget(first.node, u64::MAX);
    let second = rig.create("b").unwrap();
    assert!(second.attr.ino > first.attr.ino);
    assert_eq!(first.attr.ino, 257, "after the root");
    rig.finish();
}

#[test]
fn the_end_of_a_mount_deletes_what_is_only_remembered() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let entry = rig.create("f").unwrap();
    rig.fs.open(&ROOT, entry.node, &CREATE).unwrap();
    rig.unlink("f").unwrap();
    let volume = rig.finish();
    let device = cowshed_harness::progs::dump_tree(volume.images(), &["-t", "5"]).unwrap();
    assert!(!device.contains("ORPHAN"), "{device}");
}
