//! A crate's table as its code is now, top to bottom.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::table::Block;
use crate::sources::Package;

/// A table no wider than this.
const COLUMNS_MAX: usize = 100;

/// With the submodules that `splits` gives lines of their own.
pub fn table(package: &Package, splits: Option<&Block>) -> String {
    let name_of = |module: &str| {
        let line = splits
            .and_then(|block| block.line_of(module))
            .map(|line| line.name.clone());
        line.unwrap_or_else(|| module.split('/').next().unwrap_or(module).to_owned())
    };
    let mut left: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for module in package.modules.iter().filter(|module| !module.is_face()) {
        left.entry(name_of(&module.name)).or_default();
    }
    for arrow in package.arrows() {
        let (from, to) = (name_of(&arrow.from.name), name_of(&arrow.to.name));
        left.entry(to.clone()).or_default();
        if from != to {
            left.entry(from).or_default().insert(to);
        }
    }
    let mut out = format!("```modules {}\n", package.name);
    while !left.is_empty() {
        // What no other one left imports comes next; in a circle, the first by name.
        let is_imported = |name: &str| left.iter().any(|(other, to)| other != name && to.contains(name));
        let next = left
            .keys()
            .find(|name| !is_imported(name))
            .or(left.keys().next())
            .cloned();
        let Some((name, imports)) = next.and_then(|name| left.remove_entry(&name)) else {
            break;
        };
        let is_one_thing = splits.is_some_and(|block| block.lines.iter().any(|l| l.name == name && l.is_one_thing));
        let mut line = if is_one_thing {
            format!("{name} (one thing)")
        } else {
            name
        };
        if !imports.is_empty() {
            line.push_str(" ->");
        }
        for (i, import) in imports.iter().enumerate() {
            let comma = if i + 1 < imports.len() { "," } else { "" };
            if line.len() + import.len() + 2 > COLUMNS_MAX {
                let _ = writeln!(out, "{line}");
                line = "   ".to_owned();
            }
            let _ = write!(line, " {import}{comma}");
        }
        let _ = writeln!(out, "{line}");
    }
    out + "```\n"
}
