//! Extended attributes: in the inode (shortform), in one leaf, or in leaves under a hash tree.
//! Values that do not fit a leaf have blocks of their own ("remote"). Parent pointers are
//! attributes of a namespace of their own.

mod acl;
mod leaf;
mod parent;
mod remote;
mod shortform;

pub use acl::{ACL_DEFAULT, ACL_FILE, AclEntry, acl_entries, acl_tag};
pub use leaf::{
    AttrEntryHead, AttrEntryView, AttrFreeSpan, AttrLeafBlock, AttrLeafHeader, AttrLeafHeaderV5, AttrLocalHead,
    AttrNew, AttrRemoteHead, AttrValueView, LOCAL_ENTRY_SHARE,
};
pub use parent::{ParentPointer, ParentRecord, parent_hash};
pub use remote::{AttrRemoteBlock, AttrRemoteHeader, REMOTE_MAGIC, remote_blocks, remote_value_bytes};
pub(crate) use remote::{
    build_part as build_remote_part, check_part, part as remote_part, part_offset as remote_part_offset, remote_kind,
};
pub(crate) use shortform::check_shortform;
pub use shortform::{AttrShortformEntry, AttrShortformHead, ShortformAttr, build_shortform, shortform_entries};

/// Flags of an attribute.
pub mod attr_flags {
    /// The value lies beside the name.
    pub const LOCAL: u8 = 1 << 0;
    /// Namespace `trusted`.
    pub const ROOT: u8 = 1 << 1;
    /// Namespace `security`.
    pub const SECURE: u8 = 1 << 2;
    /// A parent pointer.
    pub const PARENT: u8 = 1 << 3;
    /// Not finished: a change was interrupted, or is on its way.
    pub const INCOMPLETE: u8 = 1 << 7;
    /// The namespace; none of these bits is `user`.
    pub const NAMESPACE_MASK: u8 = ROOT | SECURE | PARENT;
    /// All bits.
    pub const KNOWN: u8 = NAMESPACE_MASK | LOCAL | INCOMPLETE;
    /// Each bit with the format's name for it.
    pub const NAMES: &[(u64, &str)] = &[
        (0x01, "LOCAL"),
        (0x02, "ROOT"),
        (0x04, "SECURE"),
        (0x08, "PARENT"),
        (0x80, "INCOMPLETE"),
    ];
}

/// Bytes of a value: what the system call allows.
pub const VALUE_BYTES_MAX: u32 = 65536;

/// Checks flags, and that a namespace is one.
fn check_flags(flags: u8, geometry: &crate::Geometry) -> crate::corrupt::Checked {
    use cowshed_layout::Rule;

    use crate::corrupt::{agree, field};
    field("flags", flags, Rule::KnownBits(attr_flags::KNOWN.into()))?;
    let namespace = u64::from(flags & attr_flags::NAMESPACE_MASK);
    field(
        "flags",
        namespace,
        Rule::OneBitAtMostOf(attr_flags::NAMESPACE_MASK.into()),
    )?;
    agree(
        flags & attr_flags::PARENT == 0 || geometry.has_incompat(crate::features::incompat::PARENT),
        "flags has PARENT, the volume has no parent pointers",
    )
}

/// Checks a name: that of an attribute may hold a slash.
fn check_attr_name(
    name: &[u8],
    flags: u8,
    value: Option<&[u8]>,
    geometry: &crate::Geometry,
) -> crate::corrupt::Checked {
    use crate::corrupt::{CorruptKind, check_name, mismatch};
    if flags & attr_flags::PARENT != 0 {
        check_name(name)?;
        let pointer = value.and_then(ParentPointer::read);
        return match pointer {
            Some(pointer) if geometry.is_inode(pointer.ino) => Ok(()),
            Some(pointer) => Err(mismatch("p_ino", pointer.ino, "an inode of the volume")),
            None => Err(CorruptKind::Contradiction("a parent pointer of another size").into()),
        };
    }
    if name.is_empty() || name.contains(&0) {
        let name = String::from_utf8_lossy(name).into();
        return Err(CorruptKind::Name { name }.into());
    }
    Ok(())
}
