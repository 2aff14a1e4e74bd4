//! What random runs found, as the few operations that it takes. Each failed once.

use cowshed_model::{At, Name, Op, Place};
use cowshed_random::run::replay;
use cowshed_random::{Config, subject::Setup};

fn check(setup: Setup, ops: &[Op]) {
    let config = Config {
        setup,
        check_one_in: 1,
        ..Config::new(1, 0)
    };
    if let Err(error) = replay(&config, ops) {
        panic!("{error:#}");
    }
}

fn a() -> At {
    At::Path(vec![Name(0)])
}

fn create() -> Op {
    let place = Place {
        dir: At::Path(vec![]),
        name: Name(0),
    };
    Op::create(place, 0o644, true, false)
}

fn write(offset: u64, len: u32) -> Op {
    Op::write(a(), offset, len, 1, false)
}

/// The size in the inode item went up to the new end, over data that was still in memory.
#[test]
fn a_truncation_above_dirty_data_leaves_the_size_on_disk_alone() {
    let setup = Setup {
        no_holes: false,
        ..Setup::default()
    };
    let truncate = Op::truncate(a(), 229_376);
    let ops = [
        create(),
        write(186_127, 5046),
        write(3_899_392, 20_580),
        truncate,
        Op::Commit,
    ];
    check(setup, &ops);
}

/// Rounding the offset up overflowed.
#[test]
fn nothing_is_copied_from_the_end_of_the_world() {
    let copy = |src_offset| Op::Copy {
        src: a(),
        src_offset,
        dst: a(),
        dst_offset: 0,
        len: 10,
    };
    check(Setup::default(), &[create(), copy(u64::MAX - 5), copy(i64::MAX as u64)]);
}

/// It dropped the data before it found that there is no space for the new extents.
#[test]
fn zeroing_on_a_full_volume_fails_before_it_changes_anything() {
    let mut ops = vec![create(), write(0, 1 << 20)];
    let b = At::Path(vec![Name(1)]);
    ops.push(Op::create(
        Place {
            dir: At::Path(vec![]),
            name: Name(1),
        },
        0o644,
        true,
        false,
    ));
    let size = 1 << 20;
    ops.extend((0..60).map(|n| Op::Write {
        at: b.clone(),
        offset: n * u64::from(size),
        len: size,
        fill: n,
        append: false,
    }));
    ops.push(Op::Sync);
    ops.push(Op::fallocate(a(), cowshed_vfs::FallocateFlags::ZERO_RANGE, 0, 1 << 20));
    ops.push(Op::Sync);
    let setup = Setup {
        device_bytes: 128 << 20,
        ..Setup::default()
    };
    let config = Config {
        setup,
        may_fill: true,
        ..Config::new(1, 0)
    };
    let summary = replay(&config, &ops).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.full > 1, "the volume was full");
}

/// The end overflowed where the file looked for a place that needs no space.
#[test]
fn a_write_behind_the_end_of_the_world_fails_on_a_full_volume() {
    let mut ops = vec![create()];
    ops.extend((0..100).map(|n| Op::Fallocate {
        at: a(),
        mode: cowshed_vfs::FallocateFlags::empty(),
        offset: n << 20,
        len: 1 << 20,
    }));
    ops.push(write(u64::MAX - 5, 100));
    ops.extend([write(0, 8 << 20), write(1 << 30, 64 << 20), write(u64::MAX - 5, 100)]);
    let setup = Setup {
        device_bytes: 128 << 20,
        ..Setup::default()
    };
    let config = Config {
        setup,
        may_fill: true,
        ..Config::new(1, 0)
    };
    let summary = replay(&config, &ops).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.full > 0, "the volume was full");
}

/// Set-id bits went before it was known that nothing would be cloned.
#[test]
fn a_clone_or_exchange_that_fails_leaves_the_mode() {
    let set_id = Op::chmod(a(), 0o6755);
    let clone = Op::clone_range(a(), 0, a(), 100, 4096);
    let exchange = Op::exchange(a(), 4096, a(), 0, 4096, false);
    check(Setup::default(), &[create(), set_id, write(0, 100), clone, exchange]);
}

/// The target's end was rounded up, although only whole blocks are shared.
#[test]
fn blocks_of_one_file_are_deduplicated_as_far_as_they_do_not_meet() {
    let zeros = Op::write(a(), 0, 12_288, 0, false);
    let dedupe = Op::dedupe(a(), 0, a(), 4096, 5000);
    check(Setup::default(), &[create(), zeros, dedupe]);
}

/// The engine shared 16 MiB in one call at most.
#[test]
fn a_dedupe_is_of_any_length() {
    const BYTES: u64 = 18 << 20;
    let b = || At::Path(vec![Name(1)]);
    let place = Place {
        dir: At::Path(vec![]),
        name: Name(1),
    };
    let create_b = Op::create(place, 0o644, true, false);
    // In what was beyond the end of one call.
    let end = |at: At| Op::Write {
        at,
        offset: BYTES - 9000,
        len: 9000,
        fill: 1,
        append: false,
    };
    let dedupe = |src_offset, len| Op::Dedupe {
        src: a(),
        src_offset,
        dst: b(),
        dst_offset: src_offset,
        len,
    };
    let other_end = Op::write(b(), BYTES - 1, 1, 2, false);
    let ops = [
        create(),
        create_b,
        end(a()),
        end(b()),
        dedupe(0, BYTES),
        dedupe(4096, BYTES - 4096),
        other_end,
        dedupe(0, BYTES),
    ];
    check(Setup::default(), &ops);
}

/// They were kept, and changed the time.
#[test]
fn properties_of_links_are_forgotten() {
    let place = Place {
        dir: At::Path(vec![]),
        name: Name(0),
    };
    let link = Op::symlink(place, 5, 1);
    let property = |value| Op::Property { at: a(), value };
    check(Setup::default(), &[link, property(Some(2)), property(None)]);
}

/// The last file of a log went, and the commit after a replay of nothing wrote a superblock of a
/// new generation without a root tree of that generation: the kernel does not mount that.
#[test]
fn a_log_that_became_empty_is_replayed_to_nothing() {
    let place = |n| Place {
        dir: At::Path(vec![]),
        name: Name(n),
    };
    let at = |n| At::Path(vec![Name(n)]);
    let mkdir = Op::mkdir(place(1), 0o755);
    let make = |place| Op::Create {
        place,
        perm: 0o644,
        exclusive: true,
        truncate: false,
    };
    let inner = At::Path(vec![Name(2), Name(3)]);
    let ops = [
        mkdir,
        make(Place {
            dir: at(1),
            name: Name(3),
        }),
        Op::Sync,
        Op::rename(place(1), place(2), cowshed_vfs::RenameFlags::empty()),
        make(place(4)),
        Op::fsync(at(4)),
        Op::unlink(place(4)),
        Op::fsync(inner),
    ];
    let setup = Setup {
        tree_log: true,
        ..Setup::default()
    };
    check(setup, &ops);
}
