//! A share of the turns for every run of the tests.

use cowshed_harness::{Keep, need};
use cowshed_turns::Options;

#[test]
fn the_kernel_and_we_take_turns() {
    if need::kernel_btrfs().is_none() || need::fuse().is_none() {
        return;
    }
    let seed = need::share_seed("turns of the kernel and of ours");
    let options = Options {
        seed,
        volumes: 2,
        turns: 6,
        images: 3,
        keep: Keep::new(Some(env!("CARGO_TARGET_TMPDIR").into())),
    };
    match cowshed_turns::run(&options) {
        Ok(report) => println!("{report}"),
        Err(error) => panic!("seed {seed}: {error:#}"),
    }
}
