//! Moving names: plainly, over another one, swapping two, leaving a whiteout. The name of a
//! subvolume may go to a directory of another subvolume; all others stay in theirs.

mod stages;

use std::sync::Arc;

use btrfs_format::{Generation, Key, KeyType, ObjectId};
use cowshed_vfs::{Access, Error as Errno, FileKind, RenameFlags, Timestamp};

use super::create::{NewInode, Stamp, make};
use super::names::{self, NewName};
use super::remove::{check_removable_dir, drop_link};
use super::{Held, NameState, find_child, find_name};
use super::{check_name, is_above, is_inside, next_index, note_name, touch_dir};
use crate::access::{Caller, check_dir, check_writable, may_create, may_remove};
use crate::error::Result;
use crate::files::{Files, prepare_and_join, touch_inode};
use crate::object::{Inode, InodeState, lock};
use crate::reclaim::settle;
use btrfs_store::space::{Budget, MetaReservation};
use btrfs_store::txn::Join;
use stages::{Place, Stages};

/// Everything that a rename moves, locked.
struct Move<'a> {
    from: Place<'a>,
    to: Place<'a>,
    moving: &'a Held,
    /// The new name, before.
    there: &'a NameState,
    flags: RenameFlags,
}

/// Renames. Errors: see [`cowshed_vfs::FileSystem::rename`]; `CrossDevice` for what would leave its
/// subvolume, and for the stand-in for a subvolume.
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
    let space = files.reserve(Budget::RENAME)?;
    // Directories do not move while their ancestors are looked at.
    let _tree_lock = (!Arc::ptr_eq(from.dir, to.dir)).then(|| files.objects().rename.lock());
    loop {
        let moving = find_child(files, from.dir, from.name)?;
        let there = find_name(files, to.dir, to.name)?;
        let plan = Move {
            from,
            to,
            moving: &moving,
            there: &there,
            flags,
        };
        plan.check_trees()?;
        // The other tree's items, and those of the tree of roots.
        let more = plan.moves_subvolumes().then(|| files.reserve(Budget::RENAME));
        let _more = more.transpose()?;
        // No subvolume is deleted, or made in one, meanwhile.
        let _names = plan.moves_subvolumes().then(|| files.objects().subvolume_names.lock());
        let mut all = vec![from.dir, to.dir, &moving.inode];
        all.extend(plan.replaced().map(|r| &r.inode));
        let locks = lock::write_all(&all);
        if !(moving.is_still(files, from.dir, from.name)? && there.is_still(files, to.dir, to.name)?) {
            continue;
        }
        if !plan.check(files, caller)? {
            return Ok(());
        }
        plan.run(files, caller, space)?;
        drop(locks);
        settle(files, &moving.inode);
        if let Some(gone) = there.held() {
            settle(files, &gone.inode);
        }
        return Ok(());
    }
}

impl Move<'_> {
    fn is_exchange(&self) -> bool {
        self.flags.contains(RenameFlags::EXCHANGE)
    }

    /// What the new name led to, if it led to anything.
    fn replaced(&self) -> Option<&Held> {
        self.there.held()
    }

    /// What gets another name.
    fn moved(&self) -> impl Iterator<Item = &Held> {
        let exchanged = self.replaced().filter(|_| self.is_exchange());
        std::iter::once(self.moving).chain(exchanged)
    }
    fn moves_subvolumes(&self) -> bool {
        self.moved().any(|held| held.subvolume().is_some())
    }

    /// Names of subvolumes alone go from one tree to another.
    fn check_trees(&self) -> Result<()> {
        let crosses = self.from.dir.tree.id() != self.to.dir.tree.id();
        let stays = |held: &Held| held.is_stand_in() || crosses && held.subvolume().is_none();
        match self.moved().any(stays) {
            true => Err(Errno::CrossDevice.into()),
            false => Ok(()),
        }
    }

    /// A directory comes to lie in another one, `dir`. Errors: `Invalid` (below itself); it must be
    /// writable, because its `..` changes.
    fn check_moved_dir(&self, files: &Files, caller: &Caller<'_>, held: &Held, dir: &Arc<Inode>) -> Result<()> {
        if self.would_lie_below(files, held, dir)? {
            return Err(Errno::Invalid.into());
        }
        caller.need(&held.inode, Access::WRITE)?;
        check_writable(files, &held.inode)
    }

    fn would_lie_below(&self, files: &Files, held: &Held, dir: &Arc<Inode>) -> Result<bool> {
        match held.subvolume() {
            Some(_) => is_inside(files, dir, &held.inode),
            None => is_above(&held.inode, dir),
        }
    }

    /// All rules but those of [`Move::check_trees`]. `false`: nothing is to be done.
    fn check(&self, files: &Files, caller: &Caller<'_>) -> Result<bool> {
        let (from, to, moving) = (self.from, self.to, &self.moving.inode);
        if let Some(there) = self.replaced() {
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
            self.check_moved_dir(files, caller, self.moving, to.dir)?;
        }
        if self.flags.contains(RenameFlags::WHITEOUT) {
            may_create(files, caller, from.dir)?;
        }
        match self.replaced() {
            None => may_create(files, caller, to.dir)?,
            Some(there) => {
                may_remove(files, caller, to.dir, &there.inode)?;
                self.check_replaced(files, caller, there, crosses)?;
            }
        }
        Ok(true)
    }

    fn check_replaced(&self, files: &Files, caller: &Caller<'_>, there: &Held, crosses: bool) -> Result<()> {
        let (moving, is_dir) = (&self.moving.inode, there.inode.is_dir());
        if self.is_exchange() {
            return match is_dir && crosses {
                true => self.check_moved_dir(files, caller, there, self.from.dir),
                false => Ok(()),
            };
        }
        if is_dir && crosses && self.would_lie_below(files, there, self.from.dir)? {
            return Err(Errno::NotEmpty.into());
        }
        match (moving.is_dir(), is_dir) {
            (true, false) => Err(Errno::NotDirectory.into()),
            (false, true) => Err(Errno::IsDirectory.into()),
            (true, true) => check_removable_dir(&there.inode),
            (false, false) => Ok(()),
        }
    }

    fn run(&self, files: &Files, caller: &Caller<'_>, space: MetaReservation) -> Result<()> {
        let now = files.store().env().now();
        let whiteout_ino = match self.flags.contains(RenameFlags::WHITEOUT) {
            true => Some(self.from.dir.subvol.take_ino()?),
            false => None,
        };
        let (join, (stages, whiteout)) = prepare_and_join(files, |generation| {
            let stages = self.stage(files, generation)?;
            match whiteout_ino {
                None => Ok((stages, None)),
                Some(ino) => {
                    let (stages, inode) = self.stage_whiteout(files, caller, stages, ino, generation, now)?;
                    Ok((stages, Some(inode)))
                }
            }
        })?;
        if let Some(inode) = &whiteout {
            files.objects().inodes.insert_new(inode.clone());
        }
        self.apply(files, stages, &join, now, space);
        if let Some(inode) = whiteout {
            settle(files, &inode);
        }
        Ok(())
    }

    /// Names off, names on.
    fn stage(&self, files: &Files, generation: Generation) -> Result<Stages<'_>> {
        let (from, to) = (self.from, self.to);
        let mut stages = Stages::new(from.dir, to.dir);
        stages.is_last_of_hash = stages.take_off(files, from, self.moving)?;
        match self.there {
            NameState::Present(there) => {
                stages.take_off(files, to, there)?;
            }
            NameState::Absent(look) => look.pass_to(stages.of(to.dir), to.dir, to.name),
        }
        stages.put_on(files, to, self.moving, (next_index(to.dir)?, generation))?;
        if self.is_exchange()
            && let Some(there) = self.replaced()
        {
            stages.put_on(files, from, there, (self.second_index()?, generation))?;
        }
        Ok(stages)
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
        mut stages: Stages<'t>,
        ino: ObjectId,
        generation: Generation,
        now: Timestamp,
    ) -> Result<(Stages<'t>, Arc<Inode>)> {
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
        names::insert(&mut stages.from, &name)?;
        names::insert_first_ref(&mut stages.from, ino, &name);
        let stamp = Stamp {
            generation,
            now,
            nlink: 1,
        };
        let plan = make(files, caller, self.from.dir, stages.from, ino, &new, stamp)?;
        stages = Stages {
            from: plan.staged,
            ..stages
        };
        Ok((stages, plan.inode))
    }

    /// The attributes of all that is concerned, and the batch. Cannot fail.
    fn apply(&self, files: &Files, mut stages: Stages<'_>, join: &Join<'_>, now: Timestamp, space: MetaReservation) {
        if self.moves_subvolumes() {
            files.names().turn_off();
        }
        files.names().changed(stages.is_crowded());
        let generation = join.generation();
        let (from, to) = (self.from, self.to);
        let mut all = vec![from.dir, to.dir, &self.moving.inode];
        all.extend(self.replaced().map(|r| &r.inode));
        let mut attrs = lock::attrs_all(&all);
        let stays = self.is_exchange() || self.flags.contains(RenameFlags::WHITEOUT);
        let refilled = if stays { from.name.len() } else { 0 };
        let replaced_bytes = self.replaced().map_or(0, |_| to.name.len());
        note_name(to.dir, to.name);
        if stays {
            note_name(from.dir, from.name);
        }
        touch_dir(attrs.of(from.dir), generation, now, refilled, from.name.len());
        touch_dir(attrs.of(to.dir), generation, now, to.name.len(), replaced_bytes);
        // The root of a read-only subvolume stays as it is, whatever its name.
        let has_item = |inode: &Inode| !inode.is_placeholder() && !inode.subvol.has_fixed_names();
        if let Some(there) = self.replaced() {
            self.let_go(files, &mut stages, there, attrs.of(&there.inode));
            if has_item(&there.inode) {
                touch_inode(attrs.of(&there.inode), generation, now);
            }
        }
        if self.moving.subvolume().is_none() {
            files.names().left(from.dir, from.name, &self.moving.inode);
            files
                .names()
                .added(&self.moving.inode, (to.dir, to.name), Some(from.dir));
        }
        if self.is_exchange()
            && let Some(there) = self.replaced()
            && there.subvolume().is_none()
        {
            files.names().added(&there.inode, (from.dir, from.name), Some(to.dir));
        }
        if has_item(&self.moving.inode) {
            touch_inode(attrs.of(&self.moving.inode), generation, now);
        }
        let is_last_of_hash = stages.is_last_of_hash;
        let mut batch = stages.into_batch(files);
        for inode in all.iter().filter(|inode| has_item(inode)) {
            let item = inode.item_bytes(attrs.of(inode));
            batch.put(&inode.tree, inode.key(), item);
        }
        join.apply(batch, space);
        if is_last_of_hash && !stays && !self.keeps_hash() {
            from.dir.dir.filter.remove_last(from.name);
        }
    }

    /// The old directory has a name with the old name's hash again: the new one.
    fn keeps_hash(&self) -> bool {
        let hash = |place: Place<'_>| names::item_key(place.dir.ino, place.name);
        self.from.dir.tree.id() == self.to.dir.tree.id() && hash(self.from) == hash(self.to)
    }

    /// What was under the new name loses it, or gets the old one.
    fn let_go(&self, files: &Files, stages: &mut Stages<'_>, there: &Held, state: &mut InodeState) {
        let to = self.to;
        if there.is_stand_in() {
            files.names().turn_off();
            return;
        }
        if !self.is_exchange() {
            drop_link(stages.of(to.dir), &there.inode, state);
        }
        if there.subvolume().is_some() {
            return;
        }
        match state.attr.nlink {
            0 => files.names().removed(to.dir, to.name, &there.inode),
            _ => files.names().left(to.dir, to.name, &there.inode),
        }
    }
}
