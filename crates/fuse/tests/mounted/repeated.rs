//! Mounts and unmounts, again and again in one process: nothing is left of them.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use btrfs_image::{MkfsOptions, mkfs};
use btrfs_store::volume::{self, Volume};
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_btrfs::{EngineOptions, Mount as Engine};
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_fuse::{Session, SessionOptions};
use cowshed_runtime::SystemEnv;
use cowshed_vfs_ioctl::Front;

use crate::support::*;

/// What a process has.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    threads: usize,
    resident_kib: u64,
}

impl Held {
    fn now() -> Held {
        let count = |path: &str| fs::read_dir(path).unwrap().count();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Held {
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            resident_kib: resident.trim().trim_end_matches(" kB").parse().unwrap(),
        }
    }

    /// Once threads that end a moment after their session are gone.
    fn settled(most: Held) -> Held {
        let started = Instant::now();
        loop {
            let now = Held::now();
            let is_down = now.descriptors <= most.descriptors && now.threads <= most.threads;
            if is_down || started.elapsed() > Duration::from_secs(2) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A mount of a volume by the engine, used and ended.
fn once(disk: &Arc<dyn BlockDevice>, dir: &std::path::Path, round: u64) {
    let volume = Volume::open(vec![disk.clone()], &volume::OpenOptions::default()).unwrap();
    let engine = Engine::open(volume, Arc::new(SystemEnv), EngineOptions::default()).unwrap();
    let fs = Fs::new(engine, MountOptions::default()).unwrap();
    let fs = Arc::new(Front::new(Arc::new(fs), Arc::new(SystemEnv)));
    let options = SessionOptions {
        transport: transport(),
        ..SessionOptions::default()
    };
    let session = Session::mount(fs.clone(), dir, options).unwrap();
    fs.set_caches(session.caches());
    let unmounter = session.unmounter();
    let serving = session.spawn();
    let path = dir.join("f");
    if round > 0 {
        assert_eq!(fs::read(&path).unwrap(), (round - 1).to_le_bytes());
    }
    fs::write(&path, round.to_le_bytes()).unwrap();
    unmounter.unmount(false).unwrap();
    serving.join().unwrap().unwrap();
}

/// `rounds` mounts leave at most so much memory behind.
fn leaves_nothing(rounds: u64, growth_kib_max: u64) {
    const FIRST: u64 = 30;
    // Not in the memory of this process.
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(256 << 20).unwrap();
    let disk = FileDevice::open(image.path(), OpenMode::ReadWrite).unwrap();
    let disk: Arc<dyn BlockDevice> = Arc::new(disk);
    mkfs(std::slice::from_ref(&disk), &MkfsOptions::new([5; 16])).unwrap();
    let dir = tempfile::tempdir().unwrap();
    (0..FIRST).for_each(|round| once(&disk, dir.path(), round));
    let before = Held::settled(Held::now());
    let started = Instant::now();
    for round in FIRST..FIRST + rounds {
        once(&disk, dir.path(), round);
        if (round - FIRST + 1).is_multiple_of(1000) {
            println!(
                "{} mounts, {:.0} s: {:?}",
                round - FIRST + 1,
                started.elapsed().as_secs_f64(),
                Held::now()
            );
        }
    }
    let after = Held::settled(before);
    println!(
        "{rounds} mounts in {:.1} s: {before:?} before, {after:?} after",
        started.elapsed().as_secs_f64()
    );
    assert!(
        after.descriptors <= before.descriptors,
        "{before:?} before, {after:?} after"
    );
    assert!(after.threads <= before.threads, "{before:?} before, {after:?} after");
    assert!(
        after.resident_kib <= before.resident_kib + growth_kib_max,
        "{before:?} before, {after:?} after"
    );
}

#[test]
fn mounts_leave_no_memory_no_descriptors_and_no_threads() {
    let Some(_turn) = turn("mounts_leave_no_memory_no_descriptors_and_no_threads") else {
        return;
    };
    leaves_nothing(150, 8 << 10);
}

#[test]
#[ignore = "10,000 mounts take minutes"]
fn ten_thousand_mounts_leave_no_memory_no_descriptors_and_no_threads() {
    let Some(_turn) = turn("ten_thousand_mounts_leave_no_memory_no_descriptors_and_no_threads") else {
        return;
    };
    leaves_nothing(10_000, 16 << 10);
}
