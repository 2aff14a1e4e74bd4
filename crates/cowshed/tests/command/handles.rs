//! File handles on a mount: what NFS servers and backup programs keep instead of a path.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};

use cowshed_harness::{FileHandle, KernelVolume, VolumeOptions, need};

use crate::mount::{Guard, unmount};
use crate::support::{Scratch, eventually, run};

/// Caches of names and inodes go, of all file systems: what FUSE mounts dropped is forgotten by
/// their servers.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

/// A mount of a volume with the subvolumes `sub`, `sub/nested` and `other`, whose inode numbers are
/// the same.
struct Handles {
    kernel: KernelVolume,
    dir: PathBuf,
    _scratch: tempfile::TempDir,
}

fn with_subvolumes() -> Option<Handles> {
    need::kernel_btrfs()?;
    need::fuse()?;
    let kernel = KernelVolume::make(&VolumeOptions::default()).unwrap();
    kernel
        .with_mount(|root| {
            for path in ["sub", "sub/nested", "other"] {
                let path = root.join(path);
                cowshed_harness::run("btrfs", &["subvolume".as_ref(), "create".as_ref(), path.as_os_str()])?;
            }
            Ok(())
        })
        .unwrap();
    let scratch = cowshed_harness::scratch_dir().unwrap();
    let dir = scratch.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    Some(Handles {
        kernel,
        dir,
        _scratch: scratch,
    })
}

impl Handles {
    fn mount(&self, options: &str) -> File {
        run(
            &format!("mount -o {options} {{}} {{}}"),
            &[self.kernel.image(), &self.dir],
        )
        .ok();
        File::open(&self.dir).unwrap()
    }
}

/// What a handle leads to.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    ino: u64,
    mode: u32,
    nlink: u64,
    size: u64,
    times: [i64; 4],
    /// Of a file its content, of a link its target, of a directory its names.
    content: Vec<u8>,
}

fn seen(file: &File) -> io::Result<Seen> {
    let meta = file.metadata()?;
    let door = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let mut content = Vec::new();
    if meta.is_file() {
        File::open(&door)?.read_to_end(&mut content)?;
    } else if meta.is_dir() {
        let names = fs::read_dir(&door)?.map(|entry| Ok(entry?.file_name()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        content = format!("{names:?}").into_bytes();
    } else if meta.is_symlink() {
        let target = rustix::fs::readlinkat(file, "", Vec::new())?;
        content = target.into_bytes();
    }
    Ok(Seen {
        ino: meta.ino(),
        mode: meta.mode(),
        nlink: meta.nlink(),
        size: meta.len(),
        times: [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()],
        content,
    })
}

fn by_handle(mount: &File, handle: &FileHandle) -> io::Result<Seen> {
    seen(&handle.open(mount, libc::O_PATH)?)
}

fn by_path(path: &Path) -> Seen {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    seen(&File::options().read(true).custom_flags(flags).open(path).unwrap()).unwrap()
}

/// The kernel's FUSE holds an inode until the last requests for it have ended, a moment after a
/// read or a close returns.
#[track_caller]
fn assert_stale(mount: &File, handle: &FileHandle, what: &str) {
    eventually(what, || match handle.open(mount, libc::O_PATH) {
        Ok(open) => {
            assert_eq!(open.metadata().unwrap().nlink(), 0, "{what}");
            false
        }
        Err(error) => {
            assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{what}");
            true
        }
    });
}

/// About a thousand files, directories and links, as many in each subvolume.
fn fill(root: &Path) -> Vec<PathBuf> {
    let mut paths = vec![
        root.to_owned(),
        root.join("sub"),
        root.join("sub/nested"),
        root.join("other"),
    ];
    for top in ["", "sub", "sub/nested", "other"] {
        let mut deep = root.join(top);
        for n in 0..85 {
            let (file, link) = (deep.join(format!("file-{n}")), deep.join(format!("link-{n}")));
            fs::write(&file, format!("{top} {n}")).unwrap();
            symlink(format!("target {top} {n}"), &link).unwrap();
            let parent = if n % 10 == 0 { root.join(top) } else { deep };
            deep = parent.join(format!("dir-{n}"));
            fs::create_dir(&deep).unwrap();
            paths.extend([file, link, deep.clone()]);
        }
    }
    paths
}

#[test]
fn handles_open_the_same_node_after_caches_were_dropped_and_after_a_remount() {
    let Some(test) = with_subvolumes() else { return };
    let _guard = Guard(&test.dir);
    let mount = test.mount("noatime");
    let paths = fill(&test.dir);
    assert!(paths.len() > 1000);
    let numbers = |at: &str| fs::metadata(test.dir.join(at)).unwrap().ino() & 0xff_ffff;
    assert_eq!(
        numbers("sub/file-0"),
        numbers("other/file-0"),
        "equal numbers in two trees"
    );
    let known: Vec<_> = paths
        .iter()
        .map(|path| (path, FileHandle::of(path).unwrap(), by_path(path)))
        .collect();
    let check = |mount: &File, when: &str| {
        // The deepest first: on the way up nothing is known yet.
        for (path, handle, before) in known.iter().rev() {
            let found = by_handle(mount, handle).unwrap_or_else(|e| panic!("{when}: {}: {e}", path.display()));
            assert_eq!(&found, before, "{when}: {}", path.display());
            if path.is_dir() && !path.is_symlink() {
                let open = handle.open(mount, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
                let found = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd())).unwrap();
                assert_eq!(&found, *path, "{when}: a directory has its place in the tree");
            }
        }
    };
    drop_caches();
    check(&mount, "dropped");
    check(&mount, "again");
    drop(mount);
    unmount(&test.dir);
    let mount = test.mount("noatime");
    check(&mount, "remounted");
    drop_caches();
    assert!(
        known
            .iter()
            .all(|(path, handle, _)| FileHandle::of(path).unwrap() == *handle)
    );
    drop(mount);
    unmount(&test.dir);
    test.kernel.assert_clean();
}

#[test]
fn handles_follow_the_inode_until_its_last_name_is_gone() {
    let Some(test) = with_subvolumes() else { return };
    let _guard = Guard(&test.dir);
    let mount = test.mount("noatime");
    for top in ["", "sub/nested"] {
        let at = |name: &str| test.dir.join(top).join(name);
        fs::write(at("file"), "content").unwrap();
        fs::create_dir_all(at("dir/below")).unwrap();
        let (file, dir) = (
            FileHandle::of(&at("file")).unwrap(),
            FileHandle::of(&at("dir/below")).unwrap(),
        );
        fs::rename(at("file"), at("moved")).unwrap();
        fs::rename(at("dir/below"), at("below")).unwrap();
        drop_caches();
        assert_eq!(by_handle(&mount, &file).unwrap(), by_path(&at("moved")));
        assert_eq!(by_handle(&mount, &dir).unwrap(), by_path(&at("below")));
        fs::hard_link(at("moved"), at("dir/link")).unwrap();
        fs::remove_file(at("moved")).unwrap();
        drop_caches();
        assert_eq!(by_handle(&mount, &file).unwrap(), by_path(&at("dir/link")));
        // Without a name, but open.
        let open = (File::open(at("dir/link")).unwrap(), File::open(at("below")).unwrap());
        fs::remove_file(at("dir/link")).unwrap();
        fs::remove_dir(at("below")).unwrap();
        drop_caches();
        assert_eq!(by_handle(&mount, &file).unwrap().content, b"content");
        assert_eq!(dir.open(&mount, libc::O_PATH).unwrap().metadata().unwrap().nlink(), 0);
        drop(open);
        assert_stale(&mount, &file, "an unlinked file");
        assert_stale(&mount, &dir, "a removed directory");
        for n in 0..100 {
            fs::write(at(&format!("new-{n}")), "").unwrap();
        }
        drop_caches();
        assert_stale(&mount, &file, "after new files");
        assert_stale(&mount, &dir, "after new files");
    }
    drop(mount);
    unmount(&test.dir);
    test.kernel.assert_clean();
}

/// A node id for tree and inode as docs/design/fuse-handles.md has it, with the rest of a handle
/// that was given out.
fn made_up(like: &FileHandle, tree: u64, ino: u64) -> FileHandle {
    let node = tree << 40 | ino;
    let mut handle = like.clone();
    handle.bytes[..4].copy_from_slice(&((node >> 32) as u32).to_ne_bytes());
    handle.bytes[4..8].copy_from_slice(&(node as u32).to_ne_bytes());
    handle
}

#[test]
fn handles_of_subvolumes_outside_of_the_mount_are_stale() {
    let Some(test) = with_subvolumes() else { return };
    let _guard = Guard(&test.dir);
    let mount = test.mount("subvol=/");
    for top in ["", "sub", "sub/nested", "other"] {
        fs::write(test.dir.join(top).join("f"), top).unwrap();
    }
    let handle = |path: &str| FileHandle::of(&test.dir.join(path)).unwrap();
    let [top, sub, nested, other] = ["f", "sub/f", "sub/nested/f", "other/f"].map(handle);
    drop(mount);
    unmount(&test.dir);
    let mount = test.mount("subvol=sub");
    let own = FileHandle::of(&test.dir.join("f")).unwrap();
    assert_eq!(by_handle(&mount, &nested).unwrap().content, b"sub/nested", "below it");
    assert_stale(&mount, &other, "beside it");
    assert_stale(
        &mount,
        &top,
        "above it, with the number that the mounted subvolume has here",
    );
    assert_stale(&mount, &sub, "the mounted one has its own numbers");
    drop_caches();
    assert_eq!(by_handle(&mount, &own).unwrap().content, b"sub");
    // Guessed node ids: whatever generation they come with, no other tree is looked into.
    for tree in [1, 2, 4, 5, 6, 7, 9, 10, 256, 258, 300] {
        for ino in [1, 2, 255, 256, 257, 258] {
            assert_stale(&mount, &made_up(&own, tree, ino), &format!("{tree} {ino}"));
        }
    }
    drop(mount);
    unmount(&test.dir);
}

/// A snapshot that is mounted in its source's place has the same numbers in it.
#[test]
fn a_handle_does_not_lead_into_a_snapshot_of_its_subvolume() {
    let Some(test) = with_subvolumes() else { return };
    let in_kernel = |script: &str| {
        let with = |root: &Path| cowshed_harness::run("sh", &["-ec".as_ref(), script.as_ref(), "sh".as_ref(), root]);
        test.kernel.with_mount(with).unwrap()
    };
    in_kernel("echo old >$1/sub/f; btrfs subvolume snapshot $1/sub $1/snap");
    let _guard = Guard(&test.dir);
    let mount = test.mount("subvol=sub");
    let handle = FileHandle::of(&test.dir.join("f")).unwrap();
    drop(mount);
    unmount(&test.dir);
    let mount = test.mount("subvol=snap");
    assert_eq!(fs::read(test.dir.join("f")).unwrap(), b"old\n");
    assert_stale(&mount, &handle, "the source's handle");
    drop(mount);
    unmount(&test.dir);
}

/// Random numbers that a seed repeats.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }
}

/// One of two file systems that do the same.
struct Side {
    root: PathBuf,
    mount: File,
    handles: Vec<FileHandle>,
    open: BTreeMap<usize, File>,
}

impl Side {
    fn new(root: &Path) -> Side {
        Side {
            root: root.to_owned(),
            mount: File::open(root).unwrap(),
            handles: Vec::new(),
            open: BTreeMap::new(),
        }
    }

    /// What a handle leads to, without what differs between two volumes: numbers and times.
    fn look(&self, handle: usize, flags: i32) -> Result<String, Option<i32>> {
        let look = || {
            let open = self.handles[handle].open(&self.mount, flags)?;
            let found = seen(&open)?;
            let mut text = format!(
                "{:o} {} {:?}",
                found.mode,
                found.nlink,
                String::from_utf8_lossy(&found.content)
            );
            if found.mode & libc::S_IFMT == libc::S_IFDIR {
                let place = fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()))?;
                text += &place.strip_prefix(&self.root).unwrap_or(&place).display().to_string();
            }
            Ok(text)
        };
        look().map_err(|error: io::Error| error.raw_os_error())
    }
}

const TOPS: [&str; 4] = ["", "sub", "sub/nested", "other"];
const NAMES: usize = 8;

fn place(dice: &mut Dice) -> String {
    let (top, name) = (TOPS[dice.roll(TOPS.len())], dice.roll(NAMES));
    match dice.roll(3) {
        0 => format!("{top}/n{}/n{name}", dice.roll(NAMES)),
        _ => format!("{top}/n{name}"),
    }
}

/// One change, given as a command that both sides run; whether it fails is part of the comparison.
fn change(side: &mut Side, kind: usize, from: &str, to: &str, step: usize) -> Result<(), Option<i32>> {
    // A path that begins with a slash would replace the root.
    let at = |path: &str| side.root.join(path.trim_start_matches('/'));
    let (from, to) = (at(from), at(to));
    let new = match kind {
        0 => File::create_new(&from).and_then(|_| fs::write(&from, format!("content {step}"))),
        1 => fs::create_dir(&from),
        2 => symlink(format!("target {step}"), &from),
        3 => return fs::rename(&from, &to).map_err(|e| e.raw_os_error()),
        4 => return fs::hard_link(&from, &to).map_err(|e| e.raw_os_error()),
        5 | 6 => return fs::remove_file(&from).map_err(|e| e.raw_os_error()),
        7 => return fs::remove_dir(&from).map_err(|e| e.raw_os_error()),
        _ => {
            // Open, so that it outlives its name; of the other kinds a descriptor alone.
            let flags = libc::O_PATH | libc::O_NOFOLLOW;
            let opened = File::options().read(true).custom_flags(flags).open(&from);
            side.open.insert(step, opened.map_err(|e| e.raw_os_error())?);
            return Ok(());
        }
    };
    new.map_err(|error| error.raw_os_error())?;
    side.handles.push(FileHandle::of(&from).unwrap());
    Ok(())
}

/// Random changes on a mount of ours and one of the kernel's: each handle gives the same answer on
/// both, at any time.
#[test]
fn handles_answer_as_on_the_kernels_btrfs() {
    const STEPS: usize = 3000;
    let (Some(ours), Some(theirs)) = (with_subvolumes(), with_subvolumes()) else {
        return;
    };
    let seed = need::share_seed("handles beside the kernel") | 1;
    let _guard = Guard(&ours.dir);
    let mounted = theirs.kernel.mount().unwrap();
    drop(ours.mount("noatime"));
    let mut sides = [Side::new(&ours.dir), Side::new(mounted.dir())];
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let compare = |sides: &[Side; 2], step: usize, handle: usize, flags: i32| {
        let [mut our, their] = [&sides[0], &sides[1]].map(|side| side.look(handle, flags));
        if our.is_ok() && their == Err(Some(libc::ESTALE)) {
            // As in `assert_stale`.
            eventually("the inode goes", || sides[0].look(handle, flags) == their);
            our = their.clone();
        }
        assert_eq!(our, their, "seed {seed}, step {step}, handle {handle}, flags {flags:o}");
        our.is_ok()
    };
    for step in 0..STEPS {
        let (kind, from, to) = (dice.roll(9), place(&mut dice), place(&mut dice));
        let [ours, theirs] = &mut sides;
        let done = [ours, theirs].map(|side| change(side, kind, &from, &to, step));
        assert_eq!(done[0], done[1], "seed {seed}, step {step}: {kind} {from} {to}");
        if dice.roll(3) == 0
            && let Some(open) = sides[0].open.keys().nth(dice.roll(4)).copied()
        {
            for side in &mut sides {
                side.open.remove(&open);
            }
        }
        if dice.roll(100) == 0 {
            drop_caches();
        }
        for _ in 0..3.min(sides[0].handles.len()) {
            let handle = dice.roll(sides[0].handles.len());
            let flags = [libc::O_PATH, libc::O_RDONLY, libc::O_RDONLY | libc::O_DIRECTORY][dice.roll(3)];
            compare(&sides, step, handle, flags);
        }
    }
    drop_caches();
    let alive = (0..sides[0].handles.len())
        .filter(|handle| compare(&sides, STEPS, *handle, libc::O_PATH))
        .count();
    let count = sides[0].handles.len();
    assert!(alive > 10 && count - alive > 50, "of {count} handles {alive} live");
    let handles = sides.map(|side| side.handles);
    mounted.unmount().unwrap();
    unmount(&ours.dir);
    let mounted = theirs.kernel.mount().unwrap();
    drop(ours.mount("noatime"));
    let mut sides = [Side::new(&ours.dir), Side::new(mounted.dir())];
    for (side, handles) in sides.iter_mut().zip(handles) {
        side.handles = handles;
    }
    for handle in 0..count {
        compare(&sides, STEPS + 1, handle, libc::O_PATH);
    }
    drop(sides);
    mounted.unmount().unwrap();
    unmount(&ours.dir);
    ours.kernel.assert_clean();
}

/// A mount without block device: what an ordinary user's looks like, and what the kernel does not
/// tell of closes.
#[test]
fn handles_work_on_plain_fuse_mounts() {
    let Some(()) = need::root() else { return };
    let Some(()) = need::fuse() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    for options in ["noloop", "noloop,private", "noloop,private,default_permissions"] {
        run(&format!("mount -o {options} {{}} {{}}"), &[&volume.image, &dir]).ok();
        let mount = File::open(&dir).unwrap();
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/f"), options).unwrap();
        let (file, below) = (
            FileHandle::of(&dir.join("a/b/f")).unwrap(),
            FileHandle::of(&dir.join("a/b")).unwrap(),
        );
        drop_caches();
        assert_eq!(by_handle(&mount, &file).unwrap().content, options.as_bytes());
        drop_caches();
        assert_eq!(by_handle(&mount, &below).unwrap(), by_path(&dir.join("a/b")));
        fs::remove_dir_all(dir.join("a")).unwrap();
        drop_caches();
        assert_stale(&mount, &file, options);
        assert_stale(&mount, &below, options);
        drop(mount);
        unmount(&dir);
    }
    volume.assert_clean();
}
