//! File data: extents, dirty ranges, write-back, holes, clones.
//!
//! Writes land in an inode's dirty ranges ([`dirty`]); write-back turns them into extents on disk
//! and items in one batch ([`writeback`]); whatever changes a file's extent items does so through
//! one range-replace ([`replace`]).
//!
//! Written in place are preallocated extents, in every file, and data of files marked nodatacow, as
//! long as they are not shared ([`sharing`]); all else goes to new extents.
//!
//! Locks: [`btrfs_store::rank`].

mod ahead;
mod atomic;
mod clone;
mod csum;
mod defrag;
mod exchange;
mod fallocate;
mod items;
pub(crate) mod map;
mod pack;
mod place;
mod read;
mod replace;
pub(crate) mod replay;
mod seek;
mod sharing;
mod truncate;
mod whole;
mod write;
mod writeback;

pub(crate) use atomic::Group;
pub(crate) use clone::{clone_as, clones_anything, copied_bytes, copy_as, dedupe_range};
#[cfg(test)]
pub(crate) use clone::{clone_range, copy_range};
pub(crate) use csum::load as load_sums;
pub(crate) use defrag::defragment;
#[cfg(test)]
pub(crate) use exchange::exchange_range;
pub(crate) use exchange::{exchange_as, freshness_of};
#[cfg(test)]
pub(crate) use fallocate::fallocate;
pub(crate) use fallocate::fallocate_as;
pub(crate) use read::{read, read_as_it_lies};
pub(crate) use seek::seek;
pub(crate) use sharing::{note_dropped, note_shared};
pub(crate) use truncate::{discard_dirty, drop_extents_of_deleted, truncate};
pub(crate) use whole::{SharedRefs, WholeFile};
pub(crate) use write::{WriteCtx, write};
#[cfg(test)]
pub(crate) use writeback::write_back;
pub(crate) use writeback::{flush, sync, sync_all, write_back_all, write_back_as};

/// Frees the buffers of data that are kept for reuse.
pub(crate) fn free_spares() {
    crate::pagecache::free_spares();
    crate::compression::compress::free_spares();
}

#[cfg(test)]
mod ahead_tests;
#[cfg(test)]
mod atomic_tests;
#[cfg(test)]
mod beside_tests;
#[cfg(test)]
mod blocks_tests;
#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod compress_tests;
#[cfg(test)]
mod csum_tests;
#[cfg(test)]
mod failures_tests;
#[cfg(test)]
mod heuristic_tests;
#[cfg(test)]
mod in_place_tests;
#[cfg(test)]
mod kernel_tests;
#[cfg(test)]
mod map_tests;
#[cfg(test)]
mod race_tests;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod small_reads_tests;
#[cfg(test)]
mod strange_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod truncate_tests;
