//! Random operations with fsyncs, by seed.
//!
//! The names come from a small space, so that renames over something, hard links and reused names happen all the time.
//! An operation that fails (no such name, not empty) is one that did nothing.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::Result;
use cowshed_model::{Rng, pattern, pick};
use rustix::fs::{AtFlags, CWD, FallocateFlags, FileType, Mode, XattrFlags, fallocate, linkat, mknodat, setxattr};

const DIRS: [&str; 5] = ["", "a", "b", "a/c", "a/c/d"];
const NAMES: u64 = 10;
/// Files are up to this long.
const BLOCKS: u64 = 64;
const BLOCK_BYTES: u64 = 4096;

/// A run on a mounted directory.
#[derive(Debug)]
pub struct Writer<'d> {
    dir: &'d Path,
    dice: Rng,
    /// Subvolumes beside the top level, as directories of it.
    pub roots: Vec<&'static str>,
    /// What was done, to be shown when a comparison fails.
    pub done: Vec<String>,
}

impl<'d> Writer<'d> {
    pub fn new(dir: &'d Path, seed: u64) -> Self {
        Self {
            dir,
            dice: Rng::new(seed),
            roots: vec![""],
            done: Vec::new(),
        }
    }

    pub fn make_directories(&self) -> Result<()> {
        for root in &self.roots {
            for dir in DIRS {
                fs::create_dir_all(self.dir.join(root).join(dir))?;
            }
        }
        Ok(())
    }

    fn directory(&mut self) -> PathBuf {
        let root = *pick(&mut self.dice, &self.roots);
        let dir = *pick(&mut self.dice, &DIRS);
        Path::new(root).join(dir)
    }
    fn name(&mut self) -> PathBuf {
        let n = self.dice.below(NAMES);
        self.directory().join(format!("n{n}"))
    }
    /// A name in the same subvolume as `other`, more often than not in the same directory.
    fn name_near(&mut self, other: &Path) -> PathBuf {
        if self.dice.one_in(2) {
            return self.name();
        }
        let n = self.dice.below(NAMES);
        other.with_file_name(format!("n{n}"))
    }
    fn range(&mut self) -> (u64, u64) {
        let offset = self.dice.below(BLOCKS) * BLOCK_BYTES;
        let len = (1 + self.dice.below(12)) * BLOCK_BYTES;
        if self.dice.one_in(2) {
            return (offset, len);
        }
        (offset + self.dice.below(BLOCK_BYTES), 1 + self.dice.below(len))
    }

    /// Does something; true where it was an fsync.
    pub fn step(&mut self) -> bool {
        let name = self.name();
        let path = self.dir.join(&name);
        let what = self.dice.below(100);
        let (told, result) = match what {
            0..24 => self.write(&name, &path),
            24..30 => self.create(&name, &path),
            30..37 => (format!("unlink {name:?}"), fs::remove_file(&path)),
            37..41 => (format!("mkdir {name:?}"), fs::create_dir(&path)),
            41..43 => (format!("rmdir {name:?}"), fs::remove_dir(&path)),
            43..54 => {
                let to = self.name_near(&name);
                (format!("rename {name:?} {to:?}"), fs::rename(&path, self.dir.join(&to)))
            }
            54..60 => {
                let to = self.name_near(&name);
                (
                    format!("link {name:?} {to:?}"),
                    fs::hard_link(&path, self.dir.join(&to)),
                )
            }
            60..63 => (format!("symlink {name:?}"), symlink("to/somewhere", &path)),
            63..68 => self.truncate(&name, &path),
            68..74 => self.fallocate(&name, &path),
            74..78 => self.xattr(&name, &path),
            78..80 => self.mode(&name, &path),
            80..83 => self.clone_range(&name, &path),
            83..85 => self.tmpfile(&name, &path),
            _ => return self.fsync(&name, &path),
        };
        let end = result.map_or_else(|error| error.kind().to_string(), |()| "done".into());
        self.done.push(format!("{told}: {end}"));
        false
    }

    fn fsync(&mut self, name: &Path, path: &Path) -> bool {
        let (name, path) = if self.dice.one_in(4) {
            let dir = self.directory();
            let path = self.dir.join(&dir);
            (dir, path)
        } else {
            (name.to_owned(), path.to_owned())
        };
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path);
        let done = open.and_then(|file| file.sync_all());
        self.done.push(format!("fsync {name:?}: {}", done.is_ok()));
        done.is_ok()
    }

    fn open(path: &Path, create: bool) -> std::io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .custom_flags(flags)
            .open(path)
    }

    fn write(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        let (offset, len) = self.range();
        let fill = self.dice.next_u64();
        let data = pattern(fill, len as usize);
        let done = Self::open(path, true).and_then(|file| {
            file.write_all_at(&data, offset)?;
            // Often on disk before an fsync finds it.
            if fill.is_multiple_of(3) {
                file.sync_data()
            } else {
                Ok(())
            }
        });
        (format!("write {name:?} {offset}+{len} fill {fill}"), done)
    }

    fn create(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        if self.dice.one_in(5) {
            let done = mknodat(CWD, path, FileType::CharacterDevice, Mode::from_raw_mode(0o600), 0x0105);
            return (format!("mknod {name:?}"), done.map_err(Into::into));
        }
        let bytes = self.dice.below(3000) as usize;
        let done = fs::write(path, pattern(bytes as u64, bytes));
        (format!("rewrite {name:?} {bytes}"), done)
    }

    fn truncate(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        let (size, _) = self.range();
        let size = if self.dice.one_in(4) { 0 } else { size };
        (
            format!("truncate {name:?} {size}"),
            Self::open(path, false).and_then(|f| f.set_len(size)),
        )
    }

    fn fallocate(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        let (offset, len) = self.range();
        let mode = *pick(
            &mut self.dice,
            &[
                FallocateFlags::empty(),
                FallocateFlags::KEEP_SIZE,
                FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
                FallocateFlags::ZERO_RANGE,
            ],
        );
        let done = Self::open(path, false).and_then(|f| Ok(fallocate(&f, mode, offset, len)?));
        (format!("fallocate {name:?} {mode:?} {offset}+{len}"), done)
    }

    fn xattr(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        let xattr = format!("user.x{}", self.dice.below(4));
        if self.dice.one_in(3) {
            let done = rustix::fs::removexattr(path, &xattr);
            return (format!("removexattr {name:?} {xattr}"), done.map_err(Into::into));
        }
        let value = pattern(self.dice.next_u64(), self.dice.below(200) as usize);
        let done = setxattr(path, &xattr, &value, XattrFlags::empty());
        (
            format!("setxattr {name:?} {xattr} {}", value.len()),
            done.map_err(Into::into),
        )
    }

    fn mode(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        let mode = 0o400 | self.dice.below(0o400) as u32;
        let is_link = fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink());
        if is_link {
            return (format!("no mode of link {name:?}"), Ok(()));
        }
        (
            format!("chmod {name:?} {mode:o}"),
            fs::set_permissions(path, fs::Permissions::from_mode(mode)),
        )
    }

    fn clone_range(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        let from = self.name();
        let (offset, len) = self.range();
        let (offset, len) = (
            offset / BLOCK_BYTES * BLOCK_BYTES,
            len.div_ceil(BLOCK_BYTES) * BLOCK_BYTES,
        );
        let to = self.dice.below(BLOCKS) * BLOCK_BYTES;
        let done = clone_between(&self.dir.join(&from), path, offset, len, to);
        (format!("clone {from:?} {offset}+{len} to {name:?} {to}"), done)
    }

    fn tmpfile(&mut self, name: &Path, path: &Path) -> (String, std::io::Result<()>) {
        let data = pattern(self.dice.next_u64(), 5000);
        let done = (|| {
            let dir = path.parent().unwrap_or(self.dir);
            let file = OpenOptions::new()
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .mode(0o644)
                .open(dir)?;
            file.write_all_at(&data, 0)?;
            let link = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            linkat(
                CWD,
                &link,
                CWD,
                CString::new(path.as_os_str().as_bytes())?,
                AtFlags::SYMLINK_FOLLOW,
            )?;
            Ok(())
        })();
        (format!("tmpfile {name:?}"), done)
    }
}

/// `FICLONERANGE` by way of the one call that needs no `unsafe` here: `copy_file_range` shares aligned ranges of btrfs.
fn clone_between(from: &Path, to: &Path, offset: u64, len: u64, at: u64) -> std::io::Result<()> {
    let (from, to) = (Writer::open(from, false)?, Writer::open(to, true)?);
    let (mut offset, mut at, mut left) = (offset, at, len as usize);
    while left > 0 {
        match rustix::fs::copy_file_range(&from, Some(&mut offset), &to, Some(&mut at), left)? {
            0 => break,
            n => left -= n,
        }
    }
    Ok(())
}
