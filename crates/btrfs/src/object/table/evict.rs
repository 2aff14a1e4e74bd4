//! What leaves memory with a deleted subvolume. The numbers of what front ends remember are noted
//! with the subvolume while the table is locked, so that each is found in one of the two places.

use std::collections::HashMap;
use std::sync::Arc;

use btrfs_format::TreeId;

use super::{InodeTable, id_of, is_alone, shrink};
use crate::object::dead::Taken;
use crate::object::inode::Inode;

/// Inodes that go while a lock is held.
const EVICTED_AT_ONCE: usize = 64;

impl InodeTable {
    /// Takes the inodes of deleted subvolumes out that are not in use, and returns them: to free a
    /// million takes its time. With each subvolume comes whether processes hold anything in it but
    /// open files. Where they do not, lookups are no use: what Linux remembers is never asked for.
    pub(crate) fn evict_subvolumes(&self, dead: &HashMap<TreeId, bool>) -> Vec<Taken> {
        let mut evicted = Vec::new();
        for shard in &self.shards {
            let of_these: Vec<_> = {
                let mut shard = shard.lock();
                shard.parked.retain(|id, parked| {
                    let goes = dead.get(&id.0) == Some(&false);
                    if goes {
                        parked.subvol.remembered.add(id.1);
                    }
                    !goes
                });
                shrink(&mut shard.parked);
                // The ids alone are quickly looked at, in the table itself.
                let ids = shard.inodes.keys();
                ids.filter(|id| dead.contains_key(&id.0)).copied().collect()
            };
            evicted.reserve(of_these.len());
            for some in of_these.chunks(EVICTED_AT_ONCE) {
                let before = evicted.len();
                let mut locked = shard.lock();
                for id in some {
                    let Some(inode) = locked.inodes.get(id) else {
                        continue;
                    };
                    let is_free = match dead.get(&id.0) {
                        Some(false) => !inode.refs.is_open(),
                        Some(true) | None => inode.refs.is_idle(),
                    };
                    if is_alone(inode) && is_free {
                        note_remembered(inode);
                        evicted.extend(locked.inodes.remove(id).map(Taken::new));
                        locked.evictions += 1;
                    }
                }
                drop(locked);
                evicted[before..].iter().for_each(|inode| self.views.forget(inode));
            }
            shrink(&mut shard.lock().inodes);
        }
        evicted
    }

    /// Takes an inode out that has dirty data, and that the caller and the list of such inodes
    /// alone refer to. False where something else does, or it is open.
    pub(crate) fn evict_dirty(&self, inode: &Arc<Inode>) -> bool {
        /// This table, that list, and the caller.
        const REFERENCES: usize = 3;
        let id = id_of(inode);
        let mut shard = self.shard(id).lock();
        let is_this = shard.inodes.get(&id).is_some_and(|there| Arc::ptr_eq(there, inode));
        if !is_this || Arc::strong_count(inode) != REFERENCES || inode.refs.is_open() {
            return false;
        }
        note_remembered(inode);
        shard.inodes.remove(&id);
        shard.evictions += 1;
        drop(shard);
        self.views.forget(inode);
        true
    }
}

fn note_remembered(inode: &Inode) {
    if inode.refs.lookups() > 0 {
        inode.subvol.remembered.add(inode.ino);
    }
}
