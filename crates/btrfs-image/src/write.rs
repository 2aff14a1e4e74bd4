//! Carries a plan out.
//!
//! The order is what makes a crash harmless: what the devices held is gone, durably, before
//! anything new appears; the superblocks follow when all that they point at is durable. In between
//! there is no volume, never half of one.

use std::sync::Arc;

use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{TreeBlock, Uuid};
use cowshed_device::{BlockDevice, WriteOp};
use zerocopy::IntoBytes;

use crate::plan::{ChunkKind, ChunkPlanner, GENERATION, Superblocks, VolumePlan};
use crate::{MkfsError, MkfsOptions, Profile, Settings, Signature, signature};

/// Bytes at the head and at the end of a device that are zeroed: every known signature lies there
/// or is wiped by name.
const WIPE_BYTES: u64 = 2 << 20;
/// What is read, and written where it is not zero already, at once.
const WIPE_STEP_BYTES: usize = 64 << 10;
/// Blocks that are gathered before they are written.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// A chunk that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkReport {
    pub kind: ChunkKind,
    pub profile: Profile,
    pub length_bytes: u64,
}

/// What became of the old contents of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discarded {
    /// As far as the volume reaches.
    All,
    /// The options do not ask for it.
    NotAsked,
    /// The device cannot discard, or did not: they stay until they are overwritten.
    NotDone,
}

/// A device of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    pub devid: u64,
    pub uuid: Uuid,
    pub name: String,
    pub total_bytes: u64,
    /// What was there before and is overwritten.
    pub wiped: Vec<Signature>,
    pub discarded: Discarded,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct MkfsReport {
    pub settings: Settings,
    pub incompat_flags: u64,
    pub compat_ro_flags: u64,
    pub total_bytes: u64,
    pub used_bytes: u64,
    pub chunks: Vec<ChunkReport>,
    pub devices: Vec<DeviceReport>,
}

/// Makes a volume on `devices`, of which each is used whole, or as far as `byte_count` says.
///
/// Nothing is written before all that can be refused has been checked.
pub fn mkfs(devices: &[Arc<dyn BlockDevice>], options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let sizes: Vec<(&str, u64)> = devices.iter().map(|d| (d.name(), d.size_bytes())).collect();
    let plan = VolumePlan::empty(options.settle(&sizes)?)?;
    let overwrite = Overwrite {
        force: options.force,
        discard: options.discard,
    };
    write_volume(devices, plan, overwrite)
}

/// How to treat what the devices hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// Overwrite it; else it is refused.
    pub force: bool,
    /// Tell the devices that it is not needed any more.
    pub discard: bool,
}

/// Writes a planned volume to the devices that it was planned for. The caller writes the data of
/// its data extents, after the plan's chunks ([`crate::plan::PlannedChunk::map`]) and after this.
pub fn write_volume(
    devices: &[Arc<dyn BlockDevice>],
    plan: VolumePlan,
    overwrite: Overwrite,
) -> Result<MkfsReport, MkfsError> {
    let wiped = check_devices(devices, overwrite.force)?;
    let discarded = wipe(devices, &plan.chunks, &wiped, overwrite.discard)?;
    write_trees(devices, &plan)?;
    write_superblocks(devices, &plan.superblocks())?;
    let found = wiped.into_iter().zip(discarded);
    Ok(report(devices, plan, found))
}

/// Looks at what the devices hold, and refuses what may not be overwritten.
pub(crate) fn check_devices(devices: &[Arc<dyn BlockDevice>], force: bool) -> Result<Vec<Vec<Signature>>, MkfsError> {
    let mut all = Vec::with_capacity(devices.len());
    for device in devices {
        if device.is_read_only() {
            return Err(MkfsError::ReadOnly {
                name: device.name().into(),
            });
        }
        let found = signature::probe(device.as_ref())?;
        if let (false, Some(&first)) = (force, found.first()) {
            return Err(MkfsError::InUse {
                name: device.name().into(),
                found: first,
            });
        }
        all.push(found);
    }
    Ok(all)
}

/// Makes the devices forget what they held. Gives what was discarded of each.
pub(crate) fn wipe(
    devices: &[Arc<dyn BlockDevice>],
    chunks: &ChunkPlanner,
    found: &[Vec<Signature>],
    discard: bool,
) -> Result<Vec<Discarded>, MkfsError> {
    for device in devices {
        for offset in SUPERBLOCK_OFFSETS {
            zero(device.as_ref(), offset, SUPERBLOCK_BYTES as u64)?;
        }
    }
    // Barrier: no old superblock may be found once anything that it points at is gone.
    flush(devices)?;
    let mut discarded = Vec::with_capacity(devices.len());
    for ((device, found), planned) in devices.iter().zip(found).zip(&chunks.devices) {
        let device = device.as_ref();
        discarded.push(match discard {
            true => discard_all(device, planned.total_bytes),
            false => Discarded::NotAsked,
        });
        // After the discard: what is discarded may read as anything.
        zero(device, 0, WIPE_BYTES)?;
        zero(device, device.size_bytes().saturating_sub(WIPE_BYTES), WIPE_BYTES)?;
        for offset in SUPERBLOCK_OFFSETS {
            zero(device, offset, SUPERBLOCK_BYTES as u64)?;
        }
        for signature in found {
            zero(device, signature.offset_bytes, signature.len_bytes as u64)?;
        }
    }
    // Barrier: a discard must not overtake the blocks that follow.
    flush(devices)?;
    Ok(discarded)
}

/// A discard that fails is no error: what is left of the old contents is free space.
fn discard_all(device: &dyn BlockDevice, len_bytes: u64) -> Discarded {
    // Whether the device can is known for certain afterwards.
    match device.discard(0, len_bytes) {
        Ok(()) if device.discard_granularity_bytes().is_some() => Discarded::All,
        Ok(()) | Err(_) => Discarded::NotDone,
    }
}

pub(crate) fn flush(devices: &[Arc<dyn BlockDevice>]) -> Result<(), MkfsError> {
    devices.iter().try_for_each(|device| Ok(device.flush()?))
}

/// Zeroes a range as far as it lies on the device. What is zero already is not written: image files
/// stay sparse.
fn zero(device: &dyn BlockDevice, offset_bytes: u64, len_bytes: u64) -> Result<(), MkfsError> {
    let zeros = [0; WIPE_STEP_BYTES];
    let mut buf = [0; WIPE_STEP_BYTES];
    let end = offset_bytes.saturating_add(len_bytes).min(device.size_bytes());
    let mut at = offset_bytes;
    while at < end {
        let step = (end - at).min(WIPE_STEP_BYTES as u64) as usize;
        device.read_at(at, &mut buf[..step])?;
        if buf[..step] != zeros[..step] {
            device.write_at(at, &zeros[..step])?;
        }
        at += step as u64;
    }
    Ok(())
}

/// Writes every copy of every block.
fn write_trees(devices: &[Arc<dyn BlockDevice>], plan: &VolumePlan) -> Result<(), MkfsError> {
    let mut batch = Batch::new(devices, &plan.chunks);
    for placed in &plan.trees {
        placed.build(&plan.settings, GENERATION, |block| batch.put(block))?;
    }
    batch.write()?;
    // Barrier: a superblock may only be found when all that it points at is there.
    flush(devices)
}

/// Blocks that wait to be written together.
pub(crate) struct Batch<'a> {
    devices: &'a [Arc<dyn BlockDevice>],
    chunks: &'a ChunkPlanner,
    blocks: Vec<TreeBlock>,
    bytes: usize,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(devices: &'a [Arc<dyn BlockDevice>], chunks: &'a ChunkPlanner) -> Self {
        Self {
            devices,
            chunks,
            blocks: Vec::new(),
            bytes: 0,
        }
    }

    pub(crate) fn put(&mut self, block: TreeBlock) -> Result<(), MkfsError> {
        self.bytes += block.bytes().len();
        self.blocks.push(block);
        if self.bytes >= BATCH_BYTES_MAX {
            self.write()?;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self) -> Result<(), MkfsError> {
        write_blocks(self.devices, self.chunks, &self.blocks)?;
        self.blocks.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// Writes blocks to all their places.
pub(crate) fn write_blocks(
    devices: &[Arc<dyn BlockDevice>],
    chunks: &ChunkPlanner,
    blocks: &[TreeBlock],
) -> Result<(), MkfsError> {
    let mut writes: Vec<Vec<WriteOp<'_>>> = vec![Vec::new(); devices.len()];
    for block in blocks {
        let chunk = chunks.chunk_of(block.addr());
        let chunk = chunk.expect("a block of the plan lies in a chunk of the plan");
        for copy in chunk.map(block.addr(), block.bytes().len() as u64) {
            writes[copy.device].push(WriteOp {
                offset_bytes: copy.offset_bytes,
                data: block.bytes(),
            });
        }
    }
    for (device, writes) in devices.iter().zip(&writes) {
        device.write_batch(writes)?;
    }
    Ok(())
}

pub(crate) fn write_superblocks(devices: &[Arc<dyn BlockDevice>], plan: &Superblocks<'_>) -> Result<(), MkfsError> {
    for (index, device) in devices.iter().enumerate() {
        let total_bytes = plan.chunks.devices[index].total_bytes;
        for offset in SUPERBLOCK_OFFSETS {
            if offset + SUPERBLOCK_BYTES as u64 <= total_bytes {
                device.write_at(offset, plan.superblock(index, offset).as_bytes())?;
            }
        }
    }
    // Barrier: the volume is there when mkfs says so.
    flush(devices)
}

fn report(
    devices: &[Arc<dyn BlockDevice>],
    plan: VolumePlan,
    found: impl Iterator<Item = (Vec<Signature>, Discarded)>,
) -> MkfsReport {
    let devices = device_reports(devices, &plan.chunks, found);
    MkfsReport {
        incompat_flags: plan.incompat_bits(),
        compat_ro_flags: plan.settings.features.compat_ro_bits(),
        total_bytes: plan.settings.total_bytes(),
        used_bytes: plan.used_bytes(),
        chunks: plan.chunks.reports(),
        devices,
        settings: plan.settings,
    }
}

impl ChunkPlanner {
    /// What there is of each kind.
    pub fn reports(&self) -> Vec<ChunkReport> {
        let chunks = self.chunks.iter().map(|chunk| ChunkReport {
            kind: chunk.kind,
            profile: chunk.profile,
            length_bytes: chunk.length_bytes,
        });
        chunks.collect()
    }
}

/// What became of each device.
pub(crate) fn device_reports(
    devices: &[Arc<dyn BlockDevice>],
    chunks: &ChunkPlanner,
    found: impl Iterator<Item = (Vec<Signature>, Discarded)>,
) -> Vec<DeviceReport> {
    devices
        .iter()
        .zip(&chunks.devices)
        .zip(found)
        .map(|((device, planned), (wiped, discarded))| DeviceReport {
            devid: planned.devid.0,
            uuid: planned.uuid,
            name: device.name().into(),
            total_bytes: planned.total_bytes,
            wiped,
            discarded,
        })
        .collect()
}
