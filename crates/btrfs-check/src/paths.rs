//! Paths of inodes that findings name, looked up at the end for what is kept only.

use btrfs_format::view::{inode_extrefs, inode_refs};
use btrfs_format::{Key, KeyType, ObjectId};

use crate::roots::Roots;
use crate::walk::{Cx, Root};

/// A directory deeper than this is a loop.
const DEPTH_MAX: usize = 256;

/// Gives paths, within their subvolume, to the findings that name an inode.
pub(crate) fn fill_in(cx: &mut Cx<'_>, roots: &Roots) {
    let mut findings = std::mem::take(&mut cx.sink.report.findings);
    for finding in &mut findings {
        let (Some(tree), Some(inode), None) = (finding.site.tree, finding.site.inode, &finding.site.path) else {
            continue;
        };
        if tree.is_fs_tree()
            && let Some(found) = roots.get(tree)
        {
            finding.site.path = path_of(cx, &found.root, inode);
        }
    }
    cx.sink.report.findings = findings;
}

/// Parent and name of an inode, the last of its references.
pub(crate) fn parent_of(cx: &mut Cx<'_>, root: &Root, inode: u64) -> Option<(u64, Vec<u8>)> {
    let leaf = cx.lookup_leaf(root, &Key::new(ObjectId(inode), KeyType::INODE_EXTREF, u64::MAX))?;
    let mut found = None;
    for (key, data) in leaf.items().filter(|(key, _)| key.objectid == ObjectId(inode)) {
        let name = match key.ty {
            KeyType::INODE_REF => inode_refs(data).next().map(|(_, name)| (key.offset, name.to_vec())),
            KeyType::INODE_EXTREF => inode_extrefs(data)
                .next()
                .map(|(head, name)| (head.parent_objectid.get(), name.to_vec())),
            _ => None,
        };
        found = name.or(found);
    }
    found
}

fn path_of(cx: &mut Cx<'_>, root: &Root, inode: u64) -> Option<String> {
    let top = ObjectId::FIRST_FREE.get();
    if inode == top {
        return Some("/".into());
    }
    let mut names = Vec::new();
    let mut at = inode;
    for _ in 0..DEPTH_MAX {
        let (parent, name) = parent_of(cx, root, at)?;
        names.push(String::from_utf8_lossy(&name).into_owned());
        if parent == top {
            names.reverse();
            return Some(format!("/{}", names.join("/")));
        }
        at = parent;
    }
    None
}
