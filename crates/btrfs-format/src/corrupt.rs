//! What is wrong with a block, and where.

use std::fmt;

use crate::ids::{LogicalAddr, TreeId};
use crate::key::{Key, KeyType};
use crate::rule::Rule;

/// A block that is not what it should be: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt block: {site}: {kind}")]
pub struct Corrupt {
    pub site: Site,
    pub kind: CorruptKind,
}

/// Where a fault was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Site {
    pub tree: Option<TreeId>,
    pub addr: LogicalAddr,
    pub level: Option<u8>,
    pub slot: Option<u32>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(tree) = self.tree {
            write!(f, "tree {tree}, ")?;
        }
        write!(f, "block {}", self.addr)?;
        if let Some(level) = self.level {
            write!(f, ", level {level}")?;
        }
        if let Some(slot) = self.slot {
            write!(f, ", slot {slot}")?;
        }
        Ok(())
    }
}

/// What is wrong with a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CorruptKind {
    #[error("block of {found} bytes is too short")]
    Short { found: usize },
    #[error("bad checksum: stored {stored}, computed {computed}")]
    Csum { stored: String, computed: String },
    #[error("{field} is {found}, expected {expected}")]
    Mismatch {
        field: &'static str,
        found: String,
        expected: String,
    },
    #[error("{field} is {found}, limit {limit}")]
    Limit {
        field: &'static str,
        found: u64,
        limit: u64,
    },
    #[error("keys out of order: {prev} before {key}")]
    KeyOrder { prev: Key, key: Key },
    #[error("item out of place: data {offset}+{size}, expected end {expected_end}")]
    ItemBounds { offset: u32, size: u32, expected_end: u32 },
    #[error("{key}: {what}")]
    Item { key: Key, what: String },
    #[error("{field} is {found}, {rule}")]
    Field {
        field: &'static str,
        found: u64,
        rule: Rule,
    },
    #[error("tree {owner} has an empty leaf")]
    EmptyLeaf { owner: TreeId },
    #[error("a block of tree {owner} in tree {tree}")]
    Owner { owner: TreeId, tree: TreeId },
    #[error("{key}: item of {found} bytes, {rule}")]
    ItemSize { key: Key, found: u64, rule: Rule },
    #[error("{key}: {field} is {found}, {rule}")]
    ItemField {
        key: Key,
        field: &'static str,
        found: u64,
        rule: Rule,
    },
    /// A part of an item (an entry, a name, a reference) reaches over the item's end.
    #[error("{key}: {part} of {needs} bytes in the {left} bytes left")]
    ItemTruncated {
        key: Key,
        part: &'static str,
        needs: u64,
        left: u64,
    },
    #[error("{key}: overlaps {prev}, which ends at {prev_end}")]
    Overlap { key: Key, prev: Key, prev_end: u64 },
    #[error("{key}: follows {prev}, an item of another object")]
    OtherObject { key: Key, prev: Key },
    /// A name that no directory can hold: empty, too long, a dot name, or with a slash or NUL in it.
    #[error("{key}: {name:?} is no valid name")]
    Name { key: Key, name: String },
    #[error("{key}: entry points to {location}")]
    Location { key: Key, location: Key },
    /// Inline references are ordered by type, then downwards by offset or hash.
    #[error("{key}: inline reference {ty} {seq:#x} follows {prev_ty} {prev_seq:#x}")]
    InlineRefOrder {
        key: Key,
        prev_ty: KeyType,
        prev_seq: u64,
        ty: KeyType,
        seq: u64,
    },
    #[error("{key}: inline reference of type {ty}")]
    InlineRefType { key: Key, ty: KeyType },
}
