//! Where an image may lie: in a partition, behind an offset, in a file or device of an ordinary
//! user, in a file that cannot be written.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use cowshed_harness::{LoopDevice, limit, need};

use super::{here, run};
use crate::support::{COMMAND_MAX, COWSHED, Ran, Scratch, cowshed};

#[test]
fn volumes_in_partitions_and_at_offsets_are_used_by_the_same_paths() {
    let scratch = Scratch::new();
    let dir = scratch.dir.path();
    fs::create_dir_all(dir.join("root/etc")).unwrap();
    fs::write(dir.join("root/etc/hostname"), "cow\n").unwrap();
    let go = |line: &str| here(&scratch, line);
    go("build -q --from root --slack 100m --offset 1m shifted").ok();
    go("build -q --from root --slack 100m --partition -L system disk").ok();
    for disk in ["shifted:@1m", "shifted:@1048576", "disk:1", "disk:system", "disk:@1m"] {
        assert_eq!(go(&format!("cat {disk}:/etc/hostname")).ok().text(), "cow\n", "{disk}");
        assert_eq!(go(&format!("ls {disk} /etc")).ok().text(), "hostname\n", "{disk}");
        go(&format!("cp -a root {disk}:/copy")).ok();
        assert_eq!(
            go(&format!("find {disk}:/copy -type f")).ok().text(),
            format!("{disk}:/copy/etc/hostname\n")
        );
        go(&format!("rm -r {disk}:/copy")).ok();
        go(&format!("check -q {disk}")).ok();
    }
    // Two names of one volume are one volume; nothing outside of it is written.
    go("cp disk:1:/etc/hostname disk:system:/etc/two").ok();
    assert_eq!(go("cat disk:1:/etc/two").ok().text(), "cow\n");
    let bytes = fs::read(dir.join("shifted")).unwrap();
    assert!(bytes[..1 << 20].iter().all(|byte| *byte == 0));
    go("extract disk:1 out").ok();
    assert_eq!(fs::read(dir.join("out/etc/two")).unwrap(), b"cow\n");
    go("export tar disk:1 a.tar").ok();
    for (line, words) in [
        ("ls disk:2:/", &["disk", "no partition '2'"][..]),
        ("ls disk:@1t:/", &["disk", "beyond its end"]),
        ("ls disk:@17:/", &["multiple of 512"]),
        ("ls disk:@much:/", &["much"]),
        ("ls shifted:1:/", &["shifted", "no partition table"]),
        ("rm disk:/x", &["disk"]),
    ] {
        let ran = go(line);
        assert_ne!(ran.code, 0, "{line}");
        assert!(words.iter().all(|word| ran.err.contains(word)), "{line}: {}", ran.err);
    }
}

#[test]
fn partitions_of_one_disk_exchange_files_and_each_has_its_commit() {
    let Some(()) = need::tool("sfdisk") else { return };
    let scratch = Scratch::new();
    let dir = scratch.dir.path();
    fs::create_dir_all(dir.join("root")).unwrap();
    fs::write(dir.join("root/f"), vec![7; 300_000]).unwrap();
    let script = "truncate -s 400M disk; printf 'label: gpt\nsize=190M\nsize=190M, name=second\n' | sfdisk -q disk";
    cowshed_harness::shell(dir, script).unwrap();
    for part in ["disk:1", "disk:second"] {
        here(&scratch, &format!("build -q --from root --target {part}")).ok();
    }
    here(&scratch, "mv disk:1:/f disk:2:/moved").ok();
    assert_eq!(here(&scratch, "ls disk:1:/").ok().text(), "");
    assert_eq!(here(&scratch, "cat disk:2:/moved").ok().out, vec![7; 300_000]);
    here(&scratch, "cp disk:2:/f disk:2:/moved disk:1:/").ok();
    for part in ["disk:1", "disk:2"] {
        here(&scratch, &format!("check --check-data-csum {part}")).ok();
    }
}

/// Runs as an ordinary user.
fn as_nobody(dir: &Path, line: &str) -> Ran {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", COWSHED]);
    command
        .args(line.split_whitespace())
        .current_dir(dir)
        .stdin(Stdio::null());
    let output = limit::output_within(&mut command, COMMAND_MAX).unwrap();
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn ordinary_user_changes_own_files_and_devices_and_no_others() {
    let Some(()) = need::root() else { return };
    let Some(()) = need::tool("setpriv") else { return };
    let Some(()) = need::loop_devices() else { return };
    let scratch = Scratch::filled();
    let dir = scratch.dir.path();
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(dir, 0o777);
    fs::write(dir.join("f"), "mine\n").unwrap();
    // Readable by all, writable by root alone.
    open(&scratch.image, 0o644);
    assert_eq!(as_nobody(dir, "cat volume.img:/dir/hello").ok().text(), "hello\n");
    as_nobody(dir, "cp -r volume.img:/dir out").ok();
    assert_eq!(fs::read(dir.join("out/hello")).unwrap(), b"hello\n");
    let before = fs::read(&scratch.image).unwrap();
    for line in ["rm volume.img:/big", "cp f volume.img:/f", "mkdir volume.img:/new"] {
        as_nobody(dir, line).fails_with(1, &["volume.img", "Permission denied"]);
    }
    assert!(fs::read(&scratch.image).unwrap() == before);
    // A device of its own.
    let device = LoopDevice::attach(&scratch.image).unwrap();
    let path = device.path().display().to_string();
    as_nobody(dir, &format!("ls {path}:/")).fails_with(2, &["Permission denied"]);
    cowshed_harness::run("chown", &["nobody", &path]).unwrap();
    as_nobody(dir, &format!("cp f {path}:/dir/f")).ok();
    as_nobody(dir, &format!("chmod 600 {path}:/dir/f")).ok();
    let stat = as_nobody(dir, &format!("find {path}:/dir/f -uid 65534 -perm 600"))
        .ok()
        .text();
    assert_eq!(stat, format!("{path}:/dir/f\n"));
    cowshed_harness::run("chown", &["root", &path]).unwrap();
    drop(device);
    scratch.assert_clean();
}

/// Their modes would keep their owner from giving them attributes.
#[test]
fn read_only_files_and_directories_keep_attributes_also_for_an_ordinary_user() {
    let Some(()) = need::root() else { return };
    let Some(()) = need::tool("setpriv") else { return };
    let scratch = Scratch::filled();
    let dir = scratch.dir.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&scratch.image, fs::Permissions::from_mode(0o644)).unwrap();
    here(
        &scratch,
        "setfattr -n user.note -v text volume.img:/dir/hello volume.img:/dir",
    )
    .ok();
    here(&scratch, "chmod 444 volume.img:/dir/hello").ok();
    here(&scratch, "chmod 555 volume.img:/dir").ok();
    as_nobody(dir, "extract volume.img:/dir out").ok();
    as_nobody(dir, "cp -a volume.img:/dir/hello copy").ok();
    let mut value = [0; 10];
    for (name, mode) in [("out/hello", 0o444), ("out", 0o555), ("copy", 0o444)] {
        let path = dir.join(name);
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            mode,
            "{name}"
        );
        let len = rustix::fs::getxattr(&path, "user.note", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"text", "{name}");
    }
    fs::set_permissions(dir.join("out"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn image_that_cannot_be_written_is_read_and_its_writing_refused() {
    let Some(()) = need::loop_devices() else { return };
    let scratch = Scratch::filled();
    let device = LoopDevice::attach_with(&scratch.image, true, 512).unwrap();
    let path = device.path().display().to_string();
    let before = fs::read(&scratch.image).unwrap();
    assert_eq!(cowshed(["cat", &format!("{path}:/dir/hello")]).ok().text(), "hello\n");
    assert_eq!(cowshed(["ls", &format!("{path}:/")]).ok().text(), "big\ndir\nnull\n");
    for line in [
        format!("rm {path}:/big"),
        format!("touch {path}:/new"),
        format!("chmod 600 {path}:/big"),
    ] {
        let ran = run(&line, &[]).code(1);
        let says = ["Read-only", "Operation not permitted", "Permission denied"];
        assert!(
            ran.err.contains(&path) && says.iter().any(|word| ran.err.contains(word)),
            "{}",
            ran.err
        );
    }
    drop(device);
    assert!(fs::read(&scratch.image).unwrap() == before);
}

/// Small files can be changed in an image that fits its contents; what does not fit says what to
/// do.
#[test]
fn image_without_slack_takes_small_changes_and_says_how_to_make_room() {
    let scratch = Scratch::new();
    let dir = scratch.dir.path();
    fs::create_dir_all(dir.join("root/etc")).unwrap();
    fs::write(dir.join("root/etc/hostname"), "cow\n").unwrap();
    fs::write(dir.join("root/data"), super::noise(3_000_001)).unwrap();
    fs::write(dir.join("hostname"), "shed\n").unwrap();
    fs::write(dir.join("conf"), "key = value\n".repeat(3000)).unwrap();
    fs::write(dir.join("large"), super::noise(64 << 20)).unwrap();
    let before = fs::read(dir.join("large")).unwrap();
    assert!(before.len() == 64 << 20);
    for flags in ["", "--compress zstd", "-O mixed-bg", "--size 200m"] {
        here(&scratch, &format!("build -q --from root {flags} fit")).ok();
        here(&scratch, "cp hostname fit:/etc/hostname").ok();
        assert_eq!(here(&scratch, "cat fit:/etc/hostname").ok().text(), "shed\n", "{flags}");
        here(&scratch, "cp conf fit:/etc/conf").ok();
        here(&scratch, "mkdir -p fit:/var/lib/a").ok();
        here(&scratch, "chmod -R go-rwx fit:/etc").ok();
        here(&scratch, "chown -R 5:6 fit:/").ok();
        here(&scratch, "setfattr -n user.a -v b fit:/etc/hostname").ok();
        here(&scratch, "mv fit:/etc/conf fit:/var/lib/a/conf").ok();
        here(&scratch, "rm fit:/data").ok();
        assert_eq!(
            here(&scratch, "cat fit:/var/lib/a/conf").ok().out,
            fs::read(dir.join("conf")).unwrap()
        );
        here(&scratch, "check --check-data-csum fit").ok();
        if flags != "--size 200m" {
            let ran = here(&scratch, "cp large fit:/").code(1);
            assert!(
                ran.err.contains("No space left on device: nothing was changed"),
                "{}",
                ran.err
            );
            assert!(ran.err.contains("--slack"), "{}", ran.err);
            assert!(!here(&scratch, "ls fit:/").ok().text().contains("large"));
        }
    }
}
