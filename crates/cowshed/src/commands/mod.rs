//! One module for each command. A command returns the exit code: 0 all well, 1 something found, 2
//! (by error) failed.

pub mod btrfs;
pub mod build;
pub mod cat;
pub mod check;
mod committed;
pub mod diff;
pub mod docs;
pub mod doctor;
pub mod extents;
pub mod files;
pub mod inspect;
pub mod ls;
pub mod mkfs;
pub mod mount;
pub mod mount_helper;
pub mod mount_table;
mod named;
mod offline;
mod progress;
pub mod receive;
pub mod send;
pub mod stat;
pub mod sync;
pub mod umount;
