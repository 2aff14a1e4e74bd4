//! Where images go: pipes, partitions, several devices; and what a file says of all that.

use std::fs;
use std::os::unix::fs::FileExt as _;

use cowshed_harness::need;

use super::{assert_same, noise, run_with, small_tree, source};
use crate::support::{COWSHED, run};

#[test]
fn image_in_a_pipe_has_the_bytes_of_the_file() {
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    run("build -q --from {} {}", &[&root, &image]).ok();
    let piped = format!("TMPDIR=. {COWSHED} build --from root - 2> said | cat > piped; cat said; ls -A");
    let said = cowshed_harness::shell(dir.path(), &piped).unwrap();
    assert!(fs::read(&image).unwrap() == fs::read(dir.path().join("piped")).unwrap());
    assert!(said.contains("standard output"), "{said}");
    assert!(
        said.ends_with("image\npiped\nroot\nsaid\n"),
        "nothing else is left: {said}"
    );
    let broken =
        format!("(TMPDIR=. {COWSHED} build -q --from root - || echo $? > code) 2> said | head -c 100; cat code said");
    let said = cowshed_harness::shell(dir.path(), &broken).unwrap();
    assert!(said.contains("1\n") && said.contains("Broken pipe"), "{said}");
    run("build --verify --from {} -", &[&root]).fails_with(1, &["--verify"]);
}

#[test]
fn partition_of_a_disk_gets_the_volume_and_all_else_stays() {
    let Some(()) = need::kernel_btrfs() else { return };
    let Some(()) = need::tool("sfdisk") else { return };
    let (dir, root) = source();
    small_tree(&root);
    let disk = dir.path().join("disk");
    let gpt = "label: gpt\nstart=2048, size=8192, name=boot\nsize=409600, name=\"the root\"\nsize=8192, name=twice\nsize=8192, name=twice\n";
    let mbr = "label: dos\nstart=2048, size=8192, type=83\nsize=409600, type=83\nsize=20480, type=5\n\
               start=430080, size=8192, type=83\n";
    for (table, partitions) in [(gpt, &["2", "the root"][..]), (mbr, &["2"])] {
        fs::write(dir.path().join("table"), table).unwrap();
        let file = fs::File::create(&disk).unwrap();
        file.set_len(300 << 20).unwrap();
        cowshed_harness::shell(dir.path(), "sfdisk -q disk < table").unwrap();
        let (start, end) = (5_usize << 20, 205_usize << 20);
        // What is around the partition is something.
        file.write_all_at(&noise(4 << 20), 1 << 20).unwrap();
        file.write_all_at(&noise(1 << 20), end as u64 + 512).unwrap();
        let before = fs::read(&disk).unwrap();
        for (nth, partition) in partitions.iter().enumerate() {
            let target = format!("{}:{partition}", disk.display());
            let force = ["-q", "--force"][nth];
            run(
                &format!("build --verify --from {{}} {force} --target {{}}"),
                &[&root, target.as_ref()],
            )
            .ok();
            let after = fs::read(&disk).unwrap();
            assert!(
                before[..start] == after[..start] && before[end..] == after[end..],
                "{partition}"
            );
            let alone = dir.path().join("alone");
            fs::write(&alone, &after[start..end]).unwrap();
            assert_same(&alone, &root);
        }
        let target = |partition: &str| format!("{}:{partition}", disk.display());
        let build = |flags: &str, partition: &str| {
            run(
                &format!("build -q {flags} --from {{}} --target {{}}"),
                &[&root, target(partition).as_ref()],
            )
        };
        build("", "2").fails_with(1, &["btrfs"]);
        build("", "9").fails_with(1, &["no partition '9'"]);
        build("--force --size 209719296", "2").fails_with(1, &["4096 bytes are missing"]);
        let small = if table == gpt { "1" } else { "5" };
        build("--force", small).fails_with(1, &["bytes are missing"]);
        if table == gpt {
            build("", "twice").fails_with(1, &["several"]);
            // By the copy at the end, where the first one is broken.
            file.write_all_at(&[0; 512], 512).unwrap();
            build("--force --verify", "the root").ok();
        }
    }
    let target = format!("{}:1", root.join("etc/notes").display());
    run("build -q --from {} --target {}", &[&root, target.as_ref()]).fails_with(1, &["no partition table"]);
}

#[test]
fn partition_has_the_type_that_is_asked_for() {
    let (dir, root) = source();
    small_tree(&root);
    let image = dir.path().join("image");
    for (flag, kind) in [
        ("=root-x86-64", "4f68bce3-e8cd-4db1-96e7-fbcaf984b709"),
        (
            "=01234567-89ab-cdef-0123-456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdef",
        ),
        ("", "0fc63daf-8483-4772-8e79-3d69d8477de4"),
    ] {
        run(
            &format!("build -q --verify --partition{flag} --from {{}} {{}}"),
            &[&root, &image],
        )
        .ok();
        let bytes = fs::read(&image).unwrap();
        let uuid = |at: usize| -> String {
            let b = &bytes[at..at + 16];
            format!(
                "{:02x}{:02x}{:02x}{:02x}-{:02x}{:02x}-{:02x}{:02x}-{:02x}{:02x}-{}",
                b[3],
                b[2],
                b[1],
                b[0],
                b[5],
                b[4],
                b[7],
                b[6],
                b[8],
                b[9],
                b[10..].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
            )
        };
        assert_eq!(uuid(1024), kind);
        // The copy of the entries, before the last sector.
        assert_eq!(uuid(bytes.len() - 33 * 512), kind);
    }
    run("build -q --partition=odd --from {} {}", &[&root, &image]).fails(&["odd", "root-x86-64"]);
}

#[test]
fn several_devices_hold_one_volume() {
    let Some(()) = need::kernel_btrfs() else { return };
    let (dir, root) = source();
    small_tree(&root);
    let images: Vec<_> = ["a", "b", "c"].map(|name| dir.path().join(name)).into();
    for flags in ["-m raid1 -d raid0", "-m raid1c3 -d raid1"] {
        run(
            &format!("build -q --verify {flags} --size 200m --from {{}} {{}} {{}} {{}}"),
            &[&root, &images[0], &images[1], &images[2]],
        )
        .ok();
        let loops: Vec<_> = images
            .iter()
            .map(|image| cowshed_harness::LoopDevice::attach(image).unwrap())
            .collect();
        let at = tempfile::tempdir().unwrap();
        let devices: Vec<_> = loops.iter().map(|device| device.path()).collect();
        let mount = cowshed_harness::KernelMount::new("btrfs", &devices, at.path(), "ro").unwrap();
        let (expected, found) = (
            cowshed_harness::tree::snapshot(&root).unwrap(),
            cowshed_harness::tree::snapshot(mount.dir()).unwrap(),
        );
        expected
            .diff(&found, &cowshed_harness::tree::Compare::copy())
            .assert_none();
        mount.unmount().unwrap();
    }
    run("build -q --partition --from {} {} {}", &[&root, &images[0], &images[1]]).fails_with(1, &["--partition"]);
}

#[test]
fn specification_says_all_that_the_command_line_can() {
    let (dir, root) = source();
    small_tree(&root);
    let spec = dir.path().join("image.toml");
    let text = r#"
        # An appliance.
        from = ["root"]
        out = "by-spec"
        label = "appliance"
        compress = ["zstd:3", "etc/**=none"]
        subvol = ["ro:home"]
        snapshot = "ro:home:kept"
        all-root = true
        partition = "root-x86-64"
        slack = "16m"
        mode = ["etc:700"]
        dedupe = false
        jobs = 2
        quiet = true
    "#;
    fs::write(&spec, text).unwrap();
    let elsewhere = [("SOURCE_DATE_EPOCH", "1700000000")];
    run_with(&elsewhere, "build --spec {}", &[&spec]).ok();
    let image = dir.path().join("by-flags");
    run_with(
        &elsewhere,
        "build -q --from {} --label appliance --compress zstd:3 --compress etc/**=none --subvol ro:home \
         --snapshot ro:home:kept --all-root --partition=root-x86-64 --slack 16m --mode etc:700 {}",
        &[&root, &image],
    )
    .ok();
    assert!(fs::read(&image).unwrap() == fs::read(dir.path().join("by-spec")).unwrap());
    // The command line overrides.
    let made = run("build --spec {} --label other --json --quiet", &[&spec]);
    assert_ne!(made.code, 0, "--json and --quiet exclude each other");
    run("build --spec {} --label other", &[&spec]).ok();
    let bytes = fs::read(dir.path().join("by-spec")).unwrap();
    assert_eq!(
        &bytes[1024 + 56..1024 + 66],
        b"o\0t\0h\0e\0r\0",
        "the name of the partition"
    );
    for (line, words) in [
        ("odd = 1", &["--odd"][..]),
        ("from = { a = 1 }", &["'from'", "table"]),
        ("from = ", &["image.toml"]),
        ("subvol = \"odd:home\"", &["default-ro"]),
        ("spec = \"x\"", &["another"]),
    ] {
        fs::write(&spec, line).unwrap();
        run("build --spec {}", &[&spec]).fails_with(1, words);
    }
}
