//! An independent checker of btrfs volumes: the second opinion.
//!
//! It reads devices through [`btrfs_format`] alone and shares no code with the engine, so that a
//! mistake there cannot hide here. It only reads. Whatever the bytes, it ends, does not panic, and
//! stays within bounds:
//!
//! * *Time*: each tree is walked once (file trees once per subvolume), each block is read once with
//!   all its copies, and again for details only where something is wrong. [`walk`] says why walks
//!   end.
//! * *Memory*: about 112 bytes per extent, 32 per compressed one where data is read, 24 per tree
//!   block, 16 per run of checksums, 48 per inode whose names are not balanced yet, and a bounded
//!   number of findings. A million extents take about 150 MB.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use cowshed_device::{BlockDevice, FileDevice, OpenMode};
//! let image = FileDevice::open("volume.img", OpenMode::ReadOnly)?;
//! let device: Arc<dyn BlockDevice> = Arc::new(image);
//! let report = btrfs_check::check(&[device], &btrfs_check::CheckOptions::default());
//! print!("{report}");
//! assert!(report.is_clean());
//! # Ok::<(), cowshed_device::Error>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::as_conversions
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod block;
mod chunks;
mod compressed;
mod csums;
mod extents;
mod file_items;
mod finding;
mod free_space;
mod fs;
mod layout;
mod log;
mod names;
mod noted;
mod options;
mod packed;
mod paths;
mod quota;
mod references;
mod roots;
mod space_cache;
mod util;
mod volume;
mod walk;
mod written;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use btrfs_format::TreeId;
use btrfs_format::features::compat_ro;
use cowshed_device::BlockDevice;

pub use finding::{Finding, FindingId, Report, Severity, Site, Statistics};
pub use options::{CheckOptions, Phase, Progress};

use csums::CsumMap;
use layout::BlockGroup;
use roots::Roots;
use volume::Volume;
use walk::{Cx, Root, Shared};

/// Checks the volume on `devices`, given in any order.
pub fn check(devices: &[Arc<dyn BlockDevice>], options: &CheckOptions<'_>) -> Report {
    let mut sink = finding::Sink {
        kept_per_id_max: options.kept_per_id_max,
        ..finding::Sink::default()
    };
    let Some(volume) = Volume::open(&mut sink, devices) else {
        return sink.report;
    };
    if volume.is_metadata_dump() {
        sink.add(
            FindingId::MetadataDump,
            Site::default(),
            "data was not dumped, and is not compared",
        );
    }
    let options = CheckOptions {
        data_csums: options.data_csums && !volume.is_metadata_dump(),
        ..*options
    };
    let mut cx = Cx::new(volume, sink, &options);
    check_volume(&mut cx);
    cx.sink.report.statistics = cx.stats;
    cx.sink.report
}

fn check_volume(cx: &mut Cx<'_>) {
    layout::bootstrap(cx);
    layout::read_chunk_tree(cx);
    layout::check_devices(cx);
    let mut roots = roots::read(cx);
    roots::check(cx, &roots);
    cx.stats.subvolumes = roots::subvolumes(&roots);

    let mut groups: BTreeMap<u64, BlockGroup> = BTreeMap::new();
    let separate_groups = cx.vol.has_compat_ro(compat_ro::BLOCK_GROUP_TREE);
    let extents_whole = walk_extent_tree(cx, &roots, &mut groups);
    let groups_whole = if separate_groups {
        measured(cx, &roots, TreeId::BLOCK_GROUP, |cx, root| {
            cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
                layout::read_block_groups(cx, TreeId::BLOCK_GROUP, leaf, &mut groups);
            })
        })
    } else {
        extents_whole
    };
    measured(cx, &roots, TreeId::DEV, |cx, root| {
        layout::check_dev_tree(cx, root);
        true
    });
    let mut csums = CsumMap::default();
    measured(cx, &roots, TreeId::CSUM, |cx, root| {
        csums = csums::read(cx, root);
        csums.whole
    });
    measured(cx, &roots, TreeId::UUID, |cx, _| {
        roots::check_uuid_tree(cx, &roots);
        true
    });
    measured(cx, &roots, TreeId::FREE_SPACE, |cx, root| {
        // Without the valid bit the tree is not kept up to date, and the kernel rebuilds it.
        let kept = [compat_ro::FREE_SPACE_TREE, compat_ro::FREE_SPACE_TREE_VALID];
        let is_kept = kept.iter().all(|bit| cx.vol.has_compat_ro(*bit));
        free_space::check(cx, root, &groups, is_kept && extents_whole && groups_whole);
        true
    });
    space_cache::check(cx, &roots, &groups, extents_whole && groups_whole);
    if let Some(tree) = roots.get(TreeId::QUOTA) {
        cx.quota = quota::read(cx, &tree.root);
    }
    let trees_whole = check_file_trees(cx, &mut roots, &csums);
    if trees_whole {
        written::judge(cx, &roots, &csums);
    }
    if let Some(quota) = cx.quota.take().filter(|_| trees_whole) {
        quota::judge(cx, &quota);
    }
    roots::check_links(cx, &roots);
    layout::check_block_groups(cx, &groups, groups_whole, extents_whole);
    let details = extents::judge(cx, extents_whole);
    let logged = log::check(cx, &roots, &csums);
    if extents_whole && let Some(logged) = logged {
        csums::check_orphans(cx, &csums, &logged);
    }
    if !details.is_empty() && extents_whole {
        extents::watch(cx, &details);
        walk_for_details(cx, &roots);
        extents::judge_details(cx);
    }
    if cx.opts.data_csums
        && let Some(tree) = roots.get(TreeId::CSUM)
    {
        csums::verify_data(cx, &tree.root, &csums);
    }
    packed::verify(cx);
    paths::fill_in(cx, &roots);
}

/// Walks one of the trees that are never shared, and compares its size with its root item.
fn measured<'a>(cx: &mut Cx<'a>, roots: &Roots, tree: TreeId, walk: impl FnOnce(&mut Cx<'a>, &Root) -> bool) -> bool {
    let Some(found) = roots.get(tree) else { return false };
    let before = cx.stats.tree_blocks;
    let whole = walk(cx, &found.root);
    if whole && !cx.incomplete {
        roots::check_bytes_used(cx, found, cx.stats.tree_blocks.saturating_sub(before));
    }
    whole
}

fn walk_extent_tree(cx: &mut Cx<'_>, roots: &Roots, groups: &mut BTreeMap<u64, BlockGroup>) -> bool {
    let separate_groups = cx.vol.has_compat_ro(compat_ro::BLOCK_GROUP_TREE);
    let mut extent_root = None;
    let whole = measured(cx, roots, TreeId::EXTENT, |cx, root| {
        extent_root = Some(root.clone());
        cx.walk(root, Shared::Skip, &mut |cx, leaf, _| {
            extents::read_extent_leaf(cx, leaf);
            if !separate_groups {
                layout::read_block_groups(cx, TreeId::EXTENT, leaf, groups);
            }
        })
    });
    extents::ready(cx);
    cx.extent_root = extent_root.filter(|_| whole);
    whole
}

/// Trees that have been walked by their own checks.
const WALKED: [TreeId; 7] = [
    TreeId::QUOTA,
    TreeId::EXTENT,
    TreeId::DEV,
    TreeId::CSUM,
    TreeId::UUID,
    TreeId::FREE_SPACE,
    TreeId::BLOCK_GROUP,
];

/// False where some of them could not be walked whole, or is being deleted.
fn check_file_trees(cx: &mut Cx<'_>, roots: &mut Roots, csums: &CsumMap) -> bool {
    let mut all_whole = true;
    let trees: Vec<(Root, u32)> = roots
        .trees
        .values()
        .map(|tree| (tree.root.clone(), tree.refs))
        .collect();
    let mut walked = BTreeSet::new();
    for (root, refs) in trees {
        // A root block that two trees name was reported; walking it once per name has no bound.
        if WALKED.contains(&root.tree) || !walked.insert(root.addr) {
            continue;
        }
        if root.tree.is_fs_tree() && refs > 0 {
            all_whole &= fs::check(cx, &root, roots, csums);
        } else {
            all_whole &= !root.tree.is_subvolume();
            cx.walk(&root, Shared::Skip, &mut |_, _, _| {});
        }
    }
    all_whole
}

/// Walks all trees again, for the references of some extents only.
fn walk_for_details(cx: &mut Cx<'_>, roots: &Roots) {
    let chunk_root = layout::chunk_root(&cx.vol);
    cx.walk(&chunk_root, Shared::Skip, &mut |_, _, _| {});
    let root_tree = roots::root_tree(&cx.vol);
    cx.walk(&root_tree, Shared::Skip, &mut |_, _, _| {});
    for tree in roots.trees.values() {
        let is_extent_tree = tree.root.tree == TreeId::EXTENT;
        cx.walk(&tree.root, Shared::Skip, &mut |cx, leaf, _| {
            if is_extent_tree {
                extents::read_extent_leaf(cx, leaf);
            }
        });
    }
}
