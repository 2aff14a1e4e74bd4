//! Random sequences on a volume of the kernel's and one of ours: the share that every test run
//! judges, and the judge judged.

use cowshed_harness::{Keep, need};
use cowshed_logcases::random::{self, Options};
use cowshed_logcases::table;

const SEQUENCES: u64 = 40;
/// Each script that is made short takes seconds.
const FAILURES_MAX: u64 = 2;

#[test]
fn fsync_keeps_what_the_kernels_fsync_keeps() {
    if need::kernel_btrfs().is_none() {
        return;
    }
    let options = Options {
        seed: need::share_seed("sequences beside the kernel"),
        sequences: SEQUENCES,
        failures_max: FAILURES_MAX,
        jobs: 2,
        keep: Keep::new(Some(env!("CARGO_TARGET_TMPDIR").into())),
        ..Options::default()
    };
    let report = random::run(&options, &|failure| println!("{failure}"))
        .unwrap_or_else(|error| panic!("seed {}: {error:#}", options.seed));
    println!("{report}");
    assert!(report.failures.is_empty(), "seed {}, see above", options.seed);
    let kernel_logs: u64 = report
        .answers
        .iter()
        .filter(|((kernels, _), _)| kernels == "log")
        .map(|(_, count)| count)
        .sum();
    assert!(
        kernel_logs > SEQUENCES / 2,
        "the kernel hardly ever writes a log: {kernel_logs}"
    );
}

/// Ours keeps nothing here. That is found, and what the kernel kept by a log is told from what it
/// kept by a commit.
#[test]
fn missing_fsyncs_are_found() {
    if need::kernel_btrfs().is_none() {
        return;
    }
    let logs = "create f; sync; write g 0 a4k; link f h; fsync f";
    let commits =
        "mkdir x; mkdir y; create x/foo; mkdir y/z; sync; create g; link x/foo x/bar; rename y/z x/z; fsync x/bar";
    for (script, without_exceptions, expected, short) in [
        (logs, false, "the kernel logged", "create f; sync; link f h; fsync f"),
        (commits, true, "kernel_committed", ""),
        (commits, false, "", ""),
    ] {
        let options = Options {
            script: Some(table::parse(script).unwrap()),
            without_exceptions,
            no_fsyncs: true,
            ..Options::default()
        };
        let report = random::run(&options, &|failure| println!("{failure}")).unwrap();
        match (&report.failures[..], expected) {
            ([], "") => assert!(
                report.differences.keys().all(|kind| kind.contains("kernel_committed")),
                "{report}"
            ),
            ([failure], expected) => {
                assert!(!expected.is_empty() && failure.kind.contains(expected), "{report}");
                assert!(short.is_empty() || failure.script == short, "{report}");
            }
            _ => panic!("{report}"),
        }
    }
}

/// What deviations say is still so, and fails nothing.
#[test]
fn known_deviations_occur_and_are_counted() {
    if need::kernel_btrfs().is_none() {
        return;
    }
    let scripts = [
        (
            "kernel_committed",
            "mkdir x; mkdir y; create f; sync; rename f x/f; setx x user.a one; fsync .",
        ),
        ("times_after_fdatasync", "create f; sync; utime f 1000000; fdatasync f"),
    ];
    for (name, script) in scripts {
        let options = Options {
            script: Some(table::parse(script).unwrap()),
            ..Options::default()
        };
        let report = random::run(&options, &|failure| println!("{failure}")).unwrap();
        assert!(report.failures.is_empty(), "{report}");
        assert!(report.differences.keys().any(|kind| kind.starts_with(name)), "{report}");
    }
}
