//! A module of a crate: what it declares and the paths it writes.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A module: a file, or a `mod` with a body inside one.
#[derive(Debug)]
pub struct Module {
    /// `file/write`; the root's own name for a root.
    pub name: String,
    /// Relative to the workspace.
    pub file: PathBuf,
    pub scope: Scope,
}

impl Module {
    /// True for a file that declares modules and hands on names, and does nothing itself.
    pub fn is_face(&self) -> bool {
        let has_code = self.scope.paths.iter().any(|path| path.kind != Kind::Face);
        !has_code && self.scope.names.values().all(Option::is_some)
    }
}

/// What the paths of a module are resolved with, and the paths.
#[derive(Debug, Default)]
pub struct Scope {
    /// `None` for a root.
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    /// Names declared here: defined (`None`) or imported from a path.
    pub names: BTreeMap<String, Option<Vec<String>>>,
    /// Paths whose names are all imported.
    pub globs: Vec<Vec<String>>,
    pub paths: Vec<PathUse>,
}

/// A path in the code.
#[derive(Debug)]
pub struct PathUse {
    pub segments: Vec<String>,
    pub line: usize,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In an expression, a type, a pattern or the arguments of a macro.
    Code,
    /// Imported by `use`.
    Import,
    /// Imported by `use` with a visibility: handed on.
    Face,
}
