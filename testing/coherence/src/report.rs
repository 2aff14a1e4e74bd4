//! Failures in words: what differs, and what was done to it.

use std::collections::BTreeSet;

use crate::judge::Fault;
use crate::worker::Done;

/// Faults and operations that a message has.
const FAULTS_MAX: usize = 30;
const PATHS_MAX: usize = 4;
const OPERATIONS_MAX: usize = 40;

/// One operation: begin, duration, process and thread, what it was and how it ended.
pub fn line(done: &Done) -> String {
    let ended = done.error.as_deref().unwrap_or("done");
    format!(
        "{}.{:06} +{:<6} {} {}: {ended}",
        done.begin_us / 1_000_000 % 1000,
        done.begin_us % 1_000_000,
        done.end_us - done.begin_us,
        done.by,
        done.what
    )
}

/// Words of an operation that are paths.
fn paths(what: &str) -> impl Iterator<Item = &str> {
    what.split(' ').skip(1).map(|word| word.trim_matches(['@', '/']))
}

/// The last operations that name one of the paths in `what`, or a directory above or below it.
pub fn operations(log: &[Done], what: &str) -> String {
    let wanted: BTreeSet<&str> = paths(what).filter(|path| is_path(path)).collect();
    let is_about = |done: &&Done| {
        let concerns = |path: &str| wanted.iter().any(|wanted| is_related(path, wanted));
        paths(&done.what).any(concerns)
    };
    let about: Vec<String> = log.iter().filter(is_about).map(line).collect();
    about[about.len().saturating_sub(OPERATIONS_MAX)..].join("\n")
}

fn is_path(word: &str) -> bool {
    word.starts_with(['d', 'f', 'x']) && word.len() < 60
}

fn is_related(path: &str, wanted: &str) -> bool {
    if !is_path(path) {
        return false;
    }
    let is_above = |above: &str, below: &str| below.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'));
    // By its last name, too: directories above it may have moved.
    let last = |path: &str| path.rsplit('/').next().map(str::to_owned);
    path == wanted || is_above(path, wanted) || last(path) == last(wanted)
}

/// What is wrong, and the last operations on each of these names.
pub fn faults(faults: &[Fault], log: &[Done]) -> String {
    let mut text = String::new();
    let shown: BTreeSet<&Fault> = faults.iter().collect();
    for fault in shown.iter().take(FAULTS_MAX) {
        text += &format!("  {:?} {}\n", fault.path, fault.what);
    }
    if shown.len() > FAULTS_MAX {
        text += &format!("  and {} more\n", shown.len() - FAULTS_MAX);
    }
    let names: BTreeSet<&str> = shown.iter().map(|fault| &fault.path[..]).collect();
    for name in names.into_iter().take(PATHS_MAX) {
        // Of what is held, the path stands behind the place.
        let path = name.rsplit(' ').next().unwrap_or(name);
        text += &format!(
            "last operations on {path:?}:\n{}\n",
            operations(log, &format!("of {path}"))
        );
    }
    text
}
