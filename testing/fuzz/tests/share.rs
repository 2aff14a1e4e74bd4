//! The share of fuzzing that every run of the tests does: always the same images, some fifteen seconds' worth.

use std::time::Duration;

use cowshed_fuzz::{Options, guard, run, run_case, seeds};

const IMAGES: u64 = 800;

#[global_allocator]
static ALLOCATOR: guard::Counting = guard::Counting;

/// Cases that went wrong once. The first two: a root item that knows of too old a last snapshot; a superblock whose
/// uuid tree is up to date as of the next transaction.
const FOUND: [u64; 2] = [0xb120_400c_6bb6_8969, 0xfb88_f2db_2918_e392];

#[test]
fn damaged_volumes_do_no_harm() {
    guard::install();
    let bases = seeds::all().expect("sound volumes");
    for case in FOUND {
        if let Err(failure) = run_case(&bases, case) {
            panic!("case {case:#x}: {}", failure.what);
        }
    }
    let options = Options {
        duration: Duration::from_secs(600),
        images_max: Some(IMAGES),
        seed: 2026,
        keep: None,
        failures_max: 5,
    };
    let summary = run(&options, &bases, |_| {});
    for failure in &summary.failures {
        println!("{}", failure.what);
        println!(
            "replay: cargo run -p cowshed-fuzz -- image --replay {:#x}\n",
            failure.case
        );
    }
    assert!(summary.failures.is_empty(), "{} failures", summary.failures.len());
    // Damage of the right size: much of it is found, and much gets through.
    assert_eq!(summary.images, IMAGES, "the machine is too slow for the share");
    assert!(summary.committed > 0 && summary.opened < summary.images);
}
