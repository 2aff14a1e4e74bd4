//! Is it worth trying to compress? A look at a sample, in steps that cost more and more, as the btrfs documentation
//! describes them ("Compression", pre-compression heuristics): repetition, number of byte values, how many of them
//! make up most of the sample, and Shannon's entropy.
//!
//! Wrong answers cost time or space, never data.

/// So many bytes are looked at ...
const SAMPLE_BYTES: usize = 128;
/// ... of so many. What is to be compressed is mostly in no cache: eight pieces of 16 bytes cost eight misses, one of 128 bytes
/// hardly more than one.
const SAMPLE_EVERY_BYTES: usize = 2048;
/// From one sample to the next the place in its stretch moves on by this, so that headers that stand in each page are not all
/// that is seen.
const SAMPLE_STEP_BYTES: usize = 5 * SAMPLE_BYTES;
/// Of data up to this size the few stretches of above would say little: zeros behind the end of a file are in one or in none. The
/// samples of it are those of Linux.
const SHORT_BYTES_MAX: usize = 16 << 10;
const SHORT_SAMPLE_BYTES: usize = 16;
const SHORT_SAMPLE_EVERY_BYTES: usize = 256;
/// Counters that take turns: of a byte that comes often, one alone would wait for its last change each time.
const TABLES: usize = 4;
/// Fewer byte values than this: text, or something like it.
const FEW_VALUES: usize = 64;
/// The most frequent values that make up [`CORE_SHARE_PERCENT`] of the sample: up to so many compress well, ...
const CORE_SMALL: usize = 64;
/// ... from so many on they do not.
const CORE_LARGE: usize = 200;
const CORE_SHARE_PERCENT: usize = 90;
/// Bits of information per byte above which nothing is gained: 80 % of 8.
const ENTROPY_BITS_MAX: f64 = 6.4;

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
            let is_needed = covered * 100 < total * CORE_SHARE_PERCENT;
            covered += **count;
            is_needed
        })
        .count();
    if core <= CORE_SMALL || core >= CORE_LARGE {
        return core <= CORE_SMALL;
    }
    entropy_bits(&counts[..used], total) <= ENTROPY_BITS_MAX
}

/// How often each byte value is in the samples, and their bytes in all.
fn count(data: &[u8]) -> ([usize; 256], usize) {
    // Loads that do not wait for each other: the counting below sees one miss after the other.
    let touched = samples(data).fold(0, |all, sample| all ^ sample[0] ^ sample[sample.len() / 2]);
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
    let (every, len, step) = if data.len() <= SHORT_BYTES_MAX {
        (SHORT_SAMPLE_EVERY_BYTES, SHORT_SAMPLE_BYTES, 0)
    } else {
        (SAMPLE_EVERY_BYTES, SAMPLE_BYTES, SAMPLE_STEP_BYTES)
    };
    data.chunks(every).enumerate().map(move |(index, stretch)| {
        let at = index * step % every;
        let from = at.min(stretch.len().saturating_sub(len));
        &stretch[from..stretch.len().min(from + len)]
    })
}

/// The second half is the first one again, as far as samples tell.
fn is_repeating(data: &[u8]) -> bool {
    let (first, second) = data.split_at(data.len() / 2);
    !first.is_empty() && samples(first).zip(samples(second)).all(|(a, b)| a == b)
}

/// Shannon's entropy in bits per byte.
fn entropy_bits(counts: &[usize], total: usize) -> f64 {
    let total = total as f64;
    counts
        .iter()
        .map(|count| {
            let share = *count as f64 / total;
            -share * share.log2()
        })
        .sum()
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
        // A slant that hardly pays: 160 values, all as frequent, 7.3 bits.
        assert!(!looks_compressible(&noise(4, 160, LEN)));
        for len in [0, 1, 15, 16, 4095, 4096] {
            looks_compressible(&noise(5, 256, len));
        }
    }
}
