//! Makes the volumes of XFS of `corpus/`. Needs root.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Result, ensure};
use cowshed_device::{BlockDevice, FileDevice, MemDevice, OpenMode};
use cowshed_fuzz::{pack, xfs};
use cowshed_harness::xfs::{Fill, XfsOptions, XfsVolume, fill};
use cowshed_harness::{run, run_raw, scratch_dir};

/// Names, and arguments of mkfs.xfs.
const VOLUMES: [(&str, &str, u64); 3] = [
    ("xfs-4k", "-m rmapbt=1,reflink=1 -d agcount=2", 4096),
    ("xfs-1k", "-b size=1024 -m rmapbt=1,reflink=1 -d agcount=2", 1024),
    ("xfs-64k", "-b size=65536 -m rmapbt=1,reflink=1 -d agcount=2", 65536),
];

/// Makes all of them anew.
pub fn make(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    for (seed, (name, mkfs, block_bytes)) in (1..).zip(VOLUMES) {
        let volume = XfsVolume::make(&XfsOptions::new(mkfs))?;
        volume.with_mount(|root| fill(root, &what(seed, block_bytes)))?;
        save(dir, name, &volume, true)?;
    }
    let volume = XfsVolume::make(&XfsOptions::new("-m rmapbt=1,reflink=1 -d agcount=2"))?;
    volume.with_mount(|root| fill(root, &what(4, 4096)))?;
    empty_log(&volume)?;
    leave_a_log(&volume)?;
    save(dir, "xfs-log", &volume, false)?;
    save(dir, "xfs-v4", &version_4()?, true)
}

fn what(seed: u64, block_bytes: u64) -> Fill {
    // What a directory and attributes need to have nodes.
    let (names, attributes) = match block_bytes {
        1024 => (400, 300),
        4096 => (700, 400),
        _ => (400, 1500),
    };
    Fill {
        entries: 12,
        names,
        extents: 300,
        links: 30,
        attributes,
        block_bytes,
        ..Fill::small(seed)
    }
}

/// A volume whose kernel stopped with changes in the log.
fn leave_a_log(volume: &XfsVolume) -> Result<()> {
    let mounted = volume.mount_with("")?;
    let root = mounted.dir();
    for n in 0..40 {
        std::fs::write(root.join(format!("late-{n}")), [n; 100])?;
    }
    std::fs::create_dir(root.join("late"))?;
    for n in 0..20 {
        std::fs::rename(root.join(format!("late-{n}")), root.join(format!("late/{n}")))?;
    }
    for n in 20..30 {
        std::fs::remove_file(root.join(format!("late-{n}")))?;
    }
    let shutdown = ["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), root.as_os_str()];
    run("xfs_io", &shutdown)?;
    mounted.unmount()
}

/// Linux is built without version 4 here: mkfs.xfs fills the volume.
fn version_4() -> Result<XfsVolume> {
    let dir = scratch_dir()?;
    let contents = dir.path().join("contents");
    std::fs::write(&contents, "contents of a file\n".repeat(1000))?;
    let mut proto = "/dev/null\n0 0\nd--755 0 0\n".to_owned();
    let file = |name: &str| format!("{name} ---644 3 4 {}\n", contents.display());
    for (dir, names) in [("few", 3), ("block", 40), ("leaf", 200), ("node", 1500)] {
        let _ = writeln!(proto, "{dir} d--755 0 0");
        for n in 0..names {
            match n % 40 {
                7 => proto += &file(&format!("file_{n}")),
                8 => _ = writeln!(proto, "link_{n} l--777 0 0 a/target/{}", "x".repeat(n % 500)),
                _ => _ = writeln!(proto, "device_{n} c--644 0 0 {} {n}", n % 200),
            }
        }
        proto += "$\n";
    }
    proto += "$\n";
    let path = dir.path().join("proto");
    std::fs::write(&path, proto)?;
    let mkfs = format!("-m crc=0 -d agcount=2 -p {}", path.display());
    XfsVolume::make(&XfsOptions::new(mkfs))
}

/// The log of a clean volume as mkfs.xfs makes it: nothing but its end.
fn empty_log(volume: &XfsVolume) -> Result<()> {
    let image = volume.image().as_os_str();
    run("xfs_repair", &["-L".as_ref(), "-f".as_ref(), image])?;
    Ok(())
}

fn save(dir: &Path, name: &str, volume: &XfsVolume, is_clean: bool) -> Result<()> {
    if is_clean {
        empty_log(volume)?;
        let judged = run_raw(
            "xfs_repair",
            &["-n".as_ref(), "-f".as_ref(), volume.image().as_os_str()],
        )?;
        ensure!(judged.status.success(), "{name}: xfs_repair -n");
    }
    let image = FileDevice::open(volume.image(), OpenMode::ReadOnly)?;
    let whole = MemDevice::copy_of("volume", &image)?;
    let kinds = xfs::pieces(&whole)?;
    let bare = MemDevice::new("volume", whole.size_bytes());
    let is_v4 = name.ends_with("v4");
    let mut piece = [0; 4096];
    for at in xfs::metadata_blocks(&kinds) {
        whole.read_at(at * 4096, &mut piece)?;
        bare.write_at(at * 4096, &piece)?;
    }
    // Of version 4, some metadata has no magic.
    let packed = pack::pack(&[if is_v4 { whole } else { bare }])?;
    println!("{name}: {} kinds of metadata, {} bytes", kinds.len(), packed.len());
    Ok(std::fs::write(dir.join(format!("{name}.pack")), packed)?)
}
