//! Help, version, manual pages, completions; and what is no command.

use std::process::Command;

use cowshed_harness::{limit, need};

use crate::support::{COMMAND_MAX, COWSHED, cowshed, run};

const COMMANDS: [&str; 15] = [
    "mkfs", "build", "mount", "umount", "check", "inspect", "ls", "cat", "stat", "receive", "cp", "chown", "extract",
    "export", "shell",
];

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
    assert!(dir.path().join("cowshed-btrfs-subvolume-list.1").exists());
    let script = cowshed(["completions", "--name", "btrfs", "bash"]).ok().text();
    assert!(script.contains("find-new") && !script.contains("compsize"));
    cowshed(["completions", "tcsh"]).fails(&["tcsh"]);
}

#[test]
fn each_mount_option_is_an_entry_of_the_manual_page() {
    let dir = tempfile::tempdir().unwrap();
    run("man {}", &[dir.path()]).ok();
    let page = std::fs::read_to_string(dir.path().join("cowshed-mount.1")).unwrap();
    let (_, section) = page.split_once(".SH \"MOUNT OPTIONS\"").expect("a section of its own");
    let entries: Vec<&str> = section.split(".TP\n").skip(1).collect();
    let help = cowshed(["mount", "--help"]).ok().text();
    let (_, list) = help.split_once("Options of -o").expect("the list in --help");
    let heads: Vec<&str> = list
        .lines()
        .skip(1)
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .map(|line| line.split("  ").next().unwrap())
        .collect();
    assert_eq!(heads.len(), entries.len(), "{page}");
    for (head, entry) in heads.iter().zip(&entries) {
        let lines: Vec<&str> = entry.lines().collect();
        let [tag, text] = lines[..] else {
            panic!("two lines of {head}: {entry}")
        };
        let tag = tag.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-");
        assert_eq!(&tag, head);
        assert!(!text.is_empty(), "{head}");
    }
    assert!(heads.len() > 20 && heads.contains(&"subvol=PATH"), "{heads:?}");
}

/// `scripts/install.sh` with the program under test.
#[test]
fn the_installed_program_is_stripped_and_runs() {
    // Of a build without optimisation.
    const BYTES_MAX: u64 = 24 << 20;
    for tool in ["strip", "readelf", "bash"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let dir = tempfile::tempdir().unwrap();
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let mut install = Command::new("bash");
    install
        .arg(&script)
        .env("COWSHED", COWSHED)
        .env("PREFIX", dir.path())
        .env_remove("DESTDIR");
    let done = limit::output_within(&mut install, COMMAND_MAX).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    let program = dir.path().join("bin/cowshed");
    let sections = cowshed_harness::run("readelf", &["-SW".as_ref(), program.as_os_str()]).unwrap();
    let before = cowshed_harness::run("readelf", &["-SW", COWSHED]).unwrap();
    // Not all that begin with .debug: .debug_gdb_scripts is loaded with the program.
    for section in [".debug_info", ".debug_line", ".debug_str", ".symtab"] {
        assert!(!sections.contains(section), "{section} in {sections}");
        assert!(before.contains(section), "the one that was built keeps {section}");
    }
    let bytes = std::fs::metadata(&program).unwrap().len();
    assert!(bytes < BYTES_MAX, "{bytes}");
    let version = cowshed_harness::run(program.to_str().unwrap(), &["--version"]).unwrap();
    assert!(version.starts_with("cowshed "), "{version}");
    assert!(dir.path().join("share/man/man1/cowshed-mount.1").exists());
}

/// Only where it is asked for, and no other program of that name is in the way.
#[test]
fn a_link_of_the_name_btrfs_replaces_nothing() {
    let Some(()) = need::tool("bash") else { return };
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install.sh");
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("bin/btrfs");
    // Of the tools, all that the script needs, and no btrfs.
    let tools = dir.path().join("tools");
    std::fs::create_dir(&tools).unwrap();
    for tool in [
        "bash", "dirname", "mktemp", "rm", "cp", "install", "mkdir", "ln", "readlink", "basename",
    ] {
        let found = cowshed_harness::run("sh", &["-c", &format!("command -v {tool}")]).unwrap();
        std::os::unix::fs::symlink(found.trim(), tools.join(tool)).unwrap();
    }
    let install = |flag: &str, path: &std::path::Path| {
        let mut install = Command::new("bash");
        install.arg(&script).env("COWSHED", COWSHED).env("PREFIX", dir.path());
        install.env("BTRFS", flag).env("PATH", path).env_remove("DESTDIR");
        let done = limit::output_within(&mut install, COMMAND_MAX).unwrap();
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{text}{}", String::from_utf8_lossy(&done.stderr));
        text
    };
    install("", &tools);
    assert!(!link.exists());
    install("1", &tools);
    assert_eq!(std::fs::read_link(&link).unwrap(), dir.path().join("bin/cowshed"));
    let version = cowshed_harness::run(link.to_str().unwrap(), &["--version"]).unwrap();
    assert!(version.starts_with("btrfs-progs v"), "{version}");
    // Again, over our own link.
    install("1", &tools);
    std::fs::remove_file(&link).unwrap();
    std::fs::write(&link, "another").unwrap();
    let said = install("1", &tools);
    assert!(said.contains("is there and stays"), "{said}");
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "another");
    std::fs::remove_file(&link).unwrap();
    let stock = tools.join("btrfs");
    std::fs::write(&stock, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&stock, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let said = install("1", &tools);
    assert!(
        said.contains("no link of that name is made") && !link.exists(),
        "{said}"
    );
}
