//! Entries of an archive put into the tree.

use super::read::{Entry, EntryKind};
use crate::error::{Error, Result};
use crate::tree::{Body, Inode, Keep, Tree};

/// Before the name of what a container layer removes.
const WHITEOUT: &[u8] = b".wh.";
/// In a directory of which lower layers show nothing.
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Before names that say something else about a layer, and are no files.
const WHITEOUT_META: &[u8] = b".wh..wh.";

/// Whether marks of container layers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layering {
    /// An archive of its own: names are names.
    Plain,
    /// A layer over others: whiteouts remove what is below.
    Layer,
}

/// Puts the entries down, over what is there.
pub(crate) fn apply(
    tree: &mut Tree,
    archive: &str,
    entries: Vec<Entry>,
    layering: Layering,
    keep: &mut Keep<'_>,
) -> Result<()> {
    let entries = match layering {
        Layering::Plain => entries,
        Layering::Layer => take_whiteouts(tree, archive, entries)?,
    };
    for entry in entries {
        let path = trimmed(&entry.path);
        if !path.is_empty() && !keep(path, matches!(entry.kind, EntryKind::Dir)) {
            continue;
        }
        let name = entry.path.clone();
        put(tree, entry, keep).map_err(named(archive, &name))?;
    }
    Ok(())
}

/// The path without slashes and dots at its start.
fn trimmed(mut path: &[u8]) -> &[u8] {
    while let Some(rest) = path.strip_prefix(b"/").or(path.strip_prefix(b"./")) {
        path = rest;
    }
    match path {
        b"." => b"",
        path => path.strip_suffix(b"/").unwrap_or(path),
    }
}

fn named<'n>(archive: &'n str, entry: &'n [u8]) -> impl FnOnce(Error) -> Error + 'n {
    move |error| Error::Entry {
        archive: archive.to_owned(),
        entry: String::from_utf8_lossy(entry).into_owned(),
        what: match error {
            Error::Path { what, .. } => what.to_owned(),
            other => other.to_string(),
        },
    }
}

/// Removes from the tree what the layer's marks say, and leaves them out. All of them come before
/// the layer's own entries, wherever they stand in the archive.
fn take_whiteouts(tree: &mut Tree, archive: &str, entries: Vec<Entry>) -> Result<Vec<Entry>> {
    let mut others = Vec::with_capacity(entries.len());
    for entry in entries {
        let path = trimmed(&entry.path);
        let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        if !name.starts_with(WHITEOUT) {
            others.push(entry);
            continue;
        }
        let dir = tree.lookup(dir).map_err(named(archive, &entry.path))?;
        match (dir, name.strip_prefix(WHITEOUT)) {
            (Some(dir), _) if name == OPAQUE => tree.clear(dir),
            (Some(dir), Some(name)) if !entry.path.ends_with(WHITEOUT_META) && !name.starts_with(WHITEOUT) => {
                tree.remove(dir, name);
            }
            _ => {}
        }
    }
    Ok(others)
}

fn put(tree: &mut Tree, entry: Entry, keep: &mut Keep<'_>) -> Result<()> {
    let Entry { path, meta, kind } = entry;
    let Some((dir, name)) = tree.place(&path)? else {
        return match kind {
            EntryKind::Dir => {
                let base = tree.base();
                tree[base].meta = meta;
                Ok(())
            }
            _ => Err(Error::path(&path, "has no name and is no directory")),
        };
    };
    let body = match kind {
        EntryKind::Link(target) => {
            if let Some(id) = tree.lookup(&target)? {
                return tree.link(dir, name, id);
            }
            return match keep(trimmed(&target), false) {
                true => Err(Error::path(&path, "is a hard link to something that is not there")),
                false => Err(Error::path(&path, "is a hard link to something that is left out")),
            };
        }
        EntryKind::Dir => Body::empty_dir(),
        EntryKind::File(content) => {
            if content.size_bytes() > i64::MAX.cast_unsigned() {
                return Err(Error::path(&path, "is larger than 2^63 bytes"));
            }
            Body::File(content)
        }
        EntryKind::Symlink(target) => Body::Symlink(target.into()),
        EntryKind::Char(major, minor) => Body::Char { major, minor },
        EntryKind::Block(major, minor) => Body::Block { major, minor },
        EntryKind::Fifo => Body::Fifo,
    };
    tree.put(dir, name, Inode { meta, body }).map(drop)
}
