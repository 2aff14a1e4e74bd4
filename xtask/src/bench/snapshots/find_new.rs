//! What is new in a subvolume of very many files since a transaction: `subvolume find-new`, when a
//! hundred files have changed, and when none has.

use anyhow::{Context as _, Result, ensure};

use super::{Lines, Rig, timed};
use crate::run;

/// Files that change.
const CHANGES: u64 = 100;
/// No transaction is so late: nothing is shown but the marker.
const LATER: &str = "1000000000";

pub fn run(rig: &Rig<'_>) -> Result<Lines> {
    let tree = rig.many_files("tree", rig.args.files)?;
    let find = |since: &str| {
        let mut command = rig.tool(&["subvolume", "find-new"]);
        run::output(command.arg(&tree).arg(since))
    };
    let marker = |text: &str| -> Result<u64> {
        let line = text.lines().last().context("no output")?;
        let number = line.strip_prefix("transid marker was ").context("no marker")?;
        Ok(number.parse()?)
    };
    let since = (marker(&find(LATER)?)? + 1).to_string();
    for number in 0..CHANGES {
        let at = number * (rig.args.files / 10) / CHANGES;
        // Too much for the item itself: each has an extent.
        std::fs::write(tree.join(format!("part-{}/d/file-{at:08}", number % 10)), [7; 8192])?;
    }
    rig.sync()?;
    let (ms, found) = timed(|| find(&since))?;
    let shown = found.lines().filter(|line| line.contains(" len 8192 ")).count();
    ensure!(shown as u64 == CHANGES, "{shown} extents are new: {found}");
    let (again, _) = timed(|| find(&since))?;
    let (none, _) = timed(|| find(LATER))?;
    let mut same = rig.same_tool(&["subvolume", "find-new"]);
    let (same_none, _) = timed(|| run::output(same.arg(&tree).arg(LATER)))?;
    Ok(vec![
        (format!("find-new, {CHANGES} changed"), ms),
        (format!("find-new, {CHANGES} changed, again"), again),
        ("find-new, nothing changed".into(), none),
        ("find-new, nothing changed, by one program on both".into(), same_none),
    ])
}
