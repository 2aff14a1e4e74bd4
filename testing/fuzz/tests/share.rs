//! The share of fuzzing that every run of the tests does: always the same images, some fifteen
//! seconds' worth.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cowshed_fuzz::{Cases, Options, Summary, guard, run, run_case, seeds, xfs};

const IMAGES: u64 = 800;
const LOG_IMAGES: u64 = 400;
const XFS_IMAGES: u64 = 300;

#[global_allocator]
static ALLOCATOR: guard::Counting = guard::Counting;

/// Cases that went wrong once. The first two: a root item that knows of too old a last snapshot; a
/// superblock whose uuid tree is up to date as of the next transaction. The fourth: commits that
/// took 28 s, with very many references to an extent. Those after it the checker found sound, and
/// they were not to be mounted: flags of the superblock, logs of one device of two, a default
/// subvolume that is none.
const FOUND: [u64; 9] = [
    0xb120_400c_6bb6_8969,
    0xfb88_f2db_2918_e392,
    0x8d81_11e7_ae49_0cfa,
    0x9438_2b6b_c9c5_d091,
    0x4cae_e804_47e9_d702,
    0xa5cd_d79b_24b3_547b,
    0xeb4c_7e0f_3e1a_5a1e,
    0x274d_95dc_d092_7860,
    0x0208_0a1e_743e_1ff6,
];

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

/// As [`FOUND`], of XFS.
const FOUND_XFS: [u64; 6] = [
    // Leaves of names and of attributes in a circle.
    0x5c3c_2979_c173_45a7,
    0x2209_6589_4075_1c01,
    0xe478_ad8b_34cf_7be7,
    // Access lists, and the superblock's LSN: only the engine saw what is wrong.
    0xba3b_2d74_9f10_5fc8,
    0x36a7_7dd5_685a_f974,
    0xcc71_3beb_ed21_6bb5,
];

#[test]
fn damaged_volumes_do_no_harm() {
    let _alone = alone();
    let summary = do_no_harm(&seeds::all().expect("sound volumes")[..], &FOUND, IMAGES);
    assert!(summary.committed > 0);
    assert_eq!(summary.disagreements, [], "sound by the checker, but not readable");
}

/// The volumes that the logs belong to are sound: a log is refused as a whole, or leaves a sound
/// volume.
#[test]
fn damaged_logs_do_no_harm() {
    let _alone = alone();
    let summary = do_no_harm(&seeds::with_logs().expect("sound volumes")[..], &FOUND_LOGS, LOG_IMAGES);
    assert!(summary.committed > 0);
}

#[test]
fn damaged_volumes_of_xfs_do_no_harm() {
    let _alone = alone();
    let summary = do_no_harm(&xfs::bases().expect("sound volumes")[..], &FOUND_XFS, XFS_IMAGES);
    assert_eq!(summary.disagreements, [], "sound by the checker, but not readable");
}

/// The guard watches one case at a time, and counts the memory of all threads: that for making
/// sound volumes, too.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn do_no_harm<C: Cases + ?Sized>(bases: &C, found: &[u64], images: u64) -> Summary {
    guard::install();
    let mut disagreements = Vec::new();
    for case in found {
        match run_case(bases, *case) {
            Ok(outcome) => disagreements.extend(outcome.disagreement.map(|what| (*case, what))),
            Err(failure) => panic!("case {case:#x}: {}", failure.what),
        }
    }
    let options = Options {
        duration: Duration::from_secs(600),
        images_max: Some(images),
        seed: 2026,
        keep: None,
        failures_max: 5,
    };
    let mut summary = run(&options, bases, |_| {});
    summary.disagreements.extend(disagreements);
    for failure in &summary.failures {
        println!("{}", failure.what);
        println!(
            "replay: cargo run -p cowshed-fuzz -- image|xfs --replay {:#x}\n",
            failure.case
        );
    }
    assert!(summary.failures.is_empty(), "{} failures", summary.failures.len());
    // Damage of the right size: much of it is found, and much gets through.
    assert_eq!(summary.images, images, "the machine is too slow for the share");
    assert!(summary.opened > 0 && summary.opened < summary.images);
    summary
}
