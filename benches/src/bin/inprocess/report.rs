//! How results are printed.

use cowshed_benches::{Measured, peak_memory_bytes};

/// Prints results as they come.
pub(crate) struct Report {
    pub json: bool,
    pub only: String,
}

impl Report {
    /// Is one of these measurements wanted? What must run before a wanted one runs, too.
    pub fn wants(&self, names: &[&str]) -> bool {
        names.iter().any(|n| n.contains(&self.only))
    }

    /// Bytes of memory that each of so many things takes.
    pub fn say_bytes_each(&self, name: &str, bytes: i64, count: u64) {
        let each = bytes as f64 / count as f64;
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "name": name, "ops": count, "bytes_each": each })
            );
        } else {
            println!("{name:<24} {count:>9}     {each:>8.0} bytes of memory each");
        }
    }

    pub fn say(&self, name: &str, m: &Measured) {
        if self.json {
            let mut line = m.to_json();
            line["name"] = name.into();
            line["peak_memory_bytes"] = peak_memory_bytes().into();
            println!("{line}");
            return;
        }
        let per_core = if m.cpu_s > 0.0 { m.ops as f64 / m.cpu_s } else { 0.0 };
        let mut line = format!(
            "{name:<24} {:>9} ops {:>8.3} s {:>8.2} s cpu {:>10.0} ops/s {per_core:>10.0} ops/s of one core",
            m.ops,
            m.wall_s,
            m.cpu_s,
            m.ops as f64 / m.wall_s
        );
        if m.ops > 0 {
            line += &format!(" {:>6.2} allocations/op", m.allocations as f64 / m.ops as f64);
        }
        if m.bytes > 0 {
            line += &format!(" {:>7.2} GB/s", m.bytes as f64 / m.wall_s / 1e9);
        }
        println!("{line}");
    }
}
