//! Opening what the user names: image files, block devices, and parts of disks.
//!
//! A part of a disk image or disk is named behind a colon: `DISK:PARTITION`, by the partition's
//! number or name, or `DISK:@OFFSET`, from a byte to the end. A file of such a name goes first.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use btrfs_image::size::parse_size_bytes;
use clap::Args;
use cowshed::formats::{self, Format};
use cowshed::image::find_partition;
use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode, SliceDevice};

use crate::block_devices::with_others;
use crate::log;
use crate::mount_options::{self, Options};

/// How a volume is opened by the commands that read files without mounting.
#[derive(Args, Clone, Debug, Default)]
pub struct ReadArgs {
    /// Another device of the same volume
    #[arg(short = 'D', long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// Options as mount has them: subvol=, subvolid=, degraded, rescue=, logdev=
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
}

impl ReadArgs {
    /// Nothing was given.
    pub fn is_default(&self) -> bool {
        self.devices.is_empty() && self.options.is_empty()
    }
}

/// Opens the devices of a volume that is going to be mounted, locked.
pub fn open_to_mount(paths: &[PathBuf], options: &Options) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let mode = if options.formats.read_only {
        OpenMode::ReadOnly
    } else {
        OpenMode::ReadWrite
    };
    let devices = paths.iter().enumerate();
    devices
        .map(|(index, path)| open_one_to_mount(path, mode, index == 0))
        .collect()
}

/// Opens the volume on these devices, to be mounted.
pub fn open_volume(paths: &[PathBuf], devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<formats::Views> {
    let open = || -> Result<formats::Views> {
        let options = with_log_device(&devices, options, Locking::Locked)?;
        let format = formats::format_with(&devices, &options.formats);
        formats::open_for_mounts(devices, &options.formats).map_err(|failure| options.explain(format, failure))
    };
    open().with_context(|| paths.first().map(|p| p.display().to_string()).unwrap_or_default())
}

/// The options for the volume on these devices, with the device of its log opened. Errors: an
/// option that is not one of the volume's format.
fn with_log_device(devices: &[Arc<dyn BlockDevice>], options: &Options, locking: Locking) -> Result<Options> {
    options.check_format(formats::format_with(devices, &options.formats))?;
    let mut options = options.clone();
    if let Some(path) = &options.log_device {
        let log = FileDevice::open_with(path, OpenMode::ReadOnly, locking)
            .with_context(|| format!("logdev={}", path.display()))?;
        options.formats.xfs.log_device = Some(Arc::new(log));
    }
    Ok(options)
}

/// The format of the volume at a path, for a look before it is opened: what cannot be read, or not
/// yet, counts as btrfs, and opening it says why.
pub fn format_at(path: &Path) -> Format {
    let device = open_device(path, OpenMode::ReadOnly, Locking::Unlocked);
    let found = device.ok().and_then(|device| formats::probe(&*device));
    found.unwrap_or(Format::Btrfs)
}

/// The two parts of `DISK:PART`. `None`: the path names a whole image or device.
pub fn split_part(path: &Path) -> (&Path, Option<&OsStr>) {
    let bytes = path.as_os_str().as_bytes();
    let Some(at) = bytes.iter().rposition(|byte| *byte == b':') else {
        return (path, None);
    };
    let (disk, part) = (Path::new(OsStr::from_bytes(&bytes[..at])), &bytes[at + 1..]);
    let is_part = !part.is_empty() && !part.contains(&b'/');
    match is_part && !path.exists() && disk.exists() && !disk.is_dir() {
        true => (disk, Some(OsStr::from_bytes(part))),
        false => (path, None),
    }
}

/// The bytes of a part of a disk.
pub fn part_bytes(disk: &dyn BlockDevice, part: Option<&OsStr>) -> Result<Range<u64>> {
    let Some(part) = part else {
        return Ok(0..disk.size_bytes());
    };
    let part = part.to_string_lossy();
    let Some(offset) = part.strip_prefix('@') else {
        return Ok(find_partition(disk, &part)?);
    };
    match parse_size_bytes(offset) {
        Ok(offset) if offset % 512 != 0 => bail!("{}: offset {offset} is no multiple of 512", disk.name()),
        Ok(offset) if offset >= disk.size_bytes() => {
            bail!("{}: offset {offset} is beyond its end", disk.name())
        }
        Ok(offset) => Ok(offset..disk.size_bytes()),
        Err(error) => bail!("{}: offset {offset:?}: {error}", disk.name()),
    }
}

/// A part of a disk as a device; all of it is the disk itself.
pub fn slice(disk: Arc<dyn BlockDevice>, bytes: &Range<u64>) -> Result<Arc<dyn BlockDevice>> {
    match *bytes == (0..disk.size_bytes()) {
        true => Ok(disk),
        false => Ok(Arc::new(SliceDevice::new(disk, bytes.start, bytes.end - bytes.start)?)),
    }
}

/// Opens an image, a device, or a part of one.
pub fn open_device(path: &Path, mode: OpenMode, locking: Locking) -> Result<Arc<dyn BlockDevice>> {
    let (disk, part) = split_part(path);
    let disk: Arc<dyn BlockDevice> = Arc::new(FileDevice::open_with(disk, mode, locking)?);
    let bytes = part_bytes(&*disk, part)?;
    slice(disk, &bytes)
}

/// Errors: the volume at a path has another format than a command is for.
pub fn need_format(path: &Path, needed: Format, command: &str) -> Result<()> {
    match format_at(path) {
        found if found == needed => Ok(()),
        found => bail!(
            "{}: a volume of {found}; `cowshed {command}` is for {needed} alone",
            path.display()
        ),
    }
}

/// The first device is the source of root's mount: where it is a block device, the kernel claims it
/// for the mount, and refuses if we had. So we only see whether it is free.
fn open_one_to_mount(path: &Path, mode: OpenMode, is_source: bool) -> Result<Arc<dyn BlockDevice>> {
    let device = FileDevice::open(path, mode)?;
    if !(is_source && device.is_block_device() && rustix::process::geteuid().is_root()) {
        return Ok(Arc::new(device));
    }
    drop(device);
    Ok(Arc::new(FileDevice::open_with(path, mode, Locking::LockedForMount)?))
}

/// Opens devices for a look: beside readers, and with `Unlocked` beside a writer, too.
pub fn open_to_read(paths: &[PathBuf], locking: Locking) -> Result<Vec<Arc<dyn BlockDevice>>> {
    paths
        .iter()
        .map(|path| open_device(path, OpenMode::ReadOnly, locking).map_err(explain_busy))
        .collect()
}

/// Says what keeps a reader out.
pub fn explain_busy(error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref() {
        Some(cowshed_device::Error::Busy { .. }) => {
            error.context("it is in use by a writer (is it mounted? unmount it, or look at the files in the mount)")
        }
        _ => error,
    }
}

/// Opens the volume on these devices. Errors: an option that is not one of its format, too.
pub fn open_with(devices: Vec<Arc<dyn BlockDevice>>, options: &Options) -> Result<Arc<dyn cowshed_vfs::Volume>> {
    let options = with_log_device(&devices, options, Locking::Locked)?;
    let format = formats::format_with(&devices, &options.formats);
    formats::open(devices, &options.formats).map_err(|failure| options.explain(format, failure))
}

/// Opens a volume's files for reading, without changing anything: a log is replayed in memory,
/// unless the options forbid it.
pub fn open_files(target: &Path, args: &ReadArgs) -> Result<cowshed::Volume> {
    log::to_terminal(0);
    let mut options = mount_options::parse(&args.options)?;
    options.set_read_only();
    let mut paths = vec![target.to_path_buf()];
    if args.devices.is_empty() && options.devices.is_empty() && !options.formats.btrfs.open.degraded {
        paths = with_others(&paths);
    }
    paths.extend(args.devices.iter().chain(&options.devices).cloned());
    let devices = open_to_read(&paths, Locking::Locked)?;
    let open = || -> Result<_> { Ok(cowshed::Volume::over(open_with(devices, &options)?)?) };
    let volume = open().with_context(|| target.display().to_string())?;
    if volume.has_log() {
        crate::people::warn(format_args!(
            "cowshed: {}: a log was not replayed: what was fsynced last before a crash does not show",
            target.display()
        ));
    }
    Ok(volume)
}
