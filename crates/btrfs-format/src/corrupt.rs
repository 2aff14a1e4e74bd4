//! What is wrong with a block, and where.

use std::fmt;

use crate::ids::{LogicalAddr, TreeId};
use crate::key::{Key, KeyType};
use cowshed_layout::Rule;

/// A block that is not what it should be: where, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("corrupt block: {site}: {kind}")]
pub struct Corrupt {
    /// Where.
    pub site: Site,
    /// Why.
    pub kind: CorruptKind,
}

/// Where a fault was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Site {
    /// The tree that was walked, where it is known.
    pub tree: Option<TreeId>,
    /// The address that led to the block.
    pub addr: LogicalAddr,
    /// The block's level, once its header has been judged.
    pub level: Option<u8>,
    /// The item or child pointer, where it is about one.
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
    /// Fewer bytes than a header, or more than the largest block has.
    #[error("block of {found} bytes is too short")]
    Short {
        /// Bytes given.
        found: usize,
    },
    /// The stored checksum is not that of the bytes.
    #[error("bad checksum: stored {stored}, computed {computed}")]
    Csum {
        /// In the block, as hexadecimal digits.
        stored: String,
        /// Of the bytes, as hexadecimal digits.
        computed: String,
    },
    /// A field of the header is not what led to the block.
    #[error("{field} is {found}, expected {expected}")]
    Mismatch {
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: String,
        /// What led to the block.
        expected: String,
    },
    /// A count or level beyond its bound.
    #[error("{field} is {found}, limit {limit}")]
    Limit {
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// Keys do not rise strictly.
    #[error("keys out of order: {prev} before {key}")]
    KeyOrder {
        /// The key before.
        prev: Key,
        /// The key that should be larger.
        key: Key,
    },
    /// An item's data does not end where the data of the item before begins.
    #[error("item out of place: data {offset}+{size}, expected end {expected_end}")]
    ItemBounds {
        /// Where its data begins, in bytes behind the block's header.
        offset: u32,
        /// Bytes of its data.
        size: u32,
        /// Where its data should end, in bytes behind the header.
        expected_end: u32,
    },
    /// An item is wrong in another way.
    #[error("{key}: {what}")]
    Item {
        /// The item's key.
        key: Key,
        /// What is wrong.
        what: String,
    },
    /// A field of the header or of a child pointer breaks its rule.
    #[error("{field} is {found}, {rule}")]
    Field {
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What is allowed.
        rule: Rule,
    },
    /// An empty leaf in a tree that always holds something.
    #[error("tree {owner} has an empty leaf")]
    EmptyLeaf {
        /// The tree that the block states.
        owner: TreeId,
    },
    /// The block belongs to another tree.
    #[error("a block of tree {owner} in tree {tree}")]
    Owner {
        /// The tree that the block states.
        owner: TreeId,
        /// The tree that led to it.
        tree: TreeId,
    },
    /// The size of an item breaks its rule.
    #[error("{key}: item of {found} bytes, {rule}")]
    ItemSize {
        /// The item's key.
        key: Key,
        /// The value found.
        found: u64,
        /// What is allowed.
        rule: Rule,
    },
    /// A field of an item, or of its key, breaks its rule.
    #[error("{key}: {field} is {found}, {rule}")]
    ItemField {
        /// The item's key.
        key: Key,
        /// The field's name in the format.
        field: &'static str,
        /// The value found.
        found: u64,
        /// What is allowed.
        rule: Rule,
    },
    /// A part of an item (an entry, a name, a reference) reaches over the item's end.
    #[error("{key}: {part} of {needs} bytes in the {left} bytes left")]
    ItemTruncated {
        /// The item's key.
        key: Key,
        /// Which part.
        part: &'static str,
        /// Bytes that it takes.
        needs: u64,
        /// Bytes that the item has left.
        left: u64,
    },
    /// The range of an item begins before the end of the one before.
    #[error("{key}: overlaps {prev}, which ends at {prev_end}")]
    Overlap {
        /// The item's key.
        key: Key,
        /// The key before.
        prev: Key,
        /// Where its range ends.
        prev_end: u64,
    },
    /// An item of an inode that has no inode item before it.
    #[error("{key}: follows {prev}, an item of another object")]
    OtherObject {
        /// The item's key.
        key: Key,
        /// The key before.
        prev: Key,
    },
    /// A name that no directory can hold: empty, too long, a dot name, or with a slash or NUL in
    /// it.
    #[error("{key}: {name:?} is no valid name")]
    Name {
        /// The item's key.
        key: Key,
        /// The name, as far as it is text.
        name: String,
    },
    /// An entry points to a key that is no inode and no subvolume.
    #[error("{key}: entry points to {location}")]
    Location {
        /// The item's key.
        key: Key,
        /// What the entry points to.
        location: Key,
    },
    /// Inline references are ordered by type, then downwards by offset or hash.
    #[error("{key}: inline reference {ty} {seq:#x} follows {prev_ty} {prev_seq:#x}")]
    InlineRefOrder {
        /// The item's key.
        key: Key,
        /// The type of the reference before.
        prev_ty: KeyType,
        /// Its offset or hash.
        prev_seq: u64,
        /// The type of the reference.
        ty: KeyType,
        /// Its offset or hash.
        seq: u64,
    },
    /// An inline reference of a type that none has.
    #[error("{key}: inline reference of type {ty}")]
    InlineRefType {
        /// The item's key.
        key: Key,
        /// The type of the reference.
        ty: KeyType,
    },
}
