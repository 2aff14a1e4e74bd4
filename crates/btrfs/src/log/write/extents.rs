//! File extents in the log.
//!
//! Replaying an extent item drops what the file has in its range and puts the item there. So the
//! log has each item that changed and does not say what the committed tree says, and a hole for
//! every gap where something was.
//!
//! Invariant: extent items of one inode in a log never overlap, and in what they cover they are as
//! the file is.

use std::ops::Range;

use btrfs_format::items::{FileExtent, compression, file_extent_type};
use btrfs_format::view::{FileExtentView, file_extent};
use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId};
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::collect::{Collector, ExtentChange, File, Step, Stop};
use super::ranges::Ranges;
use crate::file;
use btrfs_store::overlay::ItemBytes;
use btrfs_store::tree::{Item, Tree, csum_item_bytes_max};

const BLOCK: u64 = crate::block::BLOCK_BYTES as u64;
/// No extent lies beyond: file offsets are signed in system calls.
const FILE_BYTES_MAX: u64 = 1 << 63;

/// What an item says of a range of the file.
#[derive(Clone, Debug)]
struct Span {
    range: Range<u64>,
    item: Item,
    /// `None` for inline data.
    disk: Option<FileExtent>,
}

impl Span {
    fn new(key: &Key, item: Item) -> Step<Self> {
        let broken = Stop::Commit("an extent item that is none");
        let (disk, len_bytes) = match file_extent(&item) {
            None => return Err(broken),
            Some(FileExtentView::Inline { head, .. }) => {
                (None, head.ram_bytes.get().next_multiple_of(BLOCK).max(BLOCK))
            }
            Some(FileExtentView::Regular(disk)) => (Some(*disk), disk.num_bytes.get()),
        };
        let end = key.offset.checked_add(len_bytes).ok_or(broken)?;
        Ok(Self {
            range: key.offset..end,
            item,
            disk,
        })
    }

    fn is_hole(&self) -> bool {
        self.disk.as_ref().is_some_and(|d| d.disk_bytenr.get() == 0)
    }

    /// The range of the disk whose checksums reading it needs.
    fn summed(&self) -> Option<Range<u64>> {
        let disk = self.disk.as_ref()?;
        let addr = disk.disk_bytenr.get();
        if addr == 0 || disk.ty == file_extent_type::PREALLOC {
            return None;
        }
        Some(match disk.compression {
            compression::NONE => {
                let from = addr + disk.offset.get();
                from..from + disk.num_bytes.get()
            }
            _ => addr..addr + disk.disk_num_bytes.get(),
        })
    }

    /// Does `other`, which covers it, say the same of its range?
    fn is_part_of(&self, other: &Self) -> bool {
        if other.range.start > self.range.start || other.range.end < self.range.end {
            return false;
        }
        let (Some(a), Some(b)) = (&self.disk, &other.disk) else {
            return self.disk.is_none() && other.disk.is_none() && self.item[..] == other.item[..];
        };
        if self.is_hole() || other.is_hole() {
            return self.is_hole() && other.is_hole();
        }
        let shift = self.range.start - other.range.start;
        a.disk_bytenr == b.disk_bytenr
            && a.disk_num_bytes == b.disk_num_bytes
            && a.ram_bytes == b.ram_bytes
            && a.compression == b.compression
            && a.ty == b.ty
            && a.offset.get() == b.offset.get() + shift
    }
}

fn extent_key(ino: ObjectId, offset: u64) -> Key {
    Key::new(ino, KeyType::EXTENT_DATA, offset)
}

/// The items of a file that overlap ranges, which are asked for in ascending order.
struct Overlapping<'t> {
    tree: &'t Tree,
    ino: ObjectId,
    /// No item that begins before reaches into the ranges to come.
    from: u64,
}

impl<'t> Overlapping<'t> {
    fn new(tree: &'t Tree, ino: ObjectId) -> Self {
        Self { tree, ino, from: 0 }
    }

    /// The items that overlap a range, whole.
    fn next(&mut self, range: &Range<u64>) -> Step<Vec<Span>> {
        let mut spans = Vec::new();
        let mut from = range.start;
        let first = extent_key(self.ino, self.from.min(from));
        if let Some((key, item)) = self.tree.floor_from(&first, &extent_key(self.ino, from))? {
            let span = Span::new(&key, item)?;
            if span.range.end > from {
                from = span.range.end;
                spans.push(span);
            }
        }
        if from < range.end {
            let last = extent_key(self.ino, range.end - 1);
            let mut cursor = self.tree.cursor(extent_key(self.ino, from), last);
            while let Some((key, item)) = cursor.next()? {
                spans.push(Span::new(&key, item)?);
            }
        }
        let reaches_beyond = spans.last().filter(|span| span.range.end > range.end);
        self.from = reaches_beyond.map_or(range.end, |span| span.range.start);
        Ok(spans)
    }
}

/// The items that overlap a range, whole.
fn overlapping(tree: &Tree, ino: ObjectId, range: &Range<u64>) -> Step<Vec<Span>> {
    Overlapping::new(tree, ino).next(range)
}

/// What changes in the log for a file's extents.
#[derive(Debug, Default)]
struct Found {
    /// Whatever the log has here goes.
    cleared: Ranges,
    holes: Vec<Range<u64>>,
    puts: Vec<Span>,
}

impl Collector<'_> {
    /// Logs the changes of a file's extents.
    pub(super) fn extents(&mut self, file: File, changed: Vec<ExtentChange>) -> Step<()> {
        let File {
            ino,
            is_new,
            has_sums,
            is_first,
            end,
        } = file;
        if is_first && is_new {
            for ExtentChange { key, now, .. } in changed {
                if let Some(bytes) = now {
                    self.put_span(&key, Span::new(&key, Item::Pending(bytes))?, has_sums)?;
                }
            }
            return Ok(());
        }
        let mut touched = Ranges::default();
        for change in changed {
            for item in [change.before, change.now.map(Item::Pending)].into_iter().flatten() {
                touched.insert(Span::new(&change.key, item)?.range);
            }
        }
        if is_first {
            // Replaying the inode's item drops what is preallocated behind its size.
            for span in overlapping(&self.tree, ino, &(end..FILE_BYTES_MAX))? {
                touched.insert(span.range);
            }
        }
        // What goes out of the log is settled for all ranges together: one hole in it may lie
        // across several of them.
        let mut found = Found::default();
        let tree = self.tree.clone();
        let mut items = Overlapping::new(&tree, ino);
        for range in touched.iter() {
            let spans = items.next(&range)?;
            self.range_of_file(file, range, spans, &mut found)?;
        }
        if !is_first {
            self.clear(ino, &found.cleared)?;
        }
        for hole in found.holes {
            self.put_hole(ino, hole);
        }
        for span in found.puts {
            self.put_span(&extent_key(ino, span.range.start), span, has_sums)?;
        }
        Ok(())
    }

    /// Finds what makes the log say of a range what the file says now. `spans`: the file's items
    /// that overlap it.
    fn range_of_file(&self, file: File, range: Range<u64>, spans: Vec<Span>, found: &mut Found) -> Step<()> {
        let File {
            ino,
            is_new,
            is_first,
            end,
            ..
        } = file;
        let mut at = range.start;
        let mut hole = |gap: Range<u64>| {
            if !is_new {
                found.holes.push(gap);
            }
        };
        found.cleared.insert(range.clone());
        for span in spans {
            if at < span.range.start {
                hole(at..span.range.start);
            }
            at = at.max(span.range.end);
            let is_kept = !is_new && span.range.end <= end;
            if is_kept && self.is_committed(ino, &span)? && self.is_unlogged(ino, &span.range, is_first)? {
                continue;
            }
            found.cleared.insert(span.range.clone());
            found.puts.push(span);
        }
        if at < range.end {
            hole(at..range.end);
        }
        Ok(())
    }

    fn is_committed(&self, ino: ObjectId, span: &Span) -> Step<bool> {
        let key = extent_key(ino, span.range.start);
        match self.committed.floor_same_type(&key)? {
            Some((key, item)) => Ok(span.is_part_of(&Span::new(&key, item)?)),
            None => Ok(false),
        }
    }

    fn is_unlogged(&self, ino: ObjectId, range: &Range<u64>, is_first: bool) -> Step<bool> {
        match &self.log.tree {
            Some(log) if !is_first => Ok(overlapping(log, ino, range)?.is_empty()),
            _ => Ok(true),
        }
    }

    /// Takes what the log says of these ranges out of it; holes that reach beyond are cut.
    fn clear(&mut self, ino: ObjectId, ranges: &Ranges) -> Step<()> {
        let Some(log) = self.log.tree.clone() else {
            return Ok(());
        };
        let mut last = None;
        let mut items = Overlapping::new(&log, ino);
        for range in ranges.iter() {
            for span in items.next(&range)? {
                let start = span.range.start;
                if last.replace(start) == Some(start) {
                    continue;
                }
                let rest = ranges.missing(span.range.clone());
                if !rest.is_empty() && !span.is_hole() {
                    return Err(Stop::Commit("an extent in the log that lies across a change"));
                }
                self.edits.push((extent_key(ino, start), None));
                for part in rest {
                    self.put_hole(ino, part);
                }
            }
        }
        Ok(())
    }

    fn put_hole(&mut self, ino: ObjectId, range: Range<u64>) {
        let mut item = FileExtent::new_zeroed();
        item.generation = self.running.into();
        item.ram_bytes = U64::new(range.end - range.start);
        item.num_bytes = item.ram_bytes;
        item.other_encoding = U16::ZERO;
        item.ty = file_extent_type::REG;
        self.edits
            .push((extent_key(ino, range.start), Some(item.as_bytes().into())));
    }

    fn put_span(&mut self, key: &Key, span: Span, has_sums: bool) -> Step<()> {
        if has_sums && let Some(range) = span.summed() {
            self.sums(range)?;
        }
        let bytes: ItemBytes = match span.item {
            Item::Pending(bytes) => bytes,
            item @ Item::Leaf { .. } => item[..].into(),
        };
        self.edits.push((*key, Some(bytes)));
        Ok(())
    }

    /// Logs the checksums of a range of the disk, once. Data is never rewritten in place where it
    /// has checksums, and freed space is not used again before the commit, so they do not change.
    fn sums(&mut self, range: Range<u64>) -> Step<()> {
        let size = self.files.store().volume().csum_type().size_bytes();
        let item_bytes_max = csum_item_bytes_max(self.files.store().nodes());
        for part in self.log.sums.missing(range) {
            let sums = file::load_sums(self.files, LogicalAddr(part.start), part.end - part.start)
                .map_err(|_| Stop::Commit("data without checksums"))?;
            let mut at = part.start;
            for item in sums.chunks(item_bytes_max) {
                let key = Key::new(ObjectId::EXTENT_CSUM, KeyType::EXTENT_CSUM, at);
                self.edits.push((key, Some(item.into())));
                at += (item.len() / size) as u64 * BLOCK;
            }
            self.log.sums.insert(part);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use btrfs_format::TreeId;
    use cowshed_device_sim::Rng;
    use cowshed_runtime::FixedEnv;

    use super::*;
    use crate::files::EngineOptions;
    use crate::mount::Mount;
    use crate::testing::memory_volume;

    /// The only inode there is.
    const INO: ObjectId = ObjectId::FIRST_FREE;
    const BLOCKS: u64 = 600;

    fn item(blocks: u64) -> ItemBytes {
        let mut item = FileExtent::new_zeroed();
        (item.num_bytes, item.ram_bytes) = (U64::new(blocks * BLOCK), U64::new(blocks * BLOCK));
        item.ty = file_extent_type::REG;
        item.as_bytes().into()
    }

    /// Ranges that ascend find together what each finds alone, whatever was deleted in between.
    #[test]
    fn ascending_ranges_find_each_item_that_overlaps_them() {
        let env = Arc::new(FixedEnv::default());
        let mount = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        let tree = mount.store().forest().require(TreeId::FS).unwrap();
        let mut rng = Rng::new(1);
        let mut below = |limit: u64| rng.next_u64() % limit;
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for round in 0..400 {
            // What overlaps a new extent goes.
            let (start, len) = (below(BLOCKS), below([3, 90][round % 2]) + 1);
            let gone: Vec<_> = model
                .iter()
                .filter(|(at, end)| **at < start + len && start < **end)
                .map(|(at, _)| *at)
                .collect();
            let mut edits: Vec<_> = gone.iter().map(|at| (extent_key(INO, at * BLOCK), None)).collect();
            model.retain(|at, _| !gone.contains(at));
            if below(3) > 0 {
                edits.push((extent_key(INO, start * BLOCK), Some(item(len))));
                model.insert(start, start + len);
            }
            tree.apply(edits);
            if below(40) == 0 {
                mount.sync().unwrap();
            }
            let mut ranges = Ranges::default();
            for _ in 0..below(12) + 1 {
                let (at, blocks_max) = (below(BLOCKS + 10), [2, 50][below(2) as usize]);
                ranges.insert(at * BLOCK..(at + 1 + below(blocks_max)) * BLOCK);
            }
            let mut items = Overlapping::new(&tree, INO);
            for range in ranges.iter() {
                let found: Vec<_> = items.next(&range).unwrap().into_iter().map(|span| span.range).collect();
                let meant: Vec<_> = model
                    .iter()
                    .map(|(at, end)| at * BLOCK..end * BLOCK)
                    .filter(|span| span.start < range.end && range.start < span.end)
                    .collect();
                assert_eq!(found, meant, "round {round}, {range:?}");
            }
        }
    }
}
