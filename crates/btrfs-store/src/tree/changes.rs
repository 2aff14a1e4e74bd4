//! What the log asks of a tree: the edits that no commit has merged, object by object, and which of
//! them are new since the object was logged.
//!
//! An object is *tracked* from its first logging until the next commit: the keys of its items that
//! change are listed, so that logging it once more costs what changed in between and not what
//! changed since the commit. Objects that are not tracked (nearly all) cost nothing.
//!
//! All of it is called while no commit runs, so that there is no frozen overlay.

use std::collections::{BTreeSet, HashMap};
use std::iter::Peekable;

use btrfs_format::{Key, KeyType, ObjectId};

use super::Tree;
use crate::overlay::stripes::{self, EntryRef, stripe_of};
use crate::overlay::{Edit, Overlay};

/// Entries that a walk over several objects passes over before it looks the next object up.
const SKIP_MAX: usize = 16;

/// A key whose item changed.
#[derive(Clone, Debug)]
pub struct Change {
    /// Key of the item.
    pub key: Key,
    /// Of file extents: the pending edit before the change. `None` where there was none.
    pub before: Option<Edit>,
}

/// What changed since the objects were logged, in order of time. `None` where nothing is tracked.
#[derive(Debug, Default)]
pub(super) struct Tracked(Option<Objects>);

#[derive(Debug, Default)]
struct Objects {
    all: HashMap<ObjectId, Vec<Change>>,
    /// Those with changes.
    changed: BTreeSet<ObjectId>,
}

impl Tracked {
    /// Notes an edit. The usual case is that nothing is tracked. True where it is the object's
    /// first change since it was logged.
    pub(crate) fn note(&mut self, key: &Key, before: Option<Edit>) -> bool {
        if let Some(objects) = &mut self.0
            && let Some(changes) = objects.all.get_mut(&key.objectid)
        {
            let is_first = changes.is_empty();
            if is_first {
                objects.changed.insert(key.objectid);
            }
            changes.push(Change {
                key: *key,
                before: before.filter(|_| key.ty == KeyType::EXTENT_DATA),
            });
            return is_first;
        }
        false
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    fn contains(&self, id: ObjectId) -> bool {
        self.0.as_ref().is_some_and(|objects| objects.all.contains_key(&id))
    }
}

impl Tree {
    /// The pending edit of a key: `None` where the committed tree has the last word.
    pub fn pending_edit(&self, key: &Key) -> Option<Edit> {
        self.pending(&self.state.read(), key)
    }

    /// Appends the pending edits from `from` to `to`, both included, in key order.
    pub fn pending_range(&self, from: Key, to: Key, out: &mut Vec<(Key, Edit)>) {
        self.assert_no_commit_runs();
        let stripes = self.active.read(&from, &to);
        out.extend(stripes::range(stripes.edits(), from, to).map(|(key, edit)| (*key, edit.clone())));
    }

    /// Calls `visit` for each of `objects` (ascending) with its pending edits of types up to
    /// `last_type`, and whether it is tracked. `visit` must not call the tree.
    pub fn pending_of_objects(
        &self,
        objects: &[ObjectId],
        last_type: KeyType,
        mut visit: impl FnMut(ObjectId, &[(&Key, &Edit)], bool),
    ) {
        self.assert_no_commit_runs();
        let held = self.active.read_all();
        let Some(start) = objects.first() else { return };
        // Objects that follow each other in a stripe are often side by side there.
        let mut walks: Vec<_> = held.edits().map(|edits| walk_from(edits, *start)).collect();
        let mut found = Vec::new();
        for id in objects {
            found.clear();
            let Some(stripe) = held.of(*id) else {
                visit(*id, &found, false);
                continue;
            };
            let walk = &mut walks[stripe_of(*id, held.len())];
            let mut skipped = 0;
            while skipped < SKIP_MAX && walk.next_if(|(key, _)| **key < first_key(*id)).is_some() {
                skipped += 1;
            }
            if skipped == SKIP_MAX {
                *walk = walk_from(&stripe.edits, *id);
            }
            while let Some(entry) = walk.next_if(|(key, _)| key.objectid == *id && key.ty <= last_type) {
                found.push(entry);
            }
            visit(*id, &found, stripe.tracked.contains(*id));
        }
    }

    fn assert_no_commit_runs(&self) {
        assert!(
            self.state.read().frozen.is_none(),
            "no commit runs while the log is written"
        );
    }

    /// The tree as the last commit left it, for as long as no commit runs.
    pub fn committed_view(&self) -> Tree {
        Tree::new(self.id, self.store.clone(), self.root())
    }

    /// Whether an object was logged since the last commit.
    pub fn is_tracked(&self, id: ObjectId) -> bool {
        let stripe = self.active.read_one(id);
        stripe.is_some_and(|stripe| stripe.tracked.contains(id))
    }

    /// Objects that are tracked, at most so many.
    pub fn tracked_objects(&self, count_max: usize) -> Vec<ObjectId> {
        let held = self.active.read_all();
        let objects = held.stripes().filter_map(|stripe| stripe.tracked.0.as_ref());
        objects
            .flat_map(|objects| objects.all.keys())
            .take(count_max)
            .copied()
            .collect()
    }

    /// Tracked objects that changed since they were logged, ascending.
    pub fn tracked_and_changed(&self) -> Vec<ObjectId> {
        let held = self.active.read_all();
        let objects = held.stripes().filter_map(|stripe| stripe.tracked.0.as_ref());
        let mut changed: Vec<_> = objects.flat_map(|objects| &objects.changed).copied().collect();
        changed.sort_unstable();
        changed
    }

    /// Did any tracked object change since it was logged? Asked for each name that is logged, while
    /// nothing changes: it takes no lock.
    pub fn has_tracked_changes(&self) -> bool {
        let has_changes = self.active.has_tracked_changes();
        debug_assert_eq!(has_changes, !self.tracked_and_changed().is_empty());
        has_changes
    }

    /// Did anything about the object of this key change but the item of the key: since it was
    /// logged, or else since the commit?
    pub fn has_other_changes(&self, key: &Key) -> bool {
        self.assert_no_commit_runs();
        let Some(stripe) = self.active.read_one(key.objectid) else {
            return false;
        };
        let tracked = stripe.tracked.0.as_ref();
        if let Some(changes) = tracked.and_then(|objects| objects.all.get(&key.objectid)) {
            return changes.iter().any(|change| change.key != *key);
        }
        let first = first_key(key.objectid);
        let last = Key::new(key.objectid, KeyType(u8::MAX), u64::MAX);
        stripe.edits.range(first..=last).any(|(other, _)| other != key)
    }

    /// Tracks an object from now on. `None`: it was not tracked before. Else what changed since the
    /// last call, in key order, and each key's first change alone.
    pub fn track(&self, id: ObjectId) -> Option<Vec<Change>> {
        let mut stripe = self.active.write_one(id);
        let objects = stripe.tracked.0.get_or_insert_default();
        if objects.changed.remove(&id) {
            self.active.note_logged();
        }
        let mut changes = objects.all.insert(id, Vec::new())?;
        drop(stripe);
        changes.sort_by_key(|change| change.key);
        changes.dedup_by_key(|change| change.key);
        Some(changes)
    }

    /// The object's next logging starts from nothing.
    pub fn untrack(&self, id: ObjectId) {
        if let Some(objects) = &mut self.active.write_one(id).tracked.0 {
            objects.all.remove(&id);
            if objects.changed.remove(&id) {
                self.active.note_logged();
            }
        }
    }
}

fn first_key(id: ObjectId) -> Key {
    Key::new(id, KeyType(0), 0)
}

/// The edits from an object on.
fn walk_from(edits: &Overlay, id: ObjectId) -> Peekable<impl Iterator<Item = EntryRef<'_>>> {
    edits.range(first_key(id)..).peekable()
}
