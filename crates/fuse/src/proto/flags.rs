//! Flag words of the protocol.

use bitflags::bitflags;

bitflags! {
    /// INIT: what kernel and server can do. The upper half travels in `flags2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const SPLICE_WRITE = 1 << 7;
        const SPLICE_MOVE = 1 << 8;
        const SPLICE_READ = 1 << 9;
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        /// Implies that the kernel checks permissions (default_permissions).
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const CREATE_SUPP_GROUP = 1 << 34;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
        const _ = !0;
    }

    /// SETATTR: which fields count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
        const _ = !0;
    }

    /// WRITE.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WireWriteFlags: u32 {
        const CACHE = 1 << 0;
        const LOCKOWNER = 1 << 1;
        const KILL_SUIDGID = 1 << 2;
        const _ = !0;
    }

    /// The reply to OPEN, OPENDIR and CREATE.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct OpenOutFlags: u32 {
        const DIRECT_IO = 1 << 0;
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        const NOFLUSH = 1 << 5;
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// IOCTL.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct IoctlFlags: u32 {
        const COMPAT = 1 << 0;
        const UNRESTRICTED = 1 << 1;
        const RETRY = 1 << 2;
        const IS_32BIT = 1 << 3;
        const DIR = 1 << 4;
        const COMPAT_X32 = 1 << 5;
        const _ = !0;
    }
}

/// GETATTR and STATX: the handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// READ, `read_flags`: a lock owner is there. Linux names one for reads past the page cache, and
/// for no others.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// OPEN and CREATE, `open_flags`: strip set-id bits when truncating.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// SETXATTR, `setxattr_flags`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// FSYNC and FSYNCDIR.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// Notification of a stale entry: let it expire instead of dropping it.
pub const EXPIRE_ONLY: u32 = 1 << 0;
