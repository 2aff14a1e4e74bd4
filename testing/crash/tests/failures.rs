//! Single failures whose consequences were once wrong.

use std::sync::Arc;

use cowshed_crash::rig::Player;
use cowshed_crash::rig::{self, Devices, Fs, Layout, ROOT};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_device_sim::{Fault, FaultKind, FaultPlan, FaultyDevice, Log, On};
use cowshed_model::script::{Op, Staged};
use cowshed_model::tree;
use cowshed_vfs::{Error, FileSystem as _, NodeId, SetAttr};

fn mounted() -> (Devices, FaultPlan, Fs) {
    mounted_with(false)
}

fn mounted_with(tree_log: bool) -> (Devices, FaultPlan, Fs) {
    let devices = rig::make(Layout::Dup, 4096, 0x11).unwrap();
    let plan = FaultPlan::new();
    let device: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(devices[0].clone(), plan.clone()));
    let fs = rig::mount_with(vec![device], tree_log).unwrap();
    (devices, plan, fs)
}

fn write(path: &str, len: usize) -> Op {
    Op::write(path, 0, len, 1)
}

/// The next write fails, and its repetition, too.
fn fail_next_write(plan: &FaultPlan) {
    plan.clear();
    plan.add(Fault::error(On::Write, 0));
    plan.add(Fault::error(On::Write, 1));
}

fn names_on(devices: &Devices) -> Vec<String> {
    let fs = rig::mount(rig::shared(&rig::snapshots(devices))).unwrap();
    let names = tree::take(&fs).unwrap().into_keys().collect();
    rig::abandon(fs);
    names
}

#[test]
fn a_file_that_cannot_be_written_does_not_keep_others_from_the_disk() {
    for by_unmount in [false, true] {
        let (devices, plan, fs) = mounted();
        let player = Player::new(&fs);
        player.apply(&Op::mkdir("d")).unwrap();
        player.apply(&write("d/lost", 8192)).unwrap();
        fail_next_write(&plan);
        if by_unmount {
            fs.destroy();
        } else {
            assert_eq!(player.apply(&Op::Sync), Err(Error::Io));
            rig::abandon(fs);
        }
        assert!(plan.counts().faults > 0);
        assert_eq!(names_on(&devices), ["", "d", "d/lost"]);
        rig::check_clean(&rig::shared(&devices)).unwrap();
    }
}

#[test]
fn lost_data_leaves_the_size_that_the_mount_shows() {
    let (devices, plan, fs) = mounted();
    let player = Player::new(&fs);
    player.apply(&write("f", 20000)).unwrap();
    fail_next_write(&plan);
    let fsync = Op::fsync("f");
    assert_eq!(player.apply(&fsync), Err(Error::Io));
    assert_eq!(player.apply(&fsync), Ok(()));
    let live = tree::take(&fs).unwrap();
    rig::abandon(fs);
    let cold = rig::mount(rig::shared(&devices)).unwrap();
    assert_eq!(tree::differences(&live, &tree::take(&cold).unwrap()), "");
}

#[test]
fn after_the_end_of_a_mount_nothing_is_accepted() {
    let (devices, _plan, fs) = mounted();
    let player = Player::new(&fs);
    player.apply(&write("f", 10)).unwrap();
    fs.destroy();
    let before = names_on(&devices);
    assert_eq!(player.apply(&Op::mkdir("late")), Err(Error::ReadOnly));
    let chmod = SetAttr {
        perm: Some(0o700),
        ..SetAttr::default()
    };
    assert_eq!(
        fs.setattr(&ROOT, NodeId::ROOT, None, &chmod).map(drop),
        Err(Error::ReadOnly)
    );
    assert_eq!(names_on(&devices), before);
}

/// A synced file, and one change since: the next fsync writes a log.
fn about_to_log() -> (Devices, FaultPlan, Fs) {
    let (devices, plan, fs) = mounted_with(true);
    let player = Player::new(&fs);
    player.apply(&write("f", 5000)).unwrap();
    player.apply(&Op::Sync).unwrap();
    let chmod = Op::chmod("f", 0o751);
    player.apply(&chmod).unwrap();
    plan.clear();
    (devices, plan, fs)
}

/// What the log would have said, the commit says, too.
#[test]
fn a_log_that_cannot_be_written_becomes_a_commit() {
    let (devices, plan, fs) = about_to_log();
    let player = Player::new(&fs);
    let before = (fs.mount().store().txn().committed(), fs.mount().log_stats());
    // Its blocks are the first that is written: both copies, and their repetitions.
    (0..4).for_each(|nth| plan.add(Fault::error(On::Write, nth)));
    assert_eq!(player.apply(&Op::fsync("f")), Ok(()));
    assert_eq!(plan.counts().faults, 4);
    let after = (fs.mount().store().txn().committed(), fs.mount().log_stats());
    assert_eq!(after.1.failed, before.1.failed + 1, "it was to be a log");
    assert_eq!(after.0.get(), before.0.get() + 1, "it became a commit");
    assert!(!fs.mount().store().txn().is_aborted());
    player.apply(&write("more", 10)).unwrap();
    player.apply(&Op::fsync("more")).unwrap();
    let live = tree::take(&fs).unwrap();
    rig::abandon(fs);
    let cold = tree::take(&rig::mount(rig::shared(&devices)).unwrap()).unwrap();
    for synced in ["f", "more"] {
        assert_eq!(live.get(synced), cold.get(synced));
    }
}

/// What such a device has lost of earlier writes is unknown, so that a commit would not mend it.
#[test]
fn a_barrier_of_a_log_that_fails_makes_the_mount_read_only() {
    let (devices, plan, fs) = about_to_log();
    let player = Player::new(&fs);
    let committed = fs.mount().store().txn().committed();
    plan.add(Fault::error(On::Flush, 0));
    assert_eq!(player.apply(&Op::fsync("f")), Err(Error::Io));
    assert_eq!(plan.counts().faults, 1);
    assert!(fs.mount().store().txn().is_aborted());
    assert!(player.apply(&Op::fsync("f")).is_err());
    assert_eq!(player.apply(&Op::mkdir("d")), Err(Error::ReadOnly));
    assert_eq!(fs.mount().store().txn().committed(), committed);
    rig::abandon(fs);
    let (generation, has_log) = rig::state(rig::shared(&devices)).unwrap();
    assert_eq!((generation, has_log), (committed.get(), false));
    let cold = tree::take(&rig::mount(rig::shared(&devices)).unwrap()).unwrap();
    assert_ne!(cold["f"].perm, 0o751);
}

/// The commit that is tried instead of the log meets the barrier that failed: an I/O error, to all
/// callers.
#[test]
fn a_group_whose_barrier_fails_is_an_io_error() {
    let (_devices, plan, fs) = about_to_log();
    let player = Player::new(&fs);
    plan.add(Fault::error(On::Flush, 0));
    let group = Op::Group {
        commit: true,
        writes: vec![Staged {
            path: "f".into(),
            offset: 0,
            len: 4096,
            fill: 7,
        }],
    };
    assert_eq!(player.apply(&group), Err(Error::Io));
    assert_eq!(plan.counts().faults, 1);
    assert!(fs.mount().store().txn().is_aborted());
    rig::abandon(fs);
}

/// Nor do crashes afterwards take what was synced before it: the superblock that led to it is there
/// again.
#[test]
fn a_superblock_of_a_commit_that_is_torn_takes_no_log_with_it() {
    const FIRST: u64 = 64 << 10;
    let devices = rig::make(Layout::Dup, 4096, 0x11).unwrap();
    let (plan, log) = (FaultPlan::new(), Log::new());
    let recorded = log.record(devices[0].clone());
    let device: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(Arc::new(recorded), plan.clone()));
    let fs = rig::mount_with(vec![device], true).unwrap();
    let player = Player::new(&fs);
    for path in ["f", "g"] {
        player.apply(&write(path, 5000)).unwrap();
    }
    player.apply(&Op::Sync).unwrap();
    player.apply(&write("f", 9000)).unwrap();
    player.apply(&Op::fsync("f")).unwrap();
    let synced = tree::take(&fs).unwrap()["f"].clone();
    let base: MemDevice = devices[0].snapshot();
    log.take();
    player.apply(&write("g", 9000)).unwrap();
    let torn = FaultKind::Torn {
        keep_bytes: 512,
        reported: true,
    };
    plan.add(Fault::error(On::Write, 0).with_kind(torn).within(FIRST..FIRST + 4096));
    let committed = fs.mount().store().txn().committed();
    assert_eq!(player.apply(&Op::Sync), Err(Error::Io));
    assert_eq!(plan.counts().faults, 1);
    assert!(fs.mount().store().txn().is_aborted());
    assert_eq!(fs.mount().store().txn().committed(), committed);
    log.mark(1);
    rig::abandon(fs);
    let events = log.take();
    let bases = [base];
    let options = Options {
        tear_bytes: 4096,
        ..Options::default()
    };
    let mut heard = 0;
    for image in CrashImages::new(&bases, &events, options) {
        let name = image.to_string();
        let has_heard = image.last_mark() == Some(1);
        let devices: Devices = image.devices.into_iter().map(Arc::new).collect();
        let (generation, has_log) = rig::state(rig::shared(&devices)).unwrap();
        let cold = tree::take(&rig::mount(rig::shared(&devices)).unwrap()).unwrap();
        if has_heard {
            heard += 1;
            assert_eq!((generation, has_log), (committed.get(), true), "{name}");
            assert_eq!(cold["f"], synced, "{name}");
        }
        rig::check_clean(&rig::shared(&devices)).unwrap();
    }
    assert!(heard > 0);
}
