//! What a volume holds, as far as turns are about it, and what may be left of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use cowshed_model::script::Op;
use cowshed_model::tree::Tree;
use cowshed_vfs::FileKind;

/// Files of a subvolume with their bytes.
pub type Files = BTreeMap<String, Arc<Vec<u8>>>;

/// Subvolumes of the top level.
pub type State = BTreeMap<String, Arc<Files>>;

/// The state that a tree shows.
pub fn of_tree(tree: &Tree) -> Result<State> {
    let mut state = State::new();
    for (path, node) in tree {
        match path.split_once('/') {
            Some((subvolume, file)) => {
                ensure!(node.kind == FileKind::Regular, "{path} is no file");
                let Some(files) = state.get_mut(subvolume).and_then(Arc::get_mut) else {
                    bail!("{path} is in no subvolume");
                };
                files.insert(file.to_owned(), node.content.clone());
            }
            None if path.is_empty() => {}
            None => {
                state.insert(path.clone(), Arc::default());
            }
        }
    }
    Ok(state)
}

/// Does to the state what an operation on a file does, and returns which file that is.
pub fn apply(state: &mut State, op: &Op) -> Result<String> {
    let path = match op {
        Op::Write { path, offset, data, .. } => {
            let (begin, bytes) = (*offset as usize, data.bytes());
            let end = begin + bytes.len();
            change(state, path, |content| {
                content.resize(content.len().max(end), 0);
                content[begin..end].copy_from_slice(&bytes);
            })?;
            path
        }
        Op::Truncate { path, size_bytes } => {
            change(state, path, |content| content.resize(*size_bytes as usize, 0))?;
            path
        }
        Op::Copy { from, to, .. } => {
            let source = file(state, from)?.clone();
            let (files, name) = files_of(state, to)?;
            files.insert(name.to_owned(), source);
            to
        }
        Op::Unlink { path } => {
            let (files, name) = files_of(state, path)?;
            ensure!(files.remove(name).is_some(), "{path} is not there");
            path
        }
        other => bail!("turns have no operation `{other}`"),
    };
    Ok(path.clone())
}

fn change(state: &mut State, path: &str, what: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let (files, name) = files_of(state, path)?;
    what(Arc::make_mut(files.entry(name.to_owned()).or_default()));
    Ok(())
}

fn files_of<'s, 'p>(state: &'s mut State, path: &'p str) -> Result<(&'s mut Files, &'p str)> {
    let Some((subvolume, name)) = path.split_once('/') else {
        bail!("{path} is in no subvolume");
    };
    match state.get_mut(subvolume) {
        Some(files) => Ok((Arc::make_mut(files), name)),
        None => bail!("{subvolume} is not there"),
    }
}

fn file<'s>(state: &'s State, path: &str) -> Result<&'s Arc<Vec<u8>>> {
    let found = path
        .split_once('/')
        .and_then(|(subvolume, name)| state.get(subvolume)?.get(name));
    found.ok_or_else(|| anyhow::anyhow!("{path} is not there"))
}

/// What a turn made, step by step.
#[derive(Debug)]
pub struct History {
    /// Before each step, and after the last one.
    states: Vec<State>,
    /// Files that each step has changed, if only to what they were.
    touched: Vec<BTreeSet<String>>,
    /// Steps that had all that was there before them on the disk when they returned, by their
    /// number.
    synced: Vec<usize>,
    /// The same for one file.
    fsynced: Vec<(usize, String)>,
    /// Subvolumes that are read-only, and since which step.
    read_only: BTreeMap<String, usize>,
}

impl History {
    /// Of a turn that finds this. `read_only`: what was so before.
    pub fn new(found: State, read_only: impl IntoIterator<Item = String>) -> History {
        History {
            states: vec![found],
            touched: Vec::new(),
            synced: Vec::new(),
            fsynced: Vec::new(),
            read_only: read_only.into_iter().map(|name| (name, 0)).collect(),
        }
    }

    pub fn now(&self) -> &State {
        self.states.last().expect("there is the first one")
    }

    /// How many steps are done.
    pub fn steps(&self) -> usize {
        self.states.len() - 1
    }

    /// A step is done that changed these files, and this is there now.
    pub fn step(&mut self, state: State, touched: BTreeSet<String>) {
        self.states.push(state);
        self.touched.push(touched);
    }

    /// The last step has returned, and everything is on the disk.
    pub fn synced(&mut self) {
        self.synced.push(self.steps());
    }

    /// The last step has returned, and this file is on the disk.
    pub fn fsynced(&mut self, path: String) {
        self.fsynced.push((self.steps(), path));
    }

    /// The last step has made a subvolume that nothing changes.
    pub fn is_read_only(&mut self, subvolume: String) {
        self.read_only.insert(subvolume, self.steps());
    }

    /// The read-only subvolumes of a state.
    pub fn read_only_of<'h>(&'h self, state: &'h State) -> impl Iterator<Item = String> + 'h {
        self.read_only.keys().filter(|name| state.contains_key(*name)).cloned()
    }

    /// Whether a volume can be as it was found where the power failed when so many steps had
    /// returned: subvolumes are there that were not deleted before; what nothing has changed since
    /// the last sync is as it was; what was being changed can be anything.
    pub fn allows(&self, found: &State, returned: usize) -> Result<()> {
        let at_or_before = |step: &&usize| **step <= returned;
        let oldest = self.synced.iter().filter(at_or_before).max().copied().unwrap_or(0);
        // The step that the power failed in may be there in part, or as a whole.
        let newest = (returned + 1).min(self.steps());
        let possible = &self.states[oldest..=newest];
        let when = format!("{returned} steps had returned, step {oldest} was the last sync");
        let names: BTreeSet<&String> = possible.iter().chain([found]).flat_map(State::keys).collect();
        for name in names {
            let versions: Vec<&Arc<Files>> = possible.iter().filter_map(|state| state.get(name)).collect();
            let Some(files) = found.get(name) else {
                // A file of it that is on the disk needs it.
                let synced = self
                    .fsynced
                    .iter()
                    .filter(|(step, path)| *step <= returned && path.split('/').next() == Some(name));
                let oldest = synced.map(|(step, _)| *step).max().unwrap_or(0).max(oldest);
                let is_kept = self.states[oldest..=newest]
                    .iter()
                    .all(|state| state.contains_key(name));
                ensure!(!is_kept, "{name} is missing ({when})");
                continue;
            };
            ensure!(!versions.is_empty(), "{name} should not be there ({when})");
            if self.read_only.get(name).is_some_and(|since| *since <= newest) {
                same(versions[0], files).map_err(|e| e.context(format!("read-only {name} ({when})")))?;
                continue;
            }
            let of_all: BTreeSet<&String> = versions.iter().chain([&files]).flat_map(|files| files.keys()).collect();
            for file in of_all {
                let path = format!("{name}/{file}");
                let synced = self
                    .fsynced
                    .iter()
                    .filter(|(step, fsynced)| *fsynced == path && *step <= returned);
                let oldest = synced.map(|(step, _)| *step).max().unwrap_or(0).max(oldest);
                if self.touched[oldest..newest]
                    .iter()
                    .any(|touched| touched.contains(&path))
                {
                    continue;
                }
                let version = self.states[oldest..=newest].iter().find_map(|state| state.get(name));
                let version = version.and_then(|files| files.get(file));
                let is_same = version == files.get(file);
                ensure!(is_same, "{path}: {} ({when})", difference(version, files.get(file)));
            }
        }
        Ok(())
    }
}

/// Compares all files of a subvolume.
pub fn same(expected: &Files, found: &Files) -> Result<()> {
    for name in expected.keys().chain(found.keys()) {
        let (a, b) = (expected.get(name), found.get(name));
        ensure!(a == b, "{name}: {}", difference(a, b));
    }
    Ok(())
}

fn difference(expected: Option<&Arc<Vec<u8>>>, found: Option<&Arc<Vec<u8>>>) -> String {
    match (expected, found) {
        (None, Some(found)) => format!("should not be there, and has {} bytes", found.len()),
        (Some(expected), None) => format!("of {} bytes is missing", expected.len()),
        (Some(expected), Some(found)) => {
            let at = expected.iter().zip(found.iter()).position(|(a, b)| a != b);
            let at = at.unwrap_or(expected.len().min(found.len()));
            format!(
                "{} and {} bytes, which differ from byte {at} on",
                expected.len(),
                found.len()
            )
        }
        (None, None) => "the same".to_owned(),
    }
}
