//! Operations chosen by seed, on a small set of names so that they meet each other.

use cowshed_btrfs::file::{Exchange, Group};
use cowshed_btrfs::fs::Fs;
use cowshed_device_sim::Rng;
use cowshed_vfs::{
    Entry, Error, FallocateFlags, FileSystem, Handle, Ioctl, Lookup, NodeId, OpenFlags, OpenRequest, RenameFlags,
    Result, SetAttr, SetXattrFlags, WriteFlags,
};

use crate::habits;
use crate::rig::ROOT;
use crate::tree::NOCOW;

const SETFLAGS: u32 = 0x4008_6602;
/// `FS_COMPR_FL`.
const COMPR: u32 = 0x4;
const NAMES: u64 = 6;
const BIG_BYTES: u64 = 3 << 20;
/// What one write changes at once, for everybody who looks.
const ATOMIC_BYTES_MAX: usize = 512 << 10;
const FILE_BYTES_MAX: u64 = 300 << 10;

/// A write of an atomic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    pub path: String,
    pub offset: u64,
    pub len: usize,
    pub fill: u64,
}

/// One operation. Paths are relative to the directory that the run works in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates the file where it is missing, and writes.
    Write {
        path: String,
        offset: u64,
        len: usize,
        fill: u64,
    },
    Truncate {
        path: String,
        size_bytes: u64,
    },
    Preallocate {
        path: String,
        offset: u64,
        len: u64,
        keep_size: bool,
    },
    Zero {
        path: String,
        offset: u64,
        len: u64,
    },
    Punch {
        path: String,
        offset: u64,
        len: u64,
    },
    /// FICLONERANGE.
    CloneRange {
        from: String,
        from_offset: u64,
        to: String,
        to_offset: u64,
        len: u64,
    },
    /// Exchanges ranges of two files from the same offset on, or all behind it.
    Swap {
        a: String,
        b: String,
        offset: u64,
        len: Option<u64>,
    },
    /// Writes that happen all at once, and durably, or not at all.
    Group {
        writes: Vec<Staged>,
        commit: bool,
    },
    /// `chattr`, on a file that is made where it is missing.
    Flags {
        path: String,
        flags: u32,
    },
    /// Copies a file's first blocks to another, sharing extents.
    Clone {
        from: String,
        to: String,
        len: u64,
    },
    Rename {
        from: String,
        to: String,
    },
    Exchange {
        from: String,
        to: String,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Symlink {
        path: String,
        target: String,
    },
    Mkdir {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Chmod {
        path: String,
        perm: u32,
    },
    SetXattr {
        path: String,
        name: String,
        len: usize,
        fill: u64,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    Fsync {
        path: String,
    },
    Sync,
}

impl Op {
    /// Changes bytes of files only by writing them, all at once, and takes none away.
    pub fn only_adds_data(&self) -> bool {
        match self {
            Op::Truncate { .. }
            | Op::Preallocate { .. }
            | Op::Zero { .. }
            | Op::Punch { .. }
            | Op::Clone { .. }
            | Op::CloneRange { .. }
            | Op::Swap { .. }
            | Op::Group { .. }
            | Op::Flags { .. } => false,
            Op::Write { len, .. } => *len <= ATOMIC_BYTES_MAX,
            _ => true,
        }
    }
}

impl Op {
    /// Marks a file whose data is written in place.
    pub fn makes_in_place(&self) -> bool {
        matches!(self, Op::Flags { flags, .. } if flags & NOCOW != 0)
    }
}

pub(crate) fn dir(rng: &mut Rng) -> String {
    ["", "p/", "q/", "p/r/"][rng.index(4)].to_owned()
}
pub(crate) fn path(rng: &mut Rng) -> String {
    format!("{}{}", dir(rng), char::from(b'a' + rng.below(NAMES) as u8))
}
pub(crate) fn dir_path(rng: &mut Rng) -> String {
    ["p", "q", "p/r", "s", "q/r"][rng.index(5)].to_owned()
}
/// Sizes from a few bytes (inline) to several extents' worth, the small ones more often; now and then one that may
/// need a new chunk.
pub(crate) fn len(rng: &mut Rng) -> u64 {
    if rng.one_in(40) {
        return BIG_BYTES;
    }
    let bits = rng.below(18);
    1 + rng.below(1 << bits)
}

/// What a run is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// All operations, few syncs.
    Everything,
    /// Mostly what fsync was asked about before: see [`crate::habits`].
    Syncs,
}

/// Makes `count` operations, the directories first.
pub fn choose(rng: &mut Rng, mix: Mix, count: usize) -> Vec<Op> {
    let mut ops: Vec<Op> = ["p", "q", "p/r"].map(|path| Op::Mkdir { path: path.into() }).into();
    while ops.len() < count {
        if mix == Mix::Syncs && !rng.one_in(4) {
            ops.extend(habits::one(rng));
        } else if rng.one_in(12) {
            ops.extend(replace(rng));
        } else {
            let op = choose_one(rng);
            // A sync of everything ends what a log is for.
            if mix == Mix::Everything || op != Op::Sync || rng.one_in(2) {
                ops.push(op);
            }
        }
    }
    ops.push(Op::Sync);
    ops
}

/// The atomic replace: a temporary file, written, perhaps synced, renamed over the other.
fn replace(rng: &mut Rng) -> Vec<Op> {
    let path = path(rng);
    let temporary = format!("{path}.tmp");
    let (len, fill) = (len(rng) as usize, rng.next_u64());
    let write = Op::Write {
        path: temporary.clone(),
        offset: 0,
        len,
        fill,
    };
    let fsync = Op::Fsync {
        path: temporary.clone(),
    };
    let rename = Op::Rename {
        from: temporary,
        to: path,
    };
    if rng.one_in(2) {
        vec![write, fsync, rename]
    } else {
        vec![write, rename]
    }
}

fn blocks(rng: &mut Rng) -> u64 {
    rng.below(24) << 12
}

pub(crate) fn clone_range(rng: &mut Rng) -> Op {
    let aligned = rng.one_in(2);
    Op::CloneRange {
        from: path(rng),
        from_offset: if rng.one_in(2) { 0 } else { blocks(rng) },
        to: path(rng),
        to_offset: if rng.one_in(2) { 0 } else { blocks(rng) },
        // Nothing means all to the end.
        len: if aligned { blocks(rng) } else { 0 },
    }
}

pub(crate) fn swap(rng: &mut Rng) -> Op {
    let (a, b) = (path(rng), path(rng));
    let to_end = rng.one_in(2);
    Op::Swap {
        a,
        b,
        offset: if rng.one_in(2) { 0 } else { blocks(rng) },
        len: (!to_end).then(|| blocks(rng)),
    }
}

pub(crate) fn group(rng: &mut Rng) -> Op {
    let files = if rng.one_in(2) { 1 } else { 1 + rng.below(3) };
    let paths: Vec<String> = (0..files).map(|_| path(rng)).collect();
    let writes = (0..1 + rng.below(6)).map(|_| Staged {
        path: paths[rng.index(paths.len())].clone(),
        offset: rng.below(FILE_BYTES_MAX / 2),
        len: 1 + rng.below(20_000) as usize,
        fill: rng.next_u64(),
    });
    Op::Group {
        writes: writes.collect(),
        commit: !rng.one_in(5),
    }
}

fn choose_one(rng: &mut Rng) -> Op {
    let fill = rng.next_u64();
    match rng.below(47) {
        0..=9 => Op::Write {
            path: path(rng),
            offset: if rng.one_in(2) {
                0
            } else {
                rng.below(FILE_BYTES_MAX / 2)
            },
            len: len(rng) as usize,
            fill,
        },
        10 | 11 => Op::Truncate {
            path: path(rng),
            size_bytes: rng.below(FILE_BYTES_MAX / 2),
        },
        12 => Op::Preallocate {
            path: path(rng),
            offset: rng.below(16) << 12,
            len: len(rng),
            keep_size: rng.one_in(3),
        },
        36 => Op::Zero {
            path: path(rng),
            offset: rng.below(32 << 12),
            len: len(rng),
        },
        37..=39 => clone_range(rng),
        40 | 41 => swap(rng),
        42 | 43 => group(rng),
        44 => Op::Flags {
            path: path(rng),
            flags: *[0, NOCOW, NOCOW, COMPR, COMPR].get(rng.index(5)).unwrap_or(&0),
        },
        13 => Op::Punch {
            path: path(rng),
            offset: rng.below(32 << 12),
            len: len(rng),
        },
        14 => Op::Clone {
            from: path(rng),
            to: path(rng),
            len: (1 + rng.below(16)) << 12,
        },
        15..=17 => Op::Rename {
            from: path(rng),
            to: path(rng),
        },
        18 => Op::Exchange {
            from: path(rng),
            to: path(rng),
        },
        19 => Op::Rename {
            from: dir_path(rng),
            to: dir_path(rng),
        },
        20 | 21 => Op::Link {
            from: path(rng),
            to: path(rng),
        },
        22..=24 => Op::Unlink { path: path(rng) },
        25 => Op::Symlink {
            path: path(rng),
            target: format!("target-{fill}"),
        },
        26 => Op::Mkdir { path: dir_path(rng) },
        27 => Op::Rmdir { path: dir_path(rng) },
        28 => Op::Chmod {
            path: path(rng),
            perm: rng.below(0o1000) as u32,
        },
        29 | 30 => Op::SetXattr {
            path: path(rng),
            name: format!("user.{}", rng.below(4)),
            len: rng.below(600) as usize,
            fill,
        },
        31 => Op::RemoveXattr {
            path: path(rng),
            name: format!("user.{}", rng.below(4)),
        },
        32 | 33 => Op::Fsync { path: path(rng) },
        34 => Op::Fsync { path: dir_path(rng) },
        _ => Op::Sync,
    }
}

/// What is written: repeatable, and different everywhere.
pub fn bytes(fill: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Rng::new(fill).fill(&mut out);
    // Some of it compresses.
    if fill.is_multiple_of(3) {
        out.iter_mut().for_each(|byte| *byte = b'a' + *byte % 4);
    }
    out
}

/// Applies operations below one directory of a mount.
#[derive(Clone, Copy)]
pub struct Player<'f> {
    pub fs: &'f Fs,
    pub root: NodeId,
}

/// A node that is looked up and not given back yet.
struct Held<'f> {
    fs: &'f Fs,
    entry: Entry,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.fs.forget(self.entry.node, 1);
    }
}

impl<'f> Player<'f> {
    pub fn new(fs: &'f Fs) -> Player<'f> {
        Player { fs, root: NodeId::ROOT }
    }

    fn child(&self, parent: NodeId, name: &str) -> Result<Held<'f>> {
        match self.fs.lookup(&ROOT, parent, name.as_bytes())? {
            Lookup::Found(entry) => Ok(Held { fs: self.fs, entry }),
            Lookup::Absent { .. } => Err(Error::NotFound),
        }
    }

    fn held(&self, path: &str) -> Result<Option<Held<'f>>> {
        let mut held: Option<Held<'f>> = None;
        for name in path.split('/').filter(|n| !n.is_empty()) {
            let parent = held.as_ref().map_or(self.root, |h| h.entry.node);
            held = Some(self.child(parent, name)?);
        }
        Ok(held)
    }

    /// Does something with the node behind a path.
    pub fn at<T>(&self, path: &str, what: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        let held = self.held(path)?;
        what(held.as_ref().map_or(self.root, |h| h.entry.node))
    }

    /// Does something with the directory and the last name of a path.
    fn name<T>(&self, path: &str, what: impl FnOnce(NodeId, &[u8]) -> Result<T>) -> Result<T> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        self.at(parent, |dir| what(dir, name.as_bytes()))
    }

    /// The file, made where it is missing.
    fn file<T>(&self, path: &str, what: impl FnOnce(NodeId) -> Result<T>) -> Result<T> {
        let request = OpenRequest {
            flags: OpenFlags::READ | OpenFlags::WRITE | OpenFlags::CREATE,
            kill_suidgid: false,
        };
        match self.held(path) {
            Err(Error::NotFound) => {}
            other => return what(other?.map_or(self.root, |h| h.entry.node)),
        }
        self.name(path, |dir, name| {
            let (entry, opened) = self.fs.create(&ROOT, dir, name, 0o644, &request)?;
            let held = Held { fs: self.fs, entry };
            let result = what(held.entry.node);
            self.fs.release(held.entry.node, opened.handle);
            result
        })
    }

    fn write(&self, path: &str, offset: u64, data: &[u8]) -> Result<()> {
        self.file(path, |node| {
            let none = WriteFlags::empty();
            self.fs.write(&ROOT, node, Handle::NONE, offset, data, none).map(drop)
        })
    }

    fn fsync(&self, path: &str) -> Result<()> {
        self.at(path, |node| self.fs.fsync(&ROOT, node, Handle::NONE, false))
    }

    fn rename(&self, from: &str, to: &str, flags: RenameFlags) -> Result<()> {
        self.name(from, |dir, name| {
            self.name(to, |new_dir, new_name| {
                self.fs.rename(&ROOT, dir, name, new_dir, new_name, flags)
            })
        })
    }

    /// Applies one operation.
    pub fn apply(&self, op: &Op) -> Result<()> {
        let fs = self.fs;
        match op {
            Op::Write {
                path,
                offset,
                len,
                fill,
            } => self.write(path, *offset, &bytes(*fill, *len)),
            Op::Truncate { path, size_bytes } => self.set(
                path,
                SetAttr {
                    size_bytes: Some(*size_bytes),
                    ..SetAttr::default()
                },
            ),
            Op::Chmod { path, perm } => self.set(
                path,
                SetAttr {
                    perm: Some(*perm),
                    ..SetAttr::default()
                },
            ),
            Op::Preallocate {
                path,
                offset,
                len,
                keep_size,
            } => {
                let mut how = FallocateFlags::empty();
                how.set(FallocateFlags::KEEP_SIZE, *keep_size);
                self.fallocate(path, *offset, *len, how)
            }
            Op::Zero { path, offset, len } => self.fallocate(path, *offset, *len, FallocateFlags::ZERO_RANGE),
            Op::CloneRange {
                from,
                from_offset,
                to,
                to_offset,
                len,
            } => self.at(from, |from| {
                self.file(to, |to| fs.clone_range((from, *from_offset), (to, *to_offset), *len))
            }),
            Op::Swap { a, b, offset, len } => self.at(a, |one| {
                let what = Exchange {
                    a_offset: *offset,
                    b_offset: *offset,
                    len_bytes: len.unwrap_or(0),
                    to_eof: len.is_none(),
                    fresh_b: None,
                    dry_run: false,
                };
                self.at(b, |other| fs.exchange_range(one, other, &what))
            }),
            Op::Group { writes, commit } => self.group(writes, *commit),
            // A file that is not there is not made: a commit beside us may see it without its mark.
            Op::Flags { path, flags } => self.at(path, |node| {
                let call = Ioctl {
                    cmd: SETFLAGS,
                    arg: 0,
                    compat: false,
                };
                fs.ioctl(&ROOT, node, Handle::NONE, &call, &flags.to_le_bytes(), &mut [])
                    .map(drop)
            }),
            Op::Punch { path, offset, len } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                self.fallocate(path, *offset, *len, how)
            }
            Op::Clone { from, to, len } => self.at(from, |from| {
                self.file(to, |to| {
                    // As programs do: fewer bytes than asked for are the end of the file, or an error to come.
                    let mut at = 0;
                    while at < *len {
                        let (src, dst) = ((from, Handle::NONE, at), (to, Handle::NONE, at));
                        match fs.copy_file_range(&ROOT, src, dst, *len - at)? {
                            0 => break,
                            copied => at += copied,
                        }
                    }
                    Ok(())
                })
            }),
            Op::Rename { from, to } => self.rename(from, to, RenameFlags::empty()),
            Op::Exchange { from, to } => self.rename(from, to, RenameFlags::EXCHANGE),
            Op::Link { from, to } => self.at(from, |node| {
                let linked = self.name(to, |dir, name| fs.link(&ROOT, node, dir, name))?;
                fs.forget(linked.node, 1);
                Ok(())
            }),
            Op::Unlink { path } => self.name(path, |dir, name| fs.unlink(&ROOT, dir, name)),
            Op::Symlink { path, target } => self.name(path, |dir, name| {
                let made = fs.symlink(&ROOT, dir, name, target.as_bytes())?;
                fs.forget(made.node, 1);
                Ok(())
            }),
            Op::Mkdir { path } => self.name(path, |dir, name| {
                let made = fs.mkdir(&ROOT, dir, name, 0o755)?;
                fs.forget(made.node, 1);
                Ok(())
            }),
            Op::Rmdir { path } => self.name(path, |dir, name| fs.rmdir(&ROOT, dir, name)),
            Op::SetXattr { path, name, len, fill } => {
                let value = bytes(*fill, *len);
                let how = SetXattrFlags::empty();
                self.at(path, |node| fs.setxattr(&ROOT, node, name.as_bytes(), &value, how))
            }
            Op::RemoveXattr { path, name } => self.at(path, |node| fs.removexattr(&ROOT, node, name.as_bytes())),
            Op::Fsync { path } => self.fsync(path),
            Op::Sync => fs.syncfs(&ROOT, NodeId::ROOT),
        }
    }

    fn group(&self, writes: &[Staged], commit: bool) -> Result<()> {
        let mut group = Group::new(self.fs.engine());
        // One file is made with the group, as by a write. Several are not: a commit beside us may see some of them.
        let one_file = writes
            .iter()
            .all(|write| Some(&write.path) == writes.first().map(|w| &w.path));
        if !one_file {
            writes.iter().try_for_each(|write| self.held(&write.path).map(drop))?;
        }
        // A group's files are held until its end.
        let mut held = Vec::new();
        for write in writes {
            self.file(&write.path, |_| Ok(()))?;
            let Some(file) = self.held(&write.path)? else {
                return Err(Error::IsDirectory);
            };
            let data = bytes(write.fill, write.len);
            self.fs.stage(&mut group, file.entry.node, write.offset, &data)?;
            held.push(file);
        }
        if !commit {
            return Ok(());
        }
        self.fs.commit_group(group).map_err(|error| match error {
            cowshed_btrfs::Error::Outcome(outcome) => outcome,
            cowshed_btrfs::Error::NoSpace => Error::NoSpace,
            _ => Error::Io,
        })
    }

    fn set(&self, path: &str, set: SetAttr) -> Result<()> {
        self.at(path, |node| self.fs.setattr(&ROOT, node, None, &set).map(drop))
    }

    fn fallocate(&self, path: &str, offset: u64, len: u64, how: FallocateFlags) -> Result<()> {
        self.at(path, |node| {
            self.fs.fallocate(&ROOT, node, Handle::NONE, offset, len, how)
        })
    }
}

/// Outcomes that operations on random names may have on a healthy device; all else is a fault.
pub fn is_outcome(error: Error) -> bool {
    matches!(
        error,
        Error::NotFound
            | Error::Exists
            | Error::CrossDevice
            | Error::IsDirectory
            | Error::NotDirectory
            | Error::NotEmpty
            | Error::Invalid
            | Error::NotPermitted
            | Error::NoData
            | Error::TooManySymlinks
            | Error::NotSupported
            | Error::BadHandle
            | Error::Busy
    )
}
