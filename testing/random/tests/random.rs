//! The share of the random runs that every test run has. The long ones: `cowshed-random --help`.

use cowshed_random::atomic::{CASES, Cases};
use cowshed_random::{Config, run};

fn check(config: &Config) {
    if let Err(failure) = run(config) {
        panic!("{failure}");
    }
}

#[test]
fn small_nodes() {
    check(&Config {
        btrfs_check: true,
        ..Config::new(101, 8000)
    });
}

#[test]
fn default_nodes() {
    let mut config = Config::new(102, 6000);
    config.setup.node_bytes = 16384;
    check(&config);
}

#[test]
fn explicit_holes() {
    let mut config = Config::new(103, 6000);
    config.setup.no_holes = false;
    config.btrfs_check = true;
    check(&config);
}

#[test]
fn little_memory() {
    let mut config = Config::new(104, 6000);
    config.setup.memory_bytes_max = 1 << 20;
    check(&config);
}

#[test]
fn a_small_volume_fills_up_cleanly() {
    let mut config = Config::new(105, 6000);
    config.setup.device_bytes = 160 << 20;
    (config.may_fill, config.mix.bulky) = (true, true);
    check(&config);
}

#[test]
fn compressed() {
    for (seed, how) in (120..).zip(["zlib:1", "lzo", "zstd:1"]) {
        let mut config = Config::new(seed, 2500);
        config.setup.compress = Some(how.parse().unwrap());
        config.btrfs_check = true;
        check(&config);
    }
}

#[test]
fn a_small_volume_that_compresses_fills_up_cleanly() {
    let mut config = Config::new(123, 4000);
    config.setup.device_bytes = 160 << 20;
    config.setup.compress = Some("zstd:1".parse().unwrap());
    (config.may_fill, config.mix.bulky) = (true, true);
    check(&config);
}

#[test]
fn logs_and_crashes_after_them() {
    for (seed, nodatacow) in [(130, false), (131, true)] {
        let mut config = Config::new(seed, 2500);
        (config.setup.tree_log, config.setup.nodatacow) = (true, nodatacow);
        config.mix.fsyncs = true;
        check(&config);
    }
}

#[test]
fn subvolumes() {
    for (seed, tree_log) in [(140, false), (141, true)] {
        let mut config = Config::new(seed, 3000);
        config.setup.subvolumes = cowshed_random::subject::Setup::some_subvolumes();
        (config.setup.tree_log, config.mix.fsyncs) = (tree_log, tree_log);
        config.btrfs_check = true;
        check(&config);
    }
}

#[test]
fn tides_of_data_and_names() {
    let config = cowshed_random::tides::Config {
        seed: 152,
        turns: 2,
        setup: cowshed_random::subject::Setup {
            device_bytes: 128 << 20,
            node_bytes: 16384,
            ..Default::default()
        },
        btrfs_check: true,
    };
    let reached = cowshed_random::tides::run(&config).unwrap_or_else(|e| panic!("{e:#}"));
    // What was deleted is room again.
    for reach in &reached[1..] {
        let is_far = reach.data_bytes * 20 >= reached[0].data_bytes * 19 && reach.names * 5 >= reached[0].names * 4;
        assert!(is_far, "{reach}, but {} in the first turn", reached[0]);
    }
}

#[test]
fn several_devices() {
    let mut config = Config::new(106, 4000);
    (config.setup.data, config.setup.metadata) =
        (Some(btrfs_image::Profile::Raid10), Some(btrfs_image::Profile::Raid1));
    config.btrfs_check = true;
    check(&config);
}

#[test]
fn threads_in_directories_of_their_own() {
    for (seed, memory_bytes_max) in [(107, 1 << 30), (108, 1 << 20)] {
        let setup = cowshed_random::subject::Setup {
            memory_bytes_max,
            commit_interval_s: 1,
            ..Default::default()
        };
        let config = cowshed_random::threads::Config {
            seed,
            threads: 3,
            operations: 2500,
            setup,
            may_fill: false,
        };
        cowshed_random::threads::run(&config).unwrap_or_else(|e| panic!("{e:#}"));
    }
}

/// Several at a time, of one file and of more, of the library and of handles, and everything else
/// in between.
#[test]
fn atomic_groups_beside_each_other() {
    let mut cases = Cases::new();
    for (seed, tree_log, compress) in [(160, true, None), (161, false, None), (162, true, Some("zstd:1"))] {
        let mut config = Config::new(seed, 3000);
        config.setup.tree_log = tree_log;
        config.setup.compress = compress.map(|how| how.parse().unwrap());
        (config.mix.groups, config.mix.fsyncs) = (true, tree_log);
        config.btrfs_check = true;
        let summary = run(&config).unwrap_or_else(|failure| panic!("{failure}"));
        for (case, count) in summary.groups {
            *cases.entry(case).or_default() += count;
        }
    }
    println!("{cases:#?}");
    let missing: Vec<_> = CASES.iter().filter(|case| !cases.contains_key(**case)).collect();
    assert!(missing.is_empty(), "runs without {missing:?}");
}
