//! The version 1 space cache: files in the root tree that tell Linux what is free in each block
//! group. We do not keep them up to date.
//!
//! A `cache_generation` that stays behind makes Linux ignore all of them, but only in its next
//! mount. That mount writes the caches of the groups that it changes, and the current generation,
//! so that the caches of all other groups look good to the mount after it. So each is marked as
//! outdated, as Linux marks the cache of a group that it changes: the inode's generation is 0.

use std::sync::atomic::Ordering;

use btrfs_format::items::{FreeSpaceHeader, InodeItem};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use super::Committer;
use crate::error::Result;

impl Committer<'_> {
    /// Marks all caches as outdated, once per mount.
    pub(super) fn forget_space_caches(&mut self) -> Result<()> {
        if self.store.jobs().caches_settled.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let tree = self.store.forest().root_tree().clone();
        let header = |group| Key::new(ObjectId::FREE_SPACE, KeyType::UNTYPED, group);
        let mut cursor = tree.cursor(header(0), header(u64::MAX));
        let mut edits = Vec::new();
        while let Some((_, data)) = cursor.next()? {
            let Ok((header, _)) = FreeSpaceHeader::read_from_prefix(&data) else {
                continue;
            };
            let key = Key::from(header.location);
            let Some(item) = tree.get_committed(&key)?.filter(|_| key.ty == KeyType::INODE_ITEM) else {
                continue;
            };
            let mut bytes = item.to_vec();
            match InodeItem::mut_from_prefix(&mut bytes) {
                Ok((inode, _)) if inode.generation.get() != 0 => inode.generation = U64::new(0),
                _ => continue,
            }
            edits.push((key, Some(bytes.into())));
        }
        if edits.is_empty() {
            return Ok(());
        }
        self.merge_edits(TreeId::ROOT, edits)
    }
}
