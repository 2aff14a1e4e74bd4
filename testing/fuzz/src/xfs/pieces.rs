//! Where the metadata of a volume lies, by kind.

use std::collections::BTreeSet;

use anyhow::Result;
use cowshed_device::{BlockDevice, MemDevice};
use xfs_format::{Geometry, Superblock};

/// A block, a sector or an inode, and where its checksum lies.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub at: u64,
    pub len: usize,
    /// `None`: it has none.
    pub crc: Option<usize>,
}

/// Sectors of a group's head: magic, and where the checksum is on V5.
const SECTORS: [(&[u8; 4], usize); 4] = [(b"XFSB", 224), (b"XAGF", 216), (b"XAGI", 312), (b"XAFL", 32)];
/// Blocks: magic, where it stands, and where the checksum is; with `true`, their size is that of a
/// directory block.
const BLOCKS: [(&[u8], usize, usize, bool); 16] = [
    (b"AB3B", 0, 52, false),
    (b"AB3C", 0, 52, false),
    (b"IAB3", 0, 52, false),
    (b"FIB3", 0, 52, false),
    (b"RMB3", 0, 52, false),
    (b"R3FC", 0, 52, false),
    (b"BMA3", 0, 64, false),
    (b"XDB3", 0, 4, true),
    (b"XDD3", 0, 4, true),
    (b"XDF3", 0, 4, true),
    (b"XARM", 0, 12, false),
    (b"XSLM", 0, 12, false),
    (&[0x3d, 0xf1], 8, 12, true),
    (&[0x3d, 0xff], 8, 12, true),
    (&[0x3e, 0xbe], 8, 12, false),
    (&[0x3b, 0xee], 8, 12, false),
];
/// The same on V4, without checksums.
const BLOCKS_V4: [(&[u8], usize, bool); 12] = [
    (b"ABTB", 0, false),
    (b"ABTC", 0, false),
    (b"IABT", 0, false),
    (b"FIBT", 0, false),
    (b"BMAP", 0, false),
    (b"XD2B", 0, true),
    (b"XD2D", 0, true),
    (b"XD2F", 0, true),
    (&[0xd2, 0xf1], 8, true),
    (&[0xd2, 0xff], 8, true),
    (&[0xfe, 0xbe], 8, false),
    (&[0xfb, 0xee], 8, false),
];
const INODE_CRC: usize = 100;
const BASIC_BLOCK_BYTES: usize = 512;

/// The metadata of a volume, a list for each kind, so that rare kinds are met as often as frequent
/// ones.
pub fn pieces(device: &MemDevice) -> Result<Vec<Vec<Piece>>> {
    let mut head = vec![0; 4096];
    device.read_at(0, &mut head)?;
    let geometry = Geometry::new(&Superblock::verify(&head)?)?;
    let [block, sector, dir] =
        [geometry.block_bytes, geometry.sector_bytes, geometry.dir_block_bytes].map(|bytes| bytes as usize);
    let kinds = SECTORS.len() + BLOCKS.len() + 2;
    let (inodes, logs) = (kinds - 2, kinds - 1);
    let mut found: Vec<Vec<Piece>> = vec![Vec::new(); kinds];
    let log = log_bytes(&geometry);
    let ag_bytes = u64::from(geometry.ag_blocks) * block as u64;
    let heads = (SECTORS.len() * sector) as u64;
    let mut bytes = vec![0; block];
    for at in (0..geometry.blocks * block as u64).step_by(block) {
        device.read_at(at, &mut bytes)?;
        if log.contains(&at) {
            let used = |part: &[u8]| part.iter().any(|byte| *byte != 0);
            let parts = bytes
                .chunks(BASIC_BLOCK_BYTES)
                .enumerate()
                .filter(|(_, part)| used(part));
            found[logs].extend(parts.map(|(n, _)| Piece {
                at: at + (n * BASIC_BLOCK_BYTES) as u64,
                len: BASIC_BLOCK_BYTES,
                crc: None,
            }));
        } else if at % ag_bytes < heads {
            for (n, part) in bytes.chunks(sector).enumerate() {
                if let Some(kind) = SECTORS.iter().position(|(magic, _)| part.starts_with(*magic)) {
                    let (at, crc) = (at + (n * sector) as u64, SECTORS[kind].1);
                    let crc = geometry.is_v5().then_some(crc);
                    found[kind].push(Piece { at, len: sector, crc });
                }
            }
        } else if let Some((kind, crc, is_dir)) = block_kind(&bytes, geometry.is_v5()) {
            let len = if is_dir { dir } else { block };
            found[SECTORS.len() + kind].push(Piece { at, len, crc });
        } else if bytes.starts_with(b"IN") && (1..=3).contains(&bytes[4]) {
            let len = geometry.inode_bytes as usize;
            found[inodes].extend((0..block / len).map(|n| Piece {
                at: at + (n * len) as u64,
                len,
                crc: geometry.is_v5().then_some(INODE_CRC),
            }));
        }
    }
    found.retain(|pieces| !pieces.is_empty());
    Ok(found)
}

fn block_kind(bytes: &[u8], is_v5: bool) -> Option<(usize, Option<usize>, bool)> {
    if is_v5 {
        let kind = BLOCKS
            .iter()
            .position(|(magic, at, ..)| bytes[*at..].starts_with(magic))?;
        return Some((kind, Some(BLOCKS[kind].2), BLOCKS[kind].3));
    }
    let kind = BLOCKS_V4
        .iter()
        .position(|(magic, at, _)| bytes[*at..].starts_with(magic))?;
    Some((kind, None, BLOCKS_V4[kind].2))
}

fn log_bytes(geometry: &Geometry) -> std::ops::Range<u64> {
    let start = geometry.log_start.and_then(|start| geometry.daddr(start));
    let start = start.map_or(0, |daddr| daddr.get() * BASIC_BLOCK_BYTES as u64);
    start..start + u64::from(geometry.log_blocks) * u64::from(geometry.block_bytes)
}

/// Where the blocks of `pieces` lie, in units of 4 KiB.
pub fn metadata_blocks(kinds: &[Vec<Piece>]) -> BTreeSet<u64> {
    let all = kinds.iter().flatten();
    all.flat_map(|piece| piece.at / 4096..(piece.at + piece.len as u64).div_ceil(4096))
        .collect()
}
