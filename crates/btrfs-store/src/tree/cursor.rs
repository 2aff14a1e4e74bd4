//! The merging cursor: the one place that knows that a tree has layers.
//!
//! It reads window by window: under the tree's lock it takes one leaf, the overlay entries that
//! fall into the leaf's range, and merges them. A window has a bound, so that the lock is held
//! shortly whatever lies in the overlays.

use std::collections::VecDeque;
use std::ops::Range;

use btrfs_format::{Key, TreeBlock};

use super::pending::ReadStripes;
use super::{Item, LeafAt, Tree};
use crate::error::Result;
use crate::overlay::Edit;
use crate::overlay::stripes::{self, EntryRef, FrozenEdits};

/// Entries looked at for one window, over all layers.
const WINDOW_ENTRIES_MAX: usize = 512;

/// The same for a cursor's first window: many callers want the first item alone. Each window after
/// it may be so many times as long: others want a page of items, and come back with a new cursor.
const FIRST_WINDOW_ENTRIES_MAX: usize = 16;
const WINDOW_GROWTH: usize = 4;

/// Some of a cursor's items, in order: what [`Cursor::next_run`] gives.
pub enum Run {
    /// These slots of a committed leaf, nothing pending among them. There may be none.
    Leaf {
        /// The leaf.
        block: TreeBlock,
        /// Indices of its items that lie in the cursor's range.
        slots: Range<usize>,
    },
    /// One by one, where something is pending.
    Items(VecDeque<(Key, Item)>),
}

/// A forward walk over the items of a key range.
#[derive(Debug)]
pub struct Cursor<'t> {
    tree: &'t Tree,
    /// First key that no window has covered yet; `None` at the end.
    from: Option<Key>,
    to: Key,
    window: VecDeque<(Key, Item)>,
    /// Entries that the next window may look at.
    entries_max: usize,
    /// False in the commit's own view.
    with_pending: bool,
}

impl<'t> Cursor<'t> {
    pub(super) fn new(tree: &'t Tree, from: Key, to: Key) -> Self {
        Self {
            tree,
            from: (from <= to).then_some(from),
            to,
            window: VecDeque::new(),
            entries_max: FIRST_WINDOW_ENTRIES_MAX,
            with_pending: true,
        }
    }

    pub(super) fn without_pending(self) -> Self {
        Self {
            with_pending: false,
            ..self
        }
    }

    /// The next item, or `None` at the end of the range.
    // Not an Iterator: reading can fail, and `?` at each step is the point.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<(Key, Item)>> {
        loop {
            if let Some(found) = self.window.pop_front() {
                return Ok(Some(found));
            }
            let Some(from) = self.from else { return Ok(None) };
            self.fill(from)?;
        }
    }

    /// Collects the rest of the range.
    pub fn collect(mut self) -> Result<Vec<(Key, Item)>> {
        let mut all = Vec::new();
        while let Some(found) = self.next()? {
            all.push(found);
        }
        Ok(all)
    }

    /// The next items leaf by leaf: for walks that look at very many, without copying anything.
    /// `None` at the end.
    pub fn next_run(&mut self) -> Result<Option<Run>> {
        if self.window.is_empty() {
            let Some(from) = self.from else { return Ok(None) };
            if let Some(run) = self.leaf_run(from)? {
                return Ok(Some(run));
            }
            self.fill(from)?;
        }
        Ok(Some(Run::Items(std::mem::take(&mut self.window))))
    }

    /// A leaf as it is, if nothing is pending in its range.
    fn leaf_run(&mut self, from: Key) -> Result<Option<Run>> {
        let state = self.tree.state.read();
        let at = self.tree.descend_in_sequence(state.root, &from, &self.to)?;
        let end = self.window_end(&at);
        if self.with_pending {
            let stripes = self.tree.active.read(&from, &end);
            let mut pending = PendingWalk::new(&stripes, state.frozen.as_deref(), from, end);
            if pending.key().is_some() {
                return Ok(None);
            }
        }
        let first = at.leaf.search(&from).unwrap_or_else(|slot| slot);
        // Most leaves of a large file lie in the range as a whole.
        let last = match at.leaf.len().checked_sub(1) {
            Some(last) if at.leaf.key(last) <= end => last + 1,
            _ => at.leaf.search(&end).map_or_else(|slot| slot, |slot| slot + 1),
        };
        self.from = if end >= self.to { None } else { end.next() };
        Ok(Some(Run::Leaf {
            block: at.leaf,
            slots: first..last.max(first),
        }))
    }

    /// The last key of a window: before the next leaf, or at the end of the range.
    fn window_end(&self, at: &LeafAt) -> Key {
        match at.upper.and_then(Key::prev) {
            Some(last) if last < self.to => last,
            _ => self.to,
        }
    }

    fn fill(&mut self, from: Key) -> Result<()> {
        let state = self.tree.state.read();
        // More than one window is wanted: then more will be, and they are read ahead.
        let at = if self.entries_max > FIRST_WINDOW_ENTRIES_MAX {
            self.tree.descend_in_sequence(state.root, &from, &self.to)?
        } else {
            self.tree.descend(state.root, &from)?
        };
        let entries_max = self.entries_max;
        self.entries_max = WINDOW_ENTRIES_MAX.min(entries_max * WINDOW_GROWTH);
        let end = self.window_end(&at);
        let first_slot = at.leaf.search(&from).unwrap_or_else(|slot| slot);
        let mut leaf = (first_slot..at.leaf.len())
            .map(|slot| (at.leaf.key(slot), slot))
            .peekable();
        let stripes = self.with_pending.then(|| self.tree.active.read(&from, &end));
        let mut pending = match &stripes {
            Some(stripes) => PendingWalk::new(stripes, state.frozen.as_deref(), from, end),
            None => PendingWalk::none(),
        };
        let mut covered = end;
        let mut looked = 0;
        loop {
            let next_leaf = leaf.peek().map(|(key, _)| *key).filter(|key| *key <= end);
            let next_pending = pending.key();
            let Some(key) = [next_leaf, next_pending].into_iter().flatten().min() else {
                break;
            };
            if looked >= entries_max
                && let Some(last) = key.prev()
            {
                covered = last;
                break;
            }
            looked += 1;
            let slot = (next_leaf == Some(key)).then(|| leaf.next()).flatten();
            if next_pending == Some(key) {
                if let Some(bytes) = pending.take() {
                    self.window.push_back((key, Item::Pending(bytes.clone())));
                }
            } else if let Some((_, slot)) = slot {
                self.window.push_back((
                    key,
                    Item::Leaf {
                        block: at.leaf.clone(),
                        slot,
                    },
                ));
            }
        }
        self.from = if covered >= self.to { None } else { covered.next() };
        Ok(())
    }
}

type Entries<'s> = std::iter::Peekable<Box<dyn Iterator<Item = EntryRef<'s>> + 's>>;

/// Both overlays as one sequence; the active one hides the frozen one.
pub(super) struct PendingWalk<'s> {
    active: Entries<'s>,
    frozen: Entries<'s>,
}

impl<'s> PendingWalk<'s> {
    pub(super) fn new(active: &'s ReadStripes<'_>, frozen: Option<&'s FrozenEdits>, from: Key, to: Key) -> Self {
        let none = Self::none();
        Self {
            active: entries(stripes::range(active.edits(), from, to)),
            frozen: frozen.map_or(none.frozen, |frozen| entries(frozen.range(from, to))),
        }
    }

    /// Nothing is pending.
    pub(super) fn none() -> Self {
        Self {
            active: entries(std::iter::empty()),
            frozen: entries(std::iter::empty()),
        }
    }

    pub(super) fn key(&mut self) -> Option<Key> {
        let active = self.active.peek().map(|(key, _)| **key);
        let frozen = self.frozen.peek().map(|(key, _)| **key);
        [active, frozen].into_iter().flatten().min()
    }

    /// The edit at [`PendingWalk::key`]; moves on.
    pub(super) fn take(&mut self) -> &'s Edit {
        let key = self.key();
        let hidden = if self.frozen.peek().map(|(k, _)| **k) == key {
            self.frozen.next()
        } else {
            None
        };
        if self.active.peek().map(|(k, _)| **k) == key
            && let Some((_, edit)) = self.active.next()
        {
            return edit;
        }
        hidden.map_or(&None, |(_, edit)| edit)
    }
}

fn entries<'s>(of: impl Iterator<Item = EntryRef<'s>> + 's) -> Entries<'s> {
    (Box::new(of) as Box<dyn Iterator<Item = _>>).peekable()
}
