//! The copies of the superblock, one at the start of each group, where the first one is damaged.
//!
//! mkfs leaves the number of the root inode in the last copy and in one in the middle, and
//! counters in none: they are summed up from the groups.

use cowshed_device::BlockDevice;
use xfs_format::{Geometry, Ino, Superblock};
use zerocopy::FromBytes as _;

/// Bytes of the largest sector: what is read to find a superblock.
pub(super) const SECTOR_BYTES_MAX: usize = 32768;
/// Bytes that are read at once in search of copies.
const STEP_BYTES: usize = 1 << 20;
/// Copies begin on sectors.
const SECTOR_BYTES: usize = 512;
/// How far a device is searched where the first superblock does not say how large a group is: one
/// group of the largest size.
const SEARCH_BYTES_MAX: u64 = 1 << 40;
/// A group number that no volume has.
const GROUPS_MAX: u64 = 1 << 32;

/// A copy that can stand in for the first superblock, and its group. `head`: what is where the first
/// one should be.
pub(super) fn find(device: &dyn BlockDevice, head: &[u8]) -> Option<(u64, Superblock)> {
    let group_bytes = said(head).or_else(|| search(device))?;
    let first = copy_at(device, group_bytes)?;
    let count = u64::from(first.agcount.get()).min(GROUPS_MAX);
    // Where mkfs left the root inode first, then all others: a repair writes it into each.
    let likely = [count.saturating_sub(1), count.saturating_sub(1) / 2];
    let all = likely.into_iter().chain(1..count);
    all.filter(|group| *group > 0).find_map(|group| {
        let mut copy = copy_at(device, group.checked_mul(group_bytes)?)?;
        copy.inprogress = 0;
        let is_root_known = Geometry::new(&copy).is_ok_and(|g| g.is_inode(Ino(copy.rootino.get())));
        (is_root_known && copy.uuid == first.uuid).then_some((group, copy))
    })
}

fn copy_at(device: &dyn BlockDevice, offset: u64) -> Option<Superblock> {
    let room = device.size_bytes().checked_sub(offset)?;
    let mut bytes = vec![0; SECTOR_BYTES_MAX.min(usize::try_from(room).ok()?)];
    device.read_at(offset, &mut bytes).ok()?;
    let copy = Superblock::verify_copy(&bytes).ok()?;
    (group_bytes(&copy)? != 0).then_some(copy)
}

fn group_bytes(sb: &Superblock) -> Option<u64> {
    u64::from(sb.agblocks.get()).checked_mul(sb.blocksize.get().into())
}

/// The size of a group as a damaged superblock says it, if a copy is there.
fn said(head: &[u8]) -> Option<u64> {
    let (sb, _) = Superblock::read_from_prefix(head).ok()?;
    group_bytes(&sb).filter(|bytes| *bytes != 0)
}

/// Searches for the copy of group 1.
fn search(device: &dyn BlockDevice) -> Option<u64> {
    let end = device.size_bytes().min(SEARCH_BYTES_MAX);
    let mut bytes = vec![0; STEP_BYTES];
    for start in (0..end).step_by(STEP_BYTES) {
        let len = usize::try_from(end - start).unwrap_or(STEP_BYTES).min(STEP_BYTES);
        let part = bytes.get_mut(..len)?;
        if device.read_at(start, part).is_err() {
            continue;
        }
        for (n, sector) in part.chunks_exact(SECTOR_BYTES).enumerate() {
            let at = start + (n * SECTOR_BYTES) as u64;
            if sector.starts_with(b"XFSB") && at > 0 {
                // An image of another volume in a file looks the same, but for its place.
                let copy = copy_at(device, at).filter(|copy| group_bytes(copy) == Some(at));
                if copy.is_some() {
                    return Some(at);
                }
            }
        }
    }
    None
}
