//! What the engine takes from the world: time, randomness and the number of processors. Handed in, so that a simulator
//! can hold them still.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::time::Timestamp;

/// The world as the engine sees it.
pub trait Env: Send + Sync {
    /// Wall-clock time, for file times.
    fn now(&self) -> Timestamp;
    /// Fills `bytes` with randomness, for uuids.
    fn random(&self, bytes: &mut [u8]);
    /// How many processors may work for one caller. One: everything happens in an order that repeats.
    fn processors(&self) -> usize {
        1
    }
}

/// The real clock and the system's random numbers.
#[derive(Debug, Default)]
pub struct SystemEnv;

impl Env for SystemEnv {
    fn now(&self) -> Timestamp {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(d) => Timestamp {
                secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
                nanos: d.subsec_nanos(),
            },
            Err(_) => Timestamp { secs: 0, nanos: 0 },
        }
    }

    fn processors(&self) -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    fn random(&self, bytes: &mut [u8]) {
        use std::io::Read as _;
        let read = std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(bytes));
        assert!(read.is_ok(), "the system's random numbers are always there");
    }
}

/// A clock that advances one microsecond per look and a counter for dice: for tests that must repeat.
#[derive(Debug, Default)]
pub struct FixedEnv {
    ticks: AtomicU64,
}

impl Env for FixedEnv {
    fn now(&self) -> Timestamp {
        let micros = self.ticks.fetch_add(1, Ordering::Relaxed);
        let secs = 1_700_000_000 + i64::try_from(micros / 1_000_000).unwrap_or(0);
        Timestamp {
            secs,
            nanos: u32::try_from(micros % 1_000_000).unwrap_or(0) * 1000,
        }
    }

    fn random(&self, bytes: &mut [u8]) {
        let mut x = self
            .ticks
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        for b in bytes {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *b = (x >> 32) as u8;
        }
    }
}
