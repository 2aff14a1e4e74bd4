//! Version 1 caches of free space, which Linux reads and we do not keep.

use cowshed_harness::{KernelVolume, VolumeOptions, run};
use cowshed_vfs::{FileSystem, Handle, WriteFlags};

use crate::rig::{ROOT, Rig, kernel_can};

const MIB: usize = 1 << 20;

/// We free data in a group, and write as much elsewhere in it. The next mount in Linux changes
/// other groups. The one after it must not trust the group's old cache: it would give our data's
/// space away.
#[test]
fn linux_never_trusts_the_cache_of_a_group_that_we_changed() {
    if !kernel_can() {
        return;
    }
    let volume = KernelVolume::make(&VolumeOptions {
        // Linux keeps no caches of small groups, and makes small ones on a small volume.
        size_bytes: 3 << 30,
        runtime_features: vec!["^free-space-tree"],
        mount_options: "space_cache=v1",
        ..VolumeOptions::default()
    })
    .expect("mkfs.btrfs");
    let fill = |root: &std::path::Path| -> std::io::Result<()> {
        for name in ["kept", "gone"] {
            std::fs::write(root.join(name), vec![1; 40 * MIB])?;
        }
        Ok(())
    };
    volume.with_mount(|root| Ok(fill(root)?)).expect("the kernel mounts");
    // Caches of what is there now.
    volume
        .with_mount(|root| Ok(std::fs::write(root.join("small"), [2; 5000])?))
        .expect("the kernel mounts");

    let rig = Rig::on(volume);
    let node = rig.create("ours").expect("a file").node;
    let data = vec![3; 40 * MIB];
    for (n, piece) in data.chunks(MIB).enumerate() {
        let written = rig
            .fs
            .write(&ROOT, node, Handle::NONE, (n * MIB) as u64, piece, WriteFlags::empty());
        assert_eq!(written, Ok(piece.len()));
    }
    rig.commit();
    rig.unlink("gone").expect("it goes");
    rig.commit();
    let volume = rig.finish();

    volume
        .with_mount(|root| Ok(std::fs::create_dir(root.join("new"))?))
        .expect("the kernel mounts");
    let outcome = volume.with_mount(|root| {
        // All space that it takes for free.
        for n in 0..64 {
            let file = root.join(format!("filler-{n}"));
            if run("fallocate", &["-l".as_ref(), "64M".as_ref(), file.as_os_str()]).is_err() {
                break;
            }
        }
        run("sync", &["-f".as_ref(), root.as_os_str()])?;
        Ok(std::fs::read(root.join("ours"))? == data)
    });
    volume.assert_clean();
    assert!(outcome.expect("the kernel mounts"), "the kernel reads what we wrote");
}
