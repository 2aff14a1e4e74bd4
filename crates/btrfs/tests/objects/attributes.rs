//! Attributes: what setattr changes, and what operations do to times.

use cowshed_vfs::{Error, FileSystem, SetAttr, SetTime, Timestamp};

use crate::rig::{ROOT, Rig, can_run, kernel_can};

#[test]
fn what_is_set_is_on_disk() {
    if !kernel_can() {
        return;
    }
    let rig = Rig::new();
    rig.create("f").unwrap();
    let born = rig.attr("f").unwrap().btime;
    let set = SetAttr {
        perm: Some(0o4711),
        uid: Some(70_000),
        gid: Some(80_000),
        atime: Some(SetTime::At(Timestamp::new(-5, 999_999_999))),
        mtime: Some(SetTime::At(Timestamp::new(1 << 33, 1))),
        ..SetAttr::default()
    };
    let seen = rig.setattr("f", &set).unwrap();
    assert_eq!((seen.uid, seen.gid, seen.perm), (70_000, 80_000, 0o4711));
    let rig = rig.remount();
    let after = rig.attr("f").unwrap();
    assert_eq!(after, seen);
    assert_eq!(after.btime, born);
    let chown = SetAttr {
        uid: Some(1),
        ..SetAttr::default()
    };
    assert_eq!(
        rig.setattr("f", &chown).unwrap().perm,
        0o711,
        "set-id bits go with the owner"
    );
    let volume = rig.finish();
    volume
        .with_mount(|root| {
            use std::os::linux::fs::MetadataExt;
            let stat = std::fs::metadata(root.join("f"))?;
            assert_eq!((stat.st_atime(), stat.st_atime_nsec()), (-5, 999_999_999));
            assert_eq!((stat.st_mtime(), stat.st_mtime_nsec()), (1 << 33, 1));
            assert_eq!((stat.st_uid(), stat.st_mode() & 0o7777), (1, 0o711));
            Ok(())
        })
        .unwrap();
}

#[test]
fn operations_move_the_times_that_posix_names() {
    if !can_run() {
        return;
    }
    let rig = Rig::new();
    rig.mkdir("d").unwrap();
    rig.create("d/f").unwrap();
    let times = |path: &str| {
        let a = rig.attr(path).unwrap();
        (a.mtime, a.ctime)
    };
    let (dir, file) = (times("d"), times("d/f"));
    rig.link("d/f", "d/g").unwrap();
    assert!(times("d").0 > dir.0 && times("d").1 > dir.1, "a new name");
    assert!(times("d/f").0 == file.0 && times("d/f").1 > file.1, "one more link");
    let (dir, file) = (times("d"), times("d/f"));
    rig.unlink("d/g").unwrap();
    assert!(times("d").0 > dir.0 && times("d/f").1 > file.1 && times("d/f").0 == file.0);
    let file = times("d/f");
    rig.set_xattr("d/f", "user.x", b"").unwrap();
    assert!(times("d/f").1 > file.1 && times("d/f").0 == file.0);
    let (dir, file) = (times("d"), times("d/f"));
    rig.rename("d/f", "f", cowshed_vfs::RenameFlags::empty()).unwrap();
    assert!(times("d").0 > dir.0 && times("f").1 > file.1 && times("f").0 == file.0);
    let dir = rig.attr("d").unwrap();
    rig.names("d");
    rig.fs.getattr(&ROOT, rig.node("d").unwrap(), None).unwrap();
    assert!(
        rig.attr("d").unwrap().atime > dir.atime,
        "relatime: read after a change"
    );
    let dir = rig.attr("d").unwrap();
    rig.names("d");
    assert_eq!(rig.attr("d").unwrap().atime, dir.atime, "relatime: and not again");
    assert_eq!(rig.attr("d").unwrap().ctime, dir.ctime);
    let size = SetAttr {
        size_bytes: Some(5),
        ..SetAttr::default()
    };
    assert_eq!(rig.setattr("d", &size), Err(Error::IsDirectory));
    rig.finish();
}

/// Pages that were changed through a mapping move the times when they come, but not times that were
/// set after the pages were changed: as long as the file is open, and not synced.
#[test]
fn mapped_pages_move_times_unless_they_were_set_since() {
    use cowshed_vfs::{Handle, OpenFlags, OpenRequest, WriteFlags};
    if !crate::rig::can_run() {
        return;
    }
    let rig = Rig::new();
    let node = rig.create("f").unwrap().node;
    let write = |flags| rig.fs.write(&ROOT, node, Handle::NONE, 0, &[1; 4096], flags).unwrap();
    write(WriteFlags::empty());
    let old = Timestamp::new(1000, 0);
    let set_old = || {
        let set = SetAttr {
            mtime: Some(SetTime::At(old)),
            ..SetAttr::default()
        };
        rig.setattr("f", &set).unwrap();
    };
    let is_old = || rig.attr("f").unwrap().mtime == old;
    set_old();
    let ctime = rig.attr("f").unwrap().ctime;
    write(WriteFlags::FROM_CACHE);
    assert!(!is_old(), "nobody had it open when the times were set");
    assert!(rig.attr("f").unwrap().ctime > ctime);

    let request = OpenRequest {
        flags: OpenFlags::READ | OpenFlags::WRITE,
        kill_suidgid: false,
    };
    let open = || rig.fs.open(&ROOT, node, &request).unwrap().handle;
    let handle = open();
    set_old();
    write(WriteFlags::FROM_CACHE);
    assert!(is_old(), "the page may have been changed before");
    rig.fs.fsync(&ROOT, node, handle, false).unwrap();
    write(WriteFlags::FROM_CACHE);
    assert!(!is_old(), "with the sync all old pages had come");

    set_old();
    rig.fs.release(node, handle);
    write(WriteFlags::FROM_CACHE);
    assert!(!is_old(), "with the last close, too");

    let handle = open();
    set_old();
    write(WriteFlags::empty());
    assert!(!is_old(), "a plain write moves them always");
    rig.fs.release(node, handle);
    rig.finish();
}
