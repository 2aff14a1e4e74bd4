//! Reservations that find too little space wait in a line: the first makes space, and those that
//! come later cannot take it away.

use std::sync::atomic::{AtomicU32, Ordering};

use cowshed_runtime::lock::{Mutex, MutexGuard};

use crate::rank::LockRank;

/// The line of a volume.
#[derive(Debug)]
pub(super) struct Turns {
    turn: Mutex<()>,
    /// Those in the line, the first included.
    waiting: AtomicU32,
}

/// The first of the line, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    _turn: MutexGuard<'a, ()>,
    waiting: &'a AtomicU32,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            turn: Mutex::new(LockRank::SpaceTurn, ()),
            waiting: AtomicU32::new(0),
        }
    }
}

impl Turns {
    /// True while there is no line, so that a reservation may be tried at once.
    pub fn is_free(&self) -> bool {
        self.waiting.load(Ordering::Acquire) == 0
    }

    /// Waits in the line.
    pub fn wait(&self) -> Turn<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Turn {
            _turn: self.turn.lock(),
            waiting: &self.waiting,
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
