//! Walks a volume from its superblock, and verifies every structure that it leads to. For tests
//! alone: no cache, no log.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod db;
pub mod fields;
pub mod judge;
pub mod kinds;
pub mod lab;
pub mod log;
pub mod log_facts;
pub mod logprint;
mod names;
mod trees;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xfs_format::ag::{AgfSector, AgflSector, AgiSector};
use xfs_format::btree::{
    BlockPtr, Bmap, BmapRecord, Bno, BtreeBlock, Cnt, Finobt, Inobt, InobtRecord, Refcount, Rmap, TreeKind,
};
use xfs_format::inode::{Fork, ForkKind, mode};
use xfs_format::{
    AgBlock, AgIno, AgNumber, Daddr, Expect, Extent, FileBlock, FsBlock, Geometry, Ino, Inode, Lsn, Superblock, U32,
};

pub struct Volume {
    pub superblock: Superblock,
    pub geometry: Geometry,
    file: File,
}

/// What a walk found: structures by name.
#[derive(Default, Debug)]
pub struct Found {
    pub counts: BTreeMap<&'static str, usize>,
    /// Inodes in use.
    pub inodes: Vec<(Ino, Inode)>,
}

impl Found {
    pub fn note(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }
    pub fn count(&self, what: &str) -> usize {
        self.counts.get(what).copied().unwrap_or_default()
    }
}

impl Volume {
    pub fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let mut head = vec![0; 32768];
        file.read_exact_at(&mut head, 0).unwrap();
        let superblock = Superblock::verify(&head).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let geometry = Geometry::new(&superblock).unwrap();
        Self {
            superblock,
            geometry,
            file,
        }
    }

    pub fn read(&self, daddr: Daddr, len: u32) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.file
            .read_exact_at(&mut bytes, daddr.checked_bytes().unwrap())
            .unwrap();
        bytes
    }

    /// Verifies everything; encodes what was decoded and compares.
    pub fn walk(&self) -> Found {
        let mut found = Found::default();
        for group in (0..self.geometry.ag_count).map(AgNumber) {
            self.walk_group(group, &mut found);
        }
        found
    }

    fn walk_group(&self, group: AgNumber, found: &mut Found) {
        let g = &self.geometry;
        let sector = |n| self.read(g.header_daddr(group, n), g.sector_bytes);
        let expect = |n| Expect::in_ag(g, g.header_daddr(group, n), group);
        let copy = Superblock::verify_copy(&sector(0)).unwrap();
        // Features that were switched on later stand in the first one alone.
        let copy = Geometry::new(&copy).unwrap();
        assert_eq!(
            (copy.blocks, copy.ag_blocks, copy.uuid),
            (g.blocks, g.ag_blocks, g.uuid)
        );
        found.note("superblock");

        let agf_sector = AgfSector::verify(sector(1), &expect(1)).unwrap();
        let agf = *agf_sector.agf();
        check_same(
            "AGF",
            agf_sector.bytes(),
            AgfSector::build(&agf, &expect(1)),
            agf.lsn.get(),
            |bytes, lsn| AgfSector::seal(bytes, &expect(1), lsn).map(|b| b.bytes().to_vec()),
        );
        let agi_sector = AgiSector::verify(sector(2), &expect(2)).unwrap();
        let agi = *agi_sector.agi();
        check_same(
            "AGI",
            agi_sector.bytes(),
            AgiSector::build(&agi, &expect(2)),
            agi.lsn.get(),
            |bytes, lsn| AgiSector::seal(bytes, &expect(2), lsn).map(|b| b.bytes().to_vec()),
        );
        let agfl = AgflSector::verify(sector(3), &expect(3)).unwrap();
        let slots: Vec<AgBlock> = agfl.slots().iter().map(|slot| AgBlock(slot.get())).collect();
        let lsn = agfl.header().map_or(0, |header| header.lsn.get());
        check_same(
            "AGFL",
            agfl.bytes(),
            AgflSector::build(&slots, &expect(3)),
            lsn,
            |bytes, lsn| AgflSector::seal(bytes, &expect(3), lsn).map(|b| b.bytes().to_vec()),
        );
        for block in agfl.blocks(&agf) {
            assert!(g.is_ag_block(group, block), "spare block {block}");
        }
        found.note("AGF");
        found.note("AGI");
        found.note("AGFL");

        let free = self.walk_ag_tree::<Bno>(group, agf.bnoroot, agf.bnolevel, found);
        let sum: u32 = free.iter().map(|r| r.blockcount.get()).sum();
        assert_eq!(sum, agf.freeblks.get(), "free blocks of group {group}");
        let mut by_size = self.walk_ag_tree::<Cnt>(group, agf.cntroot, agf.cntlevel, found);
        assert_eq!(by_size.last().map_or(0, |r| r.blockcount.get()), agf.longest.get());
        by_size.sort_by_key(|r| r.startblock.get());
        assert_eq!(by_size, free, "the two trees of free space of group {group}");
        if g.has_ro_compat(xfs_format::features::ro_compat::RMAPBT) {
            self.walk_ag_tree::<Rmap>(group, agf.rmaproot, agf.rmaplevel, found);
        }
        if g.has_reflink() {
            self.walk_ag_tree::<Refcount>(group, agf.refcntroot, agf.refcntlevel, found);
        }
        let chunks = self.walk_ag_tree::<Inobt>(group, agi.root, agi.level, found);
        let count: u32 = chunks.iter().map(|r| r.count(g)).sum();
        assert_eq!(count, agi.count.get(), "inodes of group {group}");
        if g.has_ro_compat(xfs_format::features::ro_compat::FINOBT) {
            let with_free = self.walk_ag_tree::<Finobt>(group, agi.free_root, agi.free_level, found);
            let expected: Vec<_> = chunks.iter().copied().filter(|r| r.freecount(g) > 0).collect();
            assert_eq!(with_free, expected, "finobt of group {group}");
        }
        for chunk in &chunks {
            self.walk_chunk(group, chunk, found);
        }
    }

    fn walk_ag_tree<K: TreeKind<Ptr = U32>>(
        &self,
        group: AgNumber,
        root: U32,
        levels: U32,
        found: &mut Found,
    ) -> Vec<K::Record> {
        let g = self.geometry;
        let mut records = Vec::new();
        self.walk_tree::<K>(
            &|ptr: U32| {
                let daddr = g.ag_daddr(group, AgBlock(ptr.get()));
                (daddr, AgNumber(group.get()), None)
            },
            root,
            u8::try_from(levels.get()).unwrap() - 1,
            &mut records,
            found,
        );
        records
    }

    /// Walks a tree down from a block; gives what its parent should say about it.
    fn walk_tree<K: TreeKind>(
        &self,
        place: &dyn Fn(K::Ptr) -> (Daddr, AgNumber, Option<Ino>),
        at: K::Ptr,
        level: u8,
        records: &mut Vec<K::Record>,
        found: &mut Found,
    ) -> Option<K::NodeKey> {
        let (daddr, group, ino) = place(at);
        let expect = match ino {
            Some(ino) => Expect::of_inode(&self.geometry, daddr, ino),
            None => Expect::in_ag(&self.geometry, daddr, group),
        };
        let bytes = self.read(daddr, self.geometry.block_bytes);
        let block = BtreeBlock::<K>::verify(bytes, &expect, Some(level)).unwrap_or_else(|e| panic!("{e}"));
        trees::encode_again(&block, &expect);
        if block.is_leaf() {
            found.note(K::TREE.name());
            records.extend_from_slice(block.records());
            return K::node_key(block.records());
        }
        found.note(match K::TREE {
            xfs_format::Tree::Bno => "bnobt node",
            xfs_format::Tree::Cnt => "cntbt node",
            xfs_format::Tree::Inobt => "inobt node",
            xfs_format::Tree::Finobt => "finobt node",
            xfs_format::Tree::Rmap => "rmapbt node",
            xfs_format::Tree::Refcount => "refcountbt node",
            xfs_format::Tree::Bmap => "bmbt node",
        });
        for (slot, child) in block.pointers().iter().enumerate() {
            let key = self.walk_tree::<K>(place, *child, level - 1, records, found);
            // A tree's leftmost keys may be below the least record: they are not raised when it
            // goes.
            let key = key.expect("a child is not empty");
            let said = block.keys()[slot];
            assert_eq!(K::low(&said), K::low(&key), "{block:?} slot {slot}");
            assert_eq!(said, key, "{block:?} slot {slot}");
        }
        K::join_keys(block.keys())
    }

    fn walk_chunk(&self, group: AgNumber, chunk: &InobtRecord, found: &mut Found) {
        let g = &self.geometry;
        let here = chunk.allocated_mask(g);
        for index in 0..64 {
            if here >> index & 1 == 0 {
                continue;
            }
            let agino = AgIno(chunk.startino.get() + index);
            let ino = g.join_ino(group, agino);
            let is_free = chunk.free.get() >> index & 1 != 0;
            let daddr = g.ag_daddr(group, g.ino_block(agino));
            let block = self.read(daddr, g.block_bytes);
            let at = g.ino_offset_bytes(agino) as usize;
            let bytes = &block[at..at + g.inode_bytes as usize];
            let expect = Expect::of_inode(g, daddr, ino);
            let inode = Inode::verify(bytes, &expect).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(inode.core().mode.get() == 0, is_free, "inode {ino}");
            found.note(if is_free { "free inode" } else { "inode" });
            if is_free {
                continue;
            }
            let core = inode.core();
            let again = Inode::build(
                &core,
                inode.fork_bytes(ForkKind::Data),
                inode.fork_bytes(ForkKind::Attr),
                &expect,
            );
            check_same("inode", inode.bytes(), again.unwrap(), core.lsn.get(), |bytes, lsn| {
                Inode::seal(bytes, &expect, lsn).map(|b| b.bytes().to_vec())
            });
            self.walk_inode(ino, &inode, found);
            found.inodes.push((ino, inode));
        }
    }

    fn walk_inode(&self, ino: Ino, inode: &Inode, found: &mut Found) {
        let core = inode.core();
        match inode.fork(ForkKind::Data).expect("a data fork") {
            Fork::Dev(_) => found.note("device"),
            Fork::Local(bytes) if core.file_type() == mode::DIR => names::shortform(self, ino, bytes, found),
            Fork::Local(_) => found.note("short symlink"),
            Fork::Extents(_) | Fork::Btree(_) => {
                let extents = self.extents(ino, inode, ForkKind::Data, found);
                assert_eq!(extents.len() as u64, core.data_extents());
                match core.file_type() {
                    mode::DIR => names::dir(self, ino, &extents, core.size.get(), found),
                    mode::SYMLINK => names::symlink(self, ino, &extents, core.size.get(), found),
                    _ => found.note("file"),
                }
            }
        }
        match inode.fork(ForkKind::Attr) {
            None => {}
            Some(Fork::Local(bytes)) => names::short_attrs(bytes, &self.geometry, found),
            Some(Fork::Dev(_)) => panic!("a device as attributes of {ino}"),
            Some(Fork::Extents(_) | Fork::Btree(_)) => {
                let extents = self.extents(ino, inode, ForkKind::Attr, found);
                assert_eq!(extents.len() as u64, u64::from(core.attr_extents()));
                names::attrs(self, ino, &extents, found);
            }
        }
    }

    /// The extents of a fork.
    pub fn extents(&self, ino: Ino, inode: &Inode, kind: ForkKind, found: &mut Found) -> Vec<Extent> {
        let records: Vec<BmapRecord> = match inode.fork(kind).unwrap() {
            Fork::Extents(records) => records.to_vec(),
            Fork::Btree(root) => {
                found.note(if kind == ForkKind::Data {
                    "data root"
                } else {
                    "attr root"
                });
                let room = inode.fork_bytes(kind);
                let again = xfs_format::btree::build_bmdr_root(&root, room.len()).unwrap();
                let root_again = xfs_format::btree::BmdrRoot::read(&again).unwrap();
                assert_eq!((root_again.keys, root_again.pointers), (root.keys, root.pointers));
                let g = self.geometry;
                let mut records = Vec::new();
                for (key, child) in root.keys.iter().zip(root.pointers) {
                    let place =
                        |ptr: xfs_format::U64| (g.daddr(FsBlock(ptr.number())).unwrap(), AgNumber(0), Some(ino));
                    let low = self.walk_tree::<Bmap>(&place, *child, root.level - 1, &mut records, found);
                    assert_eq!(low.as_ref(), Some(key));
                }
                records
            }
            other => panic!("no extents: {other:?}"),
        };
        for record in &records {
            let extent = record.extent();
            assert!(extent.fits());
            assert_eq!(BmapRecord::new(&extent), *record);
        }
        records.iter().map(BmapRecord::extent).collect()
    }

    /// Where a block of a file lies.
    pub fn map(&self, extents: &[Extent], block: u32) -> Option<(Daddr, u32)> {
        let block = FileBlock(block.into());
        let extent = extents.iter().find(|e| e.offset <= block && block < e.end())?;
        let start = extent.start.get() + (block.get() - extent.offset.get());
        let left = extent.end().get() - block.get();
        Some((self.geometry.daddr(FsBlock(start))?, left as u32))
    }

    /// Reads `blocks` blocks of a file, which may lie in several extents.
    pub fn read_file(&self, extents: &[Extent], block: u32, blocks: u32) -> (Daddr, Vec<u8>) {
        let (first, _) = self.map(extents, block).unwrap();
        let mut bytes = Vec::new();
        for block in block..block + blocks {
            let (daddr, _) = self.map(extents, block).unwrap();
            bytes.extend(self.read(daddr, self.geometry.block_bytes));
        }
        (first, bytes)
    }
}

/// Seals what was encoded, and compares with the block that was decoded.
pub fn check_same(
    what: &str,
    original: &[u8],
    encoded: Vec<u8>,
    lsn: u64,
    seal: impl FnOnce(Vec<u8>, Lsn) -> Result<Vec<u8>, xfs_format::Corrupt>,
) {
    let sealed = seal(encoded, Lsn(lsn)).unwrap_or_else(|e| panic!("{what}: {e}"));
    if sealed != original {
        let at = sealed.iter().zip(original).position(|(a, b)| a != b).unwrap();
        panic!("{what}: byte {at} is {:#x}, was {:#x}", sealed[at], original[at]);
    }
}
