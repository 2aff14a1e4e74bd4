//! `subvolume`: made, listed, shown and deleted on a mount, and seen at once by other programs.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use cowshed_harness::{KernelVolume, need};
use rustix::fs::{Mode, OFlags};

use crate::extents::{Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::support::{eventually, run, within};

#[test]
fn subvolumes_of_a_mount_are_made_listed_and_deleted() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let at = |path: &str| mnt.join(path);
    let text = |path: &str| fs::read_to_string(at(path)).unwrap();
    // The kernel remembers that there is nothing under these names.
    for name in ["home", "snap", "frozen"] {
        assert_eq!(fs::metadata(at(name)).unwrap_err().kind(), ErrorKind::NotFound);
    }
    let made = run("subvolume create {}", &[&at("home")]).ok().text();
    assert_eq!(made, format!("Create subvolume '{}'\n", at("home").display()));
    run("subvolume create {}", &[&at("home")]).fails(&["already exists"]);
    fs::write(at("home/notes"), "first").unwrap();
    run("subvolume snapshot {} {}", &[&at("home"), &at("snap")]).ok();
    run("subvolume snapshot -r {} {}", &[&at("home"), &at("frozen")]).ok();
    fs::write(at("home/notes"), "second").unwrap();
    fs::write(at("snap/notes"), "third").unwrap();
    assert_eq!(
        ["home", "snap", "frozen"].map(|name| text(&format!("{name}/notes"))),
        ["second", "third", "first"]
    );
    let refused = fs::write(at("frozen/notes"), "fourth").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    // Into a directory that exists: under the source's name.
    fs::create_dir(at("dir")).unwrap();
    run("sub snapshot {} {}", &[&at("snap"), &at("dir")]).ok();

    let list = run("subvolume list {}", &[&mnt]).ok().text();
    let paths: Vec<_> = list.lines().map(|line| line.rsplit(' ').next().unwrap()).collect();
    assert_eq!(paths, ["home", "snap", "frozen", "dir/snap"]);
    assert!(list.starts_with("ID 256 gen "), "{list}");
    let json = run("subvolume list --json {}", &[&mnt]).ok().json();
    assert_eq!(json[1]["parent_uuid"], json[0]["uuid"]);
    assert_eq!(json[2]["is_read_only"], true);
    let frozen = run("subvolume list -r {}", &[&mnt]).ok().text();
    assert!(
        frozen.ends_with("path frozen\n") && frozen.lines().count() == 1,
        "{frozen}"
    );
    let shown = run("subvolume show {}", &[&at("home")]).ok().text();
    assert!(
        shown.starts_with("home\n") && shown.contains("Subvolume ID:"),
        "{shown}"
    );
    let [snap, frozen] = ["snap", "frozen"].map(|name| shown.lines().any(|line| line.trim() == name));
    assert!(snap && frozen, "{shown}");

    run("subvolume show {}", &[&at("dir")]).fails(&["Not a Btrfs subvolume"]);
    run("subvolume delete {}", &[&at("dir")]).fails(&["Not a Btrfs subvolume"]);
    run("subvolume snapshot {} {}", &[&at("dir"), &at("x")]).fails(&["Not a Btrfs subvolume"]);
    run("subvolume create {}", &[&at("home/nested")]).ok();
    run("subvolume delete {}", &[&at("home")]).fails(&["Could not destroy", "not empty"]);
    run("subvolume delete -R {}", &[&at("home")]).ok();
    run("subvolume delete -c {} {}", &[&at("snap"), &at("dir/snap")]).ok();
    for name in ["home", "snap", "dir/snap"] {
        assert_eq!(fs::metadata(at(name)).unwrap_err().kind(), ErrorKind::NotFound);
    }
    // An empty one goes as a directory does.
    run("subvolume create {}", &[&at("empty")]).ok();
    fs::remove_dir(at("empty")).unwrap();
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 2);
    let left = run("subvolume list {}", &[&mnt]).ok().text();
    assert!(left.ends_with("path frozen\n") && left.lines().count() == 1, "{left}");
    // What nothing has in use is dropped while the mount goes on.
    eventually("the deleted ones are dropped", || {
        let _ = run("sync {}", &[&mnt]);
        let roots = run("inspect tree -t root {}", &[&scratch.image]).text();
        !roots.contains("ORPHAN ORPHAN_ITEM")
    });
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
    if need::kernel_btrfs().is_none() {
        return;
    }
    let copy = KernelVolume::copy_of(&[&scratch.image]).unwrap();
    copy.with_mount(|root| {
        assert_eq!(fs::read_to_string(root.join("frozen/notes"))?, "first");
        let refused = fs::write(root.join("frozen/notes"), "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        Ok(())
    })
    .unwrap();
}

/// What Linux remembers of a large subvolume goes in pieces; its name at once.
#[test]
fn name_of_a_large_deleted_subvolume_is_free_at_once_and_the_rest_goes_when_nothing_uses_it() {
    const FILES: usize = 3000;
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let at = |path: &str| mnt.join(path);
    let is_listed = || {
        let _ = run("sync {}", &[&mnt]);
        let roots = run("inspect tree -t root {}", &[&scratch.image]).text();
        roots.contains("ORPHAN ORPHAN_ITEM")
    };
    run("subvolume create {}", &[&at("jobs")]).ok();
    for n in 0..FILES {
        let dir = at(&format!("jobs/{}", n / 100));
        if n % 100 == 0 {
            fs::create_dir(&dir).unwrap();
        }
        fs::write(dir.join(n.to_string()), n.to_string()).unwrap();
    }
    // Numbers do not tell that one directory lies in the other.
    fs::rename(at("jobs/3"), at("jobs/20/3")).unwrap();
    let mut open = File::open(at("jobs/12/1234")).unwrap();
    let dir = File::open(at("jobs/5")).unwrap();
    run("subvolume delete {}", &[&at("jobs")]).ok();
    assert_eq!(fs::metadata(at("jobs")).unwrap_err().kind(), ErrorKind::NotFound);

    // Another one under the name, with something mounted over it, is left alone.
    run("subvolume create {}", &[&at("jobs")]).ok();
    fs::write(at("jobs/new"), "new").unwrap();
    let over = at("jobs");
    cowshed_harness::run("mount", &["-t", "tmpfs", "none", &over.to_string_lossy()]).unwrap();
    fs::write(at("jobs/over"), "over").unwrap();

    // Not dropped while something is open in it.
    assert!(is_listed());
    std::thread::sleep(Duration::from_secs(3));
    assert!(is_listed());
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "1234");
    drop((open, dir));
    within(Duration::from_secs(60), "the deleted one is dropped", || !is_listed());
    assert_eq!(fs::read_to_string(at("jobs/over")).unwrap(), "over");
    cowshed_harness::run("umount", &[&over]).unwrap();
    assert_eq!(fs::read_to_string(at("jobs/new")).unwrap(), "new");
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
}

/// Linux tells a server of open files alone. A working directory, an open directory, a descriptor
/// that only names a file: each keeps a deleted subvolume as it is. Without any it goes at once,
/// with data that was never written.
#[test]
fn deleted_subvolume_stays_while_a_process_is_in_it_and_goes_before_its_data_is_written() {
    const FILES: usize = 2000;
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let jobs = mnt.join("jobs");
    let dir = jobs.join("dir");
    let fill = || {
        run("subvolume create {}", &[&jobs]).ok();
        fs::create_dir(&dir).unwrap();
        for n in 0..FILES {
            fs::write(dir.join(n.to_string()), n.to_string()).unwrap();
        }
        run("sync {}", &[&mnt]).ok();
    };
    // The tree of the image as it was written last; a drop commits by itself.
    let is_there = || {
        run("inspect tree -t root {}", &[&scratch.image])
            .text()
            .contains("ORPHAN ORPHAN_ITEM")
    };
    let delete = || {
        run("subvolume delete {}", &[&jobs]).ok();
        run("sync {}", &[&mnt]).ok();
    };
    let stays = || {
        delete();
        std::thread::sleep(Duration::from_secs(2));
        assert!(is_there());
    };
    let goes = || within(Duration::from_secs(20), "the deleted one is dropped", || !is_there());

    fill();
    let mut inside = Command::new("sh")
        .args(["-c", "cd \"$1\" && read go && cat 77 && ls | wc -l", "sh"])
        .arg(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // It is there once its working directory is.
    let its_dir = format!("/proc/{}/cwd", inside.id());
    eventually("the shell is in the directory", || {
        fs::read_link(&its_dir).is_ok_and(|at| at == dir)
    });
    stays();
    inside.stdin.take().unwrap().write_all(b"\n").unwrap();
    let ended = cowshed_harness::limit::wait(&mut inside, Duration::from_secs(20)).unwrap();
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    let mut said = String::new();
    inside.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.trim(), format!("77{FILES}"));
    goes();

    for flags in [OFlags::RDONLY | OFlags::DIRECTORY, OFlags::PATH] {
        fill();
        let open = rustix::fs::open(&dir, flags, Mode::empty()).unwrap();
        stays();
        let file = rustix::fs::openat(&open, "1234", OFlags::RDONLY, Mode::empty()).unwrap();
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "1234");
        drop(open);
        goes();
    }

    fill();
    fs::write(dir.join("unwritten"), vec![7; 32 << 20]).unwrap();
    let blocks = || fs::metadata(&scratch.image).unwrap().blocks();
    let before = blocks();
    run("subvolume delete {}", &[&jobs]).ok();
    // The next commit by the clock comes after 30 seconds.
    within(Duration::from_secs(20), "the deleted one is dropped", || {
        run("subvolume list -d {}", &[&mnt]).text().is_empty()
    });
    assert!((blocks() - before) * 512 < 16 << 20, "its data was not written");
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
}

#[test]
fn subvolumes_are_not_listed_where_there_is_no_btrfs() {
    run("subvolume list /proc", &[]).fails(&["not a btrfs filesystem: /proc"]);
}

/// What a program does with files that it has open when their subvolume is deleted.
const GO_ON: &str = r#"
import mmap, os
def say(name, call):
    try: print(name, call())
    except OSError as error: print(name, error.errno)
names = ["d/f", "d/g"]
f, g = (os.open(name, os.O_RDWR) for name in names)
mapping = mmap.mmap(g, 10000)
mapping[0] = 65
delete("d")
say("write", lambda: os.pwrite(f, b"abc", 0))
say("append", lambda: os.pwrite(f, b"z" * 200000, 10000))
say("fsync", lambda: os.fsync(f))
say("read", lambda: os.pread(f, 4, 0) + os.pread(f, 3, 209997))
say("truncate", lambda: os.ftruncate(f, 100))
say("size", lambda: os.fstat(f).st_size)
say("fchmod", lambda: os.fchmod(f, 0o600))
say("times", lambda: os.utime(f, (1, 1)))
say("attribute", lambda: os.setxattr(f, "user.a", b"1"))
say("punch", lambda: os.posix_fallocate(f, 0, 100000))
say("msync", lambda: mapping.flush())
mapping[5000] = 66
say("msync again", lambda: mapping.flush())
say("mapped", lambda: os.pread(g, 1, 0) + os.pread(g, 1, 5000))
sync()
mapping[0] = 67
mapping.close()
os.close(g)
os.close(f)
sync()
"#;

#[test]
fn files_that_are_open_in_a_deleted_subvolume_are_changed_as_on_the_kernels_btrfs() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let Some(()) = need::tool("python3") else { return };
    let _guard = Guard(&mnt);
    let go_on = |dir: &std::path::Path, command: &str| {
        fs::write(dir.join("d/f"), [b'x'; 10_000]).unwrap();
        fs::write(dir.join("d/g"), [b'x'; 10_000]).unwrap();
        let head = format!(
            "import subprocess\ndef delete(name): subprocess.check_call([{command:?}, 'subvolume', 'delete', name], \
             stdout=subprocess.DEVNULL)\ndef sync(): subprocess.check_call(['sync', '-f', '.'])\n"
        );
        cowshed_harness::run_in(dir, "python3", &["-c", &format!("{head}{GO_ON}")]).unwrap()
    };
    run("subvolume create {}", &[&mnt.join("d")]).ok();
    let ours = go_on(&mnt, crate::support::COWSHED);
    if need::kernel_btrfs().is_some() {
        let kernel = KernelVolume::make(&Default::default()).unwrap();
        let theirs = kernel.with_mount(|dir| {
            cowshed_harness::run_in(dir, "btrfs", &["subvolume", "create", "d"])?;
            Ok(go_on(dir, "btrfs"))
        });
        assert_eq!(ours, theirs.unwrap());
    }
    within(Duration::from_secs(20), "the deleted one is dropped", || {
        run("subvolume list -d {}", &[&mnt]).text().is_empty()
    });
    unmount(&mnt);
    crate::support::assert_clean_for_both(&scratch.image);
}

/// What they had comes back in the background, and a program that needs it waits for that.
#[test]
fn space_of_deleted_subvolumes_is_there_for_the_next_write() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let space = rustix::fs::statfs(&mnt).unwrap();
    // More than half of what there is, in two subvolumes: the next ones fit when those are gone.
    let half = usize::try_from(space.f_bavail * 4096 / 10 * 3).unwrap();
    let data = vec![0x5a; half];
    for round in 0..6 {
        let dirs = ["a", "b"].map(|name| mnt.join(format!("{name}{round}")));
        for dir in &dirs {
            run("subvolume create {}", &[dir]).ok();
            fs::write(dir.join("file"), &data).unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        run("subvolume delete {} {}", &[&dirs[0], &dirs[1]]).ok();
    }
    unmount(&mnt);
    crate::support::assert_clean_for_both(&scratch.image);
}

/// Programs write on while the subvolume goes, and let go of their files one by one.
#[test]
fn writers_in_a_deleted_subvolume_leave_nothing_behind() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let used = || {
        let space = rustix::fs::statfs(&mnt).unwrap();
        (space.f_blocks - space.f_bfree) * 4096
    };
    run("sync {}", &[&mnt]).ok();
    let before = used();
    for round in 0..20_u64 {
        let dir = mnt.join(format!("d{round}"));
        run("subvolume create {}", &[&dir]).ok();
        let end = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for n in 0..4_u64 {
                let (dir, end) = (&dir, &end);
                scope.spawn(move || {
                    let file = File::create(dir.join(n.to_string())).unwrap();
                    let mut at = 0;
                    while !end.load(std::sync::atomic::Ordering::Relaxed) || at < 1 << 20 {
                        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 30_000], at % (4 << 20)).unwrap();
                        at += 50_000;
                        if at % 1_000_000 == 0 && n == round % 4 {
                            file.sync_all().unwrap();
                        }
                    }
                    std::thread::sleep(Duration::from_millis(n * 20));
                });
            }
            std::thread::sleep(Duration::from_millis(10 + 5 * (round % 5)));
            run("subvolume delete {}", &[&dir]).ok();
            if round % 3 == 0 {
                run("sync {}", &[&mnt]).ok();
            }
            std::thread::sleep(Duration::from_millis(20));
            end.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }
    within(Duration::from_secs(30), "all are dropped", || {
        run("subvolume list -d {}", &[&mnt]).text().is_empty()
    });
    run("sync {}", &[&mnt]).ok();
    let left = used().saturating_sub(before);
    assert!(left < 2 << 20, "{left} bytes are in use");
    unmount(&mnt);
    crate::support::assert_clean_for_both(&scratch.image);
}
