//! Outcomes of file-system calls, one to one with `errno`.

/// What a call may fail with. Each variant is one `errno` value; the doc says when a file system
/// uses it.
pub type Result<T> = std::result::Result<T, Error>;

/// The numbers of this system. Others than Linux lack two or three: the nearest that they have.
mod numbers {
    pub(super) use libc::*;

    #[cfg(not(target_os = "linux"))]
    pub(super) const ENOKEY: i32 = ENEEDAUTH;
    #[cfg(not(target_os = "linux"))]
    pub(super) const EUCLEAN: i32 = EFTYPE;
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    pub(super) const ENODATA: i32 = ENOATTR;
}

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $errno:ident, $text:literal;)*) => {
        /// An outcome that is not success. Corruption and device failures become [`Error::Io`]
        /// here; their details belong to the log of the file system that found them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(i32)]
        pub enum Error {
            $($(#[$doc])* #[error($text)] $name = numbers::$errno,)*
        }

        impl Error {
            /// Every variant.
            #[cfg(test)]
            pub(crate) const ALL: &[Error] = &[$(Error::$name),*];

            /// The error for an `errno` value (positive); a value that has no variant is an I/O
            /// error.
            #[cfg(test)]
            pub(crate) fn from_errno(errno: i32) -> Error {
                match errno { $(numbers::$errno => Error::$name,)* _ => Error::Io }
            }
        }
    };
}

errors! {
    /// The caller is neither owner nor privileged, or the node is immutable.
    NotPermitted = EPERM, "operation not permitted";
    /// No such name, or the node is gone.
    NotFound = ENOENT, "not found";
    /// A signal ended a wait.
    Interrupted = EINTR, "interrupted";
    /// The device failed, or the volume is corrupt at this place.
    Io = EIO, "input/output error";
    /// `lseek` for data or a hole at or after the end, or for data behind the last; a device node
    /// without its device.
    NoSuchDevice = ENXIO, "no such device or address, or no data beyond this offset";
    /// A value or a number of parts above a limit.
    TooBig = E2BIG, "argument too long";
    /// A handle that was never opened, or not for this kind of access.
    BadHandle = EBADF, "bad handle";
    /// The call would block and must not, or may succeed when it is repeated.
    Again = EAGAIN, "try again";
    /// There is no memory for what the call needs.
    NoMemory = ENOMEM, "out of memory";
    /// The mode bits or the access control list say no.
    AccessDenied = EACCES, "permission denied";
    /// A pointer of the caller leads nowhere.
    BadAddress = EFAULT, "bad address";
    /// The node is in use in a way that excludes this call.
    Busy = EBUSY, "busy";
    /// The name, or the attribute, exists.
    Exists = EEXIST, "already exists";
    /// Two nodes that must be in one file system, or in one subvolume, are not.
    CrossDevice = EXDEV, "would cross file systems or subvolumes";
    /// The device, or the kernel's driver for it, does not exist.
    NoDevice = ENODEV, "no such device";
    /// A directory is needed, and the node is none.
    NotDirectory = ENOTDIR, "not a directory";
    /// The node is a directory, and must not be one.
    IsDirectory = EISDIR, "is a directory";
    /// An argument has no meaning for this node, or contradicts another one.
    Invalid = EINVAL, "invalid argument";
    /// The system has no room for another open file.
    TooManyFiles = ENFILE, "too many open files";
    /// The node does not know this ioctl.
    NotIoctl = ENOTTY, "inappropriate ioctl";
    /// The file is being executed, or is a swap file.
    TextBusy = ETXTBSY, "text file busy";
    /// The size or offset exceeds what a file can have.
    FileTooBig = EFBIG, "file too big";
    /// The volume has no space for the change.
    NoSpace = ENOSPC, "no space left";
    /// The node has no offsets.
    BadSeek = ESPIPE, "illegal seek";
    /// The mount, the volume or the subvolume is read-only.
    ReadOnly = EROFS, "read-only file system";
    /// The node cannot have another name.
    TooManyLinks = EMLINK, "too many links";
    /// The answer does not fit in the caller's buffer.
    Range = ERANGE, "result too large for the buffer";
    /// Waiting for a lock would be a deadlock.
    Deadlock = EDEADLK, "deadlock avoided";
    /// A name of more than 255 bytes, or a path or target that is too long.
    NameTooLong = ENAMETOOLONG, "name too long";
    /// The file system does not have this call at all: a front end need not ask again.
    NotImplemented = ENOSYS, "not implemented";
    /// The directory has entries.
    NotEmpty = ENOTEMPTY, "directory not empty";
    /// The path leads through too many symbolic links, or through one where none is allowed.
    TooManySymlinks = ELOOP, "too many levels of symbolic links";
    /// No such extended attribute.
    NoData = ENODATA, "no such attribute";
    /// A value does not fit in the type that it is returned in.
    Overflow = EOVERFLOW, "value too large";
    /// This node or this volume cannot do that, though others may.
    NotSupported = EOPNOTSUPP, "operation not supported";
    /// The file system behind the front end has ended.
    NotConnected = ENOTCONN, "not connected";
    /// An answer did not come in time.
    TimedOut = ETIMEDOUT, "timed out";
    /// The node was deleted and its number reused.
    Stale = ESTALE, "stale handle";
    /// A quota would be exceeded.
    Quota = EDQUOT, "quota exceeded";
    /// The call was given up before it was done.
    Canceled = ECANCELED, "cancelled";
    /// The content is encrypted, and its key is not known.
    NoKey = ENOKEY, "required key not available";
    /// What the disk says cannot be (Linux uses EUCLEAN for a damaged file system).
    Corrupt = EUCLEAN, "structure needs cleaning";
    /// A checksum does not fit, or a message cannot be decoded.
    BadMessage = EBADMSG, "bad message";
}

impl Error {
    /// The positive `errno` value.
    pub const fn errno(self) -> i32 {
        self as i32
    }
}

impl From<Error> for std::io::Error {
    fn from(e: Error) -> Self {
        std::io::Error::from_raw_os_error(e.errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_round_trips_and_unknown_is_io() {
        for &e in Error::ALL {
            assert_eq!(Error::from_errno(e.errno()), e);
        }
        assert_eq!(Error::from_errno(9999), Error::Io);
        assert_eq!(Error::from_errno(0), Error::Io);
    }
}
