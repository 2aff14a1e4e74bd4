//! What can be seen of the pool: once through Linux' caches, once as the file system answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use cowshed_device_sim::Rng;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh64::xxh64;

use crate::map::SharedMap;
use crate::names;

const BLOCK_BYTES: usize = 4096;
const RUNS_MAX: usize = 40;
/// Longer than any file: appends may add to the longest one.
const READ_BYTES_MAX: usize = 1 << 20;
/// Directories may be renamed into one another.
const DEPTH_MAX: usize = 24;

/// Facts by their names.
pub type Facts = BTreeMap<String, String>;

/// One object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Through the caches: each attribute was asked for by itself.
    pub known: Facts,
    /// As the file system answers. Attributes, and contents by direct reads.
    pub fresh: Facts,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Listed {
    pub name: String,
    pub kind: String,
    pub ino: u64,
}

/// All objects below the pool's root by their paths, and the listings of the directories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    pub seen: BTreeMap<String, Seen>,
    pub lists: BTreeMap<String, Result<Vec<Listed>, String>>,
}

/// How to look.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// The file system is asked, too.
    pub is_fresh: bool,
    /// Directories are listed before their names are looked up.
    pub lists_first: bool,
    /// Of the order in which names and attributes are asked for.
    pub seed: u64,
}

type Field = (&'static str, StatxFlags, fn(&Statx) -> String);

fn time(time: rustix::fs::StatxTimestamp) -> String {
    format!("{}.{:09}", time.tv_sec, time.tv_nsec)
}

const FIELDS: [Field; 11] = [
    ("mode", StatxFlags::MODE, |s| format!("{:o}", s.stx_mode)),
    ("uid", StatxFlags::UID, |s| s.stx_uid.to_string()),
    ("gid", StatxFlags::GID, |s| s.stx_gid.to_string()),
    ("nlink", StatxFlags::NLINK, |s| s.stx_nlink.to_string()),
    ("size", StatxFlags::SIZE, |s| s.stx_size.to_string()),
    ("blocks", StatxFlags::BLOCKS, |s| s.stx_blocks.to_string()),
    ("mtime", StatxFlags::MTIME, |s| time(s.stx_mtime)),
    ("ctime", StatxFlags::CTIME, |s| time(s.stx_ctime)),
    ("btime", StatxFlags::BTIME, |s| time(s.stx_btime)),
    ("ino", StatxFlags::INO, |s| s.stx_ino.to_string()),
    ("rdev", StatxFlags::TYPE, |s| {
        format!("{}:{}", s.stx_rdev_major, s.stx_rdev_minor)
    }),
];

/// The attributes of one thing, by a function that asks for some.
fn attributes(seen: &mut Seen, how: How, stat: impl Fn(AtFlags, StatxFlags) -> rustix::io::Result<Statx>) {
    let mut order = FIELDS;
    // Linux fetches all where it knows one to be old, as times are after most calls. So half of the
    // time the others are asked for first.
    if how.seed.is_multiple_of(2) {
        Rng::new(how.seed).shuffle(&mut order);
    }
    for (name, mask, of) in order {
        let value = match stat(AtFlags::empty(), mask) {
            Ok(stat) => of(&stat),
            Err(error) => format!("{error:?}"),
        };
        seen.known.insert(name.into(), value);
    }
    if !how.is_fresh {
        return;
    }
    let stat = stat(AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL);
    for (name, _, of) in FIELDS {
        let value = stat.as_ref().map_or_else(|error| format!("{error:?}"), of);
        seen.fresh.insert(name.into(), value);
    }
}

/// The attributes of what is open.
pub fn of_open(file: &File, seed: u64) -> Seen {
    let mut seen = Seen::default();
    let how = How {
        is_fresh: true,
        lists_first: false,
        seed,
    };
    attributes(&mut seen, how, |flags, mask| {
        rustix::fs::statx(file, c"", flags | AtFlags::EMPTY_PATH, mask)
    });
    seen
}

/// Bytes in short, as runs of the same byte: each write has one of its own. Behind the first runs a
/// hash stands for the rest.
pub fn content(bytes: &io::Result<Vec<u8>>) -> String {
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(error) => return format!("error {:?}", error.raw_os_error()),
    };
    let mut words = vec![format!("{}:", bytes.len())];
    let mut at = 0;
    for run in bytes.chunk_by(|a, b| a == b) {
        if words.len() > RUNS_MAX {
            words.push(format!("from {at} on {:x}", xxh64(&bytes[at..], 0)));
            break;
        }
        words.push(format!("{}x{:02x}", run.len(), run[0]));
        at += run.len();
    }
    words.join(" ")
}

/// By read(), from the beginning to the end.
pub fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; READ_BYTES_MAX];
    let mut len = 0;
    loop {
        match file.read_at(&mut bytes[len..], len as u64)? {
            0 => break,
            more => len += more,
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

fn read_mapped(file: &File, len: usize) -> io::Result<Vec<u8>> {
    match len {
        0 => Ok(Vec::new()),
        len => SharedMap::new(file, len, false)?.load(0, len),
    }
}

fn read_direct(file: &File) -> io::Result<Vec<u8>> {
    let mut room = vec![0; READ_BYTES_MAX + BLOCK_BYTES];
    let start = room.as_ptr().align_offset(BLOCK_BYTES);
    let len = file.read_at(&mut room[start..start + READ_BYTES_MAX], 0)?;
    Ok(room[start..start + len].to_vec())
}

fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

fn contents(path: &Path, seen: &mut Seen, how: How) {
    match open(path, OFlags::RDONLY) {
        Ok(file) => {
            let bytes = read(&file);
            let len = bytes.as_ref().map_or(0, Vec::len);
            seen.known.insert("read".into(), content(&bytes));
            seen.known.insert("map".into(), content(&read_mapped(&file, len)));
        }
        Err(error) => {
            seen.known.insert("read".into(), content(&Err(error)));
        }
    }
    if how.is_fresh {
        let direct = open(path, OFlags::RDONLY | OFlags::DIRECT).and_then(|file| read_direct(&file));
        seen.fresh.insert("read".into(), content(&direct));
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Extended attributes and access lists. Linux keeps the latter, the others it asks for.
fn xattrs(path: &Path, seen: &mut Seen) {
    let mut list = vec![0; 4096];
    let listed = rustix::fs::llistxattr(path, &mut list[..]);
    let list = listed.map(|len| &list[..len]).unwrap_or_default();
    let mut names: BTreeSet<String> = list.split(|byte| *byte == 0).map(text).collect();
    names.remove("");
    seen.known
        .insert("xattrs".into(), names.iter().cloned().collect::<Vec<_>>().join(" "));
    names.extend(["system.posix_acl_access", "system.posix_acl_default"].map(Into::into));
    for name in names {
        let mut value = vec![0; 4096];
        let value = match rustix::fs::lgetxattr(path, &name, &mut value[..]) {
            Ok(len) => text(&value[..len]),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
            Err(error) => format!("{error:?}"),
        };
        seen.known.insert(format!("xattr {name}"), value);
    }
}

fn list(path: &Path) -> io::Result<Vec<Listed>> {
    let dir = open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut listed = Vec::new();
    for entry in Dir::read_from(dir.as_fd())? {
        let entry = entry?;
        let name = text(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            listed.push(Listed {
                name,
                kind: kind_name(entry.file_type()).into(),
                ino: entry.ino(),
            });
        }
    }
    listed.sort();
    Ok(listed)
}

/// The kind of a mode, or of a listing.
pub fn kind_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::CharacterDevice => "device",
        _ => "other",
    }
}

/// The kind of a file, by the fact `mode`.
pub fn kind(facts: &Facts) -> FileType {
    let mode = facts.get("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok());
    mode.map_or(FileType::Unknown, FileType::from_raw_mode)
}

struct Look<'a> {
    root: &'a Path,
    how: How,
    rng: Rng,
    view: View,
}

impl Look<'_> {
    fn is_there(&mut self, at: &str) -> bool {
        let path = self.root.join(at);
        let mut seen = Seen::default();
        match rustix::fs::statx(CWD, &path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) {
            Ok(_) => {}
            Err(Errno::NOENT) => return false,
            Err(error) => {
                seen.known.insert("error".into(), format!("{error:?}"));
                self.view.seen.insert(at.into(), seen);
                return true;
            }
        }
        let how = How {
            seed: self.rng.next_u64(),
            ..self.how
        };
        attributes(&mut seen, how, |flags, mask| {
            rustix::fs::statx(CWD, &path, flags | AtFlags::SYMLINK_NOFOLLOW, mask)
        });
        self.view.seen.insert(at.into(), seen);
        true
    }

    /// What needs more than attributes: last, because reads fetch attributes, too.
    fn inside(&mut self, at: &str) {
        let path = self.root.join(at);
        let how = self.how;
        let Some(seen) = self.view.seen.get_mut(at) else { return };
        match kind(&seen.known) {
            FileType::RegularFile => contents(&path, seen, how),
            FileType::Symlink => {
                let target = rustix::fs::readlink(&path, Vec::new());
                let target = target.map_or_else(|error| format!("{error:?}"), |name| text(name.to_bytes()));
                seen.known.insert("target".into(), target);
            }
            _ => {}
        }
        if matches!(kind(&seen.known), FileType::RegularFile | FileType::Directory) {
            let flags = open(&path, OFlags::RDONLY).and_then(|file| Ok(rustix::fs::ioctl_getflags(file)?));
            seen.known.insert("flags".into(), format!("{flags:?}"));
        }
        xattrs(&path, seen);
    }

    fn list(&mut self, at: &str) {
        let listed = list(&self.root.join(at)).map_err(|error| format!("{error}"));
        self.view.lists.insert(at.into(), listed);
    }

    fn dir(&mut self, at: &str, depth: usize) {
        if self.how.lists_first {
            self.list(at);
        }
        let mut pool: Vec<String> = names::pool().map(Into::into).collect();
        self.rng.shuffle(&mut pool);
        let below = |name: &str| match at {
            "" => name.to_owned(),
            at => format!("{at}/{name}"),
        };
        let mut there: Vec<String> = pool.iter().map(|name| below(name)).collect();
        there.retain(|path| self.is_there(path));
        if !self.how.lists_first {
            self.list(at);
        }
        // What else there is, if anything.
        let more: Vec<String> = match self.view.lists.get(at) {
            Some(Ok(list)) => list
                .iter()
                .filter(|listed| !pool.contains(&listed.name))
                .map(|l| below(&l.name))
                .collect(),
            _ => Vec::new(),
        };
        there.extend(more.into_iter().filter(|path| self.is_there(path)).collect::<Vec<_>>());
        for path in &there {
            self.inside(path);
        }
        for path in there {
            let is_dir = kind(&self.view.seen[&path].known) == FileType::Directory;
            if is_dir && depth < DEPTH_MAX {
                self.dir(&path, depth + 1);
            }
        }
    }
}

/// Looks at everything below a directory.
pub fn look(root: &Path, how: How) -> View {
    let mut look = Look {
        root,
        how,
        rng: Rng::new(how.seed),
        view: View::default(),
    };
    if look.is_there("") {
        look.inside("");
        look.dir("", 0);
    }
    look.view
}
