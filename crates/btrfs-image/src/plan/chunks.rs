//! Which chunks there are, how large, and where on the devices.
//!
//! The places are those that mkfs.btrfs gives: it starts with single chunks at the head of the
//! first device, makes those of the profiles asked for behind them, and drops what it does not
//! need. Here the first chunks that will be dropped are mere reservations, which fall away when
//! room is needed.

use std::collections::BTreeMap;
use std::ops::Range;

use btrfs_format::block::item_bytes_max;
use btrfs_format::features::block_group;
use btrfs_format::items::{ChunkHead, STRIPE_LEN_BYTES, Stripe};
use btrfs_format::superblock::{DEVICE_RESERVED_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{DevId, LogicalAddr, Uuid};

use crate::{MkfsError, Profile, Settings};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The first chunks of mkfs.btrfs: 4 MiB for system, and up to 8 MiB for metadata and for data.
const FIRST_SYSTEM_BYTES: u64 = 4 * MIB;
const FIRST_GROUP_BYTES_MAX: u64 = 8 * MIB;
/// Mixed volumes below this size get a first group of a fifth of the device, not of a tenth.
const SMALL_MIXED_BYTES: u64 = 30 * MIB;
/// Above this size of the volume metadata chunks are 1 GiB, else 256 MiB.
const LARGE_VOLUME_BYTES: u64 = 50 * GIB;
/// The smallest stripe that is made where a device has no room for a better one.
const STRIPE_BYTES_MIN: u64 = MIB;
/// Stripes of a system chunk, so that two of them fit the superblock's 2048 bytes: (2048 / 2 -
/// 17 - 48) / 32.
const SYSTEM_STRIPES_MAX: usize = 29;

/// What a chunk holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ChunkKind {
    /// The chunk tree.
    System,
    /// All other trees.
    Metadata,
    /// File data.
    Data,
    /// Data and metadata.
    Mixed,
}

impl ChunkKind {
    /// The kind's bits in a chunk's type.
    pub const fn flags(self) -> u64 {
        match self {
            Self::System => block_group::SYSTEM,
            Self::Metadata => block_group::METADATA,
            Self::Data => block_group::DATA,
            Self::Mixed => block_group::DATA | block_group::METADATA,
        }
    }
    /// For messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Metadata => "metadata",
            Self::Data => "data",
            Self::Mixed => "data+metadata",
        }
    }
    /// True where file data goes.
    pub const fn holds_data(self) -> bool {
        matches!(self, Self::Data | Self::Mixed)
    }
    /// True where tree blocks go.
    pub const fn holds_metadata(self) -> bool {
        matches!(self, Self::Metadata | Self::Mixed)
    }
}

/// A place on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedStripe {
    /// Index into the plan's devices; the device id is one more.
    pub device: usize,
    /// From the start of the device.
    pub offset_bytes: u64,
}

/// A chunk, which is also a block group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedChunk {
    /// Where it begins.
    pub logical: LogicalAddr,
    /// Its bytes of logical address space.
    pub length_bytes: u64,
    /// What it holds.
    pub kind: ChunkKind,
    /// How it lies on the devices.
    pub profile: Profile,
    /// Bytes on each device.
    pub stripe_bytes: u64,
    /// In the order of the chunk item.
    pub stripes: Vec<PlannedStripe>,
}

impl PlannedChunk {
    /// `type` of the chunk item.
    pub fn flags(&self) -> u64 {
        self.kind.flags() | self.profile.flag()
    }
    /// Its logical addresses.
    pub fn range(&self) -> Range<u64> {
        self.logical.0..self.logical.0 + self.length_bytes
    }

    /// The copies of `len_bytes` at `logical`, which lie in one stripe element.
    pub fn map(&self, logical: LogicalAddr, len_bytes: u64) -> Vec<PlannedStripe> {
        let offset = logical.0 - self.logical.0;
        assert!(offset + len_bytes <= self.length_bytes, "a range outside of its chunk");
        let (nr, within) = (offset / STRIPE_LEN_BYTES, offset % STRIPE_LEN_BYTES);
        assert!(
            !self.profile.is_striped() || within + len_bytes <= STRIPE_LEN_BYTES,
            "a range over two stripe elements"
        );
        let copies = if self.profile.is_striped() {
            self.profile.copies()
        } else {
            self.stripes.len()
        };
        let columns = (self.stripes.len() / copies) as u64;
        let first = (nr % columns) as usize * copies;
        let on_device = nr / columns * STRIPE_LEN_BYTES + within;
        self.stripes[first..first + copies]
            .iter()
            .map(|stripe| PlannedStripe {
                device: stripe.device,
                offset_bytes: stripe.offset_bytes + on_device,
            })
            .collect()
    }

    /// Logical ranges, in whole stripe elements, that share bytes with a copy of the superblock.
    /// Nothing may lie there.
    pub fn superblock_ranges(&self) -> Vec<Range<u64>> {
        let copies = if self.profile.is_striped() {
            self.profile.copies()
        } else {
            self.stripes.len()
        };
        let columns = (self.stripes.len() / copies) as u64;
        let mut ranges = Vec::new();
        for (index, stripe) in self.stripes.iter().enumerate() {
            let on_device = stripe.offset_bytes..stripe.offset_bytes + self.stripe_bytes;
            let column = index as u64 / copies as u64;
            for offset in SUPERBLOCK_OFFSETS {
                if offset + SUPERBLOCK_BYTES as u64 <= on_device.start || offset >= on_device.end {
                    continue;
                }
                let row = offset.saturating_sub(on_device.start) / STRIPE_LEN_BYTES;
                let start = self.logical.0 + (row * columns + column) * STRIPE_LEN_BYTES;
                ranges.push(start..start + STRIPE_LEN_BYTES);
            }
        }
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// The chunk item without its stripes.
    pub fn head(&self, sectorsize_bytes: u32) -> ChunkHead {
        let stripe_len = u32::try_from(STRIPE_LEN_BYTES).expect("a stripe element is 64 KiB");
        ChunkHead {
            length: self.length_bytes.into(),
            owner: btrfs_format::TreeId::EXTENT.into(),
            stripe_len: STRIPE_LEN_BYTES.into(),
            ty: self.flags().into(),
            io_align: stripe_len.into(),
            io_width: stripe_len.into(),
            sector_size: sectorsize_bytes.into(),
            num_stripes: u16::try_from(self.stripes.len())
                .expect("the planner limits stripes")
                .into(),
            sub_stripes: self.profile.sub_stripes().into(),
        }
    }

    /// The chunk item's stripes.
    pub fn disk_stripes(&self, devices: &[PlannedDevice]) -> Vec<Stripe> {
        self.stripes
            .iter()
            .map(|stripe| Stripe {
                devid: devices[stripe.device].devid.into(),
                offset: stripe.offset_bytes.into(),
                dev_uuid: devices[stripe.device].uuid,
            })
            .collect()
    }
}

/// A device and what of it is taken.
#[derive(Clone, Debug)]
pub struct PlannedDevice {
    /// Its number, from 1.
    pub devid: DevId,
    /// Its uuid.
    pub uuid: Uuid,
    /// Bytes that the volume uses of it.
    pub total_bytes: u64,
    /// Start and length of what is taken, the reserved head included.
    taken: BTreeMap<u64, u64>,
}

impl PlannedDevice {
    fn holes(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let starts = self.taken.keys().copied().chain([self.total_bytes]);
        let mut at = 0;
        let mut ends = self.taken.iter().map(|(start, len)| start + len);
        starts.filter_map(move |start| {
            let hole = at..start;
            at = ends.next().unwrap_or(start);
            (hole.start < hole.end).then_some(hole)
        })
    }
    /// The largest stripe of which `count` fit.
    fn stripe_bytes_max(&self, count: usize) -> u64 {
        let mut lens: Vec<u64> = self.holes().map(|hole| hole.end - hole.start).collect();
        lens.sort_unstable_by(|a, b| b.cmp(a));
        let round = |bytes: u64| bytes - bytes % STRIPE_LEN_BYTES;
        match (count, lens.as_slice()) {
            (_, []) => 0,
            (1, [first, ..]) => round(*first),
            (_, [first]) => round(first / 2),
            (_, [first, second, ..]) => round((first / 2).max(*second)),
        }
    }
    /// Takes the first hole that is large enough.
    fn take(&mut self, len_bytes: u64) -> Option<u64> {
        let start = self.holes().find(|hole| hole.end - hole.start >= len_bytes)?.start;
        self.taken.insert(start, len_bytes);
        Some(start)
    }
}

/// Makes chunks.
#[derive(Clone, Debug)]
pub struct ChunkPlanner {
    /// In the order in which they were given.
    pub devices: Vec<PlannedDevice>,
    /// By logical address.
    pub chunks: Vec<PlannedChunk>,
    next_logical: u64,
    /// What is kept free on the first device although nothing lies there.
    reserved: Vec<u64>,
    total_bytes: u64,
    /// Stripes whose chunk item still fits a leaf.
    stripes_max: usize,
    /// The devices are too small for chunks of the usual sizes.
    cramped: bool,
}

impl ChunkPlanner {
    /// The chunks of an empty volume.
    pub fn new(settings: &Settings) -> Result<Self, MkfsError> {
        Self::with_sizes(settings, false).or_else(|_| Self::with_sizes(settings, true))
    }

    /// Devices without chunks: the caller adds them ([`ChunkPlanner::add_sized`]).
    pub(crate) fn bare(settings: &Settings) -> Self {
        let devices = settings
            .device_bytes
            .iter()
            .zip(&settings.device_uuids)
            .zip(1..)
            .map(|((&total_bytes, &uuid), devid)| PlannedDevice {
                devid: DevId(devid),
                uuid,
                total_bytes,
                taken: BTreeMap::from([(0, DEVICE_RESERVED_BYTES)]),
            })
            .collect();
        Self {
            devices,
            chunks: Vec::new(),
            next_logical: DEVICE_RESERVED_BYTES,
            reserved: Vec::new(),
            total_bytes: settings.total_bytes(),
            stripes_max: (item_bytes_max(settings.nodesize()) - size_of::<ChunkHead>()) / size_of::<Stripe>(),
            cramped: false,
        }
    }

    fn with_sizes(settings: &Settings, cramped: bool) -> Result<Self, MkfsError> {
        let mut planner = Self {
            cramped,
            ..Self::bare(settings)
        };
        planner.first_chunks(settings);
        let single = Profile::Single;
        if settings.metadata_profile != single {
            planner.add(ChunkKind::System, settings.metadata_profile)?;
        }
        if settings.features.mixed_bg {
            if settings.metadata_profile != single {
                planner.add(ChunkKind::Mixed, settings.metadata_profile)?;
            }
        } else {
            if settings.metadata_profile != single {
                planner.add(ChunkKind::Metadata, settings.metadata_profile)?;
            }
            if settings.data_profile != single {
                planner.add(ChunkKind::Data, settings.data_profile)?;
            }
        }
        Ok(planner)
    }

    /// Lays the single chunks at the head of the first device; what the profiles do not want is
    /// only reserved.
    fn first_chunks(&mut self, settings: &Settings) {
        let first_device_bytes = self.devices[0].total_bytes;
        let mixed = settings.features.mixed_bg;
        let share = if mixed && first_device_bytes < SMALL_MIXED_BYTES {
            5
        } else {
            10
        };
        let group_bytes = (first_device_bytes / share).min(FIRST_GROUP_BYTES_MAX);
        let group_bytes = group_bytes - group_bytes % STRIPE_LEN_BYTES;
        let metadata = settings.metadata_profile;
        self.first_chunk(ChunkKind::System, metadata, FIRST_SYSTEM_BYTES);
        if mixed {
            self.first_chunk(ChunkKind::Mixed, metadata, group_bytes);
        } else {
            self.first_chunk(ChunkKind::Metadata, metadata, group_bytes);
            self.first_chunk(ChunkKind::Data, settings.data_profile, group_bytes);
        }
    }

    fn first_chunk(&mut self, kind: ChunkKind, profile: Profile, len_bytes: u64) {
        let logical = self.next_logical;
        self.devices[0].taken.insert(logical, len_bytes);
        self.next_logical += len_bytes;
        if profile == Profile::Single {
            self.chunks.push(PlannedChunk {
                logical: LogicalAddr(logical),
                length_bytes: len_bytes,
                kind,
                profile,
                stripe_bytes: len_bytes,
                stripes: vec![PlannedStripe {
                    device: 0,
                    offset_bytes: logical,
                }],
            });
        } else {
            self.reserved.push(logical);
        }
    }

    /// Adds a chunk, as large as suits the volume and fits the devices.
    pub fn add(&mut self, kind: ChunkKind, profile: Profile) -> Result<(), MkfsError> {
        if self.try_add(kind, profile) {
            return Ok(());
        }
        for start in std::mem::take(&mut self.reserved) {
            self.devices[0].taken.remove(&start);
        }
        if self.try_add(kind, profile) {
            return Ok(());
        }
        Err(MkfsError::NoSpace {
            what: kind.name(),
            profile,
        })
    }

    fn try_add(&mut self, kind: ChunkKind, profile: Profile) -> bool {
        self.try_add_of(kind, profile, None).is_some()
    }

    /// Adds a chunk of `len_bytes`, or of as much of it as the devices have room for, rounded to
    /// whole stripe elements; gives its length. `None` where there is no room at all.
    pub(crate) fn add_sized(&mut self, kind: ChunkKind, profile: Profile, len_bytes: u64) -> Option<u64> {
        self.try_add_of(kind, profile, Some(len_bytes))
    }

    /// Cuts the last chunk behind its first `len_bytes`, rounded up to whole stripe elements. What
    /// it no longer has is free on the devices.
    pub(crate) fn shrink_last(&mut self, len_bytes: u64) {
        let Some(chunk) = self.chunks.last_mut() else { return };
        let columns = chunk.length_bytes / chunk.stripe_bytes;
        let stripe_bytes = len_bytes.div_ceil(columns).next_multiple_of(STRIPE_LEN_BYTES);
        let stripe_bytes = stripe_bytes.clamp(STRIPE_LEN_BYTES, chunk.stripe_bytes);
        chunk.stripe_bytes = stripe_bytes;
        chunk.length_bytes = stripe_bytes * columns;
        for stripe in &chunk.stripes {
            self.devices[stripe.device]
                .taken
                .insert(stripe.offset_bytes, stripe_bytes);
        }
        self.next_logical = chunk.range().end;
    }

    /// As [`ChunkPlanner::shrink_last`], for a chunk in which nothing is written yet: its copies
    /// move together.
    pub(crate) fn shrink_unwritten_last(&mut self, len_bytes: u64) {
        self.shrink_last(len_bytes);
        let Some(chunk) = self.chunks.last_mut() else { return };
        for stripe in &chunk.stripes {
            self.devices[stripe.device].taken.remove(&stripe.offset_bytes);
        }
        for stripe in &mut chunk.stripes {
            let offset = self.devices[stripe.device].take(chunk.stripe_bytes);
            stripe.offset_bytes = offset.expect("it fits where a larger one was");
        }
    }

    /// Takes the last chunk back, in which nothing is written yet.
    pub(crate) fn remove_unwritten_last(&mut self) {
        let Some(chunk) = self.chunks.pop() else { return };
        for stripe in &chunk.stripes {
            self.devices[stripe.device].taken.remove(&stripe.offset_bytes);
        }
        self.next_logical = chunk.logical.0;
    }

    /// The devices end `slack_bytes` behind their last chunk, and have `least_bytes` at least.
    pub(crate) fn fit_devices(&mut self, slack_bytes: u64, least_bytes: u64) {
        for device in &mut self.devices {
            let end = device.taken.iter().next_back().map_or(0, |(start, len)| start + len);
            let fit = end + slack_bytes.next_multiple_of(STRIPE_LEN_BYTES);
            device.total_bytes = fit.max(least_bytes);
        }
        self.total_bytes = self.devices.iter().map(|device| device.total_bytes).sum();
    }

    fn try_add_of(&mut self, kind: ChunkKind, profile: Profile, len_bytes: Option<u64>) -> Option<u64> {
        let per_device = profile.stripes_per_device();
        // The emptiest devices first: copies spread, and no device is full before the others.
        let mut room: Vec<(u64, usize)> = self
            .devices
            .iter()
            .enumerate()
            .map(|(index, device)| (device.stripe_bytes_max(per_device), index))
            .filter(|&(bytes, _)| {
                bytes
                    >= if len_bytes.is_some() {
                        STRIPE_LEN_BYTES
                    } else {
                        STRIPE_BYTES_MIN
                    }
            })
            .collect();
        room.sort_by_key(|&(bytes, index)| (std::cmp::Reverse(bytes), index));
        let device_count = self.device_count(kind, profile, room.len())?;
        room.truncate(device_count);
        let fits = room.last().map_or(0, |&(bytes, _)| bytes);
        let stripe_count = device_count * per_device;
        let columns = (stripe_count / profile.copies()) as u64;
        let mut stripe_bytes = self.stripe_bytes_wanted(kind, stripe_count as u64, columns).min(fits);
        if let Some(len_bytes) = len_bytes {
            stripe_bytes = len_bytes.div_ceil(columns).next_multiple_of(STRIPE_LEN_BYTES).min(fits);
        } else if self.cramped {
            // mkfs.btrfs gives up here. Half of the room stays for chunks to come.
            stripe_bytes = match kind {
                ChunkKind::System => STRIPE_BYTES_MIN,
                _ => (fits / 2 - fits / 2 % STRIPE_LEN_BYTES).max(STRIPE_BYTES_MIN),
            };
        }
        let mut indices: Vec<usize> = room.into_iter().map(|(_, index)| index).collect();
        indices.sort_unstable();
        let stripes = indices
            .into_iter()
            .flat_map(|index| std::iter::repeat_n(index, per_device))
            .map(|device| PlannedStripe {
                device,
                offset_bytes: self.devices[device]
                    .take(stripe_bytes)
                    .expect("the device was chosen for its room"),
            })
            .collect();
        self.chunks.push(PlannedChunk {
            logical: LogicalAddr(self.next_logical),
            length_bytes: stripe_bytes * columns,
            kind,
            profile,
            stripe_bytes,
            stripes,
        });
        self.next_logical += stripe_bytes * columns;
        Some(stripe_bytes * columns)
    }

    /// How many of `available` devices a chunk takes; `None` where they are too few.
    fn device_count(&self, kind: ChunkKind, profile: Profile, available: usize) -> Option<usize> {
        if available < profile.devices_min() {
            return None;
        }
        if !profile.is_striped() {
            return Some(profile.devices_min());
        }
        let mut limit = self.stripes_max;
        if kind == ChunkKind::System {
            limit = limit.min(SYSTEM_STRIPES_MAX);
        }
        let count = available.min(limit);
        Some(count - count % profile.copies())
    }

    /// The stripe that mkfs.btrfs makes where there is room: chunks of a size that suits their
    /// kind, but no more than a tenth of the volume, and no less than what can be worked with.
    fn stripe_bytes_wanted(&self, kind: ChunkKind, stripes: u64, columns: u64) -> u64 {
        let (wanted, chunk_max, min) = match kind {
            ChunkKind::System => (8 * MIB, 16 * MIB, MIB),
            ChunkKind::Metadata if self.total_bytes > LARGE_VOLUME_BYTES => (GIB, GIB, 32 * MIB),
            ChunkKind::Metadata => (256 * MIB, 256 * MIB, 32 * MIB),
            ChunkKind::Data | ChunkKind::Mixed => (GIB, 10 * GIB, 64 * MIB),
        };
        let chunk_max = chunk_max.min(self.total_bytes / 10);
        let stripe = if wanted * columns > chunk_max {
            chunk_max / stripes
        } else {
            wanted
        };
        (stripe - stripe % STRIPE_LEN_BYTES).max(min)
    }

    /// Bytes of a device that chunks take.
    pub fn device_used_bytes(&self, device: usize) -> u64 {
        self.chunks
            .iter()
            .flat_map(|chunk| chunk.stripes.iter().map(move |stripe| (stripe, chunk)))
            .filter(|(stripe, _)| stripe.device == device)
            .map(|(_, chunk)| chunk.stripe_bytes)
            .sum()
    }

    /// The chunk that holds an address.
    pub fn chunk_of(&self, logical: LogicalAddr) -> Option<&PlannedChunk> {
        let index = self.chunks.partition_point(|chunk| chunk.logical <= logical);
        let chunk = self.chunks.get(index.checked_sub(1)?)?;
        chunk.range().contains(&logical.0).then_some(chunk)
    }
}
