//! Which cases of atomic groups a run had, by name: a run without them says nothing about them.

use std::collections::BTreeMap;

use cowshed_model::{At, Id, Model, Op, Outcome, Place};
use cowshed_vfs::Error;

/// How often each case came.
pub type Cases = BTreeMap<&'static str, usize>;

/// All that there are.
pub const CASES: [&str; 20] = [
    "a commit beside another group",
    "a commit of several files beside another group",
    "a commit of a file that another group has, too",
    "an abort beside another group",
    "a second handle's group on the file: refused",
    "a read through the handle",
    "a crash after a sync of a file beside a group",
    "a crash beside two groups",
    "a new mount beside two groups",
    "a sync beside two groups",
    "a file of a group: written",
    "a file of a group: cut or grown",
    "a file of a group: punched, zeroed or preallocated",
    "a file of a group: synced",
    "a file of a group: unlinked or renamed",
    "a file of a group: cloned or copied from",
    "a file of a group: cloned or copied to",
    "a file of a group: exchanged",
    "a file of a group: deduplicated or defragmented",
    "a file of a group: flags or property set",
];

pub(crate) fn count(cases: &mut Cases, case: &'static str) {
    debug_assert!(CASES.contains(&case), "{case}");
    *cases.entry(case).or_default() += 1;
}

fn child(place: &Place) -> Option<At> {
    match &place.dir {
        At::Path(path) => Some(At::Path(path.iter().copied().chain([place.name]).collect())),
        At::Slot(_) => None,
    }
}

/// Notes the cases of an operation that was answered so; the model is as before it.
pub(crate) fn note(cases: &mut Cases, model: &Model, op: &Op, found: &Outcome) {
    let open = model.open_groups().count();
    if open == 0 {
        return;
    }
    if let (Op::Stage { .. }, Err(Error::Busy)) = (op, found) {
        count(cases, "a second handle's group on the file: refused");
    }
    if found.is_err() {
        return;
    }
    match op {
        Op::EndGroup { group, commit } => ended(cases, model, *group, *commit),
        Op::ReadStaged { .. } => count(cases, "a read through the handle"),
        Op::Remount if open > 1 => count(cases, "a new mount beside two groups"),
        Op::Sync | Op::Commit | Op::Cool if open > 1 => count(cases, "a sync beside two groups"),
        _ => {}
    }
    let is_held = |at: &At| model.resolve(at).is_ok_and(|id: Id| model.groups_of(id) > 0);
    let mut on = |at: &At, case| {
        if is_held(at) {
            count(cases, case);
        }
    };
    match op {
        Op::Write { at, .. } => on(at, "a file of a group: written"),
        Op::Truncate { at, .. } => on(at, "a file of a group: cut or grown"),
        Op::Fallocate { at, .. } => on(at, "a file of a group: punched, zeroed or preallocated"),
        Op::Fsync { at } => on(at, "a file of a group: synced"),
        Op::Unlink { place } => child(place)
            .iter()
            .for_each(|at| on(at, "a file of a group: unlinked or renamed")),
        Op::Rename { from, to, .. } => [child(from), child(to)]
            .iter()
            .flatten()
            .for_each(|at| on(at, "a file of a group: unlinked or renamed")),
        Op::Clone { src, dst, .. } | Op::Copy { src, dst, .. } => {
            on(src, "a file of a group: cloned or copied from");
            on(dst, "a file of a group: cloned or copied to");
        }
        Op::Exchange { a, b, .. } => [a, b].iter().for_each(|at| on(at, "a file of a group: exchanged")),
        Op::Dedupe { dst: at, .. } | Op::Defrag { at, .. } => {
            on(at, "a file of a group: deduplicated or defragmented");
        }
        Op::Flags { at, .. } | Op::Property { at, .. } => on(at, "a file of a group: flags or property set"),
        _ => {}
    }
}

fn ended(cases: &mut Cases, model: &Model, group: u8, commit: bool) {
    let files = model.staged_files(group);
    if files.is_empty() || model.open_groups().all(|other| other == group) {
        return;
    }
    if !commit {
        return count(cases, "an abort beside another group");
    }
    count(cases, "a commit beside another group");
    if files.len() > 1 {
        count(cases, "a commit of several files beside another group");
    }
    if files.iter().any(|id| model.groups_of(*id) > 1) {
        count(cases, "a commit of a file that another group has, too");
    }
}
