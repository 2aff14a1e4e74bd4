//! `build`, and `mkfs --rootdir`: judged by both checkers and by the kernel, entry by entry.

pub mod archives;
mod containers;
mod digests;
mod distribution;
mod faults;
mod interrupted;
mod places;
mod reproducible;
mod rules;
mod sharing;
mod sizes;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use cowshed_harness::progs::{self, CheckOptions};
use cowshed_harness::tree::{Compare, Kinds, MakeOptions, colliding_names, make, snapshot};
use cowshed_harness::{KernelMount, LoopDevice, limit, need};

use crate::support::{COMMAND_MAX, COWSHED, Ran, assert_clean_for_both, run};

/// The command with an environment.
pub fn run_with(env: &[(&str, &str)], line: &str, paths: &[&Path]) -> Ran {
    let mut paths = paths.iter();
    let mut command = Command::new(COWSHED);
    command.envs(env.iter().copied());
    for word in line.split_whitespace() {
        match word {
            "{}" => command.arg(paths.next().expect("a path for each {}")),
            word => command.arg(word),
        };
    }
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A scratch directory with a `root` in it.
pub fn source() -> (tempfile::TempDir, PathBuf) {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    (dir, root)
}

/// A file system in memory, until dropped.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    pub fn new(dir: &Path, options: &str) -> Self {
        let mount = format!("mount -t tmpfs -o {options} tmpfs {}", dir.display());
        cowshed_harness::shell(dir.parent().unwrap(), &mount).unwrap();
        Self(dir.to_owned())
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // The first failure is the one to report.
        let _ = cowshed_harness::run("umount", &[self.0.as_os_str()]);
    }
}

/// A small tree that an ordinary user can make.
pub fn small_tree(root: &Path) {
    fs::create_dir_all(root.join("etc/conf.d")).unwrap();
    fs::create_dir_all(root.join("home/user")).unwrap();
    fs::write(root.join("etc/hostname"), "cow\n").unwrap();
    fs::write(root.join("etc/empty"), "").unwrap();
    fs::write(root.join("home/user/notes"), "text ".repeat(50_000)).unwrap();
    fs::write(root.join("home/user/data.bin"), noise(300_000)).unwrap();
    fs::set_permissions(root.join("etc/hostname"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::hard_link(root.join("home/user/notes"), root.join("etc/notes")).unwrap();
    symlink("../home/user", root.join("etc/link")).unwrap();
}

/// Bytes that do not compress.
pub fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Both checkers find nothing, and the kernel shows what the source has.
pub fn assert_same(image: &Path, root: &Path) {
    assert_clean_for_both(image);
    let device = LoopDevice::attach(image).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], dir.path(), "ro").unwrap();
    let (expected, found) = (snapshot(root).unwrap(), snapshot(mount.dir()).unwrap());
    expected.diff(&found, &Compare::copy()).assert_none();
    mount.unmount().unwrap();
}

#[test]
fn images_of_every_kind_hold_the_source_entry_by_entry() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    let made = make(
        &root,
        &MakeOptions {
            kinds: Kinds::all(),
            ..MakeOptions::new(7, 1500)
        },
    )
    .unwrap();
    assert!(made.files > 500);
    let image = dir.path().join("image");
    for flags in [
        "",
        "--compress zstd:3",
        "--compress zlib:9 --nodesize 4k --csum xxhash",
        "--compress lzo --csum sha256 --nodesize 64k",
        "-O ^no-holes,^block-group-tree --metadata single",
        "-O ^free-space-tree,^skinny-metadata --csum blake2 --data dup",
        "-O mixed-bg",
        "--size 2g",
    ] {
        run(&format!("build -q --from {{}} {flags} {{}}"), &[&root, &image]).ok();
        assert_same(&image, &root);
    }
}

#[test]
fn large_directories_colliding_names_and_many_links_are_stored() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    for name in ["many", "same", "links", "elsewhere"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    for n in 0..20_000 {
        fs::File::create(root.join(format!("many/file-{n}"))).unwrap();
    }
    for name in colliding_names(30) {
        fs::write(root.join("same").join(name), "x").unwrap();
    }
    fs::write(root.join("links/first"), "linked").unwrap();
    for n in 0..3_000 {
        let to = ["links", "elsewhere"][n % 2];
        fs::hard_link(root.join("links/first"), root.join(to).join(format!("name-{n}"))).unwrap();
    }
    let image = dir.path().join("image");
    for flags in ["", "--nodesize 4k"] {
        run(&format!("build -q --from {{}} {flags} {{}}"), &[&root, &image]).ok();
        assert_same(&image, &root);
    }
    run("build -q --from {} -O ^extref {}", &[&root, &image]).fails_with(1, &["elsewhere/name-1", "extref"]);
}

#[test]
#[ignore = "half a minute: 100,000 names and 65,535 links; `cargo xtask long-tests`"]
fn most_names_and_links_that_the_format_allows_are_stored() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    // ext4 allows 65,000 links.
    let _tmpfs = Tmpfs::new(&root, "size=1g,nr_inodes=1m");
    for name in ["many", "links", "elsewhere"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    for n in 0..100_000 {
        fs::File::create(root.join(format!("many/file-{n}"))).unwrap();
    }
    fs::write(root.join("links/first"), "linked").unwrap();
    let link = |n: usize| {
        let to = ["links", "elsewhere"][n % 2];
        fs::hard_link(root.join("links/first"), root.join(to).join(format!("name-{n}"))).unwrap();
    };
    (1..65_535).for_each(link);
    let image = dir.path().join("image");
    run("build -q --from {} {}", &[&root, &image]).ok();
    assert_same(&image, &root);
    (65_535..70_000).for_each(link);
    run("build -q --from {} {}", &[&root, &image]).fails_with(1, &["name-", "65535"]);
}

#[test]
fn the_kernel_writes_to_an_image() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    run("build -q --from {} --slack 200m --compress zstd {}", &[&root, &image]).ok();
    let device = LoopDevice::attach(&image).unwrap();
    let at = tempfile::tempdir().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], at.path(), "").unwrap();
    fs::remove_file(at.path().join("home/user/notes")).unwrap();
    fs::write(at.path().join("new"), noise(40 << 20)).unwrap();
    for n in 0..5000 {
        fs::write(at.path().join(format!("etc/file-{n}")), "small").unwrap();
    }
    mount.unmount().unwrap();
    drop(device);
    run("check --check-data-csum {}", &[&image]).ok();
    assert_eq!(run("cat {} /etc/file-4999", &[&image]).ok().text(), "small");
}

#[test]
fn directories_become_subvolumes_of_every_kind() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    run(
        "build -q --from {} -u home -u ro:/home/user -u default-ro:etc/conf.d {}",
        &[&root, &image],
    )
    .ok();
    run("check {}", &[&image]).ok();
    progs::check(&image, CheckOptions::default()).unwrap().assert_clean();
    let device = LoopDevice::attach(&image).unwrap();
    let at = tempfile::tempdir().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], at.path(), "subvolid=5").unwrap();
    let list = cowshed_harness::run("btrfs", &["subvolume".as_ref(), "list".as_ref(), at.path().as_os_str()]).unwrap();
    assert!(list.contains("ID 256") && list.contains("path home\n"), "{list}");
    assert!(list.contains("ID 257") && list.contains("path home/user\n"), "{list}");
    let notes = fs::read_to_string(at.path().join("home/user/notes")).unwrap();
    assert_eq!(notes, "text ".repeat(50_000));
    // Names of one inode on both sides of a subvolume: a file on each side.
    assert_eq!(fs::read_to_string(at.path().join("etc/notes")).unwrap(), notes);
    assert!(fs::write(at.path().join("home/user/new"), "").is_err(), "read-only");
    fs::write(at.path().join("home/new"), "").unwrap();
    mount.unmount().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], at.path(), "").unwrap();
    assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0, "the default is etc/conf.d");
    mount.unmount().unwrap();
    run("build -q --from {} -u none {}", &[&root, &image]).fails_with(1, &["'none'", "no directory"]);
    run("build -q --from {} -u etc -u etc {}", &[&root, &image]).fails_with(1, &["'etc'", "twice"]);
    run("build -q --from {} -u odd:etc {}", &[&root, &image]).fails(&["default-ro"]);
}

#[test]
fn sources_are_laid_over_each_other() {
    let (dir, root) = source();
    small_tree(&root);
    let over = dir.path().join("over");
    fs::create_dir_all(over.join("etc")).unwrap();
    fs::write(over.join("etc/hostname"), "other\n").unwrap();
    fs::write(over.join("home"), "a file now").unwrap();
    let image = dir.path().join("image");
    run("build -q --from {} --from {} {}", &[&root, &over, &image]).ok();
    run("check --check-data-csum {}", &[&image]).ok();
    assert_eq!(run("cat {} /etc/hostname", &[&image]).ok().text(), "other\n");
    assert_eq!(run("cat {} /home", &[&image]).ok().text(), "a file now");
    assert_eq!(run("cat {} /etc/notes", &[&image]).ok().out.len(), 250_000);
}

#[test]
fn owners_modes_and_filters_are_applied() {
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    let stat = |path: &str| run(&format!("stat --json {{}} {path}"), &[&image]).ok().json()[0].clone();
    let owner = |path: &str| (stat(path)["uid"].clone(), stat(path)["gid"].clone());
    run(
        "build -q --from {} --all-root --gid-offset 100 --owner etc/hostname:7:8 --root-owner 5:6 --mode etc:700 \
         --exclude *.bin --exclude home/user/** --include notes {}",
        &[&root, &image],
    )
    .ok();
    assert_eq!(owner("/home"), (0.into(), 100.into()));
    assert_eq!(owner("/etc/hostname"), (7.into(), 8.into()));
    assert_eq!(owner("/"), (5.into(), 6.into()));
    assert!(stat("/etc")["mode"].to_string().contains("700"), "{}", stat("/etc"));
    assert_eq!(run("ls {} /home/user", &[&image]).ok().text(), "notes\n");
    run("build -q --from {} --owner gone:1:1 {}", &[&root, &image]).fails_with(1, &["'gone'"]);
    run("build -q --from {} --force-uid 7 --uid-offset -8 {}", &[&root, &image]).fails_with(1, &["owner 7", "-8"]);
}

#[test]
fn inode_flags_and_compression_go_by_path() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    run(
        "build -q --from {} --compress zstd --compress etc/**=none --inode-flags nodatacow:home/user/data.bin {}",
        &[&root, &image],
    )
    .ok();
    assert_same(&image, &root);
    let tree = run("inspect tree -t fs {}", &[&image]).ok().text();
    assert!(tree.contains("NODATACOW"), "{tree}");
    assert!(tree.contains("NODATASUM"), "nodatacow implies it");
    assert!(
        !tree.contains("zstd"),
        "the only file that compresses has a name in etc"
    );
    run("build -q --from {} --inode-flags cow:etc {}", &[&root, &image]).fails(&["nodatasum"]);
}
