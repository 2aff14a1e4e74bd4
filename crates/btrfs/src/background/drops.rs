//! When deleted subvolumes are looked at, dropped step by step, and freed in memory.

use std::time::Duration;

use cowshed_runtime::Inbox;

use crate::object::{Remaining, Taken};
use crate::requests::Wants;

/// Between two looks at whether a step of dropping a subvolume may come.
pub(super) const DROP_PAUSE: Duration = Duration::from_millis(2);

/// Fsyncs and commits of others between two steps. Of the fsyncs of a program two are delayed by a
/// step: one waits for the drop itself, the next for the rest of the commit. That is one in five
/// hundred.
const SYNCS_BETWEEN_DROPS: u64 = 1000;

/// As long as this at most, where others sync.
const DROP_PAUSE_MAX: Duration = Duration::from_millis(250);

/// After so long without an fsync or commit of others, there are none to give way to. Much longer
/// than one fsync takes, also where it waits for the device or a processor.
const SYNC_LULL: Duration = Duration::from_millis(25);

/// Between two looks at a deleted subvolume that is in use.
pub(super) const IN_USE_PAUSE: Duration = Duration::from_secs(1);

/// Between two looks at a deleted subvolume while Linux forgets its inodes. Doubled after each look
/// at which it has forgotten none since the one before.
const EMPTIED_PAUSE: Duration = Duration::from_millis(50);

/// Inodes of deleted subvolumes that are freed in one step, and beside fsyncs: those take 10 us.
const UNLOADED_AT_ONCE: usize = 1024;
const UNLOADED_BESIDE_SYNCS: usize = 64;

/// Between two such steps.
const UNLOAD_PAUSE: Duration = Duration::from_millis(2);

/// When a step of dropping subvolumes is to be thought of.
#[derive(Debug, Default)]
pub(super) struct DropDue {
    pub(super) step: Option<Duration>,
    /// The look whether deletions have paused.
    deletions: Option<Duration>,
    /// Before the last look at deleted subvolumes that are in use; zero where there was none since
    /// the last deletion.
    look_pause: Duration,
}

impl DropDue {
    pub(super) fn next(&self) -> Duration {
        let all = [self.step, self.deletions].into_iter().flatten();
        all.min().unwrap_or(Duration::MAX)
    }

    pub(super) fn note(&mut self, wants: &Wants, inbox: &Inbox<Wants>) {
        let now = inbox.monotonic();
        if let Some(deletions) = wants.deletions {
            let due = deletions.due();
            self.deletions = Some(self.deletions.map_or(due, |at| at.min(due)));
            self.look_pause = Duration::ZERO;
        }
        if self.deletions.is_some_and(|at| now >= at) {
            self.deletions = inbox.with(|wants| pause_of_deletions(wants, now));
            if self.deletions.is_none() {
                self.step = Some(now);
            }
        }
        if wants.drop {
            // Sooner than the next look at one that is in use.
            let soon = now.saturating_add(DROP_PAUSE);
            self.step = Some(self.step.map_or(soon, |due| due.min(soon)));
        }
    }

    /// Deleted subvolumes were looked at.
    pub(super) fn looked(&mut self, remaining: Remaining, now: Duration) {
        self.look_pause = match remaining {
            Remaining::None => Duration::ZERO,
            Remaining::BeingEmptied => EMPTIED_PAUSE,
            Remaining::InUse => (2 * self.look_pause).clamp(EMPTIED_PAUSE, IN_USE_PAUSE),
        };
        self.step = (remaining != Remaining::None).then(|| now.saturating_add(self.look_pause));
    }
}

/// When to look again whether deletions have paused; `None`: they have, or went on for long.
fn pause_of_deletions(wants: &mut Wants, now: Duration) -> Option<Duration> {
    let due = wants.deletions.as_ref()?.due();
    if now < due {
        return Some(due);
    }
    wants.deletions = None;
    None
}

/// When steps of dropping subvolumes come: one after the other where there are no fsyncs, rarely
/// where there are.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// When the last one was over, and [`holds`](btrfs_store::txn::Txn::holds) then.
    last: Duration,
    holds_then: u64,
    /// Those at the last look.
    holds_seen: u64,
    /// The last look at which others had synced since the one before, unless it is long ago.
    synced: Option<Duration>,
}

impl Steps {
    pub(super) fn may_come(&mut self, now: Duration, holds: u64) -> bool {
        if holds != self.holds_seen {
            (self.holds_seen, self.synced) = (holds, Some(now));
        }
        // During a step they wait for it.
        let is_over = |at: Duration| now.saturating_sub(at.max(self.last)) >= SYNC_LULL;
        self.synced = self.synced.filter(|at| !is_over(*at));
        self.synced.is_none()
            || holds.saturating_sub(self.holds_then) >= SYNCS_BETWEEN_DROPS
            || now.saturating_sub(self.last) >= DROP_PAUSE_MAX
    }

    /// The fsync or commit that was last seen belongs to a call that waits for the drop.
    pub(super) fn hurry(&mut self, holds: u64) {
        (self.holds_seen, self.synced) = (holds, None);
    }

    pub(super) fn came(&mut self, now: Duration, holds: u64) {
        (self.last, self.holds_then, self.holds_seen) = (now, holds, holds);
    }
}

/// Inodes of deleted subvolumes, freed some at a time: the allocations that come next, of whatever
/// thread, sort what is freed.
#[derive(Debug, Default)]
pub(super) struct Unloading {
    gone: Vec<Taken>,
    due: Duration,
    /// Fsyncs and commits until the last step.
    seen: u64,
}

impl Unloading {
    pub(super) fn next(&self) -> Duration {
        match self.gone.is_empty() {
            true => Duration::MAX,
            false => self.due,
        }
    }

    pub(super) fn add(&mut self, gone: Vec<Taken>, now: Duration) {
        match self.gone.is_empty() {
            true => self.gone = gone,
            false => self.gone.extend(gone),
        }
        self.due = now;
    }

    /// True where nothing is left.
    pub(super) fn step(&mut self, now: Duration, holds: u64) -> bool {
        let some = match std::mem::replace(&mut self.seen, holds) == holds {
            true => UNLOADED_AT_ONCE,
            false => UNLOADED_BESIDE_SYNCS,
        };
        let left = self.gone.len().saturating_sub(some);
        self.gone.truncate(left);
        if self.gone.is_empty() {
            self.gone = Vec::new();
        }
        self.due = now.saturating_add(UNLOAD_PAUSE);
        self.gone.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use cowshed_runtime::ManualEnv;

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::{Fs, MountOptions};
    use crate::mount::Mount;
    use crate::testing::memory_volume;

    #[test]
    fn a_deleted_subvolume_is_looked_at_soon_while_its_users_become_fewer() {
        let env = Arc::new(ManualEnv::new(1));
        let engine = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        let _shown = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let subvol = engine.objects().subvols.read().values().next().unwrap().clone();
        let mut users = vec![subvol.clone(); 5];
        assert!(!subvol.is_being_emptied(), "nothing to compare with yet");
        assert!(!subvol.is_being_emptied());
        users.truncate(3);
        assert!(subvol.is_being_emptied());
        assert!(!subvol.is_being_emptied(), "as many as before");

        let mut due = DropDue::default();
        let mut pause = |remaining| {
            due.looked(remaining, Duration::ZERO);
            due.step
        };
        assert_eq!(pause(Remaining::InUse), Some(EMPTIED_PAUSE));
        assert_eq!(pause(Remaining::InUse), Some(2 * EMPTIED_PAUSE));
        assert_eq!(pause(Remaining::BeingEmptied), Some(EMPTIED_PAUSE));
        let longest = (0..10).filter_map(|_| pause(Remaining::InUse)).last();
        assert_eq!(longest, Some(IN_USE_PAUSE));
        assert_eq!(pause(Remaining::None), None);
        assert_eq!(pause(Remaining::InUse), Some(EMPTIED_PAUSE));
    }

    /// A pause of a few milliseconds between two fsyncs does not bring a step.
    #[test]
    fn steps_of_a_drop_follow_each_other_and_come_rarely_beside_fsyncs() {
        let ms = Duration::from_millis;
        let mut steps = Steps::default();
        assert!(steps.may_come(ms(1), 0));
        steps.came(ms(10), 1);
        assert!(steps.may_come(ms(12), 1), "no fsyncs");
        steps.came(ms(20), 2);
        assert!(!steps.may_come(ms(22), 3), "an fsync");
        assert!(!steps.may_come(ms(24), 3), "a pause between two");
        assert!(!steps.may_come(ms(46), 4));
        assert!(!steps.may_come(ms(70), 4));
        assert!(steps.may_come(ms(71), 4), "no more fsyncs");
        steps.came(ms(80), 5);
        assert!(!steps.may_come(ms(82), 5 + SYNCS_BETWEEN_DROPS - 1));
        assert!(steps.may_come(ms(84), 5 + SYNCS_BETWEEN_DROPS));
        steps.came(ms(86), 2000);
        assert!(!steps.may_come(ms(88), 2001), "an fsync");
        steps.came(ms(150), 2001);
        assert!(!steps.may_come(ms(152), 2001), "it waited for a long step");
        assert!(steps.may_come(ms(175), 2001), "and was the last");
        steps.came(ms(205), 2001);
        assert!(steps.may_come(ms(207), 2001));
        assert!(!steps.may_come(ms(208), 2002), "an fsync");
        steps.hurry(2003);
        assert!(steps.may_come(ms(209), 2003));
        steps = Steps::default();
        steps.came(ms(90), 2000);
        let mut at = ms(90);
        while !steps.may_come(at, 2000 + at.as_millis() as u64) {
            at += DROP_PAUSE;
        }
        assert_eq!(at, ms(90) + DROP_PAUSE_MAX);
    }

    #[test]
    fn objects_are_freed_in_small_steps_beside_fsyncs() {
        let engine = Mount::open(
            memory_volume(16384),
            Arc::new(ManualEnv::new(1)),
            EngineOptions::default(),
        )
        .unwrap();
        let shown = Fs::new(engine.clone(), MountOptions::default()).unwrap();
        let root = shown.inode(cowshed_vfs::NodeId::ROOT).unwrap();
        let before = Arc::strong_count(&root);
        let left = || Arc::strong_count(&root) - before;
        let mut unloading = Unloading::default();
        assert_eq!(unloading.next(), Duration::MAX);
        let now = Duration::from_secs(1);
        let taken = |count| (0..count).map(|_| Taken::new(root.clone())).collect();
        unloading.add(taken(3000), now);
        unloading.add(taken(100), now);
        assert_eq!((unloading.next(), left()), (now, 3100));
        unloading.step(now, 7);
        assert_eq!(
            (unloading.next(), left()),
            (now + UNLOAD_PAUSE, 3100 - UNLOADED_BESIDE_SYNCS)
        );
        assert!(!unloading.step(now, 7));
        assert_eq!(left(), 3100 - UNLOADED_BESIDE_SYNCS - UNLOADED_AT_ONCE);
        assert!(!unloading.step(now, 7) && unloading.step(now, 7));
        assert_eq!((unloading.next(), left()), (Duration::MAX, 0));
        assert_eq!(root.subvol.unloading.load(Ordering::Relaxed), 0);
    }
}
