//! A volume whose structures are compared with what xfs_db prints of them.

use std::collections::BTreeMap;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::Volume;
use super::lab::Lab;

/// A volume, and how many structures of each kind were compared.
pub struct Judge {
    pub lab: Lab,
    pub volume: Volume,
    pub compared: BTreeMap<&'static str, usize>,
}

impl Judge {
    pub fn new(lab: Lab) -> Self {
        let volume = Volume::open(&lab.image);
        Self {
            lab,
            volume,
            compared: BTreeMap::new(),
        }
    }

    pub fn note(&mut self, kind: &'static str) {
        *self.compared.entry(kind).or_default() += 1;
    }

    /// Fails unless at least one structure of each kind was compared.
    #[track_caller]
    pub fn need(&self, kinds: &[&str]) {
        for kind in kinds {
            assert!(self.compared.contains_key(kind), "no {kind}: {:?}", self.compared);
        }
    }
}

/// The structure at the start of a block.
pub fn head<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8]) -> &T {
    T::ref_from_prefix(bytes).unwrap().0
}

pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// xfs_db shows the bytes of a checksum as they lie.
pub fn crc(bytes: [u8; 4]) -> i128 {
    u32::from_be_bytes(bytes).into()
}
