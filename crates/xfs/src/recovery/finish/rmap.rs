//! Changes of the rmapbt. Files may share blocks, so records overlap.

use xfs_format::btree::{Rmap, RmapOwner, RmapRecord, Tree, TreeKind as _, rmap_offset};
use xfs_format::{AgNumber, U32, U64};

use super::groups::Ags;
use crate::error::Result;

/// Blocks of a group and what they belong to. `offset` has the flags of fork, tree and state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub start: u32,
    pub blocks: u32,
    pub owner: u64,
    pub offset: u64,
}

const FLAGS: u64 = rmap_offset::ATTR_FORK | rmap_offset::BMBT_BLOCK | rmap_offset::UNWRITTEN;

impl Mapping {
    /// Of blocks that belong to no inode.
    pub(super) fn special(start: u32, blocks: u32, owner: RmapOwner) -> Self {
        Self {
            start,
            blocks,
            owner: owner.to_raw(),
            offset: 0,
        }
    }
    fn of(record: &RmapRecord) -> Self {
        Self {
            start: record.startblock.get(),
            blocks: record.blockcount.get(),
            owner: record.owner.get(),
            offset: record.offset.get(),
        }
    }
    fn record(&self) -> RmapRecord {
        RmapRecord {
            startblock: U32::new(self.start),
            blockcount: U32::new(self.blocks),
            owner: U64::new(self.owner),
            offset: U64::new(self.offset),
        }
    }
    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.blocks)
    }
    /// True where the offset counts the blocks of a file.
    fn counts(&self) -> bool {
        matches!(RmapOwner::from_raw(self.owner), Some(RmapOwner::Inode(_)))
            && self.offset & rmap_offset::BMBT_BLOCK == 0
    }
    /// The part from this block of the group on.
    fn part(&self, start: u64, end: u64) -> Self {
        let skipped = start - u64::from(self.start);
        Self {
            start: start as u32,
            blocks: (end - start) as u32,
            owner: self.owner,
            offset: self.offset + if self.counts() { skipped } else { 0 },
        }
    }
    /// True where the other one continues this one.
    fn continues(&self, next: &Self) -> bool {
        let file_end = if self.counts() {
            self.offset + u64::from(self.blocks)
        } else {
            self.offset
        };
        self.end() == u64::from(next.start)
            && self.owner == next.owner
            && self.offset & FLAGS == next.offset & FLAGS
            && file_end == next.offset
            && u64::from(self.blocks) + u64::from(next.blocks) <= u64::from(u32::MAX)
    }
    /// True where the other one lies in this one, of the same owner and place.
    fn holds(&self, part: &Self) -> bool {
        let is_within = self.start <= part.start && self.end() >= part.end();
        is_within && self.owner == part.owner && self.part(part.start.into(), part.end()).offset == part.offset
    }
}

impl Ags<'_> {
    pub(super) fn has_rmap(&self) -> bool {
        self.disk
            .geometry
            .has_ro_compat(xfs_format::features::ro_compat::RMAPBT)
    }

    /// Records that overlap blocks, or touch them.
    fn rmaps_around(&mut self, group: AgNumber, start: u32, blocks: u32) -> Result<Vec<Mapping>> {
        let (from, to) = (start.saturating_sub(1), u64::from(start) + u64::from(blocks));
        let mut found = Vec::new();
        self.look(group, Tree::Rmap, |tree| {
            tree.visit::<Rmap>(
                &|key| u64::from(key.low.startblock.get()) <= to && key.high.startblock.get() >= from,
                &mut |record| {
                    let mapping = Mapping::of(record);
                    if u64::from(mapping.start) <= to && mapping.end() >= u64::from(start) {
                        found.push(mapping);
                    }
                },
            )
        })?;
        Ok(found)
    }

    fn replace_rmaps(&mut self, group: AgNumber, old: &[Mapping], new: &[Mapping]) -> Result<()> {
        self.edit_spare(group, Tree::Rmap, |tree| {
            for mapping in old {
                tree.remove::<Rmap>(Rmap::order(&mapping.record().low_key()))?;
            }
            for mapping in new {
                tree.insert::<Rmap>(mapping.record())?;
            }
            Ok(())
        })
    }

    /// Notes an owner. Nothing where the volume has no rmapbt.
    pub(super) fn map(&mut self, group: AgNumber, mapping: Mapping) -> Result<()> {
        if !self.has_rmap() || mapping.blocks == 0 {
            return Ok(());
        }
        let around = self.rmaps_around(group, mapping.start, mapping.blocks)?;
        let mut whole = mapping;
        let mut old = Vec::new();
        if let Some(before) = around.iter().find(|before| before.continues(&mapping)) {
            whole.start = before.start;
            whole.blocks += before.blocks;
            whole.offset = before.offset;
            old.push(*before);
        }
        if let Some(behind) = around.iter().find(|behind| mapping.continues(behind)) {
            whole.blocks += behind.blocks;
            old.push(*behind);
        }
        self.replace_rmaps(group, &old, &[whole])
    }

    /// Forgets an owner. Errors: it was not noted.
    pub(super) fn unmap(&mut self, group: AgNumber, mapping: Mapping) -> Result<()> {
        if !self.has_rmap() || mapping.blocks == 0 {
            return Ok(());
        }
        let around = self.rmaps_around(group, mapping.start, mapping.blocks)?;
        let Some(found) = around.into_iter().find(|found| found.holds(&mapping)) else {
            let found = format_args!("no owner {mapping:?} in group {group}").to_string();
            return Err(self.disk.broken("rmapbt", found, "one"));
        };
        self.cut(group, found, &mapping)
    }

    fn cut(&mut self, group: AgNumber, found: Mapping, gone: &Mapping) -> Result<()> {
        let left = (found.start < gone.start).then(|| found.part(found.start.into(), gone.start.into()));
        let right = (found.end() > gone.end()).then(|| found.part(gone.end(), found.end()));
        let rest: Vec<Mapping> = left.into_iter().chain(right).collect();
        self.replace_rmaps(group, &[found], &rest)
    }

    /// Forgets the owner of blocks that become free, whichever it is. None may be noted any more.
    pub(super) fn unmap_any(&mut self, group: AgNumber, start: u32, blocks: u32) -> Result<()> {
        if !self.has_rmap() {
            return Ok(());
        }
        let end = u64::from(start) + u64::from(blocks);
        let around = self.rmaps_around(group, start, blocks)?;
        for found in around {
            let (from, to) = (found.start.max(start), found.end().min(end));
            if u64::from(from) < to {
                let gone = found.part(from.into(), to);
                self.cut(group, found, &gone)?;
            }
        }
        Ok(())
    }
}
