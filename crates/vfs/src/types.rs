//! The nouns of the contract: nodes, attributes, entries, flags.

use std::time::Duration;

use bitflags::bitflags;
pub use cowshed_runtime::Timestamp;

/// A node as front ends name it for as long as they remember it (see
/// [`crate::FileSystem::forget`]). Need not be the inode number that `stat` shows: a file system
/// with several subvolumes has the same inode number more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory of the mount. Always known, never forgotten.
    pub const ROOT: NodeId = NodeId(1);
}

/// An open file or directory, chosen by the file system in `open`, `create` or `opendir`. Front
/// ends that did not open (see [`Capabilities::stateless_open`]) pass [`Handle::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle(pub u64);

impl Handle {
    /// No handle: the node alone says what is meant.
    pub const NONE: Handle = Handle(0);

    /// Marks handles that say how they were opened. Below it are the flags, so that no table of
    /// handles is needed; above it a number that tells handles apart.
    const WITH_FLAGS: u64 = 1 << 32;
    const NUMBER_SHIFT: u32 = 33;
    /// Numbers of handles come round after so many: the bits that a handle has for them.
    pub const NUMBERS: u64 = 1 << (64 - Handle::NUMBER_SHIFT);

    /// A handle that says how it was opened. `number` is below [`Handle::NUMBERS`].
    pub const fn with_flags(flags: OpenFlags, number: u64) -> Handle {
        Handle(number << Handle::NUMBER_SHIFT | Handle::WITH_FLAGS | flags.bits() as u64)
    }

    /// How it was opened; `None` for handles that do not say so, [`Handle::NONE`] among them.
    pub const fn flags(self) -> Option<OpenFlags> {
        if self.0 & Handle::WITH_FLAGS == 0 {
            return None;
        }
        Some(OpenFlags::from_bits_truncate(self.0 as u32))
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A file with content.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device node of block type.
    BlockDevice,
    /// A device node of character type.
    CharDevice,
    /// A named pipe.
    Fifo,
    /// A socket bound to a name.
    Socket,
}

// As Linux has them and as they lie on disk, whatever this system calls them.
const S_IFMT: u32 = 0o170_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFSOCK: u32 = 0o140_000;

impl FileKind {
    /// The `S_IF*` bits.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => S_IFREG,
            FileKind::Directory => S_IFDIR,
            FileKind::Symlink => S_IFLNK,
            FileKind::BlockDevice => S_IFBLK,
            FileKind::CharDevice => S_IFCHR,
            FileKind::Fifo => S_IFIFO,
            FileKind::Socket => S_IFSOCK,
        }
    }

    /// The `DT_*` value of directory entries.
    pub const fn dirent_type(self) -> u8 {
        (self.mode_bits() >> 12) as u8
    }

    /// From the `S_IF*` bits of a mode; None if they name no kind.
    pub const fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & S_IFMT {
            S_IFREG => FileKind::Regular,
            S_IFDIR => FileKind::Directory,
            S_IFLNK => FileKind::Symlink,
            S_IFBLK => FileKind::BlockDevice,
            S_IFCHR => FileKind::CharDevice,
            S_IFIFO => FileKind::Fifo,
            S_IFSOCK => FileKind::Socket,
            _ => return None,
        })
    }
}

/// The permission bits, set-id bits and sticky bit of a mode.
pub const PERM_MASK: u32 = 0o7777;

/// What `stat` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode number for users.
    pub ino: u64,
    /// Size of the content in bytes; of a symbolic link, the length of its target; of a directory,
    /// what the format counts.
    pub size_bytes: u64,
    /// Allocated space in units of 512 bytes.
    pub blocks_512: u64,
    /// `blocks_512` is an upper bound for now, and becomes exact without a further call: front ends
    /// do not cache these attributes.
    pub is_estimate: bool,
    /// Preferred I/O size in bytes.
    pub blksize: u32,
    /// Kind of node.
    pub kind: FileKind,
    /// Permission bits ([`PERM_MASK`]), without the kind.
    pub perm: u32,
    /// Number of names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in Linux' `new_encode_dev` form (see [`rdev`]).
    pub rdev: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
    /// Birth time.
    pub btime: Timestamp,
}

impl Attr {
    /// Kind and permission bits together, as `st_mode`.
    pub const fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.perm
    }

    /// Whether this is a directory.
    pub const fn is_dir(&self) -> bool {
        matches!(self.kind, FileKind::Directory)
    }
}

/// The 32-bit device number that protocols and disks use: minor low byte, 12 bits of major, then
/// the rest of the minor.
pub const fn rdev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The file system's clock, when it applies the change.
    Now,
    /// This time.
    At(Timestamp),
}

/// What to change about a node. Absent fields stay. Every successful change also sets ctime to now,
/// unless `ctime` is given. A call without a handle that sets nothing but the size that the file
/// has already changes nothing, its times included, except where that size is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits ([`PERM_MASK`]).
    pub perm: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// Truncate or extend with a hole, in bytes.
    pub size_bytes: Option<u64>,
    /// New time of last access.
    pub atime: Option<SetTime>,
    /// New time of the last change of content.
    pub mtime: Option<SetTime>,
    /// New time of the last change; without it, the file system's clock.
    pub ctime: Option<Timestamp>,
    /// The size changes on behalf of a caller without the right to keep set-id bits: strip them,
    /// see [`crate::perm::perm_after_write`]. A change of owner always strips them.
    pub kill_suidgid: bool,
}

/// A node found under a name. Each one returned by the file system counts one lookup, which the
/// front end gives back by `forget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number by which later calls name it.
    pub node: NodeId,
    /// Together with `node`, unique for the life of the file system.
    pub generation: u64,
    /// Its attributes now.
    pub attr: Attr,
    /// How long a front end may remember that the name leads here, without asking.
    pub entry_valid: Duration,
    /// How long it may remember the attributes. Its own changes through the same front end are
    /// always seen.
    pub attr_valid: Duration,
}

/// The answer to `lookup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The name exists.
    Found(Entry),
    /// There is no such name, and this may be remembered for so long.
    Absent {
        /// How long a front end may remember that the name is absent.
        valid: Duration,
    },
}

/// One name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Without NUL and `/`.
    pub name: &'a [u8],
    /// The inode number for users.
    pub ino: u64,
    /// Kind of the node it leads to.
    pub kind: FileKind,
    /// Where to resume **after** this entry. Never 0; fits in 63 bits.
    pub cookie: u64,
}

bitflags! {
    /// How a file is opened. Bits are our own; [`OpenFlags::from_raw`] reads Linux' `O_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct OpenFlags: u32 {
        /// The content will be read.
        const READ = 1 << 0;
        /// The content will be changed.
        const WRITE = 1 << 1;
        /// Writes go to the end; front ends pass the end as offset, and [`WriteFlags::APPEND`].
        const APPEND = 1 << 2;
        /// Truncate to zero on open, in one step with it.
        const TRUNCATE = 1 << 3;
        /// With create: fail if the name exists. With tmpfile: never to be linked.
        const EXCLUSIVE = 1 << 4;
        /// Create the file if the name does not exist.
        const CREATE = 1 << 5;
        /// O_DIRECT: past the caches of the front end.
        const DIRECT = 1 << 6;
        /// O_SYNC: each write is durable with all metadata.
        const SYNC = 1 << 7;
        /// O_DSYNC: each write is durable with what is needed to read it back.
        const DATA_SYNC = 1 << 8;
        /// Reading does not move atime.
        const NO_ATIME = 1 << 9;
        /// O_NONBLOCK; without effect on files and directories.
        const NON_BLOCK = 1 << 10;
        /// Opened for execution.
        const EXEC = 1 << 11;
    }
}

/// Linux' `FMODE_EXEC` as it appears in the open flags that the kernel passes on.
const RAW_FMODE_EXEC: i32 = 0x20;

impl OpenFlags {
    /// From the `O_*` bits of this system. Unknown bits are dropped.
    pub fn from_raw(raw: i32) -> OpenFlags {
        let mut flags = match raw & libc::O_ACCMODE {
            libc::O_RDONLY => OpenFlags::READ,
            libc::O_WRONLY => OpenFlags::WRITE,
            _ => OpenFlags::READ | OpenFlags::WRITE,
        };
        for (bit, flag) in [
            (libc::O_APPEND, OpenFlags::APPEND),
            (libc::O_TRUNC, OpenFlags::TRUNCATE),
            (libc::O_EXCL, OpenFlags::EXCLUSIVE),
            (libc::O_CREAT, OpenFlags::CREATE),
            #[cfg(target_os = "linux")]
            (libc::O_DIRECT, OpenFlags::DIRECT),
            (libc::O_SYNC, OpenFlags::SYNC),
            (libc::O_DSYNC, OpenFlags::DATA_SYNC),
            #[cfg(target_os = "linux")]
            (libc::O_NOATIME, OpenFlags::NO_ATIME),
            (libc::O_NONBLOCK, OpenFlags::NON_BLOCK),
            (RAW_FMODE_EXEC, OpenFlags::EXEC),
        ] {
            flags.set(flag, raw & bit == bit);
        }
        flags
    }
}

/// A request to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// How the file is used.
    pub flags: OpenFlags,
    /// With TRUNCATE: strip set-id bits as [`SetAttr::kill_suidgid`] does.
    pub kill_suidgid: bool,
}

bitflags! {
    /// What a front end may or must do with an open file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OpenHints: u32 {
        /// Every read and write comes to the file system; nothing is cached.
        const DIRECT_IO = 1 << 0;
        /// What is cached of the content stays valid. The right answer for a file system that
        /// changes only through the mount.
        const KEEP_CACHE = 1 << 1;
        /// Directory: its listing may be cached.
        const CACHE_DIR = 1 << 2;
        /// `flush` need not be called for this file.
        const NO_FLUSH = 1 << 3;
        /// Direct writes within the file may run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 4;
        /// The file has no offsets: seeking fails.
        const NON_SEEKABLE = 1 << 5;
    }
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Names the open file in later calls.
    pub handle: Handle,
    /// What front ends may do with it.
    pub hints: OpenHints,
}

bitflags! {
    /// How a write is meant.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WriteFlags: u32 {
        /// Strip set-id bits, see [`crate::perm::perm_after_write`].
        const KILL_SUIDGID = 1 << 0;
        /// To the end of the file as the file system knows it, whatever the offset says.
        const APPEND = 1 << 1;
        /// Past the caches.
        const DIRECT = 1 << 2;
        /// O_SYNC or O_DSYNC: durable when the call returns. A front end may call `fsync`
        /// afterwards instead (FUSE does).
        const SYNC = 1 << 3;
        /// Written back from a front end's cache: the caller is not the writer, and times are not
        /// to change.
        const FROM_CACHE = 1 << 4;
        /// The file was opened with O_APPEND. Said where the front end opened it, and not asked
        /// where there is a handle.
        const OPENED_TO_APPEND = 1 << 5;
    }

    /// `renameat2` flags; the values are Linux'.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RenameFlags: u32 {
        /// Fail with [`crate::Error::Exists`] if the new name exists.
        const NO_REPLACE = 1;
        /// Swap the two; both must exist.
        const EXCHANGE = 2;
        /// Leave a whiteout (character device 0:0) under the old name. Not with EXCHANGE.
        const WHITEOUT = 4;
    }

    /// `fallocate` modes; the values are Linux'. Without a flag: allocate, extend the size.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FallocateFlags: u32 {
        /// The size stays, also where blocks are allocated behind the end.
        const KEEP_SIZE = 0x01;
        /// Make the range a hole. Only with KEEP_SIZE.
        const PUNCH_HOLE = 0x02;
        /// Remove the range; what is behind it moves down.
        const COLLAPSE_RANGE = 0x08;
        /// Make the range read as zeros, and allocate it.
        const ZERO_RANGE = 0x10;
        /// Insert a hole; what was at its place and behind it moves up.
        const INSERT_RANGE = 0x20;
        /// Give the range blocks that no other file shares.
        const UNSHARE_RANGE = 0x40;
    }

    /// `setxattr` flags; the values are Linux'.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SetXattrFlags: u32 {
        /// Fail with [`crate::Error::Exists`] if the attribute exists.
        const CREATE = 1;
        /// Fail with [`crate::Error::NoData`] if it does not.
        const REPLACE = 2;
        /// Ours: setting the access ACL must also clear the set-group-id bit, the caller not being
        /// in the file's group.
        const KILL_SGID = 1 << 8;
    }

    /// Kinds of access that `access` asks for; the values are POSIX'.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u32 {
        /// Execute a file, search a directory.
        const EXEC = 1;
        /// Change content; of a directory, its names.
        const WRITE = 2;
        /// Read content; of a directory, list names.
        const READ = 4;
    }
}

/// What `lseek` looks for, at or after the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekKind {
    /// An offset that has data.
    Data,
    /// An offset in a hole; the end of the file is one.
    Hole,
}

/// An ioctl whose argument is a plain structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl {
    /// The full command number, with direction and size in it.
    pub cmd: u32,
    /// The argument word as the caller passed it: a pointer in the caller's memory, or a plain
    /// number.
    pub arg: u64,
    /// The caller is a 32-bit process.
    pub compat: bool,
}

/// The end of an ioctl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// The return value for the caller, not negative.
    pub result: i32,
    /// How many bytes of the output buffer were filled.
    pub out_bytes: usize,
}

/// What `statfs` shows. Counts of blocks are in `frsize` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Size of the file system.
    pub blocks: u64,
    /// Blocks that are not in use.
    pub blocks_free: u64,
    /// Free to unprivileged callers.
    pub blocks_available: u64,
    /// Inodes that the file system can hold; 0: no fixed number.
    pub files: u64,
    /// Inodes that can still be made; 0 with `files`.
    pub files_free: u64,
    /// Preferred I/O size in bytes.
    pub bsize: u32,
    /// Fragment size in bytes: the unit of the counts.
    pub frsize: u32,
    /// Longest name in bytes.
    pub name_bytes_max: u32,
}

/// The side that checks permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermissionChecks {
    /// The front end has checked each caller against the mode bits and ACLs that the file system
    /// reports; the file system checks only what no front end can know (immutable and append-only
    /// flags, read-only subvolumes, xattr name spaces).
    FrontEnd,
    /// The file system checks every call against [`crate::Context`], with [`crate::perm`].
    FileSystem,
}

/// What the front end is, told to the file system once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitInfo {
    /// Whether the front end or the file system checks permissions.
    pub checks: PermissionChecks,
    /// The front end refuses every change itself.
    pub read_only: bool,
    /// Largest read and write in bytes that will come in one call.
    pub io_bytes_max: usize,
}

impl InitInfo {
    /// A front end that trusts the caller, for tools and tests.
    pub const TRUSTED: InitInfo = InitInfo {
        checks: PermissionChecks::FrontEnd,
        read_only: false,
        io_bytes_max: 1 << 20,
    };
}

/// What the file system wants of front ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `open` and `release` of files need not be called: every call works with [`Handle::NONE`]. A
    /// front end may still call them.
    pub stateless_open: bool,
    /// The same for `opendir` and `releasedir`.
    pub stateless_opendir: bool,
    /// `flush` on each close is wanted.
    pub wants_flush: bool,
    /// `system.posix_acl_*` attributes work, and `create` etc. apply default ACLs and the umask.
    pub posix_acl: bool,
    /// Directory listings may be cached until the directory changes.
    pub cache_dirs: bool,
    /// Nodes are found again by their numbers after they were forgotten
    /// ([`crate::FileSystem::lookup_node`], [`crate::FileSystem::lookup_parent`]), so that file
    /// handles made of number and generation stay good.
    pub file_handles: bool,
    /// How long attributes that `getattr` and `setattr` return may be remembered.
    pub attr_valid: Duration,
    /// Granularity of timestamps.
    pub time_granularity_nanos: u32,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities {
            stateless_open: false,
            stateless_opendir: false,
            wants_flush: false,
            posix_acl: true,
            cache_dirs: false,
            file_handles: false,
            attr_valid: Duration::from_secs(3600),
            time_granularity_nanos: 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_through_mode_bits() {
        use FileKind::*;
        for kind in [Regular, Directory, Symlink, BlockDevice, CharDevice, Fifo, Socket] {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o644), Some(kind));
        }
        assert_eq!(FileKind::from_mode(0o644), None);
        assert_eq!(Directory.dirent_type(), libc::DT_DIR);
    }

    #[test]
    fn open_flags_from_linux() {
        let f = OpenFlags::from_raw(libc::O_RDWR | libc::O_SYNC | libc::O_TRUNC);
        assert_eq!(
            f,
            OpenFlags::READ | OpenFlags::WRITE | OpenFlags::SYNC | OpenFlags::DATA_SYNC | OpenFlags::TRUNCATE
        );
        assert_eq!(
            OpenFlags::from_raw(libc::O_WRONLY | libc::O_DSYNC),
            OpenFlags::WRITE | OpenFlags::DATA_SYNC
        );
        assert_eq!(OpenFlags::from_raw(0), OpenFlags::READ);
    }

    #[test]
    fn device_numbers_pack_as_linux_does() {
        assert_eq!(rdev(8, 1), 0x801);
        assert_eq!(rdev(259, 300), (300 & 0xff) | (259 << 8) | (0x100 << 12));
    }
}
