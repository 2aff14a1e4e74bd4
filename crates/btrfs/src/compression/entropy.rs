//! Is it worth trying to compress? A look at a sample, in steps that cost more and more, as the
//! btrfs documentation describes them ("Compression", pre-compression heuristics): repetition,
//! number of byte values, how many of them make up most of the sample, and Shannon's entropy. Sizes
//! and bounds are those that the kernel's developers have published with it; where they leave room,
//! the answers are those that were watched on Linux 6.18 ([`ENTROPY_QUARTERS_MAX`]).
//!
//! Wrong answers cost time or space, never data.

/// So many bytes are looked at ...
const SAMPLE_BYTES: usize = 16;
/// ... of so many.
const SAMPLE_EVERY_BYTES: usize = 256;
/// Counters that take turns: of a byte that comes often, one alone would wait for its last change
/// each time.
const TABLES: usize = 4;
/// Fewer byte values than this, a quarter of all: text, or something like it.
const FEW_VALUES: usize = 64;
/// The most frequent values that together are just below [`CORE_SHARE_PERCENT`] of the sample: up
/// to so many, a quarter of all, compress well, ...
const CORE_SMALL: usize = 64;
/// ... from so many on, about four fifths, they do not.
const CORE_LARGE: usize = 200;
const CORE_SHARE_PERCENT: usize = 90;
/// Quarters of bits of information per byte up to which something may be gained: the last that is
/// less than 80 % of 8 bits. Logarithms are in whole quarters, rounded down, and so is their mean:
/// what counts as 25 is up to about 6.36 bits. So it was watched with bytes of 60 to 128 values,
/// and with frequent ones among others.
const ENTROPY_QUARTERS_MAX: u64 = 25;

/// True where compressing the data may gain something.
pub fn looks_compressible(data: &[u8]) -> bool {
    if is_repeating(data) {
        return true;
    }
    let (mut counts, total) = count(data);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let used = counts.partition_point(|count| *count > 0);
    if used < FEW_VALUES {
        return true;
    }
    let mut covered = 0;
    let core = counts[..used]
        .iter()
        .take_while(|count| {
            covered += **count;
            covered * 100 < total * CORE_SHARE_PERCENT
        })
        .count();
    if core <= CORE_SMALL || core >= CORE_LARGE {
        return core <= CORE_SMALL;
    }
    entropy_quarters(&counts[..used], total) <= ENTROPY_QUARTERS_MAX
}

/// How often each byte value is in the samples, and their bytes in all.
fn count(data: &[u8]) -> ([usize; 256], usize) {
    // Loads that do not wait for each other: the counting below sees one miss after the other.
    let touched = samples(data).fold(0, |all, sample| all ^ sample[0]);
    std::hint::black_box(touched);
    let mut tables = [[0_u32; 256]; TABLES];
    let mut total = 0;
    for sample in samples(data) {
        total += sample.len();
        for bytes in sample.chunks(TABLES) {
            for (table, byte) in tables.iter_mut().zip(bytes) {
                table[usize::from(*byte)] += 1;
            }
        }
    }
    let of = |value: usize| tables.iter().map(|table| table[value] as usize).sum();
    (std::array::from_fn(of), total)
}

fn samples(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.chunks(SAMPLE_EVERY_BYTES)
        .map(|stretch| &stretch[..stretch.len().min(SAMPLE_BYTES)])
}

/// The second half is the first one again, as far as samples tell.
fn is_repeating(data: &[u8]) -> bool {
    let (first, second) = data.split_at(data.len() / 2);
    !first.is_empty() && samples(first).zip(samples(second)).all(|(a, b)| a == b)
}

/// The logarithm to base 2 in whole quarters: that of the fourth power.
fn log_quarters(count: usize) -> u64 {
    // Samples have some thousand bytes.
    u64::from((count as u64).pow(4).ilog2())
}

/// Shannon's entropy per byte, in whole quarters of a bit.
fn entropy_quarters(counts: &[usize], total: usize) -> u64 {
    let all = log_quarters(total);
    let sum: u64 = counts
        .iter()
        .map(|count| *count as u64 * (all - log_quarters(*count)))
        .sum();
    sum / total as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Dice;

    fn noise(seed: u64, values: u64, len: usize) -> Vec<u8> {
        let mut dice = Dice::new(seed);
        (0..len).map(|_| dice.below(values) as u8).collect()
    }

    #[test]
    fn noise_is_left_alone_and_the_rest_is_tried() {
        const LEN: usize = 128 << 10;
        assert!(!looks_compressible(&noise(1, 256, LEN)));
        assert!(looks_compressible(&noise(1, 40, LEN)), "few values");
        assert!(looks_compressible(&[0; LEN]));
        let half = noise(2, 256, LEN / 2);
        assert!(looks_compressible(&[&half[..], &half].concat()), "repeats itself");
        // Half of the bytes are zero, the rest is noise: 5 bits per byte.
        let mut mixed = noise(3, 256, LEN);
        mixed.iter_mut().step_by(2).for_each(|b| *b = 0);
        assert!(looks_compressible(&mixed));
        // Pages of noise, each with a header.
        let mut pages = noise(6, 256, LEN);
        pages.chunks_mut(4096).for_each(|page| page[..256].fill(0));
        assert!(!looks_compressible(&pages));
        // As watched.
        for (values, is_tried) in [(64, true), (72, true), (82, true), (86, false), (128, false)] {
            assert_eq!(
                looks_compressible(&noise(values, values, LEN)),
                is_tried,
                "{values} values"
            );
        }
        // A slant that hardly pays: 160 values, all as frequent, 7.3 bits.
        assert!(!looks_compressible(&noise(4, 160, LEN)));
        for len in [0, 1, 15, 16, 4095, 4096] {
            looks_compressible(&noise(5, 256, len));
        }
    }
}
