//! The kernel's logs, replayed by both and compared item by item: single situations, each the
//! smallest that shows its rule, and the share of the random runs that is in every run.

use cowshed_harness::{Keep, VolumeOptions, need};
use cowshed_logcases::items::random::{Length, run};
use cowshed_logcases::items::{Crash, judge, volumes};
use cowshed_logcases::table::parse;

const SHORT: Length = Length { images: 2, steps: 40 };

/// Plays a setup and what follows its commit; the crash comes after that.
fn replay(options: &VolumeOptions, before: &str, after: &str) {
    let Some(()) = need::kernel_btrfs() else { return };
    let crash = Crash::new(options).unwrap();
    let script = format!("{before}; sync; {after}");
    crash.play(&parse(&script).unwrap()).unwrap();
    let image = crash.image().unwrap();
    let keep = Keep::new(Some(env!("CARGO_TARGET_TMPDIR").into()));
    match judge::judge(&image) {
        Ok(is_replayed) => assert!(is_replayed, "the kernel wrote no log"),
        Err(error) => panic!("{:#}", keep.files("items", image.images(), error)),
    }
}

fn plain() -> VolumeOptions {
    VolumeOptions {
        size_bytes: 256 << 20,
        ..VolumeOptions::default()
    }
}

#[test]
fn new_files_and_directories() {
    replay(
        &plain(),
        "mkdir old",
        "mkdir old/a; mkdir old/a/b; write old/a/b/file 0 ~70000:1; write old/small 0 ~6:2; \
         symlink target old/link; fifo old/fifo; fsync old/a/b/file; fsync old/small; fsync old",
    );
}

#[test]
fn overwrite_append_truncate_and_punch() {
    replay(
        &plain(),
        "write over 0 ~300000:1; write append 0 ~300000:2; write cut 0 ~300000:4; write punch 0 ~300000:5; \
         write pre 0 ~300000:7; write both 0 ~300000:8",
        "write over 100000 ~50001:10; fsync over; write append 300000 ~123456:11; fsync append; \
         truncate cut 1234; fsync cut; punch punch 64k 128k; fsync punch; \
         prealloc-keep pre 400000 200000; fsync pre; truncate both 0; truncate both 900000; fsync both",
    );
}

const NAMES: &str = "mkdir d; mkdir d/sub; mkdir e; write d/a 0 a1; write d/b 0 b1; write d/c 0 c1; \
                     write d/x 0 x1; write d/y 0 y1; write d/sub/z 0 z5";

#[test]
fn names_that_are_gone_from_a_directory() {
    let after = "unlink d/a; rename d/b d/b2; write d/a 0 ~23:1; fsync d";
    replay(&plain(), NAMES, after);
}

#[test]
fn two_files_swap_their_names() {
    replay(
        &plain(),
        NAMES,
        "rename d/x d/t; rename d/y d/x; rename d/t d/y; fsync d/x",
    );
}

#[test]
fn a_rename_over_another_file_makes_an_orphan_of_it() {
    replay(&plain(), NAMES, "rename d/b d/c; fsync d");
}

#[test]
fn a_hard_link_in_another_directory() {
    replay(&plain(), NAMES, "link d/c e/c2; fsync d/c");
}

#[test]
fn xattrs_and_an_inode_that_is_only_said_to_exist() {
    replay(
        &plain(),
        "mkdir d; write one 0 ~9000:1; setx one user.old old; write two 0 ~9000:2; setx two user.old old; \
         write d/three 0 ~9000:4; setx d/three user.old old; prealloc-keep two 12k 1m",
        "rmx one user.old; setx one user.new new; fsync one; setx two user.old other; rename two zwei; \
         chmod d/three 600; rename d/three three; fsync .",
    );
}

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
