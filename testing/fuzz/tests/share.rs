//! The share of fuzzing that every run of the tests does: always the same images, some fifteen
//! seconds' worth.

use std::sync::Mutex;
use std::time::Duration;

use cowshed_fuzz::{Options, guard, run, run_case, seeds};

const IMAGES: u64 = 800;
const LOG_IMAGES: u64 = 400;

#[global_allocator]
static ALLOCATOR: guard::Counting = guard::Counting;

/// Cases that went wrong once. The first two: a root item that knows of too old a last snapshot; a
/// superblock whose uuid tree is up to date as of the next transaction.
const FOUND: [u64; 3] = [0xb120_400c_6bb6_8969, 0xfb88_f2db_2918_e392, 0x8d81_11e7_ae49_0cfa];

/// As [`FOUND`], of logs: data that does not match the log's checksum; a name with an index that
/// cannot be listed; data without checksums; an inode that says that it has none where there are
/// some; file extents of a pipe; data in a block group of the system; plain inline data that says
/// that it is compressed.
const FOUND_LOGS: [u64; 7] = [
    0x27cf_1707_c6e1_d01f,
    0x544a_c66b_6c93_0d75,
    0xf47d_15c6_1cb4_2297,
    0x24c1_22a2_7262_a4f2,
    0x25cb_ee29_1312_3864,
    0xeb3d_4442_3ba0_6e8b,
    0xadf3_e121_099c_e102,
];

#[test]
fn damaged_volumes_do_no_harm() {
    do_no_harm(&seeds::all().expect("sound volumes"), &FOUND, IMAGES);
}

/// The volumes that the logs belong to are sound: a log is refused as a whole, or leaves a sound
/// volume.
#[test]
fn damaged_logs_do_no_harm() {
    do_no_harm(&seeds::with_logs().expect("sound volumes"), &FOUND_LOGS, LOG_IMAGES);
}

fn do_no_harm(bases: &[seeds::Base], found: &[u64], images: u64) {
    // The guard watches one case at a time.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock();
    guard::install();
    for case in found {
        if let Err(failure) = run_case(bases, *case) {
            panic!("case {case:#x}: {}", failure.what);
        }
    }
    let options = Options {
        duration: Duration::from_secs(600),
        images_max: Some(images),
        seed: 2026,
        keep: None,
        failures_max: 5,
    };
    let summary = run(&options, bases, |_| {});
    for failure in &summary.failures {
        println!("{}", failure.what);
        println!(
            "replay: cargo run -p cowshed-fuzz -- image --replay {:#x}\n",
            failure.case
        );
    }
    assert!(summary.failures.is_empty(), "{} failures", summary.failures.len());
    // Damage of the right size: much of it is found, and much gets through.
    assert_eq!(summary.images, images, "the machine is too slow for the share");
    assert!(summary.committed > 0 && summary.opened < summary.images);
}
