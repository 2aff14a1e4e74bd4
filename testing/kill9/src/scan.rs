//! What a mounted volume holds, in a form that a model can be brought into too.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cowshed_model::{Body, Content, Id, Model, xattr_name};
use rustix::fs::SeekFrom;

/// What is compared of a node besides the content of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Number of names; 1 for directories.
    pub links: u32,
    pub rdev: (u32, u32),
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path of the same inode.
    pub first: Vec<u8>,
}

/// Everything by path, relative to the root.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// A mounted volume: entries, and the content of each file by its first path.
#[derive(Default)]
pub struct Scan {
    pub tree: Tree,
    pub contents: HashMap<Vec<u8>, Content>,
    /// By device, of which each subvolume has its own, and inode number.
    seen: HashMap<(u64, u64), Vec<u8>>,
}

impl Scan {
    /// Reads a mount; `skip` at its top is left out.
    pub fn of(root: &Path, skip: &str) -> Result<Scan> {
        let mut scan = Scan::default();
        scan.dir(root, &mut Vec::new(), skip)?;
        // Directories are visited in the order of bytes, so that each node's first path is the one seen first.
        Ok(scan)
    }

    fn dir(&mut self, path: &Path, relative: &mut Vec<u8>, skip: &str) -> Result<()> {
        self.entry(path, relative).with_context(|| path.display().to_string())?;
        if !std::fs::symlink_metadata(path)?.is_dir() {
            return Ok(());
        }
        let mut names: Vec<OsString> = std::fs::read_dir(path)?
            .map(|e| Ok(e?.file_name()))
            .collect::<std::io::Result<_>>()?;
        names.sort();
        for name in names {
            if relative.is_empty() && name == skip {
                continue;
            }
            let len = relative.len();
            relative.push(b'/');
            relative.extend_from_slice(&name.clone().into_vec());
            self.dir(&path.join(name), relative, skip)?;
            relative.truncate(len);
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, relative: &[u8]) -> Result<()> {
        let meta = std::fs::symlink_metadata(path)?;
        let inode = (meta.dev(), meta.ino());
        let is_new = !self.seen.contains_key(&inode);
        let first = self.seen.entry(inode).or_insert_with(|| relative.to_vec()).clone();
        let target = if meta.is_symlink() {
            std::fs::read_link(path)?.into_os_string().into_vec()
        } else {
            Vec::new()
        };
        let entry = Entry {
            mode: meta.mode(),
            uid: meta.uid(),
            gid: meta.gid(),
            links: meta.nlink() as u32,
            rdev: (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())),
            target,
            xattrs: xattrs(path)?,
            first,
        };
        if is_new && meta.is_file() {
            self.contents.insert(relative.to_vec(), content(path)?);
        }
        self.tree.insert(relative.to_vec(), entry);
        Ok(())
    }
}

fn xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut list = vec![0u8; 4096];
    let len = rustix::fs::llistxattr(path, &mut list[..])?;
    let mut all = BTreeMap::new();
    for name in list[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0u8; 70_000];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}

fn content(path: &Path) -> Result<Content> {
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut content = Content::default();
    let mut at = 0;
    while at < size {
        let Ok(from) = rustix::fs::seek(&file, SeekFrom::Data(at)) else {
            break;
        };
        let to = rustix::fs::seek(&file, SeekFrom::Hole(from))?;
        let mut data = vec![0; (to - from) as usize];
        file.read_exact_at(&mut data, from)?;
        content.write(from, &data);
        at = to;
    }
    content.truncate(size);
    Ok(content)
}

/// The model in the same form, with the first path of each file.
pub fn of_model(model: &Model) -> (Tree, HashMap<Vec<u8>, Id>) {
    let mut walk = ModelWalk {
        model,
        tree: Tree::new(),
        seen: HashMap::new(),
        files: HashMap::new(),
    };
    walk.node(Model::ROOT, &mut Vec::new());
    (walk.tree, walk.files)
}

struct ModelWalk<'a> {
    model: &'a Model,
    tree: Tree,
    seen: HashMap<Id, Vec<u8>>,
    files: HashMap<Vec<u8>, Id>,
}

impl ModelWalk<'_> {
    fn node(&mut self, id: Id, path: &mut Vec<u8>) {
        let node = self.model.node(id);
        let is_new = !self.seen.contains_key(&id);
        let first = self.seen.entry(id).or_insert_with(|| path.clone()).clone();
        if is_new && matches!(node.body, Body::File(_)) {
            self.files.insert(path.clone(), id);
        }
        let target = match &node.body {
            Body::Symlink(target) => target.clone(),
            _ => Vec::new(),
        };
        let rdev = (
            (node.rdev >> 8) & 0xfff,
            (node.rdev & 0xff) | ((node.rdev >> 12) & 0xf_ff00),
        );
        let entry = Entry {
            mode: node.kind.mode_bits() | node.perm,
            uid: node.uid,
            gid: node.gid,
            links: node.nlink,
            rdev,
            target,
            xattrs: node.xattrs.iter().map(|(n, v)| (xattr_name(*n), v.clone())).collect(),
            first,
        };
        self.tree.insert(path.clone(), entry);
        let Ok(names) = self.model.names(id) else { return };
        let mut names: Vec<_> = names.iter().map(|(name, id)| (name.bytes(), *id)).collect();
        names.sort();
        for (name, child) in names {
            let len = path.len();
            path.push(b'/');
            path.extend_from_slice(&name);
            self.node(child, path);
            path.truncate(len);
        }
    }
}

/// Where two trees differ, shortly.
pub fn differences(found: &Tree, expected: &Tree) -> Vec<String> {
    let show = |path: &[u8]| PathBuf::from(OsString::from_vec(path.to_vec())).display().to_string();
    let mut all = Vec::new();
    for (path, entry) in found {
        match expected.get(path) {
            None => all.push(format!("{}: should not be there", show(path))),
            Some(other) if other != entry => {
                all.push(format!(
                    "{}: found {:?}, expected {:?}",
                    show(path),
                    brief(entry),
                    brief(other)
                ));
            }
            Some(_) => {}
        }
    }
    all.extend(
        expected
            .keys()
            .filter(|p| !found.contains_key(*p))
            .map(|p| format!("{}: missing", show(p))),
    );
    all
}

fn brief(entry: &Entry) -> String {
    let xattrs: Vec<_> = entry
        .xattrs
        .iter()
        .map(|(n, v)| format!("{}={}", String::from_utf8_lossy(&n[..n.len().min(16)]), v.len()))
        .collect();
    format!(
        "{:o} {}:{} links {} rdev {:?} target {} xattrs {xattrs:?} first {}",
        entry.mode,
        entry.uid,
        entry.gid,
        entry.links,
        entry.rdev,
        entry.target.len(),
        String::from_utf8_lossy(&entry.first)
    )
}
