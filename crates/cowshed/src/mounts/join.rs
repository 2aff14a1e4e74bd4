//! The side of a later mount: it asks the process that has the volume to serve it, and mounts.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cowshed_fuse::{Mountpoint, mount};

use super::place::{self, Identity};
use super::source::{Source, absolute, mount_options_of};
use super::wire::{Answer, Connection, MountRequest, Request, VERSION};
use crate::mount_options::Options;

/// A mount that another process serves.
#[derive(Debug)]
pub struct Joined {
    connection: Connection,
    pub mountpoint: Mountpoint,
    /// The process that serves it.
    pub process: i32,
}

impl Joined {
    /// Returns when the mount has ended.
    pub fn wait(&self) -> Result<()> {
        self.connection
            .wait_for_end()
            .context("the process that serves the mount")
    }
}

/// What came of asking.
#[derive(Debug)]
pub enum Asked {
    /// No process has the volume, or none that listens.
    Alone,
    Joined(Joined),
}

/// A connection to the process that has the volume, and that process.
pub fn connect(devices: &[PathBuf]) -> Option<(Connection, i32)> {
    let identities = devices.iter().filter_map(|device| Identity::of(device).ok());
    for path in identities.flat_map(|identity| place::to_connect(&identity)) {
        match Connection::to(&path) {
            Ok(connection) => match connection.peer() {
                // A socket that another user has put there is not asked.
                Ok((user, process)) if may_serve_us(user) => return Some((connection, process)),
                Ok((user, _)) => tracing::warn!("{} belongs to user {user}: not asked", path.display()),
                Err(error) => tracing::debug!("{}: {error}", path.display()),
            },
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => tracing::debug!("{}: {error}", path.display()),
        }
    }
    None
}

fn may_serve_us(user: u32) -> bool {
    let own = rustix::process::geteuid();
    user == own.as_raw() || own.is_root()
}

/// Does a process listen for mounts of this volume?
pub fn has_listener(devices: &[PathBuf]) -> bool {
    connect(devices).is_some()
}

/// Asks the process that has the volume to serve this mount, if there is one, and mounts.
/// `arguments`: those of `-o`, of which `options` are made.
///
/// # Errors
/// It refused, or mounting failed: nothing is mounted.
pub fn ask((devices, target): (&[PathBuf], &Path), (arguments, options): (&[String], &Options)) -> Result<Asked> {
    loop {
        let Some((connection, process)) = connect(devices) else {
            return Ok(Asked::Alone);
        };
        let mut how = mount_options_of(options);
        let request = MountRequest {
            version: VERSION,
            options: arguments.to_vec(),
            read_only: options.fuse.read_only,
            allow_other: how.mount.allow_other,
            devices: devices.iter().map(|device| absolute(device)).collect(),
            log: options.log.as_deref().map(absolute),
        };
        // A process that ends closes the connection without an answer: then the volume is free.
        let answer = connection
            .send(&Request::Mount(request), None)
            .and_then(|()| connection.receive::<Answer>());
        let block_bytes = match answer {
            Ok(Some((Answer::Prepared { block_bytes }, _))) => block_bytes,
            Ok(Some((Answer::Refused(why), _))) => bail!("{why}"),
            Ok(Some((Answer::Ended, _))) => {
                connection.wait_for_end()?;
                continue;
            }
            Ok(None) => continue,
            Err(error) if is_ended(&error) => continue,
            Ok(Some(_)) => bail!("process {process} gave a wrong answer"),
            Err(error) => return Err(error).with_context(|| format!("process {process}, which has the volume")),
        };
        // From here to its release nothing returns: an attached loop device would stay.
        let source = Source::choose(&devices[0], options, false);
        source.fill(&mut how.mount, options);
        how.mount.block_bytes = block_bytes;
        let mounted = mount::mount(target, &how.mount_options());
        source.release_when_unmounted();
        let (device, mountpoint) = mounted?;
        let done = Request::Mounted {
            target: mountpoint.path().to_owned(),
            device: mountpoint.device().map(str::to_owned),
            is_block_device: how.mount.block_device.is_some(),
        };
        let answer = connection
            .send(&done, Some(device.fd()))
            .and_then(|()| connection.receive::<Answer>());
        drop(device);
        let refused = match answer {
            Ok(Some((Answer::Ready, _))) => {
                return Ok(Asked::Joined(Joined {
                    connection,
                    mountpoint,
                    process,
                }));
            }
            Ok(Some((Answer::Refused(why), _))) => why,
            Ok(_) => "it ended".into(),
            Err(error) => error.to_string(),
        };
        let _ = mountpoint.unmount(true);
        bail!("process {process}, which has the volume, does not serve the mount: {refused}");
    }
}

fn is_ended(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::NotConnected
    )
}

/// The device numbers of all mounts of a volume; `None` where no process listens for it.
pub fn sessions(device: &Path) -> Option<Vec<String>> {
    let (connection, _) = connect(&[device.to_owned()])?;
    connection.send(&Request::Sessions, None).ok()?;
    match connection.receive::<Answer>() {
        Ok(Some((Answer::Sessions(numbers), _))) => Some(numbers),
        _ => None,
    }
}
