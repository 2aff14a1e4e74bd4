//! Runs beside which another thread commits or syncs: which states may be found is known from the
//! order of operations alone.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use cowshed_model::tree::{self, Content, Tree};
use cowshed_vfs::FileKind;

/// What happened in order, where another thread decides what is committed. The volume as it was
/// before has index 0.
#[derive(Default)]
pub(crate) struct History {
    /// The names after each operation.
    pub(crate) names: Vec<Tree>,
    /// By inode number: after which operation its content became what it is.
    contents: BTreeMap<u64, Vec<(usize, Content)>>,
}

impl History {
    pub(crate) fn note(&mut self, tree: Tree) {
        let index = self.names.len();
        for node in tree.values().filter(|node| node.kind == FileKind::Regular) {
            let versions = self.contents.entry(node.ino).or_default();
            if versions.last().is_none_or(|(_, content)| *content != node.content) {
                versions.push((index, node.content.clone()));
            }
        }
        self.names.push(names_only(tree));
    }

    /// The names are those after some operation from `oldest` on.
    pub(crate) fn check_names(&self, found: &Tree, oldest: usize) -> Result<()> {
        let names = names_only(found.clone());
        if self.names[oldest..].contains(&names) {
            return Ok(());
        }
        let closest = self.names[oldest..]
            .iter()
            .map(|state| tree::differences(state, &names))
            .min_by_key(String::len);
        bail!(
            "no state of the names from operation {oldest} on; the closest:\n{}",
            closest.unwrap_or_default()
        )
    }

    /// Each file holds what it held at `oldest`, or something later, of which the end may not be
    /// there yet.
    pub(crate) fn check_contents(&self, found: &Tree, oldest: usize) -> Result<()> {
        for (path, node) in found
            .iter()
            .filter(|(_, node)| node.kind == FileKind::Regular && !node.in_place)
        {
            let versions = self.contents.get(&node.ino).map_or(&[][..], Vec::as_slice);
            let held = versions.partition_point(|(index, _)| *index <= oldest).checked_sub(1);
            let is_held = held.is_some_and(|held| versions[held].1 == node.content);
            let later = &versions[held.map_or(0, |held| held + 1)..];
            let is_later = later.iter().any(|(_, content)| content.starts_with(&node.content[..]));
            ensure!(
                is_held || is_later || (held.is_none() && node.content.is_empty()),
                "{path}: {} bytes that it never held from operation {oldest} on",
                node.content.len()
            );
        }
        Ok(())
    }
}

/// What metadata alone decides: not the bytes of files, and what follows from them.
fn names_only(tree: Tree) -> Tree {
    let strip = |mut node: tree::Node| {
        if node.kind == FileKind::Regular {
            node.content = Content::default();
            node.size_bytes = 0;
        }
        node.mtime = cowshed_vfs::Timestamp::default();
        node
    };
    tree.into_iter().map(|(path, node)| (path, strip(node))).collect()
}
