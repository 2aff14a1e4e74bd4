//! The headers of an allocation group: free space (AGF), inodes (AGI), spare blocks for B-trees
//! (AGFL). One sector each.

mod sectors;
mod verify;

use std::mem::offset_of;

use zerocopy::IntoBytes;
use zerocopy::big_endian::U32;

use crate::header::{Expect, Identity, Kind, Magic, OwnerField, stamp, verified_block};
use crate::ids::AgBlock;
use crate::num::to_len;
use crate::view;

pub use sectors::{
    AG_BTREE_LEVELS_MAX, AGF_MAGIC, AGFL_HEADER_BYTES, AGFL_MAGIC, AGI_MAGIC, Agf, AgflHeader, Agi, UNLINKED_BUCKETS,
};

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
