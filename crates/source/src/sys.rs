//! Extended attributes of files of the host, without following symbolic links.
//!
//! By the C library: under fakeroot and pseudo its calls give what these tools keep, where system
//! calls would give what is really there.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::tree::Xattr;

/// Bytes that are tried first for the list of names, and for a value.
const FIRST_BYTES: usize = 1 << 10;
/// Times that a list may grow between two calls.
const ATTEMPTS_MAX: usize = 8;

/// All attributes, sorted by name. None where the file system has none. `buf` is memory to work
/// with.
pub(crate) fn xattrs(path: &Path, buf: &mut Vec<u8>) -> io::Result<Vec<Xattr>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let listed = fill(buf, |room| {
        // SAFETY: the path ends with a zero; the kernel writes at most `room.len()` bytes.
        unsafe { libc::llistxattr(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) }
    });
    let len = match listed {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSUP) => return Ok(Vec::new()),
        listed => listed?,
    };
    let names: Vec<CString> = buf[..len]
        .split_inclusive(|byte| *byte == 0)
        .filter_map(|name| CStr::from_bytes_with_nul(name).ok())
        .map(Into::into)
        .collect();
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let value = fill(buf, |room| {
            // SAFETY: both names end with a zero; the kernel writes at most `room.len()` bytes.
            unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), room.as_mut_ptr().cast(), room.len()) }
        });
        match value {
            Ok(len) => found.push(Xattr {
                name: name.as_bytes().into(),
                value: buf[..len].into(),
            }),
            // Gone since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ENODATA) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Calls until the answer fits; gives its length.
fn fill(buf: &mut Vec<u8>, call: impl Fn(&mut [u8]) -> isize) -> io::Result<usize> {
    if buf.len() < FIRST_BYTES {
        buf.resize(FIRST_BYTES, 0);
    }
    for _ in 0..ATTEMPTS_MAX {
        if let Ok(len) = usize::try_from(call(buf)) {
            return Ok(len);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) {
            return Err(error);
        }
        let needed = call(&mut []);
        buf.resize(usize::try_from(needed).unwrap_or(0).max(2 * buf.len()), 0);
    }
    Err(io::Error::from_raw_os_error(libc::ERANGE))
}
