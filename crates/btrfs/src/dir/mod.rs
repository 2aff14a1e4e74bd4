//! Directories: names, and every operation that makes, moves or removes one.
//!
//! All operations have one shape: reserve space; lock the inodes; prepare (look up, check, stage
//! items: may fail); join the transaction; change attributes and apply everything as one batch,
//! which cannot fail. Items carry the number of the transaction, so preparing is done once more in
//! the rare case that a commit came between (`prepare_and_join`).
//!
//! Looking up and listing take no inode lock: an item is read as a whole.

mod create;
mod link;
mod list;
pub mod names;
mod remove;
mod rename;
pub(crate) mod subvolumes;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use btrfs_format::{Generation, Key, KeyType, ObjectId, TreeId, view};
use btrfs_store::tree::{Item, Tree};
use cowshed_vfs::{Error as Errno, Timestamp};

pub use create::{NewInode, create, tmpfile};
pub use link::link;
pub(crate) use link::may_extend_refs;
pub use list::{ListedEntry, list};
pub use names::{Found, NAME_BYTES_MAX, Target, check_name};
pub use remove::{rmdir, unlink};
pub use rename::rename;

use crate::error::{Error, Result, StoreError};
use crate::files::{Files, touch_inode};
use crate::object::{Inode, InodeState};
use crate::staged::Staged;
use crate::subvol;

/// Entries of a directory are numbered from here: 0 and 1 stand for `.` and `..`.
pub(crate) const FIRST_INDEX: u64 = 2;
/// The last index that can be listed: cookies are one higher, and signed in the kernel's world.
pub(crate) const LAST_INDEX: u64 = i64::MAX as u64 - 1;
/// Directories on the way up that a path can have: more means that the volume's directories form a
/// ring.
const DEPTH_MAX: usize = 1 << 16;

/// The index that the next name in a directory gets. It counts as used when [`note_name`] says so.
pub(crate) fn next_index(dir: &Inode) -> Result<u64> {
    let known = dir.dir.next_index.load(Ordering::Acquire);
    if known != 0 {
        return Ok(known);
    }
    // A number that a name gave back in this transaction is not used again in it: where a log says
    // whose it is now, replay would take it from the inode that has it in the last commit.
    let (first, end) = (names::index_key(dir.ino, 0), names::index_key(dir.ino, u64::MAX));
    let next = match dir.tree.floor_key_ever(&first, &end)? {
        None => FIRST_INDEX,
        // Room for a rename's two names; and cookies have 63 bits.
        Some(key) if key.offset >= u64::MAX >> 2 => return Err(Errno::Overflow.into()),
        Some(key) => key.offset.max(FIRST_INDEX - 1) + 1,
    };
    dir.dir.next_index.store(next, Ordering::Release);
    Ok(next)
}

/// Listings show the names that there are now, and none that come later, until this is called
/// again.
pub(crate) fn begin_listing(dir: &Inode) -> Result<()> {
    let known = dir.dir.next_index.load(Ordering::Acquire);
    let end = if known != 0 {
        known
    } else {
        // The thread that finds it out sets it: no name may be made meanwhile.
        let _lock = dir.lock.read();
        match next_index(dir) {
            Ok(next) => next,
            // No name can be made any more.
            Err(Error::Outcome(Errno::Overflow)) => u64::MAX,
            Err(error) => return Err(error),
        }
    };
    dir.dir.listing_end.store(end, Ordering::Release);
    Ok(())
}

/// The index before which listings end.
fn listing_end(dir: &Inode) -> u64 {
    match dir.dir.listing_end.load(Ordering::Acquire) {
        0 => u64::MAX,
        end => end,
    }
}

/// A name comes into the directory, with the next index.
pub(crate) fn note_name(dir: &Inode, name: &[u8]) {
    dir.dir.next_index.fetch_add(1, Ordering::AcqRel);
    dir.dir.filter.add(name);
}

/// Names with these hashes come into the directory, with the next indexes.
pub(crate) fn note_names(dir: &Inode, hashes: impl ExactSizeIterator<Item = u64>) {
    dir.dir.next_index.fetch_add(hashes.len() as u64, Ordering::AcqRel);
    dir.dir.filter.add_hashes(hashes);
}

/// A directory's attributes after names of `added_bytes` came and names of `removed_bytes` went.
pub(crate) fn touch_dir(
    state: &mut InodeState,
    generation: Generation,
    now: Timestamp,
    added_bytes: usize,
    removed_bytes: usize,
) {
    let attr = &mut state.attr;
    // The format counts each name twice: once for each of its two items.
    attr.size = (attr.size + 2 * added_bytes as u64).saturating_sub(2 * removed_bytes as u64);
    state.disk_size = attr.size;
    attr.mtime = now;
    touch_inode(state, generation, now);
}

/// The inode behind what a directory entry says; `None` where it is just going away.
pub(crate) fn load_target(files: &Files, dir: &Arc<Inode>, name: &[u8], found: &Found) -> Result<Option<Arc<Inode>>> {
    match found.target {
        Target::Subvol(id) => subvol::enter(files, dir, name, id).map(Some),
        Target::Inode(ino) => {
            let inode = files.objects().inodes.load(&dir.subvol, ino)?;
            Ok(inode.filter(|i| i.attr_now().nlink > 0))
        }
    }
}

/// The inode under a name. Errors: `NotDirectory`, `NameTooLong`.
pub(crate) fn lookup(files: &Files, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<Arc<Inode>>> {
    if !dir.is_dir() {
        return Err(Errno::NotDirectory.into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NameTooLong.into());
    }
    if dir.dir.filter.is_absent(name) {
        return Ok(None);
    }
    let Some(found) = names::find(&dir.tree, dir.ino, name)? else {
        return Ok(None);
    };
    if let Some(inode) = load_target(files, dir, name, &found)? {
        return Ok(Some(inode));
    }
    // Gone between two looks, or never there: then the name must be gone too.
    match names::find(&dir.tree, dir.ino, name)? {
        Some(again) if again == found => Err(Error::Store(StoreError::CorruptTree {
            tree: dir.tree.id(),
            what: format!(
                "directory {} has a name for {}, which does not exist",
                dir.ino, found.location
            ),
        })),
        Some(again) => load_target(files, dir, name, &again),
        None => Ok(None),
    }
}

/// The directory above a directory, in its own subvolume or above its root; `None` above the top
/// level.
pub(crate) fn parent_of(files: &Files, dir: &Inode) -> Result<Option<(TreeId, ObjectId)>> {
    if let Some(parent) = dir.dir.placeholder_parent.get() {
        return Ok(Some((dir.tree.id(), *parent)));
    }
    if dir.ino == dir.subvol.root_ino {
        return subvol::parent_of_root(files, dir.tree.id());
    }
    let key = Key::new(dir.ino, KeyType::INODE_REF, u64::MAX);
    let found = dir.tree.floor_same_type(&key)?;
    Ok(found.map(|(key, _)| (dir.tree.id(), ObjectId(key.offset))))
}

/// The directory above a directory of a subvolume, and its name there. `None` where it has none.
pub(crate) fn name_of(tree: &Tree, ino: ObjectId) -> Result<Option<(ObjectId, Vec<u8>)>> {
    let key = Key::new(ino, KeyType::INODE_REF, u64::MAX);
    let Some((key, item)) = tree.floor_same_type(&key)? else {
        return Ok(None);
    };
    let first = view::inode_refs(&item).next();
    Ok(first.map(|(_, name)| (ObjectId(key.offset), name.to_vec())))
}

/// What was read of a name before its directory was locked. Its number may decide about the order of
/// the locks, so a name is looked up before them; it is not read again where nothing has changed.
pub(crate) struct Look {
    /// Of the directory, see [`crate::object::lock`].
    times_written: u32,
    /// The item of all names with its hash.
    item: Option<Item>,
}

impl Look {
    /// Looks for a name, and for what it leads to.
    fn at(dir: &Inode, name: &[u8]) -> Result<(Look, Option<Found>)> {
        let times_written = dir.lock.times_written();
        let item = match dir.dir.filter.is_absent(name) {
            true => None,
            false => dir.tree.get(&names::item_key(dir.ino, name))?,
        };
        let found = names::among(dir.tree.id(), item.as_deref(), name)?;
        Ok((Look { times_written, item }, found))
    }

    /// No name of the directory has changed since. The caller has its lock.
    fn is_current(&self, dir: &Inode) -> bool {
        dir.lock.times_written() == self.times_written
    }

    /// What the name leads to now. The caller has the directory's lock.
    fn again(&self, dir: &Inode, name: &[u8], before: Option<Found>) -> Result<Option<Found>> {
        match self.is_current(dir) {
            true => Ok(before),
            false => names::find(&dir.tree, dir.ino, name),
        }
    }

    /// What was read need not be read again for `staged`. The caller has the directory's lock.
    fn tell(&self, staged: &mut Staged<'_>, dir: &Inode, name: &[u8]) {
        if self.is_current(dir) {
            staged.know(names::item_key(dir.ino, name), self.item.clone());
        }
    }
}

/// What was found under a name.
pub(crate) struct Held {
    look: Look,
    pub(crate) found: Found,
    pub(crate) inode: Arc<Inode>,
}

/// The entry under a name and its inode. Errors: `NotFound`.
fn find_child(files: &Files, dir: &Arc<Inode>, name: &[u8]) -> Result<Held> {
    let (look, found) = Look::at(dir, name)?;
    hold(files, dir, name, look, found.ok_or(Errno::NotFound)?)
}

fn hold(files: &Files, dir: &Arc<Inode>, name: &[u8], look: Look, found: Found) -> Result<Held> {
    let inode = load_target(files, dir, name, &found)?.ok_or(Errno::NotFound)?;
    Ok(Held { look, found, inode })
}

impl Held {
    /// Does the name still lead to the inode that it led to before the locks were taken? The
    /// stand-in for a subvolume gives way to the subvolume itself where that is moved to its name.
    fn is_still(&self, files: &Files, dir: &Inode, name: &[u8]) -> Result<bool> {
        if self.look.again(dir, name, Some(self.found))? != Some(self.found) {
            return Ok(false);
        }
        match self.found.target {
            Target::Subvol(id) if self.inode.is_placeholder() => Ok(!subvol::is_open_at(files, dir, name, id)?),
            _ => Ok(true),
        }
    }
}

/// Is `dir` the directory `above`, or below it, across subvolumes?
pub(crate) fn is_inside(files: &Files, dir: &Inode, above: &Inode) -> Result<bool> {
    let (mut subvol, mut ino) = (dir.subvol.clone(), dir.ino);
    for _ in 0..DEPTH_MAX {
        if (subvol.id, ino) == (above.tree.id(), above.ino) {
            return Ok(true);
        }
        if ino == subvol.root_ino {
            let Some((tree, up)) = subvol::parent_of_root(files, subvol.id)? else {
                return Ok(false);
            };
            subvol = subvol::load(files, tree)?.ok_or(Errno::NotFound)?;
            ino = up;
            continue;
        }
        match subvol
            .tree
            .floor_same_type(&Key::new(ino, KeyType::INODE_REF, u64::MAX))?
        {
            Some((key, _)) => ino = ObjectId(key.offset),
            None => return Ok(false),
        }
    }
    Err(Errno::TooManySymlinks.into())
}

/// Is `above` the directory `below` or above it, in their subvolume?
fn is_above(above: &Inode, below: &Arc<Inode>) -> Result<bool> {
    if above.tree.id() != below.tree.id() {
        return Ok(false);
    }
    let mut at = below.ino;
    for _ in 0..DEPTH_MAX {
        if at == above.ino {
            return Ok(true);
        }
        if at == below.subvol.root_ino {
            return Ok(false);
        }
        let key = Key::new(at, KeyType::INODE_REF, u64::MAX);
        match below.tree.floor_same_type(&key)? {
            Some((key, _)) => at = ObjectId(key.offset),
            None => return Ok(false),
        }
    }
    Err(Error::Store(StoreError::CorruptTree {
        tree: below.tree.id(),
        what: format!("directory {} lies below itself", below.ino),
    }))
}

#[cfg(test)]
mod tests {
    use btrfs_store::volume::{OpenOptions, Volume};
    use cowshed_runtime::FixedEnv;
    use cowshed_vfs::{Context, RenameFlags};

    use super::*;
    use crate::access::Caller;
    use crate::files::EngineOptions;
    use crate::mount::Mount;
    use crate::testing::memory_device;

    /// A volume, and its top directory.
    fn mounted() -> (Arc<Mount>, Arc<Inode>) {
        let volume = Volume::open(vec![memory_device(256 << 20, 16384)], &OpenOptions::default()).unwrap();
        let mount = Mount::open(volume, Arc::new(FixedEnv::default()), EngineOptions::default()).unwrap();
        let top = subvol::root_of(&mount, &subvol::load(&mount, TreeId::FS).unwrap().unwrap()).unwrap();
        (mount, top)
    }

    const FILE: NewInode<'_> = NewInode {
        kind: cowshed_vfs::FileKind::Regular,
        perm: 0o644,
        rdev: 0,
        target: &[],
    };

    #[test]
    fn what_was_read_of_a_name_is_read_again_only_after_a_change_of_its_directory() {
        let (mount, top) = mounted();
        let files: &Files = &mount;
        let ctx = Context::root();
        let caller = Caller {
            ctx: &ctx,
            checks: true,
        };
        create(files, &caller, &top, b"a", &FILE).unwrap();
        let held = find_child(files, &top, b"a").unwrap();
        let (absent, none) = Look::at(&top, b"b").unwrap();
        assert_eq!(none, None);
        let is_still = || held.is_still(files, &top, b"a").unwrap();
        let there = || absent.again(&top, b"b", None).unwrap();
        assert!(held.look.is_current(&top) && is_still() && there().is_none());
        // Of another name: read again, and found as it was.
        create(files, &caller, &top, b"c", &FILE).unwrap();
        assert!(!held.look.is_current(&top) && is_still() && there().is_none());
        let mut staged = Staged::new(&top.tree);
        held.look.tell(&mut staged, &top, b"a");
        assert!(staged.get(&names::item_key(top.ino, b"a")).unwrap().is_some());
        rename::rename(files, &caller, (&top, b"a"), (&top, b"b"), RenameFlags::empty()).unwrap();
        assert!(!is_still());
        assert_eq!(there(), Some(held.found));
        // The name is back, and of another file.
        create(files, &caller, &top, b"a", &FILE).unwrap();
        assert!(!is_still());
        unlink(files, &caller, &top, b"b").unwrap();
        assert_eq!(there(), None);
    }

    /// Two names with one hash.
    fn colliding() -> [Vec<u8>; 2] {
        let mut known = std::collections::HashMap::new();
        for n in 0_u32.. {
            let name = format!("name-{n}").into_bytes();
            if let Some(other) = known.insert(btrfs_format::hash::name_hash(&name), name.clone()) {
                return [other, name];
            }
        }
        unreachable!("hashes have 32 bits")
    }

    #[test]
    fn names_that_a_rename_leaves_are_known_to_be_absent_unless_another_one_has_their_hash() {
        let (mount, top) = mounted();
        let files: &Files = &mount;
        let ctx = Context::root();
        let caller = Caller {
            ctx: &ctx,
            checks: true,
        };
        let dir = NewInode {
            kind: cowshed_vfs::FileKind::Directory,
            ..FILE
        };
        let dir = create(files, &caller, &top, b"dir", &dir).unwrap();
        let is_absent = |name: &[u8]| dir.dir.filter.is_absent(name);
        let finds = |name: &[u8]| lookup(files, &dir, name).unwrap().is_some();
        let moves = |from: &[u8], to: &[u8], flags: RenameFlags| {
            rename::rename(files, &caller, (&dir, from), (&dir, to), flags).unwrap();
        };
        let [one, other] = colliding();
        create(files, &caller, &dir, b"plain", &FILE).unwrap();
        moves(b"plain", &one, RenameFlags::empty());
        assert!(is_absent(b"plain") && finds(&one) && !finds(&other));
        // The hash goes with the old name and comes with the new one.
        moves(&one, &other, RenameFlags::empty());
        assert!(!is_absent(&other) && finds(&other) && !finds(&one));
        create(files, &caller, &dir, &one, &FILE).unwrap();
        moves(&one, b"plain", RenameFlags::empty());
        assert!(!is_absent(&other) && finds(&other) && finds(b"plain"));
        moves(b"plain", &other, RenameFlags::EXCHANGE);
        assert!(finds(&other) && finds(b"plain"));
        moves(b"plain", &other, RenameFlags::empty());
        assert!(finds(&other) && !finds(b"plain") && is_absent(b"plain"));
        moves(&other, b"plain", RenameFlags::WHITEOUT);
        assert!(finds(&other) && finds(b"plain"));
    }

    #[test]
    fn stand_in_is_no_longer_what_a_name_leads_to_once_the_subvolume_has_moved_there() {
        let (mount, top) = mounted();
        let files: &Files = &mount;
        let ctx = Context::root();
        let caller = Caller {
            ctx: &ctx,
            checks: true,
        };
        let below = |dir: &Arc<Inode>, name: &[u8]| find_child(files, dir, name).unwrap();
        subvolumes::create(files, &caller, &top, b"outer").unwrap();
        let outer = below(&top, b"outer").inode;
        subvolumes::create(files, &caller, &outer, b"inner").unwrap();
        subvolumes::snapshot(files, &caller, &outer, (&top, b"copy"), false).unwrap();
        let copy = below(&top, b"copy").inode;
        let stand_in = below(&copy, b"inner");
        assert!(stand_in.inode.is_placeholder());
        let is_still = || stand_in.is_still(files, &copy, b"inner").unwrap();
        assert!(is_still());
        let flags = RenameFlags::empty();
        rename::rename(files, &caller, (&outer, b"inner"), (&copy, b"inner"), flags).unwrap();
        // The entry of the directory is the same.
        assert_eq!(
            names::find(&copy.tree, copy.ino, b"inner").unwrap(),
            Some(stand_in.found)
        );
        assert!(!is_still());
    }
}
