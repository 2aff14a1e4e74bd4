//! Streams that the process which serves the mount plays: that it does, and when it ends.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use btrfs_stream::{Command as Change, Node, Version, Writer};
use cowshed_harness::{limit, need};

use super::{receive, receive_by_calls};
use crate::mount::{Guard, can_mount, ended, foreground_with, is_mounted, kill, unmount};
use crate::support::{COWSHED, SOON, Scratch, eventually, in_name_space, run};

const START: Change<'_> = Change::Subvol {
    path: b"home",
    uuid: [7; 16],
    ctransid: 9,
};
const FILE: Change<'_> = Change::Mkfile {
    path: b"file",
    ino: Some(257),
};
const SECRET: Change<'_> = Change::Write {
    path: b"file",
    offset: 0,
    data: b"secret",
};

fn stream(commands: &[Change<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), Version::V1).unwrap();
    for command in commands {
        writer.write(command).unwrap();
    }
    writer.into_inner()
}

/// The process plays streams for mounts that others overlap: those take that names expire.
fn can_be_served() -> Option<()> {
    can_mount()?;
    need::names_that_expire()
}

/// How many streams the serving process was asked to play.
fn streams_in(log: &Path) -> usize {
    let text = fs::read_to_string(log).unwrap();
    text.lines().filter(|line| line.contains(" receives")).count()
}

/// A command that receives from a pipe, into which this was written.
fn stalled(bytes: &[u8], dir: &Path) -> (Child, ChildStdin) {
    let mut child = Command::new(COWSHED)
        .args(["receive".as_ref(), "-q".as_ref(), dir.as_os_str()])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(bytes).unwrap();
    (child, input)
}

#[test]
fn stream_is_played_by_the_process_that_serves_the_mount() {
    let Some(()) = can_be_served() else { return };
    let scratch = Scratch::new();
    let (mnt, log, file) = (scratch.mountpoint(), scratch.path("log"), scratch.path("stream"));
    let _guard = Guard(&mnt);
    let mount = format!("mount -v -o log={} {{}} {{}}", log.display());
    run(&mount, &[&scratch.image, &mnt]).ok();
    fs::write(&file, stream(&[START, FILE, SECRET, Change::End])).unwrap();
    for (name, count) in [("one", 1), ("two", 2)] {
        fs::create_dir(mnt.join(name)).unwrap();
        receive(&file, &mnt.join(name)).ok();
        assert_eq!(streams_in(&log), count);
    }
    fs::create_dir(mnt.join("calls")).unwrap();
    receive_by_calls(&file, &mnt.join("calls"), &mnt).ok();
    assert_eq!(streams_in(&log), 2, "by system calls");
    for dir in ["one", "two", "calls"] {
        assert_eq!(fs::read(mnt.join(dir).join("home/file")).unwrap(), b"secret");
    }
    // Another mount hides the one that is below it.
    let below = scratch.path("below");
    fs::create_dir_all(below.join("in")).unwrap();
    let other = Scratch::new();
    let (deep, over) = (below.join("in"), below.clone());
    run("mount {} {}", &[&other.image, &deep]).ok();
    cowshed_harness::run("mount", &["--bind".as_ref(), mnt.as_os_str(), over.as_os_str()]).unwrap();
    fs::create_dir_all(over.join("in/side")).unwrap();
    receive(&file, &over.join("in/side")).ok();
    assert!(mnt.join("in/side/home/file").exists());
    cowshed_harness::run("umount", &[&over]).unwrap();
    unmount(&deep);
    unmount(&mnt);
    scratch.assert_clean();
}

#[test]
fn half_a_stream_is_seen_by_its_owner_alone() {
    let Some(()) = can_be_served() else { return };
    let scratch = Scratch::new();
    let (mnt, file) = (scratch.mountpoint(), scratch.path("stream"));
    let _guard = Guard(&mnt);
    run("mount {} {}", &[&scratch.image, &mnt]).ok();
    fs::write(&file, stream(&[START, FILE, SECRET])).unwrap();
    receive(&file, &mnt).fails(&["is incomplete"]);
    let mode = |path: &str| fs::metadata(mnt.join(path)).unwrap().permissions().mode();
    assert_eq!((mode("home") & 0o077, mode("home/file") & 0o077), (0, 0));
    unmount(&mnt);
    // Into an image, too.
    let image = format!("{}:/", scratch.image.display());
    let start = Change::Subvol {
        path: b"second",
        uuid: [8; 16],
        ctransid: 9,
    };
    fs::write(&file, stream(&[start, FILE, SECRET])).unwrap();
    receive(&file, image.as_ref()).fails(&["is incomplete"]);
    run("mount {} {}", &[&scratch.image, &mnt]).ok();
    assert_eq!(mode("second") & 0o077, 0);
    unmount(&mnt);
    scratch.assert_clean();
}

#[test]
fn stalled_stream_ends_with_the_last_mount_and_with_a_signal() {
    let Some(()) = can_be_served() else { return };
    for by_signal in [false, true] {
        let scratch = Scratch::new();
        let mnt = scratch.mountpoint();
        let _guard = Guard(&mnt);
        let mut server = foreground_with(&[], &scratch.image, &mnt);
        let (mut child, input) = stalled(&stream(&[START, FILE, SECRET]), &mnt);
        eventually("the file", || mnt.join("home/file").exists());
        if by_signal {
            kill(&server, "-TERM");
            eventually("leaving the tree", || !is_mounted(&mnt));
        } else {
            unmount(&mnt);
        }
        // The pipe is open still.
        assert!(ended(&mut server).success());
        let status = limit::wait(&mut child, SOON).unwrap().expect("the command ends, too");
        assert!(!status.success());
        drop(input);
        scratch.assert_clean();
        run("mount {} {}", &[&scratch.image, &mnt]).ok();
        let listed = run("subvolume list --json {}", &[&mnt]).ok().json();
        let home = listed.as_array().unwrap().iter().find(|s| s["path"] == "home").unwrap();
        assert!(
            home["is_read_only"] == false && home["received_uuid"].is_null(),
            "{home}"
        );
        assert_eq!(fs::metadata(mnt.join("home")).unwrap().uid(), 0);
        unmount(&mnt);
    }
}

#[test]
fn long_lines_and_long_errors_arrive_whole() {
    let Some(()) = can_be_served() else { return };
    let scratch = Scratch::new();
    let (mnt, file) = (scratch.mountpoint(), scratch.path("stream"));
    let _guard = Guard(&mnt);
    run("mount {} {}", &[&scratch.image, &mnt]).ok();
    let long = vec![b'\\'; 60_000];
    let missing = Change::Unlink { path: &long };
    fs::write(&file, stream(&[START, missing, Change::End])).unwrap();
    let refused = run("receive -v -f {} {}", &[&file, &mnt]).code(2);
    // Printed as a command, and in the error.
    assert!(refused.err.len() > 4 * long.len(), "{} bytes", refused.err.len());
    assert!(refused.err.contains("is incomplete"));
    unmount(&mnt);
    scratch.assert_clean();
}

/// What the kernel refuses to an ordinary user is refused by the process that plays for it.
#[test]
fn ordinary_users_stream_makes_only_what_the_user_may_make() {
    let Some(()) = can_be_served() else { return };
    for program in ["fusermount3", "setpriv", "unshare"] {
        let Some(()) = need::tool(program) else { return };
    }
    let dir = tempfile::tempdir().unwrap();
    let streams = tempfile::tempdir().unwrap();
    fs::set_permissions(streams.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let device = Change::Mknod {
        path: b"device",
        ino: None,
        node: Node {
            mode: 0o20644,
            rdev: 0x103,
        },
    };
    let whiteout = Change::Mknod {
        path: b"whiteout",
        ino: None,
        node: Node { mode: 0o20644, rdev: 0 },
    };
    let owner = Change::Chown {
        path: b"file",
        uid: 0,
        gid: 0,
    };
    let trusted = Change::SetXattr {
        path: b"file",
        name: b"trusted.note",
        data: b"x",
    };
    for (name, commands) in [
        ("good", vec![START, FILE, SECRET, whiteout, Change::End]),
        ("device", vec![START, device, Change::End]),
        ("owner", vec![START, FILE, owner, Change::End]),
        ("trusted", vec![START, FILE, trusted, Change::End]),
    ] {
        fs::write(streams.path().join(name), stream(&commands)).unwrap();
    }
    let script = r#"
        set -eu
        mount -t tmpfs tmpfs "$1"
        mount -t tmpfs -o mode=755 tmpfs /run
        cp "$2" "$1/cowshed"
        mkdir "$1/dev" "$1/home" "$1/run" "$1/streams"
        cp "$3"/* "$1/streams"
        mknod -m 666 "$1/dev/fuse" c 10 229
        mount --bind "$1/dev/fuse" /dev/fuse
        chmod 755 "$1" "$1/cowshed"
        chown 65534:65534 "$1/home" "$1/run"
        chmod 700 "$1/run"
        cd "$1/home"
        XDG_RUNTIME_DIR=$1/run setpriv --reuid=65534 --regid=65534 --clear-groups sh -euc '
            ../cowshed mkfs -q -b 200m image
            mkdir one
            ../cowshed mount -v -o log=$PWD/log image one
            for name in good device owner trusted closed; do mkdir one/$name; done
            ../cowshed receive -q -f ../streams/good one/good
            stat -c "%n %F %u %a" one/good/home one/good/home/file one/good/home/whiteout
            for name in device owner trusted; do
                if ../cowshed receive -q -f ../streams/$name one/$name 2> said; then exit 9; fi
                grep -q "Operation not permitted" said || { cat said >&2; exit 8; }
                grep -q incomplete said
                test ! -e one/$name/home/device
            done
            chmod 555 one/closed
            if ../cowshed receive -q -f ../streams/good one/closed 2> said; then exit 9; fi
            grep -q "Permission denied" said || { cat said >&2; exit 8; }
            test -z "$(ls one/closed)"
            echo streams: $(grep -c " receives" log)
            ../cowshed umount one
            ../cowshed check --check-data-csum image
        '
    "#;
    let mut unshare = in_name_space();
    unshare
        .args(["-m", "sh", "-c", script, "sh"])
        .args([dir.path(), COWSHED.as_ref(), streams.path()]);
    let ran = limit::output(&mut unshare).unwrap_or_else(|e| panic!("{e:#}"));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    for line in [
        "one/good/home/file regular file 65534 600",
        "one/good/home/whiteout character special file 65534 644",
        "streams: 5",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}
