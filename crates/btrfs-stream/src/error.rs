//! What may be wrong with a stream, and where.

use std::fmt;
use std::io;

use crate::kind::{Attribute, Kind, Version};

/// Result of reading.
pub type Result<T> = std::result::Result<T, Error>;

/// A command of a stream: its number, and the offset of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// As in its header.
    pub number: u16,
    /// From the beginning of the input, in bytes.
    pub offset: u64,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Kind::from_number(self.number) {
            Some(kind) => write!(f, "{kind} at byte {}", self.offset),
            None => write!(f, "command {} at byte {}", self.number, self.offset),
        }
    }
}

/// Why a stream cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading failed.
    #[error("reading at byte {offset}: {source}")]
    Io {
        /// Bytes read so far.
        offset: u64,
        /// The reason.
        source: io::Error,
    },
    /// There is nothing.
    #[error("the input is empty")]
    Empty,
    /// Something else stands where a stream begins.
    #[error("no send stream begins at byte {offset}")]
    NotAStream {
        /// Where it should begin.
        offset: u64,
    },
    /// A version that is not known.
    #[error("the stream at byte {offset} has version {found}, known are 1 and 2")]
    UnknownVersion {
        /// The version.
        found: u32,
        /// Where the stream begins.
        offset: u64,
    },
    /// The input ends within a header.
    #[error("the stream ends within a header, at byte {offset}")]
    TruncatedHeader {
        /// Where the header begins.
        offset: u64,
    },
    /// The input ends within a command.
    #[error("the stream ends within {site}, {missing_bytes} bytes are missing")]
    Truncated {
        /// The command.
        site: Site,
        /// Bytes.
        missing_bytes: u64,
    },
    /// The input ends behind a command that is not `end`.
    #[error("the stream ends at byte {offset} without the command end")]
    MissingEnd {
        /// Where the input ends.
        offset: u64,
    },
    /// A command beyond the limit.
    #[error("{site} has {found_bytes} bytes, limit {limit_bytes}")]
    TooLarge {
        /// The command.
        site: Site,
        /// Its size.
        found_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The command is not what was sent.
    #[error("{site}: checksum {stored:#010x}, computed {computed:#010x}")]
    Checksum {
        /// The command, as far as its header is to be believed.
        site: Site,
        /// In the header.
        stored: u32,
        /// Of what is there.
        computed: u32,
    },
    /// A command that this version does not have.
    #[error("{site} is unknown in version {}", version.number())]
    UnknownCommand {
        /// The command.
        site: Site,
        /// Of the stream.
        version: Version,
    },
    /// An attribute is not as it should be.
    #[error("{site}: {kind}")]
    Attribute {
        /// The command.
        site: Site,
        /// What is wrong.
        kind: AttributeError,
    },
}

/// What is wrong with an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttributeError {
    /// The version does not have it.
    #[error("attribute {number} is unknown")]
    Unknown {
        /// Its number.
        number: u16,
    },
    /// It is longer than the rest of the command.
    #[error("attribute {attribute} of {found_bytes} bytes, {left_bytes} are left")]
    PastEnd {
        /// Which.
        attribute: Attribute,
        /// Its length.
        found_bytes: usize,
        /// Bytes of the command from there on.
        left_bytes: usize,
    },
    /// Bytes at the end of the command that are too few for an attribute's head.
    #[error("{left_bytes} bytes follow the last attribute")]
    Trailing {
        /// How many.
        left_bytes: usize,
    },
    /// A number, time or uuid of a wrong length.
    #[error("attribute {attribute} of {found_bytes} bytes, expected {expected_bytes}")]
    Size {
        /// Which.
        attribute: Attribute,
        /// Its length.
        found_bytes: usize,
        /// The right one.
        expected_bytes: usize,
    },
    /// The command has it twice.
    #[error("attribute {attribute} is there twice")]
    Duplicate {
        /// Which.
        attribute: Attribute,
    },
    /// The command needs it.
    #[error("attribute {attribute} is missing")]
    Missing {
        /// Which.
        attribute: Attribute,
    },
}

/// Why a command cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// Writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The version of the stream does not have the command, or the attribute that is named.
    #[error("{what} of {kind} needs a newer version than {}", version.number())]
    NotInVersion {
        /// The command.
        kind: Kind,
        /// What of it.
        what: &'static str,
        /// Of the stream.
        version: Version,
    },
    /// An attribute does not fit.
    #[error("{attribute} of {kind} has {found_bytes} bytes, limit {limit_bytes}")]
    TooLong {
        /// The command.
        kind: Kind,
        /// Which.
        attribute: Attribute,
        /// Its length.
        found_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
}
