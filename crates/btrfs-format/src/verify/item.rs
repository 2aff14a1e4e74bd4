//! One item under the verifier: its key, its data and what is known of its block.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::corrupt::CorruptKind;
use crate::ids::{ObjectId, TreeId};
use crate::key::Key;
use cowshed_layout::{Rule, len_u64};

/// What the checks of items need to know about the block and its volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ctx {
    pub(super) sectorsize_bytes: u64,
    pub(super) nodesize_bytes: u64,
    /// Bytes of one checksum of data.
    pub(super) csum_bytes: u64,
    pub(super) generation: u64,
    pub(super) owner: TreeId,
}

/// The item under judgement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    pub(super) key: Key,
    pub(super) data: &'a [u8],
    pub(super) ctx: &'a Ctx,
}

impl<'a> Item<'a> {
    #[inline]
    pub(super) fn field(&self, field: &'static str, found: u64, rule: Rule) -> Result<(), CorruptKind> {
        if rule.holds(found) {
            Ok(())
        } else {
            Err(self.field_error(field, found, rule))
        }
    }
    #[cold]
    pub(super) fn field_error(&self, field: &'static str, found: u64, rule: Rule) -> CorruptKind {
        CorruptKind::ItemField {
            key: self.key,
            field,
            found,
            rule,
        }
    }
    #[cold]
    pub(super) fn size_error(&self, rule: Rule) -> CorruptKind {
        CorruptKind::ItemSize {
            key: self.key,
            found: len_u64(self.data),
            rule,
        }
    }
    #[cold]
    pub(super) fn truncated(&self, part: &'static str, needs: usize, left: &[u8]) -> CorruptKind {
        CorruptKind::ItemTruncated {
            key: self.key,
            part,
            needs: u64::try_from(needs).unwrap_or(u64::MAX),
            left: len_u64(left),
        }
    }
    #[inline]
    pub(super) fn size(&self, rule: Rule) -> Result<(), CorruptKind> {
        if rule.holds(len_u64(self.data)) {
            Ok(())
        } else {
            Err(self.size_error(rule))
        }
    }
    /// The whole item as one structure.
    pub(super) fn exact<T: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> Result<&'a T, CorruptKind> {
        T::ref_from_bytes(self.data)
            .map_err(|_| self.size_error(Rule::Equal(u64::try_from(size_of::<T>()).unwrap_or_default())))
    }
    /// A structure at the head of `rest`, and what follows it.
    pub(super) fn part<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
        part: &'static str,
        rest: &'a [u8],
    ) -> Result<(&'a T, &'a [u8]), CorruptKind> {
        T::ref_from_prefix(rest).map_err(|_| self.truncated(part, size_of::<T>(), rest))
    }
    /// `len` bytes at the head of `rest`, and what follows them.
    #[inline]
    pub(super) fn bytes(
        &self,
        part: &'static str,
        rest: &'a [u8],
        len: u16,
    ) -> Result<(&'a [u8], &'a [u8]), CorruptKind> {
        rest.split_at_checked(len.into())
            .ok_or_else(|| self.truncated(part, len.into(), rest))
    }
    #[inline]
    pub(super) fn no_overlap(&self, prev: Key, prev_end: u64, start: u64) -> Result<(), CorruptKind> {
        if prev_end > start {
            return Err(CorruptKind::Overlap {
                key: self.key,
                prev,
                prev_end,
            });
        }
        Ok(())
    }
    /// A transaction number: not from the future of its block.
    #[inline]
    pub(super) fn generation(&self, field: &'static str, found: u64) -> Result<(), CorruptKind> {
        self.field(field, found, Rule::AtMost(self.ctx.generation))
    }
}

/// Checks that `start` is aligned to sectors and that `len` bytes from there do not overflow; gives
/// the end.
#[inline]
pub(super) fn aligned_end(item: &Item<'_>, field: &'static str, start: u64, len: u64) -> Result<u64, CorruptKind> {
    item.field(field, start, Rule::AlignedTo(item.ctx.sectorsize_bytes))?;
    start
        .checked_add(len)
        .ok_or_else(|| item.field_error(field, start, Rule::AtMost(u64::MAX.saturating_sub(len))))
}

/// A tree whose blocks snapshots share: the top level and the numbered subvolumes, without quota
/// groups' ids.
#[inline]
pub(super) fn is_shareable(tree: TreeId) -> bool {
    const LEVELLESS_IDS_END: u64 = 1 << 48;
    tree == TreeId::FS || (ObjectId::FIRST_FREE.get()..LEVELLESS_IDS_END).contains(&tree.get())
}
