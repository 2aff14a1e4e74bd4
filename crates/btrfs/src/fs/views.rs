//! Several views of one volume, each with a front end that caches: docs/design/many-mounts.md.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use btrfs_format::TreeId;
use cowshed_vfs::{Caches, Error as Errno, Failure, Held, NodeId, Remembered};

use super::{Fs, MountOptions, VALID, root};
use crate::error::{Error, Result, StoreError};
use crate::mount::Mount;
use crate::object::{Inode, KeepAll, Membership, Subvol, ViewId, Viewer};
use crate::reclaim;
use crate::subvol::{self, number::Numbering};

/// Subvolumes above each other: more than a path can have names means that they form a ring.
const NESTING_MAX: usize = 4096;

/// A view's front end: what it caches, under the numbers that the view gives.
pub(super) struct FrontEnd {
    pub(super) numbering: Arc<Numbering>,
    pub(super) caches: OnceLock<Arc<dyn Caches>>,
    /// Files are opened without a request: what is cached of them is used without one, too, and may
    /// have changed.
    pub(super) is_stateless: bool,
    pub(super) mount: Weak<Mount>,
}

impl FrontEnd {
    fn with_caches(&self, inode: &Inode, tell: impl FnOnce(&dyn Caches, NodeId)) {
        if let Some(caches) = self.caches.get() {
            tell(&**caches, self.numbering.node(inode));
        }
    }

    /// What front ends remember of a deleted subvolume, under the numbers that this view gives.
    /// What has left memory since counts for some calls: that it is forgotten then is not known.
    pub(super) fn remembered(&self, gone: &Subvol) -> Remembered {
        const CALLS: usize = 3;
        let (mount, numbering) = (self.mount.clone(), self.numbering.clone());
        let (tree, after, calls) = (gone.id, gone.remembered.clone(), AtomicUsize::new(0));
        Box::new(move || {
            let Some(mount) = mount.upgrade() else {
                return Vec::new();
            };
            // In this order: none is missed that leaves memory meanwhile.
            let mut inodes = mount.objects().inodes.remembered(tree);
            if calls.fetch_add(1, Ordering::Relaxed) < CALLS {
                inodes.extend(after.all());
            }
            // Those in a directory before the directory.
            inodes.sort_unstable_by_key(|ino| std::cmp::Reverse(ino.0));
            inodes.dedup();
            inodes.into_iter().map(|ino| numbering.node_of(tree, ino)).collect()
        })
    }
}

impl Viewer for FrontEnd {
    fn expire(&self, known: &[Arc<Inode>]) -> cowshed_vfs::Result<()> {
        if self.is_stateless {
            return Err(Errno::NotSupported);
        }
        let Some(caches) = self.caches.get() else {
            return Ok(());
        };
        caches.expire_names()?;
        for inode in known {
            caches.attributes_changed(self.numbering.node(inode));
        }
        Ok(())
    }

    fn name_changed(&self, dir: &Inode, name: &[u8]) {
        self.with_caches(dir, |caches, node| {
            caches.name_changed(node, name);
            caches.listing_changed(node);
        });
    }

    fn subvolume_gone(&self, dir: &Inode, name: &[u8], gone: &Subvol) {
        self.with_caches(dir, |caches, node| {
            caches.subvolume_gone(node, name, self.remembered(gone));
            caches.listing_changed(node);
        });
    }

    fn content_changed(&self, inode: &Inode, range: Range<u64>) {
        self.with_caches(inode, |caches, node| caches.content_changed(node, vec![range]));
    }

    fn content_lost(&self, inode: &Inode, ranges: Vec<Range<u64>>) {
        self.with_caches(inode, |caches, node| caches.content_lost(node, ranges));
    }

    fn listing_changed(&self, dir: &Inode) {
        self.with_caches(dir, |caches, node| caches.listing_changed(node));
    }

    fn settle(&self) {
        if let Some(caches) = self.caches.get() {
            caches.settle();
        }
    }

    fn held(&self) -> Held<Vec<TreeId>> {
        let caches = self.caches.get().filter(|_| !self.is_stateless);
        let numbers = match caches.map_or(Held::Unknown, |caches| caches.held()) {
            Held::Found(numbers) => numbers,
            Held::NotNow => return Held::NotNow,
            Held::Unknown => return Held::Unknown,
        };
        let trees = numbers.iter().map(|number| self.numbering.tree_of_shown(*number));
        trees.collect::<Option<_>>().map_or(Held::Unknown, Held::Found)
    }
}

/// The subvolumes from one up to the top level.
fn path_up(mount: &Mount, root: TreeId) -> Result<Vec<TreeId>> {
    let mut path = vec![root];
    let mut at = root;
    while let Some((above, _)) = subvol::parent_of_root(mount, at)? {
        path.push(above);
        at = above;
        if path.len() > NESTING_MAX {
            let what = format!("no way leads from subvolume {root} to the top level");
            return Err(Error::Store(StoreError::CorruptTree {
                tree: TreeId::ROOT,
                what,
            }));
        }
    }
    Ok(path)
}

/// Adds a view to its volume. Views with which it overlaps, and which cached until now, expire what
/// they cached first. Errors: `NotSupported` (it overlaps with a view that cannot do that; it, or
/// one of those, opens files without a request).
pub(super) fn enter(mount: &Mount, root: &Inode, front: &Arc<FrontEnd>) -> Result<Membership> {
    let views = &mount.objects().views;
    let viewer: Arc<dyn Viewer> = front.clone();
    let (member, newly_shared) = {
        // None of these is deleted meanwhile.
        let _names = mount.objects().subvolume_names.lock();
        if root.subvol.is_dead() {
            return Err(Errno::NotFound.into());
        }
        let entered = views.add(viewer, root.tree.id(), |root| path_up(mount, root))?;
        entered.ok_or(Errno::NotConnected)?
    };
    if views.are_many()
        && let Err(error) = mount.objects().inodes.load_parked()
    {
        leave(mount, member.id);
        return Err(error);
    }
    for id in newly_shared {
        let Some(viewer) = views.viewer(id) else { continue };
        let mut known = mount.objects().inodes.all();
        known.retain(|inode| views.refers(id, inode));
        if let Err(error) = viewer.expire(&known) {
            leave(mount, member.id);
            return Err(error.into());
        }
    }
    if front.is_stateless && member.is_shared.load(Ordering::SeqCst) {
        leave(mount, member.id);
        return Err(Errno::NotSupported.into());
    }
    Ok(member)
}

/// Takes a view away that served nothing yet.
pub(super) fn leave(mount: &Mount, id: ViewId) {
    mount.objects().views.remove(id);
    update_shared(mount);
}

fn update_shared(mount: &Mount) {
    let _names = mount.objects().subvolume_names.lock();
    let views = &mount.objects().views;
    if let Err(error) = views.update_shared(|root| path_up(mount, root)) {
        tracing::warn!(%error, "views stay without caches");
    }
}

impl Fs {
    /// Shows a subvolume of the same volume once more. Options that concern all files are those of
    /// the volume. Errors: as those of [`Fs::new`]; `ReadOnly` (a writable view of a volume that
    /// was opened read-only), `NotSupported` (the subvolume is shown already, or one above or below
    /// it, by a front end that cannot forget names, or one of the two has
    /// [`MountOptions::stateless_open`]), `NotConnected` (the volume is being closed).
    pub fn beside(&self, options: MountOptions) -> Result<Fs> {
        let is_volume_read_only = self.mount.objects().is_read_only() || self.mount.store().volume().is_read_only();
        if is_volume_read_only && !options.read_only {
            return Err(Errno::ReadOnly.into());
        }
        let root = root::resolve(&self.mount, &options.subvol)?;
        Self::show(&self.mount, root, options, self.handles.clone())
    }

    /// The failure of [`Fs::beside`].
    pub fn view(&self, options: MountOptions) -> std::result::Result<Fs, Failure> {
        Ok(self.beside(options)?)
    }

    /// The view ends: with the last one, the volume is closed.
    pub(super) fn end_view(&self) -> Result<()> {
        let views = &self.mount.objects().views;
        // Until all that the view refers to is given back: of two views one is left at once.
        let keeping = self.mount.objects().inodes.keeping_all();
        if views.end(self.member.id) {
            reclaim::forget_all(&self.mount);
            return self.mount.close();
        }
        for inode in self.mount.objects().inodes.all() {
            if views.release(self.member.id, &inode) {
                reclaim::settle(&self.mount, &inode);
            }
        }
        self.keeping.iter().for_each(KeepAll::end);
        drop(keeping);
        update_shared(&self.mount);
        match self.mount.store().volume().is_read_only() || self.mount.store().txn().is_aborted() {
            true => Ok(()),
            false => self.mount.sync(),
        }
    }

    /// Another view shows some of the same files: nothing may be cached.
    pub(super) fn is_shared_view(&self) -> bool {
        self.member.is_shared.load(Ordering::SeqCst)
    }

    /// How long the front end may remember names and attributes.
    pub(super) fn validity(&self) -> Duration {
        match self.is_shared_view() {
            true => Duration::ZERO,
            false => VALID,
        }
    }

    /// Gives lookups of a parked file back. False: it is in memory, or not known.
    pub(super) fn forget_parked(&self, node: NodeId, lookups: u64) -> bool {
        // The shares of several views are counted one by one.
        if !self.mount.objects().views.counts_with_inodes(self.member.id) {
            return false;
        }
        let inode = self.numbering.inode_of(node);
        inode.is_some_and(|(tree, ino)| self.mount.objects().inodes.forget_parked(tree, ino, lookups))
    }

    /// Gives lookups back; deletes or lets go of the inode where these were the last.
    pub(super) fn give_back(&self, inode: &Arc<Inode>, lookups: u64) {
        self.mount.objects().views.drop_lookups(self.member.id, inode, lookups);
        reclaim::settle(&self.mount, inode);
    }

    /// The view may change something.
    pub(super) fn check_view_writable(&self) -> Result<()> {
        match self.options.read_only {
            true => Err(Error::Store(StoreError::ReadOnly)),
            false => Ok(()),
        }
    }

    /// The inode was referred to by other views: their front ends drop what they have of this
    /// range, before the change is made and after it. What was stored there through a mapping comes
    /// before the change, and does not replace it later.
    pub(super) fn dropping_elsewhere(&self, inode: &Arc<Inode>, range: Range<u64>) -> Dropping {
        let others = self.mount.objects().views.others_with(self.member.id, inode);
        let dropping = Dropping {
            others,
            inode: inode.clone(),
            range,
        };
        dropping.tell();
        dropping
    }

    /// As [`Fs::dropping_elsewhere`], after the change and without waiting.
    pub(super) fn order_drop_elsewhere(&self, inode: &Inode, range: Range<u64>) {
        for other in self.mount.objects().views.others_with(self.member.id, inode) {
            other.content_lost(inode, vec![range.clone()]);
        }
    }

    /// What other views were told without waiting is done.
    pub(super) fn settle_elsewhere(&self, inode: &Inode) {
        for other in self.mount.objects().views.others_with(self.member.id, inode) {
            other.settle();
        }
    }

    /// Names in a directory have changed: listings that other views have of it go.
    pub(super) fn tell_of_names<T>(&self, done: Result<T>, dirs: &[NodeId]) -> Result<T> {
        if done.is_ok() && self.mount.objects().views.are_many() {
            for dir in dirs.iter().filter_map(|node| self.inode(*node).ok()) {
                for other in self.mount.objects().views.others_with(self.member.id, &dir) {
                    other.listing_changed(&dir);
                }
            }
        }
        done
    }
}

impl Drop for Fs {
    /// A view that never served, or was not destroyed.
    fn drop(&mut self) {
        let views = &self.mount.objects().views;
        if views.has(self.member.id) {
            views.release(self.member.id, &self.root);
            leave(&self.mount, self.member.id);
        }
    }
}

/// Front ends of other views that drop what they have of a range once more at the end.
#[must_use = "lives as long as the change"]
pub(super) struct Dropping {
    others: Vec<Arc<dyn Viewer>>,
    inode: Arc<Inode>,
    range: Range<u64>,
}

impl Dropping {
    fn tell(&self) {
        for other in &self.others {
            other.content_changed(&self.inode, self.range.clone());
        }
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        self.tell();
    }
}

#[cfg(test)]
mod tests {
    use cowshed_runtime::FixedEnv;
    use cowshed_vfs::fs::NewNode;
    use cowshed_vfs::{
        Context, FileKind, FileSystem, Handle, Lookup, OpenFlags, OpenRequest, Subvolumes, Volume as _, WriteFlags,
    };

    use super::*;
    use crate::files::EngineOptions;
    use crate::fs::SubvolChoice;
    use crate::testing::{memory_device, memory_volume};
    use btrfs_store::volume::{OpenOptions, Volume};

    const ROOT: NodeId = NodeId::ROOT;

    fn first() -> (Fs, Context) {
        let engine = Mount::open(
            memory_volume(16384),
            Arc::new(FixedEnv::default()),
            EngineOptions::default(),
        );
        (
            Fs::new(engine.unwrap(), MountOptions::default()).unwrap(),
            Context::root(),
        )
    }

    fn found(fs: &Fs, ctx: &Context, name: &[u8]) -> Option<NodeId> {
        match fs.lookup(ctx, ROOT, name).unwrap() {
            Lookup::Found(entry) => Some(entry.node),
            Lookup::Absent { .. } => None,
        }
    }

    #[test]
    fn unlinked_file_lives_as_long_as_any_view_refers_to_it() {
        for first_ends in [true, false] {
            let (one, ctx) = first();
            let two = one.beside(MountOptions::default()).unwrap();
            let new = NewNode {
                kind: FileKind::Regular,
                perm: 0o644,
                rdev: 0,
            };
            let made = one.mknod(&ctx, ROOT, b"f", new).unwrap();
            let node = found(&two, &ctx, b"f").unwrap();
            assert_eq!((node, made.attr_valid), (made.node, Duration::ZERO));
            one.write(&ctx, node, Handle::NONE, 0, b"content", WriteFlags::empty())
                .unwrap();
            let open = OpenRequest {
                flags: OpenFlags::READ,
                kill_suidgid: false,
            };
            two.open(&ctx, node, &open).unwrap();
            two.unlink(&ctx, ROOT, b"f").unwrap();
            let (ends, stays) = if first_ends { (&one, &two) } else { (&two, &one) };
            ends.destroy();
            let mut buf = [0; 7];
            assert_eq!(stays.read(&ctx, node, Handle::NONE, 0, &mut buf).unwrap(), 7);
            assert_eq!(&buf, b"content");
            let inode = stays.inode(node).unwrap();
            assert_eq!(inode.refs.lookups(), 1, "the other one's are given back");
            stays.forget(node, 1);
            let is_gone = stays.inode(node).is_err();
            assert_eq!(is_gone, !first_ends, "the second view has it open, too");
            drop(inode);
            assert!(!stays.is_shared());
            stays.destroy();
            assert!(stays.mount().store().txn().is_closed());
            assert!(one.beside(MountOptions::default()).is_err(), "the last view has ended");
        }
    }

    /// Looks up so many new files; how many of them are parked.
    fn parked(fs: &Fs, ctx: &Context, prefix: &str) -> usize {
        let table = &fs.mount().objects().inodes;
        table.set_files_max(0);
        let before = table.counts().1;
        for n in 0..FILES {
            let new = NewNode {
                kind: FileKind::Regular,
                perm: 0o644,
                rdev: 0,
            };
            fs.mknod(ctx, ROOT, format!("{prefix}-{n}").as_bytes(), new).unwrap();
        }
        table.counts().1 - before
    }
    const FILES: usize = 500;

    /// Files that came before stand in the way.
    fn parks(fs: &Fs, ctx: &Context, prefix: &str) -> bool {
        fs.mount().objects().inodes.drop_idle();
        (0..5).any(|round| parked(fs, ctx, &format!("{prefix} {round}")) > FILES / 2)
    }

    fn stateless(path: Option<&str>) -> MountOptions {
        MountOptions {
            subvol: path.map_or(SubvolChoice::Default, |path| SubvolChoice::Path(path.into())),
            stateless_open: true,
            ..MountOptions::default()
        }
    }

    #[test]
    fn files_stay_in_memory_while_a_view_does_not_tell_which_are_open_and_no_longer() {
        let (top, ctx) = first();
        for name in [&b"a"[..], b"b"] {
            Subvolumes::create(&top, &ctx, ROOT, name).unwrap();
        }
        assert!(top.beside(stateless(None)).is_err(), "it would share its files");
        assert!(parks(&top, &ctx, "after the refusal"));
        let at = |path: &str| MountOptions {
            stateless_open: false,
            ..stateless(Some(path))
        };
        let (a, b) = (top.beside(at("a")).unwrap(), top.beside(at("b")).unwrap());
        top.destroy();
        b.destroy();
        let b = a.beside(stateless(Some("b"))).unwrap();
        a.destroy();
        assert_eq!(parked(&b, &ctx, "alone"), 0);
        let a = b.beside(at("a")).unwrap();
        b.destroy();
        assert!(parks(&a, &ctx, "after its end"));
        drop(b);
        assert!(parks(&a, &ctx, "once more"));
        a.destroy();
    }

    #[test]
    fn files_of_a_volume_that_does_not_change_are_parked() {
        let device = memory_device(256 << 20, 16384);
        let open = |read_only: bool| {
            let options = OpenOptions {
                read_only,
                ..OpenOptions::default()
            };
            let volume = Volume::open(vec![device.clone()], &options).unwrap();
            let engine = Mount::open(volume, Arc::new(FixedEnv::default()), EngineOptions::default()).unwrap();
            let options = MountOptions {
                read_only,
                ..stateless(None)
            };
            Fs::new(engine, options).unwrap()
        };
        let (fs, ctx) = (open(false), Context::root());
        assert_eq!(parked(&fs, &ctx, "file"), 0);
        fs.destroy();
        let fs = open(true);
        let table = &fs.mount().objects().inodes;
        table.set_files_max(0);
        let nodes: Vec<_> = (0..FILES)
            .map(|n| found(&fs, &ctx, format!("file-{n}").as_bytes()).unwrap())
            .collect();
        assert!(table.counts().1 > FILES / 2, "{:?}", table.counts());
        assert!(nodes.iter().all(|node| fs.getattr(&ctx, *node, None).is_ok()));
        fs.destroy();
    }

    /// A front end that knows what processes hold, or does not.
    struct Holding(std::sync::Mutex<Held<Vec<u64>>>);

    impl Caches for Holding {
        fn attributes_changed(&self, _: NodeId) {}
        fn content_changed(&self, _: NodeId, _: Vec<Range<u64>>) {}
        fn content_lost(&self, _: NodeId, _: Vec<Range<u64>>) {}
        fn settle(&self) {}
        fn held(&self) -> Held<Vec<u64>> {
            self.0.lock().unwrap().clone()
        }
    }

    /// What is remembered, but not used, keeps nothing; nor does data that is not written yet.
    #[test]
    fn deleted_subvolume_that_is_remembered_is_dropped_unless_a_process_holds_something_in_it() {
        let (one, ctx) = first();
        let two = one.beside(MountOptions::default()).unwrap();
        let [holding, other] = [Held::Unknown, Held::Found(Vec::new())].map(|held| Arc::new(Holding(held.into())));
        one.set_caches(holding.clone());
        two.set_caches(other.clone());
        let inodes = |fs: &Fs| fs.mount().objects().inodes.counts();
        let at_first = inodes(&one);
        Subvolumes::create(&one, &ctx, ROOT, b"sub").unwrap();
        let root = found(&one, &ctx, b"sub").unwrap();
        assert_eq!(found(&two, &ctx, b"sub"), Some(root));
        let request = OpenRequest {
            flags: OpenFlags::WRITE,
            kill_suidgid: false,
        };
        let (file, opened) = FileSystem::create(&one, &ctx, root, b"file", 0o644, &request).unwrap();
        one.write(&ctx, file.node, opened.handle, 0, &[1; 100_000], WriteFlags::empty())
            .unwrap();
        let dir = one.mkdir(&ctx, root, b"dir", 0o755).unwrap();
        two.lookup(&ctx, root, b"dir").unwrap();
        Subvolumes::delete(&one, &ctx, ROOT, b"sub").unwrap();
        let is_dropped = || {
            // The second look finds what the first one has taken out.
            let discard = |inode: &Arc<Inode>| crate::file::discard_dirty(one.mount(), inode);
            let looks = [0, 1].map(|_| crate::dir::subvolumes::drop_unused(one.mount(), discard).0);
            looks.contains(&crate::object::Remaining::None)
        };
        assert!(!is_dropped(), "what is held is not known");
        let hold = |numbers: Vec<u64>| *holding.0.lock().unwrap() = Held::Found(numbers);
        hold(Vec::new());
        assert!(!is_dropped(), "a file is open");
        assert!(one.getattr(&ctx, file.node, None).is_ok());
        assert_eq!(
            one.getattr(&ctx, dir.node, None),
            Err(Errno::Stale),
            "no call asks for it any more"
        );
        one.release(file.node, opened.handle);
        let root_shown = one.numbering.shown(TreeId(256), btrfs_format::ObjectId::FIRST_FREE);
        for held in [vec![root_shown], vec![300, 2]] {
            hold(held);
            assert!(!is_dropped(), "a working directory in it, or in a stand-in");
        }
        hold(vec![300, 1, 256]);
        for unknown in [Held::Unknown, Held::NotNow] {
            *other.0.lock().unwrap() = unknown;
            assert!(!is_dropped(), "the other view does not know");
        }
        assert!(one.getattr(&ctx, file.node, None).is_ok());
        *other.0.lock().unwrap() = Held::Found(vec![301]);
        let dirty = || one.mount().data().dirty_bytes();
        let walk = one.inode(file.node).unwrap().subvol.clone();
        assert!(!is_dropped(), "a walk over it goes on later");
        assert!(dirty() >= 100_000);
        let remembered = one.front.remembered(&walk);
        drop(walk);
        assert!(is_dropped());
        assert_eq!((dirty(), inodes(&one)), (0, at_first));
        assert!(
            subvol::load(one.mount(), TreeId(256)).unwrap().is_none(),
            "no second object"
        );
        for _ in 0..3 {
            assert_eq!(
                remembered(),
                [dir.node, file.node, root],
                "names before their directories"
            );
        }
        assert_eq!(remembered(), []);
        one.mount().commit().unwrap();
        let dead = btrfs_store::commit::dead_subvolumes(one.mount().store().forest()).unwrap();
        assert_eq!(dead, []);
        for (fs, node) in [
            (&one, file.node),
            (&one, dir.node),
            (&two, dir.node),
            (&one, root),
            (&two, root),
        ] {
            assert_eq!(fs.getattr(&ctx, node, None), Err(Errno::Stale));
            fs.forget(node, 1);
        }
        two.destroy();
        one.destroy();
    }

    #[test]
    fn views_share_where_one_lies_below_the_other_and_their_roots_stay() {
        let (top, ctx) = first();
        for name in [&b"a"[..], b"b"] {
            Subvolumes::create(&top, &ctx, ROOT, name).unwrap();
        }
        let view = |path: &str, read_only: bool| {
            top.beside(MountOptions {
                subvol: SubvolChoice::Path(path.into()),
                read_only,
                ..MountOptions::default()
            })
        };
        assert!(!top.is_shared());
        let (a, b) = (view("a", false).unwrap(), view("b", true).unwrap());
        assert!(top.is_shared() && a.is_shared() && b.is_shared());
        for name in [&b"a"[..], b"b"] {
            assert_eq!(Subvolumes::delete(&top, &ctx, ROOT, name), Err(Errno::Busy));
        }
        assert_eq!(b.mkdir(&ctx, ROOT, b"d", 0o755).unwrap_err(), Errno::ReadOnly);
        a.mkdir(&ctx, ROOT, b"d", 0o755).unwrap();
        top.destroy();
        assert!(!a.is_shared() && !b.is_shared(), "beside each other");
        a.destroy();
        b.destroy();
    }
}
