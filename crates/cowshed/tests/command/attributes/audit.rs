//! The table of docs/design/fuse-caches.md, line by line: an operation, and all attributes of all
//! that it may touch, as the kernel knows them right after it, as the file system has them, and as
//! they are after a remount.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FallocateFlags as F, IFlags, RenameFlags, XattrFlags, renameat_with};

use super::setid::{Block, allocate, copy, cowshed, set_list, writable};
use super::view::{self, FIELDS};
use super::{KINDS, OWNER, OurMount, STRANGER, User, act_as, can_run, is_passed_on};

/// A directory with what an operation may need, all of it on disk: `f`, with another name `hard`
/// and room behind its end, `other` with the same contents, `link`, `sub/inner`, `sub/deep`,
/// `empty`, `holes`.
pub struct Area(pub PathBuf);

impl Area {
    pub fn make(dir: PathBuf) -> Area {
        fs::create_dir(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        let area = Area(dir);
        act_as(OWNER, || area.fill()).unwrap();
        area
    }

    fn fill(&self) -> io::Result<()> {
        for name in ["f", "other"] {
            fs::write(self.at(name), vec![7; 64 << 10])?;
            fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o666))?;
        }
        fs::hard_link(self.at("f"), self.at("hard"))?;
        symlink("f", self.at("link"))?;
        fs::create_dir(self.at("sub"))?;
        fs::create_dir(self.at("sub/deep"))?;
        fs::create_dir(self.at("empty"))?;
        fs::write(self.at("sub/inner"), b"inner")?;
        let holes = File::create(self.at("holes"))?;
        holes.set_len(1 << 20)?;
        holes.write_all_at(&[0; 8192], 64 << 10)?;
        holes.sync_all()?;
        for name in ["sub", "sub/deep", "empty"] {
            fs::set_permissions(self.at(name), fs::Permissions::from_mode(0o777))?;
        }
        fs::set_permissions(self.at("f"), fs::Permissions::from_mode(0o6777))?;
        File::open(self.at("f"))?.sync_all()
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    pub fn f(&self) -> PathBuf {
        self.at("f")
    }
}

fn direct(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
}

fn rename(area: &Area, from: &str, to: &str, flags: RenameFlags) -> io::Result<()> {
    Ok(renameat_with(CWD, area.at(from), CWD, area.at(to), flags)?)
}

fn read(path: &Path) -> io::Result<()> {
    File::open(path)?.read_to_end(&mut Vec::new()).map(drop)
}

/// A command of ours on files of the area.
fn ours(area: &Area, user: User, words: &str) -> io::Result<()> {
    let mut words = words.split(' ');
    let name = words.next().unwrap_or_default();
    let paths: Vec<PathBuf> = words.map(|word| area.at(word)).collect();
    cowshed(user, &[name], &paths.iter().map(PathBuf::as_path).collect::<Vec<_>>())
}

fn long_ago() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)
}

pub type Operation = fn(&Area, User) -> io::Result<()>;

/// Each line is named in the table.
pub const LINES: &[(&str, Operation)] = &[
    ("write", |a, _| writable(&a.f())?.write_all_at(b"new", 100)),
    ("append", |a, _| {
        OpenOptions::new().append(true).open(a.f())?.write_all(b"new")
    }),
    ("write into a hole", |a, _| {
        writable(&a.at("holes"))?.write_all_at(b"new", 300_000)
    }),
    ("write behind the end", |a, _| {
        writable(&a.f())?.write_all_at(b"new", 200_000)
    }),
    ("direct write", |a, _| {
        direct(&a.f())?.write_all_at(&Block([1; 4096]).0, 4096)
    }),
    ("direct write behind the end", |a, _| {
        direct(&a.f())?.write_all_at(&Block([1; 4096]).0, 1 << 20)
    }),
    ("write and fsync", |a, _| {
        let file = writable(&a.at("holes"))?;
        file.write_all_at(&[3; 100_000], 400_000)?;
        file.sync_all()
    }),
    ("write, stat and fsync", |a, _| {
        let file = writable(&a.at("holes"))?;
        for at in 0..80 {
            file.write_all_at(b"new", at * 12_288)?;
        }
        view::fresh(&a.at("holes"));
        file.sync_all()
    }),
    ("write, stat and sync", |a, user| {
        let file = writable(&a.at("holes"))?;
        for at in 0..80 {
            file.write_all_at(b"new", at * 12_288)?;
        }
        view::fresh(&a.at("holes"));
        cowshed(user, &["sync"], &[&a.0])
    }),
    ("very many writes, stat and fsync", |a, _| {
        let file = writable(&a.at("holes"))?;
        file.write_all_at(&vec![5; 9 << 20], 0)?;
        file.set_len(18 << 20)?;
        file.sync_all()?;
        for at in 0..1100 {
            file.write_all_at(b"new", at * 8192)?;
        }
        view::fresh(&a.at("holes"));
        file.sync_all()
    }),
    ("small file, stat and fsync", |a, _| {
        let file = File::create(a.at("small"))?;
        (&file).write_all(b"little")?;
        view::fresh(&a.at("small"));
        file.sync_all()
    }),
    ("store through a mapping", |a, _| {
        cowshed_harness::write_through_map(&writable(&a.f())?, 100, b"new")
    }),
    ("store through a mapping and fsync", |a, _| {
        let file = writable(&a.f())?;
        cowshed_harness::write_through_map(&file, 100, b"new")?;
        file.sync_all()
    }),
    ("store through a mapping of a hole", |a, _| {
        let file = writable(&a.at("holes"))?;
        cowshed_harness::write_through_map(&file, 500_000, b"new")?;
        file.sync_all()
    }),
    ("truncate", |a, _| writable(&a.f())?.set_len(5000)),
    ("truncate that grows", |a, _| writable(&a.f())?.set_len(200_000)),
    ("open with O_TRUNC", |a, _| File::create(a.f()).map(drop)),
    ("allocate", |a, _| {
        allocate(&a.at("holes"), F::empty(), 300_000, 1 << 20)
    }),
    ("allocate behind the end", |a, _| {
        allocate(&a.f(), F::KEEP_SIZE, 64 << 10, 100_000)
    }),
    ("allocate, write, stat and fsync", |a, _| {
        allocate(&a.at("holes"), F::KEEP_SIZE, 300_000, 2 << 20)?;
        let file = writable(&a.at("holes"))?;
        for at in 0..80 {
            file.write_all_at(b"new", at * 12_288)?;
        }
        view::fresh(&a.at("holes"));
        file.sync_all()
    }),
    ("punch", |a, _| {
        allocate(&a.f(), F::PUNCH_HOLE | F::KEEP_SIZE, 4096, 8192)
    }),
    ("zero", |a, _| allocate(&a.f(), F::ZERO_RANGE, 4096, 100_000)),
    ("copy_file_range", |a, _| copy(&a.f(), &a.at("holes"), 0, 8192, 32_768)),
    ("copy_file_range into one file", |a, _| {
        copy(&a.f(), &a.f(), 0, 64 << 10, 8192)
    }),
    ("clone", |a, user| ours(a, user, "clone holes f")),
    ("dedupe", |a, user| ours(a, user, "dedupe other f")),
    ("dedupe of zeros with a hole", |a, user| {
        let zeros = File::create(a.at("zeros"))?;
        zeros.write_all_at(&vec![0; 1 << 20], 0)?;
        zeros.sync_all()?;
        view::fresh(&a.at("zeros"));
        ours(a, user, "dedupe zeros holes")
    }),
    ("exchange", |a, user| {
        chown(a.at("other"), None, None)?;
        ours(a, user, "exchange holes f")
    }),
    ("defrag", |a, user| ours(a, user, "defrag f")),
    ("atomic group", |a, _| {
        let file = writable(&a.f())?;
        cowshed_harness::start_atomic_write(&file)?;
        file.write_all_at(&[9; 100_000], 4096)?;
        cowshed_harness::commit_atomic_write(&file)
    }),
    ("atomic group that is dropped", |a, _| {
        let file = writable(&a.f())?;
        cowshed_harness::start_atomic_write(&file)?;
        file.write_all_at(&[9; 100_000], 4096)?;
        cowshed_harness::abort_atomic_write(&file)
    }),
    ("chmod", |a, _| {
        fs::set_permissions(a.f(), fs::Permissions::from_mode(0o640))
    }),
    ("chmod of what has an access list", |a, _| {
        set_list(&a.f())?;
        fs::set_permissions(a.f(), fs::Permissions::from_mode(0o640))
    }),
    ("chown", |a, _| chown(a.f(), Some(OWNER.uid), Some(OWNER.gid))),
    ("chgrp", |a, _| chown(a.f(), None, Some(OWNER.gid))),
    ("utimensat", |a, _| {
        let times = FileTimes::new().set_accessed(long_ago()).set_modified(long_ago());
        writable(&a.f())?.set_times(times)
    }),
    ("utimensat, then a store through a mapping", |a, _| {
        let file = writable(&a.f())?;
        file.set_times(FileTimes::new().set_modified(long_ago()))?;
        cowshed_harness::write_through_map(&file, 100, b"new")?;
        view::fresh(&a.f());
        file.sync_all()
    }),
    ("set an access list", |a, _| set_list(&a.f())),
    ("set a default list", |a, _| {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, perm) in [(1_u16, 7_u16), (4, 5), (0x20, 0)] {
            value.extend(tag.to_le_bytes());
            value.extend(perm.to_le_bytes());
            value.extend(u32::MAX.to_le_bytes());
        }
        rustix::fs::setxattr(a.at("sub"), "system.posix_acl_default", &value, XattrFlags::empty())?;
        fs::create_dir(a.at("sub/inheriting"))?;
        fs::write(a.at("sub/heir"), b"")
    }),
    ("remove an access list", |a, _| {
        set_list(&a.f())?;
        view::fresh(&a.f());
        Ok(rustix::fs::removexattr(a.f(), "system.posix_acl_access")?)
    }),
    ("set and remove an extended attribute", |a, _| {
        rustix::fs::setxattr(a.f(), "user.note", b"text", XattrFlags::empty())?;
        view::fresh(&a.f());
        Ok(rustix::fs::removexattr(a.f(), "user.note")?)
    }),
    ("set a property", |a, _| {
        Ok(rustix::fs::setxattr(
            a.f(),
            "btrfs.compression",
            b"zstd",
            XattrFlags::empty(),
        )?)
    }),
    ("set inode flags", |a, _| {
        Ok(rustix::fs::ioctl_setflags(File::open(a.f())?, IFlags::NODUMP)?)
    }),
    ("create", |a, _| fs::write(a.at("sub/new"), b"new")),
    ("create a directory", |a, _| fs::create_dir(a.at("sub/new"))),
    ("create a symbolic link", |a, _| symlink("target", a.at("sub/new"))),
    ("create a fifo", |a, _| {
        Ok(rustix::fs::mknodat(
            CWD,
            a.at("sub/new"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )?)
    }),
    ("create what was looked for in vain", |a, _| {
        if fs::metadata(a.at("sub/new")).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        fs::write(a.at("sub/new"), b"new")?;
        fs::metadata(a.at("sub/new")).map(drop)
    }),
    ("create with O_TMPFILE", |a, _| {
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_TMPFILE)
            .open(a.at("sub"))?;
        (&file).write_all(b"new")
    }),
    ("link", |a, _| fs::hard_link(a.f(), a.at("sub/new"))),
    ("unlink of one name of two", |a, _| fs::remove_file(a.at("hard"))),
    ("unlink", |a, _| fs::remove_file(a.at("sub/inner"))),
    ("rmdir", |a, _| fs::remove_dir(a.at("sub/deep"))),
    ("rename", |a, _| rename(a, "f", "new", RenameFlags::empty())),
    ("rename into another directory", |a, _| {
        rename(a, "f", "sub/new", RenameFlags::empty())
    }),
    ("rename of a directory", |a, _| {
        rename(a, "sub/deep", "empty/new", RenameFlags::empty())
    }),
    ("rename over a file", |a, _| {
        rename(a, "other", "sub/inner", RenameFlags::empty())
    }),
    ("rename over one name of two", |a, _| {
        rename(a, "other", "hard", RenameFlags::empty())
    }),
    ("rename of one name over the other", |a, _| {
        rename(a, "f", "hard", RenameFlags::empty())
    }),
    ("rename over a directory", |a, _| {
        rename(a, "empty", "sub/deep", RenameFlags::empty())
    }),
    ("rename with EXCHANGE", |a, _| {
        rename(a, "f", "sub/deep", RenameFlags::EXCHANGE)
    }),
    ("rename with NOREPLACE", |a, _| {
        rename(a, "f", "new", RenameFlags::NOREPLACE)
    }),
    ("rename with WHITEOUT", |a, _| {
        rename(a, "other", "new", RenameFlags::WHITEOUT)
    }),
    ("read", |a, _| read(&a.f())),
    ("direct read", |a, _| {
        let mut block = Block([0; 4096]);
        direct(&a.f())?.read_at(&mut block.0, 0).map(drop)
    }),
    ("readlink", |a, _| fs::read_link(a.at("link")).map(drop)),
    ("readdir", |a, _| {
        fs::read_dir(a.at("sub")).map(|list| assert!(list.count() > 0))
    }),
    ("seek for data and holes", |a, _| {
        rustix::fs::seek(File::open(a.at("holes"))?, rustix::fs::SeekFrom::Data(0))?;
        Ok(())
    }),
];

/// Operations that only the superuser can do, or does differently.
const ALONE: &[&str] = &["rename with WHITEOUT", "chgrp", "chown"];

/// Asked for in turn after an operation of their own, because the kernel fetches all fields when it
/// knows one to be old. Those of the first group are never old by themselves.
const TOGETHER: [&[&str]; 6] = [
    &["mode", "uid", "gid", "nlink", "btime"],
    &["size"],
    &["blocks"],
    &["atime"],
    &["mtime"],
    &["ctime"],
];

fn run_lines(options: &'static str, user: User) -> Vec<String> {
    let mount = OurMount::new(options);
    let mut wrong = Vec::new();
    let mut dirs = Vec::new();
    for (name, operation) in LINES.iter().filter(|(name, _)| is_passed_on(name)) {
        for fields in TOGETHER {
            let dir = mount.shared().join(format!("{name}-{}", fields.join("-")));
            let area = Area::make(dir.clone());
            let paths = view::paths_below(&dir);
            view::fresh_views(&paths);
            let done = act_as(user, || operation(&area, user));
            let told = format!("{options}: {name} by {}", user.uid);
            let may_fail = user != super::ROOT && (user == STRANGER || ALONE.contains(name));
            if let Err(error) = done
                && !may_fail
            {
                wrong.push(format!("{told}: {error}"));
            }
            let asked = || {
                FIELDS
                    .iter()
                    .enumerate()
                    .filter(|(_, field)| fields.contains(&field.name))
            };
            for path in &paths {
                let known: Vec<_> = asked().map(|(_, field)| view::known(path, field)).collect();
                let is = view::fresh(path);
                let is: Vec<_> = asked().map(|(at, _)| is.as_ref().map(|is| is[at])).collect();
                if known != is {
                    let short = path.strip_prefix(&dir).unwrap_or(path).display();
                    wrong.push(format!("{told}: {fields:?} of {short:?} is {is:?}, known is {known:?}"));
                }
            }
            dirs.push(dir);
        }
    }
    let paths: Vec<_> = dirs.iter().flat_map(|dir| view::paths_below(dir)).collect();
    let before = view::fresh_views(&paths);
    mount.remount();
    wrong.extend(view::differences(&before, &view::fresh_views(&paths)));
    mount.end();
    wrong
}

#[test]
fn attributes_are_fresh_after_each_operation() {
    let Some(()) = can_run() else { return };
    let mut wrong = Vec::new();
    for (options, user) in [
        (KINDS[0], OWNER),
        (KINDS[0], STRANGER),
        (KINDS[0], super::ROOT),
        (KINDS[1], OWNER),
        (KINDS[2], STRANGER),
        ("suid,compress-force=zstd", OWNER),
    ] {
        wrong.extend(run_lines(options, user));
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// All lines are in the table, by their names.
#[test]
fn the_table_of_kernel_caches_names_each_operation() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/design/fuse-caches.md");
    let table = fs::read_to_string(path).unwrap();
    let missing: Vec<_> = LINES
        .iter()
        .filter(|(name, _)| !table.contains(&format!("`{name}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "{:?}",
        missing.iter().map(|(name, _)| name).collect::<Vec<_>>()
    );
}
