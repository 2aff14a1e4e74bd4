//! `ls`, `cat` and `stat`: files of a volume without mounting it.

use std::fs;
use std::io::Read;
use std::process::Command;

use cowshed_harness::{KernelVolume, VolumeOptions, limit, need};

use crate::support::{COMMAND_MAX, COWSHED, Scratch, run};

#[test]
fn ls_lists_as_ls_does() {
    let volume = Scratch::filled();
    let ls = |flags: &str| run(&format!("ls {flags} {{}} /"), &[&volume.image]).ok().text();
    assert_eq!(ls(""), "big\ndir\nnull\n");
    let dir = |flags: &str| run(&format!("ls {flags} {{}} dir"), &[&volume.image]).ok().text();
    assert_eq!(dir(""), "hello\nlink\nsub\n");
    assert_eq!(dir("-a"), ".hidden\nhello\nlink\nsub\n");
    assert_eq!(dir("-d"), "dir\n");
    assert_eq!(dir("-R"), "dir:\nhello\nlink\nsub\n\ndir/sub:\ndeep\n");
    let long = ls("-ln");
    let line = |name: &str| long.lines().find(|l| l.contains(name)).unwrap().to_owned();
    assert!(line("big").starts_with("-rwsr-x--- 1 0 0 1048576 2"), "{long}");
    assert!(
        line("null").starts_with("crw-rw-rw- 1 0 0 ") && line("null").contains("1, 3"),
        "{long}"
    );
    assert!(dir("-l").contains("link -> hello\n"));
    let json = run("ls --json -R {} /", &[&volume.image]).ok().json();
    let names: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|d| d["directory"].clone())
        .collect();
    assert_eq!(names, ["/", "/dir", "/dir/sub"]);
    assert_eq!(json[0]["entries"][0]["size"], 1 << 20);
    assert_eq!(json[1]["entries"][1]["target"], "hello");
    let mixed = run("ls {} no/such big", &[&volume.image]).code(2);
    assert_eq!(
        (mixed.text().as_str(), mixed.err.as_str()),
        ("big\n", "cowshed: no/such: not found\n")
    );
}

#[test]
fn cat_prints_the_bytes_and_goes_on_after_an_error() {
    let volume = Scratch::filled();
    assert_eq!(run("cat {} big", &[&volume.image]).ok().out, vec![7; 1 << 20]);
    let ran = run("cat {} dir/hello none dir dir/link", &[&volume.image]).code(2);
    assert_eq!(ran.out, b"hello\nhello\n");
    assert!(
        ran.err.contains("none: not found") && ran.err.contains("dir: is a directory"),
        "{}",
        ran.err
    );
    assert_eq!(ran.err.lines().count(), 2);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let volume = Scratch::filled();
    for args in [&["cat", "V", "big"][..], &["inspect", "tree", "V"], &["ls", "-lR", "V"]] {
        let args = args.iter().map(|a| match *a {
            "V" => volume.image.as_os_str(),
            word => word.as_ref(),
        });
        let (reader, stdout) = std::io::pipe().unwrap();
        drop(reader);
        let mut said = tempfile::NamedTempFile::new().unwrap();
        let mut command = Command::new(COWSHED);
        command.args(args).stdout(stdout).stderr(said.reopen().unwrap());
        let status = limit::status_within(&mut command, COMMAND_MAX).unwrap();
        let mut text = String::new();
        said.read_to_string(&mut text).unwrap();
        assert_eq!((status.code(), text.as_str()), (Some(0), ""));
    }
}

#[test]
fn stat_shows_what_is_known() {
    let volume = Scratch::filled();
    let text = run("stat {} big", &[&volume.image]).ok().text();
    for part in [
        "Size: 1048576",
        "regular file",
        "(4750/-rwsr-x---)",
        "user.note=\"text\"",
        " Birth: 2",
    ] {
        assert!(text.contains(part), "{part:?} in: {text}");
    }
    let json = run("stat --json {} big dir/link null", &[&volume.image]).ok().json();
    assert_eq!(
        (&json[0]["mode"], &json[0]["xattrs"]["user.note"]),
        (&"4750".into(), &"text".into())
    );
    assert_eq!(
        (&json[1]["type"], &json[1]["target"]),
        (&"symbolic link".into(), &"hello".into())
    );
    assert_eq!(json[2]["device"]["minor"], 3);
    let followed = run("stat -L --json {} dir/link", &[&volume.image]).ok().json();
    assert_eq!(followed[0]["size"], 6);
    run("stat {} none", &[&volume.image]).fails(&["none: not found"]);
}

#[test]
fn options_choose_the_subvolume_and_bad_ones_are_named() {
    let volume = Scratch::filled();
    run("ls -o subvolid=5 {}", &[&volume.image]).ok();
    run("ls -o subvol=/none {}", &[&volume.image]).fails(&[]);
    run("ls -o wobble {}", &[&volume.image]).fails(&["wobble"]);
}

#[test]
fn reading_commands_do_not_write() {
    let volume = Scratch::filled();
    let before = fs::read(&volume.image).unwrap();
    for line in [
        "ls -lR {}",
        "cat {} big",
        "stat {} big",
        "check {}",
        "inspect tree {}",
        "inspect chunk {}",
    ] {
        run(line, &[&volume.image]).ok();
    }
    assert!(fs::read(&volume.image).unwrap() == before);
}

/// A volume that crashed after an fsync: what was synced can be seen, and seeing it writes nothing.
#[test]
fn a_volume_with_a_log_can_be_read() {
    let Some(()) = need::kernel_btrfs() else { return };
    let kernel = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let copy = kernel.dir().join("crashed");
    kernel
        .with_mount(|root| {
            fs::write(root.join("before"), b"committed\n")?;
            cowshed_harness::run("sync", &["-f".as_ref(), root.as_os_str()])?;
            fs::write(root.join("after"), b"logged\n")?;
            fs::File::open(root.join("after"))?.sync_all()?;
            fs::copy(kernel.image(), &copy)?;
            Ok(())
        })
        .unwrap();
    let image = fs::read(&copy).unwrap();
    assert_eq!(run("cat {} before", &[&copy]).ok().out, b"committed\n");
    assert_eq!(run("cat {} after", &[&copy]).ok().out, b"logged\n");
    run("cat -o rescue=nologreplay {} after", &[&copy]).fails(&["after"]);
    assert!(fs::read(&copy).unwrap() == image);
    let checked = run("check --json {}", &[&copy]).ok().json();
    assert_eq!(checked["counts"]["log-present"], 1);
}
