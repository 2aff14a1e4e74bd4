//! Images with contents: from directories, archives and container images, without a mount and
//! without privileges.
//!
//! ```
//! use cowshed::image::Builder;
//!
//! # let dir = tempfile::tempdir()?;
//! # std::fs::create_dir_all(dir.path().join("root/home"))?;
//! # std::fs::write(dir.path().join("root/hello"), "Hello, world\n")?;
//! # std::env::set_current_dir(dir.path())?;
//! let mut builder = Builder::new();
//! builder.from_dir("root").label("appliance").compress("zstd:3".parse()?).subvolume("home");
//! let report = builder.write("appliance.img")?;
//! assert!(report.bytes < 64 << 20);
//! # let volume = cowshed::Volume::open_image("appliance.img", &cowshed::OpenOptions::new())?;
//! # assert_eq!(volume.read("hello")?, b"Hello, world\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Sources go to directories of the image, subvolumes have snapshots, equal files share extents,
//! and the volume may lie in a partition:
//!
//! ```
//! use cowshed::image::{Builder, SubvolumeKind};
//!
//! # let dir = tempfile::tempdir()?;
//! # let [root, home, image] = ["root", "home", "disk.img"].map(|name| dir.path().join(name));
//! # std::fs::create_dir_all(&home)?;
//! # std::fs::create_dir_all(root.join("etc"))?;
//! # std::fs::write(root.join("etc/hostname"), "cow\n")?;
//! let default = SubvolumeKind { is_default: true, ..Default::default() };
//! let read_only = SubvolumeKind { read_only: true, ..Default::default() };
//! let mut builder = Builder::new();
//! builder.into_dir("@").from_dir(root).into_dir("@home").from_dir(home);
//! builder.subvolume_of_kind("@", default).subvolume("@home").snapshot("@", "@first", read_only);
//! builder.force_uid(0).force_gid(0).dedupe().chattr("*.log", "C")?;
//! builder.partition("root-x86-64".parse()?);
//! builder.map_users("uid 0 0 4294967295\ngid 0 0 4294967295".parse()?);
//! let planned = builder.plan()?;
//! assert_eq!(builder.write(&image)?.bytes, planned.bytes);
//! # use std::sync::Arc;
//! # let disk = Arc::new(cowshed::FileDevice::open(&image, cowshed::OpenMode::ReadWrite)?);
//! # let range = cowshed::image::find_partition(&*disk, "1")?;
//! # let part = cowshed::SliceDevice::new(disk, range.start, range.end - range.start)?;
//! # let part: Arc<dyn cowshed::BlockDevice> = Arc::new(part);
//! # let volume = cowshed::Volume::open([part], &cowshed::OpenOptions::new())?;
//! # assert_eq!(volume.read("etc/hostname")?, b"cow\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The same sources and options always give the same bytes, if [`Builder::uuid`] or
//! [`Builder::seed`] is given; see docs/design/image-build.md.

mod builder;
mod contexts;
mod edit;
mod error;
mod faked;
mod filter;
mod fingerprint;
mod gpt;
mod linux_calls;
mod make;
mod new_file;
mod output;
mod packer;
mod policy;
mod recipe;
mod reflink;
mod report;
mod table;
mod twins;
mod users;

pub use builder::{Builder, Owner, SubvolumeKind};
pub use cowshed_source::Platform;
pub use error::{Error, Result};
pub use gpt::PartitionType;
pub use make::uuid_of_seed;
pub use new_file::{NewFile, remove_unfinished};
pub use report::Report;
pub use table::find as find_partition;
pub use users::UserMap;
