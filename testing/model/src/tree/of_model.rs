//! Trees as a model has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Node, Tree, below, device};
use crate::{Body, Id, Model, Op, xattr_name};

/// Beyond the numbers of volumes, some of which mean something.
const INO_START: u64 = 1 << 32;

/// The tree of a model without the contents of its files, and which path is which node. Each has an
/// inode number of its own.
pub fn of_model(model: &Model) -> (Tree, BTreeMap<String, Id>) {
    let (mut tree, mut ids) = (Tree::new(), BTreeMap::new());
    let mut left = vec![(String::new(), Model::ROOT)];
    while let Some((path, id)) = left.pop() {
        let names = model.names(id).into_iter().flatten();
        left.extend(names.map(|(name, child)| (below(&path, &String::from_utf8_lossy(&name.bytes())), *child)));
        tree.insert(path.clone(), node(model, id));
        ids.insert(path, id);
    }
    (tree, ids)
}

fn node(model: &Model, id: Id) -> Node {
    let node = model.node(id);
    Node {
        ino: INO_START | u64::from(id.0),
        kind: node.kind,
        perm: node.perm,
        nlink: node.nlink,
        uid: node.uid,
        gid: node.gid,
        rdev: device(node.rdev),
        size_bytes: node.size_bytes(),
        mtime: node.mtime,
        in_place: matches!(node.body, Body::File(_)) && node.flags & Op::NOCOW != 0,
        content: match &node.body {
            Body::Symlink(target) => Arc::new(target.clone()),
            Body::File(_) | Body::Dir { .. } | Body::Special => Arc::default(),
        },
        xattrs: node.xattrs.iter().map(|(n, v)| (xattr_name(*n), v.clone())).collect(),
    }
}
