//! Verified blocks in memory, up to a number of bytes.
//!
//! Two generations: an entry that is used moves to the young one; when that is half of the bound,
//! the old one is dropped and the young one becomes the old one. Lock: one for each shard, held for
//! a lookup or an insertion.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use cowshed_runtime::lock::Mutex;

use crate::rank::LockRank;

/// Address in bytes, and the number of the owner: a block is verified for its owner.
pub(super) type Key = (u64, u64);
type Entry = (Arc<dyn Any + Send + Sync>, usize);

const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    young: HashMap<Key, Entry>,
    young_bytes: usize,
    old: HashMap<Key, Entry>,
}

/// The cache.
pub(super) struct Cache {
    shards: Vec<Mutex<Shard>>,
    shard_bytes_max: usize,
}

impl Cache {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            shards: (0..SHARDS)
                .map(|_| Mutex::new(LockRank::Blocks, Shard::default()))
                .collect(),
            shard_bytes_max: bytes_max / SHARDS,
        }
    }

    fn shard(&self, key: Key) -> Option<&Mutex<Shard>> {
        // Addresses end in zeros, those of one kind of block in the same number of them. The upper
        // bits of a product depend on all bits.
        const MIX: u64 = 0x9e37_79b9_7f4a_7c15;
        let hash = ((key.0 >> 9) ^ key.1.rotate_left(32)).wrapping_mul(MIX);
        self.shards.get((hash >> 32) as usize % SHARDS)
    }

    /// The block, if it is here and of this type.
    pub(super) fn get<T: Clone + Send + Sync + 'static>(&self, key: Key) -> Option<T> {
        let mut shard = self.shard(key)?.lock();
        if let Some((value, _)) = shard.young.get(&key) {
            return value.downcast_ref::<T>().cloned();
        }
        let (value, bytes) = shard.old.remove(&key)?;
        let found = value.downcast_ref::<T>().cloned();
        shard.insert(key, (value, bytes), self.shard_bytes_max);
        found
    }

    /// True where the block is here, of whatever type.
    pub(super) fn has(&self, key: Key) -> bool {
        self.shard(key).is_some_and(|shard| {
            let shard = shard.lock();
            shard.young.contains_key(&key) || shard.old.contains_key(&key)
        })
    }

    pub(super) fn put<T: Clone + Send + Sync + 'static>(&self, key: Key, value: &T, bytes: usize) {
        if let Some(shard) = self.shard(key) {
            let mut shard = shard.lock();
            shard.insert(key, (Arc::new(value.clone()), bytes), self.shard_bytes_max);
        }
    }
}

impl Shard {
    fn insert(&mut self, key: Key, entry: Entry, bytes_max: usize) {
        self.young_bytes += entry.1;
        if let Some((_, bytes)) = self.young.insert(key, entry) {
            self.young_bytes -= bytes;
        }
        if self.young_bytes > bytes_max / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_at_aligned_addresses_spread_over_the_shards() {
        let cache = Cache::new(1 << 20);
        for step in [512, 4096, 16384, 1 << 20] {
            for owner in [7, 1 << 63, u64::MAX] {
                let mut used = [0; SHARDS];
                for n in 0..1600 {
                    let shard = cache.shard((n * step, owner)).unwrap();
                    let at = cache.shards.iter().position(|other| std::ptr::eq(shard, other));
                    used[at.unwrap()] += 1;
                }
                assert!(
                    used.iter().all(|used| (50..200).contains(used)),
                    "{step} {owner}: {used:?}"
                );
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let cache = Cache::new(16 * 1000);
        cache.put((0, 7), &1_u32, 10);
        for n in 1..10_000_u64 {
            cache.put((n * 512, 7), &2_u32, 10);
            assert!(cache.has((0, 7)), "after {n}");
            assert_eq!(cache.get::<u32>((0, 7)), Some(1), "after {n}");
        }
        let held: usize = cache
            .shards
            .iter()
            .map(|s| {
                let shard = s.lock();
                shard.young.len() + shard.old.len()
            })
            .sum();
        assert!(held <= 16 * 102, "{held}");
        assert!(!cache.has((512, 7)));
        assert_eq!(cache.get::<u32>((512, 7)), None);
        assert_eq!(cache.get::<u64>((0, 7)), None, "another type");
        assert_eq!(cache.get::<u32>((0, 8)), None, "another owner");
    }
}
