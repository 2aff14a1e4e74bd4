//! What is written for a sync: a log, a commit because it is cheaper, or nothing.

use btrfs_format::KeyType;
use cowshed_vfs::fs::FileSystem;
use cowshed_vfs::{FlagChange, Handle, RenameFlags, SetAttr, SetTime, Timestamp, Volume as _};

use cowshed_harness::tree::colliding_names;
use cowshed_harness::{KernelVolume, VolumeOptions};

use crate::rig::{ROOT, Rig, kernel_can};
use crate::seen::{Content, Seen, after_crash};

/// A volume with a file of 20,000 bytes, committed.
fn rig() -> Rig {
    let rig = Rig::new();
    rig.create("old").unwrap();
    rig.write("old", 0, &[b'a'; 20_000]);
    rig.commit();
    rig
}

/// Logs and commits of fsyncs so far.
pub fn syncs(rig: &Rig) -> (u64, u64) {
    let stats = rig.fs.mount().log_stats();
    (stats.syncs, stats.commits)
}

fn fdatasync(rig: &Rig, path: &str) {
    let node = rig.node(path).unwrap();
    rig.fs.fsync(&ROOT, node, Handle::NONE, true).unwrap();
}

fn set_mtime(rig: &Rig, path: &str, secs: i64) {
    let time = SetTime::At(Timestamp { secs, nanos: 0 });
    let set = SetAttr {
        mtime: Some(time),
        ..SetAttr::default()
    };
    rig.setattr(path, &set).unwrap();
}

fn seen(rig: &Rig, path: &str) -> (Seen, u64) {
    (after_crash(rig.image()), rig.attr(path).unwrap().ino)
}

/// What an fsync carries along (docs/design/log-tree.md) is for files whose names changed: not for
/// one that was created.
#[test]
fn fsync_of_new_file_among_many_unsynced_ones_logs_that_file_alone() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    rig.mkdir("d").unwrap();
    for n in 0..20_000 {
        rig.create(&format!("d/{n}")).unwrap();
    }
    rig.create("d/synced").unwrap();
    let before = rig.fs.mount().log_stats();
    rig.fsync("d/synced");
    let after = rig.fs.mount().log_stats();
    assert_eq!((after.syncs - before.syncs, after.commits - before.commits), (1, 0));
    // The file, its name, and the new directory that the name needs with its own.
    let items = after.items_merged - before.items_merged;
    assert!(items <= 6, "{items} items");
    // Nor for a new one that takes the place of another: the safe replacement.
    rig.rename("d/synced", "d/0", RenameFlags::empty()).unwrap();
    rig.fsync("d/0");
    let replaced = rig.fs.mount().log_stats().items_merged - after.items_merged;
    assert!(replaced <= 20, "{replaced} items");
}

#[test]
fn fdatasync_leaves_times_alone() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    // Committed, and nothing but the time has changed.
    set_mtime(&rig, "old", 1_000_000);
    fdatasync(&rig, "old");
    assert_eq!(syncs(&rig), (0, 0));
    // Data brings the time along.
    rig.write("old", 4096, b"new");
    set_mtime(&rig, "old", 2_000_000);
    fdatasync(&rig, "old");
    assert_eq!(syncs(&rig), (1, 0));
    // Logged, and nothing but the time has changed.
    set_mtime(&rig, "old", 3_000_000);
    fdatasync(&rig, "old");
    assert_eq!(syncs(&rig), (1, 0));
    let (found, ino) = seen(&rig, "old");
    assert_eq!(found[&ino].mtime, (2_000_000, 0));
    assert_eq!(found[&ino].content, Content(rig.read("old")));
    // fsync wants the time, too: what fdatasync passed over is not forgotten.
    rig.fsync("old");
    assert_eq!(syncs(&rig), (2, 0));
    assert_eq!(seen(&rig, "old").0[&ino].mtime, (3_000_000, 0));
    // Whatever else changes is no time.
    let mode = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    rig.setattr("old", &mode).unwrap();
    fdatasync(&rig, "old");
    assert_eq!(syncs(&rig), (3, 0));
    rig.link("old", "other").unwrap();
    fdatasync(&rig, "old");
    assert_eq!(syncs(&rig), (4, 0));
    let (found, _) = seen(&rig, "old");
    assert_eq!((found[&ino].mode & 0o7777, found[&ino].nlink), (0o600, 2));
    rig.finish();
}

/// Data that is overwritten where it lies leaves no trace in trees. (That there is a barrier behind
/// it: `barriers.rs`.)
#[test]
fn fdatasync_of_data_in_place_writes_no_log() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    rig.create("in-place").unwrap();
    let no_cow = FlagChange::Attributes(0x80_0000);
    rig.fs.set_flags(&ROOT, rig.node("in-place").unwrap(), &no_cow).unwrap();
    rig.write("in-place", 0, &[b'a'; 20_000]);
    rig.commit();
    for round in b'b'..b'g' {
        rig.write("in-place", 4096, &[round; 4096]);
        fdatasync(&rig, "in-place");
        let (found, ino) = seen(&rig, "in-place");
        assert_eq!(found[&ino].content, Content(rig.read("in-place")));
    }
    assert_eq!(syncs(&rig), (0, 0));
    rig.fsync("in-place");
    assert_eq!(syncs(&rig), (1, 0));
    rig.finish();
}

/// A log that has grown is more to write with each sync than a new one: at some time a commit pays.
#[test]
fn a_commit_is_made_where_logs_have_become_dear() {
    const FILE_BLOCKS: u64 = 2048;
    if !kernel_can() {
        return;
    }
    let rig = rig();
    for at in 0..FILE_BLOCKS / 256 {
        rig.write("old", at << 20, &[b'a'; 1 << 20]);
    }
    rig.commit();
    let mut dice = 7_u64;
    for round in 0..1500_u64 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let block = (dice >> 33) % FILE_BLOCKS;
        rig.write("old", block * 4096, &round.to_le_bytes());
        fdatasync(&rig, "old");
    }
    let stats = rig.fs.mount().log_stats();
    let commits = rig.fs.mount().commit_stats();
    assert!(stats.chosen > 0 && stats.chosen < 100, "{stats:?}");
    assert_eq!(stats.chosen, stats.commits, "{stats:?}");
    let written = (stats.blocks_written + commits.blocks_written) as f64 / 1500.0;
    // Two of a log that was empty, and commits now and then. Logs alone: 4.4.
    assert!(
        written < 3.0,
        "{written:.2} blocks for each sync; {stats:?}; {commits:?}"
    );
    let (found, ino) = seen(&rig, "old");
    assert_eq!(found[&ino].content, Content(rig.read("old")));
    rig.finish();
}

/// Replay does not know of a chunk that was made since the commit: a log that would need one is not
/// begun. What is committed instead makes room, so that logs go on behind it.
#[test]
fn a_log_that_would_need_a_chunk_is_a_commit() {
    const FILES: u64 = 20_000;
    if !kernel_can() {
        return;
    }
    let options = VolumeOptions {
        metadata: Some("single"),
        ..VolumeOptions::default()
    };
    let rig = Rig::on(KernelVolume::make(&options).expect("mkfs.btrfs"));
    let dir = rig.mkdir("d").unwrap().node;
    rig.commit();
    // More of metadata than the 8 MiB of the chunk that mkfs made.
    let name = |i: u64| format!("{i:0>200}");
    for i in 0..FILES {
        rig.create_in(dir, &name(i));
    }
    rig.fsync("d");
    let stats = rig.fs.mount().log_stats();
    assert_eq!((stats.syncs, stats.commits, stats.chosen, stats.failed), (0, 1, 0, 0));
    assert_eq!(stats.items_merged, 0, "nothing was begun");
    rig.unlink(&format!("d/{}", name(7))).unwrap();
    rig.fsync("d");
    assert_eq!(syncs(&rig), (1, 1));
    assert!(rig.fs.mount().log_stats().items_merged > 0);
    let (found, ino) = seen(&rig, "d");
    let expected: std::collections::BTreeSet<_> = (0..FILES).filter(|i| *i != 7).map(name).collect();
    assert!(found[&ino].entries.keys().eq(&expected), "names after the crash");
    rig.finish();
}

/// What no log has needs not leave it.
#[test]
fn removed_files_that_no_log_has_are_no_reason_to_commit() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    for i in 0..4 {
        rig.create(&format!("gone{i}")).unwrap();
    }
    rig.commit();
    for i in 0..4 {
        rig.unlink(&format!("gone{i}")).unwrap();
        rig.write("old", 0, &[b'b' + i; 100]);
        rig.fsync("old");
        assert_eq!(syncs(&rig), (u64::from(i) + 1, 0));
    }
    let (found, ino) = seen(&rig, "old");
    assert_eq!(found[&ino].content, Content(rig.read("old")));
    rig.finish();
}

/// Linux cannot replay an item that grows beyond half a leaf where something shorter is: what would
/// need it is committed.
#[test]
fn names_that_fill_half_a_leaf_are_committed() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::with_nodesize(4096);
    let name = |i: usize| format!("{i:0>190}");
    rig.create(&name(0)).unwrap();
    rig.commit();
    // 200 bytes a name, two items with their headers in 3995 bytes.
    for i in 1..9 {
        rig.link(&name(0), &name(i)).unwrap();
    }
    rig.fsync(&name(0));
    assert_eq!(syncs(&rig), (1, 0), "1800 bytes of names");
    rig.link(&name(0), &name(9)).unwrap();
    rig.fsync(&name(0));
    assert_eq!(syncs(&rig), (1, 1), "2000 bytes of names");
    rig.unlink(&name(0)).unwrap();
    rig.fsync(&name(1));
    assert_eq!(syncs(&rig), (2, 1), "1800 bytes again");
    // A new file, which no commit has, all the same; through its directory, too.
    rig.mkdir("d").unwrap();
    rig.create("d/new").unwrap();
    for i in 0..10 {
        rig.link("d/new", &format!("d/{}", name(i))).unwrap();
    }
    rig.fsync("d");
    assert_eq!(syncs(&rig), (2, 2));
    rig.finish();
}

/// `d/f` in leaves of 4 KiB, committed with so many names that its reference is full: the next ones
/// are extended.
fn full_of_names() -> (Rig, impl Fn(usize) -> String) {
    let name = |i| format!("d/{i:0>190}");
    let rig = Rig::with_nodesize(4096);
    rig.mkdir("d").unwrap();
    rig.create("d/f").unwrap();
    for i in 0..PLAIN_NAMES {
        rig.link("d/f", &name(i)).unwrap();
    }
    rig.commit();
    (rig, name)
}

const PLAIN_NAMES: usize = 20;

/// Linux takes from an inode the plain names that a log with extended ones has not, changed or not.
#[test]
fn extended_names_bring_the_plain_ones_along() {
    if !kernel_can() {
        return;
    }
    for unlinked in [0, 12] {
        let (rig, name) = full_of_names();
        let ino = rig.attr("d/f").unwrap().ino;
        for i in PLAIN_NAMES..PLAIN_NAMES + 3 {
            rig.link("d/f", &name(i)).unwrap();
        }
        (0..unlinked).for_each(|i| rig.unlink(&name(i)).unwrap());
        assert!(!rig.items(ino, KeyType::INODE_EXTREF).is_empty());
        rig.fsync("d/f");
        let names = &after_crash(rig.image())[&ino].names;
        assert_eq!(names.len(), 1 + PLAIN_NAMES + 3 - unlinked);
        rig.finish();
    }
}

/// Names of one hash share an item.
#[test]
fn extended_names_that_fill_half_a_leaf_are_committed() {
    if !kernel_can() {
        return;
    }
    for (count, expected) in [(8, (1, 0)), (11, (0, 1))] {
        let (rig, name) = full_of_names();
        for tail in &colliding_names(11)[..count] {
            rig.link("d/f", &format!("d/{tail:0>190}")).unwrap();
        }
        let extrefs = rig.items(rig.attr("d/f").unwrap().ino, KeyType::INODE_EXTREF);
        assert_eq!(extrefs.iter().filter(|(_, item)| item.len() > 1600).count(), 1);
        // The plain ones are no longer half a leaf.
        (0..12).for_each(|i| rig.unlink(&name(i)).unwrap());
        rig.fsync("d/f");
        assert_eq!(syncs(&rig), expected);
        rig.finish();
    }
}

/// Values are items that may grow, too.
#[test]
fn an_attribute_that_grows_beyond_half_a_leaf_is_committed() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::with_nodesize(4096);
    rig.create("f").unwrap();
    rig.set_xattr("f", "user.a", &[1; 1500]).unwrap();
    rig.commit();
    rig.set_xattr("f", "user.b", &[1; 3000]).unwrap();
    rig.fsync("f");
    assert_eq!(syncs(&rig), (1, 0), "nothing shorter is there");
    rig.set_xattr("f", "user.a", &[2; 3000]).unwrap();
    rig.fsync("f");
    assert_eq!(syncs(&rig), (1, 1));
    rig.set_xattr("f", "user.a", &[3; 2500]).unwrap();
    rig.fsync("f");
    assert_eq!(syncs(&rig), (2, 1), "it became shorter");
    rig.finish();
}

/// A file has no attributes until one is set, and a log does not search for them before.
#[test]
fn extended_attributes_are_searched_for_only_where_some_may_be() {
    if !kernel_can() {
        return;
    }
    let rig = rig();
    let searches = |rig: &Rig| rig.fs.mount().log_stats().xattr_searches;
    // New, and new in a directory that is synced.
    rig.create("new").unwrap();
    rig.write("new", 0, b"data");
    rig.fsync("new");
    rig.mkdir("d").unwrap();
    for n in 0..20 {
        rig.create(&format!("d/{n}")).unwrap();
    }
    rig.fsync("d");
    // Committed, but made in this mount.
    rig.write("old", 0, b"data");
    rig.fsync("old");
    assert_eq!((syncs(&rig), searches(&rig)), ((3, 0), 0));
    rig.set_xattr("new", "user.a", b"1").unwrap();
    rig.commit();
    rig.write("new", 0, b"more");
    rig.fsync("new");
    assert_eq!(searches(&rig), 1, "what nobody changed is logged, too");
    assert_eq!(seen(&rig, "new").0[&rig.attr("new").unwrap().ino].xattrs.len(), 1);

    let rig = rig.remount();
    for _ in 0..3 {
        rig.write("old", 0, b"again");
        rig.fsync("old");
        rig.commit();
    }
    assert_eq!(
        (syncs(&rig), searches(&rig)),
        ((3, 0), 1),
        "what was found the first time is known"
    );
    rig.finish();
}
