//! Faults of inodes, names and file extents.

use btrfs_check::FindingId as Id;
use btrfs_format::block::{HEADER_BYTES, ITEM_HEADER_BYTES};
use btrfs_format::items::{DirItem, FileExtent, InodeExtref, InodeItem, InodeRef, file_extent_type, file_type};
use btrfs_format::{KeyType, ObjectId, TreeId};

use crate::image::{Image, Item};
use crate::layout::of_type;
use crate::{Bases, Planted};

const FS: TreeId = TreeId::FS;

/// The inode that a name in the top level's directories leads to.
fn ino(image: &Image, name: &str) -> u64 {
    let entry = image.find(FS, |item| {
        item.key.ty == KeyType::DIR_INDEX && item.data.ends_with(name.as_bytes())
    });
    u64::from_le_bytes(entry.data[..8].try_into().expect("eight bytes"))
}

fn of(ino: u64, ty: KeyType) -> impl Fn(&Item) -> bool {
    move |item| item.key.objectid == ObjectId(ino) && item.key.ty == ty
}

pub fn plant(id: Id, bases: &Bases) -> Option<Planted> {
    plant_inodes(id, bases)
        .or_else(|| plant_names(id, bases))
        .or_else(|| plant_extents(id, bases))
}

fn plant_inodes(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    let file = ino(&image, "file-500");
    let edit_file =
        |image: &mut Image, edit: fn(&mut InodeItem)| image.edit_as(FS, of(file, KeyType::INODE_ITEM), edit);
    match id {
        Id::InodeMissing => drop(image.remove(FS, of(file, KeyType::INODE_ITEM))),
        Id::InodeMode => edit_file(&mut image, |inode| inode.mode = 0o600.into()),
        Id::InodeFlags => edit_file(&mut image, |inode| inode.flags = (1 << 50).into()),
        Id::InodeGeneration => edit_file(&mut image, |inode| inode.generation = (1 << 40).into()),
        Id::InodeNlink => edit_file(&mut image, |inode| inode.nlink = 2.into()),
        Id::InodeOrphanMissing => edit_file(&mut image, |inode| inode.nlink = 0.into()),
        Id::InodeItemForeign => {
            let random = ino(&image, "random");
            image.edit_as(FS, of(random, KeyType::INODE_ITEM), |inode: &mut InodeItem| {
                inode.mode = 0o010_644.into();
            });
        }
        Id::DirSize => image.edit_as(FS, of(256, KeyType::INODE_ITEM), |inode: &mut InodeItem| {
            inode.size = (inode.size.get() + 1).into();
        }),
        Id::RootDirMissing => {
            // All items of the root directory move to another number.
            image.edit_leaf(FS, |items| {
                items.retain(|item| item.key.objectid != ObjectId(256));
                true
            });
        }
        Id::RootDirInvalid => image.edit_as(FS, of(256, KeyType::INODE_ITEM), |inode: &mut InodeItem| {
            inode.mode = 0o100_644.into();
        }),
        Id::XattrInvalid => image.edit_as(FS, of_type(KeyType::XATTR_ITEM), |item: &mut DirItem| item.ty = 1),
        Id::XattrHash => image.edit(FS, of_type(KeyType::XATTR_ITEM), |item| item.key.offset += 1),
        Id::SymlinkInvalid => {
            let link = ino(&image, "symlink");
            image.edit_as(FS, of(link, KeyType::INODE_ITEM), |inode: &mut InodeItem| {
                inode.size = 3.into()
            });
        }
        _ => return None,
    }
    Some(image.into())
}

fn plant_names(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    let file = ino(&image, "file-500");
    let entry = |ty: KeyType| move |item: &Item| item.key.ty == ty && item.data.ends_with(b"file-500");
    match id {
        Id::InodeRefStale => {
            image.remove(FS, entry(KeyType::DIR_ITEM));
            image.remove(FS, entry(KeyType::DIR_INDEX));
        }
        Id::InodeRefMissing => drop(image.remove(FS, of(file, KeyType::INODE_REF))),
        Id::InodeRefInvalid => image.edit_as(FS, of(file, KeyType::INODE_REF), |item: &mut InodeRef| {
            item.name_len = 99.into()
        }),
        Id::InodeExtrefHash => image.edit_as(FS, of_type(KeyType::INODE_EXTREF), |item: &mut InodeExtref| {
            item.parent_objectid = 99.into();
        }),
        Id::DirItemMissing => drop(image.remove(FS, entry(KeyType::DIR_ITEM))),
        Id::DirIndexMissing => drop(image.remove(FS, entry(KeyType::DIR_INDEX))),
        Id::DirEntryInvalid => image.edit(FS, entry(KeyType::DIR_INDEX), |item| {
            let end = item.data.len() - 1;
            item.data[end] = b'/';
        }),
        Id::DirEntryHash => image.edit(FS, entry(KeyType::DIR_ITEM), |item| item.key.offset += 1),
        Id::DirEntryType => {
            for ty in [KeyType::DIR_ITEM, KeyType::DIR_INDEX] {
                image.edit_as(FS, entry(ty), |item: &mut DirItem| item.ty = file_type::FIFO);
            }
        }
        Id::DirEntryDangling => {
            image.edit_leaf(FS, |items| {
                let before = items.len();
                items.retain(|item| item.key.objectid != ObjectId(file));
                items.len() < before
            });
        }
        Id::DirNames => {
            // The same name twice in one item: every lookup succeeds, yet the sums differ.
            let room = image.nodesize() - HEADER_BYTES - 200;
            image.edit_leaf(FS, |items| {
                let used: usize = items.iter().map(|item| item.data.len() + ITEM_HEADER_BYTES).sum();
                let entry = items.iter_mut().find(|item| item.key.ty == KeyType::DIR_ITEM);
                let Some(entry) = entry.filter(|_| used < room) else {
                    return false;
                };
                let twice = entry.data.clone();
                entry.data.extend(twice);
                true
            });
        }
        _ => return None,
    }
    Some(image.into())
}

fn plant_extents(id: Id, bases: &Bases) -> Option<Planted> {
    let mut image = bases.main.snapshot();
    let random = ino(&image, "random");
    let extent = of(random, KeyType::EXTENT_DATA);
    match id {
        Id::FileExtentInvalid => image.edit_as(FS, extent, |item: &mut FileExtent| item.compression = 9),
        Id::FileExtentOverlap => {
            image = bases.old.snapshot();
            let sparse = ino(&image, "sparse");
            let hole = |item: &Item| of(sparse, KeyType::EXTENT_DATA)(item) && item.key.offset == 0;
            image.edit_as(FS, hole, |item: &mut FileExtent| {
                item.num_bytes = (item.num_bytes.get() + 4096).into();
            });
        }
        Id::FileExtentHole => {
            image = bases.old.snapshot();
            let sparse = ino(&image, "sparse");
            let hole = |item: &Item| of(sparse, KeyType::EXTENT_DATA)(item) && item.key.offset == 0;
            image.remove(FS, hole);
        }
        Id::FileNbytes => image.edit_as(FS, of(random, KeyType::INODE_ITEM), |inode: &mut InodeItem| {
            inode.nbytes = (inode.nbytes.get() + 4096).into();
        }),
        _ => return None,
    }
    assert_eq!(file_extent_type::INLINE, 0);
    Some(image.into())
}
