//! Subvolumes as the contract has them. Callers' permissions are checked here: Linux passes these
//! calls on without any check.

use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_format::features::root_flags;
use btrfs_format::items::{RootItem, Timespec};
use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId};
use btrfs_store::tree::compare::{self, Generations};
use btrfs_store::tree::{Item, Run, Tree};
use btrfs_store::usage::{Usage, UsageWalk};
use cowshed_vfs::{
    Access, Context, Error as Errno, ItemKey, ItemSink, NodeId, Received, Search, SubvolumeInfo, SubvolumeUsage,
    Subvolumes, Timestamp, UsageCount,
};

use super::{Fs, errno};
use crate::access::Caller;
use crate::dir::subvolumes::{self, Listed};
use crate::error::{Error, Result, StoreError};
use crate::object::{Inode, Subvol};
use crate::{dir, file, subvol};

type VfsResult<T> = cowshed_vfs::Result<T>;

/// Directories above a subvolume that are named at most: more means that they form a ring.
const DEPTH_MAX: usize = 4096;
/// Bounded waits for what programs stored into mapped files: a second each. Linux may send it no
/// sooner than this very call ends where all threads of the front end are taken by such calls.
const STORES_SETTLE_MAX: usize = 10;

impl Subvolumes for Fs {
    fn create(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            subvolumes::create(&self.mount, &checked(ctx), &self.inode(parent)?, name)
        };
        run().map_err(|e| errno("create a subvolume", e))?;
        if let Ok(dir) = self.inode(parent) {
            self.name_came(&dir, name);
        }
        Ok(())
    }

    fn collect_stores(&self, root: NodeId) -> VfsResult<()> {
        let root = self.inode(root).map_err(|e| errno("collect stores", e))?;
        let (objects, stateless) = (self.mount.objects(), self.options.stateless_open);
        let tree = root.tree.id();
        // All where files are opened without a word of it, else no more than are open.
        let inodes = if stateless {
            let is_meant = |inode: &Inode| inode.tree.id() == tree && inode.is_regular();
            objects.inodes.all_with(is_meant)
        } else {
            let is_meant = |inode: &Arc<Inode>| inode.is_regular() && inode.refs.may_have_stores();
            let open = objects.views.open_in(tree).into_iter();
            open.filter_map(|ino| objects.inodes.get(tree, ino))
                .filter(is_meant)
                .collect()
        };
        let (mut told, whole) = (Vec::new(), 0..u64::MAX);
        for inode in &inodes {
            for viewer in objects.views.all_with(inode) {
                viewer.content_lost(inode, vec![whole.clone()]);
                if !told.iter().any(|known| Arc::ptr_eq(known, &viewer)) {
                    told.push(viewer);
                }
            }
        }
        // Each wait is bounded, and ends at once where nothing is left.
        for _ in 0..STORES_SETTLE_MAX {
            told.iter().for_each(|viewer| viewer.settle());
        }
        Ok(())
    }

    fn snapshot(
        &self,
        ctx: &Context,
        source: NodeId,
        parent: NodeId,
        name: &[u8],
        is_read_only: bool,
    ) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            let (source, dir) = (self.inode(source)?, self.inode(parent)?);
            file::write_back_all(&self.mount)?;
            subvolumes::snapshot(&self.mount, &checked(ctx), &source, (&dir, name), is_read_only)
        };
        run().map_err(|e| errno("snapshot", e))?;
        if let Ok(dir) = self.inode(parent) {
            self.name_came(&dir, name);
        }
        Ok(())
    }

    fn delete(&self, ctx: &Context, parent: NodeId, name: &[u8]) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            subvolumes::delete(&self.mount, &checked(ctx), &self.inode(parent)?, name)
        };
        let gone = run().map_err(|e| errno("delete a subvolume", e))?;
        if let Ok(dir) = self.inode(parent) {
            self.subvolume_gone(&dir, name, &gone);
        }
        Ok(())
    }

    fn delete_by_id(&self, ctx: &Context, id: u64) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            subvolumes::delete_by_id(&self.mount, &checked(ctx), TreeId(id))
        };
        let (dir, name, gone) = run().map_err(|e| errno("delete a subvolume", e))?;
        self.subvolume_gone(&dir, &name, &gone);
        Ok(())
    }

    fn is_deleted(&self, id: u64) -> VfsResult<Option<bool>> {
        let state = subvolumes::is_deleted(&self.mount, TreeId(id));
        state.map_err(|e| errno("look for a subvolume", e))
    }

    fn all_deleted(&self) -> VfsResult<Vec<u64>> {
        let all = subvolumes::all_deleted(&self.mount);
        all.map_err(|e| errno("look for deleted subvolumes", e))
    }

    fn drop_at_once(&self) {
        if self.mount.objects().has_dying() || self.mount.store().queued_drops() > 0 {
            self.mount.background().drop_at_once();
        }
    }

    fn set_read_only(&self, ctx: &Context, root: NodeId, is_read_only: bool) -> VfsResult<()> {
        let run = || {
            self.check_view_writable()?;
            let root = self.inode(root)?;
            if is_read_only {
                file::write_back_all(&self.mount)?;
            }
            subvolumes::set_read_only(&self.mount, &checked(ctx), &root, is_read_only)
        };
        run().map_err(|e| errno("set a subvolume's flags", e))
    }

    fn set_received(&self, ctx: &Context, root: NodeId, from: &Received) -> VfsResult<(u64, Timestamp)> {
        let run = || {
            self.check_view_writable()?;
            subvolumes::set_received(&self.mount, &checked(ctx), &self.inode(root)?, from)
        };
        let (generation, at) = run().map_err(|e| errno("set a received uuid", e))?;
        Ok((generation.get(), at))
    }

    fn root_of_number(&self, number: u64) -> VfsResult<NodeId> {
        let (tree, ino) = self.numbering.inode_of(NodeId(number)).ok_or(Errno::NotFound)?;
        let inode = self.mount.objects().inodes.get(tree, ino);
        let inode = inode.filter(|inode| self.numbering.shown_of(inode) == number);
        Ok(self.numbering.node(&*inode.ok_or(Errno::NotFound)?))
    }

    fn info(&self, node: NodeId) -> VfsResult<SubvolumeInfo> {
        let run = || {
            let found = subvolumes::find(&self.mount, self.inode(node)?.subvol.id)?;
            Ok(info_of(&found.ok_or(Errno::NotFound)?))
        };
        run().map_err(|e| errno("subvolume", e))
    }

    fn next(&self, ctx: &Context, id: u64) -> VfsResult<Option<(SubvolumeInfo, Vec<u8>)>> {
        self.check_administers(ctx)?;
        let run = || match subvolumes::next_listed(&self.mount, TreeId(id))? {
            Some(found) => Ok(Some((info_of(&found), self.path_to(&found)?))),
            None => Ok(None),
        };
        run().map_err(|e| errno("list subvolumes", e))
    }

    fn next_child(&self, node: NodeId, id: u64) -> VfsResult<Option<(u64, u64)>> {
        let run = || {
            let above = self.inode(node)?.subvol.id;
            let found = subvolumes::next_child(&self.mount, above, TreeId(id))?;
            Ok(found.map(|(tree, dir)| (tree.get(), dir.get())))
        };
        run().map_err(|e| errno("list subvolumes", e))
    }

    fn default_id(&self, ctx: &Context) -> VfsResult<u64> {
        self.check_administers(ctx)?;
        let id = subvol::default_id(&self.mount).map_err(|e| errno("default subvolume", e))?;
        Ok(id.get())
    }

    fn set_default(&self, ctx: &Context, id: u64) -> VfsResult<()> {
        self.check_administers(ctx)?;
        let run = || {
            self.check_view_writable()?;
            subvolumes::set_default(&self.mount, TreeId(id))
        };
        run().map_err(|e| errno("set the default subvolume", e))
    }

    fn path_of(&self, ctx: &Context, node: NodeId, id: u64, inode: u64) -> VfsResult<(u64, Vec<u8>)> {
        let own = self.inode(node).map_err(|e| errno("path", e))?.subvol.clone();
        let (id, ino) = (if id == 0 { own.id } else { TreeId(id) }, ObjectId(inode));
        if id != own.id || ino != own.root_ino {
            self.check_administers(ctx)?;
        }
        let run = || {
            let subvol = subvol::load(&self.mount, id)?.ok_or(Errno::NotFound)?;
            let names = names_to(&subvol, subvol.root_ino, ino)?.ok_or(Errno::NotFound)?;
            Ok((id.get(), path_of_names(names)))
        };
        run().map_err(|e| errno("path", e))
    }

    fn path_below(&self, ctx: &Context, node: NodeId, id: u64) -> VfsResult<(Vec<u8>, Vec<u8>)> {
        let run = || {
            let top = self.inode(node)?;
            let place = subvolumes::find(&self.mount, TreeId(id))?.ok_or(Errno::NotFound)?.place;
            let place = place
                .filter(|place| place.tree == top.subvol.id)
                .ok_or(Errno::NotFound)?;
            let caller = checked(ctx);
            let mut names = Vec::new();
            let mut ino = place.dir;
            loop {
                let dir = self
                    .mount
                    .objects()
                    .inodes
                    .load(&top.subvol, ino)?
                    .ok_or(Errno::NotFound)?;
                caller.need(&dir, Access::READ | Access::EXEC)?;
                if ino == top.ino {
                    break;
                }
                let (up, name) = dir::name_of(&top.tree, ino)?.ok_or(Errno::AccessDenied)?;
                names.push(name);
                if up == ino || names.len() > DEPTH_MAX {
                    return Err(Errno::AccessDenied.into());
                }
                ino = up;
            }
            names.reverse();
            Ok((path_of_names(names), place.name))
        };
        run().map_err(|e| errno("path", e))
    }

    fn usage(&self, ctx: &Context) -> VfsResult<Box<dyn UsageCount>> {
        self.check_administers(ctx)?;
        let run = || {
            if !self.mount.store().volume().is_read_only() {
                file::write_back_all(&self.mount)?;
                self.mount.commit()?;
            }
            Ok(UsageWalk::new(self.mount.store().clone())?)
        };
        let walk = run().map_err(|e: Error| errno("count what subvolumes use", e))?;
        Ok(Box::new(Counting(walk)))
    }

    fn search(&self, ctx: &Context, node: NodeId, what: &Search, take: ItemSink<'_>) -> VfsResult<()> {
        self.check_administers(ctx)?;
        let mut run = || {
            let id = match what.tree {
                0 => self.inode(node)?.subvol.id,
                id => TreeId(id),
            };
            let tree = self.mount.store().forest().load(id)?.ok_or(Errno::NotFound)?;
            let key = |(object, ty, offset): ItemKey| Key::new(ObjectId(object), KeyType(ty), offset);
            let range = (key(what.from), key(what.to));
            let txn = self.mount.store().txn();
            // No block of the tree is replaced meanwhile, and pending items stay those of the
            // running transaction.
            let _commits = (what.since > 0).then(|| txn.hold_commits());
            let generations = Generations {
                since: Generation(what.since),
                until: Generation(what.until),
                running: txn.running(),
            };
            let take = |key: Key, bytes: &[u8], from: Generation| {
                take((key.objectid.get(), key.ty.0, key.offset), bytes, from.get())
            };
            if what.since == 0 {
                return search_all(&tree, range, &generations, take);
            }
            compare::search(&tree, range, &generations, take)
                .map(|_: ControlFlow<()>| ())
                .map_err(Error::from)
        };
        run().map_err(|e| errno("search a tree", e))
    }
}

impl Fs {
    /// The caller is user 0, or the user whose process serves the volume: what Linux asks for
    /// CAP_SYS_ADMIN, of which front ends say nothing.
    pub(super) fn check_administers(&self, ctx: &Context) -> VfsResult<()> {
        match ctx.creds.is_privileged() || ctx.creds.uid == self.options.owner_uid {
            true => Ok(()),
            false => Err(Errno::NotPermitted),
        }
    }

    /// The path of a subvolume from the top level.
    fn path_to(&self, found: &Listed) -> Result<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = found.clone();
        while let Some(place) = at.place {
            let above = subvol::load(&self.mount, place.tree)?.ok_or(Errno::NotFound)?;
            let between = names_to(&above, above.root_ino, place.dir)?.ok_or(Errno::NotFound)?;
            names.push(place.name);
            names.extend(between.into_iter().rev());
            if names.len() > DEPTH_MAX {
                return Err(ring(place.tree, place.dir));
            }
            at = subvolumes::find(&self.mount, place.tree)?.ok_or(Errno::NotFound)?;
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }
}

/// A count as the contract has it.
struct Counting(UsageWalk);

impl UsageCount for Counting {
    fn step(&mut self) -> VfsResult<Option<Vec<SubvolumeUsage>>> {
        let done = match self.0.step() {
            Err(StoreError::Refused { what }) => {
                tracing::warn!("count what subvolumes use: {what}");
                return Err(Errno::Busy);
            }
            done => done.map_err(|e| errno("count what subvolumes use", e.into()))?,
        };
        let shown = |(id, usage): (TreeId, Usage)| SubvolumeUsage {
            id: id.get(),
            data_bytes: usage.data_bytes,
            data_exclusive_bytes: usage.data_exclusive_bytes,
            metadata_bytes: usage.metadata_bytes,
            metadata_exclusive_bytes: usage.metadata_exclusive_bytes,
        };
        Ok(done.map(|all| all.into_iter().map(shown).collect()))
    }

    fn progress(&self) -> (u64, u64) {
        self.0.progress()
    }
}

/// As [`compare::search`], where nothing can be left out: without keeping commits from running.
fn search_all(
    tree: &Tree,
    (from, to): (Key, Key),
    generations: &Generations,
    mut take: impl FnMut(Key, &[u8], Generation) -> ControlFlow<()>,
) -> Result<()> {
    let mut take = |key: Key, bytes: &[u8], generation: Generation| match generation <= generations.until {
        true => take(key, bytes, generation),
        false => ControlFlow::Continue(()),
    };
    let mut cursor = tree.cursor(from, to);
    while let Some(run) = cursor.next_run()? {
        let flow = match run {
            Run::Leaf { block, mut slots } => {
                slots.try_for_each(|slot| take(block.key(slot), block.data(slot), block.generation()))
            }
            Run::Items(items) => items.into_iter().try_for_each(|(key, item)| match &item {
                Item::Pending(bytes) => take(key, bytes, generations.running),
                Item::Leaf { block, slot } => take(key, block.data(*slot), block.generation()),
            }),
        };
        if flow.is_break() {
            break;
        }
    }
    Ok(())
}

/// The caller of a call that no front end has checked.
fn checked(ctx: &Context) -> Caller<'_> {
    Caller { ctx, checks: true }
}

/// The names that lead from a directory of a subvolume to an inode below it; `None` where none do.
fn names_to(subvol: &Arc<Subvol>, top: ObjectId, ino: ObjectId) -> Result<Option<Vec<Vec<u8>>>> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != top {
        let Some((up, name)) = dir::name_of(&subvol.tree, at)? else {
            return Ok(None);
        };
        names.push(name);
        if names.len() > DEPTH_MAX {
            return Err(ring(subvol.id, ino));
        }
        at = up;
    }
    names.reverse();
    Ok(Some(names))
}

/// Each name with a slash behind it.
fn path_of_names(names: Vec<Vec<u8>>) -> Vec<u8> {
    let mut path = names.join(&b'/');
    if !path.is_empty() {
        path.push(b'/');
    }
    path
}

fn info_of(found: &Listed) -> SubvolumeInfo {
    let info = info_of_root(found.id, &found.item);
    match &found.place {
        None => info,
        Some(place) => SubvolumeInfo {
            parent_id: place.tree.get(),
            parent_dir: place.dir.get(),
            name: place.name.clone(),
            ..info
        },
    }
}

/// What the root item of a subvolume says; it does not say where its name is.
pub fn info_of_root(id: TreeId, item: &RootItem) -> SubvolumeInfo {
    let time = |t: Timespec| Timestamp::new(t.sec.get().cast_signed(), t.nsec.get());
    SubvolumeInfo {
        id: id.get(),
        is_read_only: item.subvolume_flags() & root_flags::SUBVOL_RDONLY != 0,
        generation: item.generation.get(),
        changed_generation: item.ctransid.get(),
        created_generation: item.otransid.get(),
        sent_generation: item.stransid.get(),
        received_generation: item.rtransid.get(),
        uuid: item.uuid,
        parent_uuid: item.parent_uuid,
        received_uuid: item.received_uuid,
        changed: time(item.ctime),
        created: time(item.otime),
        sent: time(item.stime),
        received: time(item.rtime),
        ..SubvolumeInfo::default()
    }
}

fn ring(tree: TreeId, ino: ObjectId) -> Error {
    let what = format!("no way leads from directory {ino} to the top level");
    Error::Store(StoreError::CorruptTree { tree, what })
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use btrfs_format::items::InodeItem;
    use btrfs_format::view;
    use cowshed_runtime::FixedEnv;
    use cowshed_vfs::fs::NewNode;
    use cowshed_vfs::{Caches, FileKind, FileSystem, Handle, OpenFlags, OpenRequest, SetAttr, Volume as _, WriteFlags};
    use cowshed_vfs_ioctl::Front;
    use cowshed_vfs_ioctl::wire::btrfs::SearchHeader;
    use cowshed_vfs_ioctl::wire::search::{SEARCH, SearchPage};
    use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::MountOptions;
    use crate::mount::Mount;
    use crate::testing::{SetOnDrop, memory_volume};

    /// The nodes whose content a front end was told to look at again.
    #[derive(Default)]
    struct Told(Mutex<Vec<NodeId>>);

    impl Caches for Told {
        fn attributes_changed(&self, _: NodeId) {}
        fn content_changed(&self, _: NodeId, _: Vec<Range<u64>>) {}
        fn content_lost(&self, node: NodeId, _: Vec<Range<u64>>) {
            self.0.lock().unwrap().push(node);
        }
        fn settle(&self) {}
    }

    /// Time and memory of a snapshot must not grow with the files that were merely looked up.
    #[test]
    fn stores_are_collected_from_files_open_to_be_written() {
        const FILES: usize = 1000;
        let env = Arc::new(FixedEnv::default());
        let mount = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        let (fs, ctx) = (Fs::new(mount, MountOptions::default()).unwrap(), Context::root());
        let told = Arc::new(Told::default());
        fs.set_caches(told.clone());
        let new = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let make = |number| {
            fs.mknod(&ctx, NodeId::ROOT, format!("f{number}").as_bytes(), new)
                .unwrap()
                .node
        };
        let nodes: Vec<_> = (0..FILES).map(make).collect();
        let open = |node, flags| {
            let request = OpenRequest {
                flags,
                kill_suidgid: false,
            };
            fs.open(&ctx, node, &request).unwrap().handle
        };
        open(nodes[1], OpenFlags::READ);
        open(nodes[2], OpenFlags::READ | OpenFlags::WRITE);
        let closed = open(nodes[3], OpenFlags::READ | OpenFlags::WRITE);
        fs.release(nodes[3], closed);
        fs.collect_stores(NodeId::ROOT).unwrap();
        assert_eq!(*told.0.lock().unwrap(), [nodes[2]]);
        fs.destroy();
    }

    /// Pages end where they are full, where as many were found as are wanted, and where very much
    /// was looked at: together they have what one search finds.
    #[test]
    fn pages_of_items_of_types_have_all_of_them_once() {
        const FILES: usize = 13_000;
        let env = Arc::new(FixedEnv::default());
        let mount = Mount::open(memory_volume(16384), env.clone(), EngineOptions::default()).unwrap();
        let (fs, ctx) = (Fs::new(mount, MountOptions::default()).unwrap(), Context::root());
        let new = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        for number in 0..FILES {
            let name = format!("f{number}");
            let node = fs.mknod(&ctx, NodeId::ROOT, name.as_bytes(), new).unwrap().node;
            if number % 20 == 7 {
                fs.write(&ctx, node, Handle::NONE, 0, &vec![1; number % 900], WriteFlags::empty())
                    .unwrap();
            }
        }
        fs.mount().sync().unwrap();
        let what = Search {
            tree: TreeId::FS.get(),
            from: (0, 0, 0),
            to: (u64::MAX, u8::MAX, u64::MAX),
            since: 0,
            until: u64::MAX,
        };
        let mut all = Vec::new();
        let mut take = |key, bytes: &[u8], _| {
            all.push((key, bytes.to_vec()));
            ControlFlow::Continue(())
        };
        fs.search(&ctx, NodeId::ROOT, &what, &mut take).unwrap();
        let front = Front::new(Arc::new(fs), env);
        let (data, link, attr) = (KeyType::EXTENT_DATA, KeyType::INODE_REF, KeyType::XATTR_ITEM);
        for (types, wanted, pages_min) in [
            ([data; 4], u32::MAX, 15),
            ([data; 4], 3, FILES / 20 / 3),
            ([attr; 4], u32::MAX, 2),
            ([attr, data, link, data], u32::MAX, 50),
        ] {
            let mut found = Vec::new();
            let mut page = SearchPage::new_zeroed();
            (page.key.tree_id, page.types) = (what.tree.into(), types.map(|ty| ty.0));
            (page.key.max_objectid, page.key.max_offset) = (u64::MAX.into(), u64::MAX.into());
            (page.key.max_type, page.key.max_transid) = (255.into(), u64::MAX.into());
            let mut pages = 0;
            while page.is_end.get() == 0 {
                page.key.nr_items = wanted.into();
                let call = cowshed_vfs::Ioctl {
                    cmd: SEARCH,
                    arg: 0,
                    compat: false,
                };
                let (input, output) = (page.as_bytes().to_vec(), page.as_mut_bytes());
                front
                    .ioctl(&ctx, NodeId::ROOT, Handle::NONE, &call, &input, output)
                    .unwrap();
                pages += 1;
                let mut rest = &page.buf[..];
                for _ in 0..page.key.nr_items.get() {
                    let (head, behind) = SearchHeader::ref_from_prefix(rest).unwrap();
                    let (bytes, behind) = behind.split_at(head.len.get() as usize);
                    let key = (head.objectid.get(), head.ty.get() as u8, head.offset.get());
                    found.push((key, bytes.to_vec()));
                    rest = behind;
                }
            }
            assert!(pages >= pages_min, "{types:?}: {pages} pages");
            let is_meant = |key: &ItemKey| types.contains(&KeyType(key.1));
            let meant: Vec<_> = all.iter().filter(|(key, _)| is_meant(key)).cloned().collect();
            assert_eq!(found, meant, "{types:?}");
        }
        front.destroy();
    }

    /// One thread commits, one changes a file, one searches: what the file's item says of its last
    /// change is never later than what the search says.
    #[test]
    fn pending_items_are_of_the_running_transaction() {
        const ROUNDS: usize = 3000;
        let env = Arc::new(FixedEnv::default());
        let engine = Mount::open(memory_volume(16384), env, EngineOptions::default()).unwrap();
        let (fs, ctx) = (Fs::new(engine, MountOptions::default()).unwrap(), Context::root());
        let new = NewNode {
            kind: FileKind::Regular,
            perm: 0o644,
            rdev: 0,
        };
        let node = fs.mknod(&ctx, NodeId::ROOT, b"f", new).unwrap().node;
        let ino = fs.inode(node).unwrap().ino;
        let key = (ino.get(), KeyType::INODE_ITEM.0, 0);
        let what = Search {
            tree: TreeId::FS.get(),
            from: key,
            to: key,
            since: 1,
            until: u64::MAX,
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    fs.mount().commit().unwrap();
                }
            });
            scope.spawn(|| {
                for perm in 0_u32.. {
                    let set = SetAttr {
                        perm: Some(perm % 0o1000),
                        ..SetAttr::default()
                    };
                    fs.setattr(&ctx, node, None, &set).unwrap();
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                }
            });
            let _over = SetOnDrop(&is_over);
            for round in 0..ROUNDS {
                let mut seen = 0;
                let mut take = |_: ItemKey, bytes: &[u8], from: u64| {
                    let changed = view::fixed::<InodeItem>(bytes).unwrap().transid.get();
                    assert!(
                        changed <= from,
                        "round {round}: changed in {changed}, shown as of {from}"
                    );
                    seen += 1;
                    ControlFlow::Continue(())
                };
                fs.search(&ctx, NodeId::ROOT, &what, &mut take).unwrap();
                assert_eq!(seen, 1, "round {round}");
            }
        });
        fs.mount().close().unwrap();
    }
}
