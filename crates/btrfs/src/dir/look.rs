//! Looking up a name before its directory is locked.
//!
//! Inodes are locked in the order of their numbers, so an operation that removes or moves a name
//! has to look it up first. Under the lock it must know that the name still leads to the same
//! inode, and the change needs the item once more. Both are free where no writer had the
//! directory's lock since:
//!
//! ```text
//!   read -> lock -> is_still: no writer since? -> stage with the item that was read
//!                             otherwise: read the item again
//! ```

use std::sync::Arc;

use btrfs_store::tree::Item;
use cowshed_vfs::Error as Errno;

use super::names::{self, Found, Target};
use crate::error::Result;
use crate::files::Files;
use crate::object::Inode;
use crate::staged::Staged;
use crate::subvol;

/// What was read of a name.
pub(super) struct Look {
    /// How often the directory had been locked for writing before the read.
    times_written: u32,
    /// The item of all names with the name's hash.
    item: Option<Item>,
}

impl Look {
    /// Reads a name, and what it leads to.
    fn read(dir: &Inode, name: &[u8]) -> Result<(Look, Option<Found>)> {
        let times_written = dir.lock.times_written();
        let item = match dir.dir.filter.is_absent(name) {
            true => None,
            false => dir.tree.get(&names::item_key(dir.ino, name))?,
        };
        let found = names::among(dir.tree.id(), item.as_deref(), name)?;
        Ok((Look { times_written, item }, found))
    }

    /// No name of the directory has changed since. The caller has the directory's lock.
    fn is_current(&self, dir: &Inode) -> bool {
        dir.lock.times_written() == self.times_written
    }

    /// What the name leads to now; `before` is what it led to. The caller has the directory's lock.
    fn reread(&self, dir: &Inode, name: &[u8], before: Option<Found>) -> Result<Option<Found>> {
        match self.is_current(dir) {
            true => Ok(before),
            false => names::find(&dir.tree, dir.ino, name),
        }
    }

    /// Gives `staged` the item that was read, if it is current. The caller has the directory's
    /// lock.
    pub(super) fn pass_to(&self, staged: &mut Staged<'_>, dir: &Inode, name: &[u8]) {
        if self.is_current(dir) {
            staged.know(names::item_key(dir.ino, name), self.item.clone());
        }
    }
}

/// A name that leads to an inode.
pub(super) struct Held {
    pub(super) look: Look,
    pub(super) found: Found,
    pub(super) inode: Arc<Inode>,
}

impl Held {
    /// Does the name still lead to the inode that it led to before the locks were taken? The
    /// stand-in for a subvolume gives way to the subvolume itself where that is moved to its name.
    pub(super) fn is_still(&self, files: &Files, dir: &Inode, name: &[u8]) -> Result<bool> {
        if self.look.reread(dir, name, Some(self.found))? != Some(self.found) {
            return Ok(false);
        }
        match self.found.target {
            Target::Subvol(id) if self.inode.is_placeholder() => Ok(!subvol::is_open_at(files, dir, name, id)?),
            _ => Ok(true),
        }
    }
}

/// Whether there is a name.
pub(super) enum NameState {
    Present(Held),
    Absent(Look),
}

impl NameState {
    pub(super) fn held(&self) -> Option<&Held> {
        match self {
            NameState::Present(held) => Some(held),
            NameState::Absent(_) => None,
        }
    }

    /// As [`Held::is_still`]; an absent name must still be absent.
    pub(super) fn is_still(&self, files: &Files, dir: &Inode, name: &[u8]) -> Result<bool> {
        match self {
            NameState::Present(held) => held.is_still(files, dir, name),
            NameState::Absent(look) => Ok(look.reread(dir, name, None)?.is_none()),
        }
    }
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

/// Looks a name up.
pub(super) fn find_name(files: &Files, dir: &Arc<Inode>, name: &[u8]) -> Result<NameState> {
    let (look, found) = Look::read(dir, name)?;
    let Some(found) = found else {
        return Ok(NameState::Absent(look));
    };
    match load_target(files, dir, name, &found)? {
        Some(inode) => Ok(NameState::Present(Held { look, found, inode })),
        // Another thread is removing it.
        None => Ok(NameState::Absent(look)),
    }
}

/// Looks up a name that must exist. Errors: `NotFound`.
pub(super) fn find_child(files: &Files, dir: &Arc<Inode>, name: &[u8]) -> Result<Held> {
    match find_name(files, dir, name)? {
        NameState::Present(held) => Ok(held),
        NameState::Absent(_) => Err(Errno::NotFound.into()),
    }
}

/// Spares `staged` the search for a name that the directory's filter knows to be absent. The caller
/// has the directory's lock.
pub(super) fn know_absence(staged: &mut Staged<'_>, dir: &Inode, name: &[u8]) {
    if dir.dir.filter.is_absent(name) {
        staged.know(names::item_key(dir.ino, name), None);
    }
}

#[cfg(test)]
mod tests {
    use btrfs_format::TreeId;
    use btrfs_store::volume::{OpenOptions, Volume};
    use cowshed_runtime::FixedEnv;
    use cowshed_vfs::{Context, RenameFlags};

    use super::*;
    use crate::access::Caller;
    use crate::dir::{NewInode, create, lookup, rename, subvolumes, unlink};
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

    static ROOT: Context = Context::root();
    const CALLER: Caller<'_> = Caller {
        ctx: &ROOT,
        checks: true,
    };
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
        create(files, &CALLER, &top, b"a", &FILE).unwrap();
        let held = find_child(files, &top, b"a").unwrap();
        let (absent, none) = Look::read(&top, b"b").unwrap();
        assert_eq!(none, None);
        let is_still = || held.is_still(files, &top, b"a").unwrap();
        let there = || absent.reread(&top, b"b", None).unwrap();
        assert!(held.look.is_current(&top) && is_still() && there().is_none());
        // Of another name: read again, and found as it was.
        create(files, &CALLER, &top, b"c", &FILE).unwrap();
        assert!(!held.look.is_current(&top) && is_still() && there().is_none());
        let mut staged = Staged::new(&top.tree);
        held.look.pass_to(&mut staged, &top, b"a");
        assert!(staged.get(&names::item_key(top.ino, b"a")).unwrap().is_some());
        rename(files, &CALLER, (&top, b"a"), (&top, b"b"), RenameFlags::empty()).unwrap();
        assert!(!is_still());
        assert_eq!(there(), Some(held.found));
        // The name is back, and of another file.
        create(files, &CALLER, &top, b"a", &FILE).unwrap();
        assert!(!is_still());
        unlink(files, &CALLER, &top, b"b").unwrap();
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
        let dir = NewInode {
            kind: cowshed_vfs::FileKind::Directory,
            ..FILE
        };
        let dir = create(files, &CALLER, &top, b"dir", &dir).unwrap();
        let is_absent = |name: &[u8]| dir.dir.filter.is_absent(name);
        let finds = |name: &[u8]| lookup(files, &dir, name).unwrap().is_some();
        let moves = |from: &[u8], to: &[u8], flags: RenameFlags| {
            rename(files, &CALLER, (&dir, from), (&dir, to), flags).unwrap();
        };
        let [one, other] = colliding();
        create(files, &CALLER, &dir, b"plain", &FILE).unwrap();
        moves(b"plain", &one, RenameFlags::empty());
        assert!(is_absent(b"plain") && finds(&one) && !finds(&other));
        // The hash goes with the old name and comes with the new one.
        moves(&one, &other, RenameFlags::empty());
        assert!(!is_absent(&other) && finds(&other) && !finds(&one));
        create(files, &CALLER, &dir, &one, &FILE).unwrap();
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
        let below = |dir: &Arc<Inode>, name: &[u8]| find_child(files, dir, name).unwrap();
        subvolumes::create(files, &CALLER, &top, b"outer").unwrap();
        let outer = below(&top, b"outer").inode;
        subvolumes::create(files, &CALLER, &outer, b"inner").unwrap();
        subvolumes::snapshot(files, &CALLER, &outer, (&top, b"copy"), false).unwrap();
        let copy = below(&top, b"copy").inode;
        let stand_in = below(&copy, b"inner");
        assert!(stand_in.inode.is_placeholder());
        let is_still = || stand_in.is_still(files, &copy, b"inner").unwrap();
        assert!(is_still());
        let flags = RenameFlags::empty();
        rename(files, &CALLER, (&outer, b"inner"), (&copy, b"inner"), flags).unwrap();
        // The entry of the directory is the same.
        assert_eq!(
            names::find(&copy.tree, copy.ino, b"inner").unwrap(),
            Some(stand_in.found)
        );
        assert!(!is_still());
    }
}
