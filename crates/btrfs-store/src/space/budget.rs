//! Metadata budgets of operations.

/// What a reservation of metadata is for: a line of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A new name, with or without a new inode.
    Create,
    /// A name that goes.
    Unlink,
    /// A rename or an exchange of names.
    Rename,
    /// A change of attributes.
    SetAttr,
    /// A change of extended attributes, or one of attributes that touches some.
    Xattr,
    /// A file extent.
    WriteExtent,
    /// File extents that go.
    Truncate,
    /// Data that is written back.
    WriteBack,
    /// Extents that are shared or exchanged.
    MoveExtents,
    /// The removal of empty block groups, and whatever has no line of its own.
    Other,
}

impl Purpose {
    /// All purposes, in their order.
    pub const ALL: [Self; 10] = [
        Self::Create,
        Self::Unlink,
        Self::Rename,
        Self::SetAttr,
        Self::Xattr,
        Self::WriteExtent,
        Self::Truncate,
        Self::WriteBack,
        Self::MoveExtents,
        Self::Other,
    ];

    /// As the account shows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Unlink => "unlink",
            Self::Rename => "rename",
            Self::SetAttr => "attributes",
            Self::Xattr => "xattr",
            Self::WriteExtent => "write",
            Self::Truncate => "truncate",
            Self::WriteBack => "write-back",
            Self::MoveExtents => "move extents",
            Self::Other => "other",
        }
    }
}

/// Metadata budgets of operations, in leaves that they may touch; the arithmetic is in each
/// comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The line of the account.
    pub purpose: Purpose,
    /// Leaves that the operation may touch.
    pub blocks: u32,
    /// May dip into the global reserve: deletion must always be possible.
    pub is_release: bool,
}

impl Budget {
    /// Two directory items in the parent, inode and reference of the child, inode of the parent,
    /// xattrs and ACL.
    pub const CREATE: Self = Self {
        purpose: Purpose::Create,
        blocks: 6,
        is_release: false,
    };
    /// As CREATE; root item, both references, the uuid, and the inode in the new tree.
    pub const NEW_SUBVOLUME: Self = Self {
        purpose: Purpose::Create,
        blocks: 12,
        is_release: false,
    };
    /// As CREATE, without new items to speak of.
    pub const UNLINK: Self = Self {
        purpose: Purpose::Unlink,
        blocks: 6,
        is_release: true,
    };
    /// Two unlinks and two creates.
    pub const RENAME: Self = Self {
        purpose: Purpose::Rename,
        blocks: 14,
        is_release: false,
    };
    /// One inode item.
    pub const SETATTR: Self = Self {
        purpose: Purpose::SetAttr,
        blocks: 2,
        is_release: false,
    };
    /// One extended attribute and its inode.
    pub const XATTR: Self = Self {
        purpose: Purpose::Xattr,
        blocks: 3,
        is_release: false,
    };
    /// File extent items, checksums and the inode for one extent.
    pub const WRITE_EXTENT: Self = Self {
        purpose: Purpose::WriteExtent,
        blocks: 4,
        is_release: false,
    };
    /// Removing file extents: items, checksums, extent items.
    pub const TRUNCATE: Self = Self {
        purpose: Purpose::Truncate,
        blocks: 6,
        is_release: true,
    };

    /// Data that is written back, in groups of up to 256 runs, which may each touch a leaf of their
    /// own, but neighbours share them: an extent item has 78 bytes with its header, so that even 4
    /// KiB leaves hold 50, and checksums and references are denser. What is long in one piece fills
    /// leaves of its own, half of each at least: its checksums, and an extent item for each 128
    /// KiB, as compressed data has.
    ///
    /// Data that was accepted must find its way to the disk, therefore the global reserve may be
    /// used.
    pub fn written(groups: usize, bytes: u64, csum_bytes: u64, nodesize_bytes: u64) -> Self {
        const LEAVES_OF_GROUP: u64 = 16;
        let items_bytes = csum_bytes + bytes / (128 << 10) * 78;
        let leaves = items_bytes / (nodesize_bytes / 2) + groups as u64 * LEAVES_OF_GROUP;
        Self {
            purpose: Purpose::WriteBack,
            blocks: u32::try_from(leaves).unwrap_or(u32::MAX),
            is_release: true,
        }
    }

    /// `names` new inodes of one directory whose items, with their headers, have `bytes`: a leaf
    /// for each name's place by hash; the inodes side by side in leaves that are half full at
    /// least; the directory's own items.
    pub fn cloned_names(names: usize, bytes: usize, nodesize_bytes: u64) -> Self {
        let leaves = (bytes as u64).div_ceil(nodesize_bytes / 2) + names as u64;
        Self {
            purpose: Purpose::Create,
            blocks: u32::try_from(leaves + 8).unwrap_or(u32::MAX),
            is_release: false,
        }
    }

    /// Moving `extents` from one file to another. For each, an item goes and one comes (25 bytes of
    /// header and 53), and so do references (25 + 53, [`Self::WRITE_EXTENT`]'s copies of the extent
    /// tree are the global reserve's). What comes lies side by side in leaves that are half full at
    /// least; as many are copied. Two inodes, and the ends of both ranges.
    pub fn moved_extents(extents: u64, nodesize_bytes: u64) -> Self {
        let leaves = extents.saturating_mul(2 * (25 + 53)).div_ceil(nodesize_bytes / 2);
        Self {
            purpose: Purpose::MoveExtents,
            blocks: u32::try_from(leaves.saturating_mul(2) + 12).unwrap_or(u32::MAX),
            is_release: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_purpose_stands_at_its_place_and_has_a_name_of_its_own() {
        let places = Purpose::ALL.map(|purpose| purpose as usize);
        assert_eq!(places, std::array::from_fn(|n| n));
        let names: std::collections::BTreeSet<_> = Purpose::ALL.iter().map(|p| p.name()).collect();
        // As they are sent: 16 bytes.
        assert!(names.len() == Purpose::ALL.len() && names.iter().all(|name| name.len() <= 16));
    }
}
