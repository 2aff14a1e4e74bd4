//! The space of names: a few short ones for collisions, some with the same hash, some as long as
//! names can be, and two thousand for large directories.

use std::fmt;

/// A name by its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub u16);

/// Names of eight letters that have the same CRC-32C, whatever the seed: btrfs keeps them in one
/// item.
const COLLIDING: [&str; 6] = ["qxjwxhwb", "tenodxqc", "dnzcbhfd", "bhtaznrd", "zeoiovsd", "yfhhcuyd"];

impl Name {
    /// Short names.
    pub const HOT: u16 = 10;
    pub const FIRST_COLLIDING: u16 = Self::HOT;
    pub const FIRST_LONG: u16 = Self::FIRST_COLLIDING + COLLIDING.len() as u16;
    /// Longer than any name may be.
    pub const TOO_LONG: Name = Name(Self::FIRST_LONG + 2);
    pub const FIRST_WIDE: u16 = Self::TOO_LONG.0 + 1;
    pub const WIDE: u16 = 2000;

    pub fn bytes(self) -> Vec<u8> {
        match self.0 {
            n if n < Self::HOT => vec![b'a' + n as u8],
            n if n < Self::FIRST_LONG => COLLIDING[usize::from(n - Self::FIRST_COLLIDING)].as_bytes().to_vec(),
            n if n < Self::TOO_LONG.0 => [&[b'l'; 254][..], &[b'0' + (n - Self::FIRST_LONG) as u8]].concat(),
            n if n == Self::TOO_LONG.0 => vec![b'x'; 256],
            n => format!("file-{:05}", n - Self::FIRST_WIDE).into_bytes(),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_different_and_only_one_is_too_long() {
        let all: std::collections::BTreeSet<_> = (0..Name::FIRST_WIDE + Name::WIDE).map(|n| Name(n).bytes()).collect();
        assert_eq!(all.len(), usize::from(Name::FIRST_WIDE + Name::WIDE));
        assert_eq!(all.iter().filter(|n| n.len() > 255).count(), 1);
        assert_eq!(all.iter().filter(|n| n.len() == 255).count(), 2);
    }
}
