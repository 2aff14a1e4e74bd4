//! One case each, and that a log was enough for it, or not.

use cowshed_vfs::fs::FileSystem;
use cowshed_vfs::{FallocateFlags, Handle, RenameFlags, SetAttr, WriteFlags};

use crate::rig::{ROOT, Rig, kernel_can};
use crate::seen::{Content, Seen, after_crash};

/// A volume with files `old0..old9` of 20,000 bytes in `/` and in `/dir`, committed.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.mkdir("dir").unwrap();
    for i in 0..10 {
        for place in ["", "dir/"] {
            let path = format!("{place}old{i}");
            rig.create(&path).unwrap();
            rig.write(&path, 0, &[b'a' + i as u8; 20_000]);
        }
    }
    rig.commit();
    rig
}

/// Syncs, says whether a log was written, and what the kernel finds.
fn sync(rig: &Rig, path: &str) -> (bool, Seen) {
    let before = rig.fs.mount().log_stats();
    rig.fsync(path);
    let after = rig.fs.mount().log_stats();
    (after.commits == before.commits, after_crash(rig.image()))
}

fn logged(rig: &Rig, path: &str) -> Seen {
    let (is_logged, seen) = sync(rig, path);
    assert!(is_logged, "{path}: a commit instead of a log");
    seen
}

fn content(rig: &Rig, path: &str) -> Content {
    Content(rig.read(path))
}

fn ino(rig: &Rig, path: &str) -> u64 {
    rig.attr(path).unwrap().ino
}

#[test]
fn an_overwritten_and_grown_file() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    let (at, other) = (ino(&rig, "old3"), ino(&rig, "old4"));
    rig.write("old3", 4096, &[b'X'; 4096]);
    rig.write("old3", 50_000, &[b'Y'; 10_000]);
    rig.write("old4", 0, b"not synced");
    rig.setattr(
        "old3",
        &SetAttr {
            perm: Some(0o600),
            ..SetAttr::default()
        },
    )
    .unwrap();
    rig.set_xattr("old3", "user.one", b"1").unwrap();
    let seen = logged(&rig, "old3");
    let file = &seen[&at];
    assert_eq!((file.size, file.mode & 0o7777), (60_000, 0o600));
    assert_eq!(file.content, content(&rig, "old3"));
    assert_eq!(file.xattrs.len(), 1);
    assert_eq!(seen[&other].content.0[0], b'e');
    // Once more, on top of what the log has.
    rig.write("old3", 8192, &[b'Z'; 100]);
    rig.setattr(
        "old3",
        &SetAttr {
            size_bytes: Some(12_000),
            ..SetAttr::default()
        },
    )
    .unwrap();
    rig.setattr(
        "old3",
        &SetAttr {
            size_bytes: Some(70_000),
            ..SetAttr::default()
        },
    )
    .unwrap();
    rig.fs
        .removexattr(&ROOT, rig.node("old3").unwrap(), b"user.one")
        .unwrap();
    let file = &logged(&rig, "old3")[&at];
    assert_eq!(file.content, content(&rig, "old3"));
    assert_eq!(file.xattrs.len(), 0);
    rig.finish();
}

#[test]
fn what_is_preallocated_behind_the_end_stays() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    let node = rig.node("old3").unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    rig.fs
        .fallocate(&ROOT, node, Handle::NONE, 16_384, 1 << 20, keep)
        .unwrap();
    rig.commit();
    for round in 1..3 {
        rig.write("old3", 4096 * round, b"changed");
        let blocks = rig.attr("old3").unwrap().blocks_512;
        assert!(blocks > 2048);
        assert_eq!(logged(&rig, "old3")[&ino(&rig, "old3")].blocks, blocks);
    }
    rig.finish();
}

#[test]
fn new_files_in_old_and_new_directories() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    rig.mkdir("a").unwrap();
    rig.mkdir("a/b").unwrap();
    for path in ["new", "dir/new", "a/b/new", "a/other"] {
        rig.create(path).unwrap();
        rig.write(path, 0, path.repeat(3000).as_bytes());
    }
    for path in ["new", "dir/new", "a/b/new"] {
        let file = &logged(&rig, path)[&ino(&rig, path)];
        assert_eq!(file.content, content(&rig, path), "{path}");
        assert_eq!(file.names.len(), 1);
    }
    let seen = after_crash(rig.image());
    assert!(!seen.contains_key(&ino(&rig, "a/other")));
    assert_eq!(rig.fs.mount().log_stats().commits, 0);
    rig.finish();
}

#[test]
fn a_directory_with_additions_and_removals() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    let dir = ino(&rig, "dir");
    for i in [1, 2, 5, 9] {
        rig.unlink(&format!("dir/old{i}")).unwrap();
    }
    for i in 0..300 {
        rig.create(&format!("dir/new{i}")).unwrap();
    }
    rig.symlink("dir/link", b"somewhere").unwrap();
    rig.mkdir("dir/sub").unwrap();
    rig.create("dir/sub/deep").unwrap();
    rig.unlink("old5").unwrap();
    let check = |seen: &Seen| {
        let names: Vec<_> = seen[&dir].entries.keys().cloned().collect();
        let mut ours = rig.names("dir");
        ours.sort();
        assert_eq!(names, ours);
        assert!(seen[&ino(&rig, "")].entries.contains_key("old5"));
        assert_eq!(seen[&ino(&rig, "dir/link")].content.0, b"somewhere");
        assert_eq!(seen[&ino(&rig, "dir/sub")].entries.len(), 1);
    };
    check(&logged(&rig, "dir"));
    for i in (0..300).step_by(3) {
        rig.unlink(&format!("dir/new{i}")).unwrap();
    }
    rig.unlink("dir/old7").unwrap();
    rig.create("dir/once more").unwrap();
    check(&logged(&rig, "dir"));
    rig.finish();
}

#[test]
fn a_file_replaced_by_a_rename_again_and_again() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    for round in 0..4u8 {
        rig.create("tmp").unwrap();
        rig.write("tmp", 0, &[round; 9000]);
        assert_eq!(
            // A log or a commit: what was replaced may be in the log.
            sync(&rig, "tmp").1[&ino(&rig, "tmp")].content,
            Content(vec![round; 9000])
        );
        rig.rename("tmp", "old0", RenameFlags::empty()).unwrap();
        if round % 2 == 0 {
            let (_, seen) = sync(&rig, "");
            let root = &seen[&ino(&rig, "")];
            assert_eq!(root.entries["old0"], ino(&rig, "old0"));
            assert!(!root.entries.contains_key("tmp"));
            assert_eq!(seen[&ino(&rig, "old0")].content, Content(vec![round; 9000]));
        }
    }
    rig.finish();
}

#[test]
fn what_loses_its_name_to_a_synced_file_lives_on() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    let moved = ino(&rig, "old1");
    rig.rename("old1", "kept", RenameFlags::empty()).unwrap();
    rig.create("old1").unwrap();
    let seen = logged(&rig, "old1");
    let root = &seen[&ino(&rig, "")];
    assert_eq!(root.entries["old1"], ino(&rig, "old1"));
    assert_eq!(root.entries["kept"], moved);
    assert_eq!(seen[&moved].content, Content(vec![b'b'; 20_000]));
    // Swapped names.
    rig.rename("old2", "old3", RenameFlags::EXCHANGE).unwrap();
    let seen = logged(&rig, "old2");
    let root = &seen[&ino(&rig, "")];
    assert_eq!(root.entries["old2"], ino(&rig, "old2"));
    assert_eq!(root.entries["old3"], ino(&rig, "old3"));
    rig.finish();
}

#[test]
fn moves_of_files_between_directories_are_logged_and_those_of_directories_committed() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    rig.rename("old1", "dir/moved", RenameFlags::empty()).unwrap();
    let seen = logged(&rig, "dir/moved");
    assert_eq!(
        seen[&ino(&rig, "dir/moved")].names,
        [(ino(&rig, "dir"), "moved".into())]
    );
    assert!(!seen[&ino(&rig, "")].entries.contains_key("old1"));
    rig.rename("dir/old2", "back", RenameFlags::empty()).unwrap();
    let seen = logged(&rig, "dir");
    assert_eq!(seen[&ino(&rig, "back")].names, [(ino(&rig, ""), "back".into())]);
    rig.mkdir("empty").unwrap();
    rig.commit();
    rig.rename("empty", "dir/empty", RenameFlags::empty()).unwrap();
    assert!(!sync(&rig, "dir").0);
    rig.finish();
}

#[test]
fn an_fsync_of_a_removed_file_makes_the_removal_durable() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    let node = rig.node("old1").unwrap();
    let at = ino(&rig, "old1");
    rig.unlink("old1").unwrap();
    rig.fs.fsync(&ROOT, node, Handle::NONE, false).unwrap();
    assert!(!after_crash(rig.image()).contains_key(&at));
    rig.finish();
}

#[test]
fn a_file_without_a_name_gets_one() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    let (entry, opened) = rig
        .fs
        .tmpfile(&ROOT, rig.node("dir").unwrap(), 0o600, &crate::rig::CREATE)
        .unwrap();
    let data = vec![7; 30_000];
    rig.fs
        .write(&ROOT, entry.node, opened.handle, 0, &data, WriteFlags::empty())
        .unwrap();
    rig.fs.fsync(&ROOT, entry.node, opened.handle, false).unwrap();
    assert!(!after_crash(rig.image()).contains_key(&entry.attr.ino));
    rig.fs
        .link(&ROOT, entry.node, rig.node("dir").unwrap(), b"named")
        .unwrap();
    rig.fs.fsync(&ROOT, entry.node, Handle::NONE, false).unwrap();
    let seen = after_crash(rig.image());
    assert_eq!(seen[&entry.attr.ino].content, Content(data));
    assert_eq!(seen[&entry.attr.ino].nlink, 1);
    assert_eq!(rig.fs.mount().log_stats().commits, 0);
    rig.fs.release(entry.node, opened.handle);
    rig.finish();
}

/// A hole that the log has is cut by several writes at once; each part of it is logged once.
#[test]
fn writes_into_a_hole_that_the_log_has() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    rig.write("old1", 20_000, &[b'A'; 300_000]);
    rig.commit();
    let hole = |size| SetAttr {
        size_bytes: Some(size),
        ..SetAttr::default()
    };
    rig.setattr("old1", &hole(8192)).unwrap();
    rig.setattr("old1", &hole(320_000)).unwrap();
    let seen = logged(&rig, "old1");
    assert_eq!(seen[&ino(&rig, "old1")].content, content(&rig, "old1"));
    for at in [40_960, 81_920, 163_840, 245_760] {
        rig.write("old1", at, &[b'B'; 8192]);
    }
    let seen = logged(&rig, "old1");
    assert_eq!(seen[&ino(&rig, "old1")].content, content(&rig, "old1"));
    assert_eq!(rig.fs.mount().log_stats().failed, 0);
    rig.finish();
}
