//! Numbers without surprises, and the hash of multisets.

/// A count in memory as a number of the format.
pub(crate) fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A number of the format as a count in memory; too large a number becomes the largest.
pub(crate) fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// `value` rounded up to a multiple of `unit`, a power of two; saturates.
pub(crate) fn round_up(value: u64, unit: u64) -> u64 {
    let mask = unit.saturating_sub(1);
    value.saturating_add(mask) & !mask
}

pub(crate) fn is_aligned(value: u64, unit: u64) -> bool {
    value & unit.saturating_sub(1) == 0
}

const MIX: [u64; 3] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb];

/// A hash whose sums (wrapping) identify multisets: two that differ have different sums but for
/// chance.
#[derive(Clone, Copy)]
pub(crate) struct SetHash {
    a: u64,
    b: u64,
}

impl SetHash {
    pub(crate) fn new() -> Self {
        Self { a: MIX[0], b: MIX[1] }
    }
    pub(crate) fn word(mut self, word: u64) -> Self {
        self.a = (self.a ^ word).wrapping_mul(MIX[1]);
        self.a ^= self.a >> 31;
        self.b = (self.b.rotate_left(23) ^ word.wrapping_mul(MIX[2])).wrapping_mul(MIX[0]);
        self.b ^= self.b >> 29;
        self
    }
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        for part in bytes.chunks(8) {
            let word = part.iter().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
            self = self.word(word);
        }
        self.word(count(bytes.len()))
    }
    pub(crate) fn sum(self) -> u128 {
        let done = self.word(MIX[2]);
        u128::from(done.a) << 64 | u128::from(done.b)
    }
}
