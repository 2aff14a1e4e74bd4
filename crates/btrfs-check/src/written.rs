//! Preallocated extents with checksums.
//!
//! They are sound where another file extent says that the same bytes were written. A crash leaves
//! this: a file writes into what it has preallocated, another one takes a clone of the bytes, and
//! only the other one is synced. The log brings back the clone with its checksums, and the first
//! file is as it was at the last commit. Linux and btrfs-progs take that for sound, too.

use std::collections::BTreeSet;

use btrfs_format::KeyType;
use btrfs_format::items::{compression, file_extent_type};
use btrfs_format::view::{FileExtentView, file_extent};

use crate::csums::{CsumMap, ranges_of};
use crate::finding::{FindingId as Id, Site};
use crate::roots::Roots;
use crate::walk::Cx;

/// How many are judged; of more, nothing is said. A sound volume has hardly any.
const SUSPECTS_MAX: usize = 1 << 16;

/// Notes a range, to be judged when all file trees are known.
pub(crate) fn suspect(cx: &mut Cx<'_>, range: (u64, u64), site: Site) {
    if cx.summed_prealloc.len() < SUSPECTS_MAX {
        cx.summed_prealloc.entry(range).or_insert(site);
    }
}

/// Walks the file trees once more, if there is anything to be judged. They have been found whole:
/// an unreadable leaf, or a subvolume in deletion, may hold the extent that was written.
pub(crate) fn judge(cx: &mut Cx<'_>, roots: &Roots, csums: &CsumMap) {
    let suspects = std::mem::take(&mut cx.summed_prealloc);
    if suspects.is_empty() {
        return;
    }
    let places = ranges_of(&suspects.keys().copied().collect());
    let mut found = BTreeSet::new();
    let mut walked = BTreeSet::new();
    for tree in roots.trees.values() {
        // A root block that two trees name is walked once, or there were no bound.
        if !tree.root.tree.is_fs_tree() || !walked.insert(tree.root.addr) {
            continue;
        }
        cx.walk_quietly(&tree.root, &mut |_, leaf| {
            for (key, data) in leaf.items() {
                if key.ty == KeyType::EXTENT_DATA
                    && let Some(FileExtentView::Regular(extent)) = file_extent(data)
                    && extent.ty == file_extent_type::REG
                    && extent.compression == compression::NONE
                {
                    let start = extent.disk_bytenr.get().saturating_add(extent.offset.get());
                    let end = start.saturating_add(extent.num_bytes.get());
                    if places.covered_bytes(start, end) > 0 {
                        found.insert((start, end));
                    }
                }
            }
        });
    }
    let written = ranges_of(&found);
    for ((start, end), site) in suspects {
        let unwritten = written.gaps(start, end);
        let bytes = unwritten.iter().fold(0u64, |sum, &(from, to)| {
            sum.saturating_add(csums.covered_bytes(from, to))
        });
        if bytes > 0 {
            let what = format!("{bytes} bytes at {start} have checksums, but the extent is preallocated");
            cx.sink.add(Id::CsumUnexpected, site, what);
        }
    }
}
