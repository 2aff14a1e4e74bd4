//! How large images are, and what becomes of too small ones.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};

use cowshed_harness::need;

use super::{assert_same, noise, run_with, small_tree, source};
use crate::support::{COWSHED, cowshed, making_name_space, run};

const FIXED: [(&str, &str); 2] = [("SOURCE_DATE_EPOCH", "1700000000"), ("DETERMINISTIC_SEED", "x")];

#[test]
fn size_is_known_before_and_one_byte_less_is_refused() {
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    for compress in ["", "--compress zstd:3"] {
        let planned = run(
            &format!("build --json --dry-run {compress} --from {{}} {{}}"),
            &[&root, &image],
        )
        .ok()
        .json();
        assert!(!image.exists(), "nothing is made");
        let made = run(&format!("build --json {compress} --from {{}} {{}}"), &[&root, &image])
            .ok()
            .json();
        assert_eq!(planned, made);
        assert_eq!(fs::metadata(&image).unwrap().len(), made["bytes"].as_u64().unwrap());
        let bytes = needed(&made);
        run(
            &format!("build -q --verify {compress} --size {bytes} --from {{}} {{}}"),
            &[&root, &image],
        )
        .ok();
        let before = fs::read(&image).unwrap();
        let less = bytes - 4096;
        run(
            &format!("build -q {compress} --size {less} --from {{}} {{}}"),
            &[&root, &image],
        )
        .fails_with(1, &["4096 bytes are missing"]);
        assert!(fs::read(&image).unwrap() == before, "what was there stays");
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            2,
            "nothing half made is left"
        );
        fs::remove_file(&image).unwrap();
    }
}

fn needed(made: &serde_json::Value) -> u64 {
    made["needed_bytes"].as_u64().unwrap()
}

#[test]
fn target_of_a_tebibyte_gets_the_bytes_of_a_small_one() {
    let (dir, root) = source();
    small_tree(&root);
    let (small, large) = (dir.path().join("small"), dir.path().join("large"));
    fs::File::create(&small).unwrap();
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    for image in [&small, &large] {
        run_with(&FIXED, "mkfs -q --shrink -r {} {}", &[&root, image]).ok();
    }
    assert!(fs::read(&small).unwrap() == fs::read(&large).unwrap());

    // Without --shrink it stays as large, and takes no more room on the host.
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap();
    run_with(&FIXED, "mkfs -q -r {} {}", &[&root, &large]).ok();
    let metadata = fs::metadata(&large).unwrap();
    assert_eq!(metadata.len(), 1 << 40);
    assert!(metadata.blocks() * 512 < 4 << 20, "{} blocks", metadata.blocks());
    run("check {}", &[&large]).ok();
}

#[test]
fn hard_links_and_sparse_files_count_once() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    fs::write(root.join("data"), noise(8 << 20)).unwrap();
    for n in 0..10 {
        fs::hard_link(root.join("data"), root.join(format!("link-{n}"))).unwrap();
    }
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.write_all_at(b"middle", 1 << 35).unwrap();
    let image = dir.path().join("image");
    for flags in ["", "-O ^no-holes,^block-group-tree"] {
        let made = run(&format!("build --json {flags} --from {{}} {{}}"), &[&root, &image])
            .ok()
            .json();
        assert!(made["bytes"].as_u64().unwrap() < 64 << 20, "{made}");
        run("check --check-data-csum {}", &[&image]).ok();
    }
    assert_eq!(run("cat {} /link-9", &[&image]).ok().out, noise(8 << 20));
    fs::remove_file(root.join("sparse")).unwrap();
    run("build -q --from {} {}", &[&root, &image]).ok();
    assert_same(&image, &root);
}

#[test]
fn zlib_9_shrunk_and_explicit_holes_read_back() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let holes = fs::File::create(root.join("holes")).unwrap();
    holes.set_len(3 << 20).unwrap();
    holes.write_all_at(&noise(5000), 1 << 20).unwrap();
    let image = dir.path().join("image");
    for flags in [
        "--compress zlib:9 --shrink",
        "-O ^no-holes,^block-group-tree",
        "-O ^no-holes,^bgt --shrink -m single",
    ] {
        fs::File::create(&image).unwrap();
        run(&format!("mkfs -q {flags} -r {{}} {{}}"), &[&root, &image]).ok();
        assert_same(&image, &root);
    }
}

#[test]
fn callers_of_mkfs_btrfs_work_unchanged() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(COWSHED, bin.join("mkfs.btrfs")).unwrap();
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let calls = [
        // systemd-repart
        format!(
            "truncate -s 300M img; mkfs.btrfs -q -L L -U {uuid} --nodiscard -r root img --compress zstd:3 --subvol ro:/home"
        ),
        // NixOS
        format!("touch img; mkfs.btrfs -L nixos -U {uuid} --subvol home -r root --shrink img"),
        // wic
        format!("mkfs.btrfs -b 200000000 -r root -L label -U {uuid} img"),
        // buildroot
        "mkfs.btrfs -b 200M -f -r root img".into(),
        "truncate -s 200M img; mkfs.btrfs -f -r root img".into(),
    ];
    for call in calls {
        let script = format!("rm -f img; PATH={path}; {call}");
        cowshed_harness::shell(dir.path(), &script).unwrap_or_else(|e| panic!("{call}: {e:#}"));
        let image = dir.path().join("img");
        let sb = run("inspect super --json {}", &[&image]).ok().json();
        if call.contains(uuid) {
            assert_eq!(sb[0]["superblock"]["fsid"], uuid, "{call}");
        }
        if !call.contains("subvol") {
            assert_same(&image, &root);
        }
        run("check --check-data-csum {}", &[&image]).ok();
    }
    // In a user namespace, as systemd-repart does it; and its exit code.
    let script = format!("rm -f img; PATH={path}; truncate -s 300M img; unshare -r mkfs.btrfs -q -r root img");
    cowshed_harness::shell(dir.path(), &script).unwrap();
    let script = format!(
        "PATH={path}; mkfs.btrfs -q -r root img && exit 9 || test $? = 1; mkfs.btrfs --version | grep -q btrfs"
    );
    cowshed_harness::shell(dir.path(), &script).unwrap();
}

#[test]
fn systemd_repart_makes_partitions_by_our_mkfs() {
    let Some(()) = need::kernel_btrfs() else { return };
    let Some(()) = need::tool("systemd-repart") else { return };
    let _held = making_name_space();
    let (dir, root) = source();
    small_tree(&root);
    // systemd-repart sets no times of the top directory.
    let script = format!(
        "touch -d @0 root; mkdir bin defs; printf '#!/bin/bash\necho called >> calls\nexec -a mkfs.btrfs {COWSHED} \"$@\"\n' \
         > bin/mkfs.btrfs; chmod +x bin/mkfs.btrfs\n\
         printf '[Partition]\nType=root\nLabel=system\nFormat=btrfs\nCopyFiles=/root:/\n' > defs/10-root.conf\n\
         PATH=$PWD/bin:$PATH systemd-repart --empty=create --size=400M --definitions=$PWD/defs --root=$PWD \
         --dry-run=no disk"
    );
    cowshed_harness::shell(dir.path(), &script).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("calls")).unwrap(), "called\n");
    let bytes = fs::read(dir.path().join("disk")).unwrap();
    let alone = dir.path().join("alone");
    // The partition of the first entry, in sectors.
    let sector = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize * 512;
    fs::write(&alone, &bytes[sector(1024 + 32)..sector(1024 + 40) + 512]).unwrap();
    let sb = run("inspect super --json {}", &[&alone]).ok().json();
    assert_eq!(sb[0]["superblock"]["label"], "system");
    assert_same(&alone, &root);
}

#[test]
fn unreadable_and_impossible_sources_are_named_and_nothing_is_made() {
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    let before = fs::read_dir(dir.path()).unwrap().count();
    run("build -q --from {} {}", &[&dir.path().join("gone"), &image]).fails_with(1, &["gone", "No such file"]);
    run("build -q --from {} {}", &[&root.join("etc/hostname"), &image]).fails_with(1, &["etc/hostname"]);
    cowshed(["build", "-q", "out"]).fails_with(1, &["--from"]);
    run(
        "build -q --from {} --label {} {}",
        &[&root, "a".repeat(256).as_ref(), &image],
    )
    .fails_with(1, &["256"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), before);
}

#[test]
fn volumes_lie_at_an_offset_in_a_partition_and_on_devices() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    run("build -q --verify --offset 3m --from {} {}", &[&root, &image]).ok();
    let bytes = fs::read(&image).unwrap();
    assert!(bytes[..3 << 20].iter().all(|byte| *byte == 0));
    let alone = dir.path().join("alone");
    fs::write(&alone, &bytes[3 << 20..]).unwrap();
    assert_same(&alone, &root);
    run("build -q --offset 1000 --from {} {}", &[&root, &image]).fails_with(1, &["4096"]);

    let made = run(
        "build --json --verify --partition -L disk --from {} {}",
        &[&root, &image],
    )
    .ok()
    .json();
    let bytes = fs::read(&image).unwrap();
    assert_eq!(
        (bytes.len() as u64, bytes.len() % (64 << 10)),
        (made["bytes"].as_u64().unwrap(), 0)
    );
    fs::write(&alone, &bytes[1 << 20..bytes.len() - (1 << 20)]).unwrap();
    assert_same(&alone, &root);
    if need::tool("sfdisk").is_some() {
        let verified = cowshed_harness::shell(dir.path(), "sfdisk --verify image 2>&1; sfdisk -d image").unwrap();
        assert!(verified.contains("No errors detected"), "{verified}");
        assert!(verified.contains("0FC63DAF-8483-4772-8E79-3D69D8477DE4"), "{verified}");
        assert!(
            verified.contains("start=        2048") && verified.contains("name=\"disk\""),
            "{verified}"
        );
    }

    fs::File::create(&alone).unwrap().set_len(300 << 20).unwrap();
    let device = cowshed_harness::LoopDevice::attach(&alone).unwrap();
    run("build -q --verify --from {} {}", &[&root, device.path()]).ok();
    run("build -q --from {} {}", &[&root, device.path()]).fails_with(1, &["btrfs"]);
    run("build -q --force --from {} {}", &[&root, device.path()]).ok();
    drop(device);
    assert_same(&alone, &root);
}
