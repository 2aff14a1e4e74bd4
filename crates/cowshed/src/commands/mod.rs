//! One module for each command. A command returns the exit code: 0 all well, 1 something found, 2
//! (by error) failed.

pub mod btrfs;
pub mod build;
pub mod cat;
pub mod check;
mod committed;
pub mod diff;
pub mod docs;
#[cfg(target_os = "linux")]
pub mod doctor;
pub mod extents;
pub mod files;
pub mod inspect;
pub mod ls;
pub mod mkfs;
#[cfg(target_os = "linux")]
pub mod mount;
#[cfg(target_os = "linux")]
pub mod mount_helper;
pub mod mount_table;
mod named;
#[cfg(any(test, not(target_os = "linux")))]
pub mod no_mounts;
mod offline;
mod progress;
pub mod receive;
pub mod send;
pub mod stat;
pub mod sync;
#[cfg(target_os = "linux")]
pub mod umount;

#[cfg(not(target_os = "linux"))]
pub use no_mounts::{doctor, mount, umount};
