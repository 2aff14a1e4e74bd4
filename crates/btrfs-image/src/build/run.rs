//! The steps of a build, one after the other.

use std::sync::Arc;

use cowshed_device::BlockDevice;
use cowshed_source::Tree;

use super::bulk::Blocks;
use super::data::{self, Lay};
use super::layout::{self, Made};
use super::options::{BuildOptions, Size};
use super::plan::{ENOUGH_BYTES, Plan};
use crate::plan::{ChunkPlanner, Superblocks};
use crate::write::{check_devices, device_reports, flush, wipe, write_superblocks};
use crate::{DeviceReport, MkfsError, Overwrite, Settings};

/// What was built, or would be.
#[derive(Clone, Debug)]
pub struct BuildReport {
    /// As settled.
    pub settings: Settings,
    /// Bytes that the volume has of each device.
    pub device_bytes: Vec<u64>,
    /// Bytes that blocks and data take, each counted once.
    pub used_bytes: u64,
    /// Bytes of data extents on disk.
    pub data_bytes: u64,
    /// Bytes of files, holes left out.
    pub content_bytes: u64,
    /// Bytes of tree blocks, each counted once.
    pub metadata_bytes: u64,
    /// Inodes of all subvolumes.
    pub inodes: u64,
    /// The smallest size of one device that holds all of it.
    pub needed_bytes: u64,
    /// Chunks, in the order of their addresses.
    pub chunks: ChunkPlanner,
}

/// Plans the volume without writing: with compression the contents are read and compressed, else
/// they are not read. `device_bytes` as in [`build`]. Errors: as [`build`].
pub fn dry_run(tree: &Tree, options: &BuildOptions<'_>, device_bytes: &[u64]) -> Result<BuildReport, MkfsError> {
    let plan = Plan::new(tree, options)?;
    let how = match plan.is_packed() {
        true => Lay::Pack,
        false => Lay::Predict,
    };
    let made = plan.make(device_bytes, how)?;
    tree.check_sources()?;
    Ok(plan.report(made))
}

/// Builds the volume on `devices`. Nothing is written before all is refused that can be known
/// without compressing the contents, and without hashing a container's layers. Until the end there
/// is no superblock: where this fails, the devices hold no volume.
pub fn build(
    tree: &Tree,
    options: &BuildOptions<'_>,
    devices: &[Arc<dyn BlockDevice>],
) -> Result<(BuildReport, Vec<DeviceReport>), MkfsError> {
    let plan = Plan::new(tree, options)?;
    let sizes: Vec<u64> = match options.volume.byte_count {
        Some(bytes) => devices.iter().map(|device| bytes.min(device.size_bytes())).collect(),
        None => devices.iter().map(|device| device.size_bytes()).collect(),
    };
    // Devices that give the volume its size may be too small, and keep what is on them where they
    // are. The others are as large as it can get.
    if !plan.is_packed() && options.size == Size::OfDevices {
        plan.make(&sizes, Lay::Predict)?;
    }
    let overwrite = Overwrite {
        force: options.volume.force,
        discard: options.volume.discard,
    };
    let found = check_devices(devices, overwrite.force)?;
    let bare = ChunkPlanner::bare(&plan.settings(&sizes)?);
    let discarded = wipe(devices, &bare, &found, overwrite.discard)?;
    let made = plan.make(&sizes, Lay::Write(devices))?;
    plan.write_trees(&made, devices)?;
    let reports = device_reports(devices, &made.chunks, found.into_iter().zip(discarded));
    Ok((plan.report(made), reports))
}

impl Plan<'_, '_> {
    /// Gives everything its address; writes the data, where it is to be written.
    fn make(&self, device_bytes: &[u64], how: Lay<'_>) -> Result<Made, MkfsError> {
        match self.try_make(device_bytes, how) {
            Err(MkfsError::NoSpace { .. }) => {}
            made => return made,
        }
        // How much would be enough?
        let unlimited = vec![ENOUGH_BYTES; device_bytes.len()];
        let how = match self.is_packed() {
            true => Lay::Pack,
            false => Lay::Predict,
        };
        Err(MkfsError::Missing {
            needed: self.try_make(&unlimited, how)?.needed_bytes,
            found: device_bytes.iter().copied().min().unwrap_or_default(),
        })
    }

    fn try_make(&self, device_bytes: &[u64], how: Lay<'_>) -> Result<Made, MkfsError> {
        let mut settings = self.settings(device_bytes)?;
        let mut chunks = ChunkPlanner::bare(&settings);
        layout::add_system(&mut chunks, &settings)?;
        let data = data::lay_down(self, &settings, &mut chunks, how)?;
        let trees = layout::lay_out(self, &settings, &mut chunks, &data)?;
        let mut fitted = chunks.clone();
        trees.fit(&mut fitted);
        fitted.fit_devices(0, 0);
        let needed_bytes = fitted
            .devices
            .iter()
            .map(|device| device.total_bytes)
            .max()
            .unwrap_or_default();
        if self.options.size != Size::OfDevices {
            match self.options.size {
                Size::Fit { slack_bytes } => chunks.fit_devices(slack_bytes, 0),
                Size::AtLeast { bytes } => chunks.fit_devices(0, bytes),
                Size::OfDevices => {}
            }
            for (fitted, &given) in chunks.devices.iter().zip(&settings.device_bytes) {
                if fitted.total_bytes > given {
                    return Err(MkfsError::Missing {
                        needed: fitted.total_bytes,
                        found: given,
                    });
                }
            }
            settings.device_bytes = chunks.devices.iter().map(|device| device.total_bytes).collect();
        }
        Ok(Made {
            settings,
            chunks,
            data,
            trees,
            needed_bytes,
        })
    }

    fn write_trees(&self, made: &Made, devices: &[Arc<dyn BlockDevice>]) -> Result<(), MkfsError> {
        let mut blocks = Blocks::new(devices, &made.chunks, self.options.workers);
        layout::write_all(self, made, &mut blocks)?;
        blocks.write()?;
        // Barrier: a superblock may only be found when all that it points at is there.
        flush(devices)?;
        // Layers that are not what their image says make no volume.
        self.tree.check_sources()?;
        let superblocks = Superblocks {
            settings: &made.settings,
            chunks: &made.chunks,
            roots: made.trees.roots(),
            used_bytes: made.trees.used_bytes(&made.chunks),
            incompat_bits: made.data.incompat_bits,
        };
        write_superblocks(devices, &superblocks)
    }

    fn report(&self, made: Made) -> BuildReport {
        let nodesize = u64::from(made.settings.nodesize_bytes);
        BuildReport {
            device_bytes: made.settings.device_bytes.clone(),
            used_bytes: made.trees.used_bytes(&made.chunks),
            data_bytes: made.data.disk_bytes(),
            content_bytes: made.data.content_bytes,
            metadata_bytes: made.trees.roots().iter().map(|root| root.block_count).sum::<u64>() * nodesize,
            inodes: self
                .subvolumes
                .iter()
                .map(|subvolume| subvolume.inodes.len() as u64)
                .sum(),
            needed_bytes: made.needed_bytes,
            settings: made.settings,
            chunks: made.chunks,
        }
    }
}
