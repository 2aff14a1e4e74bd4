//! Claims on blocks: every structure that was found says which blocks it takes, in the terms of the
//! rmapbt. From them follow what the rmapbt and the refcountbt should hold, which blocks are lost,
//! and which have two owners.

use std::collections::BTreeMap;

use xfs_format::btree::{RefcountRecord, RmapOwner, RmapRecord, rmap_offset};
use xfs_format::{AgBlock, AgNumber, FsBlock, Geometry, Ino};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::volume::index;

/// Blocks of a group and what they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Claim {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    /// As the rmapbt numbers owners; 0: free.
    pub(crate) owner: u64,
    /// As in the rmapbt, with its flags.
    pub(crate) offset: u64,
}

impl Claim {
    pub(crate) fn new(start: AgBlock, blocks: u32, owner: RmapOwner) -> Self {
        Self {
            start: start.get(),
            blocks,
            owner: owner.to_raw(),
            offset: 0,
        }
    }
    pub(crate) fn free(start: u32, blocks: u32) -> Self {
        Self {
            start,
            blocks,
            owner: 0,
            offset: 0,
        }
    }
    /// Blocks of a fork, or of its tree. `None` where they do not lie in one group.
    pub(crate) fn of_fork(
        geometry: &Geometry,
        ino: Ino,
        start: FsBlock,
        blocks: u32,
        offset: u64,
    ) -> Option<(AgNumber, Self)> {
        let (group, start) = geometry.split(start)?;
        let claim = Self {
            start: start.get(),
            blocks,
            owner: ino.get(),
            offset,
        };
        Some((group, claim))
    }
    pub(crate) fn of_record(record: &RmapRecord) -> Self {
        Self {
            start: record.startblock.get(),
            blocks: record.blockcount.get(),
            owner: record.owner.get(),
            offset: record.offset.get(),
        }
    }

    /// A record of the refcountbt; the count is in the place of the offset.
    pub(crate) fn references(record: &RefcountRecord) -> Self {
        Self {
            start: record.start().get(),
            blocks: record.blockcount.get(),
            owner: 0,
            offset: record.refcount.get().into(),
        }
    }

    /// Their order on disk. All fields count: which thread found a claim first does not show in
    /// what is said about it.
    pub(crate) fn place(&self) -> (u64, u64, u64) {
        let [a, b, c, d] = self.start.to_be_bytes();
        let [e, f, g, h] = self.blocks.to_be_bytes();
        // Both in one number: three comparisons at most.
        (u64::from_be_bytes([a, b, c, d, e, f, g, h]), self.owner, self.offset)
    }

    pub(crate) fn end(&self) -> u32 {
        self.start.saturating_add(self.blocks)
    }
    /// What lies before a block of the group, and what lies from there on. `moves`: the offset of a
    /// part of a file moves with its first block.
    pub(crate) fn split(self, at: u32, moves: bool) -> (Self, Option<Self>) {
        let left = at.saturating_sub(self.start);
        if self.blocks <= left || left == 0 {
            return (self, None);
        }
        let moved = if moves && self.has_offset() { u64::from(left) } else { 0 };
        let behind = Self {
            start: at,
            blocks: self.blocks.saturating_sub(left),
            offset: self.offset.wrapping_add(moved),
            ..self
        };
        (Self { blocks: left, ..self }, Some(behind))
    }
    /// Contents of a file: the only blocks that several may own.
    pub(crate) fn is_file_data(&self) -> bool {
        self.owner != 0
            && self.owner >> 63 == 0
            && self.offset & (rmap_offset::ATTR_FORK | rmap_offset::BMBT_BLOCK) == 0
    }
    pub(crate) fn is_free(&self) -> bool {
        self.owner == 0
    }
    /// The offset moves with the block: claims that follow each other do so in the file, too.
    fn has_offset(&self) -> bool {
        self.owner >> 63 == 0 && self.offset & rmap_offset::BMBT_BLOCK == 0
    }
    /// Brings claims that can be merged beside each other.
    fn merge_key(&self) -> (u64, u64, u64, u32) {
        let flags = self.offset & !rmap_offset::OFFSET_MASK;
        let diagonal = if self.has_offset() {
            (self.offset & rmap_offset::OFFSET_MASK).wrapping_sub(self.start.into())
        } else {
            0
        };
        (self.owner, flags, diagonal, self.start)
    }

    pub(crate) fn describe(&self) -> String {
        let range = format!("blocks {} to {}", self.start, self.end().saturating_sub(1));
        let at = self.offset & rmap_offset::OFFSET_MASK;
        let is = |flag| self.offset & flag != 0;
        match RmapOwner::from_raw(self.owner) {
            _ if self.is_free() => format!("{range}: free"),
            Some(RmapOwner::Inode(ino)) if is(rmap_offset::BMBT_BLOCK) => {
                format!("{range}: tree of a fork of inode {ino}")
            }
            Some(RmapOwner::Inode(ino)) => {
                let fork = if is(rmap_offset::ATTR_FORK) {
                    "attributes"
                } else {
                    "data"
                };
                let unwritten = if is(rmap_offset::UNWRITTEN) { ", unwritten" } else { "" };
                format!("{range}: {fork} of inode {ino} from block {at}{unwritten}")
            }
            Some(owner) => {
                let name = RmapOwner::SPECIAL.iter().find(|(special, ..)| *special == owner);
                format!("{range}: {}", name.map_or("unknown", |(.., name)| name))
            }
            None => format!("{range}: owner {}", self.owner),
        }
    }
}

/// Sorts the claims of a slice by [`Claim::place`]. The slice: its first block, and the one behind
/// its last. Claims are gathered file by file, so those of one block mostly are in order: where a
/// slice has many, they are counted by block (a counting sort), which costs each claim once.
pub(crate) fn in_order(mut claims: Vec<Claim>, (first, end): (u32, u32)) -> Vec<Claim> {
    let blocks = index(end.saturating_sub(first));
    if claims.len() < blocks / 8 || blocks == 0 {
        claims.sort_unstable_by_key(Claim::place);
        return claims;
    }
    let last = blocks.saturating_sub(1);
    // A claim that begins behind the end of the group is kept with the last block.
    let slot = |claim: &Claim| index(claim.start.saturating_sub(first)).min(last);
    // How many claims each block has; then where those of a block go.
    let mut places = vec![0_usize; blocks];
    for claim in &claims {
        if let Some(count) = places.get_mut(slot(claim)) {
            *count = count.saturating_add(1);
        }
    }
    let mut before = 0_usize;
    for place in &mut places {
        (*place, before) = (before, before.saturating_add(*place));
    }
    let mut sorted = claims.clone();
    for claim in &claims {
        if let Some(place) = places.get_mut(slot(claim)) {
            if let Some(to) = sorted.get_mut(*place) {
                *to = *claim;
            }
            *place = place.saturating_add(1);
        }
    }
    let mut start = 0;
    for end in places {
        if let Some(part) = sorted.get_mut(start..end)
            && !part.is_sorted_by_key(Claim::place)
        {
            part.sort_unstable_by_key(Claim::place);
        }
        start = end;
    }
    sorted
}

/// Merges claims that continue each other, and sorts them so that two lists can be compared.
pub(crate) fn normalise(mut claims: Vec<Claim>) -> Vec<Claim> {
    claims.sort_unstable_by_key(|claim| (claim.merge_key(), claim.blocks));
    claims.dedup_by(|next, last| {
        let goes_on = continues(last, next);
        if goes_on {
            last.blocks = last.blocks.saturating_add(next.blocks);
        }
        goes_on
    });
    claims
}

fn continues(last: &Claim, next: &Claim) -> bool {
    let (owner, flags, diagonal, _) = last.merge_key();
    let (next_owner, next_flags, next_diagonal, start) = next.merge_key();
    (owner, flags, diagonal) == (next_owner, next_flags, next_diagonal) && last.end() == start
}

/// What is in the first list alone, and what is in the second one alone. Both are normalised.
pub(crate) fn differences(one: &[Claim], other: &[Claim]) -> (Vec<Claim>, Vec<Claim>) {
    let (mut only_one, mut only_other) = (Vec::new(), Vec::new());
    let (mut left, mut right) = (one.iter().peekable(), other.iter().peekable());
    loop {
        match (left.peek(), right.peek()) {
            (Some(a), Some(b)) if a == b => {
                left.next();
                right.next();
            }
            (Some(a), Some(b)) if a.merge_key() <= b.merge_key() => only_one.extend(left.next().copied()),
            (Some(_), None) => only_one.extend(left.next().copied()),
            (_, Some(_)) => only_other.extend(right.next().copied()),
            (None, None) => return (only_one, only_other),
        }
    }
}

/// Blocks that several claims cover, with how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    pub(crate) count: u32,
}

/// What a sweep over the claims of a group found.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Blocks of files with two or more owners.
    pub(crate) shared: Vec<Shared>,
    /// Pairs of claims that may not overlap.
    pub(crate) clashes: Vec<(Claim, Claim)>,
    /// Blocks without a claim: start and number.
    pub(crate) lost: Vec<(u32, u32)>,
}

/// Sweeps over the claims of a part of a group, sorted by start, from its first block to one behind
/// its last one. Memory: the claims that overlap in one place.
pub(crate) fn sweep(claims: &[Claim], (first, end): (u32, u32), may_share: bool) -> Swept {
    let mut swept = Swept::default();
    let mut ends = Ends::default();
    let (mut covered_to, mut at) = (first, first);
    let mut widest: Option<Claim> = None;
    for claim in claims {
        if claim.start > covered_to {
            swept.lost.push((covered_to, claim.start.saturating_sub(covered_to)));
        }
        covered_to = covered_to.max(claim.end());
        if let Some(before) = widest
            && before.end() > claim.start
            && !(may_share && before.is_file_data() && claim.is_file_data())
        {
            swept.clashes.push((before, *claim));
        }
        if widest.is_none_or(|widest| claim.end() > widest.end()) {
            widest = Some(*claim);
        }
        if claim.is_file_data() && may_share {
            close(&mut ends, &mut at, claim.start, &mut swept.shared);
            at = claim.start;
            ends.push(claim.end());
        }
    }
    close(&mut ends, &mut at, u32::MAX, &mut swept.shared);
    if covered_to < end {
        swept.lost.push((covered_to, end.saturating_sub(covered_to)));
    }
    swept
}

/// Ends of the claims of files that cover the current place. Many of them end in one place.
#[derive(Default)]
struct Ends {
    /// How many claims end there.
    counts: BTreeMap<u32, u32>,
    all: u32,
}

impl Ends {
    fn push(&mut self, end: u32) {
        let count = self.counts.entry(end).or_default();
        *count = count.saturating_add(1);
        self.all = self.all.saturating_add(1);
    }
}

/// Counts the stretches up to `until`, between which claims begin or end.
fn close(ends: &mut Ends, at: &mut u32, until: u32, shared: &mut Vec<Shared>) {
    while let Some(first) = ends.counts.first_entry() {
        let end = *first.key();
        let stop = end.min(until);
        if stop > *at && ends.all > 1 {
            add(shared, *at, stop.saturating_sub(*at), ends.all);
        }
        *at = (*at).max(stop);
        if end > until {
            return;
        }
        ends.all = ends.all.saturating_sub(first.remove());
    }
}

/// Adds a stretch, or makes the last one longer.
pub(crate) fn add(shared: &mut Vec<Shared>, start: u32, blocks: u32, count: u32) {
    match shared.last_mut() {
        Some(last) if last.start.saturating_add(last.blocks) == start && last.count == count => {
            last.blocks = last.blocks.saturating_add(blocks);
        }
        _ => shared.push(Shared { start, blocks, count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(start: u32, blocks: u32, owner: u64, offset: u64) -> Claim {
        Claim {
            start,
            blocks,
            owner,
            offset,
        }
    }

    #[test]
    fn claims_that_continue_each_other_merge() {
        let merged = normalise(vec![
            claim(12, 3, 5, 2),
            claim(10, 2, 5, 0),
            claim(15, 1, 5, 9),
            claim(16, 1, 6, 10),
        ]);
        assert_eq!(merged, [claim(10, 5, 5, 0), claim(15, 1, 5, 9), claim(16, 1, 6, 10)]);
        let other = [claim(10, 5, 5, 0), claim(15, 1, 5, 8)];
        let (one, two) = differences(&merged, &normalise(other.to_vec()));
        assert_eq!(one, [claim(15, 1, 5, 9), claim(16, 1, 6, 10)]);
        assert_eq!(two, [claim(15, 1, 5, 8)]);
    }

    #[test]
    fn claims_of_full_and_sparse_slices_are_put_in_order() {
        // Some before the slice, some behind it, and many on one block.
        let all = |count: u32| -> Vec<Claim> {
            let some = (0..count).map(|n| {
                let mixed = n.wrapping_mul(2_654_435_761);
                let start = if n % 3 == 0 { 100 } else { 90 + mixed % 160 };
                claim(start, 1 + mixed % 3, u64::from(mixed % 5), (mixed >> 8).into())
            });
            some.collect()
        };
        for count in [0, 1, 9, 10, 1000] {
            let mut expected = all(count);
            expected.sort_by_key(Claim::place);
            for range in [(100, 200), (0, 4000), (150, 150)] {
                assert_eq!(in_order(all(count), range), expected, "{count} in {range:?}");
            }
        }
    }

    #[test]
    fn a_sweep_counts_owners_and_finds_gaps() {
        let claims = [
            claim(0, 2, u64::MAX - 2, 0),
            claim(2, 6, 5, 0),
            claim(4, 2, 6, 0),
            claim(5, 3, 7, 0),
            claim(9, 1, 0, 0),
        ];
        let swept = sweep(&claims, (0, 12), true);
        let shared: Vec<_> = swept.shared.iter().map(|s| (s.start, s.blocks, s.count)).collect();
        assert_eq!(shared, [(4, 1, 2), (5, 1, 3), (6, 2, 2)]);
        assert_eq!(swept.lost, [(8, 1), (10, 2)]);
        assert!(swept.clashes.is_empty());
        assert_eq!(sweep(&claims, (0, 12), false).clashes.len(), 2);
    }
}
