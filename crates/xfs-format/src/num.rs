//! Conversions between the format's widths and lengths in memory.

/// A number of the format as a length in memory.
pub(crate) fn to_len(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Shifts left; 0 where bits would fall off the end of 64 bits or the shift is 64 or more.
pub(crate) fn shl(n: u64, bits: u8) -> u64 {
    if u32::from(bits) > n.leading_zeros() {
        return 0;
    }
    n.checked_shl(bits.into()).unwrap_or(0)
}

/// Shifts right; 0 where the shift is 64 or more.
pub(crate) fn shr(n: u64, bits: u8) -> u64 {
    n.checked_shr(bits.into()).unwrap_or(0)
}

/// The low `bits` bits.
pub(crate) fn low_bits(n: u64, bits: u8) -> u64 {
    if bits >= 64 {
        return n;
    }
    n & 1u64.wrapping_shl(bits.into()).wrapping_sub(1)
}

/// The least `n` with `2^n >= value`.
pub(crate) fn log2_up(value: u64) -> u8 {
    let bits = u64::BITS.saturating_sub(value.saturating_sub(1).leading_zeros());
    u8::try_from(bits).unwrap_or(u8::MAX)
}

/// How many structures fit so many bytes.
pub(crate) fn count_of<T>(bytes: usize) -> usize {
    bytes.checked_div(size_of::<T>()).unwrap_or_default()
}

/// Rounds up to a multiple of a power of two.
pub(crate) fn round_up(n: usize, unit: usize) -> usize {
    n.saturating_add(unit.wrapping_sub(1)) & !unit.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_do_not_wrap() {
        assert_eq!((shl(3, 4), shl(1, 63), shl(1, 64), shl(2, 63)), (48, 1 << 63, 0, 0));
        assert_eq!((shr(48, 4), shr(1, 64)), (3, 0));
        assert_eq!((low_bits(0xff, 4), low_bits(7, 64), low_bits(7, 0)), (15, 7, 0));
    }

    #[test]
    fn rounding_goes_up() {
        assert_eq!([1, 2, 3, 4, 5, 20480].map(log2_up), [0, 1, 2, 2, 3, 15]);
        assert_eq!((round_up(9, 8), round_up(8, 8), round_up(0, 8)), (16, 8, 0));
    }
}
