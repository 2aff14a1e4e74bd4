//! An attribute as recovery changes it, apart from the block or inode that holds it.

use xfs_format::DaBlock;
use xfs_format::attr::{AttrNew, AttrValueView, attr_flags};

use crate::error::Error;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Local(Vec<u8>),
    Remote { block: DaBlock, len_bytes: u32 },
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Attr {
    pub flags: u8,
    pub name: Vec<u8>,
    pub value: Value,
}

impl Attr {
    pub(super) fn new(flags: u8, name: &[u8], value: &[u8]) -> Self {
        Self {
            flags,
            name: name.to_vec(),
            value: Value::Local(value.to_vec()),
        }
    }
    pub(super) fn view(&self) -> AttrNew<'_> {
        AttrNew {
            flags: self.flags,
            name: &self.name,
            value: match &self.value {
                Value::Local(value) => AttrValueView::Local(value),
                Value::Remote { block, len_bytes } => AttrValueView::Remote {
                    block: *block,
                    len_bytes: *len_bytes,
                },
            },
        }
    }
    /// True for the attribute that a change is about: a parent pointer is one with its value.
    pub(super) fn is(&self, other: &Attr) -> bool {
        let namespace = |attr: &Attr| attr.flags & attr_flags::NAMESPACE_MASK;
        namespace(self) == namespace(other)
            && self.name == other.name
            && (namespace(self) & attr_flags::PARENT == 0 || self.value == other.value)
    }
}

/// A change that is not written yet.
pub(super) fn refused(what: &'static str) -> Error {
    Error::Unsupported(format!("log with an unfinished ATTRI: {what}"))
}
