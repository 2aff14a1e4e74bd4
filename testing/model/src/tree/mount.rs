//! Trees as Linux shows them.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cowshed_vfs::{FileKind, Timestamp};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{BUFFER_BYTES, NOCOW, Node, Tree, below};

/// All names of a mounted file system. Inode numbers are those that each subvolume has for itself.
pub fn take_mount(dir: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    collect(dir, "", &mut tree).with_context(|| format!("reading {}", dir.display()))?;
    Ok(tree)
}

fn collect(path: &Path, name: &str, tree: &mut Tree) -> Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    let kind = FileKind::from_mode(meta.mode()).context("a kind of file that does not exist")?;
    let (content, in_place) = match kind {
        FileKind::Regular => regular(&File::open(path)?)?,
        FileKind::Symlink => (std::fs::read_link(path)?.as_os_str().as_bytes().to_vec(), false),
        _ => (Vec::new(), false),
    };
    tree.insert(
        name.to_owned(),
        Node {
            ino: meta.ino(),
            kind,
            perm: meta.mode() & 0o7777,
            nlink: meta.nlink() as u32,
            uid: meta.uid(),
            gid: meta.gid(),
            rdev: (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())),
            size_bytes: meta.size(),
            mtime: Timestamp::new(meta.mtime(), meta.mtime_nsec() as u32),
            in_place,
            content: Arc::new(content),
            xattrs: xattrs(path)?,
        },
    );
    if kind != FileKind::Directory {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        collect(&entry.path(), &below(name, &entry.file_name().to_string_lossy()), tree)?;
    }
    Ok(())
}

/// Its bytes, and whether they are written in place. Holes take no memory.
fn regular(file: &File) -> Result<(Vec<u8>, bool)> {
    let size = file.metadata()?.len();
    let mut content = vec![0; size as usize];
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(start))?.min(size);
        file.read_exact_at(&mut content[start as usize..at as usize], start)?;
    }
    let flags = rustix::fs::ioctl_getflags(file)?;
    Ok((content, flags.bits() as u32 & NOCOW != 0))
}

fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut buf = vec![0_u8; BUFFER_BYTES];
    let len = rustix::fs::llistxattr(path, &mut buf[..])?;
    let list: Vec<Vec<u8>> = buf[..len].split(|b| *b == 0).map(<[u8]>::to_vec).collect();
    let mut xattrs = BTreeMap::new();
    for name in list.into_iter().filter(|name| !name.is_empty()) {
        let len = rustix::fs::lgetxattr(path, &name, &mut buf[..])?;
        xattrs.insert(name, buf[..len].to_vec());
    }
    Ok(xattrs)
}
