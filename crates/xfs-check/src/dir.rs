//! Directories of all forms: entries, the index by hash, the index of free space.

use std::collections::{BTreeMap, HashSet};

use xfs_format::da::DirNodeBlock;
use xfs_format::dir::{
    DataItem, DataItems, DirBestFree, DirBlock, DirDataBlock, DirEntry, DirFreeBlock, DirLeaf1Block, DirLeafEntry,
    DirLeafNBlock, NULL_BEST, POSITION_BYTES, ShortformDir,
};
use xfs_format::features::incompat;
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::{Corrupt, DaBlock, Ino, Inode, U16};

use crate::entry::Entry;
use crate::finding::{FindingId, Site};
use crate::fork::Mapped;
use crate::hash_tree::{HashTree, Node};
use crate::scan::{Scan, mark};
use crate::volume::{count, index};

/// A directory while it is read.
struct Dir<'a> {
    site: Site,
    ino: Ino,
    map: &'a Mapped,
    /// Hash and address of each entry.
    hashes: Vec<(u32, u32)>,
    /// The largest free span of each data block that is there.
    bests: BTreeMap<u32, u16>,
    /// "." and "..", where they were found.
    dots: [Option<Ino>; 2],
    is_whole: bool,
}

impl Scan<'_> {
    pub(crate) fn directory(&mut self, site: Site, inode: &Inode, map: &Mapped) {
        let sums = &mut self.sink.report.statistics;
        sums.directories = sums.directories.saturating_add(1);
        if let Some(Fork::Local(bytes)) = inode.fork(ForkKind::Data) {
            return self.shortform(site, bytes);
        }
        if !map.is_whole {
            return;
        }
        let mut dir = Dir {
            site,
            ino: site.inode.unwrap_or_default(),
            map,
            hashes: Vec::new(),
            bests: BTreeMap::new(),
            dots: [None; 2],
            is_whole: true,
        };
        let geometry = self.vol.geometry;
        let per_block = 1_u64.checked_shl(geometry.dir_block_log.into()).unwrap_or(1);
        let leaf_at = geometry.dir_leaf_block();
        let data_end = map
            .extents
            .iter()
            .filter(|extent| extent.offset.get() < leaf_at.get().into())
            .map(|extent| extent.end().get())
            .max()
            .unwrap_or_default();
        if map.end() <= per_block {
            self.block_form(&mut dir);
        } else {
            self.data_blocks(&mut dir, u64::from(leaf_at.get()), per_block);
            let leaf_end = u64::from(leaf_at.get()).saturating_add(per_block);
            if map.end() <= leaf_end {
                self.leaf_form(&mut dir);
            } else {
                self.node_form(&mut dir, per_block);
            }
        }
        let expected = data_end.saturating_mul(geometry.block_bytes.into());
        let found = inode.core().size.get();
        if found != expected {
            self.sink.add(
                FindingId::DirSize,
                site,
                format!("size is {found}, expected {expected}"),
            );
        }
        self.dots(&dir);
    }

    fn shortform(&mut self, site: Site, bytes: &[u8]) {
        let ino = site.inode.unwrap_or_default();
        let dir = match ShortformDir::verify(bytes, &self.vol.geometry, ino) {
            Ok(dir) => dir,
            Err(fault) => return self.sink.corrupt(&fault, site, FindingId::DirInvalid),
        };
        self.info.dotdot = Some(dir.parent);
        let mut names = HashSet::new();
        for entry in dir.entries() {
            if !names.insert(entry.name) {
                self.name_twice(site, &entry);
            }
            self.entry(ino, &entry, entry.offset_bytes / POSITION_BYTES);
        }
    }

    fn name_twice(&mut self, site: Site, entry: &DirEntry<'_>) {
        let message = format!("{:?} of inode {}", String::from_utf8_lossy(entry.name), entry.ino);
        self.sink.add(FindingId::DirNameTwice, site, message);
    }

    /// Notes an entry that is neither "." nor "..".
    fn entry(&mut self, dir: Ino, entry: &DirEntry<'_>, position: u32) {
        let sums = &mut self.sink.report.statistics;
        sums.entries = sums.entries.saturating_add(1);
        let has_parents = self.vol.geometry.has_incompat(incompat::PARENT);
        let mark = if has_parents {
            mark(dir, self.info.generation, entry.name)
        } else {
            0
        };
        self.keep(Entry::new(entry.ino, dir, mark, position, entry.file_type));
    }

    fn dots(&mut self, dir: &Dir<'_>) {
        let [own, parent] = dir.dots;
        self.info.dotdot = parent;
        if !dir.is_whole {
            return;
        }
        if own != Some(dir.ino) {
            let found = own.map_or("missing".to_owned(), |ino| format!("inode {ino}"));
            self.sink.add(
                FindingId::DirDots,
                dir.site,
                format!("\".\" is {found}, expected inode {}", dir.ino),
            );
        }
        if parent.is_none() {
            self.sink.add(FindingId::DirDots, dir.site, "\"..\" is missing");
        }
    }

    fn take_items(&mut self, dir: &mut Dir<'_>, number: u32, items: DataItems<'_>, best: &[DirBestFree]) {
        let geometry = self.vol.geometry;
        let best = best.first().map_or(0, |span| span.length.get());
        dir.bests.insert(number, best);
        let first = u64::from(number).saturating_mul(geometry.dir_block_bytes.into());
        for (slot, item) in items.enumerate() {
            let DataItem::Entry(entry) = item else { continue };
            let bytes = first.saturating_add(entry.offset_bytes.into());
            let position = bytes.checked_div(POSITION_BYTES.into()).unwrap_or_default();
            let position = u32::try_from(position).unwrap_or(u32::MAX);
            dir.hashes.push((geometry.dir_name_hash(entry.name), position));
            match (entry.name, number, slot) {
                (b".", 0, 0) => dir.dots[0] = Some(entry.ino),
                (b"..", 0, 1) => dir.dots[1] = Some(entry.ino),
                (b"." | b"..", ..) => {
                    let message = format!(
                        "{:?} at position {position}, where it cannot be",
                        String::from_utf8_lossy(entry.name)
                    );
                    self.sink.add(FindingId::DirDots, dir.site, message);
                }
                _ => self.entry(dir.ino, &entry, position),
            }
        }
    }

    fn block_form(&mut self, dir: &mut Dir<'_>) {
        let geometry = self.vol.geometry;
        let blocks = 1_u32.checked_shl(geometry.dir_block_log.into()).unwrap_or(1);
        let Some((bytes, first)) = self.read_mapped(dir.site, dir.map, DaBlock(0), blocks, FindingId::DirInvalid)
        else {
            dir.is_whole = false;
            return;
        };
        let site = dir.site.with_block(&geometry, first);
        match DirBlock::verify(bytes, &self.vol.expect_inode(first, dir.ino)) {
            Ok(block) => {
                self.take_items(dir, 0, block.items(&geometry), block.best_free());
                self.names_twice(dir, block.items(&geometry));
            }
            Err(fault) => {
                dir.is_whole = false;
                self.sink.corrupt(&fault, site, FindingId::DirInvalid);
            }
        }
    }

    fn names_twice(&mut self, dir: &Dir<'_>, items: DataItems<'_>) {
        let mut names = HashSet::new();
        for item in items {
            if let DataItem::Entry(entry) = item
                && !names.insert(entry.name)
            {
                self.name_twice(dir.site, &entry);
            }
        }
    }

    fn data_blocks(&mut self, dir: &mut Dir<'_>, end: u64, per_block: u64) {
        let geometry = self.vol.geometry;
        let mut done = None;
        let map = dir.map;
        for extent in map.extents.iter().take_while(|extent| extent.offset.get() < end) {
            let first = extent.offset.get().checked_div(per_block).unwrap_or_default();
            let last = extent
                .end()
                .get()
                .min(end)
                .saturating_sub(1)
                .checked_div(per_block)
                .unwrap_or_default();
            for number in first..=last {
                if done.is_some_and(|done| number <= done) {
                    continue;
                }
                done = Some(number);
                self.data_block(dir, u32::try_from(number).unwrap_or(u32::MAX), &geometry);
            }
        }
    }

    fn data_block(&mut self, dir: &mut Dir<'_>, number: u32, geometry: &xfs_format::Geometry) {
        let blocks = 1_u32.checked_shl(geometry.dir_block_log.into()).unwrap_or(1);
        let at = geometry.dir_data_block(number);
        let Some((bytes, first)) = self.read_mapped(dir.site, dir.map, at, blocks, FindingId::DirInvalid) else {
            dir.is_whole = false;
            return;
        };
        let site = dir.site.with_block(geometry, first);
        match DirDataBlock::verify(bytes, &self.vol.expect_inode(first, dir.ino)) {
            Ok(block) => self.take_items(dir, number, block.items(geometry), block.best_free()),
            Err(fault) => {
                dir.is_whole = false;
                self.sink.corrupt(&fault, site, FindingId::DirInvalid);
            }
        }
    }

    fn leaf_form(&mut self, dir: &mut Dir<'_>) {
        let geometry = self.vol.geometry;
        let blocks = 1_u32.checked_shl(geometry.dir_block_log.into()).unwrap_or(1);
        let at = geometry.dir_leaf_block();
        let Some((bytes, first)) = self.read_mapped(dir.site, dir.map, at, blocks, FindingId::DirInvalid) else {
            return;
        };
        let site = dir.site.with_block(&geometry, first);
        match DirLeaf1Block::verify(bytes, &self.vol.expect_inode(first, dir.ino)) {
            Ok(leaf) => {
                self.compare_hashes(dir, &addresses(leaf.entries()));
                self.compare_bests(dir, 0, leaf.bests(), site);
                let expected = dir
                    .bests
                    .last_key_value()
                    .map_or(0, |(last, _)| u64::from(*last).saturating_add(1));
                if dir.is_whole && count(leaf.bests().len()) != expected {
                    let message = format!("bestcount is {}, expected {expected}", leaf.bests().len());
                    self.sink.add(FindingId::DirFree, site, message);
                }
            }
            Err(fault) => self.sink.corrupt(&fault, site, FindingId::DirInvalid),
        }
    }

    fn node_form(&mut self, dir: &mut Dir<'_>, per_block: u64) {
        let mut found = Vec::new();
        let tree = HashTree {
            site: dir.site,
            map: dir.map,
            root: self.vol.geometry.dir_leaf_block(),
            blocks: u32::try_from(per_block).unwrap_or(1),
            ids: (FindingId::DirInvalid, FindingId::DirHash),
            node: |bytes, expect| {
                let node = DirNodeBlock::verify(bytes, expect)?;
                Ok::<_, Corrupt>(Node {
                    level: node.level(),
                    entries: node.entries().to_vec(),
                    siblings: node.siblings(),
                })
            },
        };
        let whole = self.walk_hashes(
            &tree,
            &mut |scan, site, bytes, expect| match DirLeafNBlock::verify(bytes, expect) {
                Ok(leaf) => {
                    found.extend(addresses(leaf.entries()));
                    let last = leaf.entries().last().map(|entry| entry.hashval.get());
                    Some((last, leaf.siblings()))
                }
                Err(fault) => {
                    scan.sink.corrupt(&fault, site, FindingId::DirInvalid);
                    None
                }
            },
        );
        if whole {
            self.compare_hashes(dir, &found);
        }
        self.free_index(dir, per_block);
    }

    /// Compares the entries with the index by hash.
    fn compare_hashes(&mut self, dir: &mut Dir<'_>, found: &[(u32, u32)]) {
        if !dir.is_whole {
            return;
        }
        let rises = found.windows(2).all(|pair| matches!(pair, [(a, _), (b, _)] if a <= b));
        if !rises {
            self.sink
                .add(FindingId::DirHash, dir.site, "hashes do not rise from leaf to leaf");
        }
        let mut found = found.to_vec();
        found.sort_unstable();
        dir.hashes.sort_unstable();
        if found == dir.hashes {
            return;
        }
        let (stated, real): (HashSet<_>, HashSet<_>) = (found.iter().collect(), dir.hashes.iter().collect());
        let mut said = false;
        for (hash, address) in dir.hashes.iter().filter(|entry| !stated.contains(entry)) {
            let message = format!("the entry at position {address} with hash {hash:#x} is not in the index");
            self.sink.add(FindingId::DirHash, dir.site, message);
            said = true;
        }
        for (hash, address) in found.iter().filter(|entry| !real.contains(entry)) {
            let message = format!("the index has hash {hash:#x} for position {address}, where no such entry is");
            self.sink.add(FindingId::DirHash, dir.site, message);
            said = true;
        }
        if !said {
            let message = format!("the index has {} hashes, expected {}", found.len(), dir.hashes.len());
            self.sink.add(FindingId::DirHash, dir.site, message);
        }
    }

    fn compare_bests(&mut self, dir: &Dir<'_>, first: u32, bests: &[U16], site: Site) {
        if !dir.is_whole {
            return;
        }
        for (slot, best) in (0_u32..).zip(bests) {
            let expected = dir.bests.get(&first.saturating_add(slot)).copied().unwrap_or(NULL_BEST);
            if best.get() != expected {
                let site = Site {
                    slot: Some(slot),
                    ..site
                };
                self.sink.add(
                    FindingId::DirFree,
                    site,
                    format!("bests is {best}, expected {expected}"),
                );
            }
        }
    }

    fn free_index(&mut self, dir: &mut Dir<'_>, per_block: u64) {
        let geometry = self.vol.geometry;
        let start = u64::from(geometry.dir_free_block().get());
        let slots_max = free_slots(&geometry);
        let mut covered = HashSet::new();
        let mut done = None;
        let map = dir.map;
        for extent in map.extents.iter().filter(|extent| extent.end().get() > start) {
            let first = extent
                .offset
                .get()
                .saturating_sub(start)
                .checked_div(per_block)
                .unwrap_or_default();
            let last = extent
                .end()
                .get()
                .saturating_sub(start)
                .saturating_sub(1)
                .checked_div(per_block)
                .unwrap_or_default();
            for number in first..=last {
                if done.is_some_and(|done| number <= done) {
                    continue;
                }
                done = Some(number);
                let at = start.saturating_add(number.saturating_mul(per_block));
                let at = DaBlock(u32::try_from(at).unwrap_or(u32::MAX));
                let blocks = u32::try_from(per_block).unwrap_or(1);
                let Some((bytes, first)) = self.read_mapped(dir.site, map, at, blocks, FindingId::DirInvalid) else {
                    return;
                };
                let site = dir.site.with_block(&geometry, first);
                let block = match DirFreeBlock::verify(bytes, &self.vol.expect_inode(first, dir.ino)) {
                    Ok(block) => block,
                    Err(fault) => return self.sink.corrupt(&fault, site, FindingId::DirInvalid),
                };
                let expected = number.saturating_mul(slots_max);
                if u64::from(block.first_data_block()) != expected {
                    let message = format!("firstdb is {}, expected {expected}", block.first_data_block());
                    self.sink.add(FindingId::DirFree, site, message);
                }
                let first = block.first_data_block();
                self.compare_bests(dir, first, block.bests(), site);
                covered.extend((first..).take(block.bests().len()));
            }
        }
        let missing: Vec<u32> = dir
            .bests
            .keys()
            .filter(|number| !covered.contains(number))
            .copied()
            .collect();
        for number in missing.iter().filter(|_| dir.is_whole) {
            self.sink.add(
                FindingId::DirFree,
                dir.site,
                format!("data block {number} is not in the index of free space"),
            );
        }
    }
}

/// Slots of a block of the free index.
fn free_slots(geometry: &xfs_format::Geometry) -> u64 {
    let header = if geometry.is_v5() {
        size_of::<xfs_format::dir::DirFreeHeaderV5>()
    } else {
        size_of::<xfs_format::dir::DirFreeHeader>()
    };
    count(index(geometry.dir_block_bytes).saturating_sub(header) / 2)
}

/// Hash and address of entries that are not stale.
fn addresses(entries: &[DirLeafEntry]) -> Vec<(u32, u32)> {
    let live = entries.iter().filter(|entry| !entry.is_stale());
    live.map(|entry| (entry.hashval.get(), entry.address.get())).collect()
}
