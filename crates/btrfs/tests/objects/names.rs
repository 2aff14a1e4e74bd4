//! Names: hash collisions, extended references, cookies, limits.

use btrfs_format::{KeyType, view};
use cowshed_harness::tree::colliding_names;
use cowshed_vfs::{Error, FileKind, FileSystem, RenameFlags};

use crate::rig::{Rig, can_run, kernel_can};

#[test]
fn every_kind_is_made_and_the_kernel_reads_it() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("d").unwrap();
    rig.create("d/f").unwrap();
    rig.symlink("d/l", b"some/where").unwrap();
    rig.mknod("d/c", FileKind::CharDevice, cowshed_vfs::rdev(5, 300))
        .unwrap();
    rig.mknod("d/b", FileKind::BlockDevice, cowshed_vfs::rdev(259, 1))
        .unwrap();
    rig.mknod("d/p", FileKind::Fifo, 0).unwrap();
    rig.mknod("d/s", FileKind::Socket, 0).unwrap();
    rig.link("d/f", "hard").unwrap();
    assert_eq!(rig.attr("d/f").unwrap().nlink, 2);
    assert_eq!(rig.create("d/f").unwrap_err(), Error::Exists);
    assert_eq!(rig.names("d"), ["f", "l", "c", "b", "p", "s"]);
    rig.assert_names_agree("d");
    rig.assert_names_agree("");
    let volume = rig.finish();
    volume
        .with_mount(|root| {
            use std::os::linux::fs::MetadataExt;
            let stat = |p: &str| std::fs::symlink_metadata(root.join(p)).unwrap();
            assert_eq!(
                std::fs::read_link(root.join("d/l")).unwrap().to_str(),
                Some("some/where")
            );
            assert_eq!(stat("d/c").st_rdev(), libc::makedev(5, 300));
            assert_eq!(stat("d/b").st_rdev(), libc::makedev(259, 1));
            assert_eq!(
                (stat("hard").st_nlink(), stat("hard").st_ino()),
                (2, stat("d/f").st_ino())
            );
            let kinds = ["f", "l", "c", "b", "p", "s"].map(|n| stat(&format!("d/{n}")).st_mode() & libc::S_IFMT);
            let (f, l, c, b, p, s) = (
                libc::S_IFREG,
                libc::S_IFLNK,
                libc::S_IFCHR,
                libc::S_IFBLK,
                libc::S_IFIFO,
                libc::S_IFSOCK,
            );
            assert_eq!(kinds, [f, l, c, b, p, s]);
            Ok(())
        })
        .unwrap();
}

#[test]
fn colliding_names_share_an_item_until_it_is_full() {
    if !can_run() {
        return;
    }
    let rig = Rig::with_nodesize(4096);
    rig.mkdir("d").unwrap();
    let names = colliding_names(200);
    let mut made = 0;
    for name in &names {
        match rig.create(&format!("d/{name}")) {
            Ok(_) => made += 1,
            Err(error) => {
                assert_eq!(error, Error::Overflow);
                break;
            }
        }
    }
    // (4096 - 101 - 25) / (30 + 8) entries fit one leaf.
    assert_eq!(made, 104);
    let ino = rig.attr("d").unwrap().ino;
    assert_eq!(rig.items(ino, KeyType::DIR_ITEM).len(), 1, "all names in one item");
    assert_eq!(rig.names("d"), names[..made]);
    // Out of the middle, the front and the end; the others stay.
    for gone in [50, 0, made - 1] {
        rig.unlink(&format!("d/{}", names[gone])).unwrap();
        assert!(!rig.exists(&format!("d/{}", names[gone])));
    }
    rig.cool();
    assert!(rig.exists(&format!("d/{}", names[49])) && rig.exists(&format!("d/{}", names[51])));
    // Within one item: the old name goes and a new one with the same hash comes in one batch.
    let (from, to) = (format!("d/{}", names[1]), format!("d/{}", names[150]));
    rig.rename(&from, &to, RenameFlags::empty()).unwrap();
    assert!(!rig.exists(&from) && rig.exists(&to));
    rig.rename(&to, &format!("d/{}", names[2]), RenameFlags::EXCHANGE)
        .unwrap();
    rig.assert_names_agree("d");
    let rig = rig.remount();
    for name in rig.names("d") {
        rig.unlink(&format!("d/{name}")).unwrap();
    }
    rig.rmdir("d").unwrap();
    rig.fs.forget(rig_node(ino), u64::MAX);
    assert!(rig.is_gone(ino));
    rig.finish();
}

#[test]
fn links_outgrow_a_leaf_and_come_back() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::with_nodesize(4096);
    let ino = rig.create("file").unwrap().attr.ino;
    let name = |n: usize| format!("{n:03}-{}", "x".repeat(40));
    let count = 500;
    for n in 0..count {
        rig.link("file", &name(n)).unwrap();
    }
    assert_eq!(rig.attr("file").unwrap().nlink, count as u32 + 1);
    assert!(
        rig.items(ino, KeyType::INODE_EXTREF).len() > 400,
        "most refs are extended ones"
    );
    rig.assert_names_agree("");
    rig.cool();
    for n in (0..count).step_by(2) {
        rig.unlink(&name(n)).unwrap();
    }
    rig.rename(&name(401), "moved", RenameFlags::empty()).unwrap();
    let rig = rig.remount();
    assert_eq!(rig.attr("moved").unwrap().nlink, count as u32 / 2 + 1);
    rig.assert_names_agree("");
    let volume = rig.finish();
    volume
        .with_mount(|root| {
            use std::os::linux::fs::MetadataExt;
            assert_eq!(std::fs::metadata(root.join("moved"))?.st_nlink(), count as u64 / 2 + 1);
            std::fs::remove_file(root.join(name(403)))?;
            Ok(())
        })
        .unwrap();
    let rig = Rig::on(volume);
    for name in rig.names("") {
        rig.unlink(&name).unwrap();
    }
    rig.fs.forget(rig_node(ino), u64::MAX);
    assert!(rig.is_gone(ino));
    rig.finish();
}

/// In the mounted subvolume a node is its number.
fn rig_node(ino: u64) -> cowshed_vfs::NodeId {
    cowshed_vfs::NodeId(ino)
}

#[test]
fn cookies_survive_deletion_and_creation() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    for n in 0..100 {
        rig.create(&format!("f{n:02}")).unwrap();
    }
    let first = rig.list_from("", 0, 42);
    assert_eq!(
        (first[0].0.as_str(), first[1].0.as_str(), first[2].0.as_str()),
        (".", "..", "f00")
    );
    let last = first.last().unwrap();
    assert_eq!(last.0, "f39");
    // What was listed goes, what comes next goes too, and something new comes.
    rig.unlink("f39").unwrap();
    rig.unlink("f40").unwrap();
    rig.create("new").unwrap();
    rig.commit();
    let rest: Vec<_> = rig.list_from("", last.1, usize::MAX).into_iter().map(|e| e.0).collect();
    // That is not shown: the listing began before.
    let mut expected: Vec<String> = (41..100).map(|n| format!("f{n:02}")).collect();
    assert_eq!(rest, expected);
    expected.push("new".into());
    let all = rig.list_from("", 0, usize::MAX);
    let rest: Vec<_> = all.into_iter().filter(|e| e.1 > last.1).map(|e| e.0).collect();
    assert_eq!(rest, expected);
    // The number of a name that went is never given again, even if it was the last one.
    let index_of = |rig: &Rig, name: &str| rig.list_from("", 0, usize::MAX).iter().find(|e| e.0 == name).unwrap().1;
    let before = index_of(&rig, "new");
    rig.unlink("new").unwrap();
    rig.create("newer").unwrap();
    assert!(index_of(&rig, "newer") > before);
    let root = rig.attr("").unwrap().ino;
    assert_eq!(rig.items(root, KeyType::DIR_INDEX)[0].0.offset, 2, "indexes start at 2");
    rig.finish();
}

#[test]
fn names_have_limits() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.create(&"n".repeat(255)).unwrap();
    assert_eq!(rig.create(&"n".repeat(256)).unwrap_err(), Error::NameTooLong);
    assert_eq!(rig.node(&"n".repeat(256)).unwrap_err(), Error::NameTooLong);
    rig.symlink("long", &[b't'; 4095]).unwrap();
    assert_eq!(rig.symlink("longer", &[b't'; 4096]).unwrap_err(), Error::NameTooLong);
    let target = rig.fs.readlink(&crate::rig::ROOT, rig.node("long").unwrap()).unwrap();
    assert_eq!(target, [b't'; 4095]);
    assert_eq!(rig.create("long/x").unwrap_err(), Error::NotDirectory);
    assert_eq!(rig.create("none/x").unwrap_err(), Error::NotFound);
    rig.finish();
}

#[test]
fn links_end_at_the_limit_of_the_format() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let entry = rig.create("file").unwrap();
    for n in 1..65535 {
        rig.link("file", &format!("l{n}")).unwrap();
    }
    assert_eq!(rig.link("file", "one-more").unwrap_err(), Error::TooManyLinks);
    assert_eq!(rig.attr("file").unwrap().nlink, 65535);
    let refs = rig.items(entry.attr.ino, KeyType::INODE_REF);
    assert_eq!(refs.len(), 1);
    assert!(view::inode_refs(&refs[0].1).count() > 500);
    rig.finish();
}

#[test]
fn a_listing_ends_although_names_are_made_all_the_while() {
    if !crate::rig::can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("d").unwrap();
    for n in 0..5 {
        rig.create(&format!("d/{n}")).unwrap();
    }
    let rig = rig.remount();
    // Each name that is read becomes another, as `for f in *; do mv $f new-$f` has it.
    let (mut cookie, mut seen) = (0, Vec::new());
    while let Some((name, next, _)) = rig.list_from("d", cookie, 1).pop() {
        assert!(seen.len() < 20, "no end: {seen:?}");
        if name.parse::<u32>().is_ok() {
            rig.rename(&format!("d/{name}"), &format!("d/new{name}"), RenameFlags::empty())
                .unwrap();
        }
        rig.create(&format!("d/more{}", seen.len())).unwrap();
        seen.push(name);
        cookie = next;
    }
    assert_eq!(seen, [".", "..", "0", "1", "2", "3", "4"]);
    // From the start everything is there.
    assert_eq!(rig.names("d").len(), 5 + 7);
    rig.finish();
}
