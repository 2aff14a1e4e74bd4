//! Opening: superblocks, the system chunks in them, the chunk tree, and missing devices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use btrfs_format::features::super_flags;
use btrfs_format::items::DevItem;
use btrfs_format::superblock::RootBackup;
use btrfs_format::{
    Access, DevId, Generation, Key, KeyType, LogicalAddr, ObjectId, Superblock, TreeBlock, TreeId, view,
};
use cowshed_device::BlockDevice;
use cowshed_runtime::lock::RwLock;

use super::BlockPtr;
use super::chunk::{Chunk, ChunkMap};
use super::member::Member;
use super::roots::RootSearch;
use super::superblocks::{self, Found};
use super::{Geometry, OpenOptions, Volume};
use crate::error::{Error, Result};
use crate::rank::LockRank;

/// Roots that a search found are tried until one leads to files, but no more than these: the newest
/// ones have the most of their blocks left.
const ROOTS_TRIED_MAX: usize = 256;

/// What the chunk tree says.
#[derive(Debug, Default)]
struct ChunkTree {
    chunks: ChunkMap,
    devices: BTreeMap<DevId, DevItem>,
}

fn bad(what: String) -> Error {
    Error::CorruptTree {
        tree: TreeId::CHUNK,
        what,
    }
}

/// See [`Volume::open`].
pub(super) fn open(devices: Vec<Arc<dyn BlockDevice>>, options: &OpenOptions) -> Result<Volume> {
    let found = superblocks::read_all(devices)?;
    let mut superblock = found[0].superblock;
    check_access(superblock, options)?;
    if let Some(f) = found.iter().find(|f| f.overwritten && !options.read_only) {
        return Err(Error::Refused {
            what: format!("{}: the first superblock is gone: only read-only", f.device.name()),
        });
    }
    let of_the_past = options.rescue.tree_root.or(options.rescue.top_level_root);
    if let Some(root) = of_the_past.filter(|_| !options.read_only) {
        return Err(Error::Refused {
            what: format!("the root at {root} is one of the past: it is used only read-only"),
        });
    }
    if options.rescue.top_level_root.is_some() {
        if options.rescue.tree_root.is_none() {
            tracing::warn!("checksums of data are those of the newest root: files may have later contents");
        }
        // What the log says is of the newest root.
        superblock.log_root = 0.into();
    }
    if let Some(root) = options.rescue.tree_root {
        return open_by_root(&found, superblock, root, options);
    }
    let first = open_at(&found, superblock, options);
    let is_salvaging = options.rescue.salvage && options.read_only;
    if !(options.rescue.use_backup_root || is_salvaging) {
        return first;
    }
    let (first_error, mut searched) = match first {
        Ok(volume) => match check_root(&volume) {
            Ok(()) => return Ok(volume),
            Err(error) => (error, Some(volume)),
        },
        Err(error) if is_salvaging && is_of_chunk_tree(&error) => {
            match open_without_chunk_tree(&found, superblock, options, error) {
                Ok(volume) => return Ok(volume),
                Err(error) => (error, None),
            }
        }
        Err(error) => (error, None),
    };
    if !options.read_only {
        return Err(Error::Refused {
            what: format!("{first_error}; older roots are used only read-only"),
        });
    }
    let mut backups = superblock.super_roots;
    backups.sort_by_key(|b| std::cmp::Reverse(b.tree_root_gen.get()));
    for backup in backups.iter().filter(|b| b.tree_root.get() != 0) {
        let generation = backup.tree_root_gen.get();
        use_backup(&mut superblock, backup);
        let opened = open_at(&found, superblock, options).and_then(|mut volume| {
            volume.is_of_the_past = true;
            match check_root(&volume) {
                Ok(()) => Ok(volume),
                Err(error) => {
                    searched.get_or_insert(volume);
                    Err(error)
                }
            }
        });
        match opened {
            Ok(volume) => {
                tracing::warn!(generation, "opened at an older root");
                return Ok(volume);
            }
            Err(error) => tracing::warn!(generation, %error, "the older root does not open either"),
        }
    }
    match searched.filter(|_| is_salvaging) {
        Some(volume) => open_by_search(volume, found[0].superblock.generation.into(), first_error),
        None => Err(first_error),
    }
}

/// Can the volume be read by its root? Where damaged blocks are salvaged, something is read of
/// almost each: there it has to lead to files.
fn check_root(volume: &Volume) -> Result<()> {
    if volume.is_salvaging() {
        return volume.check_leads_to_files();
    }
    let superblock = volume.superblock();
    let ptr = BlockPtr {
        addr: superblock.root.into(),
        generation: superblock.generation.into(),
        level: superblock.root_level,
        first_key: None,
    };
    volume.read_block(&ptr, TreeId::ROOT).map(drop)
}

/// Opens by a root of the root tree that the caller names.
fn open_by_root(
    found: &[Found],
    mut superblock: Superblock,
    root: LogicalAddr,
    options: &OpenOptions,
) -> Result<Volume> {
    // A log that a crash left belongs to the newest root, and there is none here.
    superblock.log_root = 0.into();
    let mut volume = match open_at(found, superblock, options) {
        Err(error) if options.rescue.salvage && is_of_chunk_tree(&error) => {
            return open_without_chunk_tree(found, superblock, options, error);
        }
        opened => opened?,
    };
    let ptr = volume.block_at(root, TreeId::ROOT)?;
    let is_current = (superblock.root.get(), superblock.generation.get()) == (root.get(), ptr.generation.get());
    if !is_current {
        volume.use_root(&ptr);
    }
    check_root(&volume)?;
    Ok(volume)
}

/// Is it the chunk tree that cannot be read? Else it is a device that is missing or is another one.
fn is_of_chunk_tree(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt(_) | Error::CorruptTree { .. } | Error::BlockUnreadable { .. } | Error::Unmapped { .. }
    )
}

/// Opens where the chunk tree cannot be read as a whole, by what is left of its leaves.
fn open_without_chunk_tree(
    found: &[Found],
    superblock: Superblock,
    options: &OpenOptions,
    first_error: Error,
) -> Result<Volume> {
    tracing::warn!(error = %first_error, "the chunk tree cannot be read: searching for its leaves");
    let mut volume = with_system_chunks(found, superblock, options)?;
    let items = volume.find_chunks();
    if items.is_empty() {
        return Err(first_error);
    }
    volume.is_of_the_past = true;
    volume.chunk_tree_uuid = items.tree_uuid();
    volume.members = match_members(&volume, items.devices(), options)?;
    let map = items.into_map(|chunk| check_stripes_of(&volume, chunk, false).is_ok());
    let chunks = map.iter().count();
    tracing::warn!(chunks, "chunks are taken from leaves of the chunk tree that were found");
    volume.chunks = RwLock::new(LockRank::ChunkMap, Arc::new(map));
    match options.rescue.tree_root {
        Some(root) => {
            let ptr = volume.block_at(root, TreeId::ROOT)?;
            volume.use_root(&ptr);
            check_root(&volume).map(|()| volume)
        }
        None => match check_root(&volume) {
            Ok(()) => Ok(volume),
            Err(error) => open_by_search(volume, superblock.generation.into(), error),
        },
    }
}

/// Opens by the newest root that a search finds and that leads to files. Those of the superblock's
/// generation `last` and before come first: later ones were not committed, or are of an earlier
/// file system with the same uuid. Without a root, the error is that of the superblock's own.
fn open_by_search(mut volume: Volume, last: Generation, first_error: Error) -> Result<Volume> {
    tracing::warn!(error = %first_error, "no root that the superblock names leads to files: searching for others");
    let mut candidates = volume.find_roots(&RootSearch::of(TreeId::ROOT), &mut |_, _| {});
    candidates.sort_by_key(|candidate| candidate.generation > last);
    for candidate in candidates.into_iter().take(ROOTS_TRIED_MAX) {
        let (address, generation) = (candidate.addr.get(), candidate.generation.get());
        volume.use_root(&BlockPtr {
            addr: candidate.addr,
            generation: candidate.generation,
            level: candidate.level,
            first_key: None,
        });
        match volume.check_leads_to_files() {
            Ok(()) => {
                tracing::warn!(address, generation, "opened by the newest root that was found");
                return Ok(volume);
            }
            Err(error) => tracing::info!(address, generation, %error, "a root that was found is of no use"),
        }
    }
    Err(first_error)
}

/// Refuses by name what we cannot handle.
fn check_access(mut superblock: Superblock, options: &OpenOptions) -> Result<()> {
    if options.read_only && options.rescue.ignore_super_flags {
        superblock.flags = super_flags::WRITTEN.into();
    }
    match superblock.access() {
        Access::ReadWrite => Ok(()),
        Access::ReadOnly { .. } if options.read_only => Ok(()),
        Access::ReadOnly { why } => Err(Error::Unsupported {
            feature: format!("{} (reading works: open read-only)", why.name),
        }),
        Access::Refused { why } => Err(Error::Unsupported { feature: why.name }),
    }
}

fn use_backup(superblock: &mut Superblock, backup: &RootBackup) {
    superblock.root = backup.tree_root;
    superblock.root_level = backup.tree_root_level;
    superblock.generation = backup.tree_root_gen;
    superblock.chunk_root = backup.chunk_root;
    superblock.chunk_root_level = backup.chunk_root_level;
    superblock.chunk_root_generation = backup.chunk_root_gen;
    // The log belongs to the newest root alone.
    superblock.log_root = 0.into();
    superblock.log_root_level = 0;
}

/// Opens with this superblock: everything below it must fit.
fn open_at(found: &[Found], superblock: Superblock, options: &OpenOptions) -> Result<Volume> {
    let mut volume = with_system_chunks(found, superblock, options)?;
    let tree = walk_chunk_tree(&mut volume, &superblock)?;
    volume.members = match_members(&volume, tree.devices, options)?;
    let may_end_early = options.read_only && options.rescue.ignore_bad_roots;
    for chunk in tree.chunks.iter() {
        check_stripes_of(&volume, chunk, may_end_early)?;
    }
    volume.chunks = RwLock::new(LockRank::ChunkMap, Arc::new(tree.chunks));
    volume.read_only = decide_read_only(&volume, options)?;
    Ok(volume)
}

/// A volume that knows no chunks but those that the superblock has itself.
fn with_system_chunks(found: &[Found], superblock: Superblock, options: &OpenOptions) -> Result<Volume> {
    let geometry = Geometry {
        nodesize_bytes: superblock.nodesize.get(),
        sectorsize_bytes: superblock.sectorsize.get(),
        csum_type: found[0].csum_type,
        metadata_fsid: superblock.metadata_fsid(),
    };
    let members = found
        .iter()
        .map(|f| {
            let member = Member::new(f.superblock.dev_item, Some(f.device.clone()), Some(f.superblock));
            let is_behind = f.superblock.generation.get() < found[0].superblock.generation.get();
            member.suspect.store(is_behind, Ordering::Relaxed);
            Arc::new(member)
        })
        .collect();
    let system = system_chunks(&superblock, geometry.sectorsize_bytes)?;
    let mut volume = Volume {
        geometry,
        members,
        chunks: RwLock::new(LockRank::ChunkMap, Arc::new(system)),
        superblock: RwLock::new(LockRank::Superblock, superblock),
        chunk_tree_uuid: [0; 16],
        // No repairs before all is known.
        read_only: true,
        options: *options,
        is_of_the_past: options.rescue.top_level_root.is_some(),
        repairs: RwLock::new(LockRank::Repairs, ()),
        new_features: AtomicU64::new(0),
        failed: AtomicBool::new(false),
    };
    volume.sort_members();
    Ok(volume)
}

fn system_chunks(superblock: &Superblock, sectorsize_bytes: u32) -> Result<ChunkMap> {
    let used = superblock.sys_chunk_array_size.get() as usize;
    let array = superblock.sys_chunk_array.get(..used).unwrap_or_default();
    let mut map = ChunkMap::default();
    for (key, head, stripes) in view::system_chunks(array) {
        if key.ty != KeyType::CHUNK_ITEM {
            return Err(bad(format!("the system chunk array holds {key}")));
        }
        map.insert(Chunk::from_item(
            LogicalAddr(key.offset),
            head,
            stripes,
            sectorsize_bytes,
        )?)?;
    }
    if map.is_empty() {
        return Err(Error::Superblock {
            what: "the system chunk array is empty".into(),
        });
    }
    Ok(map)
}

/// Reads the whole chunk tree. Each level is lower than the one above, and the keys of a block stay
/// between those of its parent's pointers, so no block can be met twice on a level: the walk ends.
fn walk_chunk_tree(volume: &mut Volume, superblock: &Superblock) -> Result<ChunkTree> {
    let root = BlockPtr {
        addr: superblock.chunk_root.into(),
        generation: superblock.chunk_root_generation.into(),
        level: superblock.chunk_root_level,
        first_key: None,
    };
    let mut tree = ChunkTree::default();
    let mut todo: Vec<(BlockPtr, Option<Key>)> = vec![(root, None)];
    while let Some((ptr, limit)) = todo.pop() {
        // Where damaged blocks are salvaged, older leaves may have what is lost of these.
        let block = volume.read_sound_block(&ptr, TreeId::CHUNK)?;
        if let (Some(limit), Some(last)) = (limit, block.len().checked_sub(1))
            && block.key(last) >= limit
        {
            return Err(bad(format!("block {}: last key is not below {limit}", ptr.addr)));
        }
        if ptr.addr == root.addr {
            volume.chunk_tree_uuid = block.header().chunk_tree_uuid;
        }
        if block.is_leaf() {
            read_leaf(&mut tree, &block, volume.geometry.sectorsize_bytes)?;
            continue;
        }
        for slot in (0..block.len()).rev() {
            let (addr, generation) = block.child(slot);
            let child = BlockPtr {
                addr,
                generation,
                level: block.level() - 1,
                first_key: Some(block.key(slot)),
            };
            let next = if slot + 1 < block.len() {
                Some(block.key(slot + 1))
            } else {
                limit
            };
            todo.push((child, next));
        }
    }
    Ok(tree)
}

fn read_leaf(tree: &mut ChunkTree, leaf: &TreeBlock, sectorsize_bytes: u32) -> Result<()> {
    for slot in 0..leaf.len() {
        let (key, data) = leaf.item(slot);
        let short = || bad(format!("{key}: item of {} bytes is too short", data.len()));
        match (key.objectid, key.ty) {
            (ObjectId::DEV_ITEMS, KeyType::DEV_ITEM) => {
                let item = view::fixed::<DevItem>(data).ok_or_else(short)?;
                if item.devid.get() != key.offset {
                    return Err(bad(format!("{key}: is of device {}", item.devid)));
                }
                tree.devices.insert(DevId(key.offset), *item);
            }
            (ObjectId::FIRST_CHUNK_TREE, KeyType::CHUNK_ITEM) => {
                let (head, stripes) = view::chunk(data).ok_or_else(short)?;
                let chunk = Chunk::from_item(LogicalAddr(key.offset), head, stripes, sectorsize_bytes)?;
                tree.chunks.insert(chunk)?;
            }
            _ => tracing::warn!(%key, "unknown item in the chunk tree"),
        }
    }
    Ok(())
}

/// The devices that the chunk tree names, each with what was found of it.
fn match_members(volume: &Volume, items: BTreeMap<DevId, DevItem>, options: &OpenOptions) -> Result<Vec<Arc<Member>>> {
    let superblock = volume.superblock();
    let mut out = Vec::new();
    for (devid, item) in items {
        if item.fsid != volume.geometry.metadata_fsid {
            return Err(Error::Unsupported {
                feature: format!("seed devices (device {devid})"),
            });
        }
        let found = volume.member(devid).filter(|m| m.uuid == item.uuid);
        let member = match found {
            Some(found) => {
                let device = found.present()?;
                if device.size_bytes() < item.total_bytes.get() {
                    let (is, should) = (device.size_bytes(), item.total_bytes.get());
                    return Err(bad(format!(
                        "{}: device of {is} bytes, should have {should}",
                        device.name()
                    )));
                }
                let member = Member::new(item, Some(device.clone()), found.superblock());
                member.suspect.store(found.is_suspect(), Ordering::Relaxed);
                member
            }
            None if options.degraded => {
                tracing::warn!(%devid, "device is missing");
                Member::new(item, None, None)
            }
            None => return Err(Error::MissingDevice { devid }),
        };
        out.push(Arc::new(member));
    }
    for given in &volume.members {
        if !out.iter().any(|m| m.devid == given.devid && m.uuid == given.uuid) {
            tracing::warn!(devid = %given.devid, "a device given is not part of the volume any more, ignored");
        }
    }
    if superblock.num_devices.get() != out.len() as u64 {
        let (claimed, found) = (superblock.num_devices.get(), out.len());
        tracing::warn!(claimed, found, "the superblock counts devices wrongly");
    }
    Ok(out)
}

/// Every stripe of a chunk lies on a device of the volume, within its size. With `may_end_early`, a
/// chunk that leaves its device is no reason not to read the others, as with the kernel's
/// `rescue=ignorebadroots`.
fn check_stripes_of(volume: &Volume, chunk: &Chunk, may_end_early: bool) -> Result<()> {
    for stripe in chunk.stripes() {
        let fail = |what: &str| {
            Err(bad(format!(
                "chunk at logical {}: {what} {}",
                chunk.logical(),
                stripe.at.dev
            )))
        };
        match volume.member(stripe.at.dev) {
            None => return fail("stripe on unknown device"),
            Some(m) if m.uuid != stripe.dev_uuid => return fail("stripe has another uuid than device"),
            Some(m) if stripe.at.offset + chunk.stripe_bytes() > m.total_bytes() => {
                if !may_end_early {
                    return fail("stripe leaves device");
                }
                let (devid, logical) = (stripe.at.dev, chunk.logical());
                tracing::warn!(%devid, %logical, "a chunk leaves its device");
            }
            Some(_) => {}
        }
    }
    Ok(())
}

fn decide_read_only(volume: &Volume, options: &OpenOptions) -> Result<bool> {
    if options.read_only {
        return Ok(true);
    }
    for member in &volume.members {
        if let Some(device) = &member.device
            && device.is_read_only()
        {
            return Err(Error::Refused {
                what: format!("{}: the device is open read-only", device.name()),
            });
        }
    }
    let missing = |dev: DevId| volume.member(dev).is_none_or(|m| m.device.is_none());
    for chunk in volume.chunks().iter() {
        if !chunk.survives(missing) {
            return Err(Error::Refused {
                what: format!(
                    "too many devices are missing for the {} chunk at logical {}: only read-only",
                    chunk.profile().name(),
                    chunk.logical()
                ),
            });
        }
    }
    Ok(false)
}
