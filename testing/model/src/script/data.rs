//! What operations write.

use std::borrow::Cow;

use crate::dice::Rng;

/// Bytes, themselves or by the number that they follow from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    Bytes(Vec<u8>),
    /// See [`bytes`].
    Fill {
        len: usize,
        fill: u64,
    },
}

impl Data {
    pub fn len(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::Fill { len, .. } => *len,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Data::Bytes(bytes) => bytes.into(),
            Data::Fill { len, fill } => bytes(*fill, *len).into(),
        }
    }
}

/// What is written: repeatable, and different everywhere. A third of it compresses, as letters by
/// chance do; another third does in part; and the rest is noise.
pub fn bytes(fill: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut rng = Rng::new(fill);
    rng.fill(&mut out);
    match fill % 3 {
        0 => out.iter_mut().for_each(|byte| *byte = b'a' + *byte % 4),
        1 => write_text(&mut rng, &mut out),
        _ => {}
    }
    out
}

/// Words over noise, pieces of which stay.
fn write_text(rng: &mut Rng, out: &mut [u8]) {
    const WORDS: usize = 64;
    const WORD_BYTES_MAX: u64 = 10;
    const PIECE_BYTES_MAX: u64 = 24 << 10;
    let words: Vec<Vec<u8>> = (0..WORDS)
        .map(|_| {
            let len = 2 + rng.below(WORD_BYTES_MAX - 2);
            let letters = (0..len).map(|_| b'a' + rng.below(26) as u8);
            letters.chain([b' ']).collect()
        })
        .collect();
    let mut left = out;
    while !left.is_empty() {
        let len = (1 + rng.index(PIECE_BYTES_MAX as usize)).min(left.len());
        let (mut piece, rest) = left.split_at_mut(len);
        left = rest;
        let is_noise = rng.one_in(4);
        while !is_noise && !piece.is_empty() {
            let word = &words[rng.index(WORDS)];
            let len = word.len().min(piece.len());
            let (here, rest) = piece.split_at_mut(len);
            here.copy_from_slice(&word[..len]);
            piece = rest;
        }
    }
}
