//! Is what is left on disk the model after some operation, not before what was acknowledged?
//!
//! Names and attributes change with one transaction, all in the order of the operations: the whole
//! tree must be equal to the model's at one point. Data may be written earlier or later than its
//! names, block by block: each block of a file must be one of the versions that it had since the
//! file's content was acknowledged for the last time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail, ensure};
use cowshed_model::tree::{self, Tree, of_model};
use cowshed_model::{BLOCK_BYTES, Body, Content, Id, Model};
use cowshed_vfs::{FileKind, Timestamp};

use crate::history::{History, NOW};

/// What the volume is like, found out.
pub struct Verdict {
    /// The model as it is on disk, contents included.
    pub model: Model,
    /// After how many of the operations since the base.
    pub point: usize,
}

/// Finds the point. Fails where there is none, or where a file's content never was so.
pub fn verify(history: &History, found: &Tree) -> Result<Verdict> {
    let names = comparable(found.clone());
    let mut model = history.base.clone();
    let mut versions = Versions::new(&model);
    let mut at_point = None;
    let mut nearest: Option<(usize, Vec<String>)> = None;
    for point in 0..=history.ops.len() {
        if point > 0 {
            let op = &history.ops[point - 1];
            let before: Vec<Id> = op.touched().iter().filter_map(|at| model.resolve(at).ok()).collect();
            let newest = model.ids().max();
            model.apply(op, NOW).map_err(|e| anyhow!("replaying {op:?}: {e}"))?;
            let after = op.touched().into_iter().filter_map(|at| model.resolve(&at).ok());
            // What is made in a directory that is held open has no name in the operation.
            let made = model.ids().max().filter(|id| Some(*id) != newest);
            versions.note(&model, point, before.into_iter().chain(after).chain(made));
        }
        if point < history.floor || at_point.is_some() {
            continue;
        }
        let (tree, ids) = of_model(&model);
        let tree = comparable(tree);
        if tree == names {
            at_point = Some((point, model.clone(), ids));
            continue;
        }
        let differences = tree::all_differences(&tree, &names);
        if nearest.as_ref().is_none_or(|(_, d)| differences.len() < d.len()) {
            nearest = Some((point, differences));
        }
    }
    let Some((point, mut model, ids)) = at_point else {
        bail!(no_point(history, nearest, found))
    };
    // Each file once, by one of its names.
    let files: BTreeMap<Id, String> = ids.into_iter().map(|(path, id)| (id, path)).collect();
    for (id, path) in files {
        if !matches!(model.node(id).body, Body::File(_)) {
            continue;
        }
        let content = &content_of(&found[&path].content);
        let floor = history.content_floor.get(&id).copied().unwrap_or(0);
        versions.check(id, floor, content).map_err(|e| e.context(path))?;
        model.set_content(id, content.clone());
    }
    model.close_all();
    Ok(Verdict { model, point })
}

/// What is compared of names and attributes: not the contents of files, nor times. Inode numbers
/// differ from the model's: what is compared is which names lead to the same inode.
fn comparable(tree: Tree) -> Tree {
    // The number of a subvolume's root; inodes of two subvolumes may have the same number.
    const SUBVOLUME_ROOT: u64 = 256;
    let roots = tree.iter().filter(|(_, node)| node.ino == SUBVOLUME_ROOT);
    let roots: Vec<String> = roots.map(|(path, _)| path.clone()).collect();
    let is_below = |path: &str, root: &str| {
        let rest = path.strip_prefix(root);
        rest.is_some_and(|rest| rest.is_empty() || root.is_empty() || rest.starts_with('/'))
    };
    let mut first: HashMap<(Option<usize>, u64), u64> = HashMap::new();
    let plain = |(number, (path, node)): (usize, (String, tree::Node))| {
        // Those within others come behind them.
        let subvolume = roots.iter().rposition(|root| is_below(&path, root));
        let ino = *first.entry((subvolume, node.ino)).or_insert(number as u64);
        let content = match node.kind {
            FileKind::Regular => Arc::default(),
            _ => node.content,
        };
        let node = tree::Node {
            ino,
            size_bytes: 0,
            mtime: Timestamp::default(),
            in_place: false,
            content,
            ..node
        };
        (path, node)
    };
    tree.into_iter().enumerate().map(plain).collect()
}

/// The blocks that hold anything but zeros.
fn content_of(bytes: &[u8]) -> Content {
    let mut content = Content::default();
    for (number, block) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
        if block.iter().any(|byte| *byte != 0) {
            content.write(number as u64 * BLOCK_BYTES, block);
        }
    }
    content.truncate(bytes.len() as u64);
    content
}

fn no_point(history: &History, nearest: Option<(usize, Vec<String>)>, tree: &Tree) -> String {
    let (point, differences) = nearest.unwrap_or_default();
    let from = point.saturating_sub(3);
    let ops: Vec<String> = history
        .ops
        .iter()
        .enumerate()
        .skip(from)
        .take(8)
        .map(|(n, op)| format!("  {} {op:?}", n + 1))
        .collect();
    format!(
        "the tree of {} entries is that of no point between {} and {}; nearest is {point}, with {} differences:\n  {}\noperations around it:\n{}",
        tree.len(),
        history.floor,
        history.ops.len(),
        differences.len(),
        differences.into_iter().take(12).collect::<Vec<_>>().join("\n  "),
        ops.join("\n"),
    )
}

/// The first bytes of each half KiB: enough to see whose they are, and where they stop.
fn start_of(block: &[u8]) -> String {
    let hex = |piece: &[u8]| piece.iter().take(4).map(|b| format!("{b:02x}")).collect::<String>();
    block.chunks(512).map(hex).collect::<Vec<_>>().join(" ")
}

/// What each file held after which operation.
struct Versions(HashMap<Id, Vec<(usize, Content)>>);

impl Versions {
    fn new(model: &Model) -> Versions {
        let mut versions = Versions(HashMap::new());
        let all: Vec<Id> = model.ids().collect();
        versions.note(model, 0, all.into_iter());
        versions
    }

    fn note(&mut self, model: &Model, point: usize, ids: impl Iterator<Item = Id>) {
        for id in ids.filter(|id| model.exists(*id)) {
            if let Body::File(content) = &model.node(id).body {
                let known = self.0.entry(id).or_default();
                if known.last().is_none_or(|(_, last)| last != content) {
                    known.push((point, content.clone()));
                }
            }
        }
    }

    /// Each block is one of those since the last version at or before the floor.
    fn check(&self, id: Id, floor: usize, found: &Content) -> Result<()> {
        let all = self.0.get(&id).map(Vec::as_slice).unwrap_or_default();
        let first = all.iter().rposition(|(point, _)| *point <= floor).unwrap_or(0);
        let all = &all[first..];
        let sizes = || all.iter().map(|(_, c)| c.size_bytes);
        let (min, max) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        let size = found.size_bytes;
        ensure!(
            min <= size && size <= max,
            "{size} bytes, expected {min} to {max} ({} versions)",
            all.len()
        );
        let mut at = 0;
        while at < size {
            let len = BLOCK_BYTES.min(size - at);
            let block = found.read(at, len);
            let is_version = |(_, version): &(usize, Content)| {
                let mut bytes = version.read(at, len);
                bytes.resize(len as usize, 0);
                bytes == block
            };
            ensure!(
                all.iter().any(is_version),
                "block at {at} was never so ({} versions): {}; the last version: {}",
                all.len(),
                start_of(&block),
                all.last()
                    .map_or_else(String::new, |(_, last)| start_of(&last.read(at, len)))
            );
            at += len;
        }
        Ok(())
    }
}
