//! Counters of the superblock: after an unclean end they are the sums over the groups.

use xfs_format::ag::{AgfSector, AgiSector};
use xfs_format::features::features2;
use xfs_format::{AgNumber, Expect, Superblock};

use super::disk::Disk;
use crate::error::Result;

/// Free blocks and inodes as the groups' headers count them.
pub(super) fn sum(disk: &Disk, sb: &mut Superblock) -> Result<()> {
    if !sb.is_v5() && !sb.has_features2(features2::LAZYSBCOUNT) {
        return Ok(());
    }
    let (mut free_blocks, mut inodes, mut free_inodes) = (0_u64, 0_u64, 0_u64);
    for number in 0..disk.geometry.ag_count {
        let group = AgNumber(number);
        let [agf, agi] = [1, 2].map(|sector| disk.geometry.header_daddr(group, sector));
        let bytes = disk.read(agf, disk.geometry.sector_bytes)?;
        let sector = AgfSector::verify(bytes, &Expect::in_ag(&disk.geometry, agf, group))?;
        let header = sector.agf();
        for count in [header.freeblks, header.flcount, header.btreeblks] {
            free_blocks += u64::from(count.get());
        }
        let bytes = disk.read(agi, disk.geometry.sector_bytes)?;
        let sector = AgiSector::verify(bytes, &Expect::in_ag(&disk.geometry, agi, group))?;
        inodes += u64::from(sector.agi().count.get());
        free_inodes += u64::from(sector.agi().freecount.get());
    }
    sb.fdblocks.set(free_blocks);
    sb.icount.set(inodes);
    sb.ifree.set(free_inodes);
    Ok(())
}
