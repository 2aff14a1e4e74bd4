//! Help, version, manual pages, completions; and what is no command.

use crate::support::{cowshed, run};

const COMMANDS: [&str; 8] = ["mkfs", "mount", "umount", "check", "inspect", "ls", "cat", "stat"];

#[test]
fn every_command_has_help_and_refuses_unknown_flags() {
    let version = cowshed(["--version"]).ok().text();
    assert!(version.starts_with("cowshed "), "{version}");
    let overview = cowshed(["--help"]).ok().text();
    for command in COMMANDS {
        assert!(overview.contains(command), "{command} in: {overview}");
        let help = cowshed([command, "--help"]).ok().text();
        assert!(help.contains("Usage: cowshed"), "{help}");
        let refused = cowshed([command, "--wobble"]).code(2);
        assert!(refused.err.contains("--wobble"), "{}", refused.err);
        assert!(refused.out.is_empty());
    }
    cowshed(["wobble"]).fails(&["wobble"]);
    cowshed::<&str>([]).code(2);
}

#[test]
fn manual_pages_and_completions_cover_the_commands() {
    let dir = tempfile::tempdir().unwrap();
    run("man {}", &[dir.path()]).ok();
    for command in COMMANDS {
        let page = dir.path().join(format!("cowshed-{command}.1"));
        let text = std::fs::read_to_string(&page).unwrap_or_else(|e| panic!("{}: {e}", page.display()));
        assert!(text.contains(".TH") && text.contains("SYNOPSIS"), "{text}");
    }
    assert!(dir.path().join("cowshed.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        let script = cowshed(["completions", shell]).ok().text();
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
    cowshed(["completions", "tcsh"]).fails(&["tcsh"]);
}
