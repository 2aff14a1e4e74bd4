//! XFS: views of an open volume. Volumes can be read, not written.

use std::sync::Arc;

use cowshed_btrfs::fs::SubvolChoice;
use cowshed_device::BlockDevice;
use cowshed_vfs::{Error as Errno, Failure};
use cowshed_xfs::{Fs, OpenOptions, Volume};

use super::options::Options;

/// An open volume.
#[derive(Clone, Debug)]
pub struct Views {
    volume: Arc<Volume>,
    first: Arc<Fs>,
}

pub(super) fn open(devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<Views, Failure> {
    check(options)?;
    let [device] = &devices[..] else {
        return Err(Failure::new(
            Errno::Invalid,
            "an XFS volume lies on one device; that of an external log goes with logdev=",
        ));
    };
    let open = OpenOptions {
        no_recovery: options.no_log_replay || options.rescue_all,
        rescue: options.xfs.needs_repair || options.rescue_all,
        use_superblock_copy: options.xfs.use_superblock_copy || options.rescue_all,
        log_device: options.xfs.log_device.clone(),
        cache_bytes_max: options
            .memory_bytes_max
            .map_or(0, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX)),
    };
    let volume = Arc::new(Volume::open(device.clone(), &open)?);
    let first = Arc::new(Fs::new(volume.clone())?);
    Ok(Views { volume, first })
}

/// What cannot be asked of an XFS volume.
fn check(options: &Options) -> Result<(), Failure> {
    if !options.read_only {
        return Err(Failure::new(
            Errno::ReadOnly,
            "volumes of XFS can be read, not written yet: open it read-only",
        ));
    }
    let btrfs = &options.btrfs;
    for (is_asked, option) in [
        (btrfs.fs.subvol != SubvolChoice::Default, "a subvolume"),
        (btrfs.open.degraded, "degraded"),
        (btrfs.open.rescue.use_backup_root, "rescue=usebackuproot"),
        (btrfs.open.rescue.ignore_bad_roots, "rescue=ignorebadroots"),
        (btrfs.open.rescue.ignore_data_csums, "rescue=ignoredatacsums"),
        (btrfs.open.rescue.ignore_meta_csums, "rescue=ignoremetacsums"),
        (btrfs.open.rescue.ignore_super_flags, "rescue=ignoresuperflags"),
        (btrfs.open.rescue.salvage, "rescue=salvage"),
        (btrfs.fs.compress.is_some(), "compression"),
    ] {
        if is_asked {
            return Err(Failure::new(
                Errno::Invalid,
                format!("{option} does not apply to a volume of XFS"),
            ));
        }
    }
    Ok(())
}

impl Views {
    pub(super) fn first(&self) -> Arc<dyn cowshed_vfs::Volume> {
        self.first.clone()
    }

    pub(super) fn another(&self, options: &Options) -> Result<Arc<dyn cowshed_vfs::Volume>, Failure> {
        check(options)?;
        Ok(Arc::new(Fs::new(self.volume.clone())?))
    }
}

#[cfg(test)]
mod tests {
    use cowshed_device::MemDevice;

    use super::*;
    use crate::formats;

    fn device() -> Arc<dyn BlockDevice> {
        let device = MemDevice::new("memory", 1 << 20);
        device.write_at(0, b"XFSB").unwrap();
        Arc::new(device)
    }

    fn refused(change: impl FnOnce(&mut formats::Options)) -> Failure {
        let mut options = formats::Options {
            read_only: true,
            ..formats::Options::default()
        };
        change(&mut options);
        formats::open(vec![device()], &options).unwrap_err()
    }

    #[test]
    fn writing_and_options_of_btrfs_are_refused_by_name() {
        let error = refused(|options| options.read_only = false);
        assert_eq!(error.error(), Errno::ReadOnly);
        assert!(error.to_string().contains("XFS"), "{error}");
        let error = refused(|options| options.btrfs.fs.subvol = SubvolChoice::Path(b"a".to_vec()));
        assert_eq!(error.error(), Errno::Invalid);
        assert_eq!(error.to_string(), "a subvolume does not apply to a volume of XFS");
        let error = refused(|options| options.btrfs.open.rescue.ignore_bad_roots = true);
        assert!(error.to_string().contains("ignorebadroots"), "{error}");
    }

    #[test]
    fn damaged_superblock_and_second_device_are_refused() {
        let options = formats::Options {
            read_only: true,
            ..formats::Options::default()
        };
        let error = formats::open(vec![device()], &options).unwrap_err();
        assert_eq!(error.error(), Errno::Corrupt);
        let error = formats::open(vec![device(), device()], &options).unwrap_err();
        assert!(error.to_string().contains("logdev="), "{error}");
    }
}
