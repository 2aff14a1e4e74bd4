//! Single items of file trees, each judged by itself: inodes, entries, attributes, extents.

use btrfs_format::features::inode_flags;
use btrfs_format::hash::name_hash;
use btrfs_format::items::{FileExtent, FileExtentHead, InodeItem, compression, file_extent_type, file_type};
use btrfs_format::view::{DirEntry, dir_entries};
use btrfs_format::{Key, KeyType, ObjectId};

use crate::finding::{FindingId as Id, Site};
use crate::util::{count, is_aligned};
use crate::walk::{Cx, len_bytes};

pub(crate) const ROOT_DIR: u64 = ObjectId::FIRST_FREE.get();
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// The indices of names in directories: smaller ones stand for the two dots, larger ones cannot be
/// listed.
pub(crate) const INDICES: std::ops::Range<u64> = 2..u64::MAX >> 1;
/// The directory entry type for a mode; 0 where the mode is none.
pub(crate) fn type_of_mode(mode: u32) -> u8 {
    match mode & 0o170_000 {
        0o100_000 => file_type::REG_FILE,
        0o040_000 => file_type::DIR,
        0o020_000 => file_type::CHRDEV,
        0o060_000 => file_type::BLKDEV,
        0o010_000 => file_type::FIFO,
        0o140_000 => file_type::SOCK,
        0o120_000 => file_type::SYMLINK,
        _ => file_type::UNKNOWN,
    }
}

const KNOWN_INODE_FLAGS: u64 = 0xfff | inode_flags::ROOT_ITEM_INIT | inode_flags::RO_VERITY;

pub(crate) fn judge_inode(cx: &mut Cx<'_>, site: Site, item: &InodeItem) {
    let newest = cx.vol.sb.generation.get().saturating_add(1);
    let ty = type_of_mode(item.mode.get());
    if ty == file_type::UNKNOWN || item.mode.get() & !0o177_777 != 0 {
        cx.sink
            .add(Id::InodeMode, site.clone(), format!("mode {:o}", item.mode));
    }
    if item.generation.get() > newest || item.transid.get() > newest {
        let what = format!(
            "generation {}, transid {}, the volume is at {}",
            item.generation, item.transid, cx.vol.sb.generation
        );
        cx.sink.add(Id::InodeGeneration, site.clone(), what);
    }
    let flags = item.flags.get();
    let odd_link = ty == file_type::SYMLINK && flags & (inode_flags::IMMUTABLE | inode_flags::APPEND) != 0;
    if flags & !KNOWN_INODE_FLAGS != 0 || odd_link {
        cx.sink.add(Id::InodeFlags, site, format!("flags {flags:#x}"));
    }
}

/// Names that no directory can have, whatever their length.
pub(crate) fn is_dots_or_slashed(name: &[u8]) -> bool {
    name.contains(&b'/') || name.contains(&0) || name == b"." || name == b".."
}

pub(crate) fn judge_entry(cx: &mut Cx<'_>, site: Site, entry: &DirEntry<'_>) {
    let at = Key::from(entry.head.location);
    let name = String::from_utf8_lossy(entry.name);
    let what = if entry.name.is_empty() || entry.name.len() > NAME_BYTES_MAX {
        format!("a name of {} bytes", entry.name.len())
    } else if is_dots_or_slashed(entry.name) {
        format!("{name:?} is no name")
    } else if !entry.data.is_empty() {
        format!("{name:?} has {} bytes of data", entry.data.len())
    } else if entry.head.ty == file_type::UNKNOWN || entry.head.ty > file_type::SYMLINK {
        format!("{name:?} has type {}", entry.head.ty)
    } else {
        // `transid` is not judged: no implementation reads it, and btrfs-convert never sets it.
        let legal = match at.ty {
            KeyType::INODE_ITEM => at.offset == 0 && at.objectid >= ObjectId::FIRST_FREE,
            KeyType::ROOT_ITEM => at.objectid.tree_id().is_subvolume(),
            _ => false,
        };
        if legal {
            return;
        }
        format!("{name:?} leads to {at}")
    };
    cx.sink.add(Id::DirEntryInvalid, site, what);
}

pub(crate) fn check_xattr(cx: &mut Cx<'_>, site: Site, key: Key, data: &[u8]) {
    let mut taken = 0u64;
    for entry in dir_entries(data) {
        taken = taken
            .saturating_add(30)
            .saturating_add(len_bytes(entry.name))
            .saturating_add(len_bytes(entry.data));
        let bad_name = entry.name.is_empty() || entry.name.len() > NAME_BYTES_MAX;
        if bad_name || entry.head.ty & 0x7f != file_type::XATTR || Key::from(entry.head.location) != Key::MIN {
            let what = format!("a malformed attribute {:?}", String::from_utf8_lossy(entry.name));
            cx.sink.add(Id::XattrInvalid, site.clone(), what);
        }
        if name_hash(entry.name) != key.offset {
            let what = format!("the hash of {:?} is another", String::from_utf8_lossy(entry.name));
            cx.sink.add(Id::XattrHash, site.clone(), what);
        }
    }
    if taken != len_bytes(data) || data.is_empty() {
        cx.sink.add(Id::XattrInvalid, site, "malformed");
    }
}

pub(crate) fn judge_inline(head: &FileExtentHead, data: &[u8], key: Key, sectorsize: u64) -> Result<(), String> {
    if key.offset != 0 {
        return Err(format!("inline at offset {}", key.offset));
    }
    if head.encryption != 0 || head.other_encoding.get() != 0 || head.compression > compression::ZSTD {
        return Err("unknown compression or encoding".into());
    }
    let (ram_bytes, len) = (head.ram_bytes.get(), count(data.len()));
    if head.compression == compression::NONE && ram_bytes != len {
        return Err(format!("inline of {ram_bytes} bytes holds {len}"));
    }
    if ram_bytes == 0 || ram_bytes > sectorsize || len == 0 {
        return Err(format!("inline of {ram_bytes} bytes in {len}"));
    }
    Ok(())
}

/// Files end here: their offsets are signed.
const FILE_BYTES_MAX: u64 = 1 << 63;

pub(crate) fn judge_extent(extent: &FileExtent, item_bytes: usize, key: Key, sectorsize: u64) -> Result<(), String> {
    if item_bytes != size_of::<FileExtent>() {
        return Err(format!("an item of {item_bytes} bytes"));
    }
    if extent.ty != file_extent_type::REG && extent.ty != file_extent_type::PREALLOC {
        return Err(format!("type {}", extent.ty));
    }
    if extent.encryption != 0 || extent.other_encoding.get() != 0 || extent.compression > compression::ZSTD {
        return Err("unknown compression or encoding".into());
    }
    let (len, offset, ram) = (extent.num_bytes.get(), extent.offset.get(), extent.ram_bytes.get());
    let (disk, disk_len) = (extent.disk_bytenr.get(), extent.disk_num_bytes.get());
    for (name, value) in [
        ("key offset", key.offset),
        ("num_bytes", len),
        ("offset", offset),
        ("disk_bytenr", disk),
        ("disk_num_bytes", disk_len),
        ("ram_bytes", ram),
    ] {
        if !is_aligned(value, sectorsize) {
            return Err(format!("{name} {value} is unaligned"));
        }
    }
    if len == 0 || key.offset.checked_add(len).is_none_or(|end| end > FILE_BYTES_MAX) {
        return Err(format!("num_bytes {len}"));
    }
    if extent.ty == file_extent_type::PREALLOC && extent.compression != compression::NONE {
        return Err("preallocated and compressed".into());
    }
    if disk == 0 {
        return Ok(());
    }
    let end = offset.checked_add(len).ok_or("offset out of range")?;
    let limit = if extent.compression == compression::NONE {
        disk_len
    } else {
        ram
    };
    if end > limit {
        return Err(format!("uses up to byte {end} of {limit}"));
    }
    Ok(())
}
