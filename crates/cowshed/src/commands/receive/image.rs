//! A stream played into a volume by calls of its engine: one that is not mounted, where owners,
//! devices and attributes of all name spaces are those of the stream, without privileges; or a view
//! of one that is mounted, by what its user may do.
//!
//! A path leads down from the subvolume name by name, and symbolic links are not followed. So
//! nothing leads out of it, also where others change names meanwhile.

use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use btrfs_stream::Time;
use cowshed::formats::Format;
use cowshed_device::OpenMode;
use cowshed_vfs::fs::NewNode;
use cowshed_vfs::{
    Context, Error as Errno, ExtendedFlags, FileKind, FlagChange, InitInfo, PERM_MASK, Received, RenameFlags, SetAttr,
    SetTime, Timestamp, Volume, WriteFlags,
};
use cowshed_vfs_ioctl::wire::SubvolumePage;

use super::limits::{CAPABILITIES, CAPABILITIES_BYTES_MAX, known_fallocate, owner};
use super::locks::{COMPRESSION, COMPRESSION_BYTES_MAX, Flagged, Inodes, Locks};
use super::player::{New, Shared, Start, Target};
use super::select::select;
use crate::commands::btrfs::calls;
use crate::commands::offline::{Engine, Node, top};
use crate::devices;

/// The call that an engine takes at once.
const IO_BYTES_MAX: usize = InitInfo::TRUSTED.io_bytes_max;

impl Flagged for Node {
    fn chattr(&self) -> io::Result<u32> {
        Ok(self.engine.volume.flags(self.id)?.attributes)
    }
    fn set_chattr(&self, flags: u32) -> io::Result<()> {
        let change = FlagChange::Attributes(flags);
        Ok(self.engine.volume.set_flags(&self.engine.ctx, self.id, &change)?)
    }
    fn xflags(&self) -> io::Result<u32> {
        Ok(self.engine.volume.flags(self.id)?.extended.xflags)
    }
    fn set_xflags(&self, xflags: u32) -> io::Result<()> {
        let flags = ExtendedFlags {
            xflags,
            ..ExtendedFlags::default()
        };
        let change = FlagChange::Extended(flags);
        Ok(self.engine.volume.set_flags(&self.engine.ctx, self.id, &change)?)
    }
    fn property(&self) -> Option<Vec<u8>> {
        let mut value = vec![0; COMPRESSION_BYTES_MAX];
        let (volume, ctx) = (&self.engine.volume, &self.engine.ctx);
        let len = volume.getxattr(ctx, self.id, COMPRESSION.as_bytes(), &mut value).ok()?;
        value.truncate(len);
        Some(value)
    }
    fn set_property(&self, value: &[u8]) -> io::Result<()> {
        self.set_xattr(COMPRESSION.as_bytes(), value)
    }
}

impl Inodes for Node {
    type Inode = Node;
    fn flagged(&self, path: &[u8]) -> io::Result<Option<Node>> {
        let node = self.below(path)?;
        let has_flags = matches!(node.attr.kind, FileKind::Regular | FileKind::Directory);
        Ok(has_flags.then_some(node))
    }
}

/// A directory of a volume.
pub struct Image {
    engine: Arc<Engine>,
    dir: Node,
    current: Option<Current>,
}

/// The subvolume under way.
struct Current {
    root: Node,
    locks: Locks,
    uuid: [u8; 16],
    ctransid: u64,
    /// As of the same field for mounts.
    root_times: (Timestamp, Timestamp),
}

impl Image {
    /// Opens a volume on one image file or block device; `path` leads from its top level to the
    /// directory to receive into.
    pub fn open(image: &Path, path: &[u8]) -> Result<Self> {
        devices::need_format(image, Format::Btrfs, "receive")?;
        Self::in_dir(Engine::open(image, OpenMode::ReadWrite)?, path)
    }

    /// Receives into a directory of a volume or view that shows the top level, as `ctx` may.
    /// Destroys it at the end.
    pub fn on(volume: Arc<dyn Volume>, ctx: Context, path: &[u8]) -> Result<Self> {
        Self::in_dir(Engine::on(volume, ctx)?, path)
    }

    fn in_dir(engine: Arc<Engine>, path: &[u8]) -> Result<Self> {
        let dir = top(&engine)?.below(path)?;
        if dir.attr.kind != FileKind::Directory {
            bail!("not a directory");
        }
        let current = None;
        Ok(Self { engine, dir, current })
    }

    /// Everything is on disk when this returns.
    pub fn close(self) -> Result<()> {
        Ok(self.engine.volume.close()?)
    }

    /// The root directory of another subvolume, by uuid.
    fn find(&self, uuid: [u8; 16], apart: Option<u64>) -> Result<Node> {
        let subvolumes = self.engine.volume.subvolumes().map_err(io::Error::from)?;
        let (mut all, mut from) = (Vec::new(), 0);
        while let Some((info, path)) = subvolumes.next(&self.engine.ctx, from).map_err(io::Error::from)? {
            from = info.id + 1;
            all.extend(SubvolumePage::new(&info, &path));
        }
        let page = select(&all, uuid, apart)?;
        let found = top(&self.engine)?.below(calls::path_of(page));
        found.with_context(|| format!("subvolume {}", page.id))
    }

    fn current(&mut self) -> Result<&mut Current> {
        self.current.as_mut().context("no subvolume has begun")
    }
}

impl Current {
    fn id(&self) -> io::Result<u64> {
        Ok(self.root.engine.volume.subvolumes()?.info(self.root.id)?.id)
    }

    /// As of the same name for mounts.
    fn unlocked<T>(&mut self, paths: &[&[u8]], act: impl Fn(&Node) -> io::Result<T>) -> Result<T> {
        match act(&self.root) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                match self.locks.unlock_all(&self.root, paths)? {
                    true => Ok(act(&self.root)?),
                    false => Err(error.into()),
                }
            }
            done => Ok(done?),
        }
    }

    fn set(&mut self, path: &[u8], set: &SetAttr) -> Result<()> {
        self.unlocked(&[path], |root| root.below(path)?.set(set))
    }
}

fn make(dir: &Node, name: &[u8], new: &New<'_>) -> io::Result<()> {
    let (volume, ctx) = (&dir.engine.volume, &dir.engine.ctx);
    let node = |kind, perm, rdev| volume.mknod(ctx, dir.id, name, NewNode { kind, perm, rdev });
    let entry = match *new {
        New::File => node(FileKind::Regular, 0o600, 0),
        New::Dir => volume.mkdir(ctx, dir.id, name, 0o700),
        New::Fifo => node(FileKind::Fifo, 0o600, 0),
        New::Socket => node(FileKind::Socket, 0o600, 0),
        New::Symlink { target } => volume.symlink(ctx, dir.id, name, target),
        New::Node { mode, rdev } => match (FileKind::from_mode(mode as u32), u32::try_from(rdev)) {
            (Some(kind), Ok(rdev)) => node(kind, mode as u32 & PERM_MASK, rdev),
            _ => Err(Errno::Invalid),
        },
    };
    dir.made(entry?);
    Ok(())
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp::new(time.secs, time.nanos)
}

impl Target for Image {
    fn begin(&mut self, start: &Start<'_>) -> Result<()> {
        let (above, name) = self.dir.place(start.path)?;
        let (volume, ctx) = (&self.engine.volume, &self.engine.ctx);
        let subvolumes = volume.subvolumes().map_err(io::Error::from)?;
        let made = match start.parent {
            // Its mode comes later in the stream: until then its content is the owner's alone.
            None => {
                let private = Context::new(ctx.creds.clone(), ctx.pid, 0o077);
                subvolumes.create(&private, above.id, name)
            }
            Some(uuid) => {
                let parent = self.find(uuid, None).context("the parent")?;
                subvolumes.snapshot(ctx, parent.id, above.id, name, false)
            }
        };
        made.map_err(io::Error::from)?;
        let root = above.child(name)?;
        self.current = Some(Current {
            root_times: (root.attr.atime, root.attr.mtime),
            root,
            locks: Locks::default(),
            uuid: start.uuid,
            ctransid: start.ctransid,
        });
        Ok(())
    }

    fn make(&mut self, path: &[u8], new: &New<'_>) -> Result<()> {
        self.current()?.unlocked(&[path], |root| {
            let (dir, name) = root.place(path)?;
            make(&dir, name, new)
        })
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.unlocked(&[path, to], |root| {
            let ((from, name), (dir, new)) = (root.place(path)?, root.place(to)?);
            let (volume, none) = (&root.engine.volume, RenameFlags::empty());
            Ok(volume.rename(&root.engine.ctx, from.id, name, dir.id, new, none)?)
        })?;
        this.locks.renamed(path, to);
        Ok(())
    }

    fn link(&mut self, path: &[u8], existing: &[u8]) -> Result<()> {
        self.current()?.unlocked(&[path, existing], |root| {
            let (node, (dir, name)) = (root.below(existing)?, root.place(path)?);
            dir.made(root.engine.volume.link(&root.engine.ctx, node.id, dir.id, name)?);
            Ok(())
        })
    }

    fn unlink(&mut self, path: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.unlocked(&[path], |root| {
            let (dir, name) = root.place(path)?;
            Ok(root.engine.volume.unlink(&root.engine.ctx, dir.id, name)?)
        })?;
        this.locks.removed(path);
        Ok(())
    }

    fn rmdir(&mut self, path: &[u8]) -> Result<()> {
        let this = self.current()?;
        this.unlocked(&[path], |root| {
            let (dir, name) = root.place(path)?;
            Ok(root.engine.volume.rmdir(&root.engine.ctx, dir.id, name)?)
        })?;
        this.locks.removed(path);
        Ok(())
    }

    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        self.current()?
            .unlocked(&[path], |root| root.below(path)?.set_xattr(name, value))
    }

    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<()> {
        self.current()?.unlocked(&[path], |root| {
            let node = root.below(path)?;
            Ok(root.engine.volume.removexattr(&root.engine.ctx, node.id, name)?)
        })
    }

    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > i64::MAX.cast_unsigned()) {
            bail!("a write behind the largest size");
        }
        self.current()?.unlocked(&[path], |root| {
            let node = root.file(path)?;
            node.opened(|opened| {
                let (volume, ctx) = (&root.engine.volume, &root.engine.ctx);
                let (mut at, mut rest) = (offset, data);
                while !rest.is_empty() {
                    let part = &rest[..rest.len().min(IO_BYTES_MAX)];
                    match volume.write(ctx, node.id, opened.handle, at, part, WriteFlags::empty())? {
                        0 => return Err(Errno::Io),
                        done => (at, rest) = (at + done as u64, &rest[done..]),
                    }
                }
                Ok(())
            })
        })
    }

    fn share(&mut self, path: &[u8], range: &Shared<'_>) -> Result<()> {
        let (uuid, id) = match &self.current {
            Some(current) => (current.uuid, current.id()?),
            None => bail!("no subvolume has begun"),
        };
        let other = match range.uuid == uuid {
            true => None,
            false => Some(self.find(range.uuid, Some(id)).context("the source")?),
        };
        if range.len_bytes == 0 {
            return Ok(());
        }
        self.current()?.unlocked(&[path], |root| {
            let source = other.as_ref().unwrap_or(root).file(range.path)?;
            let (from, to) = ((source.id, range.src_offset), (root.file(path)?.id, range.dst_offset));
            let by = Some(&root.engine.ctx);
            Ok(root.engine.volume.clone_range(by, from, to, range.len_bytes)?)
        })
    }

    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()> {
        let set = SetAttr {
            size_bytes: Some(size),
            ..SetAttr::default()
        };
        self.current()?.set(path, &set)
    }

    fn chmod(&mut self, path: &[u8], mode: u64) -> Result<()> {
        let set = SetAttr {
            perm: Some(mode as u32 & PERM_MASK),
            ..SetAttr::default()
        };
        self.current()?.set(path, &set)
    }

    fn chown(&mut self, path: &[u8], uid: u64, gid: u64) -> Result<()> {
        let (uid, gid) = owner(uid, gid)?;
        let set = SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        self.current()?.unlocked(&[path], |root| {
            let node = root.below(path)?;
            let (volume, ctx, name) = (&root.engine.volume, &root.engine.ctx, CAPABILITIES.as_bytes());
            let mut kept = [0; CAPABILITIES_BYTES_MAX];
            let had = volume.getxattr(ctx, node.id, name, &mut kept).ok();
            node.set(&set)?;
            match had.and_then(|len| kept.get(..len)) {
                Some(value) => node.set_xattr(name, value),
                None => Ok(()),
            }
        })
    }

    fn utimes(&mut self, path: &[u8], atime: Time, mtime: Time) -> Result<()> {
        let (atime, mtime) = (timestamp(atime), timestamp(mtime));
        let this = self.current()?;
        if path.is_empty() {
            this.root_times = (atime, mtime);
        }
        let set = SetAttr {
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        };
        this.set(path, &set)
    }

    fn fallocate(&mut self, path: &[u8], mode: u32, offset: u64, len_bytes: u64) -> Result<()> {
        let mode = known_fallocate(mode)?;
        self.current()?.unlocked(&[path], |root| {
            let node = root.file(path)?;
            node.opened(|opened| {
                let (volume, ctx) = (&root.engine.volume, &root.engine.ctx);
                volume.fallocate(ctx, node.id, opened.handle, offset, len_bytes, mode)
            })
        })
    }

    fn set_flags(&mut self, path: &[u8], flags: u64) -> Result<()> {
        let this = self.current()?;
        Ok(this.locks.set(&this.root, path, flags)?)
    }

    fn finish(&mut self) -> Result<()> {
        let this = self.current()?;
        let (atime, mtime) = this.root_times;
        let times = SetAttr {
            atime: Some(SetTime::At(atime)),
            mtime: Some(SetTime::At(mtime)),
            ..SetAttr::default()
        };
        this.set(b"", &times)?;
        this.locks.restore(&this.root).context("setting flags of inodes")?;
        let (volume, ctx) = (&this.root.engine.volume, &this.root.engine.ctx);
        volume.sync().context("writing to disk")?;
        let received = Received {
            uuid: this.uuid,
            sent_generation: this.ctransid,
            ..Received::default()
        };
        let subvolumes = volume.subvolumes().map_err(io::Error::from)?;
        let set = subvolumes.set_received(ctx, this.root.id, &received);
        set.map_err(io::Error::from).context("setting the received uuid")?;
        let set = subvolumes.set_read_only(ctx, this.root.id, true);
        set.map_err(io::Error::from).context("making it read-only")?;
        self.current = None;
        Ok(())
    }
}
