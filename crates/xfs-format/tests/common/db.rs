//! What xfs_db prints, taken apart.

use std::collections::BTreeMap;

/// A number as xfs_db writes it.
pub fn number(text: &str) -> Option<i128> {
    let text = text.split_whitespace().next()?;
    if text == "null" {
        return Some(-1);
    }
    match text.strip_prefix("0x") {
        Some(hex) => i128::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The lines `name = value`.
pub fn lines(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(" = ")).collect()
}

/// The rows `1:[2,3,4]` and elements `1:2` behind the line of a name.
pub fn rows(text: &str, name: &str) -> Vec<Vec<i128>> {
    let start = text
        .find(&format!("\n{name}["))
        .or_else(|| text.starts_with(&format!("{name}[")).then_some(0));
    let Some(start) = start else { return Vec::new() };
    let rest = &text[start + 1..];
    let body = rest.split_once(" = ").map_or("", |(_, body)| body);
    // The next field begins a line with letters.
    let end = body
        .match_indices('\n')
        .map(|(at, _)| at)
        .find(|at| body[at + 1..].starts_with(|c: char| c.is_ascii_alphabetic()));
    body[..end.unwrap_or(body.len())]
        .split_whitespace()
        .filter_map(|word| word.split_once(':'))
        .map(|(_, row)| row.trim_matches(['[', ']']).split(',').filter_map(number).collect())
        .collect()
}

/// The values of the lines `NAME[n].FIELD = value`.
pub fn column(text: &str, name: &str, field: &str) -> Vec<i128> {
    let (start, end) = (format!("{name}["), format!("].{field}"));
    let named = text.lines().filter_map(|line| line.split_once(" = "));
    named
        .filter(|(line, _)| line.starts_with(&start) && line.ends_with(&end))
        .filter_map(|(_, value)| number(value))
        .collect()
}
