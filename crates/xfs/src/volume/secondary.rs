//! Copies of the superblock: one at the start of each group. One of them can stand in for a damaged
//! first superblock.
//!
//! mkfs stores the number of the root inode in the last copy and in one in the middle, and counters
//! in none: they are summed over the groups.

use cowshed_device::BlockDevice;
use xfs_format::{Geometry, Ino, Superblock};
use zerocopy::FromBytes as _;

/// Bytes of the largest sector: what is read to find a superblock.
pub(super) const SECTOR_BYTES_MAX: usize = 32768;
/// Bytes that one read of a search covers.
const STEP_BYTES: usize = 1 << 20;
/// Copies begin on sectors.
const SECTOR_BYTES: usize = 512;
/// How far a device is searched for the copy of group 1: one group of the largest size.
const SEARCH_BYTES_MAX: u64 = 1 << 40;

/// A copy that can stand in for the first superblock, and its group. `head`: what is in the place
/// of the first one. `searches`: where its size of a group is wrong, too, the device is read until
/// a copy is found; this takes as long as reading a group.
pub(super) fn find(device: &dyn BlockDevice, head: &[u8], searches: bool) -> Option<(u64, Superblock)> {
    let first = said(device, head).or_else(|| searches.then(|| search(device)).flatten())?;
    let group_bytes = group_bytes(&first)?;
    let count = u64::from(first.agcount.get()).min(device.size_bytes() / group_bytes + 1);
    // The copies in which mkfs stores the root inode, then all others: a repair stores it in each.
    let last = count.saturating_sub(1);
    let all = [last, last / 2].into_iter().chain(1..count);
    all.filter(|group| *group > 0).find_map(|group| {
        let mut copy = copy_at(device, group.checked_mul(group_bytes)?)?;
        copy.inprogress = 0;
        let is_root_known = Geometry::new(&copy).is_ok_and(|g| g.is_inode(Ino(copy.rootino.get())));
        (is_root_known && copy.uuid == first.uuid).then_some((group, copy))
    })
}

fn copy_at(device: &dyn BlockDevice, offset_bytes: u64) -> Option<Superblock> {
    let room = device.size_bytes().checked_sub(offset_bytes)?;
    let len = usize::try_from(room).map_or(SECTOR_BYTES_MAX, |room| room.min(SECTOR_BYTES_MAX));
    let mut bytes = vec![0; len];
    device.read_at(offset_bytes, &mut bytes).ok()?;
    Superblock::verify_copy(&bytes).ok()
}

fn group_bytes(sb: &Superblock) -> Option<u64> {
    let bytes = u64::from(sb.agblocks.get()).checked_mul(sb.blocksize.get().into())?;
    (bytes != 0).then_some(bytes)
}

/// The copy of group 1, if it begins there. An image of another volume in a file has copies, too,
/// but none as far from the start of the device as its own group is large.
fn first_copy_at(device: &dyn BlockDevice, offset_bytes: u64) -> Option<Superblock> {
    copy_at(device, offset_bytes).filter(|copy| group_bytes(copy) == Some(offset_bytes))
}

/// The copy of group 1 where a damaged superblock says that group 1 begins.
fn said(device: &dyn BlockDevice, head: &[u8]) -> Option<Superblock> {
    let (sb, _) = Superblock::read_from_prefix(head).ok()?;
    first_copy_at(device, group_bytes(&sb)?)
}

/// Searches for the copy of group 1.
fn search(device: &dyn BlockDevice) -> Option<Superblock> {
    let end = device.size_bytes().min(SEARCH_BYTES_MAX);
    let mut bytes = vec![0; STEP_BYTES];
    for start in (0..end).step_by(STEP_BYTES) {
        let len = usize::try_from(end - start).map_or(STEP_BYTES, |left| left.min(STEP_BYTES));
        let part = bytes.get_mut(..len)?;
        if device.read_at(start, part).is_err() {
            continue;
        }
        let sectors = (start..).step_by(SECTOR_BYTES).zip(part.chunks_exact(SECTOR_BYTES));
        let mut copies = sectors.filter(|(at, sector)| *at > 0 && sector.starts_with(b"XFSB"));
        if let Some(copy) = copies.find_map(|(at, _)| first_copy_at(device, at)) {
            return Some(copy);
        }
    }
    None
}
