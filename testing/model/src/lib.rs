//! A reference file system in maps, and the operations that tests apply to it.
//!
//! * [`Model`]: what a file system must answer, kept in ordered maps and nothing else. It shares no
//!   code with any file system of ours; what is shared with them is the vocabulary
//!   ([`cowshed_vfs`]'s errors, kinds and flags).
//! * [`Op`]: one operation as plain data. It names files by path or by slot, never by an identity
//!   that only one side knows, so that a list of operations can be printed, cut short and run
//!   again.
//! * [`Generator`]: draws operations from a seed, with an eye on the model: most of them hit
//!   something.
//!
//! The names of all files come from a small space ([`Name`]): collisions, renames over something
//! and hard links to the same inode happen all the time. Offsets lie at the borders of blocks more
//! often than not.

mod apply;
mod content;
mod dice;
mod generate;
mod group;
mod id;
mod name;
mod node;
mod op;
mod remap;
pub mod script;
mod staged;
mod subvolume;
pub mod tree;

pub use content::{BLOCK_BYTES, Content, pattern};
pub use dice::{Rng, pick};
pub use generate::{Generator, Mix};
pub use id::Id;
pub use name::Name;
pub use node::{Body, Model, MountRules, Node, SLOTS};
pub use op::{
    At, COMPRESSIONS, GROUPS, Op, PROPERTY, PROPERTY_VALUES, Place, SeekFrom, Touch, XATTR_NAMES, xattr_name,
};

/// What an operation answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Count(u64),
    /// Two ranges do not hold the same.
    Differs,
    Bytes(Vec<u8>),
    /// By number, in order. A file system may have more of them than hold anything but zeros.
    Blocks(Vec<u64>),
    /// Sorted.
    Names(Vec<Vec<u8>>),
}

/// How an operation ends.
pub type Outcome = cowshed_vfs::Result<Answer>;
