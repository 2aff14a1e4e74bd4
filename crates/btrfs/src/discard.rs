//! When freed space is discarded: with the commit, in the background, or when asked to (fstrim).
//! What may be discarded is decided in `space::discard`. docs/design/discard.md.
//!
//! A discard that fails does no harm: the space stays as it was. It is logged, and only fstrim
//! reports it.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use btrfs_store::Store;
use btrfs_store::space::Freed;
use cowshed_runtime::{Env, Inbox, Service, Wake};
use cowshed_vfs::{Error as Errno, TrimRange};

use crate::error::{Error, Result, StoreError};
use crate::files::DiscardMode;

/// How long an unmount goes on discarding what the last commits have freed.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Ranges that are taken at once where no pace is kept.
const BATCH_RANGES: usize = 64;

/// How fast the thread works.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// After a commit has freed something: what is written again soon need not be discarded, and
    /// neighbours come together.
    pub delay: Duration,
    /// Shorter ranges wait for their neighbours, until the unmount.
    pub bytes_min: u64,
    /// Ranges that are looked for at once, at most.
    pub batch_ranges: usize,
    /// After each range.
    pub pause: Duration,
}

impl Default for Pace {
    /// 1000 ranges a second, one by one: discards one after the other would hold up fsyncs for
    /// milliseconds, since both need the lock of the image's inode.
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(10),
            bytes_min: 32 << 10,
            batch_ranges: 100,
            pause: Duration::from_millis(1),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    pace: Pace,
    /// When to discard what was freed since the last batches, by [`Env::monotonic`].
    due: Option<Duration>,
}

/// What becomes of freed space, and the thread of [`DiscardMode::Async`].
#[derive(Debug)]
pub(crate) struct Discarder {
    mode: DiscardMode,
    thread: Service<State>,
}

impl Discarder {
    /// A thread that is not started yet.
    pub(crate) fn new(mode: DiscardMode, env: Arc<dyn Env>) -> Self {
        Self {
            mode,
            thread: Service::new("cowshed-discard", env, State::default()),
        }
    }

    /// Something was freed.
    fn wake(&self) {
        self.thread.change_if(|state| {
            let is_first = state.due.is_none();
            if is_first {
                state.due = Some(self.thread.env().monotonic().saturating_add(state.pace.delay));
            }
            is_first
        });
    }

    /// Begins to collect what is freed, where the mode asks for it and a device can discard.
    pub(crate) fn start(&self, store: &Arc<Store>) {
        if self.mode == DiscardMode::Off || store.volume().discard_granularity_bytes().is_none() {
            return;
        }
        store.space().collect_freed(true);
        if self.mode != DiscardMode::Async {
            return;
        }
        let weak = Arc::downgrade(store);
        if let Err(error) = self.thread.start(move |inbox| run(inbox, &weak)) {
            tracing::warn!("freed space is discarded at the unmount only: {error}");
        }
    }

    /// Sets the pace of the thread.
    pub(crate) fn set_pace(&self, pace: Pace) {
        self.thread.change(|state| state.pace = pace);
    }

    /// A commit is durable: what it freed may be discarded.
    pub(crate) fn after_commit(&self, store: &Store) {
        match self.mode {
            DiscardMode::Off => {}
            DiscardMode::Sync => while batch(store, BATCH_RANGES, 0) > 0 {},
            DiscardMode::Async => self.wake(),
        }
    }

    /// Ends the thread and waits for it.
    pub(crate) fn stop(&self) {
        self.thread.stop();
    }
}

fn run(inbox: &Inbox<State>, store: &Weak<Store>) {
    // A deadline that is set stays as it is until it is reached.
    while let Wake::Ready(due) = inbox.wait(None, |state| state.due) {
        if !inbox.sleep_until(due) {
            return;
        }
        // Before the work: what is freed meanwhile sets the next deadline.
        let pace = inbox.with(|state| {
            state.due = None;
            state.pace
        });
        loop {
            let take = |store: Arc<Store>| take(&store, pace.batch_ranges, pace.bytes_min);
            let Some(freed) = store.upgrade().map(take) else { return };
            if freed.is_empty() {
                break;
            }
            // What was taken is discarded even where the thread is to end.
            let mut goes_on = true;
            for range in &freed {
                let Some(store) = store.upgrade() else { return };
                discard(&store, range);
                drop(store);
                goes_on = goes_on && inbox.sleep_until(inbox.monotonic().saturating_add(pace.pause));
            }
            if !goes_on {
                return;
            }
        }
    }
}

/// Some of what was freed: nothing else discards it now.
fn take(store: &Store, count: usize, bytes_min: u64) -> Vec<Freed> {
    match store.txn().is_aborted() {
        true => Vec::new(),
        false => store.space().take_freed(count, bytes_min),
    }
}

/// Discards what is still free of a range.
fn discard(store: &Store, range: &Freed) {
    if store.txn().is_aborted() {
        return;
    }
    if let Err(error) = store.space().discard_freed(range) {
        tracing::warn!(?range, %error, "not discarded");
    }
}

/// Discards some of what was freed; returns how many ranges that were.
fn batch(store: &Store, count: usize, bytes_min: u64) -> usize {
    let freed = take(store, count, bytes_min);
    freed.iter().for_each(|range| discard(store, range));
    freed.len()
}

/// After the last commit: discards what is not discarded yet, for a limited time.
pub(crate) fn drain(store: &Store) {
    let until = store.env().monotonic() + DRAIN_TIME;
    while store.env().monotonic() < until && batch(store, BATCH_RANGES, 0) > 0 {}
}

/// See `Mount::trim`.
pub(crate) fn trim(store: &Store, range: TrimRange) -> Result<u64> {
    store.txn().check_writable()?;
    if store.volume().is_read_only() {
        return Err(Error::Store(StoreError::ReadOnly));
    }
    let granularity = store.volume().discard_granularity_bytes().ok_or(Errno::NotSupported)?;
    if range.len_bytes < u64::from(store.volume().sectorsize_bytes()) {
        return Err(Errno::Invalid.into());
    }
    store.commit()?;
    let within = range.start..range.start.saturating_add(range.len_bytes);
    trim_free(store, within, range.bytes_min.max(granularity))
}

/// Discards the free ranges of block groups that lie in `within` (logical addresses), from
/// `bytes_min` on, and what of the devices no chunk has. Returns the bytes discarded. Space that
/// only a commit makes free is left alone.
pub fn trim_free(store: &Store, within: Range<u64>, bytes_min: u64) -> Result<u64> {
    let in_groups = store.space().discard_free(within, bytes_min);
    let in_room = store.space().discard_room();
    Ok(in_groups? + in_room?)
}

#[cfg(test)]
mod tests {
    use btrfs_image::{MkfsOptions, mkfs};
    use cowshed_device::{BlockDevice, MemDevice};
    use cowshed_device_sim::{Event, Log};
    use cowshed_runtime::{FixedEnv, ManualEnv};
    use cowshed_vfs::{Context, FileSystem, NodeId};

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use crate::mount::Mount;
    use crate::testing::memory_device;
    use btrfs_store::volume::{OpenOptions, Volume};

    #[test]
    fn freed_space_is_discarded_after_the_delay_with_a_pause_after_each_range() {
        const PACE: Pace = Pace {
            delay: Duration::from_secs(10),
            bytes_min: 0,
            batch_ranges: 2,
            pause: Duration::from_secs(1),
        };
        let (env, log) = (Arc::new(ManualEnv::new(1)), Log::new());
        let device: Arc<dyn BlockDevice> = Arc::new(log.record(Arc::new(MemDevice::new("memory", 256 << 20))));
        mkfs(std::slice::from_ref(&device), &MkfsOptions::new([0x5b; 16])).unwrap();
        let volume = Volume::open(vec![device], &OpenOptions::default()).unwrap();
        let options = EngineOptions {
            discard: DiscardMode::Async,
            commit_interval_s: 0,
            ..EngineOptions::default()
        };
        let engine = Mount::open(volume, env.clone(), options).unwrap();
        engine.set_discard_pace(PACE);
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let discards = || {
            let events = log.take();
            events.iter().filter(|e| matches!(e, Event::Discard { .. })).count()
        };
        // Until the first commit is old enough, the commit thread alone waits for a deadline.
        fs.mkdir(&Context::root(), NodeId::ROOT, b"dir", 0o755).unwrap();
        engine.commit().unwrap();
        env.until_sleepers(2);
        discards();
        assert_eq!(env.deadlines()[0], PACE.delay);
        env.advance(PACE.delay - Duration::from_nanos(1));
        assert_eq!((env.deadlines().len(), discards()), (2, 0), "one nanosecond is missing");
        env.advance(Duration::from_nanos(1));
        // The ranges of a batch, and the first one of the next.
        for range in 1..4 {
            env.until_sleepers(2);
            assert_eq!(env.deadlines()[0], PACE.delay + PACE.pause * range);
            assert_eq!(discards(), 2, "one range, of which metadata has two copies");
            env.advance(PACE.pause);
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_trim_of_an_odd_range_is_refused_or_cut_and_never_panics() {
        let volume = Volume::open(vec![memory_device(256 * MIB, 16384)], &OpenOptions::default()).unwrap();
        let engine = Mount::open(volume, Arc::new(FixedEnv::default()), EngineOptions::default()).unwrap();
        let trim = |start, len_bytes, bytes_min| {
            engine.trim(TrimRange {
                start,
                len_bytes,
                bytes_min,
            })
        };
        let room = trim(0, 4096, u64::MAX).unwrap();
        assert!(room > 100 * MIB && room < 256 * MIB);
        let all = trim(0, u64::MAX, 0).unwrap();
        assert!(all > 254 * MIB && all < 256 * MIB, "{all}");
        for (start, len_bytes) in [
            (u64::MAX, 4096),
            (u64::MAX, u64::MAX),
            (u64::MAX - 1, u64::MAX),
            (1 << 60, 4096),
        ] {
            assert_eq!(trim(start, len_bytes, 0).unwrap(), room);
        }
        assert!(trim(0, 4095, 0).is_err() && trim(0, 0, 0).is_err());
        engine.close().unwrap();
        assert!(trim(0, u64::MAX, 0).is_err(), "closed");
    }
}
