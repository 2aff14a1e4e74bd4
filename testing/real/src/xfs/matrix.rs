//! `xfs matrix`: each kind of volume is filled with a tree of everything, and looked at through the
//! kernel and through a mount of Cowshed.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use cowshed_harness::need;
use cowshed_harness::tree::{Compare, snapshot};
use cowshed_harness::xfs::{Fill, XfsVolume, fill};
use xfs_format::{AgNumber, Geometry, Superblock};

use super::compare::{Facts, maps};
use super::kinds::{self, Kind};
use super::proto;
use crate::choice::Choice;
use crate::cowshed::{Mount, run_in};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    choice: Choice,
    /// Small trees
    #[arg(long)]
    small: bool,
    /// Each feature with each size of blocks, inodes and directory blocks
    #[arg(long)]
    all: bool,
    /// Print the kinds, and do nothing
    #[arg(long)]
    list: bool,
}

/// Bytes of the file in most pieces, at most: of large blocks it has fewer.
const PIECES_BYTES_MAX: u64 = 1 << 30;

pub fn main(args: &Args) -> Result<()> {
    if need::root().is_none() || need::fuse().is_none() || need::kernel_xfs().is_none() {
        return Ok(());
    }
    let kinds = if args.all { kinds::crossed() } else { kinds::all() };
    let kinds = args.choice.of(kinds, Kind::describe);
    if args.list {
        for kind in &kinds {
            println!("{}", kind.describe());
        }
        return Ok(());
    }
    let mut failed = 0;
    for (n, kind) in kinds.iter().enumerate() {
        let started = Instant::now();
        print!("[{}/{}] {}", n + 1, kinds.len(), kind.describe());
        match one(kind, args) {
            Ok(entries) => println!(": {entries} entries in {:.1} s", started.elapsed().as_secs_f32()),
            Err(error) => {
                failed += 1;
                println!("\nFAILED: {}: {error:#}", kind.describe());
            }
        }
    }
    let (old, old_failed) = if args.choice.only.is_none() && !args.all {
        proto::all()?
    } else {
        (0, 0)
    };
    println!("{} passed, {} failed", kinds.len() - failed + old, failed + old_failed);
    if failed + old_failed > 0 {
        bail!("{} kinds of volume failed", failed + old_failed)
    } else {
        Ok(())
    }
}

fn amount(kind: &Kind, args: &Args) -> Fill {
    let full = Fill {
        seed: args.choice.seed,
        entries: 1500,
        names: 100_000,
        extents: 100_000,
        links: 10_000,
        attributes: 3000,
        flags: true,
        block_bytes: kind.block_bytes,
        reflink: kind.reflink(),
    };
    let small = Fill {
        block_bytes: full.block_bytes,
        reflink: full.reflink,
        ..Fill::small(args.choice.seed)
    };
    let what = if args.small { small } else { full };
    Fill {
        extents: what.extents.min((PIECES_BYTES_MAX / kind.block_bytes) as usize),
        ..what
    }
}

/// Returns the number of entries that were compared.
fn one(kind: &Kind, args: &Args) -> Result<usize> {
    let volume = XfsVolume::make(&kind.options)?;
    if kind.incompat != 0 {
        set_incompat(volume.image(), kind.incompat)?;
    }
    volume.with_mount(|root| fill(root, &amount(kind, args)))?;
    if kind.new_uuid {
        let image = volume.image().display().to_string();
        run_in(Path::new("/"), "xfs_admin", &["-U", "generate", &image])?;
    }
    let (kernels, facts) = volume.with_mount_untouched(|root| Ok((snapshot(root)?, Facts::of(root)?)))?;
    let kernels_maps = volume.with_mount_untouched(|root| maps(&kernels, Some(root), volume.image()))?;

    let options = match volume.log() {
        Some(log) => format!("ro,logdev={}", log.display()),
        None => "ro".to_owned(),
    };
    let mount = Mount::new(&[volume.image().to_owned()], volume.dir(), &options)?;
    let ours = snapshot(mount.path()).context("reading what the kernel wrote")?;
    let our_facts = Facts::of(mount.path())?;
    mount.unmount()?;
    let differences = kernels.diff(&ours, &Compare::same_volume());
    ensure!(
        differences.is_empty(),
        "the kernel's view (left) and Cowshed's (right):\n{differences}"
    );
    facts.ensure_same(&our_facts)?;
    if volume.log().is_none() {
        let our_maps = maps(&kernels, None, volume.image())?;
        for (path, expected) in &kernels_maps {
            let found = our_maps.get(path).context("a map for each file")?;
            ensure!(
                expected == found,
                "{}: the map of the kernel is {expected:#}, Cowshed's {found:#}",
                path.display()
            );
        }
    }
    Ok(ours.len())
}

/// Sets bits that this mkfs.xfs does not know, as newer ones do at once.
fn set_incompat(image: &Path, bits: u64) -> Result<()> {
    let file = File::options().read(true).write(true).open(image)?;
    let mut head = vec![0; 32768];
    file.read_exact_at(&mut head, 0)?;
    let geometry = Geometry::new(&Superblock::verify(&head)?)?;
    for group in 0..geometry.ag_count {
        let at = geometry
            .header_daddr(AgNumber(group), 0)
            .checked_bytes()
            .context("an address")?;
        let mut sector = vec![0; geometry.sector_bytes as usize];
        file.read_exact_at(&mut sector, at)?;
        let mut superblock = Superblock::verify_copy(&sector)?;
        superblock
            .features_incompat
            .set(superblock.features_incompat.get() | u32::try_from(bits)?);
        file.write_all_at(&superblock.seal()?, at)?;
    }
    Ok(())
}
