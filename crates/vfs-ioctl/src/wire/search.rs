//! The ioctl that searches a tree for items of some types.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::btrfs::SearchKey;
use super::{READ, WRITE, number};

/// Items of some types in a range of a tree, page by page: [`SearchPage`]. `BTRFS_IOC_TREE_SEARCH`
/// gives all items of the range, a quarter as many bytes at a time.
pub const SEARCH: u32 = number(READ | WRITE, 9, size_of::<SearchPage>());

/// Room for items in a [`SearchPage`].
pub const SEARCH_BYTES: usize = 16_000;

/// Argument of [`SEARCH`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SearchPage {
    /// In: as for `BTRFS_IOC_TREE_SEARCH`; `min_type` and `max_type` belong to the first and the
    /// last key. Out: how many items were found, and the key to go on from.
    pub key: SearchKey,
    /// In: the types; one may be there more than once.
    pub types: [u8; 4],
    /// Out, 1: there are no more. A page may end early, and be empty, before.
    pub is_end: U32,
    /// Out: items, each behind a [`super::btrfs::SearchHeader`].
    pub buf: [u8; SEARCH_BYTES],
}
