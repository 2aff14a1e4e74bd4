//! One description serves text and JSON: a tree of named values.

use std::fmt;

use cowshed_layout::{Layout, flag_names, hex, uuid_text};
use serde_json::{Map, Value, json};
use zerocopy::{Immutable, IntoBytes};

use crate::inode::Timestamp;

/// A value with the way it is written.
#[derive(Clone, Debug, PartialEq)]
pub enum Val {
    /// A number.
    Num(u64),
    /// A number that may be negative.
    Signed(i64),
    /// Octal digits.
    Octal(u64),
    /// Hexadecimal digits.
    Hex(u64),
    /// "None", where the field has a value for it.
    Null,
    /// A number and what it stands for.
    Named(u64, &'static str),
    /// A word.
    Text(String),
    /// Bytes that mostly are text.
    Bytes(Vec<u8>),
    /// A point of time.
    Time(Timestamp),
    /// Bits and their names.
    Flags(u64, &'static [(u64, &'static str)]),
    /// Named values.
    Report(Report),
    /// Values in order.
    List(Vec<Val>),
}

/// Named values in order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Report {
    fields: Vec<(String, Val)>,
}

/// Fields that are written in hexadecimal digits.
const HEX: &[&str] = &[
    "magicnum",
    "magic",
    "magicno",
    "versionnum",
    "features2",
    "bad_features2",
    "features_compat",
    "features_ro_compat",
    "features_incompat",
    "features_log_incompat",
    "lsn",
    "tail_lsn",
    "hashval",
    "flags2",
    "qflags",
];
/// Fields in which all ones mean "none".
const NULLABLE: &[&str] = &[
    "leftsib",
    "rightsib",
    "newino",
    "dirino",
    "unlinked",
    "next_unlinked",
    "uquotino",
    "gquotino",
    "pquotino",
    "rbmino",
    "rsumino",
    "rootino",
    "metadirino",
    "bno",
];
/// Fields whose bytes are not shown.
const HIDDEN: &[&str] = &[
    "pad", "pad1", "pad2", "pad0", "pad32", "spare64", "spare2", "fill", "padding", "res2",
];

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn scalar(name: &str, bytes: &[u8]) -> Val {
    if NULLABLE.contains(&name) && bytes.iter().all(|byte| *byte == 0xff) {
        return Val::Null;
    }
    // Groups and AGI have a version that is a number; that of the superblock is 16 bits.
    let is_hex = HEX.contains(&name) && (name != "versionnum" || bytes.len() == 2);
    match number(bytes) {
        n if is_hex && n != 0 => Val::Hex(n),
        n => Val::Num(n),
    }
}

fn field(name: &str, bytes: &[u8]) -> Val {
    match (name, bytes) {
        ("crc", _) => Val::Hex(number(bytes)),
        (_, uuid) if name.ends_with("uuid") => match <[u8; 16]>::try_from(uuid) {
            Ok(uuid) => Val::Text(uuid_text(&uuid)),
            Err(_) => Val::Text(hex(uuid)),
        },
        ("fname", _) => Val::Bytes(bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()),
        (_, [_] | [_, _] | [_, _, _, _] | [_, _, _, _, _, _, _, _]) => scalar(name, bytes),
        ("unlinked" | "cycle_data", _) => Val::List(bytes.chunks(4).map(|word| scalar(name, word)).collect()),
        ("bestfree" | "freemap", _) => {
            let span = |span: &[u8]| {
                let (start, len) = span.split_at_checked(2).unwrap_or_default();
                Val::List(vec![Val::Num(number(start)), Val::Num(number(len))])
            };
            Val::List(bytes.chunks(4).map(span).collect())
        }
        _ => Val::Text(hex(bytes)),
    }
}

impl Report {
    /// All fields of a big-endian structure but padding.
    pub fn of<T: Layout + IntoBytes + Immutable>(value: &T) -> Self {
        let bytes = value.as_bytes();
        let shown = T::FIELDS.iter().filter(|field| !HIDDEN.contains(&field.name));
        let fields = shown.map(|layout| {
            let end = layout.offset_bytes.saturating_add(layout.size_bytes);
            let value = bytes.get(layout.offset_bytes..end).unwrap_or_default();
            (layout.name.to_owned(), field(layout.name, value))
        });
        Self {
            fields: fields.collect(),
        }
    }

    /// Adds a field, or replaces the one with this name.
    pub fn set(&mut self, name: &str, value: Val) {
        match self.fields.iter_mut().find(|(have, _)| have == name) {
            Some((_, have)) => *have = value,
            None => self.fields.push((name.to_owned(), value)),
        }
    }

    /// A field by name.
    pub fn get(&self, name: &str) -> Option<&Val> {
        self.fields
            .iter()
            .find(|(have, _)| have == name)
            .map(|(_, value)| value)
    }

    /// The fields in their order.
    pub fn fields(&self) -> &[(String, Val)] {
        &self.fields
    }

    /// Without the named fields.
    #[must_use]
    pub fn without(mut self, names: &[&str]) -> Self {
        self.fields.retain(|(name, _)| !names.contains(&name.as_str()));
        self
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let fields = self.fields.iter().map(|(name, value)| (name.clone(), value.json()));
        Value::Object(fields.collect::<Map<_, _>>())
    }

    fn text(&self, prefix: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fields
            .iter()
            .try_for_each(|(name, value)| value.text(&format!("{prefix}{name}"), out))
    }
}

/// A line `name = value` for each field.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text("", f)
    }
}

impl Val {
    /// Bits that are shown by their names.
    pub(super) fn flags(bits: impl Into<u64>, names: &'static [(u64, &'static str)]) -> Self {
        Self::Flags(bits.into(), names)
    }

    fn text(&self, name: &str, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report(report) => report.text(&format!("{name}."), out),
            Self::List(values) if values.iter().any(|value| matches!(value, Self::Report(_))) => values
                .iter()
                .enumerate()
                .try_for_each(|(at, value)| value.text(&format!("{name}[{at}]"), out)),
            _ => writeln!(out, "{name} = {self}"),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        match self {
            Self::Num(n) | Self::Octal(n) | Self::Hex(n) => json!(n),
            Self::Signed(n) => json!(n),
            Self::Null => Value::Null,
            Self::Named(n, name) => json!({ "value": n, "name": name }),
            Self::Text(text) => json!(text),
            Self::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => json!({ "hex": hex(bytes) }),
            },
            Self::Time(time) => json!({ "sec": time.sec, "nsec": time.nsec }),
            Self::Flags(bits, names) => json!({ "bits": bits, "names": flag_names(*bits, names) }),
            Self::Report(report) => report.json(),
            Self::List(values) => values.iter().map(Self::json).collect(),
        }
    }
}

impl fmt::Display for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Num(n) => write!(f, "{n}"),
            Self::Signed(n) => write!(f, "{n}"),
            Self::Octal(n) => write!(f, "0{n:o}"),
            Self::Hex(n) => write!(f, "{n:#x}"),
            Self::Null => f.write_str("null"),
            Self::Named(n, name) => write!(f, "{n} ({name})"),
            Self::Text(text) => f.write_str(text),
            Self::Bytes(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::Time(time) => {
                let utc = cowshed_layout::utc_text(time.sec);
                write!(f, "{}.{:09} ({utc})", time.sec, time.nsec)
            }
            Self::Flags(bits, names) => match flag_names(*bits, names).join("|") {
                text if text.is_empty() => f.write_str("0"),
                text => write!(f, "{bits:#x} ({text})"),
            },
            Self::Report(report) => report.fmt(f),
            Self::List(values) => {
                f.write_str("[")?;
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::tests::superblock;

    #[test]
    fn text_and_json_have_the_fields_of_the_structure() {
        let report = Report::of(&superblock());
        let text = report.to_string();
        assert!(text.starts_with("magicnum = 0x58465342\nblocksize = 4096\n"), "{text}");
        assert!(
            text.contains("\nversionnum = 0xb4a5\n") && text.contains("\nfname = \"\"\n"),
            "{text}"
        );
        assert_eq!(report.json()["uuid"], "07070707-0707-0707-0707-070707070707");
        assert_eq!(report.json()["agblocks"], 20480);
        assert!(report.get("pad").is_none());
    }

    #[test]
    fn lists_of_reports_have_a_line_for_each_field() {
        let mut inner = Report::default();
        inner.set("start", Val::Num(3));
        let mut report = Report::default();
        report.set("recs", Val::List(vec![Val::Report(inner)]));
        report.set("plain", Val::List(vec![Val::Num(1), Val::Null]));
        assert_eq!(report.to_string(), "recs[0].start = 3\nplain = [1,null]\n");
        assert_eq!(report.json().to_string(), r#"{"plain":[1,null],"recs":[{"start":3}]}"#);
    }
}
