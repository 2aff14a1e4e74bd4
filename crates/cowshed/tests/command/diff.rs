//! `diff`: what it shows between snapshots of random changes, against what a walk over both finds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use cowshed_harness::{KernelVolume, VolumeOptions, need};
use serde_json::Value;

use crate::extents::{Dice, Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::receive::random::{CHANGES, Changer, ROUNDS};
use crate::receive::{btrfs, can_receive};
use crate::support::run;

/// What a walk finds of an inode.
#[derive(Clone, Debug, Default, PartialEq)]
struct Found {
    /// By directory and name in it: a directory that moves takes along what is in it.
    paths: BTreeMap<(u64, String), String>,
    mode: u32,
    owner: (u32, u32),
    content: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// Inodes by number. Numbers are not used again.
type Inodes = BTreeMap<u64, Found>;

fn walk(root: &Path, dir: &Path, all: &mut Inodes) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = path.symlink_metadata()?;
        let found = all.entry(meta.ino()).or_default();
        let relative = path.strip_prefix(root).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let place = (dir.symlink_metadata()?.ino(), name);
        found.paths.insert(place, relative.to_str().unwrap().to_owned());
        found.mode = meta.mode();
        found.owner = (meta.uid(), meta.gid());
        let mut names = vec![0; 65536];
        let len = rustix::fs::llistxattr(&path, &mut names[..])?;
        for name in names[..len].split(|b| *b == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; 65536];
            let len = rustix::fs::lgetxattr(&path, name, &mut value[..])?;
            value.truncate(len);
            found.xattrs.insert(String::from_utf8(name.to_vec()).unwrap(), value);
        }
        if meta.is_file() {
            found.content = fs::read(&path)?;
        }
        if meta.is_dir() {
            walk(root, &path, all)?;
        }
    }
    Ok(())
}

fn texts(value: &Value) -> BTreeSet<String> {
    let all = value.as_array().unwrap().iter();
    all.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// Each inode that `diff` shows, and each that it does not, is as the walk has it.
fn assert_right(lines: &str, old: &Inodes, new: &Inodes, what: &str) {
    let shown: BTreeMap<u64, Value> = lines
        .lines()
        .map(|line| {
            let value: Value = serde_json::from_str(line).unwrap();
            (value["inode"].as_u64().unwrap(), value)
        })
        .collect();
    let none = Found::default();
    for ino in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
        let (before, after) = (old.get(ino), new.get(ino));
        let Some(found) = shown.get(ino) else {
            let places = |found: Option<&Found>| found.map(|found| found.paths.keys().cloned().collect::<Vec<_>>());
            assert_eq!(places(before), places(after), "{what}: inode {ino} is not shown");
            let (mut a, mut b) = (before.unwrap().clone(), after.unwrap().clone());
            (a.paths, b.paths) = (BTreeMap::new(), BTreeMap::new());
            assert!(a == b, "{what}: inode {ino} is not shown");
            continue;
        };
        let place = format!("{what}: {found}");
        let (a, b) = (before.unwrap_or(&none), after.unwrap_or(&none));
        let only = |a: &Found, b: &Found| -> BTreeSet<String> {
            let gone = a.paths.iter().filter(|(place, _)| !b.paths.contains_key(*place));
            gone.map(|(_, path)| path.clone()).collect()
        };
        assert_eq!(texts(&found["removed"]), only(a, b), "{place}");
        assert_eq!(texts(&found["added"]), only(b, a), "{place}");
        if before.is_none() || after.is_none() {
            continue;
        }
        assert_eq!(found["mode"], a.mode != b.mode, "{place}");
        assert_eq!(found["owner"], a.owner != b.owner, "{place}");
        let differing = a.xattrs.keys().chain(b.xattrs.keys());
        let differing = differing.filter(|name| a.xattrs.get(*name) != b.xattrs.get(*name));
        assert_eq!(texts(&found["xattrs"]), differing.cloned().collect(), "{place}");
        let ranges: Vec<(usize, usize)> = found["ranges"]
            .as_array()
            .unwrap()
            .iter()
            .map(|range| (range[0].as_u64().unwrap() as usize, range[1].as_u64().unwrap() as usize))
            .collect();
        let mut untouched = b.content.clone();
        let mut before_them = a.content.clone();
        before_them.resize(untouched.len(), 0);
        for (start, len) in ranges {
            assert!(start + len <= untouched.len() && len > 0, "{place}: {start} {len}");
            untouched[start..start + len].fill(0);
            before_them[start..start + len].fill(0);
        }
        assert!(untouched == before_them, "{place}: content beside the ranges differs");
    }
}

fn random_changes(seed: u64) {
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let work = |root: &Path| {
        btrfs(root, "subvolume create s");
        let mut changer = Changer {
            dice: Dice(seed),
            root: root.join("s"),
        };
        let mut trees = Vec::new();
        for round in 0..=ROUNDS {
            // Few changes, and many.
            for _ in 0..[CHANGES, 10, 1][round % 3] {
                let _ = changer.change();
            }
            btrfs(root, &format!("subvolume snapshot -r s s{round}"));
            let (top, mut all) = (root.join(format!("s{round}")), Inodes::new());
            walk(&top, &top, &mut all)?;
            trees.push(all);
        }
        Ok(trees)
    };
    let trees = volume.with_mount(work).unwrap();
    let at = |round: usize| PathBuf::from(format!("{}:/s{round}", volume.image().display()));
    for (a, b) in (0..ROUNDS).flat_map(|n| [(n, n + 1), (0, n + 1), (n + 1, n)]) {
        let lines = run("diff --json {} {}", &[&at(a), &at(b)]).ok().text();
        assert_right(&lines, &trees[a], &trees[b], &format!("seed {seed}, {a} to {b}"));
    }
    assert_eq!(run("diff {} {}", &[&at(1), &at(1)]).ok().text(), "");
}

/// `COWSHED_SEEDS=100..140` selects other seeds, and more of them.
#[test]
fn random_changes_are_shown() {
    let Some(()) = can_receive() else { return };
    let seeds = std::env::var("COWSHED_SEEDS").ok().and_then(|text| {
        let (from, to) = text.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let share = need::share_seed("random changes to compare");
    for seed in seeds.unwrap_or(share..share + 3) {
        random_changes(seed);
    }
}

#[test]
fn changes_on_a_mount_are_shown_with_letters() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let [s, a] = ["s", "a"].map(|name| mnt.join(name));
    run("subvolume create {}", &[&s]).ok();
    for dir in ["dir", "gone/below"] {
        fs::create_dir_all(s.join(dir)).unwrap();
    }
    for (name, len) in [
        ("grows", 10_000),
        ("same", 5000),
        ("dir/moves", 5000),
        ("gone/below/file", 1),
        ("mode", 0),
    ] {
        fs::write(s.join(name), vec![7; len]).unwrap();
    }
    run("subvolume snapshot {} {}", &[&s, &a]).ok();
    assert_eq!(run("diff {} {}", &[&a, &s]).ok().text(), "");
    fs::write(s.join("grows"), vec![8; 20_000]).unwrap();
    fs::rename(s.join("dir/moves"), s.join("moved")).unwrap();
    fs::hard_link(s.join("same"), s.join("dir/link")).unwrap();
    fs::remove_dir_all(s.join("gone")).unwrap();
    fs::create_dir(s.join("new")).unwrap();
    fs::write(s.join("new/file"), vec![9; 3000]).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(s.join("mode"), mode).unwrap();
    // Nothing was synced: the command does.
    let text = run("diff {} {}", &[&a, &s]).ok().text();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let mut wanted = [
        "M  grows",
        "R  dir/moves -> moved",
        "R  same => dir/link",
        "D  gone/",
        "D  gone/below/",
        "D  gone/below/file",
        "A  new/",
        "A  new/file",
        "m  mode  (mode)",
    ];
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
    let with_sum = run("diff --stat {} {}", &[&a, &s]).ok().text();
    assert!(with_sum.contains("M  grows  20K\n"), "{with_sum}");
    assert!(
        with_sum.ends_with("2 added, 3 deleted, 2 renamed, 2 changed; 22K of data\n"),
        "{with_sum}"
    );
    let with_times = run("diff --times {} {}", &[&a, &s]).ok().text();
    assert!(with_times.contains("m  ./  (times)\n"), "{with_times}");
    run("diff {} {}", &[&a, &s.join("dir")]).fails(&["s/dir", "not a subvolume"]);
    run("diff {} /proc", &[&a]).fails(&["/proc"]);
    unmount(&mnt);
    drop(guard);
    let inside = |path: &str| PathBuf::from(format!("{}:/{path}", scratch.image.display()));
    assert_eq!(run("diff {} {}", &[&inside("a"), &inside("s")]).ok().text(), text);
    run("diff {} {}", &[&inside("a"), &inside("none")]).fails(&["no such file"]);
    run("diff {} {}", &[&inside("a"), &PathBuf::from("/other.img:/s")]).fails(&["another volume"]);
}
