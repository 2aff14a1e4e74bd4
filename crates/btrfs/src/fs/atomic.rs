//! Atomic groups through the contract: f2fs's ioctls on open files, which is what SQLite speaks, and groups over several
//! files for who links us.
//!
//! A group belongs to one handle; a file has one open group at most. The handle reads what it has staged; other handles
//! read the file as it was. (A front end that caches contents has one cache for all handles: on a mount, who reads the
//! file through the page cache sees what was staged, as on f2fs. SQLite's locks keep others out meanwhile.) The end of a
//! group is told to that front end.
//!
//! Locks: the table, held for moments; then one group, held during its writes and reads. Both before any lock of
//! [`crate::inode`].

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use btrfs_format::{ObjectId, TreeId};
use cowshed_vfs::perm::Strips;
use cowshed_vfs::{Attr, Caches, Context, Error as Errno, Handle, IoctlReply, NodeId, OpenFlags};
use parking_lot::{Condvar, Mutex};

use super::setattr::strip_capability;
use super::{Fs, errno, flags_of, ioctl};
use crate::error::Result;
use crate::file::{Group, sync_all};
use crate::inode::{Inode, flags};
use crate::log::write::Scope;

/// Command numbers of `<linux/f2fs.h>`: letter 0xf5; only GET_FEATURES has an argument, 32 bits out.
mod cmd {
    pub const START_ATOMIC_WRITE: u32 = 0xf501;
    pub const COMMIT_ATOMIC_WRITE: u32 = 0xf502;
    /// Called ABORT_VOLATILE_WRITE in its first years.
    pub const ABORT_ATOMIC_WRITE: u32 = 0xf505;
    pub const GET_FEATURES: u32 = 0x8004_f50c;
}

/// `F2FS_FEATURE_ATOMIC_WRITE`, the only bit that says anything of us.
const FEATURE_ATOMIC_WRITE: u32 = 0x0004;

/// Numbers of handles come back after so many opens: the bits that a handle has for them.
const HANDLE_NUMBERS: u64 = 1 << 31;

/// How often, and how many times, a group of a dead process is looked for: a second.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS_MAX: usize = 100;

/// The group of one handle.
struct OpenGroup {
    inode: (TreeId, ObjectId),
    /// `None`: it is ending. The handle's writes are plain ones from then on.
    group: Mutex<Option<Group>>,
    /// Somebody else read what the group replaces, and a front end may remember it.
    was_seen: AtomicBool,
    /// A write into it was refused.
    has_failed: AtomicBool,
    /// The process that began it, [`Context::pid`].
    pid: u32,
}

/// The open groups of a mount.
#[derive(Default)]
pub(super) struct OpenGroups {
    numbers: AtomicU64,
    /// As many as are in the table and among the failed: most calls look no further.
    count: AtomicUsize,
    by_handle: Mutex<HashMap<u64, Arc<OpenGroup>>>,
    /// A group has ended, and whoever must be told has been told.
    ended: Condvar,
    /// Handles whose group failed, and which have not written since.
    failed: Mutex<HashSet<u64>>,
    caches: OnceLock<Arc<dyn Caches>>,
}

impl std::fmt::Debug for OpenGroups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpenGroups({})", self.count.load(Ordering::Relaxed))
    }
}

impl OpenGroups {
    /// A number for a new handle.
    pub fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) % HANDLE_NUMBERS
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn get(&self, handle: Handle) -> Option<Arc<OpenGroup>> {
        if self.is_empty() {
            return None;
        }
        self.by_handle.lock().get(&handle.0).cloned()
    }

    /// Forgets a group that has ended.
    fn remove(&self, handle: Handle) {
        if self.by_handle.lock().remove(&handle.0).is_some() {
            self.count.fetch_sub(1, Ordering::Release);
            self.ended.notify_all();
        }
    }

    /// The group of a handle will not happen, and its owner may go on without one.
    fn note_failed(&self, handle: Handle) {
        if self.failed.lock().insert(handle.0) {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Was there such a group since the handle wrote?
    fn take_failed(&self, handle: Handle) -> bool {
        let failed = !self.is_empty() && self.failed.lock().remove(&handle.0);
        self.count.fetch_sub(usize::from(failed), Ordering::Release);
        failed
    }

    /// The group that some handle has on an inode.
    fn of_inode(&self, inode: &Inode) -> Option<Arc<OpenGroup>> {
        let id = (inode.tree.id(), inode.ino);
        let table = self.by_handle.lock();
        table.values().find(|open| open.inode == id).cloned()
    }

    /// Errors: `Busy` (another handle has a group on the inode, or this one has a group that is ending).
    fn start(&self, (handle, pid): (Handle, u32), inode: &Inode, group: Group) -> Result<()> {
        self.take_failed(handle);
        let id = (inode.tree.id(), inode.ino);
        let mut table = self.by_handle.lock();
        if let Some(open) = table.get(&handle.0).cloned() {
            drop(table);
            // As on f2fs: what was started goes on.
            return match *open.group.lock() {
                Some(_) => Ok(()),
                None => Err(Errno::Busy.into()),
            };
        }
        if table.values().any(|open| open.inode == id) {
            return Err(Errno::Busy.into());
        }
        let open = OpenGroup {
            inode: id,
            group: Mutex::new(Some(group)),
            was_seen: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            pid,
        };
        table.insert(handle.0, Arc::new(open));
        self.count.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Fs {
    /// Who must be told when contents change without a write.
    pub fn set_caches(&self, caches: Arc<dyn Caches>) {
        let (numbering, told) = (self.numbering.clone(), caches.clone());
        self.engine.file.on_lost(Box::new(move |inode, lost| {
            told.content_lost(numbering.node(inode), lost);
        }));
        let _ = self.atomic.caches.set(caches);
    }

    /// Who hears that something could not be written finds, when he reads, that it is not there.
    pub(super) fn settled<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err()
            && let Some(caches) = self.caches()
        {
            caches.settle();
        }
        result
    }

    /// Whoever must be told.
    pub(super) fn caches(&self) -> Option<&Arc<dyn Caches>> {
        self.atomic.caches.get()
    }

    /// Answers the ioctls of atomic writes; `None` for others.
    pub(super) fn ioctl_atomic(
        &self,
        ctx: &Context,
        (node, handle): (NodeId, Handle),
        inode: &Arc<Inode>,
        cmd: u32,
        output: &mut [u8],
    ) -> Option<Result<IoctlReply>> {
        let done = match cmd {
            cmd::GET_FEATURES => {
                let bits = if is_writable_file(inode, handle) {
                    FEATURE_ATOMIC_WRITE
                } else {
                    0
                };
                return Some(ioctl::reply(output, &bits.to_le_bytes()));
            }
            cmd::START_ATOMIC_WRITE => self.start_group(node, (handle, ctx.pid), inode),
            cmd::COMMIT_ATOMIC_WRITE => self.commit_of_handle(node, handle, inode),
            cmd::ABORT_ATOMIC_WRITE => need_writable(inode, handle).map(|()| self.abort_group(node, handle, inode)),
            _ => return None,
        };
        Some(done.map(|()| IoctlReply::default()))
    }

    /// Errors: `Invalid` (not a file), `BadHandle` (not open for writing), `Busy` (another handle's group).
    fn start_group(&self, node: NodeId, owner: (Handle, u32), inode: &Arc<Inode>) -> Result<()> {
        need_writable(inode, owner.0)?;
        self.file_to_write(node)?;
        self.atomic.start(owner, inode, Group::new(&self.engine))
    }

    /// Ends the handle's group and makes it durable. Without a group, or with one that has no writes, an fsync, as on f2fs.
    fn commit_of_handle(&self, node: NodeId, handle: Handle, inode: &Arc<Inode>) -> Result<()> {
        need_writable(inode, handle)?;
        let Some(open) = self.atomic.get(handle) else {
            return self.sync_inode((inode, handle), Scope::All);
        };
        // The handle's writes wait: before the end they would be overwritten with the blocks that the group holds.
        let mut held = open.group.lock();
        let Some(group) = held.take() else {
            drop(held);
            return self.sync_inode((inode, handle), Scope::All);
        };
        let ranges = group.ranges(inode);
        let applied = self.apply_group(group);
        drop(held);
        // Not before: who read what was there until now is noted in it.
        self.atomic.remove(handle);
        let result = applied.and_then(|files| match files.is_empty() {
            true => self.sync_inode((inode, handle), Scope::All),
            false => self.sync_files(&files, handle),
        });
        if result.is_err() {
            self.atomic.note_failed(handle);
        }
        let Some(caches) = self.atomic.caches.get() else {
            return result;
        };
        // What failed has not happened: whoever cached it must forget it. What somebody else read meanwhile is old now.
        if result.is_err() || open.was_seen.load(Ordering::Acquire) {
            caches.content_changed(node, ranges);
        } else {
            caches.attributes_changed(node);
        }
        result
    }

    /// Makes a group happen, whole, and durable. An error before it has happened leaves nothing of it; one of the
    /// device afterwards makes the mount read-only.
    pub fn commit_group(&self, group: Group) -> Result<()> {
        self.sync_files(&self.apply_group(group)?, Handle::NONE)
    }

    /// What a change of contents takes away goes first: a crash in between leaves less than there was, never more.
    fn apply_group(&self, group: Group) -> Result<Vec<Arc<Inode>>> {
        group
            .files()
            .try_for_each(|inode| strip_capability(&self.engine, inode))?;
        group.apply(&self.engine)
    }

    fn sync_files(&self, files: &[Arc<Inode>], handle: Handle) -> Result<()> {
        match files {
            [] => Ok(()),
            [one] => self.sync_inode((one, handle), Scope::All),
            // The log has one file at a time; a commit has all of them or none.
            _ => self.engine.commit(),
        }
    }

    /// Adds a write to a group. Errors: as a write's, and [`Group::write`]'s.
    pub fn stage(&self, group: &mut Group, node: NodeId, offset: u64, data: &[u8]) -> cowshed_vfs::Result<()> {
        let mut run = || {
            let inode = self.file_to_write(node)?;
            let attr = inode.attr_now();
            if attr.flags & flags::APPEND != 0 && offset < attr.size {
                return Err(Errno::NotPermitted.into());
            }
            group.write(&self.engine, &inode, offset, data)
        };
        run().map_err(|e| errno("atomic write", e))
    }

    /// Ends the handle's group, if it has one, as if it had never begun.
    pub(super) fn abort_group(&self, node: NodeId, handle: Handle, inode: &Arc<Inode>) {
        let Some(open) = self.atomic.get(handle) else { return };
        let Some(group) = open.group.lock().take() else { return };
        let ranges = group.ranges(inode);
        drop(group);
        if open.has_failed.load(Ordering::Acquire) {
            self.atomic.note_failed(handle);
        }
        if let Some(caches) = self.atomic.caches.get()
            && !ranges.is_empty()
        {
            caches.content_changed(node, ranges);
        }
        // Not before: who waits for the end may read from the cache.
        self.atomic.remove(handle);
    }

    /// A handle goes, and all that was open of it.
    pub(super) fn release_group(&self, node: NodeId, handle: Handle, inode: &Arc<Inode>) {
        self.abort_group(node, handle, inode);
        self.atomic.take_failed(handle);
    }

    /// Waits until the groups are gone that dead processes have on a file: whoever opens it next must not find staged data in
    /// a front end's cache. The close of their handles is on its way.
    pub(super) fn outlive_the_dead(&self, inode: &Inode) {
        let Some(caches) = self.atomic.caches.get() else { return };
        if self.atomic.is_empty() {
            return;
        }
        let id = (inode.tree.id(), inode.ino);
        let mut table = self.atomic.by_handle.lock();
        for _ in 0..LOOKS_MAX {
            if !table
                .values()
                .any(|open| open.inode == id && caches.has_ended(open.pid))
            {
                return;
            }
            self.atomic.ended.wait_for(&mut table, LOOK);
        }
        tracing::debug!("a group stays whose process is gone");
    }

    /// Whoever goes on without a group that failed relies on the order of what it writes, and does not say so: SQLite, which makes
    /// its rollback journal only then, and syncs it no more. What was written before the first write is durable before it.
    pub(super) fn keep_order_after_failure(&self, handle: Handle) -> Result<()> {
        if self.atomic.take_failed(handle) {
            self.settled(sync_all(&self.engine)).inspect_err(|_| {
                self.atomic.note_failed(handle);
            })?;
        }
        Ok(())
    }

    /// The mount ends: nobody can commit any more.
    pub(super) fn drop_groups(&self) {
        self.atomic.by_handle.lock().clear();
        self.atomic.failed.lock().clear();
        self.atomic.count.store(0, Ordering::Release);
    }

    /// A write by a handle that has a group; `None` where it has none.
    pub(super) fn write_staged(
        &self,
        handle: Handle,
        inode: &Arc<Inode>,
        (offset, data): (u64, &[u8]),
        strips: Strips,
    ) -> Option<Result<usize>> {
        let open = self.atomic.get(handle)?;
        let mut held = open.group.lock();
        let group = held.as_mut()?;
        let staged = group.write(&self.engine, inode, offset, data);
        if staged.is_err() {
            open.has_failed.store(true, Ordering::Release);
        }
        Some(staged.map(|()| {
            group.strip(inode, strips);
            data.len()
        }))
    }

    /// A read by a handle that has a group; `None` where it has none.
    pub(super) fn read_staged(
        &self,
        handle: Handle,
        inode: &Arc<Inode>,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize>> {
        if self.atomic.is_empty() {
            return None;
        }
        if let Some(open) = self.atomic.get(handle) {
            let group = open.group.lock();
            return group.as_ref().map(|group| group.read(&self.engine, inode, offset, buf));
        }
        if let Some(open) = self.atomic.of_inode(inode) {
            let range: Range<u64> = offset..offset.saturating_add(buf.len() as u64);
            // Nobody waits for the handle's own work, which takes its time when the group ends.
            let group = open.group.try_lock();
            let group = group.as_ref().and_then(|group| group.as_ref());
            if group.is_none_or(|group| group.overlaps(inode, &range)) {
                open.was_seen.store(true, Ordering::Release);
            }
        }
        None
    }

    /// A handle sees the size that its group gives the file.
    pub(super) fn size_in_group(&self, handle: Option<Handle>, inode: &Inode, attr: &mut Attr) {
        if let Some(open) = handle.and_then(|handle| self.atomic.get(handle))
            && let Some(group) = &*open.group.lock()
        {
            attr.size_bytes = group.size_after(inode, attr.size_bytes);
        }
    }
}

fn is_writable_file(inode: &Inode, handle: Handle) -> bool {
    inode.is_regular() && flags_of(handle).is_some_and(|flags| flags.contains(OpenFlags::WRITE))
}

fn need_writable(inode: &Inode, handle: Handle) -> Result<()> {
    if !inode.is_regular() {
        return Err(Errno::Invalid.into());
    }
    if !is_writable_file(inode, handle) {
        return Err(Errno::BadHandle.into());
    }
    Ok(())
}
