//! Logs of which most leaves are written while the rest is being made, and not kept: they are
//! right, and what is added to them later finds them on the device.

use std::collections::BTreeSet;
use std::sync::Arc;

use cowshed_device::{BlockDevice, FileDevice, OpenMode};

use cowshed_harness::KernelVolume;

use crate::choice::syncs;
use crate::rig::{Rig, kernel_can};

/// Entry, inode and reference of each take 475 bytes in the log: together more than the 4 MiB of
/// leaves that are gathered before they are written. What the kernel's replay and its checker take
/// grows with them.
const FILES: u64 = 9_600;
const GATHERED_BYTES: u64 = 4 << 20;

fn name(i: u64) -> String {
    format!("{i:0100}")
}

fn judge(rig: &Rig, expected: &BTreeSet<String>, when: &str) {
    // The kernel does not look whether a block of a log begins with the key that its parent says.
    let cut = KernelVolume::copy_of(&[rig.image()]).unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(cut.image(), OpenMode::ReadOnly).unwrap());
    let report = btrfs_check::check(&[device], &btrfs_check::CheckOptions::default());
    assert!(report.is_clean(), "{when}: {report}");
    let found: BTreeSet<String> = cut
        .with_mount(|root| {
            let names = std::fs::read_dir(root.join("d"))?;
            Ok(names
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect())
        })
        .expect("the kernel replays the log");
    assert!(found == *expected, "names after the crash, {when}");
    cut.assert_clean();
}

#[test]
fn a_directory_whose_log_is_written_in_parts() {
    if !kernel_can() {
        return;
    }
    for nodesize_bytes in [16384, 65536] {
        let rig = Rig::with_nodesize(nodesize_bytes);
        let dir = rig.mkdir("d").unwrap().node;
        rig.commit();
        let mut names = BTreeSet::new();
        for i in 0..FILES {
            rig.create_in(dir, &name(i));
            names.insert(name(i));
        }
        rig.fsync("d");
        assert_eq!(syncs(&rig), (1, 0), "{nodesize_bytes}");
        let log_bytes = rig.fs.mount().log_stats().blocks_written * u64::from(nodesize_bytes);
        assert!(log_bytes > GATHERED_BYTES, "{log_bytes} bytes are not written in parts");
        judge(&rig, &names, "made");
        // Leaves everywhere in the log change, and new names come at the end.
        for i in (0..FILES).step_by(500) {
            rig.unlink(&format!("d/{}", name(i))).unwrap();
            names.remove(&name(i));
        }
        for i in FILES..FILES + 100 {
            rig.create_in(dir, &name(i));
            names.insert(name(i));
        }
        rig.fsync("d");
        assert_eq!(
            syncs(&rig),
            (2, 0),
            "{nodesize_bytes}: {:?}",
            rig.fs.mount().log_stats()
        );
        judge(&rig, &names, "changed");
        rig.finish();
    }
}
