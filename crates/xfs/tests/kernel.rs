//! Volumes that Linux filled, compared with what Linux shows of them: names, attributes in
//! nanoseconds, contents, holes, links, xattrs, statfs.
//!
//! Skips with a line without root, loop devices or xfsprogs.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirEntryExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use cowshed_device::{FileDevice, Locking, OpenMode};
use cowshed_device_sim::CountingDevice;
use cowshed_harness::{need, run};
use cowshed_vfs::{Context, Error, FileKind, FileSystem as _, Handle, InitInfo, Lookup, NodeId, SeekKind, rdev};
use cowshed_xfs::{Fs, OpenOptions, Volume};

/// Each form of directory, attribute, fork and symlink.
const POPULATE: &str = r#"
import os, socket, subprocess
os.makedirs("short/sub")
for i in range(4): open("short/name%d" % i, "w").close()
def fill(d, n, name, gone):
    os.mkdir(d)
    for i in range(n): open(d + "/" + name % i, "w").close()
    for i in range(0, n, gone): os.unlink(d + "/" + name % i)
fill("block", 30, "entry%d", 7)
fill("leaf", 260, "a_name_of_some_length_%d", 9)
fill("node", 9000, "a_longer_name_of_an_entry_%d", 7)
open("big", "wb").write(os.urandom(3000000))
f = os.open("sparse", os.O_CREAT | os.O_RDWR); os.pwrite(f, b"data", 5000000); os.ftruncate(f, 10000001)
f = os.open("prealloc", os.O_CREAT | os.O_RDWR); os.posix_fallocate(f, 0, 1 << 20); os.pwrite(f, b"p" * 9000, 70000)
os.fsync(f)
f = os.open("fragments", os.O_CREAT | os.O_RDWR)
for i in range(3000): os.pwrite(f, b"%d" % i * 20, i * 32768)
os.fsync(f)
os.mkdir("linked")
for i in range(300): os.link("big", "linked/hard_link_%d" % i)
os.symlink("aaaa", "link"); os.symlink("b" * 1000, "longlink"); os.mkfifo("fifo")
os.mknod("null", 0o20666, os.makedev(1, 3)); os.mknod("blk", 0o60660, os.makedev(300, 70000))
socket.socket(socket.AF_UNIX).bind("sock")
os.setxattr("short", "user.a", b"b"); os.setxattr("short", "trusted.t", b"1")
for i in range(20): os.setxattr("block", "user.attribute_%d" % i, b"v" * 40)
for i in range(600): os.setxattr("leaf", "user.attribute_%d" % i, b"%d" % i * 30)
for i in range(0, 600, 5): os.removexattr("leaf", "user.attribute_%d" % i)
os.setxattr("big", "user.large", os.urandom(60000)); os.setxattr("big", "user.empty", b"")
os.setxattr("big", "security.s", b"secure")
acl = b"\2\0\0\0\1\0\6\0\xff\xff\xff\xff\2\0\7\0\xe8\3\0\0\4\0\4\0\xff\xff\xff\xff\x10\0\7\0\xff\xff\xff\xff\x20\0\4\0\xff\xff\xff\xff"
os.setxattr("big", "system.posix_acl_access", acl); os.setxattr("short", "system.posix_acl_default", acl)
os.utime("sparse", ns=(-315619199876543211, 2000000000123456789))
os.chown("fifo", 1000, 1001); os.chmod("short", 0o3751)
open("n" * 255, "w").close(); open("\u00dcml\u00e4ut\n", "w").close()
"#;

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(mkfs: &str, size_mib: u32, options: &str) -> Self {
        let lab = Self {
            dir: tempfile::tempdir_in("/dev/shm").unwrap(),
        };
        std::fs::write(lab.dir.path().join("populate.py"), POPULATE).unwrap();
        let d = lab.dir.path().display();
        sh(&format!(
            "cd {d}; truncate -s {size_mib}M image; mkfs.xfs -q -f {mkfs} image; mkdir mnt; \
             mount -t xfs -o loop{options} image mnt; (cd mnt; python3 ../populate.py); sync -f mnt; umount mnt; \
             mount -t xfs -o loop,ro,norecovery image mnt"
        ));
        lab
    }
    fn open(&self) -> Fs {
        let path = self.dir.path().join("image");
        let device = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked).unwrap();
        let volume = Volume::open(Arc::new(device), &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let fs = Fs::new(Arc::new(volume)).unwrap();
        fs.init(&InitInfo::TRUSTED).unwrap();
        fs
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = cowshed_harness::unmount(&self.dir.path().join("mnt"));
    }
}

fn sh(script: &str) -> String {
    run("bash", &["-euc", script]).unwrap_or_else(|e| panic!("{e:#}"))
}

fn xattrs_of(fs: &Fs, node: NodeId) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let ctx = Context::root();
    let mut names = vec![0; 1 << 20];
    let len = fs.listxattr(&ctx, node, &mut names).unwrap();
    let names = names[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
    let mut value = vec![0; 1 << 16];
    names
        .map(|name| {
            let len = fs.getxattr(&ctx, node, name, &mut value).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

fn xattrs_in(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|b| *b == 0).filter(|name| !name.is_empty());
    let mut value = vec![0; 1 << 16];
    names
        .map(|name| {
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

fn compare(fs: &Fs, node: NodeId, path: &Path, count: &mut usize) {
    *count += 1;
    let ctx = Context::root();
    let attr = fs.getattr(&ctx, node, None).unwrap();
    let meta = path.symlink_metadata().unwrap();
    let dev = rdev(rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let shown = (attr.ino, attr.mode(), attr.nlink, attr.uid, attr.gid, attr.rdev);
    assert_eq!(
        shown,
        (
            meta.ino(),
            meta.mode(),
            meta.nlink() as u32,
            meta.uid(),
            meta.gid(),
            dev
        ),
        "{path:?}"
    );
    assert_eq!(
        (attr.size_bytes, attr.blocks_512),
        (meta.len(), meta.blocks()),
        "{path:?}"
    );
    let times = [attr.atime, attr.mtime, attr.ctime].map(|time| (time.secs, i64::from(time.nanos)));
    let expected = [
        (meta.atime(), meta.atime_nsec()),
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    ];
    assert_eq!(times, expected, "{path:?}");
    let born = sh(&format!(
        "stat -c %.9W -- $'{}'",
        path.as_os_str().as_bytes().escape_ascii()
    ));
    if *count < 40 {
        assert_eq!(
            born.trim(),
            format!("{}.{:09}", attr.btime.secs, attr.btime.nanos),
            "{path:?}"
        );
    }
    assert_eq!(xattrs_of(fs, node), xattrs_in(path), "{path:?}");
    match attr.kind {
        FileKind::Regular => compare_content(fs, node, path),
        FileKind::Symlink => {
            let target = std::fs::read_link(path).unwrap();
            assert_eq!(fs.readlink(&ctx, node).unwrap(), target.as_os_str().as_bytes());
        }
        FileKind::Directory => compare_names(fs, node, path, count),
        _ => {}
    }
}

fn compare_content(fs: &Fs, node: NodeId, path: &Path) {
    let ctx = Context::root();
    let expected = std::fs::read(path).unwrap();
    let mut found = vec![0xaa; expected.len() + 10];
    let len = fs.read(&ctx, node, Handle::NONE, 0, &mut found).unwrap();
    assert!(found[..len] == expected, "{path:?} differs");
    let at = expected.len() as u64 / 3;
    let mut part = vec![0xaa; 10_000];
    let len = fs.read(&ctx, node, Handle::NONE, at, &mut part).unwrap();
    assert!(
        part[..len] == expected[at as usize..][..len],
        "{path:?} differs from {at}"
    );
    // Data that Linux shows from holes on is data here, and the other way round.
    let mut at = 0;
    while let Ok(data) = fs.lseek(&ctx, node, Handle::NONE, at, SeekKind::Data) {
        assert!(
            expected[at as usize..data as usize].iter().all(|byte| *byte == 0),
            "{path:?}: a hole at {at}"
        );
        at = fs.lseek(&ctx, node, Handle::NONE, data, SeekKind::Hole).unwrap();
        assert!(at > data);
    }
    assert!(
        expected[at as usize..].iter().all(|byte| *byte == 0),
        "{path:?}: a hole at {at}"
    );
}

fn compare_names(fs: &Fs, node: NodeId, path: &Path, count: &mut usize) {
    let ctx = Context::root();
    // In small steps, so that cookies are used.
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let mut taken = 0;
        fs.readdir(&ctx, node, Handle::NONE, cookie, &mut |entry| {
            if taken == 7 {
                return ControlFlow::Break(());
            }
            taken += 1;
            assert!(entry.cookie > cookie);
            cookie = entry.cookie;
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
            ControlFlow::Continue(())
        })
        .unwrap();
        if taken == 0 {
            break;
        }
    }
    assert_eq!((&names[0].0[..], &names[1].0[..]), (&b"."[..], &b".."[..]));
    names.drain(..2);
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let mut expected: Vec<_> = std::fs::read_dir(path).unwrap().map(Result::unwrap).collect();
    expected.sort_by_key(|entry| entry.file_name());
    let listed: Vec<_> = names.iter().map(|(name, ino, _)| (&name[..], *ino)).collect();
    let owned: Vec<_> = expected.iter().map(|entry| (entry.file_name(), entry.ino())).collect();
    let shown: Vec<_> = owned.iter().map(|(name, ino)| (name.as_bytes(), *ino)).collect();
    assert!(listed == shown, "names of {path:?} differ");
    for (name, _, kind) in &names {
        let Lookup::Found(entry) = fs.lookup(&ctx, node, name).unwrap() else {
            panic!("{path:?}: no {}", name.escape_ascii());
        };
        assert_eq!(entry.attr.kind, *kind);
        // Empty files of large directories are alike.
        if names.len() < 1000 || entry.attr.ino % 50 == 0 {
            compare(fs, entry.node, &path.join(std::ffi::OsStr::from_bytes(name)), count);
        }
    }
    let absent = fs.lookup(&ctx, node, b"a_name_that_is_not_there").unwrap();
    assert!(matches!(absent, Lookup::Absent { .. }));
}

fn fill_and_compare(mkfs: &str, size_mib: u32) {
    let lab = Lab::new(mkfs, size_mib, "");
    let fs = lab.open();
    let mut count = 0;
    let root = lab.dir.path().join("mnt");
    compare(&fs, NodeId::ROOT, &root, &mut count);
    // 300 links, 231 in "leaf", 25 in "block", a fiftieth of 7,714 in "node" as the numbers of
    // inodes have it, 6 in "short", and some 20 others.
    assert!(count > 700, "{count}");
    let found = fs.statfs(&Context::root(), NodeId::ROOT).unwrap();
    let shown = rustix::fs::statfs(&root).unwrap();
    assert_eq!(
        (found.blocks, found.blocks_free, found.files),
        (shown.f_blocks, shown.f_bfree, shown.f_files),
        "{mkfs}"
    );
    assert_eq!(
        (found.files_free, u64::from(found.bsize)),
        (shown.f_ffree, shown.f_bsize as u64),
        "{mkfs}"
    );
}

fn is_able() -> bool {
    let tools = need::tool("mkfs.xfs").is_some() && need::tool("python3").is_some();
    tools && need::loop_devices().is_some() && need::kernel_fs("xfs").is_some()
}

#[test]
fn volume_of_defaults_shows_what_linux_shows() {
    if is_able() {
        fill_and_compare("", 400);
    }
}

#[test]
fn volume_with_small_blocks_and_all_trees_shows_what_linux_shows() {
    if is_able() {
        fill_and_compare(
            "-b size=1k -i size=512 -n size=4k -m rmapbt=1,reflink=1 -i nrext64=1",
            500,
        );
    }
}

#[test]
fn volume_with_large_blocks_shows_what_linux_shows() {
    if is_able() {
        fill_and_compare("-b size=64k -i size=2048 -s size=4k", 600);
    }
}

#[test]
fn volume_without_newer_features_shows_what_linux_shows() {
    if is_able() {
        fill_and_compare(
            "-m finobt=0,rmapbt=0,reflink=0,bigtime=0,inobtcount=0 -i sparse=0,nrext64=0 -n size=64k",
            400,
        );
    }
}

#[test]
fn dirty_log_is_recovered_unless_it_is_left_alone() {
    if !is_able() {
        return;
    }
    let lab = Lab::new("", 400, "");
    let d = lab.dir.path().display();
    // A process that another test starts may still hold a file of the mount for a moment.
    let unmount = || cowshed_harness::unmount(&lab.dir.path().join("mnt")).unwrap();
    unmount();
    sh(&format!(
        "cd {d}; mount -t xfs -o loop image mnt; touch mnt/new; rm mnt/short/name1; \
         xfs_io -x -c 'shutdown -f' mnt; umount mnt; cp --sparse=always image before"
    ));
    let path = lab.dir.path().join("image");
    let device = || Arc::new(FileDevice::open_with(&path, OpenMode::ReadOnly, Locking::Unlocked).unwrap());
    let volume = Volume::open(device(), &OpenOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(!volume.has_dirty_log());
    let recovery = volume.recovery().unwrap();
    assert!(
        recovery.items.get("INODE").is_some_and(|count| *count > 0),
        "{recovery:?}"
    );
    let fs = Fs::new(Arc::new(volume)).unwrap();
    sh(&format!("cd {d}; cp --sparse=always image k"));
    let loop_device = cowshed_harness::LoopDevice::attach(lab.dir.path().join("k")).unwrap();
    sh(&format!("mount -t xfs -o ro {} {d}/mnt", loop_device.path().display()));
    compare(&fs, NodeId::ROOT, &lab.dir.path().join("mnt"), &mut 0);
    assert!(matches!(
        fs.lookup(&Context::root(), NodeId::ROOT, b"new").unwrap(),
        Lookup::Found(_)
    ));
    unmount();
    sh(&format!("cd {d}; cmp image before"));
    let options = OpenOptions {
        no_recovery: true,
        ..OpenOptions::default()
    };
    let volume = Volume::open(device(), &options).unwrap();
    assert!(volume.has_dirty_log() && volume.recovery().is_none());
    let fs = Fs::new(Arc::new(volume)).unwrap();
    assert!(matches!(
        fs.lookup(&Context::root(), NodeId::ROOT, b"new").unwrap(),
        Lookup::Absent { .. }
    ));
    let made = fs.mkdir(&Context::root(), NodeId::ROOT, b"x", 0o755);
    assert_eq!(made.unwrap_err(), Error::ReadOnly);
}

#[test]
fn directory_of_thousands_is_listed_with_few_reads_and_looked_up_with_none() {
    if !is_able() {
        return;
    }
    let lab = Lab::new("", 400, "");
    let path = lab.dir.path().join("image");
    let file = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked).unwrap();
    let device = Arc::new(CountingDevice::new(Arc::new(file)));
    let volume = Volume::open(device.clone(), &OpenOptions::default()).unwrap();
    let fs = Fs::new(Arc::new(volume)).unwrap();
    fs.init(&InitInfo::TRUSTED).unwrap();
    let ctx = Context::root();
    let Lookup::Found(dir) = fs.lookup(&ctx, NodeId::ROOT, b"node").unwrap() else {
        panic!("no directory");
    };
    device.take();
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        let before = names.len();
        fs.readdirplus(
            &ctx,
            dir.node,
            Handle::NONE,
            cookie,
            &mut |_| true,
            &mut |entry, found| {
                cookie = entry.cookie;
                assert!(entry.name.starts_with(b".") || found.is_some());
                names.push(entry.name.to_vec());
                ControlFlow::Continue(())
            },
        )
        .unwrap();
        if names.len() == before {
            break;
        }
    }
    assert_eq!(names.len(), 9000 - 1286 + 2);
    // 141 chunks of 64 inodes, 500 KB of entries, the root of the index.
    let listed = device.take().reads;
    assert!((100..350).contains(&listed), "{listed} reads");
    for name in &names[2..] {
        assert!(matches!(fs.lookup(&ctx, dir.node, name).unwrap(), Lookup::Found(_)));
    }
    // The blocks of the index, each once.
    let looked_up = device.take().reads;
    assert!((10..60).contains(&looked_up), "{looked_up} reads");
    for name in &names[2..] {
        assert!(matches!(fs.lookup(&ctx, dir.node, name).unwrap(), Lookup::Found(_)));
    }
    assert_eq!(device.take().reads, 0);
}
