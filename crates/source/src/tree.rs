//! The tree of an image in memory: inodes, and directories that name them.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use crate::checks::Checks;
use crate::content::Content;
use crate::error::{Error, Result};

/// Bytes of one name.
const NAME_BYTES_MAX: usize = 255;
/// Symbolic links that one path may lead through.
const SYMLINK_HOPS_MAX: usize = 40;

/// Says of a path in the image, without a slash at its start, and of whether it is a directory,
/// whether it is taken.
pub type Keep<'k> = dyn FnMut(&[u8], bool) -> bool + Send + 'k;

/// Permission bits.
pub mod perm {
    /// A directory that no source describes.
    pub const DEFAULT_DIR: u32 = 0o755;
    /// All bits that a mode may have besides the type.
    pub const MASK: u32 = 0o7777;
}

/// A point in time, since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds; negative before 1970.
    pub sec: i64,
    /// Nanoseconds, below 10^9.
    pub nsec: u32,
}

/// An extended attribute with its full name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// For example `user.comment`.
    pub name: Box<[u8]>,
    /// The value, as the system call gives it.
    pub value: Box<[u8]>,
}

/// What every inode has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits, without the type.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Sorted by name.
    pub xattrs: Vec<Xattr>,
}

/// What an inode is.
#[derive(Debug)]
pub enum Body {
    /// A directory: names in byte order.
    Dir(BTreeMap<Box<[u8]>, InodeId>),
    /// A regular file.
    File(Content),
    /// A symbolic link and its target.
    Symlink(Box<[u8]>),
    /// A character device.
    Char {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    Block {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl Body {
    /// An empty directory.
    pub fn empty_dir() -> Self {
        Self::Dir(BTreeMap::new())
    }
}

/// An inode: several names may refer to it.
#[derive(Debug)]
pub struct Inode {
    /// Owner, permissions, times, attributes.
    pub meta: Meta,
    /// What it is.
    pub body: Body,
}

/// The number of an inode in its [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId(u32);

impl InodeId {
    /// Its place among the inodes, below [`Tree::inode_count`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The tree. Its root directory is always there.
#[derive(Debug)]
pub struct Tree {
    inodes: Vec<Inode>,
    base: InodeId,
    checks: Checks,
}

impl Default for Tree {
    fn default() -> Self {
        let meta = Meta {
            mode: perm::DEFAULT_DIR,
            ..Meta::default()
        };
        let body = Body::empty_dir();
        Self {
            inodes: vec![Inode { meta, body }],
            base: Self::ROOT,
            checks: Checks::default(),
        }
    }
}

impl Index<InodeId> for Tree {
    type Output = Inode;

    fn index(&self, id: InodeId) -> &Inode {
        &self.inodes[id.0 as usize]
    }
}

impl IndexMut<InodeId> for Tree {
    fn index_mut(&mut self, id: InodeId) -> &mut Inode {
        &mut self.inodes[id.0 as usize]
    }
}

impl Tree {
    /// The root directory.
    pub const ROOT: InodeId = InodeId(0);

    /// All inodes, also those that no name refers to any more.
    pub fn inodes_mut(&mut self) -> impl Iterator<Item = &mut Inode> {
        self.inodes.iter_mut()
    }
    /// How many inodes there are, those that no name refers to included.
    pub fn inode_count(&self) -> usize {
        self.inodes.len()
    }

    /// Waits until all is known of the sources that can only be known when all of them was read.
    /// To be called when the contents have been copied: what was made of them is worth nothing
    /// before. Errors: a layer of a container image has not the digest that its image says; an
    /// archive has changed.
    pub fn check_sources(&self) -> Result<()> {
        self.checks.finish()
    }

    pub(crate) fn checks_mut(&mut self) -> &mut Checks {
        &mut self.checks
    }

    /// The entries of a directory; `None` for anything else.
    pub fn entries(&self, dir: InodeId) -> Option<&BTreeMap<Box<[u8]>, InodeId>> {
        match &self[dir].body {
            Body::Dir(entries) => Some(entries),
            _ => None,
        }
    }

    /// Puts an inode under a name in a directory. A directory over a directory keeps the names in
    /// it and gets the new metadata; anything else replaces what was there.
    pub fn put(&mut self, dir: InodeId, name: &[u8], inode: Inode) -> Result<InodeId> {
        check_name(name)?;
        let old = self.entries(dir).and_then(|entries| entries.get(name)).copied();
        if let Some(old) = old
            && matches!((&self[old].body, &inode.body), (Body::Dir(_), Body::Dir(_)))
        {
            self[old].meta = inode.meta;
            return Ok(old);
        }
        let id = self.add(inode, name)?;
        self.name(dir, name, id)?;
        Ok(id)
    }

    /// The directory that paths begin in: the root, unless [`Tree::set_base`] says another one.
    pub fn base(&self) -> InodeId {
        self.base
    }

    /// Lets paths begin in a directory, itself named from the root, which is made if it is not
    /// there. Symbolic links and `..` do not lead out of it.
    pub fn set_base(&mut self, path: &[u8]) -> Result<()> {
        self.base = Self::ROOT;
        let names = components(path)?;
        self.base = self.make_dirs(&names, path)?;
        Ok(())
    }

    /// Gives an inode a further name.
    pub fn link(&mut self, dir: InodeId, name: &[u8], id: InodeId) -> Result<()> {
        check_name(name)?;
        if matches!(self[id].body, Body::Dir(_)) {
            return Err(Error::path(name, "a hard link to a directory"));
        }
        self.name(dir, name, id)
    }

    /// Removes a name; true where there was one.
    pub fn remove(&mut self, dir: InodeId, name: &[u8]) -> bool {
        match &mut self[dir].body {
            Body::Dir(entries) => entries.remove(name).is_some(),
            _ => false,
        }
    }

    /// Removes all names of a directory.
    pub fn clear(&mut self, dir: InodeId) {
        if let Body::Dir(entries) = &mut self[dir].body {
            entries.clear();
        }
    }

    /// A copy of a directory with all directories in it, which no name refers to yet. Everything
    /// else has further names in the copy.
    pub fn copy_dirs(&mut self, dir: InodeId) -> Result<InodeId> {
        let root = self.copy_of(dir)?;
        let mut todo = vec![root];
        while let Some(dir) = todo.pop() {
            let entries = self.entries(dir).into_iter().flatten();
            let below: Vec<_> = entries.map(|(name, id)| (name.clone(), *id)).collect();
            for (name, id) in below {
                if matches!(self[id].body, Body::Dir(_)) {
                    let copy = self.copy_of(id)?;
                    self.name(dir, &name, copy)?;
                    todo.push(copy);
                }
            }
        }
        Ok(root)
    }

    /// A directory with the same entries.
    fn copy_of(&mut self, dir: InodeId) -> Result<InodeId> {
        let entries = self.entries(dir).cloned().unwrap_or_default();
        let meta = self[dir].meta.clone();
        self.add(
            Inode {
                meta,
                body: Body::Dir(entries),
            },
            b"",
        )
    }

    /// Puts a directory that no name refers to under a name. Errors: the name is taken.
    pub fn put_dir(&mut self, dir: InodeId, name: &[u8], id: InodeId) -> Result<()> {
        check_name(name)?;
        if self.entries(dir).is_some_and(|entries| entries.contains_key(name)) {
            return Err(Error::path(name, "is there already"));
        }
        self.name(dir, name, id)
    }

    /// Splits a path into its directory and its last name. Directories that are not there are made,
    /// owned by root. Symbolic links on the way lead to where they lead inside of the image. `None`
    /// for the base itself. Errors: a `..`, a name that is too long, something on the way that is
    /// no directory.
    pub fn place<'p>(&mut self, path: &'p [u8]) -> Result<Option<(InodeId, &'p [u8])>> {
        let mut names = components(path)?;
        let Some(last) = names.pop() else { return Ok(None) };
        Ok(Some((self.make_dirs(&names, path)?, last)))
    }

    /// The inode of a path; symbolic links in the middle of it are followed inside of the image,
    /// the last name is not.
    pub fn lookup(&self, path: &[u8]) -> Result<Option<InodeId>> {
        let mut names = components(path)?;
        let Some(last) = names.pop() else {
            return Ok(Some(self.base));
        };
        let Some(dir) = self.walk(&names)? else { return Ok(None) };
        Ok(self.entries(dir).and_then(|entries| entries.get(last)).copied())
    }

    fn add(&mut self, inode: Inode, name: &[u8]) -> Result<InodeId> {
        let number = u32::try_from(self.inodes.len());
        let id = InodeId(number.map_err(|_| Error::path(name, "more inodes than 2^32"))?);
        self.inodes.push(inode);
        Ok(id)
    }

    fn name(&mut self, dir: InodeId, name: &[u8], id: InodeId) -> Result<()> {
        match &mut self[dir].body {
            Body::Dir(entries) => {
                entries.insert(name.into(), id);
                Ok(())
            }
            _ => Err(Error::path(name, "what is to hold it is no directory")),
        }
    }

    fn make_dirs(&mut self, names: &[&[u8]], path: &[u8]) -> Result<InodeId> {
        let mut dir = self.base;
        for (depth, name) in names.iter().enumerate() {
            let found = self.entries(dir).and_then(|entries| entries.get(*name)).copied();
            dir = match found.map(|id| (id, &self[id].body)) {
                Some((id, Body::Dir(_))) => id,
                Some((_, Body::Symlink(_))) => self
                    .walk(&names[..=depth])?
                    .ok_or_else(|| Error::path(path, "leads through a symbolic link to no directory"))?,
                Some(_) => return Err(Error::path(path, "leads through something that is no directory")),
                None => {
                    let meta = Meta {
                        mode: perm::DEFAULT_DIR,
                        ..Meta::default()
                    };
                    let body = Body::empty_dir();
                    self.put(dir, name, Inode { meta, body })?
                }
            };
        }
        Ok(dir)
    }

    /// The directory of a path, with all symbolic links followed, `..` in their targets included.
    fn walk(&self, names: &[&[u8]]) -> Result<Option<InodeId>> {
        let mut todo: Vec<Box<[u8]>> = names.iter().rev().map(|name| (*name).into()).collect();
        let mut dirs = vec![self.base];
        let mut hops = 0;
        while let Some(name) = todo.pop() {
            let dir = *dirs.last().unwrap_or(&self.base);
            match &*name {
                b"" | b"." => continue,
                b".." => {
                    if dirs.len() > 1 {
                        dirs.pop();
                    }
                    continue;
                }
                _ => {}
            }
            let Some(id) = self.entries(dir).and_then(|entries| entries.get(&name)).copied() else {
                return Ok(None);
            };
            match &self[id].body {
                Body::Dir(_) => dirs.push(id),
                Body::Symlink(target) => {
                    hops += 1;
                    if hops > SYMLINK_HOPS_MAX {
                        return Err(Error::path(&names.join(&b'/'), "leads through too many symbolic links"));
                    }
                    if target.starts_with(b"/") {
                        dirs.truncate(1);
                    }
                    todo.extend(target.split(|byte| *byte == b'/').rev().map(Into::into));
                }
                _ => return Ok(None),
            }
        }
        Ok(dirs.last().copied())
    }
}

/// The names of a path. A leading slash, empty names and `.` say nothing.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    for name in &names {
        check_name(name).map_err(|error| match error {
            Error::Path { what, .. } => Error::path(path, what),
            other => other,
        })?;
    }
    Ok(names)
}

fn check_name(name: &[u8]) -> Result<()> {
    let what = match name {
        b"" | b"." => "no name",
        b".." => "leads out of its directory",
        _ if name.len() > NAME_BYTES_MAX => "a name of more than 255 bytes",
        _ if name.iter().any(|byte| matches!(byte, b'/' | 0)) => "a name with a slash or a zero byte",
        _ => return Ok(()),
    };
    Err(Error::path(name, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(mode: u32) -> Inode {
        let meta = Meta {
            mode,
            ..Meta::default()
        };
        let body = Body::empty_dir();
        Inode { meta, body }
    }
    fn symlink(target: &[u8]) -> Inode {
        Inode {
            meta: Meta::default(),
            body: Body::Symlink(target.into()),
        }
    }
    fn put(tree: &mut Tree, path: &str, inode: Inode) -> InodeId {
        let (dir, name) = tree.place(path.as_bytes()).unwrap().unwrap();
        tree.put(dir, name, inode).unwrap()
    }
    fn refusal(tree: &mut Tree, path: &[u8]) -> String {
        tree.place(path).unwrap_err().to_string()
    }

    #[test]
    fn directory_over_directory_keeps_names_and_takes_metadata() {
        let mut tree = Tree::default();
        put(&mut tree, "etc/ssh", dir(0o700));
        let etc = put(&mut tree, "./etc/", dir(0o711));
        assert_eq!(tree[etc].meta.mode, 0o711);
        assert!(tree.lookup(b"/etc/ssh").unwrap().is_some());
        put(&mut tree, "etc", symlink(b"usr"));
        assert!(
            tree.lookup(b"etc/ssh").unwrap().is_none(),
            "replaced with all that was in it"
        );
    }

    #[test]
    fn symlinks_lead_to_places_inside_of_the_image() {
        let mut tree = Tree::default();
        let bin = put(&mut tree, "usr/bin", dir(0o755));
        put(&mut tree, "bin", symlink(b"usr/bin"));
        put(&mut tree, "usr/up", symlink(b"../../../../usr/bin"));
        put(&mut tree, "usr/abs", symlink(b"/bin"));
        for path in ["bin/sh", "usr/up/sh", "usr/abs/sh"] {
            assert_eq!(tree.place(path.as_bytes()).unwrap().unwrap().0, bin, "{path}");
        }
        put(&mut tree, "a", symlink(b"b"));
        put(&mut tree, "b", symlink(b"a"));
        assert!(refusal(&mut tree, b"a/x").contains("too many symbolic links"));
        put(&mut tree, "dangling", symlink(b"nowhere"));
        assert!(refusal(&mut tree, b"dangling/x").contains("to no directory"));
    }

    #[test]
    fn impossible_paths_are_refused() {
        let mut tree = Tree::default();
        assert!(refusal(&mut tree, b"a/../../etc/passwd").contains("leads out"));
        assert!(refusal(&mut tree, &[b'a'; 256]).contains("255"));
        assert!(refusal(&mut tree, b"a\0b").contains("zero byte"));
        put(
            &mut tree,
            "fifo",
            Inode {
                meta: Meta::default(),
                body: Body::Fifo,
            },
        );
        assert!(refusal(&mut tree, b"fifo/x").contains("no directory"));
        assert!(tree.place(b"/./").unwrap().is_none());
        let dir = put(&mut tree, "d", dir(0));
        assert!(tree.link(Tree::ROOT, b"e", dir).is_err());
    }
}
