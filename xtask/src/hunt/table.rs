//! The table "Where is ...?": a question, a link to a file, and the functions to read there.

use std::path::Path;

use super::definitions::Cache;
use super::document::Document;
use super::paths::{Tree, beside};

/// The heading above the table, without its hashes.
pub(super) const HEADING: &str = "Where is ...?";

#[derive(Debug)]
pub(super) struct Row<'d> {
    /// In the document, from 1.
    pub line: usize,
    cells: Vec<&'d str>,
}

/// The rows below the heading, without the two lines of the head.
pub(super) fn rows(document: &Document) -> Vec<Row<'_>> {
    let mut lines = document.lines();
    let is_heading = |line: &str| line.starts_with('#') && line.trim_start_matches('#').trim() == HEADING;
    if !lines.any(|(_, line)| is_heading(line)) {
        return Vec::new();
    }
    lines
        .take_while(|(_, line)| !line.starts_with('#'))
        .filter(|(_, line)| line.starts_with('|'))
        .skip(2)
        .map(|(line, text)| Row {
            line,
            cells: text.trim().trim_matches('|').split('|').map(str::trim).collect(),
        })
        .collect()
}

/// What is wrong with a row.
pub(super) fn judge(row: &Row<'_>, document: &Document, tree: &Tree, code: &mut Cache) -> Vec<String> {
    let at = format!("{}:{}: \"{}\"", document.path.display(), row.line, row.cells[0]);
    let [question, file, functions] = row.cells[..] else {
        return vec![format!("{at}: {} cells, three are wanted", row.cells.len())];
    };
    if !question.ends_with('?') {
        return vec![format!("{at}: is no question")];
    }
    let Some(target) = target_of(file) else {
        return vec![format!("{at}: the second cell is no link to a file")];
    };
    let file = beside(&document.path, target);
    if !tree.has(&file) {
        return vec![format!("{at}: there is no {}", file.display())];
    }
    let names: Vec<&str> = functions.split('`').skip(1).step_by(2).collect();
    if names.is_empty() {
        return vec![format!("{at}: no function is named")];
    }
    let missing = |name: &&str| missing(name, &file, code);
    let faults: Vec<_> = names.iter().filter_map(missing).collect();
    faults.into_iter().map(|fault| format!("{at}: {fault}")).collect()
}

fn missing(name: &str, file: &Path, code: &mut Cache) -> Option<String> {
    match code.of(file) {
        Err(error) => Some(format!("{error:#}")),
        Ok(defined) if defined.has_function(name, file) => None,
        Ok(_) => Some(format!("{} defines no function `{name}`", file.display())),
    }
}

/// The target of a cell that is a link.
fn target_of(cell: &str) -> Option<&str> {
    let (_, rest) = cell.split_once("](")?;
    rest.strip_suffix(')')
}
