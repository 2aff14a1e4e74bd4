//! Data that two logs have, step by step.

use btrfs_format::TreeId;
use cowshed_crash::discards::Discards;
use cowshed_crash::power::{self};
use cowshed_crash::rig::Player;
use cowshed_crash::rig::{self, Layout};
use cowshed_crash::run::Run;
use cowshed_crash::threads::Threads;
use cowshed_crash::workload::Mix;
use cowshed_device::BlockDevice;
use cowshed_model::script::{self, Op, Prealloc};

/// A file and a clone of its first block in a subvolume, both synced: two logs with checksums from
/// the same address on, of which one has more. The checker took those of the shorter for all there
/// are.
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
        discards: Discards::NONE,
        subvolumes: true,
        snapshots: false,
        tear_bytes: 4096,
        is_slow: false,
    };
    let fsync = |path: &str| Op::Fsync { path: path.into() };
    let ops = vec![
        Op::write("whole", 0, 131_072, 1),
        Op::copy("whole", 0, "s/part", 0, 4096),
        fsync("whole"),
        fsync("s/part"),
    ];
    let mut recording = power::record_ops(run, Some(ops)).unwrap();
    let images: Vec<_> = recording.images().take(400).collect();
    let logs = images.into_iter().map(|image| recording.judge(image));
    let logs = logs.filter(|judged| judged.as_ref().unwrap_or_else(|e| panic!("{e:#}")).has_log);
    assert!(logs.count() > 0);
}

/// Two logs whose checksums overlap, and data of one of them that begins within what the other one
/// has: it is compared with its own.
#[test]
fn data_behind_the_checksums_of_another_log_is_compared() {
    const BLOCK: usize = 4096;
    let path = || String::from("whole");
    let fsync = |path: &str| Op::Fsync { path: path.into() };
    let ops = [
        Op::write(path(), 0, 32 * BLOCK, 1),
        fsync("whole"),
        Op::clone_range(path(), BLOCK as u64, "s/part", 0, BLOCK as u64),
        fsync("s/part"),
        // The checksums of all of it stay in its log.
        Op::fallocate(Prealloc::Punch, path(), BLOCK as u64, BLOCK as u64),
        fsync("whole"),
    ];
    let devices = rig::make_with(Layout::Single, 16384, [0x71; 16], false, &[(TreeId::FS, "s")]).unwrap();
    let fs = rig::mount_with(rig::shared(&devices), true).unwrap();
    let committed = fs.mount().store().txn().committed();
    for op in &ops {
        Player::new(&fs).apply(op).unwrap();
        assert_eq!(fs.mount().store().txn().committed(), committed, "`{op}` is in the log");
    }
    let crashed = rig::snapshots(&devices);
    rig::abandon(fs);
    rig::check_clean(&rig::shared(&crashed)).unwrap();

    let content = script::bytes(1, 32 * BLOCK);
    for block in [0, 2, 3, 16, 31] {
        let device = crashed[0].snapshot();
        let want = &content[block * BLOCK..][..BLOCK];
        let mut found = vec![0; BLOCK];
        let at = (0..device.size_bytes()).step_by(BLOCK).find(|at| {
            device.read_at(*at, &mut found).unwrap();
            found == want
        });
        found[100] ^= 1;
        device.write_at(at.unwrap(), &found).unwrap();
        let error = rig::check_clean(&[std::sync::Arc::new(device)]).expect_err(&format!("block {block} has rotted"));
        let error = format!("{error:#}");
        assert!(error.contains("does not match its checksum"), "block {block}: {error}");
    }
}
