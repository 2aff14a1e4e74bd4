//! A volume by calls of its engine: on an image file or block device that is not mounted, where the
//! caller counts as user 0 and needs no privileges; or a view of a mounted one, by what its user
//! may do.
//!
//! A path leads down name by name, and symbolic links are not followed: nothing leads out of the
//! directory that it starts at.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use cowshed::formats::{self, Commits, Format};
use cowshed_device::{BlockDevice, Locking, OpenMode};
use cowshed_vfs::{
    Attr, Context, Error as Errno, FileKind, InitInfo, Lookup, NodeId, OpenFlags, OpenRequest, Opened,
    PermissionChecks, SetAttr, SetXattrFlags, Volume,
};

use crate::block_devices::others_of;
use crate::devices::{ReadArgs, explain_busy, open_device, open_to_read, open_with};
use crate::mount_options::{self, Options};

/// An open volume.
pub struct Engine {
    pub volume: Arc<dyn Volume>,
    pub ctx: Context,
}

impl Engine {
    /// Opens the volume; its top level is the root directory. A log is replayed, in memory alone
    /// where the volume is opened to be read.
    pub fn open(image: &Path, mode: OpenMode) -> Result<Arc<Engine>> {
        let options = mount_options::parse(&["subvolid=5".to_owned()])?;
        let mut devices = vec![open_named(image, mode)?];
        for other in others_of(image) {
            devices.push(open_named(&other, mode)?);
        }
        Self::open_with(devices, mode, options)
    }

    fn open_with(devices: Vec<Arc<dyn BlockDevice>>, mode: OpenMode, mut options: Options) -> Result<Arc<Engine>> {
        if mode == OpenMode::ReadOnly {
            options.set_read_only();
        }
        let format = formats::format_of(&devices);
        let volume = formats::open(devices, &options.formats).map_err(|failure| options.explain(format, failure))?;
        Self::on(volume, Context::root())
    }

    /// As [`Engine::open`], for one change that is committed as a whole: no commit comes but the
    /// one that is asked for, and where only a commit would make room there is none.
    pub fn open_for_one_commit(device: Arc<dyn BlockDevice>, mode: OpenMode) -> Result<Arc<Engine>> {
        let words = match formats::format_of(std::slice::from_ref(&device)) {
            Format::Btrfs => vec!["subvolid=5".to_owned()],
            Format::Xfs => Vec::new(),
        };
        let mut options = mount_options::parse(&words)?;
        options.formats.btrfs.engine.commits = Commits::WhenAsked;
        Self::open_with(vec![device], mode, options)
    }

    /// Opens a volume to be read, of which this is the first device, with further devices and the
    /// options of mount. If none are named, those are taken that are found for the one at `path`.
    /// Without an option that chooses a subvolume the top level is the root directory.
    pub fn open_to_read(device: Arc<dyn BlockDevice>, path: &Path, read: &ReadArgs) -> Result<Arc<Engine>> {
        let mut words = read.options.clone();
        let has_subvolumes = formats::format_of(std::slice::from_ref(&device)) == Format::Btrfs;
        if has_subvolumes && !words.iter().any(|word| word.contains("subvol")) {
            words.push("subvolid=5".to_owned());
        }
        let mut options = mount_options::parse(&words)?;
        options.set_read_only();
        let mut others: Vec<_> = read.devices.iter().chain(&options.devices).cloned().collect();
        if others.is_empty() && !options.formats.btrfs.open.degraded {
            others = others_of(path);
        }
        let mut devices = vec![device];
        devices.extend(open_to_read(&others, Locking::Locked)?);
        Self::on(open_with(devices, &options)?, Context::root())
    }

    /// Takes a volume or view that shows the top level, with the permissions of `ctx`.
    pub fn on(volume: Arc<dyn Volume>, ctx: Context) -> Result<Arc<Engine>> {
        let checks = match ctx.creds.is_privileged() {
            true => PermissionChecks::FrontEnd,
            false => PermissionChecks::FileSystem,
        };
        let engine = Arc::new(Engine { volume, ctx });
        let front = InitInfo {
            checks,
            ..InitInfo::TRUSTED
        };
        engine.volume.init(&front).map_err(io::Error::from)?;
        Ok(engine)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.volume.destroy();
    }
}

/// An inode that is remembered as long as this value lives.
pub struct Node {
    pub engine: Arc<Engine>,
    pub id: NodeId,
    pub attr: Attr,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.engine.volume.forget(self.id, 1);
    }
}

impl Node {
    pub fn child(&self, name: &[u8]) -> io::Result<Node> {
        let engine = self.engine.clone();
        match engine.volume.lookup(&engine.ctx, self.id, name)? {
            Lookup::Absent { .. } => Err(Errno::NotFound.into()),
            Lookup::Found(entry) => Ok(Node {
                engine,
                id: entry.node,
                attr: entry.attr,
            }),
        }
    }

    /// What a path below leads to; symbolic links are not followed.
    pub fn below(&self, path: &[u8]) -> io::Result<Node> {
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let Some(first) = names.next() else {
            return self.again();
        };
        let mut here = self.child(first)?;
        for name in names {
            here = here.child(name)?;
        }
        Ok(here)
    }

    /// Another value for the same inode.
    pub fn again(&self) -> io::Result<Node> {
        let entry = self.engine.volume.lookup_node(&self.engine.ctx, self.id)?;
        Ok(Node {
            engine: self.engine.clone(),
            id: entry.node,
            attr: entry.attr,
        })
    }

    /// The directory of a path below, and the name in it.
    pub fn place<'p>(&self, path: &'p [u8]) -> io::Result<(Node, &'p [u8])> {
        match path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => Ok((self.below(&path[..at])?, &path[at + 1..])),
            None => Ok((self.again()?, path)),
        }
    }

    /// The names in this directory, without `.` and `..`, in the order of the directory.
    pub fn names(&self) -> io::Result<Vec<Vec<u8>>> {
        let (volume, ctx) = (&self.engine.volume, &self.engine.ctx);
        let opened = volume.opendir(ctx, self.id)?;
        let (mut names, mut cookie) = (Vec::new(), 0);
        let listed = loop {
            let before = cookie;
            let read = volume.readdir(ctx, self.id, opened.handle, cookie, &mut |entry| {
                cookie = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    names.push(entry.name.to_vec());
                }
                ControlFlow::Continue(())
            });
            if read.is_err() || cookie == before {
                break read;
            }
        };
        volume.releasedir(self.id, opened.handle);
        listed?;
        Ok(names)
    }

    /// A regular file below.
    pub fn file(&self, path: &[u8]) -> io::Result<Node> {
        let node = self.below(path)?;
        match node.attr.kind {
            FileKind::Regular => Ok(node),
            _ => Err(Errno::Invalid.into()),
        }
    }

    pub fn set(&self, set: &SetAttr) -> io::Result<()> {
        self.engine.volume.setattr(&self.engine.ctx, self.id, None, set)?;
        Ok(())
    }

    pub fn set_xattr(&self, name: &[u8], value: &[u8]) -> io::Result<()> {
        let none = SetXattrFlags::empty();
        Ok(self
            .engine
            .volume
            .setxattr(&self.engine.ctx, self.id, name, value, none)?)
    }

    /// Gives the entry's lookup back: the node is not needed.
    pub fn made(&self, entry: cowshed_vfs::Entry) {
        self.engine.volume.forget(entry.node, 1);
    }

    /// Runs with the file open for writing.
    pub fn opened(&self, run: impl FnOnce(&Opened) -> cowshed_vfs::Result<()>) -> io::Result<()> {
        let (volume, ctx) = (&self.engine.volume, &self.engine.ctx);
        let request = OpenRequest {
            flags: OpenFlags::READ | OpenFlags::WRITE,
            kill_suidgid: false,
        };
        let opened = volume.open(ctx, self.id, &request)?;
        let done = run(&opened);
        volume.release(self.id, opened.handle);
        Ok(done?)
    }
}

/// Opens an image; its whole path is the device's name in messages.
pub fn open_named(image: &Path, mode: OpenMode) -> Result<Arc<dyn BlockDevice>> {
    let image = &image.canonicalize().unwrap_or_else(|_| image.to_owned());
    match open_device(image, mode, Locking::Locked) {
        Err(error) if mode == OpenMode::ReadOnly => Err(explain_busy(error)),
        opened => opened,
    }
}

/// The root directory of the top level.
pub fn top(engine: &Arc<Engine>) -> io::Result<Node> {
    let entry = engine.volume.lookup_node(&engine.ctx, NodeId::ROOT)?;
    Ok(Node {
        engine: engine.clone(),
        id: entry.node,
        attr: entry.attr,
    })
}

/// The two parts of `IMAGE:/PATH`. A directory of such a name goes before it.
pub fn image_of(dir: &Path) -> Option<(&Path, &[u8])> {
    let text = dir.as_os_str().as_bytes();
    let at = text.windows(2).rposition(|two| two == b":/")?;
    let image = Path::new(OsStr::from_bytes(&text[..at]));
    (!dir.exists() && !image.is_dir()).then_some((image, &text[at + 1..]))
}
