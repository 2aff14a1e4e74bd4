//! Histories of names that were found wrong once, step by step.

use cowshed_crash::discards::Discards;
use cowshed_crash::power::{self};
use cowshed_crash::rig::Layout;
use cowshed_crash::run::Run;
use cowshed_crash::threads::Threads;
use cowshed_crash::workload::Mix;
use cowshed_harness::tree::colliding_names;
use cowshed_model::script::Op;

fn run() -> Run {
    Run {
        seed: 1,
        layout: Layout::Dup,
        nodesize_bytes: 4096,
        threads: Threads::One,
        ops: 0,
        mix: Mix::Syncs,
        tree_log: true,
        compress: None,
        discards: Discards::NONE,
        subvolumes: false,
        snapshots: false,
        tear_bytes: 4096,
        is_slow: false,
    }
}

/// All images are right. Says whether one had a log.
fn judge(ops: Vec<Op>) -> bool {
    let mut recording = power::record_ops(run(), Some(ops)).unwrap();
    let images: Vec<_> = recording.images().take(400).collect();
    let judged = images.into_iter().map(|image| recording.judge(image));
    let logs = judged.filter(|judged| judged.as_ref().unwrap_or_else(|e| panic!("{e:#}")).has_log);
    logs.count() > 0
}

fn write(path: &str) -> Op {
    Op::write(path, 0, 100, 1)
}
fn link(from: &str, to: &str) -> Op {
    Op::link(from, to)
}
fn unlink(path: &str) -> Op {
    Op::unlink(path)
}
fn fsync(path: &str) -> Op {
    Op::fsync(path)
}

/// A file of the names `x/one`, `y/two` and `y/three`, and others. (The run before used the first
/// letters.)
fn three_names() -> Vec<Op> {
    let mut ops = vec![
        Op::mkdir("x"),
        Op::mkdir("y"),
        write("x/one"),
        write("other"),
        write("y/other"),
    ];
    ops.extend([link("x/one", "y/two"), link("x/one", "y/three"), Op::Sync]);
    ops
}

/// A file is unlinked name by name; one of the names goes to another file, which is synced. After a
/// crash the dead file must not have the names that were not taken over.
#[test]
fn a_dead_file_keeps_none_of_its_names() {
    let dead = || ["x/one", "y/two", "y/three"].map(unlink);
    let taken = |by: Vec<Op>| [three_names(), dead().into(), by].concat();
    for name in ["x/one", "y/two", "y/three"] {
        judge(taken(vec![write(name), fsync(name)]));
        judge(taken(vec![link("other", name), fsync("other")]));
    }
    for dir in ["x", "y"] {
        judge(taken(vec![fsync(dir)]));
    }
    // The last name goes to the file that replaces it.
    let replaced = [
        unlink("x/one"),
        unlink("y/two"),
        Op::rename("y/other", "y/three"),
        fsync("y/three"),
    ];
    judge([three_names(), replaced.into()].concat());
}

/// A dead file whose names all were in synced directories is gone, and so is one that had a single
/// name: logs express it.
#[test]
fn a_dead_file_of_one_name_or_one_directory_is_no_reason_to_commit() {
    let start = vec![Op::mkdir("x"), write("x/a"), link("x/a", "x/b"), write("old"), Op::Sync];
    let both = [unlink("x/a"), unlink("x/b"), write("x/b"), fsync("x")];
    assert!(judge([start.clone(), both.into()].concat()));
    let moved = [
        Op::rename("old", "old.1"),
        write("new"),
        Op::rename("new", "old.1"),
        fsync("old.1"),
    ];
    assert!(judge([start, moved.into()].concat()));
}

/// Replay adds the names of a log to those of the commit, one hash in one item: together they must
/// fit a leaf.
#[test]
fn names_of_one_hash_that_come_and_go_fit_a_leaf_after_a_crash() {
    const BYTES: usize = 190;
    let names: Vec<String> = colliding_names(30)
        .iter()
        .map(|tail| format!("x/{tail:0>BYTES$}"))
        .collect();
    // An item of 4 KiB has 18 of them.
    for (committed, gone, new, logs) in [(18, 3, 3, false), (6, 5, 17, true), (4, 2, 4, true)] {
        let mut ops = vec![Op::mkdir("x"), write("other")];
        ops.extend(names[..committed].iter().map(|name| write(name)));
        ops.push(Op::Sync);
        ops.extend(names[..gone].iter().map(|name| unlink(name)));
        let new = &names[committed..][..new];
        ops.extend(new.iter().flat_map(|name| [write(name), fsync(name)]));
        assert_eq!(judge(ops), logs, "{committed} names, less {gone}");
    }
}
