//! The sound volumes that damage is done to: some that our own code makes, some that the kernel
//! made (`corpus/`).
//!
//! They are the same on every machine, so that a case's number says everything about it.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use btrfs_format::TreeId;
use btrfs_image::{MkfsOptions, Profile, mkfs};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_runtime::FixedEnv;
use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{
    Context, FallocateFlags, FileKind, FileSystem, Handle, InitInfo, Lookup, NodeId, OpenFlags, OpenRequest,
    SetXattrFlags, WriteFlags,
};

use crate::layout::Layout;
use crate::pack;

/// A sound volume.
pub struct Base {
    pub name: String,
    pub devices: Vec<MemDevice>,
    pub layout: Layout,
}

/// Volumes of the kernel, made by `cowshed-fuzz corpus`.
const CORPUS: [(&str, &[u8]); 6] = [
    ("kernel-4k-zstd", include_bytes!("../corpus/kernel-4k-zstd.pack")),
    ("kernel-16k-lzo", include_bytes!("../corpus/kernel-16k-lzo.pack")),
    ("kernel-old-zlib", include_bytes!("../corpus/kernel-old-zlib.pack")),
    ("kernel-raid1", include_bytes!("../corpus/kernel-raid1.pack")),
    ("kernel-mixed", include_bytes!("../corpus/kernel-mixed.pack")),
    ("kernel-log", include_bytes!("../corpus/kernel-log.pack")),
];

/// One with a log.
const KERNEL_LOG: &[u8] = include_bytes!("../corpus/kernel-log-4k.pack");

/// All of them.
pub fn all() -> Result<Vec<Base>> {
    let mut bases = Vec::new();
    for (name, packed) in CORPUS {
        let devices = pack::unpack(packed).with_context(|| name.to_owned())?;
        bases.push(base(name, devices));
    }
    bases.push(own("own-4k", 4096, 1)?);
    bases.push(own("own-16k", 16384, 1)?);
    bases.push(own("own-raid1", 16384, 2)?);
    Ok(bases)
}

/// Volumes with a log, of which only the blocks of the log are damaged: the rest of the volume
/// stays sound, and replay must refuse the log or leave a sound volume.
pub fn with_logs() -> Result<Vec<Base>> {
    let mut bases = vec![base("kernel-log-4k", pack::unpack(KERNEL_LOG)?)];
    bases.push(own_log("own-log-4k", 4096)?);
    bases.push(own_log("own-log-16k", 16384)?);
    for base in &mut bases {
        base.layout.blocks.retain(|block| block.owner == TreeId::TREE_LOG.get());
        anyhow::ensure!(base.layout.blocks.len() > 1, "{} has no log", base.name);
    }
    Ok(bases)
}

fn base(name: &str, devices: Vec<MemDevice>) -> Base {
    Base {
        name: name.to_owned(),
        layout: Layout::of(&devices),
        devices,
    }
}

/// As [`own`], cut off when a log had been written.
fn own_log(name: &str, nodesize: u32) -> Result<Base> {
    let (device, fs) = mounted(nodesize, 1)?;
    fill(&fs)?;
    fs.syncfs(&Context::root(), NodeId::ROOT)?;
    log_some(&fs)?;
    let devices = device.iter().map(|d| d.snapshot()).collect();
    fs.destroy();
    Ok(base(name, devices))
}

fn own(name: &str, nodesize: u32, count: usize) -> Result<Base> {
    let (devices, fs) = mounted(nodesize, count)?;
    fill(&fs)?;
    fs.destroy();
    Ok(base(name, devices.iter().map(|d| d.snapshot()).collect()))
}

/// A new volume, mounted.
fn mounted(nodesize: u32, count: usize) -> Result<(Vec<Arc<MemDevice>>, Fs)> {
    let devices: Vec<Arc<MemDevice>> = (0..count)
        .map(|n| Arc::new(MemDevice::new(format!("device{n}"), 144 << 20)))
        .collect();
    let handles: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|d| d.clone() as Arc<dyn BlockDevice>).collect();
    let mut options = MkfsOptions::new([nodesize as u8 | count as u8; 16]);
    options.nodesize_bytes = Some(nodesize);
    options.data_profile = (count > 1).then_some(Profile::Raid1);
    mkfs(&handles, &options)?;
    let volume = Volume::open(handles, &OpenOptions::default())?;
    let engine_options = EngineOptions {
        tree_log: true,
        commit_interval_s: 0,
        ..EngineOptions::default()
    };
    let engine = Mount::open(volume, Arc::new(FixedEnv::default()), engine_options)?;
    let fs = Fs::new(engine, MountOptions::default())?;
    fs.init(&InitInfo::TRUSTED)?;
    Ok((devices, fs))
}

/// Changes of all kinds that a log tells of, and their fsyncs.
fn log_some(fs: &Fs) -> Result<()> {
    let ctx = Context::root();
    let find = |parent, name: &str| match fs.lookup(&ctx, parent, name.as_bytes())? {
        Lookup::Found(entry) => Ok(entry.node),
        Lookup::Absent { .. } => anyhow::bail!("{name} is not there"),
    };
    let dir = find(NodeId::ROOT, "dir")?;
    let request = OpenRequest {
        flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
        kill_suidgid: false,
    };
    let old = find(NodeId::ROOT, &format!("file-9-{}", "x".repeat(9)))?;
    fs.write(&ctx, old, Handle::NONE, 9_000, &[9; 20_000], WriteFlags::empty())?;
    fs.setxattr(&ctx, old, b"user.other", b"value", SetXattrFlags::empty())?;
    fs.link(&ctx, old, dir, b"second")?;
    fs.fsync(&ctx, old, Handle::NONE, false)?;
    for n in 0..12 {
        let (entry, _) = fs.create(&ctx, dir, format!("fresh-{n}").as_bytes(), 0o644, &request)?;
        let data = vec![n as u8; 1000 * n];
        fs.write(&ctx, entry.node, Handle::NONE, 0, &data, WriteFlags::empty())?;
        if n % 3 == 0 {
            fs.fsync(&ctx, entry.node, Handle::NONE, false)?;
        }
    }
    let full = find(dir, &format!("file-59-{}", "x".repeat(19)))?;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fs.fallocate(&ctx, full, Handle::NONE, 8192, 40_000, punch)?;
    fs.fsync(&ctx, full, Handle::NONE, false)?;
    fs.unlink(&ctx, dir, b"link-11")?;
    fs.mkdir(&ctx, dir, b"below", 0o755)?;
    Ok(fs.fsyncdir(&ctx, dir, Handle::NONE, false)?)
}

/// A bit of everything that our own code makes.
fn fill(fs: &Fs) -> Result<()> {
    let ctx = Context::root();
    let request = OpenRequest {
        flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
        kill_suidgid: false,
    };
    let dir = fs.mkdir(&ctx, NodeId::ROOT, b"dir", 0o755)?.node;
    let mut last = None;
    for n in 0..60_usize {
        let parent = if n % 3 == 0 { NodeId::ROOT } else { dir };
        let name = format!("file-{n}-{}", "x".repeat(n % 40));
        let (entry, _) = fs.create(&ctx, parent, name.as_bytes(), 0o644, &request)?;
        let len = [0, 17, 2000, 5000, 70_000][n % 5];
        let data: Vec<u8> = (0..len).map(|i| (i / 97 + n) as u8).collect();
        fs.write(&ctx, entry.node, Handle::NONE, 0, &data, WriteFlags::empty())?;
        if n % 7 == 0 {
            let value = vec![n as u8; n * 10];
            fs.setxattr(&ctx, entry.node, b"user.some", &value, SetXattrFlags::empty())?;
            fs.write(
                &ctx,
                entry.node,
                Handle::NONE,
                200_000,
                b"after a hole",
                WriteFlags::empty(),
            )?;
        }
        if n % 10 == 1 {
            fs.link(&ctx, entry.node, dir, format!("link-{n}").as_bytes())?;
            fs.symlink(&ctx, dir, format!("symlink-{n}").as_bytes(), b"../dir/target")?;
        }
        if n % 20 == 2 {
            fs.syncfs(&ctx, NodeId::ROOT)?;
        }
        last = Some(entry.node);
    }
    let last = last.context("files were made")?;
    fs.fallocate(&ctx, last, Handle::NONE, 0, 100_000, FallocateFlags::empty())?;
    // One extent for each second block.
    for n in 0..40 {
        fs.write(
            &ctx,
            last,
            Handle::NONE,
            n * 8192,
            &[n as u8; 4096],
            WriteFlags::empty(),
        )?;
    }
    fs.syncfs(&ctx, NodeId::ROOT)?;
    let new = NewNode {
        kind: FileKind::Fifo,
        perm: 0o600,
        rdev: 0,
    };
    fs.mknod(&ctx, dir, b"fifo", new)?;
    Ok(())
}
