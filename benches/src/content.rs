//! What measurements write: data that compresses well, a little, not at all.

use clap::ValueEnum;

use cowshed_device_sim::Rng;

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Content {
    /// Lines of words: a quarter or less is left of it
    Text,
    /// Three quarters of that, one of noise
    Half,
    /// Does not compress
    Noise,
}

/// Overwrites all or most of the noise in a buffer with lines of a text.
pub fn fill_with(content: Content, bytes: &mut [u8]) {
    const PIECE_BYTES: usize = 3000;
    let mut dice = Rng::new(5);
    for (n, piece) in bytes.chunks_mut(PIECE_BYTES).enumerate() {
        match content {
            Content::Noise => return,
            Content::Half if n % 4 == 0 => continue,
            Content::Half | Content::Text => {}
        }
        let lines = (0..).flat_map(|_| {
            let (word, number) = (dice.below(200), dice.below(1000));
            format!("line {number}: word{word} stands here, and so it goes on\n").into_bytes()
        });
        piece.iter_mut().zip(lines).for_each(|(byte, new)| *byte = new);
    }
}
