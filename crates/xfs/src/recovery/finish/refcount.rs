//! Changes of the refcountbt: blocks that files share, and blocks staged for copy on write.

use xfs_format::btree::{REFCOUNT_COW_FLAG, REFCOUNT_MAX, Refcount, RefcountRecord, RmapOwner, Tree};
use xfs_format::{AgNumber, U32};

use super::groups::Ags;
use super::rmap::Mapping;
use crate::error::Result;

/// Blocks and how many owners they have. 1 is not in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u32,
    end: u32,
    count: u32,
}

fn record(start: u32, blocks: u32, count: u32) -> RefcountRecord {
    RefcountRecord {
        startblock: U32::new(start),
        blockcount: U32::new(blocks),
        refcount: U32::new(count),
    }
}

/// Cuts a range by the runs in it; what lies between has one owner.
fn cut(runs: &[Run], start: u32, end: u32) -> Vec<Run> {
    let mut parts = Vec::new();
    let mut at = start;
    for run in runs {
        let (from, to) = (run.start.max(start), run.end.min(end));
        if from >= to {
            continue;
        }
        if at < from {
            parts.push(Run {
                start: at,
                end: from,
                count: 1,
            });
        }
        parts.push(Run {
            start: from,
            end: to,
            count: run.count,
        });
        at = to;
    }
    if at < end {
        parts.push(Run {
            start: at,
            end,
            count: 1,
        });
    }
    parts
}

/// Neighbours with one count become one run.
fn merged(runs: impl IntoIterator<Item = Run>) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for run in runs.into_iter().filter(|run| run.start < run.end && run.count > 1) {
        match all.last_mut() {
            Some(last) if last.end == run.start && last.count == run.count => last.end = run.end,
            _ => all.push(run),
        }
    }
    all
}

impl Ags<'_> {
    /// Runs that overlap blocks or touch them.
    fn runs_around(&mut self, group: AgNumber, start: u32, end: u32) -> Result<Vec<Run>> {
        self.look(group, Tree::Refcount, |tree| {
            let mut runs = Vec::new();
            let before = tree.at_or_before::<Refcount>(start.saturating_sub(1))?;
            let from = before.map_or(start, |record| record.startblock.get());
            tree.from::<Refcount>(from, &mut |record| {
                let run = Run {
                    start: record.startblock.get(),
                    end: record.startblock.get() + record.blockcount.get(),
                    count: record.refcount.get(),
                };
                let goes_on = !record.is_cow_staging() && run.start <= end;
                if goes_on && run.end >= start {
                    runs.push(run);
                }
                goes_on
            })?;
            Ok(runs)
        })
    }

    /// Blocks get one owner more, or one less. Those that have none afterwards become free.
    pub(super) fn adjust(&mut self, group: AgNumber, start: u32, blocks: u32, is_up: bool) -> Result<()> {
        let end = start + blocks;
        let old = self.runs_around(group, start, end)?;
        let parts = cut(&old, start, end);
        let changed = parts.iter().map(|run| Run {
            count: match run.count {
                REFCOUNT_MAX => REFCOUNT_MAX,
                count if is_up => count + 1,
                count => count - 1,
            },
            ..*run
        });
        let outer = |from: u32, to: u32| {
            old.iter().filter_map(move |run| {
                let (start, end) = (run.start.max(from), run.end.min(to));
                (start < end).then_some(Run {
                    start,
                    end,
                    count: run.count,
                })
            })
        };
        let new = merged(outer(0, start).chain(changed.clone()).chain(outer(end, u32::MAX)));
        if new != old {
            self.edit_owned::<Refcount>(group, new.len(), RmapOwner::RefcountBtree, |tree| {
                for run in &old {
                    tree.remove::<Refcount>(run.start)?;
                }
                new.iter()
                    .try_for_each(|run| tree.insert::<Refcount>(record(run.start, run.end - run.start, run.count)))
            })?;
        }
        for run in changed.filter(|run| run.count == 0) {
            self.free_in(group, run.start, run.end - run.start)?;
        }
        Ok(())
    }

    /// Blocks are staged for copy on write, or no longer.
    pub(super) fn stage(&mut self, group: AgNumber, start: u32, blocks: u32, is_staged: bool) -> Result<()> {
        let (low, end) = (start | REFCOUNT_COW_FLAG, start + blocks);
        let around = self.look(group, Tree::Refcount, |tree| {
            let mut around = Vec::new();
            let before = tree
                .at_or_before::<Refcount>(low - 1)?
                .filter(RefcountRecord::is_cow_staging);
            let from = before.map_or(low, |record| record.startblock.get());
            tree.from::<Refcount>(from, &mut |record| {
                let (first, count) = (record.start().get(), record.blockcount.get());
                if first <= end && first + count >= start {
                    around.push((first, first + count));
                }
                first <= end
            })?;
            Ok(around)
        })?;
        let mut new = Vec::new();
        if is_staged {
            let from = around.iter().find(|run| run.1 == start).map_or(start, |run| run.0);
            let to = around.iter().find(|run| run.0 == end).map_or(end, |run| run.1);
            new.push((from, to));
        } else {
            new.extend(
                around
                    .iter()
                    .filter(|run| run.0 < start)
                    .map(|run| (run.0, run.1.min(start))),
            );
            new.extend(
                around
                    .iter()
                    .filter(|run| run.1 > end)
                    .map(|run| (run.0.max(end), run.1)),
            );
        }
        self.edit_owned::<Refcount>(group, new.len(), RmapOwner::RefcountBtree, |tree| {
            for run in &around {
                tree.remove::<Refcount>(run.0 | REFCOUNT_COW_FLAG)?;
            }
            new.iter()
                .try_for_each(|run| tree.insert::<Refcount>(record(run.0 | REFCOUNT_COW_FLAG, run.1 - run.0, 1)))
        })
    }

    /// Frees all blocks that are staged for copy on write, because the writes that staged them are
    /// gone. Returns how many there were.
    pub(super) fn free_staged(&mut self) -> Result<u64> {
        if !self.disk.geometry.has_reflink() {
            return Ok(0);
        }
        let mut freed = 0;
        for number in 0..self.disk.geometry.ag_count {
            let group = AgNumber(number);
            let mut staged = Vec::new();
            self.look(group, Tree::Refcount, |tree| {
                tree.from::<Refcount>(REFCOUNT_COW_FLAG, &mut |record| {
                    staged.push((record.start().get(), record.blockcount.get()));
                    true
                })
            })?;
            for (start, blocks) in staged {
                self.stage(group, start, blocks, false)?;
                self.unmap(group, Mapping::special(start, blocks, RmapOwner::CowStaging))?;
                self.free_in(group, start, blocks)?;
                freed += u64::from(blocks);
            }
        }
        Ok(freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_and_merged() {
        let run = |start, end, count| Run { start, end, count };
        let runs = [run(10, 20, 2), run(25, 30, 3)];
        assert_eq!(cut(&runs, 15, 28), [run(15, 20, 2), run(20, 25, 1), run(25, 28, 3)]);
        assert_eq!(
            merged([run(1, 2, 2), run(2, 3, 2), run(3, 4, 1), run(4, 5, 2), run(5, 5, 9)]),
            [run(1, 3, 2), run(4, 5, 2)]
        );
    }
}
