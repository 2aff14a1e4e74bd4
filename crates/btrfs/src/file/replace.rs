//! The one range-replace: new extents take the place of whatever a file has in some ranges.
//!
//! Pure: what exists and what shall be goes in, item edits, reference changes and the change of
//! `nbytes` come out. An item that is covered exactly costs one put; partial covers are trimmed; a
//! reference that is both dropped and added does not appear at all.

use std::collections::BTreeMap;
use std::ops::Range;

use btrfs_format::{LogicalAddr, ObjectId};

use crate::error::{Error, Result, StoreError};
use crate::extent::{Extent, Kind};
use btrfs_store::tree::Tree;

/// What shall stand in a range.
#[derive(Clone, Debug)]
pub(super) struct Replacement {
    pub range: Range<u64>,
    /// In order, inside the range; gaps become holes without items.
    pub extents: Vec<Extent>,
}

/// A data reference by what it points to; the root and inode are the file's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RefName {
    pub addr: LogicalAddr,
    pub len_bytes: u64,
    /// File offset minus offset into the extent, wrapping.
    pub offset: u64,
}

impl RefName {
    pub(crate) fn of(extent: &Extent) -> Option<Self> {
        let disk = extent.on_disk()?;
        Some(Self {
            addr: disk.addr,
            len_bytes: disk.len_bytes,
            offset: extent.start.wrapping_sub(disk.offset_bytes),
        })
    }
}

/// What a replace changes.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// By file offset: the item that shall be there, or `None` for no item.
    pub edits: BTreeMap<u64, Option<Extent>>,
    /// References more (or fewer) than before.
    pub refs: BTreeMap<RefName, i64>,
    pub nbytes: i64,
}

impl Plan {
    fn count(&mut self, extent: &Extent, sign: i64) {
        // As the bytes of the inode are kept: a stranger's items may add up to anything.
        self.nbytes = self
            .nbytes
            .wrapping_add(sign.wrapping_mul(extent.nbytes().cast_signed()));
        if let Some(name) = RefName::of(extent) {
            let count = self.refs.entry(name).or_default();
            *count += sign;
            if *count == 0 {
                self.refs.remove(&name);
            }
        }
    }

    /// Takes the references that are to be queued.
    pub(crate) fn take_refs(&mut self) -> Vec<(RefName, i64)> {
        std::mem::take(&mut self.refs).into_iter().collect()
    }

    fn put(&mut self, extent: Extent) {
        self.count(&extent, 1);
        self.edits.insert(extent.start, Some(extent));
    }
}

/// As [`plan`], of a file of `tree`. An error where only part of inline data is to be replaced,
/// which has no parts: ours has at most a block, and is always replaced as a whole, but a
/// stranger's may be longer.
pub(super) fn plan_checked(
    tree: &Tree,
    ino: ObjectId,
    existing: &[Extent],
    replacements: &[Replacement],
) -> Result<Plan> {
    let is_cut = |inline: &Extent| {
        let cuts = |r: &Replacement| r.range.start < inline.end() && (r.range.start > 0 || r.range.end < inline.end());
        replacements.iter().any(|r| !r.range.is_empty() && cuts(r))
    };
    if existing.iter().any(|e| e.is_inline() && is_cut(e)) {
        return Err(Error::Store(StoreError::CorruptTree {
            tree: tree.id(),
            what: format!("inode {ino}: its inline data is longer than what takes the place of part of it"),
        }));
    }
    Ok(plan(existing, replacements))
}

/// Plans the replacements (in order, disjoint). `existing` has every item that overlaps one of
/// them, in order, and may have others, which are taken for neighbours to merge with.
pub(super) fn plan(existing: &[Extent], replacements: &[Replacement]) -> Plan {
    let mut plan = Plan::default();
    for extent in existing {
        remove_parts(&mut plan, extent, replacements);
    }
    for extent in replacements.iter().flat_map(|r| &r.extents) {
        plan.put(extent.clone());
    }
    merge_neighbours(&mut plan, existing);
    // What only came into being to be joined needs no deleting.
    let exists = |start: &u64| existing.binary_search_by_key(start, |e| e.start).is_ok();
    plan.edits.retain(|start, edit| edit.is_some() || exists(start));
    plan
}

/// Takes the replaced ranges out of one extent.
fn remove_parts(plan: &mut Plan, extent: &Extent, replacements: &[Replacement]) {
    let first = replacements.partition_point(|r| r.range.end <= extent.start);
    let hit = replacements[first..]
        .iter()
        .take_while(|r| r.range.start < extent.end());
    let mut at = extent.start;
    let mut kept = Vec::new();
    let mut is_hit = false;
    for replacement in hit.filter(|r| !r.range.is_empty()) {
        is_hit = true;
        if replacement.range.start > at {
            kept.push(extent.part(&(at..replacement.range.start)));
        }
        at = replacement.range.end;
    }
    if !is_hit {
        return;
    }
    if at < extent.end() {
        kept.push(extent.part(&(at..extent.end())));
    }
    assert!(
        !extent.is_inline() || kept.is_empty(),
        "inline data is replaced as a whole"
    );
    plan.count(extent, -1);
    plan.edits.insert(extent.start, None);
    for part in kept {
        plan.put(part);
    }
}

/// `b` continues `a` in the file and in the same extent on disk.
fn continues(a: &Extent, b: &Extent) -> bool {
    match (&a.kind, &b.kind) {
        (Kind::Hole, Kind::Hole) => a.end() == b.start,
        (Kind::Disk(x), Kind::Disk(y)) => {
            a.end() == b.start
                && (x.addr, x.len_bytes, x.compression, x.is_prealloc)
                    == (y.addr, y.len_bytes, y.compression, y.is_prealloc)
                && x.offset_bytes + a.len_bytes == y.offset_bytes
        }
        _ => false,
    }
}

/// Joins each item that was put with the ones before and behind it, where they are parts of one
/// extent.
fn merge_neighbours(plan: &mut Plan, existing: &[Extent]) {
    let untouched = |plan: &Plan, e: &Extent| !plan.edits.contains_key(&e.start);
    let starts: Vec<u64> = plan
        .edits
        .iter()
        .filter(|(_, e)| e.is_some())
        .map(|(start, _)| *start)
        .collect();
    // The last item that was put before, as it is by now. (Between it and the next there may be
    // very many that go.)
    let mut put_before: Option<Extent> = None;
    for start in starts {
        // The one before, put or untouched, may swallow this one; then this one the untouched one
        // behind it.
        let Some(Some(mut this)) = plan.edits.get(&start).cloned() else {
            continue;
        };
        let at = existing.partition_point(|e| e.start < start);
        let old_before = at
            .checked_sub(1)
            .map(|i| existing[i].clone())
            .filter(|e| untouched(plan, e));
        for before in [put_before.take(), old_before].into_iter().flatten() {
            if continues(&before, &this) {
                this = join(plan, before, this);
            }
        }
        let at = existing.partition_point(|e| e.start < this.end());
        if let Some(behind) = existing.get(at).filter(|e| untouched(plan, e)).cloned()
            && continues(&this, &behind)
        {
            this = join(plan, this, behind);
        }
        put_before = Some(this);
    }
}

fn join(plan: &mut Plan, a: Extent, b: Extent) -> Extent {
    plan.count(&a, -1);
    plan.count(&b, -1);
    plan.edits.insert(b.start, None);
    let joined = Extent {
        len_bytes: a.len_bytes + b.len_bytes,
        generation: a.generation.min(b.generation),
        ..a
    };
    plan.put(joined.clone());
    joined
}

#[cfg(test)]
mod tests {
    use btrfs_format::Generation;

    use super::*;
    use crate::block::BLOCK;
    use crate::extent::OnDisk;
    use crate::testing::Dice;

    const BLOCKS: u64 = 48;

    fn on_disk(start: u64, len: u64, addr: u64, disk_len: u64, offset: u64, is_prealloc: bool) -> Extent {
        let kind = Kind::Disk(OnDisk {
            addr: LogicalAddr(addr * BLOCK),
            len_bytes: disk_len * BLOCK,
            offset_bytes: offset * BLOCK,
            ram_bytes: disk_len * BLOCK,
            compression: 0,
            is_prealloc,
        });
        Extent {
            start: start * BLOCK,
            len_bytes: len * BLOCK,
            generation: Generation(1),
            kind,
        }
    }

    fn hole(start: u64, len: u64) -> Extent {
        Extent {
            start: start * BLOCK,
            len_bytes: len * BLOCK,
            generation: Generation(1),
            kind: Kind::Hole,
        }
    }

    /// What a block of the file is: nothing, an explicit hole, or a block of an extent on disk.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Cell {
        None,
        Hole,
        Disk(u64, bool),
    }

    fn cells(extent: &Extent) -> impl Iterator<Item = (u64, Cell)> + '_ {
        (0..extent.len_bytes / BLOCK).map(|i| {
            let cell = match extent.on_disk() {
                Some(d) => Cell::Disk((d.addr.get() + d.offset_bytes) / BLOCK + i, d.is_prealloc),
                None => Cell::Hole,
            };
            (extent.start / BLOCK + i, cell)
        })
    }

    #[derive(Default)]
    struct File {
        items: BTreeMap<u64, Extent>,
        refs: BTreeMap<RefName, i64>,
        nbytes: i64,
    }

    impl File {
        fn apply(&mut self, plan: Plan) {
            for (start, edit) in plan.edits {
                match edit {
                    Some(extent) => self.items.insert(start, extent),
                    None => self.items.remove(&start),
                };
            }
            for (name, delta) in plan.refs {
                assert_ne!(delta, 0, "cancelled references do not appear");
                *self.refs.entry(name).or_default() += delta;
            }
            self.refs.retain(|_, count| *count != 0);
            self.nbytes += plan.nbytes;
        }

        fn check(&self, model: &[Cell]) {
            let mut seen = vec![Cell::None; model.len()];
            let mut refs: BTreeMap<RefName, i64> = BTreeMap::new();
            let mut end = 0;
            for extent in self.items.values() {
                assert!(extent.start >= end, "items overlap");
                end = extent.end();
                for (block, cell) in cells(extent) {
                    seen[block as usize] = cell;
                }
                if let Some(name) = RefName::of(extent) {
                    *refs.entry(name).or_default() += 1;
                }
            }
            assert_eq!(seen, model);
            assert_eq!(self.refs, refs, "references are those of the items");
            assert_eq!(self.nbytes, self.items.values().map(|e| e.nbytes() as i64).sum::<i64>());
        }
    }

    fn overlapping(file: &File, ranges: &[Replacement], rng: &mut Dice) -> Vec<Extent> {
        // Whether neighbours are among what is given makes no difference to what the file is.
        let margin = rng.below(2);
        let near = |e: &Extent| {
            ranges
                .iter()
                .any(|r| e.start < r.range.end + margin && e.end() + margin > r.range.start)
        };
        file.items.values().filter(|e| near(e)).cloned().collect()
    }

    #[test]
    fn random_replacements_match_a_model() {
        for seed in 0..300 {
            let mut rng = Dice::new(seed);
            let mut file = File::default();
            let mut model = vec![Cell::None; BLOCKS as usize];
            let mut next_addr = 1000;
            for _ in 0..60 {
                let mut replacements = Vec::new();
                let mut pos = 0;
                for _ in 0..1 + rng.below(3) {
                    let from = pos + rng.below(BLOCKS / 3);
                    let len = 1 + rng.below(6);
                    if from + len > BLOCKS {
                        break;
                    }
                    pos = from + len + rng.below(2);
                    let extents = match rng.below(5) {
                        0 => vec![],
                        1 => vec![hole(from, len)],
                        2 => {
                            // A clone of, or a write into, part of something that may be in the
                            // file already.
                            let any = file
                                .items
                                .values()
                                .filter(|e| e.on_disk().is_some())
                                .nth(rng.below(4) as usize);
                            match any.cloned() {
                                Some(e) => {
                                    let part = e.part(&(e.start..e.start + (len * BLOCK).min(e.len_bytes)));
                                    vec![Extent {
                                        start: from * BLOCK,
                                        ..part
                                    }]
                                }
                                None => vec![],
                            }
                        }
                        _ => {
                            next_addr += 100;
                            vec![on_disk(from, len, next_addr, len, 0, rng.below(2) == 0)]
                        }
                    };
                    replacements.push(Replacement {
                        range: from * BLOCK..(from + len) * BLOCK,
                        extents,
                    });
                }
                for replacement in &replacements {
                    let range = replacement.range.start / BLOCK..replacement.range.end / BLOCK;
                    model[range.start as usize..range.end as usize].fill(Cell::None);
                    for (block, cell) in replacement.extents.iter().flat_map(cells) {
                        model[block as usize] = cell;
                    }
                }
                let existing = overlapping(&file, &replacements, &mut rng);
                file.apply(plan(&existing, &replacements));
                file.check(&model);
            }
        }
    }

    #[test]
    fn an_exact_cover_is_one_put() {
        let old = on_disk(4, 4, 1000, 4, 0, false);
        let new = on_disk(4, 4, 2000, 4, 0, false);
        let plan = plan(
            &[old],
            &[Replacement {
                range: 4 * BLOCK..8 * BLOCK,
                extents: vec![new],
            }],
        );
        assert_eq!(plan.edits.len(), 1);
        assert_eq!(plan.refs.values().collect::<Vec<_>>(), [&-1, &1]);
        assert_eq!(plan.nbytes, 0);
    }

    #[test]
    fn a_hit_in_the_middle_adds_one_reference() {
        let old = on_disk(0, 12, 1000, 12, 0, false);
        let new = on_disk(4, 4, 2000, 4, 0, false);
        let plan = plan(
            std::slice::from_ref(&old),
            &[Replacement {
                range: 4 * BLOCK..8 * BLOCK,
                extents: vec![new],
            }],
        );
        assert_eq!(plan.edits.keys().map(|k| k / BLOCK).collect::<Vec<_>>(), [0, 4, 8]);
        let name = RefName::of(&old);
        assert_eq!(
            plan.refs.get(&name.unwrap()),
            Some(&1),
            "both parts name the extent alike"
        );
    }

    #[test]
    fn prealloc_written_in_sequence_stays_two_items() {
        let mut file = File::default();
        let all = on_disk(0, 16, 1000, 16, 0, true);
        file.apply(plan(
            &[],
            &[Replacement {
                range: 0..16 * BLOCK,
                extents: vec![all],
            }],
        ));
        for block in 0..15 {
            let written = on_disk(block, 1, 1000, 16, block, false);
            let existing: Vec<_> = file.items.values().cloned().collect();
            let range = written.range();
            file.apply(plan(
                &existing,
                &[Replacement {
                    range,
                    extents: vec![written],
                }],
            ));
            assert_eq!(file.items.len(), 2, "after block {block}");
            assert_eq!(file.refs.values().sum::<i64>(), 2);
        }
    }

    /// A stranger's items may say that they have half of all numbers, and lie over each other.
    #[test]
    fn sums_of_impossible_extents_end_nothing() {
        const HALF: u64 = 1 << 63;
        let endless = |start: u64| Extent {
            start,
            len_bytes: HALF - start,
            ..on_disk(0, 1, 1000, HALF / BLOCK, 0, true)
        };
        let gone = Replacement {
            range: 0..u64::MAX,
            extents: Vec::new(),
        };
        let existing = [endless(0), endless(BLOCK), endless(2 * BLOCK)];
        let plan = plan(&existing, &[gone]);
        assert!(plan.edits.values().all(Option::is_none));
        let bytes = existing.iter().map(Extent::nbytes).fold(0, u64::wrapping_add);
        assert_eq!(plan.nbytes.cast_unsigned().wrapping_add(bytes), 0);
    }

    #[test]
    fn very_many_parts_of_one_extent_are_joined_in_a_moment() {
        const PARTS: u64 = 1 << 17;
        let part = |n: u64| on_disk(n, 1, 1000, PARTS, n, false);
        let begin = std::time::Instant::now();
        let all = Replacement {
            range: 0..PARTS * BLOCK,
            extents: (0..PARTS).map(part).collect(),
        };
        let plan = plan(&[], &[all]);
        assert_eq!(plan.edits.len(), 1);
        let taken = begin.elapsed();
        assert!(taken.as_secs() < 20, "{taken:?}");
    }
}
