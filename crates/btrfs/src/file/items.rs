//! From a plan to one batch: extent items, checksums, references and the inode item change together
//! or not at all.

use std::collections::HashSet;
use std::sync::Arc;

use btrfs_format::{Generation, LogicalAddr};

use super::csum;
use super::replace::Plan;
use crate::extent::extent_key;
use crate::files::Files;
use crate::object::{Inode, InodeState};
use crate::pagecache::DataState;
use btrfs_store::refs::{DataRef, RefChange, RefKind};
use btrfs_store::space::MetaReservation;
use btrfs_store::txn::Batch;

/// The generation of an extent item that is made now: filled in when its batch joins a transaction.
pub(super) const NOW: Generation = Generation(0);

/// A change of a file's extents, ready to be applied.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub plan: Plan,
    /// Addresses of extents that were allocated for it.
    pub fresh: HashSet<LogicalAddr>,
    /// Checksums of what was written for it.
    pub sums: Vec<(LogicalAddr, Vec<u8>)>,
}

/// Applies a change with the inode item. `update` sets what else the inode's attributes become; the
/// caller holds the flush lock, and has reserved before that.
pub(super) fn apply(
    files: &Files,
    inode: &Arc<Inode>,
    change: Change,
    reservation: MetaReservation,
    update: impl FnOnce(&mut InodeState, &mut DataState),
) {
    let join = files.store().txn().join();
    let mut attr = inode.attr.lock();
    let mut state = inode.data.state.lock();
    let mut batch = Batch::new();
    let generation = join.generation();
    put_change(files, &mut batch, inode, change, generation, &mut attr);
    noting_mode(inode, &mut attr, |attr| update(attr, &mut state));
    batch.put(&inode.tree, inode.key(), inode.item_bytes(&attr));
    join.apply(batch, reservation);
}

/// Runs a change of contents. No caller names the mode in it: where set-id bits go, the front end
/// has to be told.
pub(super) fn noting_mode<T>(inode: &Inode, attr: &mut InodeState, change: impl FnOnce(&mut InodeState) -> T) -> T {
    let before = attr.attr.mode;
    let done = change(attr);
    if attr.attr.mode != before {
        inode.unasked.note();
    }
    done
}

/// Sets what else an inode's attributes become.
pub(super) type Update<'a> = Box<dyn FnOnce(&mut InodeState, &mut DataState) + 'a>;

/// One file's part of a change of several.
pub(super) struct Part<'a> {
    pub inode: &'a Arc<Inode>,
    pub change: Change,
    pub update: Update<'a>,
}

/// Applies changes of several files (each once) as one batch: all of them are on disk after a
/// crash, or none. The caller holds their flush locks and operation locks. `joined` is called when
/// the transaction is certain.
pub(super) fn apply_all(files: &Files, mut parts: Vec<Part<'_>>, reservation: MetaReservation, joined: impl FnOnce()) {
    parts.sort_by_key(|part| part.inode.lock_key());
    let join = files.store().txn().join();
    joined();
    if parts.len() > 1 {
        // All of it is on disk after a crash, or nothing: a log has one file at a time.
        files.names().turn_off();
    }
    let mut batch = Batch::new();
    let mut held = Vec::with_capacity(parts.len());
    for part in parts {
        let mut attr = part.inode.attr.lock_ordered(part.inode.lock_key());
        put_change(files, &mut batch, part.inode, part.change, join.generation(), &mut attr);
        noting_mode(part.inode, &mut attr, |attr| {
            (part.update)(attr, &mut part.inode.data.state.lock());
        });
        batch.put(&part.inode.tree, part.inode.key(), part.inode.item_bytes(&attr));
        // No older item may replace the one in the batch.
        held.push(attr);
    }
    join.apply(batch, reservation);
}

/// Puts a change of extents into a batch of transaction `generation`, and into the attributes,
/// whose item the caller puts when it has changed them all.
pub(super) fn put_change(
    files: &Files,
    batch: &mut Batch,
    inode: &Inode,
    change: Change,
    generation: Generation,
    attr: &mut InodeState,
) {
    let nbytes = change.plan.nbytes;
    put_plan(batch, inode, change.plan, &change.fresh, generation);
    if !change.sums.is_empty() {
        csum::put(files, batch, change.sums);
    }
    attr.attr.nbytes = attr.attr.nbytes.saturating_add_signed(nbytes);
    attr.attr.transid = generation;
}

fn put_plan(batch: &mut Batch, inode: &Inode, mut plan: Plan, fresh: &HashSet<LogicalAddr>, generation: Generation) {
    let refs = plan.take_refs();
    for (start, edit) in plan.edits {
        let key = extent_key(inode.ino, start);
        match edit {
            None => batch.delete(&inode.tree, key),
            Some(mut extent) => {
                if extent.generation == NOW {
                    extent.generation = generation;
                }
                batch.put(&inode.tree, key, extent.encode());
            }
        }
    }
    for (name, count) in refs {
        let kind = match (count > 0, fresh.contains(&name.addr)) {
            (true, true) => RefKind::New,
            (true, false) => RefKind::Add,
            (false, _) => RefKind::Drop,
        };
        assert!(
            kind != RefKind::New || count == 1,
            "an extent that was just allocated has one reference"
        );
        for _ in 0..count.unsigned_abs() {
            batch.reference(RefChange {
                addr: name.addr,
                len_bytes: name.len_bytes,
                data_ref: DataRef {
                    root: inode.tree.id(),
                    ino: inode.ino,
                    offset: name.offset,
                },
                kind,
            });
        }
    }
}
