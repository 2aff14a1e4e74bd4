//! The open groups of a front: by handle, and the handles whose group failed.
//!
//! Locks: the table, held for moments; then one group. Both before any lock of the volume. The
//! count of [`OpenGroups::ended`] comes last.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cowshed_runtime::Event;
use cowshed_vfs::{Context, Error, Group, Handle, NodeId, Result};
use parking_lot::Mutex;

/// The group of one handle.
pub(crate) struct OpenGroup {
    pub(crate) node: NodeId,
    /// `None`: it is ending. The handle's writes are plain ones from then on.
    pub(crate) group: Mutex<Option<Box<dyn Group>>>,
    /// Another handle read what the group replaces, and a front end may have cached it.
    pub(crate) was_seen: AtomicBool,
    /// A write into it was refused.
    pub(crate) has_failed: AtomicBool,
    /// The process that began it, [`Context::pid`].
    pub(crate) pid: u32,
}

/// The open groups of a front.
#[derive(Default)]
pub(crate) struct OpenGroups {
    /// Entries of the table and of the failed: most calls look no further.
    count: AtomicUsize,
    pub(crate) by_handle: Mutex<HashMap<u64, Arc<OpenGroup>>>,
    /// A group has ended, and the caches know.
    pub(crate) ended: Arc<Event>,
    /// Handles whose group failed, and which have not written since.
    failed: Mutex<HashSet<u64>>,
}

impl OpenGroups {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn get(&self, handle: Handle) -> Option<Arc<OpenGroup>> {
        if self.is_empty() {
            return None;
        }
        self.by_handle.lock().get(&handle.0).cloned()
    }

    /// Forgets a group that has ended.
    pub(crate) fn remove(&self, handle: Handle) {
        if self.by_handle.lock().remove(&handle.0).is_some() {
            self.count.fetch_sub(1, Ordering::Release);
            self.ended.signal();
        }
    }

    /// The group of a handle will not happen, and its owner may go on without one.
    pub(crate) fn note_failed(&self, handle: Handle) {
        if self.failed.lock().insert(handle.0) {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// There was such a group since the handle wrote.
    pub(crate) fn take_failed(&self, handle: Handle) -> bool {
        let failed = !self.is_empty() && self.failed.lock().remove(&handle.0);
        self.count.fetch_sub(usize::from(failed), Ordering::Release);
        failed
    }

    /// The group that any handle has on a file.
    pub(crate) fn of_node(&self, node: NodeId) -> Option<Arc<OpenGroup>> {
        let table = self.by_handle.lock();
        table.values().find(|open| open.node == node).cloned()
    }

    /// Errors: `Busy` (another handle has a group on the file, or this one has a group that is
    /// ending).
    pub(crate) fn start(&self, ctx: &Context, (node, handle): (NodeId, Handle), group: Box<dyn Group>) -> Result<()> {
        self.take_failed(handle);
        let mut table = self.by_handle.lock();
        if let Some(open) = table.get(&handle.0).cloned() {
            drop(table);
            // As on f2fs: what was started goes on.
            return match *open.group.lock() {
                Some(_) => Ok(()),
                None => Err(Error::Busy),
            };
        }
        if table.values().any(|open| open.node == node) {
            return Err(Error::Busy);
        }
        let open = OpenGroup {
            node,
            group: Mutex::new(Some(group)),
            was_seen: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            pid: ctx.pid,
        };
        table.insert(handle.0, Arc::new(open));
        self.count.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The mount ends: no group can be committed any more.
    pub(crate) fn clear(&self) {
        self.by_handle.lock().clear();
        self.failed.lock().clear();
        self.count.store(0, Ordering::Release);
    }
}
