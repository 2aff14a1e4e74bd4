//! Moving names: plainly, over another one, swapping two, leaving a whiteout.

use std::sync::Arc;

use btrfs_format::{Generation, Key, KeyType};
use cowshed_vfs::{Access, Error as Errno, FileKind, RenameFlags, Timestamp};

use super::create::{NewInode, Plan, Stamp, make};
use super::link::may_extend_refs;
use super::names::{self, Found, NewName, Target};
use super::remove::{check_removable_dir, drop_link, stage_removal};
use super::{check_name, is_above, next_index, note_name, touch_dir};
use super::{find_child, is_still};
use crate::access::{Caller, check_dir, may_create, may_remove};
use crate::error::Result;
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::{Inode, lock};
use crate::reclaim::settle;
use crate::staged::Staged;
use btrfs_store::space::{Budget, MetaReservation};
use btrfs_store::txn::Join;

/// One end of a rename.
#[derive(Clone, Copy)]
struct Place<'a> {
    dir: &'a Arc<Inode>,
    name: &'a [u8],
}

/// What a name leads to.
struct Held {
    found: Found,
    inode: Arc<Inode>,
}

/// Everything that a rename moves, locked.
struct Move<'a> {
    from: Place<'a>,
    to: Place<'a>,
    moving: &'a Held,
    replaced: Option<&'a Held>,
    flags: RenameFlags,
}

/// Renames. Errors: see [`cowshed_vfs::FileSystem::rename`]; a subvolume is refused with
/// `CrossDevice`.
pub fn rename(
    files: &Files,
    caller: &Caller<'_>,
    from: (&Arc<Inode>, &[u8]),
    to: (&Arc<Inode>, &[u8]),
    flags: RenameFlags,
) -> Result<()> {
    let (from, to) = (
        Place {
            dir: from.0,
            name: from.1,
        },
        Place { dir: to.0, name: to.1 },
    );
    if flags.contains(RenameFlags::EXCHANGE) && flags.intersects(RenameFlags::NO_REPLACE | RenameFlags::WHITEOUT) {
        return Err(Errno::Invalid.into());
    }
    for place in [from, to] {
        check_dir(place.dir)?;
        check_name(place.name)?;
    }
    if from.dir.tree.id() != to.dir.tree.id() {
        return Err(Errno::CrossDevice.into());
    }
    let space = files.reserve(Budget::RENAME)?;
    // Directories do not move while their ancestors are looked at.
    let _tree_lock = (!Arc::ptr_eq(from.dir, to.dir)).then(|| files.objects().rename.lock());
    loop {
        let moving = find(files, from)?.ok_or(Errno::NotFound)?;
        let replaced = find(files, to)?;
        let mut all = vec![from.dir, to.dir, &moving.inode];
        all.extend(replaced.as_ref().map(|r| &r.inode));
        let locks = lock::write_all(&all);
        let unchanged = is_still(from.dir, from.name, &moving.found)?
            && match &replaced {
                Some(held) => is_still(to.dir, to.name, &held.found)?,
                None => names::find(&to.dir.tree, to.dir.ino, to.name)?.is_none(),
            };
        if !unchanged {
            continue;
        }
        let plan = Move {
            from,
            to,
            moving: &moving,
            replaced: replaced.as_ref(),
            flags,
        };
        if !plan.check(files, caller)? {
            return Ok(());
        }
        plan.run(files, caller, space)?;
        drop(locks);
        settle(files, &moving.inode);
        if let Some(gone) = replaced {
            settle(files, &gone.inode);
        }
        return Ok(());
    }
}

fn find(files: &Files, place: Place<'_>) -> Result<Option<Held>> {
    match find_child(files, place.dir, place.name) {
        Ok((found, inode)) => Ok(Some(Held { found, inode })),
        Err(crate::Error::Outcome(Errno::NotFound)) => Ok(None),
        Err(other) => Err(other),
    }
}

impl Move<'_> {
    fn is_exchange(&self) -> bool {
        self.flags.contains(RenameFlags::EXCHANGE)
    }

    /// All rules. `false`: nothing is to be done.
    fn check(&self, files: &Files, caller: &Caller<'_>) -> Result<bool> {
        let (from, to, moving) = (self.from, self.to, &self.moving.inode);
        if let Some(there) = self.replaced {
            if self.flags.contains(RenameFlags::NO_REPLACE) {
                return Err(Errno::Exists.into());
            }
            if Arc::ptr_eq(&there.inode, moving) {
                return Ok(false);
            }
        } else if self.is_exchange() {
            return Err(Errno::NotFound.into());
        }
        may_remove(files, caller, from.dir, moving)?;
        let crosses = !Arc::ptr_eq(from.dir, to.dir);
        if moving.is_dir() && crosses {
            if is_above(moving, to.dir)? {
                return Err(Errno::Invalid.into());
            }
            // Its `..` changes.
            caller.need(moving, Access::WRITE)?;
        }
        if self.flags.contains(RenameFlags::WHITEOUT) {
            may_create(files, caller, from.dir)?;
        }
        match self.replaced {
            None => may_create(files, caller, to.dir)?,
            Some(there) => {
                may_remove(files, caller, to.dir, &there.inode)?;
                self.check_replaced(caller, &there.inode, crosses)?;
            }
        }
        for held in std::iter::once(self.moving).chain(self.replaced) {
            let is_root = matches!(held.found.target, Target::Subvol(_));
            if is_root && (self.is_exchange() || std::ptr::eq(held, self.moving)) {
                return Err(Errno::CrossDevice.into());
            }
        }
        Ok(true)
    }

    fn check_replaced(&self, caller: &Caller<'_>, there: &Arc<Inode>, crosses: bool) -> Result<()> {
        let moving = &self.moving.inode;
        if there.is_dir() && crosses && is_above(there, self.from.dir)? {
            return Err(if self.is_exchange() {
                Errno::Invalid
            } else {
                Errno::NotEmpty
            }
            .into());
        }
        if self.is_exchange() {
            if there.is_dir() && crosses {
                caller.need(there, Access::WRITE)?;
            }
            return Ok(());
        }
        match (moving.is_dir(), there.is_dir()) {
            (true, false) => Err(Errno::NotDirectory.into()),
            (false, true) => Err(Errno::IsDirectory.into()),
            (true, true) => check_removable_dir(there),
            (false, false) => Ok(()),
        }
    }

    fn run(&self, files: &Files, caller: &Caller<'_>, space: MetaReservation) -> Result<()> {
        let now = files.store().env().now();
        let whiteout_ino = match self.flags.contains(RenameFlags::WHITEOUT) {
            true => Some(self.from.dir.subvol.take_ino()?),
            false => None,
        };
        let (join, (staged, whiteout)) = prepare_and_join(files, |generation| {
            let staged = self.stage(files, generation)?;
            match whiteout_ino {
                None => Ok((staged, None)),
                Some(ino) => {
                    let plan = self.stage_whiteout(files, caller, staged, ino, generation, now)?;
                    Ok((plan.staged, Some(plan.inode)))
                }
            }
        })?;
        if let Some(inode) = &whiteout {
            files.objects().inodes.insert_new(inode.clone());
        }
        self.apply(files, staged, &join, now, space);
        if let Some(inode) = whiteout {
            settle(files, &inode);
        }
        Ok(())
    }

    /// Names off, names on.
    fn stage<'t>(&'t self, files: &Files, generation: Generation) -> Result<Staged<'t>> {
        let (from, to) = (self.from, self.to);
        let mut staged = Staged::new(&from.dir.tree);
        stage_removal(&mut staged, from.dir, from.name, &self.moving.found, &self.moving.inode)?;
        if let Some(there) = self.replaced {
            stage_removal(&mut staged, to.dir, to.name, &there.found, &there.inode)?;
        }
        add(files, &mut staged, to, self.moving, next_index(to.dir)?, generation)?;
        if self.is_exchange()
            && let Some(there) = self.replaced
        {
            let index = self.second_index()?;
            add(files, &mut staged, from, there, index, generation)?;
        }
        Ok(staged)
    }

    /// The index in the old directory of what comes there: one more if the first went to the same
    /// directory.
    fn second_index(&self) -> Result<u64> {
        let same = u64::from(Arc::ptr_eq(self.from.dir, self.to.dir));
        Ok(next_index(self.from.dir)? + same)
    }

    fn stage_whiteout<'t>(
        &self,
        files: &Files,
        caller: &Caller<'_>,
        mut staged: Staged<'t>,
        ino: btrfs_format::ObjectId,
        generation: Generation,
        now: Timestamp,
    ) -> Result<Plan<'t>> {
        let new = NewInode {
            kind: FileKind::CharDevice,
            perm: 0,
            rdev: 0,
            target: &[],
        };
        let name = NewName {
            dir: self.from.dir.ino,
            name: self.from.name,
            index: self.second_index()?,
            location: Key::new(ino, KeyType::INODE_ITEM, 0),
            ty: names::file_type(new.kind),
            generation,
        };
        names::insert(&mut staged, &name)?;
        names::insert_first_ref(&mut staged, ino, &name);
        let stamp = Stamp {
            generation,
            now,
            nlink: 1,
        };
        make(files, caller, self.from.dir, staged, ino, &new, stamp)
    }

    /// The attributes of all that is concerned, and the batch. Cannot fail.
    fn apply(&self, files: &Files, mut staged: Staged<'_>, join: &Join<'_>, now: Timestamp, space: MetaReservation) {
        files.names().changed(staged.is_crowded());
        let generation = join.generation();
        let (from, to) = (self.from, self.to);
        let mut all = vec![from.dir, to.dir, &self.moving.inode];
        all.extend(self.replaced.map(|r| &r.inode));
        let mut attrs = lock::attrs_all(&all);
        let stays = self.is_exchange() || self.flags.contains(RenameFlags::WHITEOUT);
        let refilled = if stays { from.name.len() } else { 0 };
        let replaced_bytes = self.replaced.map_or(0, |_| to.name.len());
        note_name(to.dir, to.name);
        if stays {
            note_name(from.dir, from.name);
        }
        touch_dir(attrs.of(from.dir), generation, now, refilled, from.name.len());
        touch_dir(attrs.of(to.dir), generation, now, to.name.len(), replaced_bytes);
        if self.replaced.is_some_and(|there| there.inode.is_placeholder()) {
            files.names().turn_off();
        }
        if let Some(there) = self.replaced
            && !there.inode.is_placeholder()
        {
            let state = attrs.of(&there.inode);
            if !self.is_exchange() {
                drop_link(&mut staged, &there.inode, state);
            }
            if state.attr.nlink > 0 {
                files.names().left(to.dir, to.name, &there.inode);
            } else {
                files.names().removed(to.dir, to.name, &there.inode);
            }
            touch_inode(state, generation, now);
        }
        files.names().left(from.dir, from.name, &self.moving.inode);
        files
            .names()
            .added(&self.moving.inode, (to.dir, to.name), Some(from.dir));
        if self.is_exchange()
            && let Some(there) = self.replaced
        {
            files.names().added(&there.inode, (from.dir, from.name), Some(to.dir));
        }
        touch_inode(attrs.of(&self.moving.inode), generation, now);
        for inode in all.iter().filter(|i| !i.is_placeholder()) {
            let item = inode.item_bytes(attrs.of(inode));
            staged.put(inode.key(), item);
        }
        join.apply(staged.into_batch(), space);
    }
}

fn add(
    files: &Files,
    staged: &mut Staged<'_>,
    place: Place<'_>,
    what: &Held,
    index: u64,
    generation: Generation,
) -> Result<()> {
    let new = NewName {
        dir: place.dir.ino,
        name: place.name,
        index,
        location: what.found.location,
        ty: what.found.ty,
        generation,
    };
    names::insert(staged, &new)?;
    names::insert_ref(staged, what.inode.ino, &new, || may_extend_refs(files))
}
