//! Chunks and the map from logical to physical addresses.
//!
//! The map is immutable; a change makes a new one ([`super::Volume::add_chunk`]).

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use btrfs_format::features::block_group;
use btrfs_format::items::{ChunkHead, STRIPE_LEN_BYTES, Stripe};
use btrfs_format::{DevId, LogicalAddr, TreeId, Uuid};

use crate::error::{Error, Result};
use btrfs_format::profile::{COPIES_MAX, Profile};

/// A place on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PhysAddr {
    /// The device.
    pub dev: DevId,
    /// Bytes from the start of the device.
    pub offset: u64,
}

/// One stripe of a chunk: where it begins, and the device's uuid as the chunk item has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkStripe {
    /// Where it begins.
    pub at: PhysAddr,
    pub(crate) dev_uuid: Uuid,
}

/// A run of logical addresses and its stripes. Checked when made: every address in it maps without
/// overflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    logical: LogicalAddr,
    length_bytes: u64,
    /// Type and profile bits, as in the chunk item.
    flags: u64,
    profile: Profile,
    stripes: Box<[ChunkStripe]>,
}

/// All places of one run of bytes, one per copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    list: [PhysAddr; COPIES_MAX],
    len: u8,
}

impl Deref for Copies {
    type Target = [PhysAddr];
    fn deref(&self) -> &[PhysAddr] {
        &self.list[..usize::from(self.len)]
    }
}

/// A run of logical bytes that is contiguous on each of its devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the run begins.
    pub logical: LogicalAddr,
    /// Bytes of the run.
    pub len_bytes: u64,
    /// Where each copy of it begins.
    pub copies: Copies,
}

impl Piece {
    /// The same bytes at the same places.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        // Places of copies that there are not mean nothing.
        (self.logical, self.len_bytes, &*self.copies) == (other.logical, other.len_bytes, &*other.copies)
    }
    /// The part of the piece that begins `skip_bytes` into it.
    pub(crate) fn slice(&self, skip_bytes: u64, len_bytes: u64) -> Self {
        assert!(skip_bytes + len_bytes <= self.len_bytes, "a part of a piece lies in it");
        let mut part = *self;
        part.logical = LogicalAddr(self.logical.get() + skip_bytes);
        part.len_bytes = len_bytes;
        for at in &mut part.copies.list {
            at.offset += skip_bytes;
        }
        part
    }
}

fn bad(logical: LogicalAddr, what: String) -> Error {
    Error::CorruptTree {
        tree: TreeId::CHUNK,
        what: format!("chunk at logical {logical}: {what}"),
    }
}

impl Chunk {
    /// A chunk of ours or of the disk; everything is checked.
    pub(crate) fn new(logical: LogicalAddr, length_bytes: u64, flags: u64, stripes: Vec<ChunkStripe>) -> Result<Self> {
        let profile = Profile::from_flags(flags)?;
        let fail = |what: String| Err(bad(logical, what));
        if flags & block_group::TYPE_MASK == 0 || flags & !(block_group::TYPE_MASK | block_group::PROFILE_MASK) != 0 {
            return fail(format!("type is {flags:#x}"));
        }
        if !profile.allows_stripes(stripes.len()) {
            return fail(format!("{} stripes do not make a {}", stripes.len(), profile.name()));
        }
        let data_stripes = profile.data_stripes(stripes.len()) as u64;
        if length_bytes == 0 || !length_bytes.is_multiple_of(data_stripes) {
            return fail(format!("length {length_bytes} in {data_stripes} data stripes"));
        }
        if data_stripes > 1 && !(length_bytes / data_stripes).is_multiple_of(STRIPE_LEN_BYTES) {
            return fail(format!("length {length_bytes} is not made of whole stripes"));
        }
        if logical.checked_add(length_bytes).is_none() {
            return fail(format!("length {length_bytes} overflows"));
        }
        for stripe in &stripes {
            if stripe.at.offset.checked_add(length_bytes / data_stripes).is_none() {
                return fail(format!("stripe at {} overflows", stripe.at.offset));
            }
        }
        Ok(Self {
            logical,
            length_bytes,
            flags,
            profile,
            stripes: stripes.into(),
        })
    }

    /// From a chunk item.
    pub(crate) fn from_item(
        logical: LogicalAddr,
        head: &ChunkHead,
        stripes: &[Stripe],
        sectorsize_bytes: u32,
    ) -> Result<Self> {
        let profile = Profile::from_flags(head.ty.get())?;
        if head.stripe_len.get() != STRIPE_LEN_BYTES {
            return Err(bad(logical, format!("stripe length {}", head.stripe_len)));
        }
        if profile == Profile::Raid10 && head.sub_stripes.get() != profile.sub_stripes() {
            return Err(bad(logical, format!("{} sub stripes in a RAID10", head.sub_stripes)));
        }
        let sector = u64::from(sectorsize_bytes);
        if !logical.get().is_multiple_of(sector) || !head.length.get().is_multiple_of(sector) {
            return Err(bad(logical, format!("length {} is not made of sectors", head.length)));
        }
        let stripes = stripes
            .iter()
            .map(|s| ChunkStripe {
                at: PhysAddr {
                    dev: s.devid.into(),
                    offset: s.offset.get(),
                },
                dev_uuid: s.dev_uuid,
            })
            .collect();
        Self::new(logical, head.length.get(), head.ty.get(), stripes)
    }

    /// The first logical address.
    pub fn logical(&self) -> LogicalAddr {
        self.logical
    }
    /// Bytes of logical addresses.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }
    pub(crate) fn end(&self) -> LogicalAddr {
        LogicalAddr(self.logical.get() + self.length_bytes)
    }
    /// Type and profile bits, as in the chunk item (`BLOCK_GROUP_*`).
    pub fn flags(&self) -> u64 {
        self.flags
    }
    /// The profile that the flags name.
    pub fn profile(&self) -> Profile {
        self.profile
    }
    /// In the order of the chunk item.
    pub fn stripes(&self) -> &[ChunkStripe] {
        &self.stripes
    }
    pub(crate) fn data_stripes(&self) -> usize {
        self.profile.data_stripes(self.stripes.len())
    }
    /// Bytes of each of the device extents.
    pub(crate) fn stripe_bytes(&self) -> u64 {
        self.length_bytes / self.data_stripes() as u64
    }
    pub(crate) fn contains(&self, addr: LogicalAddr) -> bool {
        addr >= self.logical && addr < self.end()
    }

    /// The longest contiguous piece from `addr`, which lies in the chunk, of at most `len_bytes`.
    /// The one place where a logical address becomes physical: stripes go round the groups of
    /// copies, row by row.
    fn piece(&self, addr: LogicalAddr, len_bytes: u64) -> Piece {
        let into = addr.get() - self.logical.get();
        let copies = self.profile.copies();
        let groups = self.data_stripes() as u64;
        let (group, offset, room) = if groups == 1 {
            (0, into, self.length_bytes - into)
        } else {
            let within = into % STRIPE_LEN_BYTES;
            let stripe = into / STRIPE_LEN_BYTES;
            let group = (stripe % groups) as usize;
            (
                group,
                stripe / groups * STRIPE_LEN_BYTES + within,
                STRIPE_LEN_BYTES - within,
            )
        };
        let mut places = Copies::default();
        for stripe in &self.stripes[group * copies..(group + 1) * copies] {
            places.list[usize::from(places.len)] = PhysAddr {
                dev: stripe.at.dev,
                offset: stripe.at.offset + offset,
            };
            places.len += 1;
        }
        Piece {
            logical: addr,
            len_bytes: room.min(len_bytes),
            copies: places,
        }
    }

    /// Whether every byte keeps a copy when the devices for which `lost` is true are not counted.
    pub(crate) fn survives(&self, lost: impl Fn(DevId) -> bool) -> bool {
        self.stripes
            .chunks(self.profile.copies())
            .all(|group| group.iter().any(|stripe| !lost(stripe.at.dev)))
    }
}

/// All chunks by logical address; they do not overlap.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    by_logical: BTreeMap<LogicalAddr, Arc<Chunk>>,
}

impl ChunkMap {
    /// Adds a chunk; fails where it overlaps another one.
    pub(crate) fn insert(&mut self, chunk: Chunk) -> Result<()> {
        let before = self.by_logical.range(..chunk.end()).next_back();
        if let Some((_, other)) = before
            && other.end() > chunk.logical
        {
            return Err(bad(chunk.logical, format!("overlaps the chunk at {}", other.logical)));
        }
        self.by_logical.insert(chunk.logical, Arc::new(chunk));
        Ok(())
    }
    pub(crate) fn remove(&mut self, logical: LogicalAddr) -> Option<Arc<Chunk>> {
        self.by_logical.remove(&logical)
    }
    /// The chunk that begins at `logical`.
    pub(crate) fn get(&self, logical: LogicalAddr) -> Option<&Arc<Chunk>> {
        self.by_logical.get(&logical)
    }
    /// The chunk that holds `addr`.
    pub fn lookup(&self, addr: LogicalAddr) -> Option<&Arc<Chunk>> {
        let (_, chunk) = self.by_logical.range(..=addr).next_back()?;
        chunk.contains(addr).then_some(chunk)
    }
    /// By logical address.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Chunk>> {
        self.by_logical.values()
    }
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_logical.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.by_logical.is_empty()
    }

    /// A range of logical bytes as pieces, in order. Fails where any byte is mapped by no chunk.
    pub(crate) fn pieces(&self, addr: LogicalAddr, len_bytes: u64) -> Result<Vec<Piece>> {
        let mut out = Vec::with_capacity(1);
        self.append_pieces(addr, len_bytes, &mut out)?;
        Ok(out)
    }

    pub(super) fn append_pieces(&self, addr: LogicalAddr, len_bytes: u64, out: &mut Vec<Piece>) -> Result<()> {
        let end = addr.checked_add(len_bytes).ok_or(Error::Unmapped { addr })?;
        let mut at = addr;
        while at < end {
            let chunk = self.lookup(at).ok_or(Error::Unmapped { addr: at })?;
            let chunk_end = chunk.end().min(end);
            while at < chunk_end {
                let piece = chunk.piece(at, chunk_end.get() - at.get());
                at = LogicalAddr(at.get() + piece.len_bytes);
                out.push(piece);
            }
        }
        Ok(())
    }
}
