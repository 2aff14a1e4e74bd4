//! The files as a [`cowshed_vfs::Volume`]: sharing, exchanging and showing extents, flags, atomic
//! groups. Translation only.
//!
//! Changes of content that a front end did not send itself are told to its caches here.

use std::ops::Range;
use std::sync::Arc;

use btrfs_format::features::incompat;
use btrfs_format::superblock::{LABEL_BYTES, SUPPORTED_COMPAT_RO, SUPPORTED_INCOMPAT};
use btrfs_store::jobs::Job;
use cowshed_vfs::perm::Strips;
use cowshed_vfs::{
    Access, At, Caches, Context, Dedupe, Defrag, DeviceInfo, Error as Errno, Exchange, ExtendedFlags, ExtentSink,
    Failure, Features, FlagChange, Freshness, Group, Handle, InodeFlags, NodeId, PERM_MASK, SpaceAccount, SubvolumeOf,
    Subvolumes, TreeClone, TrimRange, Volume, VolumeInfo, WriteFlags,
};

use super::account::account;
use super::setattr::{Capability, strip_capability, strips_of};
use super::tree_clone::Cloning;
use super::{Fs, errno, flags};
use crate::access::{Caller, check_volume_writable};
use crate::error::{Error, Result, StoreError};
use crate::file::{self, WriteCtx, map};
use crate::log::write::Scope;
use crate::object::{Inode, flags as inode_flags};

type VfsResult<T> = cowshed_vfs::Result<T>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let outcome = match &error {
            Error::Outcome(errno) => *errno,
            Error::Store(StoreError::NoSpace) => Errno::NoSpace,
            Error::Store(StoreError::ReadOnly) => Errno::ReadOnly,
            Error::Store(StoreError::Unsupported { .. }) => Errno::NotSupported,
            // `Refused`, too: a barrier after one that failed cannot be trusted.
            _ => Errno::Io,
        };
        Failure::new(outcome, error)
    }
}

impl Volume for Fs {
    fn info(&self) -> VolumeInfo {
        let volume = self.mount.store().volume();
        let sb = volume.superblock();
        VolumeInfo {
            format: "btrfs",
            uuid: sb.fsid,
            label: sb.label().to_vec(),
            block_bytes: sb.sectorsize.get(),
            metadata_block_bytes: sb.nodesize.get(),
            devices: sb.num_devices.get(),
            device_id_max: volume.devices().iter().map(|device| device.devid.0).max().unwrap_or(0),
            generation: sb.generation.get(),
            features: Features {
                compat: sb.compat_flags.get(),
                compat_ro: sb.compat_ro_flags.get(),
                incompat: sb.incompat_flags.get(),
            },
            known_features: Features {
                compat: 0,
                compat_ro: SUPPORTED_COMPAT_RO,
                incompat: SUPPORTED_INCOMPAT,
            },
            is_read_only: volume.is_read_only(),
            has_unreplayed_log: volume.has_log() && volume.options().rescue.no_log_replay,
        }
    }

    fn subvolumes(&self) -> VfsResult<&dyn Subvolumes> {
        Ok(self)
    }

    fn set_label(&self, ctx: &Context, label: &[u8]) -> VfsResult<()> {
        self.check_administers(ctx)?;
        let run = || {
            self.check_view_writable()?;
            check_volume_writable(&self.mount)?;
            let mut field = Box::new([0; LABEL_BYTES]);
            // A NUL ends it.
            if label.len() >= field.len() || label.contains(&0) {
                return Err(Errno::Invalid.into());
            }
            field[..label.len()].copy_from_slice(label);
            let store = self.mount.store();
            store.add_job(&store.txn().join(), Job::SetLabel(field));
            self.mount.commit()
        };
        run().map_err(|e| errno("set the label", e))
    }

    fn device(&self, id: u64) -> VfsResult<Option<DeviceInfo>> {
        let devices = self.mount.store().volume().devices();
        let found = devices.into_iter().find(|device| device.devid.0 == id);
        Ok(found.map(|device| DeviceInfo {
            id,
            uuid: device.uuid,
            total_bytes: device.total_bytes,
            used_bytes: device.bytes_used,
            name: device.device.map(|device| device.name().to_owned()),
            faults: device.faults,
        }))
    }

    fn space_account(&self) -> VfsResult<SpaceAccount> {
        let sb = self.mount.store().volume().superblock();
        let is_mixed = sb.incompat_flags.get() & incompat::MIXED_GROUPS != 0;
        let space = self.mount.store().space();
        Ok(account(space, sb.nodesize.get().into(), is_mixed))
    }

    fn set_caches(&self, caches: Arc<dyn Caches>) {
        let views = self.mount.objects().views.clone();
        self.mount.data().on_lost(Box::new(move |inode, lost| {
            for viewer in views.all_with(inode) {
                viewer.content_lost(inode, lost.clone());
            }
        }));
        let _ = self.front.caches.set(caches);
    }

    fn sync(&self) -> std::result::Result<(), Failure> {
        Ok(self.mount.sync()?)
    }

    fn close(&self) -> std::result::Result<(), Failure> {
        Ok(self.mount.close()?)
    }

    fn abort(&self, reason: &str) {
        self.mount.store().txn().abort(reason);
    }

    fn is_aborted(&self) -> bool {
        self.mount.store().txn().is_aborted()
    }

    fn check_target(&self, node: NodeId) -> VfsResult<()> {
        self.file_to_write(node).map(drop).map_err(|e| errno("check", e))
    }

    fn check_access(&self, ctx: &Context, node: NodeId, want: Access) -> VfsResult<()> {
        let caller = Caller { ctx, checks: true };
        let run = || caller.need(&*self.inode(node)?, want);
        run().map_err(|e| errno("access", e))
    }

    fn generation(&self, node: NodeId) -> VfsResult<u64> {
        let inode = self.inode(node).map_err(|e| errno("generation", e))?;
        Ok(inode.attr_now().generation.get())
    }

    fn flags(&self, node: NodeId) -> VfsResult<InodeFlags> {
        let inode = self.inode(node).map_err(|e| errno("flags", e))?;
        let bits = inode.flags();
        Ok(InodeFlags {
            attributes: inode_flags::to_chattr(bits),
            extended: ExtendedFlags {
                xflags: inode_flags::to_xflags(bits),
                ..ExtendedFlags::default()
            },
        })
    }

    fn set_flags(&self, ctx: &Context, node: NodeId, change: &FlagChange) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            let inode = self.inode(node)?;
            let _telling = self.telling(&inode);
            flags::change(&self.mount, &self.caller(ctx), &inode, change)
        };
        run().map_err(|e| errno("flags", e))
    }

    fn subvolume_of(&self, node: NodeId) -> VfsResult<SubvolumeOf> {
        let inode = self.inode(node).map_err(|e| errno("subvolume", e))?;
        Ok(SubvolumeOf {
            id: inode.subvol.id.get(),
            is_root: inode.ino == inode.subvol.root_ino,
            is_read_only: inode.subvol.is_read_only(),
        })
    }

    fn clone_range(&self, by: Option<&Context>, src: At, dst: At, len_bytes: u64) -> VfsResult<()> {
        let run = || {
            let (from, to) = (self.file(src.0)?, self.target(dst.0)?);
            let _telling = self.telling(&to);
            if file::clones_anything(&from, src.1, &to, dst.1, len_bytes)? {
                strip_capability(&self.mount, &to)?;
            }
            let all_bytes = from.attr_now().size.saturating_sub(src.1);
            let end = if len_bytes == 0 {
                u64::MAX
            } else {
                dst.1.saturating_add(len_bytes)
            };
            let _dropping = self.dropping_elsewhere(&to, dst.1..end);
            let how = stripping(by, &to);
            let cloned = file::clone_as(&self.mount, (&from, src.1), (&to, dst.1), len_bytes, how);
            let len_bytes = if len_bytes == 0 { all_bytes } else { len_bytes };
            self.content_changed(&cloned, dst.0, dst.1..dst.1.saturating_add(len_bytes));
            cloned
        };
        run().map_err(|e| errno("clone", e))
    }

    fn dedupe_range(&self, src: At, dst: At, len_bytes: u64) -> VfsResult<Dedupe> {
        let run = || {
            let (from, to) = (self.file(src.0)?, self.target(dst.0)?);
            let _telling = self.telling(&to);
            file::dedupe_range(&self.mount, &from, src.1, &to, dst.1, len_bytes)
        };
        run().map_err(|e| errno("dedupe", e))
    }

    fn clone_tree(
        self: Arc<Self>,
        ctx: &Context,
        src: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> VfsResult<Box<dyn TreeClone>> {
        Ok(Box::new(Cloning::new(self, ctx, src, (parent, name))?))
    }

    fn exchange_range(&self, by: Option<&Context>, a: NodeId, b: NodeId, what: &Exchange) -> VfsResult<()> {
        let exchanged = self.exchange(by, a, b, what);
        if !what.dry_run {
            for (node, start) in [(a, what.a_offset), (b, what.b_offset)] {
                let len_bytes = if what.to_eof { u64::MAX } else { what.len_bytes };
                self.content_changed(&exchanged, node, start..start.saturating_add(len_bytes));
            }
        }
        exchanged.map_err(|e| errno("exchange", e))
    }

    fn freshness(&self, node: NodeId) -> VfsResult<Freshness> {
        let inode = self.file(node).map_err(|e| errno("freshness", e))?;
        Ok(file::freshness_of(&inode))
    }

    fn map_extents(&self, node: NodeId, range: Range<u64>, wants_shared: bool, take: ExtentSink<'_>) -> VfsResult<()> {
        let mut run = || map::map(&self.mount, &self.file(node)?, range.clone(), wants_shared, take);
        run().map_err(|e| errno("map", e))
    }

    fn defragment(&self, node: NodeId, range: Range<u64>, what: &Defrag) -> VfsResult<u64> {
        let run = || file::defragment(&self.mount, &self.file_to_write(node)?, range, what);
        run().map_err(|e| errno("defragment", e))
    }

    fn trim(&self, ctx: &Context, range: TrimRange) -> VfsResult<u64> {
        self.check_administers(ctx)?;
        self.check_view_writable().map_err(|e| errno("trim", e))?;
        let trimmed = self.mount.trim(range);
        self.settled(trimmed).map_err(|e| errno("trim", e))
    }

    fn begin_group(self: Arc<Self>) -> VfsResult<Box<dyn Group>> {
        let group = file::Group::new(&self.mount, crate::reclaim::close);
        Ok(Box::new(StagedWrites { fs: self, group }))
    }
}

impl Fs {
    fn exchange(&self, by: Option<&Context>, a: NodeId, b: NodeId, what: &Exchange) -> Result<()> {
        let (first, second) = (self.target(a)?, self.target(b)?);
        let _telling = [&first, &second].map(|inode| self.telling(inode));
        let how = [&first, &second].map(|inode| stripping(by, inode));
        let _dropping = [&first, &second].map(|inode| self.dropping_elsewhere(inode, 0..u64::MAX));
        let of = |inode, may_change: bool| {
            let capability = may_change.then(|| Capability::of(&self.mount, inode));
            capability.transpose()
        };
        let one = of(&first, !what.dry_run)?;
        let other = of(&second, !what.dry_run && !Arc::ptr_eq(&first, &second))?;
        let strip = Box::new(|| [one, other].into_iter().flatten().try_for_each(Capability::strip));
        file::exchange_as(&self.mount, [&first, &second], what, (how, strip))
    }

    /// Makes a group happen, whole, and durable: see [`Group::commit`].
    pub(crate) fn commit_group(&self, group: file::Group, handle: Handle) -> Result<()> {
        // What a change of content takes away goes first: a crash in between leaves less than there
        // was, never more.
        group
            .files()
            .try_for_each(|inode| strip_capability(&self.mount, inode))?;
        let _dropping: Vec<_> = group
            .files()
            .map(|inode| self.dropping_elsewhere(inode, 0..u64::MAX))
            .collect();
        match &group.apply(&self.mount)?[..] {
            [] => Ok(()),
            [one] => self.sync_inode((one, handle), Scope::All),
            // The log has one file at a time; a commit has all of them or none.
            _ => self.mount.commit(),
        }
    }

    /// A file whose content may be replaced.
    fn target(&self, node: NodeId) -> Result<Arc<Inode>> {
        let inode = self.file_to_write(node)?;
        if inode.flags() & inode_flags::APPEND != 0 {
            return Err(Errno::NotPermitted.into());
        }
        Ok(inode)
    }

    /// The front end's caches, where there is one.
    pub(super) fn caches(&self) -> Option<&Arc<dyn Caches>> {
        self.front.caches.get()
    }

    /// After an error of write-back the caches must have dropped what was lost before the caller is
    /// told of it.
    pub(super) fn settled<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err()
            && let Some(caches) = self.caches()
        {
            caches.settle();
        }
        result
    }

    /// The content of a range was replaced by a call that the front end does not know to change it;
    /// attributes, too.
    fn content_changed<T>(&self, done: &Result<T>, node: NodeId, range: Range<u64>) {
        match done {
            Ok(_) => self.drop_cached(node, range),
            Err(_) => self.tell_of_steps(done, node, range),
        }
    }

    /// A call that changes a range in steps and fails leaves the steps before the one that failed,
    /// but Linux takes a call that failed for one that changed nothing.
    pub(super) fn tell_of_steps<T>(&self, done: &Result<T>, node: NodeId, range: Range<u64>) {
        // A call that is refused has not begun.
        if done.as_ref().is_err_and(|e| !matches!(e, Error::Outcome(_))) {
            self.drop_cached(node, range);
        }
    }

    fn drop_cached(&self, node: NodeId, range: Range<u64>) {
        if let Some(caches) = self.caches() {
            caches.content_changed(node, vec![range]);
        }
    }
}

/// The set-id bits that go: all that may, where it is not known whose right to keep them counts.
fn stripping(by: Option<&Context>, inode: &Inode) -> WriteCtx {
    by.map_or(WriteCtx::STRIPPING, |ctx| WriteCtx::stripping(strips_of(ctx, inode)))
}

/// A group of writes, by node.
struct StagedWrites {
    fs: Arc<Fs>,
    group: file::Group,
}

impl Group for StagedWrites {
    fn write(&mut self, ctx: &Context, node: NodeId, offset: u64, data: &[u8], how: WriteFlags) -> VfsResult<()> {
        let mut run = || {
            let inode = self.fs.file_to_write(node)?;
            let attr = inode.attr_now();
            if attr.flags & inode_flags::APPEND != 0 && offset < attr.size {
                return Err(Errno::NotPermitted.into());
            }
            self.group.write(&self.fs.mount, &inode, offset, data)?;
            if how.contains(WriteFlags::KILL_SUIDGID) {
                let strips = Strips::demanded(&ctx.creds, attr.mode & PERM_MASK, attr.gid);
                self.group.strip(&inode, strips);
            }
            Ok(())
        };
        run().map_err(|e| errno("atomic write", e))
    }

    fn read(&self, node: NodeId, offset: u64, buf: &mut [u8]) -> VfsResult<usize> {
        let mut run = || {
            let inode = self.fs.file(node)?;
            let count = self.group.read(&self.fs.mount, &inode, offset, buf)?;
            self.fs.note_access(&inode);
            Ok(count)
        };
        run().map_err(|e| errno("atomic read", e))
    }

    fn size_after(&self, node: NodeId, size_bytes: u64) -> u64 {
        let inode = self.fs.inode(node);
        inode.map_or(size_bytes, |inode| self.group.size_after(&inode, size_bytes))
    }

    fn ranges(&self, node: NodeId) -> Vec<Range<u64>> {
        let inode = self.fs.inode(node);
        inode.map_or(Vec::new(), |inode| self.group.ranges(&inode))
    }

    fn overlaps(&self, node: NodeId, range: &Range<u64>) -> bool {
        let inode = self.fs.inode(node);
        inode.is_ok_and(|inode| self.group.overlaps(&inode, range))
    }

    fn commit(self: Box<Self>, handle: Handle) -> std::result::Result<(), Failure> {
        Ok(self.fs.commit_group(self.group, handle)?)
    }
}
