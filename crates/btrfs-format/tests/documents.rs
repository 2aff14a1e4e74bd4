//! The byte tables of `docs/format/` say what the structures say.
//!
//! A table follows a line `<!-- bytes: Name -->`; its first three columns are offset, size and name
//! of each field.

use std::collections::BTreeMap;
use std::path::Path;

use btrfs_format::block::{Header, ItemHeader, KeyPtr};
use btrfs_format::items::*;
use btrfs_format::superblock::{RootBackup, Superblock};
use btrfs_format::{DiskKey, KeyType};

type Rows = Vec<(String, usize, usize)>;

macro_rules! layouts {
    ($($name:ident),+ $(,)?) => {
        BTreeMap::from([$((
            stringify!($name),
            <$name as Layout>::FIELDS
                .iter()
                .map(|field| (field.name.to_owned(), field.offset_bytes, field.size_bytes))
                .collect::<Rows>(),
        )),+])
    };
}

fn structures() -> BTreeMap<&'static str, Rows> {
    layouts!(
        BlockGroupItem,
        ChunkHead,
        DevExtent,
        DevItem,
        DevReplace,
        DevStats,
        DirItem,
        DirLogItem,
        DiskKey,
        ExtentDataRef,
        ExtentItem,
        ExtentOwnerRef,
        FileExtent,
        FileExtentHead,
        FreeSpaceHeader,
        FreeSpaceInfo,
        Header,
        InlineRef,
        InodeExtref,
        InodeItem,
        InodeRef,
        ItemHeader,
        KeyPtr,
        RootBackup,
        RootItem,
        RootRef,
        SharedDataRef,
        Stripe,
        Superblock,
        Timespec,
        TreeBlockInfo,
    )
}

fn documents() -> Vec<(String, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format");
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        // The directories are those of other formats.
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).unwrap())
        })
        .collect();
    found.sort();
    found
}

/// The first cells of a table's rows, without its head.
fn rows<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Vec<&'a str>> {
    lines
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn byte_tables_agree_with_the_structures() {
    let mut missing = structures();
    for (file, text) in documents() {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(name) = line
                .strip_prefix("<!-- bytes: ")
                .and_then(|rest| rest.strip_suffix(" -->"))
            else {
                continue;
            };
            let expected = missing
                .remove(name)
                .unwrap_or_else(|| panic!("{file}: {name} is unknown, or was told before"));
            let found: Rows = rows(lines[at + 1..].iter().copied())
                .iter()
                .map(|row| {
                    let number = |cell: &str| cell.parse().unwrap_or_else(|_| panic!("{file}, {name}: {cell:?}"));
                    (row[2].trim_matches('`').to_owned(), number(row[0]), number(row[1]))
                })
                .collect();
            assert_eq!(found, expected, "{file}, {name}");
        }
    }
    assert!(missing.is_empty(), "no table for {:?}", missing.keys());
}

#[test]
fn every_key_type_is_in_the_list_of_keys() {
    let keys = documents().into_iter().find(|(name, _)| name == "keys.md").unwrap().1;
    let after = keys.split("<!-- key types -->").nth(1).expect("a marked table");
    let found: BTreeMap<u8, &str> = rows(after.lines())
        .iter()
        .map(|row| (row[0].parse().unwrap(), row[1].trim_matches('`')))
        .collect();
    let expected: BTreeMap<u8, &str> = (0..=u8::MAX).filter_map(|ty| Some((ty, KeyType(ty).name()?))).collect();
    assert_eq!(found, expected);
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format");
    for (file, text) in &documents() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.starts_with("http") || target.is_empty() {
                continue;
            }
            assert!(dir.join(target).is_file(), "{file}: no {target}");
        }
    }
}

/// Name and support of each bit, by a table's heading.
fn feature_rows(text: &str, heading: &str) -> Vec<(u64, String, String)> {
    let at = text.find(heading).expect("the table is there");
    rows(text[at..].lines())
        .iter()
        .map(|row| {
            (
                1 << row[0].parse::<u32>().unwrap(),
                row[1].to_owned(),
                row[2].to_owned(),
            )
        })
        .collect()
}

#[test]
fn feature_tables_agree_with_access() {
    use btrfs_format::Access;
    use btrfs_format::features::{compat_ro, incompat};
    use zerocopy::FromZeros;
    let text = documents()
        .into_iter()
        .find(|(name, _)| name == "superblock.md")
        .unwrap()
        .1;
    let check = |heading: &str, names: &[(u64, &str)], set: fn(&mut Superblock, u64)| {
        let found = feature_rows(&text, heading);
        let listed: Vec<(u64, &str)> = found.iter().map(|(bit, name, _)| (*bit, name.as_str())).collect();
        assert_eq!(listed, names);
        for (bit, name, support) in &found {
            let mut sb = Superblock::new_zeroed();
            sb.sectorsize.set(4096);
            set(&mut sb, *bit);
            let told = match sb.access() {
                Access::ReadWrite => "yes",
                Access::ReadOnly { .. } if support.starts_with("yes; without the next bit, read-only") => "yes",
                Access::ReadOnly { .. } => "read-only",
                Access::Refused { .. } => "refused",
            };
            assert!(support.starts_with(told), "{name}: {support}, but {told}");
        }
    };
    check("| incompat bit |", incompat::NAMES, |sb, bit| {
        sb.incompat_flags.set(bit)
    });
    check("| compat_ro bit |", compat_ro::NAMES, |sb, bit| {
        sb.compat_ro_flags.set(bit)
    });
}
