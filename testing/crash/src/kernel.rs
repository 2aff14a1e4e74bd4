//! Linux judges a crash image: btrfs check, and a mount whose files are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use btrfs_format::Superblock;
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use cowshed_device::{BlockDevice as _, MemDevice};
use cowshed_harness::{KernelVolume, progs, run_raw};
use cowshed_vfs::{FileKind, Timestamp};

use crate::power::Judged;
use crate::tree::{self, Node, Tree};

/// Writes the image out and lets the kernel look at it. Needs root. False where the kernel cannot be asked.
///
/// The kernel tells volumes apart by their uuid: no other one that is attached meanwhile may have it ([`crate::rig::uuid_of`]).
pub fn judge(judged: &Judged) -> Result<bool> {
    let devices: Vec<MemDevice> = judged.devices.iter().map(|device| device.snapshot()).collect();
    let volume = KernelVolume::from_memory(&devices)?;
    let heads: Vec<Option<Superblock>> = devices.iter().map(head).collect::<Result<_>>()?;
    if heads.contains(&None) {
        // The kernel looks at the first copy alone. A torn one is for the user to mend, device by device.
        let [image] = volume.images() else { return Ok(false) };
        // Its exit code tells of what it found; that all is well now, the mount tells.
        let image = image.as_os_str();
        run_raw(
            "btrfs",
            &["rescue".as_ref(), "super-recover".as_ref(), "-y".as_ref(), image],
        )?;
    }
    if !judged.has_log {
        check_volume(&volume)?;
    }
    let mounted = volume.mount_with("noatime")?;
    let found = collect_mount(mounted.dir())?;
    mounted.unmount()?;
    if judged.has_log {
        check_volume(&volume).context("after the kernel's replay")?;
    }
    // Of two devices one may have the superblock of a log that nobody was told of. Which one the kernel believes is its choice.
    let log_roots = heads.iter().flatten().map(|head| head.log_root.get());
    let is_open = log_roots.collect::<BTreeSet<_>>().len() > 1;
    let differences = tree::differences(
        &comparable(&judged.found, devices.len()),
        &comparable(&found, devices.len()),
    );
    ensure!(
        is_open || differences.is_empty(),
        "the kernel sees something else:\n{differences}"
    );
    Ok(!is_open)
}

/// The first copy of the superblock, if it is whole.
fn head(device: &MemDevice) -> Result<Option<Superblock>> {
    let [first, ..] = SUPERBLOCK_OFFSETS;
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(first, &mut bytes)?;
    Ok(Superblock::verify(&bytes, Some(first)).ok())
}

/// As [`check_clean`].
fn check_volume(volume: &KernelVolume) -> Result<()> {
    match volume.images() {
        [image] => check_clean(image),
        _ => volume.with_devices(check_clean),
    }
}

/// The bits of an inode number that the inode has for itself: our mounts put the subvolume above them, the kernel has device
/// numbers for that.
const INO_BITS: u32 = 40;

/// What both show alike. When a replay changed a directory is nobody's promise. Of data that is written in place the power may
/// fail between one device and the other, and without checksums nobody knows which copy is the newer one: the kernel reads
/// either.
fn comparable(tree: &Tree, devices: usize) -> Tree {
    let mut tree = if devices > 1 {
        tree::committed_part(tree)
    } else {
        tree.clone()
    };
    for node in tree.values_mut() {
        node.ino &= (1 << INO_BITS) - 1;
        if node.kind == FileKind::Directory {
            node.mtime = Timestamp::default();
        }
    }
    tree
}

/// `btrfs check --check-data-csum` finds nothing.
pub fn check_clean(image: &Path) -> Result<()> {
    let options = progs::CheckOptions {
        data_csum: true,
        ..progs::CheckOptions::default()
    };
    let report = progs::check(image, options)?;
    ensure!(report.clean, "btrfs check complains:\n{}", report.output);
    Ok(())
}

/// All names of a mounted file system, read through the kernel.
pub fn collect_mount(dir: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    collect(dir, "", &mut tree).context("reading through the kernel")?;
    Ok(tree)
}

fn collect(path: &Path, name: &str, tree: &mut Tree) -> Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    let kind = FileKind::from_mode(meta.mode()).context("a kind of file that does not exist")?;
    let content = match kind {
        FileKind::Regular => std::fs::read(path)?,
        FileKind::Symlink => std::fs::read_link(path)?.as_os_str().as_bytes().to_vec(),
        _ => Vec::new(),
    };
    tree.insert(
        name.to_owned(),
        Node {
            ino: meta.ino(),
            kind,
            perm: meta.mode() & 0o7777,
            nlink: meta.nlink() as u32,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())),
            size_bytes: meta.size(),
            mtime: Timestamp::new(meta.mtime(), meta.mtime_nsec() as u32),
            in_place: kind == FileKind::Regular && is_in_place(path)?,
            content: Arc::new(content),
            xattrs: xattrs(path)?,
        },
    );
    if kind != FileKind::Directory {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let below = entry.file_name().to_string_lossy().into_owned();
        let below = if name.is_empty() {
            below
        } else {
            format!("{name}/{below}")
        };
        collect(&entry.path(), &below, tree)?;
    }
    Ok(())
}

fn is_in_place(path: &Path) -> Result<bool> {
    let flags = rustix::fs::ioctl_getflags(std::fs::File::open(path)?)?;
    Ok(flags.contains(rustix::fs::IFlags::NOCOW))
}

fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = vec![0_u8; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut list[..])?;
    let mut out = BTreeMap::new();
    for name in list[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 64 << 10];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        out.insert(name.to_vec(), value[..len].to_vec());
    }
    Ok(out)
}
