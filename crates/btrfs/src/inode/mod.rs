//! Inodes in memory.
//!
//! Locks, in this order: `Inode::lock` (the operation lock: held for reading by reads and lookups, for writing by
//! whatever changes names, size or extents), then a transaction join, then `Inode::attr` (held for moments only).
//! Two inode locks are taken in the order of (tree, number).

use std::sync::Arc;

use btrfs_format::items::{InodeItem, Timespec};
use btrfs_format::{Generation, Key, KeyType, ObjectId};
use cowshed_vfs::Timestamp;
use parking_lot::{Mutex, RwLock};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::file::FileData;
use crate::tree::Tree;

/// The fields of an inode item, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeAttr {
    pub generation: Generation,
    pub transid: Generation,
    /// Size as callers see it, in bytes.
    pub size: u64,
    /// Bytes that extents take, as the format counts them (`nbytes`): no holes; inline data counts its length.
    pub nbytes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
    pub rdev: u64,
    pub flags: u64,
    pub sequence: u64,
    pub block_group: u64,
    pub atime: Timestamp,
    pub ctime: Timestamp,
    pub mtime: Timestamp,
    pub otime: Timestamp,
}

fn decode_time(raw: &Timespec) -> Timestamp {
    Timestamp {
        secs: raw.sec.get().cast_signed(),
        nanos: raw.nsec.get(),
    }
}
fn encode_time(time: Timestamp) -> Timespec {
    Timespec {
        sec: U64::new(time.secs.cast_unsigned()),
        nsec: U32::new(time.nanos),
    }
}

impl InodeAttr {
    pub fn decode(raw: &InodeItem) -> Self {
        Self {
            generation: raw.generation.into(),
            transid: raw.transid.into(),
            size: raw.size.get(),
            nbytes: raw.nbytes.get(),
            nlink: raw.nlink.get(),
            uid: raw.uid.get(),
            gid: raw.gid.get(),
            mode: raw.mode.get(),
            rdev: raw.rdev.get(),
            flags: raw.flags.get(),
            sequence: raw.sequence.get(),
            block_group: raw.block_group.get(),
            atime: decode_time(&raw.atime),
            ctime: decode_time(&raw.ctime),
            mtime: decode_time(&raw.mtime),
            otime: decode_time(&raw.otime),
        }
    }

    /// The item, with `disk_size` as its size: what of the file is on disk already.
    pub fn encode(&self, disk_size: u64) -> InodeItem {
        InodeItem {
            generation: self.generation.into(),
            transid: self.transid.into(),
            size: U64::new(disk_size),
            nbytes: U64::new(self.nbytes),
            block_group: U64::new(self.block_group),
            nlink: U32::new(self.nlink),
            uid: U32::new(self.uid),
            gid: U32::new(self.gid),
            mode: U32::new(self.mode),
            rdev: U64::new(self.rdev),
            flags: U64::new(self.flags),
            sequence: U64::new(self.sequence),
            reserved: [U64::ZERO; 4],
            atime: encode_time(self.atime),
            ctime: encode_time(self.ctime),
            mtime: encode_time(self.mtime),
            otime: encode_time(self.otime),
        }
    }
}

/// What changes about an inode under [`Inode::attr`].
#[derive(Debug)]
pub struct InodeState {
    pub attr: InodeAttr,
    /// The size that the inode's item says: below `attr.size` while data that was written beyond it waits in memory.
    pub disk_size: u64,
}

/// An inode in memory. One object per (tree, number) at a time.
#[derive(Debug)]
pub struct Inode {
    pub tree: Arc<Tree>,
    pub ino: ObjectId,
    /// The operation lock.
    pub lock: RwLock<()>,
    pub attr: Mutex<InodeState>,
    /// Dirty ranges and whatever else `file` keeps per inode.
    pub data: FileData,
    /// What `dir` keeps per directory.
    pub dir: crate::dir::DirData,
    /// What the inode table keeps: lookup counts and so on.
    pub refs: crate::inode::InodeRefs,
}

impl Inode {
    pub fn key(&self) -> Key {
        Key::new(self.ino, KeyType::INODE_ITEM, 0)
    }
    /// The inode's item as of now; put it into a batch whenever `attr` changed.
    pub fn item_bytes(&self, state: &InodeState) -> Arc<[u8]> {
        state.attr.encode(state.disk_size).as_bytes().into()
    }
}

/// References to an inode in memory (lookups, open files); owned by the inode table.
#[derive(Debug, Default)]
pub struct InodeRefs {}
