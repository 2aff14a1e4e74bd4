//! The order of the locks of the engine: [`cowshed_runtime::lock`].
//!
//! All are leaves: each is held for a lookup or an insertion, without I/O, and no other lock is
//! taken inside.

use cowshed_runtime::lock::Rank;

/// The locks of the engine, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum LockRank {
    /// `Cache::shards`: the cache of verified blocks.
    Blocks,
}

impl From<LockRank> for Rank {
    fn from(rank: LockRank) -> Rank {
        let name = match rank {
            LockRank::Blocks => "Blocks",
        };
        Rank::new(rank as u16, name)
    }
}
