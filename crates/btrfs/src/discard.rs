//! When freed space is discarded: with the commit, in the background, or when asked to (fstrim).
//! What may be discarded is decided in `space::discard`. docs/design/discard.md.
//!
//! A discard that fails does no harm: the space stays as it was. It is logged, and only fstrim
//! reports it.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cowshed_runtime::{Env, Inbox, Service, Wake};
use cowshed_vfs::{Error as Errno, TrimRange};

use crate::engine::Engine;
use crate::error::{Error, Result};

/// How long an unmount goes on discarding what the last commits have freed.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// Ranges that are taken at once where no pace is kept.
const BATCH_RANGES: usize = 64;

/// The mount option `discard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiscardMode {
    #[default]
    Off,
    /// Before a commit returns.
    Sync,
    /// Some time later, by a thread of its own.
    Async,
}

/// How fast the thread works.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// After a commit has freed something: what is written again soon need not be discarded, and
    /// neighbours come together.
    pub delay: Duration,
    /// Shorter ranges wait for their neighbours, until the unmount.
    pub bytes_min: u64,
    pub batch_ranges: usize,
    /// Between batches.
    pub pause: Duration,
}

impl Default for Pace {
    /// 1000 ranges a second.
    fn default() -> Self {
        Self {
            delay: Duration::from_secs(10),
            bytes_min: 32 << 10,
            batch_ranges: 100,
            pause: Duration::from_millis(100),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    pace: Pace,
    /// When to discard what was freed since the last batches, by [`Env::monotonic`].
    due: Option<Duration>,
}

/// The thread of [`DiscardMode::Async`].
#[derive(Debug)]
pub(crate) struct Discarder(Service<State>);

impl Discarder {
    /// A thread that is not started yet.
    pub fn new(env: Arc<dyn Env>) -> Self {
        Self(Service::new("cowshed-discard", env, State::default()))
    }

    /// Something was freed.
    fn wake(&self) {
        self.0.change_if(|state| {
            let is_first = state.due.is_none();
            if is_first {
                state.due = Some(self.0.env().monotonic().saturating_add(state.pace.delay));
            }
            is_first
        });
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// Begins to collect what is freed, where the options ask for it and a device can discard.
pub(crate) fn start(engine: &Arc<Engine>) {
    let mode = engine.options.discard;
    if mode == DiscardMode::Off || engine.volume.discard_granularity_bytes().is_none() {
        return;
    }
    engine.space.collect_freed(true);
    if mode != DiscardMode::Async {
        return;
    }
    let weak = Arc::downgrade(engine);
    if let Err(error) = engine.discarder.0.start(move |inbox| run(inbox, &weak)) {
        tracing::warn!("freed space is discarded at the unmount only: {error}");
    }
}

fn run(inbox: &Inbox<State>, engine: &Weak<Engine>) {
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
            let Some(engine) = engine.upgrade() else { return };
            if batch(&engine, pace.batch_ranges, pace.bytes_min) == 0 {
                break;
            }
            drop(engine);
            if !inbox.sleep_until(inbox.monotonic().saturating_add(pace.pause)) {
                return;
            }
        }
    }
}

/// Discards some of what was freed; gives how many ranges that were.
fn batch(engine: &Engine, count: usize, bytes_min: u64) -> usize {
    if engine.txn.is_aborted() {
        return 0;
    }
    let freed = engine.space.take_freed(count, bytes_min);
    for range in &freed {
        if let Err(error) = engine.space.discard_freed(range) {
            tracing::warn!(?range, %error, "not discarded");
        }
    }
    freed.len()
}

impl Engine {
    /// Keeps another pace with what is discarded in the background.
    pub fn set_discard_pace(&self, pace: Pace) {
        self.discarder.0.change(|state| state.pace = pace);
    }

    /// The commit is durable: what it freed may go.
    pub(crate) fn discard_after_commit(&self) {
        match self.options.discard {
            DiscardMode::Off => {}
            DiscardMode::Sync => while batch(self, BATCH_RANGES, 0) > 0 {},
            DiscardMode::Async => self.discarder.wake(),
        }
    }

    /// After the last commit: what is not discarded yet.
    pub(crate) fn drain_discards(&self) {
        let until = self.env.monotonic() + DRAIN_TIME;
        while self.env.monotonic() < until && batch(self, BATCH_RANGES, 0) > 0 {}
    }

    /// Discards the free space of a range of logical addresses and the room that no chunk has, as
    /// fstrim asks for it. Commits first. Returns the bytes, those of all copies.
    ///
    /// # Errors
    /// `Invalid` (a range shorter than a sector), `NotSupported` (no device discards), and what
    /// devices say.
    pub fn trim(&self, range: TrimRange) -> Result<u64> {
        self.txn.check_writable()?;
        if self.volume.is_read_only() {
            return Err(Error::ReadOnly);
        }
        let granularity = self.volume.discard_granularity_bytes().ok_or(Errno::NotSupported)?;
        if range.len_bytes < u64::from(self.volume.sectorsize_bytes()) {
            return Err(Errno::Invalid.into());
        }
        self.commit()?;
        let within = range.start..range.start.saturating_add(range.len_bytes);
        self.trim_free(within, range.bytes_min.max(granularity))
    }

    /// As [`Engine::trim`], of what is free without a commit.
    pub fn trim_free(&self, within: Range<u64>, bytes_min: u64) -> Result<u64> {
        let in_groups = self.space.discard_free(within, bytes_min);
        let in_room = self.space.discard_room();
        Ok(in_groups? + in_room?)
    }
}

#[cfg(test)]
mod tests {
    use btrfs_image::{MkfsOptions, mkfs};
    use cowshed_device::{BlockDevice, MemDevice};
    use cowshed_device_sim::{Event, Log};
    use cowshed_runtime::ManualEnv;
    use cowshed_vfs::{Context, FileSystem, NodeId};

    use super::*;
    use crate::engine::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use crate::volume::{OpenOptions, Volume};

    #[test]
    fn freed_space_is_discarded_after_the_delay_and_batches_keep_their_pause() {
        const PACE: Pace = Pace {
            delay: Duration::from_secs(10),
            bytes_min: 0,
            batch_ranges: 1,
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
        let engine = Engine::open(volume, env.clone(), options).unwrap();
        engine.set_discard_pace(PACE);
        let fs = Fs::mount(engine.clone(), MountOptions::default()).unwrap();
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
        for batch in 1..3 {
            env.until_sleepers(2);
            assert_eq!(env.deadlines()[0], PACE.delay + PACE.pause * batch);
            assert_eq!(discards(), 2, "one range a batch, of which metadata has two copies");
            env.advance(PACE.pause);
        }
    }
}
