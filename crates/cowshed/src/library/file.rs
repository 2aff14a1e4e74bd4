//! Open files.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

use cowshed_vfs::{Error as Errno, FileKind, Handle, OpenFlags, OpenRequest, SetAttr, WriteFlags};

use super::node::{self, Node};
use super::{Dir, Error, Metadata, Result};

/// The largest single read or write that is passed on, in bytes: what `InitInfo::TRUSTED` promises.
const IO_BYTES_MAX: usize = 1 << 20;

/// Permission bits of new files.
const PERM: u32 = 0o644;

/// How a file is opened; as [`std::fs::OpenOptions`].
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    flags: OpenFlags,
    perm: u32,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl FileOptions {
    /// Nothing allowed yet.
    pub fn new() -> Self {
        Self {
            flags: OpenFlags::empty(),
            perm: PERM,
        }
    }
    fn with(mut self, flag: OpenFlags, on: bool) -> Self {
        self.flags.set(flag, on);
        self
    }
    /// May be read.
    pub fn read(self, on: bool) -> Self {
        self.with(OpenFlags::READ, on)
    }
    /// May be written.
    pub fn write(self, on: bool) -> Self {
        self.with(OpenFlags::WRITE, on)
    }
    /// All writes go to the end.
    pub fn append(self, on: bool) -> Self {
        self.with(OpenFlags::APPEND, on).with(OpenFlags::WRITE, on)
    }
    /// Emptied when opened.
    pub fn truncate(self, on: bool) -> Self {
        self.with(OpenFlags::TRUNCATE, on)
    }
    /// Made if it is not there.
    pub fn create(self, on: bool) -> Self {
        self.with(OpenFlags::CREATE, on)
    }
    /// Made, and an error if it is there.
    pub fn create_new(self, on: bool) -> Self {
        self.with(OpenFlags::CREATE, on).with(OpenFlags::EXCLUSIVE, on)
    }
    /// Permission bits if it is made; 0o644 by default.
    pub fn mode(mut self, perm: u32) -> Self {
        self.perm = perm;
        self
    }
}

/// An open file. Closed when dropped; that alone makes nothing durable, [`File::sync`] does.
///
/// [`Read`], [`Write`] and [`Seek`] work at a position of this value's own.
#[derive(Debug)]
pub struct File {
    node: Arc<Node>,
    handle: Handle,
    path: PathBuf,
    flags: OpenFlags,
    position_bytes: u64,
}

impl File {
    pub(super) fn open(dir: &Dir, path: PathBuf, options: &FileOptions) -> Result<File> {
        let opened = Self::open_node(dir, &path, options);
        let (node, handle) = opened.map_err(Error::at(&path))?;
        Ok(File {
            node,
            handle,
            path,
            flags: options.flags,
            position_bytes: 0,
        })
    }

    fn open_node(dir: &Dir, path: &std::path::Path, options: &FileOptions) -> cowshed_vfs::Result<(Arc<Node>, Handle)> {
        let request = OpenRequest {
            flags: options.flags,
            kill_suidgid: false,
        };
        let exclusive = options.flags.contains(OpenFlags::EXCLUSIVE);
        let found = match exclusive {
            true => Err(Errno::NotFound),
            false => node::resolve(dir.node(), path, true),
        };
        match found {
            Ok(node) if node.kind() == FileKind::Directory => Err(Errno::IsDirectory),
            Ok(node) if node.kind() != FileKind::Regular => Err(Errno::Invalid),
            Ok(node) => {
                let opened = node.fs().open(node.ctx(), node.id(), &request)?;
                Ok((node, opened.handle))
            }
            Err(Errno::NotFound) if options.flags.contains(OpenFlags::CREATE) => {
                let (parent, name) = node::resolve_parent(dir.node(), path)?;
                // Another caller may have made it meanwhile: then it is opened, unless it had to be
                // new. A symbolic link that leads nowhere is not made into a file.
                let (entry, opened) = parent
                    .fs()
                    .create(parent.ctx(), parent.id(), name, options.perm, &request)?;
                Ok((Node::of_entry(&parent, &entry), opened.handle))
            }
            Err(other) => Err(other),
        }
    }

    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }
    pub(super) fn handle(&self) -> Handle {
        self.handle
    }
    pub(super) fn path(&self) -> &std::path::Path {
        &self.path
    }
    pub(super) fn flags(&self) -> OpenFlags {
        self.flags
    }
    /// Opened for appending only.
    pub(super) fn appends(&self) -> bool {
        self.flags.contains(OpenFlags::APPEND)
    }

    pub(super) fn at<T>(&self, result: cowshed_vfs::Result<T>) -> Result<T> {
        result.map_err(Error::at(&self.path))
    }

    pub(super) fn require(&self, flag: OpenFlags) -> Result<()> {
        self.at(if self.flags.contains(flag) {
            Ok(())
        } else {
            Err(Errno::BadHandle)
        })
    }

    /// Reads from an offset in bytes; fewer bytes than asked for only at the end of the file.
    ///
    /// Each call goes to the devices, but for compressed extents, which stay decompressed for the
    /// next calls. Sequential small reads trigger readahead: the next compressed extents are
    /// decompressed by all processors. Other data is not cached: for small reads, put a
    /// [`std::io::BufReader`] in front.
    ///
    /// # Errors
    /// Not opened for reading; data that is damaged in all its copies.
    pub fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<usize> {
        self.require(OpenFlags::READ)?;
        let mut done = 0;
        for part in buf.chunks_mut(IO_BYTES_MAX) {
            let (fs, ctx, at) = (self.node.fs(), self.node.ctx(), offset_bytes + done as u64);
            let got = self.at(fs.read(ctx, self.node.id(), self.handle, at, part))?;
            done += got;
            if got < part.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Writes all of `data` at an offset in bytes (in append mode: at the end).
    ///
    /// # Errors
    /// Not opened for writing, no space, the volume went read-only. A part may have been written.
    /// `EINVAL` for a range that ends behind 2^63 - 1, the largest size; nothing is written then.
    /// `EFBIG` in append mode where the file comes to that size.
    pub fn write_at(&self, offset_bytes: u64, data: &[u8]) -> Result<()> {
        self.require(OpenFlags::WRITE)?;
        let end = offset_bytes.checked_add(data.len() as u64);
        if !self.appends() && end.is_none_or(|end| end > i64::MAX.cast_unsigned()) {
            return self.at(Err(Errno::Invalid));
        }
        let flags = if self.flags.contains(OpenFlags::APPEND) {
            WriteFlags::APPEND
        } else {
            WriteFlags::empty()
        };
        let (mut at, mut rest) = (offset_bytes, data);
        while !rest.is_empty() {
            let part = &rest[..rest.len().min(IO_BYTES_MAX)];
            let (fs, ctx) = (self.node.fs(), self.node.ctx());
            let written = self.at(fs.write(ctx, self.node.id(), self.handle, at, part, flags))?;
            // Where it is appended, the offset says nothing.
            at = at.saturating_add(written as u64);
            rest = &rest[written..];
        }
        Ok(())
    }

    /// Cuts the file, or lengthens it by a hole.
    ///
    /// # Errors
    /// Not opened for writing, no space.
    pub fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.require(OpenFlags::WRITE)?;
        let set = SetAttr {
            size_bytes: Some(size_bytes),
            ..SetAttr::default()
        };
        let (fs, ctx) = (self.node.fs(), self.node.ctx());
        self.at(fs.setattr(ctx, self.node.id(), Some(self.handle), &set))?;
        Ok(())
    }

    /// What is known of it now.
    ///
    /// # Errors
    /// None that a healthy volume has.
    pub fn metadata(&self) -> Result<Metadata> {
        self.at(self.node.attr()).map(Metadata)
    }

    /// Makes the file durable, content and metadata, and findable under its name.
    ///
    /// # Errors
    /// A device failed; the volume is then read-only.
    pub fn sync(&self) -> Result<()> {
        let (fs, ctx) = (self.node.fs(), self.node.ctx());
        self.at(fs.fsync(ctx, self.node.id(), self.handle, false))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        self.node.fs().release(self.node.id(), self.handle);
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.read_at(self.position_bytes, buf)?;
        self.position_bytes += got as u64;
        Ok(got)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.write_at(self.position_bytes, data)?;
        self.position_bytes += data.len() as u64;
        Ok(data.len())
    }
    /// Nothing is held back here; see [`File::sync`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.metadata()?.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.position_bytes.checked_add_signed(by),
        };
        self.position_bytes = target.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position_bytes)
    }
}
