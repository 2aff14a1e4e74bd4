//! Checks everything that a superblock claims.

use cowshed_layout::Rule;
use zerocopy::{FromBytes, IntoBytes};

use crate::corrupt::{Checked, CorruptKind, agree, field, mismatch};
use crate::crc;
use crate::features::{features2, incompat, ro_compat, version};
use crate::geometry::{AG_BLOCKS_MIN, Geometry};
use crate::ids::Ino;
use crate::num::{log2_up, shl};
use crate::sb::{MAGIC, SUPERBLOCK_BYTES, Superblock};

/// Sectors that the format allows.
pub const SECTOR_BYTES: Rule = Rule::Between(512, 32768);
/// Blocks that the format allows; V5 needs 1024.
const BLOCK_BYTES: Rule = Rule::Between(512, 65536);
/// Inodes that the format allows; V5 needs 512.
pub const INODE_BYTES: Rule = Rule::Between(256, 2048);
/// Blocks of directories are no larger than this.
const DIR_BLOCK_LOG_MAX: u64 = 16;
/// The most that a stripe of the log may take.
pub const LOG_STRIPE_BYTES_MAX: u64 = 256 << 10;
/// Realtime extents: from 4 KiB to 1 GiB.
const REALTIME_EXTENT_BYTES: Rule = Rule::Between(4 << 10, 1 << 30);

/// Why bytes are no superblock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SuperblockError {
    /// Fewer bytes than a superblock.
    #[error("{found} bytes are too short for a superblock")]
    Short {
        /// Bytes given.
        found: usize,
    },
    /// The magic number is missing: no XFS volume.
    #[error("no XFS superblock: its magic is missing")]
    Magic,
    /// A version that is not 4 or 5. Older ones have other structures.
    #[error("superblock: version {found}, expected 4 or 5")]
    Version {
        /// The value found.
        found: u8,
    },
    /// The checksum is not that of the bytes.
    #[error("superblock: bad checksum: stored {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// In the superblock.
        stored: u32,
        /// Of the bytes.
        computed: u32,
    },
    /// A field is wrong.
    #[error("superblock: {0}")]
    Corrupt(CorruptKind),
    /// V5 without a feature that it makes mandatory.
    #[error("superblock: version 5 without {names}")]
    MissingFeatures {
        /// The features' names.
        names: String,
    },
}

impl Geometry {
    /// Of a superblock, which is checked first. Errors: those of [`Superblock::check`].
    pub fn new(sb: &Superblock) -> Result<Self, SuperblockError> {
        sb.check()?;
        Ok(Self::unchecked(sb))
    }
}

impl Superblock {
    /// Checks the superblock of group 0 in the head of `bytes`, which must hold its whole sector.
    /// Whether its features are supported is another question: [`Superblock::access`].
    pub fn verify(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let sb = Self::verify_copy(bytes)?;
        sb.check_primary()
            .map_err(|fault| SuperblockError::Corrupt(fault.kind))?;
        Ok(sb)
    }

    fn check_primary(&self) -> Checked {
        field("inprogress", self.inprogress, Rule::Equal(0))?;
        if Geometry::unchecked(self).is_inode(Ino(self.rootino.get())) {
            return Ok(());
        }
        Err(mismatch("rootino", self.rootino, "an inode of the volume"))
    }

    /// As [`Superblock::verify`], for the copy of any group: there mkfs leaves its mark, and
    /// neither inodes nor counters.
    pub fn verify_copy(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let Ok((sb, _)) = Self::read_from_prefix(bytes) else {
            return Err(SuperblockError::Short { found: bytes.len() });
        };
        if sb.magicnum.get() != MAGIC {
            return Err(SuperblockError::Magic);
        }
        if sb.is_v5() {
            // The size of the sector is a part of what the checksum covers: a wrong one fails there.
            let sector_bytes = usize::from(sb.sectsize.get());
            let Some(sector) = bytes.get(..sector_bytes).filter(|s| s.len() >= SUPERBLOCK_BYTES) else {
                return Err(SuperblockError::Short { found: bytes.len() });
            };
            let stored = crc::stored(sector, CRC_AT).unwrap_or_default();
            let computed = crc::compute(sector, CRC_AT).unwrap_or_default();
            if stored != computed {
                return Err(SuperblockError::Crc { stored, computed });
            }
        }
        sb.check()?;
        Ok(sb)
    }

    /// Checks a superblock that is about to be written, its counters included, and gives the
    /// sector with its checksum. Errors: what [`Superblock::verify`] refuses, and counters beyond
    /// what the volume has.
    pub fn seal(&self) -> Result<Vec<u8>, SuperblockError> {
        self.check()?;
        self.check_counters()
            .map_err(|fault| SuperblockError::Corrupt(fault.kind))?;
        let mut sector = self.as_bytes().to_vec();
        sector.resize(usize::from(self.sectsize.get()), 0);
        if self.is_v5() {
            crc::store(&mut sector, CRC_AT);
        }
        Ok(sector)
    }

    /// Checks all fields but magic, checksum and counters, which are stale on a volume that was
    /// not closed.
    pub fn check(&self) -> Result<(), SuperblockError> {
        let found = self.version();
        if found != 4 && found != 5 {
            return Err(SuperblockError::Version { found });
        }
        if self.is_v5() {
            let missing = self.missing_v5_bits();
            if !missing.is_empty() {
                return Err(SuperblockError::MissingFeatures {
                    names: missing.join(", "),
                });
            }
        }
        self.check_fields()
            .map_err(|fault| SuperblockError::Corrupt(fault.kind))
    }

    fn check_fields(&self) -> Checked {
        self.check_sizes()?;
        self.check_groups()?;
        self.check_log()?;
        self.check_stripes()?;
        self.check_realtime()?;
        self.check_features()?;
        self.check_inodes()
    }

    fn check_sizes(&self) -> Checked {
        let (block, sector, inode) = (
            u64::from(self.blocksize.get()),
            u64::from(self.sectsize.get()),
            u64::from(self.inodesize.get()),
        );
        field("sectsize", sector, Rule::PowerOfTwo)?;
        field("sectsize", sector, SECTOR_BYTES)?;
        field("sectlog", self.sectlog, Rule::Equal(log2_up(sector).into()))?;
        field("blocksize", block, Rule::PowerOfTwo)?;
        field("blocksize", block, BLOCK_BYTES)?;
        field("blocksize", block, Rule::AtLeast(sector))?;
        field("blocklog", self.blocklog, Rule::Equal(log2_up(block).into()))?;
        field("inodesize", inode, Rule::PowerOfTwo)?;
        field("inodesize", inode, INODE_BYTES)?;
        if self.is_v5() {
            field("blocksize", block, Rule::AtLeast(1024))?;
            field("inodesize", inode, Rule::AtLeast(512))?;
        }
        field("inodesize", inode, Rule::AtMost(block >> 1))?;
        field("inodelog", self.inodelog, Rule::Equal(log2_up(inode).into()))?;
        let per_block = block.checked_div(inode).unwrap_or_default();
        field("inopblock", self.inopblock.get(), Rule::Equal(per_block))?;
        field("inopblog", self.inopblog, Rule::Equal(log2_up(per_block).into()))?;
        let dir_block_log = u64::from(self.blocklog).saturating_add(self.dirblklog.into());
        field("dirblklog", dir_block_log, Rule::AtMost(DIR_BLOCK_LOG_MAX))?;
        field("inprogress", self.inprogress, Rule::AtMost(1))?;
        field("imax_pct", self.imax_pct, Rule::AtMost(100))
    }

    fn check_groups(&self) -> Checked {
        let (count, blocks) = (u64::from(self.agcount.get()), u64::from(self.agblocks.get()));
        field("agcount", count, Rule::NonZero)?;
        field("agblocks", blocks, Rule::AtLeast(AG_BLOCKS_MIN.into()))?;
        // An allocation group is not larger than 1 TiB.
        let ag_bytes = blocks.saturating_mul(self.blocksize.get().into());
        field("agblocks", ag_bytes, Rule::AtMost(1 << 40))?;
        field("agblklog", self.agblklog, Rule::Equal(log2_up(blocks).into()))?;
        // The last group may be shorter.
        let others = count.saturating_sub(1).saturating_mul(blocks);
        let least = others.saturating_add(AG_BLOCKS_MIN.into());
        field(
            "dblocks",
            self.dblocks.get(),
            Rule::Between(least, count.saturating_mul(blocks)),
        )
    }

    fn check_log(&self) -> Checked {
        field("logblocks", self.logblocks.get(), Rule::NonZero)?;
        if self.has_version_bit(version::SECTOR) || self.logsectsize.get() != 0 {
            let bytes = u64::from(self.logsectsize.get());
            field("logsectsize", bytes, Rule::PowerOfTwo)?;
            field("logsectsize", bytes, SECTOR_BYTES)?;
            field("logsectlog", self.logsectlog, Rule::Equal(log2_up(bytes).into()))?;
        } else {
            field("logsectlog", self.logsectlog, Rule::Equal(0))?;
        }
        if self.has_version_bit(version::LOGV2) {
            // 0 and 1 mean that there is none.
            let unit = u64::from(self.logsunit.get());
            field("logsunit", unit, Rule::AtMost(LOG_STRIPE_BYTES_MAX))?;
            if unit > 1 {
                field("logsunit", unit, Rule::MultipleOf(self.blocksize.get().into()))?;
            }
        }
        if !self.has_internal_log() {
            return Ok(());
        }
        let geometry = Geometry::unchecked(self);
        let blocks = u64::from(self.logblocks.get());
        let place = geometry.split(crate::FsBlock(self.logstart.get()));
        let Some((group, first)) = place else {
            return Err(mismatch("logstart", self.logstart, "a block of the volume"));
        };
        let end = u64::from(first.get()).saturating_add(blocks);
        field("logblocks", end, Rule::AtMost(geometry.ag_len(group).into()))
    }

    fn check_stripes(&self) -> Checked {
        let (unit, width) = (u64::from(self.unit.get()), u64::from(self.width.get()));
        if self.has_version_bit(version::DALIGN) {
            field("unit", unit, Rule::NonZero)?;
        } else {
            field("unit", unit, Rule::Equal(0))?;
        }
        if unit == 0 {
            return field("width", width, Rule::Equal(0));
        }
        field("width", width, Rule::MultipleOf(unit))
    }

    fn check_realtime(&self) -> Checked {
        let extent_bytes = u64::from(self.rextsize.get()).saturating_mul(self.blocksize.get().into());
        field("rextsize", extent_bytes, REALTIME_EXTENT_BYTES)?;
        if self.rblocks.get() == 0 {
            field("rextents", self.rextents.get(), Rule::Equal(0))?;
            return field("rbmblocks", self.rbmblocks.get(), Rule::Equal(0));
        }
        let extents = self
            .rblocks
            .get()
            .checked_div(self.rextsize.get().into())
            .unwrap_or_default();
        field("rextents", self.rextents.get(), Rule::Equal(extents))
    }

    fn check_features(&self) -> Checked {
        field(
            "versionnum",
            u64::from(self.versionnum.get()),
            Rule::KnownBits(version::KNOWN | version::NUMBER_MASK),
        )?;
        if !self.is_v5() {
            let crc = u64::from(self.features2.get()) & features2::CRC;
            return field("features2", crc, Rule::Equal(0));
        }
        agree(
            !self.has_incompat(incompat::EXCHRANGE | incompat::PARENT) || self.has_incompat(incompat::FTYPE),
            "features_incompat has EXCHRANGE or PARENT without FTYPE",
        )?;
        agree(
            !self.has_ro_compat(ro_compat::INOBTCNT) || self.has_ro_compat(ro_compat::FINOBT),
            "features_ro_compat has INOBTCNT without FINOBT",
        )?;
        if self.has_incompat(incompat::SPINODES) && self.spino_align.get() != 0 {
            let (align, whole) = (u64::from(self.spino_align.get()), u64::from(self.inoalignmt.get()));
            field("spino_align", align, Rule::Between(1, whole))?;
        }
        Ok(())
    }

    fn check_inodes(&self) -> Checked {
        let geometry = Geometry::unchecked(self);
        for (name, ino) in [
            ("rootino", self.rootino.get()),
            ("rbmino", self.rbmino.get()),
            ("rsumino", self.rsumino.get()),
            ("uquotino", self.uquotino.get()),
            ("gquotino", self.gquotino.get()),
            ("pquotino", if self.is_v5() { self.pquotino.get() } else { 0 }),
        ] {
            let is_none = ino == Ino::NULL || ino == 0;
            if !(geometry.is_inode(Ino(ino)) || is_none) {
                return Err(mismatch(name, ino, "an inode of the volume"));
            }
        }
        if self.has_incompat(incompat::METADIR) && !geometry.is_inode(Ino(self.metadirino.get())) {
            return Err(mismatch("metadirino", self.metadirino, "an inode of the volume"));
        }
        Ok(())
    }

    fn check_counters(&self) -> Checked {
        field("fdblocks", self.fdblocks.get(), Rule::AtMost(self.dblocks.get()))?;
        field("ifree", self.ifree.get(), Rule::AtMost(self.icount.get()))?;
        let inodes_max = shl(self.dblocks.get(), self.inopblog);
        field("icount", self.icount.get(), Rule::AtMost(inodes_max))
    }
}

/// Where the checksum lies.
pub(crate) const CRC_AT: usize = core::mem::offset_of!(Superblock, crc);
