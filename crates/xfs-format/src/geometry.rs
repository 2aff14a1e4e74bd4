//! The shape of a volume: sizes, features, and how addresses are taken apart. What every verifier
//! needs to know.

use crate::features::{features2, incompat, ro_compat, version};
use crate::ids::{AgBlock, AgIno, AgNumber, DaBlock, Daddr, FileBlock, FsBlock, Ino, Uuid};
use crate::num::{low_bits, shl, shr};
use crate::sb::Superblock;

/// Fewer blocks than these make no allocation group.
pub const AG_BLOCKS_MIN: u32 = 64;
/// Inodes of a chunk: what a record of the inode B-trees stands for.
pub const CHUNK_INODES: u32 = 64;
/// Sectors at the head of each allocation group: superblock, AGF, AGI, AGFL.
pub const AG_HEADER_SECTORS: u32 = 4;
/// Where the leaf blocks of a directory begin, in bytes of the directory.
pub const DIR_LEAF_OFFSET_BYTES: u64 = 32 << 30;
/// Where the free index blocks of a directory begin, in bytes of the directory.
pub const DIR_FREE_OFFSET_BYTES: u64 = 64 << 30;
/// Where all address spaces of a directory end, in bytes.
const DIR_END_BYTES: u64 = 96 << 30;
const BASIC_BLOCK_LOG: u8 = 9;

/// The shape of a volume, from its verified superblock.
///
/// Cheap to copy. All addresses go through it: one function for each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a block, and their logarithm.
    pub block_bytes: u32,
    /// Base-2 logarithm of `block_bytes`.
    pub block_log: u8,
    /// Bytes of a sector of the data device.
    pub sector_bytes: u32,
    /// Bytes of an inode.
    pub inode_bytes: u32,
    /// Base-2 logarithm of `inode_bytes`.
    pub inode_log: u8,
    /// Base-2 logarithm of the inodes in a block.
    pub inodes_per_block_log: u8,
    /// Blocks of an allocation group; the last one may be shorter.
    pub ag_blocks: u32,
    /// Bits of a block's number within its group.
    pub ag_block_log: u8,
    /// Number of allocation groups.
    pub ag_count: u32,
    /// Blocks of the data device.
    pub blocks: u64,
    /// Bytes of a block of a directory.
    pub dir_block_bytes: u32,
    /// Base-2 logarithm of the blocks in a block of a directory.
    pub dir_block_log: u8,
    /// The uuid that metadata carries.
    pub uuid: Uuid,
    /// The first block of the log, where it lies on the data device.
    pub log_start: Option<FsBlock>,
    /// Blocks of the log.
    pub log_blocks: u32,
    /// Blocks of the realtime device.
    pub realtime_blocks: u64,
    versionnum: u16,
    features2: u32,
    ro_compat: u32,
    incompat: u32,
}

impl Geometry {
    /// For the superblock's own checks, once its sizes are known to be right.
    pub(crate) fn unchecked(sb: &Superblock) -> Self {
        let dir_block_bytes = shl(sb.blocksize.get().into(), sb.dirblklog);
        Self {
            block_bytes: sb.blocksize.get(),
            block_log: sb.blocklog,
            sector_bytes: sb.sectsize.get().into(),
            inode_bytes: sb.inodesize.get().into(),
            inode_log: sb.inodelog,
            inodes_per_block_log: sb.inopblog,
            ag_blocks: sb.agblocks.get(),
            ag_block_log: sb.agblklog,
            ag_count: sb.agcount.get(),
            blocks: sb.dblocks.get(),
            dir_block_bytes: u32::try_from(dir_block_bytes).unwrap_or_default(),
            dir_block_log: sb.dirblklog,
            uuid: sb.metadata_uuid(),
            log_start: sb.has_internal_log().then(|| FsBlock(sb.logstart.get())),
            log_blocks: sb.logblocks.get(),
            realtime_blocks: sb.rblocks.get(),
            versionnum: sb.versionnum.get(),
            features2: sb.features2.get(),
            ro_compat: if sb.is_v5() { sb.features_ro_compat.get() } else { 0 },
            incompat: if sb.is_v5() { sb.features_incompat.get() } else { 0 },
        }
    }

    /// True where metadata has checksums and says where it belongs.
    pub fn is_v5(&self) -> bool {
        u64::from(self.versionnum) & version::NUMBER_MASK == 5
    }
    /// A bit of [`version`].
    pub fn has_version_bit(&self, bit: u64) -> bool {
        u64::from(self.versionnum) & bit != 0
    }
    /// A bit of [`ro_compat`].
    pub fn has_ro_compat(&self, bit: u64) -> bool {
        u64::from(self.ro_compat) & bit != 0
    }
    /// A bit of [`incompat`].
    pub fn has_incompat(&self, bit: u64) -> bool {
        u64::from(self.incompat) & bit != 0
    }
    /// True where entries of directories hold the type of the file.
    pub fn has_ftype(&self) -> bool {
        self.has_incompat(incompat::FTYPE)
            || (!self.is_v5()
                && self.has_version_bit(version::MOREBITS)
                && u64::from(self.features2) & features2::FTYPE != 0)
    }
    /// True where names are compared without regard to case.
    pub fn is_ascii_ci(&self) -> bool {
        self.has_version_bit(version::ASCII_CI)
    }
    /// True where files may share blocks.
    pub fn has_reflink(&self) -> bool {
        self.has_ro_compat(ro_compat::REFLINK)
    }
    /// True where inode chunks may have holes.
    pub fn has_sparse_chunks(&self) -> bool {
        self.has_incompat(incompat::SPINODES)
    }
    /// True where there is a realtime section.
    pub fn has_realtime(&self) -> bool {
        self.realtime_blocks != 0
    }

    /// Blocks of an allocation group; 0 beyond the last one.
    pub fn ag_len(&self, group: AgNumber) -> u32 {
        if group.get().saturating_add(1) < self.ag_count {
            return self.ag_blocks;
        }
        let others = u64::from(group.get()).saturating_mul(self.ag_blocks.into());
        if group.get() >= self.ag_count {
            return 0;
        }
        u32::try_from(self.blocks.saturating_sub(others)).unwrap_or(u32::MAX)
    }
    /// The first block of a group behind its headers.
    pub fn first_ag_block(&self) -> AgBlock {
        let bytes = u64::from(self.sector_bytes).saturating_mul(AG_HEADER_SECTORS.into());
        let blocks = bytes.div_ceil(u64::from(self.block_bytes.max(1)));
        AgBlock(u32::try_from(blocks).unwrap_or(u32::MAX))
    }
    /// True for a block of the group that is not one of its headers.
    pub fn is_ag_block(&self, group: AgNumber, block: AgBlock) -> bool {
        block >= self.first_ag_block() && block.get() < self.ag_len(group)
    }
    /// True for blocks of a group, all of them, that are not its headers.
    pub fn is_ag_extent(&self, group: AgNumber, block: AgBlock, blocks: u32) -> bool {
        let end = block.get().checked_add(blocks);
        blocks > 0 && block >= self.first_ag_block() && end.is_some_and(|end| end <= self.ag_len(group))
    }

    /// A block of the volume from group and block within it.
    pub fn join(&self, group: AgNumber, block: AgBlock) -> FsBlock {
        FsBlock(shl(group.get().into(), self.ag_block_log) | u64::from(block.get()))
    }
    /// Group and block within it. `None` for an address that the volume does not have.
    pub fn split(&self, block: FsBlock) -> Option<(AgNumber, AgBlock)> {
        let group = AgNumber(u32::try_from(shr(block.get(), self.ag_block_log)).ok()?);
        let within = AgBlock(u32::try_from(low_bits(block.get(), self.ag_block_log)).ok()?);
        (within.get() < self.ag_len(group)).then_some((group, within))
    }
    /// True for a block that files or B-trees may use.
    pub fn is_block(&self, block: FsBlock) -> bool {
        self.split(block)
            .is_some_and(|(group, within)| self.is_ag_block(group, within))
    }
    /// True for blocks within one group, all of them usable.
    pub fn is_extent(&self, block: FsBlock, blocks: u64) -> bool {
        let Ok(blocks) = u32::try_from(blocks) else {
            return false;
        };
        self.split(block)
            .is_some_and(|(group, within)| self.is_ag_extent(group, within, blocks))
    }
    /// The address on the data device of a block within a group.
    pub fn ag_daddr(&self, group: AgNumber, block: AgBlock) -> Daddr {
        let blocks = u64::from(group.get())
            .saturating_mul(self.ag_blocks.into())
            .saturating_add(block.get().into());
        Daddr(shl(blocks, self.block_log.saturating_sub(BASIC_BLOCK_LOG)))
    }
    /// The address on the data device. `None` for an address that the volume does not have.
    pub fn daddr(&self, block: FsBlock) -> Option<Daddr> {
        self.split(block).map(|(group, within)| self.ag_daddr(group, within))
    }
    /// The address of a header: sector 0 superblock, 1 AGF, 2 AGI, 3 AGFL.
    pub fn header_daddr(&self, group: AgNumber, sector: u32) -> Daddr {
        let start = self.ag_daddr(group, AgBlock(0));
        let within = u64::from(sector).saturating_mul(u64::from(self.sector_bytes >> BASIC_BLOCK_LOG));
        Daddr(start.get().saturating_add(within))
    }
    /// The block of an address on the data device; `None` where it lies behind the volume.
    pub fn block_at(&self, daddr: Daddr) -> Option<(AgNumber, AgBlock)> {
        let block = shr(daddr.get(), self.block_log.saturating_sub(BASIC_BLOCK_LOG));
        let group = u32::try_from(block.checked_div(self.ag_blocks.into())?).ok()?;
        let within = u32::try_from(block.checked_rem(self.ag_blocks.into())?).ok()?;
        (within < self.ag_len(AgNumber(group))).then_some((AgNumber(group), AgBlock(within)))
    }

    /// Bits of an inode's number within its group.
    pub fn ag_ino_log(&self) -> u8 {
        self.ag_block_log.saturating_add(self.inodes_per_block_log)
    }
    /// Group and number within it. `None` for a number that no inode of the volume has.
    pub fn split_ino(&self, ino: Ino) -> Option<(AgNumber, AgIno)> {
        let group = AgNumber(u32::try_from(shr(ino.get(), self.ag_ino_log())).ok()?);
        let within = AgIno(u32::try_from(low_bits(ino.get(), self.ag_ino_log())).ok()?);
        self.is_ag_ino(group, within).then_some((group, within))
    }
    /// An inode's number from group and number within it.
    pub fn join_ino(&self, group: AgNumber, ino: AgIno) -> Ino {
        Ino(shl(group.get().into(), self.ag_ino_log()) | u64::from(ino.get()))
    }
    /// The block of an inode within its group.
    pub fn ino_block(&self, ino: AgIno) -> AgBlock {
        let block = shr(ino.get().into(), self.inodes_per_block_log);
        AgBlock(u32::try_from(block).unwrap_or_default())
    }
    /// The place of an inode within its block, in bytes.
    pub fn ino_offset_bytes(&self, ino: AgIno) -> u32 {
        let index = low_bits(ino.get().into(), self.inodes_per_block_log);
        u32::try_from(shl(index, self.inode_log)).unwrap_or_default()
    }
    /// True where an inode with this number can lie in the group.
    pub fn is_ag_ino(&self, group: AgNumber, ino: AgIno) -> bool {
        self.is_ag_block(group, self.ino_block(ino))
    }
    /// True where an inode with this number can exist.
    pub fn is_inode(&self, ino: Ino) -> bool {
        self.split_ino(ino).is_some()
    }

    /// Where a directory's leaf blocks begin.
    pub fn dir_leaf_block(&self) -> DaBlock {
        self.da_block(DIR_LEAF_OFFSET_BYTES)
    }
    /// Where a directory's free index begins.
    pub fn dir_free_block(&self) -> DaBlock {
        self.da_block(DIR_FREE_OFFSET_BYTES)
    }
    /// Where a directory's blocks end.
    pub fn dir_end_block(&self) -> DaBlock {
        self.da_block(DIR_END_BYTES)
    }
    fn da_block(&self, bytes: u64) -> DaBlock {
        DaBlock(u32::try_from(shr(bytes, self.block_log)).unwrap_or(u32::MAX))
    }
    /// The first block of a directory's data block, counted in data blocks.
    pub fn dir_data_block(&self, index: u32) -> DaBlock {
        let block = shl(index.into(), self.dir_block_log);
        DaBlock(u32::try_from(block).unwrap_or(u32::MAX))
    }
    /// One behind the last block that a file may have.
    pub fn file_end_block(&self) -> FileBlock {
        // Sizes are signed 64-bit numbers.
        FileBlock(shr(i64::MAX.unsigned_abs(), self.block_log).saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::superblock;

    #[test]
    fn addresses_come_apart_and_together() {
        let geometry = Geometry::new(&superblock()).unwrap();
        let (group, block) = (AgNumber(3), AgBlock(20));
        let joined = geometry.join(group, block);
        assert_eq!(joined, FsBlock(3 << 15 | 20));
        assert_eq!(geometry.split(joined), Some((group, block)));
        assert_eq!(geometry.daddr(joined), Some(Daddr((3 * 20480 + 20) * 8)));
        assert_eq!(geometry.block_at(Daddr((3 * 20480 + 20) * 8)), Some((group, block)));
        assert_eq!(geometry.split(FsBlock(4 << 15)), None);
        assert_eq!(geometry.split(FsBlock(20480)), None);
        assert_eq!(geometry.split(FsBlock(u64::MAX)), None);
        assert!(!geometry.is_block(FsBlock(0)) && geometry.is_block(FsBlock(1)));
        assert_eq!(geometry.header_daddr(AgNumber(1), 2), Daddr(20480 * 8 + 2));
        assert!(geometry.is_ag_extent(group, AgBlock(20000), 480));
        assert!(!geometry.is_ag_extent(group, AgBlock(20000), 481));
        assert!(!geometry.is_ag_extent(group, AgBlock(20000), 0));
        assert!(!geometry.is_ag_extent(group, AgBlock(20000), u32::MAX));
    }

    #[test]
    fn the_last_group_may_be_shorter() {
        let mut sb = superblock();
        sb.dblocks.set(3 * 20480 + 100);
        let geometry = Geometry::new(&sb).unwrap();
        assert_eq!(
            [0, 2, 3, 4, u32::MAX].map(|n| geometry.ag_len(AgNumber(n))),
            [20480, 20480, 100, 0, 0]
        );
        assert_eq!(geometry.split(geometry.join(AgNumber(3), AgBlock(100))), None);
    }

    #[test]
    fn inode_numbers_come_apart_and_together() {
        let geometry = Geometry::new(&superblock()).unwrap();
        let ino = geometry.join_ino(AgNumber(2), AgIno(131));
        assert_eq!(ino, Ino(2 << 18 | 131));
        assert_eq!(geometry.split_ino(ino), Some((AgNumber(2), AgIno(131))));
        assert_eq!(geometry.ino_block(AgIno(131)), AgBlock(16));
        assert_eq!(geometry.ino_offset_bytes(AgIno(131)), 3 * 512);
        for bad in [0, 7, 4 << 18, u64::MAX] {
            assert!(!geometry.is_inode(Ino(bad)), "{bad}");
        }
    }

    #[test]
    fn directories_have_three_address_spaces() {
        let geometry = Geometry::new(&superblock()).unwrap();
        assert_eq!(geometry.dir_leaf_block(), DaBlock(8 << 20));
        assert_eq!(geometry.dir_free_block(), DaBlock(16 << 20));
        assert_eq!(geometry.agfl_slots(), 119);
    }
}
