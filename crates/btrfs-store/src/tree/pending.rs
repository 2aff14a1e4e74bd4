//! What operations of the running transaction have pending in front of a tree: its active overlay,
//! in stripes ([`crate::overlay::stripes`]) with a lock each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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

/// What came of some edits.
#[derive(Default)]
struct Applied {
    growth: Growth,
    /// Tracked objects that changed for the first time since they were logged.
    changed: usize,
}

impl Applied {
    fn note(&mut self, tracked: &mut Tracked, key: &Key, before: Option<Edit>) {
        match &before {
            Some(before) => self.growth.bytes -= bytes_of(before),
            None => self.growth.items += 1,
        }
        self.changed += usize::from(tracked.note(key, before));
    }
}

fn bytes_of(edit: &Edit) -> i64 {
    edit.as_ref().map_or(0, |bytes| bytes.len()) as i64
}

impl Stripe {
    fn insert(&mut self, key: Key, edit: Edit, applied: &mut Applied) {
        applied.growth.bytes += bytes_of(&edit);
        let before = self.edits.insert(key, edit);
        applied.note(&mut self.tracked, &key, before);
    }

    /// As [`Stripe::insert`], of edits in the order of their keys, each key once.
    fn insert_run(&mut self, run: Vec<(Key, Edit)>, applied: &mut Applied) {
        applied.growth.bytes += run.iter().map(|(_, edit)| bytes_of(edit)).sum::<i64>();
        let Self { edits, tracked } = self;
        edits.insert_run(run, |key, before| applied.note(tracked, key, before));
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
    /// Tracked objects that changed since they were logged, in all stripes: changed while the
    /// object's stripe is held.
    changed: AtomicUsize,
    /// A stripe was held exclusively since the last freeze, so there may be edits. A freeze asks
    /// this of each open tree: most have no edits, and taking the locks of all stripes would cost
    /// more than the rest of a small commit.
    is_touched: AtomicBool,
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
            changed: AtomicUsize::new(0),
            is_touched: AtomicBool::new(false),
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
        let held = stripes[number].0.write_ordered(self.order(number));
        self.is_touched.store(true, Ordering::Release);
        held
    }

    /// There are no edits, and nothing is tracked. This stays so only while the caller keeps
    /// writers out (by the transaction's gate).
    pub fn is_untouched(&self) -> bool {
        !self.is_touched.load(Ordering::Acquire)
    }

    /// Takes the edits of all stripes, in their order. Nothing is tracked afterwards.
    pub fn take(&self) -> Box<[Overlay]> {
        let stripes = self.stripes.get().into_iter().flatten().enumerate();
        let mut held: Vec<_> = stripes
            .map(|(number, stripe)| stripe.0.write_ordered(self.order(number)))
            .collect();
        self.changed.store(0, Ordering::Release);
        self.is_touched.store(false, Ordering::Release);
        let taken = held.iter_mut().map(|stripe| {
            stripe.tracked.clear();
            std::mem::take(&mut stripe.edits)
        });
        taken.collect()
    }

    /// A tracked object that had changed was logged, or is tracked no more. The caller holds its
    /// stripe.
    pub fn note_logged(&self) {
        self.changed.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether a tracked object has changed since it was logged.
    pub fn has_tracked_changes(&self) -> bool {
        self.changed.load(Ordering::Acquire) > 0
    }

    /// The stripes of these numbers (bits), in their order: readers see all that is changed in them
    /// while they are held, or nothing.
    fn write(&self, wanted: u32) -> WriteStripes<'_> {
        let stripes = self.made();
        let numbers = (0..stripes.len()).filter(|number| wanted & 1 << number != 0);
        let held = numbers.map(|number| (number, stripes[number].0.write_ordered(self.order(number))));
        let held = WriteStripes(held.collect());
        self.is_touched.store(true, Ordering::Release);
        held
    }

    /// Adds edits in order.
    pub fn insert(&self, edits: Vec<(Key, Edit)>) -> Growth {
        let count = self.count();
        let number_of = |key: &Key| stripe_of(key.objectid, count);
        let wanted = edits.iter().fold(0, |wanted, (key, _)| wanted | 1 << number_of(key));
        let mut applied = Applied::default();
        let mut held = self.write(wanted);
        for (key, edit) in edits {
            held.number(number_of(&key)).insert(key, edit, &mut applied);
        }
        self.noted(&applied)
    }

    /// As [`ActiveEdits::insert`], of edits in the order of their keys, each key once.
    pub fn insert_run(&self, run: Vec<(Key, Edit)>) -> Growth {
        let count = self.count();
        let mut parts: [Vec<(Key, Edit)>; STRIPES] = Default::default();
        let number_of = |key: &Key| stripe_of(key.objectid, count);
        let only = match &run[..] {
            [(first, _), .., (last, _)] if stripes_of(first, last, count).len() == 1 => Some(number_of(first)),
            _ => None,
        };
        match only {
            // As it is, without other memory.
            Some(number) => parts[number] = run,
            None => run
                .into_iter()
                .for_each(|(key, edit)| parts[number_of(&key)].push((key, edit))),
        }
        let wanted = (0..STRIPES).filter(|number| !parts[*number].is_empty());
        let mut held = self.write(wanted.fold(0, |wanted, number| wanted | 1 << number));
        let mut applied = Applied::default();
        for (number, stripe) in &mut held.0 {
            stripe.insert_run(std::mem::take(&mut parts[*number]), &mut applied);
        }
        self.noted(&applied)
    }

    /// Counts what changed while its stripes are held.
    fn noted(&self, applied: &Applied) -> Growth {
        if applied.changed > 0 {
            self.changed.fetch_add(applied.changed, Ordering::AcqRel);
        }
        applied.growth
    }
}

#[cfg(test)]
mod tests {
    use btrfs_format::KeyType;

    use super::*;
    use crate::overlay::ItemBytes;
    use crate::testing::Dice;

    #[test]
    fn tree_is_touched_by_edits_and_by_tracking_until_it_is_frozen() {
        let id = ObjectId(256);
        let edit = (Key::new(id, KeyType(249), 0), None);
        let edits = ActiveEdits::new(TreeId::FS);
        assert!(edits.is_untouched());
        for touch in [
            &(|| _ = edits.insert(vec![edit.clone()])) as &dyn Fn(),
            &|| _ = edits.insert_run(vec![edit.clone()]),
            &|| drop(edits.write_one(id)),
        ] {
            touch();
            assert!(!edits.is_untouched());
            drop(edits.read_all());
            assert!(!edits.is_untouched());
            edits.take();
            assert!(edits.is_untouched());
        }
    }

    /// Runs of one object, of some, and of very many.
    #[test]
    fn run_over_several_stripes_is_as_its_edits_one_by_one() {
        for (seed, tree) in (0..60).zip([TreeId::FS, TreeId::CSUM].into_iter().cycle()) {
            let mut dice = Dice::new(seed);
            let objects = [1, 5, 1000][dice.below(3) as usize];
            let [by_run, by_one] = [ActiveEdits::new(tree), ActiveEdits::new(tree)];
            for _ in 0..20 {
                let mut run: Vec<_> = (0..dice.below(200))
                    .map(|_| {
                        let key = Key::new(ObjectId(256 + dice.below(objects)), KeyType(249), dice.below(8));
                        let edit = (dice.below(3) > 0).then(|| ItemBytes::from(vec![1; dice.below(9) as usize]));
                        (key, edit)
                    })
                    .collect();
                run.sort_by_key(|(key, _)| *key);
                run.dedup_by_key(|(key, _)| *key);
                assert_eq!(by_one.insert(run.clone()), by_run.insert_run(run));
            }
            let taken = [by_run.take(), by_one.take()];
            let all = taken.each_ref().map(|stripes| stripes.iter().map(Overlay::iter));
            let [by_run, by_one] = all.map(|stripes| stripes.map(Iterator::collect::<Vec<_>>).collect::<Vec<_>>());
            assert_eq!(by_run, by_one);
        }
    }
}
