//! The engine without a mount, for the lines that it has: figures of `cowshed-bench-inprocess`, one
//! caller.

use anyhow::{Context as _, Result};

use super::Bench;
use super::results::{Key, Kind};
use super::stats::Sample;
use crate::run;

/// Names of that program, and the lines that they belong to.
const LINES: [(&str, &str); 12] = [
    ("create", "create + close"),
    ("lookup-cold", "stat, cold"),
    ("chmod", "chmod"),
    ("setxattr", "setxattr"),
    ("getxattr", "getxattr"),
    ("link", "link"),
    ("rename", "rename"),
    ("unlink", "unlink"),
    ("symlink", "symlink"),
    ("mkdir", "mkdir"),
    ("rmdir", "rmdir"),
    ("readdir", "readdir, cold"),
];

pub fn run(bench: &mut Bench<'_>) -> Result<()> {
    let count = bench.args.count(1_000_000, 1).to_string();
    let args = ["--json", "--count", &count, "--stream", "16m"];
    let text = run::output(&mut run::command("target/release/cowshed-bench-inprocess", &args))?;
    for (name, line) in LINES {
        let rate = rate(&text, name).with_context(|| format!("{name} is not among what the engine did"))?;
        bench.record(&Key::new(Kind::Names, line, 1), Sample::of_value(rate));
    }
    Ok(())
}

/// Operations per second of the measurement with this name, of lines of JSON.
fn rate(text: &str, name: &str) -> Option<f64> {
    let mut lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let line = lines.find(|line| line["name"] == name)?;
    Some(line["ops"].as_f64()? / line["wall_s"].as_f64()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_is_that_of_the_named_line() {
        let text = "{\"name\":\"readdirplus\",\"ops\":1,\"wall_s\":1.0}\nwords\n{\"name\":\"readdir\",\"ops\":10,\"wall_s\":0.5}\n";
        assert_eq!(rate(text, "readdir"), Some(20.0));
        assert_eq!(rate(text, "unlink"), None);
    }
}
