//! A volume in use: subvolumes, snapshots that share and differ, something deleted.

use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::run;
use crate::tree::{Kinds, MakeOptions, make};
use crate::volume::{KernelVolume, VolumeOptions};

fn subvolume(args: &[&str], paths: &[&Path]) -> Result<()> {
    let mut all = vec!["subvolume".as_ref()];
    all.extend(args.iter().map(std::ffi::OsStr::new));
    all.extend(paths.iter().map(|path| path.as_os_str()));
    run("btrfs", &all).map(drop)
}

/// Fills a mounted btrfs: a tree in the top level, one in a subvolume, a read-only and a writable
/// snapshot of it that then diverge, a subvolume in a snapshot's parent, a deleted subvolume, a
/// default subvolume left alone. About three times `entries` entries; the same from the same
/// options, but for times of change and uuids.
pub fn populate(root: &Path, options: &MakeOptions) -> Result<()> {
    make(root, options).context("the tree of the top level")?;
    let live = root.join("live");
    subvolume(&["create"], &[&live])?;
    make(
        &live,
        &MakeOptions {
            seed: options.seed + 1,
            ..*options
        },
    )
    .context("the tree of the subvolume")?;
    subvolume(&["create"], &[&live.join("nested")])?;
    std::fs::write(live.join("nested/file"), [5; 9000])?;
    subvolume(&["snapshot", "-r"], &[&live, &root.join("frozen")])?;
    subvolume(&["snapshot"], &[&live, &root.join("branch")])?;

    let branch = root.join("branch");
    std::fs::remove_dir_all(branch.join("deep"))?;
    let shared = std::fs::File::options()
        .write(true)
        .open(branch.join("sizes/random-1048576"))?;
    shared.write_all_at(&[9; 10_000], 300_000)?;
    std::fs::rename(live.join("sizes/text-131072"), live.join("links/moved"))?;
    std::fs::create_dir(live.join("later"))?;
    make(
        &live.join("later"),
        &MakeOptions {
            seed: options.seed + 2,
            ..*options
        },
    )
    .context("the later tree")?;

    let doomed = root.join("doomed");
    subvolume(&["create"], &[&doomed])?;
    std::fs::write(doomed.join("file"), [1; 100_000])?;
    subvolume(&["delete"], &[&doomed])
}

impl KernelVolume {
    /// Makes a volume and populates it through the kernel.
    pub fn make_populated(options: &VolumeOptions, seed: u64, entries: usize) -> Result<KernelVolume> {
        let volume = KernelVolume::make(options)?;
        let mut tree = MakeOptions::new(seed, entries);
        tree.total_bytes = options.size_bytes / 16;
        tree.kinds = Kinds {
            // FICLONE refuses to mix files with and without checksums, which the options of a mount
            // do not change within a run; without extref there is no room for many links in one
            // directory.
            many_links: !options.features.contains(&"^extref"),
            ..Kinds::all()
        };
        volume.with_mount(|root| populate(root, &tree))?;
        Ok(volume)
    }
}
