//! Outcomes of file-system calls, one to one with `errno`.

/// What a call may fail with. Each variant is one `errno` value; the doc says when a file system uses it.
pub type Result<T> = std::result::Result<T, Error>;

macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident = $errno:ident, $text:literal;)*) => {
        /// An outcome that is not success. Corruption and device failures become [`Error::Io`] here; their details
        /// belong to the log of the file system that found them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        #[repr(i32)]
        pub enum Error {
            $($(#[$doc])* #[error($text)] $name = libc::$errno,)*
        }

        impl Error {
            /// Every variant, for tests and tables.
            pub const ALL: &[Error] = &[$(Error::$name),*];

            /// The error for an `errno` value (positive); a value that has no variant is an I/O error.
            pub fn from_errno(errno: i32) -> Error {
                match errno { $(libc::$errno => Error::$name,)* _ => Error::Io }
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
    NoSuchDevice = ENXIO, "no such device or address, or no data beyond this offset";
    TooBig = E2BIG, "argument too long";
    /// A handle that was never opened, or not for this kind of access.
    BadHandle = EBADF, "bad handle";
    Again = EAGAIN, "try again";
    NoMemory = ENOMEM, "out of memory";
    /// The mode bits or the access control list say no.
    AccessDenied = EACCES, "permission denied";
    BadAddress = EFAULT, "bad address";
    Busy = EBUSY, "busy";
    Exists = EEXIST, "already exists";
    CrossDevice = EXDEV, "would cross file systems or subvolumes";
    NoDevice = ENODEV, "no such device";
    NotDirectory = ENOTDIR, "not a directory";
    IsDirectory = EISDIR, "is a directory";
    Invalid = EINVAL, "invalid argument";
    TooManyFiles = ENFILE, "too many open files";
    /// The node does not know this ioctl.
    NotIoctl = ENOTTY, "inappropriate ioctl";
    TextBusy = ETXTBSY, "text file busy";
    FileTooBig = EFBIG, "file too big";
    NoSpace = ENOSPC, "no space left";
    BadSeek = ESPIPE, "illegal seek";
    ReadOnly = EROFS, "read-only file system";
    TooManyLinks = EMLINK, "too many links";
    /// The answer does not fit in the caller's buffer.
    Range = ERANGE, "result too large for the buffer";
    Deadlock = EDEADLK, "deadlock avoided";
    NameTooLong = ENAMETOOLONG, "name too long";
    /// The file system does not have this call at all: a front end need not ask again.
    NotImplemented = ENOSYS, "not implemented";
    NotEmpty = ENOTEMPTY, "directory not empty";
    TooManySymlinks = ELOOP, "too many levels of symbolic links";
    /// No such extended attribute.
    NoData = ENODATA, "no such attribute";
    Overflow = EOVERFLOW, "value too large";
    /// This node or this volume cannot do that, though others may.
    NotSupported = EOPNOTSUPP, "operation not supported";
    NotConnected = ENOTCONN, "not connected";
    TimedOut = ETIMEDOUT, "timed out";
    /// The node was deleted and its number reused.
    Stale = ESTALE, "stale handle";
    Quota = EDQUOT, "quota exceeded";
    Canceled = ECANCELED, "cancelled";
    NoKey = ENOKEY, "required key not available";
    /// What the disk says cannot be (Linux uses EUCLEAN for a damaged file system).
    Corrupt = EUCLEAN, "structure needs cleaning";
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
