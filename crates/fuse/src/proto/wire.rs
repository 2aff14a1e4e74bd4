//! The structures of the protocol, as the kernel's user interface header `<linux/fuse.h>` lays them
//! out (protocol 7.31 to 7.45).
//!
//! All integers are in the byte order of the machine; every structure is a multiple of 8 bytes
//! without padding of the compiler's own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident $size:literal { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

wire! {
    /// Opens every request.
    InHeader 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        /// Length of the extensions at the end, in units of 8 bytes.
        total_extlen: u16,
        padding: u16,
    }
    /// Opens every reply and every notification (there `unique` is 0 and `error` a notification
    /// code).
    OutHeader 16 { len: u32, error: i32, unique: u64, }

    /// The attributes of a node.
    WireAttr 88 {
        ino: u64, size: u64, blocks: u64,
        atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    EntryOut 128 {
        nodeid: u64, generation: u64,
        entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32, attr_valid_nsec: u32,
        attr: WireAttr,
    }
    AttrOut 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: WireAttr, }

    InitIn 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    /// What kernels before 7.36 send, and the beginning of what later ones do.
    InitInShort 16 { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    InitOut 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32,
        max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11],
    }

    ForgetIn 8 { nlookup: u64, }
    ForgetOne 16 { nodeid: u64, nlookup: u64, }
    BatchForgetIn 8 { count: u32, dummy: u32, }
    GetattrIn 16 { getattr_flags: u32, dummy: u32, fh: u64, }
    SetattrIn 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    MknodIn 16 { mode: u32, rdev: u32, umask: u32, padding: u32, }
    MkdirIn 8 { mode: u32, umask: u32, }
    RenameIn 8 { newdir: u64, }
    Rename2In 16 { newdir: u64, flags: u32, padding: u32, }
    LinkIn 8 { oldnodeid: u64, }
    OpenIn 8 { flags: u32, open_flags: u32, }
    CreateIn 16 { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    OpenOut 16 { fh: u64, open_flags: u32, backing_id: i32, }
    ReleaseIn 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn 24 { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// READ, READDIR and READDIRPLUS.
    ReadIn 40 { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    WriteIn 40 { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// WRITE and COPY_FILE_RANGE.
    WriteOut 8 { size: u32, padding: u32, }
    StatfsOut 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64,
        bsize: u32, namelen: u32, frsize: u32, padding: u32, spare: [u32; 6],
    }
    FsyncIn 16 { fh: u64, fsync_flags: u32, padding: u32, }
    /// Before 7.33, or without SETXATTR_EXT.
    SetxattrInShort 8 { size: u32, flags: u32, }
    SetxattrIn 16 { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// GETXATTR and LISTXATTR.
    GetxattrIn 8 { size: u32, padding: u32, }
    GetxattrOut 8 { size: u32, padding: u32, }
    AccessIn 8 { mask: u32, padding: u32, }
    IoctlIn 32 { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, }
    IoctlOut 16 { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, }
    FallocateIn 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    LseekIn 24 { fh: u64, offset: u64, whence: u32, padding: u32, }
    LseekOut 8 { offset: u64, }
    CopyFileRangeIn 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    /// COPY_FILE_RANGE_64.
    CopyFileRangeOut 8 { bytes_copied: u64, }
    InterruptIn 8 { unique: u64, }

    /// Followed by the name, padded to 8 bytes.
    Dirent 24 { ino: u64, off: u64, namelen: u32, kind: u32, }

    StatxIn 24 { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    SxTime 16 { tv_sec: i64, tv_nsec: u32, reserved: i32, }
    Statx 256 {
        mask: u32, blksize: u32, attributes: u64,
        nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32,
        spare2: [u64; 14],
    }
    StatxOut 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx, }

    /// One extension at the end of a request.
    ExtHeader 8 { size: u32, kind: u32, }

    /// What an entry of an io_uring queue says beside the headers.
    UringEntInOut 32 { flags: u64, commit_id: u64, payload_sz: u32, padding: u32, reserved: u64, }
    /// The command of an io_uring submission.
    UringCmdReq 24 { flags: u64, commit_id: u64, qid: u16, padding: [u8; 6], }

    NotifyInvalInode 24 { ino: u64, off: i64, len: i64, }
    /// Followed by the name and a NUL.
    NotifyInvalEntry 16 { parent: u64, namelen: u32, flags: u32, }
    /// Node numbers come after it.
    NotifyPrune 16 { count: u32, padding: u32, spare: u64, }
}

/// [`ExtHeader`] kind: a count (32 bits) and that many group ids of the caller.
pub const EXT_GROUPS: u32 = 32;

/// Bytes of each of the two areas before the [`UringEntInOut`] in the header of an io_uring entry:
/// the request's [`InHeader`] or the reply's [`OutHeader`], then the fixed structure of the
/// operation.
pub const URING_AREA_BYTES: usize = 128;

/// Commands of FUSE over io_uring.
pub mod uring {
    /// No command: the kernel refuses it.
    pub const INVALID: u32 = 0;
    /// An entry is ready for its first request.
    pub const REGISTER: u32 = 1;
    /// The reply is in place, the next request may come.
    pub const COMMIT_AND_FETCH: u32 = 2;
}

/// Notification codes.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    /// Since 7.44 (Linux 6.16).
    pub const INC_EPOCH: i32 = 8;
    /// Since 7.45 (Linux 6.18).
    pub const PRUNE: i32 = 9;
}

/// The smallest buffer that the kernel accepts for reading requests.
pub const MIN_READ_BUFFER_BYTES: usize = 8192;
/// The root directory's node number, as the kernel knows it.
pub const ROOT_ID: u64 = 1;

macro_rules! opcodes {
    ($($name:ident = $value:literal,)*) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Opcode { $($name = $value,)* }

        impl Opcode {
            /// Every opcode, for tests.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];

            /// None for a number that this implementation does not know.
            pub const fn from_raw(raw: u32) -> Option<Opcode> {
                match raw { $($value => Some(Opcode::$name),)* _ => None }
            }

            /// Does a number stand for FORGET, of one node or of many? Nothing waits for it, and it
            /// has no reply.
            pub const fn is_forget(raw: u32) -> bool {
                matches!(Opcode::from_raw(raw), Some(Opcode::Forget | Opcode::BatchForget))
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, Getattr = 3, Setattr = 4, Readlink = 5, Symlink = 6, Mknod = 8, Mkdir = 9,
    Unlink = 10, Rmdir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, Statfs = 17,
    Release = 18, Fsync = 20, Setxattr = 21, Getxattr = 22, Listxattr = 23, Removexattr = 24, Flush = 25,
    Init = 26, Opendir = 27, Readdir = 28, Releasedir = 29, Fsyncdir = 30, Getlk = 31, Setlk = 32,
    Setlkw = 33, Access = 34, Create = 35, Interrupt = 36, Bmap = 37, Destroy = 38, Ioctl = 39, Poll = 40,
    NotifyReply = 41, BatchForget = 42, Fallocate = 43, Readdirplus = 44, Rename2 = 45, Lseek = 46,
    CopyFileRange = 47, Setupmapping = 48, Removemapping = 49, Syncfs = 50, Tmpfile = 51, Statx = 52,
    CopyFileRange64 = 53,
}
