//! The root of a file's tree, in its inode: a header of four bytes, keys and pointers, both packed
//! by the room of the fork.

use cowshed_layout::{Rule, on_disk};
use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::kind::{BlockPtr, Bmap, children_in};
use super::record::BmapKey;
use super::shape::BMAP_LEVELS_MAX;
use super::verify;
use crate::corrupt::{Checked, Fault, field, mismatch, truncated};
use crate::geometry::Geometry;
use crate::view;

on_disk!(
    /// `xfs_bmdr_block`.
    /// docs/format/xfs/btrees.md
    BmdrHeader(4) { level: U16, numrecs: U16 }
);

/// Bytes before the keys.
pub const BMDR_HEADER_BYTES: usize = size_of::<BmdrHeader>();

/// The root of a fork's tree; it is a node always.
#[derive(Clone, Copy, Debug)]
pub struct BmdrRoot<'a> {
    /// The level, from 1.
    pub level: u8,
    /// The least key of each child.
    pub keys: &'a [BmapKey],
    /// The children.
    pub pointers: &'a [U64],
}

impl<'a> BmdrRoot<'a> {
    /// Reads the root from a fork. `None` where it does not fit.
    pub fn read(fork: &'a [u8]) -> Option<Self> {
        let header = view::at::<BmdrHeader>(fork, 0)?;
        let count = header.numrecs.get().into();
        let room = fork.len().saturating_sub(BMDR_HEADER_BYTES);
        if count > children_in::<Bmap>(room) {
            return None;
        }
        Some(Self {
            level: u8::try_from(header.level.get()).ok()?,
            keys: view::slice(fork, BMDR_HEADER_BYTES, count)?,
            pointers: view::slice(fork, verify::pointers_at::<Bmap>(BMDR_HEADER_BYTES, room), count)?,
        })
    }

    pub(crate) fn check(fork: &[u8], geometry: &Geometry) -> Checked {
        let short = || -> Fault { truncated("root of the bmbt", BMDR_HEADER_BYTES, fork.len()) };
        let header = view::at::<BmdrHeader>(fork, 0).ok_or_else(short)?;
        field(
            "bmbt.level",
            header.level.get(),
            Rule::Between(1, u64::from(BMAP_LEVELS_MAX.saturating_sub(1))),
        )?;
        let most = children_in::<Bmap>(fork.len().saturating_sub(BMDR_HEADER_BYTES));
        let most = u64::try_from(most).unwrap_or_default();
        field("bmbt.numrecs", header.numrecs.get(), Rule::Between(1, most))?;
        let root = BmdrRoot::read(fork).ok_or_else(short)?;
        verify::check_keys::<Bmap>(root.keys)?;
        for (slot, pointer) in root.pointers.iter().enumerate() {
            if !pointer.is_block(geometry, None) {
                return Err(mismatch("bmbt.ptr", pointer.number(), "a block of the volume").in_slot(slot));
            }
        }
        Ok(())
    }
}

/// Lays a root out in a fork of `fork_bytes`. `None` where it does not fit.
pub fn build_bmdr_root(root: &BmdrRoot<'_>, fork_bytes: usize) -> Option<Vec<u8>> {
    let room = fork_bytes.checked_sub(BMDR_HEADER_BYTES)?;
    if root.keys.len() != root.pointers.len() || root.keys.len() > children_in::<Bmap>(room) {
        return None;
    }
    let header = BmdrHeader {
        level: U16::new(root.level.into()),
        numrecs: U16::new(u16::try_from(root.keys.len()).ok()?),
    };
    let mut bytes = vec![0; fork_bytes];
    let at = verify::pointers_at::<Bmap>(BMDR_HEADER_BYTES, room);
    let fits = view::put(&mut bytes, 0, header.as_bytes())
        && view::put(&mut bytes, BMDR_HEADER_BYTES, root.keys.as_bytes())
        && view::put(&mut bytes, at, root.pointers.as_bytes());
    fits.then_some(bytes)
}
