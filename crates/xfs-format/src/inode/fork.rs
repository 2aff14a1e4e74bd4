//! The two forks of an inode, in their forms.

use super::core::{FORKOFF_BYTES, InodeCore, mode};
use crate::btree::{BmapRecord, BmdrRoot};
use crate::num::to_len;
use crate::view;
use zerocopy::big_endian::U32;

/// Which fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkKind {
    /// Data: contents, entries, the target of a symlink.
    Data,
    /// Attributes.
    Attr,
}

/// `format` and `aformat`: where the contents of a fork are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ForkFormat {
    /// No contents: the number of a device.
    Dev,
    /// In the inode.
    Local,
    /// In extents that are listed in the inode.
    Extents,
    /// In extents that a B-tree lists, whose root is in the inode.
    Btree,
    /// Never used.
    Uuid,
    /// A B-tree of metadata in the inode: rmapbt or refcountbt of a realtime group.
    MetaBtree,
}

impl ForkFormat {
    /// From the number. `None` for one that the format does not define.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Dev,
            1 => Self::Local,
            2 => Self::Extents,
            3 => Self::Btree,
            4 => Self::Uuid,
            5 => Self::MetaBtree,
            _ => return None,
        })
    }
    /// The number.
    pub const fn to_raw(self) -> u8 {
        match self {
            Self::Dev => 0,
            Self::Local => 1,
            Self::Extents => 2,
            Self::Btree => 3,
            Self::Uuid => 4,
            Self::MetaBtree => 5,
        }
    }
    /// The name in dumps.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Local => "local",
            Self::Extents => "extents",
            Self::Btree => "btree",
            Self::Uuid => "uuid",
            Self::MetaBtree => "meta_btree",
        }
    }
}

/// A fork's contents.
#[derive(Clone, Copy, Debug)]
pub enum Fork<'a> {
    /// A device's number, as the kernel packs it.
    Dev(u32),
    /// The contents themselves: a shortform directory or attribute list, or a symlink's target.
    Local(&'a [u8]),
    /// The extents, in the order of the file.
    Extents(&'a [BmapRecord]),
    /// The root of the B-tree of extents.
    Btree(BmdrRoot<'a>),
}

/// Data fork and attribute fork from the bytes behind the core. `None` where `forkoff` lies behind
/// them.
pub(super) fn split(forks: &[u8], forkoff: u8) -> Option<(&[u8], &[u8])> {
    match forkoff {
        0 => Some((forks, &[])),
        units => forks.split_at_checked(usize::from(units).checked_mul(FORKOFF_BYTES)?),
    }
}

impl<'a> Fork<'a> {
    /// Reads a fork from its room. `None` where it does not fit, or has no such form.
    pub(super) fn read(room: &'a [u8], core: &InodeCore, kind: ForkKind) -> Option<Self> {
        let (format, extents) = match kind {
            ForkKind::Data => (core.format, core.data_extents()),
            ForkKind::Attr => (core.aformat, core.attr_extents().into()),
        };
        match ForkFormat::from_raw(format)? {
            ForkFormat::Dev => Some(Self::Dev(view::at::<U32>(room, 0)?.get())),
            ForkFormat::Local => match kind {
                ForkKind::Data => Some(Self::Local(room.get(..to_len(core.size.get()))?)),
                ForkKind::Attr => {
                    let size = view::at::<zerocopy::big_endian::U16>(room, 0)?.get();
                    Some(Self::Local(room.get(..usize::from(size))?))
                }
            },
            ForkFormat::Extents => Some(Self::Extents(view::slice(room, 0, to_len(extents))?)),
            ForkFormat::Btree => Some(Self::Btree(BmdrRoot::read(room)?)),
            ForkFormat::Uuid | ForkFormat::MetaBtree => None,
        }
    }
}

/// True for types of files whose data fork is a device's number.
pub(super) fn is_special(file_type: u16) -> bool {
    matches!(file_type, mode::FIFO | mode::CHAR | mode::BLOCK | mode::SOCKET)
}
