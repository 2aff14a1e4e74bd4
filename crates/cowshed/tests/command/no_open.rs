//! Mounts with `no_open`: files are opened without a request, so what `open` would have refused is
//! refused later, and nothing is lost by it (docs/decisions/010-files-without-open.md).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cowshed_harness::{atomic_write_features, limit, need, start_atomic_write, write_through_map};

use crate::attributes::{OWNER, act_as};
use crate::mount::{Guard, can_mount, unmount};
use crate::support::{COWSHED, Scratch, run};

fn mount(volume: &Scratch, options: &str) -> PathBuf {
    let dir = volume.mountpoint();
    run(&format!("mount -o {options} {{}} {{}}"), &[&volume.image, &dir]).ok();
    dir
}

fn open_to_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn write_error(path: &Path) -> i32 {
    let refused = open_to_write(path).write_at(b"x", 0).unwrap_err();
    refused.raw_os_error().unwrap()
}

#[test]
fn without_open_what_may_not_be_written_is_refused_by_the_first_write() {
    let Some(()) = can_mount().and_then(|()| need::root()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = mount(&volume, "no_open,allow_other");
    let _guard = Guard(&dir);
    let files = ["fixed", "grows", "plain"].map(|name| dir.join(name));
    for file in &files {
        fs::write(file, name_of(file)).unwrap();
    }
    for (flag, file) in [("+i", &files[0]), ("+a", &files[1])] {
        cowshed_harness::run("chattr", &[flag.as_ref(), file.as_os_str()]).unwrap();
    }
    run("subvolume create {}", &[&dir.join("sub")]).ok();
    fs::write(dir.join("sub/f"), "....").unwrap();
    // In the page cache alone when the snapshot is taken.
    write_through_map(&open_to_write(&dir.join("sub/f")), 0, b"kept").unwrap();
    run(
        "subvolume snapshot -r {} {}",
        &[&dir.join("sub"), &dir.join("fixed-sub")],
    )
    .ok();
    assert_eq!(write_error(&files[0]), libc::EPERM);
    assert_eq!(write_error(&files[1]), libc::EPERM);
    // Not even behind the end, without O_APPEND.
    for at in [5, 4096] {
        let refused = open_to_write(&files[1]).write_at(b"x", at).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM), "at {at}");
    }
    assert_eq!(write_error(&dir.join("fixed-sub/f")), libc::EROFS);
    for file in [&files[0], &files[1], &dir.join("fixed-sub/f")] {
        let cut = OpenOptions::new().write(true).truncate(true).open(file).unwrap_err();
        assert!(matches!(cut.raw_os_error(), Some(libc::EPERM | libc::EROFS)), "{cut}");
    }
    OpenOptions::new()
        .append(true)
        .open(&files[1])
        .unwrap()
        .write_all(b" more")
        .unwrap();
    open_to_write(&files[2]).write_at(b"P", 0).unwrap();
    let look = |dir: &Path| {
        let at = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
        assert_eq!(
            [at("fixed"), at("grows"), at("plain"), at("fixed-sub/f")],
            ["fixed", "grows more", "Plain", "kept"]
        );
    };
    look(&dir);
    unmount(&dir);
    volume.assert_clean();
    run("mount {} {}", &[&volume.image, &dir]).ok();
    look(&dir);
    unmount(&dir);
}

/// Two mounts that show the same files, the second of them read from what the first has cached.
#[test]
fn read_only_volumes_are_read_without_requests_for_opens_and_through_two_mounts() {
    let Some(()) = can_mount().and_then(|()| need::root()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = mount(&volume, "allow_other");
    let _guard = Guard(&dir);
    fs::write(dir.join("f"), "content").unwrap();
    unmount(&dir);
    run("mount -o ro {} {}", &[&volume.image, &dir]).ok();
    let other = volume.path("other");
    fs::create_dir(&other).unwrap();
    let _other_guard = Guard(&other);
    for round in 0..2 {
        assert_eq!(fs::read(dir.join("f")).unwrap(), b"content", "round {round}");
        let refused = OpenOptions::new().write(true).open(dir.join("f")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        if round == 0 {
            run("mount -o ro {} {}", &[&volume.image, &other]).ok();
            assert_eq!(fs::read(other.join("f")).unwrap(), b"content");
        }
    }
    unmount(&dir);
    assert_eq!(fs::read(other.join("f")).unwrap(), b"content");
    unmount(&other);
}

fn name_of(file: &Path) -> Vec<u8> {
    file.file_name().unwrap().as_encoded_bytes().to_vec()
}

#[test]
fn without_open_files_live_as_long_as_they_are_used_and_atomic_groups_are_refused() {
    let Some(()) = can_mount().and_then(|()| need::root()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = mount(&volume, "no_open,allow_other");
    let _guard = Guard(&dir);
    // A mode that forbids what its maker may do by the handle; an ordinary user, so that it counts.
    fs::create_dir(dir.join("home")).unwrap();
    std::os::unix::fs::chown(dir.join("home"), Some(OWNER.uid), Some(OWNER.gid)).unwrap();
    let name = dir.join("home/sealed");
    let made = act_as(OWNER, || {
        let mut made = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(&name)
            .unwrap();
        made.write_all(b"written once").unwrap();
        let again = OpenOptions::new().write(true).open(&name).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::PermissionDenied);
        made
    });
    // Without a name it can be used through the handle.
    fs::remove_file(&name).unwrap();
    let mut made = made;
    made.write_at(b"W", 0).unwrap();
    made.sync_all().unwrap();
    let mut text = String::new();
    made.rewind().unwrap();
    made.read_to_string(&mut text).unwrap();
    assert_eq!(text, "Written once");
    drop(made);
    let unnamed = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(&dir)
        .unwrap();
    unnamed.write_all_at(b"unnamed", 0).unwrap();
    let door = format!("/proc/self/fd/{}", unnamed.as_raw_fd());
    rustix::fs::linkat(
        rustix::fs::CWD,
        door.as_str(),
        rustix::fs::CWD,
        dir.join("named"),
        rustix::fs::AtFlags::SYMLINK_FOLLOW,
    )
    .unwrap();
    assert_eq!(
        atomic_write_features(&unnamed).unwrap(),
        0,
        "SQLite then keeps its journal"
    );
    let refused = start_atomic_write(&unnamed).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBADF));
    drop(unnamed);
    unmount(&dir);
    volume.assert_clean();
    run("mount {} {}", &[&volume.image, &dir]).ok();
    assert_eq!(fs::read(dir.join("named")).unwrap(), b"unnamed");
    assert_eq!(fs::read_dir(dir.join("home")).unwrap().count(), 0);
    let opened = open_to_write(&dir.join("named"));
    assert_eq!(
        atomic_write_features(&opened).unwrap(),
        4,
        "with requests for open files"
    );
    start_atomic_write(&opened).unwrap();
    drop(opened);
    unmount(&dir);
}

#[test]
fn without_open_mounts_of_the_same_files_and_unchecked_mounts_are_refused_by_name() {
    let Some(()) = can_mount().and_then(|()| need::root()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = mount(&volume, "no_open,allow_other");
    let _guard = Guard(&dir);
    for name in ["a", "b"] {
        run("subvolume create {}", &[&dir.join(name)]).ok();
    }
    let other = volume.path("other");
    fs::create_dir(&other).unwrap();
    let _other_guard = Guard(&other);
    let words = ["neither with no_open"];
    run("mount {} {}", &[&volume.image, &other]).fails(&words);
    run("mount -o subvol=a {} {}", &[&volume.image, &other]).fails(&words);
    unmount(&dir);
    run("mount -o subvol=a {} {}", &[&volume.image, &dir]).ok();
    run("mount -o no_open {} {}", &[&volume.image, &other]).fails(&words);
    // Beside each other they share nothing.
    run("mount -o no_open,subvol=b {} {}", &[&volume.image, &other]).ok();
    fs::write(other.join("f"), "of b").unwrap();
    fs::write(dir.join("f"), "of a").unwrap();
    unmount(&other);
    unmount(&dir);
    let (image, dir) = (volume.image.display().to_string(), dir.display().to_string());
    let refused = act_as(OWNER, || {
        let mut command = std::process::Command::new(COWSHED);
        limit::output(command.args(["mount", "-o", "no_open", &image, &dir])).unwrap()
    });
    assert_eq!(refused.status.code(), Some(2));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("no_open needs permission checks by the kernel"), "{text}");
}
