//! What goes wrong below or beside a mount, over each transport: `COWSHED_TEST_TRANSPORT`.
//!
//! Each test ends with its session over, so that a request without a reply shows as a hang.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cowshed_fuse::{Session, SessionOptions, TransportChoice, TransportUsed};
use cowshed_harness::{KernelMount, UringOn};
use cowshed_vfs::memfs::MemFs;

use crate::support::*;

/// No caller waits longer for the end of what cannot go on.
const SOON: Duration = Duration::from_secs(10);

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < SOON, "not soon: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The abort of a mount's connection.
struct Abort {
    control: KernelMount,
    _dir: tempfile::TempDir,
    connection: u32,
}

impl Abort {
    fn of(mount: &Mount) -> Abort {
        let connection = libc::minor(fs::metadata(mount.dir.path()).unwrap().dev());
        let dir = tempfile::tempdir().unwrap();
        let control = KernelMount::new("fusectl", &["none".as_ref()], dir.path(), "").unwrap();
        Abort {
            control,
            _dir: dir,
            connection,
        }
    }

    fn now(&self) {
        fs::write(self.control.dir().join(format!("{}/abort", self.connection)), b"1").unwrap();
    }
}

fn is_end(error: &std::io::Error) -> bool {
    [libc::ECONNABORTED, libc::ENOTCONN, libc::EIO].contains(&error.raw_os_error().unwrap_or(0))
}

#[test]
fn aborted_connection_fails_requests_under_way_and_later_ones() {
    let Some(_turn) = turn("aborted_connection_fails_requests_under_way_and_later_ones") else {
        return;
    };
    let mut mount = Mount::new(|_| {});
    let abort = Abort::of(&mount);
    let files: Vec<File> = (0..8)
        .map(|n| File::create(mount.path(&format!("{n}"))).unwrap())
        .collect();
    let dir = File::open(mount.dir.path()).unwrap();
    mount.fs.sync_takes_millis.store(1500, Ordering::SeqCst);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let slow: Vec<_> = files.iter().map(|file| scope.spawn(|| file.sync_all())).collect();
        std::thread::sleep(Duration::from_millis(100));
        abort.now();
        for one in slow {
            let error = one.join().unwrap().unwrap_err();
            assert!(is_end(&error), "{error}");
        }
        assert!(
            started.elapsed() < Duration::from_millis(1200),
            "callers waited for the file system"
        );
        assert!(is_end(&error_of_later_request(&dir)), "a later request");
    });
    drop((files, dir));
    let ended = mount.wait_for_result().unwrap_err().to_string();
    assert!(ended.contains("abort"), "{ended}");
    assert_eq!(mount.fs.destroyed.load(Ordering::SeqCst), 1);
}

/// The error of a request on an open directory.
fn error_of_later_request(dir: &File) -> std::io::Error {
    dir.sync_all().unwrap_err()
}

#[test]
fn clients_killed_in_the_middle_of_requests_harm_no_others() {
    let Some(_turn) = turn("clients_killed_in_the_middle_of_requests_harm_no_others") else {
        return;
    };
    let mount = Mount::new(|_| {});
    for round in 0..20 {
        mount.fs.sync_takes_millis.store(60, Ordering::SeqCst);
        let path = |n: usize| mount.path(&format!("{round}-{n}"));
        let mut clients: Vec<Child> = (0..4)
            .map(|n| {
                Child::start(|| {
                    let mut file = File::create(path(n)).unwrap();
                    loop {
                        file.write_all(&[n as u8; 4096]).unwrap();
                        file.sync_all().unwrap();
                        assert!(fs::read_dir(mount.dir.path()).unwrap().count() > 0);
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(3 * round + 5));
        for client in &mut clients {
            client.kill();
            let mut how = None;
            eventually("the end of a killed client", || {
                how = client.ended();
                how.is_some()
            });
            assert_eq!(how, Some(-libc::SIGKILL));
        }
        mount.fs.sync_takes_millis.store(0, Ordering::SeqCst);
        for n in 0..4 {
            // Whole writes or none.
            let found = fs::read(path(n)).unwrap_or_default();
            assert!(found.len() % 4096 == 0 && found.iter().all(|byte| *byte == n as u8));
        }
    }
    mount.end();
}

#[test]
fn signals_do_not_change_what_long_requests_return() {
    let Some(_turn) = turn("signals_do_not_change_what_long_requests_return") else {
        return;
    };
    let mount = Mount::new(|_| {});
    mount.fs.sync_takes_millis.store(40, Ordering::SeqCst);
    in_child(|| {
        interrupt_often(3000)?;
        let path = mount.path("f");
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        for round in 0..10u64 {
            file.write_all_at(&[round as u8; 70_000], round * 70_000)?;
            file.sync_all()?;
            assert_eq!(fs::metadata(&path)?.len(), (round + 1) * 70_000);
        }
        let found = fs::read(&path)?;
        assert!(found.chunks(70_000).zip(0u8..).all(|(part, n)| part == [n; 70_000]));
        Ok(())
    })
    .unwrap();
    mount.end();
}

/// Descriptors of io_uring instances in this process.
fn rings() -> Vec<i32> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc/self/fd").unwrap() {
        let path: PathBuf = entry.unwrap().path();
        if fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().contains("io_uring")) {
            all.push(path.file_name().unwrap().to_string_lossy().parse().unwrap());
        }
    }
    all
}

#[test]
fn io_uring_that_cannot_be_had_is_named_and_automatically_replaced() {
    let Some(_turn) = turn("io_uring_that_cannot_be_had_is_named_and_automatically_replaced") else {
        return;
    };
    let Some(_on) = UringOn::new().unwrap() else { return };
    in_child(|| {
        // Fewer than there are rings, enough for the other transport.
        let open = fs::read_dir("/proc/self/fd")?.count() as u64;
        limit_descriptors(open + 26)?;
        let mount = |transport| {
            let dir = tempfile::tempdir().unwrap();
            let options = SessionOptions {
                transport,
                workers: 16,
                ..SessionOptions::default()
            };
            let session = Session::mount(Arc::new(MemFs::default()), dir.path(), options);
            (session, dir)
        };
        let (refused, _dir) = mount(TransportChoice::Uring);
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("io_uring cannot be used"), "{text}");
        let (session, dir) = mount(TransportChoice::Auto);
        let session = session.unwrap();
        let TransportUsed::Dev(Some(why)) = session.transport() else {
            panic!("{:?}", session.transport())
        };
        assert!(why.to_string().contains("io_uring cannot be used"), "{why}");
        assert_eq!(rings(), [0; 0], "rings of the attempt are closed");
        let unmounter = session.unmounter();
        let serving = session.spawn();
        fs::write(dir.path().join("f"), b"content")?;
        assert_eq!(fs::read(dir.path().join("f"))?, b"content");
        unmounter.unmount(false).unwrap();
        serving.join().unwrap().unwrap();
        Ok(())
    })
    .unwrap();
}

#[test]
fn ring_that_is_lost_ends_the_mount_with_an_error() {
    let Some(_turn) = turn("ring_that_is_lost_ends_the_mount_with_an_error") else {
        return;
    };
    let Some(_on) = UringOn::new().unwrap() else { return };
    let mut mount = Mount::new(|o| o.transport = TransportChoice::Uring);
    fs::write(mount.path("f"), b"content").unwrap();
    let file = File::open(mount.path("f")).unwrap();
    let rings = rings();
    assert!(rings.len() >= 2, "{rings:?}");
    rings.iter().for_each(|&ring| replace_by_null(ring).unwrap());
    // The reply of the next request cannot be sent.
    let error = file.sync_all().unwrap_err();
    assert!(is_end(&error), "{error}");
    drop(file);
    mount.wait_for_result().unwrap_err();
    assert_eq!(mount.fs.destroyed.load(Ordering::SeqCst), 1);
    eventually("the mount is gone", || !mount.path("f").exists());
}
