//! Archives with random faults: refused or read, never a panic, never memory without bound.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use cowshed_harness::shell;
use cowshed_runtime::{SystemEnv, Workers};
use cowshed_source::{Platform, Reading, Tree, add_stream};

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % limit
    }
}

const ROUNDS: u64 = 3000;

#[test]
fn mutated_archives_are_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let make = "mkdir -p r/a/b; echo x > r/a/f; ln r/a/f r/a/g; ln -s f r/a/s; truncate -s 100k r/holes; \
                printf y >> r/holes; touch r/a/b/$(printf 'n%.0s' $(seq 150)); \
                tar --format=posix --sparse -cf pax.tar -C r .; tar --format=gnu --sparse -cf gnu.tar -C r .";
    shell(dir.path(), make).unwrap();
    let mut refused = 0;
    for name in ["pax.tar", "gnu.tar"] {
        let good = std::fs::read(dir.path().join(name)).unwrap();
        read(good.clone(), dir.path()).unwrap();
        for seed in 0..ROUNDS {
            let mut dice = Dice(seed);
            let mut bytes = good.clone();
            for _ in 0..1 + dice.below(8) {
                let block = dice.below(bytes.len() / 512) * 512;
                let at = block + dice.below(512);
                bytes[at] = [dice.below(256) as u8, b'0' + dice.below(10) as u8][dice.below(2)];
                // Checksums that are right again let the fault in.
                if dice.below(4) > 0 {
                    seal(&mut bytes[block..block + 512]);
                }
            }
            if dice.below(10) == 0 {
                bytes.truncate(dice.below(bytes.len()));
            }
            refused += u64::from(read(bytes, dir.path()).is_err());
        }
    }
    assert!((ROUNDS / 10..2 * ROUNDS).contains(&refused), "{refused} refused");
}

fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn read(bytes: Vec<u8>, spool: &Path) -> cowshed_source::Result<()> {
    let mut tree = Tree::default();
    let stream = Box::new(Cursor::new(bytes));
    let mut reading = Reading {
        platform: &Platform::default(),
        spool_dir: spool,
        env: &SystemEnv,
        workers: &Workers::new(Arc::new(SystemEnv)),
        layers: None,
    };
    add_stream(&mut tree, "mutant", stream, &mut reading, &mut |_, _| true)
}
