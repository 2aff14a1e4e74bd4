//! Which names a directory cannot hold: the hashes of all its names, kept for directories that are
//! known from their first name on. Making a file asks first whether its name exists; the filter
//! answers "no" with one probe instead of a search in overlays and tree.
//!
//! A hash stays at least as long as a name with it exists, so "absent" is always right; "maybe"
//! sends the caller to the items. Changes happen under the directory's operation lock, and before
//! the item can be seen.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use btrfs_format::hash::name_hash;
use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::Mutex;

/// Hashes kept for one directory, 8 bytes each with the set's slack; a larger directory goes
/// without a filter.
const HASHES_MAX: usize = 4 << 20;

/// The hashes are hashes already: spread them, no more.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);
impl std::hash::Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _bytes: &[u8]) {
        unreachable!("only u32 is hashed here");
    }
    fn write_u32(&mut self, n: u32) {
        let x = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = x ^ (x >> 32);
    }
}

type Hashes = HashSet<u32, BuildHasherDefault<Spread>>;

/// `None` while not all names are known.
#[derive(Debug)]
pub(crate) struct NameFilter(Mutex<Option<Hashes>>);

impl Default for NameFilter {
    fn default() -> Self {
        Self(Mutex::new(LockRank::NameFilter, None))
    }
}

fn short(hash: u64) -> u32 {
    // The upper half of a name's hash is zero.
    hash as u32
}

impl NameFilter {
    /// The directory is empty: from here on all names are known.
    pub(crate) fn start(&self) {
        *self.0.lock() = Some(Hashes::default());
    }
    /// True where the directory certainly has no such name.
    pub(crate) fn is_absent(&self, name: &[u8]) -> bool {
        self.is_hash_absent(name_hash(name))
    }
    /// As [`NameFilter::is_absent`], by the name's hash.
    pub(crate) fn is_hash_absent(&self, hash: u64) -> bool {
        self.0
            .lock()
            .as_ref()
            .is_some_and(|known| !known.contains(&short(hash)))
    }
    /// A name comes.
    pub(crate) fn add(&self, name: &[u8]) {
        self.add_hashes(std::iter::once(name_hash(name)));
    }
    /// Names with these hashes come.
    pub(crate) fn add_hashes(&self, hashes: impl Iterator<Item = u64>) {
        let mut filter = self.0.lock();
        if let Some(known) = filter.as_mut() {
            known.extend(hashes.map(short));
            if known.len() > HASHES_MAX {
                *filter = None;
            }
        }
    }
    /// No name with this name's hash is left.
    pub(crate) fn remove_last(&self, name: &[u8]) {
        if let Some(known) = self.0.lock().as_mut() {
            known.remove(&short(name_hash(name)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_is_always_right() {
        let filter = NameFilter::default();
        assert!(!filter.is_absent(b"a"), "nothing is known");
        filter.start();
        assert!(filter.is_absent(b"a"));
        filter.add(b"a");
        assert!(!filter.is_absent(b"a") && filter.is_absent(b"b"));
        filter.remove_last(b"a");
        assert!(filter.is_absent(b"a"));
    }
}
