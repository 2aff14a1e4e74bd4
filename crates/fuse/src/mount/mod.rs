//! Mounting and unmounting: directly as the superuser, through `fusermount3` as any other user.

mod helper;

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::sys;
use crate::transport::dev::Device;

/// The largest block size of its device that a `fuseblk` mount can have everywhere: that of a page.
/// It is not the one that statfs shows, and no I/O depends on it.
pub const DEVICE_BLOCK_BYTES_MAX: u32 = 4096;

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What `mount` and `/proc/mounts` show as the source. For a [`MountOptions::block_device`] it
    /// is the device.
    pub source: String,
    /// Shown as `fuse.SUBTYPE`.
    pub subtype: String,
    /// Mount this block device as `fuseblk`: then `umount` waits until the file system has written
    /// everything, and the device is marked as in use. Superuser only.
    pub block_device: Option<PathBuf>,
    /// Block size in bytes that a `fuseblk` mount reports to the kernel; what is larger than
    /// [`DEVICE_BLOCK_BYTES_MAX`] is reported as that.
    pub block_bytes: u32,
    pub read_only: bool,
    /// Users other than the mounting one may enter (`allow_other`).
    pub allow_other: bool,
    /// The kernel checks permissions (`default_permissions`). Set by the session, by its choice of
    /// the side that checks.
    pub default_permissions: bool,
    /// Set-id bits and device nodes on the volume work. Superuser only; off is the safe choice for
    /// volumes from strangers.
    pub allow_suid: bool,
    pub allow_dev: bool,
    pub no_exec: bool,
    pub no_atime: bool,
    pub sync: bool,
    pub dir_sync: bool,
    /// Largest read in bytes, if smaller than the session's.
    pub max_read_bytes: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "cowshed".into(),
            subtype: "cowshed".into(),
            block_device: None,
            block_bytes: 4096,
            read_only: false,
            allow_other: false,
            default_permissions: true,
            allow_suid: false,
            allow_dev: false,
            no_exec: false,
            no_atime: false,
            sync: false,
            dir_sync: false,
            max_read_bytes: None,
        }
    }
}

/// Why a mount did not come about or did not end.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("{}: not a directory", .0.display())]
    NotDirectory(PathBuf),
    #[error("{}: not a block device", .0.display())]
    NotBlockDevice(PathBuf),
    #[error("/dev/fuse: {0}; {advice}", advice = device_advice(.0, kernel_has_fuse()))]
    Device(io::Error),
    #[error("mount on {}: {source}", .target.display())]
    Mount { target: PathBuf, source: io::Error },
    #[error("unmount {}: {source}", .target.display())]
    Unmount { target: PathBuf, source: io::Error },
    #[error("fusermount3: {0}")]
    Helper(String),
    #[error(
        "fusermount3 is not installed; ordinary users mount through it: install the package fuse3, or mount as root"
    )]
    NoHelper,
    #[error("only the superuser can mount {0}")]
    NeedsRoot(&'static str),
}

/// Is the driver there, built in or loaded? Unknown counts as yes.
fn kernel_has_fuse() -> bool {
    let list = std::fs::read_to_string("/proc/filesystems");
    list.map_or(true, |list| list.lines().any(|line| line.ends_with("\tfuse")))
}

/// What to do about a `/dev/fuse` that cannot be opened.
fn device_advice(error: &io::Error, kernel_has_fuse: bool) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOENT) if kernel_has_fuse => {
            "the device node is missing: `mknod -m 666 /dev/fuse c 10 229` as root makes it; \
             a container needs it passed in, as by `docker run --device /dev/fuse`"
        }
        Some(libc::ENOENT) => "the kernel has no FUSE yet: load the module with `modprobe fuse` as root",
        Some(libc::ENODEV | libc::ENXIO) => {
            "no driver answers for the device node: load the module with `modprobe fuse` as root, \
             or use a kernel with CONFIG_FUSE_FS"
        }
        Some(libc::EACCES) => {
            "its mode, or a nodev mount, does not let this user open it: `chmod 666 /dev/fuse` as root is usual, \
             or join the group that owns it"
        }
        Some(libc::EPERM) => {
            "the device rules of a container forbid it: \
             start the container with `--device /dev/fuse --cap-add SYS_ADMIN`"
        }
        _ => "mounting needs to open it for reading and writing",
    }
}

/// A mount, known by its mount point.
#[derive(Clone, Debug)]
pub struct Mountpoint {
    target: PathBuf,
    through_helper: bool,
    /// The device number, by which the mount is told from others on the same directory.
    device: Option<String>,
}

/// The options of mount(8) that are flags of mount(2), with the words that `fusermount3` knows them
/// by.
fn flags(options: &MountOptions) -> Vec<(libc::c_ulong, &'static str)> {
    let all = [
        (options.read_only, libc::MS_RDONLY, "ro"),
        (!options.allow_suid, libc::MS_NOSUID, "nosuid"),
        (!options.allow_dev, libc::MS_NODEV, "nodev"),
        (options.no_exec, libc::MS_NOEXEC, "noexec"),
        (options.no_atime, libc::MS_NOATIME, "noatime"),
        (options.sync, libc::MS_SYNCHRONOUS, "sync"),
        (options.dir_sync, libc::MS_DIRSYNC, "dirsync"),
    ];
    all.into_iter().filter(|o| o.0).map(|o| (o.1, o.2)).collect()
}

/// The options that the kernel's fuse itself understands, each with a comma before it.
fn fuse_options(options: &MountOptions) -> String {
    let mut text = String::new();
    if options.default_permissions {
        text.push_str(",default_permissions");
    }
    if options.allow_other {
        text.push_str(",allow_other");
    }
    if let Some(bytes) = options.max_read_bytes {
        write!(text, ",max_read={bytes}").expect("a String takes everything");
    }
    text
}

/// Mounts on `target` and returns the device to serve. The kernel's first request (INIT) is on its
/// way then.
pub fn mount(target: &Path, options: &MountOptions) -> Result<(Device, Mountpoint), MountError> {
    let target = std::fs::canonicalize(target).map_err(|source| mount_error(target, source))?;
    let root = std::fs::metadata(&target).map_err(|source| mount_error(&target, source))?;
    if !root.is_dir() {
        return Err(MountError::NotDirectory(target));
    }
    if sys::is_root() {
        let device = mount_directly(&target, root.mode(), options)?;
        return Ok((device, Mountpoint::new(target, false)));
    }
    for (asked, what) in [
        (options.block_device.is_some(), "a block device"),
        (options.allow_suid, "with set-id bits"),
        (options.allow_dev, "with device nodes"),
    ] {
        if asked {
            return Err(MountError::NeedsRoot(what));
        }
    }
    let device = helper::mount(&target, &helper::options(options))?;
    Ok((device, Mountpoint::new(target, true)))
}

fn mount_error(target: &Path, source: io::Error) -> MountError {
    MountError::Mount {
        target: target.to_owned(),
        source,
    }
}

fn mount_directly(target: &Path, root_mode: u32, options: &MountOptions) -> Result<Device, MountError> {
    let device = Device::open().map_err(MountError::Device)?;
    let (uid, gid) = sys::user();
    let fd = device.fd().as_raw_fd();
    let mut data = format!("fd={fd},rootmode={root_mode:o},user_id={uid},group_id={gid}");
    data.push_str(&fuse_options(options));
    let mount_flags = flags(options).iter().fold(0, |all, flag| all | flag.0);
    let mount = |source: &str, kind: &str, data: &str| {
        sys::mount(source, target, kind, mount_flags, data).map_err(|source| mount_error(target, source))
    };
    if let Some(path) = &options.block_device {
        let is_block = File::open(path)
            .and_then(|f| f.metadata())
            .is_ok_and(|m| m.file_type().is_block_device());
        let source = path
            .to_str()
            .filter(|_| is_block)
            .ok_or_else(|| MountError::NotBlockDevice(path.clone()))?;
        let block_bytes = options.block_bytes.min(DEVICE_BLOCK_BYTES_MAX);
        write!(data, ",blksize={block_bytes}").expect("a String takes everything");
        mount(source, &format!("fuseblk.{}", options.subtype), &data)?;
    } else {
        mount(&options.source, &format!("fuse.{}", options.subtype), &data)?;
    }
    Ok(device)
}

/// The device number of what is mounted (last) on `target`. See proc_pid_mountinfo(5).
fn device_of<'a>(table: &'a str, target: &Path) -> Option<&'a str> {
    let escaped = target
        .to_str()?
        .replace('\\', "\\134")
        .replace(' ', "\\040")
        .replace('\t', "\\011")
        .replace('\n', "\\012");
    let mut found = None;
    for line in table.lines() {
        let mut fields = line.split(' ');
        if let (Some(device), Some(on)) = (fields.nth(2), fields.nth(1))
            && on == escaped
        {
            found = Some(device);
        }
    }
    found
}

impl Mountpoint {
    fn new(target: PathBuf, through_helper: bool) -> Mountpoint {
        let device = mount_table()
            .ok()
            .and_then(|table| device_of(&table, &target).map(str::to_owned));
        Mountpoint {
            target,
            through_helper,
            device,
        }
    }

    /// A mount of another process, to be unmounted in the way open to us: directly, or through the
    /// helper.
    pub fn existing(target: PathBuf) -> Mountpoint {
        Mountpoint::new(target, !sys::is_root())
    }

    /// A mount that another process has made, with the number of its device.
    pub fn made_by_another(target: PathBuf, device: Option<String>) -> Mountpoint {
        Mountpoint {
            target,
            through_helper: !sys::is_root(),
            device,
        }
    }

    /// The number of its device, as mount tables have it.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// Is it still what one finds there? True where the mount table cannot be read.
    pub fn is_mounted(&self) -> bool {
        let (Some(device), Ok(table)) = (&self.device, mount_table()) else {
            return true;
        };
        device_of(&table, &self.target) == Some(device)
    }

    /// Unmounts. Fails while something below is in use (`EBUSY`), unless `lazy`: then the mount
    /// disappears at once, and the session ends when the last user is done. A mount that is gone
    /// already, or covered by another, is let be.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        if !self.is_mounted() {
            return Ok(());
        }
        if self.through_helper {
            return helper::unmount(&self.target, lazy);
        }
        let result = sys::umount(&self.target, lazy);
        result.map_err(|source| MountError::Unmount {
            target: self.target.clone(),
            source,
        })
    }

    /// Ends the connection although the mount is in use: pending and later requests fail. An
    /// ordinary user can where the control files are mounted; else the mount disappears, and its
    /// users wait until this process has ended.
    pub(crate) fn abort(&self) {
        if !self.is_mounted() {
            return;
        }
        let aborted = match self.through_helper {
            true => {
                if let Err(error) = self.abort_by_control() {
                    tracing::warn!(%error, "cannot abort the connection");
                }
                return drop(helper::unmount(&self.target, true));
            }
            false => sys::abort(&self.target),
        };
        if let Err(error) = aborted {
            tracing::error!(%error, "aborting the mount");
        }
    }

    /// By the control files of the kernel's fuse, of which each belongs to its mount's user.
    fn abort_by_control(&self) -> io::Result<()> {
        let device = self.device.as_deref().ok_or(io::ErrorKind::NotFound)?;
        let connection = device.strip_prefix("0:").ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(Path::new(CONTROL).join(connection).join("abort"), "1")
    }

    /// Sets how far the kernel reads ahead.
    pub(crate) fn set_readahead(&self, bytes: usize) -> io::Result<()> {
        std::fs::write(self.readahead_path()?, format!("{}", bytes >> 10))
    }

    /// Where the kernel keeps that. A mount of a block device has the number of the device, under
    /// which the device's own readahead is kept; the mount's is beside it.
    fn readahead_path(&self) -> io::Result<PathBuf> {
        let device = self.device.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let path = |name: String| Path::new("/sys/class/bdi").join(name).join("read_ahead_kb");
        let of_block_device = path(format!("{device}-fuseblk"));
        Ok(if of_block_device.exists() {
            of_block_device
        } else {
            path(device.clone())
        })
    }
}

/// Where the control files of connections are mounted, by most systems at boot.
const CONTROL: &str = "/sys/fs/fuse/connections";

/// Read from the mount table, not from the mount itself, which may not answer.
pub(crate) fn mount_table() -> io::Result<String> {
    std::fs::read_to_string("/proc/self/mountinfo")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_words() {
        let options = MountOptions {
            read_only: true,
            allow_other: true,
            max_read_bytes: Some(65536),
            ..Default::default()
        };
        let words: Vec<_> = flags(&options).iter().map(|f| f.1).collect();
        assert_eq!(words, ["ro", "nosuid", "nodev"]);
        assert_eq!(
            fuse_options(&options),
            ",default_permissions,allow_other,max_read=65536"
        );
        assert_eq!(
            helper::options(&options),
            "ro,nosuid,nodev,fsname=cowshed,subtype=cowshed,default_permissions,allow_other,max_read=65536"
        );
        let commas = MountOptions {
            source: "a,b\\c".into(),
            default_permissions: false,
            ..Default::default()
        };
        assert_eq!(
            helper::options(&commas),
            "nosuid,nodev,fsname=a\\,b\\\\c,subtype=cowshed"
        );
    }

    #[test]
    fn the_device_of_a_mount_is_found() {
        let table = "22 1 0:21 / /proc rw - proc proc rw\n\
            30 22 0:50 / /a\\040b rw - fuse x rw\n\
            31 22 0:51 / /a\\040b rw - fuse y rw\n";
        assert_eq!(device_of(table, Path::new("/a b")), Some("0:51"));
        assert_eq!(device_of(table, Path::new("/proc")), Some("0:21"));
        assert_eq!(device_of(table, Path::new("/none")), None);
    }

    #[test]
    fn each_cause_of_an_unusable_device_has_its_own_advice() {
        let error = io::Error::from_raw_os_error;
        let advice = [
            (libc::ENOENT, true, "mknod"),
            (libc::ENOENT, false, "modprobe"),
            (libc::ENODEV, true, "CONFIG_FUSE_FS"),
            (libc::EACCES, true, "chmod"),
            (libc::EPERM, true, "start the container"),
            (libc::EMFILE, true, "reading and writing"),
        ];
        let texts = advice.map(|(errno, has_fuse, part)| {
            let text = device_advice(&error(errno), has_fuse);
            assert!(text.contains(part), "{text}");
            text
        });
        let distinct: std::collections::BTreeSet<_> = texts.iter().collect();
        assert_eq!(distinct.len(), texts.len());
        assert_eq!(device_advice(&error(libc::ENXIO), true), texts[2]);
        let whole = MountError::Device(error(libc::EPERM)).to_string();
        assert!(
            whole.starts_with("/dev/fuse: Operation not permitted") && whole.ends_with(texts[4]),
            "{whole}"
        );
    }

    #[test]
    fn a_mount_needs_a_directory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let refused = mount(file.path(), &MountOptions::default()).unwrap_err();
        assert!(matches!(refused, MountError::NotDirectory(_)), "{refused}");
        let missing = mount(Path::new("/nonexistent/x"), &MountOptions::default()).unwrap_err();
        assert!(missing.to_string().contains("No such file"), "{missing}");
    }
}
