//! Recorded runs of the kernel: the share of their crash images that all checks judge, and the
//! judge judged.

use cowshed_harness::{Keep, need};
use cowshed_logcases::cuts::{self, Options, Recording};

/// Most of a test's time is the kernel's: its commits, and its mounts of the sample.
const OPERATIONS: usize = 40;

fn able() -> bool {
    need::kernel_btrfs().is_some() && need::fuse().is_some()
}

#[test]
fn kernel_logs_cut_at_barriers_are_replayed() {
    if !able() {
        return;
    }
    let seed = need::share_seed("kernel logs cut at barriers");
    let options = Options {
        seed,
        images: 200,
        per_run: 20,
        operations: OPERATIONS,
        kernel_every: 40,
        keep: Keep::new(Some(env!("CARGO_TARGET_TMPDIR").into())),
    };
    match cuts::run(&options) {
        Ok(report) => {
            println!("{report}");
            assert!(report.logs > 20, "the kernel hardly ever left a log");
        }
        Err(error) => panic!("seed {seed}: {error:#}"),
    }
}

/// Of a run whose barriers are forgotten, images are broken; and of one whose images are too old,
/// promises are.
#[test]
fn missing_barriers_and_missing_promises_are_found() {
    if !able() {
        return;
    }
    let mut recording = Recording::new(7, OPERATIONS).unwrap();
    assert!(recording.barriers() > 2, "{} barriers", recording.barriers());
    let first = recording.images().next().unwrap();
    let old = cuts::replayed(&first.devices[0]).unwrap();
    recording.keeps(&old, Recording::done(&first)).unwrap();
    let last = Recording::done(&recording.images().last().unwrap());
    recording.keeps(&old, last).expect_err("the run has synced nothing");
    recording.forget_barriers();
    let is_broken = recording.images().any(|image| recording.judge(&image, false).is_err());
    assert!(is_broken, "the kernel needs no barriers");
}
