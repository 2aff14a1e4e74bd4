//! What a file keeps in memory: dirty ranges, what write-back has in flight, errors of write-back,
//! where reads go on.
//!
//! Passive: nothing here does I/O or knows an inode.

mod ahead;
mod appended;
mod data;
mod dirty;
mod failures;

pub(crate) use ahead::EXTENTS_MAX;
pub(crate) use data::FileData;
pub(crate) use data::{DataState, Flight};
pub(crate) use dirty::{DirtyMap, free_spares, recycle};
pub(crate) use failures::Failures;
pub(crate) use failures::Opened;
