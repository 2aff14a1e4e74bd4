//! A share of the kills under SQLite, in seconds. The long runs: `cargo xtask sqlite kills`.

use std::path::PathBuf;

use cowshed_harness::need;
use cowshed_sqlite::place::{Programs, Rounds};
use cowshed_sqlite::{full, kills, large};

fn rounds(what: &str, count: u64) -> Option<Rounds> {
    need::kernel_btrfs()?;
    need::fuse()?;
    let this = PathBuf::from(env!("CARGO_BIN_EXE_cowshed-sqlite"));
    let cowshed = this.with_file_name("cowshed");
    need::require(cowshed.is_file(), "the program itself: cargo build -p cowshed")?;
    Some(Rounds {
        seed: need::share_seed(what),
        count,
        programs: Programs { cowshed, this },
        progress: false,
    })
}

#[test]
fn acknowledged_transactions_survive_kills() {
    let Some(rounds) = rounds("kills under SQLite", 9) else {
        return;
    };
    let summary = kills::run(&rounds, 100).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.transactions > 100, "{summary:?}");
}

#[test]
fn a_full_volume_refuses_transactions_whole_and_goes_on_when_there_is_room() {
    let Some(rounds) = rounds("SQLite on full volumes", 3) else {
        return;
    };
    let summary = full::run(&rounds).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.refused > 0 && summary.acknowledged > 0, "{summary:?}");
}

#[test]
fn what_is_too_large_for_a_group_has_a_journal_and_is_whole() {
    let Some(rounds) = rounds("large transactions of SQLite", 3) else {
        return;
    };
    let summary = large::run(&rounds, false).unwrap_or_else(|e| panic!("{e:#}"));
    assert!(summary.transactions >= 3, "{summary:?}");
}
