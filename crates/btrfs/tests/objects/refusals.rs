//! Volumes in a state that we do not go on with: refused by name.

use std::path::Path;
use std::sync::Arc;

use btrfs_format::items::{DEV_REPLACE_STARTED, DEV_REPLACE_SUSPENDED, DevReplace};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use btrfs_store::space::Budget;
use btrfs_store::txn::Batch;
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_device::{BlockDevice, FileDevice, OpenMode};
use cowshed_harness::{KernelVolume, LoopDevice, VolumeOptions, need, run};
use cowshed_runtime::SystemEnv;
use zerocopy::{FromZeros, IntoBytes};

use crate::rig::{Rig, can_run, kernel_can};

fn open(images: &[&Path], read_only: bool) -> Result<Arc<Mount>, String> {
    let device = |image: &&Path| Arc::new(FileDevice::open(image, OpenMode::ReadWrite).expect("opens"));
    let devices = images
        .iter()
        .map(|image| device(image) as Arc<dyn BlockDevice>)
        .collect();
    let options = OpenOptions {
        read_only,
        ..OpenOptions::default()
    };
    let volume = Volume::open(devices, &options).map_err(|e| e.to_string())?;
    Mount::open(volume, Arc::new(SystemEnv), EngineOptions::default()).map_err(|e| e.to_string())
}

#[test]
fn a_device_that_is_being_replaced() {
    if !can_run() {
        return;
    }
    let mut rig = Rig::new();
    for (state, is_refused) in [
        (2, false),
        (3, false),
        (DEV_REPLACE_STARTED, true),
        (DEV_REPLACE_SUSPENDED, true),
    ] {
        let engine = rig.fs.mount().clone();
        let tree = engine.store().forest().require(TreeId::DEV).unwrap();
        let mut item = DevReplace::new_zeroed();
        item.src_devid = 1.into();
        item.replace_state = state.into();
        let mut batch = Batch::new();
        batch.put(&tree, Key::new(ObjectId(0), KeyType::DEV_REPLACE, 0), item.as_bytes());
        let space = engine.reserve(Budget::CREATE).unwrap();
        engine.store().txn().join().apply(batch, space);
        rig.commit();
        drop((engine, tree));
        let volume = rig.unmount();
        let opened = open(&[volume.image()], false).map(|engine| engine.close().expect("closes"));
        if is_refused {
            let error = opened.unwrap_err();
            assert!(error.contains("is being replaced"), "{state}: {error}");
            assert!(open(&[volume.image()], true).is_ok(), "{state}: reading works");
            rig = Rig::new();
        } else {
            opened.unwrap();
            rig = Rig::on(volume);
        }
    }
}

#[test]
fn a_seed_and_what_grew_on_it() {
    if !kernel_can() || need::tool("btrfstune").is_none() {
        return;
    }
    let volume = KernelVolume::make(&VolumeOptions::default()).expect("mkfs.btrfs");
    run("btrfstune", &["-S", "1", &volume.image().display().to_string()]).unwrap();
    let error = open(&[volume.image()], false).unwrap_err();
    assert!(error.contains("SEEDING"), "{error}");
    assert!(open(&[volume.image()], true).is_ok(), "a seed can be read");
    let sprout = volume.dir().join("sprout");
    let file = std::fs::File::create(&sprout).unwrap();
    file.set_len(512 << 20).unwrap();
    let device = LoopDevice::attach(&sprout).unwrap();
    let mounted = volume.mount_with("ro").unwrap();
    let at = mounted.dir().display().to_string();
    run(
        "btrfs",
        &["device", "add", "-f", &device.path().display().to_string(), &at],
    )
    .unwrap();
    mounted.unmount_quietly().unwrap();
    drop(device);
    for read_only in [false, true] {
        let error = open(&[&sprout, volume.image()], read_only).unwrap_err();
        assert!(error.contains("seed devices") && error.contains("image0"), "{error}");
        let error = open(&[&sprout], read_only).unwrap_err();
        assert!(error.contains("seed devices"), "{error}");
    }
}
