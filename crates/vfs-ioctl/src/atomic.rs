//! Atomic groups by handle: f2fs's ioctls on open files, which is what SQLite speaks.
//!
//! A group belongs to one handle; a file has one open group at most. The handle reads what it has
//! staged; other handles read the file as it was. (A front end that caches contents has one cache
//! for all handles: on a mount, a reader through the page cache sees what was staged, as on f2fs.
//! SQLite's locks keep others out meanwhile.) The end of a group is told to that front end.
//!
//! Locks: as [`crate::groups`]; a group's is held during its writes, its reads and its end.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cowshed_vfs::{Attr, Context, Error, FileKind, Handle, IoctlReply, NodeId, OpenFlags, Result, Volume, WriteFlags};

use crate::front::Front;
use crate::groups::OpenGroup;
use crate::reply::reply;

/// Command numbers of `<linux/f2fs.h>`: letter 0xf5; only GET_FEATURES has an argument, 32 bits
/// out.
mod cmd {
    pub const START_ATOMIC_WRITE: u32 = 0xf501;
    pub const COMMIT_ATOMIC_WRITE: u32 = 0xf502;
    /// Called ABORT_VOLATILE_WRITE in its first years.
    pub const ABORT_ATOMIC_WRITE: u32 = 0xf505;
    pub const GET_FEATURES: u32 = 0x8004_f50c;
}

/// `F2FS_FEATURE_ATOMIC_WRITE`, the only bit that applies here.
const FEATURE_ATOMIC_WRITE: u32 = 0x0004;

/// How often, and how many times, a group of an ended process is looked for: a second in all.
const LOOK: Duration = Duration::from_millis(10);
const LOOKS_MAX: usize = 100;

impl<V: Volume + ?Sized + 'static> Front<V> {
    /// Answers the ioctls of atomic writes. Errors: `NotIoctl` for others.
    pub(crate) fn ioctl_atomic(
        &self,
        ctx: &Context,
        file: (NodeId, Handle),
        cmd: u32,
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        match cmd {
            cmd::GET_FEATURES => {
                let is_writable = self.need_writable(ctx, file).is_ok();
                let bits = if is_writable { FEATURE_ATOMIC_WRITE } else { 0 };
                return reply(output, &bits.to_le_bytes());
            }
            cmd::START_ATOMIC_WRITE => self.start_group(ctx, file)?,
            cmd::COMMIT_ATOMIC_WRITE => self.commit_of_handle(ctx, file)?,
            cmd::ABORT_ATOMIC_WRITE => {
                self.need_writable(ctx, file)?;
                self.abort_group(file);
            }
            _ => return Err(Error::NotIoctl),
        }
        Ok(IoctlReply::default())
    }

    /// Errors: `Invalid` (not a file), `BadHandle` (not open for writing).
    fn need_writable(&self, ctx: &Context, (node, handle): (NodeId, Handle)) -> Result<()> {
        if self.volume().getattr(ctx, node, None)?.kind != FileKind::Regular {
            return Err(Error::Invalid);
        }
        let is_writable = handle.flags().is_some_and(|flags| flags.contains(OpenFlags::WRITE));
        if is_writable { Ok(()) } else { Err(Error::BadHandle) }
    }

    fn start_group(&self, ctx: &Context, file: (NodeId, Handle)) -> Result<()> {
        self.need_writable(ctx, file)?;
        self.volume().check_target(file.0)?;
        let group = self.volume().clone().begin_group()?;
        self.groups.start(ctx, file, group)
    }

    /// Ends the handle's group and makes it durable. Without a group, or with one that has no
    /// writes, an fsync, as on f2fs.
    fn commit_of_handle(&self, ctx: &Context, file: (NodeId, Handle)) -> Result<()> {
        self.need_writable(ctx, file)?;
        let (node, handle) = file;
        let sync = || self.volume().fsync(ctx, node, handle, false);
        let Some(open) = self.groups.get(handle) else {
            return sync();
        };
        // The handle's writes wait: before the end they would be overwritten with the blocks that
        // the group holds.
        let mut held = open.group.lock();
        let Some(group) = held.take() else {
            drop(held);
            return sync();
        };
        let ranges = group.ranges(node);
        let result = match ranges.is_empty() {
            true => sync(),
            false => group.commit(handle).map_err(|failure| {
                tracing::error!(%failure, "an atomic group was not committed");
                failure.error()
            }),
        };
        drop(held);
        // Not before: reads of what was there until now are noted in it.
        self.groups.remove(handle);
        if result.is_err() {
            self.groups.note_failed(handle);
        }
        let Some(caches) = self.caches() else {
            return result;
        };
        // A group that failed has not happened: cached pages with its data must go. Pages that
        // others read meanwhile hold what the group replaced.
        if result.is_err() || open.was_seen.load(Ordering::Acquire) {
            caches.content_changed(node, ranges);
        } else {
            caches.attributes_changed(node);
        }
        result
    }

    /// Ends the handle's group, if it has one, as if it had never begun.
    fn abort_group(&self, (node, handle): (NodeId, Handle)) {
        let Some(open) = self.groups.get(handle) else { return };
        let Some(group) = open.group.lock().take() else { return };
        let ranges = group.ranges(node);
        drop(group);
        if open.has_failed.load(Ordering::Acquire) {
            self.groups.note_failed(handle);
        }
        if let Some(caches) = self.caches()
            && !ranges.is_empty()
        {
            caches.content_changed(node, ranges);
        }
        // Not before: a caller that waits for the end may read from the cache.
        self.groups.remove(handle);
    }

    /// A handle is closed, and with it all that was open of it.
    pub(crate) fn release_group(&self, node: NodeId, handle: Handle) {
        if !self.groups.is_empty() {
            self.abort_group((node, handle));
            self.groups.take_failed(handle);
        }
    }

    /// Waits until the groups are gone that ended processes have on a file: the next process to
    /// open it must not find staged data in a front end's cache. The close of their handles is on
    /// its way.
    pub(crate) fn wait_for_groups_of_ended_processes(&self, node: NodeId) {
        let Some(caches) = self.caches() else { return };
        if self.groups.is_empty() {
            return;
        }
        for _ in 0..LOOKS_MAX {
            let seen = self.groups.ended.seen();
            let is_left = |open: &Arc<OpenGroup>| open.node == node && caches.has_ended(open.pid);
            if !self.groups.by_handle.lock().values().any(is_left) {
                return;
            }
            self.env.wait(&self.groups.ended, seen, self.env.monotonic() + LOOK);
        }
        tracing::debug!("a group stays whose process is gone");
    }

    /// A caller that goes on without a group that failed relies on the order of what it writes, and
    /// does not say so: SQLite, which makes its rollback journal only then, and syncs it no more.
    /// What was written before the first write is durable before it.
    pub(crate) fn keep_order_after_failed_group(&self, ctx: &Context, node: NodeId, handle: Handle) -> Result<()> {
        if self.groups.take_failed(handle) {
            self.volume().syncfs(ctx, node).inspect_err(|_| {
                self.groups.note_failed(handle);
            })?;
        }
        Ok(())
    }

    /// A write by a handle that has a group; `None` where it has none.
    pub(crate) fn write_staged(
        &self,
        ctx: &Context,
        (node, handle): (NodeId, Handle),
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Option<Result<usize>> {
        let open = self.groups.get(handle)?;
        let mut held = open.group.lock();
        let group = held.as_mut()?;
        let staged = group.write(ctx, node, offset, data, flags);
        if staged.is_err() {
            open.has_failed.store(true, Ordering::Release);
        }
        Some(staged.map(|()| data.len()))
    }

    /// A read by a handle that has a group; `None` where it has none.
    pub(crate) fn read_staged(
        &self,
        node: NodeId,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Option<Result<usize>> {
        if self.groups.is_empty() {
            return None;
        }
        if let Some(open) = self.groups.get(handle) {
            let group = open.group.lock();
            return group.as_ref().map(|group| group.read(node, offset, buf));
        }
        if let Some(open) = self.groups.of_node(node) {
            let range: Range<u64> = offset..offset.saturating_add(buf.len() as u64);
            // A group that is busy may be ending, which takes its time: count its ranges as seen
            // rather than wait.
            let group = open.group.try_lock();
            let group = group.as_ref().and_then(|group| group.as_ref());
            if group.is_none_or(|group| group.overlaps(node, &range)) {
                open.was_seen.store(true, Ordering::Release);
            }
        }
        None
    }

    /// A handle sees the size that its group gives the file.
    pub(crate) fn size_in_group(&self, handle: Option<Handle>, node: NodeId, attr: &mut Attr) {
        if let Some(open) = handle.and_then(|handle| self.groups.get(handle))
            && let Some(group) = &*open.group.lock()
        {
            attr.size_bytes = group.size_after(node, attr.size_bytes);
        }
    }
}
