//! Systems other than Linux: no file system there knows the calls.

use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::AsFd;

use zerocopy::{FromBytes, IntoBytes};

/// Errors: always `EOPNOTSUPP`, as of a file system that does not know the call.
pub fn call<T: FromBytes + IntoBytes>(_: impl AsFd, _cmd: u32, _: &mut T) -> Result<i32> {
    Err(Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Errors: as of [`call`].
pub fn settle(_: &File) -> Result<()> {
    Err(Error::from_raw_os_error(libc::EOPNOTSUPP))
}
