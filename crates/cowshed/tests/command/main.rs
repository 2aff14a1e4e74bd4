//! The command itself, run as a user runs it: its good and its bad cases.

mod atomic;
mod attributes;
mod btrfs_ioctls;
mod clone_tree;
mod compsize;
mod device;
mod diff;
mod discard;
mod docs;
mod exchange;
mod extents;
mod files;
mod flushes;
mod full;
mod handles;
mod inspect;
mod many_mounts;
mod mkfs_check;
mod mount;
mod receive;
mod seek;
mod send;
mod subvolume;
mod support;
mod xfs;
