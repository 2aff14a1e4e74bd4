//! Two images of a volume, block by block.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use xfs_format::btree::Tree;
use xfs_format::{Geometry, ag, inode, superblock};

/// The kind of a block and the bytes that may differ: LSN and checksum.
fn kind(block: &[u8]) -> (&'static str, &'static [(usize, usize)]) {
    let be32 = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap_or_default());
    let magic = be32(0);
    if let Some(tree) = Tree::from_magic(magic) {
        let at: &[(usize, usize)] = if tree.is_long() {
            &[(32, 8), (64, 4)]
        } else {
            &[(24, 8), (52, 4)]
        };
        return (tree.name(), at);
    }
    let text = &block[..4];
    match (magic, text) {
        // Counters are compared through statfs; the log's features are cleared at a clean end.
        (superblock::MAGIC, _) => ("superblock", &[(128, 24), (220, 8), (240, 8)]),
        (ag::AGF_MAGIC, _) => ("AGF", &[(208, 12)]),
        (ag::AGI_MAGIC, _) => ("AGI", &[(312, 4), (320, 8)]),
        (ag::AGFL_MAGIC, _) => ("AGFL", &[(24, 12)]),
        (_, b"XSLM") => ("symlink", &[(12, 4), (48, 8)]),
        (_, b"XARM") => ("remote value", &[(12, 4), (48, 8)]),
        (_, b"XDB3" | b"XDD3" | b"XDF3") => ("directory", &[(4, 4), (16, 8)]),
        _ if matches!(be32(8) >> 16, 0x3ebe | 0x3df1 | 0x3dff | 0x3bee) => ("hash index", &[(12, 4), (24, 8)]),
        _ => ("data", &[]),
    }
}

/// Where the superblock has the inodes of quotas.
const QUOTA_INODES: [usize; 3] = [160, 168, 232];

/// mkfs.xfs writes zero for quota inodes that are not there. Linux writes "none", all ones, when it
/// writes the superblock itself: at the latest when a mount that has recovered a log is idle for
/// half a minute, for reading alone, too.
fn with_one_none(block: &mut [u8]) {
    if !block.starts_with(&superblock::MAGIC.to_be_bytes()) {
        return;
    }
    for at in QUOTA_INODES {
        if let Some(ino) = block.get_mut(at..at + 8).filter(|ino| **ino == [0xff; 8]) {
            ino.fill(0);
        }
    }
}

fn masked(block: &[u8], at: &[(usize, usize)]) -> Vec<u8> {
    let mut block = block.to_vec();
    with_one_none(&mut block);
    for (offset, len) in at {
        block[*offset..offset + len].fill(0);
    }
    block
}

fn is_inode(bytes: &[u8]) -> bool {
    bytes.starts_with(&inode::INODE_MAGIC.to_be_bytes())
}

/// Compares two recovered images of a volume outside of its log. `before` is the image from which
/// both come. Errors: the first difference.
pub fn compare(
    geometry: &Geometry,
    before: &[u8],
    ours: &[u8],
    kernel: &[u8],
    seen: &mut BTreeMap<&'static str, u64>,
) -> Result<()> {
    let unit = geometry.block_bytes as usize;
    let log = geometry.log_start.and_then(|start| geometry.daddr(start));
    let log_from = log.and_then(|daddr| daddr.checked_bytes()).unwrap_or(u64::MAX) as usize;
    let log_to = log_from.saturating_add(geometry.log_blocks as usize * unit);
    for at in (0..before.len()).step_by(unit) {
        let range = at..(at + unit).min(before.len());
        if (log_from..log_to).contains(&at)
            || (ours[range.clone()] == kernel[range.clone()] && ours[range.clone()] == before[range.clone()])
        {
            continue;
        }
        let sector = geometry.sector_bytes as usize;
        let within = at % (geometry.ag_blocks as usize * unit);
        let step = if within < 4 * sector {
            sector
        } else if is_inode(&ours[range.clone()]) {
            geometry.inode_bytes as usize
        } else {
            unit
        };
        for at in range.step_by(step) {
            let part = |image: &[u8]| image[at..at + step].to_vec();
            let (old, one, other) = (part(before), part(ours), part(kernel));
            let (name, may_differ): (&'static str, &[(usize, usize)]) = if is_inode(&one) {
                ("inode", &[(100, 4), (112, 8)])
            } else {
                kind(&one)
            };
            if masked(&one, may_differ) != masked(&other, may_differ) {
                let first = (0..step).find(|index| {
                    one[*index] != other[*index]
                        && !may_differ.iter().any(|(from, len)| (*from..from + len).contains(index))
                });
                let first = first.unwrap_or_default();
                let end = (first + 16).min(step);
                bail!(
                    "{name} at byte {at} differs at {first}: {:02x?}, the kernel's {:02x?}, before {:02x?}",
                    &one[first..end],
                    &other[first..end],
                    &old[first..end]
                );
            }
            if one != old {
                *seen.entry(name).or_default() += 1;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quota_inodes_that_are_not_there_are_zero_or_none() {
        let mut ours = vec![0; 512];
        ours[..4].copy_from_slice(&superblock::MAGIC.to_be_bytes());
        let mut kernel = ours.clone();
        for at in QUOTA_INODES {
            kernel[at..at + 8].fill(0xff);
        }
        assert_eq!(masked(&ours, &[]), masked(&kernel, &[]));
        kernel[167] = 131;
        assert_ne!(masked(&ours, &[]), masked(&kernel, &[]));
    }
}
