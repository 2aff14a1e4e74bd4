//! `receive`: streams that the kernel sends are played onto a mount of ours. The result is judged
//! by both checkers, and compared with what was sent, seen through the kernel.

mod bad;
mod flags;
mod mutated;
pub mod random;
mod served;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use btrfs_stream::Kind;
use cowshed_harness::progs::CheckOptions;
use cowshed_harness::tree::{Compare, MakeOptions, Tree, make, snapshot};
use cowshed_harness::{KernelVolume, VolumeOptions, need, run_in, shell};
use tempfile::TempDir;

use crate::extents::{Mounted, filefrag, mounted};
use crate::mount::{Guard, unmount};
use crate::support::{COWSHED, Ran, Scratch, cowshed, eventually, run};

/// Ways to send.
pub const WAYS: [(&str, &str); 3] = [
    ("v1", "--proto 1"),
    ("v2", "--proto 2"),
    ("packed", "--proto 2 --compressed-data"),
];

pub fn can_receive() -> Option<()> {
    need::root()?;
    need::fuse()?;
    need::tool("setfattr")?;
    need::tool("filefrag")?;
    need::kernel_btrfs()
}

/// `btrfs` with a line of words, in a directory.
pub fn btrfs(dir: &Path, line: &str) {
    run_in(dir, "btrfs", &line.split(' ').collect::<Vec<_>>()).unwrap();
}

pub fn receive(stream: &Path, dir: &Path) -> Ran {
    cowshed([
        "receive".as_ref(),
        "-q".as_ref(),
        "-f".as_ref(),
        stream.as_os_str(),
        dir.as_os_str(),
    ])
}

/// As [`receive`], by system calls of the command and not by the process that serves the mount.
pub fn receive_by_calls(stream: &Path, dir: &Path, mount: &Path) -> Ran {
    run("receive -q -f {} -m {} {}", &[stream, mount, dir])
}

/// By the one and by the other.
pub fn receive_by(calls: bool, stream: &Path, dir: &Path, mount: &Path) -> Ran {
    match calls {
        true => receive_by_calls(stream, dir, mount),
        false => receive(stream, dir),
    }
}

/// What differs where something was sent: the order of creation, and whether zeros are a hole.
pub fn sent() -> Compare {
    Compare::copy()
}

/// Streams in files, and what they are of.
struct Sent {
    dir: TempDir,
    trees: Vec<(&'static str, Tree)>,
}

impl Sent {
    fn stream(&self, what: &str, way: &str) -> PathBuf {
        self.dir.path().join(format!("{what}.{way}"))
    }
    fn tree(&self, what: &str) -> &Tree {
        &self.trees.iter().find(|(name, _)| *name == what).unwrap().1
    }
}

/// Content of all kinds, for the first snapshot.
pub const FIRST: &str = "
    cd s; yes 'a line of a text' | head -c 700001 > text
    for c in zlib lzo zstd; do
        touch packed-$c; btrfs property set packed-$c compression $c; seq 90000 > packed-$c
    done
    dd if=/dev/urandom of=big bs=64k count=100; cp --reflink=always big shared; fallocate -l 1M prealloc
    touch beyond; fallocate -n -l 1M beyond; truncate -s 3M holes; dd if=/dev/urandom of=holes bs=4k seek=99 count=1 conv=notrunc
    echo program > program; chown 1000:1001 program; chmod 4755 program
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 program
    mkdir -p a/b/c d1 d2; echo 1 > d1/f; echo 2 > d2/f; echo deep > a/b/c/f; ln a/b/c/f a/link; ln -s ../d1 a/d
    mkfifo fifo; mknod null c 1 3; touch -d '1931-05-06 07:08:09.123456789' old; echo x > 'a name with blanks'
    setfattr -n user.note -v text big; setfattr -n trusted.note -v text d1; setfattr -h -n trusted.l -v x a/d
    echo x > becomes-dir; mkdir becomes-file; echo x > removed; mkdir -p gone/with/all; echo x > gone/with/all/f";

/// Changes, for the second one: names that trade places, directories that move into each other.
pub const SECOND: &str = "
    cd s; mv a/b a/x; mv a/x/c a; mv a a2; mkdir a; mv a2/c a/; mv a2 a/c/; mv d1 t; mv d2 d1; mv t d2
    rm becomes-dir; mkdir becomes-dir; rmdir becomes-file; echo y > becomes-file; rm removed; rm -r gone
    fallocate -p -o 65536 -l 131072 big; dd if=/dev/urandom of=shared bs=4k seek=40 count=3 conv=notrunc
    cp --reflink=always shared third; truncate -s 5000 text; seq 100000 200000 >> packed-zstd
    setfattr -x user.note big; chown 1002:1003 program; chmod 755 old; touch -d '2040-01-02 03:04:05.5' old
    setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 program
    ln big hard; rm fifo; mkfifo fifo; fallocate -o 2M -l 1M holes; mv 'a name with blanks' $'n\\new\\tline'
    mkdir -p later/and; cp -a d1 later/and/copy";

/// Sends two subvolumes, and two sets of changes of one of them.
fn sent_by_kernel(volume: &KernelVolume) -> Sent {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let work = |root: &Path| {
        btrfs(root, "subvolume create s");
        btrfs(root, "subvolume create o");
        make(&root.join("s"), &MakeOptions::new(11, 80))?;
        shell(
            root,
            "dd if=/dev/urandom of=o/blob bs=64k count=20; btrfs subvolume snapshot -r o o1",
        )?;
        shell(root, FIRST)?;
        btrfs(root, "subvolume snapshot -r s s1");
        shell(root, SECOND)?;
        btrfs(root, "subvolume snapshot -r s s2");
        shell(
            root,
            "cp --reflink=always o/blob s/from-other; rm s/third; mv s/later s/a",
        )?;
        btrfs(root, "subvolume snapshot -r s s3");
        for (way, how) in WAYS {
            for (what, args) in [("o1", "o1"), ("s1", "s1"), ("s2", "-p s1 s2"), ("s3", "-p s2 -c o1 s3")] {
                let stream = dir.path().join(format!("{what}.{way}"));
                btrfs(root, &format!("send -q {how} {args} -f {}", stream.display()));
            }
        }
        ["o1", "s1", "s2", "s3"]
            .into_iter()
            .map(|name| Ok((name, snapshot(&root.join(name))?)))
            .collect::<Result<Vec<_>, anyhow::Error>>()
    };
    let trees = volume.with_mount(work).unwrap();
    Sent { dir, trees }
}

fn source() -> KernelVolume {
    let options = VolumeOptions {
        mount_options: "compress=zstd",
        ..VolumeOptions::default()
    };
    KernelVolume::make(&options).unwrap()
}

/// Compares what was received with what was sent, through the kernel.
fn assert_same(root: &Path, sent_of: &Sent, names: &[&str]) {
    for name in names {
        let received = snapshot(&root.join(name)).unwrap();
        let differences = sent_of.tree(name).diff(&received, &sent());
        assert!(differences.is_empty(), "{}/{name}: {differences}", root.display());
        let refused = fs::write(root.join(name).join("new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{name}");
    }
}

/// The lines of filefrag about extents.
pub fn extents(path: &Path) -> Vec<String> {
    let text = filefrag(path.parent().unwrap(), path.file_name().unwrap().to_str().unwrap());
    text.lines()
        .filter(|line| line.contains(".."))
        .map(|line| line.to_owned())
        .collect()
}

#[test]
fn full_streams_of_the_kernel_are_received() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    for (way, _) in WAYS {
        let dir = mnt.join(way);
        fs::create_dir(&dir).unwrap();
        for name in ["s1", "o1"] {
            receive_by(way == "v1", &sent.stream(name, way), &dir, &mnt).ok();
        }
    }
    unmount(&mnt);
    scratch.assert_clean();
    let copy = KernelVolume::copy_of(&[&scratch.image]).unwrap();
    copy.check(CheckOptions::default()).unwrap().assert_clean();
    let judge = |root: &Path| {
        for (way, _) in WAYS {
            let dir = root.join(way);
            assert_same(&dir, &sent, &["s1", "o1"]);
            let (big, shared) = (extents(&dir.join("s1/big")), extents(&dir.join("s1/shared")));
            assert!(big == shared && big[0].contains("shared"), "{way}: {big:?} {shared:?}");
        }
        Ok(())
    };
    copy.with_mount(judge).unwrap();
}

#[test]
fn changes_are_received_onto_what_the_kernel_received() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    let target = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let fill = |root: &Path| {
        for name in ["o1", "s1", "s2"] {
            let stream = sent.stream(name, "v1");
            btrfs(root, &format!("receive -q -f {} .", stream.display()));
        }
        Ok(())
    };
    target.with_mount(fill).unwrap();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let mnt = dir.path();
    let _guard = Guard(mnt);
    run("mount -o commit=300 {} {}", &[target.image(), mnt]).ok();
    for (way, _) in WAYS {
        let dir = mnt.join(way);
        fs::create_dir(&dir).unwrap();
        for name in ["s2", "s3"] {
            receive_by(way == "v1", &sent.stream(name, way), &dir, mnt).ok();
        }
    }
    unmount(mnt);
    target.assert_clean();
    run("check --check-data-csum {}", &[target.image()]).ok();
    let judge = |root: &Path| {
        for (way, _) in WAYS {
            let dir = root.join(way);
            assert_same(&dir, &sent, &["s2", "s3"]);
            let [theirs, ours] = [root.join("o1/blob"), dir.join("s3/from-other")].map(|path| extents(&path));
            assert!(
                theirs == ours && ours[0].contains("shared"),
                "{way}: {theirs:?} {ours:?}"
            );
            let [parent, ours] = [root.join("s2/hard"), dir.join("s3/hard")].map(|path| extents(&path));
            assert!(way == "v1" || parent.len() == ours.len(), "{way}: {parent:?} {ours:?}");
        }
        Ok(())
    };
    target.with_mount(judge).unwrap();
}

/// Receives all that was sent into a directory for each way.
fn receive_all(sent: &Sent, dir: impl Fn(&str) -> PathBuf) {
    for (way, _) in WAYS {
        for name in ["o1", "s1", "s2", "s3"] {
            let ran = receive(&sent.stream(name, way), &dir(way)).ok();
            assert_eq!(ran.err, "", "no warning");
        }
    }
}

/// Both checkers and the kernel judge what [`receive_all`] made.
fn judge_all(scratch: &Scratch, sent: &Sent) {
    scratch.assert_clean();
    let copy = KernelVolume::copy_of(&[&scratch.image]).unwrap();
    copy.assert_clean();
    let judge = |root: &Path| {
        for (way, _) in WAYS {
            let dir = root.join(way);
            assert_same(&dir, sent, &["o1", "s1", "s2", "s3"]);
            let [from, to] = [dir.join("o1/blob"), dir.join("s3/from-other")].map(|path| extents(&path));
            // The first ones that were received under this uuid share it.
            assert!(to.iter().all(|line| line.contains("shared")), "{way}: {from:?} {to:?}");
        }
        // The kernel goes on with what we received.
        btrfs(&root.join("v1"), "subvolume delete s3");
        btrfs(root, &format!("receive -q -f {} v1", sent.stream("s3", "v1").display()));
        assert_same(&root.join("v1"), sent, &["s3"]);
        Ok(())
    };
    copy.with_mount(judge).unwrap();
}

#[test]
fn changes_are_received_onto_what_was_received_before() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    for (way, _) in WAYS {
        fs::create_dir(mnt.join(way)).unwrap();
    }
    receive_all(&sent, |way| mnt.join(way));
    unmount(&mnt);
    judge_all(&scratch, &sent);
}

#[test]
fn streams_are_received_into_an_image_without_a_mount() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    let scratch = Scratch::new();
    let volume = cowshed::Volume::open_image(&scratch.image, &cowshed::OpenOptions::new()).unwrap();
    for (way, _) in WAYS {
        volume.create_dir(way).unwrap();
    }
    volume.close().unwrap();
    let at = |path: &str| PathBuf::from(format!("{}:/{path}", scratch.image.display()));
    receive_all(&sent, at);
    judge_all(&scratch, &sent);
    let stream = sent.stream("s2", "v2");
    receive(&stream, &at("missing")).fails(&[":/missing", "No such file"]);
    receive(&stream, &at("v1/s1/text")).fails(&["not a directory"]);
    receive(&stream, &at("v1")).fails(&["snapshot at byte 17", "s2", "exists"]);
    receive(&stream, Path::new("/missing.img:/")).fails(&["/missing.img"]);
}

#[test]
fn parents_are_found_by_their_own_uuid_and_through_a_mount_above() {
    let Some(()) = can_receive() else { return };
    let volume = source();
    let sent = sent_by_kernel(&volume);
    let dir = cowshed_harness::scratch_dir().unwrap();
    let mnt = dir.path();
    let _guard = Guard(mnt);
    run("mount {} {}", &[volume.image(), mnt]).ok();
    fs::create_dir_all(mnt.join("in/side")).unwrap();
    let stream = sent.stream("s2", "v2");
    let [inside, stream_arg] = [mnt.join("in/side"), stream.clone()];
    run("receive -f {} -m {} {}", &[&stream_arg, mnt, &inside]).ok();
    let listed = run("subvolume list --json {}", &[mnt]).ok().json();
    let received = listed.as_array().unwrap().iter().find(|s| s["path"] == "in/side/s2");
    assert_eq!(received.unwrap()["is_read_only"], true);
    unmount(mnt);
    // A mount that shows the subvolume s alone: s1 is not in it.
    run("mount -o subvol=s {} {}", &[volume.image(), mnt]).ok();
    let refused = receive_by_calls(&stream, mnt, mnt).fails(&["the parent", "not reachable", "shows subvolume s"]);
    assert!(refused.err.contains("s1"), "{}", refused.err);
    // The process that serves it sees the whole volume.
    run("subvolume delete {}", &[&mnt.join("s2")]);
    receive(&stream, mnt).ok();
    unmount(mnt);
    volume.assert_clean();
    volume
        .with_mount(|root| {
            assert_same(&root.join("in/side"), &sent, &["s2"]);
            assert_same(&root.join("s"), &sent, &["s2"]);
            Ok(())
        })
        .unwrap();
}

#[test]
fn what_the_serving_process_receives_is_seen_through_the_mount_at_once() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let names = || {
        let entries = fs::read_dir(&mnt).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
        names.sort();
        names
    };
    for (way, names_then) in [("v1", &["s1"][..]), ("v2", &["o1", "s1"])] {
        let new = if way == "v1" { "s1" } else { "o1" };
        // That there is no such name is remembered, and the listing.
        for _ in 0..2 {
            assert_eq!(
                fs::metadata(mnt.join(new)).unwrap_err().raw_os_error(),
                Some(libc::ENOENT)
            );
            assert_eq!(names().len(), names_then.len() - 1);
        }
        receive(&sent.stream(new, way), &mnt).ok();
        assert_eq!(names(), names_then);
        assert_same(&mnt, &sent, &[new]);
    }
    // Once it is over, names are remembered again: no view is left that shares them.
    unmount(&mnt);
    scratch.assert_clean();
}

#[test]
fn nothing_is_received_onto_a_read_only_mount_of_a_volume_that_is_also_mounted_for_writing() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let other = scratch.path("other");
    fs::create_dir(&other).unwrap();
    run("mount -o ro {} {}", &[&scratch.image, &other]).ok();
    let _other_guard = Guard(&other);
    receive(&sent.stream("s1", "v1"), &other).fails(&["Read-only"]);
    assert_eq!(fs::read_dir(&mnt).unwrap().count(), 0);
    unmount(&other);
    unmount(&mnt);
    scratch.assert_clean();
}

#[test]
fn stream_of_a_command_that_is_killed_ends() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let stream = fs::read(sent.stream("s1", "v1")).unwrap();
    let mut child = Command::new(COWSHED)
        .args(["receive".as_ref(), "-q".as_ref(), mnt.as_os_str()])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&stream[..stream.len() / 2]).unwrap();
    eventually("the subvolume begins", || mnt.join("s1").exists());
    cowshed_harness::limit::kill(&mut child).unwrap();
    // The pipe has a reader for as long as the serving process plays.
    eventually("the serving process stops reading", || {
        input.write_all(b"").is_err() || {
            let ended = rustix::event::PollFlags::ERR;
            let mut pipe = [rustix::event::PollFd::new(&input, rustix::event::PollFlags::empty())];
            let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut pipe, Some(&at_once)).unwrap();
            pipe[0].revents().contains(ended)
        }
    });
    let listed = run("subvolume list --json {}", &[&mnt]).ok().json();
    let incomplete = listed.as_array().unwrap().iter().find(|s| s["path"] == "s1").unwrap();
    assert_eq!(incomplete["is_read_only"], false);
    run("subvolume delete {}", &[&mnt.join("s1")]).ok();
    receive(&sent.stream("s1", "v1"), &mnt).ok();
    assert_same(&mnt, &sent, &["s1"]);
    unmount(&mnt);
    scratch.assert_clean();
}

#[test]
fn dumps_are_those_of_btrfs_receive() {
    let Some(()) = can_receive() else { return };
    let sent = sent_by_kernel(&source());
    for (way, _) in WAYS {
        for name in ["o1", "s1", "s2", "s3"] {
            let stream = sent.stream(name, way);
            let theirs = shell(
                sent.dir.path(),
                &format!("TZ=UTC btrfs receive --dump -f {}", stream.display()),
            )
            .unwrap();
            let ours = run("receive --dump -f {}", &[&stream]).ok().text();
            // Names and values of attributes they print as they are, with what may be line ends.
            // The flags of an inode they print as a decimal number behind 0x.
            let plain = |text: &str| -> Vec<String> {
                let commands = Kind::ALL.iter().filter(|kind| **kind != Kind::Fileattr);
                let names: Vec<_> = commands.map(|kind| format!("{kind:<16}./")).collect();
                let lines = text
                    .split('\n')
                    .filter(|line| names.iter().any(|name| line.starts_with(name)));
                let lines = lines.map(|line| match line.starts_with("set_xattr") {
                    true => line.split(" name=").next().unwrap_or(line),
                    false => line,
                });
                lines.map(str::to_owned).collect()
            };
            let (theirs, ours) = (plain(&theirs), plain(&ours));
            let differs = theirs.iter().zip(&ours).find(|(a, b)| a != b);
            assert!(theirs == ours && ours.len() > 3, "{name} {way}: {differs:?}");
        }
    }
}
