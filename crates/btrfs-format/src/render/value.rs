//! One description of an item serves text and JSON: lines of labelled values.

use std::fmt;

use cowshed_layout::{hex, utc_text};
use serde_json::{Map, Value, json};

pub use cowshed_layout::uuid_text;

use crate::features::flag_names;
use crate::ids::ObjectId;
use crate::ids::Uuid;
use crate::items::Timespec;
use crate::key::{Key, KeyType};

/// A value with the way it is written.
#[derive(Clone, Debug)]
pub(super) enum Val {
    Num(u64),
    Signed(i64),
    Octal(u32),
    Object(u64),
    /// A number and what it stands for.
    Named(u64, &'static str),
    /// Only what it stands for.
    Word(&'static str),
    Key(Key),
    Uuid(Uuid),
    Time(Timespec),
    /// Number and names.
    Flags(u64, &'static [(u64, &'static str)]),
    /// Names alone.
    Names(String),
    /// Bytes that mostly are text.
    Bytes(Vec<u8>),
}

impl fmt::Display for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Num(n) => write!(f, "{n}"),
            Self::Signed(n) => write!(f, "{n}"),
            Self::Octal(n) => write!(f, "{n:o}"),
            Self::Object(n) => f.write_str(&objectid_text(ObjectId(*n), KeyType::UNTYPED)),
            Self::Named(n, name) => write!(f, "{n} ({name})"),
            Self::Word(word) => f.write_str(word),
            Self::Key(key) => f.write_str(&key_text(key)),
            Self::Uuid(uuid) => f.write_str(&uuid_text(uuid)),
            Self::Time(time) => {
                let sec = time.sec.get().cast_signed();
                write!(f, "{}.{} ({})", time.sec, time.nsec, utc_text(sec))
            }
            Self::Flags(bits, names) => write!(f, "{bits:#x}({})", names_text(*bits, names, "none")),
            Self::Names(names) => f.write_str(names),
            Self::Bytes(bytes) => f.write_str(&String::from_utf8_lossy(bytes)),
        }
    }
}

impl Val {
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Num(n) | Self::Object(n) | Self::Named(n, _) => json!(n),
            Self::Signed(n) => json!(n),
            Self::Octal(n) => json!(n),
            Self::Key(key) => key_json(key),
            Self::Time(time) => json!({ "sec": time.sec.get().cast_signed(), "nsec": time.nsec.get() }),
            Self::Flags(bits, names) => json!({ "bits": bits, "names": flag_names(*bits, names) }),
            Self::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => json!({ "hex": hex(bytes) }),
            },
            Self::Word(_) | Self::Uuid(_) | Self::Names(_) => json!(self.to_string()),
        }
    }
}

/// One line of text; part of one object in JSON.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// Words before the first field: text only, but for elements of lists, whose `kind` they are.
    pub head: &'static str,
    pub depth: usize,
    /// The list that this line is an element of (`true`), or goes on with.
    pub list: Option<(&'static str, bool)>,
    /// Labels and values; a label with a bar has another name in JSON: `nr|num_bytes`.
    pub fields: Vec<(&'static str, Val)>,
}

/// The description under construction.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Vec<Line>,
}

impl Lines {
    pub(super) fn line(&mut self, head: &'static str, fields: Vec<(&'static str, Val)>) {
        self.push(head, 0, None, fields);
    }
    pub(super) fn element(&mut self, list: &'static str, head: &'static str, fields: Vec<(&'static str, Val)>) {
        self.push(head, 0, Some((list, true)), fields);
    }
    pub(super) fn element_more(&mut self, list: &'static str, fields: Vec<(&'static str, Val)>) {
        self.push("", 0, Some((list, false)), fields);
    }
    pub(super) fn push(
        &mut self,
        head: &'static str,
        depth: usize,
        list: Option<(&'static str, bool)>,
        fields: Vec<(&'static str, Val)>,
    ) {
        self.lines.push(Line {
            head,
            depth,
            list,
            fields,
        });
    }

    pub(super) fn text(&self, indent: &str, out: &mut impl fmt::Write) -> fmt::Result {
        for line in &self.lines {
            out.write_str(indent)?;
            for _ in 0..line.depth {
                out.write_str("\t")?;
            }
            let mut space = "";
            if !line.head.is_empty() {
                out.write_str(line.head)?;
                space = " ";
            }
            for (label, value) in &line.fields {
                let label = label.split('|').next().unwrap_or_default();
                let between = if label.is_empty() { "" } else { " " };
                write!(out, "{space}{label}{between}{value}")?;
                space = " ";
            }
            out.write_str("\n")?;
        }
        Ok(())
    }

    pub(super) fn json(&self, into: &mut Map<String, Value>) {
        for line in &self.lines {
            let fields = line
                .fields
                .iter()
                .map(|(label, value)| (json_name(label), value.json()));
            match line.list {
                None => into.extend(fields),
                Some((list, starts)) => {
                    let Value::Array(elements) = into.entry(list).or_insert_with(|| json!([])) else {
                        continue;
                    };
                    if starts || elements.is_empty() {
                        elements.push(json!({}));
                    }
                    if let Some(Value::Object(element)) = elements.last_mut() {
                        if !line.head.is_empty() {
                            element.insert("kind".into(), json!(line.head));
                        }
                        element.extend(fields);
                    }
                }
            }
        }
    }
}

/// `block group` and `name:` as names of JSON fields; `nr|num_bytes` brings its own.
fn json_name(label: &str) -> String {
    if let Some((_, name)) = label.split_once('|') {
        return name.into();
    }
    if label.is_empty() {
        return "value".into();
    }
    label.trim_end_matches(':').replace([' ', '.'], "_")
}

pub(super) fn names_text(bits: u64, names: &[(u64, &str)], none: &str) -> String {
    if bits == 0 {
        return none.to_owned();
    }
    flag_names(bits, names).join("|")
}

/// Type and profile of a block group: `DATA|single`.
pub(super) fn block_group_text(bits: u64) -> String {
    use crate::features::block_group;
    let mut text = names_text(bits, block_group::NAMES, "0");
    if bits & block_group::PROFILE_MASK == 0 {
        text.push_str("|single");
    }
    text
}

fn qgroup_text(id: u64) -> String {
    format!("{}/{}", id >> 48, id & 0xffff_ffff_ffff)
}

/// An object id by its name, where it has one in keys of this type.
pub fn objectid_text(id: ObjectId, ty: KeyType) -> String {
    match ty {
        KeyType::PERSISTENT_ITEM if id == ObjectId::DEV_STATS => return "DEV_STATS".into(),
        KeyType::DEV_EXTENT => return id.to_string(),
        KeyType::QGROUP_RELATION => return qgroup_text(id.get()),
        KeyType::UUID_SUBVOL | KeyType::UUID_RECEIVED_SUBVOL => return format!("{:#018x}", id.get()),
        KeyType::DEV_ITEM if id == ObjectId::DEV_ITEMS => return "DEV_ITEMS".into(),
        KeyType::CHUNK_ITEM if id == ObjectId::FIRST_CHUNK_TREE => return "FIRST_CHUNK_TREE".into(),
        _ => {}
    }
    let name = match id.get() {
        1 => "ROOT_TREE",
        2 => "EXTENT_TREE",
        3 => "CHUNK_TREE",
        4 => "DEV_TREE",
        5 => "FS_TREE",
        6 => "ROOT_TREE_DIR",
        7 => "CSUM_TREE",
        8 => "QUOTA_TREE",
        9 => "UUID_TREE",
        10 => "FREE_SPACE_TREE",
        11 => "BLOCK_GROUP_TREE",
        12 => "RAID_STRIPE_TREE",
        id => match u64::MAX.wrapping_sub(id) {
            0 => "-1",
            3 => "BALANCE",
            4 => "ORPHAN",
            5 => "TREE_LOG",
            6 => "TREE_LOG_FIXUP",
            7 => "TREE_RELOC",
            8 => "DATA_RELOC_TREE",
            9 => "EXTENT_CSUM",
            10 => "FREE_SPACE",
            11 => "FREE_INO",
            254 => "MULTIPLE",
            _ => return id.to_string(),
        },
    };
    name.into()
}

/// A key as `btrfs inspect-internal dump-tree` writes it.
pub fn key_text(key: &Key) -> String {
    let object = objectid_text(key.objectid, key.ty);
    let ty = match key.ty {
        KeyType::UNTYPED if key.objectid != ObjectId::FREE_SPACE => "UNKNOWN.0".to_owned(),
        KeyType::UUID_SUBVOL => "UUID_KEY_SUBVOL".to_owned(),
        KeyType::UUID_RECEIVED_SUBVOL => "UUID_KEY_RECEIVED_SUBVOL".to_owned(),
        ty => ty.to_string(),
    };
    let offset = match key.ty {
        KeyType::QGROUP_RELATION | KeyType::QGROUP_INFO | KeyType::QGROUP_LIMIT => qgroup_text(key.offset),
        KeyType::UUID_SUBVOL | KeyType::UUID_RECEIVED_SUBVOL => format!("{:#018x}", key.offset),
        KeyType::ROOT_ITEM if key.objectid.tree_id() == crate::TreeId::TREE_RELOC => {
            objectid_text(ObjectId(key.offset), KeyType::UNTYPED)
        }
        _ => key.offset.to_string(),
    };
    format!("({object} {ty} {offset})")
}

pub(super) fn key_json(key: &Key) -> Value {
    json!({
        "objectid": key.objectid.get(),
        "type": key.ty.to_string(),
        "offset": key.offset,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_like_those_of_dump_tree() {
        let key = |objectid, ty, offset| key_text(&Key::new(ObjectId(objectid), ty, offset));
        assert_eq!(key(5, KeyType::ROOT_ITEM, 0), "(FS_TREE ROOT_ITEM 0)");
        assert_eq!(key(1, KeyType::DEV_ITEM, 1), "(DEV_ITEMS DEV_ITEM 1)");
        assert_eq!(key(1, KeyType::DEV_EXTENT, 9), "(1 DEV_EXTENT 9)");
        assert_eq!(
            key(u64::MAX - 9, KeyType::EXTENT_CSUM, 5),
            "(EXTENT_CSUM EXTENT_CSUM 5)"
        );
        assert_eq!(key(0, KeyType(0), 0), "(0 UNKNOWN.0 0)");
        assert_eq!(key(0, KeyType::QGROUP_INFO, 1 << 48 | 7), "(0 QGROUP_INFO 1/7)");
        assert_eq!(uuid_text(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
    }
}
