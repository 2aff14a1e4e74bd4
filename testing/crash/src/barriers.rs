//! What the barriers of a recorded run are for, as their neighbours tell.

use btrfs_format::superblock::SUPERBLOCK_OFFSETS;
use cowshed_device_sim::Event;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// Before a commit's superblocks, and after them.
    BeforeCommit,
    AfterCommit,
    /// Before the superblock of a log, of which only the first copy is written, and after it.
    BeforeLog,
    AfterLog,
    /// After data alone.
    Data,
}

/// The kinds of all barriers of a run on one device, in order.
pub(crate) fn kinds(events: &[Event]) -> Vec<Barrier> {
    let is_barrier = |event: &Event| matches!(event, Event::Barrier { .. });
    // Before each barrier, where was written since the one before it.
    let mut epochs: Vec<Vec<u64>> = Vec::new();
    for epoch in events.split_inclusive(is_barrier) {
        let offset = |event: &Event| match event {
            Event::Write { offset_bytes, .. } => Some(*offset_bytes),
            _ => None,
        };
        if epoch.last().is_some_and(is_barrier) {
            epochs.push(epoch.iter().filter_map(offset).collect());
        }
    }
    let [first, ..] = SUPERBLOCK_OFFSETS;
    let is_log = |epoch: &[u64]| epoch == [first];
    let is_commit = |epoch: &[u64]| epoch.contains(&first) && epoch.iter().all(|at| SUPERBLOCK_OFFSETS.contains(at));
    let kind = |(n, epoch): (usize, &Vec<u64>)| match (epoch, epochs.get(n + 1)) {
        (epoch, _) if is_log(epoch) => Barrier::AfterLog,
        (epoch, _) if is_commit(epoch) => Barrier::AfterCommit,
        (_, Some(next)) if is_log(next) => Barrier::BeforeLog,
        (_, Some(next)) if is_commit(next) => Barrier::BeforeCommit,
        _ => Barrier::Data,
    };
    epochs.iter().enumerate().map(kind).collect()
}
