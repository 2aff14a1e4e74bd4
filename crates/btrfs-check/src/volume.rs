//! Devices, superblocks and reading by logical address: the checker's own, sharing nothing with the
//! engine's.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use btrfs_format::features::{compat_ro, flag_names, incompat, super_flags};
use btrfs_format::items::DevItem;
use btrfs_format::superblock::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, SYSTEM_CHUNK_ARRAY_BYTES};
use btrfs_format::{ChecksumType, Superblock, Uuid};
use cowshed_device::BlockDevice;
use zerocopy::{FromBytes, IntoBytes};

use crate::chunks::ChunkMap;
use crate::finding::{FindingId as Id, Sink, Site};
use crate::util::{count, index, is_aligned};

/// The volume's geometry, devices and chunk map.
pub(crate) struct Volume {
    pub(crate) sb: Superblock,
    pub(crate) csum: ChecksumType,
    pub(crate) metadata_fsid: Uuid,
    pub(crate) nodesize: u64,
    pub(crate) sectorsize: u64,
    pub(crate) devices: BTreeMap<u64, Arc<dyn BlockDevice>>,
    pub(crate) dev_items: BTreeMap<u64, DevItem>,
    pub(crate) chunks: ChunkMap,
}

/// Why bytes could not be read.
pub(crate) enum ReadFault {
    Unmapped,
    /// The device is absent; said once for all its blocks.
    Missing,
    Failed {
        message: String,
    },
}

const KNOWN_INCOMPAT: u64 = incompat::MIXED_BACKREF
    | incompat::DEFAULT_SUBVOL
    | incompat::MIXED_GROUPS
    | incompat::COMPRESS_LZO
    | incompat::COMPRESS_ZSTD
    | incompat::BIG_METADATA
    | incompat::EXTENDED_IREF
    | incompat::RAID56
    | incompat::SKINNY_METADATA
    | incompat::NO_HOLES
    | incompat::METADATA_UUID
    | incompat::RAID1C34
    | incompat::SIMPLE_QUOTA;
const KNOWN_COMPAT_RO: u64 =
    compat_ro::FREE_SPACE_TREE | compat_ro::FREE_SPACE_TREE_VALID | compat_ro::VERITY | compat_ro::BLOCK_GROUP_TREE;

/// Others are unknown, or of a conversion that was interrupted: such a volume is not mounted.
const KNOWN_FLAGS: u64 = super_flags::WRITTEN
    | super_flags::RELOC
    | super_flags::ERROR
    | super_flags::SEEDING
    | super_flags::METADUMP
    | super_flags::METADUMP_V2;

/// Reads and judges one copy of a superblock. `Err` says what is wrong; `None` where there is none
/// at all.
fn load_superblock(device: &dyn BlockDevice, offset: u64) -> Result<Option<Superblock>, String> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(offset, &mut bytes).map_err(|e| e.to_string())?;
    let Ok(sb) = Superblock::read_from_bytes(&bytes) else {
        return Err("too short".into());
    };
    if sb.magic != MAGIC {
        return Ok(None);
    }
    let Some(ty) = ChecksumType::from_raw(sb.csum_type.get()) else {
        return Err(format!("checksum type {} is unknown", sb.csum_type));
    };
    let used = ty.size_bytes();
    if sb.compute_csum(ty).get(..used) != sb.csum.get(..used) {
        return Err("bad checksum".into());
    }
    if sb.bytenr.get() != offset {
        return Err(format!("says that it lies at {}", sb.bytenr));
    }
    Ok(Some(sb))
}

/// Two copies that agree in all but their own place and checksum.
fn same_contents(a: &Superblock, b: &Superblock) -> bool {
    let neutral = |sb: &Superblock| {
        let mut sb = *sb;
        sb.csum = [0; 32];
        sb.bytenr = 0.into();
        // A fsync writes the first copy alone.
        sb.log_root = 0.into();
        sb.log_root_level = 0;
        sb
    };
    neutral(a).as_bytes() == neutral(b).as_bytes()
}

fn is_metadata_dump(sb: &Superblock) -> bool {
    sb.flags.get() & (super_flags::METADUMP | super_flags::METADUMP_V2) != 0
}

/// Where a copy lies, and what was read there.
type FoundCopy = (u64, Result<Option<Superblock>, String>);

/// Why none of the copies of a device's superblock can be used.
fn why_unreadable(copies: &[FoundCopy], device_bytes: u64) -> String {
    if copies.is_empty() {
        return format!("its {device_bytes} bytes have no room for a superblock");
    }
    let why = copies.iter().map(|(offset, copy)| match copy {
        Err(what) => format!("at {offset}: {what}"),
        Ok(_) => format!("at {offset}: no btrfs superblock"),
    });
    why.collect::<Vec<_>>().join("; ")
}

/// The superblock that counts on a device; its other copies are compared with it.
///
/// That is the first copy, unless it is damaged. A newer mirror is left of a commit that a crash
/// cut short: Linux goes on from the first copy, and writes where the blocks of that commit lie.
fn best_superblock(sink: &mut Sink, device: &dyn BlockDevice) -> Option<Superblock> {
    let fits = |offset: u64| {
        offset
            .checked_add(count(SUPERBLOCK_BYTES))
            .is_some_and(|end| end <= device.size_bytes())
    };
    let copies: Vec<FoundCopy> = SUPERBLOCK_OFFSETS
        .iter()
        .filter(|&&offset| fits(offset))
        .map(|&offset| (offset, load_superblock(device, offset)))
        .collect();
    let good = |(_, copy): &FoundCopy| copy.as_ref().ok().copied().flatten();
    let first = copies
        .first()
        .filter(|(offset, _)| *offset == SUPERBLOCK_OFFSETS[0])
        .and_then(good);
    let newest_mirror = || copies.iter().filter_map(good).max_by_key(|sb| sb.generation.get());
    let best = first.or_else(newest_mirror);
    let name = device.name();
    let Some(best) = best else {
        let what = format!("{name}: {}", why_unreadable(&copies, device.size_bytes()));
        sink.add(Id::SuperUnreadable, Site::default(), what);
        return None;
    };
    for (offset, copy) in &copies {
        // Copies are written only as far as the file system reaches, which may be less than the
        // device.
        let end = offset.saturating_add(count(SUPERBLOCK_BYTES));
        let covered = *offset == SUPERBLOCK_OFFSETS[0] || end < best.dev_item.total_bytes.get();
        // Each transaction has a root tree of its own. One may have been committed twice: after the
        // first time the power failed before the first copy was written.
        let neighbour = match copy {
            Ok(Some(sb)) if sb.fsid == best.fsid && sb.root != best.root => {
                let (own, newest) = (sb.generation.get(), best.generation.get());
                match own.checked_sub(newest) {
                    Some(0) => Some("of another commit"),
                    Some(1) => Some("one transaction ahead"),
                    _ if own.saturating_add(1) == newest => Some("one transaction behind"),
                    _ => None,
                }
            }
            _ => None,
        };
        if let Some(which) = neighbour {
            let site = Site::device(best.dev_item.devid.get(), *offset);
            sink.add(Id::SuperMirrorStale, site, format!("{name}: {which}, as after a crash"));
            continue;
        }
        let what = match copy {
            Err(what) => what.clone(),
            Ok(None) => {
                // Without the first one Linux knows no volume. It is the only one that btrfs-image
                // restores.
                let is_first = *offset == SUPERBLOCK_OFFSETS[0];
                if is_first || covered && !is_metadata_dump(&best) {
                    let id = if is_first {
                        Id::SuperMirror
                    } else {
                        Id::SuperMirrorMissing
                    };
                    let site = Site::device(best.dev_item.devid.get(), *offset);
                    sink.add(id, site, format!("{name}: no btrfs superblock"));
                }
                continue;
            }
            Ok(Some(sb)) if sb.generation != best.generation => {
                format!("generation {}, the best copy has {}", sb.generation, best.generation)
            }
            Ok(Some(sb)) if !same_contents(sb, &best) => "differs from the best copy".into(),
            Ok(Some(_)) => continue,
        };
        if covered {
            let site = Site::device(best.dev_item.devid.get(), *offset);
            sink.add(Id::SuperMirror, site, format!("{name}: {what}"));
        }
    }
    Some(best)
}

/// Refuses what makes reading impossible, and reports what merely is wrong. True when the volume
/// can be read.
fn check_fields(sink: &mut Sink, sb: &Superblock) -> bool {
    let (nodesize, sectorsize) = (u64::from(sb.nodesize.get()), u64::from(sb.sectorsize.get()));
    let mut usable = true;
    let mut bad = |what: String, fatal: bool| {
        sink.add(Id::SuperField, Site::default(), what);
        usable &= !fatal;
    };
    let in_range = |v: u64, min: u64| v.is_power_of_two() && v >= min && v <= 65536;
    if !in_range(sectorsize, 4096) {
        bad(format!("sectorsize {sectorsize}"), true);
    }
    if !in_range(nodesize, sectorsize.max(4096)) {
        bad(format!("nodesize {nodesize}"), true);
    }
    for (name, level) in [
        ("root_level", sb.root_level),
        ("chunk_root_level", sb.chunk_root_level),
        ("log_root_level", sb.log_root_level),
    ] {
        if level > btrfs_format::block::LEVEL_MAX {
            bad(format!("{name} {level}"), true);
        }
    }
    for (name, addr) in [
        ("root", sb.root),
        ("chunk_root", sb.chunk_root),
        ("log_root", sb.log_root),
    ] {
        if !is_aligned(addr.get(), sectorsize) || (addr.get() == 0 && name != "log_root") {
            bad(format!("{name} at {addr}"), false);
        }
    }
    if index(sb.sys_chunk_array_size.get().into()) > SYSTEM_CHUNK_ARRAY_BYTES {
        bad(format!("sys_chunk_array_size {}", sb.sys_chunk_array_size), true);
    }
    if sb.num_devices.get() == 0 {
        bad("num_devices 0".into(), false);
    }
    for (name, generation) in [
        ("chunk_root_generation", sb.chunk_root_generation),
        ("uuid_tree_generation", sb.uuid_tree_generation),
    ] {
        if generation.get() > sb.generation.get() {
            bad(format!("{name} {generation} is in the future"), false);
        }
    }
    if sb.root_dir_objectid.get() != btrfs_format::ObjectId::ROOT_TREE_DIR.get() {
        bad(format!("root_dir_objectid {}", sb.root_dir_objectid), false);
    }
    if !sb.label.contains(&0) {
        bad("label without end".into(), false);
    }
    let refused = sb.flags.get() & !KNOWN_FLAGS;
    if refused != 0 {
        let names = flag_names(refused, super_flags::NAMES).join(", ");
        bad(format!("flags that no volume in use has: {names}"), false);
    }
    let fsid = if sb.incompat_flags.get() & incompat::METADATA_UUID != 0 {
        sb.metadata_uuid
    } else {
        sb.fsid
    };
    if sb.dev_item.fsid != fsid && sb.dev_item.fsid != sb.fsid {
        bad("the device item carries another volume's id".into(), false);
    }
    let known = sink.report.counts.len();
    usable &= check_features(sink, sb);
    // The format's own verifier may know more.
    if usable
        && sink.report.counts.len() == known
        && let Err(error) = Superblock::verify(sb.as_bytes(), None)
        && !sink.report.has(Id::SuperField)
    {
        sink.add(Id::SuperField, Site::default(), error.to_string());
    }
    usable
}

fn check_features(sink: &mut Sink, sb: &Superblock) -> bool {
    let unknown = sb.incompat_flags.get() & !KNOWN_INCOMPAT;
    if unknown != 0 {
        let names = flag_names(unknown, incompat::NAMES).join(", ");
        sink.add(Id::UnsupportedFeature, Site::default(), format!("incompat: {names}"));
    }
    let unknown_ro = sb.compat_ro_flags.get() & !KNOWN_COMPAT_RO;
    if unknown_ro != 0 {
        let names = flag_names(unknown_ro, compat_ro::NAMES).join(", ");
        sink.add(Id::UnsupportedFeature, Site::default(), format!("compat_ro: {names}"));
    }
    if sb.incompat_flags.get() & incompat::MIXED_BACKREF == 0 {
        let what = "volumes from before mixed back references";
        sink.add(Id::UnsupportedFeature, Site::default(), what);
        return false;
    }
    unknown == 0
}

impl Volume {
    /// Reads the superblocks. `None` where nothing can be read at all; the findings say why.
    pub(crate) fn open(sink: &mut Sink, devices: &[Arc<dyn BlockDevice>]) -> Option<Self> {
        let mut found = Vec::new();
        for device in devices {
            if let Some(sb) = best_superblock(sink, device.as_ref()) {
                found.push((sb, Arc::clone(device)));
            }
        }
        // Of two equal ones that with a log is younger, and it is what a mount goes on from.
        let sb = found.iter().map(|(sb, _)| *sb).max_by_key(|sb| {
            let devid = Reverse(sb.dev_item.devid.get());
            (sb.generation.get(), sb.log_root.get() != 0, devid)
        })?;
        let mut by_id: BTreeMap<u64, Arc<dyn BlockDevice>> = BTreeMap::new();
        for (own, device) in found {
            let devid = own.dev_item.devid.get();
            let name = device.name().to_owned();
            let site = Site::device(devid, 0);
            if own.fsid != sb.fsid {
                sink.add(Id::DeviceForeign, site, format!("{name}: belongs to another volume"));
                continue;
            }
            if own.generation.get().saturating_add(1) == sb.generation.get() {
                let what = format!("{name}: one transaction behind, as after a crash");
                sink.add(Id::SuperMirrorStale, site.clone(), what);
            } else if own.generation != sb.generation {
                let what = format!(
                    "{name}: generation {}, the newest device has {}",
                    own.generation, sb.generation
                );
                sink.add(Id::SuperMirror, site.clone(), what);
            }
            if by_id.contains_key(&devid) {
                sink.add(
                    Id::DeviceForeign,
                    site,
                    format!("{name}: device {devid} was given twice"),
                );
                continue;
            }
            if own.dev_item.total_bytes.get() > device.size_bytes() {
                let what = format!(
                    "{name}: has {} bytes, not {}",
                    device.size_bytes(),
                    own.dev_item.total_bytes
                );
                sink.add(Id::DeviceSize, site, what);
            }
            by_id.insert(devid, device);
        }
        let csum = ChecksumType::from_raw(sb.csum_type.get())?;
        if !check_fields(sink, &sb) {
            return None;
        }
        Some(Self {
            csum,
            metadata_fsid: sb.metadata_fsid(),
            nodesize: sb.nodesize.get().into(),
            sectorsize: sb.sectorsize.get().into(),
            sb,
            devices: by_id,
            dev_items: BTreeMap::new(),
            chunks: ChunkMap::default(),
        })
    }

    pub(crate) fn has_incompat(&self, bit: u64) -> bool {
        self.sb.incompat_flags.get() & bit != 0
    }
    pub(crate) fn is_metadata_dump(&self) -> bool {
        is_metadata_dump(&self.sb)
    }

    pub(crate) fn has_compat_ro(&self, bit: u64) -> bool {
        self.sb.compat_ro_flags.get() & bit != 0
    }

    /// Fills `buf` from one copy of the bytes at `addr`.
    pub(crate) fn read_copy(&self, addr: u64, copy: u64, buf: &mut [u8]) -> Result<(), ReadFault> {
        let mut at = addr;
        let mut rest = buf;
        // Each round takes at least one byte off the rest.
        while !rest.is_empty() {
            let run = self
                .chunks
                .run(at, count(rest.len()), copy)
                .ok_or(ReadFault::Unmapped)?;
            let (now, later) = rest.split_at_mut_checked(index(run.len)).ok_or(ReadFault::Unmapped)?;
            let device = self.devices.get(&run.devid).ok_or(ReadFault::Missing)?;
            device
                .read_at(run.physical, now)
                .map_err(|e| ReadFault::Failed { message: e.to_string() })?;
            at = at.saturating_add(run.len);
            rest = later;
        }
        Ok(())
    }

    /// Names a copy for a message.
    pub(crate) fn copy_name(&self, addr: u64, copy: u64) -> String {
        let copies = self.chunks.copies(addr);
        let number = copy.saturating_add(1);
        match self.chunks.run(addr, 1, copy) {
            Some(run) => format!("copy {number} of {copies}, device {} byte {}", run.devid, run.physical),
            None => format!("copy {number} of {copies}"),
        }
    }
}
