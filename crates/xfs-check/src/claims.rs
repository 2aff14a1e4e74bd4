//! Claims on blocks: every structure that was found says which blocks it takes, in the terms of the
//! rmapbt. From them follow what the rmapbt and the refcountbt should hold, which blocks are lost,
//! and which have two owners.

use xfs_format::btree::{RmapOwner, RmapRecord, rmap_offset};
use xfs_format::{AgBlock, AgNumber, FsBlock, Geometry, Ino};

/// Blocks of a group and what they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) group: u32,
    pub(crate) start: u32,
    pub(crate) blocks: u32,
    /// As the rmapbt numbers owners; 0: free.
    pub(crate) owner: u64,
    /// As in the rmapbt, with its flags.
    pub(crate) offset: u64,
}

impl Claim {
    pub(crate) fn new(group: AgNumber, start: AgBlock, blocks: u32, owner: RmapOwner) -> Self {
        Self {
            group: group.get(),
            start: start.get(),
            blocks,
            owner: owner.to_raw(),
            offset: 0,
        }
    }
    pub(crate) fn free(group: AgNumber, start: u32, blocks: u32) -> Self {
        Self {
            group: group.get(),
            start,
            blocks,
            owner: 0,
            offset: 0,
        }
    }
    /// Blocks of a fork, or of its tree. `None` where they do not lie in one group.
    pub(crate) fn of_fork(geometry: &Geometry, ino: Ino, start: FsBlock, blocks: u32, offset: u64) -> Option<Self> {
        let (group, start) = geometry.split(start)?;
        Some(Self {
            group: group.get(),
            start: start.get(),
            blocks,
            owner: ino.get(),
            offset,
        })
    }
    pub(crate) fn of_record(group: AgNumber, record: &RmapRecord) -> Self {
        Self {
            group: group.get(),
            start: record.startblock.get(),
            blocks: record.blockcount.get(),
            owner: record.owner.get(),
            offset: record.offset.get(),
        }
    }

    pub(crate) fn end(&self) -> u32 {
        self.start.saturating_add(self.blocks)
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

/// Merges claims that continue each other, and sorts them so that two lists can be compared.
pub(crate) fn normalise(mut claims: Vec<Claim>) -> Vec<Claim> {
    claims.sort_unstable_by_key(Claim::merge_key);
    let mut merged: Vec<Claim> = Vec::with_capacity(claims.len());
    for claim in claims {
        match merged.last_mut() {
            Some(last) if continues(last, &claim) => last.blocks = last.blocks.saturating_add(claim.blocks),
            _ => merged.push(claim),
        }
    }
    merged
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

/// Sweeps over the claims of a group, sorted by start. Memory: the claims that overlap in one place.
pub(crate) fn sweep(claims: &[Claim], ag_blocks: u32, may_share: bool) -> Swept {
    let mut swept = Swept::default();
    // Ends of the file claims that cover the current place.
    let mut ends: std::collections::BinaryHeap<std::cmp::Reverse<u32>> = std::collections::BinaryHeap::new();
    let (mut covered_to, mut at) = (0_u32, 0_u32);
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
            ends.push(std::cmp::Reverse(claim.end()));
        }
    }
    close(&mut ends, &mut at, u32::MAX, &mut swept.shared);
    if covered_to < ag_blocks {
        swept.lost.push((covered_to, ag_blocks.saturating_sub(covered_to)));
    }
    swept
}

/// Counts the stretches up to `until`, between which claims begin or end.
fn close(
    ends: &mut std::collections::BinaryHeap<std::cmp::Reverse<u32>>,
    at: &mut u32,
    until: u32,
    shared: &mut Vec<Shared>,
) {
    while let Some(std::cmp::Reverse(end)) = ends.peek().copied() {
        let stop = end.min(until);
        let count = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        if stop > *at && count > 1 {
            add(shared, *at, stop.saturating_sub(*at), count);
        }
        *at = (*at).max(stop);
        if end > until {
            return;
        }
        ends.pop();
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
            group: 0,
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
    fn a_sweep_counts_owners_and_finds_gaps() {
        let claims = [
            claim(0, 2, u64::MAX - 2, 0),
            claim(2, 6, 5, 0),
            claim(4, 2, 6, 0),
            claim(5, 3, 7, 0),
            claim(9, 1, 0, 0),
        ];
        let swept = sweep(&claims, 12, true);
        let shared: Vec<_> = swept.shared.iter().map(|s| (s.start, s.blocks, s.count)).collect();
        assert_eq!(shared, [(4, 1, 2), (5, 1, 3), (6, 2, 2)]);
        assert_eq!(swept.lost, [(8, 1), (10, 2)]);
        assert!(swept.clashes.is_empty());
        assert_eq!(sweep(&claims, 12, false).clashes.len(), 2);
    }
}
