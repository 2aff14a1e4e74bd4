//! Points in time.

use std::time::{SystemTime, UNIX_EPOCH};

/// A point in time: seconds since 1970 UTC (may be negative) and nanoseconds below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970 UTC.
    pub secs: i64,
    /// Nanoseconds since that second, below 10^9.
    pub nanos: u32,
}

impl Timestamp {
    /// So many seconds and nanoseconds after 1970 began.
    pub const fn new(secs: i64, nanos: u32) -> Timestamp {
        Timestamp { secs, nanos }
    }
}

impl From<SystemTime> for Timestamp {
    fn from(t: SystemTime) -> Self {
        match t.duration_since(UNIX_EPOCH) {
            Ok(d) => Timestamp::new(d.as_secs() as i64, d.subsec_nanos()),
            Err(before) => {
                let d = before.duration();
                match d.subsec_nanos() {
                    0 => Timestamp::new(-(d.as_secs() as i64), 0),
                    n => Timestamp::new(-(d.as_secs() as i64) - 1, 1_000_000_000 - n),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_before_the_epoch_keep_nanos_positive() {
        let t = UNIX_EPOCH - Duration::new(1, 250_000_000);
        assert_eq!(Timestamp::from(t), Timestamp::new(-2, 750_000_000));
        assert_eq!(
            Timestamp::from(UNIX_EPOCH - Duration::from_secs(3)),
            Timestamp::new(-3, 0)
        );
        assert_eq!(Timestamp::from(UNIX_EPOCH + Duration::new(5, 6)), Timestamp::new(5, 6));
    }
}
