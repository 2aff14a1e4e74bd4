//! File data: extents, dirty ranges, write-back, holes, clones.
//!
//! Writes land in an inode's dirty ranges ([`dirty`]); write-back turns them into extents on disk and items in one
//! batch ([`writeback`]); whatever changes a file's extent items does so through one range-replace ([`replace`]).
//!
//! Written in place are preallocated extents, in every file, and data of files marked nodatacow, as long as nobody shares
//! them ([`sharing`]); all else goes to new extents.
//!
//! Locks, outermost first: `Inode::lock` (the operation lock), [`FileData`]'s flush lock (held by whoever changes extent
//! items: write-back, truncate, punch, clone), a transaction join, `Inode::attr`, [`FileData`]'s state, the list of
//! dirty inodes. Write-back takes no operation lock, so that it may run while one is held; space is reserved before the
//! flush lock is taken.

mod ahead;
mod appended;
mod atomic;
mod blocks;
mod clone;
pub mod compress;
mod csum;
mod data;
pub mod decompress;
mod defrag;
mod dirty;
mod entropy;
mod exchange;
mod extent;
mod failures;
mod fallocate;
mod items;
mod lzo;
mod lzo_encode;
pub mod map;
mod pack;
mod place;
mod read;
mod replace;
pub(crate) mod replay;
mod seek;
mod shared;
mod sharing;
mod spare;
mod truncate;
mod write;
mod writeback;

pub use atomic::{GROUP_BYTES_MAX, Group};
pub use blocks::with_delalloc;
pub use clone::{clone_as, clone_range, clones_anything, copied_bytes, copy_as, copy_range, dedupe_range};
pub(crate) use csum::load as load_sums;
pub use data::FileData;
pub use defrag::defragment;
pub use exchange::{EXTENTS_MAX, exchange_as, exchange_range, freshness_of};
pub use failures::{OnLost, Opened};
pub use fallocate::{fallocate, fallocate_as};
pub use read::read;
pub use seek::seek;
pub use shared::FileShared;
pub(crate) use shared::has_no_holes;
pub(crate) use sharing::note_dropped;
pub use truncate::{drop_extents_of_deleted, truncate};
pub use write::{First, WriteCtx, write};
pub use writeback::{sync_all, write_back, write_back_all, write_back_as, write_back_for_space};

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

/// Bytes of a block of file data: the only sector size that this engine mounts.
pub const BLOCK_BYTES: u32 = 4096;
/// [`BLOCK_BYTES`] as file offsets count.
const BLOCK: u64 = BLOCK_BYTES as u64;
/// The largest file, as on the kernel's side: offsets are signed there. Its last block ends one byte behind what a file may hold.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The largest data extent that is made.
const EXTENT_BYTES_MAX: u64 = 128 << 20;

const fn round_down(n: u64) -> u64 {
    n & !(BLOCK - 1)
}
/// Rounds up to blocks. File offsets are below 2^63, so this does not overflow.
const fn round_up(n: u64) -> u64 {
    round_down(n + (BLOCK - 1))
}
