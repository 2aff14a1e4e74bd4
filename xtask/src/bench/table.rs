//! The table, and its place in docs/performance.md.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::Results;
use super::loads::{self, Amount, Scale};
use super::side::Side;
use crate::run;

const BEGIN: &str = "<!-- cargo xtask bench: begin -->";
const END: &str = "<!-- cargo xtask bench: end -->";

/// The middle one; `None` of nothing.
pub fn median(seconds: &[f64]) -> Option<f64> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[n / 2]),
        n => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
    }
}

/// The median of some runs for a table, in brackets the lowest and the highest of them.
pub fn show_runs(values: &[f64], decimals: usize) -> String {
    let Some(median) = median(values) else {
        return "-".into();
    };
    let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
    let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    match values {
        [_] => format!("{median:.decimals$}"),
        _ => format!("{median:.decimals$} ({lowest:.decimals$} to {highest:.decimals$})"),
    }
}

/// `over / under`, for a table.
pub fn ratio(over: Option<f64>, under: Option<f64>) -> String {
    match (over, under) {
        (Some(over), Some(under)) => format!("{:.2}", over / under),
        _ => "-".into(),
    }
}

/// What was done per second, in the unit that fits it.
fn rate(amount: Amount, seconds: f64, scale: &Scale) -> String {
    match amount {
        Amount::Files(full) | Amount::Blocks(full) => {
            let per_s = scale.count(full) as f64 / seconds;
            match per_s >= 10_000.0 {
                true => format!("{:.0}k/s", per_s / 1000.0),
                false => format!("{per_s:.0}/s"),
            }
        }
        Amount::Bytes(full) => format!("{:.2} GB/s", scale.bytes(full) as f64 / seconds / 1e9),
        Amount::Tree => format!("{seconds:.2} s"),
    }
}

pub fn render(results: &Results, scale: &Scale, runs: usize) -> String {
    let mut text = format!(
        "Scale {}, medians of {runs} runs. Ratio: how many times as fast as the kernel's btrfs.\n\n\
         | Load | kernel | Cowshed | ratio |\n|---|---:|---:|---:|\n",
        scale.factor
    );
    let mut seen = Vec::new();
    for load in loads::all() {
        if seen.contains(&load.name) {
            continue;
        }
        seen.push(load.name);
        let of = |side| results.get(&(load.name, side)).and_then(|s| median(s));
        let (kernel, ours) = (of(Side::Kernel), of(Side::Ours));
        if kernel.is_none() && ours.is_none() {
            continue;
        }
        let show = |seconds: Option<f64>| seconds.map_or("-".into(), |s| rate(load.amount, s, scale));
        let ratio = match (kernel, ours) {
            (Some(kernel), Some(ours)) => format!("{:.2}", kernel / ours),
            _ => "-".into(),
        };
        let _ = writeln!(text, "| {} | {} | {} | {ratio} |", load.name, show(kernel), show(ours));
    }
    text
}

/// Puts the table of all loads into docs/performance.md.
pub fn store(table: &str) -> Result<()> {
    store_between(BEGIN, END, table)
}

/// Puts the table of `cargo xtask bench NAME` into docs/performance.md.
pub fn store_named(name: &str, table: &str) -> Result<()> {
    store_named_in("performance.md", name, table)
}

/// Bars of one unit, which share a scale.
pub struct Panel<'a> {
    /// What is measured, with its unit.
    pub title: &'a str,
    /// Each with its label and its value.
    pub bars: Vec<(String, f64)>,
}

/// A picture of bars, one under the other, each with its label and its value.
pub fn bars(title: &str, values: &[(String, f64)]) -> String {
    let bars = values.to_vec();
    panels(title, &[Panel { title: "", bars }])
}

/// A picture of several groups of bars, each with a scale of its own: the longest bar of each is as
/// long.
pub fn panels(title: &str, panels: &[Panel<'_>]) -> String {
    const ROW: usize = 26;
    /// Of a letter, about.
    const LETTER: usize = 7;
    const LABELS_MIN: usize = 250;
    const LONGEST: f64 = 420.0;
    let bars = || panels.iter().flat_map(|panel| &panel.bars);
    let labels = bars()
        .map(|(label, _)| label.len() * LETTER)
        .fold(LABELS_MIN, usize::max);
    let titles = panels.iter().filter(|panel| !panel.title.is_empty()).count();
    let (width, height) = (labels + 510, ROW * (bars().count() + titles + 1) + 10);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n<text x=\"10\" y=\"18\" font-weight=\"bold\">{title}</text>\n"
    );
    let mut top = ROW;
    for panel in panels {
        if !panel.title.is_empty() {
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                labels + 10,
                top + 16,
                panel.title
            );
            top += ROW;
        }
        let longest = panel
            .bars
            .iter()
            .map(|(_, value)| *value)
            .fold(f64::MIN_POSITIVE, f64::max);
        for (label, value) in &panel.bars {
            let length = LONGEST * value / longest;
            let colour = if label.contains("cowshed") {
                "#2a7f62"
            } else {
                "#9aa5b1"
            };
            let decimals = if *value < 10.0 { 1 } else { 0 };
            let _ = write!(
                svg,
                "<text x=\"{labels}\" y=\"{}\" text-anchor=\"end\">{label}</text>\n\
                 <rect x=\"{}\" y=\"{top}\" width=\"{length:.0}\" height=\"18\" fill=\"{colour}\"/>\n\
                 <text x=\"{:.0}\" y=\"{}\">{value:.decimals$}</text>\n",
                top + 14,
                labels + 10,
                (labels + 16) as f64 + length,
                top + 14
            );
            top += ROW;
        }
    }
    svg + "</svg>\n"
}

/// Puts the table between two markers of docs/performance.md.
/// The same in another document, named by its path below docs/.
pub fn store_named_in(document: &str, name: &str, table: &str) -> Result<()> {
    let marker = |which: &str| format!("<!-- cargo xtask bench {name}: {which} -->");
    store_in(document, &marker("begin"), &marker("end"), table)
}

fn store_between(begin: &str, end: &str, table: &str) -> Result<()> {
    store_in("performance.md", begin, end, table)
}

fn store_in(document: &str, begin: &str, end: &str, table: &str) -> Result<()> {
    let path = run::root().join("docs").join(document);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let new =
        replace(&text, (begin, end), table).with_context(|| format!("{}: no markers for the table", path.display()))?;
    std::fs::write(&path, new)?;
    println!("written to docs/{document}");
    Ok(())
}

fn replace(text: &str, (begin, end): (&str, &str), table: &str) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(end)?;
    Some(format!("{before}{begin}\n{table}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_and_worst_run_stand_beside_the_median() {
        assert_eq!(show_runs(&[3.0, 1.25, 2.0], 1), "2.0 (1.2 to 3.0)");
        assert_eq!(show_runs(&[3.0], 0), "3");
        assert_eq!(show_runs(&[], 0), "-");
    }

    #[test]
    fn only_the_table_is_replaced() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(
            replace(&text, (BEGIN, END), "new\n").as_deref(),
            Some(format!("a\n{BEGIN}\nnew\n{END}\nb\n").as_str())
        );
        assert_eq!(replace("a", (BEGIN, END), "new"), None);
    }

    #[test]
    fn each_panel_has_its_own_scale() {
        let panel = |title, values: [f64; 2]| Panel {
            title,
            bars: ["kernel", "cowshed"]
                .map(str::to_owned)
                .into_iter()
                .zip(values)
                .collect(),
        };
        let svg = panels("title", &[panel("MB/s", [400.0, 200.0]), panel("ms", [1.5, 3.0])]);
        assert_eq!(svg.matches("width=\"420\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("width=\"210\"").count(), 2, "{svg}");
        for words in [">MB/s<", ">ms<", ">400<", ">1.5<", ">title<"] {
            assert!(svg.contains(words), "{words} in {svg}");
        }
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
