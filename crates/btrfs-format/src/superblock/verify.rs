//! Checks everything that a superblock claims.

use zerocopy::FromBytes;

use super::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SYSTEM_CHUNK_ARRAY_BYTES, Superblock};
use crate::corrupt::CorruptKind;
use crate::csum::{CSUM_FIELD_BYTES, ChecksumType};
use crate::features::{block_group, incompat};
use crate::header::LEVEL_MAX;
use crate::items::{ChunkHead, Stripe};
use crate::key::{DiskKey, Key, KeyType};
use cowshed_layout::{Rule, len_u64};

/// Sector and node sizes that the format allows.
const SECTORSIZE_BYTES: Rule = Rule::Between(4096, 65536);
/// The root, extent, chunk, device, checksum and file trees of the emptiest volume.
const BYTES_USED_MIN_NODES: u64 = 6;
/// `btrfs_disk_key`, `btrfs_chunk` and one stripe.
const SYSTEM_CHUNK_BYTES_MIN: u64 = 17 + 48 + 32;

/// Why bytes are no superblock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Fewer bytes than a superblock.
    #[error("{found} bytes are too short for a superblock")]
    Short {
        /// Bytes given.
        found: usize,
    },
    /// The magic number is missing: no btrfs volume.
    #[error("no btrfs superblock: its magic is missing")]
    Magic,
    /// A checksum type that the format does not define.
    #[error("superblock: unknown checksum type {found}")]
    CsumType {
        /// The value found.
        found: u16,
    },
    /// The checksum is not that of the bytes.
    #[error("superblock: bad checksum")]
    Csum,
    /// A field breaks its rule.
    #[error("superblock: {field} is {found}, {rule}")]
    Field {
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What is allowed.
        rule: Rule,
    },
    /// The device item's fsid is not the superblock's.
    #[error("superblock: the device's fsid is another one")]
    DeviceFsid,
    /// A chunk in the array of system chunks is wrong.
    #[error("superblock: system chunk array, byte {at_bytes}: {kind}")]
    SystemChunk {
        /// Where in the array.
        at_bytes: u64,
        /// What is wrong.
        kind: CorruptKind,
    },
}

fn field(field: &'static str, found: u64, rule: Rule) -> Result<(), SuperblockError> {
    if rule.holds(found) {
        Ok(())
    } else {
        Err(SuperblockError::Field { field, found, rule })
    }
}

impl Superblock {
    /// Checks the superblock in the head of `bytes`, which came from `expected_offset` on its
    /// device (`None`: it may be any of the copies). Whether its features are supported is another
    /// question: [`Superblock::access`].
    pub fn verify(bytes: &[u8], expected_offset: Option<u64>) -> Result<Self, SuperblockError> {
        let Ok((sb, _)) = Self::read_from_prefix(bytes) else {
            return Err(SuperblockError::Short { found: bytes.len() });
        };
        if sb.magic != MAGIC {
            return Err(SuperblockError::Magic);
        }
        let raw_type = sb.csum_type.get();
        let csum_type = ChecksumType::from_raw(raw_type).ok_or(SuperblockError::CsumType { found: raw_type })?;
        let used = ..csum_type.size_bytes();
        let computed = csum_type.compute(bytes.get(CSUM_FIELD_BYTES..SUPERBLOCK_BYTES).unwrap_or_default());
        if sb.csum.get(used) != computed.get(used) {
            return Err(SuperblockError::Csum);
        }
        sb.check(expected_offset)?;
        Ok(sb)
    }

    /// The checksum's type. A verified superblock has one.
    pub fn checksum_type(&self) -> Option<ChecksumType> {
        ChecksumType::from_raw(self.csum_type.get())
    }

    /// Checks all fields, but not magic and checksum: for superblocks about to be written.
    pub fn check(&self, expected_offset: Option<u64>) -> Result<(), SuperblockError> {
        match expected_offset {
            Some(offset) => field("bytenr", self.bytenr.get(), Rule::Equal(offset))?,
            None => field("bytenr", self.bytenr.get(), Rule::OneOf(&SUPERBLOCK_OFFSETS))?,
        }
        self.check_sizes()?;
        self.check_roots()?;
        self.check_device()?;
        self.check_system_chunks()
    }

    fn check_sizes(&self) -> Result<(), SuperblockError> {
        let sectorsize = u64::from(self.sectorsize.get());
        let nodesize = u64::from(self.nodesize.get());
        field("sectorsize", sectorsize, Rule::PowerOfTwo)?;
        field("sectorsize", sectorsize, SECTORSIZE_BYTES)?;
        field("nodesize", nodesize, Rule::PowerOfTwo)?;
        field("nodesize", nodesize, Rule::Between(sectorsize, 65536))?;
        if self.incompat_flags.get() & incompat::MIXED_GROUPS != 0 {
            // Data and metadata share block groups, so they share the unit of allocation.
            field("nodesize", nodesize, Rule::Equal(sectorsize))?;
        }
        field("leafsize", self.leafsize_unused.get().into(), Rule::Equal(nodesize))?;
        field("stripesize", self.stripesize.get().into(), Rule::PowerOfTwo)?;
        let used_min = nodesize.saturating_mul(BYTES_USED_MIN_NODES);
        field("bytes_used", self.bytes_used.get(), Rule::AtLeast(used_min))?;
        // What is used may be more here, as in the kernel: the block groups say how much it is.
        field("total_bytes", self.total_bytes.get(), Rule::NonZero)
    }

    fn check_roots(&self) -> Result<(), SuperblockError> {
        let sectorsize = u64::from(self.sectorsize.get());
        for (name, root, level_name, level) in [
            ("root", &self.root, "root_level", self.root_level),
            (
                "chunk_root",
                &self.chunk_root,
                "chunk_root_level",
                self.chunk_root_level,
            ),
            ("log_root", &self.log_root, "log_root_level", self.log_root_level),
        ] {
            field(name, root.get(), Rule::AlignedTo(sectorsize))?;
            field(level_name, level.into(), Rule::AtMost(LEVEL_MAX.into()))?;
        }
        field("root", self.root.get(), Rule::NonZero)?;
        field("chunk_root", self.chunk_root.get(), Rule::NonZero)?;
        let generation = self.generation.get();
        field("generation", generation, Rule::NonZero)?;
        field(
            "chunk_root_generation",
            self.chunk_root_generation.get(),
            Rule::AtMost(generation),
        )
    }

    fn check_device(&self) -> Result<(), SuperblockError> {
        let dev = &self.dev_item;
        field("num_devices", self.num_devices.get(), Rule::NonZero)?;
        field("dev_item.devid", dev.devid.get(), Rule::NonZero)?;
        field(
            "dev_item.bytes_used",
            dev.bytes_used.get(),
            Rule::AtMost(dev.total_bytes.get()),
        )?;
        if dev.fsid != self.metadata_fsid() {
            return Err(SuperblockError::DeviceFsid);
        }
        Ok(())
    }

    fn check_system_chunks(&self) -> Result<(), SuperblockError> {
        let room = u64::try_from(SYSTEM_CHUNK_ARRAY_BYTES).unwrap_or_default();
        field(
            "sys_chunk_array_size",
            self.sys_chunk_array_size.get().into(),
            Rule::Between(SYSTEM_CHUNK_BYTES_MIN, room),
        )?;
        let whole = self.system_chunk_bytes();
        let mut rest = whole;
        while !rest.is_empty() {
            rest = check_system_chunk(rest, self.sectorsize.get()).map_err(|kind| SuperblockError::SystemChunk {
                at_bytes: len_u64(whole).saturating_sub(len_u64(rest)),
                kind,
            })?;
        }
        Ok(())
    }
}

/// Checks the first chunk of the array; gives what follows it.
fn check_system_chunk(data: &[u8], sectorsize_bytes: u32) -> Result<&[u8], CorruptKind> {
    let truncated = |key, needs| CorruptKind::ItemTruncated {
        key,
        part: "system chunk",
        needs,
        left: len_u64(data),
    };
    let Ok((key, rest)) = DiskKey::ref_from_prefix(data) else {
        return Err(truncated(Key::MIN, SYSTEM_CHUNK_BYTES_MIN));
    };
    let key = Key::from(*key);
    if key.ty != KeyType::CHUNK_ITEM {
        return Err(CorruptKind::ItemField {
            key,
            field: "type",
            found: key.ty.0.into(),
            rule: Rule::Equal(KeyType::CHUNK_ITEM.0.into()),
        });
    }
    let Ok((head, _)) = ChunkHead::ref_from_prefix(rest) else {
        return Err(truncated(key, SYSTEM_CHUNK_BYTES_MIN));
    };
    let stripes = usize::from(head.num_stripes.get()).saturating_mul(size_of::<Stripe>());
    let chunk_bytes = size_of::<ChunkHead>().saturating_add(stripes);
    let Some((chunk, rest)) = rest.split_at_checked(chunk_bytes) else {
        let needs = u64::try_from(chunk_bytes).unwrap_or(u64::MAX);
        return Err(truncated(key, needs.saturating_add(17)));
    };
    crate::verify::check_stray_chunk(key, chunk, sectorsize_bytes)?;
    if head.ty.get() & block_group::SYSTEM == 0 {
        return Err(CorruptKind::ItemField {
            key,
            field: "usage",
            found: head.ty.get(),
            rule: Rule::OneBitOf(block_group::SYSTEM),
        });
    }
    Ok(rest)
}
