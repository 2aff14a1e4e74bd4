//! From a path in one module to the module that defines what it names: through imports, re-exports
//! and globs, so that a face (`pub use`) stands for the module behind it.

use super::Package;
use super::module::{Kind, Module, PathUse};

/// One module names something that another one of the same package defines.
#[derive(Debug)]
pub struct Arrow<'a> {
    pub from: &'a Module,
    pub to: &'a Module,
    /// Line of the first path that does so, in the file of `from`.
    pub line: usize,
}

/// Re-exports that lead to re-exports end somewhere.
const DEPTH_MAX: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Module(usize),
    /// Defined in this module.
    Item(usize),
    /// Handed on from another crate.
    Outside,
}

impl Package {
    /// Every arrow between modules that lie in different files, each once.
    pub fn arrows(&self) -> Vec<Arrow<'_>> {
        let mut arrows: Vec<Arrow<'_>> = Vec::new();
        for (index, from) in self.modules.iter().enumerate() {
            for path in &from.scope.paths {
                let Some(to) = self.target(index, path) else { continue };
                let to = &self.modules[to];
                let is_new = !arrows
                    .iter()
                    .any(|known| std::ptr::eq(known.from, from) && std::ptr::eq(known.to, to));
                if to.file != from.file && is_new {
                    arrows.push(Arrow {
                        from,
                        to,
                        line: path.line,
                    });
                }
            }
        }
        arrows
    }

    /// The module whose code the path needs. To import a module is no need yet: the paths through
    /// it are. To hand on what a module below defines is none either.
    fn target(&self, from: usize, path: &PathUse) -> Option<usize> {
        let is_glob = self.modules[from].scope.globs.contains(&path.segments);
        let to = match self.resolve(from, &path.segments, 0)? {
            Found::Module(to) if is_glob && !self.modules[to].is_face() => to,
            Found::Module(_) | Found::Outside => return None,
            Found::Item(to) => to,
        };
        (path.kind != Kind::Face || !self.is_below(to, from)).then_some(to)
    }

    fn is_below(&self, module: usize, above: usize) -> bool {
        std::iter::successors(Some(module), |at| self.modules[*at].scope.parent).any(|at| at == above)
    }

    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        if depth > DEPTH_MAX {
            return None;
        }
        let start = match first.as_str() {
            "crate" => Found::Module(self.root_of(from)),
            "self" => Found::Module(from),
            "super" => Found::Module(self.modules[from].scope.parent?),
            name => match self.lookup(from, name, rest.is_empty(), depth) {
                Some(found) => found,
                None if self.lib.as_deref() == Some(name) => {
                    Found::Module(self.modules.iter().position(|module| module.name == "lib")?)
                }
                None => return None,
            },
        };
        let mut found = start;
        for (i, name) in rest.iter().enumerate() {
            let Found::Module(at) = found else { break };
            found = match name.as_str() {
                "super" => Found::Module(self.modules[at].scope.parent?),
                // What a macro defines has no name here, but a place.
                name => self
                    .lookup(at, name, i + 1 == rest.len(), depth)
                    .unwrap_or(Found::Item(at)),
            };
        }
        Some(found)
    }

    /// A name in a module; an item rather than a module where the path ends with it.
    fn lookup(&self, at: usize, name: &str, is_last: bool, depth: usize) -> Option<Found> {
        let scope = &self.modules[at].scope;
        let child = scope.children.get(name).map(|child| Found::Module(*child));
        if !is_last && child.is_some() {
            return child;
        }
        let declared = scope.names.get(name).and_then(|declared| match declared {
            None => Some(Found::Item(at)),
            // `use a::a` in a module with a child `a` does not lead to itself.
            Some(path) if path.len() == 1 && path[0] == name => None,
            Some(path) => Some(self.resolve(at, path, depth + 1).unwrap_or(Found::Outside)),
        });
        let glob = |path: &Vec<String>| match self.resolve(at, path, depth + 1)? {
            Found::Module(through) if through != at => self.lookup(through, name, is_last, depth + 1),
            _ => None,
        };
        if depth > DEPTH_MAX {
            return None;
        }
        declared.or(child).or_else(|| scope.globs.iter().find_map(glob))
    }

    fn root_of(&self, module: usize) -> usize {
        std::iter::successors(Some(module), |at| self.modules[*at].scope.parent)
            .last()
            .unwrap_or(module)
    }
}
