//! What the operating systems do not have in common: calls of Linux and what stands for them
//! elsewhere. Ioctls are in `ioctl`, paths of the host in `commands::files::host`.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(not(target_os = "linux"))]
mod other;
pub mod xattr;

#[cfg(target_os = "linux")]
pub use linux::*;
#[cfg(not(target_os = "linux"))]
pub use other::*;

use rustix::fs::{Mode, RawMode};

/// Permission bits for a call. The type of the bits is the system's.
pub fn mode(perm: u32) -> Mode {
    Mode::from_raw_mode((perm & 0o7777) as RawMode)
}

/// The umask of this process.
// The type of the bits is the system's.
#[allow(clippy::useless_conversion)]
pub fn umask() -> u32 {
    // There is no way to ask for it without setting it.
    let mask = rustix::process::umask(Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode().into()
}
