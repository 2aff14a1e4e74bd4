//! `cargo xtask hunt`: what documents say about places in the code, compared with the code.
//!
//! - The table "Where is ...?" of docs/ARCHITECTURE.md: each row names a mechanism, a file and its
//!   functions. The file exists and defines them, outside of its tests. There are at least
//!   [`ROWS_MIN`] rows.
//! - In all documents: a link leads to a file and a heading that exist. A link of the form ``
//!   [`name`](file.rs) `` names something that the file defines. A path in a code span exists. A
//!   path of a source file may leave out leading directories as long as it names one file. A code
//!   span `Type::name` is defined by some file. Records (the change log, results) may name what is
//!   gone.

mod definitions;
mod document;
mod paths;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Result, ensure};

use crate::run;
use definitions::Cache;
use document::Found;
use paths::Tree;

/// The document with the table, relative to the workspace.
const TABLE: &str = "docs/ARCHITECTURE.md";
/// Fewer mechanisms are no map.
const ROWS_MIN: usize = 30;

/// What was compared.
#[derive(Debug, Default)]
struct Report {
    rows: usize,
    documents: usize,
    links: usize,
    faults: Vec<String>,
}

/// Compares documents and code. The error lists all faults.
pub fn check() -> Result<()> {
    let report = hunt(&run::root())?;
    println!(
        "hunt: {} mechanisms found, {} links and paths in {} documents",
        report.rows, report.links, report.documents
    );
    ensure!(
        report.faults.is_empty(),
        "hunt: {} faults\n  {}",
        report.faults.len(),
        report.faults.join("\n  ")
    );
    Ok(())
}

fn hunt(root: &Path) -> Result<Report> {
    let tree = Tree::read(root)?;
    let mut code = Cache::new(root);
    let mut report = Report::default();
    let mut has_table = false;
    for document in tree.documents() {
        report.documents += 1;
        let mut rows = Vec::new();
        if document.path == Path::new(TABLE) {
            has_table = true;
            rows = table::rows(document);
            report.rows = rows.len();
            if rows.len() < ROWS_MIN {
                report.faults.push(format!(
                    "{TABLE}: {} rows under \"{}\", at least {ROWS_MIN} are wanted",
                    rows.len(),
                    table::HEADING
                ));
            }
            for row in &rows {
                report.faults.extend(table::judge(row, document, &tree, &mut code));
            }
        }
        let is_row = |found: &Found| rows.iter().any(|row| row.line == found.line);
        for found in document.links().into_iter().filter(|found| !is_row(found)) {
            report.links += 1;
            report.faults.extend(tree.judge(&found, document, &mut code));
        }
    }
    if !has_table {
        report.faults.push(format!("{TABLE} is missing"));
    }
    Ok(report)
}
