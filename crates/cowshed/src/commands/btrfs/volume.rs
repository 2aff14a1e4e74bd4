//! Facts of the volume that a place is on: ids, label, devices, counters of errors.

use std::fs::File;
use std::io::{Error, Result as IoResult};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use cowshed_vfs::{DeviceInfo, StatFs};
use cowshed_vfs_ioctl::wire::btrfs::{self, DevInfo, DevStats, FsInfo, text};
use rustix::fs::fstatfs;
use zerocopy::FromZeros as _;

use super::place::Place;
use crate::ioctl;

/// What `BTRFS_IOC_FS_INFO` says.
pub struct Facts {
    pub uuid: [u8; 16],
    /// Devices that the volume consists of.
    pub devices: u64,
    device_id_max: u64,
}

/// Set the counters to zero after they are read.
const STATS_RESET: u64 = 1;

impl Place {
    pub fn facts(&self) -> IoResult<Facts> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => {
                let mut info = FsInfo::new_zeroed();
                ioctl::call(file, btrfs::FS_INFO, &mut info)?;
                Ok(Facts {
                    uuid: info.fsid,
                    devices: info.num_devices.get(),
                    device_id_max: info.max_id.get(),
                })
            }
            Place::Image(node) => {
                let info = node.engine.volume.info();
                Ok(Facts {
                    uuid: info.uuid,
                    devices: info.devices,
                    device_id_max: info.device_id_max,
                })
            }
        }
    }

    /// The devices that are there, by number.
    pub fn devices(&self) -> IoResult<Vec<DeviceInfo>> {
        let mut found = Vec::new();
        for id in 1..=self.facts()?.device_id_max {
            found.extend(self.device(id)?);
        }
        Ok(found)
    }

    fn device(&self, id: u64) -> IoResult<Option<DeviceInfo>> {
        let file = match self {
            Place::Image(node) => return Ok(node.engine.volume.device(id)?),
            Place::Kernel(file) | Place::Ours(file) => file,
        };
        let mut page = DevInfo::new_zeroed();
        page.devid = id.into();
        match ioctl::call(file, btrfs::DEV_INFO, &mut page) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            Err(error) => return Err(error),
        }
        let path = text(&page.path).unwrap_or_default();
        Ok(Some(DeviceInfo {
            id,
            uuid: page.uuid,
            total_bytes: page.total_bytes.get(),
            used_bytes: page.bytes_used.get(),
            name: (!path.is_empty()).then(|| String::from_utf8_lossy(path).into_owned()),
            faults: [0; 5],
        }))
    }

    /// Failed writes, reads and barriers, wrong content, and blocks of a wrong generation.
    pub fn device_faults(&self, id: u64, resets: bool) -> IoResult<[u64; 5]> {
        let file = match self {
            // Opened by this process: nothing happened yet.
            Place::Image(_) if resets => return Err(Error::from_raw_os_error(libc::EOPNOTSUPP)),
            Place::Image(node) => return Ok(node.engine.volume.device(id)?.map_or([0; 5], |device| device.faults)),
            Place::Kernel(file) | Place::Ours(file) => file,
        };
        let mut page = DevStats::new_zeroed();
        page.devid = id.into();
        page.nr_items = (page.values.len() as u64).into();
        page.flags = if resets { STATS_RESET } else { 0 }.into();
        ioctl::call(file, btrfs::GET_DEV_STATS, &mut page)?;
        Ok(page.values.map(|value| value.get()))
    }

    pub fn label(&self) -> IoResult<Vec<u8>> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => {
                let mut label = [0; btrfs::LABEL_BYTES];
                ioctl::call(file, btrfs::GET_FSLABEL, &mut label)?;
                Ok(text(&label).unwrap_or(&label).to_vec())
            }
            Place::Image(node) => Ok(node.engine.volume.info().label),
        }
    }

    /// Errors: `EINVAL` where the label is too long.
    pub fn set_label(&self, label: &[u8]) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => {
                let mut bytes = [0; btrfs::LABEL_BYTES];
                if !btrfs::put_text(&mut bytes, label) {
                    return Err(Error::from_raw_os_error(libc::EINVAL));
                }
                ioctl::call(file, btrfs::SET_FSLABEL, &mut bytes).map(drop)
            }
            Place::Image(node) => Ok(node.engine.volume.set_label(&node.engine.ctx, label)?),
        }
    }

    /// Bytes that statfs(2) says an ordinary user can still write.
    pub fn available_bytes(&self) -> IoResult<u64> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => {
                let stat = fstatfs(file)?;
                // The width of the fields is the platform's.
                #[allow(clippy::unnecessary_cast)]
                Ok((stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64))
            }
            Place::Image(node) => {
                let stat: StatFs = node.engine.volume.statfs(&node.engine.ctx, node.id)?;
                Ok(stat.blocks_available.saturating_mul(stat.frsize.into()))
            }
        }
    }

    /// Bytes that are kept so that files can always be deleted, of a volume that our engine serves.
    pub fn deletion_reserve_bytes(&self) -> IoResult<u64> {
        match self {
            Place::Kernel(_) => Ok(0),
            Place::Ours(file) => {
                let mut page = cowshed_vfs_ioctl::wire::SpacePage::default();
                ioctl::call(file, cowshed_vfs_ioctl::wire::SPACE, &mut page)?;
                Ok(page.deletion_reserve_bytes.get())
            }
            Place::Image(node) => Ok(node.engine.volume.space_account()?.deletion_reserve_bytes),
        }
    }
}

/// Size of a device, which may be larger than the part that its volume uses.
pub fn size_of_device(path: &Path) -> IoResult<u64> {
    use std::io::Seek as _;
    let meta = path.metadata()?;
    if !meta.file_type().is_block_device() {
        return Ok(meta.len());
    }
    File::open(path)?.seek(std::io::SeekFrom::End(0))
}
