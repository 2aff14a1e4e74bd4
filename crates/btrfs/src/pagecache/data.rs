//! What a file keeps in memory: dirty ranges, what write-back has in flight, and the errors that
//! fsync reports.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cowshed_runtime::lock::Mutex;
use cowshed_vfs::Defrag;

use super::ahead::Ahead;
use super::appended::Appended;
use super::dirty::DirtyMap;
use super::failures::{Failures, Opened};
use crate::block::round_down;
use btrfs_store::rank::LockRank;
use btrfs_store::space::DataReservation;

/// Data that write-back took and whose items are not in the tree yet.
pub(crate) type Flight = Arc<Vec<u8>>;

#[derive(Debug, Default)]
pub(crate) struct DataState {
    pub dirty: DirtyMap,
    /// Space for all of `dirty`.
    pub reservation: Option<DataReservation>,
    /// By file offset, disjoint. A block may be dirty above its old content in flight.
    pub in_flight: BTreeMap<u64, Flight>,
    /// Of `dirty`, what was behind the end when it was written.
    appended: Appended,
    /// The same of `in_flight`.
    appended_in_flight: Appended,
    /// Counts how often data in flight became items, for readers that look at items first and here
    /// second.
    pub landings: u64,
    /// A truncation in steps of what is on disk has come down to here, above the new size: extents
    /// below it are still there, and the item's size covers them.
    pub cut: Option<u64>,
    /// Under way. What is written meanwhile goes to new extents, in nodatacow files, too, and is
    /// compressed if that was asked for.
    pub defrag: Option<Defrag>,
    /// Most of what was compressed last became smaller.
    pub packs_well: bool,
    /// Write-back of this inode is wanted: it stands in the list of inodes with dirty data.
    pub is_listed: bool,
}

/// What a file keeps in memory.
#[derive(Debug)]
pub(crate) struct FileData {
    /// Held while the file's extent items change.
    pub(crate) flush: Mutex<()>,
    /// Held by a defragmentation of the file, outside of all other locks.
    pub(crate) defragmenting: Mutex<()>,
    pub(crate) state: Mutex<DataState>,
    /// For fsync.
    pub(crate) failures: Failures,
    /// Of the sequential reader of the file.
    pub(crate) ahead: Mutex<Ahead>,
}

impl Default for FileData {
    fn default() -> Self {
        Self {
            flush: Mutex::new(LockRank::Flush, ()),
            defragmenting: Mutex::new(LockRank::Defragment, ()),
            state: Mutex::new(LockRank::DataState, DataState::default()),
            failures: Failures::default(),
            ahead: Mutex::new(LockRank::ReadAhead, Ahead::default()),
        }
    }
}

impl DataState {
    /// Copies what memory holds of `at..at + buf.len()` into `buf`; the ranges that are on disk are
    /// left out and returned.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8]) -> Vec<Range<u64>> {
        let mut clean = Vec::new();
        self.dirty.read(at, buf, |range| clean.push(range));
        if self.in_flight.is_empty() {
            return clean;
        }
        let mut on_disk = Vec::new();
        for range in clean {
            let mut pos = range.start;
            for (start, flight) in self.flights_in(&range) {
                let (from, to) = (pos.max(start), range.end.min(start + flight.len() as u64));
                if from > pos {
                    on_disk.push(pos..from);
                }
                buf[(from - at) as usize..(to - at) as usize]
                    .copy_from_slice(&flight[(from - start) as usize..(to - start) as usize]);
                pos = to;
            }
            if pos < range.end {
                on_disk.push(pos..range.end);
            }
        }
        on_disk
    }

    fn flights_in(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, &Flight)> {
        let before = self.in_flight.range(..range.start).next_back();
        let covering = before.filter(|(start, flight)| *start + flight.len() as u64 > range.start);
        covering
            .into_iter()
            .chain(self.in_flight.range(range.clone()))
            .map(|(start, flight)| (*start, flight))
    }

    /// The first byte at or after `from` that is in memory only.
    pub(crate) fn next_pending(&self, from: u64) -> Option<u64> {
        let flight = self
            .flights_in(&(from..u64::MAX))
            .next()
            .map(|(start, _)| start.max(from));
        [self.dirty.next_dirty(from), flight].into_iter().flatten().min()
    }

    /// The first byte at or after `from` that is not in memory only.
    pub(crate) fn next_settled(&self, from: u64) -> u64 {
        let mut at = from;
        loop {
            let clean = self.dirty.next_clean(at);
            match self.flights_in(&(clean..clean + 1)).next() {
                Some((start, flight)) => at = start + flight.len() as u64,
                None => return clean,
            }
        }
    }

    /// The last stretch that is in memory only and begins before `at`.
    pub(crate) fn last_pending(&self, at: u64) -> Option<Range<u64>> {
        let flight = self.in_flight.range(..at).next_back().map(|(start, _)| *start);
        let mut start = [self.dirty.last_start(at), flight].into_iter().flatten().max()?;
        while let Some(last) = start.checked_sub(1) {
            let flight = self.flights_in(&(last..start)).next().map(|(start, _)| start);
            let Some(before) = [self.dirty.start_of(last), flight].into_iter().flatten().min() else {
                break;
            };
            start = before;
        }
        Some(start..self.next_settled(start))
    }

    /// Adds the reservation of data that becomes dirty: of `new` as much as became dirty, the rest
    /// is given back.
    pub(crate) fn keep(&mut self, mut new: DataReservation, dirtied_bytes: u64) {
        let surplus = new.bytes().saturating_sub(dirtied_bytes);
        if surplus > 0 {
            drop(new.split(surplus));
        }
        match &mut self.reservation {
            Some(held) => held.merge(new),
            None => self.reservation = Some(new),
        }
    }

    /// Takes the reservation of data that is no longer dirty.
    pub(crate) fn release(&mut self, bytes: u64) -> Option<DataReservation> {
        let held = self.reservation.as_mut()?;
        if bytes >= held.bytes() {
            self.reservation.take()
        } else {
            Some(held.split(bytes))
        }
    }

    /// The file ended at `size`, and data that has become dirty just now goes on from there: it
    /// begins in the block of `at`.
    pub(crate) fn append(&mut self, size: u64, at: u64, end: u64) {
        self.appended.insert(size.max(round_down(at))..end);
    }

    /// Forgets what is dirty in the block-aligned range; returns how many bytes that were.
    pub(crate) fn forget(&mut self, range: Range<u64>) -> u64 {
        self.appended.take(&range);
        self.dirty.remove(range)
    }

    /// Moves the first dirty buffer at or after `from` in flight, or as much of its head.
    pub(crate) fn take_off(&mut self, from: u64, bytes_max: usize) -> Option<(u64, Flight)> {
        let (start, buffer) = self.dirty.take(from, bytes_max)?;
        let taken = self.appended.take(&(start..start + buffer.len() as u64));
        self.appended_in_flight.extend(taken);
        let flight: Flight = Arc::new(buffer);
        self.in_flight.insert(start, flight.clone());
        Some((start, flight))
    }

    /// What was in flight is on disk with its items, or lost.
    pub(crate) fn land(&mut self, starts: impl Iterator<Item = u64>) {
        starts.for_each(|start| drop(self.in_flight.remove(&start)));
        assert!(self.in_flight.is_empty(), "one group is in flight at a time");
        self.appended_in_flight.clear();
        self.landings += 1;
    }

    /// What the inode item may say of the size: no more than what is on disk from the start without
    /// a break.
    ///
    /// `size` is the file's size, `disk_size` what the item says now, and data in flight counts as
    /// being on disk where `has_landed`: its items are in the same batch as the answer. Dirty data
    /// that stands over what is on disk, or over a hole, does not count: see [`Appended`].
    pub(crate) fn disk_size(&self, size: u64, disk_size: u64, has_landed: bool) -> u64 {
        let from = disk_size.min(size);
        let in_flight = self.appended_in_flight.first(from).filter(|_| !has_landed);
        let missing = [self.appended.first(from), in_flight].into_iter().flatten().min();
        missing.map_or(size, |at| at.min(size))
    }
}

impl FileData {
    /// The file is open once more: as `opened`, to which data lost from here on is reported.
    pub(crate) fn note_open(&self, opened: Opened) {
        self.failures.open(opened);
    }
    /// And once less.
    pub(crate) fn note_close(&self, opened: Opened) {
        self.failures.close(opened);
    }
    /// Nothing is dirty or under way, and no failure waits to be reported. The caller holds the only
    /// reference to the file in memory, so that no lock is taken.
    pub(crate) fn is_clean(&self) -> bool {
        let is_idle = |state: &DataState| {
            let is_settled = !state.is_listed && state.dirty.is_empty() && state.in_flight.is_empty();
            is_settled && state.reservation.is_none() && state.cut.is_none() && state.defrag.is_none()
        };
        self.state.try_lock().is_some_and(|state| is_idle(&state)) && self.failures.are_none()
    }
    /// Bytes that are dirty or in flight.
    pub(crate) fn pending_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.dirty.bytes() + state.in_flight.values().map(|f| f.len() as u64).sum::<u64>()
    }
}
