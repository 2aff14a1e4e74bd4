//! The commands about extents of files on a mount: `clone`, `dedupe`, `exchange`, `fiemap`,
//! `compsize`, `defrag`.
//!
//! On a mount of ours they speak by ioctls of our own, on others by the kernel's.

pub mod clone;
mod clone_tree;
pub mod compsize;
pub mod dedupe;
pub mod defrag;
pub mod exchange;
mod exchange_range;
pub mod fiemap;
pub mod kernel;
pub mod maps;
pub mod remap;

pub use remap::lend;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// A number of bytes as people write it: with k, m, g or t.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.trim_end_matches(['b', 'i']);
    let (digits, shift) = match digits.chars().last() {
        Some('k') => (&digits[..digits.len() - 1], 10),
        Some('m') => (&digits[..digits.len() - 1], 20),
        Some('g') => (&digits[..digits.len() - 1], 30),
        Some('t') => (&digits[..digits.len() - 1], 40),
        _ => (digits, 0),
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|n| n.checked_mul(1 << shift));
    bytes.ok_or_else(|| format!("{text:?} is not a number of bytes"))
}

/// `SRC:LEN:DST`, offsets and a length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeArg {
    pub src_offset: u64,
    pub len_bytes: u64,
    pub dst_offset: u64,
}

impl FromStr for RangeArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let [src, len, dst] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err("a range is SRC_OFFSET:LENGTH:DST_OFFSET".into());
        };
        Ok(Self {
            src_offset: parse_size(src)?,
            len_bytes: parse_size(len)?,
            dst_offset: parse_size(dst)?,
        })
    }
}

fn open_to_read(path: &Path) -> Result<File> {
    open_file(File::options().read(true), path)
}

fn open_to_write(path: &Path) -> Result<File> {
    open_file(File::options().read(true).write(true), path)
}

/// Only regular files have extents. Opening a pipe must not wait for a process at its other end.
fn open_file(options: &mut OpenOptions, path: &Path) -> Result<File> {
    let opened = options.custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.with_context(|| path.display().to_string())?;
    if !file.metadata()?.is_file() {
        bail!("{}: not a regular file", path.display());
    }
    Ok(file)
}

/// The file system does not know the call.
pub fn is_unknown(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTTY | libc::EOPNOTSUPP | libc::ENOSYS)
    )
}

/// Every regular file at or below the paths, in the order of names; symbolic links and other file
/// systems below are left out. Returns the exit code: 2 where something could not be looked at.
fn each_file(paths: &[std::path::PathBuf], recurse: bool, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<u8> {
    let mut code = 0;
    for path in paths {
        let meta = match std::fs::symlink_metadata(path) {
            Ok(meta) => meta,
            Err(error) => {
                crate::people::warn(format_args!("cowshed: {}: {error}", path.display()));
                code = 2;
                continue;
            }
        };
        if meta.is_dir() && !recurse {
            bail!("{} is a directory (use -r)", path.display());
        }
        code = code.max(walk(path, &meta, meta.dev(), visit)?);
    }
    Ok(code)
}

fn walk(path: &Path, meta: &std::fs::Metadata, dev: u64, visit: &mut dyn FnMut(&Path) -> Result<()>) -> Result<u8> {
    if meta.is_file() {
        return match visit(path) {
            Ok(()) => Ok(0),
            Err(error) if error.is::<fatal::Fatal>() => Err(error),
            Err(error) => {
                crate::people::warn(format_args!("cowshed: {error:#}"));
                Ok(2)
            }
        };
    }
    if !meta.is_dir() {
        return Ok(0);
    }
    let list = || -> io::Result<Vec<_>> {
        let mut all = std::fs::read_dir(path)?.collect::<io::Result<Vec<_>>>()?;
        all.sort_by_key(std::fs::DirEntry::file_name);
        Ok(all)
    };
    let entries = match list() {
        Ok(entries) => entries,
        Err(error) => {
            crate::people::warn(format_args!("cowshed: {}: {error}", path.display()));
            return Ok(2);
        }
    };
    let mut code = 0;
    for entry in entries {
        // One that is gone meanwhile is no matter.
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_file() || (meta.is_dir() && meta.dev() == dev) {
            code = code.max(walk(&entry.path(), &meta, dev, visit)?);
        }
    }
    Ok(code)
}

mod fatal {
    /// An error that will come with every file.
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    pub struct Fatal(pub String);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ranges_are_read() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("128k"), Ok(128 << 10));
        assert_eq!(parse_size("1MiB"), Ok(1 << 20));
        for bad in ["", "x", "1x", "-1", "99999999999t"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        let range = RangeArg {
            src_offset: 0,
            len_bytes: 4096,
            dst_offset: 8192,
        };
        assert_eq!("0:4k:8k".parse(), Ok(range));
        assert!("0:4k".parse::<RangeArg>().is_err());
    }
}
