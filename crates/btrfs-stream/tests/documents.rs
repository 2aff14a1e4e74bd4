//! The tables of docs/format/send-stream.md have each command and each attribute.

use btrfs_stream::{Attribute, Kind, Version};

/// Rows of the table below a heading: number, name and version.
fn rows(page: &str, heading: &str) -> Vec<(u16, String, u32)> {
    let section = page.split("\n## ").find(|part| part.starts_with(heading)).unwrap();
    let cells = section
        .lines()
        .map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .filter_map(|cells| {
            let name = cells.get(2)?.trim_matches('`').to_owned();
            Some((cells.get(1)?.parse().ok()?, name, cells.get(3)?.parse().ok()?))
        })
        .collect()
}

fn row(number: u16, name: &str, since: Version) -> (u16, String, u32) {
    (number, name.to_owned(), since.number())
}

#[test]
fn tables_of_the_format_page_are_those_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/format/send-stream.md");
    let page = std::fs::read_to_string(path).unwrap();
    let commands = Kind::ALL
        .iter()
        .map(|kind| row(kind.number(), kind.name(), kind.since()));
    assert_eq!(rows(&page, "Commands"), commands.collect::<Vec<_>>());
    let attributes = Attribute::ALL.iter().map(|a| row(a.number(), a.name(), a.since()));
    assert_eq!(rows(&page, "Attributes"), attributes.collect::<Vec<_>>());
}
