//! `cowshed build`: an image of what directories and archives hold.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use btrfs_image::size::{parse_size_bytes, pretty_bytes};
use btrfs_image::{Features, MkfsOptions, Profile, csum_type_from_name};
use clap::Args;
use cowshed::Compression;
use cowshed::image::{Builder, Owner, Platform, Report, SubvolumeKind};

use super::progress;

#[derive(Args, Debug)]
#[command(after_help = "\
Sources are laid over each other in their order; a directory over a directory keeps what is in it.
GLOB is about the whole path if it has a slash, else about the name; ** matches slashes, too.
With SOURCE_DATE_EPOCH in the environment, no time in the image is later. Uuids follow from
DETERMINISTIC_SEED if that is set, else from the names and the metadata of the contents: the same
sources and options give the same bytes, with any number of threads.
OUT appears when it is complete; after a failure there is nothing new.")]
pub struct BuildArgs {
    /// The image file to make, or a block device
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// A directory, a tar archive (also compressed by gzip, zstd or xz; - is standard input), an
    /// OCI image layout or an archive of one, an archive of docker save; several are laid over each
    /// other
    #[arg(long, value_name = "SOURCE")]
    from: Vec<PathBuf>,
    /// Which image of a container image for several machines (default: that of this machine)
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    platform: Option<Platform>,
    /// Make a directory of the image a subvolume; TYPE is rw, ro, default or default-ro
    #[arg(short = 'u', long, value_name = "[TYPE:]PATH", value_parser = subvolume)]
    subvol: Vec<(SubvolumeKind, PathBuf)>,
    /// Compress files: zlib, lzo, zstd, with a level; for files that match GLOB alone, none: not
    /// those
    #[arg(long, value_name = "[GLOB=]ALGO[:LEVEL]", value_parser = compress)]
    compress: Vec<Compress>,
    /// Store a path, and all below it, with flags: nodatacow, nodatasum
    #[arg(long, value_name = "FLAGS:PATH", value_parser = inode_flags)]
    inode_flags: Vec<InodeFlags>,
    /// Everything belongs to root
    #[arg(long)]
    all_root: bool,
    /// Everything belongs to this user
    #[arg(long, value_name = "UID")]
    force_uid: Option<u32>,
    /// Everything belongs to this group
    #[arg(long, value_name = "GID")]
    force_gid: Option<u32>,
    /// Add a number to each user
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    uid_offset: i64,
    /// Add a number to each group
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    gid_offset: i64,
    /// Owner and group of a path of the image
    #[arg(long, value_name = "PATH:UID:GID", value_parser = owner)]
    owner: Vec<(PathBuf, Owner)>,
    /// Owner and group of the top directory
    #[arg(long, value_name = "UID:GID", value_parser = root_owner)]
    root_owner: Option<Owner>,
    /// Permission bits of a path of the image, in octal
    #[arg(long, value_name = "PATH:MODE", value_parser = mode)]
    mode: Vec<(PathBuf, u32)>,
    /// Leave out what matches
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Leave out paths in which the regular expression is found
    #[arg(long, value_name = "REGEX")]
    exclude_regex: Vec<String>,
    /// Take what matches although it is excluded; without exclusions, only what matches
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// As --include, by a regular expression that is found in the path
    #[arg(long, value_name = "REGEX")]
    include_regex: Vec<String>,
    /// Label of the volume, up to 255 bytes
    #[arg(short = 'L', long, default_value = "")]
    label: String,
    /// UUID of the volume
    #[arg(short = 'U', long, value_name = "UUID")]
    uuid: Option<uuid::Uuid>,
    /// Size of tree blocks: 4k to 64k
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    nodesize: Option<u64>,
    /// Checksum: crc32c, xxhash, sha256, blake2
    #[arg(long, value_name = "TYPE", default_value = "crc32c")]
    csum: String,
    /// Profile of metadata: single or dup (default: dup)
    #[arg(short, long, value_name = "PROFILE")]
    metadata: Option<Profile>,
    /// Profile of data: single or dup (default: single)
    #[arg(short, long, value_name = "PROFILE")]
    data: Option<Profile>,
    /// Features, separated by commas, as with mkfs
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// Size of the image (default: as the contents need it)
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    size: Option<u64>,
    /// Without --size: bytes that the image has besides, for changes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", conflicts_with = "size")]
    slack: u64,
    /// The volume begins at this byte of the image, with zeros before it
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "partition")]
    offset: Option<u64>,
    /// Make a disk image: a GPT with one partition, which holds the volume
    #[arg(long)]
    partition: bool,
    /// Overwrite what a block device holds
    #[arg(short, long)]
    force: bool,
    /// Say what the image would be, and make none
    #[arg(long)]
    dry_run: bool,
    /// Check the image when it is made, checksums of data included
    #[arg(long)]
    verify: bool,
    /// Threads (default: one for each processor)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print nothing
    #[arg(short, long)]
    quiet: bool,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Where the partition of `--partition` begins.
const PARTITION_BYTES: u64 = 1 << 20;

fn size(text: &str) -> Result<u64, String> {
    parse_size_bytes(text).map_err(|e| e.to_string())
}

/// A subvolume as mkfs.btrfs takes it: `[TYPE:]PATH`.
pub(super) fn subvolume(text: &str) -> Result<(SubvolumeKind, PathBuf), String> {
    let (kind, path) = text.split_once(':').unwrap_or(("rw", text));
    let kind = match kind {
        "rw" => SubvolumeKind::default(),
        "ro" => SubvolumeKind {
            read_only: true,
            is_default: false,
        },
        "default" => SubvolumeKind {
            read_only: false,
            is_default: true,
        },
        "default-ro" => SubvolumeKind {
            read_only: true,
            is_default: true,
        },
        _ => return Err(format!("{kind:?} is none of rw, ro, default, default-ro")),
    };
    Ok((kind, path.into()))
}

/// How files are compressed that match a glob, or all.
#[derive(Clone, Debug)]
pub(super) struct Compress {
    pub(super) glob: Option<String>,
    pub(super) how: Option<Compression>,
}

pub(super) fn compress(text: &str) -> Result<Compress, String> {
    let (glob, how) = match text.rsplit_once('=') {
        Some((glob, how)) => (Some(glob.to_owned()), how),
        None => (None, text),
    };
    let how = match how {
        "none" | "no" => None,
        how => Some(how.parse::<Compression>().map_err(|e| e.to_string())?),
    };
    Ok(Compress { glob, how })
}

/// Flags of a path, as mkfs.btrfs takes them.
#[derive(Clone, Debug)]
pub(super) struct InodeFlags {
    nodatacow: bool,
    nodatasum: bool,
    path: PathBuf,
}

pub(super) fn inode_flags(text: &str) -> Result<InodeFlags, String> {
    let (flags, path) = text.split_once(':').ok_or("expected FLAGS:PATH")?;
    let mut parsed = InodeFlags {
        nodatacow: false,
        nodatasum: false,
        path: path.into(),
    };
    for flag in flags.split(',') {
        match flag {
            "nodatacow" => parsed.nodatacow = true,
            "nodatasum" => parsed.nodatasum = true,
            _ => return Err(format!("{flag:?} is none of nodatacow, nodatasum")),
        }
    }
    Ok(parsed)
}

/// Says how files are stored.
pub(super) fn apply_storage(builder: &mut Builder, compress: &[Compress], flags: &[InodeFlags]) -> Result<()> {
    for Compress { glob, how } in compress {
        match (glob, how) {
            (Some(glob), how) => drop(builder.compress_matching(glob, *how)?),
            (None, Some(how)) => drop(builder.compress(*how)),
            (None, None) => {}
        }
    }
    for flags in flags {
        if flags.nodatacow {
            builder.nodatacow(&flags.path);
        }
        if flags.nodatasum {
            builder.nodatasum(&flags.path);
        }
    }
    Ok(())
}

/// `SOURCE_DATE_EPOCH`, in seconds.
fn epoch_sec() -> Result<Option<u32>> {
    let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") else {
        return Ok(None);
    };
    let sec = epoch.parse().with_context(|| format!("SOURCE_DATE_EPOCH={epoch:?}"))?;
    Ok(Some(sec))
}

/// `SOURCE_DATE_EPOCH`.
pub(super) fn epoch() -> Result<Option<SystemTime>> {
    let sec = epoch_sec()?;
    Ok(sec.map(|sec| SystemTime::UNIX_EPOCH + Duration::from_secs(sec.into())))
}

/// What uuids follow from where they are to be the same each time.
pub(super) fn fixed_seed() -> Option<String> {
    std::env::var("DETERMINISTIC_SEED").ok()
}

/// Reads `SOURCE_DATE_EPOCH` and `DETERMINISTIC_SEED`.
pub(super) fn apply_environment(builder: &mut Builder) -> Result<()> {
    if let Some(sec) = epoch_sec()? {
        builder.clamp_times(sec.into());
    }
    if let Some(seed) = fixed_seed() {
        builder.seed(seed);
    }
    Ok(())
}

fn id_pair(text: &str) -> Option<Owner> {
    let (uid, gid) = text.split_once(':')?;
    Some(Owner {
        uid: uid.parse().ok()?,
        gid: gid.parse().ok()?,
    })
}

fn root_owner(text: &str) -> Result<Owner, String> {
    id_pair(text).ok_or_else(|| format!("{text:?} is not UID:GID"))
}

fn owner(text: &str) -> Result<(PathBuf, Owner), String> {
    let colon = text.rmatch_indices(':').nth(1).map(|(at, _)| at);
    let parsed = colon.and_then(|at| Some((text[..at].into(), id_pair(&text[at + 1..])?)));
    parsed.ok_or_else(|| format!("{text:?} is not PATH:UID:GID"))
}

fn mode(text: &str) -> Result<(PathBuf, u32), String> {
    let parsed = text.rsplit_once(':').and_then(|(path, mode)| {
        let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)?;
        Some((path.into(), mode))
    });
    parsed.ok_or_else(|| format!("{text:?} is not PATH:MODE, the mode in octal"))
}

pub fn run(args: &BuildArgs) -> Result<u8> {
    if args.from.is_empty() {
        bail!("--from SOURCE says what goes into the image");
    }
    let mut builder = builder(args)?;
    if !args.quiet && !args.json {
        progress::show(&mut builder);
    }
    let report = match args.dry_run {
        true => builder.plan()?,
        false if is_device(args) => onto_device(args, &mut builder)?,
        false => builder.write(&args.out)?,
    };
    if args.verify && !args.dry_run {
        verify(args)?;
    }
    if args.json {
        println!("{:#}", json(&report));
    } else if !args.quiet {
        print(args, &report);
    }
    Ok(0)
}

fn is_device(args: &BuildArgs) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    std::fs::metadata(&args.out).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

fn onto_device(args: &BuildArgs, builder: &mut Builder) -> Result<Report> {
    if args.partition || args.offset.is_some() {
        bail!("--partition and --offset go with an image file");
    }
    let device = cowshed::FileDevice::open(&args.out, cowshed::OpenMode::ReadWrite)?;
    let device: Arc<dyn cowshed::BlockDevice> = Arc::new(device);
    builder.size(args.size.unwrap_or_else(|| device.size_bytes()));
    let report = builder.write_onto(&[device]);
    report.with_context(|| format!("{} holds no volume, or what it held before", args.out.display()))
}

fn builder(args: &BuildArgs) -> Result<Builder> {
    let mut builder = Builder::new();
    apply_environment(&mut builder)?;
    builder.label(args.label.as_str());
    if let Some(uuid) = args.uuid {
        builder.uuid(uuid);
    }
    let mut features = Features::default();
    for list in &args.features {
        features.apply(list)?;
    }
    let nodesize_bytes = args.nodesize.map(u32::try_from).transpose().context("--nodesize")?;
    builder.volume(MkfsOptions {
        nodesize_bytes,
        metadata_profile: args.metadata,
        data_profile: args.data,
        csum_type: csum_type_from_name(&args.csum)?,
        features,
        force: args.force || !is_device(args),
        ..MkfsOptions::new([0; 16])
    });
    for from in &args.from {
        match from.as_os_str() == "-" {
            true => builder.from_stdin(),
            false => builder.from_path(from),
        };
    }
    if let Some(platform) = &args.platform {
        builder.platform(platform.clone());
    }
    // On the disk that the image goes to: there is room for it.
    match args.out.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => builder.spool_dir(dir),
        _ => builder.spool_dir("."),
    };
    for (kind, path) in &args.subvol {
        builder.subvolume_of_kind(path, *kind);
    }
    apply_storage(&mut builder, &args.compress, &args.inode_flags)?;
    let root = args.all_root.then_some(0);
    if let Some(uid) = args.force_uid.or(root) {
        builder.force_uid(uid);
    }
    if let Some(gid) = args.force_gid.or(root) {
        builder.force_gid(gid);
    }
    builder.uid_offset(args.uid_offset).gid_offset(args.gid_offset);
    for (path, owner) in &args.owner {
        builder.owner(path, *owner);
    }
    if let Some(owner) = args.root_owner {
        builder.owner("", owner);
    }
    for (path, mode) in &args.mode {
        builder.mode(path, *mode);
    }
    for glob in &args.exclude {
        builder.exclude(glob)?;
    }
    for regex in &args.exclude_regex {
        builder.exclude_regex(regex)?;
    }
    for glob in &args.include {
        builder.include(glob)?;
    }
    for regex in &args.include_regex {
        builder.include_regex(regex)?;
    }
    if let Some(size) = args.size {
        builder.size(size);
    }
    builder.slack(args.slack);
    if let Some(offset) = args.offset {
        builder.offset(offset);
    }
    if args.partition {
        builder.partition();
    }
    if let Some(jobs) = args.jobs {
        builder.jobs(jobs.into());
    }
    Ok(builder)
}

fn verify(args: &BuildArgs) -> Result<()> {
    let file = cowshed::FileDevice::open(&args.out, cowshed::OpenMode::ReadOnly)?;
    let start = match args.partition {
        true => PARTITION_BYTES,
        false => args.offset.unwrap_or_default(),
    };
    let file: Arc<dyn cowshed::BlockDevice> = Arc::new(file);
    let device = cowshed::SliceDevice::new(file.clone(), start, file.size_bytes() - start)?;
    let options = cowshed::CheckOptions {
        data_csums: true,
        ..Default::default()
    };
    let report = cowshed::check(&[Arc::new(device)], &options);
    if !report.is_clean() {
        bail!(
            "{}: the image is not sound; cowshed check names the faults",
            args.out.display()
        );
    }
    Ok(())
}

fn print(args: &BuildArgs, report: &Report) {
    let line = |name: &str, value: String| println!("{name:<20}{value}");
    line("Image:", args.out.display().to_string());
    if !report.label.is_empty() {
        line("Label:", report.label.clone());
    }
    line("UUID:", report.uuid.to_string());
    line(
        "Size:",
        format!("{} ({} bytes)", pretty_bytes(report.bytes), report.bytes),
    );
    line("Inodes:", report.inodes.to_string());
    line("Contents:", pretty_bytes(report.content_bytes));
    line("Data:", pretty_bytes(report.data_bytes));
    line("Metadata:", pretty_bytes(report.metadata_bytes));
}

pub(super) fn json(report: &Report) -> serde_json::Value {
    serde_json::json!({
        "bytes": report.bytes,
        "needed_bytes": report.needed_bytes,
        "content_bytes": report.content_bytes,
        "data_bytes": report.data_bytes,
        "metadata_bytes": report.metadata_bytes,
        "inodes": report.inodes,
        "uuid": report.uuid.to_string(),
        "label": report.label,
    })
}
