//! Free space of allocation groups.

use std::collections::VecDeque;

use xfs_format::btree::{AllocRecord, Bno, Cnt, RmapOwner, Tree};
use xfs_format::{AgBlock, AgNumber, FsBlock, U32};

use super::btree::{Edit, ShortKind};
use super::groups::{Ags, Change};
use super::rmap::Mapping;
use crate::error::Result;

fn record(start: u32, blocks: u32) -> AllocRecord {
    AllocRecord {
        startblock: U32::new(start),
        blockcount: U32::new(blocks),
    }
}

/// The share of a group that is left as long as other groups have space: Linux reserves some for
/// the trees of groups.
const KEPT_SHARE: u32 = 10;

impl Ags<'_> {
    /// Replaces free extents in both trees.
    fn replace_free(&mut self, group: AgNumber, old: &[AllocRecord], new: &[AllocRecord]) -> Result<()> {
        self.edit_spare(group, Tree::Bno, |tree| {
            for record in old {
                tree.remove::<Bno>(record.startblock.get())?;
            }
            new.iter().try_for_each(|record| tree.insert::<Bno>(*record))
        })?;
        self.edit_spare(group, Tree::Cnt, |tree| {
            for record in old {
                tree.remove::<Cnt>((record.blockcount.get(), record.startblock.get()))?;
            }
            new.iter().try_for_each(|record| tree.insert::<Cnt>(*record))
        })?;
        let sum = |records: &[AllocRecord]| records.iter().map(|record| record.blockcount.get()).sum::<u32>();
        let longest = self.look(group, Tree::Cnt, |tree| tree.last::<Cnt>())?;
        let agf = &mut self.group(group)?.agf;
        agf.freeblks
            .set((agf.freeblks.get() + sum(new)).saturating_sub(sum(old)));
        agf.longest.set(longest.map_or(0, |record| record.blockcount.get()));
        Ok(())
    }

    /// Gives blocks back that have no owner any more. Errors: some of them are free.
    fn put_free(&mut self, group: AgNumber, start: u32, blocks: u32) -> Result<()> {
        if !self.disk.geometry.is_ag_extent(group, AgBlock(start), blocks) {
            let found = format_args!("{blocks} blocks from {group}:{start}").to_string();
            return Err(self.disk.broken("extent to be freed", found, "blocks of the group"));
        }
        let end = start + blocks;
        let (before, behind) = self.look(group, Tree::Bno, |tree| {
            let before = tree.at_or_before::<Bno>(start)?;
            let mut behind = None;
            tree.from::<Bno>(start, &mut |record| {
                behind = Some(*record);
                false
            })?;
            Ok((before, behind))
        })?;
        let ends = |record: &AllocRecord| record.startblock.get() + record.blockcount.get();
        let overlaps = before.is_some_and(|record| ends(&record) > start)
            || behind.is_some_and(|record| record.startblock.get() < end);
        if overlaps {
            let found = format_args!("{blocks} blocks from {group}:{start}, which are free").to_string();
            return Err(self.disk.broken("extent to be freed", found, "blocks in use"));
        }
        let before = before.filter(|record| ends(record) == start);
        let behind = behind.filter(|record| record.startblock.get() == end);
        let from = before.map_or(start, |record| record.startblock.get());
        let to = behind.map_or(end, |record| ends(&record));
        let old: Vec<AllocRecord> = before.into_iter().chain(behind).collect();
        self.replace_free(group, &old, &[record(from, to - from)])
    }

    /// Frees blocks of a group, whose owner was forgotten already, and sees to the AGFL.
    pub(super) fn free_in(&mut self, group: AgNumber, start: u32, blocks: u32) -> Result<()> {
        self.put_free(group, start, blocks)?;
        self.settle(group)
    }

    /// Takes so many blocks out of the smallest free extent of a group that has them, else all of
    /// the largest one that has `least`. `None` where there is none.
    fn take_free(&mut self, group: AgNumber, least: u32, most: u32) -> Result<Option<(u32, u32)>> {
        let found = self.look(group, Tree::Cnt, |tree| {
            let mut first = None;
            tree.from::<Cnt>((most, 0), &mut |record| {
                first = Some(*record);
                false
            })?;
            if first.is_none() { tree.last::<Cnt>() } else { Ok(first) }
        })?;
        let Some(found) = found.filter(|record| record.blockcount.get() >= least) else {
            return Ok(None);
        };
        let (start, blocks) = (found.startblock.get(), found.blockcount.get());
        let taken = blocks.min(most);
        let rest = (blocks > taken).then(|| record(start + taken, blocks - taken));
        let rest: Vec<AllocRecord> = rest.into_iter().collect();
        self.replace_free(group, &[found], &rest)?;
        Ok(Some((start, taken)))
    }

    /// Takes one block.
    fn take_block(&mut self, group: AgNumber) -> Result<Option<u32>> {
        Ok(self.take_free(group, 1, 1)?.map(|(start, _)| start))
    }

    /// Blocks that a change of all three trees may take.
    fn spare_min(&mut self, group: AgNumber) -> Result<usize> {
        let mut levels = self.levels(group, Tree::Bno)? + self.levels(group, Tree::Cnt)? + 2;
        if self.has_rmap() {
            levels += 2 * (self.levels(group, Tree::Rmap)? + 1);
        }
        Ok(levels as usize)
    }

    /// Fills the AGFL up, and empties it where trees gave more back than it should hold.
    pub(super) fn settle(&mut self, group: AgNumber) -> Result<()> {
        while self.group(group)?.spare.len() < self.spare_min(group)? {
            let Some(block) = self.take_block(group)? else {
                return Ok(());
            };
            self.group(group)?.spare.push_back(block);
            self.map(group, Mapping::special(block, 1, RmapOwner::AgBtrees))?;
        }
        let most = self.spare_min(group)? * 2;
        while self.group(group)?.spare.len() > most {
            let Some(block) = self.group(group)?.take_spare() else {
                return Ok(());
            };
            self.unmap(group, Mapping::special(block, 1, RmapOwner::AgBtrees))?;
            self.put_free(group, block, 1)?;
        }
        Ok(())
    }

    /// Takes blocks for an owner that has others beside them: those at `target` where they are
    /// free, so that extents grow; for one block, the nearest one. `None` where there are none.
    pub(super) fn take_at(&mut self, target: FsBlock, blocks: u32) -> Result<Option<(FsBlock, u32)>> {
        let Some((group, within)) = self.disk.geometry.split(target) else {
            return Ok(None);
        };
        let at = within.get();
        let agf = &self.group(group)?.agf;
        if agf.freeblks.get() <= agf.length.get() / KEPT_SHARE {
            return Ok(None);
        }
        let (before, behind) = self.look(group, Tree::Bno, |tree| {
            let mut behind = None;
            tree.from::<Bno>(at, &mut |record| {
                behind = Some(*record);
                false
            })?;
            Ok((tree.at_or_before::<Bno>(at)?, behind))
        })?;
        let ends = |record: &AllocRecord| record.startblock.get() + record.blockcount.get();
        let last = |record: &AllocRecord| ends(record).saturating_sub(1).min(at);
        let places = [
            before.map(|record| (last(&record), record)),
            behind.map(|record| (record.startblock.get().max(at), record)),
        ];
        let nearest = places.into_iter().flatten().min_by_key(|(place, _)| place.abs_diff(at));
        let fits =
            |(place, record): &(u32, AllocRecord)| (blocks == 1 || *place == at) && ends(record) - place >= blocks;
        let Some((start, found)) = nearest.filter(fits) else {
            return Ok(None);
        };
        let parts = [
            record(found.startblock.get(), start - found.startblock.get()),
            record(start + blocks, ends(&found) - start - blocks),
        ];
        let rest: Vec<AllocRecord> = parts.into_iter().filter(|part| part.blockcount.get() > 0).collect();
        self.replace_free(group, &[found], &rest)?;
        self.settle(group)?;
        Ok(Some((self.disk.geometry.join(group, AgBlock(start)), blocks)))
    }

    /// Takes at most so many blocks for an owner, near a group, and all of them where a group has
    /// them in one piece: the first one, and how many follow each other. Errors: the volume
    /// is full.
    pub(super) fn take_run(&mut self, near: AgNumber, most: u32) -> Result<(FsBlock, u32)> {
        let count = self.disk.geometry.ag_count;
        for (least, kept_share) in [(most, KEPT_SHARE), (1, KEPT_SHARE), (1, u32::MAX)] {
            for step in 0..count {
                let group = AgNumber(((u64::from(near.get()) + u64::from(step)) % u64::from(count)) as u32);
                let agf = &self.group(group)?.agf;
                if agf.freeblks.get() <= agf.length.get() / kept_share {
                    continue;
                }
                if let Some((start, blocks)) = self.take_free(group, least, most)? {
                    self.settle(group)?;
                    return Ok((self.disk.geometry.join(group, AgBlock(start)), blocks));
                }
            }
        }
        Err(cowshed_vfs::Error::NoSpace.into())
    }

    /// Changes a tree whose blocks are those of its group: inobt, finobt, refcountbt. At most
    /// `more` records are added.
    pub(super) fn edit_owned<K: ShortKind>(
        &mut self,
        group: AgNumber,
        more: usize,
        owner: RmapOwner,
        edit: impl FnOnce(&mut Edit<'_>) -> Result<()>,
    ) -> Result<()> {
        let tree = K::TREE;
        let mut spare = VecDeque::new();
        if !self.look(group, tree, |tree| tree.has_room::<K>(more))? {
            for _ in 0..(self.levels(group, tree)? as usize + 1) * (more + 1) {
                let Some(block) = self.take_block(group)? else { break };
                spare.push_back(block);
                self.settle(group)?;
            }
        }
        let offered = spare.clone();
        let change: Change = self.edit(group, tree, spare, edit)?;
        for block in &change.unused {
            self.free_in(group, *block, 1)?;
        }
        let taken = offered.iter().filter(|block| !change.unused.contains(block));
        for block in taken {
            self.map(group, Mapping::special(*block, 1, owner))?;
            self.settle(group)?;
        }
        for block in &change.freed {
            self.unmap(group, Mapping::special(*block, 1, owner))?;
            self.free_in(group, *block, 1)?;
        }
        let headers = self.group(group)?;
        let count = match tree {
            Tree::Refcount => &mut headers.agf.refcntblocks,
            Tree::Inobt => &mut headers.agi.ino_blocks,
            _ => &mut headers.agi.fino_blocks,
        };
        let has_count = tree == Tree::Refcount || count.get() > 0;
        if has_count {
            count.set((count.get() + change.taken).saturating_sub(change.freed.len() as u32));
        }
        Ok(())
    }

    /// Group and first block of an extent of the volume.
    pub(super) fn place(&self, start: FsBlock, blocks: u32) -> Result<(AgNumber, u32)> {
        let split = self.disk.geometry.split(start);
        match split.filter(|_| self.disk.geometry.is_extent(start, blocks.into())) {
            Some((group, within)) => Ok((group, within.get())),
            None => {
                let found = format_args!("{blocks} blocks from {start}").to_string();
                Err(self.disk.broken("extent of an intent", found, "blocks of a group"))
            }
        }
    }
}
