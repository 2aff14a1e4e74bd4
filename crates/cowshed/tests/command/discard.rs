//! Freed space goes back to the device: fstrim, the mount option `discard`, mkfs. Compared with the
//! kernel where it does the same.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cowshed_harness::{KernelMount, LoopDevice, need, progs, run as program, run_raw};

use crate::mount::{Guard, unmount};
use crate::support::{Scratch, eventually, run};

const MIB: u64 = 1 << 20;

fn can_trim() -> Option<()> {
    need::root()?;
    need::fuse()?;
    need::tool("fstrim")
}

/// Bytes that the file takes where it lies.
fn allocated_bytes(path: &Path) -> u64 {
    fs::File::open(path).unwrap().sync_all().unwrap();
    fs::metadata(path).unwrap().blocks() * 512
}

fn noise(len_bytes: u64, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len_bytes).map(|_| next()).collect()
}

/// What fstrim says that it trimmed.
#[track_caller]
fn fstrim(args: &[&str], dir: &Path) -> u64 {
    let args = args.iter().map(|arg| arg.as_ref()).chain([dir.as_os_str()]);
    let args: Vec<_> = ["-v".as_ref()].into_iter().chain(args).collect();
    let said = program("fstrim", &args).unwrap();
    let bytes = said.split_once('(').and_then(|(_, rest)| rest.split(' ').next());
    bytes
        .and_then(|bytes| bytes.parse().ok())
        .unwrap_or_else(|| panic!("{said}"))
}

/// Why fstrim fails.
#[track_caller]
fn fstrim_fails(args: &[&str], dir: &Path) -> String {
    let args = args.iter().map(|arg| arg.as_ref()).chain([dir.as_os_str()]);
    let ran = run_raw("fstrim", &args.collect::<Vec<_>>()).unwrap();
    assert!(!ran.status.success());
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

/// A tree of files, by the path, as the kernel shows it.
#[track_caller]
fn assert_kernel_reads(device: &Path, files: &[(&str, &[u8])]) {
    let Some(()) = need::kernel_btrfs() else { return };
    let dir = tempfile::tempdir().unwrap();
    let attached = LoopDevice::attach(device).unwrap();
    let mount = KernelMount::new("btrfs", &[attached.path()], dir.path(), "ro,norecovery").unwrap();
    for (name, bytes) in files {
        assert!(fs::read(mount.dir().join(name)).unwrap() == *bytes, "{name}");
    }
    mount.unmount().unwrap();
}

#[test]
fn deleted_files_leave_holes_in_the_image_beside_clones_and_compressed_ones() {
    let Some(()) = can_trim() else { return };
    // Which of these makes holes: the sync, the unmount, fstrim.
    for (options, after_sync, after_umount) in [
        ("discard=sync", true, true),
        ("discard", true, true),
        ("discard=async", false, true),
        ("noatime", false, true),
        ("nodiscard", false, false),
        ("compress-force=zstd,discard=sync", true, true),
    ] {
        let volume = Scratch::new();
        let dir = volume.mountpoint();
        let _guard = Guard(&dir);
        let is_compressed = options.contains("compress");
        run(&format!("mount -o {options} {{}} {{}}"), &[&volume.image, &dir]).ok();
        let (kept, gone) = (noise(8 * MIB, 1), noise(40 * MIB, 2));
        let text = b"what compresses well\n".repeat(400_000);
        for (name, bytes) in [("kept", &kept), ("gone", &gone), ("text", &text), ("text-gone", &text)] {
            fs::write(dir.join(name), bytes).unwrap();
        }
        run("sync {}", &[&dir]).ok();
        // The last 4 MiB of what goes live on in a clone.
        let cloned = &gone[36 * MIB as usize..];
        fs::write(dir.join("clone"), b"").unwrap();
        let paths = [dir.join("gone"), dir.join("clone")];
        run("clone --range 36m:4m:0 {} {}", &[&paths[0], &paths[1]]).ok();
        run("sync {}", &[&dir]).ok();
        let full = allocated_bytes(&volume.image);
        fs::remove_file(dir.join("gone")).unwrap();
        fs::remove_file(dir.join("text-gone")).unwrap();
        run("sync {}", &[&dir]).ok();
        let has_holes = |when: &str, expected: bool| {
            let now = allocated_bytes(&volume.image);
            // Whole extents stay as long as a part of one is in use: those of the clone have 128
            // MiB at most, or 128 KiB.
            let freed = if is_compressed { 30 * MIB } else { 7 * MIB };
            assert_eq!(now + freed <= full, expected, "{options}, {when}: {full}, then {now}");
        };
        has_holes("after the sync", after_sync);
        unmount(&dir);
        has_holes("after the unmount", after_umount);
        run(&format!("mount -o {options} {{}} {{}}"), &[&volume.image, &dir]).ok();
        fstrim(&[], &dir);
        has_holes("after fstrim", true);
        unmount(&dir);
        volume.assert_clean();
        progs::check(
            &volume.image,
            progs::CheckOptions {
                data_csum: true,
                ..Default::default()
            },
        )
        .unwrap()
        .assert_clean();
        assert_kernel_reads(&volume.image, &[("kept", &kept), ("clone", cloned), ("text", &text)]);
    }
}

/// The kernel trims room without a chunk whatever the range is, once per mount; so do we, each
/// time. What differs is what the kernel's mount writes itself: some blocks of metadata, and it
/// removes an empty block group of 8 MiB, whose free space is room then. That counts where only a
/// part of either is trimmed.
#[test]
fn fstrim_tells_the_bytes_that_the_kernels_does() {
    let (Some(()), Some(())) = (can_trim(), need::kernel_btrfs()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount -o nodiscard {} {}", &[&volume.image, &dir]).ok();
    for n in 0..40 {
        fs::write(dir.join(format!("{n}")), noise(MIB, n)).unwrap();
    }
    run("sync {}", &[&dir]).ok();
    (0..40)
        .step_by(2)
        .for_each(|n| fs::remove_file(dir.join(format!("{n}"))).unwrap());
    let cases: [&[&str]; 7] = [
        &[],
        &["-o", "0", "-l", "4096"],
        &["-o", "20m", "-l", "8m"],
        &["-o", "1t"],
        &["-m", "1g"],
        &["-m", "1200k"],
        &["-m", "512k"],
    ];
    let ours: Vec<u64> = cases.iter().map(|args| fstrim(args, &dir)).collect();
    unmount(&dir);
    volume.assert_clean();
    let attached = LoopDevice::attach(&volume.image).unwrap();
    for (args, ours) in cases.iter().zip(ours) {
        let difference = if args.is_empty() { MIB } else { 9 * MIB };
        // While the kernel removes a block group, it trims it neither as free space nor as room.
        eventually(&format!("{args:?} trims {ours} bytes"), || {
            let mount = KernelMount::new("btrfs", &[attached.path()], &dir, "nodiscard").unwrap();
            let theirs = fstrim(args, &dir);
            mount.unmount().unwrap();
            println!("{args:?}: {ours} here, {theirs} there");
            ours.abs_diff(theirs) <= difference
        });
    }
}

#[test]
fn fstrim_is_refused_as_the_kernel_refuses_it() {
    let Some(()) = can_trim() else { return };
    let volume = Scratch::filled();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount {} {}", &[&volume.image, &dir]).ok();
    assert!(fstrim_fails(&["-l", "4095"], &dir).contains("Invalid argument"));
    let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "fstrim"];
    let args = user.iter().map(|arg| arg.as_ref()).chain([dir.as_os_str()]);
    let ran = run_raw("setpriv", &args.collect::<Vec<_>>()).unwrap();
    assert!(String::from_utf8_lossy(&ran.stderr).contains("not permitted"));
    unmount(&dir);
    run("mount -o ro {} {}", &[&volume.image, &dir]).ok();
    assert!(fstrim_fails(&[], &dir).contains("Read-only"));
    unmount(&dir);
}

/// A block device as the kernel counts it.
struct Queue {
    device: LoopDevice,
    sys: PathBuf,
}

impl Queue {
    fn attach(image: &Path) -> Queue {
        let device = LoopDevice::attach(image).unwrap();
        let sys = Path::new("/sys/block").join(device.path().file_name().unwrap());
        Queue { device, sys }
    }
    fn path(&self) -> &Path {
        self.device.path()
    }
    /// Bytes that were discarded since the device was made: field 14 of `stat` counts sectors.
    fn discarded_bytes(&self) -> u64 {
        let stat = fs::read_to_string(self.sys.join("stat")).unwrap();
        stat.split_whitespace().nth(13).unwrap().parse::<u64>().unwrap() * 512
    }
}

#[test]
fn block_devices_are_discarded_each_copy_and_say_so_where_they_cannot() {
    let (Some(()), Some(())) = (can_trim(), need::loop_devices()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    let queues = ["a", "b"].map(|name| {
        let path = volume.path(name);
        fs::File::create(&path).unwrap().set_len(300 * MIB).unwrap();
        Queue::attach(&path)
    });
    let paths = [queues[0].path(), queues[1].path(), dir.as_path()];
    let counts = || queues.each_ref().map(Queue::discarded_bytes);
    let before = counts();
    let said = run("mkfs -f -d raid1 -m raid1 {} {}", &paths[..2]).ok().text();
    for queue in &queues {
        let line = format!("Performing full device TRIM {} (300.00MiB) ...", queue.path().display());
        assert!(said.contains(&line), "{said}");
    }
    let made = counts();
    assert_eq!(made, before.map(|bytes| bytes + 300 * MIB));
    assert!(
        !run("mkfs -K -f -d raid1 -m raid1 {} {}", &paths[..2])
            .ok()
            .text()
            .contains("TRIM")
    );
    assert_eq!(counts(), made);

    run("mount -o discard=sync {} {} {}", &paths).ok();
    fs::write(dir.join("kept"), noise(3 * MIB, 3)).unwrap();
    fs::write(dir.join("gone"), noise(20 * MIB, 4)).unwrap();
    run("sync {}", &[&dir]).ok();
    let before = counts();
    fs::remove_file(dir.join("gone")).unwrap();
    run("sync {}", &[&dir]).ok();
    for (queue, before) in queues.iter().zip(before) {
        let bytes = queue.discarded_bytes() - before;
        assert!((20 * MIB..21 * MIB).contains(&bytes), "{bytes}");
    }
    let before = counts();
    let said = fstrim(&[], &dir);
    let counted: u64 = queues
        .iter()
        .zip(before)
        .map(|(q, before)| q.discarded_bytes() - before)
        .sum();
    assert_eq!(said, counted, "what fstrim says is what the devices were told");
    unmount(&dir);
    run("check --check-data-csum {} {}", &paths[..2]).ok();
}

/// A file system in memory that makes no holes.
struct Ramfs(PathBuf);

impl Ramfs {
    fn mount(dir: PathBuf) -> Ramfs {
        fs::create_dir(&dir).unwrap();
        program(
            "mount",
            &["-t".as_ref(), "ramfs".as_ref(), "none".as_ref(), dir.as_os_str()],
        )
        .unwrap();
        Ramfs(dir)
    }
    fn image(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::File::create(&path).unwrap().set_len(200 * MIB).unwrap();
        path
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let _ = program("umount", &["-l".as_ref(), self.0.as_os_str()]);
    }
}

#[test]
fn devices_that_cannot_discard_say_so_and_work() {
    let (Some(()), Some(())) = (can_trim(), need::loop_devices()) else {
        return;
    };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let ramfs = Ramfs::mount(volume.path("ramfs"));
    let attached = Queue::attach(&ramfs.image("below"));
    let _guard = Guard(&dir);
    let file = ramfs.image("file");
    let other = volume.path("other");
    fs::File::create(&other).unwrap().set_len(200 * MIB).unwrap();
    // An image file, a block device, and one of either kind: where one can, that one does.
    for (devices, can) in [
        (vec![file.as_path()], false),
        (vec![attached.path()], false),
        (vec![file.as_path(), &other], true),
    ] {
        let marks = "{} ".repeat(devices.len());
        let said = run(&format!("mkfs -f {marks}"), &devices).ok().text();
        assert!(
            said.contains(&format!("{}: cannot discard", devices[0].display())),
            "{said}"
        );
        assert_eq!(said.contains("TRIM"), can, "{said}");
        let and_dir: Vec<&Path> = devices.iter().copied().chain([dir.as_path()]).collect();
        for options in ["discard=sync", "discard=async"] {
            run(&format!("mount -o {options} {marks} {{}}"), &and_dir).ok();
            fs::write(dir.join("kept"), noise(3 * MIB, 3)).unwrap();
            fs::write(dir.join("gone"), noise(MIB, 4)).unwrap();
            run("sync {}", &[&dir]).ok();
            fs::remove_file(dir.join("gone")).unwrap();
            run("sync {}", &[&dir]).ok();
            match can {
                true => assert!((150 * MIB..200 * MIB).contains(&fstrim(&[], &dir))),
                false => assert!(fstrim_fails(&[], &dir).contains("not supported")),
            }
            assert!(fs::read(dir.join("kept")).unwrap() == noise(3 * MIB, 3));
            unmount(&dir);
        }
        run(&format!("check --check-data-csum {marks}"), &devices).ok();
    }
}

#[test]
fn mkfs_makes_holes_of_what_an_image_file_held() {
    let volume = Scratch::new();
    let image = volume.path("old");
    let old = noise(200 * MIB, 9);
    for (args, is_sparse, line) in [("-K", false, false), ("-q", true, false), ("-f", true, true)] {
        fs::write(&image, &old).unwrap();
        let said = run(&format!("mkfs {args} {{}}"), &[&image]).ok().text();
        assert_eq!(said.contains("Performing full device TRIM"), line, "{args}: {said}");
        assert_eq!(allocated_bytes(&image) < 8 * MIB, is_sparse, "{args}");
        run("check {}", &[&image]).ok();
    }
    // Only what the volume takes.
    fs::write(&image, &old).unwrap();
    run("mkfs -q -b 120m {}", &[&image]).ok();
    let bytes = fs::read(&image).unwrap();
    assert!(bytes[120 * MIB as usize..198 * MIB as usize] == old[120 * MIB as usize..198 * MIB as usize]);
    // A new file has nothing to discard.
    let said = run("mkfs -b 120m {}", &[&volume.path("new")]).ok().text();
    assert!(!said.contains("TRIM"), "{said}");
}

/// fstrim over and over while files are written, synced and deleted: all that is there is right,
/// and nothing finds no space.
#[test]
fn trims_beside_writers_destroy_nothing() {
    let Some(()) = can_trim() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount -o discard=sync {} {}", &[&volume.image, &dir]).ok();
    let threads = 3;
    cowshed_harness::threads::beside(
        || -> anyhow::Result<()> {
            fstrim(&[], &dir);
            Ok(())
        },
        || {
            std::thread::scope(|scope| {
                for thread in 0..threads {
                    let dir = &dir;
                    scope.spawn(move || {
                        for round in 0..30 {
                            let bytes = noise(MIB + round * 4096, thread * 100 + round);
                            let path = dir.join(format!("{thread}-{}", round % 4));
                            fs::write(&path, &bytes).unwrap();
                            if round % 3 == 0 {
                                fs::File::open(&path).unwrap().sync_all().unwrap();
                            }
                            assert!(fs::read(&path).unwrap() == bytes);
                        }
                    });
                }
            });
            Ok(())
        },
    )
    .unwrap();
    unmount(&dir);
    volume.assert_clean();
    run("mount -o ro {} {}", &[&volume.image, &dir]).ok();
    for (thread, last) in (0..threads).flat_map(|thread| (26..30).map(move |round| (thread, round))) {
        let path = dir.join(format!("{thread}-{}", last % 4));
        assert!(fs::read(&path).unwrap() == noise(MIB + last * 4096, thread * 100 + last));
    }
    unmount(&dir);
}
