//! LZO1X encoding; written from the description of the stream in the kernel's documentation
//! (`Documentation/staging/lzo.rst`).
//!
//! A greedy search with one candidate per hash of four bytes: what is made of it is a stream that
//! every LZO1X decoder reads, not the stream that another encoder would make. Inputs are segments
//! of a sector, so that matches are never farther than [`SEGMENT_BYTES_MAX`] and two of the four
//! kinds of matches are enough:
//!
//! ```text
//! near:  LLLDDDSS HHHHHHHH                     length 3 to 8 (LLL = length - 1),
//!                                              distance - 1 = H << 3 | D, below 2048
//! far:   001LLLLL [0..0 L] DDDDDDSS DDDDDDDD   length 3 to 33 (length - 2) or longer,
//!                                              distance - 1 below 16384
//! ```
//!
//! SS: so many literals (0 to 3) follow the match. Longer runs have an instruction of their own.

/// The longest input.
pub(crate) const SEGMENT_BYTES_MAX: usize = 4096;
/// The most that an input can grow, as other readers expect it: a byte for each far match of four
/// bytes with a run of 19 literals or more behind it, the length of one long run, and the end
/// marker.
#[cfg(test)]
const GROWTH_BYTES_MAX: usize = SEGMENT_BYTES_MAX / 16 + 64 + 3;

const HASH_BITS: u32 = 11;
/// Bytes that are compared and hashed at once: shorter matches are not looked for.
const MATCH_BYTES_MIN: usize = 4;
/// After so many misses (a power of two) the search takes steps of two bytes, then of three, and so
/// on.
const MISSES_PER_STEP_LOG: u32 = 5;
const NEAR_LEN_MAX: usize = 8;
const NEAR_DISTANCE_MAX: usize = 2048;
const FAR_LEN_MAX: usize = 33;
/// Literals that fit the instruction of a run.
const RUN_LEN_MAX: usize = 18;
/// Literals that a stream may begin with in a shorter way: the first byte is 17 more than their
/// number.
const FIRST_RUN_LEN_MAX: usize = 238;

/// Where four bytes were seen last, by their hash: offset + 1, or 0.
pub(crate) struct Table([u16; 1 << HASH_BITS]);

impl Default for Table {
    fn default() -> Self {
        Self([0; 1 << HASH_BITS])
    }
}

fn word(input: &[u8], at: usize) -> Option<u32> {
    input.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

fn slot(word: u32) -> usize {
    // 2^32 over the golden ratio: spreads what differs in any byte.
    (word.wrapping_mul(0x9e37_79b1) >> (u32::BITS - HASH_BITS)) as usize
}

/// Appends the stream of one segment, with its end marker.
///
/// # Panics
/// When the input is longer than [`SEGMENT_BYTES_MAX`].
pub(crate) fn encode(table: &mut Table, input: &[u8], out: &mut Vec<u8>) {
    assert!(input.len() <= SEGMENT_BYTES_MAX, "segments are short");
    table.0.fill(0);
    let mut sink = Sink { out, last_match: None };
    let (mut at, mut literals_from, mut misses) = (0, 0, 0_u32);
    while let Some(now) = word(input, at) {
        let known = std::mem::replace(&mut table.0[slot(now)], at as u16 + 1);
        let candidate = usize::from(known).wrapping_sub(1);
        if known == 0 || word(input, candidate) != Some(now) {
            at += 1 + (misses >> MISSES_PER_STEP_LOG) as usize;
            misses += 1;
            continue;
        }
        misses = 0;
        let (mut from, mut behind) = (at, candidate);
        // What the steps skipped may belong to the match.
        while from > literals_from && behind > 0 && input[from - 1] == input[behind - 1] {
            (from, behind) = (from - 1, behind - 1);
        }
        let len = at - from + common_len(input, candidate, at);
        sink.literals(&input[literals_from..from]);
        sink.repeat(from - behind, len);
        at = from + len;
        literals_from = at;
    }
    sink.literals(&input[literals_from..]);
    sink.end();
}

/// How many bytes are equal from both offsets on, `behind` being the smaller one.
fn common_len(input: &[u8], behind: usize, at: usize) -> usize {
    let (ahead, back) = (&input[at..], &input[behind..]);
    let mut len = 0;
    let eights = ahead.chunks_exact(8).zip(back.chunks_exact(8));
    for (a, b) in eights {
        let (Some(a), Some(b)) = (a.first_chunk(), b.first_chunk()) else {
            break;
        };
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return len + (differing.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    len + ahead[len..]
        .iter()
        .zip(&back[len..])
        .take_while(|(a, b)| a == b)
        .count()
}

struct Sink<'o> {
    out: &'o mut Vec<u8>,
    /// Where the last match keeps the number of literals behind it; `None` at the start of the
    /// stream.
    last_match: Option<usize>,
}

impl Sink<'_> {
    fn literals(&mut self, bytes: &[u8]) {
        let len = bytes.len();
        match self.last_match {
            _ if len == 0 => return,
            None if len <= FIRST_RUN_LEN_MAX => self.out.push(17 + len as u8),
            Some(at) if len <= 3 => self.out[at] |= len as u8,
            _ if len <= RUN_LEN_MAX => self.out.push(len as u8 - 3),
            _ => {
                self.out.push(0);
                self.long_length(len - RUN_LEN_MAX);
            }
        }
        self.out.extend_from_slice(bytes);
    }

    fn repeat(&mut self, distance: usize, len: usize) {
        let back = distance - 1;
        if len <= NEAR_LEN_MAX && distance <= NEAR_DISTANCE_MAX {
            self.last_match = Some(self.out.len());
            self.out
                .extend_from_slice(&[((len - 1) << 5 | (back & 7) << 2) as u8, (back >> 3) as u8]);
            return;
        }
        if len <= FAR_LEN_MAX {
            self.out.push(0x20 | (len - 2) as u8);
        } else {
            self.out.push(0x20);
            self.long_length(len - FAR_LEN_MAX);
        }
        self.last_match = Some(self.out.len());
        self.out.extend_from_slice(&((back << 2) as u16).to_le_bytes());
    }

    /// A length that did not fit its instruction, less what the instruction stands for: 255 for
    /// each zero byte.
    fn long_length(&mut self, mut rest: usize) {
        while rest > 255 {
            self.out.push(0);
            rest -= 255;
        }
        self.out.push(rest as u8);
    }

    fn end(self) {
        self.out.extend_from_slice(&[0x11, 0, 0]);
    }
}

const _: () = assert!(MATCH_BYTES_MIN == size_of::<u32>() && SEGMENT_BYTES_MAX < u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::super::lzo::decode;
    use super::*;
    use crate::testing::Dice;

    fn round_trip(input: &[u8]) -> usize {
        let (mut out, mut back) = (Vec::new(), [0; SEGMENT_BYTES_MAX + 64]);
        encode(&mut Table::default(), input, &mut out);
        for room in [input.len(), input.len() + 20, back.len()] {
            let len = decode(&out, &mut back[..room], SEGMENT_BYTES_MAX);
            let len = len.unwrap_or_else(|e| panic!("{e}: {input:?} became {out:?}"));
            assert_eq!(&back[..len], input);
        }
        assert!(
            out.len() <= input.len() + GROWTH_BYTES_MAX,
            "{} of {}",
            out.len(),
            input.len()
        );
        out.len()
    }

    #[test]
    fn streams_by_hand() {
        let stream = |input: &[u8]| {
            let mut out = Vec::new();
            encode(&mut Table::default(), input, &mut out);
            out
        };
        assert_eq!(stream(b""), [0x11, 0, 0]);
        assert_eq!(stream(b"abcd"), b"\x15abcd\x11\0\0");
        // Two literals, then six bytes from two back: a near match; one literal in its last bits.
        assert_eq!(
            stream(b"ababababx"),
            [b"\x13ab".as_slice(), &[5 << 5 | 1 << 2 | 1, 0], b"x\x11\0\0"].concat()
        );
        // 41 equal bytes: a literal and a far match of 40 = 33 + 7.
        assert_eq!(stream(&[b'a'; 41]), b"\x12a\x20\x07\x00\x00\x11\0\0");
    }

    /// Every length of literals and matches around the limits of instructions, near and far.
    #[test]
    fn lengths_and_distances_at_their_limits() {
        let noise = |seed: u64, len: usize| -> Vec<u8> {
            let mut dice = Dice::new(seed);
            (0..len).map(|_| dice.below(256) as u8).collect()
        };
        for literals in [0, 1, 2, 3, 4, 17, 18, 19, 237, 238, 239, 272, 273, 274, 529, 600] {
            for repeated in [4, 5, 8, 9, 33, 34, 35, 287, 288, 289, 290, 600] {
                for gap in [0, 1, 2, 3, 4, 18, 19, 2047, 2048, 2049] {
                    let repeated = noise(1, repeated);
                    let input = [
                        &noise(2, literals)[..],
                        &repeated,
                        &noise(3, gap),
                        &repeated,
                        &noise(4, 3),
                    ]
                    .concat();
                    round_trip(&input[..input.len().min(SEGMENT_BYTES_MAX)]);
                }
            }
        }
    }

    #[test]
    fn random_segments_come_back_and_what_repeats_becomes_short() {
        for seed in 0..400 {
            let mut dice = Dice::new(seed);
            let (letters, len) = (1 + dice.below(40), dice.below(SEGMENT_BYTES_MAX as u64 + 1) as usize);
            let mut input: Vec<u8> = Vec::new();
            while input.len() < len {
                if dice.below(3) > 0 && !input.is_empty() {
                    let from = dice.below(input.len() as u64) as usize;
                    let to = input.len().min(from + 1 + dice.below(60) as usize);
                    input.extend_from_within(from..to);
                } else {
                    input.push(dice.below(letters) as u8);
                }
            }
            input.truncate(len);
            round_trip(&input);
        }
        assert!(round_trip(&[0; SEGMENT_BYTES_MAX]) < 30);
        let text: Vec<u8> = b"a line of a text, and another one\n".repeat(120)[..4000].to_vec();
        assert!(round_trip(&text) < 100);
    }
}
