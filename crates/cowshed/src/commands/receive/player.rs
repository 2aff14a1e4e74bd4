//! Playing a stream: the order of its commands, what of a path is allowed, and what an error means
//! for the subvolume under way. What the commands do is the [`Target`]'s.

use std::io::{BufReader, Read};

use anyhow::{Context, Error, Result, anyhow, bail};
use btrfs_stream::{Command, Reader, Time};

use super::decode::{Encoding, Extents};
use super::dump::{Lines, escaped};

/// Read buffer for the stream; a command of Linux has at most 144 KiB.
const BUFFER_BYTES: usize = 256 << 10;

/// What reads the commands of a stream.
pub fn reader_of<R: Read>(input: R) -> Reader<BufReader<R>> {
    Reader::new(BufReader::with_capacity(BUFFER_BYTES, input))
}

/// A new subvolume.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Relative to where the stream is received.
    pub path: &'a [u8],
    /// Of what was sent.
    pub uuid: [u8; 16],
    /// Transaction of the last change of what was sent.
    pub ctransid: u64,
    /// The subvolume to begin with, by the uuid that it has or was received under.
    pub parent: Option<[u8; 16]>,
}

/// A new inode. Its permissions and times come later.
#[derive(Clone, Copy, Debug)]
pub enum New<'a> {
    File,
    Dir,
    /// Type with permission bits, and device number.
    Node {
        mode: u64,
        rdev: u64,
    },
    Fifo,
    Socket,
    Symlink {
        target: &'a [u8],
    },
}

/// A range to share.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    /// Subvolume of the source, by the uuid that it has or was received under.
    pub uuid: [u8; 16],
    /// The source.
    pub path: &'a [u8],
    /// In the source, in bytes.
    pub src_offset: u64,
    /// In bytes.
    pub dst_offset: u64,
    pub len_bytes: u64,
}

/// Where a stream is played. Paths are below the subvolume under way and have been checked: no
/// empty, `.` or `..` component; empty for its root directory.
pub trait Target {
    /// Makes a subvolume; what follows happens in it.
    fn begin(&mut self, start: &Start<'_>) -> Result<()>;
    fn make(&mut self, path: &[u8], new: &New<'_>) -> Result<()>;
    fn rename(&mut self, path: &[u8], to: &[u8]) -> Result<()>;
    fn link(&mut self, path: &[u8], existing: &[u8]) -> Result<()>;
    fn unlink(&mut self, path: &[u8]) -> Result<()>;
    fn rmdir(&mut self, path: &[u8]) -> Result<()>;
    fn set_xattr(&mut self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()>;
    fn remove_xattr(&mut self, path: &[u8], name: &[u8]) -> Result<()>;
    fn write(&mut self, path: &[u8], offset: u64, data: &[u8]) -> Result<()>;
    fn share(&mut self, path: &[u8], range: &Shared<'_>) -> Result<()>;
    fn truncate(&mut self, path: &[u8], size: u64) -> Result<()>;
    fn chmod(&mut self, path: &[u8], mode: u64) -> Result<()>;
    fn chown(&mut self, path: &[u8], uid: u64, gid: u64) -> Result<()>;
    fn utimes(&mut self, path: &[u8], atime: Time, mtime: Time) -> Result<()>;
    /// `mode` as in fallocate(2).
    fn fallocate(&mut self, path: &[u8], mode: u32, offset: u64, len_bytes: u64) -> Result<()>;
    /// `flags` as in an inode item.
    fn set_flags(&mut self, path: &[u8], flags: u64) -> Result<()>;
    /// The subvolume is complete: it gets the uuid of what was sent, and becomes read-only.
    fn finish(&mut self) -> Result<()>;
}

/// What is printed on standard error, errors aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loudness {
    Quiet,
    Subvolumes,
    Commands,
}

impl Loudness {
    pub fn new(is_quiet: bool, is_verbose: bool) -> Self {
        match (is_quiet, is_verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Commands,
            _ => Self::Subvolumes,
        }
    }
}

/// Takes a line for the user.
pub type Say<'a> = &'a dyn Fn(&str);

#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Nothing behind the first `end` is read.
    pub end_at_end: bool,
    /// After so many errors of commands it is over; 0: never.
    pub errors_max: u64,
    pub loudness: Loudness,
    /// Takes what is said, errors that are not the last included.
    pub say: Say<'a>,
}

/// How a stream ended that was played to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// There were errors, fewer than allowed.
    Incomplete,
}

/// The subvolume under way.
struct Current {
    path: String,
    errors: u64,
}

struct Player<'t, T> {
    target: &'t mut T,
    options: Options<'t>,
    current: Option<Current>,
    lines: Lines,
    extents: Extents,
    errors: u64,
}

/// Plays streams up to the end of the input.
///
/// # Errors
/// Where the input is no sound stream, and where commands failed, as many as the options allow. The
/// message says which subvolume is incomplete.
pub fn play<R: Read, T: Target>(reader: &mut Reader<R>, target: &mut T, options: &Options<'_>) -> Result<Outcome> {
    let mut player = Player {
        target,
        options: *options,
        current: None,
        lines: Lines::default(),
        extents: Extents::default(),
        errors: 0,
    };
    let played = player.all(reader);
    match (played, player.current) {
        (Ok(()), _) if player.errors == 0 => Ok(Outcome::Complete),
        (Ok(()), _) => Ok(Outcome::Incomplete),
        (Err(error), None) => Err(error),
        (Err(error), Some(current)) => Err(error.context(incomplete(&current.path))),
    }
}

fn incomplete(path: &str) -> String {
    format!("subvolume {path} is incomplete, stays writable and has no received uuid")
}

impl<T: Target> Player<'_, T> {
    fn all<R: Read>(&mut self, reader: &mut Reader<R>) -> Result<()> {
        while let Some(item) = reader.next_command()? {
            let site = item.site;
            if self.options.loudness == Loudness::Commands
                && let Some(line) = self.lines.line(&item.command)
            {
                (self.options.say)(&line);
            }
            match item.command {
                Command::Subvol { path, uuid, ctransid } => {
                    let parent = None;
                    let start = Start {
                        path,
                        uuid,
                        ctransid,
                        parent,
                    };
                    self.begin(&start).with_context(|| site.to_string())?;
                }
                Command::Snapshot {
                    path,
                    uuid,
                    ctransid,
                    clone_uuid,
                    ..
                } => {
                    let parent = Some(clone_uuid);
                    let start = Start {
                        path,
                        uuid,
                        ctransid,
                        parent,
                    };
                    self.begin(&start).with_context(|| site.to_string())?;
                }
                Command::End => {
                    self.finish().with_context(|| site.to_string())?;
                    if self.options.end_at_end {
                        return Ok(());
                    }
                }
                command if self.current.is_none() => {
                    return Err(anyhow!("no subvolume for {:?}", shown(&command)).context(site.to_string()));
                }
                command => {
                    let done = self.change(&command).with_context(|| shown(&command));
                    if let Err(error) = done {
                        self.count(error.context(site.to_string()))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// An error of a command: the end, or one more.
    fn count(&mut self, error: Error) -> Result<()> {
        self.errors += 1;
        if let Some(current) = &mut self.current {
            current.errors += 1;
        }
        if self.options.errors_max != 0 && self.errors >= self.options.errors_max {
            return Err(error);
        }
        (self.options.say)(&format!("cowshed: {error:#}"));
        Ok(())
    }

    fn begin(&mut self, start: &Start<'_>) -> Result<()> {
        self.finish()?;
        check_path(start.path)?;
        if start.path.is_empty() {
            bail!("the subvolume has no name");
        }
        let path = escaped(start.path);
        if self.options.loudness == Loudness::Subvolumes {
            let what = if start.parent.is_some() { "snapshot" } else { "subvol" };
            (self.options.say)(&format!("At {what} {path}"));
        }
        self.target.begin(start).with_context(|| path.clone())?;
        self.current = Some(Current { path, errors: 0 });
        Ok(())
    }

    /// Ends the subvolume under way, if there is one.
    fn finish(&mut self) -> Result<()> {
        match self.current.as_ref() {
            None => return Ok(()),
            Some(current) if current.errors > 0 => {
                let what = incomplete(&current.path);
                (self.options.say)(&format!("cowshed: {} errors: {what}", current.errors));
            }
            Some(_) => self.target.finish()?,
        }
        self.current = None;
        Ok(())
    }

    /// A command that changes the subvolume under way.
    fn change(&mut self, command: &Command<'_>) -> Result<()> {
        if let Some(path) = command.path() {
            check_path(path)?;
        }
        match *command {
            Command::Rename { path, to } => {
                check_path(to)?;
                self.target.rename(path, to)
            }
            Command::Link { path, existing } => {
                check_path(existing)?;
                self.target.link(path, existing)
            }
            Command::Unlink { path } => self.target.unlink(path),
            Command::Rmdir { path } => self.target.rmdir(path),
            Command::SetXattr { path, name, data } => self.target.set_xattr(path, name, data),
            Command::RemoveXattr { path, name } => self.target.remove_xattr(path, name),
            Command::Truncate { path, size } => self.target.truncate(path, size),
            Command::Chmod { path, mode } => self.target.chmod(path, mode),
            Command::Chown { path, uid, gid } => self.target.chown(path, uid, gid),
            Command::Utimes { path, atime, mtime, .. } => {
                // Larger numbers have meanings of their own in system calls.
                if let Some(nanos) = [atime.nanos, mtime.nanos].into_iter().find(|n| *n >= 1_000_000_000) {
                    bail!("a time with {nanos} nanoseconds");
                }
                self.target.utimes(path, atime, mtime)
            }
            Command::Fileattr { path, flags } => self.target.set_flags(path, flags),
            Command::Write { .. }
            | Command::Clone { .. }
            | Command::UpdateExtent { .. }
            | Command::Fallocate { .. }
            | Command::EncodedWrite { .. } => self.contents(command),
            _ => self.made(command),
        }
    }

    fn made(&mut self, command: &Command<'_>) -> Result<()> {
        let (path, new) = match *command {
            Command::Mkfile { path, .. } => (path, New::File),
            Command::Mkdir { path, .. } => (path, New::Dir),
            Command::Mknod { path, node, .. } => {
                let (mode, rdev) = (node.mode, node.rdev);
                (path, New::Node { mode, rdev })
            }
            Command::Mkfifo { path, .. } => (path, New::Fifo),
            Command::Mksock { path, .. } => (path, New::Socket),
            Command::Symlink { path, target, .. } => (path, New::Symlink { target }),
            _ => bail!("not a change of a subvolume"),
        };
        self.target.make(path, &new)
    }

    fn contents(&mut self, command: &Command<'_>) -> Result<()> {
        match *command {
            Command::Write { path, offset, data } => self.target.write(path, offset, data),
            Command::Clone {
                path,
                offset,
                len,
                clone_uuid,
                clone_path,
                clone_offset,
                ..
            } => {
                check_path(clone_path)?;
                let range = Shared {
                    uuid: clone_uuid,
                    path: clone_path,
                    src_offset: clone_offset,
                    dst_offset: offset,
                    len_bytes: len,
                };
                let cloned = self.target.share(path, &range);
                cloned.with_context(|| format!("cloning from {}", escaped(clone_path)))
            }
            Command::Fallocate {
                path,
                mode,
                offset,
                len,
            } => self.target.fallocate(path, mode, offset, len),
            Command::EncodedWrite {
                path,
                offset,
                unencoded_file_len,
                unencoded_len,
                unencoded_offset,
                compression,
                encryption,
                data,
            } => {
                let how = Encoding {
                    file_len: unencoded_file_len,
                    len: unencoded_len,
                    offset: unencoded_offset,
                    compression: compression.unwrap_or(0),
                    encryption: encryption.unwrap_or(0),
                };
                let decoded = self.extents.decode(&how, data)?;
                self.target.write(path, offset, decoded)
            }
            _ => bail!("the stream was made without data (btrfs send --no-data)"),
        }
    }
}

/// The path of a command, as messages show it.
fn shown(command: &Command<'_>) -> String {
    match command.path() {
        None | Some(b"") => ".".to_owned(),
        Some(path) => escaped(path),
    }
}

/// Paths go down, one name at a time.
fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return Ok(());
    }
    if path.starts_with(b"/") {
        bail!("the path {} is absolute", escaped(path));
    }
    for name in path.split(|&byte| byte == b'/') {
        if matches!(name, b"" | b"." | b"..") || name.contains(&0) {
            bail!("the path {} has the component {:?}", escaped(path), escaped(name));
        }
    }
    Ok(())
}
