//! Everything that can be seen of a directory tree.
//!
//! Two threads walk: a directory is one piece of work, and so is each batch of its entries. The
//! queue has the one lock that is held; it is never held during I/O.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, CWD, FileType, SeekFrom, Statx, StatxFlags, StatxTimestamp};
use rustix::io::Errno;
use xxhash_rust::xxh64::xxh64;

/// What is hashed as one: a difference is located to that many bytes.
pub(super) const BLOCK_BYTES: usize = 4096;
const READ_BYTES: usize = 1 << 20;
const THREADS: usize = 2;
const BATCH_ENTRIES: usize = 256;
/// The kernel's bounds for an attribute's value and for a list of names.
const XATTR_BYTES_MAX: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl From<StatxTimestamp> for Time {
    fn from(time: StatxTimestamp) -> Time {
        Time {
            seconds: time.tv_sec,
            nanoseconds: time.tv_nsec,
        }
    }
}

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.seconds, self.nanoseconds)
    }
}

/// The bytes of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Where SEEK_DATA and SEEK_HOLE see data.
    pub data: Vec<Range<u64>>,
    /// The hash of each block that is not all zeros, by its number.
    pub blocks: Vec<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File(Arc<Content>),
    Directory,
    Symlink(OsString),
    Fifo,
    Socket,
    CharDevice { major: u32, minor: u32 },
    BlockDevice { major: u32, minor: u32 },
}

impl Kind {
    pub fn name(&self) -> &'static str {
        match self {
            Kind::File(_) => "file",
            Kind::Directory => "directory",
            Kind::Symlink(_) => "symlink",
            Kind::Fifo => "fifo",
            Kind::Socket => "socket",
            Kind::CharDevice { .. } => "character device",
            Kind::BlockDevice { .. } => "block device",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    /// Of the file system that holds it; a subvolume has its own.
    pub device: (u32, u32),
    pub inode: u64,
    /// Permission bits, set-id and sticky bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u32,
    pub size_bytes: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub btime: Option<Time>,
    /// ACLs are among them.
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// The first path, in the order of bytes, of the same inode within the tree.
    pub first_link: OsString,
}

/// Paths relative to the root, which is the empty path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub nodes: BTreeMap<OsString, Node>,
}

impl Tree {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

/// Looks at everything below the root, and at the root. Does not follow symlinks; crosses into
/// subvolumes and mounts. Contents are opened with O_NOATIME where that is allowed.
pub fn snapshot(root: &Path) -> Result<Tree> {
    let walk = Walk {
        root,
        queue: Mutex::new(Queue {
            work: vec![Work::Entries(OsString::new(), vec![OsString::new()])],
            busy: 0,
            error: None,
        }),
        changed: Condvar::new(),
        contents: Mutex::default(),
    };
    let mut nodes = BTreeMap::new();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| walk.run())).collect();
        for worker in workers {
            nodes.append(&mut worker.join().map_err(|_| anyhow!("a walker panicked"))?);
        }
        anyhow::Ok(())
    })?;
    if let Some(error) = walk.queue.into_inner().error {
        return Err(error);
    }
    let mut first: HashMap<Identity, OsString> = HashMap::new();
    for (path, node) in &mut nodes {
        if !matches!(node.kind, Kind::Directory) && node.links > 1 {
            node.first_link = first
                .entry((node.device, node.inode))
                .or_insert_with(|| path.clone())
                .clone();
        }
    }
    Ok(Tree { nodes })
}

/// Device and inode number.
type Identity = ((u32, u32), u64);

enum Work {
    /// List this directory.
    Directory(OsString),
    /// Look at these names in this directory.
    Entries(OsString, Vec<OsString>),
}

struct Queue {
    work: Vec<Work>,
    busy: usize,
    error: Option<anyhow::Error>,
}

struct Walk<'a> {
    root: &'a Path,
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Contents of inodes with several links, which need to be read once.
    contents: Mutex<HashMap<Identity, Arc<Content>>>,
}

impl Walk<'_> {
    fn run(&self) -> BTreeMap<OsString, Node> {
        let mut nodes = BTreeMap::new();
        let mut buf = vec![0; READ_BYTES];
        let mut queue = self.queue.lock();
        loop {
            if queue.error.is_some() {
                return nodes;
            }
            let Some(work) = queue.work.pop() else {
                if queue.busy == 0 {
                    return nodes;
                }
                self.changed.wait(&mut queue);
                continue;
            };
            queue.busy += 1;
            drop(queue);
            let done = match work {
                Work::Directory(path) => self.list(&path),
                Work::Entries(dir, names) => self.look(&dir, names, &mut nodes, &mut buf),
            };
            queue = self.queue.lock();
            queue.busy -= 1;
            match done {
                Ok(more) => queue.work.extend(more),
                Err(error) => queue.error = Some(error),
            }
            self.changed.notify_all();
        }
    }

    fn full(&self, path: &OsStr) -> PathBuf {
        if path.is_empty() {
            self.root.to_owned()
        } else {
            self.root.join(path)
        }
    }

    fn list(&self, path: &OsStr) -> Result<Vec<Work>> {
        let full = self.full(path);
        let failed = || format!("cannot list {}", full.display());
        let mut names: Vec<OsString> = Vec::new();
        for entry in std::fs::read_dir(&full).with_context(failed)? {
            names.push(entry.with_context(failed)?.file_name());
        }
        let batches = names
            .chunks(BATCH_ENTRIES)
            .map(|batch| Work::Entries(path.to_owned(), batch.to_vec()));
        Ok(batches.collect())
    }

    fn look(
        &self,
        dir: &OsStr,
        names: Vec<OsString>,
        nodes: &mut BTreeMap<OsString, Node>,
        buf: &mut [u8],
    ) -> Result<Vec<Work>> {
        let mut more = Vec::new();
        for name in names {
            let path = join(dir, &name);
            let full = self.full(&path);
            let node = self
                .node(&path, &full, buf)
                .with_context(|| format!("cannot look at {}", full.display()))?;
            if node.kind == Kind::Directory {
                more.push(Work::Directory(path.clone()));
            }
            nodes.insert(path, node);
        }
        Ok(more)
    }

    fn node(&self, path: &OsStr, full: &Path, buf: &mut [u8]) -> Result<Node> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = rustix::fs::statx(CWD, full, AtFlags::SYMLINK_NOFOLLOW, flags).context("statx")?;
        let device = (stat.stx_dev_major, stat.stx_dev_minor);
        Ok(Node {
            kind: self.kind(&stat, full, buf)?,
            device,
            inode: stat.stx_ino,
            mode: u32::from(stat.stx_mode) & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            links: stat.stx_nlink,
            size_bytes: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: stat.stx_atime.into(),
            mtime: stat.stx_mtime.into(),
            ctime: stat.stx_ctime.into(),
            btime: (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| stat.stx_btime.into()),
            xattrs: xattrs(full).context("extended attributes")?,
            first_link: path.to_owned(),
        })
    }

    fn kind(&self, stat: &Statx, full: &Path, buf: &mut [u8]) -> Result<Kind> {
        let (major, minor) = (stat.stx_rdev_major, stat.stx_rdev_minor);
        Ok(match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => {
                let identity = ((stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino);
                if stat.stx_nlink > 1 {
                    let known = self.contents.lock().get(&identity).cloned();
                    if let Some(content) = known {
                        return Ok(Kind::File(content));
                    }
                }
                let content = Arc::new(content(full, stat.stx_size, buf)?);
                if stat.stx_nlink > 1 {
                    self.contents.lock().insert(identity, content.clone());
                }
                Kind::File(content)
            }
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Symlink(std::fs::read_link(full).context("readlink")?.into()),
            FileType::Fifo => Kind::Fifo,
            FileType::Socket => Kind::Socket,
            FileType::CharacterDevice => Kind::CharDevice { major, minor },
            FileType::BlockDevice => Kind::BlockDevice { major, minor },
            other => anyhow::bail!("is of no known type: {other:?}"),
        })
    }
}

fn join(dir: &OsStr, name: &OsStr) -> OsString {
    if dir.is_empty() {
        return name.to_owned();
    }
    let mut path = dir.to_owned();
    path.push("/");
    path.push(name);
    path
}

fn content(full: &Path, size_bytes: u64, buf: &mut [u8]) -> Result<Content> {
    let open = |flags| std::fs::OpenOptions::new().read(true).custom_flags(flags).open(full);
    let file = open(libc::O_NOATIME | libc::O_NOFOLLOW)
        .or_else(|_| open(libc::O_NOFOLLOW))
        .context("open")?;
    let mut content = Content {
        data: data_ranges(&file, size_bytes)?,
        blocks: Vec::new(),
    };
    for range in &content.data {
        // Whole blocks, so that a block's hash does not depend on where data begins.
        let mut at = range.start - range.start % BLOCK_BYTES as u64;
        let end = range.end.next_multiple_of(BLOCK_BYTES as u64).min(size_bytes);
        while at < end {
            let len = (end - at).min(buf.len() as u64) as usize;
            file.read_exact_at(&mut buf[..len], at)
                .with_context(|| format!("read at {at}"))?;
            for (index, block) in buf[..len].chunks(BLOCK_BYTES).enumerate() {
                let number = at / BLOCK_BYTES as u64 + index as u64;
                let seen = content.blocks.last().is_some_and(|&(last, _)| last >= number);
                if !seen && block.iter().any(|&byte| byte != 0) {
                    content.blocks.push((number, xxh64(block, 0)));
                }
            }
            at += len as u64;
        }
    }
    Ok(content)
}

/// The ranges that are not holes; the whole file where the file system does not know.
fn data_ranges(file: &File, size_bytes: u64) -> Result<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(std::iter::once(0..size_bytes).collect()),
            Err(error) => return Err(error).context("SEEK_DATA"),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))
            .context("SEEK_HOLE")?
            .min(size_bytes);
        anyhow::ensure!(
            start >= at && end > start,
            "SEEK_DATA and SEEK_HOLE go backwards: {at}, {start}, {end}"
        );
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

fn xattrs(full: &Path) -> Result<BTreeMap<OsString, Vec<u8>>> {
    let mut list = Vec::with_capacity(XATTR_BYTES_MAX);
    match rustix::fs::llistxattr(full, rustix::buffer::spare_capacity(&mut list)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error).context("listxattr"),
    }
    let mut xattrs = BTreeMap::new();
    let mut value = Vec::new();
    for name in list.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        value.clear();
        value.reserve(XATTR_BYTES_MAX);
        let c_name = CString::new(name)?;
        rustix::fs::lgetxattr(full, &c_name, rustix::buffer::spare_capacity(&mut value))
            .with_context(|| format!("getxattr {}", OsStr::from_bytes(name).display()))?;
        xattrs.insert(OsString::from_vec(name.to_vec()), value.clone());
    }
    Ok(xattrs)
}
