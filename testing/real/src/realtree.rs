//! Real directory trees, copied onto a mount and read back through the kernel, and the other way
//! round.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cowshed_harness::need;
use cowshed_harness::tree::{Compare, Kind, Tree, snapshot};

use crate::cowshed::{Mount, judge, made, shell};

#[derive(clap::Args)]
pub struct Args {
    /// A small tree, for a quick run
    #[arg(long)]
    small: bool,
    /// Only these mount options instead of the usual ones, on both sides
    #[arg(long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Trees to copy (default: /usr/share, /usr/lib and cargo's registry)
    trees: Vec<PathBuf>,
}

/// How the trees are compressed, after they were copied without.
const COMPRESSIONS: [&str; 8] = [
    "compress=lzo",
    "compress=zlib:1",
    "compress-force=zlib:9",
    "compress-force=zstd:-15",
    "compress=zstd:1",
    "compress=zstd:3",
    "compress-force=zstd:15",
    "compress-force=lzo",
];
/// Of them in the quick run, with the smallest tree.
const SMALL_COMPRESSIONS: [&str; 3] = ["compress=lzo", "compress-force=zlib:9", "compress=zstd:3"];

pub fn main(args: &Args) -> Result<()> {
    if need::root().is_none() || need::fuse().is_none() || need::tool("rsync").is_none() {
        return Ok(());
    }
    let trees = if !args.trees.is_empty() {
        args.trees.clone()
    } else if args.small {
        vec!["/usr/share/doc".into(), "/etc".into()]
    } else {
        let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
        let home = home.or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cargo")));
        let registry = home.map(|h| h.join("registry")).filter(|r| r.exists());
        ["/usr/share".into(), "/usr/lib".into()]
            .into_iter()
            .chain(registry)
            .collect()
    };
    let size_bytes = if args.small { 2 << 30 } else { 24 << 30 };
    let mut passed = 0;
    let mut run = |trees: &[PathBuf], copier: &str, options: &str| {
        passed += 1;
        println!("mounted with {:?}", options);
        copy(trees, copier, size_bytes, options)
    };
    if args.options.is_empty() {
        for copier in ["cp -a", "rsync -aHAX"] {
            run(&trees, copier, "")?;
        }
        let (few, how) = match args.small {
            true => (&trees[trees.len() - 1..], &SMALL_COMPRESSIONS[..]),
            false => (&trees[..], &COMPRESSIONS[..]),
        };
        for options in how {
            run(few, "cp -a", options)?;
        }
    }
    for options in &args.options {
        run(&trees, "cp -a", options)?;
    }
    println!("{passed} passed, 0 failed");
    Ok(())
}

fn compare(left: &Tree, right: &Tree, what: &str) -> Result<()> {
    let differences = left.diff(right, &Compare::copy());
    if differences.is_empty() {
        Ok(())
    } else {
        bail!("{what}:\n{differences}")
    }
}

/// What a copy of this tree is to be: names of its files elsewhere are not copied, and their links
/// do not count.
fn original(tree: &Path) -> Result<Tree> {
    let mut tree = snapshot(tree)?;
    let mut names: BTreeMap<OsString, u32> = BTreeMap::new();
    for node in tree.nodes.values() {
        *names.entry(node.first_link.clone()).or_default() += 1;
    }
    for node in tree.nodes.values_mut() {
        if !matches!(node.kind, Kind::Directory) {
            node.links = names[&node.first_link];
        }
    }
    Ok(tree)
}

/// A copier's command, source and target directory name.
fn copy_command(copier: &str, source: &Path, target: &Path) -> String {
    // rsync copies the contents of a source with a slash at its end.
    let slash = if copier.starts_with("rsync") { "/" } else { "" };
    format!("{copier} '{}{slash}' '{}'", source.display(), target.display())
}

fn copy(trees: &[PathBuf], copier: &str, size_bytes: u64, options: &str) -> Result<()> {
    let volume = made(size_bytes)?;
    let mount = Mount::new(volume.images(), volume.dir(), options)?;
    for (n, tree) in trees.iter().enumerate() {
        println!("{copier} {} through Cowshed", tree.display());
        shell(
            Path::new("/"),
            &copy_command(copier, tree, &mount.path().join(format!("tree{n}"))),
        )?;
    }
    mount.unmount()?;
    judge(&volume, "after the copy")?;
    for (n, tree) in trees.iter().enumerate() {
        let original = original(tree)?;
        println!("{} entries of {} seen by the kernel", original.len(), tree.display());
        let seen = volume.with_mount(|root| snapshot(&root.join(format!("tree{n}"))))?;
        compare(
            &original,
            &seen,
            &format!("{copier} {}: original (left), copy (right)", tree.display()),
        )?;
    }
    // The other way round: the kernel copies, Cowshed reads.
    let mounted = volume.mount_with(options)?;
    for (n, tree) in trees.iter().enumerate() {
        let root = mounted.dir();
        std::fs::remove_dir_all(root.join(format!("tree{n}")))?;
        shell(
            Path::new("/"),
            &copy_command(copier, tree, &root.join(format!("kernel{n}"))),
        )?;
    }
    mounted.unmount_quietly()?;
    let mount = Mount::new(volume.images(), volume.dir(), "ro")?;
    for (n, tree) in trees.iter().enumerate() {
        let original = original(tree)?;
        let seen = snapshot(&mount.path().join(format!("kernel{n}")))?;
        compare(
            &original,
            &seen,
            &format!("{copier} {} by the kernel, read by Cowshed", tree.display()),
        )?;
    }
    mount.unmount()
}
