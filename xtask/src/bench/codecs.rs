//! `cargo xtask bench stream --in-process`: streams under each compression without a mount, beside
//! the codec alone.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::{stream, table};
use crate::run;

const NAME: &str = "stream --in-process";
/// What the benchmark tells of each line, in the order of the columns.
const COLUMNS: [(&str, usize); 10] = [
    ("write", 0),
    ("write", 1),
    ("write", 2),
    ("write", 3),
    ("read", 0),
    ("read", 1),
    ("read", 2),
    ("read", 3),
    ("read", 4),
    ("read", 5),
];

/// Rates of all runs of one line; none where there is nothing to measure.
struct Line {
    title: String,
    rates: [Vec<f64>; COLUMNS.len()],
}

pub fn main(args: &stream::Args) -> Result<()> {
    super::build()?;
    let mut lines: Vec<Line> = Vec::new();
    let stream = format!("{}m", args.mib);
    for _ in 0..args.runs {
        let arguments = ["--codecs", "--json", "--stream", &stream, "--only", &args.only];
        let mut command = run::command("target/release/cowshed-bench-inprocess", &arguments);
        for line in run::output(&mut command)?.lines() {
            add(&mut lines, &serde_json::from_str(line)?)?;
        }
    }
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let text = render(&lines, args, processors);
    println!("{text}");
    if args.dry_run {
        return Ok(());
    }
    table::store_named(NAME, &text)
}

fn add(lines: &mut Vec<Line>, line: &serde_json::Value) -> Result<()> {
    let word = |name: &str| line[name].as_str().context("a line names what it measures");
    let title = format!("{} | {}", word("how")?, word("content")?);
    let index = lines.iter().position(|l| l.title == title).unwrap_or_else(|| {
        lines.push(Line {
            title,
            rates: Default::default(),
        });
        lines.len() - 1
    });
    for (rates, (name, way)) in lines[index].rates.iter_mut().zip(COLUMNS) {
        rates.extend(line[name][way].as_f64());
    }
    Ok(())
}

fn render(lines: &[Line], args: &stream::Args, processors: usize) -> String {
    let mut text = format!(
        "{} MiB, medians of {} runs, GB/s, with 1 processor and with {processors}. Calls of 1 MiB (small steps: 64 KiB), a volume in memory.\n\n\
         | Option | data | write: codec alone, 1 | engine, 1 | codec alone, {processors} | engine, {processors} \
         | read: codec alone, 1 | engine, 1 | codec alone, {processors} | engine, {processors} | engine, {processors} callers | engine, {processors}, small steps |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
        args.mib, args.runs
    );
    for line in lines {
        let _ = write!(text, "| {} |", line.title);
        for rates in &line.rates {
            let rate = table::median(rates).map_or("-".into(), |rate| format!("{rate:.2}"));
            let _ = write!(text, " {rate} |");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_medians_and_what_is_missing() {
        let mut lines = Vec::new();
        for rate in [1.0, 5.0, 2.0] {
            let line = serde_json::json!({
                "how": "none", "content": "text", "write": [null, rate, null, 2.0],
                "read": [null, 3.0, null, 4.0, 5.0, 6.0],
            });
            add(&mut lines, &line).unwrap();
        }
        let args = stream::Args {
            mib: 1024,
            runs: 3,
            only: String::new(),
            dir: "/dev/shm".into(),
            dry_run: true,
            ours: false,
            in_process: true,
        };
        let text = render(&lines, &args, 2);
        assert!(
            text.ends_with("| none | text | - | 2.00 | - | 2.00 | - | 3.00 | - | 4.00 | 5.00 | 6.00 |\n"),
            "{text}"
        );
    }
}
