//! The root of a distribution, which mmdebstrap makes as an ordinary user: its files belong to the
//! user's subordinate users, and to root in the image.

use std::fs;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cowshed_harness::tree::{Compare, compare};
use cowshed_harness::{limit, need};

use super::assert_same;
use crate::support::{COWSHED, in_name_space, run};

/// What a mirror may take.
const STEP_MAX: Duration = Duration::from_secs(590);
/// What a connection to it may take.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Subordinate users that a root needs: Debian has `nobody` at 65534.
const USERS_MIN: u32 = 65_535;

/// The number of an ordinary user with subordinate users.
fn ordinary_user() -> Option<u32> {
    let ranges = fs::read_to_string("/etc/subuid").unwrap_or_default();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = ranges.lines().find_map(|line| {
        let [name, _, count] = line.split(':').collect::<Vec<_>>()[..] else {
            return None;
        };
        let is_enough = count.parse::<u32>().is_ok_and(|count| count >= USERS_MIN);
        let mut users = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let user = users.find(|words| is_enough && words.first() == Some(&name))?;
        let uid: u32 = user.get(2)?.parse().ok()?;
        (uid != 0).then_some(uid)
    });
    need::require(
        found.is_some(),
        "an ordinary user with subordinate users in /etc/subuid",
    )?;
    found
}

/// The release of the host, and the file with its mirror, as apt has them.
fn release() -> Option<(String, PathBuf)> {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let mut files = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"].iter();
    let sources = files.find(|file| fs::read_to_string(file).is_ok_and(|text| text.contains("debian")));
    let found = name.zip(sources).map(|(name, file)| (name.to_owned(), file.into()));
    need::require(found.is_some(), "a Debian whose apt has a mirror")?;
    found
}

/// A machine that apt downloads from answers.
fn mirror(sources: &Path) -> Option<()> {
    let text = fs::read_to_string(sources).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let url = lines
        .flat_map(str::split_whitespace)
        .find_map(|word| word.split_once("://"));
    let answers = url.is_some_and(|(scheme, rest)| {
        let host = rest.split('/').next().unwrap_or_default();
        let port = if scheme == "https" { ":443" } else { ":80" };
        let host = if host.contains(':') {
            host.to_owned()
        } else {
            format!("{host}{port}")
        };
        let mut addrs = host.to_socket_addrs().into_iter().flatten();
        addrs.any(|addr| TcpStream::connect_timeout(&addr, ANSWER_MAX).is_ok())
    });
    need::require(answers, "the mirror that apt has, over the network")
}

/// Runs a script as the user, with a new file system on /dev/shm: mmdebstrap binds that directory,
/// and a user namespace cannot bind one that has mounts in it.
fn as_user(uid: u32, dir: &Path, script: &str) {
    let mut command = in_name_space();
    let enter = "mount -t tmpfs tmpfs /dev/shm; exec setpriv --reuid=$1 --regid=$1 --init-groups bash -ec \"$2\"";
    command
        .args(["-m", "bash", "-ec", enter, "bash", &uid.to_string(), script])
        .envs([("HOME", dir), ("TMPDIR", dir)])
        .current_dir(dir);
    let output = limit::output_within(&mut command, STEP_MAX).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {said}");
}

/// A directory, and one in it that belongs to the user. Not in /dev/shm; see [`as_user`].
fn directories(uid: u32) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(uid), Some(uid)).unwrap();
    // The user's subordinate users write into it, too.
    cowshed_harness::shell(dir.path(), "chmod 755 .; chmod 777 own").unwrap();
    (dir, own)
}

#[test]
#[ignore = "a minute, and a mirror of Debian over the network"]
fn root_of_a_distribution_made_by_an_ordinary_user_is_the_same_for_the_kernel() {
    let Some(()) = need::kernel_btrfs() else { return };
    for tool in ["mmdebstrap", "setpriv", "newuidmap", "tar"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let Some(uid) = ordinary_user() else { return };
    let Some((release, sources)) = release() else { return };
    let Some(()) = mirror(&sources) else { return };
    let (dir, own) = directories(uid);
    let expected = dir.path().join("expected");
    fs::create_dir(&expected).unwrap();
    let sources = sources.display();
    as_user(
        uid,
        &own,
        &format!("mmdebstrap --quiet --mode=unshare --variant=minbase {release} root {sources}"),
    );
    as_user(
        uid,
        &own,
        "mmdebstrap --unshare-helper tar --numeric-owner --xattrs --acls -cf root.tar -C root .",
    );
    let root = own.join("root");
    let passwd = fs::metadata(root.join("etc/passwd")).unwrap();
    assert!(passwd.uid() >= 100_000, "mapped: {}", passwd.uid());
    let archive = own.join("root.tar");
    let unpack = format!(
        "tar --numeric-owner --xattrs --xattrs-include=* --acls -xpf {} -C {}",
        archive.display(),
        expected.display()
    );
    cowshed_harness::shell(dir.path(), &unpack).unwrap();
    assert_eq!(fs::metadata(expected.join("etc/passwd")).unwrap().uid(), 0);

    // As root of the user namespace that mmdebstrap has; from the archive; by a translation of the
    // owners.
    let flags = "build -q --compress zstd:3";
    as_user(
        uid,
        &own,
        &format!("mmdebstrap --unshare-helper {COWSHED} {flags} --from root inside.img"),
    );
    as_user(uid, &own, &format!("{COWSHED} {flags} --from root.tar archive.img"));
    let first = passwd.uid();
    let map = own.join("map");
    fs::write(&map, format!("uid 0 {first} 65536\ngid 0 {first} 65536\n")).unwrap();
    let mapped = own.join("mapped.img");
    run(
        &format!("{flags} --map-users {{}} --from {{}} {{}}"),
        &[&map, &root, &mapped],
    )
    .ok();
    let entries = cowshed_harness::shell(&expected, "find . | wc -l").unwrap();
    println!("{} entries", entries.trim());
    for image in ["inside.img", "archive.img", "mapped.img"] {
        assert_same(&own.join(image), &expected);
    }
    // Back to an archive, with nothing lost.
    let (back, unpacked) = (dir.path().join("back.tar"), dir.path().join("unpacked"));
    fs::create_dir(&unpacked).unwrap();
    run("export tar {} {}", &[&own.join("archive.img"), &back]).ok();
    let unpack = "tar --numeric-owner --xattrs --xattrs-include=* --acls -xpf back.tar -C unpacked";
    cowshed_harness::shell(dir.path(), unpack).unwrap();
    compare(&expected, &unpacked, &Compare::copy()).unwrap().assert_none();
    assert!(fs::read(own.join("inside.img")).unwrap() == fs::read(mapped).unwrap());
}

/// The release after that of the host: its systemd-repart fills volumes by mkfs.
const NEXT_RELEASE: &str = "trixie";

#[test]
#[ignore = "a minute, and a mirror of Debian over the network"]
fn systemd_repart_of_the_next_distribution_fills_a_partition_by_our_mkfs() {
    let Some(()) = need::kernel_btrfs() else { return };
    for tool in ["mmdebstrap", "setpriv", "newuidmap"] {
        let Some(()) = need::tool(tool) else { return };
    }
    let Some(uid) = ordinary_user() else { return };
    let Some((_, sources)) = release() else { return };
    let Some(()) = mirror(&sources) else { return };
    let (dir, own) = directories(uid);
    let text = fs::read_to_string(&sources).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let url = lines.find_map(|line| line.split_whitespace().find(|word| word.contains("://")));
    let key = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg";
    let line = format!("deb [{key}] {} {NEXT_RELEASE} main\n", url.unwrap());
    fs::write(own.join("sources.list"), line).unwrap();
    as_user(
        uid,
        &own,
        &format!(
            "mmdebstrap --quiet --mode=unshare --variant=minbase --include=systemd-repart {NEXT_RELEASE} root \
             sources.list"
        ),
    );
    let root = own.join("root");
    let prepare = format!(
        "cp {COWSHED} root/usr/local/bin/cowshed
         printf '#!/bin/bash\necho \"$@\" >> /calls\nexec -a mkfs.btrfs /usr/local/bin/cowshed \"$@\"\n' \
             > root/usr/local/bin/mkfs.btrfs
         chmod 755 root/usr/local/bin/*; mkdir -p root/defs root/tree/home root/tree/etc
         head -c 300000 /dev/urandom > root/tree/home/data; echo cow > root/tree/etc/hostname
         printf '[Partition]\nType=root\nLabel=system\nFormat=btrfs\nCopyFiles=/tree:/\nSubvolumes=/home\n\
         Minimize=guess\n' > root/defs/10-root.conf
         chown -R --reference=root/etc/passwd root/defs root/tree root/usr/local/bin"
    );
    cowshed_harness::shell(&own, &prepare).unwrap();
    as_user(
        uid,
        &own,
        "mmdebstrap --unshare-helper sh -ec 'touch root/dev/null; mount --bind /dev/null root/dev/null
         mount -t proc proc root/proc; PATH=/usr/local/bin:$PATH exec chroot root systemd-repart --offline=yes \
             --empty=create --size=auto --definitions=/defs --dry-run=no /disk'",
    );
    let calls = fs::read_to_string(root.join("calls")).unwrap();
    println!("{calls}");
    assert!(calls.contains("-r ") || calls.contains("--rootdir"), "{calls}");
    assert!(calls.contains("--subvol /home"), "{calls}");
    let alone = dir.path().join("alone");
    let disk = cowshed::FileDevice::open(root.join("disk"), cowshed::OpenMode::ReadOnly).unwrap();
    let range = cowshed::image::find_partition(&disk, "1").unwrap();
    let bytes = fs::read(root.join("disk")).unwrap();
    fs::write(&alone, &bytes[range.start as usize..range.end as usize]).unwrap();
    run("check --check-data-csum {}", &[&alone]).ok();
    assert_eq!(run("cat {} /etc/hostname", &[&alone]).ok().text(), "cow\n");
    let data = run("cat -o subvol=home {} /data", &[&alone]).ok();
    assert!(data.out == fs::read(root.join("tree/home/data")).unwrap());
}
