//! Metadata budgets of operations.

/// Metadata budgets of operations, in leaves that they may touch; the arithmetic is in each comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    pub blocks: u32,
    /// May dip into the global reserve: deletion must always be possible.
    pub is_release: bool,
}

impl Budget {
    /// Two directory items in the parent, inode and reference of the child, inode of the parent, xattrs and ACL.
    pub const CREATE: Self = Self {
        blocks: 6,
        is_release: false,
    };
    /// As CREATE, without new items to speak of.
    pub const UNLINK: Self = Self {
        blocks: 6,
        is_release: true,
    };
    /// Two unlinks and two creates.
    pub const RENAME: Self = Self {
        blocks: 14,
        is_release: false,
    };
    /// One inode item.
    pub const SETATTR: Self = Self {
        blocks: 2,
        is_release: false,
    };
    pub const XATTR: Self = Self {
        blocks: 3,
        is_release: false,
    };
    /// File extent items, checksums and the inode for one extent.
    pub const WRITE_EXTENT: Self = Self {
        blocks: 4,
        is_release: false,
    };
    /// Removing file extents: items, checksums, extent items.
    pub const TRUNCATE: Self = Self {
        blocks: 6,
        is_release: true,
    };
}
