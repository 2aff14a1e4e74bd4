//! Roots of trees that no superblock names: found by reading all chunks of metadata, and used for
//! reading alone.
//!
//! Copy on write leaves the blocks of earlier commits where they were until their space is used
//! again. A block is recognised by its header (address, uuid of the volume, owner) and its
//! checksum. The root of a tree as of one commit is the block of the highest level among those of
//! the tree with the commit's generation. Blocks that a commit wrote and replaced itself have its
//! generation as well, and so have the leaves of a root that was overwritten: a root that is found
//! is a candidate.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use btrfs_format::block::{Header, LEVEL_MAX};
use btrfs_format::features::block_group;
use btrfs_format::{BlockExpect, Generation, KeyType, LogicalAddr, ObjectId, TreeBlock, TreeId, Uuid, view};
use zerocopy::FromBytes as _;

use super::chunk::Piece;
use super::salvage::Dead;
use super::{BlockPtr, Volume};
use crate::error::{Error, Result};

/// Bytes that are read at once.
const WINDOW_BYTES: u64 = 4 << 20;
/// Candidates that are kept, 24 bytes each: of the newest generations. Of a volume with a million
/// commits the newest hundred thousand are enough.
const CANDIDATES_MAX: usize = 1 << 17;

/// Which roots are looked for.
#[derive(Clone, Copy, Debug)]
pub struct RootSearch {
    /// The tree.
    pub tree: TreeId,
    /// The oldest generation.
    pub generation_min: Generation,
    /// The lowest level.
    pub level_min: u8,
}

impl RootSearch {
    /// All roots of a tree.
    pub fn of(tree: TreeId) -> Self {
        Self {
            tree,
            generation_min: Generation(0),
            level_min: 0,
        }
    }
}

/// A block that may be the root of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundRoot {
    /// The commit that wrote it.
    pub generation: Generation,
    /// Its address.
    pub addr: LogicalAddr,
    /// Its level.
    pub level: u8,
}

/// Blocks of the highest level, by generation.
#[derive(Debug, Default)]
struct Candidates {
    by_generation: BTreeMap<Generation, (u8, BTreeSet<LogicalAddr>)>,
    count: usize,
}

impl Candidates {
    fn add(&mut self, found: FoundRoot) {
        let (level, addrs) = self.by_generation.entry(found.generation).or_default();
        if *level > found.level {
            return;
        }
        if *level < found.level {
            self.count -= addrs.len();
            addrs.clear();
            *level = found.level;
        }
        self.count += usize::from(addrs.insert(found.addr));
        if self.count > CANDIDATES_MAX
            && let Some((_, (_, oldest))) = self.by_generation.pop_first()
        {
            self.count -= oldest.len();
        }
    }

    /// The newest first; of one generation the highest address first, which is mostly the last one
    /// written.
    fn newest_first(self) -> Vec<FoundRoot> {
        let of_generation = |(generation, (level, addrs)): (Generation, (u8, BTreeSet<LogicalAddr>))| {
            let found = move |addr| FoundRoot {
                generation,
                addr,
                level,
            };
            addrs.into_iter().rev().map(found)
        };
        self.by_generation.into_iter().rev().flat_map(of_generation).collect()
    }
}

impl Volume {
    /// Reads all chunks of metadata for roots of a tree, the newest first. `progress` is told the
    /// bytes that are read, and how many will be. What cannot be read is left out.
    pub fn find_roots(&self, search: &RootSearch, progress: &mut dyn FnMut(u64, u64)) -> Vec<FoundRoot> {
        let mut candidates = Candidates::default();
        self.for_each_block(progress, &mut |header, bytes| {
            let is_wanted = TreeId::from(header.owner) == search.tree
                && header.level >= search.level_min
                && Generation::from(header.generation) >= search.generation_min;
            if is_wanted && self.has_checksum(bytes) {
                candidates.add(FoundRoot {
                    generation: header.generation.into(),
                    addr: header.bytenr.into(),
                    level: header.level,
                });
            }
        });
        candidates.newest_first()
    }

    /// Hands over all blocks of this volume that lie where they say, a block with several copies
    /// perhaps several times. Their checksums are the caller's to look at.
    pub(super) fn for_each_block(&self, progress: &mut dyn FnMut(u64, u64), take: &mut dyn FnMut(&Header, &[u8])) {
        let chunks = self.chunks();
        let of_metadata = |flags: u64| flags & (block_group::METADATA | block_group::SYSTEM) != 0;
        let wanted: Vec<_> = chunks.iter().filter(|chunk| of_metadata(chunk.flags())).collect();
        // Chunks of a damaged volume may be larger than all devices together, and share places.
        let on_devices = self.members.iter().filter_map(|member| member.device.as_ref());
        let room: u64 = on_devices
            .map(|device| device.size_bytes())
            .fold(0, u64::saturating_add);
        let of_chunk = |length: u64, copies: usize| length.saturating_mul(copies as u64);
        let sizes = wanted.iter().map(|c| of_chunk(c.length_bytes(), c.profile().copies()));
        let total = sizes.fold(0, u64::saturating_add).min(room);
        let mut done = 0;
        let overlap = u64::from(
            self.geometry
                .nodesize_bytes
                .saturating_sub(self.geometry.sectorsize_bytes),
        );
        let mut buf = vec![0; usize::try_from(WINDOW_BYTES + overlap).unwrap_or_default()];
        for chunk in wanted {
            for copy in 0..chunk.profile().copies() {
                let mut at = chunk.logical();
                while at < chunk.end() {
                    if done >= total {
                        return;
                    }
                    let left = chunk.end().get() - at.get();
                    let window = &mut buf[..left.min(WINDOW_BYTES + overlap) as usize];
                    self.read_window(at, copy, window);
                    self.blocks_in(at, window, take);
                    let step = left.min(WINDOW_BYTES);
                    at = LogicalAddr(at.get() + step);
                    done += step;
                    progress(done.min(total), total);
                }
            }
        }
    }

    /// Reads one copy of a range in requests that are as large as its places allow; what cannot be
    /// read is zeros.
    fn read_window(&self, at: LogicalAddr, copy: usize, window: &mut [u8]) {
        let Ok(pieces) = self.map(at, window.len() as u64) else {
            window.fill(0);
            return;
        };
        let mut rest = window;
        for piece in &pieces {
            let (now, later) = rest.split_at_mut(piece.len_bytes as usize);
            rest = later;
            if self.read_piece(piece, copy, now).is_ok() {
                continue;
            }
            // Bad sectors cost the blocks that they are in.
            let step = self.geometry.nodesize_bytes as usize;
            for (index, part) in now.chunks_mut(step).enumerate() {
                let piece = piece.slice((index * step) as u64, part.len() as u64);
                if self.read_piece(&piece, copy, part).is_err() {
                    part.fill(0);
                }
            }
        }
    }

    fn read_piece(&self, piece: &Piece, copy: usize, buf: &mut [u8]) -> Result<()> {
        let at = piece.copies.get(copy).ok_or(Error::Unmapped { addr: piece.logical })?;
        let end = at.offset.checked_add(buf.len() as u64);
        let member = self.require_member(at.dev)?;
        let size_bytes = member.present()?.size_bytes();
        if end.is_none_or(|end| end > size_bytes) {
            return Err(Error::Unmapped { addr: piece.logical });
        }
        member.reading(|device| device.read_at(at.offset, buf))
    }

    /// Blocks begin at multiples of the sector size, mostly of their own size.
    fn blocks_in(&self, at: LogicalAddr, window: &[u8], take: &mut dyn FnMut(&Header, &[u8])) {
        let nodesize = self.geometry.nodesize_bytes as usize;
        let step = self.geometry.sectorsize_bytes as usize;
        for offset in (0..window.len()).step_by(step) {
            let Some(bytes) = window.get(offset..offset + nodesize) else {
                return;
            };
            if let Some(header) = self.header_at(LogicalAddr(at.get() + offset as u64), bytes) {
                take(header, bytes);
            }
        }
    }

    /// The header of a block of this volume that lies where it says.
    fn header_at<'a>(&self, addr: LogicalAddr, bytes: &'a [u8]) -> Option<&'a Header> {
        let header = self.header_of(bytes)?;
        (LogicalAddr::from(header.bytenr) == addr).then_some(header)
    }

    /// The header of a block of this volume, wherever it lies. An earlier file system on the device
    /// may have had the same uuid (`mkfs -U`), but its chunk tree had another one, which tells them
    /// apart once ours is known.
    pub(super) fn header_of<'a>(&self, bytes: &'a [u8]) -> Option<&'a Header> {
        let (header, _) = Header::ref_from_prefix(bytes).ok()?;
        let is_of_chunk_tree =
            self.chunk_tree_uuid == Uuid::default() || header.chunk_tree_uuid == self.chunk_tree_uuid;
        let is_ours = header.fsid == self.geometry.metadata_fsid && is_of_chunk_tree;
        (is_ours && header.level <= LEVEL_MAX).then_some(header)
    }

    fn has_checksum(&self, bytes: &[u8]) -> bool {
        let anything = BlockPtr {
            addr: LogicalAddr(0),
            generation: Generation(0),
            level: 0,
            first_key: None,
        };
        let expect: BlockExpect = self.expect(&anything, TreeId::ROOT);
        TreeBlock::has_checksum(bytes, &expect)
    }

    /// A pointer to the block at an address, which nothing else leads to.
    ///
    /// # Errors
    /// [`Error::Unmapped`], or that no copy is a block of this volume.
    pub(crate) fn block_at(&self, addr: LogicalAddr, tree: TreeId) -> Result<BlockPtr> {
        let pieces = self.map(addr, self.geometry.nodesize_bytes.into())?;
        let copies = self.copy_order(&pieces[0]);
        let found = copies.into_iter().find_map(|copy| {
            let bytes = self.read_copy(&pieces, copy).ok()?;
            let is_intact = self.options.rescue.ignore_meta_csums || self.has_checksum(&bytes);
            let header = self.header_at(addr, &bytes).filter(|_| is_intact)?;
            Some(BlockPtr {
                addr,
                generation: header.generation.into(),
                level: header.level,
                first_key: None,
            })
        });
        found.ok_or_else(|| Error::CorruptTree {
            tree,
            what: format!("at {addr} is no intact block of this volume"),
        })
    }

    /// Reads the volume by another root of the root tree.
    pub(super) fn use_root(&mut self, root: &BlockPtr) {
        self.is_of_the_past = true;
        let superblock = self.superblock.get_mut();
        superblock.root = root.addr.into();
        superblock.root_level = root.level;
        superblock.generation = root.generation.into();
        superblock.log_root = 0.into();
        superblock.log_root_level = 0;
    }

    /// Does the root tree have a subvolume whose root can be read?
    ///
    /// # Errors
    /// The root of the root tree cannot be read; or nothing below it.
    pub(super) fn check_leads_to_files(&self) -> Result<()> {
        let superblock = self.superblock();
        let root = BlockPtr {
            addr: superblock.root.into(),
            generation: superblock.generation.into(),
            level: superblock.root_level,
            first_key: None,
        };
        // Each block is read once here: `read_block` reads below nodes, for each of them anew.
        let mut todo = vec![self.read_what_is_left(&root, TreeId::ROOT)?];
        if self.options.rescue.top_level_root.is_some() {
            return Ok(());
        }
        // Nodes of a damaged tree may share blocks.
        let mut seen = HashSet::new();
        let mut dead = Dead::new();
        while let Some(block) = todo.pop() {
            if block.is_leaf() && self.has_readable_subvolume(&block, &mut dead) {
                return Ok(());
            }
            for slot in (0..block.key_ptrs().len()).rev() {
                let (addr, generation) = block.child(slot);
                let child = BlockPtr {
                    addr,
                    generation,
                    level: block.level().saturating_sub(1),
                    first_key: Some(block.key(slot)),
                };
                if seen.insert(addr)
                    && let Ok(child) = self.read_what_is_left(&child, TreeId::ROOT)
                {
                    todo.push(child);
                }
            }
        }
        Err(Error::CorruptTree {
            tree: TreeId::ROOT,
            what: format!("no root of a subvolume that {} leads to can be read", root.addr),
        })
    }

    fn has_readable_subvolume(&self, leaf: &TreeBlock, dead: &mut Dead) -> bool {
        let subvolumes = ObjectId::FIRST_FREE..=ObjectId::LAST_FREE;
        (0..leaf.len()).any(|slot| {
            let (key, data) = leaf.item(slot);
            let is_subvolume = key.objectid == TreeId::FS.object_id() || subvolumes.contains(&key.objectid);
            let item = view::root_item(data).filter(|_| is_subvolume && key.ty == KeyType::ROOT_ITEM);
            item.is_some_and(|item| {
                let ptr = BlockPtr {
                    addr: item.bytenr.into(),
                    generation: item.generation.into(),
                    level: item.level,
                    first_key: None,
                };
                self.has_anything(&ptr, key.objectid.tree_id(), dead)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(generation: u64, addr: u64, level: u8) -> FoundRoot {
        FoundRoot {
            generation: Generation(generation),
            addr: LogicalAddr(addr),
            level,
        }
    }

    #[test]
    fn roots_are_found_on_each_copy_and_damaged_ones_are_not() {
        let volume = crate::testing::memory_volume(16384);
        let superblock = volume.superblock();
        let current = FoundRoot {
            generation: superblock.generation.into(),
            addr: superblock.root.into(),
            level: superblock.root_level,
        };
        let search = RootSearch::of(TreeId::ROOT);
        let mut reported = Vec::new();
        let found = volume.find_roots(&search, &mut |done, total| reported.push((done, total)));
        assert_eq!(found.first(), Some(&current));
        assert!(reported.is_sorted() && reported.last().is_some_and(|(done, total)| done == total));
        let pieces = volume.map(current.addr, 16384).expect("the root is mapped");
        let device = volume.devices()[0].device.clone().expect("it is there");
        let [first, second] = pieces[0].copies[..] else {
            panic!("metadata of one device is twice on it")
        };
        device
            .write_at(first.offset + 200, &[0xff; 8])
            .expect("memory is written");
        assert_eq!(volume.find_roots(&search, &mut |_, _| {}), found);
        assert!(volume.block_at(current.addr, TreeId::ROOT).is_ok());
        device
            .write_at(second.offset + 200, &[0xff; 8])
            .expect("memory is written");
        assert!(!volume.find_roots(&search, &mut |_, _| {}).contains(&current));
        assert!(volume.block_at(current.addr, TreeId::ROOT).is_err());
        assert!(volume.block_at(LogicalAddr(u64::MAX - 5), TreeId::ROOT).is_err());
        let later = RootSearch {
            generation_min: Generation(current.generation.get() + 1),
            ..search
        };
        assert!(volume.find_roots(&later, &mut |_, _| {}).is_empty());
    }

    #[test]
    fn of_each_generation_blocks_of_the_highest_level_are_kept_newest_first() {
        let mut candidates = Candidates::default();
        for found in [
            root(7, 10, 0),
            root(8, 20, 0),
            root(8, 30, 1),
            root(8, 40, 0),
            root(8, 50, 1),
            root(8, 30, 1),
            root(5, 60, 2),
        ] {
            candidates.add(found);
        }
        assert_eq!(candidates.count, 4);
        let expected = [root(8, 50, 1), root(8, 30, 1), root(7, 10, 0), root(5, 60, 2)];
        assert_eq!(candidates.newest_first(), expected);
    }

    #[test]
    fn too_many_candidates_cost_the_oldest() {
        let mut candidates = Candidates::default();
        for n in 0..=CANDIDATES_MAX as u64 + 4 {
            candidates.add(root(n, n, 0));
        }
        let found = candidates.newest_first();
        assert_eq!(found.len(), CANDIDATES_MAX);
        assert_eq!(
            found.first(),
            Some(&root(CANDIDATES_MAX as u64 + 4, CANDIDATES_MAX as u64 + 4, 0))
        );
        assert_eq!(found.last(), Some(&root(5, 5, 0)));
    }
}
