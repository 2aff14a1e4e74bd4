//! A number for a tree: for uuids that are the same whenever the sources are.

use btrfs_format::ChecksumType;
use cowshed_source::{Body, Tree};

use super::policy::walk;

/// SHA-256 over names, metadata, sizes and targets, and over `more`. File contents do not count:
/// two trees that differ in them alone get the same uuid unless sizes or times differ.
pub(super) fn fingerprint(tree: &Tree, more: &[u8]) -> [u8; 32] {
    let mut sum = ChecksumType::Sha256.compute(more);
    let mut lines = Vec::new();
    let mut add = |path: &[u8], id| {
        let inode = &tree[id];
        let kind = match &inode.body {
            Body::Dir(_) => "d".to_owned(),
            Body::File(content) => format!("f{}", content.size_bytes()),
            Body::Symlink(target) => format!("l{target:?}"),
            Body::Char { major, minor } => format!("c{major}:{minor}"),
            Body::Block { major, minor } => format!("b{major}:{minor}"),
            Body::Fifo => "p".to_owned(),
            Body::Socket => "s".to_owned(),
        };
        let mut line = path.to_vec();
        let meta = &inode.meta;
        line.extend(
            format!(
                "\0{kind} {:o} {} {} {:?} {:?}",
                meta.mode, meta.uid, meta.gid, meta.mtime, meta.xattrs
            )
            .into_bytes(),
        );
        lines.push(line);
    };
    add(b"", Tree::ROOT);
    walk(tree, Tree::ROOT, Vec::new(), &mut add);
    for line in lines {
        let link = [&sum[..], &line].concat();
        sum = ChecksumType::Sha256.compute(&link);
    }
    sum
}
