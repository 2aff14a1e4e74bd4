//! The share of the crash machine that every test run does.

use std::sync::Arc;

use cowshed_btrfs::compression::compress::CompressPolicy;
use cowshed_crash::barriers::Barrier;
use cowshed_crash::discards::Discards;
use cowshed_crash::power::{self, Judged, Recording};
use cowshed_crash::rig::{self, Layout};
use cowshed_crash::run::Run;
use cowshed_crash::threads::Threads;
use cowshed_crash::workload::Mix;
use cowshed_crash::{compressed, discards, faults, kernel, load_image};
use cowshed_device::BlockDevice;
use cowshed_harness::Keep;
use cowshed_model::script::{Counts, Op};
use cowshed_model::tree::NOCOW;

/// Gives the number of operations that found no space.
fn judge_some(run: Run, images_max: u64, by_kernel: u64) -> usize {
    judge_some_and(run, images_max, by_kernel, |_, _| Ok(()))
}

/// The same, with more to be found out about each image.
fn judge_some_and(
    run: Run,
    images_max: u64,
    by_kernel: u64,
    mut more: impl FnMut(&Recording, &Judged) -> anyhow::Result<()>,
) -> usize {
    let mut seen_by_kernel = 0;
    let mut recording = power::record(run).unwrap_or_else(|e| panic!("{run:?}: {e:#}"));
    let keep = Keep::new(Some(env!("CARGO_TARGET_TMPDIR").into()));
    let images = recording.chosen(images_max as usize);
    assert!(images.len() > 10, "a run with next to no images proves nothing");
    let kernel_stride = (images.len() as u64).checked_div(by_kernel).unwrap_or(u64::MAX);
    for (n, image) in images.into_iter().enumerate() {
        let judged = recording.judge_or_keep(image, &keep, |recording, judged| {
            if n % 16 == 0 {
                recording.go_on(judged)?;
            }
            more(recording, judged)?;
            let to_kernel = (n as u64 + 1).is_multiple_of(kernel_stride);
            Ok(to_kernel && kernel::judge(judged)?)
        });
        seen_by_kernel += u64::from(judged.unwrap_or_else(|e| panic!("choice {n}: {e:#}")));
    }
    assert!(
        by_kernel < 2 || seen_by_kernel > 1,
        "{run:?}: the kernel was asked {seen_by_kernel} times"
    );
    recording.refused()
}

fn run(seed: u64, layout: Layout, threads: Threads) -> Run {
    Run {
        seed,
        layout,
        nodesize_bytes: if seed.is_multiple_of(2) { 4096 } else { 16384 },
        threads,
        ops: 60,
        mix: if seed.is_multiple_of(2) {
            Mix::Everything
        } else {
            Mix::Syncs
        },
        tree_log: !seed.is_multiple_of(3),
        compress: compressed::drawn(seed),
        discards: Discards::NONE,
        subvolumes: false,
        snapshots: false,
        tear_bytes: if seed.is_multiple_of(3) { 512 } else { 4096 },
        // Where there is one thread it would be slower, and nothing else.
        is_slow: threads != Threads::One && seed % 4 > 1,
    }
}

#[test]
fn crash_images_show_committed_states() {
    for seed in 0..8 {
        judge_some(run(seed, Layout::Dup, Threads::One), 60, 0);
    }
}

#[test]
fn crash_images_of_subvolumes_keep_what_each_was_promised() {
    let kernel_images = if cowshed_harness::need::kernel_btrfs().is_some() {
        3
    } else {
        0
    };
    let threads = [Threads::One, Threads::Several, Threads::Committer];
    for (seed, threads) in (60..66).zip(threads.into_iter().cycle()) {
        let run = Run {
            subvolumes: true,
            ..run(seed, Layout::Dup, threads)
        };
        judge_some(run, 60, kernel_images);
    }
}

#[test]
fn crash_images_of_a_full_volume_keep_what_each_was_promised() {
    let mut refused = 0;
    for seed in 70..76 {
        let full = run(seed, Layout::Dup, Threads::Full);
        refused += judge_some(full, 60, 0);
    }
    assert!(refused > 20, "only {refused} operations found no space");
}

#[test]
fn crash_images_of_two_devices_show_committed_states() {
    judge_some(run(10, Layout::Raid1, Threads::One), 60, 0);
}

#[test]
fn crash_images_of_a_busy_committer_show_states_between_operations() {
    for seed in 20..26 {
        judge_some(run(seed, Layout::Dup, Threads::Committer), 60, 0);
    }
}

#[test]
fn crash_images_beside_write_back_hold_what_was_written() {
    for seed in 40..46 {
        judge_some(run(seed, Layout::Dup, Threads::Syncer), 60, 0);
    }
}

#[test]
fn crash_images_of_several_threads_keep_what_each_was_promised() {
    for seed in 50..54 {
        judge_some(run(seed, Layout::Dup, Threads::Several), 60, 0);
    }
}

#[test]
fn crash_images_of_threads_that_share_files_keep_what_each_sync_promised() {
    for seed in 80..84 {
        judge_some(run(seed, Layout::Dup, Threads::Shared), 60, 0);
    }
}

#[test]
fn crash_images_of_operations_beside_each_other_keep_what_each_sync_promised() {
    for seed in 100..106 {
        judge_some(run(seed, Layout::Dup, Threads::Rounds), 60, 0);
    }
}

#[test]
fn crash_images_of_a_volume_with_a_snapshot_keep_what_both_sides_were_promised() {
    if cowshed_harness::need::kernel_btrfs().is_none() {
        return;
    }
    let threads = [Threads::One, Threads::Shared, Threads::Committer, Threads::One];
    for (seed, threads) in (90..).zip(threads) {
        let run = Run {
            snapshots: true,
            ..run(seed, Layout::Dup, threads)
        };
        judge_some(run, 60, 2);
    }
}

/// Extents of each kind in commits and in logs, and what others see is as it was written.
#[test]
fn crash_images_of_volumes_that_compress_keep_what_was_promised() {
    let kernel_images = if cowshed_harness::need::kernel_btrfs().is_some() {
        2
    } else {
        0
    };
    let mut total = compressed::Count::default();
    let hows = [("lzo", true), ("zstd:1", true), ("zlib", true), ("zstd:3", false)];
    // What is counted of the first ones follows from their seeds.
    let threads = [
        [Threads::One; 4],
        [Threads::Several, Threads::Committer, Threads::Rounds, Threads::Shared],
    ];
    let kinds = threads.into_iter().flat_map(|threads| hows.into_iter().zip(threads));
    for (seed, ((how, force), threads)) in (121..).zip(kinds) {
        let how = how.parse().unwrap();
        let run = Run {
            mix: Mix::Syncs,
            tree_log: true,
            tear_bytes: 4096,
            compress: Some(CompressPolicy { how, force }),
            ..run(seed, Layout::Dup, threads)
        };
        judge_some_and(run, 30, kernel_images, |recording, judged| {
            let count = recording.compressed(judged)?.expect("the run compresses");
            for (total, of_image) in [(&mut total.all, count.all), (&mut total.logged, count.logged)] {
                total
                    .iter_mut()
                    .zip(of_image)
                    .for_each(|(total, count)| *total += count);
            }
            Ok(())
        });
    }
    println!("{total:?}");
    let [_, found @ ..] = total.all;
    let [_, logged @ ..] = total.logged;
    assert!(!found.contains(&0) && !logged.contains(&0), "{total:?}");
}

/// Several atomic groups at a time, of one file and of more, ended in any order, while others work
/// on their files.
#[test]
fn crash_images_with_groups_open_have_all_of_each_or_nothing() {
    let kernel_images = if cowshed_harness::need::kernel_btrfs().is_some() {
        2
    } else {
        0
    };
    let (mut groups, mut open) = (Counts::default(), 0);
    let threads = [
        Threads::One,
        Threads::Several,
        Threads::One,
        Threads::Full,
        Threads::Committer,
    ];
    for (seed, threads) in (150..158).zip(threads.into_iter().cycle()) {
        let mut of_run = Counts::default();
        judge_some_and(
            run(seed, Layout::Dup, threads),
            60,
            kernel_images,
            |recording, judged| {
                of_run = recording.groups();
                open += usize::from(judged.groups_open > 1);
                Ok(())
            },
        );
        groups += of_run;
    }
    println!("{open} images with two groups or more, {groups:?}");
    let cases = [
        groups.of_handles,
        groups.committed_beside,
        groups.several_files_beside,
        groups.same_file,
        groups.aborted_beside,
        groups.refused,
        groups.on_files,
    ];
    assert!(open > 50 && !cases.contains(&0), "{open}, {groups:?}");
}

#[test]
fn the_kernel_sees_the_same_in_crash_images() {
    if cowshed_harness::need::kernel_btrfs().is_none() {
        return;
    }
    for seed in [31, 32] {
        judge_some(run(seed, Layout::Dup, Threads::One), 60, 3);
    }
    // Torn within 4096 bytes; two devices; both.
    for (seed, layout) in [(33, Layout::Dup), (34, Layout::Raid1), (36, Layout::Raid1)] {
        judge_some(run(seed, layout, Threads::One), 60, 4);
    }
}

/// References that outgrow an item, names of one hash, names and directories that come again: what
/// replays of the kernel may take otherwise.
#[test]
fn crash_images_of_many_names_are_replayed_as_they_were_synced() {
    let kernel_images = if cowshed_harness::need::kernel_btrfs().is_some() {
        4
    } else {
        0
    };
    for seed in 110..113 {
        let run = Run {
            mix: Mix::Links,
            tree_log: true,
            tear_bytes: 4096,
            ..run(seed, Layout::Dup, Threads::One)
        };
        judge_some(run, 50, kernel_images);
    }
}

#[test]
fn an_io_that_fails_gives_an_error_or_the_right_answer() {
    // Seeds without files of megabytes, which are read again and again; the last one's volume
    // compresses.
    let runs = [
        (8, Layout::Dup, Mix::Everything, 25),
        (1, Layout::Dup, Mix::Syncs, 12),
        (1, Layout::Raid1, Mix::Syncs, 6),
        (1, Layout::Single, Mix::Syncs, 8),
        (18, Layout::Single, Mix::Syncs, 12),
    ];
    assert!(compressed::drawn(18).is_some());
    for (seed, layout, mix, ops) in runs {
        let start = std::time::Instant::now();
        let report = faults::every_io_fails(seed, layout, mix, ops).unwrap_or_else(|e| panic!("{e:#}"));
        println!("{layout:?}, {mix:?}: {report}, {:.1} s", start.elapsed().as_secs_f32());
        assert!(report.failing > 20 && report.aborted > 10, "{report}");
    }
}

/// The judge's own test: what it says of the first image that is wrong where the barriers of a kind
/// are missing.
fn found_without(run: Run, ops: Option<Vec<Op>>, kind: Barrier) -> String {
    let mut recording = power::record_ops(run, ops).unwrap();
    let whole = recording.chosen(40);
    for image in whole {
        recording.judge(image).unwrap_or_else(|e| panic!("{e:#}"));
    }
    let forgotten = recording.forget_barriers(kind);
    assert!(forgotten > 2, "{forgotten} barriers {kind:?}");
    let images: Vec<_> = recording.images().take(400).collect();
    let found = images.into_iter().find_map(|image| recording.judge(image).err());
    format!(
        "{:#}",
        found.unwrap_or_else(|| panic!("nothing is found without the barriers {kind:?}"))
    )
}

#[test]
fn an_image_that_fails_is_kept_and_named() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let keep = Keep::new(Some(dir.path().join("kept")));
    let mut recording = power::record(run(10, Layout::Raid1, Threads::One)).unwrap();
    recording.forget_barriers(Barrier::BeforeCommit);
    let images: Vec<_> = recording.images().take(400).collect();
    let mut judge = |image| recording.judge_or_keep(image, &keep, |_, _| Ok(())).err();
    let failure = format!(
        "{:#}",
        images.into_iter().find_map(&mut judge).expect("an image is wrong")
    );
    says(&failure, &["checker"]);
    let named = failure
        .split("cowshed check ")
        .nth(1)
        .and_then(|rest| rest.split(": ").next());
    let paths: Vec<&str> = named.expect("it says how to see it again").split(' ').collect();
    assert_eq!(paths.len(), 2, "both devices: {failure}");
    let devices: Vec<_> = paths
        .iter()
        .map(|path| Arc::new(load_image(path.as_ref()).unwrap()) as Arc<dyn BlockDevice>)
        .collect();
    let again = rig::check_clean(&devices).expect_err("what is kept is what failed");
    says(&format!("{again:#}"), &["checker"]);
}

/// A promise that is broken, in the words of the judge.
const BROKEN: [&str; 5] = [
    "was committed",
    "in no state",
    "was never so",
    "unchanged since",
    "since its floor",
];

#[track_caller]
fn says(found: &str, complaints: &[&str]) {
    assert!(complaints.iter().any(|complaint| found.contains(complaint)), "{found}");
}

#[test]
fn a_missing_barrier_of_a_commit_is_found() {
    let run = run(3, Layout::Dup, Threads::One);
    says(&found_without(run, None, Barrier::BeforeCommit), &["checker"]);
    says(&found_without(run, None, Barrier::AfterCommit), &BROKEN);
}

#[test]
fn a_missing_barrier_of_a_log_is_found() {
    let run = run(5, Layout::Dup, Threads::One);
    assert!(run.tree_log);
    says(&found_without(run, None, Barrier::BeforeLog), &["checker"]);
    says(&found_without(run, None, Barrier::AfterLog), &BROKEN);
}

#[test]
fn a_missing_barrier_of_data_in_place_is_found() {
    let path = || "database".to_owned();
    let write = |offset, len, fill| Op::write(path(), offset, len, fill);
    let flags = Op::flags(path(), NOCOW);
    let mut ops = vec![write(0, 0, 0), flags, write(0, 20_000, 1), Op::Sync];
    for n in 0..4 {
        ops.extend([write(4096 * n, 4096, 2 + n), Op::fdatasync(path())]);
    }
    let run = run(5, Layout::Dup, Threads::One);
    says(&found_without(run, Some(ops), Barrier::Data), &BROKEN);
}

/// Discarded bytes are garbage in the images: what is discarded while anything leads to it is found
/// out.
#[test]
fn crash_images_of_runs_that_discard_keep_what_was_promised() {
    let kernel_images = u64::from(cowshed_harness::need::kernel_btrfs().is_some());
    let mut discarded = 0;
    let threads = [
        Threads::One,
        Threads::Several,
        Threads::One,
        Threads::Committer,
        Threads::Rounds,
        Threads::One,
        Threads::Shared,
        Threads::Full,
    ];
    for (seed, threads) in (500..).zip(threads) {
        let layout = if seed % 4 == 3 { Layout::Raid1 } else { Layout::Dup };
        let run = Run {
            mix: Mix::Syncs,
            tree_log: true,
            tear_bytes: 4096,
            discards: discards::always(seed, threads),
            ..run(seed, layout, threads)
        };
        judge_some_and(run, 30, kernel_images, |recording, _| {
            discarded += u64::from(recording.discards() > 0);
            Ok(())
        });
    }
    assert!(discarded > 150, "only {discarded} images of runs that discard");
}
