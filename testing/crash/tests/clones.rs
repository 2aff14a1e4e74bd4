//! Data that two logs have, step by step.

use cowshed_crash::power::{self, Run, Threads};
use cowshed_crash::rig::Layout;
use cowshed_crash::workload::{Mix, Op};

/// A file and a clone of its first block in a subvolume, both synced: two logs with checksums from the same address on, of which
/// one has more. The checker took those of the shorter for all there are.
#[test]
fn a_clone_of_a_part_in_another_subvolume_is_logged_beside_the_whole() {
    let run = Run {
        seed: 1,
        layout: Layout::Dup,
        nodesize_bytes: 16384,
        threads: Threads::One,
        ops: 0,
        mix: Mix::Syncs,
        tree_log: true,
        compress: None,
        subvolumes: true,
        snapshots: false,
        tear_bytes: 4096,
        is_slow: false,
    };
    let fsync = |path: &str| Op::Fsync { path: path.into() };
    let ops = vec![
        Op::Write {
            path: "whole".into(),
            offset: 0,
            len: 131_072,
            fill: 1,
        },
        Op::Clone {
            from: "whole".into(),
            to: "s/part".into(),
            len: 4096,
        },
        fsync("whole"),
        fsync("s/part"),
    ];
    let mut recording = power::record_ops(run, Some(ops)).unwrap();
    let images: Vec<_> = recording.images().take(400).collect();
    let logs = images.into_iter().map(|image| recording.judge(image));
    let logs = logs.filter(|judged| judged.as_ref().unwrap_or_else(|e| panic!("{e:#}")).has_log);
    assert!(logs.count() > 0);
}
