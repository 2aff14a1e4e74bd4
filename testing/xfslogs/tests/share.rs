//! A share of `cargo xtask xfs logs` for every run of the tests. Needs root; skips with a line
//! without.

use cowshed_harness::need;
use cowshed_xfslogs::{Config, is_able, run};

#[test]
fn dirty_logs_show_what_the_kernel_shows_after_recovery() {
    if !is_able() {
        return;
    }
    let seen = run(&Config {
        count: 6,
        flips: 40,
        seed: need::share_seed("dirty logs of XFS") * 1000,
        focus: None,
        keep: None,
        progress: false,
    })
    .unwrap_or_else(|error| panic!("{error:#}"));
    println!("{seen}");
    assert!(seen.clean < seen.images, "no log was dirty");
    assert!(seen.items.contains_key("BUF") && seen.items.contains_key("INODE"));
}
