//! The maker is repeatable, the snapshot complete, and the comparison sees every single change.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use cowshed_harness::tree::{Compare, Kind, Kinds, MakeOptions, compare, make, snapshot};
use cowshed_harness::{need, run, scratch_dir};

fn options(seed: u64) -> MakeOptions {
    let root = rustix::process::geteuid().is_root();
    // In memory: neither clones, nor attributes of unlimited size.
    let kinds = Kinds {
        root_only: root,
        xattrs: root,
        acls: root,
        reflinks: false,
        ..Kinds::all()
    };
    MakeOptions {
        total_bytes: 8 << 20,
        kinds,
        ..MakeOptions::new(seed, 400)
    }
}

#[test]
fn the_same_seed_makes_the_same_tree() {
    let dir = scratch_dir().unwrap();
    let paths = ["a", "b", "c"].map(|name| dir.path().join(name));
    for (path, seed) in paths.iter().zip([1, 1, 2]) {
        std::fs::create_dir(path).unwrap();
        make(path, &options(seed)).unwrap();
    }
    let all = Compare {
        atime: true,
        holes: true,
        ..Compare::copy()
    };
    compare(&paths[0], &paths[1], &all).unwrap().assert_none();
    assert!(!compare(&paths[0], &paths[2], &all).unwrap().is_empty());
}

#[test]
fn a_tree_has_something_of_everything() {
    let Some(()) = need::root() else { return };
    let dir = scratch_dir().unwrap();
    make(dir.path(), &options(3)).unwrap();
    let tree = snapshot(dir.path()).unwrap();
    let count = |name| tree.nodes.values().filter(|node| node.kind.name() == name).count();
    for kind in [
        "file",
        "directory",
        "symlink",
        "fifo",
        "socket",
        "character device",
        "block device",
    ] {
        assert!(count(kind) > 0, "no {kind}");
    }
    assert!(tree.nodes.values().any(|node| node.links > 120));
    assert!(tree.nodes.values().any(|node| {
        node.xattrs
            .contains_key("system.posix_acl_access".as_ref() as &std::ffi::OsStr)
    }));
    assert!(tree.nodes.values().any(|node| node.mtime.seconds < 0));
    assert!(tree.nodes.values().any(|node| node.mtime.seconds > u32::MAX.into()));
    assert!(tree.nodes.keys().any(|path| path.len() > 500));
    let sparse = |kind: &Kind| matches!(kind, Kind::File(content) if content.data.len() > 1);
    assert!(tree.nodes.values().any(|node| sparse(&node.kind)));
}

/// Each change, made to one of two equal trees, and a part of what must be reported.
#[test]
fn every_change_is_seen_and_named() {
    type Change = (&'static str, fn(&Path));
    let changes: &[Change] = &[
        ("file: mode 0644 != 0600", |dir| {
            std::fs::set_permissions(dir.join("file"), Permissions::from_mode(0o600)).unwrap();
        }),
        (
            "file: contents differ in 1 block(s) of 4096, first at byte 8192\n",
            |dir| {
                File::options()
                    .write(true)
                    .open(dir.join("file"))
                    .unwrap()
                    .write_all_at(b"!", 8200)
                    .unwrap();
            },
        ),
        ("first at byte 4096 (zeros on the right)", |dir| {
            File::options()
                .write(true)
                .open(dir.join("file"))
                .unwrap()
                .write_all_at(&[0; 4096], 4096)
                .unwrap();
        }),
        ("links: size 6 != 7", |dir| {
            File::options()
                .write(true)
                .open(dir.join("links"))
                .unwrap()
                .set_len(7)
                .unwrap();
        }),
        ("symlink: target file != elsewhere", |dir| {
            std::fs::remove_file(dir.join("symlink")).unwrap();
            symlink("elsewhere", dir.join("symlink")).unwrap();
        }),
        ("dir/inner: file only on the left", |dir| {
            std::fs::remove_file(dir.join("dir/inner")).unwrap()
        }),
        ("dir: directory only on the left", |dir| {
            std::fs::remove_dir_all(dir.join("dir")).unwrap()
        }),
        ("new: file only on the right", |dir| {
            std::fs::write(dir.join("new"), "").unwrap()
        }),
        ("links2: is the inode of links != links2", |dir| {
            std::fs::remove_file(dir.join("links2")).unwrap();
            std::fs::write(dir.join("links2"), "linked").unwrap();
        }),
        ("file: mtime 1000.000000001 != 1000.000000002", |dir| {
            set_time(&dir.join("file"), 2)
        }),
        ("fifo: fifo != file", |dir| {
            std::fs::remove_file(dir.join("fifo")).unwrap();
            std::fs::write(dir.join("fifo"), "").unwrap();
        }),
        ("file: data ranges [0..12288] != [0..4096 8192..12288]", |dir| {
            // Bytes 4096..8192 are zeros on the left, a hole on the right.
            let file = File::create(dir.join("file")).unwrap();
            file.write_all_at(&[b'x'; 4096], 0).unwrap();
            file.write_all_at(&[b'x'; 4096], 8192).unwrap();
        }),
    ];
    for (index, (expected, change)) in changes.iter().enumerate() {
        let scratch = scratch_dir().unwrap();
        let (left, right) = (scratch.path().join("left"), scratch.path().join("right"));
        small_tree(&left);
        small_tree(&right);
        let holes = expected.contains("ranges");
        if holes {
            File::options()
                .write(true)
                .open(left.join("file"))
                .unwrap()
                .write_all_at(&[0; 4096], 4096)
                .unwrap();
        }
        let options = Compare {
            directory_times: false,
            holes,
            ..Compare::copy()
        };
        if !holes {
            compare(&left, &right, &options).unwrap().assert_none();
        }
        change(&right);
        for path in [&left, &right].map(|dir| dir.join("file")) {
            if path.exists() && !expected.contains("mtime") {
                set_time(&path, 1);
            }
        }
        let found = compare(&left, &right, &options).unwrap();
        let report = found.to_string();
        assert!(
            report.contains(expected),
            "change {index}: expected '{expected}' in\n{report}"
        );
    }
}

fn set_time(path: &Path, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(1000, nanoseconds);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(time)
        .unwrap();
}

fn small_tree(dir: &Path) {
    std::fs::create_dir_all(dir.join("dir")).unwrap();
    std::fs::write(dir.join("file"), [b'x'; 12288]).unwrap();
    std::fs::set_permissions(dir.join("file"), Permissions::from_mode(0o644)).unwrap();
    std::fs::write(dir.join("dir/inner"), "inner").unwrap();
    std::fs::write(dir.join("links"), "linked").unwrap();
    std::fs::hard_link(dir.join("links"), dir.join("links2")).unwrap();
    symlink("file", dir.join("symlink")).unwrap();
    run("mkfifo", &[dir.join("fifo")]).unwrap();
    for name in ["file", "dir/inner", "links"] {
        set_time(&dir.join(name), 1);
    }
    let epoch = rustix::fs::Timespec { tv_sec: 1, tv_nsec: 0 };
    let times = rustix::fs::Timestamps {
        last_access: epoch,
        last_modification: epoch,
    };
    for name in ["symlink", "fifo"] {
        rustix::fs::utimensat(
            rustix::fs::CWD,
            dir.join(name),
            &times,
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .unwrap();
    }
}

#[test]
fn attributes_owners_and_limits_of_the_report() {
    let Some(()) = need::root() else { return };
    let Some(()) = need::tool("setfattr") else { return };
    let scratch = scratch_dir().unwrap();
    let (left, right) = (scratch.path().join("left"), scratch.path().join("right"));
    small_tree(&left);
    small_tree(&right);
    let file = right.join("file");
    run(
        "setfattr",
        &[
            "-n".as_ref(),
            "user.a".as_ref(),
            "-v".as_ref(),
            "1".as_ref(),
            file.as_os_str(),
        ],
    )
    .unwrap();
    std::os::unix::fs::chown(&file, Some(12), Some(13)).unwrap();
    let options = Compare {
        directory_times: false,
        ..Compare::copy()
    };
    let report = compare(&left, &right, &options).unwrap().to_string();
    assert!(report.contains("file: xattr user.a none != \"1\""), "{report}");
    assert!(report.contains("file: owner 0:0 != 12:13"), "{report}");
    assert!(report.starts_with("the trees differ in 2 places"), "{report}");
    let short = compare(
        &left,
        &right,
        &Compare {
            report_max: 1,
            ..options
        },
    )
    .unwrap()
    .to_string();
    assert!(short.contains("... and 1 more"), "{short}");
}
