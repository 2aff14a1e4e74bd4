//! The types of items.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::corrupt::{Fault, truncated};
use crate::view;

/// `type` of an item: the first two bytes of its first region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(
    missing_docs,
    reason = "the names are the format's; docs/format/xfs/log.md has a table"
)]
pub enum ItemType {
    Efi,
    Efd,
    Iunlink,
    Inode,
    Buf,
    Dquot,
    Quotaoff,
    Icreate,
    Rui,
    Rud,
    Cui,
    Cud,
    Bui,
    Bud,
    Attri,
    Attrd,
    Xmi,
    Xmd,
    EfiRt,
    EfdRt,
    RuiRt,
    RudRt,
    CuiRt,
    CudRt,
}

impl ItemType {
    /// All types with their numbers and names.
    pub const ALL: [(Self, u16, &'static str); 24] = [
        (Self::Efi, 0x1236, "EFI"),
        (Self::Efd, 0x1237, "EFD"),
        (Self::Iunlink, 0x1238, "IUNLINK"),
        (Self::Inode, 0x123b, "INODE"),
        (Self::Buf, 0x123c, "BUF"),
        (Self::Dquot, 0x123d, "DQUOT"),
        (Self::Quotaoff, 0x123e, "QUOTAOFF"),
        (Self::Icreate, 0x123f, "ICREATE"),
        (Self::Rui, 0x1240, "RUI"),
        (Self::Rud, 0x1241, "RUD"),
        (Self::Cui, 0x1242, "CUI"),
        (Self::Cud, 0x1243, "CUD"),
        (Self::Bui, 0x1244, "BUI"),
        (Self::Bud, 0x1245, "BUD"),
        (Self::Attri, 0x1246, "ATTRI"),
        (Self::Attrd, 0x1247, "ATTRD"),
        (Self::Xmi, 0x1248, "XMI"),
        (Self::Xmd, 0x1249, "XMD"),
        (Self::EfiRt, 0x124a, "EFI_RT"),
        (Self::EfdRt, 0x124b, "EFD_RT"),
        (Self::RuiRt, 0x124c, "RUI_RT"),
        (Self::RudRt, 0x124d, "RUD_RT"),
        (Self::CuiRt, 0x124e, "CUI_RT"),
        (Self::CudRt, 0x124f, "CUD_RT"),
    ];

    /// From the number. `None` for one that the format does not define.
    pub fn from_raw(raw: u16) -> Option<Self> {
        Self::ALL
            .iter()
            .find(|(_, number, _)| *number == raw)
            .map(|(ty, ..)| *ty)
    }
    /// The number.
    pub fn to_raw(self) -> u16 {
        Self::ALL
            .iter()
            .find(|(ty, ..)| *ty == self)
            .map_or(0, |(_, raw, _)| *raw)
    }
    /// The format's name.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(ty, ..)| *ty == self)
            .map_or("", |(.., name)| name)
    }
}

/// A structure at the head of a region.
pub(super) fn whole<T: FromBytes + KnownLayout + Immutable + Unaligned + Copy>(region: &[u8]) -> Result<T, Fault> {
    let value = view::at::<T>(region, 0).copied();
    value.ok_or_else(|| truncated("item", size_of::<T>(), region.len()))
}
