//! A stream for a mount, played by the process that serves it: through a view of its own, so that
//! no change takes a system call, and what others have cached is dropped
//! (docs/design/many-mounts.md).
//!
//! The process of the command opens the stream and prints; it asks over the volume's socket. Where
//! that does not work, nothing was read, and it plays the stream by system calls.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use cowshed_fuse::groups_of_process;
use cowshed_vfs::{Context, Credentials, Groups, Volume};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::image::Image;
use super::player::{self, Loudness, Options, Outcome, reader_of};
use crate::commands::btrfs::calls;
use crate::commands::mount_table;
use crate::mounts::join;
use crate::mounts::serve::Stream;
use crate::mounts::wire::{Answer, Connection, ReceiveRequest, Request, VERSION};

/// What the process that serves the mount is told of the directory: its path from the top level.
/// `None`: that is not known, because a part of a mount is mounted elsewhere.
fn path_from_top(dir: &Path, mountpoint: &Path) -> io::Result<Option<Vec<u8>>> {
    let mount = File::open(mountpoint)?;
    let id = calls::id_of_open(&mount)?;
    let Some(page) = calls::next(&mount, id)?.filter(|page| page.id.get() == id) else {
        return Ok(None);
    };
    let Ok(below) = dir.strip_prefix(mountpoint) else {
        return Ok(None);
    };
    let mut path = calls::path_of(&page).to_vec();
    path.push(b'/');
    path.extend(below.as_os_str().as_bytes());
    Ok(Some(path))
}

/// A connection to the process that serves the mount that a directory is on, and the directory's
/// path from the top level.
fn found(dir: &Path) -> Option<(Connection, Vec<u8>)> {
    let dir = dir.canonicalize().ok()?;
    let mount = mount_table::mount_of(&File::open(&dir).ok()?).ok()??;
    // The view that the stream is played through can be written, whatever the mount can.
    if !mount.is_ours() || mount.root != Path::new("/") || mount.is_read_only {
        return None;
    }
    let path = path_from_top(&dir, &mount.target).ok()??;
    let devices: Vec<PathBuf> = mount.backing_file().into_iter().chain([mount.source]).collect();
    let (connection, _) = join::connect(&devices)?;
    Some((connection, path))
}

/// Has the stream played. `None`: it was not begun.
///
/// # Errors
/// As of [`player::play`]; the process ended meanwhile.
pub fn ask(input: &File, dir: &Path, options: &Options<'_>) -> Result<Option<Outcome>> {
    let Some((connection, path)) = found(dir) else {
        return Ok(None);
    };
    let request = ReceiveRequest {
        version: VERSION,
        dir: path,
        end_at_end: options.end_at_end,
        errors_max: options.errors_max,
        quiet: options.loudness == Loudness::Quiet,
        verbose: options.loudness == Loudness::Commands,
    };
    connection.set_limit(None)?;
    let (mut has_begun, mut text) = (false, String::new());
    let mut answer = connection
        .send(&Request::Receive(request), Some(input.as_fd()))
        .and_then(|()| connection.receive::<Answer>());
    loop {
        match answer {
            Ok(Some((Answer::Piece(piece), _))) => text += &piece,
            Ok(Some((Answer::Said(piece), _))) => (options.say)(&(std::mem::take(&mut text) + &piece)),
            Ok(Some((Answer::Begun, _))) => has_begun = true,
            Ok(Some((Answer::Received(Ok(true)), _))) => return Ok(Some(Outcome::Complete)),
            Ok(Some((Answer::Received(Ok(false)), _))) => return Ok(Some(Outcome::Incomplete)),
            Ok(Some((Answer::Received(Err(why)), _))) => bail!("{text}{why}"),
            // Another version, or the end of the last mount.
            _ if !has_begun => return Ok(None),
            Ok(_) => bail!("the process that serves the mount ended; what was being received is incomplete"),
            Err(error) => return Err(anyhow!(error).context("the process that serves the mount")),
        }
        answer = connection.receive::<Answer>();
    }
}

/// A stream, which ends with an error when the process that it comes from has gone, or the volume
/// is to be closed.
struct Watched<'a> {
    input: File,
    connection: BorrowedFd<'a>,
    is_over: &'a dyn Fn() -> bool,
}

/// Between two looks whether the volume is to be closed.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut both = [
            PollFd::new(&self.input, PollFlags::IN),
            PollFd::new(&self.connection, PollFlags::RDHUP),
        ];
        loop {
            if (self.is_over)() {
                return Err(io::Error::other("the volume is being unmounted"));
            }
            match poll(&mut both, Some(&LOOK)) {
                Err(rustix::io::Errno::INTR) => continue,
                done => done?,
            };
            let [input, connection] = &both;
            if !connection.revents().is_empty() {
                return Err(io::Error::other("the receiving command was ended"));
            }
            if !input.revents().is_empty() {
                return self.input.read(buf);
            }
        }
    }
}

/// Plays a stream for another process, as its user may. It ends early where `is_over` says so.
///
/// # Errors
/// The connection's; what ends the stream is told to the other process.
pub fn serve(view: Arc<dyn Volume>, stream: Stream, connection: &Connection, is_over: &dyn Fn() -> bool) -> Result<()> {
    let Stream {
        request,
        input,
        user,
        process,
    } = stream;
    let pid = process.cast_unsigned();
    let creds = Credentials {
        uid: user,
        gid: connection.peer_group()?,
        groups: Groups::lazy(pid, groups_of_process),
    };
    let mut target = match Image::on(view, Context::new(creds, pid, 0), &request.dir) {
        Ok(target) => target,
        Err(refused) => return Ok(connection.send(&Answer::Refused(format!("{refused:#}")), None)?),
    };
    connection.send(&Answer::Begun, None)?;
    let options = Options {
        end_at_end: request.end_at_end,
        errors_max: request.errors_max,
        loudness: Loudness::new(request.quiet, request.verbose),
        say: &|line| {
            if let Err(error) = connection.send_text(line, Answer::Said, is_over) {
                tracing::info!("{line} ({error})");
            }
        },
    };
    let input = Watched {
        input: input.into(),
        connection: connection.as_fd(),
        is_over,
    };
    let played = player::play(&mut reader_of(input), &mut target, &options);
    // The view ends before the answer: what was received is seen by the command that got the
    // answer.
    drop(target);
    let told = match played {
        Ok(outcome) => connection.send_patiently(&Answer::Received(Ok(outcome == Outcome::Complete)), is_over),
        Err(error) => connection.send_text(&format!("{error:#}"), |why| Answer::Received(Err(why)), is_over),
    };
    Ok(told?)
}
