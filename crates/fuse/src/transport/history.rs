//! Whether something has been the case, of late.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

/// The last eight times, 1 where it was the case. It was, until it was not a few times.
#[derive(Debug)]
pub struct History(AtomicU8);

impl Default for History {
    fn default() -> History {
        History(AtomicU8::new(0xff))
    }
}

impl History {
    /// Half of the time or more often.
    pub fn is_usual(&self) -> bool {
        self.0.load(Relaxed).count_ones() >= 4
    }

    /// Two threads at once may lose one of their notes.
    pub fn note(&self, was: bool) {
        let before = self.0.load(Relaxed);
        let after = before << 1 | u8::from(was);
        if after != before {
            self.0.store(after, Relaxed);
        }
    }
}
