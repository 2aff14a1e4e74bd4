//! `cowshed export send`.

use std::fs;

use cowshed_harness::tree::{self, Compare};
use cowshed_harness::{KernelMount, LoopDevice, need};

use super::{here, small};
use crate::support::Scratch;

#[test]
fn stream_of_a_read_only_subvolume_is_received_by_the_kernel_and_by_us() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = Scratch::new();
    let source = volume.path("source");
    fs::create_dir(&source).unwrap();
    tree::make(&source, &small(23, 60)).unwrap();
    here(&volume, "subvolume create I:/vol").ok();
    here(&volume, "cp -a source/. I:/vol").ok();
    // One that may change is refused by name, and leaves no file.
    let ran = here(&volume, "export send I:/vol stream").code(1);
    assert!(ran.err.contains("vol") && ran.err.contains("read-only"), "{}", ran.err);
    assert!(!volume.path("stream").exists());
    here(&volume, "export send I:/none stream").code(1);
    here(&volume, "subvolume snapshot -r I:/vol I:/snap").ok();
    here(&volume, "export send I:/snap stream").ok();
    // To a pipe it is the same.
    let piped = here(&volume, "export send I:/snap").ok().out;
    assert!(piped == fs::read(volume.path("stream")).unwrap());
    assert!(here(&volume, "export send I:/snap -").ok().out == piped);
    assert!(piped.starts_with(b"btrfs-stream\0"));
    // By the kernel.
    let target = volume.path("target");
    fs::File::create(&target).unwrap().set_len(256 << 20).unwrap();
    cowshed_harness::shell(volume.dir.path(), "mkfs.btrfs -q target").unwrap();
    let device = LoopDevice::attach(&target).unwrap();
    let at = tempfile::tempdir().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], at.path(), "").unwrap();
    let line = format!("btrfs receive -q {} <stream", at.path().display());
    cowshed_harness::shell(volume.dir.path(), &line).unwrap();
    tree::compare(&source, &at.path().join("snap"), &Compare::copy())
        .unwrap()
        .assert_none();
    mount.unmount().unwrap();
    // By us, into an image.
    let other = Scratch::new();
    fs::write(other.path("stream"), &piped).unwrap();
    here(&other, "receive -f stream I:/").ok();
    here(&other, "cp -a I:/snap out").ok();
    tree::compare(&source, &other.path("out"), &Compare::copy())
        .unwrap()
        .assert_none();
    other.assert_clean();
}
