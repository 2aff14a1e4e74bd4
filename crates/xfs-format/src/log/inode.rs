//! Inode items: core and forks of an inode, as far as they changed.

use cowshed_layout::{Layout, Rule, on_disk};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::item_type::{ItemType, whole};
use super::{ByteOrder, N16, N32, N64};
use crate::corrupt::{Fault, agree, field, truncated};
use crate::ids::{Daddr, Ino};
use crate::inode::{CORE_BYTES_V3, INODE_MAGIC, InodeCore, InodeCoreV2};
use crate::num::to_len;

on_disk!(
    /// `xfs_inode_log_format`, as machines of 64 bits write it.
    /// docs/format/xfs/log.md
    InodeLogFormat(56) {
        item_type: N16,
        size: N16,
        fields: N32,
        asize: N16,
        dsize: N16,
        pad: N32,
        ino: N64,
        u: [u8; 16],
        blkno: N64,
        len: N32,
        boffset: N32,
    }
);
on_disk!(
    /// `xfs_inode_log_format`, as machines of 32 bits wrote it.
    /// docs/format/xfs/log.md
    InodeLogFormat32(52) {
        item_type: N16,
        size: N16,
        fields: N32,
        asize: N16,
        dsize: N16,
        ino: N64,
        u: [u8; 16],
        blkno: N64,
        len: N32,
        boffset: N32,
    }
);

/// Bytes of a core of versions 1 and 2 in the log: up to `next_unlinked`.
const LOGGED_BYTES_V2: usize = std::mem::offset_of!(InodeCoreV2, next_unlinked);

/// `fields`: what an inode item holds.
pub mod inode_fields {
    /// The core.
    pub const CORE: u32 = 1 << 0;
    /// The contents of the data fork.
    pub const DDATA: u32 = 1 << 1;
    /// The extents of the data fork.
    pub const DEXT: u32 = 1 << 2;
    /// The root of the data fork's tree.
    pub const DBROOT: u32 = 1 << 3;
    /// The number of a device, in the item itself.
    pub const DEV: u32 = 1 << 4;
    /// Never used.
    pub const UUID: u32 = 1 << 5;
    /// The contents of the attribute fork.
    pub const ADATA: u32 = 1 << 6;
    /// The extents of the attribute fork.
    pub const AEXT: u32 = 1 << 7;
    /// The root of the attribute fork's tree.
    pub const ABROOT: u32 = 1 << 8;
    /// The blocks of the data fork's tree get this inode as owner.
    pub const DOWNER: u32 = 1 << 9;
    /// The blocks of the attribute fork's tree get this inode as owner.
    pub const AOWNER: u32 = 1 << 10;
    /// Any of the data fork.
    pub const DFORK: u32 = DDATA | DEXT | DBROOT;
    /// Any of the attribute fork.
    pub const AFORK: u32 = ADATA | AEXT | ABROOT;
    /// Each bit with the format's name for it.
    pub const NAMES: &[(u64, &str)] = &[
        (0x001, "CORE"),
        (0x002, "DDATA"),
        (0x004, "DEXT"),
        (0x008, "DBROOT"),
        (0x010, "DEV"),
        (0x020, "UUID"),
        (0x040, "ADATA"),
        (0x080, "AEXT"),
        (0x100, "ABROOT"),
        (0x200, "DOWNER"),
        (0x400, "AOWNER"),
    ];
    /// All bits; the two above were in memory alone and were written nevertheless.
    pub(super) const KNOWN: u64 = 0x7ff | 0xc000;
}

/// What an inode item is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeFormat {
    /// The inode.
    pub ino: Ino,
    /// See [`inode_fields`].
    pub fields: u32,
    /// Bytes of the region of the data fork.
    pub data_bytes: u16,
    /// Bytes of the region of the attribute fork.
    pub attr_bytes: u16,
    /// The device's number, where `fields` says so.
    pub device: u32,
    /// The cluster of inodes.
    pub daddr: Daddr,
    /// Bytes of the cluster.
    pub len_bytes: u32,
    /// Where the inode begins in it.
    pub offset_bytes: u32,
}

/// The core of an inode as it was logged: in the writer's order of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCore<'a> {
    /// 96 bytes for versions 1 and 2, 176 for version 3.
    pub bytes: &'a [u8],
    /// The writer's order.
    pub order: ByteOrder,
}

impl InodeFormat {
    fn read(region: &[u8], order: ByteOrder) -> Result<Self, Fault> {
        // The shorter one lacks four bytes of padding.
        if region.len() == size_of::<InodeLogFormat32>() {
            let raw: InodeLogFormat32 = whole(region)?;
            return Ok(Self::of(
                raw.fields,
                [raw.dsize, raw.asize],
                raw.ino,
                raw.u,
                raw.blkno,
                [raw.len, raw.boffset],
                order,
            ));
        }
        let raw: InodeLogFormat = whole(region)?;
        Ok(Self::of(
            raw.fields,
            [raw.dsize, raw.asize],
            raw.ino,
            raw.u,
            raw.blkno,
            [raw.len, raw.boffset],
            order,
        ))
    }

    fn of(
        fields: N32,
        [data, attr]: [N16; 2],
        ino: N64,
        union: [u8; 16],
        blkno: N64,
        [len, offset]: [N32; 2],
        order: ByteOrder,
    ) -> Self {
        let device = N32::read_from_prefix(&union).map_or(0, |(device, _)| device.get(order));
        Self {
            ino: Ino(ino.get(order)),
            fields: fields.get(order),
            data_bytes: data.get(order),
            attr_bytes: attr.get(order),
            device,
            daddr: Daddr(blkno.get(order)),
            // The unit here is a byte, unlike that of `blkno`.
            len_bytes: len.get(order).saturating_mul(crate::ids::BASIC_BLOCK_BYTES),
            offset_bytes: offset.get(order),
        }
    }

    /// The first region of an item with this many regions, to be logged.
    pub fn to_region(&self, regions: u16, order: ByteOrder) -> Vec<u8> {
        let [a, b, c, d] = *N32::new(self.device, order).as_bytes() else {
            return Vec::new();
        };
        let mut union = [0; 16];
        for (to, from) in union.iter_mut().zip([a, b, c, d]) {
            *to = from;
        }
        InodeLogFormat {
            item_type: N16::new(ItemType::Inode.to_raw(), order),
            size: N16::new(regions, order),
            fields: N32::new(self.fields, order),
            asize: N16::new(self.attr_bytes, order),
            dsize: N16::new(self.data_bytes, order),
            pad: N32::new(0, order),
            ino: N64::new(self.ino.get(), order),
            u: union,
            blkno: N64::new(self.daddr.get(), order),
            len: N32::new(self.len_bytes / crate::ids::BASIC_BLOCK_BYTES, order),
            boffset: N32::new(self.offset_bytes, order),
        }
        .as_bytes()
        .to_vec()
    }
}

/// Swaps the fields of a core between the order of the disk and that of the writer. Which fields
/// are numbers, the structure says; times without bigtime are pairs of 32 bits.
fn swap(core: &mut [u8], order: ByteOrder, is_bigtime: bool, version: u8) {
    if order == ByteOrder::Big {
        return;
    }
    for field in InodeCore::FIELDS {
        let width = match field.name {
            "crc" | "pad2" | "uuid" => continue,
            "atime" | "mtime" | "ctime" | "crtime" if !is_bigtime => 4,
            // Versions 1 and 2 have a counter of 16 bits at the end of these bytes.
            "big_nextents" if version < 3 => 2,
            _ => field.size_bytes,
        };
        let end = field.offset_bytes.saturating_add(field.size_bytes);
        if let Some(bytes) = core.get_mut(field.offset_bytes..end) {
            bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
    }
}

impl<'a> LogCore<'a> {
    fn read(bytes: &'a [u8], order: ByteOrder) -> Result<Self, Fault> {
        let core = Self { bytes, order };
        let version = bytes.get(std::mem::offset_of!(InodeCore, version)).copied();
        let expected = if version == Some(3) {
            CORE_BYTES_V3
        } else {
            LOGGED_BYTES_V2
        };
        if bytes.len() < expected {
            return Err(truncated("core", expected, bytes.len()));
        }
        let disk = core.to_disk();
        field("di_magic", disk.magic.get(), Rule::Equal(INODE_MAGIC.into()))?;
        field("di_version", disk.version, Rule::Between(1, 3))?;
        Ok(core)
    }

    /// The core as it lies on disk. Checksum and LSN are those of the log, which do not count, and
    /// so is `next_unlinked`.
    pub fn to_disk(&self) -> InodeCore {
        let mut core = [0; CORE_BYTES_V3];
        for (to, from) in core.iter_mut().zip(self.bytes) {
            *to = *from;
        }
        let version = core
            .get(std::mem::offset_of!(InodeCore, version))
            .copied()
            .unwrap_or_default();
        // The flag is needed to swap what it stands for: it is swapped on its own first.
        let flags2 = core
            .get(std::mem::offset_of!(InodeCore, flags2)..)
            .and_then(|rest| N64::read_from_prefix(rest).ok())
            .map_or(0, |(flags2, _)| flags2.get(self.order));
        let is_bigtime = version >= 3 && flags2 & crate::features::inode_flags2::BIGTIME != 0;
        swap(&mut core, self.order, is_bigtime, version);
        zerocopy::transmute!(core)
    }

    /// The region of a core, to be logged.
    pub fn region_of(core: &InodeCore, order: ByteOrder) -> Vec<u8> {
        let mut bytes = core.as_bytes().to_vec();
        bytes.truncate(if core.version >= 3 {
            CORE_BYTES_V3
        } else {
            LOGGED_BYTES_V2
        });
        swap(&mut bytes, order, core.is_bigtime(), core.version);
        bytes
    }
}

/// Changed parts of an inode.
#[derive(Clone, Debug, PartialEq)]
pub struct InodeItem<'a> {
    /// Which, and what changed.
    pub format: InodeFormat,
    /// The core, where it changed.
    pub core: Option<LogCore<'a>>,
    /// The data fork, where it changed: big-endian.
    pub data: Option<&'a [u8]>,
    /// The attribute fork, where it changed: big-endian.
    pub attr: Option<&'a [u8]>,
}

impl<'a> InodeItem<'a> {
    pub(super) fn read(first: &'a [u8], rest: &[&'a [u8]], order: ByteOrder) -> Result<Self, Fault> {
        let format = InodeFormat::read(first, order)?;
        field("ilf_fields", format.fields, Rule::KnownBits(inode_fields::KNOWN))?;
        field("ilf_len", format.len_bytes, Rule::NonZero)?;
        field(
            "ilf_boffset",
            format.offset_bytes,
            Rule::AtMost(u64::from(format.len_bytes).saturating_sub(1)),
        )?;
        let mut regions = rest.iter().copied();
        let core = match regions.next() {
            Some(region) => Some(LogCore::read(region, order)?),
            None => None,
        };
        let mut fork = |mask: u32, name: &'static str, len: u16| -> Result<Option<&'a [u8]>, Fault> {
            if format.fields & mask == 0 {
                return Ok(None);
            }
            agree((format.fields & mask).is_power_of_two(), "two forms of one fork")?;
            // The region is a multiple of four bytes, the length that is stated may be less.
            let region = regions.next().ok_or_else(|| truncated(name, len.into(), 0))?;
            let used = region.get(..to_len(len.into()));
            used.map(Some).ok_or_else(|| truncated(name, len.into(), region.len()))
        };
        let data = fork(inode_fields::DFORK, "data fork", format.data_bytes)?;
        let attr = fork(inode_fields::AFORK, "attribute fork", format.attr_bytes)?;
        Ok(Self {
            format,
            core,
            data,
            attr,
        })
    }
}
