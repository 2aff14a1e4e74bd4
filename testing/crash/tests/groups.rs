//! A share of the crash images over block groups that come and go.

use cowshed_crash::groups;
use cowshed_harness::{Keep, need};

#[test]
fn crash_images_over_groups_that_go_keep_what_was_promised() {
    let by_kernel = if need::kernel_btrfs().is_some() { 2 } else { 0 };
    let keep = Keep::new(Some(env!("CARGO_TARGET_TMPDIR").into()));
    let (images, stats) = groups::judge_runs(1, 40, 40, by_kernel, &keep).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(images == 40 && stats.retired > 4, "{images} images over {stats:?}");
}
