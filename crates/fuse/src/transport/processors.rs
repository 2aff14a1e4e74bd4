//! Processors, and threads that belong to one.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// How many processors the kernel counts, those included that are not there now: as many queues
/// does it have.
pub fn possible() -> usize {
    let listed = std::fs::read_to_string("/sys/devices/system/cpu/possible");
    let last = listed.ok().and_then(|text| {
        let last = text.trim().rsplit([',', '-']).next()?;
        last.parse::<usize>().ok()
    });
    last.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |last| last + 1,
    )
}

/// The processors that this thread may run on. None: unknown.
pub fn allowed() -> Option<CpuSet> {
    sched_getaffinity(None).ok()
}

/// Where a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where the scheduler likes.
    Anywhere,
    /// On its own processor.
    Home,
    /// On any other one.
    Away,
}

/// Moves a thread between a processor, its home, and the others.
#[derive(Debug)]
pub struct Mover {
    /// None: the thread that moves.
    thread: Option<Pid>,
    home: usize,
    allowed: Option<CpuSet>,
    at: Place,
}

impl Mover {
    /// For this thread.
    pub fn new(home: usize) -> Mover {
        Mover {
            thread: None,
            home,
            allowed: allowed(),
            at: Place::Anywhere,
        }
    }

    /// For another thread of this process, to be moved by whichever thread has the value.
    pub fn of(thread: Pid) -> Mover {
        Mover {
            thread: Some(thread),
            home: CpuSet::MAX_CPU,
            allowed: sched_getaffinity(Some(thread)).ok(),
            at: Place::Anywhere,
        }
    }

    /// Moves the thread to another home.
    pub fn go_home(&mut self, home: usize) {
        if self.home != home {
            (self.home, self.at) = (home, Place::Anywhere);
        }
        self.go(Place::Home);
    }

    /// Moves the thread. Where it may not go there, it stays.
    pub fn go(&mut self, place: Place) {
        if self.at == place {
            return;
        }
        self.at = place;
        let Some(set) = self.set(place) else { return };
        if let Err(error) = sched_setaffinity(self.thread, &set) {
            tracing::debug!(%error, ?place, "a thread stays on its processor");
        }
    }

    /// The processors of a place, if the thread may run on any of them.
    fn set(&self, place: Place) -> Option<CpuSet> {
        let mut set = self.allowed?;
        if self.home >= CpuSet::MAX_CPU {
            return None;
        }
        match place {
            Place::Anywhere => {}
            Place::Home if set.is_set(self.home) => {
                set.clear();
                set.set(self.home);
            }
            Place::Home => {}
            Place::Away => set.unset(self.home),
        }
        (set.count() > 0).then_some(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_where_it_may() {
        let mut allowed = CpuSet::new();
        allowed.set(1);
        allowed.set(2);
        let of = |home, place| {
            let mover = Mover {
                thread: None,
                home,
                allowed: Some(allowed),
                at: Place::Anywhere,
            };
            let set = mover.set(place)?;
            Some((0..8).filter(|&processor| set.is_set(processor)).collect::<Vec<_>>())
        };
        assert_eq!(of(1, Place::Home), Some(vec![1]));
        assert_eq!(of(1, Place::Away), Some(vec![2]));
        assert_eq!(of(0, Place::Home), Some(vec![1, 2]), "not there: anywhere");
        assert_eq!(of(0, Place::Away), Some(vec![1, 2]));
        assert_eq!(of(CpuSet::MAX_CPU, Place::Home), None);
        allowed.unset(2);
        assert_eq!(allowed.count(), 1);
    }

    #[test]
    fn there_is_a_processor() {
        assert!(possible() >= 1);
    }
}
