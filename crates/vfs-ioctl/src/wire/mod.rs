//! Ioctls of our own, for what Linux does not pass on to a file system in user space: those that
//! name a second file by a descriptor, and those whose size is not in their number.
//! docs/design/ioctls.md.
//!
//! A second file is named by a [`Token`] that was got through it: its holder had the file open.

pub mod btrfs;
pub mod search;
pub mod trees;
pub mod usage;

use std::mem::{offset_of, size_of};

use cowshed_vfs::{MapExtent, MapKind, SpaceAccount, SubvolumeInfo, Timestamp};
use zerocopy::little_endian::{I32, I64, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The letter of our ioctls.
const LETTER: u32 = 0xc5;
const READ: u32 = 2 << 30;
const WRITE: u32 = 1 << 30;

const fn number(direction: u32, number: u32, size: usize) -> u32 {
    assert!(size < 1 << 14, "the number has 14 bits for the size");
    direction | (size as u32) << 16 | LETTER << 8 | number
}

/// Lends the open file: fills a [`Token`].
pub const LEND: u32 = number(READ, 1, size_of::<Token>());
/// Clones, dedupes or exchanges a range of the lent file with this one: [`Remap`].
pub const REMAP: u32 = number(READ | WRITE, 2, size_of::<Remap>());
/// Extents of the file: [`MapPage`].
pub const MAP: u32 = number(READ | WRITE, 3, size_of::<MapPage>());
/// The account of the volume's space: fills a [`SpacePage`].
pub const SPACE: u32 = number(READ, 4, size_of::<SpacePage>());
/// Makes a snapshot of the lent subvolume in this directory: [`Snapshot`].
pub const SNAPSHOT: u32 = number(WRITE, 5, size_of::<Snapshot>());
/// The next subvolume of the volume: [`SubvolumePage`].
pub const SUBVOLUME: u32 = number(READ | WRITE, 6, size_of::<SubvolumePage>());
/// `BTRFS_IOC_DEFRAG_RANGE` of `<linux/btrfs.h>`: [`DefragRange`].
pub const DEFRAG_RANGE: u32 = WRITE | (size_of::<DefragRange>() as u32) << 16 | 0x9410;

/// `BTRFS_IOC_SYNC` of `<linux/btrfs.h>`, without an argument.
pub const SYNC: u32 = 0x9408;

/// Names an open file in a call on another. Random; valid for a minute while the file is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Token(pub [u8; 16]);

/// What [`Remap`] does.
pub mod op {
    /// FICLONERANGE: from the lent file into this one.
    pub const CLONE: u32 = 0;
    /// FIDEDUPERANGE: the lent file is the source.
    pub const DEDUPE: u32 = 1;
    /// XFS_IOC_EXCHANGE_RANGE: this is the second file.
    pub const EXCHANGE: u32 = 2;
}

/// Flags of [`Remap`].
pub mod flag {
    /// Exchange to the end of both files.
    pub const TO_EOF: u32 = 1;
    /// Exchange only if this file has the identity and the times given.
    pub const IF_FRESH: u32 = 2;
    /// Exchange: only look whether it could be done.
    pub const DRY_RUN: u32 = 4;
    /// On disk when the call returns.
    pub const SYNC: u32 = 8;
    /// Exchange only what is written in the other file.
    pub const ONLY_WRITTEN: u32 = 16;
}

/// A time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Time {
    /// Seconds since 1970 UTC.
    pub secs: I64,
    /// Nanoseconds below 10^9.
    pub nanos: U32,
    /// Zero.
    pub pad: U32,
}

/// Argument of [`REMAP`]; offsets and lengths in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Remap {
    /// The other file.
    pub token: Token,
    /// One of [`op`].
    pub op: U32,
    /// Of [`flag`].
    pub flags: U32,
    /// In the lent file.
    pub src_offset: U64,
    /// In this one.
    pub dst_offset: U64,
    /// 0: to the end of the source (clone).
    pub len_bytes: U64,
    /// With [`flag::IF_FRESH`], as `stat` shows them.
    pub ino: U64,
    /// With [`flag::IF_FRESH`].
    pub mtime: Time,
    /// With [`flag::IF_FRESH`].
    pub ctime: Time,
    /// Out, dedupe: bytes that are the same and shared now.
    pub done_bytes: U64,
    /// Out, dedupe: 0 the same, 1 they differ.
    pub status: I32,
    /// Zero.
    pub pad: U32,
}
const _: () = assert!(size_of::<Remap>() == 104 && offset_of!(Remap, done_bytes) == 88);

/// Argument of [`SNAPSHOT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Snapshot {
    /// The root directory of the source.
    pub token: Token,
    /// 1: nothing in it can be changed.
    pub is_read_only: U32,
    /// Bytes of the name.
    pub name_bytes: U32,
    /// The name; the rest is zeros.
    pub name: [u8; 256],
}

/// Argument of [`SUBVOLUME`]; see [`cowshed_vfs::SubvolumeInfo`] for the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SubvolumePage {
    /// In: the least number. Out: the number that was found; 0 where there is none.
    pub id: U64,
    /// Number of the subvolume that the name is in.
    pub parent_id: U64,
    /// 1: nothing in it can be changed.
    pub is_read_only: U32,
    /// Bytes of the path.
    pub path_bytes: U32,
    /// Transaction in which its tree was written last.
    pub generation: U64,
    /// Transaction in which its content changed last.
    pub changed_generation: U64,
    /// Transaction in which it was made.
    pub created_generation: U64,
    /// Transaction of what it was received from, there.
    pub sent_generation: U64,
    /// Its id.
    pub uuid: [u8; 16],
    /// Id of the source of a snapshot.
    pub parent_uuid: [u8; 16],
    /// Id of what was received.
    pub received_uuid: [u8; 16],
    /// When it was made.
    pub created: Time,
    /// When its content changed last.
    pub changed: Time,
    /// From the top level; the rest is zeros.
    pub path: [u8; 8192],
}

impl SubvolumePage {
    /// `None` where there is no room for the path.
    pub fn new(info: &SubvolumeInfo, path: &[u8]) -> Option<Self> {
        let time = |t: Timestamp| Time {
            secs: t.secs.into(),
            nanos: t.nanos.into(),
            pad: U32::ZERO,
        };
        let mut page = SubvolumePage {
            id: info.id.into(),
            parent_id: info.parent_id.into(),
            is_read_only: u32::from(info.is_read_only).into(),
            path_bytes: u32::try_from(path.len()).ok()?.into(),
            generation: info.generation.into(),
            changed_generation: info.changed_generation.into(),
            created_generation: info.created_generation.into(),
            sent_generation: info.sent_generation.into(),
            uuid: info.uuid,
            parent_uuid: info.parent_uuid,
            received_uuid: info.received_uuid,
            created: time(info.created),
            changed: time(info.changed),
            path: [0; 8192],
        };
        page.path.get_mut(..path.len())?.copy_from_slice(path);
        Some(page)
    }
}

/// A name: UTF-8, the rest zeros.
pub type Name = [u8; 16];

/// One [`cowshed_vfs::PoolAccount`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PoolEntry {
    /// No pool where it is empty.
    pub name: Name,
    /// See [`cowshed_vfs::PoolAccount::total_bytes`].
    pub total_bytes: U64,
    /// See [`cowshed_vfs::PoolAccount::free_bytes`].
    pub free_bytes: U64,
    /// See [`cowshed_vfs::PoolAccount::pinned_bytes`].
    pub pinned_bytes: U64,
    /// See [`cowshed_vfs::PoolAccount::addable_bytes`].
    pub addable_bytes: U64,
}

/// One [`cowshed_vfs::PurposeAccount`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PurposeEntry {
    /// No purpose where it is empty.
    pub name: Name,
    /// See [`cowshed_vfs::PurposeAccount::held_bytes`].
    pub held_bytes: U64,
    /// See [`cowshed_vfs::PurposeAccount::peak_bytes`].
    pub peak_bytes: U64,
    /// See [`cowshed_vfs::PurposeAccount::granted`].
    pub granted: U64,
    /// See [`cowshed_vfs::PurposeAccount::refused`].
    pub refused: U64,
    /// See [`cowshed_vfs::PurposeAccount::items`].
    pub items: I64,
    /// See [`cowshed_vfs::PurposeAccount::bytes`].
    pub bytes: I64,
}

/// Pools in a [`SpacePage`].
pub const POOLS_MAX: usize = 4;
/// Purposes in a [`SpacePage`].
pub const PURPOSES_MAX: usize = 16;

/// Argument of [`SPACE`]; see [`cowshed_vfs::SpaceAccount`] and [`cowshed_vfs::PendingAccount`] for
/// the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpacePage {
    /// Size of a metadata block.
    pub block_bytes: U64,
    /// Promised to data.
    pub data_reserved_bytes: U64,
    /// Promised to operations.
    pub metadata_reserved_bytes: U64,
    /// Kept for deletions.
    pub deletion_reserve_bytes: U64,
    /// Items that wait for the next commit.
    pub pending_items: U64,
    /// Their bytes.
    pub pending_bytes: U64,
    /// Items whose leaves were counted.
    pub pending_counted_items: U64,
    /// Metadata held for them.
    pub pending_held_bytes: U64,
    /// Metadata that would be held for them at a leaf each.
    pub pending_held_by_items_bytes: U64,
    /// Types of allocation.
    pub pools: [PoolEntry; POOLS_MAX],
    /// Purposes of reservations.
    pub purposes: [PurposeEntry; PURPOSES_MAX],
}
const _: () = assert!(size_of::<SpacePage>() == 72 + POOLS_MAX * 48 + PURPOSES_MAX * 64);

/// A name as it is sent: cut at 16 bytes.
pub fn name(text: &str) -> Name {
    let mut name = Name::default();
    let len = text.len().min(name.len());
    name[..len].copy_from_slice(&text.as_bytes()[..len]);
    name
}

impl From<&SpaceAccount> for SpacePage {
    fn from(account: &SpaceAccount) -> Self {
        let pending = &account.pending;
        let mut page = SpacePage {
            block_bytes: account.block_bytes.into(),
            data_reserved_bytes: account.data_reserved_bytes.into(),
            metadata_reserved_bytes: account.metadata_reserved_bytes.into(),
            deletion_reserve_bytes: account.deletion_reserve_bytes.into(),
            pending_items: pending.items.into(),
            pending_bytes: pending.bytes.into(),
            pending_counted_items: pending.counted_items.into(),
            pending_held_bytes: pending.held_bytes.into(),
            pending_held_by_items_bytes: pending.held_by_items_bytes.into(),
            ..SpacePage::default()
        };
        for (entry, pool) in page.pools.iter_mut().zip(&account.pools) {
            *entry = PoolEntry {
                name: name(pool.name),
                total_bytes: pool.total_bytes.into(),
                free_bytes: pool.free_bytes.into(),
                pinned_bytes: pool.pinned_bytes.into(),
                addable_bytes: pool.addable_bytes.into(),
            };
        }
        for (entry, purpose) in page.purposes.iter_mut().zip(&account.purposes) {
            *entry = PurposeEntry {
                name: name(purpose.name),
                held_bytes: purpose.held_bytes.into(),
                peak_bytes: purpose.peak_bytes.into(),
                granted: purpose.granted.into(),
                refused: purpose.refused.into(),
                items: purpose.items.into(),
                bytes: purpose.bytes.into(),
            };
        }
        page
    }
}

/// Kinds of a [`MapEntry`].
pub mod kind {
    /// [`cowshed_vfs::MapKind::Data`]
    pub const DATA: u8 = 0;
    /// [`cowshed_vfs::MapKind::Unwritten`]
    pub const UNWRITTEN: u8 = 1;
    /// [`cowshed_vfs::MapKind::Inline`]
    pub const INLINE: u8 = 2;
    /// [`cowshed_vfs::MapKind::Delalloc`]
    pub const DELALLOC: u8 = 3;
}

/// One extent; see [`cowshed_vfs::MapExtent`] for the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MapEntry {
    /// In the file, in bytes.
    pub start: U64,
    /// In bytes.
    pub len_bytes: U64,
    /// Logical address of the whole extent; 0: none.
    pub disk_addr: U64,
    /// Of the whole extent.
    pub disk_bytes: U64,
    /// Where in the extent this part begins.
    pub offset_bytes: U64,
    /// Of the whole extent, uncompressed.
    pub ram_bytes: U64,
    /// One of [`kind`].
    pub kind: u8,
    /// As the format numbers it; 0: none.
    pub compression: u8,
    /// 1: the extent has other references.
    pub is_shared: u8,
    /// Zero.
    pub pad: [u8; 5],
}

/// Entries in one [`MapPage`]: what fits into the size that a number can say.
pub const MAP_ENTRIES: usize = 288;

/// Argument of [`MAP`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MapPage {
    /// In: extents that overlap `start..end`. Out: where the next page starts.
    pub start: U64,
    /// In.
    pub end: U64,
    /// In, 1: find out what is shared.
    pub wants_shared: U32,
    /// Out.
    pub count: U32,
    /// Out, 1: there are no more.
    pub is_last: U32,
    /// Zero.
    pub pad: U32,
    /// Out.
    pub entries: [MapEntry; MAP_ENTRIES],
}
const _: () = assert!(size_of::<MapPage>() == 32 + MAP_ENTRIES * 56);

/// Flags of [`DefragRange`].
pub mod defrag {
    /// Compress what is rewritten.
    pub const COMPRESS: u64 = 1;
    /// Start writing at once.
    pub const START_IO: u64 = 2;
    /// The byte behind the type is a signed level.
    pub const LEVEL: u64 = 4;
}

/// `struct btrfs_ioctl_defrag_range_args`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DefragRange {
    /// In the file, in bytes.
    pub start: U64,
    /// In bytes.
    pub len_bytes: U64,
    /// [`defrag`].
    pub flags: U64,
    /// Extents from this size on stay as they are; 0: 256 KiB.
    pub extent_bytes_max: U32,
    /// The algorithm in the lowest byte, its level in the next.
    pub compress: U32,
    /// Zero.
    pub unused: [U32; 4],
}
const _: () = assert!(size_of::<DefragRange>() == 48);

impl From<&MapExtent> for MapEntry {
    fn from(extent: &MapExtent) -> Self {
        Self {
            start: extent.start.into(),
            len_bytes: extent.len_bytes.into(),
            disk_addr: extent.disk_addr.into(),
            disk_bytes: extent.disk_bytes.into(),
            offset_bytes: extent.offset_bytes.into(),
            ram_bytes: extent.ram_bytes.into(),
            kind: match extent.kind {
                MapKind::Data => kind::DATA,
                MapKind::Unwritten => kind::UNWRITTEN,
                MapKind::Inline => kind::INLINE,
                MapKind::Delalloc => kind::DELALLOC,
            },
            compression: extent.compression,
            is_shared: extent.is_shared.into(),
            pad: [0; 5],
        }
    }
}

impl From<&MapEntry> for MapExtent {
    fn from(entry: &MapEntry) -> Self {
        Self {
            kind: match entry.kind {
                kind::UNWRITTEN => MapKind::Unwritten,
                kind::INLINE => MapKind::Inline,
                kind::DELALLOC => MapKind::Delalloc,
                _ => MapKind::Data,
            },
            start: entry.start.get(),
            len_bytes: entry.len_bytes.get(),
            disk_addr: entry.disk_addr.get(),
            disk_bytes: entry.disk_bytes.get(),
            offset_bytes: entry.offset_bytes.get(),
            ram_bytes: entry.ram_bytes.get(),
            compression: entry.compression,
            is_shared: entry.is_shared != 0,
        }
    }
}
