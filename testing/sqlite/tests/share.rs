//! A share of the kills under SQLite, in seconds. The long runs: `cargo xtask sqlite kills`.

use std::path::PathBuf;

use cowshed_harness::need;
use cowshed_sqlite::place::Programs;
use cowshed_sqlite::{full, kills, large};

fn programs() -> Option<Programs> {
    need::kernel_btrfs()?;
    need::fuse()?;
    let this = PathBuf::from(env!("CARGO_BIN_EXE_cowshed-sqlite"));
    let cowshed = this.with_file_name("cowshed");
    need::require(cowshed.is_file(), "the program itself: cargo build -p cowshed")?;
    Some(Programs { cowshed, this })
}

#[test]
fn what_was_acknowledged_is_there_whoever_is_killed() {
    let Some(programs) = programs() else { return };
    let config = kills::Config {
        seed: need::share_seed("kills under SQLite"),
        rounds: 9,
        transactions: 100,
        programs,
        progress: false,
    };
    let summary = kills::run(&config).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.transactions > 100, "{summary:?}");
}

#[test]
fn a_full_volume_refuses_transactions_whole_and_goes_on_when_there_is_room() {
    let Some(programs) = programs() else { return };
    let config = full::Config {
        seed: need::share_seed("SQLite on full volumes"),
        rounds: 3,
        programs,
        progress: false,
    };
    let summary = full::run(&config).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.refused > 0 && summary.acknowledged > 0, "{summary:?}");
}

#[test]
fn what_is_too_large_for_a_group_has_a_journal_and_is_whole() {
    let Some(programs) = programs() else { return };
    let config = large::Config {
        seed: need::share_seed("large transactions of SQLite"),
        rounds: 3,
        is_huge: false,
        programs,
        progress: false,
    };
    let summary = large::run(&config).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.transactions >= 3, "{summary:?}");
}
