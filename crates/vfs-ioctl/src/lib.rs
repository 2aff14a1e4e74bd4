//! Ioctls of Linux as typed calls of a [`cowshed_vfs::Volume`], decoded once for all formats.
//!
//! A [`Front`] stands between a front end that passes ioctls (FUSE) and a volume. It is a
//! [`FileSystem`](cowshed_vfs::FileSystem) itself: calls go through to the volume, but for `ioctl`,
//! and for the reads and writes of handles that have an open atomic group.
//!
//! | ioctl | module |
//! |---|---|
//! | `FS_IOC_GETFLAGS`, `SETFLAGS`, `GETVERSION`, `FSGETXATTR`, `FSSETXATTR` | `decode` |
//! | facts of the volume | `decode` |
//! | `BTRFS_IOC_DEFRAG_RANGE`, `BTRFS_IOC_SYNC`, our own ([`wire`]) | `decode`, `remap` |
//! | `BTRFS_IOC_SUBVOL_CREATE`, `SNAP_DESTROY`, `SUBVOL_SETFLAGS`, our own | `subvolumes` |
//! | `CLONE_TREE`, our own | `trees` |
//! | `USAGE`, our own | `usage` |
//! | `F2FS_IOC_*_ATOMIC_WRITE` | `atomic` |

#![deny(missing_docs)]

mod atomic;
mod counts;
mod decode;
mod front;
mod grants;
mod groups;
mod remap;
mod reply;
mod subvolumes;
mod trees;
mod usage;
mod walks;
pub mod wire;

pub use front::Front;
