//! What a field may hold, as a value: checks are written with it, errors quote it.

use std::fmt;

/// A bound on one number of the disk format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// This value alone.
    Equal(u64),
    /// One of these values.
    OneOf(&'static [u64]),
    /// Any value but zero.
    NonZero,
    /// This value or a larger one.
    AtLeast(u64),
    /// This value or a smaller one.
    AtMost(u64),
    /// From the first value to the second, both included.
    Between(u64, u64),
    /// A multiple of a power of two.
    AlignedTo(u64),
    /// A multiple of any number, and not zero.
    MultipleOf(u64),
    /// Exactly one bit.
    PowerOfTwo,
    /// No bit outside of the mask.
    KnownBits(u64),
    /// Exactly one bit of the mask.
    OneBitOf(u64),
    /// At most one bit of the mask.
    OneBitAtMostOf(u64),
}

impl Rule {
    /// True where `found` keeps the rule. Nearly all callers name the rule in the call itself: once
    /// this is inlined, a single comparison is left of the match.
    #[inline(always)]
    pub fn holds(self, found: u64) -> bool {
        match self {
            Self::Equal(value) => found == value,
            Self::OneOf(values) => values.contains(&found),
            Self::NonZero => found != 0,
            Self::AtLeast(least) => found >= least,
            Self::AtMost(most) => found <= most,
            Self::Between(least, most) => (least..=most).contains(&found),
            Self::AlignedTo(unit) => found & unit.wrapping_sub(1) == 0,
            Self::MultipleOf(unit) => found != 0 && found.checked_rem(unit) == Some(0),
            Self::PowerOfTwo => found.is_power_of_two(),
            Self::KnownBits(mask) => found & !mask == 0,
            Self::OneBitOf(mask) => (found & mask).is_power_of_two(),
            Self::OneBitAtMostOf(mask) => found & mask == 0 || (found & mask).is_power_of_two(),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal(value) => write!(f, "expected {value}"),
            Self::OneOf(values) => write!(f, "expected one of {values:?}"),
            Self::NonZero => f.write_str("must not be zero"),
            Self::AtLeast(least) => write!(f, "must be at least {least}"),
            Self::AtMost(most) => write!(f, "limit {most}"),
            Self::Between(least, most) => write!(f, "expected {least} to {most}"),
            Self::AlignedTo(unit) => write!(f, "must be aligned to {unit}"),
            Self::MultipleOf(unit) => write!(f, "expected a multiple of {unit}, not zero"),
            Self::PowerOfTwo => f.write_str("expected a power of two"),
            Self::KnownBits(mask) => write!(f, "known bits {mask:#x}"),
            Self::OneBitOf(mask) => write!(f, "expected one bit of {mask:#x}"),
            Self::OneBitAtMostOf(mask) => write!(f, "expected at most one bit of {mask:#x}"),
        }
    }
}

/// A length in memory as a number of the format.
#[inline]
pub fn len_u64(data: &[u8]) -> u64 {
    u64::try_from(data.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_hold_at_their_edges_and_break_beyond() {
        let cases: &[(Rule, &[u64], &[u64])] = &[
            (Rule::Equal(3), &[3], &[2, 4]),
            (Rule::OneOf(&[1, 4]), &[1, 4], &[0, 2]),
            (Rule::NonZero, &[1, u64::MAX], &[0]),
            (Rule::AtLeast(2), &[2, 3], &[1]),
            (Rule::AtMost(2), &[0, 2], &[3]),
            (Rule::Between(2, 4), &[2, 4], &[1, 5]),
            (Rule::AlignedTo(8), &[0, 8, 16], &[4, 9]),
            (Rule::MultipleOf(28), &[28, 56], &[0, 27, 29]),
            (Rule::PowerOfTwo, &[1, 64], &[0, 3]),
            (Rule::KnownBits(5), &[0, 1, 4, 5], &[2, 7]),
            (Rule::OneBitOf(6), &[2, 4, 3], &[0, 1, 6]),
            (Rule::OneBitAtMostOf(6), &[0, 1, 2, 4], &[6, 7]),
        ];
        for (rule, good, bad) in cases {
            assert!(good.iter().all(|&found| rule.holds(found)), "{rule:?}");
            assert!(bad.iter().all(|&found| !rule.holds(found)), "{rule:?}");
        }
    }
}
