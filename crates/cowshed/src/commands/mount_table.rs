//! What is mounted where, as this process sees it. Empty on systems other than Linux.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::sys;

/// A line of the mount table.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// As statx(2) gives it for what lies on the mount.
    pub id: u64,
    /// Device number of the file system, as `major:minor`.
    pub number: String,
    /// What of the file system is mounted.
    pub root: PathBuf,
    pub target: PathBuf,
    pub kind: String,
    pub source: PathBuf,
    pub is_read_only: bool,
}

impl Mount {
    fn parse(line: &str) -> Option<Mount> {
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ');
        let id = place.next()?.parse().ok()?;
        let mut place = place.skip(1);
        let number = place.next()?.to_owned();
        let (root, target) = (path(place.next()?), path(place.next()?));
        let options = place.next()?;
        let mut what = what.split(' ');
        let (kind, source, of_all) = (what.next()?.to_owned(), path(what.next()?), what.next()?);
        let mut options = options.split(',').chain(of_all.split(','));
        Some(Mount {
            id,
            number,
            root,
            target,
            kind,
            source,
            is_read_only: options.any(|option| option == "ro"),
        })
    }

    pub fn is_ours(&self) -> bool {
        ["fuse.cowshed", "fuseblk.cowshed", "fuseblk"].contains(&self.kind.as_str())
    }

    /// The file behind a source that is a loop device.
    pub fn backing_file(&self) -> Option<PathBuf> {
        let name = self.source.to_str()?.strip_prefix("/dev/loop")?;
        let backing = std::fs::read_to_string(format!("/sys/block/loop{name}/loop/backing_file")).ok()?;
        Some(PathBuf::from(backing.trim_end()))
    }
}

/// All mounts, in the order in which they were made.
pub fn all() -> io::Result<Vec<Mount>> {
    let table = sys::mount_table()?;
    let lines = table.split(|&byte| byte == b'\n');
    Ok(lines
        .filter_map(|line| Mount::parse(&String::from_utf8_lossy(line)))
        .collect())
}

/// The topmost mount on a directory.
pub fn on(target: &Path) -> io::Result<Option<Mount>> {
    Ok(all()?.into_iter().rfind(|mount| mount.target == target))
}

/// The mount that a file or directory lies on. Another mount that hides it does not count.
pub fn mount_of(file: &File) -> io::Result<Option<Mount>> {
    let id = sys::mount_id(file)?;
    Ok(all()?.into_iter().find(|mount| mount.id == id))
}

/// The other mounts (bind mounts) of the file system of one.
pub fn elsewhere(of: &Mount) -> io::Result<Vec<Mount>> {
    let mut all = all()?;
    all.retain(|mount| mount.number == of.number && mount.id != of.id);
    Ok(all)
}

/// Undoes the octal escapes of the mount table (blanks, tabs, newlines, backslashes).
fn path(field: &str) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match (byte, escaped) {
            (b'\\', Some(escaped)) => {
                out.push(escaped);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        assert_eq!(path("/mnt/a\\040b\\134c"), Path::new("/mnt/a b\\c"));
        assert_eq!(path("plain\\"), Path::new("plain\\"));
        assert_eq!(path("\\9"), Path::new("\\9"));
    }

    #[test]
    fn lines_are_read() {
        let line = "30 22 0:50 /sub /a\\040b ro,nosuid shared:1 - fuse.cowshed /dev/loop0 rw,user_id=0";
        let mount = Mount::parse(line).unwrap();
        let expected = Mount {
            id: 30,
            number: "0:50".into(),
            root: "/sub".into(),
            target: "/a b".into(),
            kind: "fuse.cowshed".into(),
            source: "/dev/loop0".into(),
            is_read_only: true,
        };
        assert_eq!(mount, expected);
        assert!(mount.is_ours());
        assert_eq!(Mount::parse("30 22 0:50 / /a rw"), None);
    }
}
