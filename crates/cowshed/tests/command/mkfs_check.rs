//! `mkfs` and `check`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use cowshed_harness::{limit, need, progs};

use crate::support::{COMMAND_MAX, COWSHED, Scratch, run};

#[test]
fn mkfs_makes_what_is_asked_for_and_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("new.img");
    let made = run(
        "mkfs --json -L label -n 4k --csum xxhash -b 200m -U 01234567-89ab-cdef-0123-456789abcdef {}",
        &[&image],
    )
    .ok()
    .json();
    assert_eq!((&made["label"], &made["nodesize"]), (&"label".into(), &4096.into()));
    assert_eq!(made["total_bytes"], 200 << 20);
    let sb = run("inspect super --json {}", &[&image]).ok().json();
    let sb = &sb[0]["superblock"];
    assert_eq!((&sb["label"], &sb["nodesize"]), (&"label".into(), &4096.into()));
    assert_eq!(sb["fsid"], "01234567-89ab-cdef-0123-456789abcdef");
    run("check {}", &[&image]).ok();
}

#[test]
fn the_top_directory_is_whose_it_is_asked_to_be() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("i");
    run("mkfs -q -b 200m --root-owner 1000:100 {}", &[&image]).ok();
    let root = run("stat --json {} /", &[&image]).ok().json();
    assert_eq!((&root[0]["uid"], &root[0]["gid"]), (&1000.into(), &100.into()));
    run("check {}", &[&image]).ok();
    run("mkfs -f --root-owner me {}", &[&image]).fails(&["UID:GID"]);
}

#[test]
fn mkfs_over_several_devices_is_one_volume() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    run("mkfs -q -d raid1 -m raid1 -b 200m {} {}", &[&a, &b]).ok();
    run("check {} {}", &[&b, &a]).ok();
    let missing = run("check {}", &[&a]).code(1).text();
    assert!(missing.contains("device-missing"), "{missing}");
    run("ls -D {} {}", &[&b, &a]).ok();
}

#[test]
fn mkfs_refuses_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("i");
    run("mkfs {}", &[&image]).fails(&["does not exist", "-b"]);
    assert!(!image.exists());
    run("mkfs -b 1m {}", &[&image]).fails(&["small"]);
    assert!(!image.exists(), "what was made for it goes with the failure");
    run("mkfs -b 200m -d raid1 {}", &[&image]).fails(&["raid1"]);
    run("mkfs -b 200m -n 5000 {}", &[&image]).fails(&["5000"]);
    run("mkfs -b 200m --csum md5 {}", &[&image]).fails(&["md5"]);
    run("mkfs -b 200m -O no-such-feature {}", &[&image]).fails(&["no-such-feature"]);
    assert!(!image.exists());
    run("mkfs {}", &[dir.path()]).fails(&[]);

    let volume = Scratch::filled();
    let before = fs::read(&volume.image).unwrap();
    run("mkfs {}", &[&volume.image]).fails(&["-f", "btrfs"]);
    assert!(fs::read(&volume.image).unwrap() == before, "refused without a trace");
    run("mkfs -q -f {}", &[&volume.image]).ok();
    assert_eq!(run("ls {}", &[&volume.image]).ok().text(), "");
}

/// Runs the program by the name mkfs.btrfs.
fn mkfs_btrfs(args: &str, targets: &[&Path]) -> (i32, String, String) {
    let mut command = Command::new(COWSHED);
    command.arg0("mkfs.btrfs").args(args.split_whitespace()).args(targets);
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[test]
fn by_the_name_of_mkfs_btrfs_files_neither_come_nor_grow() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("i");
    let (code, _, err) = mkfs_btrfs("-f -b 200m", &[&image]);
    assert!(code == 1 && err.contains("No such file or directory"), "{err}");
    assert!(!image.exists());
    fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let too_small = "is too small to make a usable filesystem\nERROR: minimum size for";
    for (args, expected) in [
        (
            "",
            format!(
                "ERROR: '{}' {too_small} each btrfs device is 114294784\n",
                image.display()
            ),
        ),
        (
            "-b 1m",
            format!("ERROR: size 1048576 {too_small} a btrfs filesystem is 114294784\n"),
        ),
        (
            "-b 1m -M",
            format!("ERROR: size 1048576 {too_small} a btrfs filesystem is 16777216\n"),
        ),
        (
            "-f -b 200m",
            format!(
                "ERROR: {} is smaller than requested size, expected 209715200, found 1048576\n",
                image.display()
            ),
        ),
    ] {
        let answer = mkfs_btrfs(args, &[&image]);
        assert_eq!(answer, (1, String::new(), expected), "{args}");
        assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20, "{args}");
    }
    run("mkfs -q -b 200m {}", &[&image]).ok();
}

#[test]
fn files_are_never_made_among_devices() {
    let absent = Path::new("/dev/cowshed-test-that-is-not-there");
    let dir = tempfile::tempdir().unwrap();
    for rootdir in [None, Some(dir.path())] {
        let args: Vec<&Path> = ["-b", "200m"].iter().map(Path::new).collect();
        let rootdir: Vec<&Path> = rootdir
            .into_iter()
            .flat_map(|dir| [Path::new("--rootdir"), dir])
            .collect();
        let all = [&[Path::new("mkfs")], &args[..], &rootdir[..], &[absent]].concat();
        crate::support::cowshed(all).fails(&["no such device"]);
        let (code, ..) = mkfs_btrfs("-b 200m", &[&rootdir[..], &[absent]].concat());
        assert_eq!(code, 1);
        assert!(!absent.exists());
    }
}

#[test]
fn features_and_version_are_named_without_a_target() {
    let (code, out, err) = mkfs_btrfs("-O list-all", &[]);
    assert_eq!((code, &*out), (0, ""));
    assert!(err.starts_with("Filesystem features available:\n"), "{err}");
    for line in err.lines().skip(1) {
        assert!(line.contains("- ") && line.contains("(compat="), "{line}");
    }
    assert!(
        run("mkfs -O ^no-holes,list-all", &[])
            .ok()
            .text()
            .contains("no-holes\n")
    );
    let (code, out, _) = mkfs_btrfs("--version", &[]);
    assert!(
        code == 0 && out.starts_with("mkfs.btrfs, part of btrfs-progs v"),
        "{out}"
    );
    run("mkfs", &[]).fails(&["TARGET"]);
    assert_eq!(mkfs_btrfs("", &[]).0, 1);
}

/// Line by line as mkfs.btrfs, but for what each volume has of its own.
#[test]
fn summary_has_the_lines_of_mkfs_btrfs() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let dir = tempfile::tempdir().unwrap();
    let images = ["a", "b", "c", "d"].map(|name| dir.path().join(name));
    for image in &images {
        fs::File::create(image).unwrap().set_len(300 << 20).unwrap();
    }
    let lines = |text: &str| -> Vec<String> {
        let from = text.find("Label:").unwrap_or_else(|| panic!("no summary: {text}"));
        // mkfs.btrfs 6.2 has two lines of features, and does not name the size of pages.
        let lines = text[from..].lines().filter(|line| !line.contains("eatures:"));
        let own = |line: &str| match line.starts_with("UUID:") {
            true => "UUID:".to_owned(),
            false => line
                .split("\t(CPU page")
                .next()
                .unwrap_or_default()
                .trim_end()
                .to_owned(),
        };
        lines.map(own).collect()
    };
    for (args, count) in [
        ("-f", 1),
        ("-f -L label --csum xxhash -n 4k", 1),
        ("-f -M", 1),
        ("-f -d raid0 -m raid1", 2),
        ("-f -d raid10 -m raid1c3", 4),
    ] {
        let targets: Vec<&Path> = images.iter().take(count).map(|image| &**image).collect();
        let (code, out, err) = mkfs_btrfs(args, &targets);
        assert_eq!(code, 0, "{args}: {err}");
        assert!(
            out.starts_with("cowshed ") && out.contains("\nFeatures:           "),
            "{out}"
        );
        let mut stock = Command::new("mkfs.btrfs");
        let stock = limit::output_within(stock.args(args.split_whitespace()).args(&targets), COMMAND_MAX).unwrap();
        assert!(stock.status.success(), "{args}");
        assert_eq!(lines(&out), lines(&String::from_utf8_lossy(&stock.stdout)), "{args}");
    }
}

#[test]
fn exit_code_of_check_is_kept_when_the_reader_of_its_output_is_gone() {
    let volume = Scratch::filled();
    let code = |words: &[&str]| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(COWSHED);
        command.args(words).arg("--check-data-csum").arg(&volume.image);
        command.stdout(writer).stderr(Stdio::null());
        limit::status_within(&mut command, COMMAND_MAX).unwrap().code()
    };
    assert_eq!([code(&["check"]), code(&["btrfs", "check"])], [Some(0); 2]);
    let bytes = fs::read(&volume.image).unwrap();
    let at = bytes.windows(4096).position(|w| w.iter().all(|b| *b == 7)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&volume.image).unwrap();
    file.write_all_at(b"!", at as u64).unwrap();
    assert_eq!([code(&["check"]), code(&["btrfs", "check"])], [Some(1); 2]);
}

#[test]
fn check_says_what_btrfs_check_says_of_a_sound_volume() {
    let volume = Scratch::filled();
    let ours = run("check --check-data-csum {}", &[&volume.image]).ok().text();
    assert!(ours.contains("no error found"), "{ours}");
    let json = run("check --json --check-data-csum {}", &[&volume.image]).ok().json();
    assert_eq!(
        (&json["clean"], json["findings"].as_array().map(Vec::len)),
        (&true.into(), Some(0))
    );
    assert_eq!(json["statistics"]["data_verified_bytes"], 1 << 20);
    let Some(()) = need::tool("btrfs") else { return };
    let theirs = progs::check(&volume.image, progs::CheckOptions::default()).unwrap();
    theirs.assert_clean();
    for line in ours.lines().take(5) {
        assert!(theirs.output.contains(line), "{line:?} not in: {}", theirs.output);
    }
}

#[test]
fn a_quiet_check_prints_findings_alone() {
    let volume = Scratch::filled();
    let ran = run("check -q --check-data-csum {}", &[&volume.image]).ok();
    assert_eq!((ran.text().as_str(), ran.err.as_str()), ("", ""));
    let bytes = fs::read(&volume.image).unwrap();
    let at = bytes.windows(4096).position(|w| w.iter().all(|b| *b == 7)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&volume.image).unwrap();
    file.write_all_at(b"!", at as u64).unwrap();
    let ran = run("check --quiet --check-data-csum {}", &[&volume.image]).code(1);
    let lines = ran.text();
    assert_eq!((lines.lines().count(), ran.err.as_str()), (1, ""), "{lines}");
    assert!(lines.starts_with("error: data-csum: "), "{lines}");
    run("check -q -p {}", &[&volume.image]).fails(&["--quiet"]);
}

#[test]
fn check_finds_damage_in_data_only_when_it_reads_data() {
    let volume = Scratch::filled();
    let bytes = fs::read(&volume.image).unwrap();
    let at = bytes.windows(4096).position(|w| w.iter().all(|b| *b == 7)).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&volume.image).unwrap();
    file.write_all_at(b"!", at as u64).unwrap();
    run("check {}", &[&volume.image]).ok();
    let found = run("check --check-data-csum --json {}", &[&volume.image])
        .code(1)
        .json();
    assert_eq!(
        (&found["clean"], &found["counts"]["data-csum"]),
        (&false.into(), &1.into())
    );
    assert_eq!(found["findings"][0]["id"], "data-csum");
    let text = run("check --check-data-csum {}", &[&volume.image]).code(1).text();
    assert!(
        text.contains("error: data-csum: ") && text.contains("error(s) found"),
        "{text}"
    );
    // The rest of the volume can still be read.
    run("cat {} /big", &[&volume.image]).fails(&["/big", "input/output"]);
    assert_eq!(run("cat {} /dir/hello", &[&volume.image]).ok().out, b"hello\n");
}

#[test]
fn check_of_what_cannot_be_checked() {
    let dir = tempfile::tempdir().unwrap();
    let (none, zeros) = (dir.path().join("none"), dir.path().join("zeros"));
    run("check {}", &[&none]).fails(&["none", "No such file"]);
    run("check {}", &[dir.path()]).fails(&[]);
    for (bytes, why) in [(1 << 20, "no btrfs superblock"), (100, "100 bytes")] {
        fs::write(&zeros, vec![0; bytes]).unwrap();
        let text = run("check {}", &[&zeros]).code(2).text();
        assert!(text.contains("super-unreadable") && text.contains(why), "{text}");
    }
}
