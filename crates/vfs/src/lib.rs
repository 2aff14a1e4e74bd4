//! The contract between a file system and the front ends that serve it.
//!
//! A file system implements [`FileSystem`]; a front end (FUSE, a command that copies files out, a
//! test) calls it. Nothing here knows a disk format or a protocol. This is the only crate in which
//! `errno` values exist ([`Error::errno`]).
//!
//! * [`fs`]: the trait, method by method, with semantics and errors.
//! * [`types`]: nodes, attributes, entries, flags.
//! * [`cred`]: credentials of the caller.
//! * [`perm`], [`acl`], [`xattr`]: the rules of POSIX and Linux that every file system shares: mode
//!   bits, access control lists, set-id stripping, extended attribute name spaces.
//! * [`Volume`]: what a volume can do beyond names and bytes; the library and the ioctl decoder
//!   work over it.
//! * [`Subvolumes`]: trees of files inside a volume, each of which can be copied as a whole.
//! * [`TreeClone`]: a clone of a whole tree, in steps.
//! * [`Caches`]: what a file system tells a front end that remembers.
//! * [`memfs`]: a small file system in memory, for tests of front ends and for measuring what a
//!   transport costs.

#![deny(missing_docs)]

mod account;
pub mod acl;
mod caches;
mod compression;
pub mod cred;
pub mod error;
pub mod fs;
#[doc(hidden)]
pub mod memfs;
pub mod perm;
mod subvolumes;
mod tree_clone;
pub mod types;
mod volume;
pub mod xattr;

pub use account::{PendingAccount, PoolAccount, PurposeAccount, SpaceAccount};
pub use caches::{Caches, Held, NothingHeld, Remembered};
pub use compression::{Algorithm, Compression, UnknownCompression};
pub use cred::{Context, Credentials, Groups};
pub use error::{Error, Result};
pub use fs::{Done, FileSystem, Wait};
pub use subvolumes::{ItemKey, ItemSink, Received, Search, SubvolumeInfo, SubvolumeUsage, Subvolumes, UsageCount};
pub use tree_clone::{NotCloned, TreeClone, TreeCloneProgress, TreeCloneStep};
pub use types::*;
pub use volume::{
    At, Dedupe, Defrag, DeviceInfo, Exchange, ExtendedFlags, ExtentSink, Failure, Features, FlagChange, Freshness,
    Group, InodeFlags, MapExtent, MapKind, SubvolumeOf, TrimRange, Volume, VolumeInfo,
};
