//! Directories, renames, links, permissions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cowshed_fuse::Permissions;
use cowshed_harness::threads::SetOnDrop;
use cowshed_vfs::acl::{Acl, Named};
use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{Access, Context, FileKind, FileSystem as _, Handle, NodeId, WriteFlags};

use crate::support::*;

fn list(dir: &Path) -> Vec<String> {
    fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn ten_thousand_names_are_listed_once_each() {
    let Some(_turn) = turn("ten_thousand_names_are_listed_once_each") else {
        return;
    };
    for mount in [Mount::new(|_| {}), Mount::stateful(|_| {})] {
        let dir = mount.path("many");
        fs::create_dir(&dir).unwrap();
        let names: BTreeSet<String> = (0..10_000).map(|i| format!("a name of some length {i:05}")).collect();
        for name in &names {
            File::create_new(dir.join(name)).unwrap();
        }
        for _ in 0..2 {
            let got = list(&dir);
            assert_eq!(got.len(), 10_000);
            assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), names);
        }
        let sizes: u64 = fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(sizes, 0);
    }
}

#[test]
fn listing_survives_deleting_what_it_lists() {
    let Some(_turn) = turn("listing_survives_deleting_what_it_lists") else {
        return;
    };
    for mount in [Mount::new(|_| {}), Mount::stateful(|_| {})] {
        let dir = mount.path("d");
        fs::create_dir(&dir).unwrap();
        (0..3000).for_each(|i| fs::write(dir.join(format!("file-{i}")), b"").unwrap());
        let mut seen = 0;
        for entry in fs::read_dir(&dir).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
            seen += 1;
        }
        assert_eq!(seen, 3000);
        fs::remove_dir(&dir).unwrap();
    }
}

/// Names that stay are seen exactly once, whatever others do meanwhile.
#[test]
fn listing_while_others_create_and_delete() {
    let Some(_turn) = turn("listing_while_others_create_and_delete") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let dir = mount.path("d");
    fs::create_dir(&dir).unwrap();
    (0..500).for_each(|i| fs::write(dir.join(format!("stays-{i}")), b"").unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0.. {
                let path = dir.join(format!("goes-{}", i % 300));
                fs::write(&path, b"x").unwrap();
                if i % 3 != 0 {
                    fs::remove_file(&path).unwrap();
                }
                if stop.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        let _stop = SetOnDrop(&stop);
        for _ in 0..30 {
            let mut count = BTreeMap::new();
            for name in list(&dir) {
                *count.entry(name).or_insert(0) += 1;
            }
            let stays = count
                .iter()
                .filter(|(name, _)| name.starts_with("stays"))
                .collect::<Vec<_>>();
            assert_eq!(stays.len(), 500);
            assert!(stays.iter().all(|(_, n)| **n == 1));
        }
    });
}

#[test]
fn renames_of_all_kinds() {
    let Some(_turn) = turn("renames_of_all_kinds") else {
        return;
    };
    let mount = Mount::shared();
    let p = |name: &str| mount.path(name);
    fs::write(p("a"), b"A").unwrap();
    fs::write(p("b"), b"B").unwrap();
    fs::create_dir_all(p("d/e")).unwrap();
    assert_eq!(errno(rename2(&p("a"), &p("b"), libc::RENAME_NOREPLACE)), libc::EEXIST);
    rename2(&p("a"), &p("b"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(p("a")).unwrap(), fs::read(p("b")).unwrap()),
        (b"B".to_vec(), b"A".to_vec())
    );
    rename2(&p("a"), &p("d"), libc::RENAME_EXCHANGE).unwrap();
    assert!(
        p("a/e").is_dir() && p("d").is_file(),
        "a file and a directory change places"
    );
    rename2(&p("a"), &p("d"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!(
        errno(rename2(&p("a"), &p("missing"), libc::RENAME_EXCHANGE)),
        libc::ENOENT
    );
    fs::rename(p("a"), p("d/moved")).unwrap();
    assert!(!p("a").exists() && fs::read(p("d/moved")).unwrap() == b"B");
    fs::rename(p("b"), p("d/moved")).unwrap();
    assert_eq!(fs::read(p("d/moved")).unwrap(), b"A");
    assert_eq!(errno(fs::rename(p("d"), p("d/e/f"))), libc::EINVAL);
    assert_eq!(errno(fs::rename(p("d/moved"), p("d/e"))), libc::EISDIR);
    assert_eq!(errno(fs::rename(p("d/e"), p("d/moved"))), libc::ENOTDIR);
    fs::create_dir(p("full")).unwrap();
    fs::write(p("full/x"), b"").unwrap();
    assert_eq!(errno(fs::rename(p("d/e"), p("full"))), libc::ENOTEMPTY);
    rename2(&p("d/moved"), &p("white"), libc::RENAME_WHITEOUT).unwrap();
    let left = fs::symlink_metadata(p("d/moved")).unwrap();
    assert!(left.file_type().is_char_device() && left.rdev() == 0);
    fs::create_dir_all(p("x/sub")).unwrap();
    fs::rename(p("x/sub"), p("sub")).unwrap();
    let ino = |name: &str| fs::metadata(p(name)).unwrap().ino();
    assert_eq!(ino("sub/.."), ino("."), "a moved directory knows its new parent");
}

#[test]
fn links_symlinks_and_special_files() {
    let Some(_turn) = turn("links_symlinks_and_special_files") else {
        return;
    };
    let mount = Mount::new(|o| o.mount.allow_dev = true);
    let p = |name: &str| mount.path(name);
    fs::write(p("a"), b"x").unwrap();
    fs::hard_link(p("a"), p("b")).unwrap();
    let (a, b) = (fs::metadata(p("a")).unwrap(), fs::metadata(p("b")).unwrap());
    assert_eq!((a.ino(), a.nlink(), b.nlink()), (b.ino(), 2, 2));
    fs::remove_file(p("a")).unwrap();
    assert_eq!(fs::metadata(p("b")).unwrap().nlink(), 1);
    let target = "t/".repeat(2000);
    symlink(&target, p("long")).unwrap();
    for _ in 0..2 {
        assert_eq!(fs::read_link(p("long")).unwrap(), Path::new(&target));
    }
    mknod(&p("null"), libc::S_IFCHR | 0o666, libc::makedev(1, 3)).unwrap();
    assert_eq!(fs::read(p("null")).unwrap(), b"");
    let big = libc::makedev(259, 300);
    mknod(&p("blk"), libc::S_IFBLK | 0o600, big).unwrap();
    let meta = fs::symlink_metadata(p("blk")).unwrap();
    assert!(meta.file_type().is_block_device() && meta.rdev() == big);
    mknod(&p("pipe"), libc::S_IFIFO | 0o644, 0).unwrap();
    assert!(fs::metadata(p("pipe")).unwrap().file_type().is_fifo());
    let name = "n".repeat(255);
    fs::write(p(&name), b"").unwrap();
    assert_eq!(errno(fs::write(p(&"n".repeat(256)), b"")), libc::ENAMETOOLONG);
    assert_eq!(errno(fs::create_dir(p("b"))), libc::EEXIST);
    assert_eq!(
        errno(OpenOptions::new().write(true).create_new(true).open(p("b"))),
        libc::EEXIST
    );
}

/// The same expectations whichever side checks: the kernel, or the file system by itself.
#[test]
fn permissions_are_enforced() {
    let Some(_turn) = turn("permissions_are_enforced") else {
        return;
    };
    for permissions in [Permissions::Kernel, Permissions::FileSystem] {
        let mount = Mount::stateful(|o| {
            o.mount.allow_other = true;
            o.permissions = permissions;
        });
        let p = |name: &str| mount.path(name);
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        open(mount.dir.path()).unwrap();
        fs::write(p("secret"), b"s").unwrap();
        fs::set_permissions(p("secret"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::chown(p("secret"), Some(0), Some(777)).unwrap();
        let read = || fs::read(p("secret")).map(drop);
        assert_eq!(errno(as_user(1000, 1000, &[], read)), libc::EACCES, "{permissions:?}");
        as_user(1000, 1000, &[5, 777], read).unwrap();
        as_user(1000, 777, &[], read).unwrap();
        let create = || fs::write(p("new"), b"");
        assert_eq!(errno(as_user(1000, 1000, &[], create)), libc::EACCES);
        assert_eq!(
            errno(as_user(1000, 1000, &[], || fs::remove_file(p("secret")))),
            libc::EACCES
        );
        let chmod = || fs::set_permissions(p("secret"), fs::Permissions::from_mode(0o777));
        assert_eq!(errno(as_user(1000, 1000, &[], chmod)), libc::EPERM);
        fs::set_permissions(mount.dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        as_user(1000, 1000, &[], create).unwrap();
        assert_eq!(fs::metadata(p("new")).unwrap().uid(), 1000);
        assert_eq!(
            errno(as_user(1001, 1001, &[], || fs::remove_file(p("new")))),
            libc::EPERM
        );
        assert_eq!(
            errno(as_user(1001, 1001, &[], || fs::rename(p("new"), p("mine")))),
            libc::EPERM
        );
        as_user(1000, 1000, &[], || fs::remove_file(p("new"))).unwrap();
    }
}

#[test]
fn set_id_bits_go_when_others_write() {
    let Some(_turn) = turn("set_id_bits_go_when_others_write") else {
        return;
    };
    let mount = Mount::shared();
    let path = mount.path("tool");
    let mode = || fs::metadata(&path).unwrap().mode() & 0o7777;
    let reset = || {
        std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap()
    };
    fs::write(&path, b"#!").unwrap();
    reset();
    as_user(1000, 1000, &[], || OpenOptions::new().write(true).open(&path).map(drop)).unwrap();
    assert_eq!(mode(), 0o6777, "opening alone changes nothing");
    as_user(1000, 1000, &[], || {
        use std::os::unix::fs::FileExt;
        OpenOptions::new().write(true).open(&path)?.write_all_at(b"x", 0)
    })
    .unwrap();
    assert_eq!(mode(), 0o777);
    reset();
    as_user(1000, 1000, &[], || {
        OpenOptions::new().write(true).truncate(true).open(&path).map(drop)
    })
    .unwrap();
    assert_eq!(mode(), 0o777);
    reset();
    fs::write(&path, b"root may").unwrap();
    assert_eq!(mode(), 0o6777);
    std::os::unix::fs::chown(&path, Some(1), Some(1)).unwrap();
    assert_eq!(mode(), 0o777, "a change of owner strips, even by root");
}

#[test]
fn access_lists_rule_and_are_inherited() {
    let Some(_turn) = turn("access_lists_rule_and_are_inherited") else {
        return;
    };
    let rw = Access::READ | Access::WRITE;
    let list = Acl {
        owner: Access::all(),
        users: vec![Named {
            id: 1000,
            perm: Access::all(),
        }],
        group: Access::READ,
        groups: vec![],
        mask: Some(Access::all()),
        other: Access::empty(),
    };
    for permissions in [Permissions::Kernel, Permissions::FileSystem] {
        let mount = Mount::stateful(|o| {
            o.mount.allow_other = true;
            o.permissions = permissions;
        });
        fs::set_permissions(mount.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let dir = mount.path("dir");
        fs::create_dir(&dir).unwrap();
        set_xattr(&dir, "system.posix_acl_access", &list.to_bytes(), 0).unwrap();
        set_xattr(&dir, "system.posix_acl_default", &list.to_bytes(), 0).unwrap();
        assert_eq!(
            fs::metadata(&dir).unwrap().mode() & 0o777,
            0o770,
            "the mode shows the mask"
        );
        as_user(1000, 1000, &[], || fs::write(dir.join("by-1000"), b"x")).unwrap();
        assert_eq!(
            errno(as_user(1001, 1001, &[], || fs::write(dir.join("by-1001"), b"x"))),
            libc::EACCES
        );
        let file = dir.join("file");
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(&file)
            .unwrap();
        assert_eq!(
            fs::metadata(&file).unwrap().mode() & 0o777,
            0o660,
            "the umask does not apply"
        );
        let got = Acl::parse(&get_xattr(&file, "system.posix_acl_access", 1000).unwrap())
            .unwrap()
            .unwrap();
        assert_eq!((got.mask, got.users), (Some(rw), list.users.clone()));
        as_user(1000, 1000, &[], || fs::write(&file, b"named user")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let denied = as_user(1000, 1000, &[], || fs::read(&file).map(drop));
        assert_eq!(errno(denied), libc::EACCES, "chmod moved the mask ({permissions:?})");
        assert_eq!(
            errno(set_xattr(&file, "system.posix_acl_access", &[2, 0, 0, 0, 9], 0)),
            libc::EINVAL
        );
        remove_xattr(&dir, "system.posix_acl_default").unwrap();
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o666)
            .open(dir.join("plain"))
            .unwrap();
        assert_eq!(fs::metadata(dir.join("plain")).unwrap().mode() & 0o777, 0o644);
    }
}

#[test]
fn set_group_id_directories_pass_on_their_group() {
    let Some(_turn) = turn("set_group_id_directories_pass_on_their_group") else {
        return;
    };
    let mount = Mount::shared();
    fs::set_permissions(mount.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let dir = mount.path("shared");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, None, Some(555)).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o2777)).unwrap();
    as_user(1000, 1000, &[555], || fs::create_dir(dir.join("sub"))).unwrap();
    let sub = fs::metadata(dir.join("sub")).unwrap();
    assert_eq!((sub.gid(), sub.mode() & 0o7777), (555, 0o2755));
    let make = |name: &str, groups: &[u32]| {
        let path = dir.join(name);
        as_user(1000, 1000, groups, || {
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o2775)
                .open(&path)
                .map(drop)
        })
        .unwrap();
        fs::metadata(path).unwrap().mode() & 0o7777
    };
    assert_eq!(make("member", &[1, 555]), 0o2755);
    assert_eq!(make("stranger", &[1, 2]), 0o755);
}

/// As through another mount, or by an ioctl.
#[test]
fn what_was_made_since_the_kernel_looked_is_opened_or_refused_as_what_it_is() {
    let Some(_turn) = turn("what_was_made_since_the_kernel_looked_is_opened_or_refused_as_what_it_is") else {
        return;
    };
    for mount in [Mount::stateful(|_| {}), Mount::new(|_| {})] {
        let (fs, ctx) = (&mount.fs, Context::root());
        let names = ["file", "dir", "link", "new"];
        for name in names {
            assert!(!mount.path(name).exists(), "its absence is remembered");
        }
        let new = NewNode {
            kind: FileKind::Regular,
            perm: 0o600,
            rdev: 0,
        };
        let file = fs.mknod(&ctx, NodeId::ROOT, b"file", new).unwrap().node;
        fs.write(&ctx, file, Handle::NONE, 0, b"text", WriteFlags::empty())
            .unwrap();
        fs.mkdir(&ctx, NodeId::ROOT, b"dir", 0o755).unwrap();
        fs.symlink(&ctx, NodeId::ROOT, b"link", b"file").unwrap();
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            options
                .open(mount.path(name))
                .map(|file| file.metadata().unwrap().len())
        };
        assert_eq!(
            names.map(|name| open(name).map_err(|error| error.raw_os_error())),
            [Ok(4), Err(Some(libc::EISDIR)), Ok(4), Ok(0)]
        );
        mount.end();
    }
}
