//! Reading, writing and what files can do besides.
#![allow(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::sync::atomic::Ordering;

use cowshed_harness::need;

use crate::support::*;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| {
            (i as u8)
                .wrapping_mul(31)
                .wrapping_add((i >> 8) as u8)
                .wrapping_add(seed)
        })
        .collect()
}

#[test]
fn files_keep_what_is_written() {
    let Some(_turn) = turn("files_keep_what_is_written") else {
        return;
    };
    for mount in [
        Mount::new(|_| {}),
        Mount::shared(),
        Mount::stateful(|_| {}),
        Mount::new(|o| o.workers = 1),
    ] {
        let path = mount.path("file");
        let data = pattern(3_000_001, 1);
        fs::write(&path, &data).unwrap();
        assert_eq!(fs::read(&path).unwrap(), data);
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"middle", 1_500_000).unwrap();
        let mut got = [0; 8];
        file.read_exact_at(&mut got, 1_499_999).unwrap();
        assert_eq!(&got[1..7], b"middle");
        file.set_len(1_500_003).unwrap();
        file.set_len(1_500_010).unwrap();
        file.read_exact_at(&mut got, 1_500_000).unwrap();
        assert_eq!(&got, b"mid\0\0\0\0\0");
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.len(), meta.mode() & 0o7777), (1_500_010, 0o644));
        drop(file);
        mount.end();
    }
}

#[test]
fn truncating_on_open_works_with_and_without_open_requests() {
    let Some(_turn) = turn("truncating_on_open_works_with_and_without_open_requests") else {
        return;
    };
    for mount in [
        Mount::new(|_| {}),
        Mount::new(|o| o.skip_open = false),
        Mount::stateful(|_| {}),
    ] {
        let path = mount.path("file");
        for round in 0..3 {
            fs::write(&path, pattern(100_000, round)).unwrap();
            fs::write(&path, b"short").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"short");
        }
    }
}

#[test]
fn appending_goes_to_the_end() {
    let Some(_turn) = turn("appending_goes_to_the_end") else {
        return;
    };
    let mount = Mount::shared();
    let path = mount.path("log");
    let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let (mut a, mut b) = (open(), open());
    a.write_all(b"one ").unwrap();
    b.write_all(b"two ").unwrap();
    a.seek(SeekFrom::Start(0)).unwrap();
    a.write_all(b"three").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one two three");
    let direct = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    (&direct).write_all(b" four").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one two three four");
    // Several writers at once lose nothing.
    std::thread::scope(|scope| {
        for byte in b'a'..=b'd' {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new().append(true).open(path).unwrap();
                (0..200).for_each(|_| file.write_all(&[byte; 10]).unwrap());
            });
        }
    });
    let all = fs::read(&path).unwrap();
    assert_eq!(all.len(), 18 + 4 * 200 * 10);
    assert!(
        all[18..].chunks(10).all(|chunk| chunk.iter().all(|b| *b == chunk[0])),
        "records stay whole"
    );
}

#[test]
fn direct_and_cached_reads_agree() {
    let Some(_turn) = turn("direct_and_cached_reads_agree") else {
        return;
    };
    for mount in [Mount::new(|_| {}), Mount::new(|o| o.skip_open = false)] {
        direct_and_cached(&mount);
    }
}

fn direct_and_cached(mount: &Mount) {
    let path = mount.path("file");
    let mut data = pattern(1 << 20, 3);
    fs::write(&path, &data).unwrap();
    let cached = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    for round in 0..50usize {
        let at = round * 20_000;
        let new = pattern(4096, round as u8);
        if round % 2 == 0 {
            direct.write_all_at(&new, at as u64).unwrap();
        } else {
            cached.write_all_at(&new, at as u64).unwrap();
        }
        data[at..at + 4096].copy_from_slice(&new);
        let mut got = vec![0; 4096];
        for file in [&cached, &direct] {
            file.read_exact_at(&mut got, at as u64).unwrap();
            assert_eq!(got, new);
        }
    }
    assert_eq!(fs::read(&path).unwrap(), data);
}

#[test]
fn sync_writes_are_synced() {
    let Some(_turn) = turn("sync_writes_are_synced") else {
        return;
    };
    // With and without OPEN: with it, direct files bypass the kernel's cache altogether.
    for mount in [Mount::new(|_| {}), Mount::new(|o| o.skip_open = false)] {
        let synced = || mount.fs.synced.load(Ordering::Relaxed);
        let path = mount.path("file");
        fs::write(&path, b"").unwrap();
        for flags in [
            libc::O_DSYNC,
            libc::O_SYNC,
            libc::O_DSYNC | libc::O_DIRECT,
            libc::O_SYNC | libc::O_DIRECT,
        ] {
            let file = OpenOptions::new().write(true).custom_flags(flags).open(&path).unwrap();
            let before = synced();
            file.write_all_at(&Aligned([1; 4096]).0, 0).unwrap();
            assert_eq!(synced(), before + 1, "a write with {flags:o} is synced once");
        }
        let file = File::open(&path).unwrap();
        let before = synced();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        File::open(mount.dir.path()).unwrap().sync_all().unwrap();
        assert_eq!(synced(), before + 3);
    }
}

#[repr(align(4096))]
struct Aligned([u8; 4096]);

#[test]
fn holes_are_made_and_found() {
    let Some(_turn) = turn("holes_are_made_and_found") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let file = File::create_new(mount.path("sparse")).unwrap();
    file.write_all_at(b"data", 1 << 20).unwrap();
    assert_eq!(seek(&file, 0, libc::SEEK_DATA).unwrap(), 1 << 20);
    assert_eq!(seek(&file, 0, libc::SEEK_HOLE).unwrap(), 0);
    assert_eq!(seek(&file, 1 << 20, libc::SEEK_HOLE).unwrap(), (1 << 20) + 4);
    assert_eq!(errno(seek(&file, (1 << 20) + 4, libc::SEEK_DATA)), libc::ENXIO);
    fallocate(&file, 0, 0, 8192).unwrap();
    assert_eq!(seek(&file, 0, libc::SEEK_HOLE).unwrap(), 8192);
    fallocate(
        &file,
        libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
        1 << 20,
        4096,
    )
    .unwrap();
    let mut got = [1; 4];
    File::open(mount.path("sparse"))
        .unwrap()
        .read_exact_at(&mut got, 1 << 20)
        .unwrap();
    assert_eq!(got, [0; 4], "cached pages of a punched range are dropped");
    assert_eq!(
        errno(fallocate(&file, libc::FALLOC_FL_COLLAPSE_RANGE, 0, 4096)),
        libc::EOPNOTSUPP
    );
    fallocate(&file, libc::FALLOC_FL_KEEP_SIZE, 4 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4);
}

#[test]
fn ranges_are_copied_inside() {
    let Some(_turn) = turn("ranges_are_copied_inside") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let data = pattern(300_000, 9);
    fs::write(mount.path("a"), &data).unwrap();
    let (a, b) = (
        File::open(mount.path("a")).unwrap(),
        File::create_new(mount.path("b")).unwrap(),
    );
    let (mut from, mut to) = (10_000i64, 5i64);
    // SAFETY: both offsets are valid for the call.
    let copied = unsafe { libc::copy_file_range(a.as_raw_fd(), &mut from, b.as_raw_fd(), &mut to, 1 << 20, 0) };
    assert_eq!(copied, 290_000);
    assert_eq!(fs::read(mount.path("b")).unwrap()[5..], data[10_000..]);
}

#[test]
fn nameless_files_can_be_given_a_name() {
    let Some(_turn) = turn("nameless_files_can_be_given_a_name") else {
        return;
    };
    let Some(()) = need::nameless_files() else { return };
    for mount in [Mount::new(|_| {}), Mount::stateful(|_| {})] {
        let open = || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .open(mount.dir.path())
                .unwrap()
        };
        let mut kept = open();
        kept.write_all(b"now you see me").unwrap();
        assert_eq!(kept.metadata().unwrap().nlink(), 0);
        let proc = format!("/proc/self/fd/{}", kept.as_raw_fd());
        let (from, to) = (c(proc.as_ref()), c(&mount.path("named")));
        // SAFETY: valid strings.
        let linked = unsafe {
            libc::linkat(
                libc::AT_FDCWD,
                from.as_ptr(),
                libc::AT_FDCWD,
                to.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        };
        check(linked.into()).unwrap();
        drop(kept);
        assert_eq!(fs::read(mount.path("named")).unwrap(), b"now you see me");
        drop(open());
        let fs = mount.end();
        assert_eq!(fs.destroyed.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn unlinked_files_live_while_open() {
    let Some(_turn) = turn("unlinked_files_live_while_open") else {
        return;
    };
    for mount in [Mount::new(|_| {}), Mount::stateful(|_| {})] {
        let path = mount.path("gone");
        let mut file = File::create_new(&path).unwrap();
        fs::remove_file(&path).unwrap();
        file.write_all(b"still here").unwrap();
        let mut again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
        let mut got = String::new();
        again.read_to_string(&mut got).unwrap();
        assert_eq!((got.as_str(), file.metadata().unwrap().nlink()), ("still here", 0));
    }
}

#[test]
fn extended_attributes_follow_the_rules() {
    let Some(_turn) = turn("extended_attributes_follow_the_rules") else {
        return;
    };
    let mount = Mount::shared();
    let path = mount.path("file");
    fs::write(&path, b"").unwrap();
    set_xattr(&path, "user.small", b"value", libc::XATTR_CREATE).unwrap();
    assert_eq!(
        errno(set_xattr(&path, "user.small", b"x", libc::XATTR_CREATE)),
        libc::EEXIST
    );
    assert_eq!(
        errno(set_xattr(&path, "user.none", b"x", libc::XATTR_REPLACE)),
        libc::ENODATA
    );
    assert_eq!(get_xattr(&path, "user.small", 100).unwrap(), b"value");
    assert_eq!(get_xattr(&path, "user.small", 0).unwrap().len(), 5);
    assert_eq!(errno(get_xattr(&path, "user.small", 4)), libc::ERANGE);
    let huge = pattern(65536, 5);
    set_xattr(&path, "user.huge", &huge, 0).unwrap();
    assert_eq!(get_xattr(&path, "user.huge", 65536).unwrap(), huge);
    assert_eq!(errno(get_xattr(&path, "user.huge", 65535)), libc::ERANGE);
    assert_eq!(errno(set_xattr(&path, "user.huge", &[0; 65537], 0)), libc::E2BIG);
    set_xattr(&path, "user.empty", b"", 0).unwrap();
    assert_eq!(get_xattr(&path, "user.empty", 10).unwrap(), b"");
    set_xattr(&path, "trusted.t", b"1", 0).unwrap();
    set_xattr(&path, "security.s", b"1", 0).unwrap();
    let names = list_xattr(&path).unwrap();
    assert_eq!(
        names,
        ["security.s", "trusted.t", "user.empty", "user.huge", "user.small"]
    );
    remove_xattr(&path, "user.huge").unwrap();
    assert_eq!(errno(remove_xattr(&path, "user.huge")), libc::ENODATA);
    assert_eq!(errno(get_xattr(&path, "user.huge", 10)), libc::ENODATA);
    fs::set_permissions(mount.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = as_user(1234, 1234, &[], || set_xattr(&path, "user.mine", b"x", 0));
    assert_eq!(errno(refused), libc::EACCES);
}

#[test]
fn locks_work() {
    let Some(_turn) = turn("locks_work") else { return };
    let mount = Mount::new(|_| {});
    let (a, b) = (
        File::create_new(mount.path("l")).unwrap(),
        File::open(mount.path("l")).unwrap(),
    );
    // SAFETY: integers only.
    let flock = |f: &File, op| check(unsafe { libc::flock(f.as_raw_fd(), op) }.into());
    flock(&a, libc::LOCK_EX).unwrap();
    assert_eq!(errno(flock(&b, libc::LOCK_EX | libc::LOCK_NB)), libc::EWOULDBLOCK);
    flock(&a, libc::LOCK_UN).unwrap();
    flock(&b, libc::LOCK_EX | libc::LOCK_NB).unwrap();
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: 0,
        l_start: 5,
        l_len: 10,
        l_pid: 0,
    };
    // SAFETY: the structure is valid for the call.
    let posix = |f: &File| check(unsafe { libc::fcntl(f.as_raw_fd(), libc::F_SETLK, &raw const lock) }.into());
    posix(&a).unwrap();
    let path = mount.path("l");
    let other = as_user(0, 0, &[], || {
        posix(&OpenOptions::new().write(true).open(&path)?).map(drop)
    });
    assert_eq!(errno(other), libc::EAGAIN);
}

#[test]
fn ioctls_reach_files_and_directories() {
    let Some(_turn) = turn("ioctls_reach_files_and_directories") else {
        return;
    };
    const GETFLAGS: libc::c_ulong = 0x8008_6601;
    const SETFLAGS: libc::c_ulong = 0x4008_6602;
    for mount in [Mount::new(|_| {}), Mount::stateful(|_| {})] {
        fs::write(mount.path("f"), b"").unwrap();
        fs::create_dir(mount.path("d")).unwrap();
        for name in ["f", "d"] {
            let file = File::open(mount.path(name)).unwrap();
            let mut flags: libc::c_int = 0x80;
            // SAFETY: these ioctls read and write one int.
            check(unsafe { libc::ioctl(file.as_raw_fd(), SETFLAGS, &raw const flags) }.into()).unwrap();
            flags = 0;
            // SAFETY: as above.
            check(unsafe { libc::ioctl(file.as_raw_fd(), GETFLAGS, &raw mut flags) }.into()).unwrap();
            assert_eq!(flags, 0x80);
            // SAFETY: an unknown command touches nothing.
            let unknown = check(unsafe { libc::ioctl(file.as_raw_fd(), 0x9999) }.into());
            assert_eq!(errno(unknown), libc::ENOTTY);
        }
    }
}

#[test]
fn birth_times_are_shown() {
    let Some(_turn) = turn("birth_times_are_shown") else {
        return;
    };
    let Some(()) = need::birth_times() else { return };
    let mount = Mount::new(|_| {});
    let path = mount.path("f");
    let before = std::time::SystemTime::now() - std::time::Duration::from_secs(1);
    fs::write(&path, b"").unwrap();
    let born = fs::metadata(&path).unwrap().created().unwrap();
    assert!(born >= before && born <= std::time::SystemTime::now());
    let old = std::time::UNIX_EPOCH - std::time::Duration::from_millis(1_500);
    File::open(&path).unwrap().set_modified(old).unwrap();
    assert_eq!(
        fs::metadata(&path).unwrap().modified().unwrap(),
        old,
        "times before 1970"
    );
}

#[test]
fn a_panicking_file_system_gives_errors_and_lives_on() {
    let Some(_turn) = turn("a_panicking_file_system_gives_errors_and_lives_on") else {
        return;
    };
    let mut fs = cowshed_vfs::memfs::MemFs::default();
    fs.panic_name = Some(b"boom");
    let told = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = told.clone();
    let mount = Mount::with_fs(fs, |o| {
        o.on_panic = Some(std::sync::Arc::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        }));
    });
    assert_eq!(errno(fs::metadata(mount.path("boom"))), libc::EIO);
    assert_eq!(told.load(Ordering::SeqCst), 1);
    fs::write(mount.path("fine"), b"yes").unwrap();
    mount.end();
}
