//! Subvolumes as they are on disk, read by this process, also where another one serves a mount of
//! the volume. No request goes through the mount.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use btrfs_format::TreeId;
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed::formats::Format;
use cowshed_btrfs::fs::{Fs, MountOptions, SubvolChoice};
use cowshed_btrfs::{EngineOptions, Mount};
use cowshed_device::{BlockDevice, Locking};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::{Context, FileSystem as _, Lookup, NodeId, Subvolumes as _, Volume as _};
use cowshed_vfs_ioctl::wire::btrfs::{DEV_INFO, DevInfo, FS_INFO, FsInfo, text};
use zerocopy::FromZeros;

use super::btrfs::calls;
use super::extents;
use super::offline::image_of;
use crate::block_devices::with_others;
use crate::devices::{need_format, open_to_read};
use crate::ioctl;

/// A subvolume that was named.
pub struct Named {
    pub id: TreeId,
    /// Its name, without a path; empty for the top level of an image.
    pub name: Vec<u8>,
    pub is_read_only: bool,
}

/// The volume that is read.
pub struct Source {
    pub mount: Arc<Mount>,
    pub fs: Fs,
    paths: Vec<PathBuf>,
    devices: Vec<Arc<dyn BlockDevice>>,
    locking: Locking,
    /// Root directories on a mount that serves the volume. What is open there is not dropped when
    /// it is deleted.
    held: RefCell<Vec<File>>,
}

impl Source {
    /// The volume that the first subvolume is on, for a command.
    pub fn open(path: &Path, command: &str) -> Result<Source> {
        let (paths, locking) = match image_of(path) {
            Some((image, _)) => {
                need_format(image, Format::Btrfs, command)?;
                (with_others(&[image.to_owned()]), Locking::Locked)
            }
            None => {
                let devices = mounted_devices(path).with_context(|| path.display().to_string())?;
                (devices, Locking::Unlocked)
            }
        };
        let devices = open_to_read(&paths, locking)?;
        let opened = open_as_it_is(devices.clone());
        let mount = opened.with_context(|| path.display().to_string())?;
        let options = MountOptions {
            read_only: true,
            subvol: SubvolChoice::Id(TreeId::FS),
            ..MountOptions::default()
        };
        let fs = Fs::new(mount.clone(), options).with_context(|| path.display().to_string())?;
        Ok(Source {
            mount,
            fs,
            paths,
            devices,
            locking,
            held: RefCell::default(),
        })
    }

    /// The volume as it is now, where another process commits to it.
    pub fn reopen(&self) -> Result<Arc<Mount>, cowshed_btrfs::Error> {
        open_as_it_is(self.devices.clone())
    }

    /// Commits of another process can be expected.
    pub fn is_mounted(&self) -> bool {
        self.locking == Locking::Unlocked
    }

    /// The subvolume that a path names.
    pub fn subvolume(&self, path: &Path) -> Result<Named> {
        let found = match image_of(path) {
            Some((image, _)) if image != self.paths[0] => Err(anyhow!("lies on another volume")),
            Some((_, inside)) => self.inside(inside),
            None => self.mounted(path),
        };
        let (id, name) = found.with_context(|| path.display().to_string())?;
        match self.fs.next(&Context::root(), id.get())? {
            Some((info, _)) if info.id == id.get() => Ok(Named {
                id,
                name,
                is_read_only: info.is_read_only,
            }),
            _ => bail!("{}: the subvolume is not on disk yet", path.display()),
        }
    }

    /// By a path from the top level.
    fn inside(&self, path: &[u8]) -> Result<(TreeId, Vec<u8>)> {
        let ctx = Context::root();
        let (mut node, mut name) = (NodeId::ROOT, Vec::new());
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            match self.fs.lookup(&ctx, node, part)? {
                Lookup::Found(entry) => node = entry.node,
                Lookup::Absent { .. } => bail!("no such file or directory"),
            }
            name = part.to_vec();
        }
        let found = self.fs.subvolume_of(node)?;
        if !found.is_root {
            bail!("not a subvolume");
        }
        Ok((TreeId(found.id), name))
    }

    /// By a path on a mount.
    fn mounted(&self, path: &Path) -> Result<(TreeId, Vec<u8>)> {
        let root = File::open(path)?;
        let mut info = FsInfo::new_zeroed();
        ioctl::call(&root, FS_INFO, &mut info)?;
        if info.fsid != cowshed_vfs::Volume::info(&self.fs).uuid {
            bail!("lies on another volume");
        }
        let id = TreeId(calls::id_of(path).context("not a subvolume")?);
        let whole = path.canonicalize()?;
        let name = whole.file_name().unwrap_or_default().as_bytes().to_vec();
        self.held.borrow_mut().push(root);
        Ok((id, name))
    }
}

/// As of the last commit: logs are not replayed. A commit may replace what is read right now: then
/// there is a newer superblock.
fn open_as_it_is(devices: Vec<Arc<dyn BlockDevice>>) -> Result<Arc<Mount>, cowshed_btrfs::Error> {
    const TRIES: usize = 10;
    let mut options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    options.rescue.no_log_replay = true;
    let engine = EngineOptions {
        commit_interval_s: 0,
        ..EngineOptions::default()
    };
    let open = || {
        let volume = Volume::open(devices.clone(), &options)?;
        Mount::open(volume, Arc::new(SystemEnv), engine)
    };
    let mut opened = open();
    for _ in 1..TRIES {
        if opened.is_ok() {
            break;
        }
        opened = open();
    }
    opened
}

/// The devices of the volume that a mount of ours serves.
pub fn mounted_devices(path: &Path) -> Result<Vec<PathBuf>> {
    let file = File::open(path)?;
    if extents::lend(&file)?.is_none() {
        bail!("not on a mount of cowshed's (for a volume that is not mounted: IMAGE:/PATH)");
    }
    let mut info = FsInfo::new_zeroed();
    ioctl::call(&file, FS_INFO, &mut info)?;
    let mut paths = Vec::new();
    for id in 1..=info.max_id.get() {
        let mut device = DevInfo::new_zeroed();
        device.devid = id.into();
        match ioctl::call(&file, DEV_INFO, &mut device) {
            Ok(_) => paths.push(PathBuf::from(OsStr::from_bytes(text(&device.path).unwrap_or_default()))),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(paths)
}
