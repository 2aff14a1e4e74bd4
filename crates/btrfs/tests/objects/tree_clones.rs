//! Clones of whole trees: what they keep, what they share, whom they serve, and what they do where
//! something changes or runs out meanwhile.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cowshed_btrfs::fs::{AtimePolicy, MountOptions};
use cowshed_harness::threads::SetOnDrop;
use cowshed_harness::{KernelVolume, VolumeOptions};
use cowshed_vfs::acl::{Acl, Named};
use cowshed_vfs::{
    Access, Context, Credentials, Error, FallocateFlags, FileKind, FileSystem, FlagChange, Handle, InitInfo, NodeId,
    NotCloned, RenameFlags, Result, SetAttr, SetTime, Subvolumes, Timestamp, TreeClone, TreeCloneProgress,
    TreeCloneStep, Volume, WriteFlags,
};

use crate::rig::{ROOT, Rig, can_run};

const NOCOW: u32 = 0x80_0000;
const COMPRESS: u32 = 0x4;

/// A mount on which looking at files leaves their atime.
pub fn unread(volume: KernelVolume) -> Rig {
    let options = MountOptions {
        atime: AtimePolicy::Never,
        ..MountOptions::default()
    };
    Rig::mounted(volume, options, InitInfo::TRUSTED)
}

fn user(uid: u32) -> Context {
    Context::new(Credentials::new(uid, uid), 0, 0o022)
}

/// Content that differs from block to block.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..len).map(|_| next()).collect()
}

pub fn write(rig: &Rig, path: &str, offset: u64, data: &[u8]) {
    let node = rig.node(path).unwrap();
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        done += rig
            .fs
            .write(&ROOT, node, Handle::NONE, at, &data[done..], WriteFlags::empty())
            .unwrap();
    }
}

pub fn file(rig: &Rig, path: &str, data: &[u8]) {
    rig.create(path).unwrap();
    write(rig, path, 0, data);
}

pub fn read(rig: &Rig, path: &str) -> Vec<u8> {
    let node = rig.node(path).unwrap();
    let size = rig.attr(path).unwrap().size_bytes as usize;
    let mut all = vec![0; size];
    let mut done = 0;
    while done < size {
        let got = rig
            .fs
            .read(&ROOT, node, Handle::NONE, done as u64, &mut all[done..])
            .unwrap();
        assert!(got > 0, "{path} ends at {done}");
        done += got;
    }
    all
}

pub fn begin(rig: &Rig, ctx: &Context, src: &str, dst: &str) -> Result<Box<dyn TreeClone>> {
    let (parent, name) = dst.rsplit_once('/').unwrap_or(("", dst));
    let volume = rig.fs.volume().clone();
    volume.clone_tree(ctx, rig.node(src)?, rig.node(parent)?, name.as_bytes())
}

pub fn finish(walk: &mut dyn TreeClone, ctx: &Context) -> Result<Vec<NotCloned>> {
    let mut left_out = Vec::new();
    loop {
        match walk.step(ctx)? {
            TreeCloneStep::More => {}
            TreeCloneStep::Without(entry) => left_out.push(entry),
            TreeCloneStep::Done => return Ok(left_out),
        }
    }
}

pub fn clone_tree(rig: &Rig, src: &str, dst: &str) -> TreeCloneProgress {
    let mut walk = begin(rig, &ROOT, src, dst).unwrap();
    assert_eq!(finish(&mut *walk, &ROOT).unwrap(), []);
    walk.progress()
}

/// Where each part of a file lies, as far as both files of a clone have it the same.
fn extents(rig: &Rig, path: &str) -> Vec<String> {
    let mut all = Vec::new();
    let node = rig.node(path).unwrap();
    rig.fs
        .map_extents(node, 0..u64::MAX, true, &mut |extent| {
            let disk = (
                extent.disk_addr,
                extent.disk_bytes,
                extent.offset_bytes,
                extent.compression,
            );
            all.push(format!(
                "{:?} {}+{} {disk:?} shared {}",
                extent.kind, extent.start, extent.len_bytes, extent.is_shared
            ));
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

/// Everything of a tree that a clone by root keeps, by path.
pub fn describe(rig: &Rig, top: &str) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    let mut todo = vec![String::new()];
    while let Some(below) = todo.pop() {
        let path = format!("{top}{below}");
        let attr = rig.attr(&path).unwrap();
        let node = rig.node(&path).unwrap();
        let first = first_names.entry(attr.ino).or_insert_with(|| below.clone()).clone();
        let xattrs: Vec<_> = rig.xattr_names(&path);
        let xattrs: Vec<_> = xattrs
            .iter()
            .map(|name| (name, rig.xattr(&path, name).unwrap()))
            .collect();
        let mut text = format!(
            "{:?} {:o} {}:{} links {} of {first} size {} rdev {} atime {:?} mtime {:?} xattrs {xattrs:?} flags {:x}",
            attr.kind,
            attr.perm,
            attr.uid,
            attr.gid,
            attr.nlink,
            attr.size_bytes,
            attr.rdev,
            attr.atime,
            attr.mtime,
            rig.fs.flags(node).unwrap().attributes,
        );
        match attr.kind {
            FileKind::Directory => {
                rig.assert_names_agree(&path);
                let mut names = rig.names(&path);
                names.sort();
                todo.extend(names.iter().rev().map(|name| format!("{below}/{name}")));
            }
            FileKind::Symlink => text += &format!(" to {:?}", rig.fs.readlink(&ROOT, node).unwrap()),
            FileKind::Regular => {
                let sum = read(rig, &path)
                    .iter()
                    .fold(7_u64, |sum, b| sum.wrapping_mul(31) + u64::from(*b));
                text += &format!(" content {sum:x} extents {:?}", extents(rig, &path));
            }
            _ => {}
        }
        all.insert(below, text);
    }
    all
}

pub fn assert_same(rig: &Rig, src: &str, dst: &str) {
    let (left, right) = (describe(rig, src), describe(rig, dst));
    for (path, text) in &left {
        assert_eq!(Some(text), right.get(path), "{src}{path} and {dst}{path}");
    }
    assert_eq!(left.len(), right.len());
}

/// Some of everything below `src`. `src/linked` has a name outside, too.
pub fn fill(rig: &Rig) {
    rig.mkdir("src").unwrap();
    for dir in ["src/a", "src/a/b", "src/empty", "src/nocow", "src/packed"] {
        rig.mkdir(dir).unwrap();
    }
    for (dir, flag) in [("src/nocow", NOCOW), ("src/packed", COMPRESS)] {
        let node = rig.node(dir).unwrap();
        rig.fs.set_flags(&ROOT, node, &FlagChange::Attributes(flag)).unwrap();
    }
    file(rig, "src/inline", b"a little");
    file(rig, "src/none", b"");
    file(rig, "src/data", &bytes(1, 300_001));
    file(rig, "src/nocow/file", &bytes(2, 50_000));
    file(rig, "src/packed/file", &b"text ".repeat(60_000));
    file(rig, "src/packed/inline", &b"text ".repeat(300));
    file(rig, "src/sparse", &bytes(3, 4096));
    write(rig, "src/sparse", 5 << 20, &bytes(4, 10_000));
    file(rig, "src/prealloc", &bytes(5, 8192));
    let node = rig.node("src/prealloc").unwrap();
    rig.fs
        .fallocate(&ROOT, node, Handle::NONE, 4096, 1 << 20, FallocateFlags::empty())
        .unwrap();
    // More extents than a batch takes.
    rig.create("src/a/many").unwrap();
    for n in 0..700 {
        write(rig, "src/a/many", n * 8192, &bytes(n, 4096));
    }
    rig.symlink("src/a/link", b"../data").unwrap();
    rig.mknod("src/fifo", FileKind::Fifo, 0).unwrap();
    rig.mknod("src/socket", FileKind::Socket, 0).unwrap();
    rig.mknod("src/device", FileKind::BlockDevice, cowshed_vfs::rdev(8, 300))
        .unwrap();
    rig.link("src/data", "src/a/b/again").unwrap();
    rig.link("src/data", "src/and-again").unwrap();
    rig.link("src/fifo", "src/a/fifo").unwrap();
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    rig.set_xattr("src/data", "security.capability", capability).unwrap();
    rig.set_xattr("src/data", "user.long", &bytes(9, 3000)).unwrap();
    rig.set_xattr("src/a", "trusted.t", b"1").unwrap();
    rig.set_xattr("src/a/b", "user.u", b"").unwrap();
    let list = Acl {
        users: vec![Named {
            id: 1001,
            perm: Access::READ,
        }],
        mask: Some(Access::READ),
        ..Acl::from_mode(0o750)
    };
    rig.set_xattr("src/inline", "system.posix_acl_access", &list.to_bytes())
        .unwrap();
    rig.set_xattr("src/a", "system.posix_acl_default", &list.to_bytes())
        .unwrap();
    for (n, path) in ["src/data", "src/a", "src/none", "src", "src/a/many", "src/nocow"]
        .iter()
        .enumerate()
    {
        let n = n as u32;
        let set = SetAttr {
            perm: Some(0o6755 + n),
            uid: Some(1000 + n),
            gid: Some(2000 + n),
            ..SetAttr::default()
        };
        rig.setattr(path, &set).unwrap();
        let times = SetAttr {
            perm: Some(0o6755),
            atime: Some(SetTime::At(Timestamp::new(1_000_000 + i64::from(n), 1))),
            mtime: Some(SetTime::At(Timestamp::new(2_000_000 + i64::from(n), 2))),
            ..SetAttr::default()
        };
        rig.setattr(path, &times).unwrap();
    }
}

#[test]
fn clone_keeps_everything_and_shares_all_extents() {
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
        // What is dirty is in the clone, too.
        let progress = clone_tree(&rig, "src", "dst");
        rig.commit();
        let src = describe(&rig, "src");
        assert_eq!(progress.entries, src.len() as u64);
        assert_same(&rig, "src", "dst");
        let shared = src.values().filter(|text| text.contains("Data")).count();
        assert!(
            shared >= 6
                && src
                    .values()
                    .all(|text| !text.contains("shared false") || text.contains("Inline"))
        );
        // A write to one side stays there.
        write(&rig, "dst/nocow/file", 0, b"new");
        write(&rig, "dst/prealloc", 5000, b"new");
        rig.commit();
        assert_eq!(read(&rig, "src/nocow/file"), bytes(2, 50_000));
        assert!(read(&rig, "src/prealloc")[8192..].iter().all(|b| *b == 0));
        // Of a clone, and what the trees say after a mount.
        clone_tree(&rig, "dst", "src/a/third");
        let rig = unread(rig.finish());
        assert_same(&rig, "dst", "src/a/third");
        rig.finish();
    }
}

#[test]
fn names_outside_of_the_tree_are_not_linked_to() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("src").unwrap();
    file(&rig, "outside", b"content");
    rig.link("outside", "src/inside").unwrap();
    clone_tree(&rig, "src", "dst");
    assert_eq!(rig.attr("outside").unwrap().nlink, 2);
    assert_eq!(rig.attr("dst/inside").unwrap().nlink, 1);
    assert_eq!(read(&rig, "dst/inside"), b"content");
    rig.finish();
}

#[test]
fn synced_file_of_a_clone_survives_a_crash() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    fill(&rig);
    rig.commit();
    clone_tree(&rig, "src", "dst");
    for path in ["dst/data", "dst/a/many", "dst/packed/file", "dst/inline"] {
        rig.fs
            .fsync(&ROOT, rig.node(path).unwrap(), Handle::NONE, false)
            .unwrap();
    }
    let rig = Rig::on(rig.crash());
    for path in ["data", "a/many", "packed/file", "inline"] {
        assert!(
            read(&rig, &format!("dst/{path}")) == read(&rig, &format!("src/{path}")),
            "{path}"
        );
    }
    rig.finish();
}

#[test]
fn ten_thousand_names_in_one_directory() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("src").unwrap();
    for n in 0..10_000 {
        rig.create(&format!("src/name-{n}")).unwrap();
    }
    let progress = clone_tree(&rig, "src", "dst");
    assert_eq!(progress.entries, 10_001);
    rig.assert_names_agree("dst");
    assert_eq!(rig.names("dst"), rig.names("src"));
    rig.finish();
}

#[test]
fn cancelled_walk_leaves_whole_files() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("src").unwrap();
    for n in 0..500 {
        file(&rig, &format!("src/f{n}"), &bytes(n, 5000));
    }
    let mut walk = begin(&rig, &ROOT, "src", "dst").unwrap();
    while walk.progress().entries < 200 {
        assert_eq!(walk.step(&ROOT).unwrap(), TreeCloneStep::More);
    }
    drop(walk);
    let names = rig.names("dst");
    assert!((200..400).contains(&names.len()), "{}", names.len());
    for name in names {
        assert!(
            read(&rig, &format!("dst/{name}")) == read(&rig, &format!("src/{name}")),
            "{name}"
        );
    }
    assert!(rig.orphans().is_empty());
    rig.finish();
}

#[test]
fn full_volume_refuses_the_rest_and_loses_nothing() {
    if !can_run() {
        return;
    }
    let options = VolumeOptions {
        size_bytes: 128 << 20,
        mixed: false,
        ..VolumeOptions::default()
    };
    let rig = Rig::on(KernelVolume::make(&options).expect("mkfs.btrfs"));
    rig.mkdir("src").unwrap();
    for n in 0..3000 {
        file(&rig, &format!("src/{n:0>200}"), &bytes(n, 2000));
    }
    rig.commit();
    let mut clones = 0;
    let error = loop {
        let dst = format!("dst{clones}");
        let cloned = begin(&rig, &ROOT, "src", &dst).and_then(|mut walk| finish(&mut *walk, &ROOT));
        match cloned {
            Ok(left_out) => assert_eq!(left_out, []),
            Err(error) => break error,
        }
        clones += 1;
        assert!(clones < 1000, "the volume is never full");
    };
    assert_eq!(error, Error::NoSpace);
    rig.commit();
    let rig = Rig::on(rig.finish());
    for clone in 0..=clones {
        let dst = format!("dst{clone}");
        if !rig.exists(&dst) {
            continue;
        }
        let names = rig.names(&dst);
        assert!(clone == clones || names.len() == 3000);
        for name in names.iter().step_by(97) {
            let n = name.trim_start_matches('0').parse().unwrap_or(0);
            assert!(read(&rig, &format!("{dst}/{name}")) == bytes(n, 2000), "{dst}/{name}");
        }
    }
    rig.finish();
}

#[test]
fn ordinary_users_keep_what_is_theirs() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let owned = |path: &str, uid: u32, perm: u32| {
        let set = SetAttr {
            uid: Some(uid),
            gid: Some(uid),
            ..SetAttr::default()
        };
        rig.setattr(path, &set).unwrap();
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        rig.setattr(path, &set).unwrap();
    };
    for dir in ["src", "src/closed", "home", "src/narrow"] {
        rig.mkdir(dir).unwrap();
    }
    for name in ["src/own", "src/other", "src/secret", "src/closed/f", "src/narrow/f"] {
        file(&rig, name, name.as_bytes());
    }
    rig.mknod("src/device", FileKind::CharDevice, cowshed_vfs::rdev(1, 3))
        .unwrap();
    rig.mknod("src/fifo", FileKind::Fifo, 0).unwrap();
    rig.set_xattr("src/own", "user.u", b"1").unwrap();
    rig.set_xattr("src/own", "trusted.t", b"1").unwrap();
    rig.set_xattr("src/own", "security.s", b"1").unwrap();
    owned("home", 1000, 0o755);
    owned("src/own", 1000, 0o6755);
    owned("src/other", 1001, 0o6755);
    owned("src/secret", 1001, 0o600);
    owned("src/closed", 1001, 0o700);
    // Nothing may be made in it, by its mode.
    owned("src/narrow", 1000, 0o555);
    let alice = user(1000);
    assert_eq!(begin(&rig, &alice, "src", "dst").map(drop), Err(Error::AccessDenied));
    let mut walk = begin(&rig, &alice, "src", "home/dst").unwrap();
    let mut left_out = finish(&mut *walk, &alice).unwrap();
    left_out.sort_by(|a, b| a.path.cmp(&b.path));
    let left_out: Vec<_> = left_out.iter().map(|e| (&e.path[..], e.error)).collect();
    let expected: [(&[u8], Error); 3] = [
        (b"closed", Error::AccessDenied),
        (b"device", Error::NotPermitted),
        (b"secret", Error::AccessDenied),
    ];
    assert_eq!(left_out, expected);
    let whose = |path: &str| {
        let attr = rig.attr(path).unwrap();
        (attr.uid, attr.gid, attr.perm)
    };
    assert_eq!(whose("home/dst/own"), (1000, 1000, 0o6755));
    assert_eq!(whose("home/dst/other"), (1000, 1000, 0o755));
    assert_eq!(whose("home/dst/narrow"), (1000, 1000, 0o555));
    assert_eq!(whose("home/dst/fifo").0, 1000);
    assert_eq!(read(&rig, "home/dst/narrow/f"), b"src/narrow/f");
    assert_eq!(rig.xattr_names("home/dst/own"), ["user.u"]);
    // Another user's walk cannot make names where this one could.
    let mut walk = begin(&rig, &alice, "src", "home/second").unwrap();
    assert_eq!(walk.step(&user(1001)), Err(Error::AccessDenied));
    rig.finish();
}

#[test]
fn other_subvolumes_are_sources_and_trees_do_not_go_into_themselves() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    let subvolumes: &dyn Subvolumes = &**rig.fs.volume();
    subvolumes.create(&ROOT, NodeId::ROOT, b"one").unwrap();
    subvolumes.create(&ROOT, NodeId::ROOT, b"two").unwrap();
    let one = rig.node("one").unwrap();
    rig.mkdir("one/dir").unwrap();
    file(&rig, "one/dir/f", &bytes(1, 100_000));
    subvolumes
        .create(&ROOT, rig.node("one/dir").unwrap(), b"nested")
        .unwrap();
    file(&rig, "one/dir/nested/g", &bytes(2, 100_000));
    subvolumes.snapshot(&ROOT, one, NodeId::ROOT, b"frozen", true).unwrap();
    for (src, dst) in [("one", "two/copy"), ("frozen", "two/of-frozen"), ("one/dir", "copy")] {
        clone_tree(&rig, src, dst);
    }
    assert_eq!(read(&rig, "two/copy/dir/f"), bytes(1, 100_000));
    assert_eq!(read(&rig, "two/copy/dir/nested/g"), bytes(2, 100_000));
    assert_eq!(read(&rig, "copy/nested/g"), bytes(2, 100_000));
    // The stand-in for a subvolume in a snapshot is an empty directory.
    assert_eq!(rig.names("two/of-frozen/dir"), ["f", "nested"]);
    assert!(rig.names("two/of-frozen/dir/nested").is_empty());
    for (src, dst, error) in [
        ("one", "one/x", Error::Invalid),
        ("one", "one/dir/nested/x", Error::Invalid),
        ("", "two/x", Error::Invalid),
        ("one/dir/f", "x", Error::NotDirectory),
        ("one", "two/copy", Error::Exists),
        ("one", "frozen/x", Error::ReadOnly),
    ] {
        assert_eq!(begin(&rig, &ROOT, src, dst).map(drop), Err(error), "{src} to {dst}");
    }
    rig.finish();
}

#[test]
fn walk_ends_where_source_and_copy_move_and_change_meanwhile() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("src").unwrap();
    for dir in 0..4 {
        rig.mkdir(&format!("src/d{dir}")).unwrap();
        for n in 0..300 {
            file(&rig, &format!("src/d{dir}/f{n}"), &bytes(n, 3000));
        }
    }
    let mut walk = begin(&rig, &ROOT, "src", "dst").unwrap();
    let mut steps = 0;
    while walk.step(&ROOT).unwrap() != TreeCloneStep::Done {
        steps += 1;
        match steps {
            // The copy comes to lie in the source.
            3 => rig.rename("dst", "src/d3/dst", RenameFlags::empty()).unwrap(),
            4 => (0..300).for_each(|n| rig.unlink(&format!("src/d1/f{n}")).unwrap_or(())),
            5 => rig.rename("src/d2", "moved", RenameFlags::empty()).unwrap(),
            _ => drop(rig.create(&format!("src/d0/new{steps}"))),
        }
        assert!(steps < 1000, "it goes on for ever");
    }
    let copy = "src/d3/dst";
    for dir in rig.names(copy) {
        for name in rig.names(&format!("{copy}/{dir}")) {
            let Some(n) = name.strip_prefix('f') else { continue };
            let content = read(&rig, &format!("{copy}/{dir}/{name}"));
            assert!(content == bytes(n.parse().unwrap(), 3000), "{dir}/{name}");
        }
    }
    rig.finish();
}

#[test]
fn copy_of_a_file_that_is_being_written_is_of_one_moment() {
    const LEN: usize = 256 << 10;
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("src").unwrap();
    file(&rig, "src/f", &[0; LEN]);
    let node = rig.node("src/f").unwrap();
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let data = vec![written.load(Ordering::Relaxed) as u8; LEN];
                let done = rig.fs.write(&ROOT, node, Handle::NONE, 0, &data, WriteFlags::empty());
                assert_eq!(done, Ok(LEN));
                written.fetch_add(1, Ordering::Relaxed);
            }
        });
        let over = SetOnDrop(&is_over);
        for n in 0..60 {
            let before = written.load(Ordering::Relaxed);
            while written.load(Ordering::Relaxed) == before && !writer.is_finished() {
                std::thread::yield_now();
            }
            clone_tree(&rig, "src", &format!("dst{n}"));
        }
        drop(over);
        writer.join().unwrap();
    });
    let mut seen = std::collections::BTreeSet::new();
    for n in 0..60 {
        let content = read(&rig, &format!("dst{n}/f"));
        assert!(content.iter().all(|b| *b == content[0]), "dst{n} is torn");
        seen.insert(content[0]);
    }
    assert!(seen.len() > 1, "the writer never got on");
    rig.finish();
}
