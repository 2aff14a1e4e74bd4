//! What may be discarded: free space, out of the allocator's reach while the device is at it.
//! docs/design/discard.md.
//!
//! ```text
//!   hole --claim--> claimed --device has answered--> hole
//! ```
//!
//! A claim counts as free in the ledger, so it must never make an allocation fail: one that finds
//! nothing pauses the claims and looks again ([`Space::pause_discards`]).
//!
//! A claim is held without any lock; room that no chunk has is discarded under `chunks`. Locks:
//! [`crate::rank`].

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use btrfs_format::superblock::{DEVICE_RESERVED_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{DevId, LogicalAddr};
use cowshed_runtime::lock::{Condvar, Mutex, MutexGuard};

use super::Space;
use super::group::Group;
use super::ledger::POOLS;
use super::placement::Device;
use super::ranges::RangeSet;
use super::retire::OldChunk;
use crate::error::Result;
use crate::rank::LockRank;

/// What one claim takes, and what is discarded under the lock of chunks: a caller that needs the
/// lock waits for one command of the device.
const CLAIM_BYTES_MAX: u64 = 128 << 20;
/// Freed ranges that are remembered, some 16 MiB of memory. What is beyond is left to fstrim.
const FREED_RANGES_MAX: usize = 1 << 18;
/// What is left alone around a superblock copy that lies in no chunk.
const SUPERBLOCK_ROOM_BYTES: u64 = 64 << 10;

/// A range that was freed and is to be discarded if it is still free then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Freed {
    /// Logical addresses within a chunk.
    Logical(Range<u64>),
    /// Room of a chunk that went.
    Room(DevId, Range<u64>),
}

#[derive(Debug, Default)]
struct FreedSet {
    logical: RangeSet,
    room: Vec<(DevId, Range<u64>)>,
}

#[derive(Debug, Default)]
pub(super) struct Claims {
    held: u32,
    /// Callers that must see all that is free: no claim is made while there is one.
    pub(super) pauses: u32,
}

#[derive(Debug)]
pub(super) struct Discards {
    /// `None`: nothing is collected.
    freed: Mutex<Option<FreedSet>>,
    pub(super) claims: Mutex<Claims>,
    bell: Condvar,
    /// There has been a claim: until then there is none to look for.
    is_used: AtomicBool,
}

impl Default for Discards {
    fn default() -> Self {
        Self {
            freed: Mutex::new(LockRank::Freed, None),
            claims: Mutex::new(LockRank::Claims, Claims::default()),
            bell: Condvar::new(),
            is_used: AtomicBool::new(false),
        }
    }
}

impl Discards {
    /// Notes a range for which the superblock on disk has no use any more.
    pub(crate) fn note(&self, range: Range<u64>) {
        if let Some(freed) = &mut *self.freed.lock()
            && freed.logical.len() < FREED_RANGES_MAX
        {
            freed.logical.insert(range, |_| {});
        }
    }
    /// Notes the room of chunks that went.
    pub(crate) fn note_room(&self, gone: &[OldChunk]) {
        if let Some(freed) = &mut *self.freed.lock() {
            for chunk in gone.iter().map(|old| &old.chunk) {
                let ranges = chunk.stripes().iter().map(|stripe| {
                    let start = stripe.at.offset;
                    (stripe.at.dev, start..start + chunk.stripe_bytes())
                });
                freed.room.extend(ranges);
            }
        }
    }
    /// The range need not be collected any more.
    pub(crate) fn forget(&self, range: Range<u64>) {
        if let Some(freed) = &mut *self.freed.lock() {
            freed.logical.remove(range, |_| {});
        }
    }

    fn begin(&self) {
        self.is_used.store(true, Ordering::Release);
        let mut claims = self.claims.lock();
        while claims.pauses > 0 {
            self.bell.wait(&mut claims);
        }
        claims.held += 1;
    }
    fn end(&self) {
        self.claims.lock().held -= 1;
        self.bell.notify_all();
    }
}

/// While it lives nothing is claimed, and nothing new.
#[derive(Debug)]
pub(super) struct Pause<'d>(&'d Discards);

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        self.0.claims.lock().pauses -= 1;
        self.0.bell.notify_all();
    }
}

/// Free ranges that cannot be allocated. They are free again when it is dropped.
struct Claim<'s> {
    discards: &'s Discards,
    group: Arc<Group>,
    parts: Vec<Range<u64>>,
}

impl<'s> Claim<'s> {
    /// What is free of the range.
    fn take(discards: &'s Discards, group: &Arc<Group>, range: Range<u64>) -> Self {
        discards.begin();
        Claim {
            discards,
            group: group.clone(),
            parts: group.take_free(range),
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.group.put_free(std::mem::take(&mut self.parts));
        self.discards.end();
    }
}

impl Space {
    /// Starts (or ends) collecting what commits and logs free.
    pub fn collect_freed(&self, on: bool) {
        *self.discards.freed.lock() = on.then(FreedSet::default);
    }
    /// Ranges that were freed since the last call, of at least `bytes_min`, at most `count`;
    /// shorter ones stay. They may be in use again.
    pub fn take_freed(&self, count: usize, bytes_min: u64) -> Vec<Freed> {
        let mut guard = self.discards.freed.lock();
        let Some(freed) = &mut *guard else { return Vec::new() };
        let of_room = freed.room.len().min(count);
        let mut found: Vec<_> = freed.room.drain(..of_room).map(|(d, r)| Freed::Room(d, r)).collect();
        let long = |range: &Range<u64>| range.end - range.start >= bytes_min;
        let ranges: Vec<_> = freed.logical.iter().filter(long).take(count - of_room).collect();
        for range in &ranges {
            freed.logical.remove(range.clone(), |_| {});
        }
        found.extend(ranges.into_iter().map(Freed::Logical));
        found
    }
    /// A block of a log that no superblock leads to any more: free at once.
    pub fn free_log_block(&self, addr: LogicalAddr) {
        self.free_block(addr);
        self.discards.note(addr.get()..addr.get() + self.nodesize_bytes);
    }

    /// Discards what is still free of a range that was freed. Gives the bytes, those of all copies.
    pub fn discard_freed(&self, freed: &Freed) -> Result<u64> {
        match freed {
            Freed::Logical(range) => self.discard_free(range.clone(), 0),
            Freed::Room(devid, range) => self.discard_room_of(*devid, range.clone()),
        }
    }

    /// Discards the free space of block groups in a range of logical addresses, in pieces of at
    /// least `bytes_min`. Gives the bytes, those of all copies. Goes on after an error, and gives
    /// the first one.
    pub fn discard_free(&self, range: Range<u64>, bytes_min: u64) -> Result<u64> {
        let mut done = Sum::default();
        for pool in POOLS {
            let groups = self.pools[pool as usize].read().clone();
            let touched = |g: &&Arc<Group>| g.range().start < range.end && range.start < g.range().end;
            for group in groups.iter().filter(touched) {
                done.add(self.discard_free_of(group, &range, bytes_min));
            }
        }
        done.result()
    }

    fn discard_free_of(&self, group: &Arc<Group>, range: &Range<u64>, bytes_min: u64) -> Result<u64> {
        self.ensure_loaded(group)?;
        let mut done = Sum::default();
        let Range { start, end } = group.range();
        let mut rest = start.max(range.start)..end.min(range.end);
        while let Some(hole) = group.next_hole(rest.clone(), bytes_min) {
            rest.start = hole.end;
            let mut at = hole.start;
            while at < hole.end {
                let piece = at..hole.end.min(at + CLAIM_BYTES_MAX);
                at = piece.end;
                let claim = Claim::take(&self.discards, group, piece);
                for part in &claim.parts {
                    self.discards.forget(part.clone());
                    done.add(self.volume.discard(LogicalAddr(part.start), part.end - part.start));
                }
            }
        }
        done.result()
    }

    /// Discards the room of the devices that no chunk has. Gives the bytes.
    pub fn discard_room(&self) -> Result<u64> {
        let devices: Vec<DevId> = self.chunks.lock().devices.iter().map(|d| d.devid).collect();
        let mut done = Sum::default();
        for devid in devices {
            done.add(self.discard_room_of(devid, 0..u64::MAX));
        }
        done.result()
    }

    fn discard_room_of(&self, devid: DevId, within: Range<u64>) -> Result<u64> {
        let mut done = Sum::default();
        let mut rest = within;
        loop {
            // While it is held no chunk is made there.
            let chunks = self.chunks.lock();
            let device = chunks.devices.iter().find(|d| d.devid == devid && d.writable);
            let Some(room) = device.and_then(|device| next_room(device, rest.clone())) else {
                return done.result();
            };
            rest.start = room.end;
            done.add(self.volume.discard_on(devid, room.start, room.end - room.start));
            MutexGuard::unlock_fair(chunks);
        }
    }

    /// Keeps claims away from what is free, for a caller that needs to see all of it. `None` where
    /// there never was one.
    pub(super) fn pause_discards(&self) -> Option<Pause<'_>> {
        if !self.discards.is_used.load(Ordering::Acquire) {
            return None;
        }
        let mut claims = self.discards.claims.lock();
        claims.pauses += 1;
        while claims.held > 0 {
            self.discards.bell.wait(&mut claims);
        }
        Some(Pause(&self.discards))
    }
}

/// The first piece of room that no chunk has and no superblock copy, in this range of the device.
pub(super) fn next_room(device: &Device, within: Range<u64>) -> Option<Range<u64>> {
    let mut at = within.start.max(DEVICE_RESERVED_BYTES);
    let end = within.end.min(device.total_bytes);
    let superblocks = SUPERBLOCK_OFFSETS.map(|offset| offset..offset + SUPERBLOCK_ROOM_BYTES);
    loop {
        let obstacles = device.taken.overlaps(at..u64::MAX).take(1);
        let copies = superblocks.iter().filter(|copy| copy.end > at).cloned();
        let next = obstacles.chain(copies).min_by_key(|range| range.start);
        match next {
            Some(obstacle) if obstacle.start <= at => at = obstacle.end,
            next => {
                let room = at..next.map_or(end, |obstacle| end.min(obstacle.start));
                let room = room.start..room.end.min(room.start.saturating_add(CLAIM_BYTES_MAX));
                return (room.start < room.end).then_some(room);
            }
        }
    }
}

/// Bytes done, and the first error on the way.
#[derive(Debug, Default)]
struct Sum {
    bytes: u64,
    failure: Option<crate::error::Error>,
}

impl Sum {
    fn add(&mut self, done: Result<u64>) {
        match done {
            Ok(bytes) => self.bytes += bytes,
            Err(error) => {
                self.failure.get_or_insert(error);
            }
        }
    }
    fn result(self) -> Result<u64> {
        match self.failure {
            None => Ok(self.bytes),
            Some(error) => Err(error),
        }
    }
}
