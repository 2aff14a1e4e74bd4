//! Which way requests come, and what a mount leaves behind.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

use cowshed_fuse::{Session, SessionError, SessionOptions, TransportChoice, TransportUsed, uring_available};
use cowshed_vfs::memfs::MemFs;

use crate::support::*;

/// A mount that was asked for this transport: what it got.
fn got(choice: TransportChoice) -> Result<TransportUsed, SessionError> {
    let dir = tempfile::tempdir().unwrap();
    let options = SessionOptions {
        transport: choice,
        ..SessionOptions::default()
    };
    let session = Session::mount(Arc::new(MemFs::default()), dir.path(), options)?;
    let (used, unmounter) = (session.transport(), session.unmounter());
    let serving = session.spawn();
    fs::write(dir.path().join("f"), b"content").unwrap();
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"content");
    unmounter.unmount(false).unwrap();
    serving.join().unwrap()?;
    Ok(used)
}

#[test]
fn io_uring_is_used_where_it_is_offered_and_not_forbidden() {
    let Some(_turn) = turn("io_uring_is_used_where_it_is_offered_and_not_forbidden") else {
        return;
    };
    assert_eq!(got(TransportChoice::Dev).unwrap(), TransportUsed::Dev(None));
    match uring_available() {
        Ok(()) => {
            assert_eq!(got(TransportChoice::Auto).unwrap(), TransportUsed::Uring);
            assert_eq!(got(TransportChoice::Uring).unwrap(), TransportUsed::Uring);
        }
        Err(why) => {
            assert_eq!(
                got(TransportChoice::Auto).unwrap(),
                TransportUsed::Dev(Some(why.clone()))
            );
            let refused = got(TransportChoice::Uring).unwrap_err().to_string();
            assert!(refused.contains(&why.to_string()), "{refused}");
        }
    }
}

/// Descriptors and threads of this process.
fn held() -> (usize, usize) {
    let count = |path: &str| fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

#[test]
fn a_mount_leaves_no_descriptor_and_no_thread_behind() {
    let Some(_turn) = turn("a_mount_leaves_no_descriptor_and_no_thread_behind") else {
        return;
    };
    let once = || {
        let mount = Mount::shared();
        fs::write(mount.path("f"), b"content").unwrap();
        mount.end();
    };
    once();
    // The thread that drops pages ends soon after the session.
    let settled = |before: Option<(usize, usize)>| {
        let mut now = held();
        for _ in 0..200 {
            if before.is_some_and(|before| now <= before) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            now = held();
        }
        now
    };
    let before = settled(None);
    (0..20).for_each(|_| once());
    let after = settled(Some(before));
    assert!(
        after <= before,
        "descriptors and threads: {before:?} before, {after:?} after"
    );
}

/// Many programs on one processor, each with a request under way: more than there are threads to
/// begin with, fewer than there may be.
#[test]
fn programs_that_wait_do_not_hold_up_others() {
    let Some(_turn) = turn("programs_that_wait_do_not_hold_up_others") else {
        return;
    };
    let mount = Mount::new(|_| {});
    let dir: &Path = mount.dir.path();
    std::thread::scope(|scope| {
        for n in 0..24 {
            scope.spawn(move || {
                let path = dir.join(format!("f{n}"));
                let file = File::create(&path).unwrap();
                for round in 0..50 {
                    std::os::unix::fs::FileExt::write_all_at(&file, &[n as u8; 4096], round * 4096).unwrap();
                    file.sync_data().unwrap();
                }
                assert!(file.as_raw_fd() >= 0);
                assert_eq!(fs::read(&path).unwrap(), vec![n as u8; 50 * 4096]);
            });
        }
    });
    mount.end();
}
