//! Runs that discard: with which option they are mounted, and trims between the operations or
//! beside them.
//!
//! What a crash image has in place of discarded bytes is garbage ([`cowshed_device_sim::crash`]),
//! so that whatever is discarded and still led to shows.

use std::time::Duration;

use anyhow::{Result, anyhow};
use cowshed_btrfs::DiscardMode;
use cowshed_btrfs::discard::Pace;
use cowshed_btrfs::fs::Fs;
use cowshed_device_sim::{Event, Rng};
use cowshed_harness::threads;

use crate::threads::Threads;

/// What discards in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discards {
    pub mode: DiscardMode,
    /// All that is free is trimmed now and then.
    pub trims: bool,
}

impl Discards {
    pub const NONE: Discards = Discards {
        mode: DiscardMode::Off,
        trims: false,
    };
}

/// The others do not discard.
const RUNS_ONE_IN: u64 = 3;
/// A trim follows one of so many operations.
const TRIM_ONE_IN: u64 = 6;
/// Between trims beside the operations.
const REST: Duration = Duration::from_millis(2);

/// Dice of their own: what else follows from the seed does not depend on them.
fn dice(seed: u64) -> Rng {
    const KIND: u64 = 0x6469_7363_6172_6473;
    Rng::new(seed ^ KIND)
}

fn one_of(rng: &mut Rng, threads: Threads) -> Discards {
    let mode = match rng.below(4) {
        0 => DiscardMode::Off,
        // A thread of its own would make the run depend on more than its seed.
        1 if threads != Threads::One => DiscardMode::Async,
        _ => DiscardMode::Sync,
    };
    let trims = mode == DiscardMode::Off || rng.one_in(2);
    Discards { mode, trims }
}

/// What the runs of a seed discard; most do not.
pub fn drawn(seed: u64, threads: Threads) -> Discards {
    let mut rng = dice(seed);
    match rng.one_in(RUNS_ONE_IN) {
        true => one_of(&mut rng, threads),
        false => Discards::NONE,
    }
}

/// The same where all runs discard.
pub fn always(seed: u64, threads: Threads) -> Discards {
    one_of(&mut dice(seed), threads)
}

/// As soon as something is freed, and all of it.
pub(crate) fn hasten(fs: &Fs) {
    fs.mount().set_discard_pace(Pace {
        delay: Duration::ZERO,
        bytes_min: 0,
        batch_ranges: 16,
        pause: Duration::from_millis(1),
    });
}

/// Trims without the commit that fstrim begins with: what is pending and what only a log knows
/// stays so.
pub(crate) fn trim(fs: &Fs) -> Result<()> {
    let trimmed = cowshed_btrfs::discard::trim_free(fs.mount().store(), 0..u64::MAX, 0);
    trimmed.map(drop).map_err(|e| anyhow!("a trim: {e}"))
}

/// When one thread trims between its operations.
pub(crate) struct Trims {
    rng: Rng,
    is_on: bool,
}

impl Trims {
    pub fn new(seed: u64, discards: Discards) -> Trims {
        let mut rng = dice(seed);
        rng.next_u64();
        Trims {
            rng,
            is_on: discards.trims,
        }
    }
    pub fn after_op(&mut self, fs: &Fs) -> Result<()> {
        match self.is_on && self.rng.one_in(TRIM_ONE_IN) {
            true => trim(fs),
            false => Ok(()),
        }
    }
}

/// Does something while another thread trims.
pub(crate) fn beside<T>(fs: &Fs, discards: Discards, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if !discards.trims {
        return work();
    }
    let trimmer = || {
        trim(fs)?;
        std::thread::sleep(REST);
        anyhow::Ok(())
    };
    threads::beside(trimmer, work)
}

/// How many discards were recorded.
pub(crate) fn count(events: &[Event]) -> u64 {
    events.iter().filter(|e| matches!(e, Event::Discard { .. })).count() as u64
}
