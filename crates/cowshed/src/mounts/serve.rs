//! The side of the process that has the volume: it listens for further mounts, and serves each as a
//! session of its own, until the last has ended.
//!
//! Locks: the list of sessions, held for moments, none within.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail};
use cowshed::formats::Views;
use cowshed_fuse::{Mountpoint, Session, SessionOptions, Unmounter};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::{Error as Errno, Volume};
use cowshed_vfs_ioctl::Front;

use super::place::{self, Identity};
use super::source::mount_options_of;
use super::wire::{self, Answer, Connection, MountRequest, ReceiveRequest, Request, VERSION};
use crate::mount_options::{self, Options};

/// The sockets of a volume; they go with this value.
#[derive(Debug)]
pub struct Listener {
    /// Of the first device; the names of the others are links to its path.
    socket: OwnedFd,
    paths: Vec<PathBuf>,
}

impl Listener {
    /// Listens for mounts of a volume whose lock this process holds. `None` where that is not
    /// possible: then the volume can be mounted once.
    pub fn new(devices: &[PathBuf], options: &Options) -> Option<Listener> {
        // Readers share the lock: another process may listen already.
        if options.formats.read_only && super::join::has_listener(devices) {
            return None;
        }
        match Listener::bind(devices) {
            Ok(listener) => Some(listener),
            Err(error) => {
                tracing::info!("further mounts of this volume will be refused: {error:#}");
                None
            }
        }
    }

    fn bind(devices: &[PathBuf]) -> Result<Listener> {
        let [first, others @ ..] = devices else {
            bail!("no device")
        };
        let path_of = |device: &PathBuf| -> Result<PathBuf> { Ok(place::to_listen(&Identity::of(device)?)?) };
        let first = path_of(first)?;
        let socket = wire::listen(&first).with_context(|| first.display().to_string())?;
        let mut listener = Listener {
            socket,
            paths: vec![first.clone()],
        };
        for device in others {
            let path = path_of(device)?;
            if listener.paths.contains(&path) {
                continue;
            }
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(&first, &path).with_context(|| path.display().to_string())?;
            listener.paths.push(path);
        }
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A session that is served.
struct Running {
    seat: u64,
    unmounter: Unmounter,
}

#[derive(Default)]
struct State {
    running: Vec<Running>,
    /// The number of the next seat.
    next: u64,
    /// Sessions that are running, those that are being made, and streams that are received.
    count: usize,
    /// Streams alone.
    streams: usize,
    /// No session begins any more.
    is_ending: bool,
}

/// A stream to be received.
#[derive(Debug)]
pub struct Stream {
    pub request: ReceiveRequest,
    pub input: OwnedFd,
    /// User and process that it comes from.
    pub user: u32,
    pub process: i32,
}

/// Plays a stream into a view of the top level, which it destroys, and says on the connection how
/// that went. The last argument says when to stop.
pub type Receiver = fn(Arc<dyn Volume>, Stream, &Connection, &dyn Fn() -> bool) -> Result<()>;

/// The sessions of a volume.
pub struct Sessions {
    receiver: Receiver,
    views: Views,
    options: Options,
    devices: BTreeSet<Identity>,
    state: Mutex<State>,
    changed: Condvar,
}

/// A session that is being made, or runs; or a stream that is received.
pub struct Seat<'a> {
    sessions: &'a Sessions,
    number: u64,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut state = self.sessions.lock();
        state.running.retain(|running| running.seat != self.number);
        state.count -= 1;
        state.is_ending |= state.count == 0;
        self.sessions.changed.notify_all();
    }
}

impl Sessions {
    /// Of a volume that was opened with these options.
    pub fn new(views: Views, options: Options, devices: &[PathBuf], receiver: Receiver) -> Arc<Sessions> {
        Arc::new(Sessions {
            receiver,
            views,
            options,
            devices: devices.iter().filter_map(|device| Identity::of(device).ok()).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Place for a session; `None` where the last one has ended.
    pub fn seat(&self) -> Option<Seat<'_>> {
        let mut state = self.lock();
        if state.is_ending {
            return None;
        }
        state.count += 1;
        let number = state.next;
        state.next += 1;
        Some(Seat { sessions: self, number })
    }

    /// Returns when those sessions have ended whose mounts are gone: they do not count for a mount
    /// that is asked for now. umount(2) returns before.
    fn wait_for_unmounted(&self) {
        let mut state = self.lock();
        while state.running.iter().any(|running| running.unmounter.is_over()) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No mount is left, or none shall be: nothing more is received.
    fn is_over(&self) -> bool {
        let state = self.lock();
        state.is_ending || state.count == state.streams
    }

    /// Serves a session until it ends.
    ///
    /// # Errors
    /// What ended it before its time.
    pub fn run(&self, seat: &Seat<'_>, session: Session, ready: impl FnOnce() -> Result<()>) -> Result<()> {
        let unmounter = session.unmounter();
        self.lock().running.push(Running {
            seat: seat.number,
            unmounter,
        });
        // A caller that is gone does not end what it has mounted.
        if let Err(error) = ready() {
            tracing::warn!("{error:#}");
        }
        session.run().context("serving the mount")
    }

    /// Returns when the last session has ended.
    pub fn wait(&self) {
        let mut state = self.lock();
        while state.count > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// No session begins any more. Returns how those that run are unmounted.
    pub fn end(&self) -> Vec<Unmounter> {
        let mut state = self.lock();
        state.is_ending = true;
        state.running.iter().map(|running| running.unmounter.clone()).collect()
    }

    /// The volume, through its first view.
    pub fn volume(&self) -> Arc<dyn Volume> {
        self.views.first()
    }

    /// Takes connections, each on a thread of its own, for as long as the process lives.
    pub fn listen(self: &Arc<Self>, listener: &Listener) -> Result<()> {
        let socket = listener.socket.try_clone().context("the volume's socket")?;
        let sessions = Arc::downgrade(self);
        let accept = move || {
            loop {
                match Connection::accept(socket.as_fd()) {
                    Ok(connection) => {
                        let Some(sessions) = sessions.upgrade() else { return };
                        let answer = move || {
                            if let Err(error) = sessions.answer(&connection) {
                                tracing::info!("a request for a further mount: {error:#}");
                            }
                        };
                        let name = thread::Builder::new().name("cowshed-further".into());
                        if let Err(error) = name.spawn(answer) {
                            tracing::warn!("a request for a further mount: {error}");
                        }
                    }
                    Err(error) => {
                        tracing::warn!("accepting requests for further mounts: {error}");
                        thread::sleep(std::time::Duration::from_secs(1));
                    }
                }
            }
        };
        thread::Builder::new().name("cowshed-listen".into()).spawn(accept)?;
        Ok(())
    }

    fn answer(&self, connection: &Connection) -> Result<()> {
        let (user, process) = connection.peer()?;
        let own = rustix::process::geteuid();
        if user != own.as_raw() && user != 0 {
            let refused = format!(
                "the volume is mounted by user {}, who alone can mount it again",
                own.as_raw()
            );
            return Ok(connection.send(&Answer::Refused(refused), None)?);
        }
        match connection.receive::<Request>()? {
            Some((Request::Sessions, _)) => {
                let state = self.lock();
                let numbers = state.running.iter();
                let numbers = numbers.filter_map(|running| running.unmounter.mountpoint().device().map(str::to_owned));
                let numbers = numbers.collect();
                drop(state);
                Ok(connection.send(&Answer::Sessions(numbers), None)?)
            }
            Some((Request::Mount(request), _)) => {
                self.wait_for_unmounted();
                let Some(seat) = self.seat() else {
                    connection.send(&Answer::Ended, None)?;
                    // The connection is closed by the end of the process.
                    std::mem::forget(connection.as_fd().try_clone_to_owned()?);
                    return Ok(());
                };
                tracing::info!("process {process} of user {user} mounts, too: {:?}", request.options);
                self.mount(&seat, connection, &request)
            }
            Some((Request::Receive(request), Some(input))) => {
                let Some(seat) = self.seat() else {
                    return Ok(connection.send(&Answer::Ended, None)?);
                };
                tracing::info!("process {process} of user {user} receives");
                let stream = Stream {
                    request,
                    input,
                    user,
                    process,
                };
                self.lock().streams += 1;
                let received = self.receive(stream, connection);
                self.lock().streams -= 1;
                drop(seat);
                received
            }
            Some((Request::Mounted { .. } | Request::Receive(_), _)) => bail!("a request that makes no sense here"),
            None => Ok(()),
        }
    }

    fn receive(&self, stream: Stream, connection: &Connection) -> Result<()> {
        let top = || -> Result<Arc<dyn Volume>> {
            if stream.request.version != VERSION {
                bail!("the volume is mounted by another version of cowshed");
            }
            let options = mount_options::parse(&["subvolid=5".to_owned()])?;
            let view = self.views.another(&options.formats);
            view.map_err(|failure| options.explain(self.views.format(), failure))
        };
        match top() {
            Ok(view) => {
                let received = catch_unwind(AssertUnwindSafe(|| {
                    (self.receiver)(view.clone(), stream, connection, &|| self.is_over())
                }));
                received.unwrap_or_else(|_| {
                    view.abort("panic while a stream was received");
                    view.destroy();
                    bail!("a panic while a stream was received")
                })
            }
            Err(refused) => Ok(connection.send(&Answer::Refused(format!("{refused:#}")), None)?),
        }
    }

    /// Serves one further mount from its request to its end.
    fn mount(&self, seat: &Seat<'_>, connection: &Connection, request: &MountRequest) -> Result<()> {
        let (view, options) = match self.prepare(request) {
            Ok(prepared) => prepared,
            Err(refused) => return Ok(connection.send(&Answer::Refused(format!("{refused:#}")), None)?),
        };
        // From here on the view has to be destroyed: it may be the last one.
        let session = self.adopt(connection, &view, &options);
        let session = session.inspect_err(|_| view.destroy())?;
        self.run(seat, session, || Ok(connection.send(&Answer::Ready, None)?))
    }

    /// Makes the view. Errors are told to the user.
    fn prepare(&self, request: &MountRequest) -> Result<(Arc<dyn Volume>, Options)> {
        if request.version != VERSION {
            bail!("the volume is mounted by another version of cowshed: unmount it first");
        }
        let mut options = mount_options::parse(&request.options)?;
        options.log = request.log.clone();
        options.allow_other = Some(request.allow_other);
        if request.read_only {
            options.set_read_only();
        }
        self.options.check_beside(&options)?;
        options.check_format(self.views.format())?;
        for device in &request.devices {
            if Identity::of(device).is_ok_and(|device| !self.devices.contains(&device)) {
                bail!("device {} is not one that the volume is mounted with", device.display());
            }
        }
        if self.options.formats.read_only && !options.formats.read_only {
            bail!(
                "the volume is mounted read-only, by process {}: unmount it first, or mount with ro",
                std::process::id()
            );
        }
        let view = self
            .views
            .another(&options.formats)
            .map_err(|failure| match failure.error() {
                Errno::NotSupported => anyhow::anyhow!(
                    "this subvolume, or one above or below it, is mounted already; \
                 to keep both mounts the same takes Linux 6.16 or later, and neither with no_open"
                ),
                Errno::NotConnected => anyhow::anyhow!("the volume is being unmounted"),
                _ => options.explain(self.views.format(), failure),
            })?;
        Ok((view, options))
    }

    fn adopt(&self, connection: &Connection, view: &Arc<dyn Volume>, options: &Options) -> Result<Session> {
        let block_bytes = view.info().block_bytes;
        connection.send(&Answer::Prepared { block_bytes }, None)?;
        let Some((
            Request::Mounted {
                target,
                device,
                is_block_device,
            },
            Some(fd),
        )) = connection.receive()?
        else {
            bail!("what was prepared was not mounted");
        };
        let front = Arc::new(Front::new(view.clone(), Arc::new(SystemEnv)));
        let mut how = session_options(options, view);
        how.mount.block_device = is_block_device.then(PathBuf::new);
        let mountpoint = Mountpoint::made_by_another(target, device);
        let session = Session::adopt(front.clone(), fd, mountpoint, how);
        match session {
            Ok(session) => {
                front.set_caches(session.caches());
                Ok(session)
            }
            Err(error) => {
                let _ = connection.send(&Answer::Refused(error.to_string()), None);
                Err(error.into())
            }
        }
    }
}

/// How a mount with these options is served. Source and block device are for the side that mounts.
pub fn session_options(options: &Options, volume: &Arc<dyn Volume>) -> SessionOptions {
    let for_panic = Arc::downgrade(volume);
    SessionOptions {
        transport: options.transport,
        on_panic: Some(Arc::new(move |what: &str| {
            if let Some(volume) = for_panic.upgrade() {
                volume.abort(&format!("panic: {what}"));
            }
        })),
        ..mount_options_of(options)
    }
}
