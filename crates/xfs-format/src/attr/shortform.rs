//! The shortform: attributes in their inode.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{attr_flags, check_attr_name, check_flags};
use crate::corrupt::{Checked, field, truncated};
use crate::geometry::Geometry;
use crate::view;

on_disk!(
    /// `xfs_attr_sf_hdr`.
    /// docs/format/xfs/attributes.md
    AttrShortformHead(4) { totsize: U16, count: u8, padding: u8 }
);
on_disk!(
    /// `xfs_attr_sf_entry`: the fixed part; name and value follow.
    /// docs/format/xfs/attributes.md
    AttrShortformEntry(3) { namelen: u8, valuelen: u8, flags: u8 }
);

/// An attribute of the shortform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortformAttr<'a> {
    /// See [`attr_flags`].
    pub flags: u8,
    /// The name, without its namespace.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

fn split(bytes: &[u8]) -> Option<(ShortformAttr<'_>, &[u8])> {
    let (head, rest) = AttrShortformEntry::ref_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(head.namelen.into())?;
    let (value, rest) = rest.split_at_checked(head.valuelen.into())?;
    let attr = ShortformAttr {
        flags: head.flags,
        name,
        value,
    };
    Some((attr, rest))
}

/// The attributes in a fork of the shortform. Ends at the first one that does not fit.
pub fn shortform_entries(fork: &[u8]) -> impl Iterator<Item = ShortformAttr<'_>> {
    let head = view::at::<AttrShortformHead>(fork, 0);
    let count = head.map_or(0, |head| head.count);
    let total = head.map_or(0, |head| usize::from(head.totsize.get()));
    let mut rest = fork.get(size_of::<AttrShortformHead>()..total).unwrap_or_default();
    (0..count).map_while(move |_| {
        let (attr, behind) = split(rest)?;
        rest = behind;
        Some(attr)
    })
}

/// Checks the room of an attribute fork of the shortform.
pub(crate) fn check_shortform(room: &[u8], geometry: &Geometry) -> Checked {
    let head_bytes = size_of::<AttrShortformHead>();
    let Some(head) = view::at::<AttrShortformHead>(room, 0) else {
        return Err(truncated("attr.hdr", head_bytes, room.len()));
    };
    let most = u64::try_from(room.len()).unwrap_or_default();
    let least = u64::try_from(head_bytes).unwrap_or_default();
    field("attr.totsize", head.totsize.get(), Rule::Between(least, most))?;
    let mut rest = room
        .get(head_bytes..usize::from(head.totsize.get()))
        .unwrap_or_default();
    for slot in 0..usize::from(head.count) {
        let check = || {
            let Some((attr, behind)) = split(rest) else {
                return Err(truncated("attribute", size_of::<AttrShortformEntry>(), rest.len()));
            };
            check_flags(attr.flags, geometry)?;
            // The shortform holds values beside names, and nothing unfinished; a log that is
            // replayed may leave the flag.
            field("flags", attr.flags & attr_flags::LOCAL, Rule::Equal(0))?;
            check_attr_name(attr.name, attr.flags, Some(attr.value), geometry)?;
            Ok(behind)
        };
        rest = check().map_err(|fault| fault.in_slot(slot))?;
    }
    field(
        "attr.totsize",
        u64::try_from(rest.len()).unwrap_or(u64::MAX),
        Rule::Equal(0),
    )
}

/// Lays attributes out. `None` where a count or length does not fit; whether all fits the inode is
/// the caller's to see.
pub fn build_shortform(attrs: &[ShortformAttr<'_>]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size_of::<AttrShortformHead>()];
    for attr in attrs {
        let head = AttrShortformEntry {
            namelen: u8::try_from(attr.name.len()).ok()?,
            valuelen: u8::try_from(attr.value.len()).ok()?,
            flags: attr.flags,
        };
        bytes.extend(head.as_bytes());
        bytes.extend(attr.name);
        bytes.extend(attr.value);
    }
    let head = AttrShortformHead {
        totsize: U16::new(u16::try_from(bytes.len()).ok()?),
        count: u8::try_from(attrs.len()).ok()?,
        padding: 0,
    };
    view::put(&mut bytes, 0, head.as_bytes()).then_some(bytes)
}
