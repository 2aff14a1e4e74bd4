//! The content of a file: its size, and the blocks that hold anything but zeros. Cheap to copy.

use std::collections::BTreeMap;
use std::sync::Arc;

pub const BLOCK_BYTES: u64 = 4096;
pub(crate) type Block = [u8; BLOCK_BYTES as usize];

/// Zeros but for its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub size_bytes: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

/// One in so many fills is of four letters, so that it compresses.
const LETTERS_ONE_IN: u64 = 3;

/// `len` bytes that hang on `fill` alone: zeros for 0, else noise that does not repeat, of all
/// bytes or of few.
pub fn pattern(fill: u64, len: usize) -> Vec<u8> {
    if fill == 0 {
        return vec![0; len];
    }
    let is_letters = fill % LETTERS_ONE_IN == 1 && fill < 1 << 63;
    let mut dice = crate::Rng::new(fill);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        let noise = dice.next_u64();
        let eight = if is_letters {
            noise & u64::from_ne_bytes([3; 8]) | u64::from_ne_bytes([b'`'; 8])
        } else {
            noise
        };
        bytes.extend_from_slice(&eight.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl Content {
    /// Calls `f` with each block's number, the part in it and the part's place in the range.
    fn pieces(offset: u64, len: u64, mut f: impl FnMut(u64, std::ops::Range<usize>, usize)) {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let start = (at % BLOCK_BYTES) as usize;
            let stop = (BLOCK_BYTES as usize).min(start + (end - at) as usize);
            f(at / BLOCK_BYTES, start..stop, (at - offset) as usize);
            at += (stop - start) as u64;
        }
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        Self::pieces(offset, data.len() as u64, |block, part, from| {
            let data = &data[from..from + part.len()];
            let block = self
                .blocks
                .entry(block)
                .or_insert_with(|| Arc::new([0; BLOCK_BYTES as usize]));
            Arc::make_mut(block)[part].copy_from_slice(data);
        });
        self.size_bytes = self.size_bytes.max(offset + data.len() as u64);
    }

    /// At most `len` bytes, fewer at the end.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let len = len.min(self.size_bytes.saturating_sub(offset));
        let mut out = vec![0; len as usize];
        Self::pieces(offset, len, |block, part, to| {
            if let Some(block) = self.blocks.get(&block) {
                out[to..to + part.len()].copy_from_slice(&block[part]);
            }
        });
        out
    }

    /// Zeros a range; what lies beyond the end stays out.
    pub fn zero(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.size_bytes);
        if offset >= end {
            return;
        }
        let (first, last) = (offset / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        let touched: Vec<u64> = self.blocks.range(first..=last).map(|(n, _)| *n).collect();
        for n in touched {
            let start = offset.max(n * BLOCK_BYTES) - n * BLOCK_BYTES;
            let stop = end.min((n + 1) * BLOCK_BYTES) - n * BLOCK_BYTES;
            if stop - start == BLOCK_BYTES {
                self.blocks.remove(&n);
            } else if let Some(block) = self.blocks.get_mut(&n) {
                Arc::make_mut(block)[start as usize..stop as usize].fill(0);
            }
        }
    }

    pub fn truncate(&mut self, size: u64) {
        if size < self.size_bytes {
            self.zero(size, self.size_bytes - size);
        }
        self.size_bytes = size;
    }

    /// One block, zero behind the end.
    pub(crate) fn block(&self, number: u64) -> Block {
        self.blocks.get(&number).map_or([0; BLOCK_BYTES as usize], |b| **b)
    }

    /// A range that begins at a block, as a content of its own: what is zero is left out.
    pub(crate) fn part(&self, range: std::ops::Range<u64>) -> Content {
        let first = range.start / BLOCK_BYTES;
        let mut part = Content {
            size_bytes: range.end - range.start,
            blocks: BTreeMap::new(),
        };
        if range.is_empty() {
            return part;
        }
        for (number, block) in self.blocks.range(first..=(range.end - 1) / BLOCK_BYTES) {
            let start = (number - first) * BLOCK_BYTES;
            let len = (part.size_bytes - start).min(BLOCK_BYTES) as usize;
            if block[..len].iter().any(|b| *b != 0) {
                let mut cut = block.clone();
                if len < BLOCK_BYTES as usize {
                    Arc::make_mut(&mut cut)[len..].fill(0);
                }
                part.blocks.insert(number - first, cut);
            }
        }
        part
    }

    /// Puts a part where a block begins, over what is there; the file is at least so long
    /// afterwards.
    pub(crate) fn put_part(&mut self, offset: u64, part: Content) {
        let end = offset + part.size_bytes;
        self.zero(offset, part.size_bytes);
        self.size_bytes = self.size_bytes.max(end);
        for (number, block) in &part.blocks {
            let start = number * BLOCK_BYTES;
            let len = (part.size_bytes - start).min(BLOCK_BYTES) as usize;
            self.write(offset + start, &block[..len]);
        }
    }

    /// Are all of these bytes zero?
    pub fn is_zero(&self, offset: u64, end: u64) -> bool {
        if offset >= end {
            return true;
        }
        self.blocks
            .range(offset / BLOCK_BYTES..=(end - 1) / BLOCK_BYTES)
            .all(|(n, block)| {
                let start = offset.max(n * BLOCK_BYTES) - n * BLOCK_BYTES;
                let stop = end.min((n + 1) * BLOCK_BYTES) - n * BLOCK_BYTES;
                block[start as usize..stop as usize].iter().all(|b| *b == 0)
            })
    }

    /// Offsets of the blocks that may hold something.
    pub fn block_offsets(&self) -> impl Iterator<Item = u64> {
        self.blocks.keys().map(|n| n * BLOCK_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_zeros_and_truncation_across_blocks() {
        let mut c = Content::default();
        c.write(4090, &[1; 12]);
        assert_eq!(c.size_bytes, 4102);
        assert_eq!(c.read(4089, 100), [&[0][..], &[1; 12]].concat());
        c.zero(4095, 2);
        assert_eq!(c.read(4094, 4), [1, 0, 0, 1]);
        assert!(c.is_zero(0, 4090) && !c.is_zero(0, 4091) && c.is_zero(4095, 4097));
        c.truncate(4092);
        c.truncate(8192);
        assert_eq!(c.read(4088, 8), [0, 0, 1, 1, 0, 0, 0, 0]);
        c.zero(0, u64::MAX);
        assert_eq!(c.block_offsets().count(), 0, "whole blocks go");
    }

    #[test]
    fn patterns_repeat() {
        assert_eq!(pattern(7, 20), pattern(7, 40)[..20]);
        assert_ne!(pattern(7, 20), pattern(8, 20));
        assert_eq!(pattern(0, 3), [0; 3]);
    }
}
