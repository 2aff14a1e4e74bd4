//! What engine crates may not use, so that tests can replace or check it. clippy says where they
//! do, with the lists in `xtask/engine-lints/clippy.toml`.
//!
//! - Clocks, timers, threads and randomness come from `Env` alone.
//! - Locks have a rank (`cowshed_runtime::lock`), in the crates whose ranks are in one order.
//!
//! Tests are not looked at: the library targets are compiled without them. A file that is the
//! machine's side of `Env` says `#[allow(clippy::disallowed_methods, reason = "...")]`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cowshed_harness::limit;
use serde_json::Value;

use crate::run;

/// A lint, and where it holds.
struct Rule {
    lint: &'static str,
    /// Folders of `crates/`.
    crates: &'static [&'static str],
    says: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        lint: "clippy::disallowed_methods",
        crates: &["runtime", "pool", "vfs", "vfs-ioctl", "btrfs", "btrfs-store", "xfs"],
        says: "engine crates take clocks, threads and randomness from `Env`",
    },
    Rule {
        lint: "clippy::disallowed_types",
        crates: &["btrfs", "btrfs-store", "btrfs-check", "btrfs-image", "xfs"],
        says: "locks of the engine have a rank, see crates/btrfs-store/src/rank.rs and crates/xfs/src/rank.rs",
    },
];
/// Files that still use what is forbidden, by the end of their path. An entry without a finding
/// fails.
const NOT_YET: &[&str] = &[
    // A thread for each device of a large read.
    "volume/read.rs",
];
const LINTS_MAX: Duration = Duration::from_secs(3600);

/// Runs clippy over the engine crates. Errors: what it finds, and entries of the list without a
/// finding.
pub fn check() -> Result<()> {
    println!("== lints of the engine crates");
    let mut command = run::cargo(&["clippy", "--no-deps", "--lib", "--quiet", "--message-format=json"]);
    command.env("CLIPPY_CONF_DIR", run::root().join("xtask/engine-lints"));
    let mut folders: Vec<&str> = RULES.iter().flat_map(|rule| rule.crates).copied().collect();
    folders.sort_unstable();
    folders.dedup();
    for folder in folders {
        if let Some(package) = package_of(folder)? {
            command.args(["--package", &package]);
        }
    }
    command.args(["--", "-A", "clippy::all"]);
    for rule in RULES {
        command.args(["-W", rule.lint]);
    }
    let out = limit::output_within(&mut command, LINTS_MAX)?;
    let messages = String::from_utf8_lossy(&out.stdout);
    ensure!(
        out.status.success(),
        "{command:?}: {}\n{}{}",
        out.status,
        all_rendered(&messages),
        String::from_utf8_lossy(&out.stderr)
    );
    judge(&messages, NOT_YET)
}

/// The name of the package in a folder of `crates/`.
fn package_of(folder: &str) -> Result<Option<String>> {
    let manifest = run::root().join("crates").join(folder).join("Cargo.toml");
    let Ok(text) = fs::read_to_string(&manifest) else {
        return Ok(None);
    };
    let name = text.lines().find_map(|line| line.strip_prefix("name = \""));
    let name = name.and_then(|rest| rest.strip_suffix('"'));
    let name = name.with_context(|| format!("{} has no name", manifest.display()))?;
    Ok(Some(name.to_owned()))
}

/// Fails for findings in files that are not listed, and for listed files without a finding.
fn judge(messages: &str, not_yet: &[&str]) -> Result<()> {
    let mut unused = not_yet.to_vec();
    let mut findings = String::new();
    for message in lines(messages) {
        let file = message["spans"][0]["file_name"].as_str().unwrap_or_default();
        let Some(rule) = RULES.iter().find(|rule| rule.is_broken(&message, file)) else {
            continue;
        };
        match not_yet.iter().find(|listed| file.ends_with(*listed)) {
            Some(listed) => unused.retain(|other| other != listed),
            None => findings += &format!("{}:\n{}", rule.says, rendered(&message)),
        }
    }
    ensure!(findings.is_empty(), "{findings}");
    ensure!(
        unused.is_empty(),
        "xtask/src/engine_lints.rs lists files that need it no longer: {unused:?}"
    );
    Ok(())
}

impl Rule {
    /// The message is this rule's, about a file of one of its crates.
    fn is_broken(&self, message: &Value, file: &str) -> bool {
        let is_in = |folder: &&str| file.contains(&format!("crates/{folder}/"));
        message["code"]["code"] == self.lint && self.crates.iter().any(is_in)
    }
}

/// The compiler's messages in what cargo printed.
fn lines(messages: &str) -> impl Iterator<Item = Value> + '_ {
    let all = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    all.filter_map(|line: Value| line.get("message").cloned())
}

fn rendered(message: &Value) -> &str {
    message["rendered"].as_str().unwrap_or_default()
}

fn all_rendered(messages: &str) -> String {
    lines(messages).map(|message| rendered(&message).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(lint: &str, file: &str) -> String {
        serde_json::json!({
            "reason": "compiler-message",
            "message": {
                "code": { "code": lint },
                "spans": [{ "file_name": file }],
                "rendered": format!("finding in {file}\n"),
            },
        })
        .to_string()
    }

    const LINT: &str = "clippy::disallowed_methods";

    #[test]
    fn finding_in_a_file_that_is_not_listed_fails_with_its_place() {
        let messages = finding(LINT, "crates/btrfs/src/engine.rs");
        let error = judge(&messages, &[]).unwrap_err().to_string();
        assert!(error.contains("finding in crates/btrfs/src/engine.rs"), "{error}");
    }

    #[test]
    fn finding_in_a_listed_file_and_other_warnings_pass() {
        let messages = [
            finding(LINT, "crates/btrfs-store/src/volume/read.rs"),
            finding("dead_code", "crates/btrfs/src/engine.rs"),
            r#"{"reason":"build-finished","success":true}"#.into(),
        ];
        judge(&messages.join("\n"), &["volume/read.rs"]).unwrap();
    }

    #[test]
    fn listed_file_without_a_finding_fails() {
        let error = judge("", &["volume/read.rs"]).unwrap_err().to_string();
        assert!(error.contains("volume/read.rs"), "{error}");
    }

    #[test]
    fn unranked_lock_fails_in_the_engine_and_passes_in_the_runtime() {
        const LOCKS: &str = "clippy::disallowed_types";
        let error = judge(&finding(LOCKS, "crates/btrfs-store/src/forest.rs"), &[]).unwrap_err();
        assert!(error.to_string().contains("rank.rs"), "{error}");
        judge(&finding(LOCKS, "crates/runtime/src/lock.rs"), &[]).unwrap();
    }

    /// clippy itself, with our list, over a file that makes locks without a rank.
    #[test]
    fn planted_unranked_locks_are_found_by_clippy() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("crates/btrfs-store")).unwrap();
        let planted = "use std::sync::Mutex;\n\
             pub struct Planted(pub Mutex<u8>, pub std::sync::RwLock<u8>, pub std::sync::Condvar);\n";
        let file = "crates/btrfs-store/planted.rs";
        fs::write(dir.path().join(file), planted).unwrap();
        let mut command = run::command(
            "clippy-driver",
            &["--edition=2024", "--crate-type=lib", "--emit=metadata"],
        );
        command.args(["--error-format=json", "-A", "clippy::all", "-W", RULES[1].lint, file]);
        command.env("CLIPPY_CONF_DIR", run::root().join("xtask/engine-lints"));
        command.current_dir(dir.path());
        let out = limit::output_within(&mut command, LINTS_MAX).unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        // As cargo passes them on.
        let messages = String::from_utf8_lossy(&out.stderr);
        let messages: Vec<_> = messages
            .lines()
            .map(|line| format!(r#"{{"message":{line}}}"#))
            .collect();
        let error = judge(&messages.join("\n"), &[]).unwrap_err().to_string();
        for lock in ["Mutex", "RwLock", "Condvar"] {
            assert!(
                error.contains(&format!("disallowed type `std::sync::{lock}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn engine_crates_are_found_by_their_folder() {
        assert_eq!(package_of("btrfs").unwrap().as_deref(), Some("cowshed-btrfs"));
        assert_eq!(package_of("no-such-crate").unwrap(), None);
    }
}
