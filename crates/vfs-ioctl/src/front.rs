//! The file system that front ends see: the volume, with ioctls decoded and atomic groups by
//! handle.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use cowshed_runtime::Env;
use cowshed_vfs::fs::{DirPlusSink, DirSink, NewNode, WantsNode};
use cowshed_vfs::{
    Access, Attr, Caches, Capabilities, Context, Done, Entry, Error, FallocateFlags, FileSystem, Handle, InitInfo,
    Ioctl, IoctlReply, Lookup, NodeId, OpenRequest, Opened, RenameFlags, Result, SeekKind, SetAttr, SetXattrFlags,
    StatFs, TreeClone, Volume, Wait, WriteFlags,
};

use crate::counts::Count;
use crate::grants::Grants;
use crate::groups::OpenGroups;
use crate::walks::Walks;

/// Clones of trees of one user at a time.
const USER_CLONES_MAX: usize = 16;
/// Counts of what subvolumes use, of one user at a time: each may take much memory.
const USER_COUNTS_MAX: usize = 2;

/// A volume behind the ioctls of Linux. It dereferences to the volume, for the volume's own
/// operations.
pub struct Front<V: Volume + ?Sized = dyn Volume> {
    volume: Arc<V>,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) groups: OpenGroups,
    pub(crate) grants: Grants,
    pub(crate) clones: Walks<Box<dyn TreeClone>>,
    pub(crate) counts: Walks<Count>,
    caches: OnceLock<Arc<dyn Caches>>,
}

impl<V: Volume + ?Sized> Front<V> {
    /// A front of the volume. It has the volume to itself: two fronts would not see each other's
    /// atomic groups. Tokens of lent files, and how long they are lent, come from `env`.
    pub fn new(volume: Arc<V>, env: Arc<dyn Env>) -> Front<V> {
        Front {
            volume,
            groups: OpenGroups::default(),
            grants: Grants::default(),
            clones: Walks::new("tree clones", USER_CLONES_MAX, env.clone()),
            counts: Walks::new("usage counts", USER_COUNTS_MAX, env.clone()),
            env,
            caches: OnceLock::new(),
        }
    }

    /// The volume.
    pub fn volume(&self) -> &Arc<V> {
        &self.volume
    }

    /// Names the front end that caches attributes and contents, to the volume as well. Called at
    /// most once.
    pub fn set_caches(&self, caches: Arc<dyn Caches>) {
        self.volume.set_caches(caches.clone());
        let _ = self.caches.set(caches);
    }

    pub(crate) fn caches(&self) -> Option<&Arc<dyn Caches>> {
        self.caches.get()
    }
}

impl<V: Volume + ?Sized> Deref for Front<V> {
    type Target = V;
    fn deref(&self) -> &V {
        &self.volume
    }
}

impl<V: Volume + ?Sized> fmt::Debug for Front<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front")
            .field("volume", &self.volume)
            .finish_non_exhaustive()
    }
}

/// Methods that go through as they are.
macro_rules! pass_on {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)?;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
            self.volume.$name($($arg),*)
        })*
    };
}

impl<V: Volume + ?Sized + 'static> FileSystem for Front<V> {
    pass_on! {
        fn init(&self, info: &InitInfo) -> Result<Capabilities>;
        fn is_shared(&self) -> bool;
        fn lookup(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<Lookup>;
        fn lookup_node(&self, ctx: &Context, node: NodeId) -> Result<Entry>;
        fn lookup_parent(&self, ctx: &Context, node: NodeId) -> Result<Entry>;
        fn forget(&self, node: NodeId, lookups: u64);
        fn setattr(&self, ctx: &Context, node: NodeId, handle: Option<Handle>, set: &SetAttr) -> Result<Attr>;
        fn readlink(&self, ctx: &Context, node: NodeId) -> Result<Vec<u8>>;
        fn mknod(&self, ctx: &Context, parent: NodeId, name: &[u8], new: NewNode) -> Result<Entry>;
        fn mkdir(&self, ctx: &Context, parent: NodeId, name: &[u8], perm: u32) -> Result<Entry>;
        fn unlink(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()>;
        fn rmdir(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> Result<()>;
        fn symlink(&self, ctx: &Context, parent: NodeId, name: &[u8], target: &[u8]) -> Result<Entry>;
        fn rename(
            &self,
            ctx: &Context,
            parent: NodeId,
            name: &[u8],
            new_parent: NodeId,
            new_name: &[u8],
            flags: RenameFlags,
        ) -> Result<()>;
        fn link(&self, ctx: &Context, node: NodeId, new_parent: NodeId, new_name: &[u8]) -> Result<Entry>;
        fn tmpfile(&self, ctx: &Context, parent: NodeId, perm: u32, open: &OpenRequest) -> Result<(Entry, Opened)>;
        fn flush(&self, ctx: &Context, node: NodeId, handle: Handle) -> Result<()>;
        fn fsync(&self, ctx: &Context, node: NodeId, handle: Handle, data_only: bool) -> Result<()>;
        fn fsync_later(
            &self,
            ctx: &Context,
            node: NodeId,
            handle: Handle,
            data_only: bool,
            will_wait: &dyn Fn(),
            done: Done,
        );
        fn opendir(&self, ctx: &Context, node: NodeId) -> Result<Opened>;
        fn readdir(&self, ctx: &Context, node: NodeId, handle: Handle, cookie: u64, sink: DirSink<'_>) -> Result<()>;
        fn readdirplus(
            &self,
            ctx: &Context,
            node: NodeId,
            handle: Handle,
            cookie: u64,
            wants: WantsNode<'_>,
            sink: DirPlusSink<'_>,
        ) -> Result<()>;
        fn releasedir(&self, node: NodeId, handle: Handle);
        fn fsyncdir(&self, ctx: &Context, node: NodeId, handle: Handle, data_only: bool) -> Result<()>;
        fn fsyncdir_later(
            &self,
            ctx: &Context,
            node: NodeId,
            handle: Handle,
            data_only: bool,
            will_wait: &dyn Fn(),
            done: Done,
        );
        fn statfs(&self, ctx: &Context, node: NodeId) -> Result<StatFs>;
        fn getxattr(&self, ctx: &Context, node: NodeId, name: &[u8], buf: &mut [u8]) -> Result<usize>;
        fn listxattr(&self, ctx: &Context, node: NodeId, buf: &mut [u8]) -> Result<usize>;
        fn setxattr(&self, ctx: &Context, node: NodeId, name: &[u8], value: &[u8], flags: SetXattrFlags) -> Result<()>;
        fn removexattr(&self, ctx: &Context, node: NodeId, name: &[u8]) -> Result<()>;
        fn access(&self, ctx: &Context, node: NodeId, access: Access) -> Result<()>;
        fn fallocate(
            &self,
            ctx: &Context,
            node: NodeId,
            handle: Handle,
            offset: u64,
            len: u64,
            mode: FallocateFlags,
        ) -> Result<()>;
        fn lseek(&self, ctx: &Context, node: NodeId, handle: Handle, offset: u64, what: SeekKind) -> Result<u64>;
        fn copy_file_range(
            &self,
            ctx: &Context,
            src: (NodeId, Handle, u64),
            dst: (NodeId, Handle, u64),
            len: u64,
        ) -> Result<u64>;
        fn syncfs(&self, ctx: &Context, node: NodeId) -> Result<()>;
    }

    fn destroy(&self) {
        self.groups.clear();
        self.clones.clear();
        self.counts.clear();
        self.volume.destroy();
    }

    fn getattr(&self, ctx: &Context, node: NodeId, handle: Option<Handle>) -> Result<Attr> {
        let mut attr = self.volume.getattr(ctx, node, handle)?;
        self.size_in_group(handle, node, &mut attr);
        Ok(attr)
    }

    fn create(
        &self,
        ctx: &Context,
        parent: NodeId,
        name: &[u8],
        perm: u32,
        open: &OpenRequest,
    ) -> Result<(Entry, Opened)> {
        let created = self.volume.create(ctx, parent, name, perm, open)?;
        self.wait_for_groups_of_ended_processes(created.0.node);
        Ok(created)
    }

    fn open(&self, ctx: &Context, node: NodeId, open: &OpenRequest) -> Result<Opened> {
        self.wait_for_groups_of_ended_processes(node);
        self.volume.open(ctx, node, open)
    }

    fn release(&self, node: NodeId, handle: Handle) {
        self.release_group(node, handle);
        self.volume.release(node, handle);
    }

    fn read(&self, ctx: &Context, node: NodeId, handle: Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        match self.read_staged(node, handle, offset, buf) {
            Some(staged) => staged,
            None => self.volume.read(ctx, node, handle, offset, buf),
        }
    }

    fn write(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
    ) -> Result<usize> {
        // Pages of a mapping belong to no handle.
        if !flags.contains(WriteFlags::FROM_CACHE)
            && let Some(staged) = self.write_staged(ctx, (node, handle), offset, data, flags)
        {
            return staged;
        }
        self.keep_order_after_failed_group(ctx, node, handle)?;
        self.volume.write(ctx, node, handle, offset, data, flags)
    }

    fn ioctl_wait(&self, _ctx: &Context, _node: NodeId, call: &Ioctl, input: &[u8]) -> Result<Option<Wait>> {
        self.wait_of_ioctl(call.cmd, input)
    }

    fn ioctl(
        &self,
        ctx: &Context,
        node: NodeId,
        handle: Handle,
        call: &Ioctl,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let at = (node, handle);
        match self.ioctl_atomic(ctx, at, call.cmd, output) {
            Err(Error::NotIoctl) => {}
            answer => return answer,
        }
        match self.ioctl_remap(ctx, at, call.cmd, input, output) {
            Err(Error::NotIoctl) => {}
            answer => return answer,
        }
        match self.ioctl_trees(ctx, node, call.cmd, input, output) {
            Err(Error::NotIoctl) => {}
            answer => return answer,
        }
        match self.ioctl_usage(ctx, call.cmd, input, output) {
            Err(Error::NotIoctl) => {}
            answer => return answer,
        }
        match self.ioctl_subvolumes(ctx, node, call.cmd, input, output) {
            Err(Error::NotIoctl) => self.ioctl_plain(ctx, node, call.cmd, input, output),
            answer => answer,
        }
    }
}
