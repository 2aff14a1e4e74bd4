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
//! The same sources and options always give the same bytes, if [`Builder::uuid`] or
//! [`Builder::seed`] is given; see docs/design/image-build.md.

mod builder;
mod edit;
mod error;
mod filter;
mod fingerprint;
mod gpt;
mod output;
mod packer;
mod policy;

pub use builder::{Builder, Owner, Report, SubvolumeKind, uuid_of_seed};
pub use cowshed_source::Platform;
pub use error::{Error, Result};
