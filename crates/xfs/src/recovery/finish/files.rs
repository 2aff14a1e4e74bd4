//! Inodes whose forks recovery changes: extents as a list, stored as the inode or a tree holds
//! them.

use std::collections::HashSet;

use xfs_format::btree::{
    BMDR_HEADER_BYTES, BlockFields, Bmap, BmapKey, BmapRecord, BmdrRoot, BtreeBlock, Siblings, TreeKind as _,
    build_bmdr_root, leaf_records_max, node_children_max, rmap_offset,
};
use xfs_format::inode::{Fork, ForkFormat, ForkKind, InodeCore};
use xfs_format::{AgNumber, Daddr, Expect, Extent, FsBlock, Ino, Inode, U64};
use zerocopy::IntoBytes as _;

use super::groups::Ags;
use super::leaves::Leaves;
use super::rmap::Mapping;
use crate::error::Result;

/// Bytes of a data fork's root with three children.
const DATA_ROOT_BYTES: usize = 52;
/// Bytes of an attribute fork's root with two.
const ATTR_ROOT_BYTES: usize = 36;
/// Where the attribute fork of a new inode begins, in bytes behind the core.
const NEW_ATTR_FORK_AT: usize = 192;

/// An inode: its core, and the room of its forks.
pub(super) struct File {
    pub ino: Ino,
    pub core: InodeCore,
    inode: Inode,
    daddr: Daddr,
    offset_bytes: u32,
}

/// The extents of a fork, and the blocks of the tree that lists them.
pub(super) struct Extents {
    pub list: Leaves,
    tree: Vec<FsBlock>,
}

impl File {
    /// Loads an inode. Errors: one that cannot be.
    pub(super) fn load(ags: &Ags<'_>, ino: Ino) -> Result<Self> {
        let geometry = &ags.disk.geometry;
        let Some((group, within)) = geometry.split_ino(ino) else {
            return Err(ags.disk.broken("inode of an intent", ino, "an inode of the volume"));
        };
        let daddr = geometry.ag_daddr(group, geometry.ino_block(within));
        let offset_bytes = geometry.ino_offset_bytes(within);
        let sector = Daddr(daddr.get() + u64::from(offset_bytes / 512));
        let bytes = ags.disk.read(sector, geometry.inode_bytes)?;
        let inode = Inode::verify(bytes, &Expect::of_inode(geometry, daddr, ino))?;
        Ok(Self {
            ino,
            core: inode.core(),
            inode,
            daddr,
            offset_bytes,
        })
    }

    /// The group of the inode: its blocks lie near it.
    pub(super) fn group(&self, ags: &Ags<'_>) -> AgNumber {
        ags.disk
            .geometry
            .split_ino(self.ino)
            .map_or(AgNumber(0), |(group, _)| group)
    }

    /// A fork as it was loaded.
    pub(super) fn fork(&self, kind: ForkKind) -> Option<Fork<'_>> {
        self.inode.fork(kind)
    }

    /// The room of a fork in bytes.
    pub(super) fn room(&self, kind: ForkKind) -> &[u8] {
        self.inode.fork_bytes(kind)
    }

    /// Stores core and forks, as they lie in the inode.
    pub(super) fn store(&mut self, ags: &mut Ags<'_>, data: &[u8], attr: &[u8]) -> Result<()> {
        let expect = Expect::of_inode(&ags.disk.geometry, self.daddr, self.ino);
        let bytes = Inode::build(&self.core, data, attr, &expect);
        let bytes = bytes.ok_or_else(|| ags.disk.broken("forks of inode", self.ino, "forks that fit"))?;
        self.inode = Inode::seal(bytes, &expect, ags.disk.lsn)?;
        ags.disk.write_within(self.daddr, self.offset_bytes, self.inode.bytes())
    }

    /// Stores the core.
    pub(super) fn store_core(&mut self, ags: &mut Ags<'_>) -> Result<()> {
        let (data, attr) = (self.room(ForkKind::Data).to_vec(), self.room(ForkKind::Attr).to_vec());
        self.store(ags, &data, &attr)
    }

    /// Bytes of the data fork that are in use.
    fn data_used_bytes(&self) -> usize {
        match self.fork(ForkKind::Data) {
            Some(Fork::Dev(_)) => size_of::<u32>(),
            Some(Fork::Local(bytes)) => bytes.len(),
            Some(Fork::Extents(records)) => size_of_val(records),
            Some(Fork::Btree(_)) | None => self.room(ForkKind::Data).len(),
        }
    }

    /// The room of a fork in bytes, by the core: the inode that was loaded may have another one.
    pub(super) fn room_bytes(&self, kind: ForkKind) -> usize {
        let all = self.room(ForkKind::Data).len() + self.room(ForkKind::Attr).len();
        match (kind, self.core.attr_fork_at()) {
            (ForkKind::Data, 0) => all,
            (ForkKind::Data, at) => at.min(all),
            (ForkKind::Attr, 0) => 0,
            (ForkKind::Attr, at) => all.saturating_sub(at),
        }
    }

    /// Where the attribute fork begins, in its units, so that it has room for a list of this size.
    /// `None` where it cannot, as Linux decides it.
    pub(super) fn attr_offset_for(&self, bytes: usize) -> Option<u8> {
        if bytes <= self.room(ForkKind::Attr).len() {
            return Some(self.core.forkoff);
        }
        if matches!(self.fork(ForkKind::Data), Some(Fork::Btree(_))) {
            return None;
        }
        self.offset_beside(bytes, self.data_used_bytes())
    }

    /// The same for an inode that has no attribute fork. Where the list does not fit, the fork
    /// begins where it does in new inodes.
    pub(super) fn new_attr_offset_for(&self, bytes: usize) -> u8 {
        let usual = self.usual_attr_offset();
        let least = match self.fork(ForkKind::Data) {
            Some(Fork::Dev(_)) => return 1,
            Some(Fork::Btree(root)) => BMDR_HEADER_BYTES + size_of_val(root.keys) + size_of_val(root.pointers),
            // The extents move to a tree.
            Some(Fork::Extents(records)) if size_of_val(records) > usize::from(usual) * 8 => 0,
            _ => self.data_used_bytes(),
        };
        self.offset_beside(bytes, least).unwrap_or(usual)
    }

    /// Where the attribute fork of a new inode begins.
    fn usual_attr_offset(&self) -> u8 {
        let all = self.room(ForkKind::Data).len() + self.room(ForkKind::Attr).len();
        let most = all.saturating_sub(ATTR_ROOT_BYTES);
        u8::try_from(NEW_ATTR_FORK_AT.min(most) / 8).unwrap_or(u8::MAX)
    }

    /// Attributes that leave the inode give the data fork room back, as in Linux.
    pub(super) fn reset_attr_offset(&mut self) {
        if !matches!(self.fork(ForkKind::Data), Some(Fork::Dev(_) | Fork::Btree(_))) {
            self.core.forkoff = self.core.forkoff.max(self.usual_attr_offset());
        }
    }

    /// Where the attribute fork begins so that both forks have room. An offset that leaves it no
    /// more than a root needs is taken unseen.
    fn offset_beside(&self, bytes: usize, data_bytes: usize) -> Option<u8> {
        let all = self.room(ForkKind::Data).len() + self.room(ForkKind::Attr).len();
        let offset = all.checked_sub(bytes)? / 8;
        let least = match self.fork(ForkKind::Data) {
            Some(Fork::Dev(_)) => return (offset >= 1).then_some(1),
            _ => data_bytes.max(DATA_ROOT_BYTES).div_ceil(8),
        };
        let most = all.saturating_sub(ATTR_ROOT_BYTES) / 8;
        (offset >= least.min(most))
            .then(|| u8::try_from(offset.min(most)).ok())
            .flatten()
    }

    /// Stores the core with the data fork as it is, and an empty attribute fork.
    pub(super) fn store_data(&mut self, ags: &mut Ags<'_>) -> Result<()> {
        let used = self.data_used_bytes();
        let data = self.room(ForkKind::Data).get(..used).unwrap_or_default().to_vec();
        self.store(ags, &data, &[])
    }

    /// Takes the room for attributes away. Its blocks were freed.
    pub(super) fn drop_attr_fork(&mut self, ags: &mut Ags<'_>) -> Result<()> {
        self.core.forkoff = 0;
        self.core.aformat = ForkFormat::Extents.to_raw();
        let count = self.core.data_extents();
        let _fits = self.core.set_extents(count, 0);
        self.store_data(ags)
    }

    /// Lays the root of the data fork's tree out for another room. One that has too many children
    /// moves to a block of its own, below a new root.
    pub(super) fn refit_root(&mut self, ags: &mut Ags<'_>) -> Result<()> {
        let room = self.room_bytes(ForkKind::Data);
        let Some(Fork::Btree(root)) = self.fork(ForkKind::Data) else {
            return Ok(());
        };
        let (level, keys, pointers) = (root.level, root.keys.to_vec(), root.pointers.to_vec());
        let of = |level, keys: &[BmapKey], pointers: &[U64]| build_bmdr_root(&BmdrRoot { level, keys, pointers }, room);
        let mut data = of(level, &keys, &pointers);
        if data.is_none() {
            let blocks = self.tree_blocks(ags, ForkKind::Data, 1, &mut Vec::new())?;
            let fields = BlockFields::Node {
                level,
                keys: &keys,
                pointers: &pointers,
            };
            self.write_node(ags, &blocks, 0, &fields)?;
            if let (Some(key), Some(block)) = (keys.first(), blocks.first()) {
                data = of(level.saturating_add(1), &[*key], &[U64::new(block.get())]);
            }
        }
        let data = data.ok_or_else(|| ags.disk.broken("root of the bmbt", keys.len(), "one that fits"))?;
        self.store(ags, &data, &[])
    }

    /// Notes the owner of new blocks of a fork, and counts them.
    pub(super) fn map_new(&mut self, ags: &mut Ags<'_>, kind: ForkKind, extent: &Extent) -> Result<()> {
        let (group, mapping) = self.mapping(ags, kind, extent)?;
        ags.map(group, mapping)?;
        ags.settle(group)?;
        let count = self.core.nblocks.get() + u64::from(extent.blocks);
        self.core.nblocks.set(count);
        Ok(())
    }

    /// Stores a list of attributes in the inode.
    pub(super) fn store_shortform(&mut self, ags: &mut Ags<'_>, offset: u8, list: &[u8]) -> Result<()> {
        let used = self.data_used_bytes();
        let data = self.room(ForkKind::Data).get(..used).unwrap_or_default().to_vec();
        self.core.forkoff = offset;
        self.core.aformat = ForkFormat::Local.to_raw();
        let count = self.core.data_extents();
        let _fits = self.core.set_extents(count, 0);
        self.store(ags, &data, list)
    }

    /// Frees the blocks of the attribute fork.
    pub(super) fn free_attr_blocks(&mut self, ags: &mut Ags<'_>) -> Result<()> {
        let blocks: u64 = self
            .extents(ags, ForkKind::Attr)?
            .list
            .iter()
            .map(|extent| u64::from(extent.blocks))
            .sum();
        self.free_fork(ags, ForkKind::Attr)?;
        self.core.nblocks.set(self.core.nblocks.get().saturating_sub(blocks));
        Ok(())
    }

    /// Extents that the inode states for a fork.
    fn stated_extents(&self, kind: ForkKind) -> u64 {
        match kind {
            ForkKind::Data => self.core.data_extents(),
            ForkKind::Attr => u64::from(self.core.attr_extents()),
        }
    }

    /// The extents of a fork. Empty where it has another form. Each block of the tree is read once.
    /// Errors: two pointers lead to one block, and more extents than the inode states.
    pub(super) fn extents(&self, ags: &Ags<'_>, kind: ForkKind) -> Result<Extents> {
        let mut extents = Extents {
            list: Leaves::new(leaf_records_max::<Bmap>(&ags.disk.geometry)),
            tree: Vec::new(),
        };
        match self.fork(kind) {
            Some(Fork::Extents(records)) => extents.list.add_leaf(records.iter().map(BmapRecord::extent)),
            Some(Fork::Btree(root)) => {
                let (stated, mut found) = (self.stated_extents(kind), 0);
                let mut seen = HashSet::new();
                let mut level: Vec<u64> = root.pointers.iter().map(|pointer| pointer.get()).collect();
                for height in (0..root.level).rev() {
                    let mut below = Vec::new();
                    for number in level {
                        if !seen.insert(number) {
                            let twice = format_args!("{number} twice in inode {}", self.ino).to_string();
                            return Err(ags.disk.broken("bmbt.ptr", twice, "a block once"));
                        }
                        let block = self.tree_block(ags, number, height)?;
                        found += block.records().len() as u64;
                        if found > stated {
                            let found = format_args!("{found} extents of inode {}", self.ino).to_string();
                            return Err(ags.disk.broken("nextents", found, format_args!("at most {stated}")));
                        }
                        extents.tree.push(FsBlock(number));
                        extents.list.add_leaf(block.records().iter().map(BmapRecord::extent));
                        below.extend(block.pointers().iter().map(|pointer| pointer.get()));
                    }
                    level = below;
                }
            }
            Some(Fork::Dev(_) | Fork::Local(_)) | None => {}
        }
        Ok(extents)
    }

    fn tree_block(&self, ags: &Ags<'_>, number: u64, level: u8) -> Result<BtreeBlock<Bmap>> {
        let geometry = &ags.disk.geometry;
        let daddr = geometry.daddr(FsBlock(number));
        let daddr = daddr.ok_or_else(|| ags.disk.broken("bmbt.ptr", number, "a block of the volume"))?;
        let bytes = ags.disk.read(daddr, geometry.block_bytes)?;
        Ok(BtreeBlock::verify(
            bytes,
            &Expect::of_inode(geometry, daddr, self.ino),
            Some(level),
        )?)
    }

    /// The owner of an extent's blocks, for the rmapbt.
    pub(super) fn mapping(&self, ags: &Ags<'_>, kind: ForkKind, extent: &Extent) -> Result<(AgNumber, Mapping)> {
        let (group, start) = ags.place(extent.start, extent.blocks)?;
        let fork = if kind == ForkKind::Attr {
            rmap_offset::ATTR_FORK
        } else {
            0
        };
        let state = if extent.is_unwritten { rmap_offset::UNWRITTEN } else { 0 };
        let mapping = Mapping {
            start,
            blocks: extent.blocks,
            owner: self.ino.get(),
            offset: extent.offset.get() | fork | state,
        };
        Ok((group, mapping))
    }

    fn tree_mapping(&self, kind: ForkKind, start: u32) -> Mapping {
        let fork = if kind == ForkKind::Attr {
            rmap_offset::ATTR_FORK
        } else {
            0
        };
        Mapping {
            start,
            blocks: 1,
            owner: self.ino.get(),
            offset: rmap_offset::BMBT_BLOCK | fork,
        }
    }

    /// Frees a block of a fork's tree.
    fn free_tree_block(&mut self, ags: &mut Ags<'_>, kind: ForkKind, block: FsBlock) -> Result<()> {
        let (group, start) = ags.place(block, 1)?;
        ags.unmap(group, self.tree_mapping(kind, start))?;
        ags.free_in(group, start, 1)?;
        self.core.nblocks.set(self.core.nblocks.get().saturating_sub(1));
        Ok(())
    }

    /// Stores the extents of a fork: in the inode where they fit, else in a tree that is built anew
    /// in its old blocks.
    pub(super) fn set_extents(&mut self, ags: &mut Ags<'_>, kind: ForkKind, extents: Extents) -> Result<()> {
        let Extents { list, mut tree } = extents;
        let room = self.room_bytes(kind);
        let records: Vec<BmapRecord> = list.iter().map(|extent| BmapRecord::new(&extent)).collect();
        let (format, bytes) = if records.len() * size_of::<BmapRecord>() <= room {
            (ForkFormat::Extents, records.as_bytes().to_vec())
        } else {
            (ForkFormat::Btree, self.build_tree(ags, kind, &list, &mut tree, room)?)
        };
        for block in tree {
            self.free_tree_block(ags, kind, block)?;
        }
        let count = records.len() as u64;
        let (data_count, attr_count) = (self.core.data_extents(), self.core.attr_extents());
        let fits = match kind {
            ForkKind::Data => {
                self.core.format = format.to_raw();
                self.core.set_extents(count, attr_count)
            }
            ForkKind::Attr => {
                self.core.aformat = format.to_raw();
                self.core.set_extents(data_count, count as u32)
            }
        };
        if !fits {
            return Err(ags.disk.broken("nextents", count, "a count that fits"));
        }
        let other = |kind| {
            self.room(kind)
                .get(..self.room_bytes(kind))
                .unwrap_or(self.room(kind))
                .to_vec()
        };
        let (data, attr) = match kind {
            ForkKind::Data => (bytes, other(ForkKind::Attr)),
            ForkKind::Attr => (other(ForkKind::Data), bytes),
        };
        self.store(ags, &data, &attr)
    }

    /// Builds a tree over records, and gives its root. Blocks are taken from `spare`, then from the
    /// volume.
    fn build_tree(
        &mut self,
        ags: &mut Ags<'_>,
        kind: ForkKind,
        leaves: &Leaves,
        spare: &mut Vec<FsBlock>,
        room_bytes: usize,
    ) -> Result<Vec<u8>> {
        let geometry = ags.disk.geometry;
        let root_max = (room_bytes - BMDR_HEADER_BYTES) / (size_of::<BmapKey>() + size_of::<U64>());
        let mut children: Vec<(BmapKey, U64)> = Vec::new();
        let parts: Vec<Vec<BmapRecord>> = leaves
            .leaves()
            .map(|leaf| leaf.iter().map(BmapRecord::new).collect())
            .collect();
        let blocks = self.tree_blocks(ags, kind, parts.len(), spare)?;
        for (at, part) in parts.iter().enumerate() {
            self.write_node(ags, &blocks, at, &BlockFields::Leaf(part))?;
            if let (Some(first), Some(block)) = (part.first(), blocks.get(at)) {
                children.push((Bmap::key(first), U64::new(block.get())));
            }
        }
        let mut level = 1;
        while children.len() > root_max {
            let count = children.len().div_ceil(node_children_max::<Bmap>(&geometry));
            let blocks = self.tree_blocks(ags, kind, count, spare)?;
            let mut above = Vec::new();
            for (at, part) in even(&children, count).iter().enumerate() {
                let (keys, pointers): (Vec<BmapKey>, Vec<U64>) = part.iter().copied().unzip();
                let fields = BlockFields::Node {
                    level,
                    keys: &keys,
                    pointers: &pointers,
                };
                self.write_node(ags, &blocks, at, &fields)?;
                if let (Some(first), Some(block)) = (keys.first(), blocks.get(at)) {
                    above.push((*first, U64::new(block.get())));
                }
            }
            children = above;
            level += 1;
        }
        let (keys, pointers): (Vec<BmapKey>, Vec<U64>) = children.into_iter().unzip();
        let root = BmdrRoot {
            level,
            keys: &keys,
            pointers: &pointers,
        };
        build_bmdr_root(&root, room_bytes)
            .ok_or_else(|| ags.disk.broken("root of the bmbt", keys.len(), "one that fits"))
    }

    fn tree_blocks(
        &mut self,
        ags: &mut Ags<'_>,
        kind: ForkKind,
        count: usize,
        spare: &mut Vec<FsBlock>,
    ) -> Result<Vec<FsBlock>> {
        let mut blocks = Vec::new();
        while blocks.len() < count {
            if let Some(block) = spare.pop() {
                blocks.push(block);
                continue;
            }
            let (block, _) = ags.take_run(self.group(ags), 1)?;
            let (group, start) = ags.place(block, 1)?;
            ags.map(group, self.tree_mapping(kind, start))?;
            ags.settle(group)?;
            self.core.nblocks.set(self.core.nblocks.get() + 1);
            blocks.push(block);
        }
        Ok(blocks)
    }

    fn write_node(
        &self,
        ags: &mut Ags<'_>,
        blocks: &[FsBlock],
        at: usize,
        fields: &BlockFields<'_, Bmap>,
    ) -> Result<()> {
        let beside = |at: Option<usize>| {
            at.and_then(|at| blocks.get(at))
                .map_or(FsBlock::NULL, |block| block.get())
        };
        let siblings = Siblings {
            left: U64::new(beside(at.checked_sub(1))),
            right: U64::new(beside(Some(at + 1))),
        };
        let number = beside(Some(at));
        let daddr = ags.disk.geometry.daddr(FsBlock(number));
        let daddr = daddr.ok_or_else(|| ags.disk.broken("bmbt.ptr", number, "a block of the volume"))?;
        let expect = Expect::of_inode(&ags.disk.geometry, daddr, self.ino);
        let bytes = BtreeBlock::<Bmap>::build(fields, siblings, &expect)
            .ok_or_else(|| ags.disk.broken("bmbt", number, "a node that fits its block"))?;
        let block = BtreeBlock::<Bmap>::seal(bytes, &expect, ags.disk.lsn)?;
        ags.disk.write(daddr, block.bytes())
    }

    /// Frees all that a fork holds.
    pub(super) fn free_fork(&mut self, ags: &mut Ags<'_>, kind: ForkKind) -> Result<()> {
        use xfs_format::features::inode_flags2;
        let extents = self.extents(ags, kind)?;
        let may_share = kind == ForkKind::Data && self.core.has_flag2(inode_flags2::REFLINK);
        if kind == ForkKind::Data && self.core.is_realtime() {
            return Ok(());
        }
        for extent in extents.list.iter() {
            let (group, mapping) = self.mapping(ags, kind, &extent)?;
            ags.unmap(group, mapping)?;
            if may_share {
                ags.adjust(group, mapping.start, mapping.blocks, false)?;
                ags.settle(group)?;
            } else {
                ags.free_in(group, mapping.start, mapping.blocks)?;
            }
        }
        for block in extents.tree {
            self.free_tree_block(ags, kind, block)?;
        }
        Ok(())
    }
}

/// Cuts a list into so many parts of about one length.
fn even<T>(list: &[T], count: usize) -> Vec<&[T]> {
    let count = count.max(1);
    let ends = (1..=count).map(|part| list.len() * part / count);
    let mut start = 0;
    ends.map(|end| {
        let part = list.get(start..end).unwrap_or_default();
        start = end;
        part
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::{bmap_record, disk, put_bmap, put_bmap_node, put_file};
    use super::*;

    const INO: Ino = Ino(131);

    #[test]
    fn lists_are_cut_into_parts_of_one_length() {
        assert_eq!(even(&[1, 2, 3, 4, 5], 2), [&[1, 2][..], &[3, 4, 5]]);
    }

    /// The extents of an inode that states so many, with a node of these children. Leaves are at 600
    /// and 601, of 40 extents each.
    fn extents_of(children: &[u64], stated: u64) -> Result<(Vec<Extent>, Vec<FsBlock>)> {
        let mut disk = disk();
        for (block, first) in [(600, 0), (601, 100)] {
            let records: Vec<BmapRecord> = (0..40).map(|at| bmap_record(first + at * 2)).collect();
            put_bmap(&mut disk, INO, block, &BlockFields::Leaf(&records));
        }
        put_bmap_node(&mut disk, INO, 500, 1, children);
        put_file(&mut disk, INO, 2, stated);
        let ags = Ags::new(&mut disk);
        let extents = File::load(&ags, INO)?.extents(&ags, ForkKind::Data)?;
        Ok((extents.list.iter().collect(), extents.tree))
    }

    #[test]
    fn tree_gives_its_extents_and_blocks() {
        let (extents, tree) = extents_of(&[600, 601], 80).unwrap();
        assert_eq!((extents.len(), extents[79]), (80, bmap_record(178).extent()));
        assert_eq!(tree, [500, 600, 601].map(FsBlock));
    }

    #[test]
    fn tree_with_two_pointers_to_one_block_is_refused() {
        let error = extents_of(&[600, 601, 600], 1000).unwrap_err().to_string();
        assert!(error.contains("600 twice in inode 131"), "{error}");
    }

    #[test]
    fn tree_with_more_extents_than_the_inode_states_is_refused() {
        let error = extents_of(&[600, 601], 79).unwrap_err().to_string();
        assert!(error.contains("80 extents of inode 131"), "{error}");
    }
}
