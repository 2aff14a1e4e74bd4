//! Flags, owners and labels by rules.

use std::fs;

use cowshed_harness::{KernelMount, LoopDevice, need};

use super::{assert_same, small_tree, source};
use crate::support::run;

#[test]
fn flags_of_chattr_are_what_lsattr_shows() {
    let Some(()) = need::kernel_btrfs() else { return };
    let Some(()) = need::tool("lsattr") else { return };
    let (dir, root) = source();
    small_tree(&root);
    for letter in "aAcCdDimS".chars() {
        fs::create_dir(root.join(format!("dir-{letter}"))).unwrap();
        fs::write(root.join(format!("dir-{letter}/file")), "text ".repeat(9000)).unwrap();
    }
    let image = dir.path().join("image");
    let flags: Vec<String> = "aAcCdDimS"
        .chars()
        .map(|letter| format!("--chattr dir-{letter}:+{letter} --chattr dir-{letter}/**:{letter}"))
        .collect();
    let flags = flags.join(" ").replace("--chattr dir-D/**:D", "");
    run(
        &format!("build -q --compress zstd --from {{}} {flags} {{}}"),
        &[&root, &image],
    )
    .ok();
    assert_same(&image, &root);
    let device = LoopDevice::attach(&image).unwrap();
    let at = tempfile::tempdir().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], at.path(), "").unwrap();
    let listed = cowshed_harness::shell(at.path(), "lsattr -R . 2>/dev/null").unwrap();
    for letter in "aAcCdDimS".chars() {
        for path in [format!("./dir-{letter}"), format!("./dir-{letter}/file")] {
            if path == "./dir-D/file" {
                continue;
            }
            let line = listed
                .lines()
                .find(|line| line.split_whitespace().nth(1) == Some(&path));
            let line = line.unwrap_or_else(|| panic!("no {path} in {listed}"));
            let flags = line.split_whitespace().next().unwrap();
            assert!(flags.contains(letter), "{line}");
        }
    }
    assert!(fs::write(at.path().join("dir-i/file"), "").is_err(), "immutable");
    mount.unmount().unwrap();
    let tree = run("inspect tree -t fs {}", &[&image]).ok().text();
    assert!(tree.contains("zstd"), "the others are compressed");
    run("build -q --chattr etc:z --from {} {}", &[&root, &image]).fails_with(1, &["'z'"]);
}

#[test]
fn owners_are_translated_and_what_has_no_translation_is_named() {
    let Some(()) = need::root() else { return };
    let (dir, root) = source();
    small_tree(&root);
    std::os::unix::fs::chown(root.join("etc/hostname"), Some(100_006), Some(100_007)).unwrap();
    std::os::unix::fs::chown(root.join("home"), Some(1000), Some(0)).unwrap();
    let (map, image) = (dir.path().join("map"), dir.path().join("image"));
    let rules = "uid 0 0 1\ngid 0 0 1\nuid 1 100000 100 # subordinate\ngid 1 100000 100\nuid 500 1000 1\n";
    fs::write(&map, rules).unwrap();
    let build = || {
        run(
            "build -q --map-users {} --uid-offset 1 --from {} {}",
            &[&map, &root, &image],
        )
    };
    build().ok();
    let owner = |path: &str| {
        let stat = run(&format!("stat --json {{}} {path}"), &[&image]).ok().json();
        (stat[0]["uid"].as_u64().unwrap(), stat[0]["gid"].as_u64().unwrap())
    };
    assert_eq!(
        [owner("/"), owner("/home"), owner("/etc/hostname")],
        [(1, 0), (501, 0), (8, 8)]
    );
    fs::write(&map, &rules[..rules.len() - 15]).unwrap();
    build().fails_with(1, &["'/home'", "1000:0"]);
    run(
        "build -q --map-users subuid --from {} {}",
        &[&root.join("etc/conf.d"), &image],
    )
    .ok();
    assert_eq!(owner("/"), (0, 0));
    run(
        "build -q --map-users {} --from {} {}",
        &[&root.join("gone"), &root, &image],
    )
    .fails(&["gone"]);
}

#[test]
fn labels_of_selinux_are_by_file_contexts() {
    let Some(()) = need::root() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let (rules, image) = (dir.path().join("file_contexts"), dir.path().join("image"));
    let text = "/.*  system_u:object_r:default_t:s0\n/etc(/.*)?  system_u:object_r:etc_t:s0\n\
                /etc/hostname  --  system_u:object_r:hostname_etc_t:s0\n/home/[^/]+/.*  <<none>>\n";
    fs::write(&rules, text).unwrap();
    run(
        "build -q --verify --file-contexts {} --from {} {}",
        &[&rules, &root, &image],
    )
    .ok();
    let tree = run("inspect tree -t fs {}", &[&image]).ok().text();
    for label in ["default_t", "etc_t", "hostname_etc_t"] {
        assert!(tree.contains(label), "{label}");
    }
    // root, home, home/user; etc, conf.d, empty, hostname, notes (one inode with home/user/notes),
    // link
    assert_eq!(
        tree.matches("security.selinux").count(),
        tree.matches("object_r").count()
    );
    fs::write(&rules, "/ok x\n/a(?=b) context\n").unwrap();
    run("build -q --file-contexts {} --from {} {}", &[&rules, &root, &image])
        .fails_with(1, &["file_contexts", "line 2"]);
}
