//! `cowshed send`: writes read-only subvolumes as a stream, with the flags and the words of
//! `btrfs send`.
//!
//! The volume is read by this process, also where another one serves a mount of it: what is
//! read-only does not change, and stays as long as the mount has it in use. So sending takes
//! nothing from those who use the mount.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, IsTerminal as _, Write, stdout};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use btrfs_format::TreeId;
use btrfs_store::volume::{OpenOptions, Volume};
use btrfs_stream::{Version, Writer};
use clap::Args;
use cowshed_btrfs::fs::{Fs, MountOptions, SubvolChoice};
use cowshed_btrfs::send::{self, Request};
use cowshed_btrfs::{EngineOptions, Mount};
use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::{Context, FileSystem as _, Lookup, NodeId, SubvolumeInfo, Subvolumes as _, Volume as _};
use cowshed_vfs_ioctl::wire::btrfs::{DEV_INFO, DevInfo, FS_INFO, FsInfo, text};
use zerocopy::FromZeros;

use super::extents;
use super::receive::image_of;
use super::subvolume::calls;
use crate::devices::open_to_read;
use crate::ioctl;

/// Of the output: larger than a command.
const BUFFER_BYTES: usize = 256 << 10;

#[derive(Args, Debug)]
#[command(after_help = "\
Each SUBVOL is a read-only subvolume: a directory on a mount of cowshed's, or IMAGE:/PATH on a volume that is not \
mounted. All are on one volume.")]
pub struct SendArgs {
    /// With several subvolumes: no end between them, and no header
    #[arg(short = 'e')]
    no_end_between: bool,
    /// Send what differs from this subvolume, which the receiver has
    #[arg(short, long, value_name = "SUBVOL")]
    parent: Option<PathBuf>,
    /// The receiver has this subvolume: share its extents. May be given several times. Without a
    /// parent one of these is it, that with the most in common
    #[arg(short, long = "clone-src", value_name = "SUBVOL")]
    clone_sources: Vec<PathBuf>,
    /// Write to FILE instead of the standard output
    #[arg(short = 'f', value_name = "FILE")]
    file: Option<PathBuf>,
    /// Leave data out, and name the ranges that changed
    #[arg(long)]
    no_data: bool,
    /// Version of the stream, 1 or 2; 0: the newest
    #[arg(long, value_name = "N", default_value_t = 1)]
    proto: u32,
    /// Send compressed data as it lies; needs version 2
    #[arg(long)]
    compressed_data: bool,
    /// Print what is sent
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// Print errors alone
    #[arg(short, long)]
    quiet: bool,
    /// Read-only subvolumes
    #[arg(required = true)]
    subvolumes: Vec<PathBuf>,
}

pub fn run(args: &SendArgs) -> Result<u8> {
    let version = match (args.proto, args.compressed_data) {
        (0, _) | (2, _) => Version::V2,
        (1, false) => Version::V1,
        (1, true) => bail!("--compressed-data needs --proto 2"),
        (other, _) => bail!("version {other} of the stream is not known: 1 and 2 are"),
    };
    let source = Source::open(&args.subvolumes[0])?;
    let parent = args.parent.as_deref().map(|path| source.subvolume(path)).transpose()?;
    let clones = args.clone_sources.iter().map(|path| source.subvolume(path));
    let clones = clones.collect::<Result<Vec<_>>>()?;
    let wanted = args.subvolumes.iter().map(|path| source.subvolume(path));
    let wanted = wanted.collect::<Result<Vec<_>>>()?;
    let output: Box<dyn Write> = match &args.file {
        Some(path) => Box::new(File::create(path).with_context(|| path.display().to_string())?),
        None if stdout().is_terminal() => bail!("not to a terminal: redirect the output, or use -f"),
        None => Box::new(stdout().lock()),
    };
    let mut output = BufWriter::with_capacity(BUFFER_BYTES, output);
    let mut had: Vec<Named> = Vec::new();
    for (n, (path, wanted)) in args.subvolumes.iter().zip(wanted).enumerate() {
        let parent = match (&parent, n) {
            (Some(parent), 0) => Some(parent.id),
            _ if args.parent.is_none() && clones.is_empty() => None,
            (Some(_), _) => had.last().map(|named| named.id),
            // That which it was made of last.
            (None, _) => source.nearest(&wanted, clones.iter().chain(&had)),
        };
        if !args.quiet {
            eprintln!("At subvol {}", path.display());
        }
        let request = Request {
            subvolume: wanted.id,
            parent,
            sources: clones.iter().chain(&had).map(|named| named.id).collect(),
            name: wanted.name.clone(),
            is_compressed: args.compressed_data,
            is_without_data: args.no_data,
        };
        let mut writer = match n > 0 && args.no_end_between {
            true => Writer::continued(&mut output, version),
            false => Writer::new(&mut output, version)?,
        };
        let reopen: send::Reopen<'_> = &|| source.reopen();
        let reopen = (source.locking == Locking::Unlocked).then_some(reopen);
        let sent = send::send(&source.mount, reopen, &request, &mut writer);
        sent.with_context(|| format!("{}: not sent", path.display()))?;
        had.push(wanted);
    }
    output.flush()?;
    Ok(0)
}

/// A subvolume that was named.
struct Named {
    id: TreeId,
    name: Vec<u8>,
}

/// The volume that is read.
struct Source {
    mount: Arc<Mount>,
    fs: Fs,
    paths: Vec<PathBuf>,
    locking: Locking,
    /// Root directories on a mount that serves the volume. What is open there is not dropped when
    /// it is deleted.
    held: RefCell<Vec<File>>,
}

impl Source {
    /// The volume that the first subvolume is on.
    fn open(path: &Path) -> Result<Source> {
        let (paths, locking) = match image_of(path) {
            Some((image, _)) => (vec![image.to_owned()], Locking::Locked),
            None => {
                let devices = mounted_devices(path).with_context(|| path.display().to_string())?;
                (devices, Locking::Unlocked)
            }
        };
        let opened = open_to_send(open_to_read(&paths, locking)?);
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
            locking,
            held: RefCell::default(),
        })
    }

    /// The volume as it is now, where another process commits to it.
    fn reopen(&self) -> Result<Arc<Mount>, cowshed_btrfs::Error> {
        let open = |path| FileDevice::open_with(path, OpenMode::ReadOnly, self.locking);
        let devices = self
            .paths
            .iter()
            .map(|path| open(path).map(|device| Arc::new(device) as _));
        open_to_send(devices.collect::<Result<_, _>>()?)
    }

    fn subvolume(&self, path: &Path) -> Result<Named> {
        let found = match image_of(path) {
            Some((_, inside)) => self.inside(inside),
            None => self.mounted(path),
        };
        let named = found.with_context(|| path.display().to_string())?;
        match self.fs.next(&Context::root(), named.id.get())? {
            Some((info, _)) if info.id == named.id.get() && info.is_read_only => Ok(named),
            Some((info, _)) if info.id == named.id.get() => {
                bail!("{}: not sent: the subvolume is not read-only", path.display())
            }
            _ => bail!("{}: not sent: the subvolume is not on disk yet", path.display()),
        }
    }

    /// By a path from the top level.
    fn inside(&self, path: &[u8]) -> Result<Named> {
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
        if !found.is_root || name.is_empty() {
            bail!("not a subvolume");
        }
        let id = TreeId(found.id);
        Ok(Named { id, name })
    }

    /// By a path on a mount.
    fn mounted(&self, path: &Path) -> Result<Named> {
        let root = File::open(path)?;
        let mut info = FsInfo::new_zeroed();
        ioctl::call(&root, FS_INFO, &mut info)?;
        if info.fsid != cowshed_vfs::Volume::info(&self.fs).uuid {
            bail!("lies on another volume");
        }
        let id = TreeId(calls::id_of(path).context("not a subvolume")?);
        let whole = path.canonicalize()?;
        let name = whole.file_name().context("has no name")?.as_bytes().to_vec();
        self.held.borrow_mut().push(root);
        Ok(Named { id, name })
    }

    /// The one that a subvolume was made of, or that was made of the same: the youngest that is not
    /// younger.
    fn nearest<'a>(&self, wanted: &Named, all: impl Iterator<Item = &'a Named>) -> Option<TreeId> {
        let infos = || -> Result<Vec<SubvolumeInfo>, cowshed_vfs::Error> {
            let (mut found, mut from) = (Vec::new(), 0);
            while let Some((info, _)) = self.fs.next(&Context::root(), from)? {
                from = info.id + 1;
                found.push(info);
            }
            Ok(found)
        };
        let infos = infos().unwrap_or_default();
        let info = |id: TreeId| infos.iter().find(|info| info.id == id.get());
        let of = info(wanted.id)?;
        let is_akin = |other: &SubvolumeInfo| {
            other.parent_uuid == of.parent_uuid && of.parent_uuid != [0; 16] || other.uuid == of.parent_uuid
        };
        let candidates = all.filter_map(|named| info(named.id)).filter(|other| is_akin(other));
        let older = candidates.filter(|other| other.created_generation <= of.created_generation);
        older
            .max_by_key(|other| other.changed_generation)
            .map(|other| TreeId(other.id))
    }
}

/// Nothing in a log is of a read-only subvolume. A commit may replace what is read right now: then
/// there is a newer superblock.
fn open_to_send(devices: Vec<Arc<dyn BlockDevice>>) -> Result<Arc<Mount>, cowshed_btrfs::Error> {
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
fn mounted_devices(path: &Path) -> Result<Vec<PathBuf>> {
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
