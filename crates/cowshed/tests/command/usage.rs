//! `du --subvolumes`: what subvolumes refer to, beside the quota groups of the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use cowshed_harness::{KernelVolume, VolumeOptions, need, progs};
use serde_json::Value;

use crate::extents::{Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::support::{assert_clean_for_both, run};

const MIB: u64 = 1 << 20;

/// Data, exclusive data, metadata and exclusive metadata, by number and path.
type Usages = BTreeMap<(u64, String), [u64; 4]>;

fn usages(at: &Path) -> Usages {
    let json = run("du --subvolumes --json {}", &[at]).ok().json();
    let number = |value: &Value, field: &str| value[field].as_u64().unwrap_or_else(|| panic!("{field} in {value}"));
    let entry = |value: &Value| {
        for kind in ["data", "metadata"] {
            let parts = ["exclusive_bytes", "shared_bytes"].map(|part| number(value, &format!("{kind}_{part}")));
            assert_eq!(number(value, &format!("{kind}_bytes")), parts.iter().sum::<u64>());
        }
        let fields = [
            "data_bytes",
            "data_exclusive_bytes",
            "metadata_bytes",
            "metadata_exclusive_bytes",
        ];
        let key = (number(value, "id"), value["path"].as_str().unwrap().to_owned());
        (key, fields.map(|field| number(value, field)))
    };
    json.as_array().unwrap().iter().map(entry).collect()
}

fn data_of(all: &Usages, path: &str) -> [u64; 2] {
    let found = all.iter().find(|((_, name), _)| name == path);
    let (_, [data, exclusive, ..]) = found.unwrap_or_else(|| panic!("no {path} in {all:?}"));
    [*data, *exclusive]
}

/// What the kernel's quota groups say after a rescan: referenced and exclusive bytes by number.
fn quota_groups(image: &Path) -> BTreeMap<u64, [u64; 2]> {
    let copy = KernelVolume::copy_of(&[image]).unwrap();
    let mounted = copy.mount_with("noatime").unwrap();
    let dir = mounted.dir().to_str().unwrap().to_owned();
    mounted.btrfs(&["quota", "enable", &dir]).unwrap();
    mounted.btrfs(&["quota", "rescan", "-w", &dir]).unwrap();
    let shown = mounted.btrfs(&["qgroup", "show", "--raw", "--sync", &dir]).unwrap();
    mounted.unmount_quietly().unwrap();
    let group = |line: &str| {
        let mut words = line.split_whitespace();
        let id = words.next()?.strip_prefix("0/")?.parse().ok()?;
        let mut bytes = || words.next()?.parse().ok();
        Some((id, [bytes()?, bytes()?]))
    };
    shown.lines().filter_map(group).collect()
}

/// The sums are those of the kernel: its groups count data and metadata together.
#[track_caller]
fn assert_as_by_the_kernel(all: &Usages, image: &Path) {
    if need::kernel_btrfs().is_none() || need::tool("btrfs").is_none() {
        return;
    }
    let sums = |(key, [data, exclusive, metadata, own]): (&(u64, String), &[u64; 4])| {
        (key.0, [data + metadata, exclusive + own])
    };
    assert_eq!(
        all.iter().map(sums).collect::<BTreeMap<_, _>>(),
        quota_groups(image),
        "{all:#?}"
    );
}

#[test]
fn bytes_of_subvolumes_are_those_of_the_kernels_quota_groups() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let at = |path: &str| mnt.join(path);
    run("subvolume create {}", &[&at("base")]).ok();
    fs::write(at("base/file"), vec![1; MIB as usize]).unwrap();
    fs::write(at("base/small"), "in the metadata").unwrap();
    // On disk without a sync before.
    assert_eq!(data_of(&usages(&mnt), "base"), [MIB, MIB]);
    run("subvolume snapshot {} {}", &[&at("base"), &at("snap")]).ok();
    run("subvolume snapshot -r {} {}", &[&at("base"), &at("frozen")]).ok();
    assert_eq!(data_of(&usages(&mnt), "base"), [MIB, 0]);
    // A block of a snapshot is overwritten: it refers to the whole old extent still.
    let file = fs::File::options().write(true).open(at("snap/file")).unwrap();
    file.write_all_at(&[2; 4096], 8192).unwrap();
    drop(file);
    let all = usages(&mnt);
    assert_eq!(data_of(&all, "snap"), [MIB + 4096, 4096]);
    assert_eq!(data_of(&all, "frozen"), [MIB, 0]);
    // A clone in the same subvolume adds nothing; one in another shares.
    run("clone {} {}", &[&at("base/file"), &at("base/copy")]).ok();
    run("subvolume create {}", &[&at("other")]).ok();
    fs::write(at("other/own"), vec![3; 2 * MIB as usize]).unwrap();
    run("clone {} {}", &[&at("snap/file"), &at("other/copy")]).ok();
    // Many files, so that trees have more than a leaf, of which snapshots share some.
    for number in 0..3000 {
        fs::write(at(&format!("other/file-{number}")), format!("{number}")).unwrap();
    }
    run("subvolume snapshot {} {}", &[&at("other"), &at("later")]).ok();
    for number in (0..3000).step_by(1000) {
        fs::write(at(&format!("later/file-{number}")), "changed").unwrap();
    }
    run("subvolume create {}", &[&at("later/nested")]).ok();
    fs::write(at("later/nested/own"), vec![4; 3 * 4096]).unwrap();
    // What is shared with a deleted one alone is exclusive.
    run("subvolume create {}", &[&at("gone")]).ok();
    run("clone {} {}", &[&at("later/nested/own"), &at("gone/copy")]).ok();
    run("subvolume delete {}", &[&at("gone")]).ok();
    let all = usages(&mnt);
    assert_eq!(data_of(&all, "base"), [MIB, 0]);
    assert_eq!(data_of(&all, "snap"), [MIB + 4096, 0]);
    assert_eq!(data_of(&all, "other"), [3 * MIB + 4096, 0]);
    assert_eq!(data_of(&all, "later/nested"), [3 * 4096, 3 * 4096]);
    assert_eq!(all.len(), 7, "{all:?}");
    run("subvolume sync {}", &[&mnt]).ok();
    let all = usages(&mnt);
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
    assert_eq!(usages(&scratch.image), all, "mounted, and from the image");
    let table = run("du --subvolumes {}", &[&scratch.image]).ok().text();
    let words: Vec<Vec<_>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["ID", "Data", "Exclusive", "Metadata", "Exclusive", "Path"]);
    assert_eq!(words[1][5], "<FS_TREE>");
    let expected: Vec<_> = all.values().map(|bytes| bytes.map(|bytes| bytes.to_string())).collect();
    let shown: Vec<_> = words[1..].iter().map(|line| &line[1..5]).collect();
    assert_eq!(shown, expected);
    assert_as_by_the_kernel(&all, &scratch.image);
}

/// Blocks that commits replace while the count runs are not used again before it is over.
#[test]
fn count_beside_writers_is_of_one_commit() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let at = |path: &str| mnt.join(path);
    run("subvolume create {}", &[&at("base")]).ok();
    for number in 0..5000 {
        fs::write(at(&format!("base/file-{number}")), "x").unwrap();
    }
    fs::write(at("base/data"), vec![1; MIB as usize]).unwrap();
    run("subvolume snapshot -r {} {}", &[&at("base"), &at("frozen")]).ok();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let dir = fs::File::open(&mnt).unwrap();
            for number in (0..5000).cycle() {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                fs::write(at(&format!("base/file-{number}")), "y").unwrap();
                rustix::fs::syncfs(&dir).unwrap();
            }
        });
        for _ in 0..10 {
            let all = usages(&mnt);
            assert_eq!(data_of(&all, "frozen"), [MIB, 0]);
            assert_eq!(data_of(&all, "base"), [MIB, 0]);
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
    let all = usages(&scratch.image);
    assert_as_by_the_kernel(&all, &scratch.image);
}

#[test]
fn subvolumes_are_counted_where_there_are_some_and_of_one_volume() {
    run("du --subvolumes /proc", &[]).fails(&["not a btrfs filesystem: /proc"]);
    run("du --subvolumes /proc /sys", &[]).fails(&["one path"]);
    run("du --subvolumes -s /proc", &[]).fails(&["cannot be used with"]);
    if need::root().is_none() || need::kernel_btrfs().is_none() {
        return;
    }
    let volume = KernelVolume::make(&cowshed_harness::VolumeOptions::default()).unwrap();
    let mounted = volume.mount().unwrap();
    run("du --subvolumes {}", &[mounted.dir()]).fails(&["btrfs qgroup show"]);
    mounted.unmount().unwrap();
}

/// The generation in the superblock on disk: how many commits there were.
fn generation_on_disk(image: &Path) -> u64 {
    let mut bytes = [0; 8];
    let image = fs::File::open(image).unwrap();
    image.read_exact_at(&mut bytes, (64 << 10) + 0x48).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn searches_make_no_commits() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    run("subvolume create {}", &[&mnt.join("sub")]).ok();
    fs::write(mnt.join("sub/dirty"), vec![1; MIB as usize]).unwrap();
    let before = generation_on_disk(&scratch.image);
    let list = run("subvolume list {}", &[&mnt]).ok().text();
    assert!(list.ends_with("path sub\n"), "{list}");
    run("btrfs filesystem df {}", &[&mnt]).ok();
    run("btrfs filesystem usage {}", &[&mnt]).ok();
    run("btrfs inspect-internal rootid {}", &[&mnt.join("sub")]).ok();
    assert_eq!(generation_on_disk(&scratch.image), before);
    // What shows extents of data has to write them first.
    run("subvolume find-new {} 0", &[&mnt.join("sub")]).ok();
    assert!(generation_on_disk(&scratch.image) > before);
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
}

/// Linux goes on where it stopped with a count that was interrupted, and takes the sums for right.
#[test]
fn interrupted_count_of_quota_groups_ends_with_our_first_commit() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions {
        size_bytes: 512 * MIB,
        node_bytes: Some(4096),
        ..VolumeOptions::default()
    })
    .unwrap();
    let quota = |mounted: &cowshed_harness::Mounted, words: &[&str]| {
        let dir = mounted.dir().to_str().unwrap();
        mounted.btrfs(&[&["quota"], words, &[dir]].concat()).unwrap()
    };
    let mounted = volume.mount().unwrap();
    for dir in 0..10 {
        let dir = mounted.dir().join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        for number in 0..1000 {
            fs::write(dir.join(number.to_string()), [1; 5000]).unwrap();
        }
    }
    quota(&mounted, &["enable"]);
    mounted.unmount().unwrap();
    let image = volume.image();
    let dump = || progs::dump_tree(&[image], &["-t", "quota"]).unwrap();
    let mut tries = 0..20;
    while !dump().contains("SCANNING") {
        assert!(tries.next().is_some(), "each count came to its end before the unmount");
        let mounted = volume.mount().unwrap();
        quota(&mounted, &["rescan"]);
        mounted.unmount().unwrap();
    }
    for dir in [1, 4, 8] {
        run("rm -r {}", &[format!("{}:/d{dir}", image.display()).as_ref()]).ok();
    }
    assert!(dump().contains("flags ON|INCONSISTENT"), "{}", dump());
    assert_clean_for_both(image);
    // Until its user counts anew.
    let mounted = volume.mount().unwrap();
    fs::write(mounted.dir().join("d2/new"), [2; 5000]).unwrap();
    quota(&mounted, &["rescan", "-w"]);
    mounted.unmount().unwrap();
    assert!(dump().contains("flags ON scan"), "{}", dump());
    assert_clean_for_both(image);
}
