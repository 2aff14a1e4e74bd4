//! What xfs_logprint prints, taken apart into lines `name = value`, as those of xfs_db are.

use super::lab::{Lab, sh};

/// An operation: its header, and the lines about its data.
#[derive(Debug, Default)]
pub struct PrintedOperation {
    pub header: String,
    pub lines: Vec<String>,
}

/// A record.
#[derive(Debug, Default)]
pub struct PrintedRecord {
    pub header: String,
    pub operations: Vec<PrintedOperation>,
}

/// An item of a transaction: its name, the lengths of its regions, and the lines about it.
#[derive(Debug)]
pub struct PrintedItem {
    pub name: String,
    pub head: String,
    pub lens: Vec<usize>,
    pub lines: Vec<String>,
}

/// A transaction of the transactional view.
#[derive(Debug)]
pub struct PrintedTransaction {
    pub tid: u32,
    pub head: String,
    pub items: Vec<PrintedItem>,
}

/// The fields of a line such as `BUF:  #regs: 2   start blkno: 0 (0x0)`, a line each. Without the
/// title.
pub fn colons(line: &str) -> String {
    let mut parts = line.split(':');
    let mut name = parts.next().unwrap_or_default().trim().to_owned();
    let mut fields = String::new();
    for part in parts {
        let part = part.trim();
        let (value, rest) = part.split_once(char::is_whitespace).unwrap_or((part, ""));
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('(') {
            Some(other) => other.split_once(')').map_or("", |(_, rest)| rest),
            None => rest,
        };
        fields += &format!("{name} = {}\n", value.trim_end_matches(','));
        name = rest.trim().to_owned();
    }
    fields
}

/// The same of a line with a title: `RUD:  #regs: 1`.
pub fn titled(line: &str) -> (&str, String) {
    let (title, rest) = line.split_once(':').unwrap_or((line, ""));
    (title.trim(), colons(rest))
}

/// The fields of a line such as `nlink 1 uid 0`. A number in brackets is the one before it again.
pub fn pairs(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with('(')).collect();
    words.chunks(2).map(|pair| format!("{}\n", pair.join(" = "))).collect()
}

/// The fields of lines such as `(s: 0x566, l: 8) (s: 0x570, l: 1)`, with the numbers of extents.
pub fn extents(lines: &[String]) -> String {
    let all = lines.iter().filter(|line| line.trim_start().starts_with("(s:"));
    let each = all.flat_map(|line| line.trim().split(')').filter(|part| part.contains('(')));
    each.enumerate()
        .flat_map(|(n, extent)| {
            let fields = extent.trim().trim_start_matches('(').split(", ").map(str::to_owned);
            fields.map(move |field| format!("{n}.{}\n", field.replace(": ", " = ")))
        })
        .collect()
}

/// Records and operations. `-c`: goes on behind an item that it does not know.
pub fn records(lab: &Lab) -> Vec<PrintedRecord> {
    let text = sh(&format!("xfs_logprint -c {} 2>/dev/null || true", lab.image.display()));
    let mut records = Vec::<PrintedRecord>::new();
    for line in text.lines() {
        if line.starts_with("xfs_logprint:") || line.starts_with("----") || line.starts_with("====") {
            continue;
        }
        if line.starts_with("cycle: ") {
            records.push(PrintedRecord::default());
        }
        let Some(record) = records.last_mut() else { continue };
        if line.starts_with("Oper (") {
            let header = line.split_once("): ").map_or("", |(_, header)| header);
            // Flags are words.
            let (numbers, flags) = header.split_once("flags: ").unwrap_or((header, ""));
            record.operations.push(PrintedOperation {
                header: format!("{}flags = {}\n", colons(numbers), flags.trim()),
                lines: Vec::new(),
            });
        } else if let Some(operation) = record.operations.last_mut() {
            operation.lines.push(line.to_owned());
        } else {
            record.header += &colons(line);
        }
    }
    records
}

/// The transactions between tail and head, with the data of buffers, inodes and quotas.
pub fn transactions(lab: &Lab) -> Vec<PrintedTransaction> {
    let text = sh(&format!("xfs_logprint -t -b -i -q {}", lab.image.display()));
    let mut transactions = Vec::<PrintedTransaction>::new();
    for line in text.lines() {
        if line.starts_with("====") || line.starts_with("LOG REC") || line.is_empty() {
            continue;
        }
        if let Some(head) = line.strip_prefix("TRANS: ") {
            let head = colons(head);
            let tid = head.strip_prefix("tid = 0x").and_then(|rest| rest.lines().next());
            transactions.push(PrintedTransaction {
                tid: u32::from_str_radix(tid.expect("an id"), 16).expect("a number"),
                // An address in the program.
                head: head
                    .lines()
                    .filter(|line| !line.starts_with("q = "))
                    .map(|line| format!("{line}\n"))
                    .collect(),
                items: Vec::new(),
            });
            continue;
        }
        let Some(transaction) = transactions.last_mut() else {
            continue;
        };
        if line.contains(": cnt:") {
            let (name, fields) = titled(line);
            let value = |name: &str| {
                let rest = fields.lines().filter_map(move |line| line.strip_prefix(name));
                rest.map(str::to_owned).collect::<Vec<_>>()
            };
            transaction.items.push(PrintedItem {
                name: name.to_owned(),
                head: format!(
                    "cnt = {}\ntotal = {}\n",
                    value("cnt = ").concat(),
                    value("total = ").concat()
                ),
                lens: value("len = ")
                    .iter()
                    .map(|len| len.parse().expect("a length"))
                    .collect(),
                lines: Vec::new(),
            });
        } else if let Some(item) = transaction.items.last_mut() {
            item.lines.push(line.trim().to_owned());
        }
    }
    transactions
}
