//! Streams that are damaged, make no sense, or want to get out.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use btrfs_stream::{Command, Time, Version, Writer};

use super::receive;
use crate::extents::{Mounted, mounted};
use crate::mount::{Guard, unmount};
use crate::support::{Scratch, cowshed, run};

const START: Command<'_> = Command::Subvol {
    path: b"home",
    uuid: [7; 16],
    ctransid: 9,
};
const FILE: Command<'_> = Command::Mkfile {
    path: b"file",
    ino: Some(257),
};
const DATA: Command<'_> = Command::Write {
    path: b"file",
    offset: 0,
    data: b"contents",
};

fn stream(version: Version, commands: &[Command<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), version).unwrap();
    for command in commands {
        writer.write(command).unwrap();
    }
    writer.into_inner()
}

/// A mount on which each bad stream is received into a directory of its own.
struct Bad {
    root: PathBuf,
    file: PathBuf,
    count: u32,
}

impl Bad {
    /// The stream is refused with these words; the directory that it was received into.
    #[track_caller]
    fn refused(&mut self, bytes: &[u8], words: &[&str]) -> PathBuf {
        self.count += 1;
        let dir = self.root.join(format!("in{}", self.count));
        fs::create_dir(&dir).unwrap();
        fs::write(&self.file, bytes).unwrap();
        receive(&self.file, &dir).fails(words);
        dir
    }

    /// As [`Bad::refused`], after a subvolume with a file was begun: it is left as incomplete.
    #[track_caller]
    fn broken(&mut self, bytes: &[u8], words: &[&str]) -> PathBuf {
        let incomplete = "subvolume home is incomplete, stays writable and has no received uuid";
        let dir = self.refused(bytes, &[words, &[incomplete]].concat());
        fs::write(dir.join("home/writable"), "").unwrap();
        dir
    }
}

/// Runs a test on a mount; the volume is clean after it.
fn on_a_mount(test: impl FnOnce(&mut Bad, &Path)) {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let guard = Guard(&mnt);
    let mut bad = Bad {
        root: mnt.clone(),
        file: scratch.path("stream"),
        count: 0,
    };
    test(&mut bad, &mnt);
    let list = run("subvolume list --json {}", &[&mnt]).ok().json();
    for subvolume in list.as_array().unwrap() {
        let incomplete = subvolume["is_read_only"] == false;
        assert!(!incomplete || subvolume["received_uuid"].is_null(), "{subvolume}");
    }
    unmount(&mnt);
    drop(guard);
    scratch.assert_clean();
}

#[test]
fn damaged_streams_leave_an_incomplete_subvolume() {
    on_a_mount(|bad, _| {
        let whole = stream(Version::V1, &[START, FILE, DATA, Command::End]);
        let end = whole.len() - 10;
        let mut flipped = whole.clone();
        flipped[end - 3] ^= 0x10;
        let dir = bad.broken(&flipped, &["write at byte", "checksum"]);
        assert_eq!(
            fs::read(dir.join("home/file")).unwrap(),
            b"",
            "nothing of a bad command is done"
        );
        bad.broken(&whole[..end - 2], &["ends within write at byte", "2 bytes are missing"]);
        bad.broken(&whole[..end], &["without the command end"]);
        bad.broken(&whole[..end + 4], &["ends within a header"]);
        let fallocate = Command::Fallocate {
            path: b"file",
            mode: 0,
            offset: 0,
            len: 4096,
        };
        let newer = stream(Version::V2, &[START, FILE, fallocate, Command::End]);
        let mut older = newer.clone();
        older[13] = 1;
        bad.broken(&older, &["fallocate at byte", "unknown in version 1"]);
        let mut newest = newer;
        newest[13] = 3;
        let dir = bad.refused(&newest, &["version 3, known are 1 and 2"]);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        bad.refused(b"", &["empty"]);
        bad.refused(b"not a stream, but long enough", &["no send stream"]);
    });
}

#[test]
fn paths_do_not_lead_out_of_the_subvolume() {
    on_a_mount(|bad, mnt| {
        fs::write(mnt.join("secret"), "secret").unwrap();
        let outside = mnt.join("secret");
        let link = Command::Symlink {
            path: b"link",
            ino: None,
            target: b"../..",
        };
        let direct = Command::Symlink {
            path: b"direct",
            ino: None,
            target: outside.as_os_str().as_encoded_bytes(),
        };
        let write = |path| Command::Write {
            path,
            offset: 0,
            data: b"broken",
        };
        let cases: [(Command<'_>, &str); 8] = [
            (write(b"../../secret"), "component \"..\""),
            (write(b"a/../../secret"), "component \"..\""),
            (write(b"/etc/cowshed-secret"), "is absolute"),
            (write(b"a//b"), "component \"\""),
            (write(b"./file"), "component \".\""),
            (write(b"link/secret"), "os error"),
            (write(b"direct"), "os error"),
            (
                Command::Rename {
                    path: b"file",
                    to: b"../out",
                },
                "component \"..\"",
            ),
        ];
        for (command, words) in cases {
            let bytes = stream(Version::V1, &[START, FILE, link, direct, command, Command::End]);
            let site = format!("{} at byte", command.kind());
            bad.broken(&bytes, &[&site, words]);
        }
        assert_eq!(fs::read(&outside).unwrap(), b"secret");
    });
}

#[test]
fn attributes_of_a_symbolic_link_are_set_and_not_those_of_its_target() {
    on_a_mount(|bad, mnt| {
        let outside = mnt.join("secret");
        fs::write(&outside, "secret").unwrap();
        let direct = Command::Symlink {
            path: b"direct",
            ino: None,
            target: outside.as_os_str().as_encoded_bytes(),
        };
        let time = Time { secs: 1, nanos: 0 };
        let chown = Command::Chown {
            path: b"direct",
            uid: 5,
            gid: 5,
        };
        let utimes = Command::Utimes {
            path: b"direct",
            atime: time,
            mtime: time,
            ctime: time,
            otime: None,
        };
        let before = fs::metadata(&outside).unwrap();
        fs::write(
            &bad.file,
            stream(Version::V1, &[START, direct, chown, utimes, Command::End]),
        )
        .unwrap();
        receive(&bad.file, mnt).ok();
        let after = fs::metadata(&outside).unwrap();
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(after.uid(), before.uid());
        assert_eq!(after.modified().unwrap(), before.modified().unwrap());
        assert_eq!(fs::symlink_metadata(mnt.join("home/direct")).unwrap().uid(), 5);
        assert_eq!(fs::read(&outside).unwrap(), b"secret");
    });
}

#[test]
fn subvolumes_are_not_made_outside_of_the_directory() {
    on_a_mount(|bad, mnt| {
        symlink("..", mnt.join("up")).unwrap();
        for (path, words) in [
            (&b"../x"[..], "component \"..\""),
            (b"/x", "is absolute"),
            (b"", "has no name"),
        ] {
            let start = Command::Subvol {
                path,
                uuid: [7; 16],
                ctransid: 1,
            };
            bad.refused(
                &stream(Version::V1, &[start, Command::End]),
                &["subvol at byte 17", words],
            );
        }
        let start = Command::Subvol {
            path: b"up/x",
            uuid: [7; 16],
            ctransid: 1,
        };
        fs::write(&bad.file, stream(Version::V1, &[start, Command::End])).unwrap();
        receive(&bad.file, mnt).fails(&["subvol at byte 17", "os error"]);
    });
}

#[test]
fn commands_without_sense_are_named() {
    on_a_mount(|bad, mnt| {
        bad.refused(
            &stream(Version::V1, &[FILE, Command::End]),
            &["mkfile at byte 17", "no subvolume for \"file\""],
        );
        let snapshot = Command::Snapshot {
            path: b"home",
            uuid: [7; 16],
            ctransid: 9,
            clone_uuid: [0xab; 16],
            clone_ctransid: 1,
        };
        bad.refused(
            &stream(Version::V1, &[snapshot, Command::End]),
            &[
                "snapshot at byte 17",
                "the parent",
                "no subvolume of this volume has the uuid abababab-abab-abab-abab-abababababab",
            ],
        );
        let clone = Command::Clone {
            path: b"file",
            offset: 0,
            len: 4096,
            clone_uuid: [0xab; 16],
            clone_ctransid: 1,
            clone_path: b"file",
            clone_offset: 0,
        };
        let update = Command::UpdateExtent {
            path: b"file",
            offset: 0,
            len: 4096,
        };
        let punch = Command::Fallocate {
            path: b"file",
            mode: 0x20,
            offset: 0,
            len: 4096,
        };
        let packed = Command::EncodedWrite {
            path: b"file",
            offset: 0,
            unencoded_file_len: 4096,
            unencoded_len: 4096,
            unencoded_offset: 0,
            compression: Some(2),
            encryption: None,
            data: b"this is not zstd",
        };
        for (command, words) in [
            (clone, "no subvolume of this volume has the uuid"),
            (update, "made without data"),
            (punch, "mode 0x20 is not supported"),
            (packed, "does not decompress"),
            (FILE, "File exists"),
        ] {
            let bytes = stream(Version::V2, &[START, FILE, command, Command::End]);
            let site = format!("{} at byte", command.kind());
            bad.broken(&bytes, &[&site, "file: ", words]);
        }
        // A subvolume that is there.
        fs::write(&bad.file, stream(Version::V1, &[START, Command::End])).unwrap();
        fs::create_dir(mnt.join("home")).unwrap();
        receive(&bad.file, mnt).fails(&["home: ", "exists"]);
        receive(&bad.file, &mnt.join("missing")).fails(&["not a directory"]);
        receive(&bad.file, Path::new("/proc")).fails(&["/proc: ", "not on a mount of cowshed's"]);
        assert!(cowshed(["receive", "-f", "/dev/null"]).code(2).err.contains("<DIR>"));
    });
}

#[test]
fn bad_streams_end_in_images_as_on_mounts() {
    let scratch = Scratch::filled();
    let (file, image) = (scratch.path("stream"), format!("{}:/dir", scratch.image.display()));
    let link = Command::Symlink {
        path: b"link",
        ino: None,
        target: b"../sub",
    };
    let write = |path| Command::Write {
        path,
        offset: 0,
        data: b"broken",
    };
    let cases = [
        ("../hello", "component \"..\""),
        ("link/deep", "Not a directory"),
        ("link", "Invalid argument"),
        ("missing", "No such file"),
    ];
    for (number, (path, words)) in cases.into_iter().enumerate() {
        let name = format!("home{number}");
        let start = Command::Subvol {
            path: name.as_bytes(),
            uuid: [7; 16],
            ctransid: 9,
        };
        let commands = [start, FILE, DATA, link, write(path.as_bytes()), Command::End];
        fs::write(&file, stream(Version::V1, &commands)).unwrap();
        receive(&file, image.as_ref()).fails(&["write at byte", words, &name, "is incomplete"]);
        // What came before it is there.
        let path = format!("/dir/{name}/file");
        let kept = run("cat {} {}", &[&scratch.image, path.as_ref()]).ok();
        assert_eq!(kept.out, b"contents");
    }
    let kept = run("cat {} /dir/hello /dir/sub/deep", &[&scratch.image]).ok();
    assert_eq!(kept.out, b"hello\ndeep\n");
    scratch.assert_clean();
}

#[test]
fn errors_are_counted_up_to_a_limit() {
    on_a_mount(|bad, mnt| {
        let gone = Command::Unlink { path: b"missing" };
        fs::write(
            &bad.file,
            stream(Version::V1, &[START, gone, gone, FILE, DATA, Command::End]),
        )
        .unwrap();
        let dirs = ["two", "three", "all"].map(|name| mnt.join(name));
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
        }
        let [two, three, all] = &dirs;
        run("receive -E 2 -f {} {}", &[&bad.file, two]).fails(&["unlink at byte", "incomplete"]);
        assert!(!two.join("home/file").exists());
        for (dir, limit) in [(three, "3"), (all, "0")] {
            let ran = run(&format!("receive -E {limit} -f {{}} {{}}"), &[&bad.file, dir]).code(1);
            assert!(
                ran.err.contains("2 errors: subvolume home is incomplete"),
                "{}",
                ran.err
            );
            assert_eq!(fs::read(dir.join("home/file")).unwrap(), b"contents");
            fs::write(dir.join("home/writable"), "").unwrap();
        }
    });
}

#[test]
fn several_streams_are_received_up_to_the_end_that_is_asked_for() {
    on_a_mount(|bad, mnt| {
        let second = Command::Subvol {
            path: b"second",
            uuid: [8; 16],
            ctransid: 9,
        };
        let one = stream(Version::V1, &[START, FILE, DATA, Command::End]);
        let two = stream(Version::V2, &[second, FILE, Command::End]);
        fs::write(&bad.file, [&one[..], &two].concat()).unwrap();
        let dirs = ["first", "both"].map(|name| mnt.join(name));
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
        }
        run("receive -e -f {} {}", &[&bad.file, &dirs[0]]).ok();
        let ran = run("receive -f {} {}", &[&bad.file, &dirs[1]]).ok();
        assert!(
            ran.err.contains("At subvol home\n") && ran.err.contains("At subvol second\n"),
            "{}",
            ran.err
        );
        assert!(!dirs[0].join("second").exists() && dirs[1].join("second/file").exists());
        for home in dirs.map(|dir| dir.join("home")) {
            assert_eq!(fs::read(home.join("file")).unwrap(), b"contents");
            let refused = fs::write(home.join("file"), "x").unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        }
        // One header, no end between them: as of `btrfs send -e`.
        let joined = stream(Version::V1, &[START, FILE, second, FILE, Command::End]);
        fs::write(&bad.file, joined).unwrap();
        let dir = mnt.join("joined");
        fs::create_dir(&dir).unwrap();
        let ran = run("receive -v -f {} {}", &[&bad.file, &dir]).ok();
        assert!(ran.err.contains("mkfile          ./second/file\n"), "{}", ran.err);
        assert!(dir.join("home/file").exists() && dir.join("second/file").exists());
        assert!(
            run("receive -q -f {} {}", &[&bad.file, &dir])
                .code(2)
                .err
                .lines()
                .count()
                == 1
        );
    });
}
