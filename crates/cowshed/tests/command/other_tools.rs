//! Volumes that other tools made, changed or read: btrfs-convert and btrfstune, btrfs restore and
//! rescue, partclone, GRUB. They share none of our code, and little of the kernel's.

use std::fs;
use std::path::{Path, PathBuf};

use cowshed_harness::tree::{Compare, Kinds, MakeOptions, Tree, make, snapshot};
use cowshed_harness::{KernelMount, KernelVolume, LoopDevice, VolumeOptions, need, run_in, shell};

use crate::mount::{Guard, can_mount, unmount};
use crate::support::{assert_clean_for_both, run};

/// What runs on the volume, mounted by us.
fn on_own_mount<T>(image: &Path, options: &str, act: impl FnOnce(&Path) -> T) -> T {
    let mnt = tempfile::tempdir_in(image.parent().unwrap()).unwrap();
    run(&format!("mount -o {options} {{}} {{}}"), &[image, mnt.path()]).ok();
    let guard = Guard(mnt.path());
    let done = act(mnt.path());
    unmount(mnt.path());
    drop(guard);
    done
}

/// What the kernel shows of a volume, or of another file system.
fn shown_by_kernel(fs: &str, image: &Path) -> Tree {
    let device = LoopDevice::attach(image).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mount = KernelMount::new(fs, &[device.path()], dir.path(), "ro").unwrap();
    let shown = snapshot(mount.dir()).unwrap();
    mount.unmount().unwrap();
    shown
}

/// A mount of ours shows what the kernel shows. After half of the names were removed through it and
/// others made, both checkers and the kernel agree with it again.
#[track_caller]
fn assert_used_by_both(image: &Path) {
    let by_kernel = shown_by_kernel("btrfs", image);
    on_own_mount(image, "ro", |mnt| {
        // Numbers of files in other subvolumes differ.
        let compare = Compare {
            inodes: false,
            ..Compare::same_volume()
        };
        by_kernel.diff(&snapshot(mnt).unwrap(), &compare).assert_none();
    });
    let left = on_own_mount(image, "noatime", |mnt| {
        let names = fs::read_dir(mnt).unwrap().map(|name| name.unwrap().path());
        let mut names: Vec<_> = names.filter(|path| !path.ends_with("ext2_saved")).collect();
        names.sort();
        for path in names.iter().step_by(2) {
            match path.symlink_metadata().unwrap().is_dir() {
                true => fs::remove_dir_all(path).unwrap(),
                false => fs::remove_file(path).unwrap(),
            }
        }
        let fresh = mnt.join("fresh");
        fs::create_dir(&fresh).unwrap();
        let kinds = Kinds::all();
        make(
            &fresh,
            &MakeOptions {
                kinds,
                ..MakeOptions::new(11, 200)
            },
        )
        .unwrap();
        snapshot(mnt).unwrap()
    });
    assert_clean_for_both(image);
    let compare = Compare::copy();
    left.diff(&shown_by_kernel("btrfs", image), &compare).assert_none();
}

/// A volume that btrfs-convert makes of ext4 holds the old file system as a file, and its extents
/// where ext4 had them. What we change must leave those alone: the old one comes back.
#[test]
fn converted_volume_is_used_and_becomes_ext4_again() {
    let Some(()) = need::kernel_btrfs() else { return };
    for tool in ["btrfs-convert", "mkfs.ext4", "e2fsck"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let Some(()) = need::kernel_fs("ext4") else { return };
    let Some(()) = can_mount() else { return };
    for options in ["", "-d -N 4096", "-n --csum xxhash"] {
        let scratch = cowshed_harness::scratch_dir().unwrap();
        let image = scratch.path().join("image");
        fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
        shell(scratch.path(), "mkfs.ext4 -q -F -b 4096 image").unwrap();
        let device = LoopDevice::attach(&image).unwrap();
        let mnt = tempfile::tempdir().unwrap();
        let mount = KernelMount::new("ext4", &[device.path()], mnt.path(), "").unwrap();
        // btrfs-convert keeps 32 bits of a time.
        let kinds = Kinds {
            reflinks: false,
            times: false,
            ..Kinds::all()
        };
        make(
            mount.dir(),
            &MakeOptions {
                kinds,
                ..MakeOptions::new(5, 300)
            },
        )
        .unwrap();
        mount.unmount().unwrap();
        drop(device);
        let before = shown_by_kernel("ext4", &image);
        shell(scratch.path(), &format!("btrfs-convert --no-progress {options} image")).unwrap();
        assert_clean_for_both(&image);
        // Without a mount, too: the targets of links are as long as they should be.
        let out = scratch.path().join("out");
        run("extract {} {}", &[&image, &out]).ok();
        fs::remove_dir_all(out.join("ext2_saved")).unwrap();
        let compare = Compare {
            directory_times: false,
            ..Compare::copy()
        };
        before.diff(&snapshot(&out).unwrap(), &compare).assert_none();
        fs::remove_dir_all(&out).unwrap();
        assert_used_by_both(&image);
        shell(scratch.path(), "btrfs-convert -r image && e2fsck -fn image").unwrap();
        let compare = Compare::copy();
        before.diff(&shown_by_kernel("ext4", &image), &compare).assert_none();
    }
}

#[test]
fn volume_is_used_after_btrfstune() {
    let Some(()) = need::kernel_btrfs() else { return };
    let Some(()) = need::tool("btrfstune") else { return };
    let Some(()) = can_mount() else { return };
    let fsid = "-U 0f3c1d8e-5a4b-4c6d-8e7f-9a0b1c2d3e4f";
    let metadata_uuid = "-M 1f3c1d8e-5a4b-4c6d-8e7f-9a0b1c2d3e4f";
    for options in ["-u", fsid, "-m", metadata_uuid, "-r -x -n", "-S 1"] {
        let adds_features = options == "-r -x -n";
        let features = match adds_features {
            true => vec!["^no-holes", "^skinny-metadata", "^extref"],
            false => Vec::new(),
        };
        let volume = KernelVolume::make(&VolumeOptions {
            features,
            ..VolumeOptions::default()
        })
        .unwrap();
        let kinds = Kinds {
            many_links: !adds_features,
            ..Kinds::all()
        };
        let filled = volume.with_mount(|mnt| {
            make(
                mnt,
                &MakeOptions {
                    kinds,
                    ..MakeOptions::new(9, 300)
                },
            )
        });
        filled.unwrap();
        let tune = format!("btrfstune -f {options} {}", volume.image().display());
        shell(volume.dir(), &tune).unwrap();
        assert_clean_for_both(volume.image());
        if options == "-S 1" {
            let mnt = tempfile::tempdir().unwrap();
            run("mount {} {}", &[volume.image(), mnt.path()]).fails(&["SEEDING", "read-only"]);
            let by_kernel = shown_by_kernel("btrfs", volume.image());
            on_own_mount(volume.image(), "ro", |mnt| {
                let compare = Compare::same_volume();
                by_kernel.diff(&snapshot(mnt).unwrap(), &compare).assert_none();
            });
        } else {
            assert_used_by_both(volume.image());
        }
    }
}

/// A volume that we filled, with room where a tree was deleted, and what the kernel shows of it.
fn used_volume(dir: &Path, options: &str) -> (PathBuf, Tree) {
    let image = dir.join("image");
    fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
    // Of metadata with two copies, partclone copies the first alone.
    run("mkfs -q -m single {}", &[&image]).ok();
    on_own_mount(&image, options, |mnt| {
        for seed in 0..3 {
            let sub = mnt.join(format!("part-{seed}"));
            fs::create_dir(&sub).unwrap();
            let kinds = Kinds {
                specials: false,
                hard_links: false,
                ..Kinds::all()
            };
            make(
                &sub,
                &MakeOptions {
                    kinds,
                    ..MakeOptions::new(seed, 150)
                },
            )
            .unwrap();
        }
        fs::remove_dir_all(mnt.join("part-0")).unwrap();
    });
    let shown = shown_by_kernel("btrfs", &image);
    (image, shown)
}

#[test]
fn other_readers_find_all_in_our_volumes() {
    let Some(()) = need::kernel_btrfs() else { return };
    let Some(()) = can_mount() else { return };
    for tool in ["partclone.btrfs", "partclone.restore"] {
        let Some(()) = need::tool(tool) else { return };
    }
    for options in ["compress=zstd", "compress=lzo,nodatasum", "nodatacow"] {
        let scratch = cowshed_harness::scratch_dir().unwrap();
        let dir = scratch.path();
        let (image, shown) = used_volume(dir, options);
        fs::create_dir(dir.join("restored")).unwrap();
        run_in(dir, "btrfs", &["restore", "-mS", "image", "restored"]).unwrap();
        // btrfs restore makes no hard links and no holes, and here no attributes.
        let compare = Compare {
            holes: false,
            xattrs: false,
            directory_times: false,
            ..Compare::copy()
        };
        shown
            .diff(&snapshot(&dir.join("restored")).unwrap(), &compare)
            .assert_none();
        // partclone copies what extents and chunks say is used, and nothing else.
        let copy = "partclone.btrfs -q -c -s image -o used -L log &&
                    partclone.restore -q -s used -O copy --restore_raw_file -L log && rm used";
        shell(dir, copy).unwrap();
        assert_clean_for_both(&dir.join("copy"));
        shown
            .diff(&shown_by_kernel("btrfs", &dir.join("copy")), &Compare::same_volume())
            .assert_none();
        let recovered = shell(dir, "btrfs rescue chunk-recover -y image").unwrap();
        assert!(recovered.contains("no orphans"), "{recovered}");
        assert_clean_for_both(&image);
    }
}

/// A boot loader reads kernels and configurations from images.
#[test]
fn grub_reads_images() {
    let (Some(fstest), Some(())) = (need::any_tool(&["grub-fstest", "grub2-fstest"]), need::tool("cmp")) else {
        return;
    };
    for options in [
        "--compress zlib",
        "--compress lzo",
        "--compress zstd",
        "-n 4k --csum xxhash",
        "-n 64k --csum sha256",
        "-O ^no-holes",
    ] {
        let scratch = cowshed_harness::scratch_dir().unwrap();
        let dir = scratch.path();
        let fill = "mkdir -p source/boot/grub && cd source && seq 1 300000 > boot/vmlinuz
                    echo 'set timeout=1' > boot/grub/grub.cfg && : > boot/empty
                    head -c 3000000 /dev/urandom > boot/initrd && ln -s boot/vmlinuz vmlinuz
                    ln -s /boot/grub boot/loop && for n in $(seq 500); do echo $n > boot/grub/module-$n; done";
        shell(dir, fill).unwrap();
        let (source, image) = (dir.join("source"), dir.join("image"));
        run(&format!("build -q {options} --from {{}} {{}}"), &[&source, &image]).ok();
        for (path, file) in [
            ("/boot/vmlinuz", "boot/vmlinuz"),
            ("/boot/initrd", "boot/initrd"),
            ("/boot/grub/grub.cfg", "boot/grub/grub.cfg"),
            ("/boot/empty", "boot/empty"),
            ("/boot/grub/module-377", "boot/grub/module-377"),
            ("/vmlinuz", "boot/vmlinuz"),
            ("/boot/loop/module-12", "boot/grub/module-12"),
        ] {
            let read = format!("{fstest} image cat '(loop0){path}' | cmp - source/{file}");
            shell(dir, &format!("set -o pipefail; {read}")).unwrap();
        }
        let names = shell(dir, &format!("{fstest} image ls '(loop0)/boot/grub' | wc -w")).unwrap();
        assert_eq!(names.trim(), "501");
    }
}
