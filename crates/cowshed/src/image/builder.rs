//! What is to be in an image, and building it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use btrfs_format::ChecksumType;
use btrfs_format::features::inode_flags;
use btrfs_image::build::{BuildOptions, BuildReport, BuildSubvolume, Size, build, dry_run};
use btrfs_image::{DeviceReport, MkfsOptions, MkfsReport};
use cowshed_device::{BlockDevice, SliceDevice};
use cowshed_runtime::{Env, SystemEnv, Timestamp, Workers};
use cowshed_source::{Body, Platform, Time, Tree, add_directory, add_source, add_stream};
use cowshed_vfs::Compression;

use super::edit::{self, Edits};
use super::error::{Error, Result};
use super::filter::{Filter, Pattern};
use super::fingerprint::fingerprint;
use super::gpt;
use super::output::{InPlace, Output};
use super::policy::{Policies, Storage};

/// User and group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What kind of subvolume a directory becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubvolumeKind {
    /// It may not be changed.
    pub read_only: bool,
    /// It is mounted where no subvolume is named.
    pub is_default: bool,
}

#[derive(Clone, Debug)]
enum Source {
    /// Of any kind.
    Path(PathBuf),
    /// A directory, whatever it holds.
    Dir(PathBuf),
    /// An archive.
    Stdin,
}

/// An image that was built, or would be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// Bytes of the image.
    pub bytes: u64,
    /// Bytes that the smallest image with these contents has.
    pub needed_bytes: u64,
    /// Bytes of files, without holes.
    pub content_bytes: u64,
    /// Bytes that their data takes, after compression, without what lies in tree blocks.
    pub data_bytes: u64,
    /// Bytes of tree blocks, each counted once.
    pub metadata_bytes: u64,
    /// Files, directories and all else, in all subvolumes.
    pub inodes: u64,
    /// The volume's uuid.
    pub uuid: uuid::Uuid,
    /// The volume's label.
    pub label: String,
    pub(crate) details: BuildReport,
    pub(crate) devices: Vec<DeviceReport>,
}

impl Report {
    /// In the form of a volume without contents.
    #[doc(hidden)]
    pub fn as_mkfs(&self) -> MkfsReport {
        MkfsReport {
            incompat_flags: 0,
            compat_ro_flags: 0,
            total_bytes: self.bytes,
            used_bytes: self.details.used_bytes,
            chunks: self.details.chunks.reports(),
            devices: self.devices.clone(),
            settings: self.details.settings.clone(),
        }
    }
}

/// Where the volume is in the image.
#[derive(Clone, Copy, Debug)]
enum Place {
    Alone,
    /// Behind so many bytes.
    At(u64),
    /// In a partition table of its own.
    Partition,
}

impl Place {
    /// Bytes before and behind the volume.
    fn around(self) -> (u64, u64) {
        match self {
            Self::Alone => (0, 0),
            Self::At(offset) => (offset, 0),
            Self::Partition => (gpt::HEAD_BYTES, gpt::TAIL_BYTES),
        }
    }
}

type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// What is to be in an image. See [the module](crate::image).
#[derive(Clone)]
pub struct Builder {
    sources: Vec<Source>,
    platform: Platform,
    spool_dir: Option<PathBuf>,
    subvolumes: Vec<BuildSubvolume>,
    filter: Filter,
    edits: Edits,
    storage: Storage,
    volume: MkfsOptions,
    has_uuid: bool,
    seed: Option<Vec<u8>>,
    size: Option<u64>,
    size_min: u64,
    slack_bytes: u64,
    place: Place,
    jobs: Option<usize>,
    progress: Progress,
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// An empty image: a root directory that root owns.
    pub fn new() -> Self {
        Self {
            sources: Vec::new(),
            platform: Platform::default(),
            spool_dir: None,
            subvolumes: Vec::new(),
            filter: Filter::default(),
            edits: Edits::default(),
            storage: Storage::default(),
            volume: MkfsOptions::new([0; 16]),
            has_uuid: false,
            seed: None,
            size: None,
            size_min: 0,
            slack_bytes: 0,
            place: Place::Alone,
            jobs: None,
            progress: Arc::new(|_, _| {}),
        }
    }

    /// Adds what is in a directory, over what was added before.
    pub fn from_dir(&mut self, dir: impl Into<PathBuf>) -> &mut Self {
        self.sources.push(Source::Dir(dir.into()));
        self
    }

    /// Adds a directory, a tar archive (plain or compressed by gzip, zstd or xz), an OCI image
    /// layout or an archive of one, or an archive of `docker save`, over what was added before.
    pub fn from_path(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        self.sources.push(Source::Path(path.into()));
        self
    }

    /// Adds an archive from standard input, over what was added before.
    pub fn from_stdin(&mut self) -> &mut Self {
        self.sources.push(Source::Stdin);
        self
    }

    /// Which image of several is taken from a container image; that of this machine where it is not
    /// said.
    pub fn platform(&mut self, platform: Platform) -> &mut Self {
        self.platform = platform;
        self
    }

    /// Where contents of compressed archives are kept meanwhile; the system's directory of
    /// temporary files where it is not said.
    pub fn spool_dir(&mut self, dir: impl Into<PathBuf>) -> &mut Self {
        self.spool_dir = Some(dir.into());
        self
    }

    /// Makes a directory of the image a subvolume.
    pub fn subvolume(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.subvolume_of_kind(path, SubvolumeKind::default())
    }

    /// Makes a directory of the image a subvolume of that kind.
    pub fn subvolume_of_kind(&mut self, path: impl AsRef<Path>, kind: SubvolumeKind) -> &mut Self {
        self.subvolumes.push(BuildSubvolume {
            path: bytes_of(path.as_ref()),
            read_only: kind.read_only,
            is_default: kind.is_default,
        });
        self
    }

    /// Compresses files.
    pub fn compress(&mut self, how: Compression) -> &mut Self {
        self.storage.compress = Some(how);
        self
    }

    /// Compresses files whose paths match a glob, or does not; the last glob that matches counts.
    /// Errors: the glob is none.
    pub fn compress_matching(&mut self, glob: &str, how: Option<Compression>) -> Result<&mut Self> {
        self.storage.compress_matching.push((Pattern::glob(glob)?, how));
        Ok(self)
    }

    /// Stores a file, or all files of a directory, without copy on write and without checksums.
    pub fn nodatacow(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.inode_flags(path.as_ref(), inode_flags::NODATACOW)
    }

    /// Stores a file, or all files of a directory, without checksums.
    pub fn nodatasum(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.inode_flags(path.as_ref(), inode_flags::NODATASUM)
    }

    fn inode_flags(&mut self, path: &Path, flags: u64) -> &mut Self {
        self.storage.flags.push((bytes_of(path), flags));
        self
    }

    /// Leaves out what matches a glob: the whole path if it has a slash, else the name. Errors: the
    /// glob is none.
    pub fn exclude(&mut self, glob: &str) -> Result<&mut Self> {
        self.filter.exclude.push(Pattern::glob(glob)?);
        Ok(self)
    }

    /// As [`Builder::exclude`], by a regular expression that is found in the path.
    pub fn exclude_regex(&mut self, regex: &str) -> Result<&mut Self> {
        self.filter.exclude.push(Pattern::regex(regex)?);
        Ok(self)
    }

    /// Takes what matches a glob although it is excluded; without exclusions, takes only files that
    /// match. Errors: the glob is none.
    pub fn include(&mut self, glob: &str) -> Result<&mut Self> {
        self.filter.include.push(Pattern::glob(glob)?);
        Ok(self)
    }

    /// As [`Builder::include`], by a regular expression that is found in the path.
    pub fn include_regex(&mut self, regex: &str) -> Result<&mut Self> {
        self.filter.include.push(Pattern::regex(regex)?);
        Ok(self)
    }

    /// Everything belongs to this user.
    pub fn force_uid(&mut self, uid: u32) -> &mut Self {
        self.edits.force_uid = Some(uid);
        self
    }

    /// Everything belongs to this group.
    pub fn force_gid(&mut self, gid: u32) -> &mut Self {
        self.edits.force_gid = Some(gid);
        self
    }

    /// Adds a number to each user.
    pub fn uid_offset(&mut self, offset: i64) -> &mut Self {
        self.edits.uid_offset = offset;
        self
    }

    /// Adds a number to each group.
    pub fn gid_offset(&mut self, offset: i64) -> &mut Self {
        self.edits.gid_offset = offset;
        self
    }

    /// Sets owner and group of a path of the image, whatever the sources say.
    pub fn owner(&mut self, path: impl AsRef<Path>, owner: Owner) -> &mut Self {
        let path = bytes_of(path.as_ref());
        self.edits.owners.push((path, owner.uid, owner.gid));
        self
    }

    /// The permission bits of a path of the image, whatever the sources say.
    pub fn mode(&mut self, path: impl AsRef<Path>, mode: u32) -> &mut Self {
        self.edits.modes.push((bytes_of(path.as_ref()), mode));
        self
    }

    /// Seconds since 1970: no time in the image is later (`SOURCE_DATE_EPOCH`).
    pub fn clamp_times(&mut self, sec: i64) -> &mut Self {
        self.edits.clamp = Some(Time { sec, nsec: 0 });
        self
    }

    /// The volume's label, up to 255 bytes.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        self.volume.label = label.into();
        self
    }

    /// The volume's uuid. All others follow from it.
    pub fn uuid(&mut self, uuid: uuid::Uuid) -> &mut Self {
        self.volume.uuid = uuid.into_bytes();
        self.has_uuid = true;
        self
    }

    /// Uuids follow from this, where [`Builder::uuid`] gives none. Without both, they follow from
    /// the names and the metadata of the contents.
    pub fn seed(&mut self, seed: impl AsRef<[u8]>) -> &mut Self {
        self.seed = Some(seed.as_ref().to_vec());
        self
    }

    /// Everything else about the volume: profiles, features, sizes of blocks. Label and uuid that
    /// were given before stay.
    pub fn volume(&mut self, options: MkfsOptions) -> &mut Self {
        let old = std::mem::replace(&mut self.volume, options);
        (self.volume.label, self.volume.uuid) = (old.label, old.uuid);
        self
    }

    /// The image's size, instead of one that fits the contents.
    pub fn size(&mut self, bytes: u64) -> &mut Self {
        self.size = Some(bytes);
        self
    }

    /// Without [`Builder::size`]: the image has these bytes, or more if the contents need them.
    pub fn size_at_least(&mut self, bytes: u64) -> &mut Self {
        self.size_min = bytes;
        self
    }

    /// Bytes that an image that fits its contents has besides, for changes.
    pub fn slack(&mut self, bytes: u64) -> &mut Self {
        self.slack_bytes = bytes;
        self
    }

    /// The volume begins at this byte of the image, a multiple of 4096; before it there are zeros.
    pub fn offset(&mut self, bytes: u64) -> &mut Self {
        self.place = Place::At(bytes);
        self
    }

    /// The image is a disk with a GPT, whose one partition holds the volume.
    pub fn partition(&mut self) -> &mut Self {
        self.place = Place::Partition;
        self
    }

    /// Threads; all processors where it is not said.
    pub fn jobs(&mut self, threads: usize) -> &mut Self {
        self.jobs = Some(threads);
        self
    }

    /// Called now and then with the bytes that are done, of how many.
    pub fn progress(&mut self, call: impl Fn(u64, u64) + Send + Sync + 'static) -> &mut Self {
        self.progress = Arc::new(call);
        self
    }

    /// What the image would be. Contents are read if they are compressed. Errors: as
    /// [`Builder::write`], besides those of writing.
    pub fn plan(&self) -> Result<Report> {
        let ready = self.prepare()?;
        let device_bytes = [self.size.unwrap_or(1 << 60)];
        let details = ready.with_options(self, |options| dry_run(&ready.tree, options, &device_bytes))?;
        let mut report = report(details, Vec::new(), &ready.volume);
        let (before, behind) = self.place.around();
        report.bytes += before + behind;
        Ok(report)
    }

    /// Builds the image. The file appears when it is complete and on disk, and replaces what had
    /// its name; after a failure there is nothing new. Errors: an entry that cannot be read or
    /// stored, by its name; a size that does not suffice, with what is missing.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<Report> {
        let ready = self.prepare()?;
        let room = self.size.unwrap_or_else(|| size_bound(&ready.tree));
        let (before, behind) = self.place.around();
        if before % 4096 != 0 {
            return Err(Error::Option(format!("offset {before} is no multiple of 4096")));
        }
        let whole = before.checked_add(room).and_then(|bytes| bytes.checked_add(behind));
        let whole = whole.ok_or_else(|| Error::Option("the image is larger than 2^64 bytes".into()))?;
        let (output, disk) = Output::new(path.as_ref(), whole)?;
        let devices: [Arc<dyn BlockDevice>; 1] = [Arc::new(SliceDevice::new(disk.clone(), before, room)?)];
        let (details, reports) = ready.with_options(self, |options| build(&ready.tree, options, &devices))?;
        let volume_bytes: u64 = details.device_bytes.iter().sum();
        if matches!(self.place, Place::Partition) {
            let uuid = |purpose: &str| uuid_of_seed(&[&ready.volume.uuid[..], purpose.as_bytes()].concat());
            let table = gpt::Table {
                disk: uuid("disk"),
                partition: uuid("partition"),
                name: &ready.volume.label,
                partition_bytes: volume_bytes,
            };
            table.write(&*disk)?;
        }
        drop((devices, disk));
        output.finish(before + volume_bytes + behind)?;
        let mut report = report(details, reports, &ready.volume);
        report.bytes += before + behind;
        Ok(report)
    }

    /// Builds the volume on devices, of the size that [`Builder::size`] says, or one that fits the
    /// contents. Until it is complete they hold no volume. Errors: as [`Builder::write`].
    pub fn write_onto(&self, devices: &[Arc<dyn BlockDevice>]) -> Result<Report> {
        let ready = self.prepare()?;
        let (details, reports) = ready.with_options(self, |options| build(&ready.tree, options, devices))?;
        Ok(report(details, reports, &ready.volume))
    }

    /// Builds the volume in a file that is there, or is made, without another name in between, and
    /// cuts it to its size. As with devices, a failure leaves no volume; what was made is removed.
    /// Errors: as [`Builder::write`].
    pub fn write_in_place(&self, path: impl AsRef<Path>) -> Result<Report> {
        let ready = self.prepare()?;
        let (place, device) = InPlace::new(path.as_ref(), self.size.unwrap_or_else(|| size_bound(&ready.tree)))?;
        let devices = [device];
        let (details, reports) = ready.with_options(self, |options| build(&ready.tree, options, &devices))?;
        drop(devices);
        place.finish(details.device_bytes.iter().sum())?;
        Ok(report(details, reports, &ready.volume))
    }

    fn prepare(&self) -> Result<Ready> {
        let mut tree = Tree::default();
        let spool_dir = self.spool_dir.clone().unwrap_or_else(std::env::temp_dir);
        let keep = &mut |path: &[u8], is_dir: bool| self.filter.keeps(path, is_dir);
        for source in &self.sources {
            match source {
                Source::Path(path) => add_source(&mut tree, path, &self.platform, &spool_dir, keep)?,
                Source::Dir(dir) => add_directory(&mut tree, dir, keep)?,
                Source::Stdin => {
                    let stream = Box::new(std::io::stdin());
                    add_stream(&mut tree, "standard input", stream, &self.platform, &spool_dir, keep)?;
                }
            }
        }
        edit::apply(&mut tree, &self.edits)?;
        let mut volume = self.volume.clone();
        if !self.has_uuid {
            let uuid = match &self.seed {
                Some(seed) => uuid_of_seed(seed),
                None => uuid_of_sum(&fingerprint(&tree, volume.label.as_bytes())),
            };
            volume.uuid = uuid.into_bytes();
        }
        if let Some(clamp) = self.edits.clamp {
            volume.time = SystemTime::UNIX_EPOCH + Duration::from_secs(clamp.sec.max(0).cast_unsigned());
        }
        volume.byte_count = self.size;
        let env = Threads(self.jobs.unwrap_or_else(|| SystemEnv.processors()));
        Ok(Ready {
            policies: Policies::new(&tree, &self.storage)?,
            tree,
            volume,
            workers: Workers::new(Arc::new(env)),
        })
    }
}

/// The uuid that follows from a seed; see [`Builder::seed`].
pub fn uuid_of_seed(seed: &[u8]) -> uuid::Uuid {
    uuid_of_sum(&ChecksumType::Sha256.compute(seed))
}

fn uuid_of_sum(sum: &[u8; 32]) -> uuid::Uuid {
    let mut random = [0; 16];
    random.copy_from_slice(&sum[..16]);
    uuid::Builder::from_random_bytes(random).into_uuid()
}

/// All that building needs.
struct Ready {
    tree: Tree,
    policies: Policies,
    volume: MkfsOptions,
    workers: Workers,
}

impl Ready {
    fn with_options<R>(
        &self,
        builder: &Builder,
        run: impl FnOnce(&BuildOptions<'_>) -> std::result::Result<R, btrfs_image::MkfsError>,
    ) -> Result<R> {
        let options = BuildOptions {
            volume: self.volume.clone(),
            subvolumes: builder.subvolumes.clone(),
            policy: &self.policies,
            size: match builder.size {
                Some(_) => Size::OfDevices,
                None if builder.size_min > 0 => Size::AtLeast {
                    bytes: builder.size_min - builder.size_min % 4096,
                },
                None => Size::Fit {
                    slack_bytes: builder.slack_bytes,
                },
            },
            workers: &self.workers,
            progress: &*builder.progress,
        };
        run(&options).map_err(|error| match error {
            btrfs_image::MkfsError::Source(error) => Error::Source(error),
            error => error.into(),
        })
    }
}

fn report(details: BuildReport, devices: Vec<DeviceReport>, volume: &MkfsOptions) -> Report {
    Report {
        bytes: details.device_bytes.iter().sum(),
        needed_bytes: details.needed_bytes,
        content_bytes: details.content_bytes,
        data_bytes: details.data_bytes,
        metadata_bytes: details.metadata_bytes,
        inodes: details.inodes,
        uuid: uuid::Uuid::from_bytes(volume.uuid),
        label: volume.label.clone(),
        details,
        devices,
    }
}

/// More than an image of the tree takes: its contents in whole sectors twice, and what the items of
/// an inode take at most, with their copies.
fn size_bound(tree: &Tree) -> u64 {
    const INODE_BYTES: u64 = 64 << 10;
    const FIXED_BYTES: u64 = 1 << 30;
    let mut bound = FIXED_BYTES + tree.inode_count() as u64 * INODE_BYTES;
    crate::image::policy::walk(tree, Tree::ROOT, Vec::new(), &mut |_, id| {
        if let Body::File(content) = &tree[id].body {
            bound += content
                .pieces()
                .iter()
                .map(|piece| piece.len_bytes * 2 + INODE_BYTES)
                .sum::<u64>();
        }
    });
    bound
}

fn bytes_of(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}

/// The machine, with so many processors.
struct Threads(usize);

impl Env for Threads {
    fn now(&self) -> Timestamp {
        SystemEnv.now()
    }
    fn random(&self, bytes: &mut [u8]) {
        SystemEnv.random(bytes);
    }
    fn processors(&self) -> usize {
        self.0
    }
}
