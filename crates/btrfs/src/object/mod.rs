//! Objects in memory: inodes with what files, directories and attributes keep there, the table of
//! inodes, subvolumes, and what all files share. Passive: operations on them are above.

mod blocks;
mod dead;
mod dir;
mod filter;
pub mod flags;
mod inode;
mod lazy;
pub mod lock;
mod op_lock;
mod shared;
mod subvol;
mod table;
mod unasked;
mod views;
mod xattrs;

pub(crate) use dead::{Remaining, Taken};
pub use dir::DirData;
pub(crate) use filter::Spread;
pub(crate) use inode::rdev_from_disk;
pub use inode::{Inode, InodeAttr, InodeRefs, InodeState, rdev_to_disk};
pub(crate) use shared::{DECOMPRESSED_MAX, INLINE_BYTES_MAX};
pub use shared::{FileShared, OnLost};
pub use subvol::{Objects, PLACEHOLDER_INO_BIT, Policy, Subvol};
pub use table::InodeTable;
pub(crate) use table::{KeepAll, Mark};
pub use unasked::Unasked;
pub(crate) use views::{Membership, ViewId, Viewer};
pub use xattrs::XattrCache;
pub(crate) use xattrs::{NONE, SOME, UNKNOWN};
