//! A share of the random sequences that are compared with the kernel, fsync by fsync.

use cowshed_harness::need;
use cowshed_logcases::compare::{Options, run};

#[test]
fn fsyncs_make_as_much_durable_as_the_kernels() {
    if need::kernel_btrfs().is_none() {
        return;
    }
    let options = Options {
        seed: 3000,
        sequences: 40,
        kernel_every: 10,
        keep_going: false,
        without_exceptions: false,
    };
    let report = run(&options).unwrap_or_else(|error| panic!("{error:#}"));
    println!("{report}");
    assert_eq!(report.sequences, 40);
    assert!(
        report.logs[0] > 20 && report.logs[1] > 20,
        "both sides write logs: {report}"
    );
}
