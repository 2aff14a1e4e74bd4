//! What is to be in an image, and building it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use btrfs_format::features::inode_flags;
use btrfs_image::MkfsOptions;
use btrfs_image::build::BuildSubvolume;
use cowshed_device::BlockDevice;
use cowshed_source::{Platform, Time};
use cowshed_vfs::Compression;

use super::error::Result;
use super::filter::Pattern;
use super::gpt::PartitionType;
use super::recipe::{Origin, Place, Recipe, Reflink, Source};
use super::report::Report;
use super::users::UserMap;
use super::{make, policy};

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

/// What is to be in an image. See [the module](crate::image).
#[derive(Clone, Default)]
pub struct Builder {
    recipe: Recipe,
    /// Where further sources go.
    into: Vec<u8>,
}

impl Builder {
    /// An empty image: a root directory that root owns.
    pub fn new() -> Self {
        Self::default()
    }

    fn add(&mut self, origin: Origin) -> &mut Self {
        let into = self.into.clone();
        self.recipe.sources.push(Source { origin, into });
        self
    }

    /// The directory of the image for what is added from now on; the root where it is not said.
    pub fn into_dir(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.into = bytes_of(dir.as_ref());
        self
    }

    /// Adds what is in a directory, over what was added before.
    pub fn from_dir(&mut self, dir: impl Into<PathBuf>) -> &mut Self {
        self.add(Origin::Dir(dir.into()))
    }

    /// Adds a directory, a tar archive (plain or compressed by gzip, zstd or xz), an OCI image
    /// layout or an archive of one, or an archive of `docker save`, over what was added before. One
    /// of several images is named by `PATH:NAME`.
    pub fn from_path(&mut self, path: impl Into<PathBuf>) -> &mut Self {
        self.add(Origin::Path(path.into()))
    }

    /// Adds an archive from standard input, over what was added before.
    pub fn from_stdin(&mut self) -> &mut Self {
        self.add(Origin::Stdin)
    }

    /// Which image of several is taken from a container image; that of this machine where it is not
    /// said.
    pub fn platform(&mut self, platform: Platform) -> &mut Self {
        self.recipe.platform = platform;
        self
    }

    /// Where contents of compressed archives are kept meanwhile; the system's directory of
    /// temporary files where it is not said.
    pub fn spool_dir(&mut self, dir: impl Into<PathBuf>) -> &mut Self {
        self.recipe.spool_dir = Some(dir.into());
        self
    }

    /// Makes a directory of the image a subvolume.
    pub fn subvolume(&mut self, path: impl AsRef<Path>) -> &mut Self {
        self.subvolume_of_kind(path, SubvolumeKind::default())
    }

    /// Makes a directory of the image a subvolume of that kind.
    pub fn subvolume_of_kind(&mut self, path: impl AsRef<Path>, kind: SubvolumeKind) -> &mut Self {
        self.recipe.subvolumes.push(BuildSubvolume {
            path: bytes_of(path.as_ref()),
            read_only: kind.read_only,
            is_default: kind.is_default,
            snapshot_of: None,
            later_state_of: None,
        });
        self
    }

    /// Makes a snapshot of a subvolume that was named before (an empty path: of the top level) at a
    /// path of the image where nothing is. Both share the extents of their files.
    pub fn snapshot(&mut self, of: impl AsRef<Path>, at: impl AsRef<Path>, kind: SubvolumeKind) -> &mut Self {
        self.recipe.subvolumes.push(BuildSubvolume {
            path: bytes_of(at.as_ref()),
            read_only: kind.read_only,
            is_default: kind.is_default,
            snapshot_of: Some(bytes_of(of.as_ref())),
            later_state_of: None,
        });
        self
    }

    /// Keeps what each layer of a container image adds to those before: as read-only subvolumes
    /// `001`, `002`, ... of a directory of the image.
    pub fn layers(&mut self, dir: impl AsRef<Path>) -> &mut Self {
        self.recipe.layers = Some(bytes_of(dir.as_ref()));
        self
    }

    /// Compresses files.
    pub fn compress(&mut self, how: Compression) -> &mut Self {
        self.recipe.storage.compress = Some(how);
        self
    }

    /// Compresses files whose paths match a glob, or does not; the last glob that matches counts.
    /// Errors: the glob is none.
    pub fn compress_matching(&mut self, glob: &str, how: Option<Compression>) -> Result<&mut Self> {
        self.recipe.storage.compress_matching.push((Pattern::glob(glob)?, how));
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
        self.recipe.storage.flags.push((bytes_of(path), flags));
        self
    }

    /// Gives what matches a glob flags, by the letters of chattr(1): `aAcCdDimS`. Errors: the glob
    /// is none; another letter.
    pub fn chattr(&mut self, glob: &str, letters: &str) -> Result<&mut Self> {
        let flags = policy::flags_of_letters(letters)?;
        self.recipe.storage.chattr.push((Pattern::glob(glob)?, flags));
        Ok(self)
    }

    /// Files with the same contents share their extents, if they are stored in the same way.
    pub fn dedupe(&mut self) -> &mut Self {
        self.recipe.dedupe = true;
        self
    }

    /// Shares the extents of the sources' files with the image, which is to be one file on the same
    /// file system of the host; not those of files that are compressed, or lie in archives. Where
    /// that cannot be done, building fails.
    pub fn reflink(&mut self) -> &mut Self {
        self.recipe.reflink = Reflink::Always;
        self
    }

    /// As [`Builder::reflink`], but where files cannot be shared they are copied:
    /// [`Report::reflinked_bytes`] says how much was not.
    pub fn reflink_if_possible(&mut self) -> &mut Self {
        self.recipe.reflink = Reflink::IfPossible;
        self
    }

    /// Leaves out what matches a glob: the whole path if it has a slash, else the name. Errors: the
    /// glob is none.
    pub fn exclude(&mut self, glob: &str) -> Result<&mut Self> {
        self.recipe.filter.exclude.push(Pattern::glob(glob)?);
        Ok(self)
    }

    /// As [`Builder::exclude`], by a regular expression that is found in the path.
    pub fn exclude_regex(&mut self, regex: &str) -> Result<&mut Self> {
        self.recipe.filter.exclude.push(Pattern::regex(regex)?);
        Ok(self)
    }

    /// Takes what matches a glob although it is excluded; without exclusions, takes only files that
    /// match. Errors: the glob is none.
    pub fn include(&mut self, glob: &str) -> Result<&mut Self> {
        self.recipe.filter.include.push(Pattern::glob(glob)?);
        Ok(self)
    }

    /// As [`Builder::include`], by a regular expression that is found in the path.
    pub fn include_regex(&mut self, regex: &str) -> Result<&mut Self> {
        self.recipe.filter.include.push(Pattern::regex(regex)?);
        Ok(self)
    }

    /// Everything belongs to this user.
    pub fn force_uid(&mut self, uid: u32) -> &mut Self {
        self.recipe.edits.force_uid = Some(uid);
        self
    }

    /// Everything belongs to this group.
    pub fn force_gid(&mut self, gid: u32) -> &mut Self {
        self.recipe.edits.force_gid = Some(gid);
        self
    }

    /// Adds a number to each user.
    pub fn uid_offset(&mut self, offset: i64) -> &mut Self {
        self.recipe.edits.uid_offset = offset;
        self
    }

    /// Adds a number to each group.
    pub fn gid_offset(&mut self, offset: i64) -> &mut Self {
        self.recipe.edits.gid_offset = offset;
        self
    }

    /// Translates users and groups, before all else about them. What has no translation is an error.
    pub fn map_users(&mut self, map: UserMap) -> &mut Self {
        self.recipe.edits.users = Some(map);
        self
    }

    /// Labels everything for SELinux, by the rules of file_contexts(5); later calls add rules.
    /// Errors: the rule that is none, by its line.
    pub fn file_contexts(&mut self, rules: &str) -> Result<&mut Self> {
        self.recipe.contexts.get_or_insert_default().add(rules)?;
        Ok(self)
    }

    /// Sets owner and group of a path of the image, whatever the sources say.
    pub fn owner(&mut self, path: impl AsRef<Path>, owner: Owner) -> &mut Self {
        let path = bytes_of(path.as_ref());
        self.recipe.edits.owners.push((path, owner.uid, owner.gid));
        self
    }

    /// The permission bits of a path of the image, whatever the sources say.
    pub fn mode(&mut self, path: impl AsRef<Path>, mode: u32) -> &mut Self {
        self.recipe.edits.modes.push((bytes_of(path.as_ref()), mode));
        self
    }

    /// Seconds since 1970: no time in the image is later (`SOURCE_DATE_EPOCH`).
    pub fn clamp_times(&mut self, sec: i64) -> &mut Self {
        self.recipe.edits.clamp = Some(Time { sec, nsec: 0 });
        self
    }

    /// The volume's label, up to 255 bytes.
    pub fn label(&mut self, label: impl Into<String>) -> &mut Self {
        self.recipe.volume.label = label.into();
        self
    }

    /// The volume's uuid. All others follow from it.
    pub fn uuid(&mut self, uuid: uuid::Uuid) -> &mut Self {
        self.recipe.volume.uuid = uuid.into_bytes();
        self.recipe.has_uuid = true;
        self
    }

    /// Uuids follow from this, where [`Builder::uuid`] gives none. Without both, they follow from
    /// the names and the metadata of the contents.
    pub fn seed(&mut self, seed: impl AsRef<[u8]>) -> &mut Self {
        self.recipe.seed = Some(seed.as_ref().to_vec());
        self
    }

    /// Everything else about the volume: profiles, features, sizes of blocks. Label and uuid that
    /// were given before stay.
    pub fn volume(&mut self, options: MkfsOptions) -> &mut Self {
        let old = std::mem::replace(&mut self.recipe.volume, options);
        (self.recipe.volume.label, self.recipe.volume.uuid) = (old.label, old.uuid);
        self
    }

    /// The image's size, instead of one that fits the contents.
    pub fn size(&mut self, bytes: u64) -> &mut Self {
        self.recipe.size = Some(bytes);
        self
    }

    /// Without [`Builder::size`]: the image has these bytes, or more if the contents need them.
    pub fn size_at_least(&mut self, bytes: u64) -> &mut Self {
        self.recipe.size_min = bytes;
        self
    }

    /// Bytes that an image that fits its contents has besides, for changes.
    pub fn slack(&mut self, bytes: u64) -> &mut Self {
        self.recipe.slack_bytes = bytes;
        self
    }

    /// The volume begins at this byte of the image, a multiple of 4096; before it there are zeros.
    pub fn offset(&mut self, bytes: u64) -> &mut Self {
        self.recipe.place = Place::At(bytes);
        self
    }

    /// The image is a disk with a GPT, whose one partition holds the volume.
    pub fn partition(&mut self, kind: PartitionType) -> &mut Self {
        self.recipe.place = Place::Partition(kind);
        self
    }

    /// Threads; all processors where it is not said.
    pub fn jobs(&mut self, threads: usize) -> &mut Self {
        self.recipe.jobs = Some(threads);
        self
    }

    /// Called now and then with the bytes that are done, of how many.
    pub fn progress(&mut self, call: impl Fn(u64, u64) + Send + Sync + 'static) -> &mut Self {
        self.recipe.progress = Arc::new(call);
        self
    }

    /// What the image would be. Contents are read if they are compressed. Errors: as
    /// [`Builder::write`], besides those of writing.
    pub fn plan(&self) -> Result<Report> {
        make::plan(&self.recipe)
    }

    /// Builds the image. The file appears when it is complete and on disk, and replaces what had
    /// its name; after a failure there is nothing new. Errors: an entry that cannot be read or
    /// stored, by its name; a size that does not suffice, with what is missing.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<Report> {
        make::write(&self.recipe, path.as_ref())
    }

    /// Builds the image and writes it to a stream. Until it is complete it is kept in a file without
    /// a name in [`Builder::spool_dir`]. Errors: as [`Builder::write`].
    pub fn write_to(&self, stream: &mut dyn Write) -> Result<Report> {
        make::write_to(&self.recipe, stream)
    }

    /// Builds the volume on several image files, or block devices. Errors: as [`Builder::write`].
    pub fn write_all(&self, paths: &[PathBuf]) -> Result<Report> {
        make::write_all(&self.recipe, paths)
    }

    /// Builds the volume on devices, of the size that [`Builder::size`] says, or one that fits the
    /// contents. Until it is complete they hold no volume. Errors: as [`Builder::write`].
    pub fn write_onto(&self, devices: &[Arc<dyn BlockDevice>]) -> Result<Report> {
        make::write_onto(&self.recipe, devices)
    }

    /// Builds the volume in a partition of a disk that is there, found by its number or its name;
    /// as large as the partition, where [`Builder::size`] says nothing. Nothing outside of it is
    /// written, and until the volume is complete it holds none. Errors: as [`Builder::write`]; no
    /// such partition.
    pub fn write_into_partition(&self, image: impl AsRef<Path>, partition: &str) -> Result<Report> {
        make::write_into_partition(&self.recipe, image.as_ref(), partition)
    }

    /// Builds the volume in a file that is there, without another one in between, and cuts it to its
    /// size. As with devices, a failure leaves no volume. A file that is not there is made as by
    /// [`Builder::write`].
    /// Errors: as [`Builder::write`].
    pub fn write_in_place(&self, path: impl AsRef<Path>) -> Result<Report> {
        make::write_in_place(&self.recipe, path.as_ref())
    }
}

fn bytes_of(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    path.as_os_str().as_bytes().to_vec()
}
