//! Files of an image by paths. Symbolic links lead to places inside the image, `..` at its root to
//! the root. New files belong to the caller; nothing else asks for permissions.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::{Error, Result};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use cowshed::{FileKind, StatFs, Timestamp};
use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{
    Context, Credentials, Error as Errno, FlagChange, Handle, OpenFlags, OpenRequest, RenameFlags, SeekKind, SetAttr,
    SetTime, WriteFlags, rdev,
};
use rustix::process::{getegid, geteuid};

use super::side::{Create, Follow, STEP_BYTES, SYMLINKS_MAX, Side, Sink, Source, Stat};
use crate::commands::offline::{Engine, Node, top};
use crate::sys;

/// The longest value of an extended attribute.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// An open image.
pub struct Image {
    engine: Arc<Engine>,
    /// Owner and umask of what is made.
    maker: Context,
    /// A call failed in a way after which the change as a whole is given up.
    broken: Broken,
}

/// The first failure of a volume that is written, as against a refusal of one call. What cannot be
/// read of another one costs its files alone.
#[derive(Clone, Default)]
struct Broken {
    is_written: bool,
    first: Rc<Cell<Option<Errno>>>,
}

impl Broken {
    fn note<T>(&self, engine: &Engine, done: cowshed_vfs::Result<T>) -> Result<T> {
        if let Err(error) = &done {
            let is_failure = match error {
                Errno::NoSpace | Errno::Quota | Errno::Io | Errno::Corrupt | Errno::NoMemory => true,
                // A read-only subvolume is none.
                Errno::ReadOnly => engine.volume.is_aborted(),
                _ => false,
            };
            if is_failure && self.is_written && self.first.get().is_none() {
                self.first.set(Some(*error));
            }
        }
        Ok(done?)
    }
}

impl Image {
    pub fn new(engine: Arc<Engine>, is_written: bool) -> Image {
        let creds = Credentials::new(geteuid().as_raw(), getegid().as_raw());
        Image {
            maker: Context::new(creds, 0, sys::umask()),
            engine,
            broken: Broken {
                is_written,
                ..Broken::default()
            },
        }
    }

    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The failure after which nothing of the command may remain.
    pub fn broken(&self) -> Option<Errno> {
        self.broken.first.get()
    }

    fn note<T>(&self, done: cowshed_vfs::Result<T>) -> Result<T> {
        self.broken.note(&self.engine, done)
    }

    fn ctx(&self) -> &Context {
        &self.engine.ctx
    }

    pub fn node(&self, path: &Path, follow: Follow) -> Result<Node> {
        let must_be_dir = path.as_os_str().as_bytes().ends_with(b"/");
        let mut dirs = vec![top(&self.engine)?];
        let mut todo: VecDeque<Vec<u8>> = names_of(path.as_os_str().as_bytes());
        let mut hops = 0;
        let mut found: Option<Node> = None;
        while let Some(name) = todo.pop_front() {
            if let Some(node) = found.take() {
                if node.attr.kind != FileKind::Directory {
                    return Err(Errno::NotDirectory.into());
                }
                dirs.push(node);
            }
            let dir = dirs.last().ok_or(Errno::NotFound)?;
            if name == b"." {
                continue;
            }
            if name == b".." {
                if dirs.len() > 1 {
                    dirs.pop();
                }
                continue;
            }
            if name.len() > 255 {
                return Err(Errno::NameTooLong.into());
            }
            let child = dir.child(&name)?;
            let is_last = todo.is_empty();
            if child.attr.kind == FileKind::Symlink && (!is_last || follow == Follow::Yes || must_be_dir) {
                hops += 1;
                if hops > SYMLINKS_MAX {
                    return Err(Errno::TooManySymlinks.into());
                }
                let target = self.note(self.engine.volume.readlink(self.ctx(), child.id))?;
                if target.starts_with(b"/") {
                    dirs.truncate(1);
                }
                let mut names = names_of(&target);
                if target.is_empty() {
                    return Err(Errno::NotFound.into());
                }
                names.append(&mut todo);
                todo = names;
                continue;
            }
            found = Some(child);
        }
        match found {
            Some(node) if must_be_dir && node.attr.kind != FileKind::Directory => Err(Errno::NotDirectory.into()),
            Some(node) => Ok(node),
            None => dirs.last().ok_or(Errno::NotFound)?.again(),
        }
    }

    /// The directory of a path's last name, and that name.
    fn parent<'p>(&self, path: &'p Path) -> Result<(Node, &'p [u8])> {
        let bytes = path.as_os_str().as_bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let bytes = &bytes[..end];
        let slash = bytes.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
        let (dir, name) = bytes.split_at(slash);
        match name {
            b"" | b"." | b".." => Err(Errno::Exists.into()),
            _ if name.len() > 255 => Err(Errno::NameTooLong.into()),
            _ => Ok((self.node(Path::new(OsStr::from_bytes(dir)), Follow::Yes)?, name)),
        }
    }

    fn made(&self, made: cowshed_vfs::Result<cowshed_vfs::Entry>) -> Result<()> {
        let entry = self.note(made)?;
        self.engine.volume.forget(entry.node, 1);
        Ok(())
    }

    fn set(&self, path: &Path, follow: Follow, set: &SetAttr) -> Result<()> {
        let node = self.node(path, follow)?;
        self.note(self.engine.volume.setattr(self.ctx(), node.id, None, set))
            .map(drop)
    }

    /// `FS_*_FL` flags.
    pub fn flags(&self, path: &Path) -> Result<u32> {
        let node = self.node(path, Follow::No)?;
        Ok(self.note(self.engine.volume.flags(node.id))?.attributes)
    }

    pub fn set_flags(&self, path: &Path, flags: u32) -> Result<()> {
        let node = self.node(path, Follow::No)?;
        let change = FlagChange::Attributes(flags);
        self.note(self.engine.volume.set_flags(self.ctx(), node.id, &change))
    }

    pub fn truncate(&self, path: &Path, size_bytes: u64) -> Result<()> {
        let set = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        self.set(path, Follow::Yes, &set)
    }

    /// Both times are now.
    pub fn touch_now(&self, path: &Path, atime: bool, mtime: bool, follow: Follow) -> Result<()> {
        let set = SetAttr {
            atime: atime.then_some(SetTime::Now),
            mtime: mtime.then_some(SetTime::Now),
            ..SetAttr::default()
        };
        self.set(path, follow, &set)
    }

    pub fn statfs(&self) -> Result<StatFs> {
        let node = top(&self.engine)?;
        self.note(self.engine.volume.statfs(self.ctx(), node.id))
    }
}

fn names_of(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    names.map(<[u8]>::to_vec).collect()
}

impl Side for Image {
    fn identity(&self) -> usize {
        Arc::as_ptr(&self.engine) as usize
    }
    fn is_image(&self) -> bool {
        true
    }

    fn stat(&self, path: &Path, follow: Follow) -> Result<Stat> {
        let node = self.node(path, follow)?;
        let attr = self.note(self.engine.volume.getattr(self.ctx(), node.id, None))?;
        let dev = self.engine.volume.subvolume_of(node.id).map_or(0, |of| of.id);
        Ok(Stat {
            dev,
            ino: attr.ino,
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size_bytes: attr.size_bytes,
            blocks_512: attr.blocks_512,
            device: (
                (attr.rdev >> 8) & 0xfff,
                (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00),
            ),
            atime: attr.atime,
            mtime: attr.mtime,
        })
    }

    fn names(&self, path: &Path) -> Result<Vec<OsString>> {
        let mut names = self.node(path, Follow::No)?.names()?;
        names.sort_unstable();
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    fn read_link(&self, path: &Path) -> Result<OsString> {
        let node = self.node(path, Follow::No)?;
        let target = self.note(self.engine.volume.readlink(self.ctx(), node.id))?;
        Ok(OsString::from_vec(target))
    }

    fn make_dir(&self, path: &Path, perm: u32) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.made(self.engine.volume.mkdir(&self.maker, dir.id, name, perm))
    }

    fn make_symlink(&self, target: &OsStr, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.made(self.engine.volume.symlink(&self.maker, dir.id, name, target.as_bytes()))
    }

    fn make_node(&self, path: &Path, kind: FileKind, perm: u32, device: (u32, u32)) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let new = NewNode {
            kind,
            perm,
            rdev: rdev(device.0, device.1),
        };
        self.made(self.engine.volume.mknod(&self.maker, dir.id, name, new))
    }

    fn link(&self, original: &Path, path: &Path) -> Result<()> {
        let node = self.node(original, Follow::No)?;
        let (dir, name) = self.parent(path)?;
        self.made(self.engine.volume.link(self.ctx(), node.id, dir.id, name))
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.note(self.engine.volume.unlink(self.ctx(), dir.id, name))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        self.note(self.engine.volume.rmdir(self.ctx(), dir.id, name))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        let (dir, name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        let flags = RenameFlags::empty();
        self.note(
            self.engine
                .volume
                .rename(self.ctx(), dir.id, name, new_dir.id, new_name, flags),
        )
    }

    fn set_perm(&self, path: &Path, perm: u32) -> Result<()> {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        self.set(path, Follow::Yes, &set)
    }

    fn set_owner(&self, path: &Path, uid: Option<u32>, gid: Option<u32>, follow: Follow) -> Result<()> {
        let set = SetAttr {
            uid,
            gid,
            ..SetAttr::default()
        };
        self.set(path, follow, &set)
    }

    fn set_times(&self, path: &Path, atime: Option<Timestamp>, mtime: Option<Timestamp>, follow: Follow) -> Result<()> {
        let set = SetAttr {
            atime: atime.map(SetTime::At),
            mtime: mtime.map(SetTime::At),
            ..SetAttr::default()
        };
        self.set(path, follow, &set)
    }

    fn xattrs(&self, path: &Path) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let node = self.node(path, Follow::No)?;
        let (volume, ctx) = (&self.engine.volume, self.ctx());
        let mut buf = vec![0; XATTR_BYTES_MAX];
        let len = self.note(volume.listxattr(ctx, node.id, &mut buf))?;
        let mut names: Vec<Vec<u8>> = buf[..len].split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
        names.retain(|name| !name.is_empty());
        names.sort_unstable();
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            match volume.getxattr(ctx, node.id, &name, &mut buf) {
                Ok(len) => found.push((name, buf[..len].to_vec())),
                Err(Errno::NoData) => {}
                Err(error) => return self.note(Err(error)),
            }
        }
        Ok(found)
    }

    fn set_xattr(&self, path: &Path, name: &[u8], value: &[u8]) -> Result<()> {
        let node = self.node(path, Follow::No)?;
        let flags = cowshed_vfs::SetXattrFlags::empty();
        self.note(self.engine.volume.setxattr(self.ctx(), node.id, name, value, flags))
    }

    fn remove_xattr(&self, path: &Path, name: &[u8]) -> Result<()> {
        let node = self.node(path, Follow::No)?;
        self.note(self.engine.volume.removexattr(self.ctx(), node.id, name))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Source>> {
        let node = self.node(path, Follow::Yes)?;
        let file = OpenFile::open(node, OpenFlags::READ | OpenFlags::NO_ATIME, &self.broken)?;
        Ok(Box::new(file))
    }

    fn create(&self, path: &Path, how: Create, perm: u32) -> Result<Box<dyn Sink>> {
        let mut path = Cow::Borrowed(path);
        if how == Create::Over {
            match self.node(&path, Follow::Yes) {
                Ok(node) => {
                    self.truncate(&path, 0)?;
                    return Ok(Box::new(OpenFile::open(node, OpenFlags::WRITE, &self.broken)?));
                }
                // A link that leads nowhere leads to the new file.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => path = self.resolve(&path)?.into(),
                Err(error) => return Err(error),
            }
        }
        self.make_node(&path, FileKind::Regular, perm, (0, 0))?;
        let node = self.node(&path, Follow::No)?;
        Ok(Box::new(OpenFile::open(node, OpenFlags::WRITE, &self.broken)?))
    }

    fn clone_file(&self, from: &Path, to: &Path) -> Result<()> {
        let (from, to) = (self.node(from, Follow::Yes)?, self.node(to, Follow::Yes)?);
        self.note(
            self.engine
                .volume
                .clone_range(Some(self.ctx()), (from.id, 0), (to.id, 0), 0),
        )
    }
}

/// A file of an image that is open.
struct OpenFile {
    node: Node,
    handle: Handle,
    broken: Broken,
}

impl OpenFile {
    fn open(node: Node, flags: OpenFlags, broken: &Broken) -> Result<OpenFile> {
        if node.attr.kind != FileKind::Regular {
            let error = match node.attr.kind {
                FileKind::Directory => Errno::IsDirectory,
                _ => Errno::NoSuchDevice,
            };
            return Err(error.into());
        }
        let request = OpenRequest {
            flags,
            kill_suidgid: false,
        };
        let opened = node.engine.volume.open(&node.engine.ctx, node.id, &request)?;
        Ok(OpenFile {
            node,
            handle: opened.handle,
            broken: broken.clone(),
        })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.node.engine.volume.release(self.node.id, self.handle);
    }
}

impl Source for OpenFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<usize> {
        let len = buf.len().min(STEP_BYTES);
        let (volume, ctx) = (&self.node.engine.volume, &self.node.engine.ctx);
        let read = volume.read(ctx, self.node.id, self.handle, offset_bytes, &mut buf[..len]);
        self.broken.note(&self.node.engine, read)
    }

    fn data_from(&self, offset_bytes: u64) -> Result<Option<(u64, u64)>> {
        let (volume, ctx) = (&self.node.engine.volume, &self.node.engine.ctx);
        let seek = |offset, what| volume.lseek(ctx, self.node.id, self.handle, offset, what);
        let start = match seek(offset_bytes, SeekKind::Data) {
            Ok(start) => start,
            Err(Errno::NoSuchDevice) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some((start, seek(start, SeekKind::Hole)?)))
    }
}

impl Sink for OpenFile {
    fn write_at(&self, offset_bytes: u64, data: &[u8]) -> Result<()> {
        let (volume, ctx) = (&self.node.engine.volume, &self.node.engine.ctx);
        let (mut at, mut left) = (offset_bytes, data);
        while !left.is_empty() {
            let step = left.len().min(STEP_BYTES);
            let none = WriteFlags::empty();
            let written = volume.write(ctx, self.node.id, self.handle, at, &left[..step], none);
            let written = self.broken.note(&self.node.engine, written)?;
            if written == 0 {
                return Err(Error::from_raw_os_error(libc::EIO));
            }
            at += written as u64;
            left = &left[written..];
        }
        Ok(())
    }

    fn set_len(&self, size_bytes: u64) -> Result<()> {
        let set = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        let (volume, ctx) = (&self.node.engine.volume, &self.node.engine.ctx);
        let done = volume.setattr(ctx, self.node.id, Some(self.handle), &set);
        self.broken.note(&self.node.engine, done).map(drop)
    }
}
