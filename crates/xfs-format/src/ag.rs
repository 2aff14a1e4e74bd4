//! The headers of an allocation group: free space (AGF), inodes (AGI), spare blocks for B-trees
//! (AGFL). One sector each.

mod verify;

use std::mem::offset_of;

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use cowshed_layout::on_disk;

use crate::header::{Expect, Identity, Kind, Magic, OwnerField, stamp, verified_block};
use crate::ids::{AgBlock, Uuid};
use crate::num::to_len;
use crate::view;

on_disk!(
    /// `xfs_agf`: free space.
    /// docs/format/xfs/allocation-groups.md
    Agf(224) {
        magicnum: U32,
        versionnum: U32,
        seqno: U32,
        length: U32,
        bnoroot: U32,
        cntroot: U32,
        rmaproot: U32,
        bnolevel: U32,
        cntlevel: U32,
        rmaplevel: U32,
        flfirst: U32,
        fllast: U32,
        flcount: U32,
        freeblks: U32,
        longest: U32,
        btreeblks: U32,
        uuid: Uuid,
        rmapblocks: U32,
        refcntblocks: U32,
        refcntroot: U32,
        refcntlevel: U32,
        spare64: [U64; 14],
        lsn: U64,
        crc: [u8; 4],
        spare2: U32,
    }
);
/// Lists of unlinked inodes in an AGI.
pub const UNLINKED_BUCKETS: usize = 64;
on_disk!(
    /// `xfs_agi`: inodes.
    /// docs/format/xfs/allocation-groups.md
    Agi(344) {
        magicnum: U32,
        versionnum: U32,
        seqno: U32,
        length: U32,
        count: U32,
        root: U32,
        level: U32,
        freecount: U32,
        newino: U32,
        dirino: U32,
        unlinked: [U32; UNLINKED_BUCKETS],
        uuid: Uuid,
        crc: [u8; 4],
        pad32: U32,
        lsn: U64,
        free_root: U32,
        free_level: U32,
        ino_blocks: U32,
        fino_blocks: U32,
    }
);
on_disk!(
    /// `xfs_agfl`: the header of the list of spare blocks, on V5. On V4 the list begins at once.
    /// docs/format/xfs/allocation-groups.md
    AgflHeader(36) {
        magicnum: U32,
        seqno: U32,
        uuid: Uuid,
        lsn: U64,
        crc: [u8; 4],
    }
);
const _: () = assert!(offset_of!(Agf, lsn) == 208 && offset_of!(Agi, uuid) == 296 && offset_of!(Agi, lsn) == 320);

/// `XAGF`.
pub const AGF_MAGIC: u32 = 0x5841_4746;
/// `XAGI`.
pub const AGI_MAGIC: u32 = 0x5841_4749;
/// `XAFL`.
pub const AGFL_MAGIC: u32 = 0x5841_464c;
/// Bytes before the block numbers of an AGFL, on V5.
pub const AGFL_HEADER_BYTES: usize = size_of::<AgflHeader>();
/// `versionnum` of AGF and AGI.
const AG_VERSION: u64 = 1;

fn agf_kind(is_v5: bool) -> Kind {
    Kind {
        name: "AGF",
        magic: Some(Magic::Wide(offset_of!(Agf, magicnum), AGF_MAGIC)),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(Agf, crc),
            uuid: offset_of!(Agf, uuid),
            lsn: Some(offset_of!(Agf, lsn)),
            daddr: None,
            owner: Some(OwnerField::Ag(offset_of!(Agf, seqno))),
        }),
    }
}
fn agi_kind(is_v5: bool) -> Kind {
    Kind {
        name: "AGI",
        magic: Some(Magic::Wide(offset_of!(Agi, magicnum), AGI_MAGIC)),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(Agi, crc),
            uuid: offset_of!(Agi, uuid),
            lsn: Some(offset_of!(Agi, lsn)),
            daddr: None,
            owner: Some(OwnerField::Ag(offset_of!(Agi, seqno))),
        }),
    }
}
fn agfl_kind(is_v5: bool) -> Kind {
    Kind {
        name: "AGFL",
        magic: is_v5.then_some(Magic::Wide(offset_of!(AgflHeader, magicnum), AGFL_MAGIC)),
        identity: is_v5.then_some(Identity {
            crc: offset_of!(AgflHeader, crc),
            uuid: offset_of!(AgflHeader, uuid),
            lsn: Some(offset_of!(AgflHeader, lsn)),
            daddr: None,
            owner: Some(OwnerField::Ag(offset_of!(AgflHeader, seqno))),
        }),
    }
}

fn sector(geometry: &crate::Geometry) -> u32 {
    geometry.sector_bytes
}

verified_block!(
    /// A verified AGF.
    AgfSector { kind: agf_kind, size: sector, check: verify::agf }
);
verified_block!(
    /// A verified AGI.
    AgiSector { kind: agi_kind, size: sector, check: verify::agi }
);
verified_block!(
    /// A verified AGFL. Which of its slots are in use, the AGF says.
    AgflSector { kind: agfl_kind, size: sector, check: verify::agfl }
);

/// A sector that begins with the structure.
fn sector_of(header: &[u8], expect: &Expect<'_>) -> Vec<u8> {
    let mut bytes = header.to_vec();
    bytes.resize(to_len(expect.geometry.sector_bytes.into()), 0);
    bytes
}

impl AgfSector {
    /// The structure.
    #[allow(clippy::expect_used, reason = "a verified sector holds it")]
    pub fn agf(&self) -> &Agf {
        view::at(&self.bytes, 0).expect("a verified AGF is a sector long")
    }
    /// The bytes of a sector, ready to be sealed: magic, uuid and number come from
    /// `expect`.
    pub fn build(agf: &Agf, expect: &Expect<'_>) -> Vec<u8> {
        let mut bytes = sector_of(agf.as_bytes(), expect);
        stamp(&agf_kind(expect.geometry.is_v5()), &mut bytes, expect);
        bytes
    }
}

impl AgiSector {
    /// The structure.
    #[allow(clippy::expect_used, reason = "a verified sector holds it")]
    pub fn agi(&self) -> &Agi {
        view::at(&self.bytes, 0).expect("a verified AGI is a sector long")
    }
    /// The bytes of a sector, ready to be sealed: magic, uuid and number come from
    /// `expect`.
    pub fn build(agi: &Agi, expect: &Expect<'_>) -> Vec<u8> {
        let mut bytes = sector_of(agi.as_bytes(), expect);
        stamp(&agi_kind(expect.geometry.is_v5()), &mut bytes, expect);
        bytes
    }
}

impl AgflSector {
    /// The header, on V5.
    pub fn header(&self) -> Option<&AgflHeader> {
        self.is_v5.then(|| view::at(&self.bytes, 0)).flatten()
    }
    /// All slots, used or not.
    pub fn slots(&self) -> &[U32] {
        let start = if self.is_v5 { AGFL_HEADER_BYTES } else { 0 };
        let count = self.bytes.len().saturating_sub(start) >> 2;
        view::slice(&self.bytes, start, count).unwrap_or_default()
    }
    /// The spare blocks in their order: the list runs around the end of the slots.
    pub fn blocks(&self, agf: &Agf) -> Vec<AgBlock> {
        let slots = self.slots();
        let first = to_len(agf.flfirst.get().into());
        let count = to_len(agf.flcount.get().into()).min(slots.len());
        let mut ring = slots.iter().cycle().skip(first.min(slots.len()));
        ring.by_ref().take(count).map(|slot| AgBlock(slot.get())).collect()
    }
    /// The bytes of a sector with these slots, ready to be sealed; slots that are missing are
    /// empty.
    pub fn build(slots: &[AgBlock], expect: &Expect<'_>) -> Vec<u8> {
        let start = if expect.geometry.is_v5() { AGFL_HEADER_BYTES } else { 0 };
        let mut bytes = vec![0; start];
        let count = to_len(expect.geometry.agfl_slots().into());
        let empty = AgBlock(AgBlock::NULL);
        for slot in slots.iter().chain(std::iter::repeat(&empty)).take(count) {
            bytes.extend_from_slice(&slot.get().to_be_bytes());
        }
        let mut bytes = sector_of(&bytes, expect);
        stamp(&agfl_kind(expect.geometry.is_v5()), &mut bytes, expect);
        bytes
    }
}

/// How many levels the B-trees of an allocation group may have; no volume comes near it.
pub const AG_BTREE_LEVELS_MAX: u64 = 9;
