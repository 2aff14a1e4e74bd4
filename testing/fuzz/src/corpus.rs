//! Makes the kernel's volumes of `corpus/`: small, but with everything that fuzzing wants to
//! damage. Needs root.

use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use anyhow::Result;
use cowshed_device::{FileDevice, MemDevice, OpenMode};
use cowshed_fuzz::pack;
use cowshed_harness::{KernelVolume, VolumeOptions, run};

/// Makes all volumes anew.
pub fn make(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let small = VolumeOptions {
        size_bytes: 144 << 20,
        ..VolumeOptions::default()
    };
    let volumes = [
        (
            "kernel-4k-zstd",
            VolumeOptions {
                node_bytes: Some(4096),
                mount_options: "compress-force=zstd",
                ..small.clone()
            },
        ),
        (
            "kernel-16k-lzo",
            VolumeOptions {
                mount_options: "compress-force=lzo,max_inline=2048",
                csum: Some("xxhash"),
                runtime_features: vec!["quota"],
                ..small.clone()
            },
        ),
        (
            "kernel-old-zlib",
            VolumeOptions {
                mount_options: "compress-force=zlib",
                node_bytes: Some(4096),
                features: vec!["^no-holes", "^skinny-metadata", "^extref"],
                runtime_features: vec!["^free-space-tree"],
                ..small.clone()
            },
        ),
        (
            "kernel-raid1",
            VolumeOptions {
                devices: 2,
                data: Some("raid1"),
                metadata: Some("raid1"),
                csum: Some("sha256"),
                ..small.clone()
            },
        ),
        (
            "kernel-mixed",
            VolumeOptions {
                size_bytes: 40 << 20,
                mixed: true,
                ..small.clone()
            },
        ),
    ];
    for (name, options) in volumes {
        let volume = KernelVolume::make(&options)?;
        volume.with_mount(fill)?;
        volume.assert_clean();
        save(dir, name, &volume)?;
    }
    log(dir, "kernel-log", &small, |root| {
        std::fs::rename(root.join("file-5"), root.join("dir/renamed"))?;
        Ok(std::fs::File::open(root.join("dir/renamed"))?.sync_all()?)
    })?;
    // That rename was a commit's, which left no log.
    log(
        dir,
        "kernel-log-4k",
        &VolumeOptions {
            node_bytes: Some(4096),
            ..small
        },
        |root| {
            std::fs::hard_link(root.join("file-6"), root.join("dir/another"))?;
            std::fs::File::open(root.join("file-6"))?.sync_all()?;
            std::fs::remove_file(root.join("dir/link-3-yyyyyyyyyyyyyyy"))?;
            std::fs::create_dir(root.join("dir/below"))?;
            std::fs::write(root.join("dir/below/deep"), vec![b'd'; 5000])?;
            std::fs::File::open(root.join("dir/below/deep"))?.sync_all()?;
            run(
                "fallocate",
                &[
                    "-p".as_ref(),
                    "-o".as_ref(),
                    "8192".as_ref(),
                    "-l".as_ref(),
                    "100000".as_ref(),
                    root.join("clone").as_os_str(),
                ],
            )?;
            std::fs::File::open(root.join("clone"))?.sync_all()?;
            Ok(std::fs::File::open(root.join("dir"))?.sync_all()?)
        },
    )
}

/// A volume that is cut off while it is mounted, after fsyncs.
fn log(dir: &Path, name: &str, options: &VolumeOptions, more: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let volume = KernelVolume::make(options)?;
    let mounted = volume.mount()?;
    fill(mounted.dir())?;
    run("sync", &["-f".as_ref(), mounted.dir().as_os_str()])?;
    for name in ["file-1", "file-3", "dir/fresh"] {
        let file = std::fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(mounted.dir().join(name))?;
        file.write_all_at(&[8; 20_000], 3000)?;
        file.sync_all()?;
    }
    more(mounted.dir())?;
    let crashed = KernelVolume::copy_of(volume.images())?;
    mounted.unmount()?;
    save(dir, name, &crashed)
}

fn save(dir: &Path, name: &str, volume: &KernelVolume) -> Result<()> {
    let devices = volume.images().iter().map(|image| {
        let file = FileDevice::open(image, OpenMode::ReadOnly)?;
        Ok(MemDevice::copy_of("image", &file)?)
    });
    let packed = pack::pack(&devices.collect::<Result<Vec<_>>>()?)?;
    println!("{name}: {} KiB", packed.len() / 1024);
    Ok(std::fs::write(dir.join(format!("{name}.pack")), packed)?)
}

fn fill(root: &Path) -> Result<()> {
    std::fs::create_dir(root.join("dir"))?;
    for n in 0..40_usize {
        let text: Vec<u8> = (0..[0, 60, 1800, 6000, 200_000][n % 5])
            .map(|i: usize| b"a line of text that compresses "[(i + i / 700 * n) % 31])
            .collect();
        std::fs::write(root.join(format!("file-{n}")), text)?;
    }
    for n in 0..30 {
        std::fs::hard_link(
            root.join("file-2"),
            root.join(format!("dir/link-{n}-{}", "y".repeat(n * 5))),
        )?;
    }
    symlink("dir/link-0-", root.join("symlink"))?;
    run("mkfifo", &[root.join("fifo")])?;
    run(
        "mknod",
        &[root.join("null").as_os_str(), "c".as_ref(), "1".as_ref(), "3".as_ref()],
    )?;
    for (name, value) in [
        ("user.one", "1"),
        ("user.two", &"v".repeat(1500)),
        ("security.three", "x"),
    ] {
        let file = root.join("file-3");
        let args = [
            "-n".as_ref(),
            name.as_ref(),
            "-v".as_ref(),
            value.as_ref(),
            file.as_os_str(),
        ];
        run("setfattr", &args)?;
    }
    let many = std::fs::File::create(root.join("many"))?;
    for n in 0..60 {
        many.write_all_at(&[n as u8; 4096], n * 12_288)?;
        if n % 4 == 0 {
            many.sync_all()?;
        }
    }
    run(
        "fallocate",
        &["-l".as_ref(), "300000".as_ref(), root.join("prealloc").as_os_str()],
    )?;
    run(
        "cp",
        &[
            "--reflink=always".as_ref(),
            root.join("many").as_os_str(),
            root.join("clone").as_os_str(),
        ],
    )?;
    let sub = |args: &[&str], paths: &[&Path]| {
        let mut all: Vec<&std::ffi::OsStr> = vec!["subvolume".as_ref()];
        all.extend(args.iter().map(std::ffi::OsStr::new));
        all.extend(paths.iter().map(|p| p.as_os_str()));
        run("btrfs", &all)
    };
    sub(&["create"], &[&root.join("sub")])?;
    std::fs::write(root.join("sub/inside"), vec![b'i'; 10_000])?;
    sub(&["snapshot"], &[root, &root.join("sub/snap")])?;
    sub(&["snapshot", "-r"], &[&root.join("sub"), &root.join("frozen")])?;
    many.write_all_at(&[99; 50_000], 30_000)?;
    std::fs::remove_file(root.join("file-4"))?;
    std::fs::write(root.join("sub/snap/file-9"), vec![b'n'; 30_000])?;
    Ok(())
}
