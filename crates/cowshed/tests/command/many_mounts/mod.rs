//! Many mounts of one volume: served by one process, each with its own subvolume.

mod fstab;

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cowshed_harness::{limit, need};

use crate::mount::{Guard, Server, can_mount, ended, foreground_with, is_mounted, kill, unmount};
use crate::support::{COWSHED, Scratch, eventually, in_name_space, run, without_name_spaces};

/// A volume with subvolumes `@` and `@home`, and directories to mount on.
struct Volume {
    scratch: Scratch,
    dirs: Vec<PathBuf>,
}

impl Volume {
    fn new(dirs: usize) -> Volume {
        let scratch = Scratch::new();
        let dirs: Vec<_> = (0..dirs).map(|n| scratch.path(&format!("mnt{n}"))).collect();
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
        }
        let dir = scratch.mountpoint();
        run("mount {} {}", &[&scratch.image, &dir]).ok();
        run("subvolume create {}", &[&dir.join("@")]).ok();
        run("subvolume create {}", &[&dir.join("@home")]).ok();
        unmount(&dir);
        Volume { scratch, dirs }
    }

    fn image(&self) -> &Path {
        &self.scratch.image
    }

    fn mount(&self, options: &str, dir: usize) -> crate::support::Ran {
        run(
            &format!("mount -o {options} {{}} {{}}"),
            &[self.image(), &self.dirs[dir]],
        )
    }

    fn assert_clean(&self) {
        run("check --check-data-csum {}", &[self.image()]).ok();
        if need::tool("btrfs").is_some() {
            cowshed_harness::run(
                "btrfs",
                &["check".as_ref(), "--check-data-csum".as_ref(), self.image().as_os_str()],
            )
            .unwrap();
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        self.dirs.iter().for_each(|dir| drop(Guard(dir)));
    }
}

/// The processes that serve mounts of an image, or wait for one.
fn processes(image: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(id) = entry.file_name().to_string_lossy().parse() else {
            continue;
        };
        let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let has = |word: &[u8]| words.split(|byte| *byte == 0).any(|one| one == word);
        if has(b"mount") && has(image.as_os_str().as_encoded_bytes()) {
            found.push(id);
        }
    }
    found
}

/// The command of a further mount ends once that is served.
fn one_process_stays(volume: &Volume) {
    eventually("one process", || processes(volume.image()).len() == 1);
}

fn wait_until_free(volume: &Volume) {
    eventually("the end of the process", || processes(volume.image()).is_empty());
}

#[test]
fn two_subvolumes_are_served_by_one_process_until_the_last_umount() {
    let Some(()) = can_mount() else { return };
    for last in [0, 1] {
        let volume = Volume::new(2);
        let (root, home) = (&volume.dirs[0], &volume.dirs[1]);
        volume.mount("subvol=@", 0).ok();
        volume.mount("subvol=@home", 1).ok();
        one_process_stays(&volume);
        fs::write(root.join("in root"), b"r").unwrap();
        fs::write(home.join("in home"), b"h").unwrap();
        assert!(!home.join("in root").exists() && !root.join("in home").exists());
        let first = 1 - last;
        unmount(&volume.dirs[first]);
        assert!(!is_mounted(&volume.dirs[first]) && is_mounted(&volume.dirs[last]));
        let left = &volume.dirs[last];
        fs::write(left.join("later"), b"l").unwrap();
        run("check {}", &[volume.image()]).fails(&["busy"]);
        // What the other one showed can be mounted again.
        volume
            .mount(if first == 0 { "subvol=@" } else { "subvol=@home" }, first)
            .ok();
        let again = volume.dirs[first].join(if first == 0 { "in root" } else { "in home" });
        assert_eq!(fs::read(again).unwrap().len(), 1);
        unmount(&volume.dirs[first]);
        unmount(left);
        volume.assert_clean();
        assert_eq!(processes(volume.image()), [0_u32; 0]);
        let out = run("ls -R {}", &[volume.image()]).ok().text();
        for name in ["in root", "in home", "later"] {
            assert!(out.contains(name), "{out}");
        }
    }
}

/// A process that does not run while this lives.
struct Stopped(u32);

impl Stopped {
    fn new(process: u32) -> Stopped {
        cowshed_harness::run("kill", &["-STOP", &process.to_string()]).unwrap();
        Stopped(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = cowshed_harness::run("kill", &["-CONT", &self.0.to_string()]);
    }
}

/// umount(2) of a plain mount returns before its process knows.
#[test]
fn mount_right_after_umount_waits_for_the_end_of_the_one_before() {
    let Some(()) = can_mount() else { return };
    let _ends = without_name_spaces();
    for (before, after) in [("ro", "rw"), ("commit=5", "commit=6"), ("rw", "ro")] {
        let volume = Volume::new(1);
        let dir = &volume.dirs[0];
        volume.mount(&format!("noloop,{before}"), 0).ok();
        let [process] = processes(volume.image())[..] else {
            panic!("one process serves the mount")
        };
        let stopped = Stopped::new(process);
        rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty()).unwrap();
        std::thread::scope(|scope| {
            let mounting = scope.spawn(|| volume.mount(&format!("noloop,{after}"), 0));
            // It has asked by then, or asks later.
            std::thread::sleep(Duration::from_millis(200));
            drop(stopped);
            mounting.join().unwrap().ok();
        });
        assert_eq!(
            fs::write(dir.join("f"), b"f").is_ok(),
            after != "ro",
            "{before}, {after}"
        );
        unmount(dir);
        volume.assert_clean();
    }
}

#[test]
fn plain_umount_of_one_of_two_mounts_leaves_the_other() {
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    volume.mount("subvol=@", 0).ok();
    volume.mount("subvol=@home", 1).ok();
    fs::write(volume.dirs[0].join("f"), vec![1; 100_000]).unwrap();
    eventually("umount", || cowshed_harness::run("umount", &[&volume.dirs[0]]).is_ok());
    fs::write(volume.dirs[1].join("g"), b"there").unwrap();
    eventually("umount", || cowshed_harness::run("umount", &[&volume.dirs[1]]).is_ok());
    wait_until_free(&volume);
    volume.assert_clean();
    assert_eq!(run("cat {} @/f", &[volume.image()]).ok().out, vec![1; 100_000]);
    assert_eq!(run("cat {} @home/g", &[volume.image()]).ok().out, b"there");
    let devices = cowshed_harness::run("losetup", &["-j".as_ref(), volume.image().as_os_str()]).unwrap();
    assert_eq!(devices, "", "no loop device is left");
}

#[test]
fn changes_are_seen_through_the_other_mount_at_once() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    let (all, sub) = (&volume.dirs[0], &volume.dirs[1]);
    volume.mount("subvolid=5", 0).ok();
    let below = all.join("@");
    // What the first mount caches while it is alone.
    fs::write(below.join("old"), b"old content").unwrap();
    let mut kept = File::open(below.join("old")).unwrap();
    assert_eq!(fs::read(below.join("old")).unwrap(), b"old content");
    assert!(!below.join("new").exists() && !below.join("dir/x").exists());
    assert_eq!(fs::read_dir(&below).unwrap().count(), 1);
    let mut appender = OpenOptions::new().append(true).open(below.join("old")).unwrap();

    volume.mount("subvol=@", 1).ok();
    for round in 0..20 {
        fs::write(sub.join("new"), format!("{round}")).unwrap();
        assert_eq!(fs::read_to_string(below.join("new")).unwrap(), format!("{round}"));
        fs::create_dir(sub.join("dir")).unwrap();
        fs::write(sub.join("dir/x"), b"x").unwrap();
        assert!(below.join("dir/x").exists());
        assert_eq!(fs::read_dir(&below).unwrap().count(), 3);
        fs::rename(below.join("dir/x"), below.join("y")).unwrap();
        assert_eq!(fs::read(sub.join("y")).unwrap(), b"x");
        assert!(!sub.join("dir/x").exists());
        fs::remove_file(sub.join("y")).unwrap();
        fs::remove_dir(below.join("dir")).unwrap();
        assert!(!sub.join("dir").exists() && !below.join("y").exists());
        fs::remove_file(below.join("new")).unwrap();
        assert!(!sub.join("new").exists());
    }
    // A descriptor from before, whose pages are in the cache of the first mount.
    let other = OpenOptions::new().write(true).open(sub.join("old")).unwrap();
    other.write_all_at(b"new", 0).unwrap();
    let mut text = String::new();
    kept.read_to_string(&mut text).unwrap();
    assert_eq!(text, "new content");
    other.write_all_at(b", longer", 11).unwrap();
    appender.write_all(b"; appended").unwrap();
    assert_eq!(
        fs::read_to_string(sub.join("old")).unwrap(),
        "new content, longer; appended"
    );
    assert_eq!(
        fs::read_to_string(below.join("old")).unwrap(),
        "new content, longer; appended"
    );
    other.set_len(3).unwrap();
    appender.write_all(b"!").unwrap();
    for dir in [sub, &below] {
        assert_eq!(fs::read_to_string(dir.join("old")).unwrap(), "new!");
        assert_eq!(fs::metadata(dir.join("old")).unwrap().len(), 4);
    }
    drop((kept, appender, other));
    unmount(all);
    fs::write(sub.join("alone"), b"a").unwrap();
    assert_eq!(fs::read(sub.join("alone")).unwrap(), b"a");
    unmount(sub);
    volume.assert_clean();
}

/// 400 random operations through two mounts (more with COWSHED_STEPS), a seed that is printed.
#[test]
fn random_operations_through_two_mounts_agree_with_a_model() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    for tool in ["python3", "fallocate"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let seed = need::share_seed("two mounts");
    let steps = std::env::var("COWSHED_STEPS").unwrap_or("400".into());
    for second in ["subvolid=5", "subvol=@"] {
        let volume = Volume::new(2);
        volume.mount("subvolid=5", 0).ok();
        let script = volume.scratch.path("coherence.py");
        fs::write(&script, include_str!("coherence.py")).unwrap();
        let (a, b) = match second {
            "subvolid=5" => (volume.dirs[0].join("d"), volume.dirs[1].join("d")),
            _ => (volume.dirs[0].join("@/d"), volume.dirs[1].join("d")),
        };
        fs::create_dir(&a).unwrap();
        let mut python = Command::new("python3");
        python
            .arg(script)
            .args([&seed.to_string(), &steps])
            .args([COWSHED, "mount", "-o", second])
            .args([volume.image(), &volume.dirs[1], Path::new("--"), &a, &b])
            .stdin(Stdio::null());
        let ran = limit::output_within(&mut python, Duration::from_secs(1200)).unwrap_or_else(|e| panic!("{e:#}"));
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && said.contains("steps done"), "{second}: {said}");
        unmount(&volume.dirs[0]);
        unmount(&volume.dirs[1]);
        volume.assert_clean();
    }
}

/// Both sides work in one directory, and on the same files, at the same time.
fn work(dir: &Path, side: usize, rounds: usize) -> std::io::Result<()> {
    let shared = dir.join("shared");
    for round in 0..rounds {
        let own = dir.join(format!("{side}-{}", round % 10));
        fs::write(&own, vec![side as u8; 10_000])?;
        let file = OpenOptions::new().create(true).append(true).open(&shared)?;
        (&file).write_all(&[side as u8; 100])?;
        let block = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(dir.join("blocks"))?;
        block.write_all_at(&[side as u8; 8192], (round % 7) as u64 * 4096)?;
        let mut buf = vec![0; 40_000];
        block.read_at(&mut buf, 0)?;
        fs::read_dir(dir)?.for_each(drop);
        match fs::rename(&own, dir.join(format!("moved-{}", round % 5))) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match fs::remove_file(dir.join(format!("moved-{}", (round + side) % 5))) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn concurrent_work_through_two_mounts_ends_and_nothing_is_lost() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    let (all, sub) = (volume.dirs[0].join("@"), volume.dirs[1].clone());
    volume.mount("subvolid=5", 0).ok();
    // The files are open through the page cache of the first mount.
    fs::write(all.join("blocks"), vec![9; 40_000]).unwrap();
    let kept = OpenOptions::new()
        .read(true)
        .write(true)
        .open(all.join("blocks"))
        .unwrap();
    volume.mount("subvol=@", 1).ok();
    const THREADS: usize = 3;
    const ROUNDS: usize = 100;
    std::thread::scope(|scope| {
        let dirs = [&all, &sub];
        let threads: Vec<_> = (0..2 * THREADS)
            .map(|n| scope.spawn(move || work(dirs[n % 2], n + 1, ROUNDS)))
            .collect();
        for round in 0..200 {
            kept.write_all_at(&[200; 6000], round % 9 * 4096 + 100).unwrap();
            kept.read_at(&mut vec![0; 40_000], 0).unwrap();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
    });
    drop(kept);
    let appended = fs::read(all.join("shared")).unwrap();
    assert_eq!(appended.len(), 2 * THREADS * ROUNDS * 100);
    for side in 1..=2 * THREADS {
        let own = appended.iter().filter(|byte| usize::from(**byte) == side).count();
        assert_eq!(own, ROUNDS * 100, "appended by {side}");
    }
    let list = |dir: &Path| {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        let mut all: Vec<_> = names.map(|name| (fs::read(dir.join(&name)).unwrap(), name)).collect();
        all.sort();
        all
    };
    assert!(list(&all) == list(&sub));
    unmount(&volume.dirs[1]);
    unmount(&volume.dirs[0]);
    volume.assert_clean();
}

#[test]
fn options_of_the_whole_volume_that_differ_are_refused_by_name() {
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    volume.mount("subvol=@,compress=zstd,commit=20", 0).ok();
    for (options, name) in [
        ("subvol=@home,compress=lzo", "compress"),
        ("subvol=@home,commit=5", "commit"),
        ("notreelog", "treelog"),
        ("nodiscard", "discard"),
        ("nodatacow", "nodatacow"),
        ("max_memory=64m", "max_memory"),
    ] {
        volume.mount(options, 1).fails(&[name, "whole volume"]);
        assert!(!is_mounted(&volume.dirs[1]), "{options}");
    }
    volume.mount("subvol=none", 1).fails(&["subvol=none", "not found"]);
    volume.mount("subvolid=4711", 1).fails(&["subvolid=4711"]);
    volume
        .mount("subvol=@home,compress=zstd:3,noatime,nosuid,commit=20", 1)
        .ok();
    unmount(&volume.dirs[0]);
    unmount(&volume.dirs[1]);
    volume.assert_clean();
}

#[test]
fn each_mount_is_read_only_by_itself() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    let (writable, read_only) = (&volume.dirs[0], &volume.dirs[1]);
    volume.mount("subvol=@", 0).ok();
    // Linux does not make a mount of a read-only device writable.
    volume.mount("subvol=@,ro,noloop", 1).ok();
    fs::write(writable.join("f"), b"1").unwrap();
    assert_eq!(fs::read(read_only.join("f")).unwrap(), b"1");
    let refused = |dir: &Path| {
        let kinds = [
            fs::write(dir.join("f"), b"2").unwrap_err(),
            fs::write(dir.join("g"), b"2").unwrap_err(),
            fs::remove_file(dir.join("f")).unwrap_err(),
            fs::create_dir(dir.join("d")).unwrap_err(),
        ];
        assert!(
            kinds.iter().all(|e| e.kind() == ErrorKind::ReadOnlyFilesystem),
            "{kinds:?}"
        );
    };
    refused(read_only);
    // Linux would let it pass then, and ioctls at any time.
    run("subvolume create {}", &[&read_only.join("s")]).fails(&["Read-only"]);
    let remount = ["-i", "-o", "remount,rw"].map(OsStr::new);
    cowshed_harness::run("mount", &[&remount[..], &[read_only.as_os_str()]].concat()).unwrap();
    refused(read_only);
    unmount(writable);
    refused(read_only);
    unmount(read_only);

    volume.mount("subvol=@,ro", 1).ok();
    volume
        .mount("subvol=@home", 0)
        .fails(&["mounted read-only", "mount with ro"]);
    volume.mount("subvol=@home,ro", 0).ok();
    one_process_stays(&volume);
    unmount(read_only);
    unmount(writable);
    wait_until_free(&volume);
    volume.assert_clean();
    assert_eq!(run("cat {} @/f", &[volume.image()]).ok().out, b"1");
}

#[test]
fn mounted_subvolume_cannot_be_deleted() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    let top = &volume.dirs[0];
    volume.mount("subvolid=5", 0).ok();
    volume.mount("subvol=@home", 1).ok();
    run("subvolume delete {}", &[&top.join("@home")]).fails(&["busy"]);
    let busy = fs::remove_dir(top.join("@home")).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::ResourceBusy);
    fs::write(volume.dirs[1].join("f"), b"x").unwrap();
    unmount(&volume.dirs[1]);
    run("subvolume delete {}", &[&top.join("@home")]).ok();
    volume.mount("subvol=@home", 1).fails(&["subvol=@home", "not found"]);
    run("subvolume delete {}", &[&top.join("@")]).ok();
    unmount(top);
    volume.assert_clean();
}

#[test]
fn foreground_mounts_end_with_their_own_mount() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(3);
    let mount = |options: &str, dir: usize| foreground_with(&["-o", options], volume.image(), &volume.dirs[dir]);
    let mut server = mount("subvol=@", 0);
    let mut second = mount("subvol=@home", 1);
    let mut third = mount("subvolid=5", 2);
    fs::write(volume.dirs[2].join("@home/f"), b"x").unwrap();
    assert_eq!(fs::read(volume.dirs[1].join("f")).unwrap(), b"x");
    kill(&second, "-TERM");
    assert!(ended(&mut second).success());
    assert!(!is_mounted(&volume.dirs[1]) && is_mounted(&volume.dirs[0]));
    unmount(&volume.dirs[2]);
    assert!(ended(&mut third).success());
    fs::write(volume.dirs[0].join("f"), b"y").unwrap();
    // The process that has the volume goes on after its own first mount.
    let mut second = mount("subvol=@home", 1);
    unmount(&volume.dirs[0]);
    assert_eq!(fs::read(volume.dirs[1].join("f")).unwrap(), b"x");
    kill(&server, "-TERM");
    assert!(ended(&mut server).success());
    assert!(ended(&mut second).success());
    assert!(!is_mounted(&volume.dirs[1]));
    volume.assert_clean();
}

#[test]
fn sigterm_ends_all_mounts_and_commits() {
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    let mut server = foreground_with(&["-o", "subvol=@"], volume.image(), &volume.dirs[0]);
    volume.mount("subvol=@home", 1).ok();
    for dir in &volume.dirs {
        fs::write(dir.join("f"), b"kept").unwrap();
    }
    kill(&server, "-TERM");
    assert!(ended(&mut server).success());
    assert!(!is_mounted(&volume.dirs[0]) && !is_mounted(&volume.dirs[1]));
    volume.assert_clean();
    for path in ["@/f", "@home/f"] {
        assert_eq!(run(&format!("cat {{}} {path}"), &[volume.image()]).ok().out, b"kept");
    }
}

#[test]
fn mounts_that_begin_at_the_same_time_share_one_process() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    const MOUNTS: usize = 6;
    let volume = Volume::new(MOUNTS);
    for _ in 0..3 {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..MOUNTS)
                .map(|n| {
                    let volume = &volume;
                    let options = ["subvol=@", "subvol=@home", "subvolid=5"][n % 3];
                    scope.spawn(move || volume.mount(options, n))
                })
                .collect();
            threads.into_iter().for_each(|thread| drop(thread.join().unwrap().ok()));
        });
        one_process_stays(&volume);
        std::thread::scope(|scope| {
            for dir in &volume.dirs {
                scope.spawn(|| unmount(dir));
            }
        });
        volume.assert_clean();
    }
}

#[test]
fn block_device_is_mounted_twice() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    let Some(()) = need::loop_devices() else { return };
    let volume = Volume::new(3);
    let device = cowshed_harness::LoopDevice::attach(volume.image()).unwrap();
    run("mount -o subvol=@ {} {}", &[device.path(), &volume.dirs[0]]).ok();
    run("mount -o subvol=@home {} {}", &[device.path(), &volume.dirs[1]]).ok();
    // The same volume, by the name of its image.
    volume.mount("subvolid=5", 2).ok();
    // The command ends after it has reported, and leaves no server of its own.
    wait_until_free(&volume);
    assert!(is_mounted(&volume.dirs[2]));
    fs::write(volume.dirs[2].join("@home/f"), b"x").unwrap();
    assert_eq!(fs::read(volume.dirs[1].join("f")).unwrap(), b"x");
    volume.dirs.iter().for_each(|dir| unmount(dir));
    run("check {}", &[device.path()]).ok();
}

#[test]
fn killed_process_takes_both_mounts_along_and_the_volume_is_right() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    for round in 0..3 {
        let volume = Volume::new(2);
        let mut server: Server = foreground_with(&["-o", "subvolid=5"], volume.image(), &volume.dirs[0]);
        volume.mount("subvol=@", 1).ok();
        let acknowledged = std::thread::scope(|scope| {
            let dirs = [volume.dirs[0].join("@home"), volume.dirs[1].clone()];
            let threads: Vec<_> = dirs
                .into_iter()
                .map(|dir| {
                    scope.spawn(move || {
                        for n in 0.. {
                            let synced = File::create(dir.join(format!("f{n}"))).and_then(|mut file| {
                                file.write_all(&[n as u8; 5000])?;
                                file.sync_all()
                            });
                            if synced.is_err() {
                                return n;
                            }
                        }
                        0
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(400 + 300 * round));
            kill(&server, "-KILL");
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect::<Vec<u32>>()
        });
        ended(&mut server);
        for dir in &volume.dirs {
            // Linux ends the rings of a process after the process itself: a request that comes in
            // between is aborted.
            eventually("the end of the connection", || {
                let error = fs::read_dir(dir).unwrap_err();
                let is_ended = error.raw_os_error() == Some(libc::ENOTCONN);
                assert!(is_ended || error.raw_os_error() == Some(libc::ECONNABORTED), "{error}");
                is_ended
            });
            let _ = cowshed_harness::run("umount", &["-l".as_ref(), dir.as_os_str()]);
        }
        assert!(acknowledged.iter().all(|count| *count > 0), "{acknowledged:?}");
        // The log is replayed; the socket of the dead process stops nothing. Linux lets go of
        // what a mount was made of some time after `umount -l`.
        eventually("the killed process' volume is free", || {
            let mounted = volume.mount("subvolid=5", 0);
            let is_busy = mounted.code != 0 && mounted.err.contains("busy");
            if !is_busy {
                mounted.ok();
            }
            !is_busy
        });
        volume.mount("subvol=@", 1).ok();
        let dirs = [volume.dirs[0].join("@home"), volume.dirs[1].clone()];
        for (dir, count) in dirs.iter().zip(&acknowledged) {
            for n in 0..*count {
                let content = fs::read(dir.join(format!("f{n}"))).unwrap();
                assert_eq!(content, vec![n as u8; 5000], "{n} of {count} in {}", dir.display());
            }
        }
        unmount(&volume.dirs[0]);
        unmount(&volume.dirs[1]);
        volume.assert_clean();
    }
}

#[test]
fn other_users_are_refused_and_an_ordinary_user_mounts_twice() {
    let Some(()) = need::names_that_expire() else { return };
    let Some(()) = can_mount() else { return };
    for program in ["fusermount3", "setpriv", "unshare"] {
        let Some(()) = need::tool(program) else { return };
    }
    let script = r#"
        set -eu
        mount -t tmpfs tmpfs "$1"
        mount -t tmpfs -o mode=755 tmpfs /run
        cp "$2" "$1/cowshed"
        mkdir "$1/dev" "$1/home" "$1/run" "$1/roots"
        mknod -m 666 "$1/dev/fuse" c 10 229
        mount --bind "$1/dev/fuse" /dev/fuse
        chmod 755 "$1" "$1/cowshed"
        chown 65534:65534 "$1/home" "$1/run"
        chmod 700 "$1/run"
        cd "$1/home"
        ../cowshed mkfs -q -b 200m ../roots/image
        chmod 666 ../roots/image
        mkdir ../roots/mnt
        ../cowshed mount ../roots/image ../roots/mnt
        XDG_RUNTIME_DIR=$1/run setpriv --reuid=65534 --regid=65534 --clear-groups sh -euc '
            test "$(id -u)" = 65534
            mkdir one two
            if ../cowshed mount ../roots/image one 2> said; then exit 9; fi
            grep -q busy said
            ../cowshed mkfs -q -b 200m image
            ../cowshed mount image one
            ../cowshed subvolume create one/@
            ../cowshed mount -o subvol=@ image two
            test -S "$XDG_RUNTIME_DIR"/cowshed/*.sock
            echo hello > one/@/f
            cat two/f
            ../cowshed umount one
            echo hello > two/g
            ../cowshed umount two
            test -z "$(ls "$XDG_RUNTIME_DIR"/cowshed)"
            ../cowshed check --check-data-csum image
            ../cowshed cat image @/g
        '
        ../cowshed umount ../roots/mnt
        test -z "$(ls /run/cowshed)"
    "#;
    let dir = tempfile::tempdir().unwrap();
    let mut unshare = in_name_space();
    unshare
        .args(["-m", "sh", "-c", script, "sh"])
        .arg(dir.path())
        .arg(COWSHED);
    let ran = limit::output(&mut unshare).unwrap_or_else(|e| panic!("{e:#}"));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert_eq!(said.matches("hello\n").count(), 2, "{said}");
}

#[test]
fn second_mount_does_not_wait_for_the_lock_of_the_first() {
    let Some(()) = can_mount() else { return };
    let volume = Volume::new(2);
    volume.mount("subvol=@", 0).ok();
    let started = std::time::Instant::now();
    volume.mount("subvol=@home", 1).ok();
    assert!(started.elapsed() < Duration::from_secs(5), "no wait for the lock");
    unmount(&volume.dirs[0]);
    unmount(&volume.dirs[1]);
}
