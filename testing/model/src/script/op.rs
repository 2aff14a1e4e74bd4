//! One operation. Paths are relative to the directory that the script is played in: the empty path,
//! or `.`, is this directory itself; `@1` to `@9` are files held open.
//!
//! One table says what there is: the verb of the line, the name of its function, the fields in
//! their order and how each is written as text.

use std::fmt;

use anyhow::Result;
use cowshed_vfs::Compression;

use super::data::Data;
use super::forms::{
    Bytes, Commit, Content, Fallocated, Form, Fsynced, Hex, Len, Letter, Made, Number, Octal, Path, Paths, Rest,
    Squeeze, Value, Word, Words, Written,
};
use crate::op::chattr;

pub const BLOCK_BYTES: u64 = 4096;
/// What one write changes in one step, for all readers.
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

/// What a function takes for a field: text in any form.
macro_rules! argument {
    (Path $ty:ty) => { impl Into<$ty> };
    (Word $ty:ty) => { impl Into<$ty> };
    ($form:ident $ty:ty) => { $ty };
}

/// Makes the type, and a function for each operation; reads and prints lines; finds the paths.
macro_rules! vocabulary {
    ($($(#[$doc:meta])* $verb:literal $new:ident $name:ident { $($field:ident: $ty:ty as $form:ident),* })*) => {
        /// One operation.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Op {
            $($(#[$doc])* $name { $($field: $ty),* },)*
            /// The whole volume.
            Sync,
            /// The kernel forgets what it can; nothing becomes durable by it.
            Drop,
        }

        impl Op {
            $($(#[$doc])* pub fn $new($($field: argument!($form $ty)),*) -> Op {
                Op::$name { $($field: $field.into()),* }
            })*

            pub(super) fn read(verb: &str, words: &mut Words<'_>) -> Result<Option<Op>> {
                Ok(Some(match verb {
                    $($verb => Op::$name { $($field: $form::read(words)?),* },)*
                    "sync" => Op::Sync,
                    "drop" => Op::Drop,
                    _ => return Ok(None),
                }))
            }

            pub fn paths_mut(&mut self) -> Vec<&mut String> {
                let mut paths = Vec::new();
                match self {
                    $(Op::$name { $($field),* } => { $($form::paths($field, &mut paths);)* })*
                    Op::Sync | Op::Drop => {}
                }
                paths
            }
        }

        impl fmt::Display for Op {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Op::$name { $($field),* } => {
                        let verb: Option<&str> = None;
                        $(let verb = verb.or($form::verb($field));)*
                        f.write_str(verb.unwrap_or($verb))?;
                        $($form::show($field, f)?;)*
                        Ok(())
                    })*
                    Op::Sync => f.write_str("sync"),
                    Op::Drop => f.write_str("drop"),
                }
            }
        }
    };
}

vocabulary! {
    /// An empty file, where it is missing.
    "create" create Create { path: String as Path }
    /// Creates the file where it is missing, and writes. The verb says how.
    "write" write_how Write { how: How as Written, path: String as Path, offset: u64 as Bytes, data: Data as Content }
    /// So many blocks of 4 KiB, one every so many bytes, of a letter.
    "scatter" scatter Scatter { path: String as Path, count: u64 as Number, step: u64 as Bytes, letter: u8 as Letter }
    "truncate" truncate Truncate { path: String as Path, size_bytes: u64 as Bytes }
    /// The verb says how.
    "prealloc" fallocate Fallocate { how: Prealloc as Fallocated, path: String as Path, offset: u64 as Bytes, len: u64 as Bytes }
    /// FICLONERANGE; nothing means all to the end.
    "clone-range" clone_range CloneRange {
        from: String as Path, from_offset: u64 as Bytes, to: String as Path, to_offset: u64 as Bytes, len: u64 as Bytes
    }
    /// Copies as much as there is, sharing extents. The target is made where it is missing.
    "clone" copy Copy {
        from: String as Path, from_offset: u64 as Bytes, to: String as Path, to_offset: u64 as Bytes, len: u64 as Bytes
    }
    /// FIDEDUPERANGE: shares what is the same already; fails where not all is.
    "dedupe" dedupe Dedupe {
        from: String as Path, from_offset: u64 as Bytes, to: String as Path, to_offset: u64 as Bytes, len: u64 as Bytes
    }
    /// Writes runs of small extents anew as larger ones, and with `compress` whatever is not
    /// compressed so.
    "defrag" defrag Defrag {
        path: String as Path, offset: u64 as Bytes, len: u64 as Rest, target_bytes: u64 as Bytes,
        compress: Option<Compression> as Squeeze
    }
    /// Exchanges ranges of two files from the same offset on, or all behind it.
    "swap" swap Swap { a: String as Path, b: String as Path, offset: u64 as Bytes, len: Option<u64> as Len }
    /// Writes that happen all at once, and durably, or not at all.
    "group" group Group { commit: bool as Commit, writes: Vec<Staged> as Paths }
    /// Begins an atomic group of files, which stays open: the library's, or that of a handle, of
    /// one file.
    "begin" begin Begin { by_handle: bool as Made, group: u8 as Number, paths: Vec<String> as Paths }
    /// Writes into a file of an open group.
    "stage" stage Stage { group: u8 as Number, file: u8 as Number, offset: u64 as Bytes, len: usize as Number, fill: u64 as Number }
    /// Ends an open group: it happens, durably, or not.
    "end" end End { group: u8 as Number, commit: bool as Commit }
    /// The flags of `chattr` that a file shall have.
    "flags" flags Flags { path: String as Path, flags: u32 as Hex }
    /// An empty file that is written in place, `chattr +C`.
    "in-place" in_place InPlace { path: String as Path }
    "rename" rename Rename { from: String as Path, to: String as Path }
    /// A rename that leaves a whiteout, as overlayfs does.
    "whiteout" whiteout Whiteout { from: String as Path, to: String as Path }
    "exchange" exchange Exchange { from: String as Path, to: String as Path }
    "link" link Link { from: String as Path, to: String as Path }
    "unlink" unlink Unlink { path: String as Path }
    "symlink" symlink Symlink { target: String as Word, path: String as Path }
    /// The verb says which kind.
    "mknod" mknod Mknod { kind: Kind as Made, path: String as Path }
    "mkdir" mkdir Mkdir { path: String as Path }
    "rmdir" rmdir Rmdir { path: String as Path }
    "chmod" chmod Chmod { path: String as Path, perm: u32 as Octal }
    /// To this uid and gid.
    "chown" chown Chown { path: String as Path, id: u32 as Number }
    /// Time of access and of modification, in seconds.
    "utime" utime Utime { path: String as Path, secs: u32 as Number }
    "setx" set_xattr SetXattr { path: String as Path, name: String as Word, value: Data as Value }
    "rmx" remove_xattr RemoveXattr { path: String as Path, name: String as Word }
    /// O_TMPFILE in the directory, a write, perhaps an fsync, linkat.
    "temporary" temporary Temporary { dir: String as Path, to: String as Path, data: Data as Content, fsync: bool as Fsynced }
    /// A file without a name, held open.
    "tmpfile" tmpfile Tmpfile { slot: String as Word, dir: String as Path }
    "open" open Open { slot: String as Word, path: String as Path }
    "close" close Close { slot: String as Word }
    /// So many empty files whose names begin so, with numbers from 0.
    "many" many Many { prefix: String as Path, count: u64 as Number }
    /// So many links of a file, likewise.
    "manylinks" many_links ManyLinks { from: String as Path, prefix: String as Path, count: u64 as Number }
    /// Every n-th of so many files.
    "unlink-every" unlink_every UnlinkEvery { nth: u64 as Number, prefix: String as Path, count: u64 as Number }
    "fsync" fsync Fsync { path: String as Path }
    "fdatasync" fdatasync Fdatasync { path: String as Path }
    /// A subvolume at this path: the kernel makes it.
    "subvolume" subvolume Subvolume { path: String as Path }
    /// Of a subvolume, at this path; likewise.
    "snapshot" snapshot Snapshot { from: String as Path, to: String as Path }
    /// Likewise.
    "delete-subvolume" delete_subvolume DeleteSubvolume { path: String as Path }
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
        Op::write_how(How::Plain, path, offset, Data::Fill { len, fill })
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
            // What is dirty in its range comes to disk with it, and what was written with that
            // beside the range does not. So it is on Linux, which writes back the range before it
            // compares.
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

    /// It has no visible effect, whether it succeeds or not: content, size and times stay.
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

    /// Marks a file whose data is written in place.
    pub fn makes_in_place(&self) -> bool {
        match self {
            Op::Flags { flags, .. } => flags & chattr::NOCOW != 0,
            Op::InPlace { .. } => true,
            _ => false,
        }
    }
}
