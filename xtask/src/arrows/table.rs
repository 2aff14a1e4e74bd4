//! The tables in docs/ARCHITECTURE.md: fenced blocks ```` ```crates ```` and ```` ```modules CRATE
//! ````.
//!
//! A line is `name -> what, it, imports`, top to bottom; an indented line continues the one above.
//! `name (one thing)` allows circles among the module's files. A folder's submodules may have lines
//! of their own (`file/write`); the others of the folder are then `file`. A block that opens with
//! ```` ```modules CRATE not yet ```` has no lines: that crate is only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};

/// The document, relative to the workspace.
pub const TABLES: &str = "docs/ARCHITECTURE.md";

#[derive(Debug, Default)]
pub struct Tables {
    pub crates: Vec<Line>,
    pub modules: BTreeMap<String, Block>,
}

#[derive(Debug, Default)]
pub struct Block {
    pub is_not_yet: bool,
    pub lines: Vec<Line>,
}

#[derive(Debug)]
pub struct Line {
    /// In the document, from 1.
    pub number: usize,
    pub name: String,
    pub is_one_thing: bool,
    pub imports: BTreeSet<String>,
}

impl Block {
    /// The line that a module belongs to: the longest one whose name starts its own.
    pub fn line_of(&self, module: &str) -> Option<&Line> {
        let mut name = Some(module);
        std::iter::from_fn(|| {
            let now = name?;
            name = now.rsplit_once('/').map(|(above, _)| above);
            Some(self.lines.iter().find(|line| line.name == now))
        })
        .flatten()
        .next()
    }
}

pub fn read(document: &Path) -> Result<Tables> {
    let text = std::fs::read_to_string(document).with_context(|| document.display().to_string())?;
    parse(&text).with_context(|| document.display().to_string())
}

fn parse(text: &str) -> Result<Tables> {
    let mut tables = Tables::default();
    let mut lines = text.lines().enumerate();
    while let Some((_, line)) = lines.next() {
        let Some(head) = line.strip_prefix("```") else { continue };
        let body = lines.by_ref().take_while(|(_, line)| !line.starts_with("```"));
        let body: Vec<(usize, &str)> = body.map(|(i, line)| (i + 1, line)).collect();
        let words: Vec<&str> = head.split_whitespace().collect();
        match words[..] {
            ["crates"] => tables.crates = block(&body)?,
            ["modules", name] => {
                tables.modules.insert(
                    name.into(),
                    Block {
                        is_not_yet: false,
                        lines: block(&body)?,
                    },
                );
            }
            ["modules", name, "not", "yet"] => {
                ensure!(body.is_empty(), "{name} is not drawn yet, but has lines");
                tables.modules.insert(
                    name.into(),
                    Block {
                        is_not_yet: true,
                        lines: Vec::new(),
                    },
                );
            }
            _ => {}
        }
    }
    Ok(tables)
}

fn block(body: &[(usize, &str)]) -> Result<Vec<Line>> {
    let mut lines: Vec<Line> = Vec::new();
    for (number, text) in body {
        if text.starts_with(' ') {
            let Some(line) = lines.last_mut() else {
                bail!("line {number} continues none")
            };
            line.imports.extend(names(text));
            continue;
        }
        let (name, imports) = text.split_once("->").unwrap_or((text, ""));
        let short = name.trim().trim_end_matches("(one thing)").trim_end();
        ensure!(!short.is_empty(), "line {number} has no name");
        ensure!(
            !lines.iter().any(|line| line.name == short),
            "line {number}: a second line of {short}"
        );
        lines.push(Line {
            number: *number,
            name: short.to_owned(),
            is_one_thing: name.contains("(one thing)"),
            imports: names(imports).collect(),
        });
    }
    Ok(lines)
}

fn names(list: &str) -> impl Iterator<Item = String> {
    list.split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
}
