//! The superblock's structure, and what its fields say by themselves. [`crate::superblock`] checks
//! it.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use cowshed_layout::on_disk;

use crate::features::{features2, incompat, version};
use crate::ids::{Lsn, Uuid};

/// `magicnum`: `XFSB`.
pub const MAGIC: u32 = 0x5846_5342;
/// Bytes of the structure; the rest of its sector is zero.
pub const SUPERBLOCK_BYTES: usize = size_of::<Superblock>();

on_disk!(
    /// `xfs_dsb`.
    /// docs/format/xfs/superblock.md
    Superblock(304) {
        magicnum: U32,
        blocksize: U32,
        dblocks: U64,
        rblocks: U64,
        rextents: U64,
        uuid: Uuid,
        logstart: U64,
        rootino: U64,
        rbmino: U64,
        rsumino: U64,
        rextsize: U32,
        agblocks: U32,
        agcount: U32,
        rbmblocks: U32,
        logblocks: U32,
        versionnum: U16,
        sectsize: U16,
        inodesize: U16,
        inopblock: U16,
        fname: [u8; 12],
        blocklog: u8,
        sectlog: u8,
        inodelog: u8,
        inopblog: u8,
        agblklog: u8,
        rextslog: u8,
        inprogress: u8,
        imax_pct: u8,
        icount: U64,
        ifree: U64,
        fdblocks: U64,
        frextents: U64,
        uquotino: U64,
        gquotino: U64,
        qflags: U16,
        flags: u8,
        shared_vn: u8,
        inoalignmt: U32,
        unit: U32,
        width: U32,
        dirblklog: u8,
        logsectlog: u8,
        logsectsize: U16,
        logsunit: U32,
        features2: U32,
        bad_features2: U32,
        features_compat: U32,
        features_ro_compat: U32,
        features_incompat: U32,
        features_log_incompat: U32,
        crc: [u8; 4],
        spino_align: U32,
        pquotino: U64,
        lsn: U64,
        meta_uuid: Uuid,
        metadirino: U64,
        rgcount: U32,
        rgextents: U32,
        rgblklog: u8,
        pad: [u8; 7],
        rtstart: U64,
        rtreserved: U64,
    }
);
const _: () = assert!(core::mem::offset_of!(Superblock, versionnum) == 100);
const _: () = assert!(core::mem::offset_of!(Superblock, blocklog) == 120);
const _: () = assert!(core::mem::offset_of!(Superblock, icount) == 128);
const _: () = assert!(core::mem::offset_of!(Superblock, qflags) == 176);
const _: () = assert!(core::mem::offset_of!(Superblock, features2) == 200);
const _: () = assert!(core::mem::offset_of!(Superblock, crc) == 224);
const _: () = assert!(core::mem::offset_of!(Superblock, meta_uuid) == 248);
const _: () = assert!(core::mem::offset_of!(Superblock, metadirino) == 264);

impl Superblock {
    /// The version's number: 4 or 5 on volumes that are read.
    pub fn version(&self) -> u8 {
        u8::try_from(u64::from(self.versionnum.get()) & version::NUMBER_MASK).unwrap_or_default()
    }
    /// True where metadata has checksums and says where it belongs.
    pub fn is_v5(&self) -> bool {
        self.version() == 5
    }
    /// A bit of [`version`].
    pub fn has_version_bit(&self, bit: u64) -> bool {
        u64::from(self.versionnum.get()) & bit != 0
    }
    /// A bit of [`features2`]; V4 has them where `MOREBITS` is set.
    pub fn has_features2(&self, bit: u64) -> bool {
        self.has_version_bit(version::MOREBITS) && u64::from(self.features2.get()) & bit != 0
    }
    /// A bit of [`crate::features::ro_compat`]; V4 has none.
    pub fn has_ro_compat(&self, bit: u64) -> bool {
        self.is_v5() && u64::from(self.features_ro_compat.get()) & bit != 0
    }
    /// A bit of [`incompat`]; V4 has none.
    pub fn has_incompat(&self, bit: u64) -> bool {
        self.is_v5() && u64::from(self.features_incompat.get()) & bit != 0
    }
    /// True where entries of directories hold the type of the file.
    pub fn has_ftype(&self) -> bool {
        self.has_incompat(incompat::FTYPE) || (!self.is_v5() && self.has_features2(features2::FTYPE))
    }
    /// The uuid that metadata carries: `meta_uuid` where that feature is on, else `uuid`.
    pub fn metadata_uuid(&self) -> Uuid {
        if self.has_incompat(incompat::META_UUID) {
            self.meta_uuid
        } else {
            self.uuid
        }
    }
    /// The label, without the zeros that fill it up.
    pub fn label(&self) -> &[u8] {
        self.fname.split(|&byte| byte == 0).next().unwrap_or_default()
    }
    /// The last change of the superblock that went through the log.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.lsn.get())
    }
    /// True where the log lies on the data device.
    pub fn has_internal_log(&self) -> bool {
        self.logstart.get() != 0
    }
}
