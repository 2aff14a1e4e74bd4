//! Volumes that compress what is written: with which option a run is mounted, and how much of what
//! its crash images hold is compressed.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use btrfs_format::view::{self, FileExtentView};
use btrfs_format::{Key, KeyType, TreeId};
use btrfs_store::tree;
use btrfs_store::volume::{OpenOptions, Rescue, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_btrfs::fs::MountOptions;
use cowshed_device_sim::Rng;
use cowshed_runtime::FixedEnv;
use cowshed_vfs::Compression;

use crate::rig::{self, Devices};

/// How runs that compress are mounted, and whether that is forced: else files that did not compress
/// once are left alone from there on.
const OPTIONS: [(&str, bool); 4] = [("lzo", true), ("zstd:1", true), ("zlib", true), ("zstd:3", false)];
/// The others do not.
const RUNS_ONE_IN: u64 = 3;

/// Algorithms, by the number that the format has for each.
pub const NAMES: [&str; 4] = ["", "zlib", "lzo", "zstd"];

/// Dice of their own: what else follows from the seed does not depend on them.
fn dice(seed: u64) -> Rng {
    const KIND: u64 = 0x636f_6d70_7265_7373;
    Rng::new(seed ^ KIND)
}

fn one_of(rng: &mut Rng) -> CompressPolicy {
    let (how, force) = OPTIONS[rng.index(OPTIONS.len())];
    let how: Compression = how.parse().expect("it exists");
    CompressPolicy { how, force }
}

/// How the runs of a seed are mounted; most do not compress.
pub fn drawn(seed: u64) -> Option<CompressPolicy> {
    let mut rng = dice(seed);
    rng.one_in(RUNS_ONE_IN).then(|| one_of(&mut rng))
}

/// The same where all runs compress.
pub fn always(seed: u64) -> CompressPolicy {
    one_of(&mut dice(seed))
}

/// A mount that compresses so.
pub fn options(compress: Option<CompressPolicy>) -> MountOptions {
    MountOptions {
        compress,
        ..MountOptions::default()
    }
}

/// Compressed extents of an image, by algorithm ([`NAMES`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub all: [u64; 4],
    /// Those that its log has and its commit has not.
    pub logged: [u64; 4],
}

impl Count {
    pub fn of(devices: &Devices, has_log: bool) -> Result<Count> {
        let committed = extents(devices, true).context("the commit's extents")?;
        let mut count = Count::default();
        if !has_log {
            committed.iter().for_each(|extent| count.all[extent.kind()] += 1);
            return Ok(count);
        }
        for extent in extents(devices, false).context("the log's extents")? {
            count.all[extent.kind()] += 1;
            count.logged[extent.kind()] += u64::from(!committed.contains(&extent));
        }
        Ok(count)
    }
}

/// A compressed extent: the tree that it is in, its key, and where it lies, 0 for one that is
/// inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    tree: TreeId,
    key: Key,
    addr: u64,
    compression: u8,
}

impl Extent {
    fn kind(&self) -> usize {
        usize::from(self.compression).min(NAMES.len() - 1)
    }
}

fn extents(devices: &Devices, is_committed: bool) -> Result<BTreeSet<Extent>> {
    let options = OpenOptions {
        read_only: true,
        rescue: Rescue {
            no_log_replay: is_committed,
            ..Rescue::default()
        },
        ..OpenOptions::default()
    };
    let volume = Volume::open(rig::shared(&rig::snapshots(devices)), &options)?;
    let engine = Mount::open(volume, Arc::new(FixedEnv::default()), EngineOptions::default())?;
    let mut all = BTreeSet::new();
    let roots = engine.store().forest().root_tree();
    let mut cursor = roots.cursor(Key::MIN, Key::MAX);
    while let Some((key, item)) = cursor.next()? {
        let id = TreeId(key.objectid.get());
        let is_live = || view::root_item(&item).is_some_and(|root| root.refs.get() > 0);
        if key.ty == KeyType::ROOT_ITEM && id.is_subvolume() && is_live() {
            collect(&engine.store().forest().require(id)?, id, &mut all)?;
        }
    }
    Ok(all)
}

fn collect(tree: &Arc<tree::Tree>, id: TreeId, all: &mut BTreeSet<Extent>) -> Result<()> {
    let mut cursor = tree.cursor(Key::MIN, Key::MAX);
    while let Some((key, item)) = cursor.next()? {
        if key.ty != KeyType::EXTENT_DATA {
            continue;
        }
        let (compression, addr) = match view::file_extent(&item).context("a short extent item")? {
            FileExtentView::Inline { head, .. } => (head.compression, 0),
            FileExtentView::Regular(raw) => (raw.compression, raw.disk_bytenr.get()),
        };
        if compression != 0 {
            all.insert(Extent {
                tree: id,
                key,
                addr,
                compression,
            });
        }
    }
    Ok(())
}
