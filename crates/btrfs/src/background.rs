//! The background thread of a mounted volume: commits at its interval and when memory for pending
//! items runs low, starts write-back, and frees what large commits leave behind.

mod drops;

use std::sync::{Arc, Weak};
use std::time::Duration;

use btrfs_store::overlay::stripes::FrozenEdits;
use cowshed_runtime::{Inbox, Wake};

use crate::files::{Commits, Files};
use crate::object::{Remaining, Taken};
use crate::requests::Wants;
use crate::{dir, file, pressure};
use drops::{DROP_PAUSE, DropDue, Steps, Unloading};

/// Memory that was freed is returned so long after, when nothing was changed in between: under load
/// it is wanted again at once.
const RETURN_PAUSE: Duration = Duration::from_secs(1);

/// Chunks of edits freed in one step: some 500 edits.
const FREED_AT_ONCE: usize = 8;

/// Between two steps while an fsync or commit runs. Longer than a step takes, so that the
/// allocator's lock is free for most of the time.
const FREE_PAUSE: Duration = Duration::from_micros(200);

/// Steps have pauses for so long after an fsync or commit began.
const FREE_SLOWLY: Duration = Duration::from_millis(10);

/// Starts the thread. It holds no reference to the files while it sleeps: dropping the mount ends
/// it.
pub(crate) fn start(files: &Arc<Files>) {
    let weak = Arc::downgrade(files);
    let interval = match files.options().commit_interval_s {
        _ if files.options().commits == Commits::WhenAsked => Duration::MAX,
        0 => Duration::MAX,
        seconds => Duration::from_secs(seconds.into()),
    };
    let started = files.background().0.start(move |inbox| run(inbox, &weak, interval));
    if let Err(error) = started {
        tracing::warn!("no background commits: {error}");
    }
}

fn run(inbox: &Inbox<Wants>, files: &Weak<Files>, interval: Duration) {
    let now = || inbox.monotonic();
    let mut due = now().saturating_add(interval);
    let mut drop_due = DropDue::default();
    let mut returning = Returning::default();
    let mut steps = Steps::default();
    let mut unloading = Unloading::default();
    loop {
        let next = drop_due.next().min(due).min(returning.due).min(unloading.next());
        let mut wants = match inbox.wait(Some(next), Wants::take) {
            Wake::Ready(wants) => wants,
            Wake::Due => Wants::default(),
            Wake::Stop => return,
        };
        wants.return_memory |= !wants.garbage.is_empty();
        for edits in std::mem::take(&mut wants.garbage) {
            free(inbox, files, edits);
        }
        if now() >= unloading.next() {
            wants.return_memory |= unloading.step(now(), holds_of(files));
        }
        if wants.return_memory || now() >= returning.due {
            let Some(files) = files.upgrade() else { return };
            returning.look(&files, now(), wants.return_memory);
        }
        if wants.room {
            let Some(files) = files.upgrade() else { return };
            wants.commit |= pressure::needs_commit(&files);
        }
        drop_due.note(&wants, inbox);
        if wants.drop_at_once {
            steps.hurry(holds_of(files));
        }
        let is_due = || now() >= due;
        let mut drops = drop_due.step.is_some_and(|at| now() >= at);
        if drops && !wants.commit && !is_due() {
            let Some(files) = files.upgrade() else { return };
            if !steps.may_come(now(), files.store().txn().holds()) {
                drop_due.step = Some(now().saturating_add(DROP_PAUSE));
                drops = false;
            }
        }
        if !wants.commit && !wants.write_back && !drops && !is_due() {
            continue;
        }
        let Some(files) = files.upgrade() else { return };
        if files.store().txn().is_aborted() {
            return;
        }
        if wants.write_back {
            if let Err(error) = file::write_back_all(&files) {
                tracing::error!("background write-back: {error}");
            }
            if !wants.commit && !drops && !is_due() {
                continue;
            }
        }
        // A look that is due later stays due: commits in between do not cancel it.
        if drops {
            let (remaining, gone) = drop_unused(&files);
            unloading.add(gone, now());
            drop_due.looked(remaining, now());
            drops = files.store().queued_drops() > 0;
            if !drops && !wants.commit && !is_due() {
                continue;
            }
        }
        // Pending items alone are what an urgent commit is for; the timer's commit takes file data
        // along.
        let result = if is_due() && !wants.commit {
            due = now().saturating_add(interval);
            file::sync(&files)
        } else {
            files.commit()
        };
        if let Err(error) = result {
            tracing::error!("background commit: {error}");
        }
        if drops {
            steps.came(now(), files.store().txn().holds());
        }
        if wants.commit {
            due = now().saturating_add(interval);
        }
    }
}

/// A look at deleted subvolumes: what they wait for, and what is to be freed.
pub(crate) fn drop_unused(files: &Files) -> (Remaining, Vec<Taken>) {
    dir::subvolumes::drop_unused(files, |inode| file::discard_dirty(files, inode))
}

/// Fsyncs and commits so far; 0 once the volume is closed.
fn holds_of(files: &Weak<Files>) -> u64 {
    files.upgrade().map_or(0, |files| files.store().txn().holds())
}

/// Frees the edits of a commit in steps, with pauses while an fsync or commit runs: each allocation
/// of that would wait for the allocator's lock.
fn free(inbox: &Inbox<Wants>, files: &Weak<Files>, edits: Arc<FrozenEdits>) {
    // A reader that still has a reference frees them when it is done.
    let Some(mut edits) = Arc::into_inner(edits) else {
        return;
    };
    let holds = || holds_of(files);
    let (mut seen, mut slow_until) = (holds(), Duration::ZERO);
    while edits.free_some(FREED_AT_ONCE) {
        let (now, holds) = (inbox.monotonic(), holds());
        if holds != seen {
            (seen, slow_until) = (holds, now.saturating_add(FREE_SLOWLY));
        }
        let is_slow = now < slow_until && !inbox.with(|wants| wants.is_urgent());
        if is_slow && !inbox.sleep_until(now.saturating_add(FREE_PAUSE)) {
            return;
        }
    }
}

/// When memory is given back to the system.
#[derive(Debug)]
struct Returning {
    /// The next look.
    due: Duration,
    /// Edits that had been applied at the last one.
    applied: u64,
}

impl Default for Returning {
    fn default() -> Self {
        Self {
            due: Duration::MAX,
            applied: 0,
        }
    }
}

impl Returning {
    /// Returns memory that was freed before, unless something goes on: then later.
    fn look(&mut self, files: &Files, now: Duration, was_freed: bool) {
        let Some(return_memory) = files.options().return_memory else {
            return;
        };
        let applied = files.store().txn().applied().0;
        if was_freed || applied != self.applied {
            self.applied = applied;
            self.due = now.saturating_add(RETURN_PAUSE);
            return;
        }
        self.due = Duration::MAX;
        files.background().begin_returning();
        file::free_spares();
        return_memory();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use btrfs_format::{Key, KeyType, ObjectId};
    use btrfs_image::{MkfsOptions, mkfs};
    use cowshed_device::{BlockDevice, MemDevice};
    use cowshed_vfs::{Context, FileSystem, Lookup, NodeId, OpenFlags, OpenRequest, Volume as _, WriteFlags};

    use super::drops::IN_USE_PAUSE;
    use super::*;
    use crate::files::EngineOptions;
    use crate::mount::Mount;
    use crate::requests::GARBAGE_ITEMS_MIN;
    use btrfs_store::overlay::Overlay;
    use btrfs_store::overlay::stripes::FrozenEdits;
    use btrfs_store::volume::{OpenOptions, Volume};
    use cowshed_runtime::{Env, FixedEnv, ManualEnv};

    use crate::fs::{Fs, MountOptions};
    use crate::testing::Dice;

    fn overlay(items: usize) -> Arc<FrozenEdits> {
        let mut overlay = Overlay::default();
        for n in 0..items as u64 {
            overlay.insert(Key::new(ObjectId(n), KeyType::INODE_ITEM, 0), None);
        }
        Arc::new(FrozenEdits::new(Box::new([overlay])))
    }

    fn mount(env: Arc<dyn Env>) -> Arc<Mount> {
        mount_with(env, EngineOptions::default())
    }

    fn mount_with(env: Arc<dyn Env>, options: EngineOptions) -> Arc<Mount> {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("memory", 256 << 20));
        mkfs(std::slice::from_ref(&device), &MkfsOptions::new([0x5b; 16])).unwrap();
        let volume = Volume::open(vec![device], &OpenOptions::default()).unwrap();
        Mount::open(volume, env, options).unwrap()
    }

    #[test]
    fn what_a_commit_leaves_is_freed_and_nothing_is_committed_for_it() {
        let engine = mount(Arc::new(FixedEnv::default()));
        let before = engine.commit_stats().commits;
        // Few items, many, and many more right behind them.
        for items in [1, GARBAGE_ITEMS_MIN, 2 * GARBAGE_ITEMS_MIN] {
            let garbage = overlay(items);
            let left = Arc::downgrade(&garbage);
            engine.background().free(vec![garbage]);
            let patience = Instant::now() + Duration::from_secs(60);
            while left.upgrade().is_some() {
                assert!(Instant::now() < patience, "{items} items are still there");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(engine.commit_stats().commits, before);
    }

    #[test]
    fn freeing_pauses_while_syncs_begin_and_ends() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = mount(env.clone());
        let interval = Duration::from_secs(EngineOptions::default().commit_interval_s.into());
        env.until_sleepers(1);
        assert_eq!(env.deadlines(), [interval]);
        // So many that the first sync begins before all are freed.
        engine.background().free(vec![overlay(64 * GARBAGE_ITEMS_MIN)]);
        let patience = Instant::now() + Duration::from_secs(60);
        while env.deadlines() != [FREE_PAUSE] {
            drop(engine.store().txn().hold_commits());
            assert!(Instant::now() < patience, "{:?}", env.deadlines());
        }
        // It goes on in steps, and without pauses once no sync has begun for a while.
        loop {
            env.until_sleepers(1);
            if env.deadlines() == [interval] {
                break;
            }
            assert!(env.monotonic() < interval, "{:?}", env.deadlines());
            env.advance(FREE_PAUSE);
        }
    }

    #[test]
    fn freed_memory_is_returned_once_when_nothing_was_changed_for_a_while() {
        static RETURNS: AtomicUsize = AtomicUsize::new(0);
        let returns = || RETURNS.load(Ordering::SeqCst);
        let env = Arc::new(ManualEnv::new(1));
        let options = EngineOptions {
            return_memory: Some(|| _ = RETURNS.fetch_add(1, Ordering::SeqCst)),
            ..EngineOptions::default()
        };
        let engine = mount_with(env.clone(), options);
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let interval = Duration::from_secs(EngineOptions::default().commit_interval_s.into());
        let free_much = |done: u32| {
            engine.background().free(vec![overlay(GARBAGE_ITEMS_MIN)]);
            let patience = Instant::now() + Duration::from_secs(60);
            while env.deadlines() != [RETURN_PAUSE * (done + 1)] {
                assert!(Instant::now() < patience, "{:?}", env.deadlines());
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        free_much(0);
        fs.mkdir(&Context::root(), NodeId::ROOT, b"dir", 0o755).unwrap();
        env.advance(RETURN_PAUSE);
        env.until_sleepers(1);
        assert_eq!((returns(), env.deadlines()), (0, vec![RETURN_PAUSE * 2]), "in use");
        env.advance(RETURN_PAUSE);
        env.until_sleepers(1);
        assert_eq!((returns(), env.deadlines()), (1, vec![interval]));
        free_much(2);
        env.advance(RETURN_PAUSE);
        env.until_sleepers(1);
        assert_eq!((returns(), env.deadlines()), (2, vec![interval]));
    }

    #[test]
    fn interval_that_has_passed_commits_once_and_starts_the_next_one() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = mount(env.clone());
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
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

    /// A commit that comes between two looks at a deleted subvolume does not end the looking.
    #[test]
    fn deleted_subvolume_with_dirty_data_is_dropped_after_the_next_timed_commit() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = mount(env.clone());
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let ctx = Context::root();
        let subvolumes = fs.subvolumes().unwrap();
        subvolumes.create(&ctx, NodeId::ROOT, b"sub").unwrap();
        let Lookup::Found(root) = fs.lookup(&ctx, NodeId::ROOT, b"sub").unwrap() else {
            panic!("just made");
        };
        let open = OpenRequest {
            flags: OpenFlags::WRITE,
            kill_suidgid: false,
        };
        let (entry, opened) = fs.create(&ctx, root.node, b"file", 0o644, &open).unwrap();
        fs.write(&ctx, entry.node, opened.handle, 0, b"dirty", WriteFlags::empty())
            .unwrap();
        fs.release(entry.node, opened.handle);
        fs.forget(entry.node, 1);
        subvolumes.delete(&ctx, NodeId::ROOT, b"sub").unwrap();
        fs.forget(root.node, 1);
        // The mark in the root item; no data is written by that.
        engine.commit().unwrap();
        let dead = || {
            btrfs_store::commit::dead_subvolumes(engine.store().forest())
                .unwrap()
                .len()
        };
        let interval = Duration::from_secs(EngineOptions::default().commit_interval_s.into());
        let step = Duration::from_millis(500);
        let mut passed = Duration::ZERO;
        while passed < interval + IN_USE_PAUSE * 4 {
            env.until_sleepers(1);
            if (IN_USE_PAUSE..interval - step).contains(&passed) {
                assert_eq!(dead(), 1, "its data is not written yet");
            }
            env.advance(step);
            passed += step;
        }
        env.until_sleepers(1);
        assert_eq!(dead(), 0);
    }

    /// Deletions that follow each other are dropped together, at most a second after the first.
    #[test]
    fn drops_wait_for_a_pause_of_deletions() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = mount(env.clone());
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let ctx = Context::root();
        let subvolumes = fs.subvolumes().unwrap();
        const COUNT: usize = 40;
        let name = |n: usize| format!("sub {n}");
        for n in 0..COUNT {
            subvolumes.create(&ctx, NodeId::ROOT, name(n).as_bytes()).unwrap();
        }
        engine.sync().unwrap();
        // Orphan items: marks in root items come with the next commit only.
        let dead = || {
            let any = Key::new(ObjectId::ORPHAN, KeyType::ORPHAN_ITEM, 0);
            let mut orphans = engine.store().forest().root_tree().cursor_type(any);
            std::iter::from_fn(|| orphans.next().unwrap()).count()
        };
        let step = Duration::from_millis(30);
        let mut all_dead_until = None;
        for n in 0..COUNT {
            subvolumes.delete(&ctx, NodeId::ROOT, name(n).as_bytes()).unwrap();
            env.until_sleepers(1);
            if dead() == n + 1 {
                all_dead_until = Some(n);
            }
            env.advance(step);
            env.until_sleepers(1);
        }
        // 34 times 30 ms are the first second.
        assert_eq!(all_dead_until, Some(33));
        for _ in 0..10 {
            env.advance(Duration::from_millis(50));
            env.until_sleepers(1);
        }
        assert_eq!(dead(), 0);
    }

    #[test]
    fn wake_commits_without_a_move_of_the_clock() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = mount(env.clone());
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let before = engine.commit_stats().commits;
        fs.mkdir(&Context::root(), NodeId::ROOT, b"dir", 0o755).unwrap();
        env.until_sleepers(1);
        engine.background().wake();
        env.until_sleepers(1);
        assert_eq!(engine.commit_stats().commits, before + 1);
    }

    /// Runs operations, fsyncs and moves of the clock as `seed` has them. Returns the device as it
    /// is without an unmount, and how many commits there were.
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
        let engine = Mount::open(volume, env.clone(), options).unwrap();
        let fs = Fs::new(engine.clone(), MountOptions::default()).unwrap();
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
