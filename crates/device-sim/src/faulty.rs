//! A device that fails, lies, or takes its time, at a chosen moment.
//!
//! The moments are counted by a [`FaultPlan`], which several devices may share: "the 17th write of
//! the volume" is then one moment, whichever device it hits. Vectored and batched I/O counts buffer
//! by buffer.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cowshed_device::{BlockDevice, Error, Op, Result};
use parking_lot::Mutex;

use crate::Rng;

/// Which operations a fault counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    Read,
    Write,
    Flush,
    Discard,
    /// Reads, writes and flushes.
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    Once,
    /// So many in a row: an outage that ends.
    Times(u64),
    Forever,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// EIO; nothing is read or written.
    Error,
    /// Of a write only the first bytes arrive. EIO if `reported`, otherwise it looks like a
    /// success.
    Torn { keep_bytes: usize, reported: bool },
    /// A write, or a flush, that claims success and does nothing.
    Lost,
    /// A write that claims success and lands elsewhere (as far to the front as it must to be within
    /// the device).
    Misdirected { to_offset_bytes: u64 },
    /// All is well, after a pause.
    Slow { pause: Duration },
    /// One bit of what is read is flipped; which one follows from the seed.
    Rotten { seed: u64 },
}

/// From the `nth` operation (counted from 0, since the fault was planned), do `kind`. Where the
/// kind does not apply to the operation (a flush cannot be rotten), the operation is left alone.
#[derive(Clone, Debug)]
pub struct Fault {
    pub on: On,
    pub nth: u64,
    pub repeat: Repeat,
    pub kind: FaultKind,
    /// Count and hit only I/O that touches these bytes. Flushes touch everything.
    pub within: Option<Range<u64>>,
}

impl Fault {
    /// EIO, once.
    pub fn error(on: On, nth: u64) -> Fault {
        Fault {
            on,
            nth,
            repeat: Repeat::Once,
            kind: FaultKind::Error,
            within: None,
        }
    }

    pub fn with_kind(mut self, kind: FaultKind) -> Fault {
        self.kind = kind;
        self
    }

    pub fn forever(mut self) -> Fault {
        self.repeat = Repeat::Forever;
        self
    }

    pub fn times(mut self, count: u64) -> Fault {
        self.repeat = Repeat::Times(count);
        self
    }

    pub fn within(mut self, range: Range<u64>) -> Fault {
        self.within = Some(range);
        self
    }

    fn counts(&self, op: Op, offset_bytes: u64, len_bytes: u64) -> bool {
        let kind_matches = match (self.on, op) {
            (On::Any, Op::Read | Op::Write | Op::Flush)
            | (On::Read, Op::Read)
            | (On::Write, Op::Write)
            | (On::Flush, Op::Flush)
            | (On::Discard, Op::Discard) => true,
            (On::Any | On::Read | On::Write | On::Flush | On::Discard, _) => false,
        };
        kind_matches
            && self.within.as_ref().is_none_or(|range| {
                op == Op::Flush || (offset_bytes < range.end && offset_bytes + len_bytes > range.start)
            })
    }
}

/// How much was done, to know how many moments there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub discards: u64,
    /// How many operations a fault has hit.
    pub faults: u64,
}

impl Counts {
    /// What [`On::Any`] counts.
    pub fn any(&self) -> u64 {
        self.reads + self.writes + self.flushes
    }
}

#[derive(Debug, Default)]
struct Inner {
    faults: Vec<(Fault, u64)>, // each with the operations that it has counted
    counts: Counts,
    /// Where writes failed.
    refused: Vec<Range<u64>>,
    /// See [`FaultPlan::aside`].
    is_aside: bool,
}

/// What goes wrong when. Clones are the same plan.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Arc<Mutex<Inner>>);

impl FaultPlan {
    pub fn new() -> FaultPlan {
        FaultPlan::default()
    }

    /// Adds a fault; its counting begins now. The first of several that hit the same operation is
    /// the one done.
    pub fn add(&self, fault: Fault) {
        self.0.lock().faults.push((fault, 0));
    }

    /// From now on all goes well.
    pub fn clear(&self) {
        self.0.lock().faults.clear();
    }

    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Where a write failed and said so, on some device: what lies there is older, or torn.
    pub fn refused(&self) -> Vec<Range<u64>> {
        self.0.lock().refused.clone()
    }

    /// Does something whose operations are neither counted nor hit: a look from outside.
    pub fn aside<T>(&self, look: impl FnOnce() -> T) -> T {
        self.0.lock().is_aside = true;
        let seen = look();
        self.0.lock().is_aside = false;
        seen
    }

    /// Counts the operation and says what is to happen to it.
    fn next(&self, op: Op, offset_bytes: u64, len_bytes: u64) -> Option<FaultKind> {
        let mut inner = self.0.lock();
        if inner.is_aside {
            return None;
        }
        match op {
            Op::Read => inner.counts.reads += 1,
            Op::Write => inner.counts.writes += 1,
            Op::Flush => inner.counts.flushes += 1,
            Op::Discard => inner.counts.discards += 1,
            Op::Open => {}
        }
        let mut hit = None;
        for (fault, counted) in &mut inner.faults {
            if !fault.counts(op, offset_bytes, len_bytes) {
                continue;
            }
            let due = match fault.repeat {
                Repeat::Once => *counted == fault.nth,
                Repeat::Times(count) => (fault.nth..fault.nth.saturating_add(count)).contains(counted),
                Repeat::Forever => *counted >= fault.nth,
            };
            *counted += 1;
            if due && hit.is_none() {
                hit = Some(fault.kind.clone());
            }
        }
        inner.counts.faults += u64::from(hit.is_some());
        if op == Op::Write && matches!(hit, Some(FaultKind::Error | FaultKind::Torn { reported: true, .. })) {
            inner.refused.push(offset_bytes..offset_bytes + len_bytes);
        }
        drop(inner);
        if let Some(FaultKind::Slow { pause }) = hit {
            std::thread::sleep(pause);
        }
        hit
    }
}

/// Passes everything on, except what its plan says.
#[derive(Debug)]
pub struct FaultyDevice {
    below: Arc<dyn BlockDevice>,
    plan: FaultPlan,
}

impl FaultyDevice {
    pub fn new(below: Arc<dyn BlockDevice>, plan: FaultPlan) -> FaultyDevice {
        FaultyDevice { below, plan }
    }

    fn eio(&self, op: Op, offset_bytes: u64) -> Error {
        Error::io(self.name(), op, offset_bytes, io::Error::from_raw_os_error(libc::EIO))
    }
}

impl BlockDevice for FaultyDevice {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn sector_size_bytes(&self) -> u32 {
        self.below.sector_size_bytes()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<()> {
        let fault = self.plan.next(Op::Read, offset_bytes, buf.len() as u64);
        if fault == Some(FaultKind::Error) {
            return Err(self.eio(Op::Read, offset_bytes));
        }
        self.below.read_at(offset_bytes, buf)?;
        if let Some(FaultKind::Rotten { seed }) = fault
            && !buf.is_empty()
        {
            let bit = Rng::new(seed ^ offset_bytes).index(buf.len() * 8);
            buf[bit / 8] ^= 1 << (bit % 8);
        }
        Ok(())
    }

    fn write_at(&self, offset_bytes: u64, buf: &[u8]) -> Result<()> {
        match self.plan.next(Op::Write, offset_bytes, buf.len() as u64) {
            Some(FaultKind::Error) => Err(self.eio(Op::Write, offset_bytes)),
            Some(FaultKind::Torn { keep_bytes, reported }) => {
                self.below.write_at(offset_bytes, &buf[..keep_bytes.min(buf.len())])?;
                if reported {
                    Err(self.eio(Op::Write, offset_bytes))
                } else {
                    Ok(())
                }
            }
            Some(FaultKind::Lost) => Ok(()),
            Some(FaultKind::Misdirected { to_offset_bytes }) => {
                let last = self.size_bytes().saturating_sub(buf.len() as u64);
                self.below.write_at(to_offset_bytes.min(last), buf)
            }
            Some(FaultKind::Rotten { .. } | FaultKind::Slow { .. }) | None => self.below.write_at(offset_bytes, buf),
        }
    }

    fn flush(&self) -> Result<()> {
        match self.plan.next(Op::Flush, 0, 0) {
            Some(FaultKind::Error) => Err(self.eio(Op::Flush, 0)),
            Some(FaultKind::Lost) => Ok(()),
            Some(
                FaultKind::Torn { .. }
                | FaultKind::Misdirected { .. }
                | FaultKind::Rotten { .. }
                | FaultKind::Slow { .. },
            )
            | None => self.below.flush(),
        }
    }

    fn discard_granularity_bytes(&self) -> Option<u64> {
        self.below.discard_granularity_bytes()
    }

    fn discard(&self, offset_bytes: u64, len_bytes: u64) -> Result<()> {
        match self.plan.next(Op::Discard, offset_bytes, len_bytes) {
            Some(FaultKind::Error) => Err(self.eio(Op::Discard, offset_bytes)),
            Some(FaultKind::Lost) => Ok(()),
            Some(
                FaultKind::Torn { .. }
                | FaultKind::Misdirected { .. }
                | FaultKind::Rotten { .. }
                | FaultKind::Slow { .. },
            )
            | None => self.below.discard(offset_bytes, len_bytes),
        }
    }
}
