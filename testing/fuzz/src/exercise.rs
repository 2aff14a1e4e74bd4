//! What is done with an image: everything is looked at, then something is changed.

use std::sync::Arc;

use btrfs_format::{LogicalAddr, TreeId};
use btrfs_store::volume::{OpenOptions, Rescue, RootSearch, Volume};
use cowshed_btrfs::EngineOptions;
use cowshed_btrfs::Mount;
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_device::BlockDevice;
use cowshed_device_sim::Rng;
use cowshed_runtime::FixedEnv;
use cowshed_vfs::{
    Context, Error, FallocateFlags, FileKind, FileSystem, Handle, InitInfo, NodeId, OpenFlags, OpenRequest,
    RenameFlags, SetAttr, SetXattrFlags, TreeCloneStep, Volume as _, WriteFlags,
};

use crate::image::Image;
use crate::walk::{Seen, Walk};

static ROOT: Context = Context::root();

/// How a case went that went well.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub clean: bool,
    pub opened: bool,
    pub opened_for_writing: bool,
    pub committed: bool,
    /// The checker found nothing, but this could not be read.
    pub disagreement: Option<String>,
}

/// Runs everything on an image. The error is a promise that was broken.
pub fn run(image: &Image, mut rng: Rng) -> Result<Outcome, String> {
    let mut outcome = Outcome {
        clean: check(&image.visible).is_none(),
        ..Outcome::default()
    };
    match open(&image.visible, true) {
        Ok(fs) => {
            outcome.opened = true;
            let mut walk = Walk::new(&*fs);
            walk.everything(&mut rng);
            let error = walk.error.take().or(count(&fs).err());
            outcome.disagreement = error.filter(|_| outcome.clean);
            fs.destroy();
        }
        Err(error) => outcome.disagreement = outcome.clean.then_some(error),
    }
    // What comes out does not matter: nothing panics or hangs. What follows stays as it was for
    // cases that are kept.
    let mut own_rng = rng.clone();
    if !outcome.clean
        && own_rng.one_in(2)
        && let Ok(fs) = open_with(&image.visible, true, SALVAGE)
    {
        Walk::new(&*fs).everything(&mut own_rng);
        fs.destroy();
    }
    if own_rng.one_in(3) {
        read_by_another_root(&image.visible, &mut own_rng);
    }
    let Ok(fs) = open(&image.visible, false) else {
        return Ok(outcome);
    };
    outcome.opened_for_writing = true;
    let nodes = {
        let mut walk = Walk::new(&*fs);
        if rng.one_in(2) {
            walk.everything(&mut rng);
        } else {
            walk.names(NodeId::ROOT);
        }
        walk.nodes
    };
    change(&fs, &nodes, &mut rng);
    let synced = fs.syncfs(&ROOT, NodeId::ROOT).is_ok();
    if synced && rng.one_in(3) {
        change(&fs, &nodes, &mut rng);
    }
    clone_tree(&fs, &nodes, &mut rng);
    if rng.one_in(3) {
        ignore(count(&fs));
    }
    fs.destroy();
    outcome.committed = synced && !fs.mount().store().txn().is_aborted();
    drop(fs);
    let after = check(&image.visible);
    match after {
        Some(report) if outcome.clean => Err(format!("sound before, damaged after we wrote\n{report}")),
        _ => Ok(outcome),
    }
}

/// What the checker has to say; `None`: nothing.
fn check(devices: &[Arc<dyn BlockDevice>]) -> Option<String> {
    let options = btrfs_check::CheckOptions {
        data_csums: true,
        kept_per_id_max: 5,
        ..Default::default()
    };
    let report = btrfs_check::check(devices, &options);
    let text = report.to_string();
    (!report.is_clean()).then_some(text)
}

const SALVAGE: Rescue = Rescue {
    use_backup_root: true,
    no_log_replay: false,
    ignore_bad_roots: true,
    ignore_data_csums: true,
    ignore_meta_csums: true,
    ignore_super_flags: true,
    salvage: true,
    tree_root: None,
    top_level_root: None,
};

fn open(devices: &[Arc<dyn BlockDevice>], read_only: bool) -> Result<Arc<Fs>, String> {
    open_with(devices, read_only, Rescue::default())
}

fn open_with(devices: &[Arc<dyn BlockDevice>], read_only: bool, rescue: Rescue) -> Result<Arc<Fs>, String> {
    let options = OpenOptions {
        read_only,
        rescue,
        ..OpenOptions::default()
    };
    let volume = Volume::open(devices.to_vec(), &options).map_err(|e| e.to_string())?;
    let options = EngineOptions {
        commit_interval_s: 0,
        memory_bytes_max: 64 << 20,
        ..EngineOptions::default()
    };
    let engine = Mount::open(volume, Arc::new(FixedEnv::default()), options).map_err(|e| e.to_string())?;
    let options = MountOptions {
        read_only,
        ..MountOptions::default()
    };
    let fs = Fs::new(engine, options).map_err(|e| e.to_string())?;
    fs.init(&InitInfo::TRUSTED).map_err(|e| e.to_string())?;
    Ok(Arc::new(fs))
}

/// One of them; there are some.
fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

/// Reads all by a root of an earlier commit, by a block of another tree, or by anything. What comes
/// out does not matter.
fn read_by_another_root(devices: &[Arc<dyn BlockDevice>], rng: &mut Rng) {
    let options = OpenOptions {
        read_only: true,
        rescue: SALVAGE,
        ..OpenOptions::default()
    };
    let Ok(volume) = Volume::open(devices.to_vec(), &options) else {
        return;
    };
    let tree = pick(
        rng,
        &[TreeId::ROOT, TreeId::ROOT, TreeId::FS, TreeId::EXTENT, TreeId::CHUNK],
    );
    let found = volume.find_roots(&RootSearch::of(tree), &mut |_, _| {});
    let sector_bytes = u64::from(volume.sectorsize_bytes());
    let anywhere = LogicalAddr(rng.below(1 << 28) / sector_bytes * sector_bytes);
    let addr = match found.is_empty() || rng.one_in(8) {
        true => anywhere,
        false => pick(rng, &found).addr,
    };
    let mut rescue = if rng.one_in(4) { Rescue::default() } else { SALVAGE };
    match tree {
        TreeId::FS => rescue.top_level_root = Some(addr),
        _ => rescue.tree_root = Some(addr),
    }
    if let Ok(fs) = open_with(devices, true, rescue) {
        Walk::new(&*fs).everything(rng);
        ignore(count(&fs));
        fs.destroy();
    }
}

/// Counts what the subvolumes use. The error is a fault of the volume.
fn count(fs: &Fs) -> Result<(), String> {
    let all = || {
        let mut walk = fs.subvolumes()?.usage(&ROOT)?;
        while walk.step()?.is_none() {}
        Ok(())
    };
    match all() {
        Err(error @ (Error::Io | Error::Corrupt)) => Err(format!("what subvolumes use: {error}")),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Clones a tree, which may be damaged.
fn clone_tree(fs: &Arc<Fs>, nodes: &[Seen], rng: &mut Rng) {
    /// A step makes a name at least, or goes on to the next directory.
    const STEPS_MAX: usize = 20_000;
    let dirs = nodes.iter().filter(|n| n.kind == FileKind::Directory);
    let mut dirs: Vec<_> = dirs.map(|n| n.node).collect();
    if dirs.is_empty() {
        // Its own copy would be below it; a file is a tree, too.
        dirs.extend(nodes.iter().map(|n| n.node));
    }
    if dirs.is_empty() {
        return;
    }
    let source = dirs[rng.index(dirs.len())];
    let Ok(mut walk) = fs.clone().clone_tree(&ROOT, source, NodeId::ROOT, b"clone of a tree") else {
        return;
    };
    for _ in 0..STEPS_MAX {
        match walk.step(&ROOT) {
            Ok(TreeCloneStep::Done) | Err(_) => return,
            Ok(TreeCloneStep::More | TreeCloneStep::Without(_)) => {}
        }
    }
}

/// Some changes; whether they work does not matter.
fn change(fs: &Fs, nodes: &[Seen], rng: &mut Rng) {
    let dirs: Vec<NodeId> = std::iter::once(NodeId::ROOT)
        .chain(nodes.iter().filter(|n| n.kind == FileKind::Directory).map(|n| n.node))
        .collect();
    let rounds = 4 + rng.below(24);
    for round in 0..rounds {
        let dir = dirs[rng.index(dirs.len())];
        let name = format!("new-{round}-{}", rng.below(10)).into_bytes();
        if nodes.is_empty() || rng.one_in(3) {
            make(fs, dir, &name, rng);
        } else {
            let target = &nodes[rng.index(nodes.len())];
            alter(fs, target, dir, &name, nodes, rng);
        }
        if rng.one_in(12) {
            let _ = fs.syncfs(&ROOT, NodeId::ROOT);
        }
    }
}

fn make(fs: &Fs, dir: NodeId, name: &[u8], rng: &mut Rng) {
    match rng.below(4) {
        0 => ignore(fs.mkdir(&ROOT, dir, name, 0o755)),
        1 => ignore(fs.symlink(&ROOT, dir, name, b"elsewhere")),
        _ => {
            let request = OpenRequest {
                flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
                kill_suidgid: false,
            };
            if let Ok((entry, opened)) = fs.create(&ROOT, dir, name, 0o644, &request) {
                write(fs, entry.node, rng);
                fs.release(entry.node, opened.handle);
            }
        }
    }
}

fn write(fs: &Fs, node: NodeId, rng: &mut Rng) {
    let size = fs.getattr(&ROOT, node, None).map_or(0, |a| a.size_bytes);
    let at = match rng.below(5) {
        0 => size,
        1 => rng.below(1 << 20),
        2 => rng.below(size.saturating_add(1).max(1)),
        3 => 4096 * rng.below(64),
        _ => 0,
    };
    let data = vec![rng.next_u64() as u8; 1 << rng.below(18)];
    let _ = fs.write(&ROOT, node, Handle::NONE, at, &data, WriteFlags::empty());
}

fn alter(fs: &Fs, target: &Seen, dir: NodeId, name: &[u8], all: &[Seen], rng: &mut Rng) {
    let (node, other) = (target.node, &all[rng.index(all.len())]);
    match rng.below(16) {
        0..3 => write(fs, node, rng),
        3 => ignore(fs.unlink(&ROOT, target.parent, &target.name)),
        4 => ignore(fs.rmdir(&ROOT, target.parent, &target.name)),
        5 => ignore(fs.rename(&ROOT, target.parent, &target.name, dir, name, RenameFlags::empty())),
        6 => {
            let flags = if rng.one_in(3) {
                RenameFlags::EXCHANGE
            } else {
                RenameFlags::empty()
            };
            ignore(fs.rename(&ROOT, target.parent, &target.name, other.parent, &other.name, flags));
        }
        7 => ignore(fs.link(&ROOT, node, dir, name)),
        8 | 9 => {
            let size = match rng.below(4) {
                0 => 0,
                1 => rng.below(5000),
                _ => rng.below(1 << 20),
            };
            let set = SetAttr {
                size_bytes: Some(size),
                ..SetAttr::default()
            };
            ignore(fs.setattr(&ROOT, node, None, &set));
        }
        10 => {
            let set = SetAttr {
                perm: Some(0o600),
                uid: Some(rng.below(1 << 16) as u32),
                ..SetAttr::default()
            };
            ignore(fs.setattr(&ROOT, node, None, &set));
        }
        11 => {
            let value = vec![7; rng.index(3000)];
            ignore(fs.setxattr(&ROOT, node, b"user.fuzz", &value, SetXattrFlags::empty()));
        }
        12 => ignore(fs.removexattr(&ROOT, node, b"user.fuzz")),
        13 => {
            let (at, len) = (rng.below(1 << 18), 1 + rng.below(1 << 17));
            let flags = [
                FallocateFlags::empty(),
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                FallocateFlags::ZERO_RANGE,
            ];
            ignore(fs.fallocate(&ROOT, node, Handle::NONE, at, len, flags[rng.index(flags.len())]));
        }
        14 => {
            let source = (node, Handle::NONE, 4096 * rng.below(8));
            let target = (other.node, Handle::NONE, 4096 * rng.below(8));
            ignore(fs.copy_file_range(&ROOT, source, target, 4096 * (1 + rng.below(32))));
        }
        _ => ignore(fs.flags(node)),
    }
}

/// Errors are the right answer to damage.
fn ignore<T, E>(_: Result<T, E>) {}
