//! The devices of a volume, with what is known of each: identity, health, counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use btrfs_format::items::DevItem;
use btrfs_format::{DevId, Generation, Superblock, U64, Uuid};
use cowshed_device::BlockDevice;
use cowshed_runtime::lock::Mutex;

use crate::error::{Error, Result};
use crate::rank::LockRank;

/// What can happen to a device, in the order of `btrfs_dev_stats_item`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// A write failed.
    Write = 0,
    /// A read failed.
    Read = 1,
    /// A barrier failed.
    Flush = 2,
    /// Bytes that do not match their checksum or are not what they should be.
    Corruption = 3,
    /// A tree block of another generation: a write was lost.
    Generation = 4,
}

/// Counts by [`DeviceFault`], as `btrfs device stats` shows them.
pub type FaultCounts = [u64; 5];

/// What [`super::Volume::devices`] tells about a device.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Device id, unique in the volume.
    pub devid: DevId,
    /// The device's uuid, from its item.
    pub uuid: Uuid,
    /// Size of the part that the volume uses.
    pub total_bytes: u64,
    /// Bytes in device extents, as last stored with `Volume::set_device_item`.
    pub bytes_used: u64,
    /// The device's item, as the next superblock will carry it.
    pub item: DevItem,
    /// `None`: the device is missing.
    pub device: Option<Arc<dyn BlockDevice>>,
    /// Faults since the volume was opened.
    pub faults: FaultCounts,
}

/// A device of the volume.
#[derive(Debug)]
pub(super) struct Member {
    pub devid: DevId,
    pub uuid: Uuid,
    /// `None`: the device is missing.
    pub device: Option<Arc<dyn BlockDevice>>,
    pub item: Mutex<DevItem>,
    /// The newest superblock that is known to be on the device.
    superblock: Mutex<Option<Box<Superblock>>>,
    /// It lost writes (in this mount or an earlier one): others are read first.
    pub suspect: AtomicBool,
    /// It lost a write or a barrier since the volume was opened.
    pub lost_writes: AtomicBool,
    /// The last superblock replaced one of the same generation: only the log differs.
    pub superblock_rewritten: AtomicBool,
    faults: [AtomicU64; 5],
    reads_running: AtomicU32,
}

impl Member {
    pub(crate) fn new(item: DevItem, device: Option<Arc<dyn BlockDevice>>, superblock: Option<Superblock>) -> Self {
        Self {
            devid: item.devid.into(),
            uuid: item.uuid,
            device,
            item: Mutex::new(LockRank::MemberItem, item),
            superblock: Mutex::new(LockRank::MemberSuperblock, superblock.map(Box::new)),
            suspect: AtomicBool::new(false),
            lost_writes: AtomicBool::new(false),
            superblock_rewritten: AtomicBool::new(false),
            faults: Default::default(),
            reads_running: AtomicU32::new(0),
        }
    }

    /// The device, or the error that it is missing.
    pub(crate) fn present(&self) -> Result<&Arc<dyn BlockDevice>> {
        self.device.as_ref().ok_or(Error::MissingDevice { devid: self.devid })
    }

    /// The newest superblock that is known to be on the device.
    pub(crate) fn superblock(&self) -> Option<Superblock> {
        self.superblock.lock().as_deref().copied()
    }
    /// Its generation; 0 where none is known.
    pub(crate) fn superblock_generation(&self) -> Generation {
        let superblock = self.superblock.lock();
        superblock.as_ref().map_or(Generation(0), |sb| sb.generation.into())
    }
    /// The device took this one.
    pub(crate) fn set_superblock(&self, superblock: &Superblock) {
        *self.superblock.lock() = Some(Box::new(*superblock));
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, fault: DeviceFault) {
        self.faults[fault as usize].fetch_add(1, Ordering::Relaxed);
        match fault {
            DeviceFault::Write | DeviceFault::Flush => {
                self.lost_writes.store(true, Ordering::Release);
                self.suspect.store(true, Ordering::Relaxed);
            }
            DeviceFault::Read | DeviceFault::Corruption | DeviceFault::Generation => {}
        }
    }

    pub(crate) fn faults(&self) -> FaultCounts {
        self.faults.each_ref().map(|n| n.load(Ordering::Relaxed))
    }

    /// Reads running now, for the choice of a mirror.
    pub(crate) fn reads_running(&self) -> u32 {
        self.reads_running.load(Ordering::Relaxed)
    }

    /// Runs reads on the device, counting them while they run.
    pub(crate) fn reading<T>(&self, read: impl FnOnce(&dyn BlockDevice) -> cowshed_device::Result<T>) -> Result<T> {
        let device = self.present()?;
        self.reads_running.fetch_add(1, Ordering::Relaxed);
        let result = read(device.as_ref());
        self.reads_running.fetch_sub(1, Ordering::Relaxed);
        Ok(result?)
    }

    pub(crate) fn info(&self) -> DeviceInfo {
        let item = *self.item.lock();
        DeviceInfo {
            devid: self.devid,
            uuid: self.uuid,
            total_bytes: item.total_bytes.get(),
            bytes_used: item.bytes_used.get(),
            item,
            device: self.device.clone(),
            faults: self.faults(),
        }
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.item.lock().total_bytes.get()
    }

    /// The device item for this device's superblock.
    pub(crate) fn superblock_item(&self) -> DevItem {
        let mut item = *self.item.lock();
        // As the kernel leaves it.
        item.generation = U64::new(0);
        item
    }
}
