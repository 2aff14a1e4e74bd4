//! Log or commit: which of them writes less.
//!
//! Both have two barriers, so blocks decide. Only a small commit takes a processor longer than its
//! blocks take the device; it has a least price. What a log writes is written again by the commit,
//! which in turn writes what no sync has asked for yet; but a log grows until the commit, and each
//! sync copies a path from its root to whatever it changes. Two rules:
//!
//! - *Now*: a log of as many blocks as the price of the commit is not written.
//! - *In the long run*: what a sync writes beyond what it would have written into an empty log is
//!   its rent. When the rent of a transaction has reached the price of its commit, commit: the logs
//!   are empty then. As with anything that is rented until the rent has reached the price, the sum
//!   is at most twice that of the best choice in hindsight.
//!
//! What a commit costs is measured: its blocks per edit that had been applied since the one before,
//! as a moving average. Many edits hit few leaves, so there is a bound: all tree blocks that the
//! last commit left, and those that the pending items would fill.

use btrfs_format::block::leaf_capacity_bytes;

/// The least price of a commit. A small one writes some ten blocks (a leaf of a subvolume, of the
/// extent, free-space and root trees, and nodes above them), but takes 0.7 to 1 ms of a processor,
/// while one fsync waits: about as long as 64 blocks take to write to memory or a fast device.
const COMMIT_BLOCKS_MIN: u64 = 64;
/// Of the average, what the last commit makes up: one part in so many.
const WEIGHT: f64 = 4.0;
/// Blocks per edit, before any commit has been measured: each edit hits a leaf of its own.
const BLOCKS_PER_EDIT_AT_FIRST: f64 = 1.0;

/// What logs and commits cost lately.
#[derive(Debug)]
pub(super) struct Costs {
    blocks_per_edit: f64,
    /// Rent of the running transaction, in blocks.
    rent_blocks: u64,
    /// Edits applied before the running transaction, and before the one that is being committed.
    edits_before: u64,
    edits_before_frozen: u64,
    /// Tree blocks of the volume after the last commit.
    tree_blocks: Option<u64>,
}

/// What waits for a commit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    /// Edits applied since the mount.
    pub edits_applied: u64,
    /// Blocks that the pending items would fill, at most.
    pub blocks: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            blocks_per_edit: BLOCKS_PER_EDIT_AT_FIRST,
            rent_blocks: 0,
            edits_before: 0,
            edits_before_frozen: 0,
            tree_blocks: None,
        }
    }
}

impl Costs {
    /// A transaction ends; so many edits were applied since the mount.
    pub(crate) fn frozen(&mut self, edits_applied: u64) {
        self.edits_before_frozen = self.edits_before;
        self.edits_before = edits_applied;
        self.rent_blocks = 0;
    }

    /// The commit of the frozen transaction wrote so many blocks; the volume has so many.
    pub(crate) fn committed(&mut self, blocks: u64, tree_blocks: u64) {
        self.tree_blocks = Some(tree_blocks);
        let edits = self.edits_before - self.edits_before_frozen;
        if edits > 0 {
            let measured = blocks as f64 / edits as f64;
            self.blocks_per_edit += (measured - self.blocks_per_edit) / WEIGHT;
        }
    }

    /// A sync wrote `blocks`, where an empty log would have taken `least_blocks`.
    pub(crate) fn logged(&mut self, blocks: u64, least_blocks: u64) {
        self.rent_blocks += blocks.saturating_sub(least_blocks);
    }

    /// The price of a commit now.
    fn commit_blocks(&self, pending: Pending) -> u64 {
        let edits = pending.edits_applied.saturating_sub(self.edits_before);
        let blocks = (edits as f64 * self.blocks_per_edit) as u64;
        let most = self.tree_blocks.map_or(u64::MAX, |blocks| blocks + pending.blocks);
        blocks.min(most).max(COMMIT_BLOCKS_MIN)
    }

    /// Is a commit cheaper than a log of at least so many blocks?
    pub(crate) fn prefers_commit(&self, pending: Pending, least_blocks: u64) -> bool {
        self.rent_blocks.max(least_blocks) >= self.commit_blocks(pending)
    }
}

/// Blocks of an empty log that takes items of so many bytes, headers included, for one subvolume,
/// without the root of logs.
pub(super) fn least_blocks(item_bytes: u64, nodesize_bytes: usize) -> u64 {
    let leaves = item_bytes.div_ceil(leaf_capacity_bytes(nodesize_bytes) as u64);
    // Nodes hold a hundred pointers and more: those above the first one do not weigh.
    leaves + u64::from(leaves > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(edits_applied: u64) -> Pending {
        Pending {
            edits_applied,
            blocks: 10,
        }
    }

    #[test]
    fn rent_that_reached_the_price_buys_a_commit() {
        let mut costs = Costs::default();
        // 200 edits made 50 blocks: the average moves a quarter of the way, from 1 to 0.8125.
        costs.frozen(200);
        costs.committed(50, 1000);
        let now = pending(200 + 100);
        assert_eq!(costs.commit_blocks(now), 81);
        for _ in 0..40 {
            assert!(!costs.prefers_commit(now, 3));
            costs.logged(5, 3);
        }
        costs.logged(5, 3);
        assert!(costs.prefers_commit(now, 3));
        costs.frozen(now.edits_applied);
        assert!(
            !costs.prefers_commit(now, 3),
            "the next transaction starts without rent"
        );
    }

    #[test]
    fn a_log_as_large_as_the_commit_is_not_written() {
        let mut costs = Costs::default();
        assert!(!costs.prefers_commit(pending(1000), 999));
        assert!(costs.prefers_commit(pending(1000), 1000));
        for n in 1..30 {
            costs.frozen(n * 1000);
            costs.committed(100, 1000);
        }
        assert!(!costs.prefers_commit(pending(30_000), 99));
        assert!(costs.prefers_commit(pending(30_000), 101));
        assert!(
            !costs.prefers_commit(pending(29_001), 2),
            "a commit has a price, however little is pending"
        );
    }

    #[test]
    fn a_commit_writes_no_more_than_there_is() {
        let mut costs = Costs::default();
        costs.frozen(10);
        costs.committed(10, 60);
        assert_eq!(costs.commit_blocks(pending(100_000)), 70);
    }

    #[test]
    fn a_small_log_is_two_blocks_with_its_root() {
        assert_eq!(least_blocks(500, 16384), 1);
        assert_eq!(least_blocks(20_000, 16384), 3);
    }
}
