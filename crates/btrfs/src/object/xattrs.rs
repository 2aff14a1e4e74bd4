//! What is known of the extended attributes of an inode.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::lazy::Lazy;
use btrfs_store::rank::LockRank;
use cowshed_runtime::lock::Mutex;
use cowshed_vfs::acl::Acl;

pub(crate) const UNKNOWN: u8 = 0;
pub(crate) const NONE: u8 = 1;
pub(crate) const SOME: u8 = 2;

/// What is known of an inode's attributes.
#[derive(Debug, Default)]
pub struct XattrCache {
    /// Goes from UNKNOWN to NONE by a reader that found none, and to SOME before a writer adds one:
    /// a reader that was overtaken by a writer does not overwrite what that said.
    pub(crate) known: AtomicU8,
    pub(crate) lists: Lazy<AccessLists>,
}

/// Access lists as they were parsed last; the outer `None`: not known.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    pub access: Option<Option<Arc<Acl>>>,
    pub default: Option<Option<Arc<Acl>>>,
}

/// [`Lists`], of an inode that may have some.
#[derive(Debug)]
pub(crate) struct AccessLists(pub Mutex<Lists>);

impl Default for AccessLists {
    fn default() -> Self {
        Self(Mutex::new(LockRank::XattrLists, Lists::default()))
    }
}

const _: () = assert!(UNKNOWN == 0, "the default");

impl XattrCache {
    /// For inodes that were just made.
    pub(crate) fn set_known_empty(&self) {
        self.known.store(NONE, Ordering::Release);
    }
    pub(crate) fn is_known_empty(&self) -> bool {
        self.known.load(Ordering::Acquire) == NONE
    }
    /// Asking whether there are any needs no search.
    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire) != UNKNOWN
    }
    pub(crate) fn set_some(&self) {
        self.known.store(SOME, Ordering::Release);
    }
    pub(crate) fn forget_lists(&self) {
        if let Some(lists) = self.lists.get() {
            *lists.0.lock() = Lists::default();
        }
    }
}
