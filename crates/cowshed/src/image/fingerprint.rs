//! A number for a tree: for uuids that are the same whenever the sources are.

use btrfs_format::ChecksumType;
use cowshed_source::{Body, Inode, Tree};

use super::policy::walk;

/// Bytes that are hashed at once.
const STEP_BYTES: usize = 64 << 10;

/// SHA-256 over names, metadata, sizes and targets, and over `more`. File contents do not count:
/// two trees that differ in them alone get the same uuid unless sizes or times differ.
pub(super) fn fingerprint(tree: &Tree, more: &[u8]) -> [u8; 32] {
    let mut sum = ChecksumType::Sha256.compute(more);
    let mut step = Vec::with_capacity(2 * STEP_BYTES);
    step.extend(sum);
    let mut add = |path: &[u8], id| {
        describe(&tree[id], path, &mut step);
        if step.len() >= STEP_BYTES {
            sum = ChecksumType::Sha256.compute(&step);
            step.clear();
            step.extend(sum);
        }
    };
    add(b"", Tree::ROOT);
    walk(tree, Tree::ROOT, Vec::new(), &mut add);
    ChecksumType::Sha256.compute(&step)
}

/// Appends what is known of an inode. Texts have their lengths before them, so that no two inodes
/// have one description.
fn describe(inode: &Inode, path: &[u8], out: &mut Vec<u8>) {
    let text = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.extend((bytes.len() as u64).to_le_bytes());
        out.extend(bytes);
    };
    text(out, path);
    let meta = &inode.meta;
    for number in [meta.mode, meta.uid, meta.gid, meta.mtime.nsec] {
        out.extend(number.to_le_bytes());
    }
    out.extend(meta.mtime.sec.to_le_bytes());
    out.extend((meta.xattrs.len() as u64).to_le_bytes());
    for xattr in &meta.xattrs {
        text(out, &xattr.name);
        text(out, &xattr.value);
    }
    match &inode.body {
        Body::Dir(_) => out.push(b'd'),
        Body::File(content) => {
            out.push(b'f');
            out.extend(content.size_bytes().to_le_bytes());
        }
        Body::Symlink(target) => {
            out.push(b'l');
            text(out, target);
        }
        Body::Char { major, minor } | Body::Block { major, minor } => {
            out.push(if matches!(inode.body, Body::Char { .. }) {
                b'c'
            } else {
                b'b'
            });
            out.extend(major.to_le_bytes());
            out.extend(minor.to_le_bytes());
        }
        Body::Fifo => out.push(b'p'),
        Body::Socket => out.push(b's'),
    }
}
