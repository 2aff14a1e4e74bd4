//! Systems other than Linux: they have no mounts of ours. The commands on mounts are known there,
//! stand in no help, and are refused.

#[cfg(not(target_os = "linux"))]
mod stubs;
#[cfg(not(target_os = "linux"))]
pub use stubs::*;

use std::ffi::OsStr;

use anyhow::{Result, bail};
use clap::Command;

/// The commands that do nothing but with mounts.
const COMMANDS: [&str; 10] = [
    "mount", "umount", "sync", "clone", "dedupe", "exchange", "fiemap", "compsize", "defrag", "doctor",
];

/// What to do instead.
const REFUSAL: &str = "mounts need Linux; on this system, images are read and changed by commands on files, as \
                       cowshed ls and cowshed cp";

/// The command line without the commands on mounts.
pub fn without_mounts(command: Command) -> Command {
    let command = command
        .about("Copy-on-write file systems in user space: make, check, inspect and change images of btrfs; read XFS")
        .long_about(
            "Makes, checks, inspects and changes images of btrfs without a kernel driver and without root, and reads, \
             checks and inspects those of XFS. The volumes are Linux's own: the kernel and the formats' own programs \
             read and write them too. Mounts need Linux: on this system there are none.",
        );
    let hidden = |command: Command| command.hide(true);
    COMMANDS
        .iter()
        .fold(command, |command, name| command.mut_subcommand(name, hidden))
}

/// Errors: the first word of a command line is a command on mounts.
pub fn refuse(word: Option<&OsStr>) -> Result<()> {
    match word.and_then(OsStr::to_str).filter(|word| COMMANDS.contains(word)) {
        Some(word) => bail!("{word}: {REFUSAL}"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_on_mounts_are_hidden_and_refused_and_others_are_not() {
        let all = crate::cli::command();
        let left = without_mounts(all.clone()).render_long_help().to_string();
        for command in all.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let is_refused = refuse(Some(OsStr::new(name))).is_err();
            let is_shown = left.lines().any(|line| line.split_whitespace().next() == Some(name));
            assert_eq!(
                (is_refused, is_shown),
                (COMMANDS.contains(&name), !COMMANDS.contains(&name)),
                "{name}"
            );
        }
        let refused = refuse(Some(OsStr::new("mount"))).unwrap_err().to_string();
        assert!(refused.starts_with("mount: mounts need Linux"), "{refused}");
        refuse(None).unwrap();
    }
}
