//! The table for the reader: `docs/design/log-cases.md` holds what this prints, between two marks.

use std::fmt::Write as _;

use crate::roads::is_for_us;
use crate::table::{CHAPTERS, Case};

/// The line before the table.
pub const BEGIN: &str = "<!-- cases: begin (printed by `cargo run -p cowshed-logcases -- --doc`) -->";
/// The line after it.
pub const END: &str = "<!-- cases: end -->";

/// The table, in Markdown.
pub fn table() -> String {
    let mut out = String::new();
    for chapter in &CHAPTERS {
        let _ = write!(
            out,
            "\n### {}\n\n| Test | Script | After the crash | Cowshed writes |\n|---|---|---|---|\n",
            chapter.title
        );
        for case in chapter.cases {
            out.push_str(&row(case));
        }
    }
    out.push('\n');
    out
}

fn row(case: &Case) -> String {
    let show = |list: &[&str]| {
        let texts = list
            .iter()
            .map(|text| if text.is_empty() { "nothing".into() } else { code(text) });
        texts.collect::<Vec<String>>().join(" or ")
    };
    let linux = match case.linux {
        [] => String::new(),
        weaker => format!("; a log that Linux wrote may leave {}", show(weaker)),
    };
    let note = match case.note {
        "" => String::new(),
        note => format!(" ({note})"),
    };
    // What cannot be understood is a test's to tell.
    let ours = match (is_for_us(case).unwrap_or(false), case.ours, case.ours_in_small_leaves) {
        (false, ..) => "-".into(),
        (true, ours, small) if ours == small => ours.to_string(),
        (true, ours, small) => format!("{ours}; in leaves of 4 KiB {small}"),
    };
    format!(
        "| `{}` | {} | {}{linux}{note} | {ours} |\n",
        case.name,
        code(case.script),
        show(case.expect)
    )
}

/// Code in a cell: bars would end it.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('|', "\\|"))
}

/// The part of a page between two marks.
pub fn part<'p>(page: &'p str, begin: &str, end: &str) -> Option<&'p str> {
    let (_, rest) = page.split_once(begin)?;
    Some(rest.split_once(end)?.0.strip_prefix('\n').unwrap_or(rest))
}
