//! What operations of the running transaction have pending in front of a tree: its active overlay,
//! in stripes ([`crate::overlay::stripes`]) with a lock each.

use std::sync::OnceLock;

use btrfs_format::{Key, ObjectId, TreeId};
use cowshed_runtime::lock::{self, RwLock, RwLockReadGuard, RwLockWriteGuard};
use smallvec::SmallVec;

use super::changes::Tracked;
use crate::overlay::stripes::{STRIPES, stripe_of, stripes_of};
use crate::overlay::{Edit, Growth, Overlay};
use crate::rank::LockRank;

/// Edits of the objects of a stripe.
#[derive(Debug, Default)]
pub(super) struct Stripe {
    pub edits: Overlay,
    /// What changed of objects that the log has.
    pub tracked: Tracked,
}

impl Stripe {
    fn insert(&mut self, key: Key, edit: Edit, growth: &mut Growth) {
        let bytes_of = |edit: &Edit| edit.as_ref().map_or(0, |bytes| bytes.len()) as i64;
        growth.bytes += bytes_of(&edit);
        let before = self.edits.insert(key, edit);
        match &before {
            Some(before) => growth.bytes -= bytes_of(before),
            None => growth.items += 1,
        }
        self.tracked.note(&key, before);
    }

    /// As [`Stripe::insert`], of edits in the order of their keys, each key once.
    fn insert_run(&mut self, run: Vec<(Key, Edit)>, growth: &mut Growth) {
        let bytes_of = |edit: &Edit| edit.as_ref().map_or(0, |bytes| bytes.len()) as i64;
        growth.bytes += run.iter().map(|(_, edit)| bytes_of(edit)).sum::<i64>();
        let Self { edits, tracked } = self;
        edits.insert_run(run, |key, before| {
            match &before {
                Some(before) => growth.bytes -= bytes_of(before),
                None => growth.items += 1,
            }
            tracked.note(key, before);
        });
    }
}

/// Threads that hold the locks of two stripes do not take each other's cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Locked(RwLock<Stripe>);

/// All stripes. Made by the first edit: most trees never have one.
#[derive(Debug)]
pub(super) struct ActiveEdits {
    tree: TreeId,
    stripes: OnceLock<Box<[Locked]>>,
}

/// Shared holds of the stripes that keys of a range may be in: none where the tree has had no edit.
pub(super) struct ReadStripes<'t>(SmallVec<[RwLockReadGuard<'t, Stripe>; STRIPES]>);

impl ReadStripes<'_> {
    pub fn stripes(&self) -> impl Iterator<Item = &Stripe> {
        self.0.iter().map(|stripe| &**stripe)
    }
    pub fn edits(&self) -> impl Iterator<Item = &Overlay> {
        self.stripes().map(|stripe| &stripe.edits)
    }
    /// How many are held.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// The stripe of an object, where all of the tree are held.
    pub fn of(&self, id: ObjectId) -> Option<&Stripe> {
        let count = self.0.len();
        (count > 0).then(|| &*self.0[stripe_of(id, count)])
    }
}

/// Exclusive holds of some stripes, by their numbers.
struct WriteStripes<'t>(SmallVec<[(usize, RwLockWriteGuard<'t, Stripe>); 2]>);

impl WriteStripes<'_> {
    fn number(&mut self, number: usize) -> &mut Stripe {
        let at = self.0.iter().position(|(held, _)| *held == number);
        &mut self.0[at.expect("the stripes of all objects were locked")].1
    }
}

impl ActiveEdits {
    /// None yet.
    pub fn new(tree: TreeId) -> Self {
        Self {
            tree,
            stripes: OnceLock::new(),
        }
    }

    /// Subvolumes are changed by many threads at a time; other trees nearly by the commit alone,
    /// which walks over them.
    fn count(&self) -> usize {
        if self.tree.is_fs_tree() { STRIPES } else { 1 }
    }

    fn made(&self) -> &[Locked] {
        self.stripes.get_or_init(|| {
            let stripe = |_| Locked(RwLock::new(LockRank::TreeEdits, Stripe::default()));
            (0..self.count()).map(stripe).collect()
        })
    }

    /// Orders the stripes of all trees.
    fn order(&self, number: usize) -> lock::Key {
        (self.tree.get(), number as u64)
    }

    /// The stripe of an object. `None` where the tree has had no edit.
    pub fn read_one(&self, id: ObjectId) -> Option<RwLockReadGuard<'_, Stripe>> {
        let stripes = self.stripes.get()?;
        let number = stripe_of(id, stripes.len());
        Some(stripes[number].0.read_ordered(self.order(number)))
    }

    /// The stripes that keys from `from` to `to` may be in.
    pub fn read(&self, from: &Key, to: &Key) -> ReadStripes<'_> {
        let Some(stripes) = self.stripes.get() else {
            return ReadStripes(SmallVec::new());
        };
        let numbers = stripes_of(from, to, stripes.len());
        let held = numbers.map(|number| stripes[number].0.read_ordered(self.order(number)));
        ReadStripes(held.collect())
    }

    /// All stripes.
    pub fn read_all(&self) -> ReadStripes<'_> {
        self.read(&Key::MIN, &Key::MAX)
    }

    /// The stripe of an object.
    pub fn write_one(&self, id: ObjectId) -> RwLockWriteGuard<'_, Stripe> {
        let stripes = self.made();
        let number = stripe_of(id, stripes.len());
        stripes[number].0.write_ordered(self.order(number))
    }

    /// Calls `change` for each stripe, all of them held until the last call has returned.
    pub fn write_all(&self, mut change: impl FnMut(&mut Stripe)) {
        let stripes = self.stripes.get().into_iter().flatten().enumerate();
        let mut held: Vec<_> = stripes
            .map(|(number, stripe)| stripe.0.write_ordered(self.order(number)))
            .collect();
        held.iter_mut().for_each(|stripe| change(stripe));
    }

    /// The stripes of these edits, in their order: readers see all of the edits or none.
    fn write(&self, edits: &[(Key, Edit)]) -> WriteStripes<'_> {
        let stripes = self.made();
        let wanted = edits.iter().fold(0_u32, |wanted, (key, _)| {
            wanted | 1 << stripe_of(key.objectid, stripes.len())
        });
        let numbers = (0..stripes.len()).filter(|number| wanted & 1 << number != 0);
        let held = numbers.map(|number| (number, stripes[number].0.write_ordered(self.order(number))));
        WriteStripes(held.collect())
    }

    /// Adds edits in order.
    pub fn insert(&self, edits: Vec<(Key, Edit)>) -> Growth {
        let mut growth = Growth::default();
        let mut held = self.write(&edits);
        for (key, edit) in edits {
            let number = stripe_of(key.objectid, self.count());
            held.number(number).insert(key, edit, &mut growth);
        }
        growth
    }

    /// As [`ActiveEdits::insert`], of edits in the order of their keys, each key once.
    pub fn insert_run(&self, run: Vec<(Key, Edit)>) -> Growth {
        let mut growth = Growth::default();
        let mut held = self.write(&run);
        if let [(_, only)] = &mut held.0[..] {
            only.insert_run(run, &mut growth);
            return growth;
        }
        let count = self.count();
        let mut parts: [Vec<(Key, Edit)>; STRIPES] = Default::default();
        for (key, edit) in run {
            parts[stripe_of(key.objectid, count)].push((key, edit));
        }
        for (number, part) in parts.into_iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            held.number(number).insert_run(part, &mut growth);
        }
        growth
    }
}
