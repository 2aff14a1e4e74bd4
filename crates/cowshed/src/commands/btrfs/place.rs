//! What a path argument of the `btrfs` command leads to: a file or directory on a mount of the
//! kernel's btrfs, on a mount of ours (told apart by the type that statfs says), or in an image
//! that is not mounted (`IMAGE:/PATH`). The calls are the same for all.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{Error, Result as IoResult};
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use btrfs_format::KeyType;
use cowshed::formats::Format;
use cowshed_device::OpenMode;
use cowshed_vfs::{Context, FileKind, ItemKey, ItemSink, Received, Search, SetAttr, SubvolumeUsage};
use cowshed_vfs_ioctl::wire::btrfs::{FS_INFO, FsInfo};
use rustix::process::{getegid, geteuid};
use zerocopy::FromZeros as _;

use super::calls;
use super::say::reason;
use crate::commands::offline::{Engine, Node, image_of, top};
use crate::commands::sync;
use crate::devices::need_format;
use crate::ioctl;
use crate::sys;

/// `BTRFS_SUPER_MAGIC`
const BTRFS: i64 = 0x9123_683e;
/// `FUSE_SUPER_MAGIC`
const FUSE: i64 = 0x6573_5546;

/// A file or directory on a volume.
pub enum Place {
    /// On a mount of the kernel's.
    Kernel(File),
    /// On a mount of ours.
    Ours(File),
    /// In an image.
    Image(Node),
}

/// What there is at a path.
pub enum Found {
    Place(Place),
    /// Something on no btrfs.
    Elsewhere {
        is_dir: bool,
    },
}

impl Found {
    pub fn is_dir(&self) -> bool {
        match self {
            Found::Place(place) => place.is_dir(),
            Found::Elsewhere { is_dir } => *is_dir,
        }
    }
}

/// The images of one run of the command, each opened once.
pub struct Images {
    mode: OpenMode,
    open: Vec<(PathBuf, Arc<Engine>)>,
}

/// A path cut into the directory and the name in it.
pub struct Cut {
    /// To open it.
    pub dir: PathBuf,
    /// As it is printed.
    pub shown: OsString,
    pub name: OsString,
}

impl Cut {
    /// A path without a slash is in `.`.
    pub fn new(path: &Path) -> Cut {
        let bytes = path.as_os_str().as_bytes();
        let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let bytes = &bytes[..end];
        let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else {
            return Cut {
                dir: ".".into(),
                shown: ".".into(),
                name: OsString::from_vec(bytes.to_vec()),
            };
        };
        let shown = &bytes[..slash];
        let is_image_root = image_of(path).is_some_and(|(image, _)| image.as_os_str().as_bytes().len() + 1 == slash);
        let dir = match is_image_root || slash == 0 {
            true => &bytes[..=slash],
            false => shown,
        };
        let shown = if slash == 0 { dir } else { shown };
        Cut {
            dir: PathBuf::from(OsString::from_vec(dir.to_vec())),
            shown: OsString::from_vec(shown.to_vec()),
            name: OsString::from_vec(bytes[slash + 1..].to_vec()),
        }
    }
}

impl Images {
    pub fn to_read() -> Images {
        let (mode, open) = (OpenMode::ReadOnly, Vec::new());
        Images { mode, open }
    }

    pub fn to_write() -> Images {
        let (mode, open) = (OpenMode::ReadWrite, Vec::new());
        Images { mode, open }
    }

    /// Everything is on disk when this returns.
    pub fn close(self) -> Result<()> {
        for (path, engine) in self.open {
            engine.volume.close().with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    fn engine(&mut self, image: &Path) -> Result<Arc<Engine>> {
        // Two names of one image are one volume.
        let whole = image.canonicalize().unwrap_or_else(|_| image.to_owned());
        if let Some((_, engine)) = self.open.iter().find(|(path, _)| *path == whole) {
            return Ok(engine.clone());
        }
        need_format(image, Format::Btrfs, "btrfs")?;
        let engine = Engine::open(image, self.mode).with_context(|| image.display().to_string())?;
        self.open.push((whole, engine.clone()));
        Ok(engine)
    }

    /// What is there at a path; an error of the system where there is nothing, `None` where it is
    /// on no btrfs.
    fn find(&mut self, path: &Path) -> Result<IoResult<Option<Place>>> {
        if let Some((image, inside)) = image_of(path) {
            let inside = without_dots(inside);
            let found = top(&self.engine(image)?).and_then(|top| top.below(&inside));
            return Ok(found.map(|node| Some(Place::Image(node))));
        }
        Ok(mounted(path))
    }

    /// What there is at a path; an error of the system where there is nothing.
    pub fn found(&mut self, path: &Path) -> Result<IoResult<Found>> {
        Ok(self.find(path)?.map(|place| match place {
            Some(place) => Found::Place(place),
            None => Found::Elsewhere { is_dir: path.is_dir() },
        }))
    }

    /// There is something at a path. A symbolic link is something.
    pub fn has(&mut self, path: &Path) -> Result<bool> {
        match image_of(path) {
            Some(_) => Ok(self.find(path)?.is_ok()),
            None => Ok(path.symlink_metadata().is_ok()),
        }
    }

    pub fn is_dir(&mut self, path: &Path) -> Result<bool> {
        match image_of(path) {
            Some(_) => Ok(self
                .find(path)?
                .is_ok_and(|place| place.is_some_and(|place| place.is_dir()))),
            None => Ok(path.is_dir()),
        }
    }

    /// A directory on a volume.
    pub fn directory(&mut self, path: &Path) -> Result<Place> {
        let shown = path.display();
        match self.find(path)? {
            Err(error) => bail!("cannot access '{shown}': {}", reason(&error)),
            // btrfs(8) looks in this order.
            Ok(Some(place)) if place.is_dir() => Ok(place),
            Ok(None) if path.is_dir() => bail!("not a btrfs filesystem: {shown}"),
            Ok(_) => bail!("not a directory: {shown}"),
        }
    }

    /// Anything on a volume.
    pub fn anything(&mut self, path: &Path) -> Result<Place> {
        match self.find(path)? {
            Err(error) => bail!("Could not statfs: {}", reason(&error)),
            Ok(None) => bail!("Not a Btrfs filesystem: Invalid argument"),
            Ok(Some(place)) => Ok(place),
        }
    }

    /// A path that names a device or an image as a whole.
    pub fn is_device(path: &Path) -> bool {
        image_of(path).is_none()
            && path
                .metadata()
                .is_ok_and(|meta| meta.is_file() || meta.file_type().is_block_device())
    }

    /// The top level of the volume on a device or image that is not mounted.
    pub fn top_of(&mut self, device: &Path) -> Result<Place> {
        Ok(Place::Image(top(&self.engine(device)?)?))
    }

    /// The root directory of a subvolume, with its number.
    pub fn subvolume(&mut self, path: &Path) -> Result<(Place, u64)> {
        let place = self.anything(path)?;
        match place.root_id() {
            Ok(id) => Ok((place, id)),
            Err(error) => bail!("Not a Btrfs subvolume: {}", reason(&error)),
        }
    }
}

/// A path inside an image, where symbolic links lead nowhere: `..` takes the name before it away.
fn without_dots(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join(&b'/')
}

/// As [`Images::find`], of a path on a mount.
fn mounted(path: &Path) -> IoResult<Option<Place>> {
    // Opening a pipe must not wait for a process at its other end.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    Place::on_mount(file)
}

impl Place {
    /// An open file or directory; `None` where it is on no btrfs.
    pub fn on_mount(file: File) -> IoResult<Option<Place>> {
        match sys::file_system_type(&file)? {
            BTRFS => Ok(Some(Place::Kernel(file))),
            // Other file systems in user space do not know the call.
            FUSE => {
                let known = ioctl::call(&file, FS_INFO, &mut FsInfo::new_zeroed());
                Ok(known.is_ok().then_some(Place::Ours(file)))
            }
            _ => Ok(None),
        }
    }

    fn is_dir(&self) -> bool {
        match self {
            Place::Kernel(file) | Place::Ours(file) => file.metadata().is_ok_and(|meta| meta.is_dir()),
            Place::Image(node) => node.attr.kind == FileKind::Directory,
        }
    }

    /// The number of the subvolume that this is in.
    pub fn tree(&self) -> IoResult<u64> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::tree_of(file),
            Place::Image(node) => Ok(node.engine.volume.subvolumes()?.info(node.id)?.id),
        }
    }

    /// The number of the subvolume whose root directory this is. Errors: `EINVAL` where it is none.
    pub fn root_id(&self) -> IoResult<u64> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::id_of_open(file),
            Place::Image(node) => {
                let of = node.engine.volume.subvolume_of(node.id)?;
                if of.is_root {
                    Ok(of.id)
                } else {
                    Err(Error::from_raw_os_error(libc::EINVAL))
                }
            }
        }
    }

    /// The subvolume whose root directory this is cannot be changed. Errors: as of
    /// [`Self::root_id`].
    pub fn is_read_only(&self) -> IoResult<bool> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::is_read_only(file),
            Place::Image(node) => {
                let of = node.engine.volume.subvolume_of(node.id)?;
                match of.is_root {
                    true => Ok(of.is_read_only),
                    false => Err(Error::from_raw_os_error(libc::EINVAL)),
                }
            }
        }
    }

    pub fn set_read_only(&self, is_read_only: bool) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::set_read_only(file, is_read_only),
            Place::Image(node) => {
                let subvolumes = node.engine.volume.subvolumes()?;
                Ok(subvolumes.set_read_only(&node.engine.ctx, node.id, is_read_only)?)
            }
        }
    }

    /// What the subvolume that this is in was received under; zeros where it was not.
    pub fn received_uuid(&self) -> IoResult<[u8; 16]> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::received_uuid(file),
            Place::Image(node) => Ok(node.engine.volume.subvolumes()?.info(node.id)?.received_uuid),
        }
    }

    /// Clears the received uuid of the subvolume with this root directory.
    pub fn forget_received(&self) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::forget_received(file),
            Place::Image(node) => {
                let subvolumes = node.engine.volume.subvolumes()?;
                let nothing = Received::default();
                subvolumes.set_received(&node.engine.ctx, node.id, &nothing)?;
                Ok(())
            }
        }
    }

    /// Shows items of a tree in key order, each with the transaction of its block.
    pub fn search(&self, what: &Search, take: ItemSink<'_>) -> IoResult<()> {
        self.search_by(what, calls::NO_MAXIMUM, take)
    }

    /// As [`Self::search`], where no more than `count_max` items are asked for at a time.
    pub fn search_by(&self, what: &Search, count_max: u32, take: ItemSink<'_>) -> IoResult<()> {
        match self {
            Place::Kernel(file) => calls::search_by_kernel(file, what, count_max, take),
            Place::Ours(file) => calls::search(file, what, count_max, take),
            Place::Image(node) => {
                let subvolumes = node.engine.volume.subvolumes()?;
                Ok(subvolumes.search(&node.engine.ctx, node.id, what, take)?)
            }
        }
    }

    /// As [`Self::search`], of items of some types, four at most.
    pub fn search_types(&self, what: &Search, types: &[KeyType], take: ItemSink<'_>) -> IoResult<()> {
        if let Place::Ours(file) = self {
            let four = std::array::from_fn(|n| types[n % types.len()].0);
            match calls::search_types(file, what, four, take) {
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {}
                done => return done,
            }
        }
        self.search(what, &mut |key, bytes, transid| match types.contains(&KeyType(key.1)) {
            true => take(key, bytes, transid),
            false => ControlFlow::Continue(()),
        })
    }

    /// What `take` makes of the first item in a range of one type; `None` where there is no item.
    pub fn first<T>(&self, what: &Search, take: impl Fn(ItemKey, &[u8]) -> T) -> IoResult<Option<T>> {
        let mut first = None;
        let mut found = |key, bytes: &[u8], _| {
            first = Some((take(key, bytes), bytes.is_empty()));
            ControlFlow::Break(())
        };
        self.search_by(what, 1, &mut found)?;
        // It may have been too long: see `calls::search`.
        if let Some((_, true)) = first {
            self.search_types(what, &[KeyType(what.from.1)], &mut |key, bytes, _| {
                first = Some((take(key, bytes), false));
                ControlFlow::Break(())
            })?;
        }
        Ok(first.map(|(item, _)| item))
    }

    /// What each subvolume of the volume refers to, by number. `progress` is told of blocks read,
    /// and known.
    pub fn usage(&self, mut progress: impl FnMut(u64, u64)) -> IoResult<Vec<SubvolumeUsage>> {
        let node = match self {
            // The kernel has quota groups for that.
            Place::Kernel(_) => return Err(Error::from_raw_os_error(libc::EOPNOTSUPP)),
            Place::Ours(file) => return calls::usage(file, progress),
            Place::Image(node) => node,
        };
        let mut count = node.engine.volume.subvolumes()?.usage(&node.engine.ctx)?;
        loop {
            if let Some(all) = count.step()? {
                return Ok(all);
            }
            let (done, known) = count.progress();
            progress(done, known);
        }
    }

    /// The path of an inode from the root of a subvolume, with a slash behind it.
    pub fn path_in(&self, tree: u64, inode: u64) -> IoResult<Vec<u8>> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::path_in(file, tree, inode),
            Place::Image(node) => {
                let subvolumes = node.engine.volume.subvolumes()?;
                Ok(subvolumes.path_of(&node.engine.ctx, node.id, tree, inode)?.1)
            }
        }
    }

    /// Makes an empty subvolume in this directory. It belongs to the caller.
    pub fn create(&self, name: &OsStr) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::create_in(file, name),
            Place::Image(node) => {
                let subvolumes = node.engine.volume.subvolumes()?;
                subvolumes.create(&of_caller(&node.engine.ctx), node.id, name.as_bytes())?;
                node.child(name.as_bytes())?.set(&owned_by_caller())
            }
        }
    }

    /// Makes a directory in this directory. It belongs to the caller.
    pub fn create_dir(&self, name: &OsStr) -> IoResult<()> {
        let Place::Image(node) = self else {
            return Err(Error::from_raw_os_error(libc::EINVAL));
        };
        let made = node
            .engine
            .volume
            .mkdir(&node.engine.ctx, node.id, name.as_bytes(), 0o755)?;
        node.made(made);
        node.child(name.as_bytes())?.set(&owned_by_caller())
    }

    /// Makes a snapshot of this subvolume in a directory. Errors: `EXDEV` where that is on another
    /// volume.
    pub fn snapshot_into(&self, dir: &Place, name: &OsStr, is_read_only: bool) -> IoResult<()> {
        match (self, dir) {
            (Place::Kernel(source), Place::Kernel(dir)) | (Place::Ours(source), Place::Ours(dir)) => {
                calls::snapshot_of(source, dir, name, is_read_only)
            }
            (Place::Image(source), Place::Image(dir)) if Arc::ptr_eq(&source.engine, &dir.engine) => {
                let subvolumes = source.engine.volume.subvolumes()?;
                let ctx = &source.engine.ctx;
                Ok(subvolumes.snapshot(ctx, source.id, dir.id, name.as_bytes(), is_read_only)?)
            }
            _ => Err(Error::from_raw_os_error(libc::EXDEV)),
        }
    }

    /// Deletes the subvolume under a name of this directory.
    pub fn delete(&self, name: &OsStr) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::delete(file, name),
            Place::Image(node) => {
                let subvolumes = node.engine.volume.subvolumes()?;
                Ok(subvolumes.delete(&node.engine.ctx, node.id, name.as_bytes())?)
            }
        }
    }

    /// Deletes the subvolume of a number.
    pub fn delete_by_id(&self, id: u64) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::delete_by_id(file, id),
            Place::Image(node) => Ok(node.engine.volume.subvolumes()?.delete_by_id(&node.engine.ctx, id)?),
        }
    }

    /// Makes a subvolume the default, by id.
    pub fn set_default(&self, id: u64) -> IoResult<()> {
        match self {
            Place::Kernel(file) | Place::Ours(file) => calls::set_default(file, id),
            Place::Image(node) => Ok(node.engine.volume.subvolumes()?.set_default(&node.engine.ctx, id)?),
        }
    }

    /// Commits.
    pub fn commit(&self) -> IoResult<()> {
        match self {
            Place::Kernel(file) => calls::commit(file),
            // Also what Linux holds of mapped files.
            Place::Ours(file) => sync::mount_of_open(file),
            Place::Image(node) => node.engine.volume.sync().map_err(|failure| failure.error().into()),
        }
    }
}

/// The context with the umask of this process: new directories have the mode as on a mount.
fn of_caller(ctx: &Context) -> Context {
    Context::new(ctx.creds.clone(), ctx.pid, sys::umask())
}

fn owned_by_caller() -> SetAttr {
    SetAttr {
        uid: Some(geteuid().as_raw()),
        gid: Some(getegid().as_raw()),
        ..SetAttr::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cut_as_by_dirname_and_basename() {
        for (path, dir, shown, name) in [
            ("a", ".", ".", "a"),
            ("d/a", "d", "d", "a"),
            ("d//a/", "d/", "d/", "a"),
            ("/a", "/", "/", "a"),
            ("./a", ".", ".", "a"),
            ("no.img:/a", "no.img:/", "no.img:", "a"),
            ("no.img:/d/a/", "no.img:/d", "no.img:/d", "a"),
        ] {
            let cut = Cut::new(Path::new(path));
            assert_eq!(cut.dir, Path::new(dir), "{path}");
            assert_eq!(
                (&cut.shown[..], &cut.name[..]),
                (OsStr::new(shown), OsStr::new(name)),
                "{path}"
            );
        }
    }
}
