//! A small workspace with a good table, and each fault planted in it.

use std::fs;

use super::*;

const CODE: &str = "
pub struct Tree { slots: u32 }
errors! { pub enum Fault { Torn => 5 } }
pub enum Flush { Commit }
impl Tree { pub fn get() {} }
impl Clone for Tree { fn clone(&self) -> Self { Tree { slots: 0 } } }
pub trait Host { fn alloc(&self); }
fn punch() {}
mod inner { pub fn deep() {} }
#[cfg(test)]
mod tests { fn planted() {} }
";

const GOOD: &str = "| How is a hole punched? | [tree.rs](../crates/a/src/tree.rs) | `punch`, `tree::punch` |";

/// A workspace whose table has `ROWS_MIN` good rows, then `row`; below it stands `text`.
fn hunted(row: &str, text: &str) -> Vec<String> {
    let rows = vec![GOOD; ROWS_MIN].join("\n");
    hunted_document(&format!(
        "# A\n\n## Where is ...?\n\n| Q | F | N |\n|---|---|---|\n{rows}\n{row}\n\n## B\n\n{text}\n"
    ))
}

fn hunted_document(document: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    put("crates/a/src/tree.rs", CODE);
    put("crates/a/src/one/same.rs", "");
    put("crates/a/src/other/same.rs", "");
    put("docs/ARCHITECTURE.md", document);
    put("target/left/out.md", "[a](nowhere.md)");
    put("docs/results/old.md", "`gone.rs`");
    hunt(dir.path()).unwrap().faults
}

const NONE: [&str; 0] = [];

#[test]
fn good_table_passes() {
    let row = "| Where are methods? | [a file](../crates/a/src/tree.rs) | `Tree::get`, `Tree::clone`, `Host::alloc`, `deep` |";
    assert_eq!(hunted(row, ""), NONE);
}

#[test]
fn missing_file_fails_with_its_row() {
    let row = "| Where is a root? | [root.rs](../crates/a/src/root.rs) | `get` |";
    let expected = ["docs/ARCHITECTURE.md:37: \"Where is a root?\": there is no crates/a/src/root.rs"];
    assert_eq!(hunted(row, ""), expected);
}

#[test]
fn missing_function_fails_with_its_row() {
    for name in ["drop", "get", "Tree::punch", "Tree", "planted", "other::punch"] {
        let row = format!("| Where is it? | [tree.rs](../crates/a/src/tree.rs) | `punch`, `{name}` |");
        let expected =
            format!("docs/ARCHITECTURE.md:37: \"Where is it?\": crates/a/src/tree.rs defines no function `{name}`");
        assert_eq!(hunted(&row, ""), [expected]);
    }
}

#[test]
fn malformed_row_fails() {
    for (row, fault) in [
        ("| Where? | `punch` |", "2 cells, three are wanted"),
        ("| Here | [f](../crates/a/src/tree.rs) | `punch` |", "is no question"),
        ("| Where? | tree.rs | `punch` |", "the second cell is no link to a file"),
        (
            "| Where? | [f](../crates/a/src/tree.rs) | punch |",
            "no function is named",
        ),
    ] {
        let faults = hunted(row, "");
        assert!(faults.len() == 1 && faults[0].ends_with(fault), "{faults:?}");
    }
}

#[test]
fn too_few_rows_and_no_table_fail() {
    let one = format!("## Where is ...?\n\n| Q | F | N |\n|---|---|---|\n{GOOD}\n");
    for (document, rows) in [(one.as_str(), 1), ("# A\n", 0)] {
        let expected = format!("docs/ARCHITECTURE.md: {rows} rows under \"Where is ...?\", at least 30 are wanted");
        assert_eq!(hunted_document(document), [expected]);
    }
}

#[test]
fn links_that_lead_somewhere_pass() {
    let text = "[`Tree`](../crates/a/src/tree.rs) [`Flush::Commit`](../crates/a/src/tree.rs), [b](#b), \
        [dir](../crates/a) [tree.rs](../crates/a/src/tree.rs) [web](https://example.invalid/x) `src/tree.rs` \
        `one/same.rs` `crates/a/src` `crates/*/src` `x.rs y` \
        `Tree::get` `Tree::slots` `Flush::Commit` `Fault::Torn` `std::fs`";
    assert_eq!(hunted("", text), NONE);
}

#[test]
fn links_and_paths_that_lead_nowhere_fail() {
    for (text, fault) in [
        (
            "[`Root`](../crates/a/src/tree.rs)",
            "crates/a/src/tree.rs defines no `Root`",
        ),
        ("[c](#c)", "[c](#c): no heading is called so"),
        ("[d](D.md)", "[d](D.md): there is no docs/D.md"),
        ("`ee.rs`", "no source file is called `ee.rs`"),
        (
            "`crates/b/src/tree.rs`",
            "no source file is called `crates/b/src/tree.rs`",
        ),
        ("`crates/b`", "there is no crates/b"),
        ("`same.rs`", "2 source files are called `same.rs`"),
        ("`Tree::set`", "no source file defines `Tree::set`"),
    ] {
        assert_eq!(hunted("", text), [format!("docs/ARCHITECTURE.md:41: {fault}")]);
    }
}
