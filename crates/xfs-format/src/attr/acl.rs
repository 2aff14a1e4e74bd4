//! Access lists: values of two attributes of the namespace `trusted`.

use cowshed_layout::on_disk;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

on_disk!(
    /// `xfs_acl_entry`: an entry of an access list.
    /// docs/format/xfs/attributes.md
    AclEntry(12) { ae_tag: U32, ae_id: U32, ae_perm: U16, ae_pad: U16 }
);

/// The name of a file's own list.
pub const ACL_FILE: &[u8] = b"SGI_ACL_FILE";
/// The name of the list that a directory gives to what is made in it.
pub const ACL_DEFAULT: &[u8] = b"SGI_ACL_DEFAULT";

/// What an entry is for.
pub mod acl_tag {
    /// The owner.
    pub const USER_OBJ: u32 = 0x01;
    /// A user by number.
    pub const USER: u32 = 0x02;
    /// The group.
    pub const GROUP_OBJ: u32 = 0x04;
    /// A group by number.
    pub const GROUP: u32 = 0x08;
    /// The most that users and groups by number, and the group, are given.
    pub const MASK: u32 = 0x10;
    /// All others.
    pub const OTHER: u32 = 0x20;
}

/// The entries of a list. `None` where the value is shorter than its count says.
pub fn acl_entries(value: &[u8]) -> Option<&[AclEntry]> {
    let (count, rest) = U32::ref_from_prefix(value).ok()?;
    let count = usize::try_from(count.get()).ok()?;
    let bytes = count.checked_mul(size_of::<AclEntry>())?;
    <[AclEntry]>::ref_from_bytes(rest.get(..bytes)?).ok()
}
