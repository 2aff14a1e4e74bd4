//! Names with the same hash, for btrfs and for XFS.
//!
//! Btrfs hashes a name with CRC-32C. Among names of one length a CRC is linear: two names have the
//! same sum if their difference (xor) has the sum that zeros have. Letting the five low bits of
//! eight letters vary gives 40 bits for the 32 of the sum, hence a space of 2^8 differences, found
//! by elimination.

/// The letters of a name of which five bits vary.
const LETTERS: usize = 8;

/// `count` (at most 256) different names, all with the same CRC-32C whatever stands before them and
/// with any seed. ASCII, all of one length, valid in any file system of Unix (a few hold the
/// unprintable DEL).
pub fn colliding_names(count: usize) -> Vec<String> {
    assert!(count <= 256, "the space of differences has 256 members");
    let kernel = kernel();
    let names = (0..256u64).map(|pick| {
        let mut difference = 0;
        for (bit, vector) in kernel.iter().enumerate() {
            if pick >> bit & 1 == 1 {
                difference ^= vector;
            }
        }
        (0..LETTERS)
            .map(|i| char::from(b'`' ^ (difference >> (5 * i) & 31) as u8))
            .collect::<String>()
    });
    names.take(count).collect()
}

/// A basis of the differences that leave the sum alone: 5 bits for each letter.
fn kernel() -> Vec<u64> {
    let sum = |difference: u64| {
        let bytes: [u8; LETTERS] = std::array::from_fn(|i| (difference >> (5 * i) & 31) as u8);
        crc32c::crc32c(&bytes) ^ crc32c::crc32c(&[0; LETTERS])
    };
    // Sums with distinct top bits, and what has that sum.
    let mut pivots: Vec<(u32, u64)> = Vec::new();
    let mut kernel = Vec::new();
    for bit in 0..5 * LETTERS {
        let mut vector = 1u64 << bit;
        let mut rest = sum(vector);
        while rest != 0 {
            match pivots
                .iter()
                .find(|(pivot, _)| pivot.leading_zeros() == rest.leading_zeros())
            {
                Some((pivot, with)) => {
                    rest ^= pivot;
                    vector ^= with;
                }
                None => {
                    pivots.push((rest, vector));
                    break;
                }
            }
        }
        if rest == 0 {
            kernel.push(vector);
        }
    }
    kernel
}

/// Letters of a name for XFS, in pairs.
const PAIRS: usize = 12;

/// `count` (at most 4096) different names with the same hash in an XFS directory. Not UTF-8;
/// without the bytes that no name has.
///
/// The hash rotates by 7 bits for each byte, and xors the byte to it: the lowest bit of a byte is
/// the highest of the next one, so that both can be flipped together.
pub fn colliding_xfs_names(count: usize) -> Vec<Vec<u8>> {
    assert!(count <= 1 << PAIRS, "there are that many");
    let name = |pick: usize| {
        let pair = |pair: usize| {
            let bit = (pick >> pair & 1) as u8;
            [b'b' ^ bit, b'c' ^ (bit << 7)]
        };
        (0..PAIRS).flat_map(pair).collect()
    };
    (0..count).map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{colliding_names, colliding_xfs_names};

    #[test]
    fn names_for_xfs_differ_and_their_hashes_do_not() {
        let hash = |name: &Vec<u8>| {
            name.iter()
                .fold(0_u32, |hash, byte| u32::from(*byte) ^ hash.rotate_left(7))
        };
        let names = colliding_xfs_names(4096);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 4096);
        assert_eq!(names.iter().map(hash).collect::<BTreeSet<_>>().len(), 1);
    }

    #[test]
    fn names_differ_and_sums_do_not() {
        let names = colliding_names(100);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 100);
        for prefix in ["", "user."] {
            let sums: BTreeSet<u32> = names
                .iter()
                .map(|name| crc32c::crc32c_append(!1, format!("{prefix}{name}").as_bytes()))
                .collect();
            assert_eq!(sums.len(), 1);
        }
        assert!(names.iter().all(|name| !name.contains(['/', '\0'])), "{names:?}");
    }
}
