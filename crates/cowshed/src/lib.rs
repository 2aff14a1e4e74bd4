//! Copy-on-write file systems in user space: real btrfs volumes, read and written from Rust,
//! without mounting and without privileges.
//!
//! A [`Volume`] is opened from any [`BlockDevice`]: an image file, a disk, memory, or what you make
//! one of. Its files and directories are then used much as those of [`std::fs`]:
//!
//! ```
//! use std::sync::Arc;
//! use cowshed::{BlockDevice, MemDevice, MkfsOptions, OpenOptions, Volume};
//!
//! let disk: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("disk", 256 << 20));
//! cowshed::mkfs(&[disk.clone()], &MkfsOptions::new([7; 16]))?;
//!
//! let volume = Volume::open([disk.clone()], &OpenOptions::new())?;
//! volume.create_dir_all("var/greetings")?;
//! volume.write("var/greetings/hello", b"Hello, world\n")?;
//! assert_eq!(volume.read("var/greetings/hello")?, b"Hello, world\n");
//! for entry in volume.read_dir("var/greetings")? {
//!     assert_eq!(entry?.name(), "hello");
//! }
//! volume.close()?; // everything is on disk now
//!
//! assert!(cowshed::check(&[disk], &Default::default()).is_clean());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With an image file the device is [`FileDevice::open`], or shorter [`Volume::open_image`]; module
//! [`device`] has what a device of your own needs.
//!
//! **What holds.** A change is visible to every other call at once, and durable after
//! [`File::sync`], [`Volume::sync`], [`Volume::close`], or the next commit (every 30 seconds by
//! default): after a crash the volume is as it was at its last commit. Everything may be used from
//! several threads. A device is locked against other writers while it is open. Callers are trusted:
//! permission bits are kept, not enforced.
//!
//! **Several threads** that make very many files gain from an allocator for that: with a heap for
//! each thread, as glibc has it, two threads make a sixth fewer files a second than with mimalloc.
//!
//! Errors say which path was meant, have an [`errno`](Error::errno), and turn into
//! [`std::io::Error`].

#![deny(missing_docs)]

#[doc(hidden)]
pub mod formats;
pub mod image;
mod library;

pub use btrfs_check::{CheckOptions, Report as CheckReport, check};
pub use btrfs_image::{MkfsError, MkfsOptions, MkfsReport, mkfs};
pub use cowshed_device::{BlockDevice, FileDevice, Locking, MemDevice, OpenMode, SliceDevice};
pub use cowshed_vfs::{
    Algorithm, Compression, Dedupe, Exchange, FallocateFlags, FileKind, Freshness, MapExtent as Extent,
    MapKind as ExtentKind, NotCloned, StatFs, Timestamp, TreeCloneProgress, UnknownCompression,
};

pub use library::{
    AtomicWrites, Dir, DirEntry, Error, File, FileOptions, Metadata, OpenOptions, ReadDir, Rescue, Result, Subvolume,
    Volume,
};

/// What it takes to write a [`BlockDevice`] of one's own.
pub mod device {
    pub use cowshed_device::{BlockDevice, Error, Op, ReadOp, Result, WriteOp, check_access};
}

/// The README's example compiles.
#[cfg(doctest)]
mod readme {
    #![doc = include_str!("../../../README.md")]
}
