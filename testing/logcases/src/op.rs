//! One line of a script. Paths are relative to the root of the volume, `.` is the root itself; `@1` to `@9` are files
//! held open.

use anyhow::{Context as _, Result, bail, ensure};

use crate::content::{bytes, count};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Fifo,
    Char,
    Socket,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prealloc {
    Extend,
    KeepSize,
    Punch,
    Zero,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Into the page cache.
    Plain,
    /// Through a descriptor with `O_SYNC`.
    Sync,
    /// Through a descriptor with `O_DSYNC`.
    DataSync,
    /// Through a shared mapping.
    Mapped,
    /// Past the page cache, `O_DIRECT`: whole blocks.
    Direct,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create(String),
    Mkdir(String),
    Mknod(Kind, String),
    /// The target first.
    Symlink(String, String),
    /// Offset in bytes.
    Write(How, String, u64, Vec<u8>),
    /// So many blocks of 4 KiB, one every so many bytes, of a letter.
    Scatter(String, u64, u64, u8),
    Truncate(String, u64),
    /// Offset and length in bytes.
    Fallocate(Prealloc, String, u64, u64),
    /// Source, its offset, destination, its offset, length in bytes: shares extents.
    Clone(String, u64, String, u64, u64),
    /// As `Clone`: shares what is the same already, FIDEDUPERANGE.
    Dedupe(String, u64, String, u64, u64),
    /// An empty file that is written in place, `chattr +C`.
    InPlace(String),
    /// The flags of `chattr` that a file shall have, of those that FS_IOC_SETFLAGS takes. No line of a script.
    Flags(String, u32),
    Rename(String, String),
    /// A rename that leaves a whiteout, as overlayfs does.
    Whiteout(String, String),
    Exchange(String, String),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    SetXattr(String, String, Vec<u8>),
    RemoveXattr(String, String),
    Chmod(String, u32),
    /// To this uid and gid.
    Chown(String, u32),
    /// Modification time in seconds.
    Utime(String, i64),
    Tmpfile(String, String),
    Open(String, String),
    Close(String),
    /// So many empty files whose names begin so, with numbers from 0.
    Many(String, u64),
    /// So many links of a file, likewise.
    ManyLinks(String, String, u64),
    /// Every n-th of so many files.
    UnlinkEvery(u64, String, u64),
    /// The kernel forgets what it can; nothing becomes durable by it.
    Drop,
    Fsync(String),
    Fdatasync(String),
    /// The whole volume.
    Sync,
    /// A subvolume at this path. Made by the kernel, by setups only for our own runs.
    Subvolume(String),
    /// Of a subvolume, at this path; likewise.
    Snapshot(String, String),
    /// Likewise.
    DeleteSubvolume(String),
}

impl Op {
    /// Only the kernel does this.
    pub fn is_kernels(&self) -> bool {
        matches!(self, Op::Subvolume(_) | Op::Snapshot(..) | Op::DeleteSubvolume(_))
    }

    /// Makes something durable.
    pub fn is_promise(&self) -> bool {
        match self {
            Op::Fsync(_) | Op::Fdatasync(_) | Op::Sync => true,
            Op::Write(how, ..) => matches!(how, How::Sync | How::DataSync),
            _ => false,
        }
    }

    pub fn parse(line: &str) -> Result<Op> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (verb, args) = words.split_first().context("an empty line")?;
        parse_words(verb, args).with_context(|| format!("`{line}`"))
    }
}

fn parse_words(verb: &str, args: &[&str]) -> Result<Op> {
    if let Some(op) = parse_data(verb, args)? {
        return Ok(op);
    }
    let s = |n: usize| args.get(n).map(|a| (*a).to_owned()).context("too few words");
    let number = |n: usize| s(n).and_then(|a| count(&a));
    let (op, len) = match verb {
        "create" => (Op::Create(s(0)?), 1),
        "mkdir" => (Op::Mkdir(s(0)?), 1),
        "fifo" => (Op::Mknod(Kind::Fifo, s(0)?), 1),
        "char" => (Op::Mknod(Kind::Char, s(0)?), 1),
        "socket" => (Op::Mknod(Kind::Socket, s(0)?), 1),
        "symlink" => (Op::Symlink(s(0)?, s(1)?), 2),
        "rename" => (Op::Rename(s(0)?, s(1)?), 2),
        "whiteout" => (Op::Whiteout(s(0)?, s(1)?), 2),
        "exchange" => (Op::Exchange(s(0)?, s(1)?), 2),
        "link" => (Op::Link(s(0)?, s(1)?), 2),
        "unlink" => (Op::Unlink(s(0)?), 1),
        "rmdir" => (Op::Rmdir(s(0)?), 1),
        "setx" => (Op::SetXattr(s(0)?, s(1)?, value(&s(2)?)?), 3),
        "rmx" => (Op::RemoveXattr(s(0)?, s(1)?), 2),
        "chmod" => (Op::Chmod(s(0)?, u32::from_str_radix(&s(1)?, 8)?), 2),
        "chown" => (Op::Chown(s(0)?, number(1)? as u32), 2),
        "utime" => (Op::Utime(s(0)?, number(1)? as i64), 2),
        "tmpfile" => (Op::Tmpfile(s(0)?, s(1)?), 2),
        "open" => (Op::Open(s(0)?, s(1)?), 2),
        "close" => (Op::Close(s(0)?), 1),
        "many" => (Op::Many(s(0)?, number(1)?), 2),
        "manylinks" => (Op::ManyLinks(s(0)?, s(1)?, number(2)?), 3),
        "unlink-every" => (Op::UnlinkEvery(number(0)?, s(1)?, number(2)?), 3),
        "drop" => (Op::Drop, 0),
        "fsync" => (Op::Fsync(s(0)?), 1),
        "fdatasync" => (Op::Fdatasync(s(0)?), 1),
        "sync" => (Op::Sync, 0),
        "subvolume" => (Op::Subvolume(s(0)?), 1),
        "snapshot" => (Op::Snapshot(s(0)?, s(1)?), 2),
        "delete-subvolume" => (Op::DeleteSubvolume(s(0)?), 1),
        _ => bail!("no such operation"),
    };
    ensure!(args.len() == len, "{} words instead of {len}", args.len());
    Ok(op)
}

/// A value is a word, or content in short where it begins with `=`.
fn value(text: &str) -> Result<Vec<u8>> {
    match text.strip_prefix('=') {
        Some(content) => bytes(content),
        None => Ok(text.into()),
    }
}

fn parse_data(verb: &str, args: &[&str]) -> Result<Option<Op>> {
    let s = |n: usize| args.get(n).map(|a| (*a).to_owned()).context("too few words");
    let number = |n: usize| s(n).and_then(|a| count(&a));
    let write = |how| Ok::<_, anyhow::Error>((Op::Write(how, s(0)?, number(1)?, bytes(&s(2)?)?), 3));
    let fallocate = |how| Ok::<_, anyhow::Error>((Op::Fallocate(how, s(0)?, number(1)?, number(2)?), 3));
    let (op, len) = match verb {
        "write" => write(How::Plain)?,
        "write-sync" => write(How::Sync)?,
        "write-dsync" => write(How::DataSync)?,
        "write-mapped" => write(How::Mapped)?,
        "write-direct" => write(How::Direct)?,
        "scatter" => {
            let letter = s(3)?.bytes().next().context("no letter")?;
            (Op::Scatter(s(0)?, number(1)?, number(2)?, letter), 4)
        }
        "truncate" => (Op::Truncate(s(0)?, number(1)?), 2),
        "prealloc" => fallocate(Prealloc::Extend)?,
        "prealloc-keep" => fallocate(Prealloc::KeepSize)?,
        "punch" => fallocate(Prealloc::Punch)?,
        "zero" => fallocate(Prealloc::Zero)?,
        "clone" => (Op::Clone(s(0)?, number(1)?, s(2)?, number(3)?, number(4)?), 5),
        "dedupe" => (Op::Dedupe(s(0)?, number(1)?, s(2)?, number(3)?, number(4)?), 5),
        "in-place" => (Op::InPlace(s(0)?), 1),
        _ => return Ok(None),
    };
    ensure!(args.len() == len, "{} words instead of {len}", args.len());
    Ok(Some(op))
}

#[cfg(test)]
mod tests {
    use super::{How, Op};

    #[test]
    fn lines_are_read() {
        let write = Op::Write(How::Plain, "d/f".into(), 4096, b"aa".to_vec());
        assert_eq!(Op::parse("write d/f 4k a2").unwrap(), write);
        assert_eq!(Op::parse("chmod f 600").unwrap(), Op::Chmod("f".into(), 0o600));
        assert_eq!(Op::parse("sync").unwrap(), Op::Sync);
        for line in [
            "",
            "write f",
            "sync f",
            "rename a",
            "fly f",
            "write f x a1",
            "chmod f 9",
        ] {
            assert!(Op::parse(line).is_err(), "{line}");
        }
    }
}
