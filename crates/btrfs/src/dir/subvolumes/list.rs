//! Which subvolumes there are, and where their names are.

use btrfs_format::items::RootItem;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, view};
use cowshed_vfs::Error as Errno;

use crate::error::Result;
use crate::files::Files;

/// A subvolume, as the volume's tree of roots has it.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its tree.
    pub id: TreeId,
    /// `None` for the top level.
    pub place: Option<Place>,
    /// Its root item.
    pub item: RootItem,
}

/// Where the name of a subvolume is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The subvolume above.
    pub tree: TreeId,
    /// A directory of it.
    pub dir: ObjectId,
    /// The name there.
    pub name: Vec<u8>,
}

/// The subvolume of this id, if it has a name or is the top level.
pub fn find(files: &Files, id: TreeId) -> Result<Option<Listed>> {
    Ok(match super::root_item(files, id)? {
        Some(item) => listed(files, id, item)?,
        None => None,
    })
}

/// The subvolume with the least id from `from` on that has a name, or is the top level.
pub fn next_listed(files: &Files, from: TreeId) -> Result<Option<Listed>> {
    let root_tree = files.store().forest().root_tree();
    let mut id = from.max(TreeId::FS);
    loop {
        let key = Key::new(id.object_id(), KeyType::ROOT_ITEM, 0);
        let end = Key::new(ObjectId::LAST_FREE, KeyType(u8::MAX), u64::MAX);
        let Some((key, item)) = root_tree.cursor(key, end).next()? else {
            return Ok(None);
        };
        let found = key.objectid.tree_id();
        let next = TreeId(found.get() + 1);
        if key.ty != KeyType::ROOT_ITEM || !found.is_subvolume() {
            // Other items of the object stand before its root item, or it has none.
            id = if key.ty < KeyType::ROOT_ITEM { found } else { next };
            continue;
        }
        let item = view::root_item(&item).ok_or(Errno::Io)?;
        if let Some(found) = listed(files, found, item)? {
            return Ok(Some(found));
        }
        id = next;
    }
}

fn listed(files: &Files, id: TreeId, item: RootItem) -> Result<Option<Listed>> {
    let from = Key::new(id.object_id(), KeyType::ROOT_BACKREF, 0);
    let back = files.store().forest().root_tree().cursor_type(from).next()?;
    let place = match back {
        None => None,
        Some((key, back)) => {
            let (head, name) = view::root_ref(&back).ok_or(Errno::Io)?;
            Some(Place {
                tree: TreeId(key.offset),
                dir: ObjectId(head.dirid.get()),
                name: name.to_vec(),
            })
        }
    };
    let is_there = item.refs.get() != 0 && (place.is_some() || id == TreeId::FS);
    Ok(is_there.then_some(Listed { id, place, item }))
}

/// The subvolume with the least id from `from` on whose name is in the subvolume `parent`, and the
/// directory there.
pub fn next_child(files: &Files, parent: TreeId, from: TreeId) -> Result<Option<(TreeId, ObjectId)>> {
    let from = Key::new(parent.object_id(), KeyType::ROOT_REF, from.get());
    let found = files.store().forest().root_tree().cursor_type(from).next()?;
    Ok(match found {
        None => None,
        Some((key, item)) => {
            let (head, _) = view::root_ref(&item).ok_or(Errno::Io)?;
            Some((TreeId(key.offset), ObjectId(head.dirid.get())))
        }
    })
}
