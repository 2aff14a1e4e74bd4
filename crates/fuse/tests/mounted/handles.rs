//! File handles: the kernel asks for nodes that it has forgotten, by number.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::time::Duration;

use cowshed_harness::FileHandle;
use cowshed_vfs::memfs::{MemFs, Options};

use crate::support::*;

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

fn content(mount: &File, handle: &FileHandle) -> std::io::Result<String> {
    let mut text = String::new();
    handle.open(mount, libc::O_RDONLY)?.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn handles_find_forgotten_nodes_until_they_are_unlinked() {
    let Some(_turn) = turn("handles_find_forgotten_nodes_until_they_are_unlinked") else {
        return;
    };
    for stateful in [false, true] {
        let mount = if stateful {
            Mount::stateful(|_| {})
        } else {
            Mount::shared()
        };
        let root = File::open(mount.dir.path()).unwrap();
        fs::create_dir_all(mount.path("a/b/c")).unwrap();
        fs::write(mount.path("a/b/f"), "text").unwrap();
        symlink("target", mount.path("a/s")).unwrap();
        let [dir, file, link] = ["a/b/c", "a/b/f", "a/s"].map(|p| FileHandle::of(&mount.path(p)).unwrap());
        drop_caches();
        assert_eq!(content(&root, &file).unwrap(), "text");
        assert!(link.open(&root, libc::O_PATH).unwrap().metadata().unwrap().is_symlink());
        // A directory gets its place in the tree back, from below.
        drop_caches();
        let open = dir.open(&root, libc::O_RDONLY).unwrap();
        let place = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
        assert_eq!(place, mount.path("a/b/c"));
        drop(open);
        fs::rename(mount.path("a/b"), mount.path("moved")).unwrap();
        drop_caches();
        assert_eq!(content(&root, &file).unwrap(), "text");
        let open = File::open(mount.path("moved/f")).unwrap();
        fs::remove_file(mount.path("moved/f")).unwrap();
        fs::remove_dir(mount.path("moved/c")).unwrap();
        drop_caches();
        assert_eq!(content(&root, &file).unwrap(), "text", "unlinked, but open");
        assert_eq!(errno(dir.open(&root, libc::O_PATH)), libc::ESTALE);
        drop(open);
        // Closing is told to the server later, and the node stays until then.
        let is_stale = || content(&root, &file).is_err_and(|e| e.raw_os_error() == Some(libc::ESTALE));
        let waits = (0..2000).take_while(|_| !is_stale());
        let count = waits.inspect(|_| std::thread::sleep(Duration::from_millis(10))).count();
        assert!(count < 2000, "an unlinked and closed file is stale");
        drop(root);
        mount.end();
    }
}

#[test]
fn handles_are_for_callers_that_may_search_everywhere() {
    let Some(_turn) = turn("handles_are_for_callers_that_may_search_everywhere") else {
        return;
    };
    let mount = Mount::shared();
    let root = File::open(mount.dir.path()).unwrap();
    fs::write(mount.path("f"), "text").unwrap();
    let handle = FileHandle::of(&mount.path("f")).unwrap();
    for cached in [true, false] {
        if !cached {
            drop_caches();
        }
        let refused = as_user(1000, 1000, &[], || handle.open(&root, libc::O_PATH).map(drop));
        assert_eq!(errno(refused), libc::EPERM);
    }
    drop(root);
    mount.end();
}

#[test]
fn a_file_system_that_cannot_find_nodes_again_is_not_asked() {
    let Some(_turn) = turn("a_file_system_that_cannot_find_nodes_again_is_not_asked") else {
        return;
    };
    let mut options = Options::default();
    options.capabilities.file_handles = false;
    let mount = Mount::with_fs(MemFs::new(options), |_| {});
    let root = File::open(mount.dir.path()).unwrap();
    fs::write(mount.path("f"), "text").unwrap();
    let handle = FileHandle::of(&mount.path("f")).unwrap();
    drop_caches();
    assert_eq!(errno(content(&root, &handle)), libc::ESTALE);
    drop(root);
    mount.end();
}
