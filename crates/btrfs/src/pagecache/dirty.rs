//! The dirty ranges of one file: data that was written and is not on disk yet. Plain memory, no
//! locks.
//!
//! An ordered map from block-aligned offsets to buffers of whole blocks, disjoint. A write that
//! goes on where the one before it ended grows the buffer up to [`BUFFER_BYTES_MAX`]; any other
//! gets a buffer of its own size, also behind a neighbour, which would have to be copied to grow.
//! What lies behind the end of the file in its last block is zero.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::block::{BLOCK, round_down, round_up};
use crate::spare::Spares;

/// A buffer grows up to this size: large enough that a run of them is written with few pieces,
/// small enough that cutting one copies little.
pub(crate) const BUFFER_BYTES_MAX: usize = 1 << 20;

const BLOCK_BYTES: usize = BLOCK as usize;

/// Full-size buffers, 32 MiB.
static SPARES: Spares = Spares::new(32);
/// Buffers of one block, 16 MiB. Random writes need tens of thousands of them; glibc's allocator
/// searches lists for each, under a lock that all threads share.
static SPARE_BLOCKS: Spares = Spares::new(4096);

/// Where buffers of this capacity are kept.
fn spares(capacity: usize) -> Option<&'static Spares> {
    match capacity {
        BUFFER_BYTES_MAX => Some(&SPARES),
        BLOCK_BYTES => Some(&SPARE_BLOCKS),
        _ => None,
    }
}

fn new_buffer(capacity: usize) -> Vec<u8> {
    let spare = spares(capacity).and_then(Spares::take);
    spare.unwrap_or_else(|| Vec::with_capacity(capacity))
}

/// Takes the memory of a buffer back that is not needed any more.
pub(crate) fn recycle(buffer: Vec<u8>) {
    if let Some(spares) = spares(buffer.capacity()) {
        spares.give(buffer);
    }
}

/// Frees the buffers that are kept for reuse.
pub(crate) fn free_spares() {
    SPARES.free();
    SPARE_BLOCKS.free();
}

#[derive(Debug, Default)]
pub(crate) struct DirtyMap {
    buffers: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
    /// Where the last write ended.
    written_to: u64,
}

impl DirtyMap {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.buffers.len()
    }

    /// The buffer that covers `at`, with its start.
    fn covering(&self, at: u64) -> Option<(u64, &Vec<u8>)> {
        let (start, buffer) = self.buffers.range(..=at).next_back()?;
        (at < start + buffer.len() as u64).then_some((*start, buffer))
    }

    /// The first dirty byte at or after `from`.
    pub(crate) fn next_dirty(&self, from: u64) -> Option<u64> {
        if self.covering(from).is_some() {
            return Some(from);
        }
        self.buffers.range(from..).next().map(|(start, _)| *start)
    }

    /// The first byte at or after `from` that is not dirty.
    pub(crate) fn next_clean(&self, from: u64) -> u64 {
        let mut at = from;
        while let Some((start, buffer)) = self.covering(at) {
            at = start + buffer.len() as u64;
        }
        at
    }

    /// Where the buffer begins that covers `at`.
    pub(crate) fn start_of(&self, at: u64) -> Option<u64> {
        self.covering(at).map(|(start, _)| start)
    }

    /// Where the last buffer begins that begins before `at`.
    pub(crate) fn last_start(&self, at: u64) -> Option<u64> {
        self.buffers.range(..at).next_back().map(|(start, _)| *start)
    }

    /// Copies what is dirty into `buf`, which stands for the file from `at` on, and calls `clean`
    /// for each range that is not dirty.
    pub(crate) fn read(&self, at: u64, buf: &mut [u8], mut clean: impl FnMut(Range<u64>)) {
        let end = at + buf.len() as u64;
        let mut pos = at;
        let first = self.covering(at).map_or(at, |(start, _)| start);
        for (start, buffer) in self.buffers.range(first..end) {
            let from = pos.max(*start);
            if from > pos {
                clean(pos..from);
            }
            let to = end.min(start + buffer.len() as u64);
            let source = &buffer[(from - start) as usize..(to - start) as usize];
            buf[(from - at) as usize..(to - at) as usize].copy_from_slice(source);
            pos = to;
        }
        if pos < end {
            clean(pos..end);
        }
    }

    /// Puts `data` at `at`. Blocks that it covers in part and that are not dirty yet are zero
    /// elsewhere: a caller that wants to keep what they hold writes them first. Returns how many
    /// bytes became dirty.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> u64 {
        let (first, last) = (round_down(at), round_up(at + data.len() as u64));
        let before = self.bytes;
        let mut pos = first;
        while pos < last {
            let stop = match self.covering(pos) {
                Some((start, buffer)) => {
                    let stop = last.min(start + buffer.len() as u64);
                    if let Some(buffer) = self.buffers.get_mut(&start) {
                        overlay(
                            &mut buffer[(pos - start) as usize..(stop - start) as usize],
                            pos,
                            at,
                            data,
                        );
                    }
                    stop
                }
                None => {
                    let stop = self.buffers.range(pos..last).next().map_or(last, |(start, _)| *start);
                    self.fill_gap(pos, stop, at, data)
                }
            };
            pos = stop;
            self.written_to = stop;
        }
        self.bytes - before
    }

    /// Makes some of the clean range `pos..stop` dirty; returns how far it came.
    fn fill_gap(&mut self, pos: u64, stop: u64, at: u64, data: &[u8]) -> u64 {
        let mut room = BUFFER_BYTES_MAX;
        let mut capacity = 0;
        if pos == self.written_to
            && let Some((start, buffer)) = self.buffers.range_mut(..pos).next_back()
            && start + buffer.len() as u64 == pos
        {
            if buffer.len() < BUFFER_BYTES_MAX {
                room -= buffer.len();
                let add = room.min((stop - pos) as usize);
                append(buffer, pos, add, at, data);
                self.bytes += add as u64;
                return pos + add as u64;
            }
            // The file is being written in sequence: the next buffer will be filled too.
            capacity = BUFFER_BYTES_MAX;
        }
        let add = room.min((stop - pos) as usize);
        let mut buffer = new_buffer(capacity.max(add));
        append(&mut buffer, pos, add, at, data);
        self.bytes += add as u64;
        self.buffers.insert(pos, buffer);
        pos + add as u64
    }

    /// Forgets what is dirty in the block-aligned range; returns how many bytes that were.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> u64 {
        let before = self.bytes;
        while let Some((start, buffer)) = self.overlapping(&range) {
            let end = start + buffer.len() as u64;
            self.bytes -= end - start;
            if end > range.end {
                self.insert(range.end, buffer[(range.end - start) as usize..].to_vec());
            }
            if start < range.start {
                let mut head = buffer;
                head.truncate((range.start - start) as usize);
                self.insert(start, head);
            }
        }
        before - self.bytes
    }

    fn overlapping(&mut self, range: &Range<u64>) -> Option<(u64, Vec<u8>)> {
        if range.is_empty() {
            return None;
        }
        let start = match self.covering(range.start) {
            Some((start, _)) => start,
            None => *self.buffers.range(range.clone()).next()?.0,
        };
        self.buffers.remove(&start).map(|buffer| (start, buffer))
    }

    /// Adds a buffer where nothing is dirty.
    fn insert(&mut self, start: u64, buffer: Vec<u8>) {
        self.bytes += buffer.len() as u64;
        let before = self.buffers.insert(start, buffer);
        assert!(before.is_none(), "dirty buffers do not overlap");
    }

    /// All dirty ranges in order; adjacent buffers come one by one.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.buffers.iter().map(|(start, buffer)| (*start, buffer.as_slice()))
    }

    /// As [`Self::iter`], from the buffer that covers `from` on.
    pub(crate) fn iter_from(&self, from: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let first = self.covering(from).map_or(from, |(start, _)| start);
        self.buffers
            .range(first..)
            .map(|(start, buffer)| (*start, buffer.as_slice()))
    }

    /// Takes the first buffer at or after `from` away if it is no longer than `bytes_max`, else as
    /// much of its head.
    pub(crate) fn take(&mut self, from: u64, bytes_max: usize) -> Option<(u64, Vec<u8>)> {
        let start = self.next_dirty(from)?;
        let (at, _) = self.covering(start)?;
        let mut buffer = self.buffers.remove(&at)?;
        self.bytes -= buffer.len() as u64;
        if at < start {
            let rest = buffer.split_off((start - at) as usize);
            self.insert(at, buffer);
            buffer = rest;
        }
        if buffer.len() > bytes_max {
            let rest = buffer.split_off(bytes_max);
            self.insert(start + bytes_max as u64, rest);
        }
        Some((start, buffer))
    }
}

/// Copies the part of `data` (which stands at `at`) that falls into `target` (which stands at
/// `pos`).
fn overlay(target: &mut [u8], pos: u64, at: u64, data: &[u8]) {
    let from = pos.max(at);
    let to = (pos + target.len() as u64).min(at + data.len() as u64);
    if from < to {
        let source = &data[(from - at) as usize..(to - at) as usize];
        target[(from - pos) as usize..(to - pos) as usize].copy_from_slice(source);
    }
}

/// Appends `len` bytes of the file from `pos` on: what `data` (at `at`) has of them, zeros
/// elsewhere.
fn append(buffer: &mut Vec<u8>, pos: u64, len: usize, at: u64, data: &[u8]) {
    if buffer.capacity() - buffer.len() < len && !buffer.is_empty() {
        let target = (buffer.len() * 2).max(buffer.len() + len).min(BUFFER_BYTES_MAX);
        buffer.reserve_exact(target - buffer.len());
    }
    let end = pos + len as u64;
    let (from, to) = (pos.max(at), end.min(at + data.len() as u64));
    buffer.resize(buffer.len() + (from - pos) as usize, 0);
    buffer.extend_from_slice(&data[(from - at) as usize..(to - at) as usize]);
    buffer.resize(buffer.len() + (end - to) as usize, 0);
    debug_assert!((buffer.len() as u64).is_multiple_of(BLOCK), "buffers hold whole blocks");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dice;

    const BLOCKS: u64 = 64;

    /// The file as bytes, and which blocks are dirty.
    struct Model {
        bytes: Vec<u8>,
        dirty: Vec<bool>,
    }

    impl Model {
        fn new() -> Self {
            Self {
                bytes: vec![0; (BLOCKS * BLOCK) as usize],
                dirty: vec![false; BLOCKS as usize],
            }
        }
        fn check(&self, map: &DirtyMap) {
            let mut seen = vec![0xaa; self.bytes.len()];
            let mut clean = vec![false; self.dirty.len()];
            map.read(0, &mut seen, |range| {
                for block in range.start / BLOCK..range.end / BLOCK {
                    clean[block as usize] = true;
                }
            });
            for (block, dirty) in self.dirty.iter().enumerate() {
                assert_eq!(clean[block], !dirty, "block {block}");
                let range = block * 4096..(block + 1) * 4096;
                if *dirty {
                    assert_eq!(seen[range.clone()], self.bytes[range], "block {block}");
                }
            }
            let count = self.dirty.iter().filter(|d| **d).count() as u64;
            assert_eq!(map.bytes(), count * BLOCK);
            for at in 0..BLOCKS {
                let next = (at..BLOCKS).find(|b| self.dirty[*b as usize]).map(|b| b * BLOCK);
                assert_eq!(map.next_dirty(at * BLOCK), next);
                let next = (at..BLOCKS).find(|b| !self.dirty[*b as usize]).unwrap_or(BLOCKS) * BLOCK;
                assert_eq!(map.next_clean(at * BLOCK), next);
            }
        }
    }

    #[test]
    fn random_operations_match_a_model() {
        for seed in 0..60 {
            let mut rng = Dice::new(seed);
            let (mut map, mut model) = (DirtyMap::default(), Model::new());
            for _ in 0..200 {
                match rng.below(10) {
                    0..=5 => {
                        let at = rng.below(BLOCKS * BLOCK - 1);
                        let len = 1 + rng.below((BLOCKS * BLOCK - at).min(5 * BLOCK));
                        let data: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                        let (first, last) = (at / BLOCK, (at + len - 1) / BLOCK);
                        let mut fresh = 0;
                        for block in first..=last {
                            if !std::mem::replace(&mut model.dirty[block as usize], true) {
                                fresh += BLOCK;
                                model.bytes[(block * BLOCK) as usize..((block + 1) * BLOCK) as usize].fill(0);
                            }
                        }
                        model.bytes[at as usize..(at + len) as usize].copy_from_slice(&data);
                        assert_eq!(map.write(at, &data), fresh, "seed {seed}");
                    }
                    6 | 7 => {
                        let from = rng.below(BLOCKS);
                        let to = from + rng.below(BLOCKS - from + 1);
                        let gone = (from..to).filter(|b| model.dirty[*b as usize]).count() as u64;
                        model.dirty[from as usize..to as usize].fill(false);
                        assert_eq!(map.remove(from * BLOCK..to * BLOCK), gone * BLOCK, "seed {seed}");
                    }
                    _ => {
                        let from = rng.below(BLOCKS) * BLOCK;
                        let first = model.dirty[(from / BLOCK) as usize..].iter().position(|d| *d);
                        let taken = map.take(from, 3 * BLOCK as usize);
                        assert_eq!(taken.as_ref().map(|(s, _)| *s), first.map(|b| from + b as u64 * BLOCK));
                        if let Some((start, buffer)) = taken {
                            assert!(buffer.len() <= 3 * BLOCK as usize && !buffer.is_empty());
                            let range = start as usize..start as usize + buffer.len();
                            assert_eq!(buffer, model.bytes[range.clone()], "seed {seed}");
                            model.dirty[range.start / 4096..range.end / 4096].fill(false);
                        }
                    }
                }
                model.check(&map);
            }
        }
    }

    #[test]
    fn sequential_writes_share_buffers() {
        let mut map = DirtyMap::default();
        for at in 0..1024 {
            map.write(at * 4096, &[7; 4096]);
        }
        assert_eq!((map.count(), map.bytes()), (4, 4 << 20));
    }

    #[test]
    fn random_writes_have_buffers_of_their_own() {
        let mut map = DirtyMap::default();
        for at in [5, 3, 6, 4, 9, 7] {
            map.write(at * BLOCK, &[7; BLOCK as usize]);
        }
        assert_eq!((map.count(), map.bytes()), (6, 6 * BLOCK));
        assert!(map.buffers.values().all(|buffer| buffer.capacity() == BLOCK_BYTES));
    }
}
