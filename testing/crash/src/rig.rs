//! Volumes in memory, mounted in process.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use btrfs_check::{CheckOptions, Finding, FindingId, Severity};
use btrfs_format::TreeId;
use btrfs_image::{MkfsOptions, NewSubvolume, Profile, mkfs};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::DiscardMode;
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::fs::{AtimePolicy, MountOptions};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::{Fault, FaultKind, FaultPlan, FaultyDevice, On, Rng};
use cowshed_runtime::Env;
use cowshed_runtime::FixedEnv;
use cowshed_vfs::{Context, FileSystem, InitInfo};
use cowshed_vfs_ioctl::Front;

pub static ROOT: Context = Context::root();
const DEVICE_BYTES: u64 = 256 << 20;
/// Of a volume that is to be full.
const SMALL_DEVICE_BYTES: u64 = 128 << 20;

/// Each full leaf is written early: the runs are short.
const FULL_BYTES_MAX: usize = 1;

/// The devices of one volume.
pub type Devices = Vec<Arc<MemDevice>>;

/// Which volume a run works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One device, metadata twice on it.
    Dup,
    /// Two devices, everything on both.
    Raid1,
    /// One device, everything once: no second copy heals what was not written.
    Single,
}

/// A fresh volume. `uuid_byte` tells volumes apart for a kernel that sees several of them.
pub fn make(layout: Layout, nodesize_bytes: u32, uuid_byte: u8) -> Result<Devices> {
    make_as(layout, nodesize_bytes, [uuid_byte; 16])
}

/// A uuid for the volumes of one run: the kernel may look at those of other runs, and of other
/// processes, at the same time.
pub fn uuid_of(seed: u64) -> [u8; 16] {
    let mut uuid = [0; 16];
    Rng::new(seed ^ u64::from(std::process::id()).rotate_left(32)).fill(&mut uuid);
    uuid
}

/// A fresh volume of this uuid.
pub fn make_as(layout: Layout, nodesize_bytes: u32, uuid: [u8; 16]) -> Result<Devices> {
    make_with(layout, nodesize_bytes, uuid, false, &[])
}

/// A fresh volume, perhaps a small one, that has subvolumes: numbered from 256, each with its name
/// in the root of the top level or of one before it.
pub fn make_with(
    layout: Layout,
    nodesize_bytes: u32,
    uuid: [u8; 16],
    is_small: bool,
    subvolumes: &[(TreeId, &str)],
) -> Result<Devices> {
    let count = match layout {
        Layout::Dup | Layout::Single => 1,
        Layout::Raid1 => 2,
    };
    let device_bytes = if is_small { SMALL_DEVICE_BYTES } else { DEVICE_BYTES };
    let devices: Devices = (0..count)
        .map(|n| Arc::new(MemDevice::new(format!("memory-{n}"), device_bytes)))
        .collect();
    let mut options = MkfsOptions::new(uuid);
    options.nodesize_bytes = Some(nodesize_bytes);
    if !cowshed_harness::kernel::has_block_group_tree() {
        options.features.block_group_tree = Some(false);
    }
    let subvolume = |(parent, name): &(TreeId, &str)| NewSubvolume {
        parent: *parent,
        name: name.as_bytes().to_vec(),
    };
    options.subvolumes = subvolumes.iter().map(subvolume).collect();
    match layout {
        Layout::Dup => {}
        Layout::Raid1 => options.data_profile = Some(Profile::Raid1),
        Layout::Single => options.metadata_profile = Some(Profile::Single),
    }
    mkfs(&shared(&devices), &options).context("mkfs in memory")?;
    Ok(devices)
}

/// Devices as the engine takes them.
pub fn shared(devices: &Devices) -> Vec<Arc<dyn BlockDevice>> {
    devices
        .iter()
        .map(|device| device.clone() as Arc<dyn BlockDevice>)
        .collect()
}

/// The same device, which takes its time to write, to flush and to discard: a write that is sent
/// meanwhile is destroyed.
pub fn slow(device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let plan = FaultPlan::new();
    for (on, micros) in [(On::Write, 100), (On::Flush, 1000), (On::Discard, 500)] {
        let pause = Duration::from_micros(micros);
        plan.add(Fault::error(on, 0).with_kind(FaultKind::Slow { pause }).forever());
    }
    Arc::new(FaultyDevice::new(device, plan))
}

/// Independent copies.
pub fn snapshots(devices: &Devices) -> Devices {
    devices.iter().map(|device| Arc::new(device.snapshot())).collect()
}

/// Mounts; commits happen only when asked for, and an fsync is one.
/// A mount of ours, ioctls included.
pub type Fs = Front<cowshed_btrfs::fs::Fs>;

/// Plays scripts on a mount.
pub type Player<'f> = cowshed_model::script::Player<'f, cowshed_btrfs::fs::Fs>;

/// A file system with its ioctls.
pub fn front(fs: cowshed_btrfs::fs::Fs) -> Fs {
    Front::new(Arc::new(fs), Arc::new(FixedEnv::default()))
}

pub fn mount(devices: Vec<Arc<dyn BlockDevice>>) -> Result<Fs, cowshed_btrfs::Error> {
    mount_with(devices, false)
}

/// Mounts; with `tree_log` an fsync writes a log where it can.
pub fn mount_with(devices: Vec<Arc<dyn BlockDevice>>, tree_log: bool) -> Result<Fs, cowshed_btrfs::Error> {
    mount_as(devices, tree_log, MountOptions::default())
}

/// As [`mount_as`]; to look changes nothing, not even the clock. Each commit discards what it has
/// freed.
pub fn mount_to_watch(
    devices: Vec<Arc<dyn BlockDevice>>,
    tree_log: bool,
    mount: MountOptions,
) -> Result<Fs, cowshed_btrfs::Error> {
    let options = MountOptions {
        atime: AtimePolicy::Never,
        ..mount
    };
    mount_discarding(devices, tree_log, options, DiscardMode::Sync)
}

/// As [`mount_with`], with more options.
pub fn mount_as(
    devices: Vec<Arc<dyn BlockDevice>>,
    tree_log: bool,
    mount: MountOptions,
) -> Result<Fs, cowshed_btrfs::Error> {
    mount_discarding(devices, tree_log, mount, DiscardMode::Off)
}

/// As [`mount_as`], with what becomes of freed space.
pub fn mount_discarding(
    devices: Vec<Arc<dyn BlockDevice>>,
    tree_log: bool,
    mount: MountOptions,
    discard: DiscardMode,
) -> Result<Fs, cowshed_btrfs::Error> {
    let volume = Volume::open(devices, &OpenOptions::default())?;
    let options = EngineOptions {
        commit_interval_s: 0,
        memory_bytes_max: 64 << 20,
        tree_log,
        discard,
        ..EngineOptions::default()
    };
    let env: Arc<dyn Env> = Arc::new(FixedEnv::default());
    let engine = Mount::open(volume, env, options)?;
    engine.store().nodes().set_full_bytes_max(FULL_BYTES_MAX);
    let fs = cowshed_btrfs::fs::Fs::new(engine, mount)?;
    // Files leave memory as soon as others come, however few there are.
    fs.mount().objects().inodes.set_files_max(0);
    let fs = front(fs);
    fs.init(&InitInfo::TRUSTED).map_err(cowshed_btrfs::Error::Outcome)?;
    Ok(fs)
}

/// The generation of the superblock, and whether there is a log.
pub fn state(devices: Vec<Arc<dyn BlockDevice>>) -> Result<(u64, bool)> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let volume = Volume::open(devices, &options)?;
    let superblock = volume.superblock();
    Ok((superblock.generation.get(), superblock.log_root.get() != 0))
}

/// The checker, data included, finds nothing; but copies of the superblock, which stand in for each
/// other, may be torn.
pub fn check_clean(devices: &[Arc<dyn BlockDevice>]) -> Result<()> {
    check_clean_but(devices, |_, _| false)
}

/// As [`check_clean`], with some findings allowed, in view of all.
pub fn check_clean_but(devices: &[Arc<dyn BlockDevice>], allowed: impl Fn(&Finding, &[Finding]) -> bool) -> Result<()> {
    let options = CheckOptions {
        data_csums: true,
        // Each is judged.
        kept_per_id_max: u64::MAX,
        ..CheckOptions::default()
    };
    let report = btrfs_check::check(devices, &options);
    let is_fine =
        |f: &Finding| f.severity == Severity::Note || f.id == FindingId::SuperMirror || allowed(f, &report.findings);
    ensure!(report.findings.iter().all(is_fine), "the checker complains:\n{report}");
    Ok(())
}

/// Ends a mount without writing anything more, as a crash does.
pub fn abandon(fs: Fs) {
    fs.mount().store().txn().abort("a crash test stops here");
    fs.destroy();
}
