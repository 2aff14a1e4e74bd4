//! A small workspace that its tables describe, and each fault planted in it.

use std::path::Path;

use super::*;

const TABLES_AS_DRAWN: &str = "
```crates
cowshed -> btrfs-upper
btrfs-upper -> lower
lower
```
```modules cowshed
main -> lib
lib
```
```modules btrfs-upper not yet
```
```modules lower
walk -> block/read,
    kinds
pair (one thing)
block/read -> kinds
kinds
```
";

const FILES: &[(&str, &str)] = &[
    (
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\", \"testing/*\"]\n",
    ),
    (
        "crates/cowshed/Cargo.toml",
        "[package]\nname = \"cowshed\"\n[dependencies]\nbtrfs-upper = { path = \"../upper\" }\n",
    ),
    ("crates/cowshed/src/lib.rs", "pub struct Volume;\n"),
    ("crates/cowshed/src/main.rs", "fn main() { let _ = cowshed::Volume; }\n"),
    (
        "crates/upper/Cargo.toml",
        "[package]\nname = \"btrfs-upper\"\n[dependencies]\nlower = { path = \"../lower\" }\n[dev-dependencies]\ncowshed = { path = \"../cowshed\" }\n",
    ),
    ("crates/upper/src/lib.rs", "mod a;\nmod b;\n"),
    (
        "crates/upper/src/a.rs",
        "pub struct A;\nfn b() -> crate::b::B { crate::b::B }\n",
    ),
    (
        "crates/upper/src/b.rs",
        "pub struct B;\nfn a() -> crate::a::A { crate::a::A }\n",
    ),
    ("crates/lower/Cargo.toml", "[package]\nname = \"lower\"\n"),
    // The face stands for what is behind it: `crate::Kind` is an arrow to `kinds`.
    (
        "crates/lower/src/lib.rs",
        "mod block;\nmod kinds;\nmod pair;\nmod walk;\npub use kinds::*;\n",
    ),
    (
        "crates/lower/src/block/mod.rs",
        "mod read;\npub(crate) use read::Block;\n",
    ),
    (
        "crates/lower/src/block/read.rs",
        "pub struct Block(pub super::super::kinds::Kind);\n",
    ),
    ("crates/lower/src/kinds.rs", "pub enum Kind { Leaf, Node }\n"),
    (
        "crates/lower/src/pair/mod.rs",
        "mod second;\npub struct First(second::Second);\n",
    ),
    (
        "crates/lower/src/pair/second.rs",
        "pub struct Second(Option<Box<super::First>>);\n",
    ),
    (
        "crates/lower/src/walk.rs",
        "use crate::{block::Block as B, Kind};\nfn walk(_: B) { assert!(matches!(Kind::Leaf, Kind::Node)); }\n#[cfg(test)]\nmod tests { use crate::pair::First; }\n",
    ),
    (
        "testing/judge/Cargo.toml",
        "[package]\nname = \"judge\"\n[dependencies]\nbtrfs-upper = { path = \"../../crates/upper\" }\n",
    ),
    ("testing/judge/src/lib.rs", "pub mod one;\npub mod two;\n"),
    ("testing/judge/src/one.rs", "pub struct One;\n"),
    (
        "testing/judge/src/two.rs",
        "pub fn two() -> super::one::One { super::one::One }\n",
    ),
];

/// The faults of the fixture after `text` has been put into `file` in place of `old`.
fn faults_of(file: &str, old: &str, new: &str) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let files = FILES.iter().copied().chain([(TABLES, TABLES_AS_DRAWN)]);
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = if name == file {
            assert!(text.contains(old), "{file} has no {old:?}");
            text.replacen(old, new, 1)
        } else {
            text.to_owned()
        };
        std::fs::write(path, text).unwrap();
    }
    compare(dir.path()).unwrap().faults
}

#[test]
fn tree_as_drawn_has_no_faults_and_counts_what_is_not_drawn_yet() {
    assert_eq!(faults_of("Cargo.toml", "", ""), Vec::<String>::new());
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in FILES.iter().copied().chain([(TABLES, TABLES_AS_DRAWN)]) {
        let path: &Path = &dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    assert_eq!(compare(dir.path()).unwrap().not_yet, [("btrfs-upper".to_owned(), 2)]);
}

#[test]
fn import_outside_the_table_fails_with_file_and_line() {
    for path in ["crate::walk::Walk", "super::walk::Walk", "crate::{walk::Walk}"] {
        let new = format!("pub enum Kind {{ Leaf, Node }}\nuse {path};\n");
        assert_eq!(
            faults_of("crates/lower/src/kinds.rs", "pub enum Kind { Leaf, Node }\n", &new),
            ["crates/lower/src/kinds.rs:2: lower: kinds -> walk is not in the table"],
            "{path}"
        );
    }
    let inline = "fn up() { println!(\"{:?}\", crate::walk::walk as usize) } pub enum";
    assert_eq!(
        faults_of("crates/lower/src/kinds.rs", "pub enum", inline),
        ["crates/lower/src/kinds.rs:1: lower: kinds -> walk is not in the table"]
    );
}

#[test]
fn import_through_a_re_export_is_an_arrow_to_the_definition() {
    let new = "pub struct First(second::Second, crate::Kind);";
    assert_eq!(
        faults_of("crates/lower/src/pair/mod.rs", "pub struct First(second::Second);", new),
        ["crates/lower/src/pair/mod.rs:2: lower: pair -> kinds is not in the table"]
    );
}

#[test]
fn arrow_up_in_the_table_fails() {
    let new = "kinds -> block/read\n```\n";
    assert_eq!(
        faults_of(TABLES, "kinds\n```\n", new),
        [
            "docs/ARCHITECTURE.md:18: lower: kinds -> block/read does not point down",
            "docs/ARCHITECTURE.md:18: lower: kinds -> block/read is not used"
        ]
    );
}

#[test]
fn unused_arrow_fails() {
    assert_eq!(
        faults_of("crates/lower/src/walk.rs", "block::Block as B, Kind", "Kind"),
        ["docs/ARCHITECTURE.md:14: lower: walk -> block/read is not used"]
    );
}

#[test]
fn circle_within_a_module_fails_unless_it_is_one_thing() {
    let circle = "lower: circle of crates/lower/src/pair/mod.rs, crates/lower/src/pair/second.rs";
    assert_eq!(faults_of(TABLES, "pair (one thing)", "pair"), [circle]);
    assert_eq!(
        faults_of("crates/lower/src/pair/mod.rs", "second::Second", ""),
        ["docs/ARCHITECTURE.md:16: lower: pair has no circle and need not be one thing"]
    );
}

#[test]
fn circle_between_modules_of_a_test_crate_fails() {
    let new = "pub struct One;\nuse super::two;\nfn one() { two::two(); }\n";
    assert_eq!(
        faults_of("testing/judge/src/one.rs", "pub struct One;\n", new),
        ["judge: circle of one, two"]
    );
}

#[test]
fn missing_and_vanished_modules_fail() {
    assert_eq!(
        faults_of(TABLES, "pair (one thing)\n", ""),
        ["docs/ARCHITECTURE.md: lower: pair is missing"]
    );
    assert_eq!(
        faults_of(TABLES, "pair (one thing)\n", "pair (one thing)\nghost\n"),
        ["docs/ARCHITECTURE.md:17: lower: there is no ghost"]
    );
    assert_eq!(
        faults_of(TABLES, "```modules lower", "```modules lover"),
        [
            "docs/ARCHITECTURE.md: no modules of lower",
            "docs/ARCHITECTURE.md: modules of lover, which is no crate"
        ]
    );
}

#[test]
fn crate_dependency_outside_the_table_or_on_a_foreign_format_fails() {
    let (manifest, name) = ("crates/lower/Cargo.toml", "name = \"lower\"\n");
    let faults = faults_of("crates/upper/Cargo.toml", "[dev-dependencies]\n", "");
    assert_eq!(
        faults,
        ["crates/upper/Cargo.toml: crates: btrfs-upper -> cowshed is not in the table"]
    );
    let faults = faults_of("crates/upper/Cargo.toml", "lower = { path = \"../lower\" }\n", "");
    assert_eq!(
        faults,
        ["docs/ARCHITECTURE.md:4: crates: btrfs-upper -> lower is not used"]
    );
    let up = format!("{name}[dependencies]\nbtrfs-upper = {{ path = \"../upper\" }}\n");
    assert_eq!(
        faults_of(manifest, name, &up),
        [
            "crates/lower/Cargo.toml: crates: lower -> btrfs-upper is not in the table",
            "crates/lower/Cargo.toml: lower names a format: btrfs-upper"
        ]
    );
    let xfs = faults_of(manifest, name, &up.replace("lower", "xfs-lower"));
    let named = "crates/lower/Cargo.toml: xfs-lower names a format: btrfs-upper";
    assert!(xfs.contains(&named.to_owned()), "{xfs:?}");
}
