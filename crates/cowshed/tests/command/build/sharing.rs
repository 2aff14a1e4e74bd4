//! Extents that several files have: snapshots, layers, equal files, files of the host.

use std::fs;
use std::path::Path;

use cowshed_harness::tree::{Compare, snapshot};
use cowshed_harness::{KernelMount, LoopDevice, need};

use super::{archives, assert_same, noise, small_tree, source};
use crate::support::{assert_clean_for_both, run};

#[test]
fn snapshots_share_the_data_of_their_subvolumes() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    // Names on both sides of a subvolume become two files.
    fs::remove_file(root.join("etc/notes")).unwrap();
    let image = dir.path().join("image");
    let data = |flags: &str| {
        let line = format!("build --json --from {{}} --subvol home {flags} {{}}");
        run(&line, &[&root, &image]).ok().json()["data_bytes"].as_u64().unwrap()
    };
    let alone = data("");
    let flags = "--snapshot home:snaps/one --snapshot ro:home:snaps/two --snapshot ro:/:top --snapshot snaps/one:again";
    assert_eq!(data(flags), alone);
    assert_clean_for_both(&image);
    let device = LoopDevice::attach(&image).unwrap();
    let at = tempfile::tempdir().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], at.path(), "").unwrap();
    let home = snapshot(&root.join("home")).unwrap();
    for path in ["home", "snaps/one", "snaps/two", "again"] {
        home.diff(&snapshot(&at.path().join(path)).unwrap(), &Compare::copy())
            .assert_none();
    }
    let etc = snapshot(&root.join("etc")).unwrap();
    etc.diff(&snapshot(&at.path().join("top/etc")).unwrap(), &Compare::copy())
        .assert_none();
    for stub in ["top/home", "top/snaps/one", "top/top"] {
        assert_eq!(fs::read_dir(at.path().join(stub)).unwrap().count(), 0, "{stub}");
    }
    let show = |path: &str| {
        let path = at.path().join(path);
        let args = ["subvolume".as_ref(), "show".as_ref(), path.as_os_str()];
        cowshed_harness::run("btrfs", &args).unwrap()
    };
    let field = |said: &str, name: &str| {
        let line = said
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap_or_default();
        line.split_whitespace().last().unwrap_or_default().to_owned()
    };
    assert_eq!(field(&show("snaps/two"), "Parent UUID:"), field(&show("home"), "UUID:"));
    assert_eq!(
        field(&show("again"), "Parent UUID:"),
        field(&show("snaps/one"), "UUID:")
    );
    // A write to one is not seen in the others.
    assert!(fs::write(at.path().join("snaps/two/new"), "").is_err(), "read-only");
    fs::write(at.path().join("snaps/one/user/notes"), "other").unwrap();
    let notes = fs::read_to_string(at.path().join("home/user/notes")).unwrap();
    assert_eq!(notes, "text ".repeat(50_000));
    for path in ["snaps/one", "snaps/two", "again"] {
        let path = at.path().join(path);
        let args = ["subvolume".as_ref(), "delete".as_ref(), path.as_os_str()];
        cowshed_harness::run("btrfs", &args).unwrap();
    }
    mount.unmount().unwrap();
    assert_clean_for_both(&image);
    let build = |flags: &str| run(&format!("build -q --from {{}} {flags} {{}}"), &[&root, &image]);
    build("--snapshot etc:x").fails_with(1, &["'x'", "no subvolume"]);
    build("--subvol etc --snapshot etc:home").fails_with(1, &["'home'", "already"]);
}

#[test]
fn layers_are_kept_as_subvolumes() {
    for tool in ["tar", "gzip", "zstd", "sha256sum"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    archives::container_images(dir.path());
    let image = dir.path().join("image");
    let oci = dir.path().join("oci");
    run(
        "build -q --verify --platform linux/riscv64 --layers .layers --all-root --from {} {}",
        &[&oci, &image],
    )
    .ok();
    assert_clean_for_both(&image);
    let cat = |path: &str| run(&format!("cat {{}} {path}"), &[&image]).ok().text();
    assert_eq!(cat("/.layers/001/etc/name"), "first\n");
    assert_eq!(cat("/.layers/001/gone/file"), "y\n");
    assert_eq!(cat("/.layers/002/etc/name"), "second\n");
    let list = |path: &str| run(&format!("ls -R {{}} {path}"), &[&image]).ok().text();
    assert!(!list("/.layers/002").contains("gone"), "{}", list("/.layers/002"));
    assert!(list("/.layers/001/data").contains("below") && !list("/.layers/002/data").contains("below"));
    let listed = run("subvolume list {}", &[format!("{}:/", image.display()).as_ref()])
        .ok()
        .text();
    assert!(
        listed.contains(".layers/001") && listed.contains(".layers/002"),
        "{listed}"
    );
    // Each is the parent of the next, as that of a snapshot.
    let volume = format!("{}:/", image.display());
    let listed = run("subvolume list -u -q {}", &[volume.as_ref()]).ok().text();
    let word = |line: &str, before: &str| {
        let mut words = line.split_whitespace().skip_while(|word| *word != before);
        words.nth(1).unwrap_or_default().to_owned()
    };
    let line = |end: &str| listed.lines().find(|line| line.ends_with(end)).unwrap();
    let (first, second) = (line(".layers/001"), line(".layers/002"));
    assert_eq!(word(first, "parent_uuid"), "-", "{listed}");
    assert_eq!(word(second, "parent_uuid"), word(first, "uuid"), "{listed}");
    run("build -q --layers x --from {} {}", &[&root, &image]).fails_with(1, &["layers"]);
}

#[test]
fn file_with_names_in_two_subvolumes_is_stored_once() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    fs::create_dir_all(root.join("a")).unwrap();
    fs::create_dir_all(root.join("b")).unwrap();
    fs::write(root.join("a/data"), noise(5_000_001)).unwrap();
    fs::hard_link(root.join("a/data"), root.join("b/data")).unwrap();
    fs::hard_link(root.join("a/data"), root.join("data")).unwrap();
    let image = dir.path().join("image");
    for flags in ["", "--compress zstd"] {
        let line = format!("build --json {flags} --subvol a --subvol b --from {{}} {{}}");
        let made = run(&line, &[&root, &image]).ok().json();
        assert_eq!(made["data_bytes"], 5_000_001_u64.next_multiple_of(4096), "{flags}");
        assert_clean_for_both(&image);
        for path in ["/data", "/a/data", "/b/data"] {
            assert!(
                run(&format!("cat {{}} {path}"), &[&image]).ok().out == noise(5_000_001),
                "{path}"
            );
        }
    }
}

/// A file system that shares, with the tree `root` on it.
fn sharing_host(dir: &Path, format: &str) -> (LoopDevice, tempfile::TempDir, KernelMount) {
    let host = dir.join(format!("host-{format}"));
    fs::File::create(&host).unwrap().set_len(512 << 20).unwrap();
    cowshed_harness::shell(dir, &format!("mkfs.{format} -q host-{format}")).unwrap();
    let device = LoopDevice::attach(&host).unwrap();
    let at = tempfile::tempdir().unwrap();
    let mount = KernelMount::new(format, &[device.path()], at.path(), "").unwrap();
    cowshed_harness::shell(dir, &format!("cp -a root {}", at.path().display())).unwrap();
    (device, at, mount)
}

#[test]
fn mkfs_shares_with_its_root_directory_where_the_host_can_and_copies_elsewhere() {
    let Some(()) = need::kernel_btrfs() else { return };
    let Some(()) = need::kernel_xfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    fs::write(root.join("large"), noise(20_000_001)).unwrap();
    for format in ["btrfs", "xfs"] {
        let (_device, at, mount) = sharing_host(dir.path(), format);
        let (inside, image) = (at.path().join("root"), at.path().join("image"));
        let used = || {
            cowshed_harness::shell(at.path(), "sync; df -k --output=used . | tail -1").unwrap();
            let said = cowshed_harness::shell(at.path(), "df -k --output=used . | tail -1").unwrap();
            said.trim().parse::<u64>().unwrap()
        };
        let mut grown = Vec::new();
        for flags in ["--reflink -v", ""] {
            fs::File::create(&image).unwrap();
            let before = used();
            let said = run(&format!("mkfs {flags} --shrink -r {{}} {{}}"), &[&inside, &image])
                .ok()
                .text();
            assert_eq!(said.contains("are shared with"), !flags.is_empty(), "{format}: {said}");
            grown.push(used().saturating_sub(before));
            fs::copy(&image, dir.path().join("image")).unwrap();
            assert_same(&dir.path().join("image"), &root);
            fs::remove_file(&image).unwrap();
        }
        assert!(grown[0] + 15_000 < grown[1], "{format}: {grown:?} KiB");
        // On another file system: copied, and said so.
        let elsewhere = dir.path().join("elsewhere");
        fs::File::create(&elsewhere).unwrap();
        let said = run("mkfs --reflink -v --shrink -r {} {}", &[&inside, &elsewhere])
            .ok()
            .text();
        assert!(said.contains("all data is copied"), "{said}");
        assert_same(&elsewhere, &root);
        mount.unmount().unwrap();
    }
}

#[test]
fn equal_files_share_their_extents() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    // More than one extent item holds, and one that differs in its last byte.
    let mut bytes = noise(100_000);
    for n in 0..80 {
        fs::write(root.join(format!("same-{n}")), &bytes).unwrap();
    }
    bytes[99_999] ^= 1;
    fs::write(root.join("differs"), &bytes).unwrap();
    // The same data with a hole at another place.
    for (name, at) in [("hole-a", 0), ("hole-b", 1 << 20)] {
        let file = fs::File::create(root.join(name)).unwrap();
        file.set_len(2 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &noise(8192), at).unwrap();
    }
    let image = dir.path().join("image");
    let data = |flags: &str| {
        let line = format!("build --json --from {{}} {flags} {{}}");
        let made = run(&line, &[&root, &image]).ok().json();
        assert_same(&image, &root);
        made["data_bytes"].as_u64().unwrap()
    };
    let sectors = 100_000_u64.next_multiple_of(4096);
    for flags in ["", "--nodesize 4k --csum sha256", "--compress zstd"] {
        assert_eq!(
            data(flags) - data(&format!("{flags} --dedupe")),
            79 * sectors,
            "{flags}"
        );
    }
    // What is stored in another way is not shared.
    let apart = "--chattr same-7:C";
    assert_eq!(data(apart) - data(&format!("{apart} --dedupe")), 78 * sectors);
}

#[test]
fn image_shares_extents_with_its_sources() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    fs::write(root.join("large"), noise(20_000_001)).unwrap();
    let host = dir.path().join("host");
    fs::File::create(&host).unwrap().set_len(256 << 20).unwrap();
    cowshed_harness::shell(dir.path(), "mkfs.btrfs -q host").unwrap();
    let device = LoopDevice::attach(&host).unwrap();
    let at = tempfile::tempdir().unwrap();
    let mount = KernelMount::new("btrfs", &[device.path()], at.path(), "").unwrap();
    cowshed_harness::shell(dir.path(), &format!("cp -a root {}", at.path().display())).unwrap();
    let (inside, image) = (at.path().join("root"), at.path().join("image"));
    for (flags, least) in [
        ("", 20_000_000 / 4096 * 4096),
        ("--offset 1m", 20_000_000 / 4096 * 4096),
        ("--compress zstd", 0),
    ] {
        run(
            &format!("build -q --reflink {flags} --from {{}} {{}}"),
            &[&inside, &image],
        )
        .ok();
        let du = cowshed_harness::shell(at.path(), "sync; btrfs filesystem du --raw image | tail -1").unwrap();
        let numbers: Vec<u64> = du.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let shared = numbers[0] - numbers[1];
        assert!(shared >= least, "{flags}: {du}");
        if flags != "--offset 1m" {
            fs::copy(&image, dir.path().join("image")).unwrap();
            assert_same(&dir.path().join("image"), &root);
        }
    }
    let elsewhere = dir.path().join("elsewhere");
    run("build -q --reflink --from {} {}", &[&inside, &elsewhere]).fails_with(1, &["cannot be shared"]);
    assert!(!elsewhere.exists());
    mount.unmount().unwrap();
}
