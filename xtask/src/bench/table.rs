//! The table, and its place in docs/performance.md.

use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::Results;
use super::loads::{self, Amount, Scale};
use super::side::Side;
use crate::run;

const BEGIN: &str = "<!-- cargo xtask bench: begin -->";
const END: &str = "<!-- cargo xtask bench: end -->";

fn median(seconds: &[f64]) -> Option<f64> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[n / 2]),
        n => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
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

/// Puts the table between the markers of docs/performance.md.
pub fn store(table: &str) -> Result<()> {
    let path = run::root().join("docs/performance.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let new = replace(&text, table).with_context(|| format!("{}: no markers for the table", path.display()))?;
    std::fs::write(&path, new)?;
    println!("written to docs/performance.md");
    Ok(())
}

fn replace(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_is_replaced() {
        let text = format!("a\n{BEGIN}\nold\n{END}\nb\n");
        assert_eq!(
            replace(&text, "new\n").as_deref(),
            Some(format!("a\n{BEGIN}\nnew\n{END}\nb\n").as_str())
        );
        assert_eq!(replace("a", "new"), None);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }
}
