//! Every kind of volume, back and forth between the kernel and Cowshed.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cowshed_harness::tree::{Compare, Kinds, MakeOptions, Tree, make, snapshot};
use cowshed_harness::{KernelVolume, VolumeOptions, matrix_full, need};

use crate::choice::Choice;
use crate::cowshed::{Mount, judge, run_in};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// Entries of each of the trees on a volume
    #[arg(long, default_value_t = 300)]
    entries: usize,
}

/// What we do not write: the kinds of volume that are refused by name, which is tested elsewhere.
fn is_supported(options: &VolumeOptions) -> bool {
    let has_parity = |profile: Option<&str>| profile.is_some_and(|p| p == "raid5" || p == "raid6");
    !has_parity(options.data) && !has_parity(options.metadata) && options.sector_bytes.is_none_or(|s| s == 4096)
}

pub fn main(args: &Args) -> Result<()> {
    if need::root().is_none() || need::fuse().is_none() || need::kernel_btrfs().is_none() {
        return Ok(());
    }
    let kinds = matrix_full().into_iter().filter(is_supported).collect();
    let kinds = args.choice.of(kinds, VolumeOptions::describe);
    let mut failed = 0;
    for (n, kind) in kinds.iter().enumerate() {
        println!("[{}/{}] {}", n + 1, kinds.len(), kind.describe());
        if let Err(error) = one(kind, args) {
            failed += 1;
            println!("FAILED: {}: {error:#}", kind.describe());
        }
    }
    println!("{} passed, {failed} failed", kinds.len() - failed);
    if failed > 0 {
        bail!("{failed} kinds of volume failed")
    } else {
        Ok(())
    }
}

/// The volume as one driver sees it. Subvolumes number their inodes each by themselves, and the
/// numbers that a mount shows for them are its own.
fn compare() -> Compare {
    Compare {
        inodes: false,
        atime: false,
        ..Compare::same_volume()
    }
}

/// A snapshot of a mount, without the stand-ins for nested subvolumes in snapshots: they are on no
/// disk, and each driver makes up their times.
fn look(root: &Path) -> Result<Tree> {
    let mut tree = snapshot(root)?;
    for stand_in in ["branch/nested", "frozen/nested", "again/nested"] {
        tree.nodes.remove(std::ffi::OsStr::new(stand_in));
    }
    Ok(tree)
}

fn same(left: &Tree, right: &Tree, what: &str) -> Result<()> {
    let differences = left.diff(right, &compare());
    if differences.is_empty() {
        Ok(())
    } else {
        bail!("{what}:\n{differences}")
    }
}

fn one(kind: &VolumeOptions, args: &Args) -> Result<()> {
    let volume = KernelVolume::make_populated(kind, args.choice.seed, args.entries)?;
    let by_kernel = volume.with_mount(look)?;
    // What is not as it should be already is not ours.
    judge(&volume, "before Cowshed")?;

    let mount = Mount::new(volume.images(), volume.dir(), "ro")?;
    let by_us = look(mount.path()).context("reading what the kernel wrote")?;
    mount.unmount()?;
    same(
        &by_kernel,
        &by_us,
        "the kernel's tree, seen by the kernel (left) and by Cowshed (right)",
    )?;

    let mount = Mount::new(volume.images(), volume.dir(), "")?;
    change(mount.path(), kind, args).context("changing it through Cowshed")?;
    // What waits to be written is counted by what it will take, which is exact only afterwards.
    run_in(mount.path(), "sync", &["-f", "."])?;
    let by_us = look(mount.path())?;
    mount.unmount()?;
    judge(&volume, "after Cowshed's changes")?;
    let by_kernel = volume.with_mount(look)?;
    same(
        &by_us,
        &by_kernel,
        "the tree that Cowshed changed, seen by Cowshed (left) and by the kernel (right)",
    )?;

    volume.with_mount(|root| kernel_change(root).context("changing it through the kernel"))?;
    judge(&volume, "after the kernel's changes")?;
    let by_kernel = volume.with_mount(look)?;
    let mount = Mount::new(volume.images(), volume.dir(), "")?;
    let by_us = look(mount.path())?;
    mount.unmount()?;
    same(
        &by_kernel,
        &by_us,
        "after the kernel's changes, seen by the kernel (left) and by Cowshed (right)",
    )?;
    judge(&volume, "at the end")
}

/// What is made on a volume of this kind: without extref there is no room for many links in one
/// directory.
fn made(kind: &VolumeOptions, seed: u64, entries: usize) -> MakeOptions {
    let kinds = Kinds {
        many_links: !kind.features.contains(&"^extref"),
        ..Kinds::all()
    };
    MakeOptions {
        kinds,
        ..MakeOptions::new(seed, entries)
    }
}

/// Work in the top level, in a subvolume that snapshots share, and in a snapshot.
fn change(root: &Path, kind: &VolumeOptions, args: &Args) -> Result<()> {
    fs::create_dir(root.join("ours"))?;
    make(&root.join("ours"), &made(kind, args.choice.seed + 100, args.entries))?;
    for top in ["live", "branch"] {
        let top = root.join(top);
        fs::create_dir(top.join("ours"))?;
        make(&top.join("ours"), &made(kind, args.choice.seed + 101, args.entries / 2))?;
        let file = fs::File::options().write(true).open(top.join("sizes/random-1048576"))?;
        file.write_all_at(&[3; 50_000], 123_456)?;
        file.write_all_at(&[4; 4096], 8192)?;
        fs::rename(top.join("sizes"), top.join("renamed"))?;
        fs::remove_dir_all(top.join("xattrs")).or_else(|e| {
            if e.kind() == std::io::ErrorKind::NotFound {
                Ok(())
            } else {
                Err(e)
            }
        })?;
    }
    let refused = fs::write(root.join("frozen/ours"), b"x");
    if !refused.is_err_and(|e| e.kind() == std::io::ErrorKind::ReadOnlyFilesystem) {
        bail!("a read-only snapshot takes writes");
    }
    Ok(())
}

/// The kernel goes on with the volume: also frees what Cowshed wrote, and snapshots it.
fn kernel_change(root: &Path) -> Result<()> {
    let path = |p: &str| root.join(p).display().to_string();
    run_in(
        Path::new("/"),
        "btrfs",
        &["subvolume", "snapshot", &path("live"), &path("again")],
    )?;
    fs::remove_dir_all(root.join("live/ours"))?;
    fs::remove_dir_all(root.join("ours"))?;
    run_in(
        Path::new("/"),
        "btrfs",
        &["subvolume", "delete", "--commit-after", &path("branch")],
    )?;
    fs::write(root.join("by-kernel"), vec![8; 300_000])?;
    Ok(())
}
