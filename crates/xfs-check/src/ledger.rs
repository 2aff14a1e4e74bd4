//! Where claims, records of the rmapbt and of the refcountbt, and entries wait until they are
//! compared.
//!
//! Groups are cut into slices. Claims and records that reach over the end of a slice are cut there,
//! all in the same places, so that each slice can be judged alone: that bounds memory where groups
//! have many extents.

use std::sync::{Mutex, PoisonError};

use xfs_format::{AgNumber, Geometry};

use crate::claims::Claim;
use crate::entry::Entry;
use crate::finding::{FindingId, Sink, Site};
use crate::pile::{Pile, Spill};
use crate::volume::index;

/// Bytes in memory for each block of a slice, where each block is an extent of its own: two lists,
/// and the room that sorting and growing take.
const BYTES_PER_BLOCK: usize = 128;
const SLICE_BLOCKS_MIN: u32 = 1 << 10;
/// Small enough that the threads share the work on a large group.
const SLICE_BLOCKS_MAX: u32 = 1 << 18;
/// What is gathered before it is sorted into slices.
const GATHERED: usize = 1 << 14;

/// What a slice has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Which {
    Claims,
    /// Records of the rmapbt.
    Rmaps,
    /// Records of the refcountbt: their count is in the place of the offset.
    Refcounts,
}

#[derive(Default)]
struct Slice {
    claims: Pile<Claim>,
    rmaps: Pile<Claim>,
    refcounts: Pile<Claim>,
}

impl Slice {
    fn pile(&mut self, which: Which) -> &mut Pile<Claim> {
        match which {
            Which::Claims => &mut self.claims,
            Which::Rmaps => &mut self.rmaps,
            Which::Refcounts => &mut self.refcounts,
        }
    }
}

/// All slices of a volume, and the entries by the group of their directory.
///
/// Locks: one for each slice and each list of entries, held while something is added or taken; in
/// it, that of the temporary file.
pub(crate) struct Ledger {
    spill: Spill,
    slice_blocks: u32,
    per_group: usize,
    slices: Vec<Mutex<Slice>>,
    entries: Vec<Mutex<Pile<Entry>>>,
}

impl Ledger {
    pub(crate) fn new(geometry: &Geometry, memory_bytes: usize) -> Self {
        let fits = u32::try_from(memory_bytes / BYTES_PER_BLOCK).unwrap_or(u32::MAX);
        let slice_blocks = fits.clamp(SLICE_BLOCKS_MIN, SLICE_BLOCKS_MAX);
        let per_group = index(geometry.ag_blocks.div_ceil(slice_blocks).max(1));
        let groups = index(geometry.ag_count);
        Self {
            spill: Spill::new(memory_bytes),
            slice_blocks,
            per_group,
            slices: (0..groups.saturating_mul(per_group))
                .map(|_| Mutex::default())
                .collect(),
            entries: (0..groups).map(|_| Mutex::default()).collect(),
        }
    }

    /// The slice of a block, as an index; and one behind its last block in the group.
    fn slice_of(&self, group: AgNumber, start: u32) -> (usize, u32) {
        let within = start.checked_div(self.slice_blocks).unwrap_or_default();
        let first = index(group.get()).saturating_mul(self.per_group);
        let last = self.per_group.saturating_sub(1);
        // What lies behind the end of the group belongs to the last slice.
        let end = if index(within) < last {
            within.saturating_add(1).saturating_mul(self.slice_blocks)
        } else {
            u32::MAX
        };
        (first.saturating_add(index(within).min(last)), end)
    }

    /// The slices of a group: first block, and one behind the last one.
    pub(crate) fn ranges(&self, blocks: u32) -> impl Iterator<Item = (u32, u32)> + use<> {
        let step = self.slice_blocks;
        let starts = (0..blocks).step_by(index(step));
        starts.map(move |start| (start, start.saturating_add(step).min(blocks)))
    }

    /// Takes what a slice has. What cannot be read back from the temporary file is a finding.
    pub(crate) fn take(&self, sink: &mut Sink, group: AgNumber, start: u32, which: Which) -> Option<Vec<Claim>> {
        let slice = self.slices.get(self.slice_of(group, start).0)?;
        let mut slice = slice.lock().unwrap_or_else(PoisonError::into_inner);
        match slice.pile(which).take(&self.spill) {
            Ok(claims) => Some(claims),
            Err(error) => {
                lost(sink, &error);
                None
            }
        }
    }

    pub(crate) fn add_entries(&self, group: AgNumber, entries: &mut Vec<Entry>) {
        if let Some(pile) = self.entries.get(index(group.get())) {
            let mut pile = pile.lock().unwrap_or_else(PoisonError::into_inner);
            pile.extend(&self.spill, entries);
        }
        entries.clear();
    }

    /// Visits all entries, those of each directory in order.
    pub(crate) fn entries(&self, sink: &mut Sink, visit: &mut dyn FnMut(&mut Sink, &Entry)) {
        for pile in &self.entries {
            let pile = pile.lock().unwrap_or_else(PoisonError::into_inner);
            let read = pile.each(&self.spill, &mut |piece| {
                piece.iter().for_each(|entry| visit(sink, entry))
            });
            if let Err(error) = read {
                lost(sink, &error);
            }
        }
    }
}

fn lost(sink: &mut Sink, error: &std::io::Error) {
    let message = format!("the temporary file of the check cannot be read: {error}");
    sink.broken(FindingId::Incomplete, Site::default(), message);
}

/// Gathers claims, and gives them to the ledger now and then, at the latest when it goes.
pub(crate) struct Gather<'a> {
    ledger: &'a Ledger,
    which: Which,
    claims: Vec<(usize, Claim)>,
}

impl<'a> Gather<'a> {
    pub(crate) fn new(ledger: &'a Ledger, which: Which) -> Self {
        Self {
            ledger,
            which,
            claims: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, group: AgNumber, claim: Claim) {
        let mut rest = Some(claim);
        while let Some(claim) = rest {
            let (slice, end) = self.ledger.slice_of(group, claim.start);
            let (head, behind) = claim.split(end, self.which != Which::Refcounts);
            self.claims.push((slice, head));
            rest = behind;
        }
        if self.claims.len() >= GATHERED {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.claims.sort_by_key(|(slice, _)| *slice);
        let mut piece = Vec::new();
        for part in self.claims.chunk_by(|(one, _), (other, _)| one == other) {
            piece.clear();
            piece.extend(part.iter().map(|(_, claim)| *claim));
            let slice = part.first().and_then(|(slice, _)| self.ledger.slices.get(*slice));
            if let Some(slice) = slice {
                let mut slice = slice.lock().unwrap_or_else(PoisonError::into_inner);
                slice.pile(self.which).extend(&self.ledger.spill, &piece);
            }
        }
        self.claims.clear();
    }
}

impl Drop for Gather<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}
