//! The harness itself against the kernel and btrfs-progs.

use std::os::unix::fs::FileExt;
use std::path::Path;

use cowshed_device::{BlockDevice, FileDevice, MemDevice, OpenMode};
use cowshed_harness::progs::CheckOptions;
use cowshed_harness::tree::{Compare, MakeOptions, compare, make, snapshot};
use cowshed_harness::{
    KernelVolume, LoopDevice, VolumeOptions, matrix_full, matrix_small, need, progs, run, scratch_dir,
};

fn is_attached(image: &Path) -> bool {
    let list = run("losetup", &["--list", "--noheadings", "--output", "BACK-FILE"]).unwrap();
    list.lines().any(|line| Path::new(line.trim()) == image)
}

#[test]
fn loop_devices_come_and_go() {
    let Some(()) = need::loop_devices() else { return };
    let dir = scratch_dir().unwrap();
    let image = dir.path().join("image");
    drop(FileDevice::create(&image, 1 << 20).unwrap());
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let image = image.clone();
            std::thread::spawn(move || LoopDevice::attach(&image).unwrap())
        })
        .collect();
    let devices: Vec<LoopDevice> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(is_attached(&image));
    let block = FileDevice::open(devices[0].path(), OpenMode::ReadWrite).unwrap();
    assert_eq!(
        (block.size_bytes(), block.sector_size_bytes(), block.is_block_device()),
        (1 << 20, 512, true)
    );
    block.write_at(4096, b"hello").unwrap();
    block.flush().unwrap();
    block.discard(65536, 65536).unwrap();
    assert_eq!(&std::fs::read(&image).unwrap()[4096..4101], b"hello");
    drop(block);
    let large = LoopDevice::attach_with(&image, true, 4096).unwrap();
    assert_eq!(
        FileDevice::open(large.path(), OpenMode::ReadOnly)
            .unwrap()
            .sector_size_bytes(),
        4096
    );
    drop((large, devices));
    assert!(!is_attached(&image));
}

#[test]
fn a_mounted_device_is_busy_and_a_volume_survives_a_copy() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let mut mounted = volume.mount().unwrap();
    let busy = FileDevice::open(mounted.devices()[0], OpenMode::ReadWrite).unwrap_err();
    assert!(matches!(busy, cowshed_device::Error::Busy { .. }), "{busy}");
    let made = make(mounted.dir(), &MakeOptions::new(1, 300)).unwrap();
    assert!(made.files > 100);
    mounted.btrfs(&["filesystem", "sync", "{}"]).unwrap();
    progs::scrub(mounted.dir()).unwrap();
    assert_eq!(mounted.take_complaints().unwrap(), Vec::<String>::new());
    mounted.unmount().unwrap();
    assert!(!is_attached(volume.image()));
    volume.assert_clean();

    let file = FileDevice::open(volume.image(), OpenMode::ReadOnly).unwrap();
    let memory = MemDevice::copy_of("copy", &file).unwrap();
    let copy = KernelVolume::from_memory(&[memory]).unwrap();
    let left = volume.with_mount(snapshot).unwrap();
    let right = copy.with_mount(snapshot).unwrap();
    assert!(left.len() > 300);
    left.diff(&right, &Compare::same_volume()).assert_none();
}

#[test]
fn the_checker_and_scrub_see_rot() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions {
        metadata: Some("single"),
        ..VolumeOptions::default()
    })
    .unwrap();
    let marker = b"a stretch of bytes that is easy to find ".repeat(4096);
    volume
        .with_mount(|dir| Ok(std::fs::write(dir.join("file"), &marker)?))
        .unwrap();
    volume.assert_clean();
    let bytes = std::fs::read(volume.image()).unwrap();
    let at = bytes.windows(marker.len()).position(|window| window == marker).unwrap() as u64;
    let image = std::fs::File::options().write(true).open(volume.image()).unwrap();
    image.write_all_at(b"A", at).unwrap();
    // Structure is unhurt, data is not.
    volume.check(CheckOptions::default()).unwrap().assert_clean();
    let report = volume
        .check(CheckOptions {
            data_csum: true,
            lowmem: false,
        })
        .unwrap();
    assert!(!report.clean, "{}", report.output);
    let mut mounted = volume.mount().unwrap();
    progs::scrub(mounted.dir()).unwrap_err();
    assert!(!mounted.take_complaints().unwrap().is_empty());
}

#[test]
fn a_copy_of_a_tree_is_the_tree() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    volume
        .with_mount(|dir| {
            let (original, copy) = (dir.join("original"), dir.join("copy"));
            std::fs::create_dir(&original)?;
            make(&original, &MakeOptions::new(5, 300))?;
            run(
                "cp",
                &[
                    "-a".as_ref(),
                    "--reflink=always".as_ref(),
                    original.as_os_str(),
                    copy.as_os_str(),
                ],
            )?;
            compare(&original, &copy, &Compare::copy())?.assert_none();
            Ok(())
        })
        .unwrap();
}

fn populate_and_check(options: &VolumeOptions) {
    let volume =
        KernelVolume::make_populated(options, 7, 60).unwrap_or_else(|e| panic!("{}: {e:#}", options.describe()));
    let report = volume
        .check(CheckOptions {
            data_csum: true,
            lowmem: false,
        })
        .unwrap();
    assert!(report.clean, "{}:\n{}", options.describe(), report.output);
    let tree = volume.with_mount(snapshot).unwrap();
    for name in [
        "live/nested/file",
        "frozen/sizes/text-4096",
        "branch/sizes/text-4096",
        "live/later/links/first",
    ] {
        assert!(
            tree.nodes.contains_key(std::ffi::OsStr::new(name)),
            "{}: no {name}",
            options.describe()
        );
    }
}

#[test]
fn the_small_matrix_is_made_and_clean() {
    let Some(()) = need::kernel_btrfs() else { return };
    matrix_small().iter().for_each(populate_and_check);
}

#[test]
#[ignore = "a minute; run with --ignored"]
fn the_full_matrix_is_made_and_clean() {
    let Some(()) = need::kernel_btrfs() else { return };
    matrix_full().iter().for_each(populate_and_check);
}

#[test]
#[ignore = "a measurement; run with --ignored --nocapture"]
fn many_entries_are_compared_in_seconds() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions {
        size_bytes: 4 << 30,
        ..VolumeOptions::default()
    })
    .unwrap();
    volume
        .with_mount(|dir| {
            let started = std::time::Instant::now();
            let made = make(
                dir,
                &MakeOptions {
                    total_bytes: 256 << 20,
                    ..MakeOptions::new(1, 100_000)
                },
            )?;
            println!("made {made:?} in {:?}", started.elapsed());
            let started = std::time::Instant::now();
            compare(
                dir,
                dir,
                &Compare {
                    atime: false,
                    ..Compare::same_volume()
                },
            )?
            .assert_none();
            println!("compared in {:?}", started.elapsed());
            assert!(started.elapsed().as_secs() < 60);
            Ok(())
        })
        .unwrap();
}
