//! The checker's own chunk map: logical addresses to places on devices.

use std::collections::BTreeMap;

use btrfs_format::Uuid;
use btrfs_format::features::block_group as bg;
use btrfs_format::items::{ChunkHead, STRIPE_LEN_BYTES, Stripe};

use crate::util::{count, is_aligned};

/// A chunk whose fields have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) ty: u64,
    pub(crate) sub_stripes: u64,
    /// Device id and byte offset.
    pub(crate) stripes: Vec<(u64, u64)>,
    /// What each stripe says of its device.
    pub(crate) dev_uuids: Vec<Uuid>,
}

/// A run of bytes on one device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) devid: u64,
    pub(crate) physical: u64,
    pub(crate) len: u64,
}

/// What stripes a profile may have.
struct Profile {
    min_stripes: u64,
    max_stripes: u64,
}

fn profile(ty: u64) -> Option<Profile> {
    let any = u64::from(u16::MAX);
    let (min_stripes, max_stripes) = match ty & bg::PROFILE_MASK {
        0 => (1, 1),
        bg::DUP => (2, 2),
        bg::RAID0 => (1, any),
        bg::RAID1 => (2, 2),
        bg::RAID1C3 => (3, 3),
        bg::RAID1C4 => (4, 4),
        bg::RAID10 => (2, any),
        bg::RAID5 => (2, any),
        bg::RAID6 => (3, any),
        _ => return None,
    };
    Some(Profile {
        min_stripes,
        max_stripes,
    })
}

impl Chunk {
    /// Checks the item's fields; the error says what is wrong.
    pub(crate) fn parse(start: u64, head: &ChunkHead, stripes: &[Stripe], sectorsize: u64) -> Result<Self, String> {
        let (len, ty) = (head.length.get(), head.ty.get());
        if len == 0
            || !is_aligned(len, sectorsize)
            || !is_aligned(start, sectorsize)
            || start.checked_add(len).is_none()
        {
            return Err(format!("start {start} or length {len} unaligned or out of range"));
        }
        if head.stripe_len.get() != STRIPE_LEN_BYTES {
            return Err(format!(
                "stripe length {}, expected {STRIPE_LEN_BYTES}",
                head.stripe_len
            ));
        }
        let known = bg::TYPE_MASK | bg::PROFILE_MASK;
        if ty & bg::TYPE_MASK == 0 || ty & !known != 0 || (ty & bg::SYSTEM != 0 && ty & (bg::DATA | bg::METADATA) != 0)
        {
            return Err(format!("type {ty:#x} is no legal combination"));
        }
        let Some(profile) = profile(ty) else {
            return Err(format!("type {ty:#x} has more than one profile"));
        };
        let num = count(stripes.len());
        if num < profile.min_stripes || num > profile.max_stripes {
            return Err(format!("{num} stripes do not suit type {ty:#x}"));
        }
        let sub_stripes = u64::from(head.sub_stripes.get());
        if ty & bg::RAID10 != 0 && (sub_stripes != 2 || !num.is_multiple_of(2)) {
            return Err(format!("raid10 with {num} stripes and {sub_stripes} sub-stripes"));
        }
        let chunk = Self {
            start,
            len,
            ty,
            sub_stripes,
            stripes: stripes.iter().map(|s| (s.devid.get(), s.offset.get())).collect(),
            dev_uuids: stripes.iter().map(|s| s.dev_uuid).collect(),
        };
        let stripe_len = chunk.stripe_len();
        for &(devid, offset) in &chunk.stripes {
            if !is_aligned(offset, sectorsize) || offset.checked_add(stripe_len).is_none() {
                return Err(format!(
                    "stripe on device {devid} at {offset} unaligned or out of range"
                ));
            }
        }
        Ok(chunk)
    }

    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// How many whole copies there are of each byte.
    pub(crate) fn copies(&self) -> u64 {
        match self.ty & bg::PROFILE_MASK {
            bg::DUP | bg::RAID1 | bg::RAID1C3 | bg::RAID1C4 => count(self.stripes.len()),
            bg::RAID10 => self.sub_stripes,
            _ => 1,
        }
    }

    fn data_stripes(&self) -> u64 {
        let num = count(self.stripes.len());
        let data = match self.ty & bg::PROFILE_MASK {
            bg::RAID0 => num,
            bg::RAID10 => num.checked_div(self.sub_stripes).unwrap_or(1),
            bg::RAID5 => num.saturating_sub(1),
            bg::RAID6 => num.saturating_sub(2),
            _ => 1,
        };
        data.max(1)
    }

    /// Bytes that each stripe takes on its device.
    pub(crate) fn stripe_len(&self) -> u64 {
        self.len.checked_div(self.data_stripes()).unwrap_or(self.len)
    }

    /// Where copy `copy` of the bytes from `addr` lies, and for how many of `len` bytes that holds.
    fn run(&self, addr: u64, len: u64, copy: u64) -> Option<Run> {
        let offset = addr.checked_sub(self.start)?;
        let len = len.min(self.len.checked_sub(offset)?);
        let profile = self.ty & bg::PROFILE_MASK;
        let striped = bg::RAID0 | bg::RAID10 | bg::RAID5 | bg::RAID6;
        if profile & striped == 0 {
            let &(devid, base) = self.stripes.get(usize::try_from(copy).ok()?)?;
            return Some(Run {
                devid,
                physical: base.checked_add(offset)?,
                len,
            });
        }
        let data = self.data_stripes();
        let stripe_nr = offset.checked_div(STRIPE_LEN_BYTES)?;
        let within = offset.checked_rem(STRIPE_LEN_BYTES)?;
        let (row, column) = (stripe_nr.checked_div(data)?, stripe_nr.checked_rem(data)?);
        let slot = match profile {
            bg::RAID10 => column.checked_mul(self.sub_stripes)?.checked_add(copy)?,
            bg::RAID5 | bg::RAID6 => column.checked_add(row)?.checked_rem(count(self.stripes.len()))?,
            _ => column,
        };
        let &(devid, base) = self.stripes.get(usize::try_from(slot).ok()?)?;
        let physical = base
            .checked_add(row.checked_mul(STRIPE_LEN_BYTES)?)?
            .checked_add(within)?;
        Some(Run {
            devid,
            physical,
            len: len.min(STRIPE_LEN_BYTES.checked_sub(within)?),
        })
    }
}

/// Chunks by their first address; they do not overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkMap {
    chunks: BTreeMap<u64, Chunk>,
}

impl ChunkMap {
    /// Adds a chunk; `Err` gives the start of one that it overlaps.
    pub(crate) fn insert(&mut self, chunk: Chunk) -> Result<(), u64> {
        if let Some((&start, _)) = self
            .chunks
            .range(..chunk.end())
            .next_back()
            .filter(|(_, c)| c.end() > chunk.start)
        {
            return Err(start);
        }
        self.chunks.insert(chunk.start, chunk);
        Ok(())
    }
    pub(crate) fn at(&self, addr: u64) -> Option<&Chunk> {
        let (_, chunk) = self.chunks.range(..=addr).next_back()?;
        (addr < chunk.end()).then_some(chunk)
    }
    /// No chunk has an address from `start` to `end`, and one comes behind.
    pub(crate) fn is_gap_between(&self, start: u64, end: u64) -> bool {
        let before = self.chunks.range(..end).next_back();
        before.is_none_or(|(_, chunk)| chunk.end() <= start) && self.chunks.range(end..).next().is_some()
    }
    pub(crate) fn exact(&self, start: u64) -> Option<&Chunk> {
        self.chunks.get(&start)
    }
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.values()
    }
    /// How many copies there are of the byte at `addr`; 0 where nothing is mapped.
    pub(crate) fn copies(&self, addr: u64) -> u64 {
        self.at(addr).map_or(0, Chunk::copies)
    }
    /// The first run of copy `copy` of `len` bytes from `addr`.
    pub(crate) fn run(&self, addr: u64, len: u64, copy: u64) -> Option<Run> {
        self.at(addr)?.run(addr, len, copy).filter(|run| run.len > 0)
    }
}
