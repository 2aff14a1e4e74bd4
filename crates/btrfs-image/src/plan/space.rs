//! Which bytes of the chunks are taken: by tree blocks and by data.

use std::collections::BTreeMap;
use std::ops::Range;

use btrfs_format::LogicalAddr;

use super::chunks::{ChunkKind, PlannedChunk};

/// Addresses handed out within a volume's chunks, each chunk from its start, around the copies of
/// the superblock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Start and length of what is taken.
    taken: BTreeMap<u64, u64>,
    /// The first address of a chunk that was never handed out, by the chunk's address.
    cursors: BTreeMap<u64, u64>,
}

impl Space {
    /// Takes `len_bytes`, aligned to `align_bytes`, in the first chunk that has room for them and
    /// that `holds`.
    pub fn take(
        &mut self,
        chunks: &[PlannedChunk],
        holds: impl Fn(ChunkKind) -> bool,
        len_bytes: u64,
        align_bytes: u64,
    ) -> Option<LogicalAddr> {
        for chunk in chunks.iter().filter(|chunk| holds(chunk.kind)) {
            let cursor = self.cursors.entry(chunk.logical.0).or_insert(chunk.logical.0);
            let mut start = cursor.next_multiple_of(align_bytes);
            for excluded in chunk.superblock_ranges() {
                if start < excluded.end && excluded.start < start + len_bytes {
                    start = excluded.end.next_multiple_of(align_bytes);
                }
            }
            if start + len_bytes <= chunk.range().end {
                *cursor = start + len_bytes;
                self.taken.insert(start, len_bytes);
                return Some(LogicalAddr(start));
            }
        }
        None
    }

    /// Notes that a range is taken which a caller chose itself. Ranges come in ascending order
    /// within a chunk; neighbours become one.
    pub(crate) fn note(&mut self, chunk: &PlannedChunk, start: u64, len_bytes: u64) {
        self.cursors.insert(chunk.logical.0, start + len_bytes);
        if let Some((&last, len)) = self.taken.range_mut(chunk.logical.0..start).next_back()
            && last + *len == start
        {
            *len += len_bytes;
            return;
        }
        self.taken.insert(start, len_bytes);
    }

    /// The first address of a chunk behind all that is taken.
    pub(crate) fn end(&self, chunk: &PlannedChunk) -> u64 {
        let last = self.taken.range(chunk.range()).next_back();
        last.map_or(chunk.logical.0, |(start, len)| start + len)
    }

    /// Bytes taken of a chunk.
    pub fn used_bytes(&self, chunk: &PlannedChunk) -> u64 {
        self.taken.range(chunk.range()).map(|(_, len)| len).sum()
    }

    /// What of a chunk is free, as the free-space tree states it: places of superblock copies count
    /// as free there.
    pub fn free_ranges(&self, chunk: &PlannedChunk) -> Vec<Range<u64>> {
        let mut free = Vec::new();
        let mut at = chunk.logical.0;
        let end = chunk.range().end;
        for (&start, &len) in self.taken.range(chunk.range()) {
            if at < start {
                free.push(at..start);
            }
            at = start + len;
        }
        if at < end {
            free.push(at..end);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::super::chunks::PlannedStripe;
    use super::*;
    use crate::Profile;

    const MIB: u64 = 1 << 20;

    fn chunk(logical: u64, on_device: u64) -> PlannedChunk {
        PlannedChunk {
            logical: LogicalAddr(logical),
            length_bytes: 8 * MIB,
            kind: ChunkKind::Metadata,
            profile: Profile::Single,
            stripe_bytes: 8 * MIB,
            stripes: vec![PlannedStripe {
                device: 0,
                offset_bytes: on_device,
            }],
        }
    }

    #[test]
    fn allocation_leaves_superblock_copies_out() {
        // The copy at 64 MiB is the head of the chunk: its first 64 KiB stay free.
        let chunks = [chunk(5 * MIB, 64 * MIB)];
        let mut space = Space::default();
        let first = space.take(&chunks, ChunkKind::holds_metadata, 16384, 16384);
        assert_eq!(first, Some(LogicalAddr(5 * MIB + 65536)));
        assert_eq!(space.used_bytes(&chunks[0]), 16384);
        assert_eq!(
            space.free_ranges(&chunks[0]),
            [5 * MIB..5 * MIB + 65536, 5 * MIB + 81920..13 * MIB]
        );
    }

    #[test]
    fn full_chunk_is_skipped() {
        let chunks = [chunk(5 * MIB, 5 * MIB), chunk(13 * MIB, 13 * MIB)];
        let mut space = Space::default();
        for _ in 0..128 {
            space.take(&chunks, ChunkKind::holds_metadata, 65536, 65536).unwrap();
        }
        assert!(space.free_ranges(&chunks[0]).is_empty());
        let next = space.take(&chunks, ChunkKind::holds_metadata, 65536, 65536);
        assert_eq!(next, Some(LogicalAddr(13 * MIB)));
        assert_eq!(space.take(&chunks, ChunkKind::holds_data, 4096, 4096), None);
    }
}
