//! Systems other than Linux: macOS and the BSDs. There are no mounts of ours and none of the
//! kernel's btrfs. Unsafe: calls of the C library that rustix and the standard library do not have.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;

/// No type that Linux knows.
pub fn file_system_type(_: &File) -> io::Result<i64> {
    Ok(0)
}

/// Writes the file system that a file lies on to disk, and waits for that, as syncfs(2) of Linux
/// does.
#[cfg(target_vendor = "apple")]
pub fn sync_file_system(file: impl AsFd) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;

    unsafe extern "C" {
        // <unistd.h>, since macOS 10.8.
        fn fsync_volume_np(fd: libc::c_int, flags: libc::c_int) -> libc::c_int;
    }
    const SYNC_VOLUME_FULLSYNC: libc::c_int = 1;
    const SYNC_VOLUME_WAIT: libc::c_int = 2;
    // SAFETY: no memory is passed.
    match unsafe { fsync_volume_np(file.as_fd().as_raw_fd(), SYNC_VOLUME_FULLSYNC | SYNC_VOLUME_WAIT) } {
        0 => Ok(()),
        // It returns the number of the error, or -1.
        -1 => Err(io::Error::last_os_error()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Errors: always. sync(2) does not wait, so that what was moved would not be safe.
#[cfg(not(target_vendor = "apple"))]
pub fn sync_file_system(_: impl AsFd) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Empty.
pub fn mount_table() -> io::Result<Vec<u8>> {
    Ok(Vec::new())
}

/// Errors: always.
pub fn mount_id(_: &File) -> io::Result<u64> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

/// Not known.
pub fn queue_attribute(_: &Path, _: &str) -> Option<String> {
    None
}

/// Not known.
pub fn is_mount_root(_: &File) -> io::Result<Option<bool>> {
    Ok(None)
}

/// Bytes of the machine's memory. `None`: not known.
pub fn memory_bytes() -> Option<u64> {
    // SAFETY: no memory is passed.
    let [pages, page_bytes] = [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
    u64::try_from(pages).ok()?.checked_mul(page_bytes.try_into().ok()?)
}

/// Whether the caller has a signal ignored, as nohup(1) does.
pub fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is set; what is asked for is written to a structure of its type, which is
    // valid with all bytes zero, too.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}
