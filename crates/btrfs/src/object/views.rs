//! The views of a volume (docs/design/many-mounts.md): which there are, and which inodes the front
//! end of each one refers to.
//!
//! An inode counts the lookups and open files of all views together. The share of each view is kept
//! here, so that it can be given back when the view ends: open files of all views, lookups of all
//! but the first. The lookups of the first view are the rest, so that a volume with one view keeps
//! no table of them.
//!
//! Locks: the table of views, and one for each shard of references, held for moments.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use btrfs_format::{ObjectId, TreeId};
use btrfs_store::rank::LockRank;
use btrfs_store::tree::AddrHash;
use cowshed_runtime::lock::Mutex;
use cowshed_vfs::Held;

use super::inode::Inode;
use super::subvol::Subvol;

const SHARDS: usize = 64;

/// A view, among those of its volume. Ids are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ViewId(u64);

impl ViewId {
    /// The first view of a volume.
    const FIRST: ViewId = ViewId(0);
}

/// A view as the others know it: they tell it what they change. The caller holds no lock, but for
/// `content_lost`.
pub(crate) trait Viewer: Send + Sync {
    /// Names and attributes that the front end remembers are asked for again when they are next
    /// used. Errors: the front end cannot do that.
    fn expire(&self, known: &[Arc<Inode>]) -> cowshed_vfs::Result<()>;
    /// A name came into a directory or went.
    fn name_changed(&self, dir: &Inode, name: &[u8]);
    /// The name of a subvolume went, which was deleted with all that is in it.
    fn subvolume_gone(&self, dir: &Inode, name: &[u8], gone: &Subvol);
    /// Contents of a file: dropped when this returns, or after a bounded time.
    fn content_changed(&self, inode: &Inode, range: Range<u64>);
    /// As [`Viewer::content_changed`], without waiting.
    fn content_lost(&self, inode: &Inode, ranges: Vec<Range<u64>>);
    /// A name came into a directory or went: listings of it.
    fn listing_changed(&self, dir: &Inode);
    /// All that was told is dropped when this returns, or after a bounded time.
    fn settle(&self);
    /// The subvolumes in which processes may use something without a call that says so.
    fn held(&self) -> Held<Vec<TreeId>>;
}

/// What a view knows of the others.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub(crate) id: ViewId,
    /// Another view shows some of the same files.
    pub(crate) is_shared: Arc<AtomicBool>,
}

struct View {
    member: Membership,
    root: TreeId,
    viewer: Arc<dyn Viewer>,
}

#[derive(Default)]
struct Table {
    views: Vec<View>,
    next: u64,
    /// The last view has ended: none comes any more.
    has_ended: bool,
}

/// What one view refers to.
#[derive(Clone, Copy, Debug, Default)]
struct Refs {
    lookups: u64,
    opens: u64,
}

/// By inode, and of each the views that refer to it: few.
type References = HashMap<(TreeId, ObjectId), Vec<(ViewId, Refs)>, AddrHash>;

/// See the module.
pub(crate) struct Views {
    table: Mutex<Table>,
    held: [Mutex<References>; SHARDS],
    count: AtomicUsize,
}

impl Default for Views {
    fn default() -> Self {
        Self {
            table: Mutex::new(LockRank::Views, Table::default()),
            held: std::array::from_fn(|_| Mutex::new(LockRank::HeldByViews, References::default())),
            count: AtomicUsize::new(0),
        }
    }
}

impl std::fmt::Debug for Views {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Views")
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// Do two views show some of the same files? Each is given by the subvolumes from its own up to the
/// top level.
fn overlap(one: &[TreeId], other: &[TreeId]) -> bool {
    let below = |up: &[TreeId], root: &[TreeId]| root.first().is_some_and(|root| up.contains(root));
    below(one, other) || below(other, one)
}

impl Views {
    fn shard(&self, inode: &Inode) -> &Mutex<References> {
        let n = inode.ino.0 ^ inode.tree.id().0.wrapping_mul(0x9e37_79b9);
        &self.held[(n % SHARDS as u64) as usize]
    }

    /// Adds a view. `up` gives the subvolumes from one up to the top level. Returns, beside what
    /// the view is, those that did not share their files before, and do now. `None`: the last view
    /// has ended.
    pub(crate) fn add<E>(
        &self,
        viewer: Arc<dyn Viewer>,
        root: TreeId,
        up: impl Fn(TreeId) -> Result<Vec<TreeId>, E>,
    ) -> Result<Option<(Membership, Vec<ViewId>)>, E> {
        let own = up(root)?;
        let others = self.roots().into_iter().map(|(id, root)| Ok((id, up(root)?)));
        let others = others.collect::<Result<Vec<_>, E>>()?;
        let mut table = self.table.lock();
        if table.has_ended {
            return Ok(None);
        }
        let overlaps = |id| others.iter().any(|(other, path)| *other == id && overlap(&own, path));
        let mut newly_shared = Vec::new();
        let mut is_shared = false;
        for view in table.views.iter().filter(|view| overlaps(view.member.id)) {
            is_shared = true;
            if !view.member.is_shared.swap(true, Ordering::SeqCst) {
                newly_shared.push(view.member.id);
            }
        }
        let member = Membership {
            id: ViewId(table.next),
            is_shared: Arc::new(AtomicBool::new(is_shared)),
        };
        table.next += 1;
        table.views.push(View {
            member: member.clone(),
            root,
            viewer,
        });
        self.count.store(table.views.len(), Ordering::SeqCst);
        Ok(Some((member, newly_shared)))
    }

    /// The views, and the subvolume of each.
    fn roots(&self) -> Vec<(ViewId, TreeId)> {
        let table = self.table.lock();
        table.views.iter().map(|view| (view.member.id, view.root)).collect()
    }

    /// Takes a view away. True: none is left.
    pub(crate) fn remove(&self, id: ViewId) -> bool {
        let mut table = self.table.lock();
        table.views.retain(|view| view.member.id != id);
        self.count.store(table.views.len(), Ordering::SeqCst);
        table.views.is_empty()
    }

    /// As [`Views::remove`]; where none is left, none comes any more.
    pub(crate) fn end(&self, id: ViewId) -> bool {
        let is_last = self.remove(id);
        let mut table = self.table.lock();
        table.has_ended |= is_last && table.views.is_empty();
        table.has_ended
    }

    /// Views that overlap no other any more cache again. `up` as for [`Views::add`].
    pub(crate) fn update_shared<E>(&self, up: impl Fn(TreeId) -> Result<Vec<TreeId>, E>) -> Result<(), E> {
        let paths = self.roots().into_iter().map(|(id, root)| Ok((id, up(root)?)));
        let paths = paths.collect::<Result<Vec<_>, E>>()?;
        let table = self.table.lock();
        // One that has come meanwhile has done this itself.
        if table
            .views
            .iter()
            .map(|view| view.member.id)
            .ne(paths.iter().map(|(id, _)| *id))
        {
            return Ok(());
        }
        for (view, (id, path)) in table.views.iter().zip(&paths) {
            let is_shared = paths.iter().any(|(other, up)| other != id && overlap(up, path));
            view.member.is_shared.store(is_shared, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Is this one of them?
    pub(crate) fn has(&self, id: ViewId) -> bool {
        self.table.lock().views.iter().any(|view| view.member.id == id)
    }

    /// Is there more than one?
    pub(crate) fn are_many(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 1
    }

    /// Is the subvolume the root of a view?
    pub(crate) fn shows_as_root(&self, tree: TreeId) -> bool {
        self.table.lock().views.iter().any(|view| view.root == tree)
    }

    /// The view of this id.
    pub(crate) fn viewer(&self, id: ViewId) -> Option<Arc<dyn Viewer>> {
        let table = self.table.lock();
        let found = table.views.iter().find(|view| view.member.id == id);
        found.map(|view| view.viewer.clone())
    }

    /// The other views that refer to an inode, and have to be told what changes about it.
    pub(crate) fn others_with(&self, own: ViewId, inode: &Inode) -> Vec<Arc<dyn Viewer>> {
        if !self.are_many() {
            return Vec::new();
        }
        self.with(inode, |id| id != own)
    }

    /// All views that refer to an inode.
    pub(crate) fn all_with(&self, inode: &Inode) -> Vec<Arc<dyn Viewer>> {
        self.with(inode, |_| true)
    }

    fn with(&self, inode: &Inode, is_meant: impl Fn(ViewId) -> bool) -> Vec<Arc<dyn Viewer>> {
        let views: Vec<_> = {
            let table = self.table.lock();
            let meant = table.views.iter().filter(|view| is_meant(view.member.id));
            meant.map(|view| (view.member.id, view.viewer.clone())).collect()
        };
        let known = views.into_iter().filter(|(id, _)| self.refers(*id, inode));
        known.map(|(_, viewer)| viewer).collect()
    }

    /// Does a view refer to an inode?
    pub(crate) fn refers(&self, id: ViewId, inode: &Inode) -> bool {
        let held = self.shard(inode).lock();
        let refs = refs_of(&held, id, inode);
        refs.lookups > 0 || refs.opens > 0
    }

    /// The subvolumes in which processes may use something that no view knows of: files that are
    /// open are not meant.
    pub(crate) fn held(&self) -> Held<HashSet<TreeId>> {
        let viewers: Vec<_> = {
            let table = self.table.lock();
            table.views.iter().map(|view| view.viewer.clone()).collect()
        };
        let (mut held, mut is_known) = (HashSet::new(), true);
        for viewer in viewers {
            match viewer.held() {
                Held::Found(trees) => held.extend(trees),
                Held::NotNow => is_known = false,
                Held::Unknown => return Held::Unknown,
            }
        }
        match is_known {
            true => Held::Found(held),
            false => Held::NotNow,
        }
    }

    /// What views refer to of an inode that left memory is not known any more.
    pub(super) fn forget(&self, gone: &Inode) {
        self.shard(gone).lock().remove(&(gone.tree.id(), gone.ino));
    }

    /// The inodes of a tree that are open.
    pub(crate) fn open_in(&self, tree: TreeId) -> Vec<ObjectId> {
        let mut open = Vec::new();
        for shard in &self.held {
            let held = shard.lock();
            let is_open = |all: &[(ViewId, Refs)]| all.iter().any(|(_, refs)| refs.opens > 0);
            let of_tree = held.iter().filter(|((of, _), all)| *of == tree && is_open(all));
            open.extend(of_tree.map(|((_, ino), _)| *ino));
        }
        open
    }

    /// Counts a lookup.
    pub(crate) fn add_lookup(&self, id: ViewId, inode: &Inode) {
        if id == ViewId::FIRST {
            return inode.refs.add_lookup();
        }
        let mut held = self.shard(inode).lock();
        change(&mut held, id, inode, |refs| refs.lookups += 1);
        inode.refs.add_lookup();
    }

    /// The lookups of this view are those that inodes count.
    pub(crate) fn counts_with_inodes(&self, id: ViewId) -> bool {
        id == ViewId::FIRST && !self.are_many()
    }

    /// Gives lookups back, no more than there are. The caller settles the inode then.
    pub(crate) fn drop_lookups(&self, id: ViewId, inode: &Inode, count: u64) {
        if self.counts_with_inodes(id) {
            return inode.refs.drop_lookups(count);
        }
        let mut held = self.shard(inode).lock();
        let count = count.min(refs_of(&held, id, inode).lookups);
        if id != ViewId::FIRST {
            change(&mut held, id, inode, |refs| refs.lookups -= count);
        }
        inode.refs.drop_lookups(count);
    }

    /// Counts an open file.
    pub(crate) fn add_open(&self, id: ViewId, inode: &Inode) {
        let mut held = self.shard(inode).lock();
        change(&mut held, id, inode, |refs| refs.opens += 1);
        inode.refs.add_open();
    }

    /// A file is going to be closed.
    pub(crate) fn note_close(&self, id: ViewId, inode: &Inode) {
        let mut held = self.shard(inode).lock();
        change(&mut held, id, inode, |refs| refs.opens = refs.opens.saturating_sub(1));
    }

    /// Gives back what a view that has ended refers to of an inode. True: it referred to it. The
    /// caller settles the inode then.
    pub(crate) fn release(&self, id: ViewId, inode: &Inode) -> bool {
        let mut held = self.shard(inode).lock();
        let refs = refs_of(&held, id, inode);
        change(&mut held, id, inode, |refs| *refs = Refs::default());
        inode.refs.drop_lookups(refs.lookups);
        (0..refs.opens).for_each(|_| inode.refs.drop_open());
        refs.lookups > 0 || refs.opens > 0
    }
}

fn refs_of(held: &References, id: ViewId, inode: &Inode) -> Refs {
    let all = held.get(&(inode.tree.id(), inode.ino)).map_or(&[][..], Vec::as_slice);
    let mut own = all
        .iter()
        .find(|(view, _)| *view == id)
        .map_or_else(Refs::default, |(_, refs)| *refs);
    if id == ViewId::FIRST {
        let of_others: u64 = all.iter().map(|(_, refs)| refs.lookups).sum();
        own.lookups = inode.refs.lookups().saturating_sub(of_others);
    }
    own
}

/// Changes what a view refers to, and forgets it where nothing is left.
fn change(held: &mut References, id: ViewId, inode: &Inode, by: impl FnOnce(&mut Refs)) {
    let key = (inode.tree.id(), inode.ino);
    let all = held.entry(key).or_default();
    let at = all.iter().position(|(view, _)| *view == id).unwrap_or_else(|| {
        all.push((id, Refs::default()));
        all.len() - 1
    });
    let refs = &mut all[at].1;
    by(refs);
    if refs.lookups == 0 && refs.opens == 0 {
        all.swap_remove(at);
    }
    if all.is_empty() {
        held.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_overlap_where_one_lies_below_the_other() {
        let (top, a, b, below_a) = (TreeId(5), TreeId(256), TreeId(257), TreeId(258));
        assert!(overlap(&[top], &[top]));
        assert!(overlap(&[a, top], &[top]) && overlap(&[top], &[a, top]));
        assert!(overlap(&[below_a, a, top], &[a, top]));
        assert!(!overlap(&[a, top], &[b, top]));
        assert!(!overlap(&[below_a, a, top], &[b, top]));
    }
}
