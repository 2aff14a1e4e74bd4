//! One operation. Paths are relative to the directory that the script is played in: the empty path, or `.`, is this directory
//! itself; `@1` to `@9` are files held open.

use cowshed_vfs::Compression;

use super::data::Data;
use crate::op::chattr;

pub const BLOCK_BYTES: u64 = 4096;
/// What one write changes at once, for everybody who looks.
const ATOMIC_BYTES_MAX: usize = 512 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Fifo,
    Char,
    Socket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prealloc {
    Extend,
    KeepSize,
    Punch,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Into the page cache.
    Plain,
    /// Through a descriptor with `O_SYNC`: durable when it returns.
    Sync,
    /// Through a descriptor with `O_DSYNC`.
    DataSync,
    /// Through a shared mapping.
    Mapped,
    /// Past the page cache, `O_DIRECT`: whole blocks.
    Direct,
}

/// A write of an atomic group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    pub path: String,
    pub offset: u64,
    pub len: usize,
    pub fill: u64,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// An empty file, where it is missing.
    Create {
        path: String,
    },
    /// Creates the file where it is missing, and writes.
    Write {
        path: String,
        offset: u64,
        data: Data,
        how: How,
    },
    /// So many blocks of 4 KiB, one every so many bytes, of a letter.
    Scatter {
        path: String,
        count: u64,
        step: u64,
        letter: u8,
    },
    Truncate {
        path: String,
        size_bytes: u64,
    },
    Fallocate {
        path: String,
        offset: u64,
        len: u64,
        how: Prealloc,
    },
    /// FICLONERANGE; nothing means all to the end.
    CloneRange {
        from: String,
        from_offset: u64,
        to: String,
        to_offset: u64,
        len: u64,
    },
    /// Copies as much as there is, sharing extents. The target is made where it is missing.
    Copy {
        from: String,
        from_offset: u64,
        to: String,
        to_offset: u64,
        len: u64,
    },
    /// FIDEDUPERANGE: shares what is the same already; fails where not all is.
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
    /// Begins an atomic group of files, which stays open: the library's, or that of a handle, of one file.
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
    /// The flags of `chattr` that a file shall have.
    Flags {
        path: String,
        flags: u32,
    },
    /// An empty file that is written in place, `chattr +C`.
    InPlace {
        path: String,
    },
    Rename {
        from: String,
        to: String,
    },
    /// A rename that leaves a whiteout, as overlayfs does.
    Whiteout {
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
    Mknod {
        path: String,
        kind: Kind,
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
    /// To this uid and gid.
    Chown {
        path: String,
        id: u32,
    },
    /// Time of access and of modification, in seconds.
    Utime {
        path: String,
        secs: i64,
    },
    SetXattr {
        path: String,
        name: String,
        value: Data,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    /// O_TMPFILE in the directory, a write, perhaps an fsync, linkat.
    Temporary {
        dir: String,
        to: String,
        data: Data,
        fsync: bool,
    },
    /// A file without a name, held open.
    Tmpfile {
        slot: String,
        dir: String,
    },
    Open {
        slot: String,
        path: String,
    },
    Close {
        slot: String,
    },
    /// So many empty files whose names begin so, with numbers from 0.
    Many {
        prefix: String,
        count: u64,
    },
    /// So many links of a file, likewise.
    ManyLinks {
        from: String,
        prefix: String,
        count: u64,
    },
    /// Every n-th of so many files.
    UnlinkEvery {
        nth: u64,
        prefix: String,
        count: u64,
    },
    /// The kernel forgets what it can; nothing becomes durable by it.
    Drop,
    Fsync {
        path: String,
    },
    Fdatasync {
        path: String,
    },
    /// The whole volume.
    Sync,
    /// A subvolume at this path: the kernel makes it.
    Subvolume {
        path: String,
    },
    /// Of a subvolume, at this path; likewise.
    Snapshot {
        from: String,
        to: String,
    },
    /// Likewise.
    DeleteSubvolume {
        path: String,
    },
}

/// How much of a file a sync is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A change of times alone may be lost.
    Data,
    All,
}

impl Op {
    /// A write into the page cache, of what follows from `fill`.
    pub fn write(path: impl Into<String>, offset: u64, len: usize, fill: u64) -> Op {
        Op::Write {
            path: path.into(),
            offset,
            data: Data::Fill { len, fill },
            how: How::Plain,
        }
    }

    /// Only the kernel does this.
    pub fn is_kernels(&self) -> bool {
        matches!(
            self,
            Op::Subvolume { .. } | Op::Snapshot { .. } | Op::DeleteSubvolume { .. }
        )
    }

    /// The kernel's btrfs does this, or what a script on a mount can say of it.
    pub fn is_linux(&self) -> bool {
        !matches!(
            self,
            Op::Swap { .. }
                | Op::Group { .. }
                | Op::Begin { .. }
                | Op::Stage { .. }
                | Op::End { .. }
                | Op::Defrag { .. }
        )
    }

    /// Makes something durable.
    pub fn is_promise(&self) -> bool {
        *self == Op::Sync || self.synced().is_some()
    }

    /// Changes bytes of files only by writing them, all at once, and takes none away.
    pub fn only_adds_data(&self) -> bool {
        match self {
            Op::Truncate { .. }
            | Op::Fallocate { .. }
            | Op::Copy { .. }
            | Op::CloneRange { .. }
            // What is dirty in its range comes to disk with it, and what was written with that beside the range does not. So it is on
            // Linux, which writes back the range before it compares.
            | Op::Dedupe { .. }
            | Op::Swap { .. }
            | Op::Group { .. }
            | Op::Begin { .. }
            | Op::Stage { .. }
            | Op::End { .. }
            | Op::Scatter { .. }
            | Op::InPlace { .. }
            | Op::Flags { .. } => false,
            Op::Write { data, .. } => data.len() <= ATOMIC_BYTES_MAX,
            _ => true,
        }
    }

    /// Nobody may see anything of it, whether it succeeds or not: content, size and times stay.
    pub fn is_unseen(&self) -> bool {
        matches!(self, Op::Dedupe { .. } | Op::Defrag { .. })
    }

    /// What it syncs when it succeeds, one file or directory alone.
    pub fn synced(&self) -> Option<(&str, Scope)> {
        let (path, scope) = match self {
            Op::Fsync { path }
            | Op::Write {
                path, how: How::Sync, ..
            } => (path, Scope::All),
            Op::Fdatasync { path }
            | Op::Write {
                path,
                how: How::DataSync,
                ..
            } => (path, Scope::Data),
            _ => return None,
        };
        // Of a directory, as trees have it.
        match path.trim_end_matches('/') {
            "." => Some(("", scope)),
            path => Some((path, scope)),
        }
    }

    /// All paths in it.
    pub fn paths(&self) -> Vec<String> {
        self.clone().paths_mut().into_iter().map(std::mem::take).collect()
    }

    pub fn paths_mut(&mut self) -> Vec<&mut String> {
        match self {
            Op::Create { path }
            | Op::Write { path, .. }
            | Op::Scatter { path, .. }
            | Op::Truncate { path, .. }
            | Op::Fallocate { path, .. }
            | Op::Defrag { path, .. }
            | Op::Flags { path, .. }
            | Op::InPlace { path }
            | Op::Unlink { path }
            | Op::Symlink { path, .. }
            | Op::Mknod { path, .. }
            | Op::Mkdir { path }
            | Op::Rmdir { path }
            | Op::Chmod { path, .. }
            | Op::Chown { path, .. }
            | Op::Utime { path, .. }
            | Op::SetXattr { path, .. }
            | Op::RemoveXattr { path, .. }
            | Op::Tmpfile { dir: path, .. }
            | Op::Open { path, .. }
            | Op::Many { prefix: path, .. }
            | Op::UnlinkEvery { prefix: path, .. }
            | Op::Fsync { path }
            | Op::Fdatasync { path }
            | Op::Subvolume { path }
            | Op::DeleteSubvolume { path } => vec![path],
            Op::Copy { from, to, .. }
            | Op::CloneRange { from, to, .. }
            | Op::Dedupe { from, to, .. }
            | Op::Swap { a: from, b: to, .. }
            | Op::Temporary { dir: from, to, .. }
            | Op::Rename { from, to }
            | Op::Whiteout { from, to }
            | Op::Exchange { from, to }
            | Op::Link { from, to }
            | Op::ManyLinks { from, prefix: to, .. }
            | Op::Snapshot { from, to } => vec![from, to],
            Op::Group { writes, .. } => writes.iter_mut().map(|write| &mut write.path).collect(),
            Op::Begin { paths, .. } => paths.iter_mut().collect(),
            Op::Stage { .. } | Op::End { .. } | Op::Close { .. } | Op::Drop | Op::Sync => Vec::new(),
        }
    }

    /// Marks a file whose data is written in place.
    pub fn makes_in_place(&self) -> bool {
        match self {
            Op::Flags { flags, .. } => flags & chattr::NOCOW != 0,
            Op::InPlace { .. } => true,
            _ => false,
        }
    }
}
