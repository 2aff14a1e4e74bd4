//! The background thread of a mounted volume: commits at its interval and when memory for pending
//! items runs low, starts write-back, and frees what large commits leave behind.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cowshed_runtime::{Env, Inbox, Service, Wake};

use crate::engine::Engine;
use crate::overlay::Overlay;

/// Overlays of fewer items are freed at once: waking a thread would cost more.
const GARBAGE_ITEMS_MIN: usize = 1 << 14;

/// What the thread is asked to do.
#[derive(Debug, Default)]
struct Wants {
    commit: bool,
    /// Much file data is dirty.
    write_back: bool,
    /// Overlays that a commit has merged: millions of small allocations.
    garbage: Vec<Arc<Overlay>>,
}

impl Wants {
    fn take(&mut self) -> Option<Self> {
        let is_idle = !self.commit && !self.write_back && self.garbage.is_empty();
        (!is_idle).then(|| std::mem::take(self))
    }
}

/// The thread and what it is asked to do.
#[derive(Debug)]
pub struct Background(Service<Wants>);

impl Background {
    /// A thread that is not started yet.
    pub(crate) fn new(env: Arc<dyn Env>) -> Self {
        Self(Service::new("cowshed-commit", env, Wants::default()))
    }

    /// Asks for a commit soon.
    pub fn wake(&self) {
        self.0.change_if(|wants| !std::mem::replace(&mut wants.commit, true));
    }

    /// Asks for dirty file data to be written soon.
    pub fn wake_write_back(&self) {
        self.0
            .change_if(|wants| !std::mem::replace(&mut wants.write_back, true));
    }

    /// Frees the overlays of a commit. Large ones are freed by the thread, and this returns before.
    ///
    /// At most one commit's overlays are queued: the caller frees those that are still there.
    pub(crate) fn free(&self, overlays: Vec<Arc<Overlay>>) {
        let items: usize = overlays.iter().map(|overlay| overlay.len()).sum();
        if items < GARBAGE_ITEMS_MIN || !self.0.is_running() {
            return;
        }
        let late = self.0.change(|wants| std::mem::replace(&mut wants.garbage, overlays));
        drop(late);
    }

    /// Ends the thread and waits for it.
    pub fn stop(&self) {
        self.0.stop();
    }
}

/// Starts the thread. It holds no reference to the engine while it sleeps, so dropping the engine
/// ends it.
pub fn start(engine: &Arc<Engine>) {
    let weak = Arc::downgrade(engine);
    let interval = match engine.options.commit_interval_s {
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds.into()),
    };
    let started = engine.background.0.start(move |inbox| run(inbox, &weak, interval));
    if let Err(error) = started {
        tracing::warn!("no background commits: {error}");
    }
}

fn run(inbox: &Inbox<Wants>, engine: &Weak<Engine>, interval: Duration) {
    let mut due = inbox.monotonic().saturating_add(interval);
    loop {
        let wants = match inbox.wait(Some(due), Wants::take) {
            Wake::Ready(wants) => wants,
            Wake::Due => Wants::default(),
            Wake::Stop => return,
        };
        drop(wants.garbage);
        let is_due = || inbox.monotonic() >= due;
        if !wants.commit && !wants.write_back && !is_due() {
            continue;
        }
        let Some(engine) = engine.upgrade() else { return };
        if engine.txn.is_aborted() {
            return;
        }
        if wants.write_back {
            if let Err(error) = crate::file::write_back_all(&engine) {
                tracing::error!("background write-back: {error}");
            }
            if !wants.commit && !is_due() {
                continue;
            }
        }
        // An urgent commit is for pending items alone; the timer's commit takes file data along.
        let result = if wants.commit { engine.commit() } else { engine.sync() };
        if let Err(error) = result {
            tracing::error!("background commit: {error}");
        }
        due = inbox.monotonic().saturating_add(interval);
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
    use std::time::Instant;

    use btrfs_format::{Key, KeyType, ObjectId};
    use btrfs_image::{MkfsOptions, mkfs};
    use cowshed_device::{BlockDevice, MemDevice};
    use cowshed_vfs::{Context, FileSystem, NodeId, OpenFlags, OpenRequest, WriteFlags};

    use super::*;
    use crate::engine::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use crate::testing::Dice;
    use crate::volume::{OpenOptions, Volume};
    use cowshed_runtime::{FixedEnv, ManualEnv};

    fn overlay(items: usize) -> Arc<Overlay> {
        let mut overlay = Overlay::default();
        for n in 0..items as u64 {
            overlay.insert(Key::new(ObjectId(n), KeyType::INODE_ITEM, 0), None);
        }
        Arc::new(overlay)
    }

    fn mount(env: Arc<dyn Env>) -> Arc<Engine> {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", 256 << 20));
        mkfs(std::slice::from_ref(&device), &MkfsOptions::new([0x5b; 16])).unwrap();
        let volume = Volume::open(vec![device], &OpenOptions::default()).unwrap();
        Engine::open(volume, env, EngineOptions::default()).unwrap()
    }

    #[test]
    fn what_a_commit_leaves_is_freed_and_nothing_is_committed_for_it() {
        let engine = mount(Arc::new(FixedEnv::default()));
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

    #[test]
    fn interval_that_has_passed_commits_once_and_starts_the_next_one() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = mount(env.clone());
        let fs = Fs::mount(engine.clone(), MountOptions::default()).unwrap();
        let before = engine.commit_stats().commits;
        let interval = Duration::from_secs(EngineOptions::default().commit_interval_s.into());
        for round in 1..4 {
            let name = format!("dir {round}");
            fs.mkdir(&Context::root(), NodeId::ROOT, name.as_bytes(), 0o755)
                .unwrap();
            env.until_sleepers(1);
            assert_eq!(env.deadlines(), [interval * round]);
            env.advance(interval - Duration::from_nanos(1));
            assert_eq!(env.deadlines(), [interval * round], "one nanosecond is missing");
            env.advance(Duration::from_nanos(1));
            env.until_sleepers(1);
            assert_eq!(engine.commit_stats().commits, before + u64::from(round));
        }
    }

    #[test]
    fn wake_commits_without_a_move_of_the_clock() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = mount(env.clone());
        let fs = Fs::mount(engine.clone(), MountOptions::default()).unwrap();
        let before = engine.commit_stats().commits;
        fs.mkdir(&Context::root(), NodeId::ROOT, b"dir", 0o755).unwrap();
        env.until_sleepers(1);
        engine.background.wake();
        env.until_sleepers(1);
        assert_eq!(engine.commit_stats().commits, before + 1);
    }

    /// Runs operations, fsyncs and moves of the clock as `seed` has them. Returns the device as it is
    /// without an unmount, and how many commits there were.
    fn play(seed: u64) -> (Arc<MemDevice>, u64) {
        let env = Arc::new(ManualEnv::new(seed));
        let device = Arc::new(MemDevice::new("memory", 128 << 20));
        let below: Arc<dyn BlockDevice> = device.clone();
        mkfs(std::slice::from_ref(&below), &MkfsOptions::new([0x5b; 16])).unwrap();
        let volume = Volume::open(vec![below], &OpenOptions::default()).unwrap();
        let options = EngineOptions {
            tree_log: true,
            ..EngineOptions::default()
        };
        let engine = Engine::open(volume, env.clone(), options).unwrap();
        let fs = Fs::mount(engine.clone(), MountOptions::default()).unwrap();
        let (ctx, mut dice) = (Context::root(), Dice::new(seed));
        let open = OpenRequest {
            flags: OpenFlags::WRITE,
            kill_suidgid: false,
        };
        let before = engine.commit_stats().commits;
        for step in 0..60 {
            let name = format!("{} {step}", dice.next());
            let (entry, opened) = fs.create(&ctx, NodeId::ROOT, name.as_bytes(), 0o644, &open).unwrap();
            let data = vec![step; 1 + dice.below(30_000) as usize];
            fs.write(&ctx, entry.node, opened.handle, 0, &data, WriteFlags::empty())
                .unwrap();
            if dice.below(4) == 0 {
                fs.fsync(&ctx, entry.node, opened.handle, false).unwrap();
            }
            fs.release(entry.node, opened.handle);
            env.until_sleepers(1);
            env.advance(Duration::from_millis(dice.below(15_000)));
            env.until_sleepers(1);
        }
        (Arc::new(device.snapshot()), engine.commit_stats().commits - before)
    }

    #[test]
    fn volume_with_background_commits_and_logs_repeats_from_its_seed() {
        for seed in 0..3 {
            let ((one, commits), (other, commits_again)) = (play(seed), play(seed));
            assert_eq!(commits, commits_again, "seed {seed}");
            assert!(commits > 5, "seed {seed}: {commits} commits");
            let (mut here, mut there) = (vec![0; 1 << 20], vec![0; 1 << 20]);
            for at in (0..128 << 20).step_by(1 << 20) {
                one.read_at(at, &mut here).unwrap();
                other.read_at(at, &mut there).unwrap();
                assert!(here == there, "seed {seed}: the volumes differ at {at:#x}");
            }
        }
    }
}
