//! Shared mappings that survive the truncation of their file.
//!
//! A load or store behind the end of the file would kill the process. So bytes are copied by the
//! kernel, from a file in memory and into one, which fails with `EFAULT` instead.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, memfd_create};

/// A shared mapping of the first bytes of a file.
#[derive(Debug)]
pub struct SharedMap {
    start: *mut libc::c_void,
    len: usize,
    /// Where bytes come from and go to.
    aside: File,
}

// SAFETY: the address is of this value alone, and only passed to the kernel.
unsafe impl Send for SharedMap {}

impl SharedMap {
    /// `is_writable`: stores are possible; the file is open for reading and writing.
    pub fn new(file: &File, len: usize, is_writable: bool) -> io::Result<SharedMap> {
        let protection = match is_writable {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        let aside = File::from(memfd_create("aside", MemfdFlags::CLOEXEC)?);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match start {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            start => Ok(SharedMap { start, len, aside }),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Stores bytes, or those that are within the file. Errors: `EFAULT`, none was.
    pub fn store(&mut self, at: usize, data: &[u8]) -> io::Result<usize> {
        let len = data.len().min(self.len.saturating_sub(at));
        self.aside.write_all_at(&data[..len], 0)?;
        self.aside.seek(SeekFrom::Start(0))?;
        // SAFETY: `at + len` is within the mapping, and no reference to it exists.
        let copied = unsafe { libc::read(self.aside.as_raw_fd(), self.start.byte_add(at), len) };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }

    /// Loads bytes, or those that are within the file. Errors: `EFAULT`, none was.
    pub fn load(&mut self, at: usize, len: usize) -> io::Result<Vec<u8>> {
        let len = len.min(self.len.saturating_sub(at));
        self.aside.seek(SeekFrom::Start(0))?;
        // SAFETY: `at + len` is within the mapping, and no reference to it exists.
        let copied = unsafe { libc::write(self.aside.as_raw_fd(), self.start.byte_add(at), len) };
        let copied = usize::try_from(copied).map_err(|_| io::Error::last_os_error())?;
        let mut bytes = vec![0; copied];
        self.aside.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and this value was its only user.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_and_store_behind_the_end_fail() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        let mut map = SharedMap::new(&file, 8192, true).unwrap();
        assert_eq!(map.store(4000, &[1; 200]).unwrap(), 200);
        assert_eq!(map.load(3999, 3).unwrap(), [7, 1, 1]);
        file.set_len(0).unwrap();
        let error = map.load(0, 10).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert!(map.store(4096, &[1; 10]).is_err());
    }
}
