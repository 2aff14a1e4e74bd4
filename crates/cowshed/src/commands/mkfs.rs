//! `cowshed mkfs`: makes a volume, with the flags of mkfs.btrfs. Called by that name and without
//! `--rootdir`, the program makes no file that is not there and lets none grow. It fails in the
//! words of mkfs.btrfs.

mod features;
mod stock;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use btrfs_image::size::{parse_size_bytes, pretty_bytes};
use btrfs_image::{Features, MkfsError, MkfsOptions, MkfsReport, Profile, csum_type_from_name, mkfs};
use clap::{Args, Parser};
use cowshed::image::{Builder, Owner, Report, SubvolumeKind};
use cowshed_device::{BlockDevice, FileDevice, Locking, OpenMode};

use super::build::{self, Compress, InodeFlags};
use crate::block_devices;

#[derive(Args, Debug)]
#[command(after_help = "\
Profiles: single, dup, raid0, raid1, raid1c3, raid1c4, raid10. Checksums: crc32c, xxhash, sha256, blake2.
Features: mixed-bg, extref, skinny-metadata, no-holes, free-space-tree, block-group-tree; ^NAME turns one off.
Linux before 6.1 can only read a volume with a block-group-tree: -O ^block-group-tree.
A TARGET that does not exist is made as a sparse file of the size that -b gives.")]
pub struct MkfsArgs {
    /// Image files or block devices
    #[arg(value_name = "TARGET")]
    targets: Vec<PathBuf>,
    /// Label of the volume, up to 255 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// Size of tree blocks: 4k to 64k
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    nodesize: Option<u64>,
    /// Sector size; 4k is what there is
    #[arg(short, long, value_name = "SIZE", value_parser = size, default_value = "4k")]
    sectorsize: u64,
    /// Profile of metadata (default: dup on one device, raid1 on several)
    #[arg(short, long, value_name = "PROFILE")]
    metadata: Option<Profile>,
    /// Profile of data (default: single)
    #[arg(short, long, value_name = "PROFILE")]
    data: Option<Profile>,
    /// Data and metadata in the same chunks, for small volumes
    #[arg(short = 'M', long)]
    mixed: bool,
    /// Bytes to use of each target
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    byte_count: Option<u64>,
    /// UUID of the volume (default: random)
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<uuid::Uuid>,
    /// UUID of the device (one target only; default: random)
    #[arg(long, value_name = "UUID")]
    device_uuid: Option<uuid::Uuid>,
    /// Checksum
    #[arg(long, visible_alias = "checksum", value_name = "TYPE", default_value = "crc32c")]
    csum: String,
    /// Features, separated by commas
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// The same as -O, as older mkfs.btrfs had it
    #[arg(short = 'R', long, value_name = "LIST")]
    runtime_features: Vec<String>,
    /// Owner and group of the top directory (default: root; an ordinary user who makes a volume
    /// gets it)
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    root_owner: Option<(u32, u32)>,
    /// Copy what is in a directory to the volume; a file that is too small grows
    #[arg(short, long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// Make a directory of --rootdir a subvolume; TYPE is rw, ro, default or default-ro
    #[arg(short = 'u', long, value_name = "[TYPE:]PATH", value_parser = build::subvolume, requires = "rootdir")]
    subvol: Vec<(SubvolumeKind, PathBuf)>,
    /// Store a path of --rootdir, and all below it, with flags: nodatacow, nodatasum
    #[arg(long, value_name = "FLAGS:PATH", value_parser = build::inode_flags, requires = "rootdir")]
    inode_flags: Vec<InodeFlags>,
    /// Compress the files of --rootdir: no, zlib, lzo or zstd, with a level
    #[arg(long, value_name = "ALGO[:LEVEL]", value_parser = build::compress, requires = "rootdir")]
    compress: Option<Compress>,
    /// Share extents with the files of --rootdir, where an image file lies on the same file system
    /// that can; else data is copied, and -v says so
    #[arg(long, requires = "rootdir")]
    reflink: bool,
    /// Make the volume, and an image file, as small as the files of --rootdir allow
    #[arg(long, requires = "rootdir")]
    shrink: bool,
    /// Overwrite what a target holds
    #[arg(short, long)]
    force: bool,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Say how much was shared by --reflink
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Do not discard the targets' old contents
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// The name under which this program is mkfs.btrfs.
pub const NAME: &str = "mkfs.btrfs";
/// Its exit code after a failure.
const FAILED: u8 = 1;

/// By which name the program was called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Called {
    Cowshed,
    MkfsBtrfs,
}

impl Called {
    fn locking(self) -> Locking {
        match self {
            Called::Cowshed => Locking::Locked,
            // The caller may hold the lock of the device: as mkfs.btrfs, we only claim it.
            Called::MkfsBtrfs => Locking::Claimed,
        }
    }
}

/// The program called as mkfs.btrfs.
#[derive(Parser, Debug)]
#[command(name = NAME, about = "Make a btrfs volume on image files or devices", disable_version_flag = true)]
struct Named {
    #[command(flatten)]
    args: MkfsArgs,
    /// Print version
    #[arg(short = 'V', long)]
    version: bool,
}

/// Runs it under that name. Returns its exit code.
pub fn run_named() -> u8 {
    let named = match Named::try_parse() {
        Ok(named) => named,
        Err(error) => {
            // Nothing is left to say if that cannot be printed.
            let _ = error.print();
            return if error.use_stderr() { FAILED } else { 0 };
        }
    };
    if named.version {
        crate::people::say(stock::version(NAME));
        return 0;
    }
    run_called(&named.args, Called::MkfsBtrfs).unwrap_or_else(|error| {
        match stock::reason(&error, named.args.byte_count.is_some()) {
            Some(text) => crate::people::warn(text),
            None => crate::people::warn(format_args!("{NAME}: {error:#}")),
        }
        FAILED
    })
}

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).map_err(|e| e.to_string())
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let parse = |(uid, gid): (&str, &str)| Some((uid.parse().ok()?, gid.parse().ok()?));
    text.split_once(':')
        .and_then(parse)
        .ok_or_else(|| format!("{text:?} is not UID:GID"))
}

pub fn run(args: &MkfsArgs) -> Result<u8> {
    run_called(args, Called::Cowshed)
}

fn run_called(args: &MkfsArgs, called: Called) -> Result<u8> {
    let mut lists = args.features.iter().chain(&args.runtime_features);
    if lists.any(|list| list.split(',').any(|word| word == features::LIST_ALL)) {
        match called {
            Called::Cowshed => features::list(),
            Called::MkfsBtrfs => features::list_as_stock(),
        }
        return Ok(0);
    }
    if args.targets.is_empty() {
        bail!("no TARGET is named: see --help");
    }
    let options = options(args)?;
    if let Some(rootdir) = &args.rootdir {
        return copy(args, rootdir, &options, called);
    }
    let mut made = Vec::new();
    let result = open_targets(args, called, &mut made).and_then(|devices| make(args, &devices, &options));
    let report = match result {
        Ok(report) => report,
        Err(error) => {
            // What did not exist before does not exist after a failure.
            for path in made {
                let _ = std::fs::remove_file(path);
            }
            return Err(error);
        }
    };
    if args.targets.len() > 1 {
        register(&args.targets);
    }
    if args.json {
        crate::people::say(format_args!("{:#}", summary::json(&report, &options)));
    } else if !args.quiet {
        summary::print_headline();
        summary::print_discards(&report, &made);
        summary::print(&report, &options);
    }
    Ok(0)
}

/// So that the kernel's btrfs mounts the volume by any of its devices. Best effort: without
/// privileges or the driver, udev or `btrfs device scan` registers them later.
fn register(targets: &[PathBuf]) {
    let devices = targets.iter().filter(|path| block_devices::is_block_device(path));
    for device in devices.filter_map(|path| path.canonicalize().ok()) {
        if let Err(error) = block_devices::register(&device) {
            tracing::debug!(device = %device.display(), %error, "not registered");
        }
    }
}

fn make(args: &MkfsArgs, devices: &[Arc<dyn BlockDevice>], options: &MkfsOptions) -> Result<MkfsReport> {
    let report = mkfs(devices, options).map_err(|error| match error {
        // The library's word for it is no flag yet.
        error @ MkfsError::InUse { .. } => anyhow::Error::from(error).context("not made, -f overwrites"),
        error => error.into(),
    })?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let caller = (!uid.is_root()).then(|| (uid.as_raw(), gid.as_raw()));
    if let Some((uid, gid)) = args.root_owner.or(caller) {
        let volume = cowshed::Volume::open(devices.iter().cloned(), &cowshed::OpenOptions::new())?;
        volume.set_owner("/", uid, gid)?;
        volume.close()?;
    }
    Ok(report)
}

/// With `--rootdir`: the volume and what the directory holds.
fn copy(args: &MkfsArgs, rootdir: &Path, options: &MkfsOptions, called: Called) -> Result<u8> {
    crate::unfinished::remove_when_interrupted();
    let mut builder = Builder::new();
    builder.from_dir(rootdir).label(args.label.as_str());
    builder.uuid(uuid::Uuid::from_bytes(options.uuid));
    build::apply_environment(&mut builder)?;
    builder.volume(options.clone());
    for (kind, path) in &args.subvol {
        builder.subvolume_of_kind(path, *kind);
    }
    build::apply_storage(&mut builder, args.compress.as_slice(), &args.inode_flags)?;
    if let Some((uid, gid)) = args.root_owner {
        builder.owner("", Owner { uid, gid });
    }
    if let (Some(bytes), false) = (args.byte_count, args.shrink) {
        builder.size(bytes);
    }
    if args.reflink {
        builder.reflink_if_possible();
    }
    let report = copy_onto(args, &mut builder, called).map_err(|error| match error.downcast_ref() {
        Some(cowshed::image::Error::Volume(MkfsError::InUse { .. })) => error.context("not made, -f overwrites"),
        _ => error,
    })?;
    if args.targets.len() > 1 {
        register(&args.targets);
    }
    if args.json {
        crate::people::say(format_args!("{:#}", build::json(&report)));
    } else if !args.quiet {
        let mkfs = report.as_mkfs();
        summary::print_headline();
        summary::print_discards(&mkfs, &[]);
        if args.reflink && args.verbose > 0 {
            let (shared, all) = (pretty_bytes(report.reflinked_bytes), pretty_bytes(report.data_bytes));
            match report.reflinked_bytes {
                0 => crate::people::say(format_args!(
                    "Nothing is shared with {}: all data is copied",
                    rootdir.display()
                )),
                _ => crate::people::say(format_args!("{shared} of {all} are shared with {}", rootdir.display())),
            }
        }
        let compress = args.compress.as_ref().and_then(|compress| compress.how);
        summary::print_source(rootdir, compress, &args.subvol, args.shrink);
        summary::print(&mkfs, options);
    }
    Ok(0)
}

fn copy_onto(args: &MkfsArgs, builder: &mut Builder, called: Called) -> Result<Report> {
    if let [target] = &args.targets[..] {
        let metadata = std::fs::metadata(target);
        let is_file = metadata.as_ref().map_or(true, std::fs::Metadata::is_file);
        if is_file {
            check_makes_no_device(target)?;
            if args.byte_count.is_none() && !args.shrink {
                builder.size_at_least(metadata.map_or(0, |metadata| metadata.len()));
            }
            return Ok(builder.write_in_place(target)?);
        }
    }
    let devices = open_targets(args, called, &mut Vec::new())?;
    if !args.shrink {
        let smallest = devices.iter().map(|device| device.size_bytes()).min();
        builder.size(args.byte_count.or(smallest).unwrap_or_default());
    }
    Ok(builder.write_onto(&devices)?)
}

fn options(args: &MkfsArgs) -> Result<MkfsOptions> {
    let mut features = Features::default();
    for list in args.features.iter().chain(&args.runtime_features) {
        features.apply(list)?;
    }
    if args.device_uuid.is_some() && args.targets.len() > 1 {
        bail!("--device-uuid goes with one target");
    }
    let random = || *uuid::Uuid::new_v4().as_bytes();
    let fixed = build::fixed_seed();
    let device_uuids = match args.device_uuid {
        Some(uuid) => vec![*uuid.as_bytes()],
        // Derived from the volume's uuid.
        None if fixed.is_some() => Vec::new(),
        None => args.targets.iter().map(|_| random()).collect(),
    };
    let nodesize_bytes = args
        .nodesize
        .map(|n| u32::try_from(n).context("--nodesize"))
        .transpose()?;
    let seed = match fixed {
        Some(_) => 0,
        None => u64::from_le_bytes(random().first_chunk().copied().unwrap_or_default()),
    };
    let uuid = match (args.uuid, fixed) {
        (Some(uuid), _) => *uuid.as_bytes(),
        (None, Some(seed)) => cowshed::image::uuid_of_seed(seed.as_bytes()).into_bytes(),
        (None, None) => random(),
    };
    Ok(MkfsOptions {
        label: args.label.clone(),
        nodesize_bytes,
        sectorsize_bytes: u32::try_from(args.sectorsize).context("--sectorsize")?,
        metadata_profile: args.metadata,
        data_profile: args.data,
        mixed: args.mixed,
        byte_count: args.byte_count,
        device_uuids,
        csum_type: csum_type_from_name(&args.csum)?,
        features,
        force: args.force,
        discard: !args.nodiscard,
        time: build::epoch()?.unwrap_or_else(SystemTime::now),
        seed,
        ..MkfsOptions::new(uuid)
    })
}

/// Opens the targets; notes in `made` which files it made.
fn open_targets(args: &MkfsArgs, called: Called, made: &mut Vec<PathBuf>) -> Result<Vec<Arc<dyn BlockDevice>>> {
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for path in &args.targets {
        let device = open_target(path, args.byte_count, called, made)?;
        devices.push(Arc::new(device));
    }
    Ok(devices)
}

fn open_target(path: &Path, byte_count: Option<u64>, called: Called, made: &mut Vec<PathBuf>) -> Result<FileDevice> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if called == Called::MkfsBtrfs {
                bail!("{}: No such file or directory", path.display());
            }
            check_makes_no_device(path)?;
            let Some(bytes) = byte_count else {
                bail!("{}: does not exist; -b SIZE makes it", path.display());
            };
            let device = FileDevice::create(path, bytes)?;
            made.push(path.into());
            return Ok(device);
        }
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    if let Some(bytes) = byte_count
        && called == Called::Cowshed
        && meta.is_file()
        && meta.len() < bytes
    {
        let file = std::fs::OpenOptions::new().write(true).open(path);
        file.and_then(|f| f.set_len(bytes))
            .with_context(|| path.display().to_string())?;
    }
    Ok(FileDevice::open_with(path, OpenMode::ReadWrite, called.locking())?)
}

/// Errors: the target is not there, and would be a file among the devices. A device of that name is
/// meant, which is gone or not there yet. Files of /dev/shm are files.
fn check_makes_no_device(target: &Path) -> Result<()> {
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    let Ok(parent) = parent.unwrap_or(Path::new(".")).canonicalize() else {
        return Ok(());
    };
    let is_among_devices = parent.starts_with("/dev") && !parent.starts_with("/dev/shm");
    if is_among_devices && !target.exists() {
        bail!("{}: no such device", target.display());
    }
    Ok(())
}
