//! Inodes without a name, on the lists of their groups: what a crash left of files that were open.

use xfs_format::btree::{Finobt, Inobt, InobtRecord, RmapOwner, Tree};
use xfs_format::features::{inode_flags2, ro_compat};
use xfs_format::inode::{ForkFormat, ForkKind};
use xfs_format::{AgIno, AgNumber, CHUNK_INODES};

use super::files::File;
use super::groups::Ags;
use super::rmap::Mapping;
use crate::error::{Error, Result};

impl Ags<'_> {
    /// Frees all inodes on the lists. Returns how many there were.
    pub(super) fn free_unlinked(&mut self) -> Result<u64> {
        let mut freed = 0;
        for number in 0..self.disk.geometry.ag_count {
            let group = AgNumber(number);
            let buckets = self.group(group)?.agi.unlinked;
            for (bucket, first) in buckets.iter().enumerate() {
                if first.get() == AgIno::NULL {
                    continue;
                }
                freed += self.free_list(group, first.get())?;
                if let Some(head) = self.group(group)?.agi.unlinked.get_mut(bucket) {
                    head.set(AgIno::NULL);
                }
            }
        }
        Ok(freed)
    }

    /// A list ends at an inode that cannot be read, as Linux ends it.
    fn free_list(&mut self, group: AgNumber, first: u32) -> Result<u64> {
        let (mut next, mut freed) = (first, 0);
        let most = u64::from(self.group(group)?.agi.count.get());
        while next != AgIno::NULL {
            let ino = self.disk.geometry.join_ino(group, AgIno(next));
            let file = match File::load(self, ino) {
                Ok(file) => file,
                Err(Error::Corrupt(fault)) => {
                    tracing::warn!(%fault, "a list of unlinked inodes ends early");
                    return Ok(freed);
                }
                Err(error) => return Err(error),
            };
            if freed >= most || file.core.mode.get() == 0 {
                return Err(self.disk.broken("unlinked", ino, "an inode in use, once"));
            }
            next = file.core.next_unlinked.get();
            self.free_inode(group, file)?;
            freed += 1;
        }
        Ok(freed)
    }

    fn free_inode(&mut self, group: AgNumber, mut file: File) -> Result<()> {
        file.core.next_unlinked.set(AgIno::NULL);
        if file.core.link_count() > 0 {
            return file.store_core(self);
        }
        file.free_fork(self, ForkKind::Data)?;
        file.free_fork(self, ForkKind::Attr)?;
        let core = &mut file.core;
        core.mode.set(0);
        core.format = ForkFormat::Extents.to_raw();
        core.aformat = ForkFormat::Extents.to_raw();
        core.forkoff = 0;
        core.flags.set(0);
        // What new inodes of the volume have stays.
        let kept = inode_flags2::BIGTIME | inode_flags2::NREXT64;
        if core.version >= 3 {
            core.flags2.set(core.flags2.get() & kept);
            core.cowextsize.set(0);
        }
        core.extsize.set(0);
        core.size.set(0);
        core.nblocks.set(0);
        core.generation.set(core.generation.get().wrapping_add(1));
        let _fits = core.set_extents(0, 0);
        let ino = file.ino;
        file.store(self, &[], &[])?;
        let Some((_, within)) = self.disk.geometry.split_ino(ino) else {
            return Ok(());
        };
        self.mark_free(group, within.get())
    }

    /// The inode's chunk says that it is free; a chunk of free inodes alone goes.
    fn mark_free(&mut self, group: AgNumber, within: u32) -> Result<()> {
        let geometry = self.disk.geometry;
        let record = self.look(group, Tree::Inobt, |tree| tree.at_or_before::<Inobt>(within))?;
        let chunk = record.and_then(|record| {
            let index = within
                .checked_sub(record.startino.get())
                .filter(|index| *index < CHUNK_INODES)?;
            let bit = 1_u64 << index;
            (record.allocated_mask(&geometry) & bit != 0 && record.free.get() & bit == 0).then_some((record, bit))
        });
        let Some((record, bit)) = chunk else {
            let found = format_args!("inode {within} of group {group}").to_string();
            return Err(self.disk.broken("inobt", found, "an inode in use"));
        };
        let start = record.startino.get();
        let holes = record.holemask(&geometry);
        let new = InobtRecord::new(&geometry, AgIno(start), holes, record.free.get() | bit);
        let mask = record.allocated_mask(&geometry);
        let is_empty = new.free.get() & mask == mask && geometry.inodes_per_block_log <= 6;
        let had_free = record.free.get() & mask != 0;
        self.edit_owned::<Inobt>(group, 1, RmapOwner::InodeBtrees, |tree| {
            tree.remove::<Inobt>(start)?;
            if is_empty { Ok(()) } else { tree.insert::<Inobt>(new) }
        })?;
        if geometry.has_ro_compat(ro_compat::FINOBT) {
            self.edit_owned::<Finobt>(group, 1, RmapOwner::InodeBtrees, |tree| {
                if had_free {
                    tree.remove::<Finobt>(start)?;
                }
                if is_empty { Ok(()) } else { tree.insert::<Finobt>(new) }
            })?;
        }
        let agi = &mut self.group(group)?.agi;
        agi.freecount.set(agi.freecount.get() + 1);
        if is_empty {
            let count = mask.count_ones();
            agi.count.set(agi.count.get().saturating_sub(count));
            agi.freecount.set(agi.freecount.get().saturating_sub(count));
            self.free_chunk(group, start, mask)?;
        }
        Ok(())
    }

    /// Frees the blocks of a chunk, run by run: a sparse one has holes.
    fn free_chunk(&mut self, group: AgNumber, start: u32, mask: u64) -> Result<()> {
        let log = self.disk.geometry.inodes_per_block_log;
        let mut index = 0;
        while index < CHUNK_INODES {
            let run = (mask >> index).trailing_ones();
            if run == 0 {
                index += 1;
                continue;
            }
            let (first, blocks) = ((start + index) >> log, run >> log);
            self.unmap(group, Mapping::special(first, blocks, RmapOwner::Inodes))?;
            self.free_in(group, first, blocks)?;
            index += run;
        }
        Ok(())
    }
}
