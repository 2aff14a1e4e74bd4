//! The options of `cowshed build`.

use std::path::PathBuf;

use btrfs_image::Profile;
use clap::Args;
use cowshed::image::{Owner, PartitionType, Platform, SubvolumeKind, UserMap};

use super::values::{
    self, Compress, InodeFlags, Origin, Snapshot, chattr, compress, inode_flags, mode, owner, root_owner, size,
    snapshot, subvolume, target, user_map,
};

#[derive(Args, Debug)]
#[command(after_help = "\
Sources are laid over each other in their order; a directory over a directory keeps what is in it.
GLOB is about the whole path if it has a slash, else about the name; ** matches slashes, too.
With SOURCE_DATE_EPOCH in the environment, no time in the image is later. Uuids follow from
DETERMINISTIC_SEED if that is set, else from the names and the metadata of the contents: the same
sources and options give the same bytes, with any number of threads.
OUT appears when it is complete; after a failure there is nothing new, and the exit code is 1.")]
pub struct BuildArgs {
    /// The image file to make, or a block device; - writes to a pipe, several make a volume of
    /// several devices (files need --size)
    #[arg(value_name = "OUT", required_unless_present_any = ["spec", "target"])]
    pub(super) out: Vec<PathBuf>,
    /// Read options from a TOML file: their long names with values or arrays of them, and out; the
    /// command line adds to it, and overrides it
    #[arg(long, value_name = "FILE")]
    pub(super) spec: Option<PathBuf>,
    /// A directory, a tar archive (also compressed by gzip, zstd or xz; - is standard input), an
    /// OCI image layout or an archive of one, an archive of docker save (PATH:NAME takes one of
    /// several images); several sources are laid over each other, in a directory of the image where
    /// one is named
    #[arg(long, value_name = "[DIR=]SOURCE", value_parser = values::from)]
    pub(super) from: Vec<Origin>,
    /// Which image of a container image for several machines (default: that of this machine)
    #[arg(long, value_name = "OS/ARCH[/VARIANT]")]
    pub(super) platform: Option<Platform>,
    /// Make a directory of the image a subvolume; TYPE is rw, ro, default or default-ro
    #[arg(short = 'u', long, value_name = "[TYPE:]PATH", value_parser = subvolume)]
    pub(super) subvol: Vec<(SubvolumeKind, PathBuf)>,
    /// Make a snapshot of a subvolume (/ is the top level) at a path where nothing is
    #[arg(long, value_name = "[TYPE:]SUBVOL:PATH", value_parser = snapshot)]
    pub(super) snapshot: Vec<Snapshot>,
    /// Keep what each layer of a container image adds, as read-only subvolumes DIR/001, ...
    #[arg(long, value_name = "DIR")]
    pub(super) layers: Option<PathBuf>,
    /// Compress files: zlib, lzo, zstd, with a level; for files that match GLOB alone, none: not
    /// those
    #[arg(long, value_name = "[GLOB=]ALGO[:LEVEL]", value_parser = compress)]
    pub(super) compress: Vec<Compress>,
    /// Store a path, and all below it, with flags: nodatacow, nodatasum
    #[arg(long, value_name = "FLAGS:PATH", value_parser = inode_flags)]
    pub(super) inode_flags: Vec<InodeFlags>,
    /// Give what matches flags of chattr: aAcCdDimS
    #[arg(long, value_name = "GLOB:LETTERS", value_parser = chattr)]
    pub(super) chattr: Vec<(String, String)>,
    /// Files with the same contents share their extents
    #[arg(long)]
    pub(super) dedupe: bool,
    /// Share extents with the files of the sources, on a host file system that can; not those that
    /// are compressed
    #[arg(long)]
    pub(super) reflink: bool,
    /// Label files for SELinux, by rules as in file_contexts(5)
    #[arg(long, value_name = "FILE")]
    pub(super) file_contexts: Vec<PathBuf>,
    /// Translate users and groups: lines of uid or gid, first number in the image, first number in
    /// the sources, count; subuid: the caller is root, its subordinate users follow from 1
    #[arg(long, value_name = "FILE|subuid", value_parser = user_map)]
    pub(super) map_users: Option<UserMap>,
    /// Everything belongs to root
    #[arg(long)]
    pub(super) all_root: bool,
    /// Everything belongs to this user
    #[arg(long, value_name = "UID")]
    pub(super) force_uid: Option<u32>,
    /// Everything belongs to this group
    #[arg(long, value_name = "GID")]
    pub(super) force_gid: Option<u32>,
    /// Add a number to each user
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) uid_offset: i64,
    /// Add a number to each group
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) gid_offset: i64,
    /// Owner and group of a path of the image
    #[arg(long, value_name = "PATH:UID:GID", value_parser = owner)]
    pub(super) owner: Vec<(PathBuf, Owner)>,
    /// Owner and group of the top directory
    #[arg(long, value_name = "UID:GID", value_parser = root_owner)]
    pub(super) root_owner: Option<Owner>,
    /// Permission bits of a path of the image, in octal
    #[arg(long, value_name = "PATH:MODE", value_parser = mode)]
    pub(super) mode: Vec<(PathBuf, u32)>,
    /// Leave out what matches
    #[arg(long, value_name = "GLOB")]
    pub(super) exclude: Vec<String>,
    /// Leave out paths in which the regular expression is found
    #[arg(long, value_name = "REGEX")]
    pub(super) exclude_regex: Vec<String>,
    /// Take what matches although it is excluded; without exclusions, only what matches
    #[arg(long, value_name = "GLOB")]
    pub(super) include: Vec<String>,
    /// As --include, by a regular expression that is found in the path
    #[arg(long, value_name = "REGEX")]
    pub(super) include_regex: Vec<String>,
    /// Label of the volume, up to 255 bytes
    #[arg(short = 'L', long, default_value = "")]
    pub(super) label: String,
    /// UUID of the volume
    #[arg(short = 'U', long, value_name = "UUID")]
    pub(super) uuid: Option<uuid::Uuid>,
    /// Size of tree blocks: 4k to 64k
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    pub(super) nodesize: Option<u64>,
    /// Checksum: crc32c, xxhash, sha256, blake2
    #[arg(long, value_name = "TYPE", default_value = "crc32c")]
    pub(super) csum: String,
    /// Profile of metadata: single or dup (default: dup)
    #[arg(short, long, value_name = "PROFILE")]
    pub(super) metadata: Option<Profile>,
    /// Profile of data: single or dup (default: single)
    #[arg(short, long, value_name = "PROFILE")]
    pub(super) data: Option<Profile>,
    /// Features, separated by commas, as with mkfs
    #[arg(short = 'O', long, value_name = "LIST")]
    pub(super) features: Vec<String>,
    /// Size of the image (default: as the contents need it)
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    pub(super) size: Option<u64>,
    /// Without --size: bytes that the image has besides, for changes
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "0", conflicts_with = "size")]
    pub(super) slack: u64,
    /// The volume begins at this byte of the image, with zeros before it
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "partition")]
    pub(super) offset: Option<u64>,
    /// Make a disk image: a GPT with one partition, which holds the volume; of a type, as
    /// root-x86-64, or a uuid
    #[arg(long, value_name = "TYPE", num_args = 0..=1, require_equals = true, default_missing_value = "linux-generic")]
    pub(super) partition: Option<PartitionType>,
    /// Write into a partition of a disk that is there, by its number or name; nothing else of the
    /// disk is changed
    #[arg(long, value_name = "IMAGE:PARTITION", value_parser = target, conflicts_with_all = ["offset", "partition"])]
    pub(super) target: Option<(PathBuf, String)>,
    /// Overwrite what a block device, or a partition, holds
    #[arg(short, long)]
    pub(super) force: bool,
    /// Say what the image would be, and make none
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Check the image when it is made, checksums of data included
    #[arg(long)]
    pub(super) verify: bool,
    /// Threads (default: one for each processor)
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(super) jobs: Option<u16>,
    /// Print nothing
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print the result as JSON
    #[arg(long, conflicts_with = "quiet")]
    pub(super) json: bool,
}
