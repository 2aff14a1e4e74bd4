//! The account of space: what there is, what is promised, and to whom. For people and benchmarks.

use super::Space;
use super::budget::Purpose;
use super::pending::Pending;
use crate::overlay::Growth;
use crate::tree::Opened;

/// The space of one type of block group, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolBytes {
    /// What the block groups hold, without superblocks.
    pub total: u64,
    /// May be allocated now.
    pub free: u64,
    /// Free after the commit.
    pub pinned: u64,
    /// What new chunks could add (at least).
    pub addable: u64,
}

/// Reservations of tree blocks for one purpose.
#[derive(Clone, Copy, Debug, Default)]
pub struct PurposeCounts {
    /// Held now.
    pub held_blocks: u64,
    /// The most that was held at a time.
    pub peak_blocks: u64,
    /// Reservations that were made.
    pub granted: u64,
    /// Reservations that failed, whatever was flushed for them.
    pub refused: u64,
    /// By how much the overlays grew.
    pub growth: Growth,
}

/// All numbers of [`Space`] at one moment.
#[derive(Clone, Debug)]
pub struct Account {
    /// Data (or both, where groups are mixed), metadata, system.
    pub pools: [PoolBytes; 3],
    /// Promised to data that has no place yet.
    pub data_reserved_bytes: u64,
    /// Promised to operations that are under way.
    pub meta_reserved_blocks: u64,
    /// Kept for commits and deletions.
    pub global_reserve_bytes: u64,
    /// Of the running transaction, and of the one that is being committed.
    pub pending: Pending,
    /// Of [`Account::pending`], what was counted by leaves.
    pub opened: Opened,
    /// Tree blocks held for [`Account::pending`].
    pub pending_blocks: u64,
    /// [`Account::pending_blocks`] if no leaf had been counted.
    pub pending_blocks_by_items: u64,
    /// In the order of [`Purpose::ALL`].
    pub purposes: [PurposeCounts; Purpose::ALL.len()],
}

impl Space {
    /// All numbers at one moment.
    pub fn account(&self) -> Account {
        self.ledger.account()
    }
}
