//! Calls that Linux alone has, for files of the host. On other systems they fail, as on a file
//! system that does not have them.

#[cfg(target_os = "linux")]
mod calls {
    use std::fs::File;
    use std::path::Path;

    use rustix::fs::{CWD, Mode, OFlags, openat};
    use rustix::io::Result;

    pub use rustix::fs::{copy_file_range, ioctl_ficlone};

    /// A file without a name in a directory.
    pub fn unnamed(dir: &Path, mode: Mode) -> Result<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        openat(CWD, dir, flags, mode).map(File::from)
    }
}

#[cfg(not(target_os = "linux"))]
mod calls {
    use std::fs::File;
    use std::path::Path;

    use rustix::fs::Mode;
    use rustix::io::{Errno, Result};

    pub fn unnamed(_: &Path, _: Mode) -> Result<File> {
        Err(Errno::OPNOTSUPP)
    }

    pub fn ioctl_ficlone(_: &File, _: &File) -> Result<()> {
        Err(Errno::OPNOTSUPP)
    }

    pub fn copy_file_range(
        _: &File,
        _: Option<&mut u64>,
        _: &File,
        _: Option<&mut u64>,
        _len_bytes: usize,
    ) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }
}

pub use calls::*;
