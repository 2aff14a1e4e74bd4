//! Superblocks of other groups, and the counters of the first one.

use xfs_format::btree::RmapOwner;
use xfs_format::features::{features2, incompat, version};
use xfs_format::superblock::SUPERBLOCK_BYTES;
use xfs_format::{AgNumber, Superblock, SuperblockError};

use crate::ag::Group;
use crate::claims::Claim;
use crate::finding::{FindingId, Sink, Site};
use crate::volume::Volume;

/// The claim of an internal log.
pub(crate) fn log_claim(vol: &Volume) -> Option<(AgNumber, Claim)> {
    let (group, start) = vol.geometry.split(vol.geometry.log_start?)?;
    Some((group, Claim::new(start, vol.geometry.log_blocks, RmapOwner::Log)))
}

/// Compares the superblocks of all other groups with that of the first one.
pub(crate) fn copies(vol: &Volume, sink: &mut Sink) {
    for group in vol.groups() {
        let site = Site::group(group);
        let daddr = vol.geometry.header_daddr(group, 0);
        let Some(bytes) = vol.read(sink, site, daddr, vol.geometry.sector_bytes.into()) else {
            continue;
        };
        if bytes.iter().skip(SUPERBLOCK_BYTES).any(|byte| *byte != 0) {
            sink.add(FindingId::SuperCopy, site, "bytes behind the superblock are not zero");
        }
        if group == AgNumber(0) {
            continue;
        }
        match Superblock::verify_copy(&bytes) {
            Ok(copy) => compare(vol, sink, site, &copy),
            Err(SuperblockError::Crc { stored, computed }) => {
                sink.add(
                    FindingId::SuperCopy,
                    site,
                    format!("bad checksum: stored {stored:#010x}, computed {computed:#010x}"),
                );
            }
            Err(error) => sink.add(FindingId::SuperCopy, site, error.to_string()),
        }
    }
}

/// Fields that describe the volume's shape. Counters and flags of use are kept in the first
/// superblock alone.
fn compare(vol: &Volume, sink: &mut Sink, site: Site, copy: &Superblock) {
    let first = &vol.superblock;
    let fields = |sb: &Superblock| {
        [
            ("blocksize", u64::from(sb.blocksize.get())),
            ("dblocks", sb.dblocks.get()),
            ("rblocks", sb.rblocks.get()),
            ("rextents", sb.rextents.get()),
            ("logstart", sb.logstart.get()),
            ("rextsize", sb.rextsize.get().into()),
            ("agblocks", sb.agblocks.get().into()),
            ("agcount", sb.agcount.get().into()),
            ("rbmblocks", sb.rbmblocks.get().into()),
            ("logblocks", sb.logblocks.get().into()),
            ("sectsize", sb.sectsize.get().into()),
            ("inodesize", sb.inodesize.get().into()),
            ("version", sb.version().into()),
            ("inoalignmt", sb.inoalignmt.get().into()),
            ("dirblklog", sb.dirblklog.into()),
            ("logsectsize", sb.logsectsize.get().into()),
            ("logsunit", sb.logsunit.get().into()),
            ("imax_pct", sb.imax_pct.into()),
            ("spino_align", sb.spino_align.get().into()),
            (
                "features_incompat",
                u64::from(sb.features_incompat.get()) & !incompat::NEEDSREPAIR,
            ),
            ("features_ro_compat", sb.features_ro_compat.get().into()),
            (
                "versionnum",
                u64::from(sb.versionnum.get()) & !(version::ATTR | version::QUOTA | version::NLINK),
            ),
        ]
    };
    for ((name, found), (_, expected)) in fields(copy).into_iter().zip(fields(first)) {
        if found != expected {
            sink.add(
                FindingId::SuperCopy,
                site,
                format!("{name} is {found}, expected {expected}"),
            );
        }
    }
    if copy.metadata_uuid() != first.metadata_uuid() {
        sink.add(FindingId::SuperCopy, site, "the uuid of metadata is another one");
    }
}

/// Compares the counters with the sums over the groups.
pub(crate) fn counters(vol: &Volume, sink: &mut Sink, groups: &[Group]) {
    let (mut free, mut inodes, mut free_inodes) = (0_u64, 0_u64, 0_u64);
    for group in groups {
        let (Some(agf), Some(agi)) = (&group.agf, &group.agi) else {
            return;
        };
        for blocks in [agf.freeblks.get(), agf.flcount.get(), agf.btreeblks.get()] {
            free = free.saturating_add(blocks.into());
        }
        inodes = inodes.saturating_add(agi.count.get().into());
        free_inodes = free_inodes.saturating_add(agi.freecount.get().into());
    }
    let sb = &vol.superblock;
    if !sb.is_v5() && !sb.has_features2(features2::LAZYSBCOUNT) {
        // Without lazy counters, blocks of trees count as in use.
        free = groups
            .iter()
            .filter_map(|group| group.agf.as_ref())
            .fold(0, |sum: u64, agf| {
                sum.saturating_add(agf.freeblks.get().into())
                    .saturating_add(agf.flcount.get().into())
            });
    }
    for (name, found, expected) in [
        ("fdblocks", sb.fdblocks.get(), free),
        ("icount", sb.icount.get(), inodes),
        ("ifree", sb.ifree.get(), free_inodes),
    ] {
        if found != expected {
            let site = Site::group(AgNumber(0));
            sink.add(
                FindingId::SuperCounters,
                site,
                format!("{name} is {found}, expected {expected}"),
            );
        }
    }
}
