//! What a volume shows: the tree of files, by the kernel's mount and by ours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use cowshed_vfs::{Context, FileKind, FileSystem as _, Handle, Lookup, NodeId, rdev};
use cowshed_xfs::Fs;

/// An object: all that stat shows but for the access time, which reading changes, contents as
/// checksum, extended attributes.
#[derive(Debug, PartialEq)]
pub struct Object {
    stat: [u64; 8],
    times: [(i64, i64); 3],
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Objects by path.
pub type Shown = BTreeMap<Vec<u8>, Object>;

/// The clock that stamps files, not later than it. Stamps are a timer's tick old at most.
pub fn now() -> (i64, i64) {
    const TICK_MAX: Duration = Duration::from_millis(20);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = now.saturating_sub(TICK_MAX);
    (now.as_secs().cast_signed(), now.subsec_nanos().into())
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    crc32c::crc32c(bytes).to_le_bytes().to_vec()
}

pub fn by_kernel(root: &Path) -> Result<Shown> {
    let mut shown = Shown::new();
    kernel_object(root, Vec::new(), &mut shown)?;
    Ok(shown)
}

fn kernel_object(path: &Path, name: Vec<u8>, shown: &mut Shown) -> Result<()> {
    let meta = path.symlink_metadata()?;
    let dev = rdev(rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let stat = [
        meta.ino(),
        meta.mode().into(),
        meta.nlink(),
        meta.uid().into(),
        meta.gid().into(),
        u64::from(dev),
        meta.len(),
        meta.blocks(),
    ];
    let times = [
        (meta.atime(), meta.atime_nsec()),
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    ];
    let mut xattrs = BTreeMap::new();
    let (mut names, mut value) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let len = rustix::fs::llistxattr(path, &mut names[..])?;
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        xattrs.insert(name.to_vec(), value[..len].to_vec());
    }
    let ty = meta.file_type();
    let content = if ty.is_file() {
        digest(&std::fs::read(path)?)
    } else if ty.is_symlink() {
        std::fs::read_link(path)?.as_os_str().as_bytes().to_vec()
    } else {
        Vec::new()
    };
    if ty.is_dir() {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let below = [&name[..], b"/", entry.file_name().as_bytes()].concat();
            kernel_object(&entry.path(), below, shown)?;
        }
    }
    let object = Object {
        stat,
        times,
        content,
        xattrs,
    };
    shown.insert(name, object);
    Ok(())
}

pub fn by_us(fs: &Fs) -> Result<Shown> {
    let mut shown = Shown::new();
    our_object(fs, NodeId::ROOT, Vec::new(), &mut shown)?;
    Ok(shown)
}

fn our_object(fs: &Fs, node: NodeId, name: Vec<u8>, shown: &mut Shown) -> Result<()> {
    let at = || String::from_utf8_lossy(&name).into_owned();
    let ctx = Context::root();
    let attr = fs.getattr(&ctx, node, None).with_context(at)?;
    let stat = [
        attr.ino,
        attr.mode().into(),
        attr.nlink.into(),
        attr.uid.into(),
        attr.gid.into(),
        u64::from(attr.rdev),
        attr.size_bytes,
        attr.blocks_512,
    ];
    let times = [attr.atime, attr.mtime, attr.ctime].map(|time| (time.secs, i64::from(time.nanos)));
    let mut xattrs = BTreeMap::new();
    let (mut names, mut value) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let len = fs.listxattr(&ctx, node, &mut names).with_context(at)?;
    for name in names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let len = fs.getxattr(&ctx, node, name, &mut value).with_context(at)?;
        xattrs.insert(name.to_vec(), value[..len].to_vec());
    }
    let content = match attr.kind {
        FileKind::Regular => {
            let mut bytes = vec![0; usize::try_from(attr.size_bytes)?];
            let len = fs.read(&ctx, node, Handle::NONE, 0, &mut bytes).with_context(at)?;
            digest(&bytes[..len])
        }
        FileKind::Symlink => fs.readlink(&ctx, node).with_context(at)?,
        _ => Vec::new(),
    };
    if attr.kind == FileKind::Directory {
        let mut entries = Vec::new();
        fs.readdir(&ctx, node, Handle::NONE, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                entries.push(entry.name.to_vec());
            }
            ControlFlow::Continue(())
        })
        .with_context(at)?;
        for entry in entries {
            let below = [&name[..], b"/", &entry].concat();
            let Lookup::Found(found) = fs.lookup(&ctx, node, &entry).with_context(at)? else {
                anyhow::bail!("{}: listed, but not found", String::from_utf8_lossy(&below));
            };
            our_object(fs, found.node, below, shown)?;
        }
    }
    let object = Object {
        stat,
        times,
        content,
        xattrs,
    };
    shown.insert(name, object);
    Ok(())
}

impl Object {
    /// With the ctime of another one, where this one's is not older than `since`. Linux gives an
    /// inode whose attribute it sets the time of the recovery.
    fn with_ctime_of(mut self, other: &Object, since: Option<(i64, i64)>) -> Self {
        if since.is_some_and(|since| self.times[2] >= since) {
            self.times[2] = other.times[2];
        }
        self
    }
}

/// What need not be equal, because of an unfinished intent.
#[derive(Default)]
pub struct Slack {
    /// When the kernel's recovery began, where it sets times.
    pub since: Option<(i64, i64)>,
}

/// Compares. Errors: the first difference.
pub fn compare(ours: &Shown, kernel: Shown, slack: &Slack) -> Result<()> {
    let names: BTreeSet<Vec<u8>> = kernel.keys().cloned().collect();
    for (name, object) in kernel {
        let found = ours.get(&name);
        let name = String::from_utf8_lossy(&name);
        let Some(found) = found else {
            anyhow::bail!("{name}: missing");
        };
        let object = &object.with_ctime_of(found, slack.since);
        anyhow::ensure!(
            found.xattrs.keys().eq(object.xattrs.keys()),
            "{name}: attributes {:?}, the kernel's {:?}",
            found
                .xattrs
                .keys()
                .map(|name| name.escape_ascii().to_string())
                .collect::<Vec<_>>(),
            object
                .xattrs
                .keys()
                .map(|name| name.escape_ascii().to_string())
                .collect::<Vec<_>>()
        );
        for (attr, value) in &object.xattrs {
            let attr_name = attr.escape_ascii();
            anyhow::ensure!(found.xattrs[attr] == *value, "{name}: the value of {attr_name} differs");
        }
        anyhow::ensure!(
            found == object,
            "{name}: {:?} {:?} {:?}, the kernel's {:?} {:?} {:?}",
            found.stat,
            found.times,
            found.content,
            object.stat,
            object.times,
            object.content
        );
    }
    let other = ours.keys().find(|name| !names.contains(*name));
    anyhow::ensure!(
        other.is_none(),
        "{:?}: the kernel has no such object",
        other.map(|name| String::from_utf8_lossy(name))
    );
    Ok(())
}
