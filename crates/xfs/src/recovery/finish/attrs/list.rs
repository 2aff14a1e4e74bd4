//! An attribute as recovery changes it, apart from the block or inode that holds it, and how many
//! bytes it takes.

use xfs_format::attr::{
    AttrEntryHead, AttrLeafHeader, AttrLeafHeaderV5, AttrLocalHead, AttrNew, AttrRemoteHead, AttrValueView,
    LOCAL_ENTRY_SHARE, attr_flags,
};
use xfs_format::{DaBlock, Geometry};

/// Names and values begin at multiples of it.
const ALIGN_BYTES: usize = 4;
/// Names and values of the shortform are shorter: Linux leaves the greatest number of the field
/// alone.
pub(super) const SHORTFORM_BYTES_END: usize = 255;

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

    pub(super) fn hash(&self, geometry: &Geometry) -> u32 {
        self.view().hash(geometry)
    }

    /// True for the attribute that a change is about: a parent pointer is one with its value. An
    /// attribute that was not finished is one, too.
    pub(super) fn is(&self, other: &Attr) -> bool {
        let namespace = |attr: &Attr| attr.flags & attr_flags::NAMESPACE_MASK;
        namespace(self) == namespace(other)
            && self.name == other.name
            && (namespace(self) & attr_flags::PARENT == 0 || self.value == other.value)
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.flags & attr_flags::INCOMPLETE != 0
    }

    /// Bytes of name and value in a leaf.
    fn body_bytes(&self) -> usize {
        let bytes = match &self.value {
            Value::Local(value) => size_of::<AttrLocalHead>() + self.name.len() + value.len(),
            Value::Remote { .. } => size_of::<AttrRemoteHead>() + self.name.len(),
        };
        bytes.next_multiple_of(ALIGN_BYTES)
    }

    /// Bytes in a leaf.
    fn bytes(&self) -> usize {
        size_of::<AttrEntryHead>() + self.body_bytes()
    }

    /// True where the value lies beside the name in a leaf: name and value take less than three
    /// quarters of a block.
    pub(super) fn fits_beside_name(&self, geometry: &Geometry) -> bool {
        let (share, of) = LOCAL_ENTRY_SHARE;
        self.body_bytes() < geometry.block_bytes as usize / of as usize * share as usize
    }
}

pub(super) fn sort(attrs: &mut [Attr], geometry: &Geometry) {
    attrs.sort_by_key(|attr| attr.hash(geometry));
}

pub(super) fn last_hash(attrs: &[Attr], geometry: &Geometry) -> Option<u32> {
    attrs.last().map(|attr| attr.hash(geometry))
}

/// Bytes of a leaf that are in use.
pub(super) fn leaf_bytes(attrs: &[Attr], geometry: &Geometry) -> usize {
    let header = if geometry.is_v5() {
        size_of::<AttrLeafHeaderV5>()
    } else {
        size_of::<AttrLeafHeader>()
    };
    header + list_bytes(attrs)
}

fn list_bytes(attrs: &[Attr]) -> usize {
    attrs.iter().map(Attr::bytes).sum()
}

/// True where a leaf has room for all of them.
pub(super) fn fits_leaf(attrs: &[Attr], geometry: &Geometry) -> bool {
    leaf_bytes(attrs, geometry) <= geometry.block_bytes as usize
}

/// Where a list is cut so that both halves differ least in their bytes.
pub(super) fn middle(attrs: &[Attr]) -> usize {
    let half = list_bytes(attrs) / 2;
    let (mut bytes, mut least) = (0, usize::MAX);
    let at = attrs.iter().position(|attr| {
        bytes += attr.bytes();
        let is_past = bytes.abs_diff(half) > least;
        least = bytes.abs_diff(half);
        is_past
    });
    let last = attrs.len().saturating_sub(1).max(1);
    at.unwrap_or(last).clamp(1, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_cut_in_the_middle_of_their_bytes() {
        let attr = |len: usize| Attr::new(0, &vec![b'a'; len], b"");
        assert_eq!(middle(&[attr(5), attr(5), attr(5), attr(5)]), 2);
        assert_eq!(middle(&[attr(200), attr(5), attr(5)]), 1);
        assert_eq!(middle(&[attr(5), attr(5), attr(200)]), 2);
        assert_eq!(middle(&[attr(5), attr(200)]), 1);
        assert_eq!(middle(&[attr(60), attr(60), attr(40)]), 1);
        assert_eq!(middle(&[attr(40), attr(60), attr(60)]), 2);
        assert_eq!(attr(5).bytes(), 8 + 8);
        assert_eq!(attr(6).bytes(), 8 + 12);
    }
}
