//! Extended attributes of open files, as Linux and macOS have them. The BSDs have calls of their
//! own, which are not used: files there have no attributes.

use std::io::Error;

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
pub use present::*;

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub use absent::*;

/// Whether an error says that a file has no such attribute: on the host, or in an image.
pub fn is_absent(error: &Error) -> bool {
    #[cfg(target_os = "linux")]
    const NUMBERS: [i32; 1] = [libc::ENODATA];
    #[cfg(target_vendor = "apple")]
    const NUMBERS: [i32; 2] = [libc::ENODATA, libc::ENOATTR];
    #[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
    const NUMBERS: [i32; 1] = [libc::ENOATTR];
    error.raw_os_error().is_some_and(|number| NUMBERS.contains(&number))
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
mod present {
    use std::io::{Error, Result};
    use std::os::fd::AsFd;

    use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
    use rustix::io::Errno;

    /// macOS has two numbers for it. Callers know the one of sockets, as Linux has it.
    fn one_number(error: Errno) -> Error {
        match error {
            Errno::NOTSUP => Error::from_raw_os_error(libc::EOPNOTSUPP),
            error => error.into(),
        }
    }

    /// The names, each with a zero byte behind it. The length.
    #[cfg(any(test, not(target_os = "linux")))]
    pub fn list(file: impl AsFd, names: &mut [u8]) -> Result<usize> {
        rustix::fs::flistxattr(file, names).map_err(one_number)
    }

    /// The length of the value.
    pub fn get(file: impl AsFd, name: &[u8], value: &mut [u8]) -> Result<usize> {
        fgetxattr(file, name, value).map_err(one_number)
    }

    pub fn set(file: impl AsFd, name: &[u8], value: &[u8]) -> Result<()> {
        fsetxattr(file, name, value, XattrFlags::empty()).map_err(one_number)
    }

    pub fn remove(file: impl AsFd, name: &[u8]) -> Result<()> {
        fremovexattr(file, name).map_err(one_number)
    }
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
mod absent {
    use std::io::{Error, Result};
    use std::os::fd::AsFd;

    fn unsupported<T>() -> Result<T> {
        Err(Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    pub fn list(_: impl AsFd, _: &mut [u8]) -> Result<usize> {
        unsupported()
    }

    pub fn get(_: impl AsFd, _: &[u8], _: &mut [u8]) -> Result<usize> {
        unsupported()
    }

    pub fn set(_: impl AsFd, _: &[u8], _: &[u8]) -> Result<()> {
        unsupported()
    }

    pub fn remove(_: impl AsFd, _: &[u8]) -> Result<()> {
        unsupported()
    }
}
