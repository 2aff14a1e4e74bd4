//! All tests of the workspace, most of their programs two at a time. Tests of mounts and devices
//! wait for other programs for half of their time, and the last tests of a program run alone.

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
/// Targets that run alone, before the others: their tests make name spaces of mounts, in which the
/// mounts of other tests would stay when those unmount them.
const ALONE: &[&str] = &["command", "mounted"];

/// A test program, or all tests of documentation.
struct Program {
    title: String,
    command: Command,
    is_alone: bool,
}

/// Runs them all. The output of each is printed when it ends; errors list what failed.
pub fn run(limit: Duration) -> Result<()> {
    println!("== tests");
    let started = Instant::now();
    let failed = Mutex::new(Vec::new());
    let (alone, others): (Vec<_>, Vec<_>) = programs(limit)?.into_iter().partition(|program| program.is_alone);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    // Tests of mounts and devices wait for half of their time.
    run_all(alone, 1, 3 * processors, limit, &failed);
    run_all(others, PROGRAMS, processors + 1, limit, &failed);
    println!("== tests: {:.1} s", started.elapsed().as_secs_f64());
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() {
        return Ok(());
    }
    bail!("tests failed:\n{}", failed.join("\n"))
}

/// Runs so many of them at a time, each with so many threads.
fn run_all(programs: Vec<Program>, at_a_time: usize, threads: usize, limit: Duration, failed: &Mutex<Vec<String>>) {
    let programs = Mutex::new(VecDeque::from(programs));
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                loop {
                    let next = locked(&programs).pop_front();
                    let Some(mut program) = next else { return };
                    if std::env::var_os("RUST_TEST_THREADS").is_none() {
                        program.command.env("RUST_TEST_THREADS", threads.to_string());
                    }
                    println!("== tests of {}: begin", program.title);
                    let started = Instant::now();
                    let kept = failures::keep_output_within(limit, &mut program.command);
                    // One program's lines stay together.
                    let mut failed = locked(failed);
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
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of them, as cargo names them.
fn programs(limit: Duration) -> Result<Vec<Program>> {
    let args = ["test", "--workspace", "--no-run", "--quiet", "--message-format=json"];
    let built = limit::output_within(&mut run::cargo(&args), limit)?;
    ensure!(
        built.status.success(),
        "building tests: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    let mut programs = Vec::new();
    for line in String::from_utf8(built.stdout)?.lines() {
        let message: Value = serde_json::from_str(line).context("what cargo says it built")?;
        programs.extend(program(&message)?);
    }
    ensure!(!programs.is_empty(), "cargo names no test program");
    programs.push(Program {
        title: "documentation".into(),
        command: run::cargo(&["test", "--workspace", "--doc", "--no-fail-fast", "--quiet"]),
        is_alone: false,
    });
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
    let name = text(&message["target"]["name"])?;
    Ok(Some(Program {
        title: format!("{}, {name}", shown.display()),
        command,
        is_alone: ALONE.contains(&name.as_str()),
    }))
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
        assert_eq!((found.title.as_str(), found.is_alone), ("crates/fuse, mounted", true));
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
