//! Names as items: `DIR_ITEM` (by hash; colliding names share an item), `DIR_INDEX` (by order of
//! creation), and the way back from the inode: `INODE_REF`, or `INODE_EXTREF` once the refs of one
//! directory outgrow a leaf.

use btrfs_format::items::{DirItem, InodeExtref, InodeRef};
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId, hash, view};
use cowshed_vfs::{Error as Errno, FileKind};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U64};

use crate::error::{Error, Result, StoreError};
use crate::staged::Staged;
use btrfs_store::overlay::ItemBytes;
use btrfs_store::tree::{Item, Tree};

/// The longest name in bytes.
pub const NAME_BYTES_MAX: usize = 255;

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An inode of the same subvolume.
    Inode(ObjectId),
    /// The root of a subvolume.
    Subvol(TreeId),
}

/// A name as its directory item says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// As on disk; a subvolume's offset differs from writer to writer.
    pub(crate) location: Key,
    pub(crate) ty: u8,
    pub(crate) target: Target,
}

/// `type` of a directory item.
pub(crate) fn file_type(kind: FileKind) -> u8 {
    use btrfs_format::items::file_type as ty;
    match kind {
        FileKind::Regular => ty::REG_FILE,
        FileKind::Directory => ty::DIR,
        FileKind::Symlink => ty::SYMLINK,
        FileKind::BlockDevice => ty::BLKDEV,
        FileKind::CharDevice => ty::CHRDEV,
        FileKind::Fifo => ty::FIFO,
        FileKind::Socket => ty::SOCK,
    }
}

/// The kind that a directory item names; `None` where it names none.
pub(crate) fn kind_of(ty: u8) -> Option<FileKind> {
    use btrfs_format::items::file_type as t;
    Some(match ty {
        t::REG_FILE => FileKind::Regular,
        t::DIR => FileKind::Directory,
        t::SYMLINK => FileKind::Symlink,
        t::BLKDEV => FileKind::BlockDevice,
        t::CHRDEV => FileKind::CharDevice,
        t::FIFO => FileKind::Fifo,
        t::SOCK => FileKind::Socket,
        _ => return None,
    })
}

/// Refuses names that no directory can have.
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NameTooLong.into());
    }
    if name.is_empty() || name == b"." || name == b".." || name.iter().any(|b| matches!(b, 0 | b'/')) {
        return Err(Errno::Invalid.into());
    }
    Ok(())
}

pub(crate) fn item_key(dir: ObjectId, name: &[u8]) -> Key {
    Key::new(dir, KeyType::DIR_ITEM, hash::name_hash(name))
}
pub(crate) fn index_key(dir: ObjectId, index: u64) -> Key {
    Key::new(dir, KeyType::DIR_INDEX, index)
}
pub(crate) fn ref_key(ino: ObjectId, dir: ObjectId) -> Key {
    Key::new(ino, KeyType::INODE_REF, dir.0)
}
fn extref_key(ino: ObjectId, dir: ObjectId, name: &[u8]) -> Key {
    Key::new(ino, KeyType::INODE_EXTREF, hash::extref_hash(dir, name))
}

/// Reads the location of a directory entry.
pub(crate) fn target_of(tree: TreeId, entry: &view::DirEntry<'_>) -> Result<Found> {
    let location = Key::from(entry.head.location);
    let target = match location.ty {
        KeyType::INODE_ITEM => Target::Inode(location.objectid),
        KeyType::ROOT_ITEM => Target::Subvol(location.objectid.tree_id()),
        _ => {
            let what = format!("directory entry leads to {location}");
            return Err(Error::Store(StoreError::CorruptTree { tree, what }));
        }
    };
    Ok(Found {
        location,
        ty: entry.head.ty,
        target,
    })
}

/// What `name` in `dir` leads to.
pub fn find(tree: &Tree, dir: ObjectId, name: &[u8]) -> Result<Option<Found>> {
    let item = tree.get(&item_key(dir, name))?;
    among(tree.id(), item.as_deref(), name)
}

/// As [`find`], by the items that listings go by, which may be there where that of the hash is
/// lost.
pub fn find_by_index(tree: &Tree, dir: ObjectId, name: &[u8]) -> Result<Option<Found>> {
    let mut cursor = tree.cursor_type(Key::new(dir, KeyType::DIR_INDEX, 0));
    while let Some((_, item)) = cursor.next()? {
        if let Some(found) = among(tree.id(), Some(&item), name)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// What `name` leads to by the item of all names with its hash.
pub(super) fn among(tree: TreeId, item: Option<&[u8]>, name: &[u8]) -> Result<Option<Found>> {
    let entry = item.and_then(|item| view::dir_entries(item).find(|e| e.name == name));
    entry.map(|entry| target_of(tree, &entry)).transpose()
}

const DIR_HEAD_BYTES: usize = size_of::<DirItem>();

fn name_len(name: &[u8]) -> U16 {
    U16::new(u16::try_from(name.len()).expect("names were checked to be short"))
}

/// What a `DIR_ITEM` has before the name.
pub(crate) fn entry_head(name: &[u8], location: Key, ty: u8, generation: Generation) -> DirItem {
    DirItem {
        location: location.into(),
        transid: generation.into(),
        data_len: U16::ZERO,
        name_len: name_len(name),
        ty,
    }
}

/// A `DIR_ITEM` of one name.
pub(super) fn entry_bytes(name: &[u8], location: Key, ty: u8, generation: Generation) -> ItemBytes {
    let head = entry_head(name, location, ty, generation);
    ItemBytes::beside_others(&[head.as_bytes(), name])
}

/// A name to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewName<'a> {
    pub(crate) dir: ObjectId,
    pub(crate) name: &'a [u8],
    pub(crate) index: u64,
    pub(crate) location: Key,
    pub(crate) ty: u8,
    pub(crate) generation: Generation,
}

/// The item that a new name goes into, if there is one. Errors: `Exists`; `Overflow` where all
/// names with its hash do not fit a leaf.
pub(crate) fn check_absent(staged: &Staged<'_>, dir: ObjectId, name: &[u8]) -> Result<Option<Item>> {
    check_absent_from(staged, item_key(dir, name), name)
}

/// As [`check_absent`], where the key of the item is known.
pub(crate) fn check_absent_from(staged: &Staged<'_>, key: Key, name: &[u8]) -> Result<Option<Item>> {
    let Some(item) = staged.get(&key)? else {
        return Ok(None);
    };
    if view::dir_entries(&item).any(|e| e.name == name) {
        return Err(Errno::Exists.into());
    }
    if item.len() + DIR_HEAD_BYTES + name.len() > staged.item_bytes_max() {
        return Err(Errno::Overflow.into());
    }
    Ok(Some(item))
}

/// Adds a name to its directory. Errors: as [`check_absent`].
pub(crate) fn insert(staged: &mut Staged<'_>, new: &NewName<'_>) -> Result<()> {
    let item = check_absent(staged, new.dir, new.name)?;
    insert_into(staged, new, item.as_deref());
    Ok(())
}

/// Adds a name to its directory; `item` is what [`check_absent`] gave.
pub(crate) fn insert_into(staged: &mut Staged<'_>, new: &NewName<'_>, item: Option<&[u8]>) {
    let bytes = entry_bytes(new.name, new.location, new.ty, new.generation);
    let key = item_key(new.dir, new.name);
    match item {
        None => staged.put(key, bytes.clone()),
        Some(item) => {
            staged.note_shared(item.len() + bytes.len());
            staged.put(key, [item, &bytes[..]].concat());
        }
    }
    staged.put(index_key(new.dir, new.index), bytes);
}

/// Removes a name from its directory; `index` comes from [`remove_ref`]. True where it was the last
/// one with its hash.
pub(crate) fn remove(staged: &mut Staged<'_>, dir: ObjectId, name: &[u8], index: u64) -> Result<bool> {
    let key = item_key(dir, name);
    let item = staged.get(&key)?.ok_or(Errno::NotFound)?;
    staged.note_shared(item.len());
    let mut rest = Vec::new();
    for entry in view::dir_entries(&item).filter(|e| e.name != name) {
        rest.extend_from_slice(entry.head.as_bytes());
        rest.extend_from_slice(entry.name);
        rest.extend_from_slice(entry.data);
    }
    let is_last = rest.is_empty();
    staged.put_or_delete(key, rest);
    staged.delete(index_key(dir, index));
    Ok(is_last)
}

const REF_HEAD_BYTES: usize = size_of::<InodeRef>();

/// What an `INODE_REF` has before the name.
pub(crate) fn ref_head(name: &[u8], index: u64) -> InodeRef {
    InodeRef {
        index: U64::new(index),
        name_len: name_len(name),
    }
}

/// Adds the way back from a new inode to its first name.
pub(crate) fn insert_first_ref(staged: &mut Staged<'_>, ino: ObjectId, new: &NewName<'_>) {
    let head = ref_head(new.name, new.index);
    let bytes = ItemBytes::beside_others(&[head.as_bytes(), new.name]);
    staged.put(ref_key(ino, new.dir), bytes);
}

/// Adds the way back from an inode to a name. Errors: `TooManyLinks` where no item can take it.
pub(crate) fn insert_ref(
    staged: &mut Staged<'_>,
    ino: ObjectId,
    new: &NewName<'_>,
    may_extend: impl FnOnce() -> bool,
) -> Result<()> {
    let key = ref_key(ino, new.dir);
    let len = REF_HEAD_BYTES + new.name.len();
    match staged.get(&key)? {
        None => insert_first_ref(staged, ino, new),
        Some(item) if item.len() + len <= staged.item_bytes_max() => {
            let head = ref_head(new.name, new.index);
            staged.put(key, [&item[..], head.as_bytes(), new.name].concat());
        }
        Some(_) if may_extend() => return insert_extref(staged, ino, new),
        Some(_) => return Err(Errno::TooManyLinks.into()),
    }
    Ok(())
}

fn insert_extref(staged: &mut Staged<'_>, ino: ObjectId, new: &NewName<'_>) -> Result<()> {
    let key = extref_key(ino, new.dir, new.name);
    let head = InodeExtref {
        parent_objectid: new.dir.into(),
        index: U64::new(new.index),
        name_len: name_len(new.name),
    };
    let bytes = [head.as_bytes(), new.name].concat();
    match staged.get(&key)? {
        None => staged.put(key, bytes),
        Some(item) if item.len() + bytes.len() <= staged.item_bytes_max() => {
            staged.put(key, [&item[..], &bytes[..]].concat());
        }
        Some(_) => return Err(Errno::TooManyLinks.into()),
    }
    Ok(())
}

/// Removes the way back from an inode to a name; returns the name's index in its directory.
pub(crate) fn remove_ref(staged: &mut Staged<'_>, ino: ObjectId, dir: ObjectId, name: &[u8]) -> Result<u64> {
    let key = ref_key(ino, dir);
    if let Some(item) = staged.get(&key)?
        && let Some((index, _)) = view::inode_refs(&item).find(|(_, n)| *n == name)
    {
        let mut rest = Vec::new();
        for (i, n) in view::inode_refs(&item).filter(|(_, n)| *n != name) {
            let head = InodeRef {
                index: U64::new(i),
                name_len: name_len(n),
            };
            rest.extend_from_slice(head.as_bytes());
            rest.extend_from_slice(n);
        }
        staged.put_or_delete(key, rest);
        return Ok(index);
    }
    let key = extref_key(ino, dir, name);
    if let Some(item) = staged.get(&key)? {
        let is_it = |head: &InodeExtref, n: &[u8]| head.parent_objectid.get() == dir.0 && n == name;
        if let Some((head, _)) = view::inode_extrefs(&item).find(|(h, n)| is_it(h, n)) {
            let index = head.index.get();
            let mut rest = Vec::new();
            for (h, n) in view::inode_extrefs(&item).filter(|(h, n)| !is_it(h, n)) {
                rest.extend_from_slice(h.as_bytes());
                rest.extend_from_slice(n);
            }
            staged.put_or_delete(key, rest);
            return Ok(index);
        }
    }
    Err(Error::Store(StoreError::CorruptTree {
        tree: staged.tree_id(),
        what: format!(
            "inode {ino} does not know its name {:?} in directory {dir}",
            String::from_utf8_lossy(name)
        ),
    }))
}
