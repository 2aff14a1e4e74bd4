//! Each field of a structure beside what xfs_db prints of it: none may be missing on either side.

use std::collections::BTreeMap;

use super::db::{number, rows};

/// A field as we decode it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Num(i128),
    /// As xfs_db writes it, quotes and all.
    Text(String),
    /// How the text begins: xfs_db 6.1 writes a newline as `\d`.
    Start(String),
}

/// Fields by the names of xfs_db.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    fields: BTreeMap<String, Fact>,
    lists: BTreeMap<String, Vec<Vec<i128>>>,
}

impl Facts {
    pub fn num(&mut self, name: impl Into<String>, value: impl Into<i128>) {
        self.fields.insert(name.into(), Fact::Num(value.into()));
    }
    pub fn text(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.fields.insert(name.into(), Fact::Text(value.into()));
    }
    /// Bytes as a string of C.
    pub fn bytes(&mut self, name: impl Into<String>, bytes: &[u8]) {
        let plain = bytes.iter().position(u8::is_ascii_control);
        let quoted: String = bytes
            .iter()
            .take(plain.unwrap_or(bytes.len()))
            .map(|byte| match byte {
                b'"' => "\\\"".to_owned(),
                b'\\' => "\\\\".to_owned(),
                b' '..=b'~' => char::from(*byte).to_string(),
                other => format!("\\{other:03o}"),
            })
            .collect();
        if plain.is_some() {
            self.fields.insert(name.into(), Fact::Start(format!("\"{quoted}")));
        } else {
            self.text(name, format!("\"{quoted}\""));
        }
    }
    /// Gives fields the names of another program.
    pub fn rename(&mut self, names: &[(&str, &str)]) {
        for (old, new) in names {
            let field = self.fields.remove(*old).expect("a field");
            self.fields.insert((*new).to_owned(), field);
        }
    }
    /// Takes fields out that are printed wrongly.
    pub fn forget(&mut self, names: &[&str]) {
        for name in names {
            self.fields.remove(*name).expect("a field");
        }
    }
    /// A list, which xfs_db prints as rows: its elements, each with its fields.
    pub fn list(&mut self, name: impl Into<String>, rows: Vec<Vec<i128>>) {
        self.lists.insert(name.into(), rows);
    }

    /// Compares. `ignored`: ends of names that mean nothing where they are printed.
    #[track_caller]
    pub fn compare(mut self, what: &str, theirs: &str, ignored: &[&str]) {
        for line in theirs.lines() {
            let Some((name, value)) = line.split_once(" = ") else {
                continue;
            };
            let base = name.rsplit_once('[').map_or(name, |(base, _)| base);
            if let Some(ours) = self.lists.remove(base) {
                let mut shown = rows(theirs, base);
                if shown.is_empty() {
                    // One element is printed as a field.
                    shown = number(value).map(|value| vec![vec![value]]).unwrap_or_default();
                }
                assert_eq!(shown, ours, "{what}: {base}");
                continue;
            }
            if ignored.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            let found = self
                .fields
                .remove(name)
                .unwrap_or_else(|| panic!("{what}: xfs_db has a field {name} = {value}, which is not compared"));
            let same = match &found {
                Fact::Num(ours) => number(value) == Some(*ours),
                Fact::Text(ours) => ours == value,
                Fact::Start(ours) => value.starts_with(ours.as_str()),
            };
            assert!(same, "{what}: {name} is {found:?}, xfs_db says {value}");
        }
        let left: Vec<_> = self.fields.keys().chain(self.lists.keys()).collect();
        assert!(left.is_empty(), "{what}: xfs_db does not print {left:?}");
    }
}

/// A time as asctime(3) writes it.
pub fn asctime(sec: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (days, within) = (sec.div_euclid(86_400), sec.rem_euclid(86_400));
    let (mut year, mut day) = (1970, days);
    let is_leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let len = |year: i64| if is_leap(year) { 366 } else { 365 };
    while day < 0 {
        year -= 1;
        day += len(year);
    }
    while day >= len(year) {
        day -= len(year);
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    let mut month = 0;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    format!(
        "{} {} {:2} {:02}:{:02}:{:02} {year}",
        DAYS[days.rem_euclid(7) as usize],
        MONTHS[month],
        day + 1,
        within / 3600,
        within / 60 % 60,
        within % 60
    )
}
