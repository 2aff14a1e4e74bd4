//! Operations chosen by seed, on a small set of names so that they meet each other.

use cowshed_device_sim::Rng;
use cowshed_vfs::Compression;
use cowshed_vfs::Error;

use crate::habits;
use crate::links;
pub use crate::player::Player;
use crate::tree::NOCOW;

/// `FS_COMPR_FL`.
const COMPR: u32 = 0x4;
const NAMES: u64 = 6;
const BIG_BYTES: u64 = 3 << 20;
/// What one write changes at once, for everybody who looks.
const ATOMIC_BYTES_MAX: usize = 512 << 10;
const FILE_BYTES_MAX: u64 = 300 << 10;
pub(crate) const BLOCK_BYTES: u64 = 4096;

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
    /// The same through a descriptor with O_SYNC, or O_DSYNC: durable when it returns.
    WriteSync {
        path: String,
        offset: u64,
        len: usize,
        fill: u64,
        data_only: bool,
    },
    /// O_TMPFILE in the directory, a write, perhaps an fsync, linkat.
    Tmpfile {
        dir: String,
        to: String,
        len: usize,
        fill: u64,
        fsync: bool,
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
    /// FIDEDUPERANGE: shares what is the same already. That the contents differ is an answer as good as any other.
    Dedupe {
        from: String,
        from_offset: u64,
        to: String,
        to_offset: u64,
        len: u64,
    },
    /// Writes runs of small extents anew as larger ones, and with `compress` whatever is not compressed so.
    Defrag {
        path: String,
        offset: u64,
        len: u64,
        target_bytes: u64,
        compress: Option<Compression>,
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
    /// Begins an atomic group of files, which stays open: the library's, or that of a handle, of one file. See [`crate::desk`].
    Begin {
        group: u8,
        paths: Vec<String>,
        by_handle: bool,
    },
    /// Writes into a file of an open group.
    Stage {
        group: u8,
        file: u8,
        offset: u64,
        len: usize,
        fill: u64,
    },
    /// Ends an open group: it happens, durably, or not.
    End {
        group: u8,
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
    Fdatasync {
        path: String,
    },
    Sync,
}

/// How much of a file a sync is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A change of times alone may be lost.
    Data,
    All,
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
            // What is dirty in its range comes to disk with it, and what was written with that beside the range does not. So it is on
            // Linux, which writes back the range before it compares.
            | Op::Dedupe { .. }
            | Op::Swap { .. }
            | Op::Group { .. }
            | Op::Begin { .. }
            | Op::Stage { .. }
            | Op::End { .. }
            | Op::Flags { .. } => false,
            Op::Write { len, .. } | Op::WriteSync { len, .. } => *len <= ATOMIC_BYTES_MAX,
            _ => true,
        }
    }

    /// Nobody may see anything of it, whether it succeeds or not: content, size and times stay.
    pub fn is_unseen(&self) -> bool {
        matches!(self, Op::Dedupe { .. } | Op::Defrag { .. })
    }
}

impl Op {
    /// What it syncs when it succeeds, one file or directory alone.
    pub fn synced(&self) -> Option<(&str, Scope)> {
        let (path, scope) = match self {
            Op::Fsync { path } => (path, Scope::All),
            Op::Fdatasync { path } => (path, Scope::Data),
            Op::WriteSync { path, data_only, .. } => (path, if *data_only { Scope::Data } else { Scope::All }),
            _ => return None,
        };
        // Of a directory, as trees have it.
        Some((path.trim_end_matches('/'), scope))
    }

    /// All paths in it.
    pub fn paths(&self) -> Vec<String> {
        self.clone().paths_mut().into_iter().map(std::mem::take).collect()
    }
    pub(crate) fn paths_mut(&mut self) -> Vec<&mut String> {
        match self {
            Op::Write { path, .. }
            | Op::WriteSync { path, .. }
            | Op::Truncate { path, .. }
            | Op::Preallocate { path, .. }
            | Op::Zero { path, .. }
            | Op::Punch { path, .. }
            | Op::Defrag { path, .. }
            | Op::Flags { path, .. }
            | Op::Unlink { path }
            | Op::Symlink { path, .. }
            | Op::Mkdir { path }
            | Op::Rmdir { path }
            | Op::Chmod { path, .. }
            | Op::SetXattr { path, .. }
            | Op::RemoveXattr { path, .. }
            | Op::Fsync { path }
            | Op::Fdatasync { path } => vec![path],
            Op::Clone { from, to, .. }
            | Op::CloneRange { from, to, .. }
            | Op::Dedupe { from, to, .. }
            | Op::Swap { a: from, b: to, .. }
            | Op::Tmpfile { dir: from, to, .. }
            | Op::Rename { from, to }
            | Op::Exchange { from, to }
            | Op::Link { from, to } => vec![from, to],
            Op::Group { writes, .. } => writes.iter_mut().map(|write| &mut write.path).collect(),
            Op::Begin { paths, .. } => paths.iter_mut().collect(),
            Op::Stage { .. } | Op::End { .. } | Op::Sync => Vec::new(),
        }
    }

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
    /// Many names of few files: see [`crate::links`].
    Links,
}

/// Makes `count` operations, the directories first.
pub fn choose(rng: &mut Rng, mix: Mix, count: usize) -> Vec<Op> {
    let mut ops: Vec<Op> = ["p", "q", "p/r"].map(|path| Op::Mkdir { path: path.into() }).into();
    if mix == Mix::Links {
        ops.extend(links::choose(rng, count));
    }
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

/// Mostly from the same offset on, where clones have left what is the same.
pub(crate) fn dedupe(rng: &mut Rng) -> Op {
    let offset = if rng.one_in(2) { 0 } else { blocks(rng) };
    Op::Dedupe {
        from: path(rng),
        from_offset: offset,
        to: path(rng),
        to_offset: if rng.one_in(4) { blocks(rng) } else { offset },
        len: blocks(rng).max(BLOCK_BYTES),
    }
}

pub(crate) fn defrag(rng: &mut Rng, path: String) -> Op {
    // Files in pieces are not long.
    const PART_BYTES_MAX: u64 = 64 << 10;
    const HOW: [&str; 5] = ["lzo", "zstd:1", "zlib", "zstd:3", "zstd:-3"];
    let is_whole = !rng.one_in(3);
    let how = rng.one_in(2).then(|| HOW[rng.index(HOW.len())]);
    Op::Defrag {
        path,
        offset: if is_whole { 0 } else { rng.below(PART_BYTES_MAX / 2) },
        len: if is_whole {
            u64::MAX
        } else {
            1 + rng.below(PART_BYTES_MAX)
        },
        target_bytes: [32 << 10, 256 << 10, 1 << 30][rng.index(3)],
        compress: how.map(|how| how.parse().expect("it exists")),
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

pub(crate) fn write_sync(rng: &mut Rng, path: String) -> Op {
    Op::WriteSync {
        path,
        offset: if rng.one_in(2) {
            0
        } else {
            rng.below(FILE_BYTES_MAX / 2)
        },
        len: len(rng) as usize,
        fill: rng.next_u64(),
        data_only: rng.one_in(2),
    }
}

pub(crate) fn tmpfile(rng: &mut Rng, to: String) -> Op {
    Op::Tmpfile {
        // Often of the directory of its name to come.
        dir: match rng.one_in(3) {
            true => dir(rng),
            false => to.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned(),
        },
        to,
        len: len(rng) as usize,
        fill: rng.next_u64(),
        fsync: rng.one_in(2),
    }
}

fn choose_one(rng: &mut Rng) -> Op {
    let fill = rng.next_u64();
    match rng.below(56) {
        47 => Op::Fdatasync { path: path(rng) },
        48 | 49 => {
            let path = path(rng);
            write_sync(rng, path)
        }
        50 | 51 => {
            let to = path(rng);
            tmpfile(rng, to)
        }
        52 => dedupe(rng),
        53..=55 => {
            let path = path(rng);
            defrag(rng, path)
        }
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

/// What is written: repeatable, and different everywhere. A third of it compresses, as letters by chance do; another third does
/// in part; and the rest is noise.
pub fn bytes(fill: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let mut rng = Rng::new(fill);
    rng.fill(&mut out);
    match fill % 3 {
        0 => out.iter_mut().for_each(|byte| *byte = b'a' + *byte % 4),
        1 => write_text(&mut rng, &mut out),
        _ => {}
    }
    out
}

/// Words over noise, pieces of which stay.
fn write_text(rng: &mut Rng, out: &mut [u8]) {
    const WORDS: usize = 64;
    const WORD_BYTES_MAX: u64 = 10;
    const PIECE_BYTES_MAX: u64 = 24 << 10;
    let words: Vec<Vec<u8>> = (0..WORDS)
        .map(|_| {
            let len = 2 + rng.below(WORD_BYTES_MAX - 2);
            let letters = (0..len).map(|_| b'a' + rng.below(26) as u8);
            letters.chain([b' ']).collect()
        })
        .collect();
    let mut left = out;
    while !left.is_empty() {
        let len = (1 + rng.index(PIECE_BYTES_MAX as usize)).min(left.len());
        let (mut piece, rest) = left.split_at_mut(len);
        left = rest;
        let is_noise = rng.one_in(4);
        while !is_noise && !piece.is_empty() {
            let word = &words[rng.index(WORDS)];
            let len = word.len().min(piece.len());
            let (here, rest) = piece.split_at_mut(len);
            here.copy_from_slice(&word[..len]);
            piece = rest;
        }
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
            // Of names that share a hash.
            | Error::Overflow
    )
}
