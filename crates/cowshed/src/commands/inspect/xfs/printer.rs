//! Structures one after the other, as text or as JSON.

use std::io::{BufWriter, StdoutLock, Write};

use anyhow::Result;
use serde_json::{Map, Value, json};
use xfs_format::render::Report;

/// Prints structures as they come.
pub struct Printer {
    out: BufWriter<StdoutLock<'static>>,
    json: bool,
    count: u64,
    failed: bool,
}

impl Printer {
    pub fn new(json: bool) -> Result<Printer> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        if json {
            write!(out, "[")?;
        }
        Ok(Printer {
            out,
            json,
            count: 0,
            failed: false,
        })
    }

    /// A structure: its name, numbers that say which one it is, and its fields.
    pub fn show(&mut self, name: &str, which: &[(&str, u64)], report: &Report) -> Result<()> {
        if self.json {
            let mut value: Map<String, Value> = which.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect();
            value.insert("structure".into(), json!(name));
            value.insert("fields".into(), report.json());
            let comma = if self.count == 0 { "\n" } else { ",\n" };
            write!(self.out, "{comma}{:#}", Value::Object(value))?;
        } else {
            let space = if self.count == 0 { "" } else { "\n" };
            let which: String = which.iter().map(|(name, n)| format!(", {name} {n}")).collect();
            write!(self.out, "{space}[{name}{which}]\n{report}")?;
        }
        self.count += 1;
        Ok(())
    }

    /// What is bad is named; the rest is still worth seeing.
    pub fn bad(&mut self, error: &anyhow::Error) {
        crate::people::warn(format_args!("cowshed: {error:#}"));
        self.failed = true;
    }

    /// Ends the output. Returns the exit code: 1 where something was bad.
    pub fn finish(mut self) -> Result<u8> {
        if self.json {
            writeln!(self.out, "\n]")?;
        }
        self.out.flush()?;
        Ok(u8::from(self.failed))
    }
}
