//! How the space of a volume is given to data and metadata: sums by type and profile, and chunks
//! with their devices.
//!
//! Of a mount of the kernel's the sums come from `BTRFS_IOC_SPACE_INFO`. FUSE cannot pass that call
//! (its size is not in its number), so elsewhere they are read from the trees.

use std::collections::BTreeMap;
use std::io::Result as IoResult;
use std::ops::ControlFlow;

use btrfs_format::features::block_group::{self, DATA, METADATA, SYSTEM};
use btrfs_format::items::BlockGroupItem;
use btrfs_format::{KeyType, ObjectId, TreeId, view};
use cowshed_vfs::Search;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::place::Place;
use super::say::warning;
use crate::ioctl;

/// Space of one type and profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bits of type and profile.
    pub flags: u64,
    pub total_bytes: u64,
    pub used_bytes: u64,
}

/// `BTRFS_SPACE_INFO_GLOBAL_RSV`
const GLOBAL_RESERVE: u64 = 1 << 49;

impl Space {
    pub fn is_global_reserve(self) -> bool {
        self.flags & GLOBAL_RESERVE != 0
    }

    pub fn has(self, kind: u64) -> bool {
        !self.is_global_reserve() && self.flags & kind != 0
    }

    /// Is the type just this one? Mixed groups are a type of their own.
    fn is_of(self, kind: u64) -> bool {
        !self.is_global_reserve() && self.flags & block_group::TYPE_MASK == kind
    }

    pub fn type_name(self) -> &'static str {
        match self.flags & (block_group::TYPE_MASK | GLOBAL_RESERVE) {
            DATA => "Data",
            SYSTEM => "System",
            METADATA => "Metadata",
            both if both == DATA | METADATA => "Data+Metadata",
            reserve if reserve & GLOBAL_RESERVE != 0 => "GlobalReserve",
            _ => "unknown",
        }
    }

    pub fn profile_name(self) -> &'static str {
        profile_name(self.flags)
    }

    /// Bytes on devices for each byte.
    pub fn ratio(self) -> u64 {
        copies(self.flags)
    }
}

fn profile_name(flags: u64) -> &'static str {
    let profile = flags & block_group::PROFILE_MASK;
    let name = block_group::NAMES.iter().find(|(bit, _)| *bit == profile);
    name.map_or("single", |(_, name)| name)
}

fn copies(flags: u64) -> u64 {
    match flags & block_group::PROFILE_MASK {
        block_group::DUP | block_group::RAID1 | block_group::RAID10 => 2,
        block_group::RAID1C3 => 3,
        block_group::RAID1C4 => 4,
        _ => 1,
    }
}

/// Warns as btrfs(8) where a type has block groups of several profiles.
pub fn warn_of_profiles(spaces: &[Space]) {
    let several: Vec<_> = types_with_several_profiles(spaces);
    if several.is_empty() {
        return;
    }
    warning("Multiple block group profiles detected, see 'man btrfs(5)'");
    for (flags, name) in several {
        let mut profiles: Vec<Space> = spaces.iter().copied().filter(|space| space.is_of(flags)).collect();
        profiles.sort_by_key(|space| space.flags & block_group::PROFILE_MASK);
        let profiles: Vec<_> = profiles
            .iter()
            .map(|space| space.profile_name().to_lowercase())
            .collect();
        warning(format_args!("   {name}: {}", profiles.join(", ")));
    }
}

/// The types with block groups of several profiles: their bits and names.
pub fn types_with_several_profiles(spaces: &[Space]) -> Vec<(u64, &'static str)> {
    let types = [
        (DATA, "Data"),
        (METADATA, "Metadata"),
        (DATA | METADATA, "Data+Metadata"),
        (SYSTEM, "System"),
    ];
    let has_several = |flags: u64| spaces.iter().filter(|space| space.is_of(flags)).count() > 1;
    types.into_iter().filter(|(flags, _)| has_several(*flags)).collect()
}

/// A chunk, and what of it lies on each device.
pub struct Chunk {
    pub flags: u64,
    pub len_bytes: u64,
    start: u64,
    /// Number of the device and bytes there, once for each stripe.
    pub stripes: Vec<(u64, u64)>,
}

/// All chunks, by address. Errors: `EPERM` where the caller may not.
pub fn chunks(place: &Place) -> IoResult<Vec<Chunk>> {
    let mut all = Vec::new();
    let what = Search {
        tree: TreeId::CHUNK.get(),
        from: (ObjectId::FIRST_CHUNK_TREE.get(), KeyType::CHUNK_ITEM.0, 0),
        to: (ObjectId::FIRST_CHUNK_TREE.get(), KeyType::CHUNK_ITEM.0, u64::MAX),
        since: 0,
        until: u64::MAX,
    };
    place.search(&what, &mut |(.., start), bytes, _| {
        if let Some((head, stripes)) = view::chunk(bytes) {
            let (flags, len_bytes) = (head.ty.get(), head.length.get());
            let count = stripes.len() as u64;
            let data = match flags & block_group::PROFILE_MASK {
                block_group::RAID0 => count,
                block_group::RAID10 => count / 2,
                block_group::RAID5 => count.saturating_sub(1),
                block_group::RAID6 => count.saturating_sub(2),
                _ => 1,
            };
            let each = len_bytes / data.max(1);
            all.push(Chunk {
                flags,
                len_bytes,
                start,
                stripes: stripes.iter().map(|stripe| (stripe.devid.get(), each)).collect(),
            });
        }
        ControlFlow::Continue(())
    })?;
    Ok(all)
}

/// Sums by type and profile, in the kernel's order; what is reserved for deletions comes last.
pub fn spaces(place: &Place) -> IoResult<Vec<Space>> {
    if let Place::Kernel(file) = place {
        return by_kernel(file);
    }
    let mut sums: BTreeMap<(u8, u64), Space> = BTreeMap::new();
    let used = UsedBytes::new(place)?;
    for chunk in chunks(place)? {
        let kind = chunk.flags & block_group::TYPE_MASK;
        // The kernel names data first, then the chunk tree, metadata, and mixed groups.
        let rank = match kind {
            DATA => 0,
            SYSTEM => 1,
            METADATA => 2,
            _ => 3,
        };
        let sum = sums.entry((rank, chunk.flags)).or_default();
        sum.flags = chunk.flags;
        sum.total_bytes += chunk.len_bytes;
        sum.used_bytes += used.of(&chunk)?;
    }
    let mut all: Vec<Space> = sums.into_values().collect();
    all.push(Space {
        flags: GLOBAL_RESERVE | METADATA,
        total_bytes: place.deletion_reserve_bytes()?,
        used_bytes: 0,
    });
    Ok(all)
}

/// Used bytes of block groups. They have a tree of their own, or lie among the extents: there each
/// is looked up.
struct UsedBytes<'a> {
    place: &'a Place,
    tree: TreeId,
}

impl<'a> UsedBytes<'a> {
    fn new(place: &'a Place) -> IoResult<Self> {
        let nothing = Search {
            tree: TreeId::BLOCK_GROUP.get(),
            from: (0, 0, 0),
            to: (0, 0, 0),
            since: 0,
            until: u64::MAX,
        };
        let tree = match place.search(&nothing, &mut |_, _, _| ControlFlow::Break(())) {
            Ok(()) => TreeId::BLOCK_GROUP,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => TreeId::EXTENT,
            Err(error) => return Err(error),
        };
        Ok(UsedBytes { place, tree })
    }

    fn of(&self, chunk: &Chunk) -> IoResult<u64> {
        let key = (chunk.start, KeyType::BLOCK_GROUP_ITEM.0, chunk.len_bytes);
        let what = Search {
            tree: self.tree.get(),
            from: key,
            to: key,
            since: 0,
            until: u64::MAX,
        };
        let used = |_, bytes: &[u8]| view::fixed::<BlockGroupItem>(bytes).map_or(0, |item| item.used.get());
        Ok(self.place.first(&what, used)?.unwrap_or(0))
    }
}

/// `BTRFS_IOC_SPACE_INFO`
const SPACE_INFO: u32 = 0xc010_9414;
/// Each type with each profile, and some.
const SPACES_MAX: usize = 64;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SpaceInfo {
    flags: U64,
    total: U64,
    used: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SpaceInfos {
    slots: U64,
    count: U64,
    spaces: [SpaceInfo; SPACES_MAX],
}

fn by_kernel(file: &std::fs::File) -> IoResult<Vec<Space>> {
    let mut call = SpaceInfos::new_zeroed();
    call.slots = (SPACES_MAX as u64).into();
    ioctl::call(file, SPACE_INFO, &mut call)?;
    let count = usize::try_from(call.count.get()).unwrap_or(SPACES_MAX).min(SPACES_MAX);
    let space = |info: &SpaceInfo| Space {
        flags: info.flags.get(),
        total_bytes: info.total.get(),
        used_bytes: info.used.get(),
    };
    Ok(call.spaces[..count].iter().map(space).collect())
}
