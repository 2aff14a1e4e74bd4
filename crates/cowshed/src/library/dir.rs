//! Directories, and everything that is done by path.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use cowshed_vfs::{
    Error as Errno, FileKind, NotCloned, RenameFlags, SetAttr, SetTime, SetXattrFlags, Timestamp, TreeCloneProgress,
    TreeCloneStep, fs::NewNode,
};

use super::node::{self, Node};
use super::{Error, File, FileOptions, Metadata, ReadDir, Result};

/// Permission bits of new directories.
const PERM: u32 = 0o755;
/// The longest attribute value that Linux passes.
const XATTR_BYTES_MAX: usize = 64 << 10;

type Vfs<T> = cowshed_vfs::Result<T>;

/// A directory. Paths are relative to it; absolute ones start at the root of what the volume shows.
///
/// A symbolic link at the end of a path is followed, except where the description says otherwise.
/// `..` leads to where the directory was found, even if it was moved since.
#[derive(Clone, Debug)]
pub struct Dir {
    node: Arc<Node>,
}

impl Dir {
    pub(super) fn new(node: Arc<Node>) -> Dir {
        Dir { node }
    }
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Finds what a path leads to and does something with it; errors say the path.
    fn on<T>(&self, path: &Path, follow: bool, f: impl FnOnce(&Arc<Node>) -> Vfs<T>) -> Result<T> {
        node::resolve(&self.node, path, follow)
            .and_then(|node| f(&node))
            .map_err(Error::at(path))
    }

    /// Finds the directory above a path's last name and does something with the name in it.
    fn in_parent<T>(&self, path: &Path, f: impl FnOnce(&Arc<Node>, &[u8]) -> Vfs<T>) -> Result<T> {
        node::resolve_parent(&self.node, path)
            .and_then(|(dir, name)| f(&dir, name))
            .map_err(Error::at(path))
    }

    /// Opens a directory below this one.
    pub fn open_dir(&self, path: impl AsRef<Path>) -> Result<Dir> {
        let node = self.on(path.as_ref(), true, |node| match node.kind() {
            FileKind::Directory => Ok(node.clone()),
            _ => Err(Errno::NotDirectory),
        })?;
        Ok(Dir { node })
    }

    /// Opens a file as the options say.
    pub fn open_file(&self, path: impl AsRef<Path>, options: &FileOptions) -> Result<File> {
        File::open(self, path.as_ref().into(), options)
    }

    /// Opens a file for reading.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_file(path, &FileOptions::new().read(true))
    }

    /// Makes a file, or empties the one that is there, for reading and writing.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        let options = FileOptions::new().read(true).write(true).create(true).truncate(true);
        self.open_file(path, &options)
    }

    /// The whole content of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let file = self.open(path)?;
        let mut content = Vec::new();
        // A size on disk is no promise: memory grows with what is really read.
        const STEP_BYTES: usize = 4 << 20;
        loop {
            let start = content.len();
            let left = file.metadata()?.len().saturating_sub(start as u64);
            content.resize(start + STEP_BYTES.min(usize::try_from(left).unwrap_or(STEP_BYTES)), 0);
            let got = file.read_at(start as u64, &mut content[start..])?;
            if got == 0 {
                content.truncate(start);
                return Ok(content);
            }
            content.truncate(start + got);
        }
    }

    /// Makes or replaces the content of a file.
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        self.create(path)?.write_at(0, content.as_ref())
    }

    /// The names in a directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let dir = self.open_dir(&path)?;
        Ok(ReadDir::new(dir.node, path.as_ref().into()))
    }

    /// What is known of a file.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.on(path.as_ref(), true, |node| node.attr()).map(Metadata)
    }

    /// What is known of a file, or of a symbolic link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.on(path.as_ref(), false, |node| node.attr()).map(Metadata)
    }

    /// Whether a path leads to something.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.errno(), libc::ENOENT | libc::ENOTDIR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent(path.as_ref(), |dir, name| {
            let entry = dir.fs().mkdir(dir.ctx(), dir.id(), name, PERM)?;
            drop(Node::of_entry(dir, &entry));
            Ok(())
        })
    }

    /// Makes a directory and those above it that are not there; nothing if it is there.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut so_far = PathBuf::new();
        for component in path.as_ref().components() {
            so_far.push(component);
            if !matches!(component, Component::Normal(_)) {
                continue;
            }
            match self.create_dir(&so_far) {
                Ok(()) => {}
                Err(error) if error.errno() == libc::EEXIST => {
                    self.open_dir(&so_far)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent(path.as_ref(), |dir, name| {
            let target = target.as_ref().as_os_str().as_bytes();
            let entry = dir.fs().symlink(dir.ctx(), dir.id(), name, target)?;
            drop(Node::of_entry(dir, &entry));
            Ok(())
        })
    }

    /// The target of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let target = self.on(path.as_ref(), false, |node| node.fs().readlink(node.ctx(), node.id()))?;
        Ok(std::ffi::OsString::from_vec(target).into())
    }

    /// Gives a file one more name.
    pub fn hard_link(&self, original: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let node = self.on(original.as_ref(), false, |node| Ok(node.clone()))?;
        self.in_parent(path.as_ref(), |dir, name| {
            let entry = dir.fs().link(dir.ctx(), node.id(), dir.id(), name)?;
            drop(Node::of_entry(dir, &entry));
            Ok(())
        })
    }

    /// Makes a fifo, socket or device node (`device`: major and minor number).
    pub fn make_node(&self, path: impl AsRef<Path>, kind: FileKind, perm: u32, device: (u32, u32)) -> Result<()> {
        self.in_parent(path.as_ref(), |dir, name| {
            let new = NewNode {
                kind,
                perm,
                rdev: cowshed_vfs::rdev(device.0, device.1),
            };
            let entry = dir.fs().mknod(dir.ctx(), dir.id(), name, new)?;
            drop(Node::of_entry(dir, &entry));
            Ok(())
        })
    }

    /// Removes a name that is not a directory's.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent(path.as_ref(), |dir, name| dir.fs().unlink(dir.ctx(), dir.id(), name))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.in_parent(path.as_ref(), |dir, name| dir.fs().rmdir(dir.ctx(), dir.id(), name))
    }

    /// Removes a directory with everything in it; a symbolic link only itself.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if !self.symlink_metadata(path)?.is_dir() {
            return self.remove_file(path);
        }
        // Directories still to look into and, after them, to remove: no recursion, for trees as
        // deep as they like.
        let mut todo = vec![(path.to_path_buf(), false)];
        while let Some((dir, emptied)) = todo.pop() {
            if emptied {
                self.remove_dir(&dir)?;
                continue;
            }
            todo.push((dir.clone(), true));
            for entry in self.read_dir(&dir)? {
                let entry = entry?;
                let inside = dir.join(entry.name());
                match entry.kind() {
                    FileKind::Directory => todo.push((inside, false)),
                    _ => self.remove_file(inside)?,
                }
            }
        }
        Ok(())
    }

    /// Clones a directory with all that is below it to a new name; contents are shared. Kept are
    /// owners, modes, times, extended attributes, and hard links within the tree.
    ///
    /// `seen` is told of the progress after each step, and of each entry that is left out because
    /// it cannot be cloned. It may end the walk: what was cloned by then stays, and the result is
    /// false.
    pub fn clone_tree(
        &self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        mut seen: impl FnMut(&TreeCloneProgress, Option<&NotCloned>) -> ControlFlow<()>,
    ) -> Result<bool> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open_dir(from)?;
        self.in_parent(to, |dir, name| {
            let fs = dir.shared().fs.clone();
            let mut walk = fs.clone_tree(dir.ctx(), source.node.id(), dir.id(), name)?;
            loop {
                let left_out = match walk.step(dir.ctx())? {
                    TreeCloneStep::Done => return Ok(true),
                    TreeCloneStep::More => None,
                    TreeCloneStep::Without(entry) => Some(entry),
                };
                if seen(&walk.progress(), left_out.as_ref()).is_break() {
                    return Ok(false);
                }
            }
        })
    }

    /// Renames; replaces what the new name leads to, in one step.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = node::resolve_parent(&self.node, from).map_err(Error::at(from))?;
        self.in_parent(to, |dir, name| {
            let (old_dir, old_name) = &source;
            dir.fs()
                .rename(dir.ctx(), old_dir.id(), old_name, dir.id(), name, RenameFlags::empty())
        })
    }

    fn set(&self, path: &Path, follow: bool, set: &SetAttr) -> Result<()> {
        self.on(path, follow, |node| {
            node.fs().setattr(node.ctx(), node.id(), None, set).map(drop)
        })
    }

    /// Sets permission bits.
    pub fn set_mode(&self, path: impl AsRef<Path>, perm: u32) -> Result<()> {
        let set = SetAttr {
            perm: Some(perm),
            ..SetAttr::default()
        };
        self.set(path.as_ref(), true, &set)
    }

    /// Sets owner and group; of a symbolic link, its own.
    pub fn set_owner(&self, path: impl AsRef<Path>, uid: u32, gid: u32) -> Result<()> {
        let set = SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        self.set(path.as_ref(), false, &set)
    }

    /// Sets the times of last access and change; of a symbolic link, its own.
    pub fn set_times(&self, path: impl AsRef<Path>, accessed: Timestamp, modified: Timestamp) -> Result<()> {
        let set = SetAttr {
            atime: Some(SetTime::At(accessed)),
            mtime: Some(SetTime::At(modified)),
            ..SetAttr::default()
        };
        self.set(path.as_ref(), false, &set)
    }

    /// The names of a file's extended attributes; of a symbolic link, its own.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        let mut names = vec![0; XATTR_BYTES_MAX];
        let len = self.on(path.as_ref(), false, |node| {
            node.fs().listxattr(node.ctx(), node.id(), &mut names)
        })?;
        let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    /// The value of an extended attribute, such as `user.comment`; `None` where there is none of
    /// that name.
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<Option<Vec<u8>>> {
        let mut value = vec![0; XATTR_BYTES_MAX];
        let name = name.as_ref().as_bytes();
        self.on(path.as_ref(), false, |node| {
            match node.fs().getxattr(node.ctx(), node.id(), name, &mut value) {
                Ok(len) => {
                    value.truncate(len);
                    Ok(Some(value))
                }
                Err(Errno::NoData) => Ok(None),
                Err(other) => Err(other),
            }
        })
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>, value: impl AsRef<[u8]>) -> Result<()> {
        let (name, value) = (name.as_ref().as_bytes(), value.as_ref());
        self.on(path.as_ref(), false, |node| {
            node.fs()
                .setxattr(node.ctx(), node.id(), name, value, SetXattrFlags::empty())
        })
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<OsStr>) -> Result<()> {
        let name = name.as_ref().as_bytes();
        self.on(path.as_ref(), false, |node| {
            node.fs().removexattr(node.ctx(), node.id(), name)
        })
    }
}
