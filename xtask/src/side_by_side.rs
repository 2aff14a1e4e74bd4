//! All tests of the workspace, two test programs at a time. Tests of mounts and devices wait for
//! other programs for half of their time, and the last tests of a program run alone.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_harness::limit;
use serde_json::Value;

use crate::{failures, run};

/// At a time.
const PROGRAMS: usize = 2;
/// The target whose tests take longest: it begins first, so that it does not run alone at the end.
const LONGEST: &str = "command";

/// A test program, or all tests of documentation.
struct Program {
    title: String,
    command: Command,
}

/// Runs them all. The output of each is printed when it ends; errors list what failed.
pub fn run(limit: Duration) -> Result<()> {
    println!("== tests");
    let started = Instant::now();
    let programs = Mutex::new(programs(limit)?);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..PROGRAMS {
            scope.spawn(|| {
                loop {
                    let next = locked(&programs).pop_front();
                    let Some(mut program) = next else { return };
                    let started = Instant::now();
                    let kept = failures::keep_output_within(limit, &mut program.command);
                    // One program's lines stay together.
                    let mut failed = locked(&failed);
                    println!("== tests of {}", program.title);
                    println!("{}", String::from_utf8_lossy(&kept.output).trim_end());
                    println!("== {:.1} s", started.elapsed().as_secs_f64());
                    if let Some(why) = kept.failed {
                        failed.push(format!("{}: {why}", program.title));
                    }
                }
            });
        }
    });
    println!("== tests: {:.1} s", started.elapsed().as_secs_f64());
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() {
        return Ok(());
    }
    bail!("tests failed:\n{}", failed.join("\n"))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In the order in which they begin.
fn programs(limit: Duration) -> Result<VecDeque<Program>> {
    let args = ["test", "--workspace", "--no-run", "--quiet", "--message-format=json"];
    let built = limit::output_within(&mut run::cargo(&args), limit)?;
    ensure!(
        built.status.success(),
        "building tests: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    let mut programs = VecDeque::new();
    for line in String::from_utf8(built.stdout)?.lines() {
        let message: Value = serde_json::from_str(line).context("what cargo says it built")?;
        let Some(program) = program(&message)? else { continue };
        match message["target"]["name"] == LONGEST {
            true => programs.push_front(program),
            false => programs.push_back(program),
        }
    }
    ensure!(!programs.is_empty(), "cargo names no test program");
    programs.push_back(Program {
        title: "documentation".into(),
        command: run::cargo(&["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]),
    });
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    for program in &mut programs {
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            program.command.env("RUST_TEST_THREADS", (processors + 1).to_string());
        }
    }
    Ok(programs)
}

/// The test program that one of cargo's messages is about.
fn program(message: &Value) -> Result<Option<Program>> {
    let Some(path) = message["executable"].as_str() else {
        return Ok(None);
    };
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return Ok(None);
    }
    let text = |value: &Value| value.as_str().map(str::to_owned).context("a name of cargo's");
    let manifest = PathBuf::from(text(&message["manifest_path"])?);
    let package = manifest.parent().context("the directory of a package")?;
    let mut command = run::command(path, &[]);
    // As cargo does it.
    command.current_dir(package).env("CARGO_MANIFEST_DIR", package);
    let shown = package.strip_prefix(run::root()).unwrap_or(package);
    let title = format!("{}, {}", shown.display(), text(&message["target"]["name"])?);
    Ok(Some(Program { title, command }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tests_are_run_where_cargo_would_run_them() {
        let root = run::root();
        let mut message = json!({
            "reason": "compiler-artifact",
            "manifest_path": root.join("crates/fuse/Cargo.toml"),
            "target": { "name": "mounted" },
            "profile": { "test": true },
            "executable": "/built/mounted-1",
        });
        let found = program(&message).unwrap().unwrap();
        assert_eq!(found.title, "crates/fuse, mounted");
        assert_eq!(found.command.get_program(), "/built/mounted-1");
        assert_eq!(
            found.command.get_current_dir(),
            Some(root.join("crates/fuse").as_path())
        );
        message["profile"]["test"] = json!(false);
        assert!(program(&message).unwrap().is_none(), "not a test");
        message["executable"] = Value::Null;
        assert!(program(&message).unwrap().is_none(), "not a program");
    }
}
