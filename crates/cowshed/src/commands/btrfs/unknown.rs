//! What btrfs(8) has and this command has not: refused by name.

use std::ffi::OsString;

use anyhow::Result;
use clap::{Args, Subcommand};

use super::say;

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

#[derive(Subcommand, Debug)]
pub enum Unknown {
    /// Spread data over devices: not implemented yet
    #[command(hide = true)]
    Balance(Words),
    /// Quota groups: not implemented yet
    #[command(hide = true)]
    Qgroup(Words),
    /// Quotas: not implemented yet
    #[command(hide = true)]
    Quota(Words),
    /// Replace a device: not implemented yet
    #[command(hide = true)]
    Replace(Words),
    /// Repairs: not implemented yet
    #[command(hide = true)]
    Rescue(Words),
    /// Check all of a mount: not implemented yet
    #[command(hide = true)]
    Scrub(Words),
}

/// The words of each group behind its name.
const BALANCE: &[&str] = &["start", "pause", "cancel", "resume", "status"];
const QGROUP: &[&str] = &["assign", "remove", "create", "clear-stale", "destroy", "show", "limit"];
const QUOTA: &[&str] = &["enable", "disable", "rescan"];
const REPLACE: &[&str] = &["start", "status", "cancel"];
const RESCUE: &[&str] = &[
    "chunk-recover",
    "super-recover",
    "zero-log",
    "fix-device-size",
    "create-control-device",
    "clear-uuid-tree",
];
const SCRUB: &[&str] = &["start", "cancel", "resume", "status", "limit"];

/// Says which command it is. The exit code.
pub fn refuse(what: &Unknown) -> Result<u8> {
    let (name, below, words) = match what {
        Unknown::Balance(words) => ("balance", BALANCE, words),
        Unknown::Qgroup(words) => ("qgroup", QGROUP, words),
        Unknown::Quota(words) => ("quota", QUOTA, words),
        Unknown::Replace(words) => ("replace", REPLACE, words),
        Unknown::Rescue(words) => ("rescue", RESCUE, words),
        Unknown::Scrub(words) => ("scrub", SCRUB, words),
    };
    let first = words.words.first().and_then(|word| word.to_str());
    // As far as it is unambiguous.
    let mut fitting = below
        .iter()
        .filter(|known| first.is_some_and(|first| known.starts_with(first)));
    match (fitting.next(), fitting.next()) {
        (Some(word), None) => say::refuse(&format!("{name} {word}")),
        _ => say::refuse(name),
    }
}
