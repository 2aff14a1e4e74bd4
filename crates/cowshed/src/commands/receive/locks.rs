//! Flags of inodes. Those that forbid changes (immutable, append-only) are set when the subvolume
//! is complete: commands that change the inode may follow the one that sets them. Where a snapshot
//! begins with such inodes, the flags are taken away before a change and come back at the end.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Result};

/// Inodes whose flags are kept until the end.
const LOCKED_MAX: usize = 1 << 20;

/// The compression property.
pub const COMPRESSION: &str = "btrfs.compression";
/// The longest value of that attribute.
pub const COMPRESSION_BYTES_MAX: usize = 32;

/// Flags of an inode item, and those of chattr(1) (`<linux/fs.h>`) that stand for them. The others
/// are the file system's own.
const CHATTR: [(u64, u32); 9] = [
    (1 << 1, 0x80_0000), // nodatacow
    (1 << 3, DO_NOT_COMPRESS),
    (1 << 5, 0x8), // sync
    (1 << 6, IMMUTABLE),
    (1 << 7, APPEND),
    (1 << 8, 0x40),      // no dump
    (1 << 9, 0x80),      // no atime
    (1 << 10, 0x1_0000), // dirsync
    (1 << 11, COMPRESS),
];
const COMPRESS: u32 = 0x4;
const DO_NOT_COMPRESS: u32 = 0x400;
const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const LOCKS: u32 = IMMUTABLE | APPEND;
/// The same two in the flags of FS_IOC_FSGETXATTR.
const XFLAG_IMMUTABLE: u32 = 0x8;
const XFLAG_APPEND: u32 = 0x10;
const XFLAG_LOCKS: u32 = XFLAG_IMMUTABLE | XFLAG_APPEND;

/// Flags of chattr(1) for those of an inode item.
fn chattr_flags(inode_flags: u64) -> u32 {
    let set = CHATTR.iter().filter(|(inode, _)| inode_flags & inode != 0);
    let all = set.fold(0, |all, (_, chattr)| all | chattr);
    // An inode item may have both; chattr(1) cannot say so.
    if all & COMPRESS != 0 {
        all & !DO_NOT_COMPRESS
    } else {
        all
    }
}

/// An inode that has flags.
pub trait Flagged {
    /// Flags of chattr(1).
    fn chattr(&self) -> Result<u32>;
    /// As chattr(1): sets or removes the compression property, too.
    fn set_chattr(&self, flags: u32) -> Result<()>;
    /// Flags of FS_IOC_FSGETXATTR.
    fn xflags(&self) -> Result<u32>;
    /// Leaves compression alone.
    fn set_xflags(&self, xflags: u32) -> Result<()>;
    /// The compression property.
    fn property(&self) -> Option<Vec<u8>>;
    fn set_property(&self, value: &[u8]) -> Result<()>;
}

/// The inodes of a subvolume.
pub trait Inodes {
    type Inode: Flagged;
    /// The one at a path; `None` where it is neither a file nor a directory: flags mean nothing
    /// there.
    fn flagged(&self, path: &[u8]) -> Result<Option<Self::Inode>>;
}

/// Locks that inodes shall have in the end, by path, as flags of FS_IOC_FSGETXATTR.
#[derive(Default)]
pub struct Locks(BTreeMap<Vec<u8>, u32>);

impl Locks {
    /// Sets the flags of an inode: locks at the end, the others now.
    pub fn set(&mut self, inodes: &impl Inodes, path: &[u8], inode_flags: u64) -> Result<()> {
        let Some(file) = inodes.flagged(path)? else {
            return Ok(());
        };
        self.take_away(&file, path)?;
        let wanted = chattr_flags(inode_flags);
        set_chattr(&file, wanted & !LOCKS)?;
        let immutable = if wanted & IMMUTABLE != 0 { XFLAG_IMMUTABLE } else { 0 };
        let append = if wanted & APPEND != 0 { XFLAG_APPEND } else { 0 };
        match immutable | append {
            0 => drop(self.0.remove(path)),
            locks => self.note(path, locks)?,
        }
        Ok(())
    }

    fn note(&mut self, path: &[u8], locks: u32) -> Result<()> {
        if self.0.len() >= LOCKED_MAX && !self.0.contains_key(path) {
            return Err(std::io::Error::new(
                ErrorKind::OutOfMemory,
                format!("more than {LOCKED_MAX} immutable or append-only files"),
            ));
        }
        self.0.insert(path.to_owned(), locks);
        Ok(())
    }

    /// Takes locks from an open inode, and notes them for the end.
    fn take_away(&mut self, file: &impl Flagged, path: &[u8]) -> Result<bool> {
        let xflags = file.xflags()?;
        if xflags & XFLAG_LOCKS == 0 {
            return Ok(false);
        }
        self.note(path, xflags & XFLAG_LOCKS)?;
        file.set_xflags(xflags & !XFLAG_LOCKS)?;
        Ok(true)
    }

    /// Takes locks from inodes, and from the directories that they are in. Whether there were any.
    pub fn unlock_all(&mut self, inodes: &impl Inodes, paths: &[&[u8]]) -> Result<bool> {
        let mut unlocked = false;
        for path in paths {
            unlocked |= self.unlock(inodes, path)?;
        }
        Ok(unlocked)
    }

    /// Takes locks from an inode, and from the directory that it is in. Whether there were any.
    fn unlock(&mut self, inodes: &impl Inodes, path: &[u8]) -> Result<bool> {
        let dir = path.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at);
        let mut unlocked = false;
        for path in [path, &path[..dir]] {
            // What is not there, or has no flags, is no obstacle of this kind.
            if let Ok(Some(file)) = inodes.flagged(path) {
                unlocked |= self.take_away(&file, path)?;
            }
        }
        Ok(unlocked)
    }

    /// Names below a path have moved.
    pub fn renamed(&mut self, path: &[u8], to: &[u8]) {
        if self.0.is_empty() {
            return;
        }
        let below = |name: &[u8]| matches!(name.strip_prefix(path), Some([] | [b'/', ..]));
        let moved: Vec<_> = self
            .0
            .range(path.to_owned()..)
            .take_while(|(name, _)| name.starts_with(path))
            .filter(|(name, _)| below(name))
            .map(|(name, locks)| (name.clone(), *locks))
            .collect();
        for (name, _) in &moved {
            self.0.remove(name);
        }
        for (name, locks) in moved {
            let tail = name.get(path.len()..).unwrap_or_default();
            self.0.insert([to, tail].concat(), locks);
        }
    }

    /// A name is gone.
    pub fn removed(&mut self, path: &[u8]) {
        self.0.remove(path);
    }

    /// Sets all locks.
    pub fn restore(&mut self, inodes: &impl Inodes) -> Result<()> {
        for (path, locks) in std::mem::take(&mut self.0) {
            if let Some(file) = inodes.flagged(&path)? {
                file.set_xflags(file.xflags()? | locks)?;
            }
        }
        Ok(())
    }
}

/// Sets flags of chattr(1). The compression property stays what it is: chattr sets it to the
/// algorithm of the mount, but the stream has an attribute for it.
fn set_chattr(file: &impl Flagged, wanted: u32) -> Result<()> {
    let known = CHATTR.iter().fold(0, |all, (_, chattr)| all | chattr);
    if file.chattr()? & known == wanted {
        return Ok(());
    }
    let property = file.property();
    file.set_chattr(wanted)?;
    property.map_or(Ok(()), |value| file.set_property(&value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noted_locks_move_with_directories() {
        let mut locks = Locks::default();
        for path in ["a", "a/b", "a/b/c", "ab", "a-b", "z"] {
            locks.note(path.as_bytes(), XFLAG_APPEND).unwrap();
        }
        locks.renamed(b"a", b"x/y");
        locks.removed(b"z");
        let paths: Vec<_> = locks.0.keys().map(|path| String::from_utf8_lossy(path)).collect();
        assert_eq!(paths, ["a-b", "ab", "x/y", "x/y/b", "x/y/b/c"]);
    }

    #[test]
    fn flags_of_inodes_are_those_of_chattr() {
        assert_eq!(chattr_flags(0x40), 0x10);
        assert_eq!(chattr_flags(1 << 3 | 1 << 11), COMPRESS);
        assert_eq!(chattr_flags(1 << 31 | 1 << 11 | 1 << 7 | 1), 0x4 | 0x20);
    }
}
