//! The share of the random runs that everybody runs.

use cowshed_harness::{Keep, need};
use cowshed_logreplay::random::{Length, run};
use cowshed_logreplay::volumes;

const SHORT: Length = Length { images: 2, steps: 40 };

#[test]
fn our_replay_is_the_kernels_on_every_kind_of_volume() {
    let Some(()) = need::kernel_btrfs() else { return };
    let keep = Keep::new(Some(env!("CARGO_TARGET_TMPDIR").into()));
    let mut with_log = 0;
    for (index, options) in volumes().iter().enumerate() {
        let seed = 1 + index as u64;
        with_log += run(seed, options, SHORT, &keep).unwrap_or_else(|error| panic!("{error:#}"));
    }
    assert!(with_log > 9, "only {with_log} of 20 crashes left a log");
}
