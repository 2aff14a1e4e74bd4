//! Makes a directory tree of everything that a file system can hold, the same from the same seed.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cowshed_device_sim::Rng;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::colliding_names;

const FILE_BYTES_MAX: u64 = 1 << 20;
const NAME_BYTES_MAX: usize = 255;
/// With names this long, that many links in one directory do not fit into one reference item of any
/// node size up to 16 KiB: the rest becomes extended references.
const LINK_NAME_BYTES: usize = 200;
const LINKS: usize = 120;
const DEPTH_MAX: usize = 12;

/// What may be in the tree; switch off what the file system under test does not have.
#[derive(Clone, Copy, Debug)]
pub struct Kinds {
    /// Device nodes, owners other than us, `trusted` attributes: needs root.
    pub root_only: bool,
    /// Fifos and sockets.
    pub specials: bool,
    pub xattrs: bool,
    pub acls: bool,
    pub holes: bool,
    pub prealloc: bool,
    /// Files that share extents (FICLONE).
    pub reflinks: bool,
    pub hard_links: bool,
    /// Whether many links of one inode may be in one directory (btrfs without extref has fewer).
    pub many_links: bool,
    pub symlinks: bool,
    /// Set times, from 1901 to 2446, with nanoseconds.
    pub times: bool,
    /// Several names with one hash.
    pub collisions: bool,
}

impl Kinds {
    pub fn all() -> Kinds {
        Kinds {
            root_only: true,
            specials: true,
            xattrs: true,
            acls: true,
            holes: true,
            prealloc: true,
            reflinks: true,
            hard_links: true,
            many_links: true,
            symlinks: true,
            times: true,
            collisions: true,
        }
    }

    /// What any file system of Linux takes, from any user.
    pub fn plain() -> Kinds {
        Kinds {
            root_only: false,
            specials: true,
            xattrs: false,
            acls: false,
            holes: true,
            prealloc: false,
            reflinks: false,
            hard_links: true,
            many_links: true,
            symlinks: true,
            times: true,
            collisions: true,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct MakeOptions {
    pub seed: u64,
    /// How many entries, approximately. The fixed cases (edge sizes, links, collisions) come in
    /// addition.
    pub entries: usize,
    /// Of all file contents, approximately.
    pub total_bytes: u64,
    /// The largest value of an attribute: less than a leaf of the volume.
    pub xattr_bytes_max: usize,
    /// The longest target of a symlink.
    pub symlink_bytes_max: usize,
    /// How many minor numbers a device can have: 2^20, on XFS 2^18.
    pub minors: u64,
    pub kinds: Kinds,
}

impl MakeOptions {
    pub fn new(seed: u64, entries: usize) -> MakeOptions {
        MakeOptions {
            seed,
            entries,
            total_bytes: 64 << 20,
            xattr_bytes_max: 3000,
            symlink_bytes_max: 3000,
            minors: 1 << 20,
            kinds: Kinds::all(),
        }
    }
}

/// What was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    pub files: usize,
    pub directories: usize,
    pub others: usize,
    pub bytes: u64,
}

/// Fills a directory that exists. Times of all entries, directories last, and of `root` are set at
/// the end.
pub fn make(root: &Path, options: &MakeOptions) -> Result<Made> {
    let rng = Rng::new(options.seed);
    let mut maker = Maker {
        options: *options,
        rng,
        made: Made::default(),
        times: Vec::new(),
        files: Vec::new(),
    };
    maker.fill(root)?;
    Ok(maker.made)
}

struct Maker {
    options: MakeOptions,
    rng: Rng,
    made: Made,
    /// Directories that still need their times, parents before children.
    times: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Maker {
    fn fill(&mut self, root: &Path) -> Result<()> {
        self.times.push(root.to_owned());
        self.edge_sizes(root)?;
        let kinds = self.options.kinds;
        if kinds.collisions {
            self.collisions(root)?;
        }
        if kinds.hard_links {
            self.links(root)?;
        }
        self.deep(root)?;
        self.random_entries(root)?;
        for dir in std::mem::take(&mut self.times).into_iter().rev() {
            self.stamp(&dir)?;
        }
        Ok(())
    }

    fn directory(&mut self, path: &Path) -> Result<()> {
        std::fs::create_dir(path).with_context(|| format!("mkdir {}", path.display()))?;
        self.made.directories += 1;
        self.dress(path, true)?;
        self.times.push(path.to_owned());
        Ok(())
    }

    /// Sizes at which something changes: inline or not, a block, the largest compressed extent.
    fn edge_sizes(&mut self, root: &Path) -> Result<()> {
        let dir = root.join("sizes");
        self.directory(&dir)?;
        let edges = [
            0, 1, 2, 511, 512, 1023, 2047, 2048, 2049, 3900, 4095, 4096, 4097, 8191, 8192, 12289, 16384,
        ];
        for size in edges
            .into_iter()
            .chain([65535, 65536, 131071, 131072, 131073, 262144, FILE_BYTES_MAX])
        {
            for (style, name) in [
                (Style::Text, "text"),
                (Style::Random, "random"),
                (Style::Zeros, "zeros"),
            ] {
                let path = dir.join(format!("{name}-{size}"));
                self.write_file(&path, size, style)?;
                self.finish_file(&path)?;
            }
        }
        Ok(())
    }

    fn collisions(&mut self, root: &Path) -> Result<()> {
        let dir = root.join("collisions");
        self.directory(&dir)?;
        for (index, name) in colliding_names(40).into_iter().enumerate() {
            let path = dir.join(name);
            if index % 5 == 4 {
                self.directory(&path)?;
            } else {
                self.write_file(&path, index as u64 * 100, Style::Text)?;
                self.finish_file(&path)?;
            }
        }
        if self.options.kinds.xattrs {
            let path = root.join("colliding xattrs");
            self.write_file(&path, 10, Style::Text)?;
            for name in colliding_names(20) {
                set_xattr(&path, &format!("user.{name}"), name.as_bytes())?;
            }
            self.finish_file(&path)?;
        }
        Ok(())
    }

    fn links(&mut self, root: &Path) -> Result<()> {
        let dir = root.join("links");
        self.directory(&dir)?;
        let first = dir.join("first");
        self.write_file(&first, 5000, Style::Text)?;
        let count = if self.options.kinds.many_links { LINKS } else { 20 };
        for i in 0..count {
            let name = format!(
                "{i:03}{}",
                "n".repeat(if count == LINKS { LINK_NAME_BYTES - 3 } else { 20 })
            );
            std::fs::hard_link(&first, dir.join(name)).context("link")?;
        }
        self.made.others += count;
        for i in 0..10 {
            let elsewhere = root.join(format!("link {i}"));
            std::fs::hard_link(&first, elsewhere).context("link")?;
        }
        self.made.others += 10;
        self.finish_file(&first)
    }

    fn deep(&mut self, root: &Path) -> Result<()> {
        let mut path = root.join("deep");
        self.directory(&path)?;
        for level in 0..40 {
            path.push(if level % 10 == 9 {
                "x".repeat(60)
            } else {
                format!("level{level}")
            });
            self.directory(&path)?;
        }
        let file = path.join("bottom");
        self.write_file(&file, 100, Style::Text)?;
        self.finish_file(&file)
    }

    fn random_entries(&mut self, root: &Path) -> Result<()> {
        let mut dirs = vec![(root.to_owned(), 0)];
        let average = self.options.total_bytes / self.options.entries.max(1) as u64;
        for number in 0..self.options.entries {
            let (dir, depth) = dirs[self.rng.index(dirs.len())].clone();
            let path = dir.join(self.name(number, dir.as_os_str().len()));
            match self.rng.below(100) {
                0..10 if depth < DEPTH_MAX => {
                    self.directory(&path)?;
                    dirs.push((path, depth + 1));
                }
                10..14 => self.symlink(&path)?,
                14..17 => self.special(&path)?,
                17..20 => self.random_link(&path)?,
                20..24 => self.sparse_file(&path)?,
                24..27 => self.clone_file(&path)?,
                _ => {
                    let size = self.size(average);
                    let style = Style::pick(&mut self.rng);
                    self.write_file(&path, size, style)?;
                    if self.rng.one_in(8) {
                        self.overwrite(&path, size)?;
                    }
                    self.finish_file(&path)?;
                }
            }
        }
        Ok(())
    }

    /// A name that is unique by its number; at times long, at times odd. Paths stay below the
    /// kernel's limit.
    fn name(&mut self, number: usize, dir_bytes: usize) -> String {
        let room = NAME_BYTES_MAX.min(3500usize.saturating_sub(dir_bytes));
        match self.rng.below(20) {
            0 => {
                let stem = format!("{number}-");
                let len = room.saturating_sub(stem.len()).min(self.rng.index(NAME_BYTES_MAX));
                format!("{stem}{}", "l".repeat(len))
            }
            1 if room == NAME_BYTES_MAX => format!("{number:l>255}"),
            2 => format!("{number} with blanks\tand\nlines"),
            3 => format!("{number}-Kühe-奶牛-🐄"),
            4 => format!(".{number}"),
            _ => format!("entry{number}"),
        }
    }

    /// From 0 to 1 MiB, each magnitude as often as the next; now and then rounded to blocks. The
    /// magnitudes are bounded so that the average comes out.
    fn size(&mut self, average: u64) -> u64 {
        let max_bits = (u64::BITS - (average * 4).leading_zeros()).clamp(8, 20);
        let bits = self.rng.below(u64::from(max_bits) + 1);
        let size = self.rng.below((1 << bits) + 1);
        if self.rng.one_in(4) {
            size.next_multiple_of(4096).min(FILE_BYTES_MAX)
        } else {
            size
        }
    }

    fn write_file(&mut self, path: &Path, size: u64, style: Style) -> Result<()> {
        let data = style.bytes(&mut self.rng, size as usize);
        std::fs::write(path, data).with_context(|| format!("write {}", path.display()))?;
        self.made.files += 1;
        self.made.bytes += size;
        Ok(())
    }

    /// Overwrites parts of a file that has reached the disk: extents are split, their ends shared.
    fn overwrite(&mut self, path: &Path, size: u64) -> Result<()> {
        let file = File::options().write(true).open(path)?;
        file.sync_data()?;
        for _ in 0..1 + self.rng.below(3) {
            let at = self.rng.below(size + 1);
            let len = self.rng.below(20_000) as usize;
            let style = Style::pick(&mut self.rng);
            file.write_all_at(&style.bytes(&mut self.rng, len), at)?;
        }
        if self.rng.one_in(4) {
            file.set_len(self.rng.below(size + 1))?;
        }
        Ok(())
    }

    fn sparse_file(&mut self, path: &Path) -> Result<()> {
        if !self.options.kinds.holes {
            self.write_file(path, 3000, Style::Text)?;
            return self.finish_file(path);
        }
        let file = File::create_new(path).with_context(|| format!("create {}", path.display()))?;
        let size = 1 + self.rng.below(64 << 20);
        file.set_len(size)?;
        for _ in 0..self.rng.below(6) {
            let at = self.rng.below(size);
            let len = self.rng.below(30_000).min(size - at) as usize;
            file.write_all_at(&Style::Text.bytes(&mut self.rng, len), at)?;
        }
        if self.options.kinds.prealloc && self.rng.one_in(2) {
            let flags = if self.rng.one_in(2) {
                FallocateFlags::KEEP_SIZE
            } else {
                FallocateFlags::empty()
            };
            let at = self.rng.below(size);
            rustix::fs::fallocate(&file, flags, at, 1 + self.rng.below(200_000)).context("fallocate")?;
            file.write_all_at(&[7; 5000], at)?;
        }
        if self.options.kinds.prealloc && self.rng.one_in(3) {
            let flags = FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE;
            let at = self.rng.below(size);
            rustix::fs::fallocate(&file, flags, at, 1 + self.rng.below(50_000)).context("punch a hole")?;
        }
        drop(file);
        self.made.files += 1;
        self.finish_file(path)
    }

    fn clone_file(&mut self, path: &Path) -> Result<()> {
        if !self.options.kinds.reflinks || self.files.is_empty() {
            self.write_file(path, 5000, Style::Text)?;
            return self.finish_file(path);
        }
        let source = File::open(&self.files[self.rng.index(self.files.len())])?;
        let target = File::create_new(path)?;
        match rustix::fs::ioctl_ficlone(target.as_fd(), source.as_fd()) {
            // FUSE does not pass the ioctl on; a copy shares extents there.
            Err(rustix::io::Errno::OPNOTSUPP) => copy_all(&source, &target)?,
            cloned => cloned.context("FICLONE")?,
        }
        if self.rng.one_in(2) {
            let at = self.rng.below(target.metadata()?.len() + 1);
            target.write_all_at(&Style::Random.bytes(&mut self.rng, 6000), at)?;
        }
        drop(target);
        self.made.files += 1;
        self.finish_file(path)
    }

    fn symlink(&mut self, path: &Path) -> Result<()> {
        if !self.options.kinds.symlinks {
            return Ok(());
        }
        let target = match self.rng.below(4) {
            0 => "t".repeat(1 + self.rng.index(self.options.symlink_bytes_max)),
            1 => "../..".into(),
            2 => "/does/not/exist".into(),
            _ => "entry0".into(),
        };
        symlink(target, path).context("symlink")?;
        self.made.others += 1;
        if self.options.kinds.root_only && self.rng.one_in(2) {
            std::os::unix::fs::lchown(path, Some(self.rng.below(70_000) as u32), Some(5)).context("lchown")?;
        }
        self.stamp(path)
    }

    fn special(&mut self, path: &Path) -> Result<()> {
        if !self.options.kinds.specials {
            return Ok(());
        }
        let choices = if self.options.kinds.root_only { 4 } else { 2 };
        let (kind, device) = match self.rng.below(choices) {
            0 => (FileType::Fifo, 0),
            1 => (FileType::Socket, 0),
            2 => (
                FileType::CharacterDevice,
                rustix::fs::makedev(1, self.rng.below(300) as u32),
            ),
            _ => (
                FileType::BlockDevice,
                rustix::fs::makedev(300, self.rng.below(self.options.minors) as u32),
            ),
        };
        rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), device).context("mknod")?;
        // Whatever the umask is.
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o640)).context("chmod")?;
        self.made.others += 1;
        self.stamp(path)
    }

    fn random_link(&mut self, path: &Path) -> Result<()> {
        if !self.options.kinds.hard_links || self.files.is_empty() {
            return Ok(());
        }
        let target = self.files[self.rng.index(self.files.len())].clone();
        std::fs::hard_link(&target, path).context("link")?;
        self.made.others += 1;
        Ok(())
    }

    fn finish_file(&mut self, path: &Path) -> Result<()> {
        self.files.push(path.to_owned());
        self.dress(path, false)?;
        self.stamp(path)
    }

    /// Attributes, ACLs, owner and mode; the mode last, since the others change it.
    fn dress(&mut self, path: &Path, directory: bool) -> Result<()> {
        let kinds = self.options.kinds;
        if kinds.xattrs && self.rng.one_in(4) {
            self.some_xattrs(path)?;
        }
        if kinds.root_only && self.rng.one_in(3) {
            let (uid, gid) = (self.rng.below(70_000) as u32, self.rng.below(1 << 31) as u32);
            std::os::unix::fs::chown(path, Some(uid), Some(gid)).context("chown")?;
        }
        let mode = match self.rng.below(4) {
            0 => self.rng.below(0o10000) as u32,
            _ if directory => 0o755,
            _ => 0o644,
        };
        // Only root can work in a directory, and reopen a file, whose owner may not.
        let mode = if kinds.root_only { mode } else { mode | 0o700 };
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).context("chmod")?;
        if kinds.acls && self.rng.one_in(6) {
            set_xattr(path, "system.posix_acl_access", &acl(&mut self.rng))?;
            if directory {
                set_xattr(path, "system.posix_acl_default", &acl(&mut self.rng))?;
            }
        }
        Ok(())
    }

    fn some_xattrs(&mut self, path: &Path) -> Result<()> {
        for i in 0..1 + self.rng.below(4) {
            let space = if self.options.kinds.root_only && self.rng.one_in(3) {
                "trusted"
            } else {
                "user"
            };
            let long = if self.rng.one_in(5) {
                "x".repeat(200)
            } else {
                String::new()
            };
            let len = match self.rng.below(6) {
                0 => 0,
                1 => self.rng.index(self.options.xattr_bytes_max + 1),
                _ => self.rng.index(100),
            };
            let mut value = vec![0; len];
            self.rng.fill(&mut value);
            match set_xattr(path, &format!("{space}.attr{i}{long}"), &value) {
                // The file system's limit for all attributes of a file (ext4: one block): enough is
                // enough.
                Err(error) if error.downcast_ref() == Some(&Errno::NOSPC) => return Ok(()),
                done => done?,
            }
        }
        Ok(())
    }

    fn stamp(&mut self, path: &Path) -> Result<()> {
        if !self.options.kinds.times {
            return Ok(());
        }
        let times = Timestamps {
            last_access: self.time(),
            last_modification: self.time(),
        };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            .with_context(|| format!("utimensat {}", path.display()))
    }

    fn time(&mut self) -> Timespec {
        let seconds = match self.rng.below(8) {
            0 => -(self.rng.below(1 << 31) as i64),
            1 => (1 << 31) + self.rng.below(1 << 31) as i64,
            2 => (1 << 32) + self.rng.below(1 << 33) as i64,
            3 => [0, -1, i32::MAX.into(), i32::MIN.into(), u32::MAX.into()][self.rng.index(5)],
            _ => 1_600_000_000 + self.rng.below(100_000_000) as i64,
        };
        Timespec {
            tv_sec: seconds,
            tv_nsec: self.rng.below(1_000_000_000) as i64,
        }
    }
}

#[derive(Clone, Copy)]
enum Style {
    Zeros,
    /// Compresses well.
    Text,
    Random,
    /// Stretches of all of them.
    Mixed,
}

impl Style {
    fn pick(rng: &mut Rng) -> Style {
        match rng.below(10) {
            0 => Style::Zeros,
            1..5 => Style::Text,
            5..7 => Style::Random,
            _ => Style::Mixed,
        }
    }

    fn bytes(self, rng: &mut Rng, len: usize) -> Vec<u8> {
        const WORDS: [&str; 8] = [
            "cow ",
            "shed ",
            "extent ",
            "leaf ",
            "generation ",
            "tree\n",
            "hay ",
            "0123456789 ",
        ];
        let mut bytes = Vec::with_capacity(len + 16);
        match self {
            Style::Zeros => {}
            Style::Random => {
                bytes.resize(len, 0);
                rng.fill(&mut bytes);
            }
            Style::Text => {
                while bytes.len() < len {
                    bytes.extend_from_slice(WORDS[rng.index(WORDS.len())].as_bytes());
                }
            }
            Style::Mixed => {
                while bytes.len() < len {
                    let part = (1 + rng.index(20_000)).min(len - bytes.len());
                    let style = [Style::Zeros, Style::Text, Style::Random][rng.index(3)];
                    bytes.extend(style.bytes(rng, part));
                }
            }
        }
        bytes.resize(len, 0);
        bytes
    }
}

/// An access control list in the form that the kernel takes (linux/posix_acl_xattr.h): version,
/// then entries of tag, permissions and id.
fn acl(rng: &mut Rng) -> Vec<u8> {
    const UNDEFINED: u32 = u32::MAX;
    let (user_obj, user, group_obj, group, mask, other) = (0x01u16, 0x02, 0x04, 0x08, 0x10, 0x20);
    let mut bits = || rng.below(8) as u16;
    let entries = [
        (user_obj, bits(), UNDEFINED),
        (user, bits(), 1000),
        (user, bits(), 70_000),
        (group_obj, bits(), UNDEFINED),
        (group, bits(), 100),
        (mask, bits(), UNDEFINED),
        (other, bits(), UNDEFINED),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) -> Result<()> {
    let c_name = CString::new(name)?;
    rustix::fs::lsetxattr(path, &c_name, value, XattrFlags::empty())
        .with_context(|| format!("setxattr {name} of {} bytes on {}", value.len(), path.display()))
}

/// Copies a whole file within its file system, which may share its extents.
fn copy_all(source: &File, target: &File) -> Result<()> {
    let mut left = source.metadata()?.len();
    let (mut from, mut to) = (0, 0);
    while left > 0 {
        let want = usize::try_from(left).unwrap_or(usize::MAX);
        let copied = rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), want)
            .context("copy_file_range")?;
        ensure!(copied > 0, "copy_file_range ended early");
        left -= copied as u64;
    }
    Ok(())
}
