//! The byte tables of `docs/format/xfs/` say what the structures say.
//!
//! A table follows a line `<!-- bytes: Name -->`; its first three columns are offset, size and name
//! of each field.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use xfs_format::ag::{Agf, AgflHeader, Agi};
use xfs_format::attr::*;
use xfs_format::btree::*;
use xfs_format::da::*;
use xfs_format::dir::*;
use xfs_format::dquot::{DiskDquot, DquotBlock};
use xfs_format::features::{incompat, ro_compat};
use xfs_format::inode::{InodeCore, InodeCoreV2};
use xfs_format::log::*;
use xfs_format::{Access, Layout, ReadLimit, Superblock};
use zerocopy::FromZeros;

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
        Agf,
        AgflHeader,
        Agi,
        AllocRecord,
        AttrEntryHead,
        AttrFreeSpan,
        AttrIntentHead,
        AttrLeafHeader,
        AttrLeafHeaderV5,
        AttrLocalHead,
        AttrRemoteHead,
        AttrRemoteHeader,
        AttrShortformEntry,
        AttrShortformHead,
        BmapKey,
        BmapRecord,
        BmdrHeader,
        BufLogHead,
        DaBlockInfo,
        DaBlockInfoV5,
        DaNodeEntry,
        DaNodeHeader,
        DaNodeHeaderV5,
        DirBestFree,
        DirBlockTail,
        DirDataEntryHead,
        DirDataHeader,
        DirDataHeaderV5,
        DirFreeHeader,
        DirFreeHeaderV5,
        DirLeafEntry,
        DirLeafHeader,
        DirLeafHeaderV5,
        DirLeafTail,
        DirUnusedHead,
        DiskDquot,
        DoneHead,
        DquotBlock,
        DquotLogFormat,
        ExchangeIntentHead,
        ExtHeader,
        IcreateLogFormat,
        InobtKey,
        InobtRecord,
        InodeCore,
        InodeCoreV2,
        InodeLogFormat,
        InodeLogFormat32,
        IntentHead,
        LogExtent32,
        LogExtent64,
        LongHeader,
        LongHeaderV5,
        MapExtentRaw,
        OpHeader,
        ParentRecord,
        AclEntry,
        PhysExtentRaw,
        QuotaoffLogFormat,
        RecordHeader,
        RefcountKey,
        RefcountRecord,
        RmapKey,
        RmapNodeKey,
        RmapRecord,
        ShortHeader,
        ShortHeaderV5,
        ShortformEntry,
        ShortformHead,
        Superblock,
        TransHeader,
        UnmountRecord,
    )
}

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format/xfs")
}

fn documents() -> Vec<(String, String)> {
    let mut found: Vec<_> = std::fs::read_dir(dir())
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
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
fn links_between_the_documents_lead_somewhere() {
    for (file, text) in &documents() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.starts_with("http") || target.is_empty() {
                continue;
            }
            assert!(dir().join(target).is_file(), "{file}: no {target}");
        }
    }
}

#[test]
fn feature_tables_agree_with_access() {
    let documents = documents();
    let text = &documents.iter().find(|(name, _)| name == "superblock.md").unwrap().1;
    let check = |heading: &str, names: &[(u64, &str)], set: fn(&mut Superblock, u64)| {
        let at = text.find(heading).expect("the table is there");
        let found = rows(text[at..].lines());
        let bit = |row: &Vec<&str>| 1_u64 << row[0].parse::<u32>().unwrap();
        let listed: Vec<(u64, &str)> = found.iter().map(|row| (bit(row), row[1])).collect();
        assert_eq!(listed, names);
        for row in &found {
            let mut sb = Superblock::new_zeroed();
            sb.versionnum.set(0xb4a5);
            set(&mut sb, bit(row));
            let told = |limit| match sb.access(limit) {
                Access::ReadWrite => ("yes", "yes"),
                Access::ReadOnly { .. } => ("yes", "no"),
                Access::Refused { .. } => ("refused", "no"),
            };
            let (read, write) = match (told(ReadLimit::Kernel), told(ReadLimit::Rescue)) {
                (("refused", _), ("yes", write)) => ("for rescue", write),
                (told, _) => told,
            };
            assert_eq!((row[2], row[3]), (read, write), "{}", row[1]);
        }
    };
    check("| incompat bit |", incompat::NAMES, |sb, bit| {
        sb.features_incompat.set(u32::try_from(bit).unwrap());
    });
    check("| ro_compat bit |", ro_compat::NAMES, |sb, bit| {
        sb.features_ro_compat.set(u32::try_from(bit).unwrap());
    });
}

/// Each feature has a row in the table of XFS, whose first word is the feature's name, and the row
/// says whether volumes with it are opened.
#[test]
fn compatibility_table_of_xfs_agrees_with_access() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/COMPAT.md");
    let text = std::fs::read_to_string(path).unwrap();
    let at = text
        .find("| Feature | read | check | inspect |")
        .expect("the table is there");
    let found = rows(text[at..].lines());
    let bits = incompat::NAMES.iter().map(|(bit, name)| (true, *bit, *name));
    let bits: Vec<_> = bits
        .chain(ro_compat::NAMES.iter().map(|(bit, name)| (false, *bit, *name)))
        .chain([
            (true, 1 << 30, "an unknown incompatible bit"),
            (false, 1 << 30, "an unknown bit of ro_compat"),
        ])
        .collect();
    assert_eq!(found.len(), bits.len());
    for (is_incompat, bit, name) in bits {
        let row = found.iter().find(|row| row[0].split(',').next() == Some(name));
        let row = row.unwrap_or_else(|| panic!("{name} has no row"));
        let mut sb = Superblock::new_zeroed();
        sb.versionnum.set(0xb4a5);
        let bit = u32::try_from(bit).unwrap();
        if is_incompat {
            sb.features_incompat.set(bit);
        } else {
            sb.features_ro_compat.set(bit);
        }
        let is_refused = |limit| matches!(sb.access(limit), Access::Refused { .. });
        let expected = match (is_refused(ReadLimit::Kernel), is_refused(ReadLimit::Rescue)) {
            (true, true) => "refused",
            (true, false) => "for rescue",
            (false, _) => "yes",
        };
        assert_eq!(row[1].split(',').next(), Some(expected), "{name}");
        // The checker and inspect read what a rescue does.
        let is_read = !is_refused(ReadLimit::Rescue);
        for column in [2, 3] {
            assert_eq!(row[column].starts_with("refused"), !is_read, "{name}, column {column}");
        }
    }
}

#[test]
fn item_types_are_those_of_the_table() {
    let documents = documents();
    let text = &documents.iter().find(|(name, _)| name == "log.md").unwrap().1;
    for (_, number, name) in ItemType::ALL {
        assert!(text.contains(name.trim_end_matches("_RT")), "{name}");
        let inner = name.ends_with("_RT") && !matches!(number, 0x124a | 0x124f);
        assert!(inner || text.contains(&format!("{number:#x}")), "{name}");
    }
}
