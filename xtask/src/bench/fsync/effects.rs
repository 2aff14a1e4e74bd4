//! What each mechanism of the log is worth: our side alone, with one of them switched off in turn.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use super::super::side::{Setup, Side};
use super::super::{switches, table};
use super::{Args, Outcome, dbench, names, steady};

/// What is off, and how the table calls it.
const WAYS: [(&str, &str); 5] = [
    ("", "everything on"),
    ("bulk", "no bulk copy of new inodes"),
    ("xattr", "xattrs always searched"),
    ("share", "no shared log writes"),
    ("choice", "a log wherever one is possible"),
];
/// A run with all names takes a minute; the first fsync of a part of them says the same.
const NAMES_PART: u64 = 4;

/// One row of the table.
#[derive(Clone, Copy, Default)]
struct Row {
    first_fsync_ms: f64,
    mb_per_s: f64,
    flush_ms: f64,
    files_per_s: f64,
    files_kib: f64,
    database_per_s: f64,
}

type Column = (&'static str, usize, fn(&Row) -> f64);

pub fn run(args: &Args, _: &[Side]) -> Result<Outcome> {
    let program = switches::build()?;
    let mut results = vec![Vec::new(); WAYS.len()];
    for round in 0..args.runs {
        for turn in 0..WAYS.len() {
            let number = (turn + round) % WAYS.len();
            let row = one_way(args, &program, WAYS[number].0)?;
            eprintln!("{:<32} {:>8.1} ms first fsync", WAYS[number].1, row.first_fsync_ms);
            results[number].push(row);
        }
    }
    Ok(render(args, &results))
}

fn one_way(args: &Args, program: &Path, off: &str) -> Result<Row> {
    let environment = [(switches::OFF, off)];
    let setup = Setup {
        mkfs: &dbench::MKFS,
        program: Some(program),
        environment: &environment,
        ..Setup::default()
    };
    let clients = dbench::one_run(args, Side::Ours, &setup, args.seconds)?;
    let files = steady::one_run(args, Side::Ours, &setup, steady::SMALL_FILES)?;
    Ok(Row {
        first_fsync_ms: names::first_fsync(args, &setup, args.files / NAMES_PART)? * 1e3,
        mb_per_s: clients.mb_per_s,
        flush_ms: clients.flush_average_ms,
        files_per_s: files.per_s,
        files_kib: files.kib_per_sync,
        database_per_s: steady::one_run(args, Side::Ours, &setup, steady::DATABASE)?.per_s,
    })
}

fn render(args: &Args, results: &[Vec<Row>]) -> Outcome {
    let columns: [Column; 6] = [
        ("first fsync, ms", 0, |r| r.first_fsync_ms),
        ("dbench, MB/s", 0, |r| r.mb_per_s),
        ("Flush, ms", 3, |r| r.flush_ms),
        ("new files, 8 threads", 0, |r| r.files_per_s),
        ("KiB per fsync", 1, |r| r.files_kib),
        ("overwrite + fdatasync, 8 threads", 0, |r| r.database_per_s),
    ];
    let mut text = format!(
        "First fsync of {} names, leaves of 16k; medians of {} runs.\n\n| Cowshed |",
        args.files / NAMES_PART,
        args.runs
    );
    for (name, ..) in columns {
        let _ = write!(text, " {name} |");
    }
    let _ = write!(text, "\n|---|{}\n", "---:|".repeat(columns.len()));
    for (rows, (_, name)) in results.iter().zip(WAYS) {
        let _ = write!(text, "| {name} |");
        for (_, decimals, take) in columns {
            let values: Vec<f64> = rows.iter().map(take).collect();
            let _ = write!(text, " {} |", super::show(table::median(&values), decimals));
        }
        text.push('\n');
    }
    Outcome { text, picture: None }
}
