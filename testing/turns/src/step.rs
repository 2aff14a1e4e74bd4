//! What is done in a turn, by whichever side.

use std::fmt;

use cowshed_device_sim::Rng;
use cowshed_model::script::Op;

use crate::state::{History, State};

/// Of a subvolume; with what they hold, trees of two and three levels of 4 KiB.
const FILES: usize = 2500;
/// Subvolumes beside each other.
const SUBVOLUMES_MAX: usize = 7;

#[derive(Clone, Debug)]
pub enum Step {
    Create(String),
    Snapshot {
        source: String,
        name: String,
        is_read_only: bool,
    },
    Delete(String),
    /// Operations on files.
    Files(Vec<Op>),
    Fsync(String),
    Sync,
    /// Time for the deletions that wait, and syncs in the midst of them.
    Rest,
    /// Linux writes the data of all files of a subvolume anew, which unshares it.
    Defragment(String),
    /// Linux moves all metadata, or all data, elsewhere.
    Balance {
        is_data: bool,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Create(name) => write!(f, "create {name}"),
            Step::Snapshot {
                source,
                name,
                is_read_only: false,
            } => write!(f, "snapshot {source} {name}"),
            Step::Snapshot { source, name, .. } => write!(f, "snapshot -r {source} {name}"),
            Step::Delete(name) => write!(f, "delete {name}"),
            Step::Files(ops) => write!(f, "{} operations, the first `{}`", ops.len(), ops[0]),
            Step::Fsync(path) => write!(f, "fsync {path}"),
            Step::Sync => f.write_str("sync"),
            Step::Rest => f.write_str("rest"),
            Step::Defragment(name) => write!(f, "defragment {name}"),
            Step::Balance { is_data: true } => f.write_str("balance of data"),
            Step::Balance { .. } => f.write_str("balance of metadata"),
        }
    }
}

/// Chooses steps. Names are never used again.
pub struct Chooser {
    rng: Rng,
    made: usize,
    /// The last step was a deletion.
    has_deleted: bool,
}

impl Chooser {
    pub fn new(seed: u64) -> Chooser {
        Chooser {
            rng: Rng::new(seed),
            made: 0,
            has_deleted: false,
        }
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("v{}", self.made)
    }

    /// The subvolume that everything begins with.
    pub fn first(&mut self) -> Vec<Step> {
        let name = self.name();
        let files = (0..FILES).map(|n| self.write(&name, n)).collect();
        vec![Step::Create(name), Step::Files(files), Step::Sync]
    }

    /// The next step; `is_linux`: that of a side that moves data and metadata.
    pub fn next(&mut self, history: &History, is_linux: bool) -> Step {
        let state = history.now();
        if history.steps() == 0 && self.rng.one_in(2) {
            // Of a tree that is not in memory: it takes long enough to be cut short.
            if let Some(step) = self.delete(state) {
                return step;
            }
        }
        let step = match self.rng.below(24) {
            _ if std::mem::take(&mut self.has_deleted) && self.rng.one_in(3) => Some(Step::Rest),
            0..=5 => self.snapshot(history),
            6..=9 => self.delete(state),
            10..=16 => self.files(history),
            17 => self.fsync(history),
            18 => (state.len() < SUBVOLUMES_MAX).then(|| Step::Create(self.name())),
            19 if is_linux && self.rng.one_in(4) => Some(Step::Balance {
                is_data: self.rng.one_in(3),
            }),
            19 if is_linux && self.rng.one_in(3) => self.pick(history, true).map(Step::Defragment),
            19..=21 => Some(Step::Rest),
            _ => Some(Step::Sync),
        };
        step.unwrap_or(Step::Sync)
    }

    /// One of the subvolumes; where asked for, one that can be changed.
    fn pick(&mut self, history: &History, is_writable: bool) -> Option<String> {
        let state = history.now();
        let read_only: Vec<String> = history.read_only_of(state).collect();
        let fit: Vec<&String> = state
            .keys()
            .filter(|name| !is_writable || !read_only.contains(name))
            .collect();
        (!fit.is_empty()).then(|| fit[self.rng.index(fit.len())].clone())
    }

    fn snapshot(&mut self, history: &History) -> Option<Step> {
        if history.now().len() >= SUBVOLUMES_MAX {
            return self.delete(history.now());
        }
        let source = self.pick(history, false)?;
        // Of a read-only one the snapshot can be changed: there is always one that can.
        let is_writable = history.read_only_of(history.now()).any(|name| name == source);
        Some(Step::Snapshot {
            source,
            name: self.name(),
            is_read_only: !is_writable && self.rng.one_in(2),
        })
    }

    fn delete(&mut self, state: &State) -> Option<Step> {
        let names: Vec<&String> = state.keys().collect();
        self.has_deleted = names.len() > 2;
        self.has_deleted
            .then(|| Step::Delete(names[self.rng.index(names.len())].clone()))
    }

    fn files(&mut self, history: &History) -> Option<Step> {
        let subvolume = self.pick(history, true)?;
        let other = self.pick(history, false)?;
        let state = history.now();
        let kind = self.rng.index(3);
        let count = 1 + self.rng.index([8, 60, 400][kind]);
        // All over the tree, or together.
        let (first, step) = match self.rng.one_in(3) {
            true => (self.rng.index(FILES), 1),
            false => (self.rng.index(FILES), 1 + self.rng.index(97)),
        };
        let mut ops = Vec::new();
        for n in (0..count.min(FILES / step)).map(|n| (first + n * step) % FILES) {
            let path = path(&subvolume, n);
            let is_there = state[&subvolume].contains_key(&file_name(n));
            match self.rng.below(20) {
                0..=2 if is_there => ops.push(Op::unlink(path)),
                3 | 4 if other != subvolume => {
                    let source = file_name(n);
                    if let Some(content) = state[&other].get(&source).filter(|content| !content.is_empty()) {
                        if is_there {
                            ops.push(Op::unlink(path.clone()));
                        }
                        let from = format!("{other}/{source}");
                        ops.push(Op::copy(from, 0, path, 0, content.len() as u64));
                    }
                }
                5 if is_there => ops.push(Op::truncate(path, self.rng.below(9000))),
                _ => ops.push(self.write(&subvolume, n)),
            }
        }
        (!ops.is_empty()).then_some(Step::Files(ops))
    }

    fn fsync(&mut self, history: &History) -> Option<Step> {
        let subvolume = self.pick(history, true)?;
        let files: Vec<&String> = history.now()[&subvolume].keys().collect();
        (!files.is_empty()).then(|| Step::Fsync(format!("{subvolume}/{}", files[self.rng.index(files.len())])))
    }

    fn write(&mut self, subvolume: &str, n: usize) -> Op {
        let offset = if self.rng.one_in(4) { self.rng.below(6000) } else { 0 };
        let len_max = match self.rng.below(40) {
            0 => 100_000,
            1..=3 => 16_000,
            4..=12 => 1900,
            _ => 500,
        };
        let len = 1 + self.rng.index(len_max);
        Op::write(path(subvolume, n), offset, len, self.rng.next_u64())
    }
}

fn file_name(n: usize) -> String {
    format!("a-file-whose-name-takes-some-room-{n}")
}

fn path(subvolume: &str, n: usize) -> String {
    format!("{subvolume}/{}", file_name(n))
}
