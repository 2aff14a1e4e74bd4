//! Attributes that Linux takes from a reply after another call has changed them.
//!
//! Linux takes attributes from the reply to a LOOKUP, GETATTR or READDIRPLUS when the thread that
//! asked runs again, unless the inode's version was raised since it asked: by another reply with
//! attributes, a write, a notification. Calls whose replies have no attributes (a name comes or
//! goes, an extended attribute) only mark what they change as stale. If such a call begins and ends
//! before the other thread runs, the old attributes clear the mark, and stay for ever.
//!
//! So where another thread may still have such a reply before it, Linux is notified, which raises
//! the version. Either side looks for the other: the one that changes looks, after the change, for
//! threads that were told lately; the one that tells looks, after it has taken the attributes, for
//! changes since it began. At least one of the two sees the other.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU64, fence};

use cowshed_vfs::NodeId;
use rustix::time::{ClockId, clock_gettime};

/// A power of two. Nodes share slots: too much is notified then, never too little.
const SLOTS: usize = 1 << 12;

/// For so long a thread may wait for a processor with a reply before it, in milliseconds.
const WAIT_MAX_MS: u64 = 2000;

/// Threads that were told, in the place of one.
const SEVERAL: u32 = 0;

#[derive(Debug, Default)]
struct Slot {
    /// When attributes were last told ([`Told::now_ms`]), and the thread.
    told: AtomicU64,
    /// The number of the last change.
    changed: AtomicU64,
}

/// Which threads were told attributes lately, and what was changed.
#[derive(Debug)]
pub struct Told {
    slots: Box<[Slot]>,
    /// Of all nodes together.
    any: Slot,
    /// Changes so far.
    changes: AtomicU64,
}

/// A moment before attributes are taken.
#[derive(Clone, Copy, Debug)]
pub struct Begun(u64);

impl Default for Told {
    fn default() -> Told {
        Told {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            any: Slot::default(),
            changes: AtomicU64::new(0),
        }
    }
}

impl Told {
    fn slot(&self, node: NodeId) -> &Slot {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = node.0.wrapping_mul(SPREAD) >> (u64::BITS - SLOTS.trailing_zeros());
        &self.slots[hash as usize]
    }

    /// Milliseconds since the machine was started, in 32 bits of which none is ever told.
    fn now_ms() -> u64 {
        let now = clock_gettime(ClockId::MonotonicCoarse);
        (now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000) & u64::from(u32::MAX) | 1
    }

    /// Before attributes are taken.
    pub fn begin(&self) -> Begun {
        Begun(self.changes.load(SeqCst))
    }

    /// Attributes that were taken since `begun` are about to be told to a thread. True where they
    /// may be old.
    pub fn tell(&self, node: NodeId, thread: u32, begun: Begun) -> bool {
        let (slot, now) = (self.slot(node), Told::now_ms());
        for slot in [slot, &self.any] {
            let before = slot.told.swap(packed(now, thread), SeqCst);
            if is_by_another(before, now, thread) {
                slot.told.store(packed(now, SEVERAL), SeqCst);
            }
        }
        fence(SeqCst);
        [slot, &self.any].iter().any(|slot| slot.changed.load(SeqCst) > begun.0)
    }

    /// A node was changed on behalf of a thread. True where another one may still take attributes
    /// from before.
    pub fn change(&self, node: NodeId, thread: u32) -> bool {
        self.change_in(self.slot(node), thread)
    }

    /// A node that is not known yet was changed: [`Told::change`], as if it were any.
    pub fn change_one(&self, thread: u32) -> bool {
        self.change_in(&self.any, thread)
    }

    fn change_in(&self, slot: &Slot, thread: u32) -> bool {
        let number = self.changes.fetch_add(1, SeqCst) + 1;
        slot.changed.fetch_max(number, SeqCst);
        fence(SeqCst);
        is_by_another(slot.told.load(SeqCst), Told::now_ms(), thread)
    }
}

fn packed(now_ms: u64, thread: u32) -> u64 {
    now_ms << 32 | u64::from(thread)
}

fn is_by_another(told: u64, now_ms: u64, thread: u32) -> bool {
    let (at_ms, by) = (told >> 32, told as u32);
    // Never told: the time is odd.
    let is_lately = at_ms != 0 && (now_ms.wrapping_sub(at_ms) & u64::from(u32::MAX)) <= WAIT_MAX_MS;
    is_lately && (by == SEVERAL || by != thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(300);

    #[test]
    fn changes_see_those_that_were_told_before() {
        let told = Told::default();
        assert!(!told.change(A, 7), "nothing was told");
        assert!(!told.tell(A, 7, told.begin()));
        assert!(!told.change(A, 7), "the same thread has no reply before it");
        assert!(told.change(A, 8));
        assert!(!told.tell(A, 8, told.begin()));
        assert!(told.change(A, 8) && told.change(A, 7), "two were told");
    }

    #[test]
    fn those_that_tell_see_changes_since_they_began() {
        let told = Told::default();
        let begun = told.begin();
        assert!(!told.change(A, 8));
        assert!(told.tell(A, 7, begun));
        assert!(!told.tell(A, 7, told.begin()));
    }

    #[test]
    fn what_was_told_long_ago_does_not_count() {
        let at = |ms: u64| packed(ms | 1, 7);
        let now = (5 * WAIT_MAX_MS) | 1;
        assert!(is_by_another(at(now - 100), now, 8));
        assert!(!is_by_another(at(now - 2 * WAIT_MAX_MS), now, 8));
        assert!(!is_by_another(0, now, 8));
        let (end, start) = (u64::from(u32::MAX), 101);
        assert!(is_by_another(at(end), start, 8), "the clock's 32 bits ran over");
    }
}
