//! The files of the workspace, and whether links and paths lead to one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

use super::definitions::Cache;
use super::document::{Document, Found, Kind};

/// Not the workspace's own.
const LEFT_OUT: [&str; 2] = ["target", "node_modules"];

/// Documents, and directories of them, that are records of their time.
const RECORDS: [&str; 2] = ["CHANGELOG.md", "docs/results"];

/// All files of the workspace, by their path from its root.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    files: BTreeSet<PathBuf>,
    documents: BTreeMap<PathBuf, Document>,
}

impl Tree {
    pub fn read(root: &Path) -> Result<Self> {
        let mut files = BTreeSet::new();
        let mut todo = vec![root.to_owned()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
                let entry = entry?;
                let name = entry.file_name();
                let is_left_out = LEFT_OUT.iter().any(|left_out| name == *left_out);
                if is_left_out || name.to_string_lossy().starts_with('.') {
                    continue;
                }
                if entry.file_type()?.is_dir() {
                    todo.push(entry.path());
                } else {
                    files.insert(entry.path().strip_prefix(root)?.to_owned());
                }
            }
        }
        let is_document = |path: &&PathBuf| path.extension().is_some_and(|extension| extension == "md");
        let read = |path: &PathBuf| Ok((path.clone(), Document::read(root, path)?));
        let documents = files.iter().filter(is_document).map(read).collect::<Result<_>>()?;
        Ok(Self {
            root: root.to_owned(),
            files,
            documents,
        })
    }

    pub fn documents(&self) -> impl Iterator<Item = &Document> {
        self.documents.values()
    }

    pub fn has(&self, path: &Path) -> bool {
        self.files.contains(path) || self.root.join(path).is_dir()
    }

    /// What is wrong with a path in a code span.
    fn judge_path(&self, path: &str) -> Option<String> {
        if self.has(Path::new(path)) {
            return None;
        }
        if !path.ends_with(".rs") {
            return Some(format!("there is no {path}"));
        }
        match self.files.iter().filter(|file| file.ends_with(path)).count() {
            0 => Some(format!("no source file is called `{path}`")),
            1 => None,
            count => Some(format!("{count} source files are called `{path}`")),
        }
    }

    /// Some source file defines `Type::name`, outside of its tests.
    fn defines(&self, name: &str, code: &mut Cache) -> bool {
        let sources = self.files.iter().filter(|file| is_source(file));
        let mut sources = sources.map(PathBuf::as_path);
        sources.any(|file| code.of(file).is_ok_and(|defined| defined.has(name, file)))
    }

    /// What is wrong with a link, a path or a name.
    pub fn judge(&self, found: &Found, document: &Document, code: &mut Cache) -> Option<String> {
        let at = format!("{}:{}", document.path.display(), found.line);
        let (text, target) = match &found.kind {
            Kind::Path(_) | Kind::Name(_) if is_record(&document.path) => return None,
            Kind::Name(name) if self.defines(name, code) => return None,
            Kind::Name(name) => return Some(format!("{at}: no source file defines `{name}`")),
            Kind::Path(path) => return self.judge_path(path).map(|fault| format!("{at}: {fault}")),
            Kind::Link { text, target } => (text, target),
        };
        if target.contains("://") || target.starts_with("mailto:") {
            return None;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
        let file = match file {
            "" => document.path.clone(),
            file => beside(&document.path, file),
        };
        if !self.has(&file) {
            return Some(format!("{at}: [{text}]({target}): there is no {}", file.display()));
        }
        if let Some(other) = self.documents.get(&file) {
            let is_there = anchor.is_empty() || other.has_anchor(anchor);
            return (!is_there).then(|| format!("{at}: [{text}]({target}): no heading is called so"));
        }
        let name = name_in(text)?;
        if !is_source(&file) {
            return None;
        }
        match code.of(&file) {
            Err(error) => Some(format!("{at}: {error:#}")),
            Ok(defined) if defined.has(name, &file) => None,
            Ok(_) => Some(format!("{at}: {} defines no `{name}`", file.display())),
        }
    }
}

fn is_source(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "rs")
}

/// What was measured or changed at some time: it may name files that are gone.
fn is_record(document: &Path) -> bool {
    RECORDS.iter().any(|record| document.starts_with(record))
}

/// A path as a link of a document has it, from the workspace.
pub(super) fn beside(document: &Path, target: &str) -> PathBuf {
    let mut path = document.parent().map_or(PathBuf::new(), Path::to_owned);
    for component in Path::new(target).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The name that a link's text is, where it is one code span, and no path.
fn name_in(text: &str) -> Option<&str> {
    let name = text.strip_prefix('`')?.strip_suffix('`')?;
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    name.chars().all(is_name).then_some(name)
}
