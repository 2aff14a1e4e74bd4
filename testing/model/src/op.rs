//! Operations as data.

use cowshed_vfs::{FallocateFlags, FileKind, RenameFlags, SetXattrFlags, Timestamp};

use crate::Name;

/// Which node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    Path(Vec<Name>),
    /// One that is held open, with or without a name.
    Slot(u8),
}

/// Which name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub dir: At,
    pub name: Name,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    Keep,
    Now,
    At(Timestamp),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekFrom {
    Data,
    Hole,
}

/// Extended attributes by number, [`PROPERTY`] included.
pub const XATTR_NAMES: u8 = 8;
/// The number of `btrfs.compression`, which has rules of its own.
pub const PROPERTY: u8 = 7;

/// Values of the property: those that mean something, with and without a level, and some that do
/// not.
pub const PROPERTY_VALUES: [&[u8]; 9] = [
    b"zlib", b"lzo", b"zstd", b"zlib:9", b"zstd:-3", b"none", b"no", b"", b"lz4",
];

pub fn xattr_name(number: u8) -> Vec<u8> {
    match number {
        0 => b"user.a".to_vec(),
        1 => b"user.b".to_vec(),
        2 => b"trusted.overlay".to_vec(),
        3 => b"security.label".to_vec(),
        4 => [&b"user."[..], &[b'n'; 250]].concat(),
        // The same hash after the same prefix.
        5 => b"user.qxjwxhwb".to_vec(),
        PROPERTY => b"btrfs.compression".to_vec(),
        _ => b"user.tenodxqc".to_vec(),
    }
}

/// Atomic groups that can be open at once. The last ones are those of a handle: START_ATOMIC_WRITE
/// and its like, for one file each.
pub const GROUPS: u8 = 5;
pub(crate) const GROUPS_OF_HANDLES: u8 = 2;

/// What a defragmentation may compress with, by number.
pub const COMPRESSIONS: [&str; 4] = ["zlib:1", "lzo", "zstd:-3", "zstd:9"];

/// Makes the type, and a function for each operation.
macro_rules! vocabulary {
    ($($(#[$doc:meta])* $new:ident $name:ident { $($field:ident: $ty:ty),* })* / $($(#[$unit_doc:meta])* $unit:ident)*) => {
        /// One operation.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Op {
            $($(#[$doc])* $name { $($field: $ty),* },)*
            $($(#[$unit_doc])* $unit,)*
        }

        impl Op {
            $($(#[$doc])* pub fn $new($($field: $ty),*) -> Op {
                Op::$name { $($field),* }
            })*
        }
    };
}

vocabulary! {
    /// Opens, creating a file where there is none, and closes again.
    create Create { place: Place, perm: u32, exclusive: bool, truncate: bool }
    mknod Mknod { place: Place, kind: FileKind, perm: u32, rdev: u32 }
    mkdir Mkdir { place: Place, perm: u32 }
    symlink Symlink { place: Place, target_bytes: u16, fill: u64 }
    link Link { at: At, place: Place }
    unlink Unlink { place: Place }
    rmdir Rmdir { place: Place }
    rename Rename { from: Place, to: Place, flags: RenameFlags }
    tmpfile Tmpfile { slot: u8, dir: At, perm: u32, exclusive: bool }
    /// Holds a node in a slot; what the slot held is let go.
    open Open { slot: u8, at: At }
    close Close { slot: u8 }
    write Write { at: At, offset: u64, len: u32, fill: u64, append: bool }
    truncate Truncate { at: At, size: u64 }
    fallocate Fallocate { at: At, mode: FallocateFlags, offset: u64, len: u64 }
    read Read { at: At, offset: u64, len: u32 }
    seek Seek { at: At, offset: u64, what: SeekFrom }
    copy Copy { src: At, src_offset: u64, dst: At, dst_offset: u64, len: u64 }
    /// Shares a range of a file with another, as FICLONERANGE.
    clone_range Clone { src: At, src_offset: u64, dst: At, dst_offset: u64, len: u64 }
    /// The same where both hold the same already, as FIDEDUPERANGE.
    dedupe Dedupe { src: At, src_offset: u64, dst: At, dst_offset: u64, len: u64 }
    /// Exchanges ranges of two files, as XFS_IOC_EXCHANGE_RANGE.
    exchange Exchange { a: At, a_offset: u64, b: At, b_offset: u64, len: u64, to_eof: bool }
    /// Writes runs of extents smaller than wanted anew, and what is compressed otherwise than by
    /// [`COMPRESSIONS`]: without a visible effect.
    defrag Defrag { at: At, offset: u64, len: u64, target: u64, compress: Option<u8> }
    /// Blocks that have data, as FIEMAP shows them.
    map Map { at: At }
    /// Adds a write to an atomic group, which begins with the first. One of a handle
    /// ([`Op::is_of_handle`]) has the file of its first write, whatever `at` says later.
    stage Stage { group: u8, at: At, offset: u64, len: u32, fill: u64 }
    /// Ends a group: what was staged happens, all at once, and is durable; or nothing of it does.
    end_group EndGroup { group: u8, commit: bool }
    /// Reads through the handle of a group, which sees what is staged.
    read_staged ReadStaged { group: u8, offset: u64, len: u32 }
    /// The property `btrfs.compression`, by the number of its value; `None` removes it.
    property Property { at: At, value: Option<u8> }
    set_xattr SetXattr { at: At, name: u8, len: u32, fill: u64, flags: SetXattrFlags }
    remove_xattr RemoveXattr { at: At, name: u8 }
    chmod Chmod { at: At, perm: u32 }
    chown Chown { at: At, uid: Option<u32>, gid: Option<u32> }
    utimes Utimes { at: At, atime: Touch, mtime: Touch }
    /// `chattr`: sets all flags.
    flags Flags { at: At, flags: u32 }
    list List { at: At }
    fsync Fsync { at: At }
    /
    /// Everything is on disk.
    Sync
    /// The transaction is written out; dirty data may stay in memory.
    Commit
    /// As `Sync`, and what is cached of the volume is forgotten.
    Cool
    /// Unmounts and mounts again.
    Remount
}

/// `FS_NODUMP_FL` and its like, as far as the model knows them.
pub(crate) mod chattr {
    pub const COMPR: u32 = 0x4;
    pub const NOCOMP: u32 = 0x400;
    pub const NODUMP: u32 = 0x40;
    pub const NOATIME: u32 = 0x80;
    pub const DIRSYNC: u32 = 0x1_0000;
    pub const NOCOW: u32 = 0x80_0000;
}

impl Op {
    /// Files are never written in place.
    pub const NOCOW: u32 = chattr::NOCOW;

    /// Is the group of this number one of a handle?
    pub fn is_of_handle(group: u8) -> bool {
        group >= GROUPS - GROUPS_OF_HANDLES
    }

    /// The nodes whose attributes the operation may have changed, as they are named before it.
    pub fn touched(&self) -> Vec<At> {
        let child = |place: &Place| match &place.dir {
            At::Path(path) => At::Path(path.iter().copied().chain([place.name]).collect()),
            At::Slot(slot) => At::Slot(*slot),
        };
        match self {
            Op::Create { place, .. }
            | Op::Mknod { place, .. }
            | Op::Mkdir { place, .. }
            | Op::Symlink { place, .. }
            | Op::Unlink { place }
            | Op::Rmdir { place } => vec![place.dir.clone(), child(place)],
            Op::Link { at, place } => vec![at.clone(), place.dir.clone(), child(place)],
            Op::Rename { from, to, .. } => vec![from.dir.clone(), child(from), to.dir.clone(), child(to)],
            Op::Tmpfile { slot, dir, .. } => vec![dir.clone(), At::Slot(*slot)],
            Op::Open { at, .. }
            | Op::Write { at, .. }
            | Op::Truncate { at, .. }
            | Op::Fallocate { at, .. }
            | Op::Read { at, .. }
            | Op::Seek { at, .. }
            | Op::Defrag { at, .. }
            | Op::Map { at }
            | Op::Stage { at, .. }
            | Op::Property { at, .. }
            | Op::SetXattr { at, .. }
            | Op::RemoveXattr { at, .. }
            | Op::Chmod { at, .. }
            | Op::Chown { at, .. }
            | Op::Utimes { at, .. }
            | Op::Flags { at, .. }
            | Op::List { at }
            | Op::Fsync { at } => vec![at.clone()],
            Op::Copy { src, dst, .. } | Op::Clone { src, dst, .. } | Op::Dedupe { src, dst, .. } => {
                vec![src.clone(), dst.clone()]
            }
            Op::Exchange { a, b, .. } => vec![a.clone(), b.clone()],
            Op::EndGroup { .. }
            | Op::ReadStaged { .. }
            | Op::Close { .. }
            | Op::Sync
            | Op::Commit
            | Op::Cool
            | Op::Remount => Vec::new(),
        }
    }
}
