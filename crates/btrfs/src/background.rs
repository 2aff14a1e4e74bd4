//! The background thread of a mounted volume: commits at its interval, and when memory for pending items runs low; frees what
//! large commits leave behind, which nobody has to wait for.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;
use btrfs_store::overlay::Overlay;

/// Overlays of fewer items are freed at once: waking a thread would cost more.
const GARBAGE_ITEMS_MIN: usize = 1 << 14;

#[derive(Debug, Default)]
struct Signal {
    wanted: bool,
    /// Much file data is dirty.
    write_back: bool,
    /// Overlays that a commit has merged: millions of small allocations.
    garbage: Vec<Arc<Overlay>>,
    stop: bool,
}

/// The thread and the bell that wakes it.
#[derive(Debug, Default)]
pub struct Background {
    signal: Arc<(Mutex<Signal>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    /// Asks for a commit soon.
    pub fn wake(&self) {
        let (signal, bell) = &*self.signal;
        let mut signal = signal.lock();
        if !signal.wanted {
            signal.wanted = true;
            bell.notify_one();
        }
    }

    /// Asks for dirty file data to be written soon.
    pub fn wake_write_back(&self) {
        let (signal, bell) = &*self.signal;
        let mut signal = signal.lock();
        if !signal.write_back {
            signal.write_back = true;
            bell.notify_one();
        }
    }

    /// Frees the overlays of a commit, which returns before they are gone where there are many items.
    ///
    /// At most one commit's wait: whoever brings the next ones frees those that are still there.
    pub(crate) fn free(&self, overlays: Vec<Arc<Overlay>>) {
        let items: usize = overlays.iter().map(|overlay| overlay.len()).sum();
        if items < GARBAGE_ITEMS_MIN || self.thread.lock().is_none() {
            return;
        }
        let (signal, bell) = &*self.signal;
        let late = std::mem::replace(&mut signal.lock().garbage, overlays);
        bell.notify_one();
        drop(late);
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        {
            let (signal, bell) = &*self.signal;
            signal.lock().stop = true;
            bell.notify_one();
        }
        let thread = self.thread.lock().take();
        // The last reference to the engine may be dropped by its own thread: it cannot wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the commit thread panicked");
        }
    }
}

/// Starts the thread. It holds no reference to the engine while it sleeps, so dropping the engine ends it.
pub fn start(engine: &Arc<Engine>) {
    let signal = engine.background.signal.clone();
    let weak = Arc::downgrade(engine);
    let interval = match engine.options.commit_interval_s {
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds.into()),
    };
    let spawned = std::thread::Builder::new()
        .name("cowshed-commit".into())
        .spawn(move || run(&signal, &weak, interval));
    match spawned {
        Ok(thread) => *engine.background.thread.lock() = Some(thread),
        Err(error) => tracing::warn!("no background commits: {error}"),
    }
}

fn run(signal: &(Mutex<Signal>, Condvar), engine: &Weak<Engine>, interval: Duration) {
    // A day is as good as for ever, and no overflow.
    let interval = interval.min(Duration::from_secs(86_400));
    let mut due = Instant::now() + interval;
    loop {
        let (is_urgent, write_back, garbage) = {
            let mut state = signal.0.lock();
            if !state.wanted && !state.write_back && !state.stop && state.garbage.is_empty() {
                signal.1.wait_until(&mut state, due);
            }
            if state.stop {
                return;
            }
            let state = &mut *state;
            (
                std::mem::take(&mut state.wanted),
                std::mem::take(&mut state.write_back),
                std::mem::take(&mut state.garbage),
            )
        };
        drop(garbage);
        if !is_urgent && !write_back && Instant::now() < due {
            continue;
        }
        let Some(engine) = engine.upgrade() else { return };
        if engine.store.txn().is_aborted() {
            return;
        }
        if write_back {
            if let Err(error) = crate::file::write_back_all(&engine) {
                tracing::error!("background write-back: {error}");
            }
            if !is_urgent && Instant::now() < due {
                continue;
            }
        }
        // Pending items alone are what an urgent commit is for; the timer's commit takes file data along.
        let result = if is_urgent { engine.commit() } else { engine.sync() };
        if let Err(error) = result {
            tracing::error!("background commit: {error}");
        }
        due = Instant::now() + interval;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.background.stop();
        self.discarder.stop();
    }
}

#[cfg(test)]
mod tests {
    use btrfs_format::{Key, KeyType, ObjectId};
    use btrfs_image::{MkfsOptions, mkfs};
    use cowshed_device::{BlockDevice, MemDevice};

    use super::*;
    use crate::engine::EngineOptions;
    use btrfs_store::volume::{OpenOptions, Volume};
    use cowshed_runtime::FixedEnv;

    fn overlay(items: usize) -> Arc<Overlay> {
        let mut overlay = Overlay::default();
        for n in 0..items as u64 {
            overlay.insert(Key::new(ObjectId(n), KeyType::INODE_ITEM, 0), None);
        }
        Arc::new(overlay)
    }

    #[test]
    fn what_a_commit_leaves_is_freed_and_nothing_is_committed_for_it() {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", 256 << 20));
        mkfs(std::slice::from_ref(&device), &MkfsOptions::new([0x5b; 16])).unwrap();
        let volume = Volume::open(vec![device], &OpenOptions::default()).unwrap();
        let engine = Engine::open(volume, Arc::new(FixedEnv::default()), EngineOptions::default()).unwrap();
        let before = engine.commit_stats().commits;
        // Few items, many, and many more right behind them.
        for items in [1, GARBAGE_ITEMS_MIN, 2 * GARBAGE_ITEMS_MIN] {
            let garbage = overlay(items);
            let left = Arc::downgrade(&garbage);
            engine.background.free(vec![garbage]);
            let patience = Instant::now() + Duration::from_secs(60);
            while left.upgrade().is_some() {
                assert!(Instant::now() < patience, "{items} items are still there");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(engine.commit_stats().commits, before);
    }
}
