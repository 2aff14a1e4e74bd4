//! Tests against the kernel and btrfs-progs: loop devices, mounts, comparisons.
//!
//! - [`need`]: what a test needs; without it the test says that it is skipped, and under CI it
//!   fails.
//! - [`limit`]: programs, none of which is waited for for ever; [`run`] and [`shell`] are the short
//!   way.
//! - [`threads`]: threads beside a test, which end with it.
//! - [`Keep`]: images of failures, kept to be looked at.
//! - [`LoopDevice`], [`KernelMount`], [`progs`]: the kernel and btrfs-progs, cleaned up when the
//!   value goes.
//! - [`kernel`]: which kernel this is, and what it has.
//! - [`KernelVolume`]: a scratch volume on n images, made by mkfs.btrfs or from memory, to mount
//!   and check.
//! - [`UringOn`]: FUSE over io_uring, allowed for a time.
//! - [`xfs`]: the same for XFS, and a tree of all forms that the format has.
//! - [`tree`]: makes a directory tree of everything that a file system can hold; takes a tree's
//!   snapshot; compares.
//!
//! This crate is for tests; it prints, and it panics when a test leaves something behind.

mod keep;
pub mod kernel;
mod kernel_log;
pub mod limit;
mod loop_device;
mod matrix;
mod mount;
pub mod need;
pub mod progs;
mod run;
mod scenario;
mod sys;
pub mod threads;
pub mod tree;
mod uring;
mod volume;
pub mod xfs;

pub use keep::Keep;
pub use kernel_log::KernelLog;
pub use loop_device::LoopDevice;
pub use matrix::{matrix_full, matrix_small};
pub use mount::{KernelMount, unmount};
pub use run::{run, run_in, run_raw, shell};
pub use scenario::populate;
pub use sys::{
    FileHandle, abort_atomic_write, atomic_write_features, clone_range, commit_atomic_write, create_subvolume,
    dedupe_range, delete_subvolume, make_subvolume_writable, snapshot, start_atomic_write, write_through_map,
};
pub use uring::{Transport, UringOn};
pub use volume::{KernelVolume, Mounted, VolumeOptions, scratch_dir};
