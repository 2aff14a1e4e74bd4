//! Ioctls of the commands that work on open files of mounts. Linux alone has these mounts, and the
//! numbers of its ioctls mean something else to other kernels: there, no call is made.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;

#[cfg(target_os = "linux")]
pub use linux::*;
#[cfg(not(target_os = "linux"))]
pub use other::*;

use std::io::Result;
use std::os::fd::AsFd;

use zerocopy::{FromBytes, IntoBytes};

/// As [`call`], of a command that fills a buffer besides: `place` puts the buffer's address into
/// the structure, in which the caller has said its size.
pub fn call_with_buffer<T: FromBytes + IntoBytes>(
    fd: impl AsFd,
    cmd: u32,
    arg: &mut T,
    buffer: &mut [u8],
    place: impl FnOnce(&mut T, u64),
) -> Result<i32> {
    place(arg, buffer.as_mut_ptr().expose_provenance() as u64);
    call(fd, cmd, arg)
}
