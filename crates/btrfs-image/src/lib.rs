//! Making btrfs volumes: [`mkfs`], and the plan it carries out.
//!
//! A volume is planned first, in memory and without looking at a clock or at dice: which chunks
//! there are, where every tree block lies, what every item says ([`plan::VolumePlan`]). Only then
//! is it written: old signatures are wiped, the blocks follow, and the superblocks come last,
//! behind a barrier. The same options always give the same bytes.
//!
//! The plan takes any trees of items ([`plan::PlannedTree`]), so that an image builder lays down a
//! populated volume with the code that lays down an empty one.
//!
//! ```
//! use std::sync::Arc;
//! use btrfs_image::{MkfsOptions, mkfs};
//! use cowshed_device::{BlockDevice, MemDevice};
//!
//! let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new("disk", 256 << 20));
//! let report = mkfs(&[device], &MkfsOptions::new([7; 16]))?;
//! assert_eq!(report.total_bytes, 256 << 20);
//! # Ok::<(), btrfs_image::MkfsError>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod build;
mod error;
mod features;
mod options;
pub mod plan;
pub mod signature;
pub mod size;
mod subvolumes;
#[allow(missing_docs, reason = "reports: fields named as mkfs.btrfs prints them")]
mod write;

pub use btrfs_format::Profile;
pub use error::MkfsError;
pub use features::{Features, csum_type_from_name};
pub use options::{MkfsOptions, Settings, device_bytes_min};
pub use signature::Signature;
pub use subvolumes::{NewSubvolume, SettledSubvolume};
pub use write::{ChunkReport, DeviceReport, Discarded, MkfsReport, Overwrite, mkfs, write_volume};
