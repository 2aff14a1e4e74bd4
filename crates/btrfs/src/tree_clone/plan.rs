//! What one entry of a tree becomes: the items of a new inode that is like its source.

use std::sync::Arc;

use btrfs_format::{Generation, Key, KeyType, ObjectId};
use btrfs_store::overlay::ItemBytes;
use cowshed_vfs::perm::{self, CopyAttrs};
use cowshed_vfs::xattr::Namespace;
use cowshed_vfs::{Context, FileKind, PERM_MASK, Timestamp};

use crate::error::Result;
use crate::file::WholeFile;
use crate::object::{Inode, InodeAttr, flags};
use crate::xattr;

/// Extents of a file that come in the batch that makes it: 2 x 78 bytes each, item and reference.
pub(super) const EXTENTS_MAX: usize = 512;
/// What an item takes beside its bytes.
const HEADER_BYTES: usize = 25;
/// Flags that say how data is stored: a file that shares extents has those of its source, as one of
/// a snapshot has.
const KEPT_FLAGS: u64 = flags::NODATASUM | flags::NODATACOW | flags::COMPRESS | flags::NOCOMPRESS;

/// A new inode that is in no batch yet.
pub(super) struct NewInode {
    pub(super) ino: ObjectId,
    pub(super) attr: InodeAttr,
    pub(super) xattrs: Vec<(Key, ItemBytes)>,
    pub(super) data: WholeFile,
    /// Bytes of all items.
    pub(super) bytes: usize,
}

/// What came of a plan.
pub(super) enum Planned {
    New(Box<NewInode>),
    /// More extents than one batch takes.
    TooManyExtents,
    /// More bytes than there is room for.
    TooLong,
}

/// What a new inode is planned for.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) ctx: &'a Context,
    pub(super) dir: &'a Arc<Inode>,
    pub(super) generation: Generation,
    pub(super) now: Timestamp,
}

/// Attributes of a copy that has no content yet.
pub(super) fn attributes(src: &Inode, at: &Place<'_>) -> InodeAttr {
    let source = src.attr_now();
    let dir = at.dir.attr_now();
    let new_gid = match dir.mode & perm::SET_GID {
        0 => at.ctx.creds.gid,
        _ => dir.gid,
    };
    let whose = CopyAttrs {
        uid: source.uid,
        gid: source.gid,
        perm: source.mode & PERM_MASK,
    };
    let kept = perm::of_copy(&at.ctx.creds, whose, new_gid);
    InodeAttr {
        generation: at.generation,
        transid: at.generation,
        size: if src.is_dir() { 0 } else { source.size },
        nbytes: 0,
        nlink: 1,
        uid: kept.uid,
        gid: kept.gid,
        mode: source.mode & !PERM_MASK | kept.perm,
        rdev: source.rdev,
        flags: source.flags & KEPT_FLAGS,
        sequence: 0,
        block_group: 0,
        atime: source.atime,
        ctime: at.now,
        mtime: source.mtime,
        otime: at.now,
    }
}

/// May a copy of this caller's have the attribute?
fn keeps(ctx: &Context, name: &[u8]) -> bool {
    match xattr::space_of(name) {
        Ok(Namespace::User | Namespace::AccessAcl | Namespace::DefaultAcl | Namespace::Property) => true,
        Ok(Namespace::Trusted | Namespace::Security) | Err(_) => ctx.creds.is_privileged(),
    }
}

/// The extended attributes that the copy keeps, and their bytes.
pub(super) fn xattrs(
    src: &Inode,
    ctx: &Context,
    ino: ObjectId,
    generation: Generation,
) -> Result<(Vec<(Key, ItemBytes)>, usize)> {
    let (mut items, mut bytes) = (Vec::new(), 0);
    if src.xattrs.is_known_empty() {
        return Ok((items, bytes));
    }
    let mut cursor = src.tree.cursor_type(Key::new(src.ino, KeyType::XATTR_ITEM, 0));
    while let Some((key, item)) = cursor.next()? {
        let copied = xattr::copied_item(&item, generation, |name| keeps(ctx, name));
        if !copied.is_empty() {
            bytes += HEADER_BYTES + copied.len();
            items.push((Key { objectid: ino, ..key }, copied.into()));
        }
    }
    Ok((items, bytes))
}

/// Plans a copy under the number `ino`, of at most `room_bytes`. The caller holds the operation
/// lock of a regular file.
pub(super) fn plan(src: &Arc<Inode>, at: &Place<'_>, ino: ObjectId, room_bytes: usize) -> Result<Planned> {
    let mut attr = attributes(src, at);
    let (xattrs, mut bytes) = xattrs(src, at.ctx, ino, at.generation)?;
    // The inode item, the way back, and both directory items.
    bytes += 160 + 10 + 2 * 30 + 3 * 255 + 4 * HEADER_BYTES;
    if bytes > room_bytes {
        return Ok(Planned::TooLong);
    }
    let mut data = WholeFile::default();
    if matches!(src.kind(), FileKind::Regular | FileKind::Symlink) {
        let target = (at.dir.tree.id(), ino);
        let mut cursor = src.tree.cursor_type(Key::new(src.ino, KeyType::EXTENT_DATA, 0));
        while let Some(found) = cursor.next()? {
            bytes += 2 * HEADER_BYTES + found.1.len() + 53;
            if data.items.len() == EXTENTS_MAX {
                return Ok(Planned::TooManyExtents);
            }
            if bytes > room_bytes {
                return Ok(Planned::TooLong);
            }
            data.add(src, attr.size, found, target, at.generation)?;
        }
    }
    attr.nbytes = data.nbytes;
    if data.has_unwritten {
        attr.flags |= flags::PREALLOC;
    }
    Ok(Planned::New(Box::new(NewInode {
        ino,
        attr,
        xattrs,
        data,
        bytes,
    })))
}
