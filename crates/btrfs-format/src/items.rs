//! The items of the trees, as they lie on disk. Field names are the format's; sizes are asserted.
//!
//! Items with variable tails (names, stripes, inline references) are declared by their fixed head;
//! [`crate::view`] reads the rest.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::Uuid;
use crate::key::DiskKey;
use cowshed_layout::on_disk;
pub use cowshed_layout::{FieldLayout, Layout};

on_disk!(
    /// `btrfs_timespec`.
    /// docs/format/files.md
    Timespec(12) { sec: U64, nsec: U32 }
);
on_disk!(
    /// `btrfs_inode_item`.
    /// docs/format/files.md
    InodeItem(160) {
        generation: U64,
        transid: U64,
        size: U64,
        nbytes: U64,
        block_group: U64,
        nlink: U32,
        uid: U32,
        gid: U32,
        mode: U32,
        rdev: U64,
        flags: U64,
        sequence: U64,
        reserved: [U64; 4],
        atime: Timespec,
        ctime: Timespec,
        mtime: Timespec,
        otime: Timespec,
    }
);
on_disk!(
    /// `btrfs_inode_ref`; the name follows.
    /// docs/format/files.md
    InodeRef(10) { index: U64, name_len: U16 }
);
on_disk!(
    /// `btrfs_inode_extref`; the name follows.
    /// docs/format/files.md
    InodeExtref(18) { parent_objectid: U64, index: U64, name_len: U16 }
);
on_disk!(
    /// `btrfs_dir_item`: the head of `DIR_ITEM`, `DIR_INDEX` and `XATTR_ITEM`; name, then data
    /// follow. docs/format/files.md
    DirItem(30) { location: DiskKey, transid: U64, data_len: U16, name_len: U16, ty: u8 }
);
on_disk!(
    /// `btrfs_dir_log_item`.
    /// docs/format/log.md
    DirLogItem(8) { end: U64 }
);
on_disk!(
    /// `btrfs_root_item`.
    /// docs/format/roots.md
    RootItem(439) {
        inode: InodeItem,
        generation: U64,
        root_dirid: U64,
        bytenr: U64,
        byte_limit: U64,
        bytes_used: U64,
        last_snapshot: U64,
        flags: U64,
        refs: U32,
        drop_progress: DiskKey,
        drop_level: u8,
        level: u8,
        /// Equal to `generation` where the fields below it are valid.
        generation_v2: U64,
        uuid: Uuid,
        parent_uuid: Uuid,
        received_uuid: Uuid,
        ctransid: U64,
        otransid: U64,
        stransid: U64,
        rtransid: U64,
        ctime: Timespec,
        otime: Timespec,
        stime: Timespec,
        rtime: Timespec,
        reserved: [U64; 8],
    }
);
impl RootItem {
    /// The flags of the subvolume. Where the inode within does not say that they are initialised
    /// (`ROOT_ITEM_INIT`), they count as zeros, whatever stands there.
    pub fn subvolume_flags(&self) -> u64 {
        match self.inode.flags.get() & crate::features::inode_flags::ROOT_ITEM_INIT {
            0 => 0,
            _ => self.flags.get(),
        }
    }

    /// Sets the flags of the subvolume, and says that they are initialised.
    pub fn set_subvolume_flags(&mut self, flags: u64) {
        use crate::features::inode_flags::ROOT_ITEM_INIT;
        let inode_flags = self.inode.flags.get();
        if inode_flags & ROOT_ITEM_INIT == 0 {
            self.byte_limit = U64::ZERO;
            self.inode.flags = U64::new(inode_flags | ROOT_ITEM_INIT);
        }
        self.flags = U64::new(flags);
    }
}
/// Bytes of the root item of volumes from before `generation_v2`; still accepted.
pub const ROOT_ITEM_V0_BYTES: usize = 239;
on_disk!(
    /// `btrfs_root_ref`; the name follows. Item of `ROOT_REF` and `ROOT_BACKREF`.
    /// docs/format/roots.md
    RootRef(18) { dirid: U64, sequence: U64, name_len: U16 }
);
on_disk!(
    /// Fixed head of `btrfs_file_extent_item`; inline data follows it directly.
    /// docs/format/files.md
    FileExtentHead(21) {
        generation: U64,
        ram_bytes: U64,
        compression: u8,
        encryption: u8,
        other_encoding: U16,
        ty: u8,
    }
);
on_disk!(
    /// `btrfs_file_extent_item` of a regular or preallocated extent.
    /// docs/format/files.md
    FileExtent(53) {
        generation: U64,
        ram_bytes: U64,
        compression: u8,
        encryption: u8,
        other_encoding: U16,
        ty: u8,
        disk_bytenr: U64,
        disk_num_bytes: U64,
        offset: U64,
        num_bytes: U64,
    }
);
/// `type` of a file extent.
pub mod file_extent_type {
    /// The data lies in the item.
    pub const INLINE: u8 = 0;
    /// An extent, or a hole where its address is 0.
    pub const REG: u8 = 1;
    /// An extent that was reserved and not written: it reads as zeros.
    pub const PREALLOC: u8 = 2;
}
/// `compression` of a file extent.
pub mod compression {
    /// Not compressed.
    pub const NONE: u8 = 0;
    /// A zlib stream.
    pub const ZLIB: u8 = 1;
    /// LZO segments, a sector each, in a frame of their own.
    pub const LZO: u8 = 2;
    /// A zstd frame.
    pub const ZSTD: u8 = 3;
}
/// `type` of a directory item.
pub mod file_type {
    /// No type that an entry may have.
    pub const UNKNOWN: u8 = 0;
    /// A regular file.
    pub const REG_FILE: u8 = 1;
    /// A directory.
    pub const DIR: u8 = 2;
    /// A character device.
    pub const CHRDEV: u8 = 3;
    /// A block device.
    pub const BLKDEV: u8 = 4;
    /// A FIFO.
    pub const FIFO: u8 = 5;
    /// A socket.
    pub const SOCK: u8 = 6;
    /// A symbolic link.
    pub const SYMLINK: u8 = 7;
    /// An extended attribute.
    pub const XATTR: u8 = 8;
}

on_disk!(
    /// `btrfs_extent_item`; for unskinny tree blocks a [`TreeBlockInfo`] follows, then the inline
    /// references. docs/format/extents.md
    ExtentItem(24) { refs: U64, generation: U64, flags: U64 }
);
on_disk!(
    /// `btrfs_tree_block_info`.
    /// docs/format/extents.md
    TreeBlockInfo(18) { key: DiskKey, level: u8 }
);
on_disk!(
    /// `btrfs_extent_inline_ref`: a type byte and, for all but `EXTENT_DATA_REF`, an offset (root
    /// or parent). docs/format/extents.md
    InlineRef(9) { ty: u8, offset: U64 }
);
on_disk!(
    /// `btrfs_extent_data_ref`. Inline it follows the type byte directly.
    /// docs/format/extents.md
    ExtentDataRef(28) { root: U64, objectid: U64, offset: U64, count: U32 }
);
on_disk!(
    /// `btrfs_shared_data_ref`. Inline it follows the type byte and the parent's address.
    /// docs/format/extents.md
    SharedDataRef(4) { count: U32 }
);
on_disk!(
    /// `btrfs_extent_owner_ref`: the subvolume that first wrote an extent, under simple quotas.
    /// docs/format/extents.md
    ExtentOwnerRef(8) { root_id: U64 }
);
on_disk!(
    /// `btrfs_block_group_item`.
    /// docs/format/free-space.md
    BlockGroupItem(24) { used: U64, chunk_objectid: U64, flags: U64 }
);
on_disk!(
    /// `btrfs_free_space_info`.
    /// docs/format/free-space.md
    FreeSpaceInfo(8) { extent_count: U32, flags: U32 }
);
/// `flags` of [`FreeSpaceInfo`]: the block group's free space is kept as bitmaps.
pub const FREE_SPACE_USING_BITMAPS: u32 = 1 << 0;
/// Bytes of one bitmap item of the free-space tree; each bit is one sector.
pub const FREE_SPACE_BITMAP_BYTES: usize = 256;

on_disk!(
    /// `btrfs_dev_extent`.
    /// docs/format/chunks.md
    DevExtent(48) {
        chunk_tree: U64,
        chunk_objectid: U64,
        chunk_offset: U64,
        length: U64,
        chunk_tree_uuid: Uuid,
    }
);
on_disk!(
    /// `btrfs_dev_item`.
    /// docs/format/chunks.md
    DevItem(98) {
        devid: U64,
        total_bytes: U64,
        bytes_used: U64,
        io_align: U32,
        io_width: U32,
        sector_size: U32,
        ty: U64,
        generation: U64,
        start_offset: U64,
        dev_group: U32,
        seek_speed: u8,
        bandwidth: u8,
        uuid: Uuid,
        fsid: Uuid,
    }
);
on_disk!(
    /// `btrfs_chunk` without its stripes.
    /// docs/format/chunks.md
    ChunkHead(48) {
        length: U64,
        owner: U64,
        stripe_len: U64,
        ty: U64,
        io_align: U32,
        io_width: U32,
        sector_size: U32,
        num_stripes: U16,
        sub_stripes: U16,
    }
);
on_disk!(
    /// `btrfs_stripe`.
    /// docs/format/chunks.md
    Stripe(32) { devid: U64, offset: U64, dev_uuid: Uuid }
);
/// The only stripe length there is.
pub const STRIPE_LEN_BYTES: u64 = 64 << 10;

on_disk!(
    /// `btrfs_dev_stats_item` (item of `PERSISTENT_ITEM` with object id `DEV_STATS`).
    /// docs/format/roots.md
    DevStats(40) { values: [U64; 5] }
);
on_disk!(
    /// `btrfs_dev_replace_item`: the state of a replacement of one device by another.
    /// docs/format/roots.md
    DevReplace(72) {
        src_devid: U64,
        cursor_left: U64,
        cursor_right: U64,
        cont_reading_from_srcdev_mode: U64,
        replace_state: U64,
        time_started: U64,
        time_stopped: U64,
        num_write_errors: U64,
        num_uncorrectable_read_errors: U64,
    }
);
/// `replace_state` of [`DevReplace`]; the others are never started (0), finished (2) and cancelled
/// (3).
pub const DEV_REPLACE_STARTED: u64 = 1;
/// A replacement that an unmount or a crash interrupted: the kernel goes on with it at the next
/// mount.
pub const DEV_REPLACE_SUSPENDED: u64 = 4;

on_disk!(
    /// `btrfs_free_space_header`: item of the version 1 space cache's inode.
    /// docs/format/free-space.md
    FreeSpaceHeader(41) { location: DiskKey, generation: U64, num_entries: U64, num_bitmaps: U64 }
);

on_disk!(
    /// `btrfs_qgroup_status_item` without the field that simple quotas append.
    QgroupStatus(32) { version: U64, generation: U64, flags: U64, rescan: U64 }
);
