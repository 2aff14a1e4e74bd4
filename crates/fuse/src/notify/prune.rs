//! The kernel forgets the nodes of a deleted subvolume, in small pieces.
//!
//! Dropping the name of a directory makes the kernel evict all that it remembers below, in one
//! call: of a million files two seconds of a processor, in which it holds the lock of the directory
//! above, and which come with a million FORGETs. A program beside that waits for time slices. So
//! the name only expires at once, and a thread of low priority names the nodes below to the kernel,
//! some at a time, with pauses while programs use the mount. The subvolume itself may be gone by
//! then ([`super::held`]).

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use cowshed_vfs::Remembered;

use super::notifier::Notifier;
use crate::server::InFlight;
use crate::sys;

/// Nodes of one notification: some 150 us of a processor, in which a kernel without preemption runs
/// nothing else there.
const BATCH: usize = 64;

/// After each notification while programs use the mount. The kernel frees the memory of nodes some
/// milliseconds later, all that were evicted meanwhile at once, and delays programs as long.
const PAUSE: Duration = Duration::from_millis(2);

/// A mount without requests for so long is not in use, unless a program waits for an answer.
const LULL: Duration = Duration::from_millis(100);

/// After the last notification of a round, and between rounds at least: FORGETs come later than
/// evictions. The wait doubles while processes still use nodes, up to the other bound.
const ROUND_WAIT_MIN: Duration = Duration::from_millis(100);
const ROUND_WAIT_MAX: Duration = Duration::from_secs(10);

/// A deleted subvolume of which the kernel remembers nodes.
pub struct Gone {
    pub remembered: Remembered,
    /// Drops all at once, by the name: where the kernel refuses the notification.
    pub otherwise: Box<dyn FnOnce() + Send>,
}

/// Takes deleted subvolumes until no more can come.
pub fn run(notifier: &Notifier, in_flight: &InFlight, gone: &Receiver<Gone>) {
    sys::lower_priority();
    let mut open: Vec<Gone> = Vec::new();
    let mut wait = ROUND_WAIT_MIN;
    loop {
        let more = match open.is_empty() {
            true => gone.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => gone.recv_timeout(wait),
        };
        match more {
            Ok(one) => {
                open.push(one);
                wait = ROUND_WAIT_MIN;
            }
            Err(RecvTimeoutError::Timeout) => wait = (wait * 2).min(ROUND_WAIT_MAX),
            Err(RecvTimeoutError::Disconnected) => return,
        }
        open = open
            .into_iter()
            .filter_map(|one| round(notifier, in_flight, one))
            .collect();
    }
}

/// Names all nodes of a subvolume that are remembered. None where nothing is left to do.
fn round(notifier: &Notifier, in_flight: &InFlight, gone: Gone) -> Option<Gone> {
    let (mut seen, mut used) = (in_flight.awaited(), Instant::now());
    let nodes = (gone.remembered)();
    for batch in nodes.chunks(BATCH) {
        if let Err(error) = notifier.prune(batch) {
            if error.kind() != std::io::ErrorKind::NotConnected {
                tracing::debug!(%error, "nodes of a deleted subvolume are dropped at once");
                (gone.otherwise)();
            }
            return None;
        }
        let awaited = in_flight.awaited();
        if awaited != seen {
            (seen, used) = (awaited, Instant::now());
        }
        match used.elapsed() < LULL {
            true => std::thread::sleep(PAUSE),
            false => std::thread::yield_now(),
        }
    }
    (!nodes.is_empty()).then_some(gone)
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;
    use std::sync::mpsc;

    use cowshed_vfs::NodeId;

    use super::*;

    /// What a round leaves with a notifier of this protocol and no session, and whether all was
    /// dropped at once.
    fn after_round(minor: u32, nodes: Vec<NodeId>) -> (bool, bool) {
        let (dropped, was_dropped) = mpsc::channel();
        let gone = Gone {
            remembered: Box::new(move || nodes.clone()),
            otherwise: Box::new(move || dropped.send(()).unwrap()),
        };
        let notifier = Notifier::new(Weak::new(), minor);
        let is_left = round(&notifier, &InFlight::new(1), gone).is_some();
        (is_left, was_dropped.try_recv().is_ok())
    }

    #[test]
    fn all_is_dropped_at_once_where_the_kernel_refuses_and_nothing_after_the_session() {
        let nodes = vec![NodeId(2), NodeId(3)];
        assert_eq!(after_round(44, nodes.clone()), (false, true));
        assert_eq!(after_round(45, nodes), (false, false));
        assert_eq!(after_round(44, Vec::new()), (false, false), "nothing is left to do");
    }
}
