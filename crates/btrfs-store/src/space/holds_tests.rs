//! Holds on replaced tree blocks, and the commits that need their space.

use std::sync::Arc;

use btrfs_format::{LogicalAddr, ObjectId, TreeId};

use super::*;
use crate::refs::{DataRef, RefChange, RefKind};
use crate::testing::{Engine, memory_device};
use crate::txn::Batch;

const SECTOR: u64 = 4096;
const EXTENTS: u64 = 20_000;
/// Extents whose items fill a leaf, at least.
const PER_LEAF: usize = 20;

/// Many small extents on a volume that data fills.
struct Volume {
    engine: Arc<Engine>,
    extents: Vec<LogicalAddr>,
}

impl Volume {
    fn full() -> Self {
        let engine = Engine::open(vec![memory_device(256 << 20, 4096)]);
        let space = engine.store.space();
        let mut volume = Self {
            engine: engine.clone(),
            extents: Vec::new(),
        };
        let mut batch = Batch::new();
        let mut data = space.reserve_data(EXTENTS * SECTOR).unwrap();
        for _ in 0..EXTENTS {
            let (addr, _) = space.alloc_data(&mut data, SECTOR).unwrap();
            batch.reference(reference(addr, 0, RefKind::New));
            volume.extents.push(addr);
        }
        drop(data);
        engine.store.txn().join().apply_unreserved(batch);
        volume.engine.commit().unwrap();
        // What is left of the devices becomes block groups of data.
        let mut bytes = 64 << 20;
        let mut all = Vec::new();
        while bytes >= SECTOR {
            match space.reserve_data(bytes) {
                Ok(data) => all.push(data),
                Err(_) => bytes /= 2,
            }
        }
        drop(all);
        volume.engine.commit().unwrap();
        volume
    }

    fn pinned(&self, pool: Pool) -> u64 {
        self.engine.store.space().ledger.pool(pool).pinned
    }

    /// A commit that copies the whole extent tree, as a step of dropping a subvolume may, and for
    /// which no operation has reserved anything.
    fn rewrite_extent_tree(&self, kind: RefKind) {
        let mut batch = Batch::new();
        for addr in self.extents.iter().step_by(PER_LEAF) {
            batch.reference(reference(*addr, 1, kind));
        }
        self.engine.store.txn().join().apply_unreserved(batch);
        self.engine.commit().unwrap();
    }
}

fn reference(addr: LogicalAddr, file: u64, kind: RefKind) -> RefChange {
    RefChange {
        addr,
        len_bytes: SECTOR,
        data_ref: DataRef {
            root: TreeId::FS,
            ino: ObjectId(1000 + file),
            offset: 0,
        },
        kind,
    }
}

#[test]
fn commits_without_reservations_never_run_out_of_blocks_beside_a_hold() {
    const ROUNDS: usize = 60;
    let volume = Volume::full();
    let space = volume.engine.store.space();
    let mut hold = space.hold_blocks();
    let (mut kept, mut revoked) = (0, 0);
    for round in 0..ROUNDS {
        let kind = if round % 2 == 0 { RefKind::Add } else { RefKind::Drop };
        volume.rewrite_extent_tree(kind);
        if hold.is_kept() {
            kept += 1;
            assert!(
                volume.pinned(Pool::Metadata) > 0,
                "round {round}: what is held is not free"
            );
            continue;
        }
        revoked += 1;
        assert_eq!(volume.pinned(Pool::Metadata), 0, "round {round}");
        // The walk begins again.
        hold = space.hold_blocks();
        assert!(hold.is_kept(), "round {round}");
    }
    assert!(
        kept >= ROUNDS / 2 && revoked >= 2,
        "{kept} rounds kept, {revoked} revoked"
    );
    drop(hold);
    volume.engine.commit().unwrap();
    assert_eq!(volume.pinned(Pool::Metadata), 0);
}

#[test]
fn blocks_of_the_chunk_tree_are_never_held() {
    let engine = Engine::open(vec![memory_device(1 << 30, 4096)]);
    let space = engine.store.space();
    let hold = space.hold_blocks();
    let mut chunks = space.has_new_chunk();
    let mut all = Vec::new();
    while !chunks {
        all.push(space.reserve_data(16 << 20).unwrap());
        chunks = space.has_new_chunk();
    }
    engine.commit().unwrap();
    let pinned = |pool| space.ledger.pool(pool).pinned;
    assert!(hold.is_kept() && pinned(Pool::Metadata) > 0);
    assert_eq!(pinned(Pool::System), 0);
}

/// An operation that has revoked finds nothing to commit: the next walk need not wait for a change.
#[test]
fn commit_of_nothing_allows_holds_again() {
    let engine = Engine::open(vec![memory_device(256 << 20, 4096)]);
    let space = engine.store.space();
    engine.commit().unwrap();
    space.holds.revoke();
    assert!(!space.hold_blocks().is_kept());
    let before = engine.commit_stats().commits;
    engine.commit().unwrap();
    assert_eq!(engine.commit_stats().commits, before);
    assert!(space.hold_blocks().is_kept());
}
