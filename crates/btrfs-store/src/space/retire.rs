//! Empty block groups go, so that other kinds of space can have their room on the devices.
//!
//! ```text
//!            is wanted, is empty           edits taken           superblock on disk
//!   serving --------------------> retired -------------> leaving --------------------> gone
//! ```
//!
//! The room of a group that is gone is free. What this guarantees, and why it is enough:
//! docs/design/space.md#groups-that-go. All steps are the committing thread's.
//!
//! Whether a group is empty is decided under its state, with the ledger inside.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::{Key, KeyType, LogicalAddr, ObjectId, TreeId};

use super::alloc::SYSTEM_BLOCKS_LAST;
use super::budget::Purpose;
use super::group::Group;
use super::ledger::{MetaReservation, POOLS, Pool};
use super::{Space, chunks::Chunks};
use crate::error::Result;
use crate::overlay::Edit;
use crate::volume::Chunk;

/// Groups that one commit removes at most; a pool that still needs room asks again.
const GROUPS_MAX: usize = 64;
/// Tree blocks that a group's removal copies: a leaf each of the extent (or block group),
/// free-space and device tree, and a node above; twice that for leaves that melt into their
/// neighbours.
const GROUP_BLOCKS: u64 = 8;
/// Tree blocks for the paths that all of them share, and the root tree's.
const PATH_BLOCKS: u64 = 24;

/// Block groups made and removed since the volume was opened. Those removed are counted when their
/// room is free again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// Groups made.
    pub made: u64,
    /// Groups removed.
    pub retired: u64,
}

/// A chunk on its way out.
#[derive(Clone, Debug)]
pub(super) struct OldChunk {
    pub group: Arc<Group>,
    pub chunk: Arc<Chunk>,
}

/// The chunks that go, by how far they are.
#[derive(Debug, Default)]
pub(super) struct Retirement {
    /// No commit has taken their edits.
    pub retired: Vec<OldChunk>,
    /// The trees of the running commit do not have them; those on disk do.
    pub leaving: Vec<OldChunk>,
    /// What the commit may write for them, where the global reserve does not cover it.
    reserved: Option<MetaReservation>,
    gone: u64,
}

impl Retirement {
    fn is_under_way(&self) -> bool {
        !self.retired.is_empty() || !self.leaving.is_empty()
    }
    /// A superblock went to disk that does not know them.
    pub(crate) fn commit_done(&mut self) -> Vec<OldChunk> {
        self.reserved = None;
        let gone = std::mem::take(&mut self.leaving);
        self.gone += gone.len() as u64;
        gone
    }
    /// Nothing is committed any more: what stays on disk is no matter of memory.
    pub(crate) fn commit_failed(&mut self) {
        self.reserved = None;
    }
}

impl Space {
    /// Block groups made and removed so far.
    pub fn group_stats(&self) -> GroupStats {
        let chunks = self.chunks.lock();
        GroupStats {
            made: chunks.made,
            retired: chunks.retirement.gone,
        }
    }

    /// Asks the next commit to remove what other pools do not need. False where that brings
    /// nothing.
    pub(super) fn want_retired_for(&self, pool: Pool) -> bool {
        // What is under way makes room with the commit that is waited for.
        let is_under_way = self.chunks.lock().retirement.is_under_way();
        // A group of which something is being discarded is empty all the same.
        let _all_is_seen = self.pause_discards();
        let helps = is_under_way || !self.candidates(pool).is_empty();
        if helps {
            self.retire_for[pool as usize].store(true, Ordering::Release);
        }
        helps
    }
    pub(super) fn is_retirement_wanted(&self) -> bool {
        self.retire_for.iter().any(|wanted| wanted.load(Ordering::Acquire))
    }

    /// Takes empty groups out of use where another kind of space asked for room. A commit does this
    /// first of all: what it frees itself is not free yet.
    pub(crate) fn retire_groups(&self) {
        let is_wanting = |pool: &Pool| self.retire_for[*pool as usize].swap(false, Ordering::AcqRel);
        let wanting: Vec<Pool> = POOLS.into_iter().filter(is_wanting).collect();
        let system_blocks = self.ledger.pool(Pool::System).free / self.nodesize_bytes;
        if wanting.is_empty() || system_blocks < SYSTEM_BLOCKS_LAST {
            return;
        }
        let _all_is_seen = self.pause_discards();
        let mut chunks = self.chunks.lock();
        let mut found: Vec<_> = wanting.into_iter().flat_map(|pool| self.candidates(pool)).collect();
        found.truncate(GROUPS_MAX);
        // What a removal changes lies in trees that the global reserve covers. Where deleting has
        // used of that, it takes a promise of its own.
        let is_covered = self
            .ledger
            .meta_holds_with(self.ledger.pool(self.ledger.meta_pool()).addable);
        while !is_covered && !found.is_empty() {
            let blocks = PATH_BLOCKS + GROUP_BLOCKS * found.len() as u64;
            if let Ok(reserved) = self.ledger.try_reserve_meta(Purpose::Other, blocks, true) {
                chunks.retirement.reserved = Some(reserved);
                break;
            }
            found.truncate(found.len() / 2);
        }
        for (pool, group) in found {
            self.retire(&mut chunks, pool, group);
        }
    }

    fn retire(&self, chunks: &mut Chunks, pool: Pool, group: Arc<Group>) {
        let Some(chunk) = self.volume.chunks().get(LogicalAddr(group.shape.start)).cloned() else {
            return;
        };
        let keep = self.keep_bytes(pool);
        let is_spared = || self.ledger.try_retire(pool, group.usable_bytes(), keep);
        if !group.retire(is_spared) {
            return;
        }
        Arc::make_mut(&mut *self.pools[pool as usize].write()).retain(|other| !Arc::ptr_eq(other, &group));
        let range = group.range();
        self.discards.forget(range.clone());
        tracing::debug!(
            "space: the empty block group at {} goes, flags {:#x}",
            range.start,
            group.flags
        );
        chunks.retirement.retired.push(OldChunk { group, chunk });
    }

    /// Empty groups that `wanting` may have the room of, the newest first. The last one of its type
    /// and profile stays: it says of which profile the next one is.
    fn candidates(&self, wanting: Pool) -> Vec<(Pool, Arc<Group>)> {
        let mut found = Vec::new();
        for pool in [Pool::Data, Pool::Metadata] {
            if pool == wanting || self.mixed {
                continue;
            }
            let groups = self.pools[pool as usize].read().clone();
            let keep = self.keep_bytes(pool);
            let mut left: BTreeMap<u64, usize> = BTreeMap::new();
            for group in groups.iter() {
                *left.entry(group.flags).or_default() += 1;
            }
            let mut bytes = 0;
            for group in groups.iter().rev() {
                let left = left.entry(group.flags).or_default();
                let with_it = bytes + group.usable_bytes();
                if *left > 1 && self.is_empty(group) && self.ledger.can_spare(pool, with_it, keep) {
                    *left -= 1;
                    bytes = with_it;
                    found.push((pool, group.clone()));
                }
            }
        }
        found
    }

    fn is_empty(&self, group: &Group) -> bool {
        if group.used_bytes() > 0 {
            return false;
        }
        match self.ensure_loaded(group).and_then(|()| self.has_old_cache(group)) {
            Ok(has_cache) => !has_cache && group.is_empty(),
            Err(error) => {
                tracing::warn!(%error, "space: the block group at {} stays", group.shape.start);
                false
            }
        }
    }

    /// A version 1 cache is an inode of the root tree for each group: Linux removes it with the
    /// group, we know nothing of it.
    fn has_old_cache(&self, group: &Group) -> Result<bool> {
        let key = Key::new(ObjectId::FREE_SPACE, KeyType::UNTYPED, group.shape.start);
        Ok(self.trees.free_space.is_none() && self.trees.root.get(&key)?.is_some())
    }

    /// Bytes of a pool that stay free when its groups go: metadata keeps what a data chunk would
    /// make it have again.
    fn keep_bytes(&self, pool: Pool) -> u64 {
        match pool {
            Pool::Metadata => self.metadata_wanted_bytes(),
            Pool::Data | Pool::System => 0,
        }
    }

    /// The items of a group that goes, but for those of its chunk.
    pub(super) fn removal_edits(&self, group: &Group, out: &mut Vec<(TreeId, Key, Edit)>) {
        if self.trees.free_space.is_some() {
            let mut edits = Vec::new();
            group.removal_edits(&mut edits);
            out.extend(edits.into_iter().map(|(key, edit)| (TreeId::FREE_SPACE, key, edit)));
        }
        out.push((self.trees.block_group.id(), group.item_key(), None));
    }

    /// The superblock on disk does not know these any more: their room on the devices is free.
    pub(super) fn forget_groups(&self, gone: Vec<OldChunk>) {
        let mut groups = self.groups.write();
        for OldChunk { group, chunk } in gone {
            groups.remove(&group.shape.start);
            self.volume.remove_chunk(chunk.logical());
        }
    }
}
