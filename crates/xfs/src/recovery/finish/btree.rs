//! Changes of an allocation group's B-trees, a record at a time, in place.

use std::collections::{HashSet, VecDeque};

use xfs_format::btree::{BlockFields, BtreeBlock, Siblings, TreeKind, leaf_records_max, node_children_max};
use xfs_format::{AgBlock, AgNumber, Expect, U32};

use super::super::disk::Disk;
use crate::error::Result;

const NONE: u32 = AgBlock::NULL;

/// A tree whose pointers are blocks of one group.
pub(super) trait ShortKind: TreeKind<Ptr = U32> {}
impl<K: TreeKind<Ptr = U32>> ShortKind for K {}

/// Where a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub block: u32,
    pub levels: u32,
}

/// Blocks that a tree may take while it grows, and what it gave back.
#[derive(Default)]
pub(super) struct Blocks {
    pub spare: VecDeque<u32>,
    pub taken: u32,
    pub freed: Vec<u32>,
}

struct Node<K: ShortKind> {
    level: u8,
    left: u32,
    right: u32,
    records: Vec<K::Record>,
    children: Vec<(K::NodeKey, u32)>,
}

impl<K: ShortKind> Node<K> {
    fn len(&self) -> usize {
        self.records.len() + self.children.len()
    }
    fn key(&self) -> Option<K::NodeKey> {
        if self.level == 0 {
            return K::node_key(&self.records);
        }
        let keys: Vec<K::NodeKey> = self.children.iter().map(|(key, _)| *key).collect();
        K::join_keys(&keys)
    }
    /// Moves what lies behind a place into another node of the level.
    fn split_off(&mut self, at: usize) -> Self {
        Self {
            level: self.level,
            left: NONE,
            right: NONE,
            records: self.records.split_off(at.min(self.records.len())),
            children: self.children.split_off(at.min(self.children.len())),
        }
    }
    fn append(&mut self, mut other: Self) {
        self.records.append(&mut other.records);
        self.children.append(&mut other.children);
    }
}

struct Step<K: ShortKind> {
    block: u32,
    node: Node<K>,
    /// Of the child that the path takes.
    slot: usize,
    /// Where an entry was put in.
    added: Option<usize>,
}

/// A tree that is being changed.
pub(super) struct Edit<'a> {
    pub disk: &'a mut Disk,
    pub group: AgNumber,
    pub root: Root,
    pub blocks: &'a mut Blocks,
}

impl Edit<'_> {
    fn load<K: ShortKind>(&self, block: u32, level: u32) -> Result<Node<K>> {
        let geometry = &self.disk.geometry;
        let daddr = geometry.ag_daddr(self.group, AgBlock(block));
        let bytes = self.disk.read(daddr, geometry.block_bytes)?;
        let level = u8::try_from(level).unwrap_or(u8::MAX);
        let read = BtreeBlock::<K>::verify(bytes, &Expect::in_ag(geometry, daddr, self.group), Some(level))?;
        let pointers = read.pointers().iter().map(|pointer| pointer.get());
        Ok(Node {
            level,
            left: read.siblings().left.get(),
            right: read.siblings().right.get(),
            records: read.records().to_vec(),
            children: read.keys().iter().copied().zip(pointers).collect(),
        })
    }

    fn store<K: ShortKind>(&mut self, block: u32, node: &Node<K>) -> Result<()> {
        let daddr = self.disk.geometry.ag_daddr(self.group, AgBlock(block));
        let keys: Vec<K::NodeKey> = node.children.iter().map(|(key, _)| *key).collect();
        let pointers: Vec<U32> = node.children.iter().map(|(_, child)| U32::new(*child)).collect();
        let fields = if node.level == 0 {
            BlockFields::Leaf(&node.records)
        } else {
            BlockFields::Node {
                level: node.level,
                keys: &keys,
                pointers: &pointers,
            }
        };
        let siblings = Siblings {
            left: U32::new(node.left),
            right: U32::new(node.right),
        };
        let expect = Expect::in_ag(&self.disk.geometry, daddr, self.group);
        let bytes = BtreeBlock::<K>::build(&fields, siblings, &expect).ok_or_else(|| {
            self.disk
                .broken(K::TREE.name(), node.len(), "a node that fits its block")
        })?;
        let sealed = BtreeBlock::<K>::seal(bytes, &expect, self.disk.lsn)?;
        self.disk.write(daddr, sealed.bytes())
    }

    fn max<K: ShortKind>(&self, level: u8) -> usize {
        if level == 0 {
            leaf_records_max::<K>(&self.disk.geometry)
        } else {
            node_children_max::<K>(&self.disk.geometry)
        }
    }

    fn take_block(&mut self, tree: &'static str) -> Result<u32> {
        let block = self.blocks.spare.pop_front();
        self.blocks.taken += 1;
        block.ok_or_else(|| self.disk.broken(tree, "no spare block", "one for each level"))
    }

    /// From the root to the leaf where a record of this order is or goes.
    fn descend<K: ShortKind>(&self, order: K::Order) -> Result<Vec<Step<K>>> {
        let mut steps = Vec::new();
        let (mut block, mut level) = (self.root.block, self.root.levels.saturating_sub(1));
        loop {
            let node = self.load::<K>(block, level)?;
            let below = node
                .children
                .partition_point(|(key, _)| K::order(&K::low(key)) <= order);
            let slot = below.saturating_sub(1);
            let child = node.children.get(slot).map(|(_, child)| *child);
            steps.push(Step {
                block,
                node,
                slot,
                added: None,
            });
            match child {
                Some(child) if level > 0 => (block, level) = (child, level - 1),
                _ => return Ok(steps),
            }
        }
    }

    /// The last record at or before an order.
    pub(super) fn at_or_before<K: ShortKind>(&self, order: K::Order) -> Result<Option<K::Record>> {
        let steps = self.descend::<K>(order)?;
        let Some(leaf) = steps.last() else { return Ok(None) };
        let count = leaf
            .node
            .records
            .partition_point(|record| K::order(&K::key(record)) <= order);
        Ok(count.checked_sub(1).and_then(|at| leaf.node.records.get(at).copied()))
    }

    /// True where so many records fit without a split. Of a tree of several leaves that is not
    /// said: what is removed first may join leaves, and what is put in may go to any of them.
    pub(super) fn has_room<K: ShortKind>(&self, more: usize) -> Result<bool> {
        if self.root.levels > 1 {
            return Ok(false);
        }
        let leaf = self.load::<K>(self.root.block, 0)?;
        Ok(leaf.len() + more <= self.max::<K>(0))
    }

    /// Records from an order on, while the caller wants more.
    pub(super) fn from<K: ShortKind>(&self, order: K::Order, more: &mut dyn FnMut(&K::Record) -> bool) -> Result<()> {
        let steps = self.descend::<K>(order)?;
        let Some(leaf) = steps.into_iter().next_back() else {
            return Ok(());
        };
        let mut node = leaf.node;
        let mut last = None;
        loop {
            for record in &node.records {
                let found = K::order(&K::key(record));
                if last.is_some_and(|last| last >= found) {
                    return Err(self.disk.broken(K::TREE.name(), "leaves out of order", "rising keys"));
                }
                last = Some(found);
                if found >= order && !more(record) {
                    return Ok(());
                }
            }
            if node.right == NONE || node.len() == 0 {
                return Ok(());
            }
            node = self.load::<K>(node.right, 0)?;
        }
    }

    /// The greatest record.
    pub(super) fn last<K: ShortKind>(&self) -> Result<Option<K::Record>> {
        let (mut block, mut level) = (self.root.block, self.root.levels.saturating_sub(1));
        loop {
            let node = self.load::<K>(block, level)?;
            match node.children.last() {
                Some((_, child)) if level > 0 => (block, level) = (*child, level - 1),
                _ => return Ok(node.records.last().copied()),
            }
        }
    }

    /// Visits records below the children that `enters` says, in their order. Errors: two pointers
    /// lead to one block.
    pub(super) fn visit<K: ShortKind>(
        &self,
        enters: &dyn Fn(&K::NodeKey) -> bool,
        take: &mut dyn FnMut(&K::Record),
    ) -> Result<()> {
        let mut stack = vec![(self.root.block, self.root.levels.saturating_sub(1))];
        let mut seen = HashSet::new();
        while let Some((block, level)) = stack.pop() {
            if !seen.insert(block) {
                let twice = format_args!("block {block} twice in group {}", self.group).to_string();
                return Err(self.disk.broken(K::TREE.name(), twice, "a block once"));
            }
            let node = self.load::<K>(block, level)?;
            node.records.iter().for_each(&mut *take);
            let children = node.children.iter().rev().filter(|(key, _)| enters(key));
            stack.extend(children.map(|(_, child)| (*child, level.saturating_sub(1))));
        }
        Ok(())
    }

    /// Puts a record in. Errors: there is one of this order.
    pub(super) fn insert<K: ShortKind>(&mut self, record: K::Record) -> Result<()> {
        let order = K::order(&K::key(&record));
        let mut steps = self.descend::<K>(order)?;
        if let Some(leaf) = steps.last_mut() {
            let at = leaf
                .node
                .records
                .partition_point(|other| K::order(&K::key(other)) < order);
            if leaf
                .node
                .records
                .get(at)
                .is_some_and(|other| K::order(&K::key(other)) == order)
            {
                return Err(self
                    .disk
                    .broken(K::TREE.name(), format_args!("{record:?} twice"), "once"));
            }
            leaf.node.records.insert(at, record);
            leaf.added = Some(at);
        }
        self.put_back(steps)
    }

    /// Takes a record out. Errors: there is none of this order.
    pub(super) fn remove<K: ShortKind>(&mut self, order: K::Order) -> Result<()> {
        let mut steps = self.descend::<K>(order)?;
        let found = steps.last_mut().and_then(|leaf| {
            let at = leaf
                .node
                .records
                .iter()
                .position(|other| K::order(&K::key(other)) == order)?;
            Some(leaf.node.records.remove(at))
        });
        if found.is_none() {
            return Err(self
                .disk
                .broken(K::TREE.name(), format_args!("no record {order:?}"), "one"));
        }
        self.put_back(steps)
    }

    /// Writes a changed leaf and what leads to it: splits what is too full, joins what is too
    /// empty.
    fn put_back<K: ShortKind>(&mut self, mut steps: Vec<Step<K>>) -> Result<()> {
        while let Some(mut step) = steps.pop() {
            let most = self.max::<K>(step.node.level);
            if step.node.len() > most {
                if !self.shift(&mut step, steps.last_mut())? {
                    self.split(&mut step, steps.last_mut())?;
                }
            } else if let Some(parent) = steps.last_mut() {
                if step.node.len() < most / 2 && parent.node.len() > 1 {
                    self.join(step, parent)?;
                } else {
                    self.store(step.block, &step.node)?;
                    set_key(parent, parent.slot, &step.node);
                }
            } else if let [(_, only)] = step.node.children[..] {
                self.blocks.freed.push(step.block);
                self.root = Root {
                    block: only,
                    levels: self.root.levels - 1,
                };
            } else {
                self.store(step.block, &step.node)?;
            }
        }
        Ok(())
    }

    fn split<K: ShortKind>(&mut self, step: &mut Step<K>, parent: Option<&mut Step<K>>) -> Result<()> {
        let name = K::TREE.name();
        let kept = split_at(self.max::<K>(step.node.level), step.added.unwrap_or_default());
        let mut right = step.node.split_off(kept);
        let block = self.take_block(name)?;
        right.left = step.block;
        right.right = step.node.right;
        if right.right != NONE {
            let mut behind = self.load::<K>(right.right, right.level.into())?;
            behind.left = block;
            self.store(right.right, &behind)?;
        }
        step.node.right = block;
        self.store(step.block, &step.node)?;
        self.store(block, &right)?;
        let keys = [step.node.key(), right.key()];
        let [Some(low), Some(high)] = keys else { return Ok(()) };
        if let Some(parent) = parent {
            set_key(parent, parent.slot, &step.node);
            parent.node.children.insert(parent.slot + 1, (high, block));
            parent.added = Some(parent.slot + 1);
            return Ok(());
        }
        let top = self.take_block(name)?;
        let node = Node::<K> {
            level: step.node.level + 1,
            left: NONE,
            right: NONE,
            records: Vec::new(),
            children: vec![(low, step.block), (high, block)],
        };
        self.store(top, &node)?;
        self.root = Root {
            block: top,
            levels: self.root.levels + 1,
        };
        Ok(())
    }

    /// Moves an entry of a node that is too full to a neighbour with room. False where there is
    /// none.
    fn shift<K: ShortKind>(&mut self, step: &mut Step<K>, parent: Option<&mut Step<K>>) -> Result<bool> {
        let Some(parent) = parent else { return Ok(false) };
        let (level, most) = (step.node.level, self.max::<K>(step.node.level));
        let added = step.added.unwrap_or_default();
        let beside = |slot: Option<usize>| Some((slot?, parent.node.children.get(slot?)?.1));
        let right = beside(parent.slot.checked_add(1)).filter(|_| added + 1 < most);
        let left = beside(parent.slot.checked_sub(1)).filter(|_| added > 0);
        for (is_right, place) in [(true, right), (false, left)] {
            let Some((slot, block)) = place else { continue };
            let mut other = self.load::<K>(block, level.into())?;
            if other.len() >= most {
                continue;
            }
            if is_right {
                let mut moved = step.node.split_off(most);
                moved.append(other.split_off(0));
                other.append(moved);
            } else {
                let rest = step.node.split_off(1);
                other.append(step.node.split_off(0));
                step.node.append(rest);
            }
            self.store(block, &other)?;
            self.store(step.block, &step.node)?;
            set_key(parent, slot, &other);
            set_key(parent, parent.slot, &step.node);
            return Ok(true);
        }
        Ok(false)
    }

    /// A node that is too empty borrows an entry of a neighbour, or is joined with one.
    fn join<K: ShortKind>(&mut self, mut step: Step<K>, parent: &mut Step<K>) -> Result<()> {
        let (level, most) = (step.node.level, self.max::<K>(step.node.level));
        let slot = parent.slot;
        let beside = |slot: Option<usize>| parent.node.children.get(slot?).map(|(_, block)| *block);
        let (left, right) = (beside(slot.checked_sub(1)), beside(slot.checked_add(1)));
        if let Some(block) = right {
            let mut other = self.load::<K>(block, level.into())?;
            if other.len() > most / 2 {
                let rest = other.split_off(1);
                step.node.append(other.split_off(0));
                other.append(rest);
                self.store(block, &other)?;
                self.store(step.block, &step.node)?;
                set_key(parent, slot + 1, &other);
                set_key(parent, slot, &step.node);
                return Ok(());
            }
        }
        if let Some(block) = left {
            let mut other = self.load::<K>(block, level.into())?;
            if other.len() > most / 2 {
                let mut last = other.split_off(other.len() - 1);
                last.append(step.node.split_off(0));
                step.node.append(last);
                self.store(block, &other)?;
                self.store(step.block, &step.node)?;
                set_key(parent, slot - 1, &other);
                set_key(parent, slot, &step.node);
                return Ok(());
            }
            if other.len() + step.node.len() <= most {
                return self.merge((block, other, slot - 1), (step.block, step.node), parent);
            }
        }
        if let Some(block) = right {
            let other = self.load::<K>(block, level.into())?;
            if other.len() + step.node.len() <= most {
                return self.merge((step.block, step.node, slot), (block, other), parent);
            }
        }
        self.store(step.block, &step.node)?;
        set_key(parent, slot, &step.node);
        Ok(())
    }

    fn merge<K: ShortKind>(
        &mut self,
        (left_block, mut left, left_slot): (u32, Node<K>, usize),
        (right_block, right): (u32, Node<K>),
        parent: &mut Step<K>,
    ) -> Result<()> {
        let behind = right.right;
        left.append(right);
        left.right = behind;
        if behind != NONE {
            let mut node = self.load::<K>(behind, left.level.into())?;
            node.left = left_block;
            self.store(behind, &node)?;
        }
        self.store(left_block, &left)?;
        set_key(parent, left_slot, &left);
        parent.node.children.remove(left_slot + 1);
        self.blocks.freed.push(right_block);
        Ok(())
    }
}

/// How many entries the left one of two nodes keeps, one of which was added to a full node.
pub(super) fn split_at(most: usize, added: usize) -> usize {
    let mut right = most / 2;
    if !most.is_multiple_of(2) && added <= right {
        right += 1;
    }
    let left = most - right;
    if added <= left { left + 1 } else { left }
}

fn set_key<K: ShortKind>(parent: &mut Step<K>, slot: usize, node: &Node<K>) {
    if let (Some(child), Some(key)) = (parent.node.children.get_mut(slot), node.key()) {
        child.0 = key;
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::disk;
    use super::*;
    use xfs_format::U64;
    use xfs_format::btree::{Rmap, RmapRecord};

    #[test]
    fn visit_meets_each_block_once() {
        let mut disk = disk();
        let mut blocks = Blocks::default();
        let mut tree = Edit {
            disk: &mut disk,
            group: AgNumber(1),
            root: Root { block: 702, levels: 2 },
            blocks: &mut blocks,
        };
        let leaf = |start: u32| Node::<Rmap> {
            level: 0,
            left: NONE,
            right: NONE,
            records: vec![RmapRecord {
                startblock: U32::new(start),
                blockcount: U32::new(1),
                owner: U64::new(131),
                offset: U64::new(0),
            }],
            children: Vec::new(),
        };
        let (first, second) = (leaf(1000), leaf(2000));
        tree.store(700, &first).unwrap();
        tree.store(701, &second).unwrap();
        let (low, high) = (first.key().unwrap(), second.key().unwrap());
        for (child, is_tree) in [(701, true), (700, false)] {
            let root = Node::<Rmap> {
                level: 1,
                left: NONE,
                right: NONE,
                records: Vec::new(),
                children: vec![(low, 700), (high, child)],
            };
            tree.store(702, &root).unwrap();
            let mut found = Vec::new();
            let visited = tree.visit::<Rmap>(&|_| true, &mut |record| found.push(record.startblock.get()));
            match visited {
                Ok(()) => assert!(is_tree && found == [1000, 2000], "{found:?}"),
                Err(error) => assert!(!is_tree && error.to_string().contains("block 700 twice"), "{error}"),
            }
        }
    }
}
