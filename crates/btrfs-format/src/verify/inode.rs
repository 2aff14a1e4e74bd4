//! Inodes, and the small items that only name one.

use super::item::Item;
use crate::corrupt::CorruptKind;
use crate::features::inode_flags;
use crate::ids::ObjectId;
use crate::items::{DirLogItem, InodeItem};
use cowshed_layout::Rule;

/// Nanoseconds of a timestamp.
const NSEC_MAX: u64 = 999_999_999;
/// File offsets are signed in all system calls.
const FILE_BYTES_MAX: u64 = i64::MAX.cast_unsigned();

/// `mode`: the file type's mask and the file types.
pub(crate) const S_IFMT: u64 = 0o170_000;
pub(crate) const S_IFDIR: u64 = 0o040_000;
pub(crate) const S_IFREG: u64 = 0o100_000;
pub(crate) const FILE_TYPES: Rule = Rule::OneOf(&[
    0o010_000, // FIFO
    0o020_000, // character device
    S_IFDIR, 0o060_000, // block device
    S_IFREG, 0o120_000, // symbolic link
    0o140_000, // socket
]);

/// Numbers that inode items and directory entries may have.
pub(super) fn is_inode_number(number: ObjectId) -> bool {
    (ObjectId::FIRST_FREE..=ObjectId::LAST_FREE).contains(&number)
        || number == ObjectId::ROOT_TREE_DIR
        || number == ObjectId::FREE_INO
}

pub(super) fn check_inode_item(item: &Item<'_>) -> Result<(), CorruptKind> {
    let inode: &InodeItem = item.exact()?;
    if !is_inode_number(item.key.objectid) {
        let rule = Rule::Between(ObjectId::FIRST_FREE.get(), ObjectId::LAST_FREE.get());
        return Err(item.field_error("inode number", item.key.objectid.get(), rule));
    }
    item.field("key offset", item.key.offset, Rule::Equal(0))?;
    item.generation("generation", inode.generation.get())?;
    item.generation("transid", inode.transid.get())?;
    item.field("size", inode.size.get(), Rule::AtMost(FILE_BYTES_MAX))?;
    let mode = u64::from(inode.mode.get());
    item.field("mode", mode, Rule::KnownBits(S_IFMT | 0o7777))?;
    item.field("file type", mode & S_IFMT, FILE_TYPES)?;
    if mode & S_IFMT == S_IFDIR {
        item.field("links of a directory", inode.nlink.get().into(), Rule::AtMost(1))?;
    }
    item.field("flags", inode.flags.get(), Rule::KnownBits(inode_flags::KNOWN))?;
    // `otime` and `reserved` are not judged: the first kernels left them as they found them.
    for time in [&inode.atime, &inode.ctime, &inode.mtime] {
        item.field("nanoseconds", time.nsec.get().into(), Rule::AtMost(NSEC_MAX))?;
    }
    Ok(())
}

/// `ORPHAN_ITEM`: all is in the key.
pub(super) fn check_orphan(item: &Item<'_>) -> Result<(), CorruptKind> {
    item.field("objectid", item.key.objectid.get(), Rule::Equal(ObjectId::ORPHAN.get()))?;
    item.size(Rule::Equal(0))
}

/// `DIR_LOG_ITEM` and `DIR_LOG_INDEX`: the range from the key's offset to `end` is logged.
pub(super) fn check_dir_log(item: &Item<'_>) -> Result<(), CorruptKind> {
    let log: &DirLogItem = item.exact()?;
    item.field("end", log.end.get(), Rule::AtLeast(item.key.offset))
}
