//! Single failures whose consequences were once wrong.

use std::sync::Arc;

use cowshed_btrfs::fs::Fs;
use cowshed_crash::rig::{self, Devices, Layout, ROOT};
use cowshed_crash::tree;
use cowshed_crash::workload::{Op, Player};
use cowshed_device::BlockDevice;
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, On};
use cowshed_vfs::{Error, FileSystem as _, NodeId, SetAttr};

fn mounted() -> (Devices, FaultPlan, Fs) {
    let devices = rig::make(Layout::Dup, 4096, 0x11).unwrap();
    let plan = FaultPlan::new();
    let device: Arc<dyn BlockDevice> = Arc::new(FaultyDevice::new(devices[0].clone(), plan.clone()));
    let fs = rig::mount(vec![device]).unwrap();
    (devices, plan, fs)
}

fn write(path: &str, len: usize) -> Op {
    Op::Write {
        path: path.into(),
        offset: 0,
        len,
        fill: 1,
    }
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
        player.apply(&Op::Mkdir { path: "d".into() }).unwrap();
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
    let fsync = Op::Fsync { path: "f".into() };
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
    assert_eq!(player.apply(&Op::Mkdir { path: "late".into() }), Err(Error::ReadOnly));
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
