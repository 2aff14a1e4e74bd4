//! Engine crates take clocks, timers, threads and randomness from `Env` alone, so that tests can
//! replace them. clippy says where they do not, with the list in `xtask/engine-lints/clippy.toml`.
//!
//! Tests are not looked at: the library targets are compiled without them. A file that is the
//! machine's side of `Env` says `#[allow(clippy::disallowed_methods, reason = "...")]`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cowshed_harness::limit;
use serde_json::Value;

use crate::run;

/// Folders of `crates/`.
const CRATES: &[&str] = &["runtime", "pool", "vfs", "vfs-ioctl", "btrfs", "btrfs-store"];
/// Files that still use what is forbidden, by the end of their path. An entry without a finding
/// fails.
const NOT_YET: &[&str] = &[
    // A thread for each device of a large read.
    "volume/read.rs",
];
const LINT: &str = "clippy::disallowed_methods";
const LINTS_MAX: Duration = Duration::from_secs(3600);

/// Runs clippy over the engine crates. Errors: what it finds, and entries of the list without a
/// finding.
pub fn check() -> Result<()> {
    println!("== lints of the engine crates");
    let mut command = run::cargo(&["clippy", "--no-deps", "--lib", "--quiet", "--message-format=json"]);
    command.env("CLIPPY_CONF_DIR", run::root().join("xtask/engine-lints"));
    for folder in CRATES {
        if let Some(package) = package_of(folder)? {
            command.args(["--package", &package]);
        }
    }
    command.args(["--", "-A", "clippy::all", "-W", LINT]);
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
    for message in lines(messages).filter(|message| message["code"]["code"] == LINT) {
        let file = message["spans"][0]["file_name"].as_str().unwrap_or_default();
        match not_yet.iter().find(|listed| file.ends_with(*listed)) {
            Some(listed) => unused.retain(|other| other != listed),
            None => findings += rendered(&message),
        }
    }
    ensure!(
        findings.is_empty(),
        "engine crates take clocks, threads and randomness from `Env`:\n{findings}"
    );
    ensure!(
        unused.is_empty(),
        "xtask/src/engine_lints.rs lists files that need it no longer: {unused:?}"
    );
    Ok(())
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
    fn engine_crates_are_found_by_their_folder() {
        assert_eq!(package_of("btrfs").unwrap().as_deref(), Some("cowshed-btrfs"));
        assert_eq!(package_of("no-such-crate").unwrap(), None);
    }
}
