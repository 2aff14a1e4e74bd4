//! A mount being served: worker threads between the transport and the server.
//!
//! ```text
//! mount() --INIT answered--> run() --ENODEV on every worker's device--> destroy, once
//! ```
//!
//! However the mount ends (our [`Unmounter`], umount(8), an abort through sysfs), the workers find
//! out by reading.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cowshed_vfs::{Caches, FileSystem, PermissionChecks};

use crate::mount::{self, MountError, MountOptions, Mountpoint};
use crate::notify::{KernelCaches, Notifier};
use crate::proto::flags::InitFlags;
use crate::proto::wire::{InHeader, Opcode};
use crate::server::init::BACKGROUND_MAX;
use crate::server::{After, OnPanic, Server, Wishes};
use crate::sys::page_bytes;
use crate::transport::Transport;
use crate::transport::dev::{self, DataBuffer, DevFuse, Device, Received, RequestBuffer};
use crate::transport::uring::{self, Prepared, Unavailable, Uring};

/// Largest read and write in one request: what the kernel allows without its administrator's help
/// (256 pages).
pub const IO_BYTES_MAX: usize = 1 << 20;
/// How far the kernel reads ahead by default: several requests, which are served at the same time,
/// and whose reader is woken once for all of them. As much as on the kernel's btrfs.
const READAHEAD_BYTES: usize = 4 << 20;
const WORKERS_MAX: usize = 64;
/// More than processors: a worker that writes the log, or reads from the device, is occupied. A
/// resting worker costs the address space of two buffers.
const WORKERS_USUAL: usize = 16;

/// The side that checks permissions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel for mounts that others may enter, the file system for private ones. Only one user
    /// enters a private mount, and can read and write the volume without it, too; leaving the check
    /// to the file system there saves the kernel from asking for the directory's attributes again
    /// after each name that is made or removed.
    #[default]
    Auto,
    Kernel,
    FileSystem,
}

/// How requests are to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// Over io_uring where the kernel offers it, else by `/dev/fuse`.
    #[default]
    Auto,
    /// Over io_uring, or not at all.
    Uring,
    /// By `/dev/fuse`.
    Dev,
}

/// How requests come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportUsed {
    Uring,
    /// By `/dev/fuse`, and why not over io_uring where that was not forbidden.
    Dev(Option<Unavailable>),
}

/// How to serve.
#[derive(Clone)]
pub struct SessionOptions {
    pub mount: MountOptions,
    pub permissions: Permissions,
    pub transport: TransportChoice,
    /// Threads that serve requests, at least 1; over io_uring, threads of each queue, at least 2.
    pub workers: usize,
    /// How long a worker looks for the next request before it sleeps.
    pub spin: Duration,
    /// See [`Wishes::writeback_cache`].
    pub writeback_cache: bool,
    /// See [`Wishes::skip_open`].
    pub skip_open: bool,
    /// See [`Wishes::skip_xattrs`].
    pub skip_xattrs: bool,
    /// Largest read and write in one request, in bytes: 4096 to [`IO_BYTES_MAX`].
    pub io_bytes_max: usize,
    /// How far the kernel reads ahead in files read in order, in bytes. Only the superuser can have
    /// more than the kernel's default (128 KiB).
    pub readahead_bytes: usize,
    pub on_panic: Option<OnPanic>,
}

impl SessionOptions {
    /// Without OPEN, only the kernel could check permissions on open; the superuser passes anyway.
    pub fn may_skip_open(&self) -> bool {
        self.checks() == PermissionChecks::FrontEnd || crate::sys::is_root()
    }

    /// The side that checks permissions of this mount.
    fn checks(&self) -> PermissionChecks {
        match self.permissions {
            Permissions::Kernel => PermissionChecks::FrontEnd,
            Permissions::FileSystem => PermissionChecks::FileSystem,
            Permissions::Auto if self.mount.allow_other => PermissionChecks::FrontEnd,
            Permissions::Auto => PermissionChecks::FileSystem,
        }
    }

    /// How a mount is to be made that is served with these options.
    pub fn mount_options(&self) -> MountOptions {
        MountOptions {
            default_permissions: self.checks() == PermissionChecks::FrontEnd,
            ..self.mount.clone()
        }
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            mount: MountOptions::default(),
            permissions: Permissions::Auto,
            transport: TransportChoice::Auto,
            workers: WORKERS_USUAL,
            spin: dev::LOOK,
            writeback_cache: false,
            skip_open: true,
            skip_xattrs: false,
            io_bytes_max: IO_BYTES_MAX,
            readahead_bytes: READAHEAD_BYTES,
            on_panic: None,
        }
    }
}

/// Why a session did not begin or ended early.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("FUSE over io_uring: {0}")]
    NoUring(#[from] Unavailable),
    #[error("the mount ended before the kernel opened the session")]
    EndedEarly,
    #[error("the file system or the protocol version was refused: {0}")]
    Refused(std::io::Error),
    #[error("FUSE device: {0}")]
    Device(#[from] std::io::Error),
}

/// Unmounts a session from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: Mountpoint,
    device: Weak<Device>,
}

impl Unmounter {
    /// Unmounts; see [`Mountpoint::unmount`]. The session's `run` returns when all is done.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        self.mountpoint.unmount(lazy)
    }

    /// What is unmounted.
    pub fn mountpoint(&self) -> &Mountpoint {
        &self.mountpoint
    }

    /// The mount was unmounted, or its connection aborted, by this handle or in another way: the
    /// session's `run` returns soon, or has returned.
    pub fn is_over(&self) -> bool {
        self.device.upgrade().is_none_or(|device| !device.is_connected())
    }
}

/// A mount whose kernel side is connected and that waits to be served by [`Session::run`].
#[derive(Debug)]
pub struct Session {
    server: Arc<Server>,
    device: Device,
    /// Lives as long as the session and no longer: the kernel gives up on a session when its last
    /// device is closed.
    notify_device: Option<Arc<Device>>,
    mountpoint: Mountpoint,
    /// The queues of io_uring, or why there are none.
    queues: Result<Prepared, Option<Unavailable>>,
    workers: usize,
    spin: Duration,
    io_bytes_max: usize,
}

impl Session {
    /// Mounts `fs` on a directory and agrees with the kernel on the protocol (which calls
    /// `FileSystem::init`). Nothing is served yet: calls on the mount wait for [`Session::run`].
    pub fn mount(
        fs: Arc<dyn FileSystem>,
        target: &std::path::Path,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        let mount_options = options.mount_options();
        Session::begin(fs, options, || mount::mount(target, &mount_options))
    }

    /// As [`Session::mount`], for a mount that another process has made with
    /// [`SessionOptions::mount_options`]: `device` is its `/dev/fuse`.
    pub fn adopt(
        fs: Arc<dyn FileSystem>,
        device: OwnedFd,
        mountpoint: Mountpoint,
        options: SessionOptions,
    ) -> Result<Session, SessionError> {
        Session::begin(fs, options, || Ok((Device::from(device), mountpoint)))
    }

    fn begin(
        fs: Arc<dyn FileSystem>,
        options: SessionOptions,
        mount: impl FnOnce() -> Result<(Device, Mountpoint), MountError>,
    ) -> Result<Session, SessionError> {
        let checks = options.checks();
        let io_bytes_max = options
            .io_bytes_max
            .clamp(4096, IO_BYTES_MAX)
            .next_multiple_of(page_bytes());
        let workers = options.workers.clamp(1, WORKERS_MAX);
        let queues = match options.transport {
            TransportChoice::Dev => Err(None),
            TransportChoice::Auto => Prepared::new(io_bytes_max, workers).map_err(Some),
            TransportChoice::Uring => Ok(Prepared::new(io_bytes_max, workers)?),
        };
        let wishes = Wishes {
            checks,
            read_only: options.mount.read_only,
            io_bytes_max,
            io_uring: queues.is_ok(),
            writeback_cache: options.writeback_cache,
            skip_open: options.skip_open && options.may_skip_open(),
            skip_xattrs: options.skip_xattrs,
            background_max: BACKGROUND_MAX.min(crate::sys::background_max()),
        };
        let gates = queues.as_ref().map_or(workers, Prepared::gates).max(workers);
        let server = Arc::new(Server::new(fs, wishes, gates, options.on_panic));
        let is_block_device = options.mount.block_device.is_some();
        let (device, mountpoint) = mount()?;
        let mut session = Session {
            server,
            device,
            notify_device: None,
            mountpoint,
            queues,
            workers,
            spin: options.spin,
            io_bytes_max,
        };
        if let Err(error) = session.handshake() {
            let _ = session.mountpoint.unmount(true);
            session.server.finish();
            return Err(error);
        }
        if session.queues.is_ok() && !session.is_over_uring() {
            if options.transport == TransportChoice::Uring {
                let _ = session.mountpoint.unmount(true);
                session.server.finish();
                return Err(Unavailable::NotAgreed.into());
            }
            session.queues = Err(Some(Unavailable::NotAgreed));
        }
        let agreed = session.agreed();
        // Other mounts need not pass it on.
        if is_block_device && !wishes.read_only && !agreed.passes_syncfs_on(is_block_device) {
            tracing::warn!(
                minor = agreed.minor,
                "this kernel, older than Linux 6.18, does not tell mounts of sync and syncfs: use fsync or `cowshed sync`"
            );
        }
        if crate::sys::is_root() {
            // The default will do where this is impossible (no /sys, a container).
            let _ = session.mountpoint.set_readahead(options.readahead_bytes);
        }
        Ok(session)
    }

    /// Requests come over io_uring, and not by `/dev/fuse`.
    fn is_over_uring(&self) -> bool {
        self.agreed().flags.contains(InitFlags::OVER_IO_URING) && !uring::was_revoked(&self.device)
    }

    /// Answers INIT, which is the first request of every session.
    fn handshake(&mut self) -> Result<(), SessionError> {
        let mut requests = RequestBuffer::new(self.io_bytes_max);
        let mut data = DataBuffer::new(self.io_bytes_max);
        while self.server.agreed().is_none() {
            let Received::Request(bytes) = self.device.receive(&mut requests)? else {
                return Err(SessionError::EndedEarly);
            };
            let (after, reply) = self
                .server
                .handle(0, requests.request(bytes), data.as_mut_slice(), None);
            if after == After::Send {
                self.device.send(&reply)?;
            }
            if is_init(requests.request(bytes)) && reply.errno() != 0 {
                return Err(SessionError::Refused(std::io::Error::from_raw_os_error(reply.errno())));
            }
        }
        let device = self.mountpoint.device().map(str::to_owned);
        let in_flight = self.server.in_flight().clone();
        let caches = KernelCaches::new(self.notifier()?, device, in_flight)?;
        self.server.set_caches(Arc::new(caches));
        Ok(())
    }

    /// A handle to unmount with, from any thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            mountpoint: self.mountpoint.clone(),
            device: Arc::downgrade(
                self.notify_device
                    .as_ref()
                    .expect("a session has it after its handshake"),
            ),
        }
    }

    /// A sender of notifications.
    pub fn notifier(&mut self) -> Result<Notifier, SessionError> {
        let device = match &self.notify_device {
            Some(device) => device.clone(),
            None => self.notify_device.insert(Arc::new(self.device.try_clone()?)).clone(),
        };
        Ok(Notifier::new(Arc::downgrade(&device), self.agreed().minor))
    }

    /// The kernel's caches, for a file system that changes what they hold.
    pub fn caches(&self) -> Arc<dyn Caches> {
        self.server
            .caches()
            .expect("a session has them after its handshake")
            .clone()
    }

    /// What was agreed on with the kernel.
    pub fn agreed(&self) -> &crate::server::Agreed {
        self.server.agreed().expect("a session exists after its handshake")
    }

    /// How requests come.
    pub fn transport(&self) -> TransportUsed {
        match &self.queues {
            Ok(_) => TransportUsed::Uring,
            Err(why) => TransportUsed::Dev(why.clone()),
        }
    }

    /// Serves until the mount is gone, then destroys the file system. Returns the first error of a
    /// device; the others' workers end with the mount.
    pub fn run(self) -> Result<(), SessionError> {
        let Session {
            server,
            device,
            notify_device,
            mountpoint,
            queues,
            workers,
            spin,
            io_bytes_max,
        } = self;
        let is_uring = queues.is_ok();
        if is_uring {
            server.in_flight().send_late();
        }
        let transport: Box<dyn Transport> = match queues {
            Ok(prepared) => Box::new(Uring { prepared, device }),
            Err(_) => Box::new(DevFuse {
                device,
                workers,
                look: spin,
                io_bytes_max,
            }),
        };
        let outcome = transport.serve(&server, &|error| {
            tracing::error!(%error, "a FUSE worker failed, unmounting");
            match is_uring {
                // A queue without threads would let its requests wait for ever.
                true => mountpoint.abort(),
                false => drop(mountpoint.unmount(true)),
            }
        });
        drop(notify_device);
        server.finish();
        Ok(outcome?)
    }

    /// Serves on a thread of its own.
    pub fn spawn(self) -> thread::JoinHandle<Result<(), SessionError>> {
        thread::spawn(move || self.run())
    }
}

fn is_init(request: &[u8]) -> bool {
    use zerocopy::FromBytes;
    InHeader::read_from_prefix(request).is_ok_and(|(header, _)| header.opcode == Opcode::Init as u32)
}

#[cfg(test)]
mod tests {
    use cowshed_harness::need;
    use cowshed_vfs::memfs::MemFs;

    use super::*;

    /// A session by `/dev/fuse` while io_uring is forbidden is what a revoked offer leaves.
    #[test]
    fn offer_that_the_kernel_revoked_is_found_out() {
        if need::root().is_none() || need::fuse().is_none() || uring::available() == Err(Unavailable::NoKernel) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = SessionOptions {
            transport: TransportChoice::Dev,
            ..SessionOptions::default()
        };
        let session = Session::mount(Arc::new(MemFs::default()), dir.path(), options).unwrap();
        let is_forbidden = || uring::available() == Err(Unavailable::NotEnabled);
        // Tests of other programs allow it now and then.
        let was_revoked = loop {
            let before = is_forbidden();
            let was_revoked = uring::was_revoked(&session.device);
            if before && is_forbidden() {
                break was_revoked;
            }
            thread::sleep(Duration::from_millis(10));
        };
        assert!(was_revoked);
        session.unmounter().unmount(true).unwrap();
        session.run().unwrap();
    }
}
