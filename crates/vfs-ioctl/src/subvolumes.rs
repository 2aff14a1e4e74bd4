//! Ioctls of subvolumes.

use std::ops::ControlFlow;

use cowshed_vfs::{
    Access, Context, Error, IoctlReply, ItemKey, NodeId, Received, Result, Search, SubvolumeInfo, Volume, Wait,
};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::front::Front;
use crate::reply::{argument, reply};
use crate::wire::btrfs::{
    self, InoLookup, InoLookupUser, RDONLY, ReceivedSubvol, RootRef, RootRefs, SPEC_BY_ID, SearchArgs, SearchHeader,
    SearchKey, SubvolInfo, SubvolWait, VolArgs, VolArgs2, put_text, text,
};
use crate::wire::search::{SEARCH, SearchPage};
use crate::wire::{self, Snapshot, SubvolumePage};

/// Items looked at in one search for types: some milliseconds, in which no commit may run.
const LOOKED_AT_MAX: u32 = 50_000;

impl<V: Volume + ?Sized + 'static> Front<V> {
    /// Errors: `NotIoctl` for commands that are not of this module, and those of the calls.
    pub(crate) fn ioctl_subvolumes(
        &self,
        ctx: &Context,
        node: NodeId,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        match self.ioctl_name(ctx, node, cmd, input) {
            Err(Error::NotIoctl) => {}
            answer => return answer.map(|()| IoctlReply::default()),
        }
        match self.ioctl_property(ctx, node, cmd, input, output) {
            Err(Error::NotIoctl) => self.ioctl_question(ctx, node, cmd, input, output),
            answer => answer,
        }
    }

    /// What an ioctl waits for, if it is one that may wait for long.
    pub(crate) fn wait_of_ioctl(&self, cmd: u32, input: &[u8]) -> Result<Option<Wait>> {
        match cmd {
            btrfs::SUBVOL_SYNC_WAIT => self.wait_for_drops(input).map(Some),
            _ => Ok(None),
        }
    }

    /// As with the kernel, anybody may.
    fn wait_for_drops(&self, input: &[u8]) -> Result<Wait> {
        let call: &SubvolWait = argument(input)?;
        let subvolumes = self.volume().subvolumes()?;
        let mut waited_for = match call.mode.get() {
            btrfs::WAIT_FOR_ONE => {
                let id = call.subvolid.get();
                if (1..FIRST_ID).contains(&id) || id > LAST_ID {
                    return Err(Error::Invalid);
                }
                match subvolumes.is_deleted(id)? {
                    None => return Err(Error::NotFound),
                    Some(false) => return Err(Error::Exists),
                    Some(true) => vec![id],
                }
            }
            btrfs::WAIT_FOR_QUEUED => subvolumes.all_deleted()?,
            mode if mode < btrfs::WAIT_MODES => return Err(Error::NotSupported),
            _ => return Err(Error::Invalid),
        };
        if waited_for.is_empty() {
            return Err(Error::NotFound);
        }
        subvolumes.drop_at_once();
        let volume = self.volume().clone();
        Ok(Box::new(move || {
            let state = |id: &u64| volume.subvolumes()?.is_deleted(*id);
            while let Some(id) = waited_for.last() {
                match state(id) {
                    Ok(Some(true)) => return None,
                    Ok(_) => waited_for.pop(),
                    Err(error) => return Some(Err(error)),
                };
            }
            Some(Ok(()))
        }))
    }

    /// Calls that make and delete.
    fn ioctl_name(&self, ctx: &Context, node: NodeId, cmd: u32, input: &[u8]) -> Result<()> {
        let subvolumes = || self.volume().subvolumes();
        match cmd {
            btrfs::SUBVOL_CREATE => {
                let name = new_name_of(&argument::<VolArgs>(input)?.name)?;
                subvolumes()?.create(&self.with_umask(ctx), node, name)
            }
            btrfs::SUBVOL_CREATE_V2 => {
                let call: &VolArgs2 = argument(input)?;
                only_flags(call, 0)?;
                subvolumes()?.create(&self.with_umask(ctx), node, new_name_of(&call.name)?)
            }
            btrfs::SNAP_DESTROY => subvolumes()?.delete(ctx, node, old_name_of(&argument::<VolArgs>(input)?.name)?),
            btrfs::SNAP_DESTROY_V2 => {
                let call: &VolArgs2 = argument(input)?;
                only_flags(call, SPEC_BY_ID)?;
                if call.flags.get() & SPEC_BY_ID == 0 {
                    return subvolumes()?.delete(ctx, node, old_name_of(&call.name)?);
                }
                let id = U64::read_from_prefix(&call.name).map_err(|_| Error::Invalid)?.0;
                if id.get() < FIRST_ID {
                    return Err(Error::Invalid);
                }
                subvolumes()?.delete_by_id(ctx, id.get())
            }
            btrfs::SNAP_CREATE => {
                let call: &VolArgs = argument(input)?;
                self.snapshot_of_open(ctx, (call.fd.get(), node, new_name_of(&call.name)?), false)
            }
            btrfs::SNAP_CREATE_V2 => {
                let call: &VolArgs2 = argument(input)?;
                only_flags(call, RDONLY)?;
                let is_read_only = call.flags.get() & RDONLY != 0;
                self.snapshot_of_open(ctx, (call.fd.get(), node, new_name_of(&call.name)?), is_read_only)
            }
            wire::SNAPSHOT => {
                let call: &Snapshot = argument(input)?;
                let len = usize::try_from(call.name_bytes.get()).map_err(|_| Error::Invalid)?;
                let name = call.name.get(..len).ok_or(Error::NameTooLong)?;
                let source = self.lent(call.token, Access::READ)?;
                subvolumes()?.snapshot(ctx, source, node, name, call.is_read_only.get() & 1 != 0)
            }
            _ => Err(Error::NotIoctl),
        }
    }

    /// Makes a snapshot of the subvolume whose root directory the caller has open under a
    /// descriptor, with what programs stored into mapped files before the call.
    fn snapshot_of_open(&self, ctx: &Context, (fd, dir, name): (i64, NodeId, &[u8]), is_read_only: bool) -> Result<()> {
        let subvolumes = self.volume().subvolumes()?;
        let number = self.caches().ok_or(Error::NotSupported)?.open_inode(ctx.pid, fd);
        let number = number.map_err(|error| match error {
            Error::BadHandle => Error::Invalid,
            other => other,
        })?;
        let source = subvolumes.root_of_number(number)?;
        subvolumes.collect_stores(source)?;
        subvolumes.snapshot(ctx, source, dir, name, is_read_only)
    }

    /// The context with the caller's umask: FUSE requests for ioctls do not carry it.
    fn with_umask(&self, ctx: &Context) -> Context {
        let umask = self.caches().and_then(|caches| caches.umask(ctx.pid));
        Context::new(ctx.creds.clone(), ctx.pid, umask.unwrap_or(UMASK_UNKNOWN))
    }

    /// Flags, the received uuid, the default.
    fn ioctl_property(
        &self,
        ctx: &Context,
        node: NodeId,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let subvolumes = || self.volume().subvolumes();
        match cmd {
            btrfs::SUBVOL_SETFLAGS => {
                let flags = argument::<U64>(input)?.get();
                if flags & !RDONLY != 0 {
                    return Err(Error::NotSupported);
                }
                subvolumes()?.set_read_only(ctx, node, flags & RDONLY != 0)?;
            }
            btrfs::SET_RECEIVED_SUBVOL => {
                let mut call: ReceivedSubvol = *argument(input)?;
                let received = Received {
                    uuid: call.uuid,
                    sent_generation: call.stransid.get(),
                    sent: call.stime.into(),
                };
                let (generation, at) = subvolumes()?.set_received(ctx, node, &received)?;
                (call.rtransid, call.rtime) = (generation.into(), at.into());
                return reply(output, call.as_bytes());
            }
            btrfs::DEFAULT_SUBVOL => subvolumes()?.set_default(ctx, argument::<U64>(input)?.get())?,
            _ => return Err(Error::NotIoctl),
        }
        Ok(IoctlReply::default())
    }

    fn ioctl_question(
        &self,
        ctx: &Context,
        node: NodeId,
        cmd: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        let subvolumes = || self.volume().subvolumes();
        match cmd {
            btrfs::INO_LOOKUP => {
                let mut call: InoLookup = *argument(input)?;
                let (id, path) = subvolumes()?.path_of(ctx, node, call.treeid.get(), call.objectid.get())?;
                call.treeid = id.into();
                fit(put_text(&mut call.name, &path))?;
                reply(output, call.as_bytes())
            }
            btrfs::INO_LOOKUP_USER => {
                let mut call: InoLookupUser = *argument(input)?;
                let (path, name) = subvolumes()?.path_below(ctx, node, call.treeid.get())?;
                fit(put_text(&mut call.path, &path))?;
                fit(put_text(&mut call.name, &name))?;
                reply(output, call.as_bytes())
            }
            btrfs::GET_SUBVOL_INFO => reply(output, described(&subvolumes()?.info(node)?)?.as_bytes()),
            btrfs::GET_SUBVOL_ROOTREF => {
                let from = argument::<RootRefs>(input)?.min_treeid.get();
                let mut page = RootRefs::new_zeroed();
                page.min_treeid = from.into();
                let mut entries = page.rootref.iter_mut();
                while let Some((treeid, dirid)) = subvolumes()?.next_child(node, page.min_treeid.get())? {
                    let Some(entry) = entries.next() else {
                        // There are more than these: the same call goes on from `min_treeid`.
                        // The page is handed out and the call fails: it is to be gone on with.
                        let page = reply(output, page.as_bytes())?;
                        let result = -Error::Overflow.errno();
                        return Ok(IoctlReply { result, ..page });
                    };
                    *entry = RootRef {
                        treeid: treeid.into(),
                        dirid: dirid.into(),
                    };
                    page.num_items += 1;
                    page.min_treeid = (treeid + 1).into();
                }
                reply(output, page.as_bytes())
            }
            btrfs::TREE_SEARCH => self.search(ctx, node, argument(input)?, output),
            SEARCH => self.search_types(ctx, node, argument(input)?, output),
            wire::SUBVOLUME => {
                let from = argument::<U64>(input)?.get();
                let mut page = SubvolumePage::new_zeroed();
                if let Some((info, path)) = subvolumes()?.next(ctx, from)? {
                    page = SubvolumePage::new(&info, &path).ok_or(Error::NameTooLong)?;
                }
                reply(output, page.as_bytes())
            }
            _ => Err(Error::NotIoctl),
        }
    }

    fn search(&self, ctx: &Context, node: NodeId, call: &SearchArgs, output: &mut [u8]) -> Result<IoctlReply> {
        let mut page = *call;
        let what = search_of(&call.key);
        // Linux counts an item after it has given it: none wanted is one given.
        let mut items = Items::new(&mut page.buf, call.key.nr_items.get().max(1));
        let mut take = |key: ItemKey, bytes: &[u8], transid: u64| {
            let flow = items.put(key, bytes, transid);
            if std::mem::take(&mut items.is_too_large) {
                // As Linux does: its header alone, and the caller goes on behind it.
                let _ = items.put(key, &[], transid);
            }
            flow
        };
        self.volume().subvolumes()?.search(ctx, node, &what, &mut take)?;
        page.key.nr_items = items.count()?.into();
        reply(output, page.as_bytes())
    }

    /// As [`Self::search`], of items of some types.
    fn search_types(&self, ctx: &Context, node: NodeId, call: &SearchPage, output: &mut [u8]) -> Result<IoctlReply> {
        let mut page = *call;
        let what = search_of(&call.key);
        let mut items = Items::new(&mut page.buf, call.key.nr_items.get());
        let (mut looked_at, mut next) = (0, None);
        let mut take = |key: ItemKey, bytes: &[u8], transid: u64| {
            looked_at += 1;
            let flow = match call.types.contains(&key.1) {
                true => items.put(key, bytes, transid),
                false if looked_at > LOOKED_AT_MAX => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            if flow.is_break() {
                next = Some(key);
            }
            flow
        };
        self.volume().subvolumes()?.search(ctx, node, &what, &mut take)?;
        page.key.nr_items = items.count()?.into();
        page.is_end = u32::from(next.is_none()).into();
        if let Some((objectid, ty, offset)) = next {
            (page.key.min_objectid, page.key.min_offset) = (objectid.into(), offset.into());
            page.key.min_type = u32::from(ty).into();
        }
        reply(output, page.as_bytes())
    }
}

fn search_of(key: &SearchKey) -> Search {
    // Linux takes the low byte. Programs ask for all types with 2^32 - 1.
    let ty = |ty: U32| ty.get() as u8;
    Search {
        tree: key.tree_id.get(),
        from: (key.min_objectid.get(), ty(key.min_type), key.min_offset.get()),
        to: (key.max_objectid.get(), ty(key.max_type), key.max_offset.get()),
        since: key.min_transid.get(),
        until: key.max_transid.get(),
    }
}

/// Items that were found, each behind a header.
struct Items<'a> {
    buf: &'a mut [u8],
    used: usize,
    count: u32,
    count_max: u32,
    is_too_large: bool,
}

impl<'a> Items<'a> {
    fn new(buf: &'a mut [u8], count_max: u32) -> Self {
        buf.fill(0);
        Items {
            buf,
            used: 0,
            count: 0,
            count_max,
            is_too_large: false,
        }
    }

    /// Adds an item where there is room.
    fn put(&mut self, (objectid, ty, offset): ItemKey, bytes: &[u8], transid: u64) -> ControlFlow<()> {
        let head = SearchHeader {
            transid: transid.into(),
            objectid: objectid.into(),
            offset: offset.into(),
            ty: u32::from(ty).into(),
            len: u32::try_from(bytes.len()).unwrap_or(u32::MAX).into(),
        };
        let end = self.used + size_of::<SearchHeader>() + bytes.len();
        let is_wanted = self.count < self.count_max;
        let Some(room) = self.buf.get_mut(self.used..end).filter(|_| is_wanted) else {
            self.is_too_large = self.count == 0 && is_wanted;
            return ControlFlow::Break(());
        };
        let (head_room, item_room) = room.split_at_mut(size_of::<SearchHeader>());
        head_room.copy_from_slice(head.as_bytes());
        item_room.copy_from_slice(bytes);
        (self.used, self.count) = (end, self.count + 1);
        ControlFlow::Continue(())
    }

    /// How many there are. Errors: `Overflow` (there was no room for the first).
    fn count(&self) -> Result<u32> {
        match self.is_too_large {
            true => Err(Error::Overflow),
            false => Ok(self.count),
        }
    }
}

fn name_of(field: &[u8]) -> Result<&[u8]> {
    text(field).ok_or(Error::NameTooLong)
}

/// The name of what is to be made. Errors as those of Linux for names that no directory can have.
fn new_name_of(field: &[u8]) -> Result<&[u8]> {
    match name_of(field)? {
        b"" => Err(Error::AccessDenied),
        b"." | b".." => Err(Error::Exists),
        name => Ok(name),
    }
}

/// The name of what is to be deleted.
fn old_name_of(field: &[u8]) -> Result<&[u8]> {
    match name_of(field)? {
        b"" | b"." => Err(Error::AccessDenied),
        name => Ok(name),
    }
}

fn fit(fits: bool) -> Result<()> {
    if fits { Ok(()) } else { Err(Error::NameTooLong) }
}

/// Quota groups are not known here.
fn only_flags(call: &VolArgs2, known: u64) -> Result<()> {
    match call.flags.get() & !known {
        0 => Ok(()),
        _ => Err(Error::NotSupported),
    }
}

fn described(info: &SubvolumeInfo) -> Result<SubvolInfo> {
    let mut page = SubvolInfo {
        treeid: info.id.into(),
        parent_id: info.parent_id.into(),
        dirid: info.parent_dir.into(),
        generation: info.generation.into(),
        flags: U64::new(if info.is_read_only { ROOT_RDONLY } else { 0 }),
        uuid: info.uuid,
        parent_uuid: info.parent_uuid,
        received_uuid: info.received_uuid,
        ctransid: info.changed_generation.into(),
        otransid: info.created_generation.into(),
        stransid: info.sent_generation.into(),
        rtransid: info.received_generation.into(),
        ctime: info.changed.into(),
        otime: info.created.into(),
        stime: info.sent.into(),
        rtime: info.received.into(),
        ..SubvolInfo::new_zeroed()
    };
    fit(put_text(&mut page.name, &info.name))?;
    Ok(page)
}

/// The lowest number that a subvolume can be deleted by.
const FIRST_ID: u64 = 256;
const LAST_ID: u64 = 256_u64.wrapping_neg();

/// Used where the caller's umask cannot be read: the mode allows writing to the owner alone.
const UMASK_UNKNOWN: u32 = 0o022;

/// `BTRFS_ROOT_SUBVOL_RDONLY`: as root items have it.
const ROOT_RDONLY: u64 = 1;
