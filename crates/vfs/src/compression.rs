//! Compression of file data as users name it: an algorithm and a level.
//!
//! Facts from the btrfs documentation ("Compression") and from watching the kernel: levels are
//! clamped to what there is, 0 and no level mean the default, LZO takes a level and ignores it.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A compression algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// DEFLATE with a zlib header, levels 1 to 9.
    Zlib,
    /// LZO1X, no levels.
    Lzo,
    /// Zstandard, levels -15 to 15.
    Zstd,
}

impl Algorithm {
    /// Its name in options and properties.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Lzo => "lzo",
            Self::Zstd => "zstd",
        }
    }

    /// The algorithm that a value begins with, whatever follows it.
    pub fn at_start_of(value: &[u8]) -> Option<Self> {
        [Self::Zlib, Self::Lzo, Self::Zstd]
            .into_iter()
            .find(|algorithm| value.starts_with(algorithm.name().as_bytes()))
    }

    /// Levels that it has; for all but LZO 0 is none of them.
    fn levels(self) -> RangeInclusive<i32> {
        match self {
            Self::Zlib => 1..=9,
            Self::Lzo => 0..=0,
            Self::Zstd => -15..=15,
        }
    }
}

/// The level of zlib and zstd where none is given.
const DEFAULT_LEVEL: i32 = 3;

/// An algorithm with its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    algorithm: Algorithm,
    level: i32,
}

impl Compression {
    /// With a level (0: the default), clamped to what the algorithm has.
    pub fn new(algorithm: Algorithm, level: i32) -> Self {
        let levels = algorithm.levels();
        let level = if level == 0 { DEFAULT_LEVEL } else { level };
        Self {
            algorithm,
            level: level.clamp(*levels.start(), *levels.end()),
        }
    }

    /// The algorithm.
    pub fn algorithm(self) -> Algorithm {
        self.algorithm
    }
    /// As it was clamped.
    pub fn level(self) -> i32 {
        self.level
    }
}

/// As mount options have it: `zstd`, `zstd:7`.
impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(text: &str) -> Result<Self, UnknownCompression> {
        let unknown = || UnknownCompression { found: text.into() };
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, level.parse().map_err(|_| unknown())?),
            None => (text, 0),
        };
        let algorithm = Algorithm::at_start_of(name.as_bytes()).filter(|a| a.name() == name);
        Ok(Self::new(algorithm.ok_or_else(unknown)?, level))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.algorithm {
            Algorithm::Lzo => f.write_str(self.algorithm.name()),
            Algorithm::Zlib | Algorithm::Zstd => write!(f, "{}:{}", self.algorithm.name(), self.level),
        }
    }
}

/// A compression that does not exist.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no compression; there are zlib[:1-9], lzo, zstd[:-15..15] and no")]
pub struct UnknownCompression {
    found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_shown_as_the_kernel_does() {
        for (text, shown) in [
            ("zlib", "zlib:3"),
            ("zlib:0", "zlib:3"),
            ("zlib:10", "zlib:9"),
            ("zlib:-1", "zlib:1"),
            ("lzo", "lzo"),
            ("lzo:9", "lzo"),
            ("zstd:16", "zstd:15"),
            ("zstd:-16", "zstd:-15"),
            ("zstd:+3", "zstd:3"),
        ] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), shown, "{text}");
        }
        for text in ["", "1", "lzo:", "lzox", "zlib:9x", "zstd:x", "zstdx", "zstd:", "gzip"] {
            assert!(text.parse::<Compression>().is_err(), "{text}");
        }
    }
}
