//! The fixed fields.

use std::mem::offset_of;

use cowshed_layout::on_disk;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::time::Timestamp;
use crate::features::{inode_flags, inode_flags2};
use crate::ids::Uuid;

on_disk!(
    /// `xfs_dinode` of version 3; versions 1 and 2 end behind `next_unlinked`.
    /// docs/format/xfs/inodes.md
    InodeCore(176) {
        magic: U16,
        mode: U16,
        version: u8,
        format: u8,
        onlink: U16,
        uid: U32,
        gid: U32,
        nlink: U32,
        projid_lo: U16,
        projid_hi: U16,
        big_nextents: U64,
        atime: U64,
        mtime: U64,
        ctime: U64,
        size: U64,
        nblocks: U64,
        extsize: U32,
        nextents: U32,
        anextents: U16,
        forkoff: u8,
        aformat: u8,
        dmevmask: U32,
        dmstate: U16,
        flags: U16,
        generation: U32,
        next_unlinked: U32,
        crc: [u8; 4],
        changecount: U64,
        lsn: U64,
        flags2: U64,
        cowextsize: U32,
        pad2: [u8; 12],
        crtime: U64,
        ino: U64,
        uuid: Uuid,
    }
);
on_disk!(
    /// `xfs_dinode` of versions 1 and 2.
    /// docs/format/xfs/inodes.md
    InodeCoreV2(100) {
        magic: U16,
        mode: U16,
        version: u8,
        format: u8,
        onlink: U16,
        uid: U32,
        gid: U32,
        nlink: U32,
        projid_lo: U16,
        projid_hi: U16,
        pad: [u8; 6],
        flushiter: U16,
        atime: U64,
        mtime: U64,
        ctime: U64,
        size: U64,
        nblocks: U64,
        extsize: U32,
        nextents: U32,
        anextents: U16,
        forkoff: u8,
        aformat: u8,
        dmevmask: U32,
        dmstate: U16,
        flags: U16,
        generation: U32,
        next_unlinked: U32,
    }
);
const _: () = assert!(offset_of!(InodeCore, crc) == size_of::<InodeCoreV2>());
const _: () = assert!(offset_of!(InodeCore, size) == 56 && offset_of!(InodeCore, forkoff) == 82);

/// `magic`: `IN`.
pub const INODE_MAGIC: u16 = 0x494e;
/// Bytes of the core of versions 1 and 2.
pub const CORE_BYTES_V2: usize = size_of::<InodeCoreV2>();
/// Bytes of the core of version 3.
pub const CORE_BYTES_V3: usize = size_of::<InodeCore>();
/// `forkoff` counts units of 8 bytes.
pub(super) const FORKOFF_BYTES: usize = 8;

/// Types of files in `mode`.
pub mod mode {
    /// The bits of the type.
    pub const TYPE_MASK: u16 = 0o170_000;
    /// A named pipe.
    pub const FIFO: u16 = 0o010_000;
    /// A character device.
    pub const CHAR: u16 = 0o020_000;
    /// A directory.
    pub const DIR: u16 = 0o040_000;
    /// A block device.
    pub const BLOCK: u16 = 0o060_000;
    /// A file.
    pub const REGULAR: u16 = 0o100_000;
    /// A symlink.
    pub const SYMLINK: u16 = 0o120_000;
    /// A socket.
    pub const SOCKET: u16 = 0o140_000;
    /// All types.
    pub const TYPES: &[u64] = &[
        0o010_000, 0o020_000, 0o040_000, 0o060_000, 0o100_000, 0o120_000, 0o140_000,
    ];
}

/// Bytes before the data fork.
pub fn core_bytes(is_v5: bool) -> usize {
    if is_v5 { CORE_BYTES_V3 } else { CORE_BYTES_V2 }
}

impl InodeCore {
    /// The type of the file: a value of [`mode`]; 0 for a free inode.
    pub fn file_type(&self) -> u16 {
        self.mode.get() & mode::TYPE_MASK
    }
    /// A bit of [`inode_flags`].
    pub fn has_flag(&self, bit: u64) -> bool {
        u64::from(self.flags.get()) & bit != 0
    }
    /// A bit of [`inode_flags2`]; version 3 alone has them.
    pub fn has_flag2(&self, bit: u64) -> bool {
        self.version >= 3 && self.flags2.get() & bit != 0
    }
    /// True where the data lies on the realtime device.
    pub fn is_realtime(&self) -> bool {
        self.has_flag(inode_flags::REALTIME)
    }
    /// True where times are counters of nanoseconds.
    pub fn is_bigtime(&self) -> bool {
        self.has_flag2(inode_flags2::BIGTIME)
    }
    /// True where counts of extents have 48 and 32 bits.
    pub fn is_nrext64(&self) -> bool {
        self.has_flag2(inode_flags2::NREXT64)
    }
    /// Names of the inode.
    pub fn link_count(&self) -> u32 {
        if self.version == 1 {
            self.onlink.get().into()
        } else {
            self.nlink.get()
        }
    }
    /// The project's number.
    pub fn project_id(&self) -> u32 {
        u32::from(self.projid_hi.get()) << 16 | u32::from(self.projid_lo.get())
    }
    /// Extents of the data fork.
    pub fn data_extents(&self) -> u64 {
        if self.is_nrext64() {
            self.big_nextents.get()
        } else {
            self.nextents.get().into()
        }
    }
    /// Extents of the attribute fork.
    pub fn attr_extents(&self) -> u32 {
        if self.is_nrext64() {
            // The field of 32 bits counts them there.
            self.nextents.get()
        } else {
            self.anextents.get().into()
        }
    }
    /// Sets both counts. False where one does not fit.
    #[must_use]
    pub fn set_extents(&mut self, data: u64, attr: u32) -> bool {
        if self.is_nrext64() {
            self.big_nextents.set(data);
            self.nextents.set(attr);
            self.anextents.set(0);
            return data < 1 << 48;
        }
        let (Ok(data), Ok(attr)) = (u32::try_from(data), u16::try_from(attr)) else {
            return false;
        };
        self.nextents.set(data);
        self.anextents.set(attr);
        true
    }
    /// A time field by the inode's format.
    pub fn time(&self, raw: U64) -> Timestamp {
        Timestamp::decode(raw.get(), self.is_bigtime())
    }
    /// Where the attribute fork begins behind the core, in bytes; 0 where there is none.
    pub fn attr_fork_at(&self) -> usize {
        usize::from(self.forkoff).saturating_mul(FORKOFF_BYTES)
    }
}
