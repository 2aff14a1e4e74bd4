//! Records: a header of one block or more, then the body. Each block of the body begins with the
//! cycle; what stood there is in the header.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::ByteOrder;
use crate::corrupt::{Checked, Corrupt, Fault, Site, field, mismatch, truncated};
use crate::crc;
use crate::ids::{BASIC_BLOCK_BYTES, Lsn, Uuid};
use crate::num::to_len;
use crate::superblock::LOG_STRIPE_BYTES_MAX;
use crate::view;

/// Words of a body's blocks that one header block keeps.
const CYCLE_WORDS: usize = 64;

on_disk!(
    /// `xlog_rec_header`. The rest of its block is zero.
    /// docs/format/xfs/log.md
    RecordHeader(328) {
        magicno: U32,
        cycle: U32,
        version: U32,
        len: U32,
        lsn: U64,
        tail_lsn: U64,
        crc: [u8; 4],
        prev_block: U32,
        num_logops: U32,
        cycle_data: [U32; CYCLE_WORDS],
        fmt: U32,
        fs_uuid: Uuid,
        size: U32,
        pad: U32,
    }
);
on_disk!(
    /// `xlog_rec_ext_header`: more of the words, for bodies beyond 32 KiB.
    /// docs/format/xfs/log.md
    ExtHeader(260) { cycle: U32, cycle_data: [U32; CYCLE_WORDS] }
);

/// `magicno`. A block of a body never begins with it: that cycle is skipped.
pub const LOG_MAGIC: u32 = 0xfeed_babe;
/// Bytes of a block of the log.
pub const LOG_BLOCK_BYTES: usize = 512;
/// Bytes of a body whose words fit the first header block.
const BODY_BYTES_PER_HEADER: u32 = 32 << 10;
/// i386 and others have no padding at the header's end, and leave it out of the checksum.
const HEADER_BYTES_OTHER: usize = size_of::<RecordHeader>() - 4;
const CRC_AT: usize = std::mem::offset_of!(RecordHeader, crc);

/// `fmt`: which machine wrote the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Not said.
    Unknown,
    /// Linux, little-endian.
    LinuxLittle,
    /// Linux, big-endian.
    LinuxBig,
    /// IRIX.
    IrixBig,
}

impl LogFormat {
    /// From the number. `None` for one that the format does not define.
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            0 => Self::Unknown,
            1 => Self::LinuxLittle,
            2 => Self::LinuxBig,
            3 => Self::IrixBig,
            _ => return None,
        })
    }
    /// The number.
    pub const fn to_raw(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::LinuxLittle => 1,
            Self::LinuxBig => 2,
            Self::IrixBig => 3,
        }
    }
    /// The order of bytes in items; `None` where it is not said.
    pub const fn byte_order(self) -> Option<ByteOrder> {
        match self {
            Self::Unknown => None,
            Self::LinuxLittle => Some(ByteOrder::Little),
            Self::LinuxBig | Self::IrixBig => Some(ByteOrder::Big),
        }
    }
}

/// Header blocks of a record. Those of version 1 have one.
pub fn header_blocks(version: u32, size_bytes: u32) -> u32 {
    if version == 1 {
        return 1;
    }
    size_bytes.div_ceil(BODY_BYTES_PER_HEADER).max(1)
}

/// The cycle behind this one: that which reads as a record's magic is left out.
pub fn next_cycle(cycle: u32) -> u32 {
    match cycle.wrapping_add(1) {
        LOG_MAGIC => LOG_MAGIC.wrapping_add(1),
        next => next,
    }
}

impl RecordHeader {
    /// The record's place: cycle and block.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn.get())
    }
    /// The oldest record that recovery needs.
    pub fn tail_lsn(&self) -> Lsn {
        Lsn(self.tail_lsn.get())
    }
    /// Blocks of the header, by the size that the writer set aside. Version 1 has one.
    pub fn header_blocks(&self) -> u32 {
        header_blocks(self.version.get(), self.size.get())
    }
    /// Blocks of the body.
    pub fn body_blocks(&self) -> u32 {
        self.len.get().div_ceil(BASIC_BLOCK_BYTES)
    }
    /// Which machine wrote the items.
    pub fn format(&self) -> LogFormat {
        LogFormat::from_raw(self.fmt.get()).unwrap_or(LogFormat::Unknown)
    }

    /// Checks all fields but `tail_lsn`, which counts in the newest record alone. `uuid` is that of
    /// the volume; old logs state none. `log_blocks` are blocks of 512 bytes.
    pub fn verify(&self, uuid: Option<&Uuid>, log_blocks: u32) -> Result<(), Corrupt> {
        self.check(uuid, log_blocks)
            .map_err(|fault| fault.at(Site::of("log record header")))
    }

    fn check(&self, uuid: Option<&Uuid>, log_blocks: u32) -> Checked {
        field("h_magicno", self.magicno.get(), Rule::Equal(LOG_MAGIC.into()))?;
        field("h_version", self.version.get(), Rule::OneOf(&[1, 2]))?;
        field("h_cycle", self.cycle.get(), Rule::NonZero)?;
        field("h_lsn.cycle", self.lsn().cycle(), Rule::Equal(self.cycle.get().into()))?;
        let last = u64::from(log_blocks).saturating_sub(1);
        field("h_lsn.block", self.lsn().block(), Rule::AtMost(last))?;
        field(
            "h_fmt",
            self.fmt.get(),
            Rule::AtMost(LogFormat::IrixBig.to_raw().into()),
        )?;
        if self.version.get() == 2 {
            field("h_size", self.size.get(), Rule::AtMost(LOG_STRIPE_BYTES_MAX))?;
        }
        // Old writers of version 1 left the size at zero: 32 KiB.
        let size = match self.size.get() {
            0 => BODY_BYTES_PER_HEADER,
            size => size,
        };
        field("h_len", self.len.get(), Rule::AtMost(size.into()))?;
        match uuid {
            Some(uuid) if self.fs_uuid != *uuid && self.fs_uuid != [0; 16] => Err(mismatch(
                "h_fs_uuid",
                cowshed_layout::uuid_text(&self.fs_uuid),
                cowshed_layout::uuid_text(uuid),
            )),
            _ => Ok(()),
        }
    }
}

/// The checksum of a record as it lies on disk: header, extension headers, body. `other` is for
/// writers whose header ends four bytes earlier.
pub fn record_crc(blocks: &[u8], header_blocks: u32, other: bool) -> Option<u32> {
    let header = RecordHeader::ref_from_prefix(blocks).ok()?.0;
    let used = if other {
        HEADER_BYTES_OTHER
    } else {
        size_of::<RecordHeader>()
    };
    let mut sum = crc::compute(blocks.get(..used)?, CRC_AT)?;
    // As many as the body needs, which may be fewer than the writer set aside.
    let extensions = if header.version.get() == 1 {
        0
    } else {
        header.len.get().div_ceil(BODY_BYTES_PER_HEADER).saturating_sub(1)
    };
    for block in blocks
        .chunks_exact(LOG_BLOCK_BYTES)
        .skip(1)
        .take(to_len(extensions.into()))
    {
        sum = crc32c::crc32c_append(sum, block.get(..size_of::<ExtHeader>())?);
    }
    let body_at = to_len(header_blocks.into()).checked_mul(LOG_BLOCK_BYTES)?;
    let body = blocks.get(body_at..)?.get(..to_len(header.len.get().into()))?;
    Some(crc32c::crc32c_append(sum, body))
}

/// A record whose body has its own words back.
#[derive(Clone, Debug)]
pub struct Record {
    /// The header as it was found.
    pub header: RecordHeader,
    /// Operations.
    pub body: Vec<u8>,
}

fn site() -> Site {
    Site::of("log record")
}

impl Record {
    /// Takes a record apart: header blocks and body, as they lie on disk. Checks the cycles of all
    /// blocks, and the checksum where one is stated. `header.verify` comes first. Errors: the first
    /// fault found.
    pub fn unpack(blocks: &[u8]) -> Result<Self, Corrupt> {
        Self::unpack_wrapped(blocks, usize::MAX)
    }

    /// As [`Record::unpack`], for a record that runs over the end of the log: blocks from
    /// `first_wrapped` on, counted from the record's first one, carry the next cycle.
    pub fn unpack_wrapped(blocks: &[u8], first_wrapped: usize) -> Result<Self, Corrupt> {
        Self::try_unpack(blocks, first_wrapped).map_err(|fault| fault.at(site()))
    }

    fn try_unpack(blocks: &[u8], first_wrapped: usize) -> Result<Self, Fault> {
        let short = || truncated("record", LOG_BLOCK_BYTES, blocks.len());
        let header = *view::at::<RecordHeader>(blocks, 0).ok_or_else(short)?;
        let header_blocks = header.header_blocks();
        let stored = crc::stored(blocks, CRC_AT).unwrap_or_default();
        if stored != 0 {
            let computed = record_crc(blocks, header_blocks, false).ok_or_else(short)?;
            if computed != stored && record_crc(blocks, header_blocks, true) != Some(stored) {
                return Err(crate::corrupt::CorruptKind::Crc { stored, computed }.into());
            }
        }
        let (head, body) = blocks
            .split_at_checked(to_len(header_blocks.into()).saturating_mul(LOG_BLOCK_BYTES))
            .ok_or_else(short)?;
        let cycle_at = |block: usize| {
            if block < first_wrapped {
                header.cycle.get()
            } else {
                next_cycle(header.cycle.get())
            }
        };
        for (at, extension) in head.chunks_exact(LOG_BLOCK_BYTES).enumerate().skip(1) {
            let cycle = view::at::<ExtHeader>(extension, 0).map_or(0, |ext| ext.cycle.get());
            field("xh_cycle", cycle, Rule::Equal(cycle_at(at).into()))?;
        }
        let body_at = to_len(header_blocks.into());
        let len = to_len(header.len.get().into());
        let whole = to_len(header.body_blocks().into()).saturating_mul(LOG_BLOCK_BYTES);
        let mut body = body.get(..whole).ok_or_else(short)?.to_vec();
        for (at, block) in body.chunks_exact_mut(LOG_BLOCK_BYTES).enumerate() {
            let word = cycle_word(head, at).ok_or_else(short)?;
            let found = view::at::<U32>(block, 0).map_or(0, |cycle| cycle.get());
            let expected = cycle_at(at.saturating_add(body_at));
            field("cycle", found, Rule::Equal(expected.into())).map_err(|fault| fault.in_slot(at))?;
            let _fits = view::put(block, 0, word.as_bytes());
        }
        body.truncate(len);
        Ok(Self { header, body })
    }

    /// Lays a record out: stamps the cycle into each block, keeps what stood there, and stores
    /// length and checksum. The body is filled with zeros to a whole block; `header.size` says how
    /// many header blocks there are. `None` where the body is longer than that.
    pub fn pack(header: &RecordHeader, body: &[u8]) -> Option<Vec<u8>> {
        let mut header = *header;
        header.len.set(u32::try_from(body.len()).ok()?);
        header.magicno.set(LOG_MAGIC);
        header.crc = [0; 4];
        if header.len.get() > header.size.get().max(BODY_BYTES_PER_HEADER) {
            return None;
        }
        let head_bytes = to_len(header.header_blocks().into()).checked_mul(LOG_BLOCK_BYTES)?;
        let mut words = Vec::new();
        let mut blocks = vec![0; head_bytes];
        for chunk in body.chunks(LOG_BLOCK_BYTES) {
            let mut block = [0; LOG_BLOCK_BYTES];
            let _fits = view::put(&mut block, 0, chunk);
            words.push(*view::at::<U32>(&block, 0)?);
            let _fits = view::put(&mut block, 0, header.cycle.as_bytes());
            blocks.extend_from_slice(&block);
        }
        let mut groups = words.chunks(CYCLE_WORDS);
        for (to, from) in header.cycle_data.iter_mut().zip(groups.next().unwrap_or_default()) {
            *to = *from;
        }
        let mut fits = view::put(&mut blocks, 0, header.as_bytes());
        let extensions = blocks.get_mut(LOG_BLOCK_BYTES..head_bytes)?;
        for extension in extensions.chunks_exact_mut(LOG_BLOCK_BYTES) {
            fits = fits && view::put(extension, 0, header.cycle.as_bytes());
            let words = groups.next().unwrap_or_default();
            let at = std::mem::offset_of!(ExtHeader, cycle_data);
            fits = fits && view::put(extension, at, words.as_bytes());
        }
        let sum = record_crc(&blocks, header.header_blocks(), false)?;
        let fits = fits && view::put(&mut blocks, CRC_AT, &sum.to_le_bytes());
        fits.then_some(blocks)
    }
}

/// The word that stood at the head of a block of the body.
fn cycle_word(head: &[u8], block: usize) -> Option<U32> {
    let header_at = block.checked_div(CYCLE_WORDS)?.checked_mul(LOG_BLOCK_BYTES)?;
    let at = block.checked_rem(CYCLE_WORDS)?;
    if header_at == 0 {
        return view::at::<RecordHeader>(head, 0)?.cycle_data.get(at).copied();
    }
    view::at::<ExtHeader>(head, header_at)?.cycle_data.get(at).copied()
}
