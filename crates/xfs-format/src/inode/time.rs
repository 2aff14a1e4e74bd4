//! Times of inodes: seconds and nanoseconds, or one counter of nanoseconds.

use crate::num::low_bits;

/// The counter of nanoseconds begins this many seconds before 1970.
pub const BIGTIME_EPOCH_SEC: i64 = 1 << 31;
const NSEC_PER_SEC: u64 = 1_000_000_000;

/// A point of time, from 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds; before 1970 they are negative.
    pub sec: i64,
    /// Nanoseconds within the second; above 999,999,999 where the volume is damaged.
    pub nsec: u32,
}

impl Timestamp {
    /// From a field of an inode.
    pub fn decode(raw: u64, is_bigtime: bool) -> Self {
        if is_bigtime {
            let (sec, nsec) = (raw / NSEC_PER_SEC, raw % NSEC_PER_SEC);
            return Self {
                sec: sec.cast_signed().saturating_sub(BIGTIME_EPOCH_SEC),
                nsec: u32::try_from(nsec).unwrap_or_default(),
            };
        }
        let sec = u32::try_from(raw >> 32).unwrap_or_default().cast_signed();
        Self {
            sec: sec.into(),
            nsec: u32::try_from(low_bits(raw, 32)).unwrap_or_default(),
        }
    }

    /// As a field of an inode. `None` for a time that the format cannot hold.
    pub fn encode(self, is_bigtime: bool) -> Option<u64> {
        if u64::from(self.nsec) >= NSEC_PER_SEC {
            return None;
        }
        if is_bigtime {
            let sec = u64::try_from(self.sec.checked_add(BIGTIME_EPOCH_SEC)?).ok()?;
            return sec.checked_mul(NSEC_PER_SEC)?.checked_add(self.nsec.into());
        }
        let sec = i32::try_from(self.sec).ok()?.cast_unsigned();
        Some(u64::from(sec) << 32 | u64::from(self.nsec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_hold_times_around_1970() {
        for is_bigtime in [false, true] {
            for time in [(0, 0), (-1, 999_999_999), (1_795_263_835, 5), (-(1 << 31), 0)] {
                let time = Timestamp {
                    sec: time.0,
                    nsec: time.1,
                };
                let raw = time.encode(is_bigtime).unwrap();
                assert_eq!(Timestamp::decode(raw, is_bigtime), time);
            }
        }
        assert_eq!(
            Timestamp { sec: 0, nsec: 0 }.encode(true),
            Some((1 << 31) * NSEC_PER_SEC)
        );
    }

    #[test]
    fn each_format_has_its_end() {
        let at = |sec| Timestamp { sec, nsec: 0 };
        assert_eq!(at(1 << 31).encode(false), None);
        assert!(at(1 << 31).encode(true).is_some());
        // July 2486.
        assert!(at(16_299_260_425).encode(true).is_some());
        assert_eq!(at(16_299_260_426).encode(true), None);
        assert_eq!(at(-(1 << 31) - 1).encode(true), None);
        assert_eq!(
            Timestamp {
                sec: 0,
                nsec: 1_000_000_000
            }
            .encode(true),
            None
        );
    }
}
