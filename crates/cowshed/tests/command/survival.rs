//! What a mount's clients see when its process dies, over each transport; and many mounts of one
//! process.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use cowshed_harness::{UringOn, need};

use crate::mount::{Guard, can_mount, ended, foreground_with, kill, unmount};
use crate::support::{SOON, Scratch, eventually, run};

/// Writes, syncs and lists until a call fails.
fn work(dir: &Path, name: usize, done: &AtomicU64) -> std::io::Error {
    let go = |round: u64| {
        let path = dir.join(format!("{name}-{}", round % 8));
        let mut file = File::create(&path)?;
        file.write_all(&[name as u8; 70_000])?;
        if round.is_multiple_of(3) {
            file.sync_all()?;
        }
        assert_eq!(fs::read(&path)?.len(), 70_000);
        fs::rename(&path, dir.join(format!("{name}-last")))?;
        fs::read_dir(dir)?.count();
        Ok(())
    };
    let mut round = 0;
    loop {
        if let Err(error) = go(round) {
            return error;
        }
        round += 1;
        done.fetch_add(1, SeqCst);
    }
}

fn clients_see_the_end(transport: &str) {
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    let option = format!("transport={transport}");
    for round in 0..4 {
        let mut server = foreground_with(&["-o", &option], &volume.image, &dir);
        let done = AtomicU64::new(0);
        let ended_after = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..4)
                .map(|n| {
                    scope.spawn({
                        let (dir, done) = (&dir, &done);
                        move || work(dir, n, done)
                    })
                })
                .collect();
            eventually("work is done", || done.load(SeqCst) > 20);
            std::thread::sleep(Duration::from_millis(7 * round));
            let killed = Instant::now();
            kill(&server, "-KILL");
            for client in clients {
                let error = client.join().unwrap();
                let errno = error.raw_os_error().unwrap_or(0);
                // ENOTCONN, ECONNABORTED, ECANCELED (requests in the hands of a ring that goes
                // away); EIO for pages on their way.
                assert!([107, 103, 125, 5].contains(&errno), "{transport}: {error}");
            }
            killed.elapsed()
        });
        assert!(ended_after < SOON, "{transport}: clients waited {ended_after:?}");
        assert!(!ended(&mut server).success());
        cowshed_harness::run("umount", &["-l".as_ref(), dir.as_os_str()]).unwrap();
        eventually("the volume is free", || run("check {}", &[&volume.image]).code == 0);
    }
    volume.assert_clean();
}

#[test]
fn clients_of_a_killed_process_get_errors_over_dev_fuse() {
    let Some(()) = can_mount() else { return };
    clients_see_the_end("dev");
}

#[test]
fn clients_of_a_killed_process_get_errors_over_io_uring() {
    let Some(()) = can_mount() else { return };
    let Some(_on) = UringOn::new().unwrap() else { return };
    clients_see_the_end("uring");
}

/// Descriptors, threads and resident KiB of a process.
fn held(process: u32) -> [u64; 3] {
    let count = |what: &str| fs::read_dir(format!("/proc/{process}/{what}")).unwrap().count() as u64;
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    [
        count("fd"),
        count("task"),
        resident.trim().trim_end_matches(" kB").parse().unwrap(),
    ]
}

/// A process that serves one mount all the time, and more of the same volume beside it. Each of
/// them causes a commit, so that memory grows until caches and the allocator's arenas are full: by
/// some 75 MiB in 600 mounts. After the `first` ones, `rounds` mounts leave no descriptors, no
/// threads and at most so much memory behind.
fn second_mounts_leave_nothing(first: u64, rounds: u64, growth_kib_max: Option<u64>) {
    let Some(()) = cowshed_harness::need::names_that_expire() else {
        return;
    };
    let volume = Scratch::new();
    let [dir, beside] = [volume.mountpoint(), volume.path("beside")];
    fs::create_dir(&beside).unwrap();
    let _guards = (Guard(&dir), Guard(&beside));
    let mut server = foreground_with(&[], &volume.image, &dir);
    let once = |round: u64| {
        run("mount {} {}", &[&volume.image, &beside]).ok();
        fs::write(beside.join("f"), round.to_le_bytes()).unwrap();
        unmount(&beside);
        assert_eq!(fs::read(dir.join("f")).unwrap(), round.to_le_bytes());
    };
    (0..first).for_each(once);
    let id = server.id();
    let settled = |most: Option<[u64; 3]>| {
        let started = Instant::now();
        loop {
            let now = held(id);
            let is_down = most.is_none_or(|most| now[0] <= most[0] && now[1] <= most[1]);
            if is_down && most.is_some() || started.elapsed() > Duration::from_secs(2) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let before = settled(None);
    for round in 0..rounds {
        once(round);
        if (round + 1).is_multiple_of(100) {
            println!("{} mounts: {:?}", round + 1, held(id));
        }
    }
    let after = settled(Some(before));
    println!("{rounds} mounts: descriptors, threads, KiB {before:?} before, {after:?} after");
    assert!(
        after[0] <= before[0] && after[1] <= before[1],
        "{before:?} before, {after:?} after"
    );
    assert!(
        growth_kib_max.is_none_or(|most| after[2] <= before[2] + most),
        "{before:?} before, {after:?} after"
    );
    unmount(&dir);
    assert!(ended(&mut server).success());
    volume.assert_clean();
}

#[test]
fn mounts_beside_a_mount_leave_nothing_in_its_process() {
    let (Some(()), Some(())) = (can_mount(), need::loop_devices()) else {
        return;
    };
    // Too few for a word on memory.
    second_mounts_leave_nothing(10, 30, None);
}

#[test]
#[ignore = "thousands of mounts take many minutes"]
fn thousands_of_mounts_beside_a_mount_leave_nothing_in_its_process() {
    let (Some(()), Some(())) = (can_mount(), need::loop_devices()) else {
        return;
    };
    second_mounts_leave_nothing(700, 2300, Some(8 << 10));
}
