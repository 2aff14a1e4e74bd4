//! How mounts begin and end.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cowshed_fuse::{Session, SessionOptions};
use cowshed_harness::{KernelMount, LoopDevice, need, run};
use cowshed_vfs::NodeId;
use cowshed_vfs::memfs::{MemFs, WAIT};

use crate::support::*;

fn mount_line(path: &std::path::Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    mounts
        .lines()
        .find(|l| l.contains(path.to_str().unwrap()))
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn the_mount_shows_its_options() {
    let Some(_turn) = turn("the_mount_shows_its_options") else {
        return;
    };
    let mount = Mount::new(|o| {
        o.mount.allow_other = true;
        o.mount.read_only = true;
        o.mount.source = "image.btrfs".into();
    });
    let line = mount_line(mount.dir.path());
    assert!(
        line.starts_with("image.btrfs ") && line.contains(" fuse.cowshed ro,nosuid,nodev"),
        "{line}"
    );
    assert!(line.contains("default_permissions,allow_other"), "{line}");
    assert_eq!(errno(fs::write(mount.path("x"), b"")), libc::EROFS);
}

#[test]
fn destroy_comes_once_however_the_mount_ends() {
    let Some(_turn) = turn("destroy_comes_once_however_the_mount_ends") else {
        return;
    };
    let ours = Mount::new(|_| {});
    assert_eq!(ours.end().destroyed.load(Ordering::SeqCst), 1);
    let mut theirs = Mount::new(|_| {});
    run("umount", &[theirs.dir.path()]).unwrap();
    theirs.wait();
    assert_eq!(theirs.fs.destroyed.load(Ordering::SeqCst), 1);
    let never_served = Arc::new(MemFs::default());
    let dir = tempfile::tempdir().unwrap();
    let session = Session::mount(never_served.clone(), dir.path(), SessionOptions::default()).unwrap();
    session.unmounter().unmount(true).unwrap();
    session.run().unwrap();
    assert_eq!(never_served.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn a_busy_mount_stays_or_goes_lazily() {
    let Some(_turn) = turn("a_busy_mount_stays_or_goes_lazily") else {
        return;
    };
    let mut mount = Mount::new(|_| {});
    let mut file = File::create_new(mount.path("busy")).unwrap();
    let refused = mount.unmounter.unmount(false).unwrap_err();
    assert!(refused.to_string().contains("busy"), "{refused}");
    file.write_all(b"still served").unwrap();
    mount.unmounter.unmount(true).unwrap();
    assert!(!mount.path("busy").exists());
    file.write_all(b" after the mount is out of sight").unwrap();
    assert_eq!(mount.fs.destroyed.load(Ordering::SeqCst), 0);
    drop(file);
    mount.wait();
    assert_eq!(mount.fs.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn unmounting_forgets_every_node() {
    let Some(_turn) = turn("unmounting_forgets_every_node") else {
        return;
    };
    let mount = Mount::new(|_| {});
    (0..200).for_each(|i| fs::write(mount.path(&format!("f{i}")), b"").unwrap());
    (0..200).for_each(|i| fs::remove_file(mount.path(&format!("f{i}"))).unwrap());
    // FORGET comes in the kernel's own time.
    for _ in 0..100 {
        if mount.fs.node_count() == 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{} nodes are still remembered", mount.fs.node_count());
}

#[test]
fn notifications_make_the_kernel_ask_again() {
    let Some(_turn) = turn("notifications_make_the_kernel_ask_again") else {
        return;
    };
    use cowshed_vfs::{Context, FileSystem, Handle, Lookup, WriteFlags};
    let mount = Mount::new(|_| {});
    let (fs, notifier) = (&mount.fs, &mount.notifier);
    let path = mount.path("f");
    fs::write(&path, b"one").unwrap();
    fs::read(&path).unwrap(); // a partly written page is only remembered once it was read
    let ctx = Context::root();
    let Lookup::Found(entry) = fs.lookup(&ctx, NodeId::ROOT, b"f").unwrap() else {
        panic!()
    };
    fs.write(&ctx, entry.node, Handle::NONE, 0, b"two", WriteFlags::empty())
        .unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one", "behind the kernel's back");
    notifier.inval_inode(entry.node, 0, 0).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    let renamed = |from: &[u8], to: &[u8]| fs.rename(&ctx, NodeId::ROOT, from, NodeId::ROOT, to, Default::default());
    renamed(b"f", b"g").unwrap();
    assert!(path.exists());
    notifier.inval_entry(NodeId::ROOT, b"f", false).unwrap();
    assert!(!path.exists());
    notifier.inval_entry(NodeId::ROOT, b"never heard of", false).unwrap();
    renamed(b"g", b"f").unwrap();
    assert!(!path.exists(), "absence is remembered too");
    match notifier.inc_epoch() {
        Ok(()) => assert!(path.exists()),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::Unsupported),
    }
    mount.end();
}

#[test]
fn nodes_that_nothing_uses_are_forgotten_when_the_kernel_is_told() {
    let Some(_turn) = turn("nodes_that_nothing_uses_are_forgotten_when_the_kernel_is_told") else {
        return;
    };
    use cowshed_vfs::{Context, FileSystem, Lookup};
    let mount = Mount::stateful(|_| {});
    let (fs, ctx) = (&mount.fs, Context::root());
    let mut nodes = Vec::new();
    for n in 0..300 {
        let name = format!("f{n}");
        fs::write(mount.path(&name), b"").unwrap();
        let Lookup::Found(entry) = fs.lookup(&ctx, NodeId::ROOT, name.as_bytes()).unwrap() else {
            panic!("{name} is there");
        };
        fs.forget(entry.node, 1);
        nodes.push(entry.node);
    }
    let open = File::open(mount.path("f7")).unwrap();
    for n in 0..300 {
        fs.unlink(&ctx, NodeId::ROOT, format!("f{n}").as_bytes()).unwrap();
    }
    assert_eq!(fs.node_count(), 301, "the kernel remembers all");
    let until_left = |count: usize| {
        let patience = Instant::now() + Duration::from_secs(60);
        while fs.node_count() != count {
            assert!(Instant::now() < patience, "{} nodes are remembered", fs.node_count());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    if let Err(error) = mount.notifier.prune(&nodes) {
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
        return;
    }
    until_left(2);
    drop(open);
    mount.notifier.prune(&[NodeId(1 << 40), nodes[7]]).unwrap();
    until_left(1);
    mount.end();
}

/// Also where the directories are named first.
#[test]
fn deleted_tree_is_forgotten_from_its_leaves_on_once_nothing_uses_it() {
    let Some(_turn) = turn("deleted_tree_is_forgotten_from_its_leaves_on_once_nothing_uses_it") else {
        return;
    };
    use std::sync::atomic::AtomicUsize;

    use cowshed_vfs::{Context, FileSystem};
    let mount = Mount::stateful(|_| {});
    let (fs, ctx) = (mount.fs.clone(), Context::root());
    let mut names = Vec::new();
    fs::create_dir_all(mount.path("gone/a/b")).unwrap();
    for n in 0..300 {
        let name = format!("gone/a/b/f{n}");
        fs::write(mount.path(&name), b"").unwrap();
        names.push(name);
    }
    names.extend(["gone/a/b", "gone/a", "gone"].map(String::from));
    let node = |name: &String| NodeId(fs::metadata(mount.path(name)).unwrap().ino());
    // Directories first: they are in use until their names have gone.
    let nodes: Vec<_> = names.iter().rev().map(node).collect();
    let (dir, file) = (nodes[0], *nodes.last().unwrap());
    let open = File::open(mount.path("gone/a/b/f0")).unwrap();
    let below = |parent: NodeId, name: &str| fs.unlink(&ctx, parent, name.as_bytes()).unwrap();
    let (b, a) = (nodes[2], nodes[1]);
    (0..300).for_each(|n| below(b, &format!("f{n}")));
    fs.rmdir(&ctx, a, b"b").unwrap();
    fs.rmdir(&ctx, dir, b"a").unwrap();
    fs.rmdir(&ctx, NodeId::ROOT, b"gone").unwrap();

    let rounds = Arc::new(AtomicUsize::new(0));
    let (asked, of) = (rounds.clone(), fs.clone());
    let remembered = move || {
        asked.fetch_add(1, Ordering::SeqCst);
        let is_known = |node: &NodeId| of.getattr(&Context::root(), *node, None).is_ok();
        nodes.iter().copied().filter(is_known).collect()
    };
    mount.caches.subvolume_gone(NodeId::ROOT, b"gone", Box::new(remembered));
    assert!(!mount.path("gone").exists());
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let patience = Instant::now() + Duration::from_secs(60);
        while !holds() {
            assert!(Instant::now() < patience, "{what}: {} nodes", fs.node_count());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    if mount.notifier.prune(&[]).is_err() {
        return;
    }
    // The open file, and the directories above it.
    until("all but what is open is forgotten", &|| fs.node_count() == 5);
    assert!(fs.getattr(&ctx, file, None).is_ok());
    drop(open);
    until("all is forgotten", &|| fs.node_count() == 1);
    assert!(rounds.load(Ordering::SeqCst) > 0, "all was dropped with the name");
    mount.end();
}

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    let Some(_turn) = turn("an_ordinary_user_mounts_through_the_helper") else {
        return;
    };
    let Some(()) = need::tool("fusermount3") else { return };
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(1000), Some(1000)).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    in_child(|| {
        open_device_to_all(scratch.path())?;
        as_user(1000, 1000, &[], || {
            let fs = Arc::new(MemFs::default());
            fs.own_root(1000, 1000, 0o755);
            let session = Session::mount(fs.clone(), dir.path(), SessionOptions::default()).unwrap();
            let unmounter = session.unmounter();
            let serving = session.spawn();
            fs::write(dir.path().join("mine"), b"content")?;
            assert_eq!(fs::read(dir.path().join("mine"))?, b"content");
            let line = mount_line(dir.path());
            assert!(line.contains("user_id=1000"), "{line}");
            let busy = File::open(dir.path().join("mine"))?;
            let refused = unmounter.unmount(false).unwrap_err().to_string();
            assert!(refused.contains("busy"), "{refused}");
            drop(busy);
            unmounter.unmount(false).unwrap();
            serving.join().unwrap().unwrap();
            assert_eq!(fs.destroyed.load(Ordering::SeqCst), 1);
            let mut suid = SessionOptions::default();
            suid.mount.allow_suid = true;
            let refused = Session::mount(fs, dir.path(), suid).unwrap_err().to_string();
            assert!(refused.contains("superuser"), "{refused}");
            Ok(())
        })
    })
    .unwrap();
}

#[test]
fn the_helpers_refusal_for_want_of_a_device_says_what_to_do() {
    let Some(_turn) = turn("the_helpers_refusal_for_want_of_a_device_says_what_to_do") else {
        return;
    };
    let Some(()) = need::tool("fusermount3") else { return };
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(1000), Some(1000)).unwrap();
    in_child(|| {
        hide_devices()?;
        as_user(1000, 1000, &[], || {
            let refused = |path: &Path| Session::mount(Arc::new(MemFs::default()), path, SessionOptions::default());
            let text = refused(dir.path()).unwrap_err().to_string();
            assert!(
                text.contains("/dev/fuse") && text.contains("the device node is missing"),
                "{text}"
            );
            Ok(())
        })
    })
    .unwrap();
}

#[test]
fn a_block_device_mount_ends_before_umount_returns() {
    let Some(_turn) = turn("a_block_device_mount_ends_before_umount_returns") else {
        return;
    };
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    let device = LoopDevice::attach(&image).unwrap();
    let device = device.path().to_str().unwrap();
    let number = device.trim_start_matches("/dev/loop");
    let readahead = |name: String| fs::read_to_string(format!("/sys/class/bdi/{name}/read_ahead_kb")).unwrap();
    let device_readahead = readahead(format!("7:{number}"));
    let mut mount = Mount::new(|o| o.mount.block_device = Some(device.into()));
    let line = mount_line(mount.dir.path());
    assert!(line.starts_with(device) && line.contains(" fuseblk.cowshed "), "{line}");
    assert_eq!(readahead(format!("7:{number}-fuseblk")).trim(), "4096");
    assert_eq!(
        readahead(format!("7:{number}")),
        device_readahead,
        "the device's own stays"
    );
    fs::write(mount.path("f"), b"content").unwrap();
    let synced = mount.fs.synced.load(Ordering::SeqCst);
    run("sync", &["-f".as_ref(), mount.dir.path().as_os_str()]).unwrap();
    if need::syncfs_of_block_devices().is_some() {
        assert!(
            mount.fs.synced.load(Ordering::SeqCst) > synced,
            "Linux passes syncfs on to mounts of block devices"
        );
    }
    run("umount", &[mount.dir.path()]).unwrap();
    assert_eq!(
        mount.fs.destroyed.load(Ordering::SeqCst),
        1,
        "umount has waited for destroy"
    );
    mount.wait();
    assert_eq!(mount.fs.destroyed.load(Ordering::SeqCst), 1);
    let refused = Session::mount(Arc::new(MemFs::default()), mount.dir.path(), {
        let mut options = SessionOptions::default();
        options.mount.block_device = Some("/dev/null".into());
        options
    });
    assert!(refused.unwrap_err().to_string().contains("not a block device"));
}

/// Has Linux give up the connection.
fn abort(mount: &Mount) {
    let connection = libc::minor(fs::metadata(mount.dir.path()).unwrap().dev());
    let dir = tempfile::tempdir().unwrap();
    let control = KernelMount::new("fusectl", &["none".as_ref()], dir.path(), "").unwrap();
    fs::write(control.dir().join(format!("{connection}/abort")), b"1").unwrap();
}

#[test]
fn an_aborted_connection_ends_and_leaves_no_dead_mount() {
    let Some(_turn) = turn("an_aborted_connection_ends_and_leaves_no_dead_mount") else {
        return;
    };
    let mut mount = Mount::new(|_| {});
    fs::write(mount.path("f"), b"x").unwrap();
    abort(&mount);
    let ended = mount.wait_for_result();
    assert!(ended.unwrap_err().to_string().contains("abort"));
    assert_eq!(mount.fs.destroyed.load(Ordering::SeqCst), 1);
    assert_eq!(mount_line(mount.dir.path()), "");
}

/// Calls that wait for long: the server lives no longer than its mount because of them.
#[test]
fn blocking_ioctl_ends_with_its_event_a_signal_or_the_connection() {
    let Some(_turn) = turn("blocking_ioctl_ends_with_its_event_a_signal_or_the_connection") else {
        return;
    };
    const A_MOMENT: Duration = Duration::from_millis(300);
    let mut mount = Mount::new(|_| {});
    let root = File::open(mount.dir.path()).unwrap();
    let hold = |holds| mount.fs.holds_waits.store(holds, Ordering::SeqCst);
    ioctl(&root, WAIT).unwrap();

    hold(true);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ioctl(&root, WAIT));
        std::thread::sleep(A_MOMENT);
        fs::write(mount.path("f"), b"others are served").unwrap();
        assert!(!waiting.is_finished());
        hold(false);
        waiting.join().unwrap().unwrap();
    });

    hold(true);
    let began = Instant::now();
    let ended = in_child(|| {
        end_by_signal_after(A_MOMENT)?;
        ioctl(&root, WAIT)
    });
    assert_eq!(errno(ended), ENDED_BY_SIGNAL);
    assert!(began.elapsed() >= A_MOMENT, "it did not wait");

    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ioctl(&root, WAIT));
        std::thread::sleep(A_MOMENT);
        assert!(!waiting.is_finished());
        abort(&mount);
        assert_eq!(errno(waiting.join().unwrap()), libc::ECONNABORTED);
    });
    let ended = mount.wait_for_result();
    assert!(ended.unwrap_err().to_string().contains("abort"));
    assert_eq!(mount.fs.destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn unmounting_twice_does_not_touch_what_is_below() {
    let Some(_turn) = turn("unmounting_twice_does_not_touch_what_is_below") else {
        return;
    };
    let below = Mount::new(|_| {});
    fs::write(below.path("f"), b"below").unwrap();
    let above = Session::mount(Arc::new(MemFs::default()), below.dir.path(), SessionOptions::default()).unwrap();
    let unmounter = above.unmounter();
    let serving = above.spawn();
    assert!(!below.path("f").exists());
    unmounter.unmount(false).unwrap();
    serving.join().unwrap().unwrap();
    unmounter.unmount(false).unwrap();
    unmounter.unmount(true).unwrap();
    assert_eq!(fs::read(below.path("f")).unwrap(), b"below");
}

#[test]
fn a_file_system_that_refuses_leaves_no_mount() {
    let Some(_turn) = turn("a_file_system_that_refuses_leaves_no_mount") else {
        return;
    };
    let mut fs = MemFs::default();
    fs.init_error = Some(cowshed_vfs::Error::Corrupt);
    let fs = Arc::new(fs);
    let dir = tempfile::tempdir().unwrap();
    let refused = Session::mount(fs.clone(), dir.path(), SessionOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("needs cleaning"), "{refused}");
    assert_eq!(mount_line(dir.path()), "");
    assert_eq!(
        fs.destroyed.load(Ordering::SeqCst),
        0,
        "what did not begin does not end"
    );
}

/// While one caller waits, others are served.
#[test]
fn a_slow_request_does_not_hold_up_others() {
    let Some(_turn) = turn("a_slow_request_does_not_hold_up_others") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let file = File::create_new(mount.path("slow")).unwrap();
    mount.fs.sync_takes_millis.store(500, Ordering::SeqCst);
    std::thread::scope(|scope| {
        (0..3).for_each(|_| drop(scope.spawn(|| file.sync_all().unwrap())));
        std::thread::sleep(Duration::from_millis(50));
        let started = std::time::Instant::now();
        (0..50).for_each(|i| fs::write(mount.path(&format!("f{i}")), b"x").unwrap());
        assert!(
            started.elapsed() < Duration::from_millis(400),
            "took {:?}",
            started.elapsed()
        );
    });
}

#[test]
fn a_request_that_is_unexpectedly_slow_does_not_hold_up_others() {
    let Some(_turn) = turn("a_request_that_is_unexpectedly_slow_does_not_hold_up_others") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let file = File::create(mount.path("slow")).unwrap();
    // The workers are to learn that fsync is fast, so that none calls another before it.
    (0..50).for_each(|_| file.sync_all().unwrap());
    mount.fs.sync_takes_millis.store(3000, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| file.sync_all().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        (0..10).for_each(|n| fs::write(mount.path(&format!("{n}")), b"x").unwrap());
        assert!(!slow.is_finished(), "the others were held up");
    });
}
