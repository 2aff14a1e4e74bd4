//! Parent pointers: an attribute for each link. Its name is that of the entry, its value says which
//! directory.

use cowshed_layout::on_disk;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::geometry::Geometry;
use crate::ids::Ino;

on_disk!(
    /// `xfs_parent_rec`: the value of a parent pointer.
    /// docs/format/xfs/attributes.md
    ParentRecord(12) { p_ino: U64, p_gen: U32 }
);

/// The directory of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ParentPointer {
    /// The directory's inode.
    pub ino: Ino,
    /// The directory's generation.
    pub generation: u32,
}

impl ParentPointer {
    /// From an attribute's value. `None` where its size is another one.
    pub fn read(value: &[u8]) -> Option<Self> {
        let record = ParentRecord::ref_from_bytes(value).ok()?;
        Some(Self {
            ino: Ino(record.p_ino.get()),
            generation: record.p_gen.get(),
        })
    }
    /// As an attribute's value.
    pub fn to_value(self) -> [u8; size_of::<ParentRecord>()] {
        zerocopy::transmute!(ParentRecord {
            p_ino: U64::new(self.ino.get()),
            p_gen: U32::new(self.generation),
        })
    }
}

/// The hash of a parent pointer: that of the name in a directory, with the parent's number mixed
/// in, so that the same name in many directories makes no collisions.
pub fn parent_hash(name: &[u8], parent: Ino, geometry: &Geometry) -> u32 {
    let high = u32::try_from(parent.get() >> 32).unwrap_or_default();
    let low = u32::try_from(parent.get() & 0xffff_ffff).unwrap_or_default();
    geometry.dir_name_hash(name) ^ high ^ low
}
