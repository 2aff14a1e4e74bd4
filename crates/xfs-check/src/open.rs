//! From a device to a volume that can be checked: superblock, features, the log.

use std::sync::Arc;

use cowshed_device::BlockDevice;
use xfs_format::features::incompat;
use xfs_format::superblock::SUPERBLOCK_BYTES;
use xfs_format::{Access, AgNumber, Geometry, Lsn, ReadLimit, Superblock};

use crate::finding::{FindingId, Sink, Site};
use crate::log;
use crate::options::CheckOptions;
use crate::volume::Volume;

/// Bytes of the largest sector.
const SECTOR_BYTES_MAX: u64 = 32768;

fn superblock(device: &dyn BlockDevice, sink: &mut Sink) -> Option<Superblock> {
    let site = Site::group(AgNumber(0));
    let len = SECTOR_BYTES_MAX.min(device.size_bytes());
    let mut head = vec![0; usize::try_from(len).ok()?];
    if let Err(error) = device.read_at(0, &mut head) {
        sink.add(FindingId::SuperInvalid, site, error.to_string());
        return None;
    }
    match Superblock::verify(&head) {
        Ok(sb) => Some(sb),
        Err(error) => {
            sink.add(FindingId::SuperInvalid, site, error.to_string());
            None
        }
    }
}

/// Opens the volume. `None` where it cannot be checked: the reason is a finding.
pub(crate) fn open(device: Arc<dyn BlockDevice>, options: &CheckOptions<'_>, sink: &mut Sink) -> Option<Volume> {
    const { assert!(SUPERBLOCK_BYTES < 512) };
    let sb = superblock(&*device, sink)?;
    if let Access::Refused { why } = sb.access(ReadLimit::Rescue) {
        sink.add(FindingId::UnsupportedFeature, Site::group(AgNumber(0)), why.name);
        return None;
    }
    if sb.has_incompat(incompat::NEEDSREPAIR) {
        sink.add(
            FindingId::NeedsRepair,
            Site::group(AgNumber(0)),
            "features_incompat has NEEDSREPAIR",
        );
    }
    let geometry = match Geometry::new(&sb) {
        Ok(geometry) => geometry,
        Err(error) => {
            sink.add(FindingId::SuperInvalid, Site::group(AgNumber(0)), error.to_string());
            return None;
        }
    };
    let needed = geometry.blocks.saturating_mul(geometry.block_bytes.into());
    if device.size_bytes() < needed {
        let message = format!("{} bytes, expected {needed}", device.size_bytes());
        sink.add(FindingId::DeviceShort, Site::default(), message);
        return None;
    }
    let mut vol = Volume {
        device,
        superblock: sb,
        geometry,
        head: None,
    };
    let Some(found) = log::check(&vol, options, sink) else {
        return Some(vol);
    };
    vol.head = Some(found.head);
    let newest = vol.superblock.lsn();
    if vol.geometry.is_v5() && newest != Lsn::NULL && newest > found.head {
        sink.add(
            FindingId::BlockLsn,
            Site::group(AgNumber(0)),
            format!(
                "the superblock's LSN is {newest}, expected at most {}, the head of the log",
                found.head
            ),
        );
    }
    if !found.is_dirty {
        return Some(vol);
    }
    let Some(replay) = options.replay else { return Some(vol) };
    match replay() {
        Ok(device) => {
            // The log may have grown the volume.
            let sb = superblock(&*device, sink)?;
            vol.geometry = Geometry::new(&sb).ok()?;
            (vol.superblock, vol.device) = (sb, device);
            // What replay changed is stamped with the head.
            Some(vol)
        }
        Err(error) => {
            sink.add(
                FindingId::LogInvalid,
                Site::default(),
                format!("the log cannot be replayed: {error}"),
            );
            None
        }
    }
}
