//! The subvolumes of a volume, read from its tree of roots, with their paths.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Error, Result};
use std::ops::ControlFlow;
use std::path::Path;

use btrfs_format::items::RootItem;
use btrfs_format::{Key, KeyType, ObjectId, TreeId, view};
use cowshed_btrfs::fs::info_of_root;
use cowshed_vfs::{Search, SubvolumeInfo};
use cowshed_vfs_ioctl::wire::SubvolumePage;

use super::calls;
use super::place::Place;

/// Number of the top level.
pub const TOP_LEVEL: u64 = TreeId::FS.get();
/// What is shown as the path of a subvolume that is deleted and not gone yet.
const DELETED: &[u8] = b"DELETED";
/// Subvolumes nested in each other; a way up that is longer runs in circles.
const DEPTH_MAX: usize = 4096;

/// A subvolume.
pub struct Root {
    pub id: u64,
    pub item: RootItem,
    /// Where its name is; nowhere that of the top level, and of a deleted one.
    pub name: Option<Name>,
}

/// The name of a subvolume, and the directory that it is in.
pub struct Name {
    pub parent: u64,
    dir: u64,
    pub name: Vec<u8>,
}

impl Root {
    /// The subvolume that its name is in; 0 where it has none.
    pub fn parent(&self) -> u64 {
        self.name.as_ref().map_or(0, |name| name.parent)
    }

    pub fn is_deleted(&self) -> bool {
        self.name.is_none() && self.id != TOP_LEVEL
    }
}

/// All subvolumes of a volume.
pub struct Roots<'a> {
    all: BTreeMap<u64, Root>,
    place: &'a Place,
    /// Paths of directories from the root of their subvolume.
    dirs: RefCell<HashMap<(u64, u64), Vec<u8>>>,
}

fn is_subvolume(id: u64) -> bool {
    id == TOP_LEVEL || (ObjectId::FIRST_FREE.get()..=ObjectId::LAST_FREE.get()).contains(&id)
}

/// Of all keys of one object and type.
pub fn items_of(tree: TreeId, object: ObjectId, ty: KeyType) -> Search {
    Search {
        tree: tree.get(),
        from: (object.get(), ty.0, 0),
        to: (object.get(), ty.0, u64::MAX),
        since: 0,
        until: u64::MAX,
    }
}

impl<'a> Roots<'a> {
    /// Reads them. Errors: `EPERM` where the caller may not.
    pub fn load(place: &'a Place) -> Result<Roots<'a>> {
        let mut all = BTreeMap::new();
        let mut names: HashMap<u64, Name> = HashMap::new();
        let what = Search {
            tree: TreeId::ROOT.get(),
            from: (TOP_LEVEL, KeyType::ROOT_ITEM.0, 0),
            to: (ObjectId::LAST_FREE.get(), KeyType::ROOT_BACKREF.0, u64::MAX),
            since: 0,
            until: u64::MAX,
        };
        let types = [KeyType::ROOT_ITEM, KeyType::ROOT_BACKREF];
        place.search_types(&what, &types, &mut |(id, ty, offset), bytes, _| {
            match KeyType(ty) {
                KeyType::ROOT_ITEM if is_subvolume(id) => {
                    if let Some(item) = view::root_item(bytes) {
                        all.insert(id, Root { id, item, name: None });
                    }
                }
                KeyType::ROOT_BACKREF => {
                    if let Some((head, name)) = view::root_ref(bytes) {
                        let (dir, name) = (head.dirid.get(), name.to_vec());
                        let parent = offset;
                        names.insert(id, Name { parent, dir, name });
                    }
                }
                _ => {}
            }
            ControlFlow::Continue(())
        })?;
        for (id, name) in names {
            if let Some(root) = all.get_mut(&id) {
                root.name = Some(name);
            }
        }
        let dirs = RefCell::default();
        Ok(Roots { all, place, dirs })
    }

    /// By number.
    pub fn iter(&self) -> impl Iterator<Item = &Root> {
        self.all.values()
    }

    pub fn find(&self, id: u64) -> Option<&Root> {
        self.all.get(&id)
    }

    /// Subvolumes whose names are in one, by number.
    pub fn children(&self, id: u64) -> impl Iterator<Item = &Root> {
        self.iter()
            .filter(move |root| root.name.as_ref().is_some_and(|name| name.parent == id))
    }

    /// All that are nested in one, each before those nested in it.
    pub fn nested(&self, id: u64) -> Vec<&Root> {
        let mut found: Vec<&Root> = Vec::new();
        let mut left: Vec<&Root> = self.children(id).collect();
        left.reverse();
        while let Some(root) = left.pop() {
            // Not where names of a damaged volume run in circles.
            if found.len() > self.all.len() {
                break;
            }
            found.push(root);
            let below = left.len();
            left.extend(self.children(root.id));
            left[below..].reverse();
        }
        found
    }

    /// The path of a subvolume from the top level, or from another above it where it is in that.
    pub fn path(&self, root: &Root, from: u64) -> Result<Vec<u8>> {
        let mut parts = Vec::new();
        let (mut here, mut depth) = (root, 0);
        while let Some(name) = &here.name {
            let mut part = self.dir(name.parent, name.dir)?;
            part.extend_from_slice(&name.name);
            parts.push(part);
            if name.parent == from || name.parent == TOP_LEVEL {
                break;
            }
            depth += 1;
            here = match self.find(name.parent) {
                Some(above) if depth < DEPTH_MAX => above,
                _ => return Err(Error::from_raw_os_error(libc::ENOENT)),
            };
        }
        if root.is_deleted() {
            return Ok(DELETED.to_vec());
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    fn dir(&self, tree: u64, dir: u64) -> Result<Vec<u8>> {
        if let Some(known) = self.dirs.borrow().get(&(tree, dir)) {
            return Ok(known.clone());
        }
        let path = self.place.path_in(tree, dir)?;
        self.dirs.borrow_mut().insert((tree, dir), path.clone());
        Ok(path)
    }
}

/// The subvolume that is mounted where no other is asked for.
pub fn default_id(place: &Place) -> Result<u64> {
    let mut default = TOP_LEVEL;
    let what = items_of(TreeId::ROOT, ObjectId::ROOT_TREE_DIR, KeyType::DIR_ITEM);
    place.search(&what, &mut |_, item, _| {
        if let Some(entry) = view::dir_entries(item).find(|entry| entry.name == b"default") {
            default = Key::from(entry.head.location).objectid.get();
        }
        ControlFlow::Continue(())
    })?;
    Ok(default)
}

/// Numbers of the subvolumes that are deleted and not gone yet.
pub fn deleted(place: &Place) -> Result<Vec<u64>> {
    let mut ids = Vec::new();
    let what = items_of(TreeId::ROOT, ObjectId::ORPHAN, KeyType::ORPHAN_ITEM);
    place.search(&what, &mut |(.., id), _, _| {
        ids.push(id);
        ControlFlow::Continue(())
    })?;
    Ok(ids)
}

/// All subvolumes of the volume that a path on a mount lies on, by number, with their paths from
/// the top level.
pub fn pages(path: &Path) -> Result<Vec<SubvolumePage>> {
    let place = match Place::on_mount(File::open(path)?)? {
        Some(place @ Place::Kernel(_)) => place,
        _ => return calls::all(path),
    };
    let roots = Roots::load(&place)?;
    let mut pages = Vec::new();
    for root in roots.iter().filter(|root| !root.is_deleted()) {
        let path = match root.id {
            TOP_LEVEL => Vec::new(),
            _ => roots.path(root, 0)?,
        };
        pages.extend(SubvolumePage::new(&info_of(root), &path));
    }
    Ok(pages)
}

fn info_of(root: &Root) -> SubvolumeInfo {
    SubvolumeInfo {
        parent_id: root.parent(),
        ..info_of_root(TreeId(root.id), &root.item)
    }
}
