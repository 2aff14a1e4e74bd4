//! What is wrong with a structure, and where.

use std::fmt;

use cowshed_layout::Rule;

use crate::ids::{Daddr, Ino};

/// A structure that is not what it should be: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt {site}: {kind}")]
pub struct Corrupt {
    /// Where.
    pub site: Site,
    /// Why.
    pub kind: CorruptKind,
}

/// Where a fault was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The structure, in the format's words: `AGF`, `bnobt block`.
    pub what: &'static str,
    /// The address that led to it, where it is known.
    pub daddr: Option<Daddr>,
    /// The inode that it belongs to, where it is known.
    pub ino: Option<Ino>,
    /// The record, entry or pointer, where it is about one; from 0.
    pub slot: Option<u32>,
}

impl Site {
    /// A structure without an address.
    pub const fn of(what: &'static str) -> Self {
        Self {
            what,
            daddr: None,
            ino: None,
            slot: None,
        }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        if let Some(ino) = self.ino {
            write!(f, " of inode {ino}")?;
        }
        if let Some(daddr) = self.daddr {
            write!(f, " at daddr {daddr}")?;
        }
        if let Some(slot) = self.slot {
            write!(f, ", slot {slot}")?;
        }
        Ok(())
    }
}

/// What is wrong with a structure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptKind {
    /// Not as many bytes as the structure has.
    #[error("{found} bytes, expected {expected}")]
    Size {
        /// Bytes given.
        found: u64,
        /// Bytes of the structure.
        expected: u64,
    },
    /// The magic number is another one.
    #[error("magic is {found:#x}, expected {expected:#x}")]
    Magic {
        /// The value found.
        found: u32,
        /// That of the structure on this volume.
        expected: u32,
    },
    /// The stored checksum is not that of the bytes.
    #[error("bad checksum: stored {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// In the structure.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// A field that identifies the structure is not what led to it.
    #[error("{field} is {found}, expected {expected}")]
    Mismatch {
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: Box<str>,
        /// What led to the structure.
        expected: Box<str>,
    },
    /// A field breaks its rule.
    #[error("{field} is {found}, {rule}")]
    Field {
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What is allowed.
        rule: Rule,
    },
    /// Records, keys or hashes that do not rise.
    #[error("{field} out of order: {prev} before {found}")]
    Order {
        /// The field that gives the order.
        field: &'static str,
        /// The value before.
        prev: Box<str>,
        /// The value that should be larger.
        found: Box<str>,
    },
    /// A range that begins before the end of the one before.
    #[error("{field} {start} overlaps the one before, which ends at {prev_end}")]
    Overlap {
        /// The field where the range begins.
        field: &'static str,
        /// Where it begins.
        start: u64,
        /// Where the one before ends.
        prev_end: u64,
    },
    /// A part that reaches over the end of what holds it.
    #[error("{part} of {needs} bytes in the {left} bytes left")]
    Truncated {
        /// Which part.
        part: &'static str,
        /// Bytes that it takes.
        needs: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A name that no entry can have: empty, or with a slash or NUL in it.
    #[error("{name:?} is no valid name")]
    Name {
        /// The name, as far as it is text.
        name: Box<str>,
    },
    /// Two fields that contradict each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

/// A fault on its way out: the kind, and the slot where it is about one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub slot: Option<u32>,
    pub kind: CorruptKind,
}

pub(crate) type Checked = Result<(), Fault>;

impl From<CorruptKind> for Fault {
    #[cold]
    fn from(kind: CorruptKind) -> Self {
        Self { slot: None, kind }
    }
}

impl Fault {
    /// Says where the fault is.
    #[cold]
    pub fn at(self, site: Site) -> Corrupt {
        Corrupt {
            site: Site {
                slot: self.slot.or(site.slot),
                ..site
            },
            kind: self.kind,
        }
    }
    /// Says which record it is about.
    #[cold]
    pub fn in_slot(self, slot: usize) -> Self {
        Self {
            slot: u32::try_from(slot).ok(),
            ..self
        }
    }
}

/// Holds a field against its rule.
#[inline]
pub(crate) fn field(field: &'static str, found: impl Into<u64>, rule: Rule) -> Checked {
    let found = found.into();
    if rule.holds(found) {
        Ok(())
    } else {
        Err(broken(field, found, rule))
    }
}

#[cold]
fn broken(field: &'static str, found: u64, rule: Rule) -> Fault {
    CorruptKind::Field { field, found, rule }.into()
}

/// Holds two fields against each other.
pub(crate) fn agree(holds: bool, otherwise: &'static str) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(CorruptKind::Contradiction(otherwise).into())
    }
}

#[cold]
pub(crate) fn mismatch(field: &'static str, found: impl ToString, expected: impl ToString) -> Fault {
    CorruptKind::Mismatch {
        field,
        found: found.to_string().into(),
        expected: expected.to_string().into(),
    }
    .into()
}

#[cold]
pub(crate) fn truncated(part: &'static str, needs: usize, left: usize) -> Fault {
    let bytes = |n| u64::try_from(n).unwrap_or(u64::MAX);
    CorruptKind::Truncated {
        part,
        needs: bytes(needs),
        left: bytes(left),
    }
    .into()
}

#[cold]
pub(crate) fn wrong_size(found: usize, expected: usize) -> Fault {
    let bytes = |n| u64::try_from(n).unwrap_or(u64::MAX);
    CorruptKind::Size {
        found: bytes(found),
        expected: bytes(expected),
    }
    .into()
}

/// A name as entries of directories may have it.
pub(crate) fn check_name(name: &[u8]) -> Checked {
    if name.is_empty() || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        let name = String::from_utf8_lossy(name).into();
        return Err(CorruptKind::Name { name }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_where_and_what() {
        let site = Site {
            daddr: Some(Daddr(8)),
            ..Site::of("bnobt block")
        };
        let fault = field("startblock", 12_u32, Rule::AtMost(11)).unwrap_err().in_slot(3);
        assert_eq!(
            fault.at(site).to_string(),
            "corrupt bnobt block at daddr 8, slot 3: startblock is 12, limit 11"
        );
        let site = Site {
            ino: Some(Ino(131)),
            ..Site::of("shortform directory")
        };
        let fault = check_name(b"a/b").unwrap_err();
        assert_eq!(
            fault.at(site).to_string(),
            "corrupt shortform directory of inode 131: \"a/b\" is no valid name"
        );
    }
}
