//! How two subvolumes of a volume differ, as they are on disk: names, attributes, ranges of files.
//!
//! Blocks that both trees share are skipped: the work is that of the difference.
//! docs/design/send.md.

pub(crate) mod changes;
pub(crate) mod paths;
pub(crate) mod ranges;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use btrfs_format::{Key, KeyType, TreeId, view};
use btrfs_store::tree::compare::compare;
use cowshed_vfs::{Error as Errno, FileKind};

use crate::block::round_up;
use crate::error::{Error, Result};
use crate::mount::Mount;
use crate::object::{InodeAttr, Subvol};
use crate::subvol;
use changes::{Changed, Name};
use paths::Paths;

/// What of an inode's attributes differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits.
    pub mode: bool,
    /// User or group.
    pub owner: bool,
    /// Time of the last change of content.
    pub mtime: bool,
    /// Flags, as chattr(1) sets them.
    pub flags: bool,
    /// Names of extended attributes that came, went, or have another value.
    pub xattrs: BTreeSet<Vec<u8>>,
}

/// An inode that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its number. One that was another inode before is shown twice: as gone, and as new.
    pub inode: u64,
    /// What it is.
    pub kind: FileKind,
    /// Paths that only the old subvolume has; all where the inode is gone.
    pub removed: Vec<Vec<u8>>,
    /// Paths that only the new subvolume has; all where the inode is new.
    pub added: Vec<Vec<u8>>,
    /// A path that both have under the same directory and name; `None` where there is none.
    pub kept: Option<Vec<u8>>,
    /// Size in bytes before, where it was there.
    pub old_size: Option<u64>,
    /// Size in bytes, where it is there.
    pub new_size: Option<u64>,
    /// Ranges of the new content that were written, cut off or punched since, in order. Of an inode
    /// that is in both.
    pub ranges: Vec<Range<u64>>,
    /// What else differs. Of an inode that is in both.
    pub attributes: Attributes,
}

/// Shows how two subvolumes differ, by inode number. Ends where `show` says so.
///
/// # Errors
/// `NotFound` (no such subvolume), and whatever reading finds.
pub fn diff(
    mount: &Mount,
    (old, new): (TreeId, TreeId),
    show: &mut dyn FnMut(Difference) -> ControlFlow<()>,
) -> Result<()> {
    let files = mount.files();
    let old = subvol::load(files, old)?.ok_or(Errno::NotFound)?;
    let new = subvol::load(files, new)?.ok_or(Errno::NotFound)?;
    let changed = changes::collect(Some(&old.tree), &new.tree, &mut ())?;
    let (mut old_paths, mut new_paths) = (Paths::new(old.clone()), Paths::new(new.clone()));
    for inode in &changed {
        let Some(kind) = inode.new.or(inode.old).and_then(|short| short.kind()) else {
            continue;
        };
        let mut found = Difference {
            inode: inode.ino.get(),
            kind,
            removed: Vec::new(),
            added: Vec::new(),
            kept: None,
            old_size: None,
            new_size: None,
            ranges: Vec::new(),
            attributes: Attributes::default(),
        };
        let attr = |subvol: &Subvol| -> Result<InodeAttr> {
            let item = changes::inode(&subvol.tree, inode.ino)?.ok_or(Errno::Corrupt)?;
            Ok(InodeAttr::decode(&item))
        };
        let before = inode.old.map(|_| attr(&old)).transpose()?;
        let after = inode.new.map(|_| attr(&new)).transpose()?;
        (found.old_size, found.new_size) = (before.map(|a| a.size), after.map(|a| a.size));
        match (before, after) {
            (Some(before), Some(after)) => {
                found.removed = all_paths(&mut old_paths, &inode.removed)?;
                found.added = all_paths(&mut new_paths, &inode.added)?;
                let names = changes::names(&new.tree, inode.ino)?;
                let kept = names.iter().find(|name| !inode.added.contains(name));
                found.kept = match kept {
                    // The root has the name "..".
                    _ if inode.ino == new.root_ino => Some(Vec::new()),
                    Some(name) => new_paths.path(name)?,
                    None => None,
                };
                if kind == FileKind::Regular {
                    found.ranges = differing_ranges((&old, &new), inode, (&before, &after))?;
                }
                found.attributes = attributes((&old, &new), inode, (&before, &after))?;
            }
            (Some(_), None) => found.removed = all_paths(&mut old_paths, &changes::names(&old.tree, inode.ino)?)?,
            (None, _) => found.added = all_paths(&mut new_paths, &changes::names(&new.tree, inode.ino)?)?,
        }
        if show(found).is_break() {
            break;
        }
    }
    Ok(())
}

fn all_paths(paths: &mut Paths, names: &[Name]) -> Result<Vec<Vec<u8>>> {
    let all = names.iter().map(|name| Ok(paths.path(name)?.unwrap_or_default()));
    all.collect()
}

fn differing_ranges(
    (old, new): (&Arc<Subvol>, &Arc<Subvol>),
    inode: &Changed,
    (before, after): (&InodeAttr, &InodeAttr),
) -> Result<Vec<Range<u64>>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    if inode.has_extents {
        let sides = (Some(&**old), &**new);
        for range in ranges::touched(sides, inode.ino)? {
            let range = range.start..range.end.min(round_up(after.size));
            if !range.is_empty() {
                let parts = ranges::differing(sides, inode.ino, range)?;
                all.extend(parts.into_iter().map(|(part, _)| part.start..part.end.min(after.size)));
            }
        }
    }
    // What a file grew by is zeros unless there is an extent.
    all.push(before.size..after.size);
    all.retain(|range| !range.is_empty());
    all.sort_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in all {
        match out.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    Ok(out)
}

fn attributes(
    (old, new): (&Arc<Subvol>, &Arc<Subvol>),
    inode: &Changed,
    (before, after): (&InodeAttr, &InodeAttr),
) -> Result<Attributes> {
    let mut xattrs = BTreeSet::new();
    if inode.has_xattrs {
        let keys = [0, u64::MAX].map(|offset| Key::new(inode.ino, KeyType::XATTR_ITEM, offset));
        let _: ControlFlow<()> = compare(Some(&old.tree), &new.tree, keys.into(), |found| {
            let entries = |item: &Option<btrfs_store::tree::Item>| -> BTreeSet<(Vec<u8>, Vec<u8>)> {
                let entries = item.iter().flat_map(|item| view::dir_entries(item));
                entries
                    .map(|entry| (entry.name.to_vec(), entry.data.to_vec()))
                    .collect()
            };
            let (a, b) = (entries(&found.old), entries(&found.new));
            xattrs.extend(a.symmetric_difference(&b).map(|(name, _)| name.clone()));
            Ok::<_, Error>(ControlFlow::Continue(()))
        })?;
    }
    Ok(Attributes {
        mode: before.mode != after.mode,
        owner: (before.uid, before.gid) != (after.uid, after.gid),
        mtime: before.mtime != after.mtime,
        flags: before.flags != after.flags,
        xattrs,
    })
}
