//! Data that the device would not take: what the kernel remembers of it must go, so that a mount
//! shows what is on disk.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use btrfs_image::{MkfsOptions, mkfs};
use btrfs_store::volume::{self, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, On};
use cowshed_fuse::{Session, SessionError, SessionOptions, Unmounter};
use cowshed_runtime::SystemEnv;
use cowshed_vfs_ioctl::{Front, wire};

use crate::support::*;

const BLOCK: usize = 4096;

/// A volume on a device that fails when it is told to.
struct Failing {
    disk: Arc<dyn BlockDevice>,
    plan: FaultPlan,
    dir: tempfile::TempDir,
    engine: Arc<Mount>,
    unmounter: Unmounter,
    serving: Option<JoinHandle<Result<(), SessionError>>>,
}

impl Failing {
    fn new() -> Failing {
        let disk: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", 256 << 20));
        mkfs(std::slice::from_ref(&disk), &MkfsOptions::new([5; 16])).unwrap();
        Failing::mount(disk)
    }

    fn mount(disk: Arc<dyn BlockDevice>) -> Failing {
        let plan = FaultPlan::new();
        let device: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(disk.clone(), plan.clone()));
        let volume = Volume::open(vec![device], &volume::OpenOptions::default()).unwrap();
        let options = EngineOptions {
            commit_interval_s: 0,
            tree_log: true,
            ..EngineOptions::default()
        };
        let engine = Mount::open(volume, Arc::new(SystemEnv), options).unwrap();
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let fs = Arc::new(Front::new(Arc::new(fs), Arc::new(SystemEnv)));
        let dir = tempfile::tempdir().unwrap();
        let session = Session::mount(fs.clone(), dir.path(), SessionOptions::default()).unwrap();
        fs.set_caches(session.caches());
        Failing {
            disk,
            plan,
            dir,
            engine,
            unmounter: session.unmounter(),
            serving: Some(session.spawn()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file that is on disk and that the kernel remembers.
    fn file(&self, name: &str, content: &[u8]) -> File {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        assert!(fs::read(&path).unwrap() == content);
        file
    }

    fn no_writes(&self) {
        self.plan.add(Fault::error(On::Write, 0).forever());
    }

    /// The device takes writes again. No data is left to write, and no descriptor gets the error
    /// twice.
    fn heal(&self, file: File) {
        assert!(self.plan.counts().faults > 0);
        self.plan.clear();
        file.sync_all().unwrap();
        assert!(!self.engine.store().txn().is_aborted());
    }

    /// A fresh mount, without the kernel's memory of this one, shows the same.
    fn remount(mut self, name: &str, content: &[u8]) {
        assert_shows(&self, name, content);
        self.end();
        let again = Failing::mount(self.disk.clone());
        assert_shows(&again, name, content);
    }

    fn end(&mut self) {
        // Where it is busy, the mount goes with this value.
        self.unmounter.unmount(false).unwrap();
        let serving = self.serving.take().expect("it ends once");
        serving.join().unwrap().unwrap();
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        if self.serving.is_some() {
            let _ = self.unmounter.unmount(true);
        }
    }
}

#[track_caller]
fn assert_shows(mount: &Failing, name: &str, content: &[u8]) {
    let got = fs::read(mount.path(name)).unwrap();
    let differs = got.iter().zip(content).position(|(a, b)| a != b);
    assert_eq!((got.len(), differs), (content.len(), None), "{name}");
}

#[test]
fn data_that_was_lost_is_not_shown() {
    let Some(_turn) = turn("data_that_was_lost_is_not_shown") else {
        return;
    };
    let mount = Failing::new();
    let old = vec![b'a'; 16 * BLOCK];
    let file = mount.file("f", &old);
    file.write_all_at(&[b'b'; 2 * BLOCK], 2 * BLOCK as u64).unwrap();
    file.write_all_at(&[b'b'; 100], 30_000).unwrap();
    mount.no_writes();
    assert_eq!(errno(file.sync_all()), libc::EIO);
    assert_shows(&mount, "f", &old);
    mount.heal(file);
    mount.remount("f", &old);
}

/// fsync(2): each descriptor that was open when data of the file was lost gets the error once,
/// whichever descriptors got it before.
#[test]
fn each_open_descriptor_gets_the_error_of_lost_data_once() {
    let Some(_turn) = turn("each_open_descriptor_gets_the_error_of_lost_data_once") else {
        return;
    };
    let mount = Failing::new();
    let old = vec![b'a'; 16 * BLOCK];
    let file = mount.file("f", &old);
    let [other, reader] = [true, false].map(|writes| {
        let path = mount.path("f");
        OpenOptions::new().read(true).write(writes).open(path).unwrap()
    });
    file.write_all_at(&[b'b'; BLOCK], 0).unwrap();
    other.write_all_at(&[b'c'; BLOCK], BLOCK as u64).unwrap();
    mount.no_writes();
    assert_eq!(errno(file.sync_all()), libc::EIO);
    mount.plan.clear();
    let later = File::open(mount.path("f")).unwrap();
    assert_eq!(errno(other.sync_data()), libc::EIO);
    assert_eq!(errno(reader.sync_all()), libc::EIO);
    for file in [&file, &other, &reader, &later] {
        file.sync_all().unwrap();
    }
    // A write that is durable when it returns tells, too, and the other is told of that.
    mount.no_writes();
    let durable = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_DSYNC)
        .open(mount.path("f"))
        .unwrap();
    assert_eq!(errno(durable.write_all_at(b"never", 0)), libc::EIO);
    mount.plan.clear();
    assert_eq!(errno(other.sync_all()), libc::EIO);
    durable.write_all_at(b"b", 0).unwrap();
    assert_eq!(errno(file.sync_all()), libc::EIO);
    file.sync_all().unwrap();
}

#[test]
fn what_was_lost_of_a_file_that_grew_is_zeros() {
    let Some(_turn) = turn("what_was_lost_of_a_file_that_grew_is_zeros") else {
        return;
    };
    let mount = Failing::new();
    let mut content = vec![b'a'; 10_000];
    let file = mount.file("f", &content);
    file.write_all_at(&[b'b'; 20_000], 10_000).unwrap();
    content.resize(30_000, 0);
    mount.no_writes();
    assert_eq!(errno(file.sync_data()), libc::EIO);
    assert_shows(&mount, "f", &content);
    mount.heal(file);
    mount.remount("f", &content);
}

#[test]
fn a_mapping_does_not_show_what_was_lost() {
    let Some(_turn) = turn("a_mapping_does_not_show_what_was_lost") else {
        return;
    };
    let mount = Failing::new();
    let old = vec![b'a'; 4 * BLOCK];
    let file = mount.file("f", &old);
    mount.no_writes();
    in_child(|| {
        let mut map = Map::shared(&file, old.len())?;
        map.bytes()[BLOCK + 10..BLOCK + 20].fill(b'b');
        assert_eq!(errno(map.sync()), libc::EIO);
        assert!(map.bytes() == old);
        Ok(())
    })
    .unwrap();
    mount.heal(file);
    mount.remount("f", &old);
}

#[test]
fn lost_direct_writes_are_not_shown_to_cached_reads() {
    let Some(_turn) = turn("lost_direct_writes_are_not_shown_to_cached_reads") else {
        return;
    };
    let mount = Failing::new();
    let old = vec![b'a'; 4 * BLOCK];
    let file = mount.file("f", &old);
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(mount.path("f"))
        .unwrap();
    direct.write_all_at(&[b'b'; BLOCK], BLOCK as u64).unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap()[BLOCK], b'b', "it is remembered now");
    mount.no_writes();
    assert_eq!(errno(direct.sync_all()), libc::EIO);
    let mut got = vec![0; old.len()];
    direct.read_exact_at(&mut got, 0).unwrap();
    assert!(got == old);
    drop(direct);
    assert_shows(&mount, "f", &old);
    assert_eq!(errno(file.sync_all()), libc::EIO, "it was open, too");
    mount.heal(file);
    mount.remount("f", &old);
}

/// `cowshed sync`: no caller asks for this file in particular.
#[test]
fn a_sync_of_all_that_fails_leaves_nothing_remembered() {
    let Some(_turn) = turn("a_sync_of_all_that_fails_leaves_nothing_remembered") else {
        return;
    };
    let mount = Failing::new();
    let old = vec![b'a'; 4 * BLOCK];
    let file = mount.file("f", &old);
    file.write_all_at(&[b'b'; BLOCK], 0).unwrap();
    // Data is written before metadata: the commit finds a healthy device.
    for first_and_repeated in 0..2 {
        mount.plan.add(Fault::error(On::Write, first_and_repeated));
    }
    let synced = File::open(mount.dir.path()).and_then(|root| ioctl(&root, wire::SYNC));
    assert_eq!(errno(synced), libc::EIO);
    assert_shows(&mount, "f", &old);
    assert_eq!(errno(file.sync_all()), libc::EIO, "who syncs the file hears of it, too");
    mount.heal(file);
    mount.remount("f", &old);
}

/// The kernel sends a page once: refused, it is lost, and the kernel takes it for clean.
#[test]
fn a_mapping_does_not_show_what_found_no_space() {
    let Some(_turn) = turn("a_mapping_does_not_show_what_found_no_space") else {
        return;
    };
    let mount = Failing::new();
    let file = mount.file("f", b"");
    file.set_len(16 * BLOCK as u64).unwrap();
    file.sync_all().unwrap();
    let filler = File::create(mount.path("filler")).unwrap();
    let mut size = 0;
    for step in [16 << 20, 1 << 20, BLOCK as i64] {
        while fallocate(&filler, 0, size, step).is_ok() {
            size += step;
        }
    }
    in_child(|| {
        let mut map = Map::shared(&file, 16 * BLOCK)?;
        assert!(map.bytes().iter().all(|b| *b == 0));
        map.bytes()[3 * BLOCK..5 * BLOCK].fill(b'b');
        assert_eq!(errno(map.sync()), libc::ENOSPC);
        let start = Instant::now();
        while map.bytes().iter().any(|b| *b != 0) {
            assert!(start.elapsed() < Duration::from_secs(10), "it is remembered for good");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    })
    .unwrap();
    drop((file, filler));
    mount.remount("f", &[0; 16 * BLOCK]);
}

/// With much dirty data the writer writes back, and no caller waits for the result.
#[test]
fn what_is_lost_in_the_background_is_soon_forgotten() {
    let Some(_turn) = turn("what_is_lost_in_the_background_is_soon_forgotten") else {
        return;
    };
    let mount = Failing::new();
    let old = vec![b'a'; 64 * BLOCK];
    let file = mount.file("f", &old);
    // Nothing may stay dirty, in however many requests the kernel sends it.
    mount.engine.data().set_dirty_bytes_max(0);
    mount.no_writes();
    file.write_all_at(&[b'b'; 32 * BLOCK], 0).unwrap();
    let start = Instant::now();
    while fs::read(mount.path("f")).unwrap() != old {
        let dirty = mount.engine.data().dirty_bytes();
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "it is remembered for good ({dirty} bytes are dirty)"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(errno(file.sync_all()), libc::EIO);
    mount.heal(file);
    mount.remount("f", &old);
}

/// The file system tells the kernel, by way of the session, which serves the file system: no circle
/// that keeps all of it.
#[test]
fn nothing_is_left_of_an_engine_when_its_session_has_ended() {
    let Some(_turn) = turn("nothing_is_left_of_an_engine_when_its_session_has_ended") else {
        return;
    };
    let mut mount = Failing::new();
    let file = mount.file("f", &[b'a'; BLOCK]);
    // The way is used in both directions.
    file.write_all_at(&[b'b'; BLOCK], 0).unwrap();
    mount.plan.add(Fault::error(On::Write, 0).forever());
    assert_eq!(errno(file.sync_all()), libc::EIO);
    mount.plan.clear();
    drop(file);
    mount.end();
    let (engine, disk) = (Arc::downgrade(&mount.engine), Arc::downgrade(&mount.disk));
    drop(mount);
    // The thread that tells the kernel ends by itself.
    let start = Instant::now();
    while engine.strong_count() + disk.strong_count() > 0 {
        let left = (engine.strong_count(), disk.strong_count());
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "engine and disk are held: {left:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}
