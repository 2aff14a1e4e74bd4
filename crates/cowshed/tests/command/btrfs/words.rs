//! How the command is called: names, short words, what is not there.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use cowshed_harness::limit;

use super::ours;
use crate::support::{COMMAND_MAX, COWSHED, cowshed};

#[test]
fn what_is_not_there_is_refused_by_name() {
    for (line, name) in [
        ("balance start @", "balance start"),
        ("bal sta -d @", "balance"),
        ("balance status @", "balance status"),
        ("scrub start -B @", "scrub start"),
        ("qgroup show @", "qgroup show"),
        ("quota enable @", "quota enable"),
        ("replace start 1 2 @", "replace start"),
        ("rescue zero-log @", "rescue zero-log"),
        ("restore -d @ /tmp", "restore -d"),
        ("restore -u 1 @ /tmp", "restore --super"),
        ("filesystem resize max @", "filesystem resize"),
        ("fi balance start @", "filesystem balance"),
        ("filesystem mkswapfile @/s", "filesystem mkswapfile"),
        ("device add /dev/none @", "device add"),
        ("device delete 2 @", "device delete"),
        ("device remove 2 @", "device remove"),
        ("device replace start 1 2 @", "device replace"),
        ("inspect-internal min-dev-size @", "inspect-internal min-dev-size"),
        ("inspect-internal map-swapfile @/s", "inspect-internal map-swapfile"),
        (
            "inspect-internal dump-tree --hide-names @",
            "inspect-internal dump-tree --hide-names",
        ),
        ("check --repair @", "check --repair"),
        ("check -s 1 @", "check --super"),
        ("check --clear-space-cache v1 @", "check --clear-space-cache"),
        ("check --init-csum-tree @", "check --init-csum-tree"),
        ("subvolume create -i 0/5 @/a", "subvolume create -i"),
        ("subvolume snapshot -i 0/5 @/a @/b", "subvolume snapshot -i"),
    ] {
        let refused = ours("/none").run(line);
        assert_eq!(
            refused.err,
            format!("btrfs: '{name}' is not implemented yet\n"),
            "{line}"
        );
        assert_eq!((refused.code, refused.out), (1, String::new()), "{line}");
    }
}

#[test]
fn words_may_be_short_and_usage_is_code_one() {
    let version = ours("/none").ok("--version");
    assert!(version.starts_with("btrfs-progs v"), "{version}");
    assert_eq!(ours("/none").ok("version"), version);
    for line in [
        "",
        "s",
        "wobble",
        "subvolume",
        "subvolume s",
        "subvolume list --wobble /",
    ] {
        let refused = ours("/none").run(line);
        assert_eq!((refused.code, &*refused.out), (1, ""), "{line}");
        assert!(!refused.err.is_empty(), "{line}");
    }
    for line in ["--help", "subvolume --help", "sub list --help", "su show --help"] {
        assert!(ours("/none").ok(line).contains("Usage: btrfs"), "{line}");
    }
}

#[test]
fn help_is_a_command_that_succeeds() {
    let help = ours("/none").ok("help");
    assert!(help.contains("Usage: btrfs") && help.contains("subvolume"), "{help}");
    for line in ["help --", "help wobble", "--log=info help", "-q help", "--dry-run help"] {
        assert_eq!(ours("/none").ok(line), help, "{line}");
    }
    let full = ours("/none").ok("help --full");
    assert!(full.contains("--commit-each") && full.contains("--rootid"), "{full}");
}

#[test]
fn options_that_a_command_does_not_know_are_refused() {
    for line in [
        "subvolume show @/",
        "sub get-d @/",
        "subvolume list @/",
        "filesystem usage @/",
        "device usage @/",
        "inspect-internal rootid @/",
    ] {
        let refused = ours("/none").run(&format!("--format json {line}"));
        assert_eq!(
            refused.err, "ERROR: output format json is unsupported for this command\n",
            "{line}"
        );
        assert_eq!((refused.code, &*refused.out), (1, ""), "{line}");
    }
    assert!(ours("/none").ok("--format JSON version").starts_with("btrfs-progs v"));
    for (line, name) in [
        ("subvolume create @/a", "create"),
        ("fi label @/ x", "label"),
        ("receive @/", "receive"),
    ] {
        let refused = ours("/none").run(&format!("--dry-run {line}"));
        assert_eq!(
            refused.err,
            format!("ERROR: --dry-run option not supported for {name}\n")
        );
        assert_eq!((refused.code, &*refused.out), (1, ""), "{line}");
    }
}

/// By its own name it is one of our commands, and another name of a link changes nothing.
#[test]
fn the_command_is_found_by_both_names() {
    let own = cowshed(["btrfs", "subvolume", "list", "/none"]).code(1);
    assert!(own.err.contains("cannot access '/none'"), "{}", own.err);
    cowshed(["subvolume", "list", "/none"]).fails(&["cannot access '/none'"]);
    let mut command = Command::new(COWSHED);
    command
        .arg0("/usr/local/sbin/btrfs")
        .arg("--version")
        .stdin(Stdio::null());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    assert!(output.stdout.starts_with(b"btrfs-progs v"));
}
