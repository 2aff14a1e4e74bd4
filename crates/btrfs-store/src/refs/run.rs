//! Running queued references: each head becomes edits of the extent tree.

use std::collections::BTreeMap;

use btrfs_format::features::extent_flags;
use btrfs_format::items::TreeBlockInfo;
use btrfs_format::view::keyed_back_ref;
use btrfs_format::{DiskKey, Generation, Key, KeyType, LogicalAddr, ObjectId, TreeId};

use super::record::{InlineChange, keyed_ref_bytes};
use super::{ExtentRecord, Head, RefName};
use crate::error::{Error, Result};
use crate::overlay::Edit;
use crate::tree::Tree;

/// The volume's properties that the extent tree depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtentFormat {
    pub(crate) nodesize_bytes: u64,
    pub(crate) is_skinny: bool,
}

/// How far behind its key a data reference is looked for. Where its key was taken it was put at the
/// next that was free, and those between may be gone again: so many other references of one extent
/// would have had keys without a gap between them.
const DISPLACED_MAX: u64 = 1 << 20;

/// What became of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Its item is in the extent tree now.
    Inserted,
    /// Its item changed; the space did not.
    Kept,
    /// Its last reference is gone, and its item with it.
    Removed,
    /// It was allocated and freed without ever reaching the extent tree.
    NeverWas,
}

/// Refs and flags of an extent as they will be when everything queued has run; `None` where it has
/// no item.
pub(crate) fn load_record(tree: &Tree, addr: LogicalAddr) -> Result<Option<(Key, ExtentRecord)>> {
    let first = Key::new(ObjectId(addr.get()), KeyType::EXTENT_ITEM, 0);
    let last = Key::new(first.objectid, KeyType::METADATA_ITEM, u64::MAX);
    let Some((key, item)) = tree.floor_from(&first, &last)? else {
        return Ok(None);
    };
    match ExtentRecord::decode(&key, &item) {
        Some(record) => Ok(Some((key, record))),
        None => Err(corrupt(format!("extent item {key} does not parse"))),
    }
}

/// How often an extent with this item has a reference of this name.
pub(crate) fn count_of(tree: &Tree, addr: LogicalAddr, record: &ExtentRecord, name: RefName) -> Result<u32> {
    if let Some((_, count)) = record.inline.iter().find(|(inline, _)| *inline == name) {
        return Ok(*count);
    }
    let run = Run {
        tree,
        addr,
        item_bytes_max: 0,
        is_new: false,
        keyed: BTreeMap::new(),
    };
    Ok(run.find_keyed(name)?.map_or(0, |(_, count)| count))
}

fn corrupt(what: String) -> Error {
    Error::CorruptTree {
        tree: TreeId::EXTENT,
        what,
    }
}

/// One head on its way into the extent tree.
struct Run<'a> {
    tree: &'a Tree,
    addr: LogicalAddr,
    item_bytes_max: usize,
    /// The extent is new: it has no reference items to look for.
    is_new: bool,
    /// Reference items touched by this head, as they will be.
    keyed: BTreeMap<Key, Option<(RefName, u32)>>,
}

impl Run<'_> {
    fn keyed_at(&self, key: &Key) -> Result<Option<(RefName, u32)>> {
        if let Some(changed) = self.keyed.get(key) {
            return Ok(*changed);
        }
        let Some(item) = self.tree.get(key)? else {
            return Ok(None);
        };
        keyed_back_ref(key, &item)
            .and_then(RefName::from_disk)
            .map(Some)
            .ok_or_else(|| corrupt(format!("reference item {key} does not parse")))
    }

    /// Where the reference's own item is: at its key, or (data references only) behind others with
    /// the same hash.
    fn find_keyed(&self, name: RefName) -> Result<Option<(Key, u32)>> {
        let own = name.key(self.addr);
        match self.keyed_at(&own)? {
            Some((other, count)) if other == name => return Ok(Some((own, count))),
            _ if !matches!(name, RefName::ExtentData { .. }) => return Ok(None),
            _ => {}
        }
        let Some(first) = own.next().filter(|next| next.ty == own.ty) else {
            return Ok(None);
        };
        let last = Key::new(own.objectid, own.ty, own.offset.saturating_add(DISPLACED_MAX));
        let mut cursor = self.tree.cursor(first, last);
        while let Some((key, _)) = cursor.next()? {
            match self.keyed_at(&key)? {
                Some((other, count)) if other == name => return Ok(Some((key, count))),
                _ => {}
            }
        }
        Ok(None)
    }

    fn change(&mut self, record: &mut ExtentRecord, name: RefName, delta: i64) -> Result<()> {
        let refs = i64::try_from(record.refs).ok().and_then(|r| r.checked_add(delta));
        record.refs = refs.and_then(|r| u64::try_from(r).ok()).ok_or_else(|| {
            corrupt(format!(
                "extent {}: {name:?} {delta:+} leaves fewer than no references",
                self.addr
            ))
        })?;
        let underflow = || corrupt(format!("extent {}: {name:?} counts less than is dropped", self.addr));
        // An inline reference that exists is changed where it is; only then the items of their own
        // are asked.
        let is_inline = record.inline.iter().any(|(n, _)| *n == name);
        if !is_inline
            && !self.is_new
            && let Some((key, count)) = self.find_keyed(name)?
        {
            let count = u32::try_from(i64::from(count) + delta).map_err(|_| underflow())?;
            self.keyed.insert(key, (count > 0).then_some((name, count)));
            return Ok(());
        }
        match record.change_inline(name, delta, self.item_bytes_max) {
            InlineChange::Done => Ok(()),
            InlineChange::Underflow => Err(underflow()),
            InlineChange::NotInline => {
                let count = u32::try_from(delta).map_err(|_| underflow())?;
                let mut key = name.key(self.addr);
                while self.keyed_at(&key)?.is_some() {
                    key.offset = key.offset.wrapping_add(1);
                }
                self.keyed.insert(key, Some((name, count)));
                Ok(())
            }
        }
    }
}

/// Turns one head into edits, appended to `edits`. `first_key` tells the first key of a new tree
/// block.
pub(crate) fn run_head(
    tree: &Tree,
    format: &ExtentFormat,
    transid: Generation,
    (addr, head): (LogicalAddr, &Head),
    first_key: impl FnOnce() -> Key,
    edits: &mut Vec<(Key, Edit)>,
) -> Result<Outcome> {
    if head.is_new && head.net() == 0 {
        return Ok(Outcome::NeverWas);
    }
    if head.is_noop() {
        return Ok(Outcome::Kept);
    }
    let (key, mut record) = if head.is_new {
        (
            new_key(addr, head, format),
            new_record(head, transid, format, first_key),
        )
    } else {
        load_record(tree, addr)?
            .ok_or_else(|| corrupt(format!("extent {addr} has no item, yet its references change")))?
    };
    if !head.is_new && head.level.is_none() && key.offset != head.len_bytes {
        return Err(corrupt(format!(
            "extent {addr} is {} bytes long, a file says {}",
            key.offset, head.len_bytes
        )));
    }
    let item_bytes_max = ExtentRecord::item_bytes_max(format.nodesize_bytes as usize);
    let mut run = Run {
        tree,
        addr,
        item_bytes_max,
        is_new: head.is_new,
        keyed: BTreeMap::new(),
    };
    if head.set_full_backref {
        record.flags |= extent_flags::FULL_BACKREF;
    }
    // Additions first: a reference that moves from one name to another must not pass through zero.
    for (name, delta) in head
        .deltas()
        .iter()
        .filter(|(_, d)| *d > 0)
        .chain(head.deltas().iter().filter(|(_, d)| *d < 0))
    {
        run.change(&mut record, *name, *delta)?;
    }
    let outcome = if record.refs == 0 {
        if !record.inline.is_empty() || run.keyed.values().any(Option::is_some) {
            return Err(corrupt(format!(
                "extent {addr} has no references left by count, but some by name"
            )));
        }
        edits.push((key, None));
        Outcome::Removed
    } else if head.is_last {
        // The references that the block makes have passed to its copy: other users of the block
        // would be without them.
        return Err(corrupt(format!(
            "block {addr} has {} other references, and is newer than the last snapshot of its tree",
            record.refs
        )));
    } else {
        edits.push((key, Some(record.encode().into())));
        if head.is_new { Outcome::Inserted } else { Outcome::Kept }
    };
    for (key, state) in run.keyed {
        edits.push((key, state.map(|(name, count)| keyed_ref_bytes(&name, count).into())));
    }
    Ok(outcome)
}

fn new_key(addr: LogicalAddr, head: &Head, format: &ExtentFormat) -> Key {
    let objectid = ObjectId(addr.get());
    match head.level {
        Some(level) if format.is_skinny => Key::new(objectid, KeyType::METADATA_ITEM, level.into()),
        _ => Key::new(objectid, KeyType::EXTENT_ITEM, head.len_bytes),
    }
}

fn new_record(
    head: &Head,
    transid: Generation,
    format: &ExtentFormat,
    first_key: impl FnOnce() -> Key,
) -> ExtentRecord {
    let flags = if head.level.is_some() {
        extent_flags::TREE_BLOCK
    } else {
        extent_flags::DATA
    };
    let block_info = match head.level {
        Some(level) if !format.is_skinny => Some(TreeBlockInfo {
            key: DiskKey::from(first_key()),
            level,
        }),
        _ => None,
    };
    ExtentRecord {
        refs: 0,
        generation: transid,
        flags,
        block_info,
        inline: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Engine, memory_device};

    const ADDR: LogicalAddr = LogicalAddr(1 << 40);
    const LEN_BYTES: u64 = 4096;

    fn of_file(ino: u64) -> RefName {
        RefName::ExtentData {
            root: TreeId::FS,
            ino: ObjectId(ino),
            offset: 0,
        }
    }

    /// What a change of one reference makes of the reference items.
    fn changed(tree: &Tree, name: RefName, delta: i64) -> Vec<(Key, Edit)> {
        let format = ExtentFormat {
            nodesize_bytes: 16384,
            is_skinny: true,
        };
        let mut head = Head {
            len_bytes: LEN_BYTES,
            ..Head::default()
        };
        head.add(name, delta);
        let mut edits = Vec::new();
        let outcome = run_head(
            tree,
            &format,
            Generation(9),
            (ADDR, &head),
            || unreachable!(),
            &mut edits,
        );
        assert_eq!(outcome.unwrap(), Outcome::Kept);
        edits.retain(|(key, _)| key.ty == KeyType::EXTENT_DATA_REF);
        edits
    }

    /// Linux puts a reference whose key is taken behind it, and leaves it there when the one before
    /// it is dropped.
    #[test]
    fn data_references_are_found_behind_others_and_behind_gaps() {
        let engine = Engine::open(vec![memory_device(256 << 20, 16384)]);
        let tree = engine.store.forest().require(TreeId::EXTENT).unwrap();
        let mut record = ExtentRecord {
            refs: 9,
            generation: Generation(7),
            flags: extent_flags::DATA,
            block_info: None,
            inline: Vec::new(),
        };
        let (behind, after_gap, at_home) = (of_file(300), of_file(301), of_file(302));
        let moved = |name: RefName, by: u64| {
            let own = name.key(ADDR);
            Key::new(own.objectid, own.ty, own.offset + by)
        };
        let item = |key, name, count| (key, Some(keyed_ref_bytes(&name, count).into()));
        let extent = Key::new(ObjectId(ADDR.get()), KeyType::EXTENT_ITEM, LEN_BYTES);
        tree.apply(vec![
            (extent, Some(record.encode().into())),
            item(behind.key(ADDR), of_file(400), 1),
            item(moved(behind, 1), behind, 2),
            item(moved(after_gap, 3), after_gap, 3),
            item(at_home.key(ADDR), at_home, 3),
        ]);
        for (name, by, count) in [(behind, 1, 2), (after_gap, 3, 3), (at_home, 0, 3)] {
            let key = moved(name, by);
            assert_eq!(changed(&tree, name, 1), [item(key, name, count + 1)]);
            assert_eq!(changed(&tree, name, -1), [item(key, name, count - 1)]);
        }
        assert_eq!(changed(&tree, of_file(303), 1), [], "it is in the extent's item");
    }

    /// Names whose keys are the same, or next to each other, come and go in any order.
    #[test]
    fn references_with_neighbouring_keys_are_counted_like_a_map() {
        let mut dice = crate::testing::Dice::new(5);
        let mut by_key: BTreeMap<u64, Vec<RefName>> = BTreeMap::new();
        for ino in 0..1 << 18 {
            let name = RefName::ExtentData {
                root: TreeId::FS,
                ino: ObjectId(300 + ino),
                offset: dice.below(1 << 30) << 12,
            };
            by_key.entry(name.sequence()).or_default().push(name);
        }
        let near = |at: u64| {
            by_key
                .range(at.saturating_sub(2)..=at + 2)
                .map(|(_, names)| names.len())
                .sum::<usize>()
        };
        let names: Vec<RefName> = by_key
            .iter()
            .filter(|(at, _)| near(**at) > 1)
            .flat_map(|(_, n)| n.clone())
            .collect();
        assert!(by_key.values().filter(|names| names.len() > 1).count() > 2 && names.len() > 30);
        let engine = Engine::open(vec![memory_device(256 << 20, 16384)]);
        let tree = engine.store.forest().require(TreeId::EXTENT).unwrap();
        let base = RefName::ExtentData {
            root: TreeId(999),
            ino: ObjectId(256),
            offset: 0,
        };
        let mut record = ExtentRecord {
            refs: 1,
            generation: Generation(7),
            flags: extent_flags::DATA,
            block_info: None,
            inline: vec![(base, 1)],
        };
        let extent = Key::new(ObjectId(ADDR.get()), KeyType::EXTENT_ITEM, LEN_BYTES);
        tree.apply(vec![(extent, Some(record.encode().into()))]);
        let format = ExtentFormat {
            nodesize_bytes: 16384,
            is_skinny: true,
        };
        let mut model: BTreeMap<RefName, i64> = BTreeMap::from([(base, 1)]);
        for step in 0..4000 {
            let mut head = Head {
                len_bytes: LEN_BYTES,
                ..Head::default()
            };
            for _ in 0..dice.below(6) + 1 {
                let name = names[dice.below(names.len() as u64) as usize];
                let count = model.get(&name).copied().unwrap_or(0)
                    + head.deltas().iter().find(|(n, _)| *n == name).map_or(0, |(_, d)| *d);
                let grows = dice.below(100) < if step / 500 % 2 == 0 { 70 } else { 30 };
                head.add(name, if count == 0 || grows { 1 } else { -1 });
            }
            for (name, delta) in head.deltas() {
                *model.entry(*name).or_default() += delta;
            }
            model.retain(|_, count| *count != 0);
            let mut edits = Vec::new();
            run_head(
                &tree,
                &format,
                Generation(9),
                (ADDR, &head),
                || unreachable!(),
                &mut edits,
            )
            .unwrap();
            tree.apply(edits);
            let (_, record) = load_record(&tree, ADDR).unwrap().unwrap();
            let mut found: Vec<_> = record.inline.iter().map(|(n, c)| (*n, i64::from(*c))).collect();
            for (key, item) in tree
                .cursor_type(Key::new(ObjectId(ADDR.get()), KeyType::EXTENT_DATA_REF, 0))
                .collect()
                .unwrap()
            {
                let (name, count) = RefName::from_disk(keyed_back_ref(&key, &item).unwrap()).unwrap();
                found.push((name, count.into()));
            }
            found.sort();
            assert_eq!(found, model.clone().into_iter().collect::<Vec<_>>(), "step {step}");
            assert_eq!(record.refs as i64, model.values().sum::<i64>());
        }
    }
}
