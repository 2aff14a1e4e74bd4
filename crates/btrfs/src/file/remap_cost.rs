//! What remapping a block costs in trees: counted, not timed, so that a loaded machine does not matter.
//!
//! `cargo test -p cowshed-btrfs --lib remap_cost -- --ignored --nocapture`: the range-replace beside deleting and
//! inserting, on the same run.

use super::replace::delete_and_insert;
use super::tests::{Bench, plain};
use super::{BLOCK, WriteCtx};
use crate::fs::MountOptions;
use crate::testing::Dice;

const BLOCKS: u64 = 16 << 10;

#[test]
#[ignore = "measures"]
fn per_block() {
    println!("range-replace:");
    measure();
    println!("delete and insert:");
    delete_and_insert::set(true);
    measure();
}

fn measure() {
    let mut bench = Bench::new(1 << 30, plain, MountOptions::default());
    bench.create();
    bench.create();
    let (file, clone) = (bench.inode(0), bench.inode(1));
    let engine = bench.engine();
    for at in 0..BLOCKS / 256 {
        super::write(engine, &file, at << 20, &vec![1; 1 << 20], WriteCtx::default()).unwrap();
    }
    super::clone_range(engine, &file, 0, &clone, 0, 0).unwrap();
    engine.sync().unwrap();
    let mut dice = Dice::new(1);
    for pass in ["shared with a clone", "alone"] {
        let (items, refs) = engine.txn.applied();
        let stats = engine.commit_stats();
        for n in 0..BLOCKS {
            let at = dice.below(BLOCKS) * BLOCK;
            super::write(engine, &file, at, &[2; BLOCK as usize], WriteCtx::default()).unwrap();
            // Groups of 256 blocks, as fsyncs and the limit on dirty data make them.
            if n % 256 == 255 {
                super::write_back(engine, &file).unwrap();
            }
            if n % 4096 == 4095 {
                engine.commit().unwrap();
            }
        }
        engine.sync().unwrap();
        let (items_after, refs_after) = engine.txn.applied();
        let after = engine.commit_stats();
        let per_block = |n: u64| n as f64 / BLOCKS as f64;
        let metadata = (after.blocks_written - stats.blocks_written) * engine.store.nodesize_bytes() as u64;
        println!(
            "{pass}: item edits {:.2}, reference changes {:.2}, items merged {:.2}, metadata written {:.0} bytes, per block",
            per_block(items_after - items),
            per_block(refs_after - refs),
            per_block(after.items_merged - stats.items_merged),
            per_block(metadata),
        );
    }
    bench.check("at the end");
}
