//! Numbers of inodes, and what each directory says of its entries.
//!
//! A directory's entries are numbered one after the other, in the order of their names; directories
//! follow depth first. So the numbers depend on names alone, and files of one directory lie side by
//! side in the tree.

use std::collections::HashMap;

use btrfs_format::{ObjectId, TreeId};
use cowshed_source::{Body, InodeId, Tree};

use super::options::BuildSubvolume;
use crate::{MkfsError, SettledSubvolume};

/// The first index of an entry in a directory: two are kept for `.` and `..`.
const DIR_INDEX_FIRST: u64 = 2;
/// Names of one inode.
const LINKS_MAX: usize = 65535;

/// The number of the inode at a place in a subvolume's list.
pub(super) fn inode_number(index: usize) -> ObjectId {
    ObjectId(ObjectId::FIRST_FREE.0 + index as u64)
}

/// A name of an inode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link<'t> {
    /// The directory's number.
    pub parent: ObjectId,
    /// The name's index in the directory.
    pub index: u64,
    pub name: &'t [u8],
}

/// What an entry of a directory names.
#[derive(Clone, Copy, Debug)]
pub(super) enum Child {
    /// An inode of the same subvolume, by its place in the list.
    Inode(usize),
    /// A subvolume, by its place in the list of those.
    Subvolume(usize),
}

/// An inode with its number, which follows from its place in the list.
#[derive(Debug)]
pub(super) struct Numbered<'t> {
    pub id: InodeId,
    pub first: Link<'t>,
    /// Further names.
    pub more: Vec<Link<'t>>,
    /// Of a directory: its entries, in the order of their names.
    pub children: Vec<Child>,
    /// In a snapshot: a directory in the place of a subvolume, without its entries.
    pub is_stub: bool,
}

impl<'t> Numbered<'t> {
    pub fn links(&self) -> impl Iterator<Item = &Link<'t>> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

/// A subvolume, the top level included.
#[derive(Debug)]
pub(super) struct Subvolume<'t> {
    pub id: TreeId,
    /// The first one is its root directory.
    pub inodes: Vec<Numbered<'t>>,
    /// The place of its first inode in the list of all.
    pub base: usize,
}

/// A directory that becomes a subvolume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Root {
    /// The directory.
    at: InodeId,
    /// The directory whose entries the subvolume has: another one for a snapshot.
    contents: InodeId,
    /// The subvolume that it is a snapshot of, by its place in the list.
    pub snapshot_of: Option<usize>,
}

/// The directories that become subvolumes, the top level first. Errors: a path that is no
/// directory, or is named twice; a snapshot of something that is no subvolume.
pub(super) fn roots(tree: &Tree, asked: &[BuildSubvolume]) -> Result<Vec<Root>, MkfsError> {
    let mut roots = vec![Root {
        at: Tree::ROOT,
        contents: Tree::ROOT,
        snapshot_of: None,
    }];
    for BuildSubvolume { path, snapshot_of, .. } in asked {
        let refuse = |what| MkfsError::Entry {
            path: String::from_utf8_lossy(path).into_owned(),
            what,
        };
        let id = tree.lookup(path)?.filter(|id| tree.entries(*id).is_some());
        let id = id.ok_or_else(|| refuse("is to be a subvolume and is no directory"))?;
        if roots.iter().any(|root| root.at == id) {
            return Err(refuse("is to be a subvolume twice, or is the root"));
        }
        let snapshot_of = match snapshot_of {
            None => None,
            Some(source) => {
                let source = tree.lookup(source)?;
                let place = roots.iter().position(|root| Some(root.at) == source);
                Some(place.ok_or_else(|| refuse("is to be a snapshot of something that is no subvolume"))?)
            }
        };
        roots.push(Root {
            at: id,
            contents: snapshot_of.map_or(id, |place| roots[place].contents),
            snapshot_of,
        });
    }
    Ok(roots)
}

/// Numbers everything below the roots.
pub(super) fn number<'t>(
    tree: &'t Tree,
    roots: &[Root],
) -> Result<(Vec<Subvolume<'t>>, Vec<SettledSubvolume>), MkfsError> {
    let names = count_names(tree);
    let by_root: HashMap<InodeId, usize> = roots.iter().map(|root| root.at).zip(0..).collect();
    let mut numbering = Numbering {
        tree,
        names: &names,
        by_root: &by_root,
        settled: vec![None; roots.len()],
        id: TreeId::FS,
    };
    let mut subvolumes = Vec::with_capacity(roots.len());
    let mut base = 0;
    for (place, root) in roots.iter().enumerate() {
        let id = tree_id(place);
        numbering.id = id;
        let inodes = numbering.subvolume(root)?;
        let count = inodes.len();
        subvolumes.push(Subvolume { id, inodes, base });
        base += count;
    }
    // A root that no walk met does not exist: each was found by its path.
    let settled = numbering.settled.into_iter().flatten().collect();
    Ok((subvolumes, settled))
}

fn tree_id(place: usize) -> TreeId {
    match place.checked_sub(1) {
        None => TreeId::FS,
        Some(nth) => TreeId(ObjectId::FIRST_FREE.0 + nth as u64),
    }
}

/// How many names each inode has, by [`InodeId::index`].
fn count_names(tree: &Tree) -> Vec<u32> {
    let mut names = vec![0; tree.inode_count()];
    let mut todo = vec![Tree::ROOT];
    while let Some(dir) = todo.pop() {
        for id in tree.entries(dir).into_iter().flat_map(|entries| entries.values()) {
            let count = &mut names[id.index()];
            *count += 1;
            if *count == 1 && matches!(tree[*id].body, Body::Dir(_)) {
                todo.push(*id);
            }
        }
    }
    names
}

struct Numbering<'t, 'n> {
    tree: &'t Tree,
    names: &'n [u32],
    by_root: &'n HashMap<InodeId, usize>,
    settled: Vec<Option<SettledSubvolume>>,
    id: TreeId,
}

impl<'t> Numbering<'t, '_> {
    fn subvolume(&mut self, root: &Root) -> Result<Vec<Numbered<'t>>, MkfsError> {
        let own = Link {
            parent: ObjectId::FIRST_FREE,
            index: 0,
            name: b"..",
        };
        let mut inodes = vec![numbered(root.contents, own)];
        let mut linked: HashMap<InodeId, usize> = HashMap::new();
        let mut todo = vec![0];
        while let Some(dir) = todo.pop() {
            let entries = self.tree.entries(inodes[dir].id);
            let mut children = Vec::with_capacity(entries.map_or(0, |entries| entries.len()));
            let mut dirs = Vec::new();
            for ((name, &id), index) in entries.into_iter().flatten().zip(DIR_INDEX_FIRST..) {
                let parent = inode_number(dir);
                let link = Link { parent, index, name };
                let is_dir = matches!(self.tree[id].body, Body::Dir(_));
                let subvolume = self.by_root.get(&id).filter(|_| is_dir);
                if let (Some(&place), None) = (subvolume, root.snapshot_of) {
                    self.settled[place] = Some(self.settle(place, &link));
                    children.push(Child::Subvolume(place));
                    continue;
                }
                if self.names[id.index()] > 1
                    && let Some(&place) = linked.get(&id)
                {
                    let more = &mut inodes[place].more;
                    more.push(link);
                    if more.len() >= LINKS_MAX {
                        return Err(MkfsError::Entry {
                            path: String::from_utf8_lossy(name).into_owned(),
                            what: "has more hard links than 65535, the limit of the format",
                        });
                    }
                    children.push(Child::Inode(place));
                    continue;
                }
                let place = inodes.len();
                inodes.push(numbered(id, link));
                inodes[place].is_stub = subvolume.is_some();
                children.push(Child::Inode(place));
                if subvolume.is_some() {
                    continue;
                }
                if is_dir {
                    dirs.push(place);
                } else if self.names[id.index()] > 1 {
                    linked.insert(id, place);
                }
            }
            inodes[dir].children = children;
            todo.extend(dirs.into_iter().rev());
        }
        Ok(inodes)
    }

    fn settle(&self, place: usize, link: &Link<'_>) -> SettledSubvolume {
        SettledSubvolume {
            id: tree_id(place),
            parent: self.id,
            name: link.name.to_vec(),
            dir: link.parent,
            index: link.index,
            read_only: false,
            uuid: [0; 16],
            parent_uuid: [0; 16],
        }
    }
}

fn numbered<'t>(id: InodeId, first: Link<'t>) -> Numbered<'t> {
    Numbered {
        id,
        first,
        more: Vec::new(),
        children: Vec::new(),
        is_stub: false,
    }
}

/// The path of an inode, for messages.
pub(super) fn path_of(
    subvolumes: &[Subvolume<'_>],
    settled: &[SettledSubvolume],
    subvolume: &Subvolume<'_>,
    inode: &Numbered<'_>,
) -> String {
    let mut names: Vec<&[u8]> = Vec::new();
    let (mut subvolume, mut link) = (subvolume, inode.first);
    loop {
        if link.name == b".." {
            // The root of a subvolume: its name is in another one.
            let Some(own) = settled.iter().find(|settled| settled.id == subvolume.id) else {
                break;
            };
            let Some(above) = subvolumes.iter().find(|above| above.id == own.parent) else {
                break;
            };
            subvolume = above;
            link = Link {
                parent: own.dir,
                index: own.index,
                name: &own.name,
            };
        }
        names.push(link.name);
        let place = (link.parent.0 - ObjectId::FIRST_FREE.0) as usize;
        match subvolume.inodes.get(place) {
            Some(parent) => link = parent.first,
            None => break,
        }
    }
    names.reverse();
    String::from_utf8_lossy(&names.join(&b'/')).into_owned()
}
