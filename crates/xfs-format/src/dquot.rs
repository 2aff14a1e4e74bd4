//! Quotas of a user, group or project: limits and usage, at a place that the id gives.

use std::mem::offset_of;

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::corrupt::{Checked, Corrupt, agree, field, mismatch, truncated};
use crate::features::incompat;
use crate::geometry::Geometry;
use crate::header::{Expect, Identity, Kind, Magic, stamp};
use crate::ids::{Lsn, Uuid};
use crate::num::to_len;
use crate::view;

on_disk!(
    /// `xfs_disk_dquot`: what the log has, too.
    /// docs/format/xfs/quota.md
    DiskDquot(104) {
        magic: U16,
        version: u8,
        quota_type: u8,
        id: U32,
        blk_hardlimit: U64,
        blk_softlimit: U64,
        ino_hardlimit: U64,
        ino_softlimit: U64,
        bcount: U64,
        icount: U64,
        itimer: U32,
        btimer: U32,
        iwarns: U16,
        bwarns: U16,
        pad0: U32,
        rtb_hardlimit: U64,
        rtb_softlimit: U64,
        rtbcount: U64,
        rtbtimer: U32,
        rtbwarns: U16,
        pad: U16,
    }
);
on_disk!(
    /// `xfs_dqblk`: a quota as it lies in its block. V4 uses the first field alone.
    /// docs/format/xfs/quota.md
    DquotBlock(136) {
        diskdq: DiskDquot,
        fill: [u8; 4],
        crc: [u8; 4],
        lsn: U64,
        uuid: Uuid,
    }
);

/// `magic`: `DQ`.
pub const DQUOT_MAGIC: u16 = 0x4451;
const DQUOT_VERSION: u64 = 1;

/// Values and flags of `type`.
pub mod dquot_type {
    /// A user.
    pub const USER: u8 = 1;
    /// A project.
    pub const PROJECT: u8 = 2;
    /// A group.
    pub const GROUP: u8 = 4;
    /// Timers count units of four seconds.
    pub const BIGTIME: u8 = 0x80;
}

fn kind(is_v5: bool) -> Kind {
    Kind {
        name: "dquot",
        magic: Some(Magic::Narrow(offset_of!(DiskDquot, magic), DQUOT_MAGIC)),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(DquotBlock, crc),
            uuid: offset_of!(DquotBlock, uuid),
            lsn: Some(offset_of!(DquotBlock, lsn)),
            daddr: None,
            owner: None,
        }),
    }
}

const DQUOT_BYTES: u32 = 136;
const _: () = assert!(size_of::<DquotBlock>() == 136);

/// Quotas in a block.
pub fn dquots_per_block(geometry: &Geometry) -> u32 {
    geometry.block_bytes / DQUOT_BYTES
}

/// Checks the fields of a quota; `id` is that of its place, where that is known.
pub fn check_dquot(dquot: &DiskDquot, id: Option<u32>, geometry: &Geometry) -> Result<(), Corrupt> {
    check(dquot, id, geometry).map_err(|fault| fault.at(crate::Site::of("dquot")))
}

fn check(dquot: &DiskDquot, id: Option<u32>, geometry: &Geometry) -> Checked {
    field("version", dquot.version, Rule::Equal(DQUOT_VERSION))?;
    let has_bigtime = dquot.quota_type & dquot_type::BIGTIME != 0;
    let which = dquot.quota_type & !dquot_type::BIGTIME;
    // A block that was only allocated has zeros.
    field("type", which, Rule::OneOf(&[0, 1, 2, 4]))?;
    agree(
        !has_bigtime || geometry.has_incompat(incompat::BIGTIME),
        "type has BIGTIME, the volume has not",
    )?;
    agree(!has_bigtime || dquot.id.get() != 0, "type of id 0 has BIGTIME")?;
    match id {
        Some(id) if dquot.id.get() != id => Err(mismatch("id", dquot.id, id)),
        _ => Ok(()),
    }
}

impl DquotBlock {
    /// Verifies the bytes of one quota, cut out of its block; `id` is that of its place. Errors:
    /// the first fault found.
    pub fn verify(bytes: &[u8], expect: &Expect<'_>, id: Option<u32>) -> Result<Self, Corrupt> {
        crate::header::verify(
            &kind(expect.geometry.is_v5()),
            bytes,
            DQUOT_BYTES,
            expect,
            |bytes| match view::at::<Self>(bytes, 0) {
                Some(block) => check(&block.diskdq, id, expect.geometry),
                None => Err(truncated("dquot", to_len(DQUOT_BYTES.into()), bytes.len())),
            },
        )?;
        let short = || truncated("dquot", to_len(DQUOT_BYTES.into()), bytes.len()).at(expect.site("dquot"));
        Self::read_from_bytes(bytes).map_err(|_| short())
    }

    /// Checks a quota as if it came from a device, stamps `lsn`, and stores the checksum. Errors:
    /// what [`Self::verify`] refuses.
    pub fn seal(dquot: &DiskDquot, expect: &Expect<'_>, lsn: Lsn) -> Result<Vec<u8>, Corrupt> {
        let mut bytes = dquot.as_bytes().to_vec();
        bytes.resize(to_len(DQUOT_BYTES.into()), 0);
        let kind = kind(expect.geometry.is_v5());
        stamp(&kind, &mut bytes, expect);
        crate::header::seal(&kind, &mut bytes, DQUOT_BYTES, expect, lsn, |_| {
            check(dquot, None, expect.geometry)
        })?;
        Ok(bytes)
    }
}
