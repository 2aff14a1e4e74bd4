//! Head and tail.
//!
//! Every block begins with the cycle it was written in, so the head is where the cycle changes.
//! Writes of records overtake each other: up to eight of 256 KiB may be in flight, so holes are
//! looked for 2 MiB behind the head, and the last eight records are verified.

use xfs_format::Lsn;
use xfs_format::log::{LOG_BLOCK_BYTES, LOG_MAGIC, Record, RecordHeader, next_cycle, op_flags, operations};

use super::ring::{Ring, cycle_of, word};
use super::walk::{RECORD_BLOCKS_MAX, header_at, len_blocks, record_at};
use crate::error::{Error, LogFault, Result};

/// Records that a writer has in flight at most.
const IN_FLIGHT_MAX: u32 = 8;
/// Blocks in which a hole may lie: bodies in flight.
const HOLE_BLOCKS_MAX: u32 = (2 << 20) / LOG_BLOCK_BYTES as u32;

/// Where the live part of the log begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The oldest record that recovery needs.
    pub tail: Lsn,
    /// Where the next record goes.
    pub head: Lsn,
}

impl Ends {
    /// True where nothing has to be recovered.
    pub(crate) fn is_clean(&self) -> bool {
        self.tail == self.head
    }
}

/// Finds head and tail. Errors: no whole record, a record of another volume, and a tail that cannot
/// be.
pub(crate) fn find(ring: &Ring<'_>) -> Result<Ends> {
    let Some(written) = written_end(ring)? else {
        // Never written: nothing to recover.
        let start = Lsn::new(1, 0);
        return Ok(Ends {
            tail: start,
            head: start,
        });
    };
    let candidates = headers_before(ring, written)?;
    let mut whole = whole_records(ring, written, &candidates)?;
    drop_torn(ring, &mut whole);
    let Some(last) = whole.first() else {
        return Err(Error::Log {
            block: written % ring.blocks(),
            fault: LogFault::NoRecord,
        });
    };
    let head = end_of(ring, last);
    if says_unmounted(&record_at(ring, last.at, &last.header)?) {
        return Ok(Ends { tail: head, head });
    }
    let tail = tail_of(ring, last, head, written)?;
    Ok(Ends { tail, head })
}

/// A record and its place.
struct Found {
    at: u32,
    header: RecordHeader,
}

/// The first block that is older than what lies before it. `None` where nothing was ever written.
fn written_end(ring: &Ring<'_>) -> Result<Option<u32>> {
    let blocks = ring.blocks();
    let (first, last) = (ring.cycle(0)?, ring.cycle(blocks - 1)?);
    if first == 0 {
        return Ok(None);
    }
    let (mut end, older) = if first == last {
        (blocks, last.wrapping_sub(1))
    } else {
        (first_of_cycle(ring, last)?, last)
    };
    // Blocks that were not written before later ones were.
    let window = HOLE_BLOCKS_MAX.min(blocks);
    if end >= window {
        if let Some(hole) = first_with_cycle(ring, end - window, window, older)? {
            end = hole;
        }
        return Ok(Some(end));
    }
    let before = window - end;
    if let Some(oldest) = older.checked_sub(1).filter(|_| older > 1)
        && let Some(hole) = first_with_cycle(ring, blocks - before, before, oldest)?
    {
        return Ok(Some(hole));
    }
    Ok(Some(first_with_cycle(ring, 0, end, older)?.unwrap_or(end)))
}

/// The first block of the cycle with which the log ends; the first block has another one.
fn first_of_cycle(ring: &Ring<'_>, cycle: u32) -> Result<u32> {
    let (mut low, mut high) = (0, ring.blocks() - 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if ring.cycle(middle)? == cycle {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(high)
}

fn first_with_cycle(ring: &Ring<'_>, from: u32, count: u32, cycle: u32) -> Result<Option<u32>> {
    if count == 0 {
        return Ok(None);
    }
    let bytes = ring.read(from, count)?;
    let mut blocks = bytes.chunks_exact(LOG_BLOCK_BYTES);
    let at = blocks.position(|block| cycle_of(block) == cycle);
    Ok(at.map(|at| from + at as u32))
}

/// Places of record headers before a block, the nearest one first: those of records that may have
/// been in flight, and some more.
fn headers_before(ring: &Ring<'_>, end: u32) -> Result<Vec<u32>> {
    let window = (RECORD_BLOCKS_MAX * (IN_FLIGHT_MAX + 2)).min(ring.blocks());
    let from = ring.before(end, window);
    let bytes = ring.read(from, window)?;
    let blocks = bytes.chunks_exact(LOG_BLOCK_BYTES).enumerate();
    let headers = blocks.filter(|(_, block)| word(block, 0) == LOG_MAGIC);
    let mut found: Vec<u32> = headers.map(|(at, _)| ring.behind(from, at as u32)).collect();
    found.reverse();
    Ok(found)
}

/// Records before a block that each end where the next one begins, the newest one first. Those at
/// the end that do not are left out: their writing was interrupted.
fn whole_records(ring: &Ring<'_>, end: u32, candidates: &[u32]) -> Result<Vec<Found>> {
    let mut whole: Vec<Found> = Vec::new();
    let mut end = end % ring.blocks();
    for at in candidates.iter().copied() {
        let header = match header_at(ring, at) {
            Ok(header) => Some(header),
            Err(Error::Log {
                fault: LogFault::Mismatch { field, .. },
                ..
            }) if field != "h_fs_uuid" => None,
            Err(Error::Log {
                fault: LogFault::Corrupt(_),
                ..
            }) => None,
            Err(error) => return Err(error),
        };
        // A log that one record fills ends where it begins.
        let room = match ring.distance(at, end) {
            0 => ring.blocks(),
            room => room,
        };
        match header.filter(|header| len_blocks(header) == room) {
            Some(header) => whole.push(Found { at, header }),
            None if whole.is_empty() => {}
            None => break,
        }
        end = at;
        if whole.len() > IN_FLIGHT_MAX as usize {
            break;
        }
    }
    Ok(whole)
}

/// Leaves out the oldest torn record of those that may have been in flight, and all behind it.
fn drop_torn(ring: &Ring<'_>, whole: &mut Vec<Found>) {
    // What a damaged header states as the tail does not say which records count.
    let is_damaged = |found: &Found| {
        found.header.tail_lsn() > found.header.lsn() && record_at(ring, found.at, &found.header).is_err()
    };
    let damaged = whole.iter().take_while(|found| is_damaged(found)).count();
    whole.drain(..damaged);
    let tail = whole.first().map_or(Lsn::NULL, |found| found.header.tail_lsn());
    let is_torn = |found: &Found| found.header.lsn() >= tail && record_at(ring, found.at, &found.header).is_err();
    let in_flight = whole.get(..whole.len().min(IN_FLIGHT_MAX as usize)).unwrap_or_default();
    let mut in_flight = in_flight.iter();
    if let Some(oldest) = in_flight.rposition(is_torn) {
        whole.drain(..=oldest);
    }
}

fn end_of(ring: &Ring<'_>, found: &Found) -> Lsn {
    let cycle = found.header.cycle.get();
    let end = u64::from(found.at) + u64::from(len_blocks(&found.header));
    if end >= u64::from(ring.blocks()) {
        Lsn::new(next_cycle(cycle), ring.behind(found.at, len_blocks(&found.header)))
    } else {
        Lsn::new(cycle, end as u32)
    }
}

fn says_unmounted(record: &Record) -> bool {
    let mut found = operations(&record.body, record.header.num_logops.get());
    record.header.num_logops.get() == 1
        && found
            .next()
            .is_some_and(|op| op.is_ok_and(|op| op.header.flags & op_flags::UNMOUNT != 0))
}

/// The tail that the last record states. Where torn records had already overwritten it, the first
/// whole one behind it: what they overwrote was home.
fn tail_of(ring: &Ring<'_>, last: &Found, head: Lsn, written: u32) -> Result<Lsn> {
    let tail = last.header.tail_lsn();
    let is_within = tail.block() < ring.blocks()
        && tail <= last.header.lsn()
        && (tail.cycle() == head.cycle() || (next_cycle(tail.cycle()) == head.cycle() && tail.block() >= head.block()));
    if !is_within {
        let expected = format_args!("a record between {head} of the cycle before and {}", last.header.lsn());
        return Err(ring.mismatch(last.at, "h_tail_lsn", tail, expected));
    }
    let torn = ring.distance(head.block(), written);
    let mut at = tail.block();
    loop {
        let found = header_at(ring, at).and_then(|header| record_at(ring, at, &header).map(|_| header));
        let error = match found {
            Ok(header) => return Ok(header.lsn()),
            Err(error) => error,
        };
        if torn == 0 || ring.distance(head.block(), at) >= torn {
            return Err(error);
        }
        // Forward to the next header; the last record is one, so this ends.
        let left = ring.distance(at, last.at).min(RECORD_BLOCKS_MAX * 2);
        let bytes = ring.read(ring.behind(at, 1), left)?;
        let mut blocks = bytes.chunks_exact(LOG_BLOCK_BYTES);
        match blocks.position(|block| word(block, 0) == LOG_MAGIC) {
            Some(steps) if left > 0 => at = ring.behind(at, steps as u32 + 1),
            _ => return Err(error),
        }
    }
}
