//! Atomic groups: writes to one file or several that appear all or not at all, to other readers and
//! after a crash.
//!
//! ```text
//!   write --> staged in memory, whole blocks, space reserved
//!                | apply: data to new extents that nothing refers to
//!                |        --one batch--> items of all files
//!                | dropped: nothing has happened
//! ```
//!
//! Data of a group always goes to new extents, whatever the file is marked with: writing in place
//! cannot be undone by a crash. The batch belongs to one transaction, so that the group is durable
//! with the next commit or log of it; a caller that wants that now syncs afterwards
//! ([`crate::fs::Fs::commit_group`]).
//!
//! A group holds whole blocks as they were when it first wrote into them: writes of others into
//! these blocks between then and the end of the group are overwritten.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use btrfs_format::{LogicalAddr, ObjectId, TreeId};
use cowshed_runtime::lock::MutexGuard;
use cowshed_vfs::Error as Outcome;
use cowshed_vfs::perm::Strips;

use super::items::{self, Change, NOW, Part};
use super::place::{gather, new_extent};
use super::replace::{self, Replacement};
use super::write::{WriteCtx, edge_blocks, old_end_must_be_rewritten, put_holes, touch};
use super::writeback;
use super::{csum, read, truncate};
use crate::block::{BLOCK, EXTENT_BYTES_MAX, FILE_BYTES_MAX, round_down, round_up};
use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind};
use crate::files::Files;
use crate::object::{Inode, flags};
use crate::pagecache::DirtyMap;
use btrfs_store::space::{Budget, DataReservation, MetaReservation};

/// Bytes that all open groups of a volume together may hold: they are in memory until their end.
pub(crate) const GROUP_BYTES_MAX: u64 = 256 << 20;

/// What a group holds of one file.
#[derive(Debug)]
struct Staged {
    inode: Arc<Inode>,
    blocks: DirtyMap,
    /// Space for all of `blocks`, and one block more for the old end of the file.
    reservation: DataReservation,
    /// The file is at least so long afterwards.
    end: u64,
    /// Set-id bits that go with it.
    strips: Strips,
}

/// A group of writes that is being collected. Dropping it drops them.
#[derive(Debug)]
pub(crate) struct Group {
    close: Close,
    files: BTreeMap<(TreeId, ObjectId), Staged>,
    bytes: u64,
    all_bytes: Arc<AtomicU64>,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.all_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Closes a file once: `reclaim::close`.
pub(crate) type Close = fn(&Files, &Arc<Inode>);

/// Files that are open while a group is applied: none of them is deleted meanwhile.
struct Opened<'e> {
    files: &'e Files,
    close: Close,
    inodes: Vec<Arc<Inode>>,
}

impl<'e> Opened<'e> {
    fn all(files: &'e Files, close: Close, inodes: Vec<Arc<Inode>>) -> Self {
        inodes.iter().for_each(|inode| inode.refs.add_open());
        Self { files, close, inodes }
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        for inode in &self.inodes {
            (self.close)(self.files, inode);
        }
    }
}

fn id_of(inode: &Inode) -> (TreeId, ObjectId) {
    (inode.tree.id(), inode.ino)
}

impl Group {
    /// An empty group. `close` is what closes a file that was open, and may be deleted then.
    pub(crate) fn new(files: &Files, close: Close) -> Self {
        Self {
            close,
            files: BTreeMap::new(),
            bytes: 0,
            all_bytes: files.data().staged_bytes().clone(),
        }
    }

    /// Adds a write. Errors: `NoSpace`, `FileTooBig` (the file, or more than [`GROUP_BYTES_MAX`] in
    /// open groups); the group is then as before.
    pub(crate) fn write(&mut self, files: &Files, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<()> {
        files.store().txn().check_writable()?;
        if files.store().volume().is_read_only() {
            return Err(Error::Store(StoreError::ReadOnly));
        }
        if data.is_empty() {
            return Ok(());
        }
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(Outcome::FileTooBig)?;
        let blocks = round_down(offset)..round_up(end);
        if self.all_bytes.load(Ordering::Relaxed) + (blocks.end - blocks.start) > GROUP_BYTES_MAX {
            return Err(Outcome::FileTooBig.into());
        }
        let is_new = !self.files.contains_key(&id_of(inode));
        let spare_bytes = if is_new { BLOCK } else { 0 };
        let new_bytes = blocks.end - blocks.start;
        let mut reservation = files.store().space().reserve_data(new_bytes + spare_bytes)?;
        let edges = self.load_edges(files, inode, offset, end)?;
        let staged = self.files.entry(id_of(inode)).or_insert_with(|| Staged {
            inode: inode.clone(),
            blocks: DirtyMap::default(),
            reservation: reservation.split(BLOCK),
            end: 0,
            strips: Strips::Nothing,
        });
        let mut added = 0;
        for (block, content) in edges {
            added += staged.blocks.write(block, &content);
        }
        added += staged.blocks.write(offset, data);
        staged.reservation.merge(reservation.split(added));
        staged.end = staged.end.max(end);
        self.bytes += added;
        self.all_bytes.fetch_add(added, Ordering::Relaxed);
        Ok(())
    }

    /// A writer of the file may not keep its set-id bits: they go when the group is applied.
    pub(crate) fn strip(&mut self, inode: &Inode, strips: Strips) {
        if let Some(staged) = self.files.get_mut(&id_of(inode)) {
            staged.strips = staged.strips.max(strips);
        }
    }

    /// The files that the group writes to.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<Inode>> {
        self.files.values().map(|staged| &staged.inode)
    }

    /// What the file holds in the blocks that a write covers in part and the group does not hold
    /// yet.
    fn load_edges(&self, files: &Files, inode: &Arc<Inode>, at: u64, end: u64) -> Result<Vec<(u64, Vec<u8>)>> {
        let staged = self.files.get(&id_of(inode));
        let is_held = |block: u64| staged.is_some_and(|s| s.blocks.next_dirty(block) == Some(block));
        let _op = inode.lock.read();
        let size = inode.attr.lock().attr.size;
        let wanted = edge_blocks(at, end, size).filter(|block| !is_held(*block));
        wanted
            .map(|block| Ok((block, load_block(files, inode, block, size)?)))
            .collect()
    }

    /// Reads a file as it will be after the group; fewer bytes only at the end of the file.
    pub(crate) fn read(&self, files: &Files, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _op = inode.lock.read();
        let size = inode.attr.lock().attr.size;
        let staged = self.files.get(&id_of(inode));
        let end = staged.map_or(size, |s| s.end.max(size));
        let len = end.saturating_sub(offset).min(buf.len() as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..len];
        let on_disk = size.saturating_sub(offset).min(len as u64) as usize;
        if on_disk > 0 {
            read::read_range(files, inode, offset, &mut buf[..on_disk])?;
        }
        buf[on_disk..].fill(0);
        if let Some(staged) = staged {
            staged.blocks.read(offset, buf, |_| {});
        }
        Ok(len)
    }

    /// The size of a file as it will be after the group, if that is more than `size`.
    pub(crate) fn size_after(&self, inode: &Inode, size: u64) -> u64 {
        self.files.get(&id_of(inode)).map_or(size, |s| s.end.max(size))
    }

    /// The ranges of a file that the group holds, in whole blocks.
    pub(crate) fn ranges(&self, inode: &Inode) -> Vec<Range<u64>> {
        self.files
            .get(&id_of(inode))
            .map_or(Vec::new(), |s| ranges_of(&s.blocks))
    }

    /// Does the group hold anything of these bytes of a file?
    pub(crate) fn overlaps(&self, inode: &Inode, range: &Range<u64>) -> bool {
        let staged = self.files.get(&id_of(inode));
        staged.is_some_and(|s| s.blocks.next_dirty(range.start).is_some_and(|at| at < range.end))
    }

    /// Makes the group part of the running transaction, whole, and returns the files; where it
    /// fails, nothing of the group has happened. Not durable yet. Files that are gone since are
    /// left out.
    pub(crate) fn apply(mut self, files: &Files) -> Result<Vec<Arc<Inode>>> {
        let opened = Opened::all(
            files,
            self.close,
            self.files.values().map(|s| s.inode.clone()).collect(),
        );
        // The caller may have closed files since that lost their last name.
        self.files.retain(|_, staged| !staged.inode.refs.is_deleting());
        let inodes: Vec<Arc<Inode>> = self.files.values().map(|s| s.inode.clone()).collect();
        // Most of it without locks that other calls wait for.
        for inode in &inodes {
            writeback::flush(files, inode)?;
        }
        let in_order = inodes.iter().map(|inode| inode.lock.write_ordered(inode.lock_key()));
        let ops: Vec<_> = in_order.collect();
        // No writes come any more. What was written before the group lies on disk before it.
        for staged in self.files.values_mut() {
            writeback::flush(files, &staged.inode)?;
            staged.rewrite_old_end(files)?;
        }
        let mut allocated = Vec::new();
        let prepared = self.prepare(files, &inodes, &mut allocated);
        let (meta, flushes, changes) = prepared.inspect_err(|_| {
            for (addr, len_bytes) in allocated {
                files.store().space().unalloc_data(addr, len_bytes);
            }
        })?;
        let parts = self.files.values().zip(changes).map(|(staged, change)| Part {
            inode: &staged.inode,
            change,
            update: Box::new(|attr, state| {
                attr.attr.size = attr.attr.size.max(staged.end);
                touch(files, attr, WriteCtx::stripping(staged.strips));
                attr.update_disk_size(state, true);
            }),
        });
        items::apply_all(files, parts.collect(), meta, || {});
        drop((flushes, ops));
        drop(opened);
        Ok(inodes)
    }

    /// Writes all data to new extents; what is to change of each file, in order, with the space and
    /// the locks for that. What was allocated is in `allocated`, also when an error is returned.
    fn prepare<'i>(
        &mut self,
        files: &Files,
        inodes: &'i [Arc<Inode>],
        allocated: &mut Vec<(LogicalAddr, u64)>,
    ) -> Result<(MetaReservation, Vec<MutexGuard<'i, ()>>, Vec<Change>)> {
        // How many extents there are is known when they have their places.
        let mut all = Vec::with_capacity(self.files.len());
        for staged in self.files.values_mut() {
            all.push(staged.allocate(files, allocated)?);
        }
        let bytes = self.files.values().map(|s| s.blocks.bytes()).sum();
        let meta = files.reserve(Budget {
            is_release: false,
            ..writeback::budget(files, allocated.len().max(inodes.len()), bytes)
        })?;
        let flushes = writeback::hold(&inodes.iter().collect::<Vec<_>>());
        let mut writes: Vec<(LogicalAddr, &[u8])> = Vec::new();
        let mut changes = Vec::with_capacity(self.files.len());
        for (staged, replacements) in self.files.values().zip(&all) {
            changes.push(staged.prepare(files, replacements, &mut writes)?);
        }
        files.store().volume().write(&writes)?;
        Ok((meta, flushes, changes))
    }
}

impl Staged {
    /// Where the file grows, what lies behind its old end must be zero and not inline any more, no
    /// data is left in the gap, and it has hole items where the volume wants them.
    fn rewrite_old_end(&mut self, files: &Files) -> Result<()> {
        let size = self.inode.attr.lock().attr.size;
        if self.end <= size {
            return Ok(());
        }
        let block = round_down(size);
        let is_held = self.blocks.next_dirty(block) == Some(block);
        if !size.is_multiple_of(BLOCK) && !is_held && old_end_must_be_rewritten(files, &self.inode, size)? {
            let content = load_block(files, &self.inode, block, size)?;
            self.blocks.write(block, &content);
        }
        truncate::drop_left_behind(files, &self.inode, round_up(size)..round_up(self.end))?;
        if !files.has_no_holes() && round_up(self.end) > round_up(size) {
            put_holes(files, &self.inode, round_up(size), round_up(self.end))?;
        }
        Ok(())
    }

    /// New extents for all that is staged.
    fn allocate(&mut self, files: &Files, allocated: &mut Vec<(LogicalAddr, u64)>) -> Result<Vec<Replacement>> {
        let mut replacements = Vec::new();
        for range in ranges_of(&self.blocks) {
            let mut extents = Vec::new();
            let mut at = range.start;
            while at < range.end {
                let want = (range.end - at).min(EXTENT_BYTES_MAX);
                let (addr, len_bytes) = files.store().space().alloc_data(&mut self.reservation, want)?;
                allocated.push((addr, len_bytes));
                extents.push(Extent {
                    start: at,
                    len_bytes,
                    generation: NOW,
                    kind: Kind::Disk(new_extent(addr, len_bytes, false)),
                });
                at += len_bytes;
            }
            replacements.push(Replacement { range, extents });
        }
        Ok(replacements)
    }

    fn prepare<'s>(
        &'s self,
        files: &Files,
        replacements: &[Replacement],
        writes: &mut Vec<(LogicalAddr, &'s [u8])>,
    ) -> Result<Change> {
        let wants_sums = self.inode.flags() & flags::NODATASUM == 0;
        let mut change = Change::default();
        let mut existing: Vec<Extent> = Vec::new();
        for Replacement { range, .. } in replacements {
            gather(&self.inode, range, &mut existing)?;
        }
        for extent in replacements.iter().flat_map(|r| &r.extents) {
            let Some(disk) = extent.on_disk() else { continue };
            change.fresh.insert(disk.addr);
            let mut at = disk.addr.get();
            let mut sums = Vec::new();
            for slice in slices(&self.blocks, extent.range()) {
                writes.push((LogicalAddr(at), slice));
                at += slice.len() as u64;
                if wants_sums {
                    sums.extend(csum::compute(files.store().volume().csum_type(), slice));
                }
            }
            if wants_sums {
                change.sums.push((disk.addr, sums));
            }
        }
        change.plan = replace::plan_checked(&self.inode.tree, self.inode.ino, &existing, replacements)?;
        Ok(change)
    }
}

/// The block at `block`, dirty or not, zero behind `size`. The caller holds the operation lock.
fn load_block(files: &Files, inode: &Arc<Inode>, block: u64, size: u64) -> Result<Vec<u8>> {
    let mut content = vec![0; BLOCK as usize];
    read::read_range(files, inode, block, &mut content)?;
    let valid = size.saturating_sub(block).min(BLOCK) as usize;
    content[valid..].fill(0);
    Ok(content)
}

fn ranges_of(blocks: &DirtyMap) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for (start, buffer) in blocks.iter() {
        let end = start + buffer.len() as u64;
        match all.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => all.push(start..end),
        }
    }
    all
}

/// The buffers' parts in a range that is staged throughout.
fn slices(blocks: &DirtyMap, range: Range<u64>) -> impl Iterator<Item = &[u8]> {
    blocks.iter_from(range.start).map_while(move |(start, buffer)| {
        let end = start + buffer.len() as u64;
        let (from, to) = (range.start.max(start), range.end.min(end));
        (from < to).then(|| &buffer[(from - start) as usize..(to - start) as usize])
    })
}
