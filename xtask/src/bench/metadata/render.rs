//! The tables and the picture.

use std::fmt::Write as _;

use super::super::plot::{self, Series};
use super::Args;
use super::column::Column;
use super::results::{Key, Kind, Results};
use super::stats::Sample;

/// In docs/.
pub const PICTURE: &str = "metadata.svg";

pub fn render(results: &Results, args: &Args) -> String {
    let mut text = format!(
        "Scale {}, medians of {} runs. Ratio: how many times as fast as the kernel's btrfs.\n",
        args.scale, args.runs
    );
    for kind in Kind::ALL {
        if results.keys(kind).next().is_some() {
            let _ = write!(text, "\n{}\n\n", caption(kind, args));
            table(&mut text, results, kind, args);
        }
    }
    if results.keys(Kind::Names).next().is_some() {
        let _ = write!(
            text,
            "\nMicroseconds of a call: p50 / p99 / p99.9 (readdir: of a getdents() of 32 KiB).\n\n"
        );
        latencies(&mut text, results);
    }
    means(&mut text, results);
    if picture(results).is_some() {
        let _ = write!(text, "\n![Files per second of fs_mark by callers]({PICTURE})\n");
    }
    text
}

/// The table of docs/MOUNT.md: programs, and calls by one caller, on both transports.
pub fn for_users(results: &Results) -> String {
    const COLUMNS: [Column; 4] = [Column::Uring, Column::Fewest, Column::Private, Column::Dev];
    let mut text = String::from(
        "\n| | kernel's btrfs | over io_uring | io_uring, no_open and noxattr | io_uring, private | over /dev/fuse |\n\
         |---|---:|---:|---:|---:|---:|\n",
    );
    for kind in [Kind::Commands, Kind::Names] {
        for key in results.keys(kind).filter(|key| key.callers == 1) {
            let unit = if kind == Kind::Commands { " ms" } else { "" };
            let cell = |column| match results.median(key, column) {
                Some(sample) => format!("{}{unit}", show(kind, Some(sample))),
                None => "-".into(),
            };
            let _ = write!(text, "| {} | {} |", key.name, cell(Column::Kernel));
            for column in COLUMNS {
                let ratio = results.ratio(key, column).map(|ratio| format!(" ({ratio:.2})"));
                let _ = write!(text, " {}{} |", cell(column), ratio.unwrap_or_default());
            }
            text.push('\n');
        }
    }
    text.push('\n');
    text
}

fn caption(kind: Kind, args: &Args) -> String {
    match kind {
        Kind::FsMark => format!(
            "As `fs_mark -S 0 -s 0 -k`: {} loops, a directory for each caller. Files per second, in brackets the last \
             loop's rate over the best one's.",
            args.loops
        ),
        Kind::Names => "One call on many names, calls per second (readdir: names).".into(),
        Kind::Commands => "Programs, milliseconds.".into(),
    }
}

fn table(text: &mut String, results: &Results, kind: Kind, args: &Args) {
    let columns = results.columns(kind);
    let others = || columns.iter().copied().filter(|column| *column != Column::Kernel);
    let has_kernel = columns.contains(&Column::Kernel);
    let mut header = match kind {
        Kind::FsMark => "| callers | files of each in a loop |".to_owned(),
        Kind::Names => "| line | callers |".to_owned(),
        Kind::Commands => "| command |".to_owned(),
    };
    let mut rule = match kind {
        Kind::FsMark => "|---:|---:|".to_owned(),
        Kind::Names => "|---|---:|".to_owned(),
        Kind::Commands => "|---|".to_owned(),
    };
    if has_kernel {
        header += " kernel |";
        rule += "---:|";
    }
    for column in others() {
        let _ = write!(header, " {} | ratio |", column.title());
        rule += "---:|---:|";
    }
    let _ = writeln!(text, "{header}\n{rule}");
    for key in results.keys(kind) {
        let _ = match kind {
            Kind::FsMark => write!(text, "| {} | {} |", key.callers, args.fs_mark_files(key.callers)),
            Kind::Names => write!(text, "| {} | {} |", key.name, key.callers),
            Kind::Commands => write!(text, "| {} |", key.name),
        };
        if has_kernel {
            let _ = write!(text, " {} |", show(kind, results.median(key, Column::Kernel)));
        }
        for column in others() {
            let ratio = results
                .ratio(key, column)
                .map_or("-".into(), |ratio| format!("{ratio:.2}"));
            let _ = write!(text, " {} | {ratio} |", show(kind, results.median(key, column)));
        }
        text.push('\n');
    }
}

fn show(kind: Kind, sample: Option<Sample>) -> String {
    let Some(sample) = sample else {
        return "-".into();
    };
    let value = sample.value;
    match (kind, sample.last_over_best) {
        (Kind::Commands, _) if value >= 100.0 => format!("{value:.0}"),
        (Kind::Commands, _) => format!("{value:.1}"),
        (_, Some(last_over_best)) => format!("{} ({last_over_best:.2})", rate(value)),
        (_, None) => rate(value),
    }
}

fn rate(per_second: f64) -> String {
    match per_second {
        10_000.0.. => format!("{:.0}k/s", per_second / 1e3),
        1_000.0.. => format!("{:.1}k/s", per_second / 1e3),
        _ => format!("{per_second:.0}/s"),
    }
}

fn latencies(text: &mut String, results: &Results) {
    let columns = results.columns(Kind::Names);
    let has = |column: &Column| {
        let mut medians = results.keys(Kind::Names).filter_map(|key| results.median(key, *column));
        medians.any(|sample| sample.latency_us.is_some())
    };
    let columns: Vec<Column> = columns.into_iter().filter(has).collect();
    let titles: Vec<_> = columns.iter().map(|column| column.title()).collect();
    let _ = writeln!(text, "| line | callers | {} |", titles.join(" | "));
    let _ = writeln!(text, "|---|---:|{}", "---:|".repeat(columns.len()));
    for key in results.keys(Kind::Names) {
        let _ = write!(text, "| {} | {} |", key.name, key.callers);
        for column in &columns {
            let latency = results.median(key, *column).and_then(|sample| sample.latency_us);
            let shown = latency.map_or("-".into(), |latency| latency.map(micros).join(" / "));
            let _ = write!(text, " {shown} |");
        }
        text.push('\n');
    }
}

fn micros(us: f64) -> String {
    match us {
        10.0.. => format!("{us:.0}"),
        _ => format!("{us:.1}"),
    }
}

/// The geometric means of the ratios, of each kind of line and of all.
fn means(text: &mut String, results: &Results) {
    let is_other = |column: &Column| *column != Column::Kernel && results.mean_ratio(&Kind::ALL, *column).is_some();
    let columns: Vec<Column> = Column::ALL.into_iter().filter(is_other).collect();
    if columns.is_empty() {
        return;
    }
    let titles: Vec<_> = columns.iter().map(|column| column.title()).collect();
    let _ = write!(
        text,
        "\nGeometric means of the ratios, in brackets the number of lines.\n\n"
    );
    let _ = writeln!(text, "| lines | {} |", titles.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(columns.len()));
    let mut line = |name: &str, kinds: &[Kind]| {
        let cells = columns.iter().map(|column| match results.mean_ratio(kinds, *column) {
            Some((mean, lines)) => format!("{mean:.2} ({lines})"),
            None => "-".into(),
        });
        let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    };
    for (name, kind) in [
        ("fs_mark", Kind::FsMark),
        ("names", Kind::Names),
        ("programs", Kind::Commands),
    ] {
        if results.keys(kind).next().is_some() {
            line(name, &[kind]);
        }
    }
    line("all", &Kind::ALL);
}

/// Files per second of the yardstick by callers. `None` of fewer than two numbers of callers.
pub fn picture(results: &Results) -> Option<String> {
    let keys: Vec<&Key> = results.keys(Kind::FsMark).collect();
    let curve = |column: Column| {
        let point = |key: &&Key| Some((key.callers as f64, results.median(key, column)?.value));
        Series {
            name: column.title().into(),
            points: keys.iter().filter_map(point).collect(),
        }
    };
    let series: Vec<Series> = results.columns(Kind::FsMark).into_iter().map(curve).collect();
    (keys.len() >= 2).then(|| plot::curves("Empty files, as fs_mark makes them", "callers", "files/s", &series))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_ratios_and_means() {
        let create = Key::new(Kind::Names, "create", 1);
        let fs_mark = Key::new(Kind::FsMark, "fs_mark", 2);
        let more = Key::new(Kind::FsMark, "fs_mark", 4);
        let mut results = Results::new([create, fs_mark, more]);
        for (column, value) in [(Column::Kernel, 50_000.0), (Column::Uring, 25_000.0)] {
            let timed = Sample {
                latency_us: Some([12.34, 5.0, 1000.0]),
                ..Sample::of_value(value)
            };
            results.record(&create, column, timed);
            let looped = Sample {
                last_over_best: Some(0.9),
                ..Sample::of_value(value)
            };
            results.record(&fs_mark, column, looped);
        }
        results.record(&create, Column::InProcess, Sample::of_value(500_000.0));
        let args = Args::for_tests();
        let text = render(&results, &args);
        for line in [
            "| 2 | 100000 | 50k/s (0.90) | 25k/s (0.90) | 0.50 |",
            "| create | 1 | 50k/s | 25k/s | 0.50 | 500k/s | 10.00 |",
            "| create | 1 | 12 / 5.0 / 1000 | 12 / 5.0 / 1000 |",
            "| all | 0.50 (2) | 10.00 (1) |",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
        let short = for_users(&results);
        assert!(
            short
                .lines()
                .any(|l| l == "| create | 50k/s | 25k/s (0.50) | - | - | - |"),
            "{short}"
        );
        assert_eq!(picture(&results), None);
        results.record(&more, Column::Kernel, Sample::of_value(1.0));
        assert!(picture(&results).is_some());
    }

    #[test]
    fn rates_and_times_have_three_figures() {
        assert_eq!([12_345.0, 1234.0, 123.4].map(rate), ["12k/s", "1.2k/s", "123/s"]);
        assert_eq!(
            [123.4, 12.34].map(|ms| show(Kind::Commands, Some(Sample::of_value(ms)))),
            ["123", "12.3"]
        );
    }
}
