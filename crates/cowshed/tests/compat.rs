//! Tables in the documents name tests: they must exist.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

fn functions(dir: &Path, found: &mut HashSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            functions(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn ").skip(1).filter_map(|rest| rest.split('(').next());
            found.extend(names.map(str::to_owned));
        }
    }
}

/// What looks like a test's name: words joined by underscores, between backticks.
fn test_names(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| {
        name.contains('_')
            && name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    })
}

#[test]
fn every_test_that_the_tables_name_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = HashSet::new();
    for dir in ["crates", "testing"] {
        functions(&root.join(dir), &mut found);
    }
    for (document, names_min) in [("docs/COMPAT.md", 40), ("docs/design/fuse-caches.md", 8)] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let missing: Vec<_> = test_names(&text).filter(|name| !found.contains(*name)).collect();
        assert!(missing.is_empty(), "named in {document} and not there: {missing:?}");
        assert!(test_names(&text).count() > names_min, "the table of {document} is read");
    }
}
