//! Reading the superblocks of devices and choosing among them.
//!
//! *Which copy of a device:* the first one, where it is valid; the mirrors only stand in for a
//! first copy that is not. A newer mirror does not win over a valid first copy: the log of an fsync
//! is written to first copies alone, and a mount after a crash (by the kernel) went on from the
//! first copy, so a newer mirror may be the rest of a commit that was never finished and whose
//! blocks have been overwritten since.
//!
//! *Which device:* the highest generation; among equals one that has a log, since it is younger
//! than one without.

use std::cmp::Reverse;
use std::sync::Arc;

use btrfs_format::features::super_flags;
use btrfs_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use btrfs_format::{ChecksumType, Superblock, SuperblockError};
use cowshed_device::BlockDevice;

use crate::error::{Error, Result};

/// A device with the superblock that speaks for it.
#[derive(Debug)]
pub(super) struct Found {
    pub device: Arc<dyn BlockDevice>,
    pub superblock: Superblock,
    pub csum_type: ChecksumType,
    /// The first copy is not damaged but gone: something else may live on the device now.
    pub overwritten: bool,
}

fn bad(what: String) -> Error {
    Error::Superblock { what }
}

/// The offsets of the copies that fit.
pub(super) fn offsets(size_bytes: u64) -> impl Iterator<Item = u64> {
    SUPERBLOCK_OFFSETS
        .into_iter()
        .filter(move |at| at + SUPERBLOCK_BYTES as u64 <= size_bytes)
}

/// Checks one copy. `Ok(None)`: there is no superblock here at all.
fn check(bytes: &[u8], name: &str, offset_bytes: u64) -> Result<Option<(Superblock, ChecksumType)>> {
    match Superblock::verify(bytes, Some(offset_bytes)) {
        Ok(superblock) => Ok(superblock.checksum_type().map(|csum_type| (superblock, csum_type))),
        Err(SuperblockError::Magic) => Ok(None),
        Err(error) => Err(bad(format!("{name}, copy at byte {offset_bytes}: {error}"))),
    }
}

/// Reads all copies on a device and takes the one that speaks for it.
pub(super) fn read(device: Arc<dyn BlockDevice>) -> Result<Found> {
    let mut first_error = None;
    let mut best: Option<(Superblock, ChecksumType)> = None;
    let mut overwritten = false;
    for (index, at) in offsets(device.size_bytes()).enumerate() {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let checked = match device.read_at(at, &mut bytes) {
            Ok(()) => check(&bytes, device.name(), at),
            Err(e) => Err(e.into()),
        };
        match (checked, &best) {
            (Ok(Some(found)), None) => {
                if index > 0 {
                    tracing::warn!(
                        device = device.name(),
                        at,
                        "the first superblock is unusable, a mirror is used"
                    );
                }
                best = Some(found);
            }
            (Ok(Some(mirror)), Some((chosen, _))) => {
                let newer = mirror.0.generation.get() > chosen.generation.get();
                let foreign = mirror.0.fsid != chosen.fsid;
                if newer || foreign {
                    let generation = mirror.0.generation.get();
                    tracing::warn!(
                        device = device.name(),
                        at,
                        generation,
                        foreign,
                        "this superblock copy does not fit"
                    );
                }
                // Among mirrors only (the first copy is unusable) the newest of one volume speaks.
                if newer && !foreign && chosen.bytenr.get() != SUPERBLOCK_OFFSETS[0] {
                    best = Some(mirror);
                }
            }
            (Ok(None), _) => {
                overwritten |= index == 0;
                if index > 0 && best.is_some() {
                    tracing::warn!(device = device.name(), at, "no superblock mirror here");
                }
            }
            (Err(error), _) => {
                tracing::warn!(device = device.name(), at, %error, "bad superblock copy");
                first_error.get_or_insert(error);
            }
        }
    }
    match (best, first_error) {
        (Some((superblock, csum_type)), _) => Ok(Found {
            device,
            superblock,
            csum_type,
            overwritten,
        }),
        (None, Some(error)) => Err(error),
        (None, None) => Err(bad(format!("{}: not a btrfs device", device.name()))),
    }
}

/// Puts the device first whose superblock speaks for the volume; fails where devices do not belong
/// together.
pub(super) fn read_all(devices: Vec<Arc<dyn BlockDevice>>) -> Result<Vec<Found>> {
    let mut all = devices.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    all.sort_by_key(|f| {
        Reverse((
            f.superblock.generation.get(),
            f.superblock.log_root.get() != 0,
            Reverse(f.superblock.dev_item.devid.get()),
        ))
    });
    let Some((chosen, rest)) = all.split_first() else {
        return Err(bad("no device given".into()));
    };
    for (index, other) in rest.iter().enumerate() {
        let name = other.device.name();
        if other.superblock.fsid != chosen.superblock.fsid {
            let seed = [other, chosen]
                .into_iter()
                .find(|f| f.superblock.flags.get() & super_flags::SEEDING != 0);
            if let Some(seed) = seed {
                return Err(Error::Unsupported {
                    feature: format!("seed devices ({} is one, and can be read alone)", seed.device.name()),
                });
            }
            return Err(bad(format!(
                "{name} belongs to another volume than {}",
                chosen.device.name()
            )));
        }
        if other.csum_type != chosen.csum_type
            || other.superblock.nodesize != chosen.superblock.nodesize
            || other.superblock.sectorsize != chosen.superblock.sectorsize
        {
            return Err(bad(format!("{name} and {} differ in geometry", chosen.device.name())));
        }
        let same = |f: &Found| f.superblock.dev_item.devid == other.superblock.dev_item.devid;
        if let Some(twin) = std::iter::once(chosen).chain(&rest[..index]).find(|f| same(f)) {
            return Err(Error::Refused {
                what: format!(
                    "{name} and {} are copies of the same device of the volume",
                    twin.device.name()
                ),
            });
        }
        if other.superblock.generation != chosen.superblock.generation {
            let (found, newest) = (other.superblock.generation.get(), chosen.superblock.generation.get());
            tracing::warn!(
                device = name,
                found,
                newest,
                "the device missed commits; others are read first"
            );
        }
    }
    Ok(all)
}
