//! Headers of allocation groups while recovery changes what they lead to.

use std::collections::{BTreeMap, VecDeque};

use xfs_format::ag::{Agf, AgfSector, AgflSector, Agi, AgiSector};
use xfs_format::btree::Tree;
use xfs_format::{AgBlock, AgNumber, Expect, U32};

use super::super::disk::Disk;
use super::btree::{Blocks, Edit, Root};
use crate::error::Result;

/// A group's headers. The spare blocks are a plain list here: blocks are taken from its front, and
/// given back at its end.
pub(super) struct Group {
    pub agf: Agf,
    pub agi: Agi,
    pub spare: VecDeque<u32>,
    /// Blocks that were taken from its front.
    taken: u32,
    /// As they were read: what did not change is not written.
    before: (Agf, Agi),
    spare_before: VecDeque<u32>,
    slots: Vec<U32>,
}

impl Group {
    /// Takes the first spare block.
    pub(super) fn take_spare(&mut self) -> Option<u32> {
        let block = self.spare.pop_front()?;
        self.taken += 1;
        Some(block)
    }

    /// The slots of the AGFL, a ring, and the AGF's places in it.
    fn close_spare(&mut self, disk: &Disk) -> Result<Vec<AgBlock>> {
        let (count, slots) = (self.spare.len() as u32, disk.geometry.agfl_slots());
        if count > slots {
            return Err(disk.broken("flcount", count, format_args!("at most {slots}")));
        }
        let first = (self.agf.flfirst.get() + self.taken) % slots;
        for (index, block) in self.spare.iter().enumerate() {
            let slot = (first as usize + index) % slots as usize;
            if let Some(place) = self.slots.get_mut(slot) {
                place.set(*block);
            }
        }
        self.agf.flfirst.set(first);
        self.agf.fllast.set((first + count + slots - 1) % slots);
        self.agf.flcount.set(count);
        Ok(self.slots.iter().map(|slot| AgBlock(slot.get())).collect())
    }
}

/// The volume with the headers of groups that were looked at.
pub(super) struct Ags<'d> {
    pub disk: &'d mut Disk,
    /// An inode got room for attributes: the superblock says that there are some.
    pub has_new_attr_fork: bool,
    groups: BTreeMap<AgNumber, Group>,
}

/// A tree that is not fed from the AGFL says which blocks it took and gave.
pub(super) struct Change {
    pub taken: u32,
    pub freed: Vec<u32>,
    pub unused: VecDeque<u32>,
}

impl<'d> Ags<'d> {
    pub(super) fn new(disk: &'d mut Disk) -> Self {
        Self {
            disk,
            has_new_attr_fork: false,
            groups: BTreeMap::new(),
        }
    }

    /// The headers of a group.
    pub(super) fn group(&mut self, number: AgNumber) -> Result<&mut Group> {
        if !self.groups.contains_key(&number) {
            let group = self.load(number)?;
            self.groups.insert(number, group);
        }
        let group = self.groups.get_mut(&number);
        group.ok_or_else(|| self.disk.broken("group", number, "a group of the volume"))
    }

    fn load(&self, number: AgNumber) -> Result<Group> {
        let geometry = &self.disk.geometry;
        let read = |sector| {
            self.disk
                .read(geometry.header_daddr(number, sector), geometry.sector_bytes)
        };
        let expect = |sector| Expect::in_ag(geometry, geometry.header_daddr(number, sector), number);
        let agf = *AgfSector::verify(read(1)?, &expect(1))?.agf();
        let agi = *AgiSector::verify(read(2)?, &expect(2))?.agi();
        let agfl = AgflSector::verify(read(3)?, &expect(3))?;
        let spare: VecDeque<u32> = agfl.blocks(&agf).iter().map(|block| block.get()).collect();
        let slots = agfl.slots().iter().copied();
        Ok(Group {
            spare_before: spare.clone(),
            spare,
            agf,
            agi,
            taken: 0,
            before: (agf, agi),
            slots: slots.take(geometry.agfl_slots() as usize).collect(),
        })
    }

    /// Writes the headers back.
    pub(super) fn finish(self) -> Result<()> {
        let disk = self.disk;
        for (number, mut group) in self.groups {
            let geometry = disk.geometry;
            let daddr = |sector| geometry.header_daddr(number, sector);
            let expect = |sector| Expect::in_ag(&geometry, daddr(sector), number);
            if group.spare != group.spare_before || group.taken > 0 {
                let slots = group.close_spare(disk)?;
                let agfl = AgflSector::seal(AgflSector::build(&slots, &expect(3)), &expect(3), disk.lsn)?;
                disk.write(daddr(3), agfl.bytes())?;
            }
            if group.agf != group.before.0 {
                let agf = AgfSector::seal(AgfSector::build(&group.agf, &expect(1)), &expect(1), disk.lsn)?;
                disk.write(daddr(1), agf.bytes())?;
            }
            if group.agi != group.before.1 {
                let agi = AgiSector::seal(AgiSector::build(&group.agi, &expect(2)), &expect(2), disk.lsn)?;
                disk.write(daddr(2), agi.bytes())?;
            }
        }
        Ok(())
    }

    /// Where a tree begins.
    fn root(&mut self, number: AgNumber, tree: Tree) -> Result<Root> {
        let Group { agf, agi, .. } = self.group(number)?;
        let (block, levels) = match tree {
            Tree::Bno => (agf.bnoroot, agf.bnolevel),
            Tree::Cnt => (agf.cntroot, agf.cntlevel),
            Tree::Rmap => (agf.rmaproot, agf.rmaplevel),
            Tree::Refcount => (agf.refcntroot, agf.refcntlevel),
            Tree::Inobt => (agi.root, agi.level),
            Tree::Finobt | Tree::Bmap => (agi.free_root, agi.free_level),
        };
        Ok(Root {
            block: block.get(),
            levels: levels.get(),
        })
    }

    fn set_root(&mut self, number: AgNumber, tree: Tree, root: Root) -> Result<()> {
        let Group { agf, agi, .. } = self.group(number)?;
        let (block, levels) = match tree {
            Tree::Bno => (&mut agf.bnoroot, &mut agf.bnolevel),
            Tree::Cnt => (&mut agf.cntroot, &mut agf.cntlevel),
            Tree::Rmap => (&mut agf.rmaproot, &mut agf.rmaplevel),
            Tree::Refcount => (&mut agf.refcntroot, &mut agf.refcntlevel),
            Tree::Inobt => (&mut agi.root, &mut agi.level),
            Tree::Finobt | Tree::Bmap => (&mut agi.free_root, &mut agi.free_level),
        };
        block.set(root.block);
        levels.set(root.levels);
        Ok(())
    }

    /// Looks at a tree.
    pub(super) fn look<R>(
        &mut self,
        number: AgNumber,
        tree: Tree,
        look: impl FnOnce(&Edit<'_>) -> Result<R>,
    ) -> Result<R> {
        let root = self.root(number, tree)?;
        let mut blocks = Blocks::default();
        look(&Edit {
            disk: self.disk,
            group: number,
            root,
            blocks: &mut blocks,
        })
    }

    /// Changes a tree whose blocks come from the AGFL: bnobt, cntbt, rmapbt.
    pub(super) fn edit_spare(
        &mut self,
        number: AgNumber,
        tree: Tree,
        edit: impl FnOnce(&mut Edit<'_>) -> Result<()>,
    ) -> Result<()> {
        let spare = std::mem::take(&mut self.group(number)?.spare);
        let change = self.edit(number, tree, spare, edit)?;
        let group = self.group(number)?;
        let net = |count: u32| (count + change.taken).saturating_sub(change.freed.len() as u32);
        group.agf.btreeblks.set(net(group.agf.btreeblks.get()));
        if tree == Tree::Rmap {
            group.agf.rmapblocks.set(net(group.agf.rmapblocks.get()));
        }
        group.taken += change.taken;
        group.spare = change.unused;
        group.spare.extend(change.freed);
        Ok(())
    }

    /// Changes a tree with these blocks to grow into.
    pub(super) fn edit(
        &mut self,
        number: AgNumber,
        tree: Tree,
        spare: VecDeque<u32>,
        edit: impl FnOnce(&mut Edit<'_>) -> Result<()>,
    ) -> Result<Change> {
        let root = self.root(number, tree)?;
        let mut blocks = Blocks {
            spare,
            ..Blocks::default()
        };
        let mut editor = Edit {
            disk: self.disk,
            group: number,
            root,
            blocks: &mut blocks,
        };
        edit(&mut editor)?;
        let root = editor.root;
        self.set_root(number, tree, root)?;
        Ok(Change {
            taken: blocks.taken,
            freed: blocks.freed,
            unused: blocks.spare,
        })
    }

    /// Levels of a tree.
    pub(super) fn levels(&mut self, number: AgNumber, tree: Tree) -> Result<u32> {
        Ok(self.root(number, tree)?.levels)
    }
}
