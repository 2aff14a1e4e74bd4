//! `cowshed mount`: opens the volume, mounts it, serves it until it is unmounted. Where another
//! process has the volume, that process serves the mount.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed::formats::Format;
use cowshed_fuse::{Session, TransportUsed, Unmounter};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::Volume;
use cowshed_vfs_ioctl::Front;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::block_devices::with_others;
use crate::commands::receive;
use crate::mount_help;
use crate::mount_options::{self, Options};
use crate::mounts::join::{self, Asked, Joined};
use crate::mounts::serve::{Listener, Sessions, session_options};
use crate::mounts::source::{Source, mount_options_of};
use crate::{daemon, devices, log, memory};

#[derive(Args, Debug)]
#[command(after_help = mount_help::text())]
pub struct MountArgs {
    /// Image files or block devices of one volume, then the mount point
    #[arg(required = true, num_args = 2.., value_names = ["TARGET", "MOUNTPOINT"])]
    pub paths: Vec<PathBuf>,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Stay in the foreground and log to the terminal
    #[arg(short, long)]
    pub foreground: bool,
    /// Mount read-only
    #[arg(short, long)]
    pub read_only: bool,
    /// Say more (with -f); twice: much more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Internal: this process is the background one
    #[arg(long, hide = true)]
    pub daemon: bool,
}

impl MountArgs {
    /// The command line that gives these arguments.
    fn to_words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["mount".into()];
        for options in &self.options {
            words.extend(["-o".into(), options.into()]);
        }
        words.extend(self.foreground.then(|| "-f".into()));
        words.extend(self.read_only.then(|| "-r".into()));
        words.extend((0..self.verbose).map(|_| "-v".into()));
        words.push("--".into());
        words.extend(self.paths.iter().map(OsString::from));
        words
    }
}

pub fn run(args: &MountArgs) -> Result<u8> {
    let mut options = mount_options::parse(&args.options)?;
    if args.read_only {
        options.set_read_only();
    }
    let Some((mountpoint, targets)) = args.paths.split_last() else {
        bail!("a target and a mount point are needed")
    };
    let is_xfs = options.formats.xfs.use_superblock_copy
        || targets.iter().any(|target| devices::format_at(target) == Format::Xfs);
    if is_xfs && !options.formats.read_only {
        // As mount(8) does with a source that is write-protected.
        if !args.daemon {
            crate::people::warn(format_args!(
                "cowshed: {}: volumes of XFS cannot be written yet: mounted read-only",
                targets[0].display()
            ));
        }
        options.set_read_only();
    }
    check_mountpoint(mountpoint)?;
    check_no_open(&options)?;
    if !args.foreground && !args.daemon {
        return daemon::start_and_wait(&args.to_words());
    }
    if args.daemon {
        daemon::detach();
        match &options.log {
            Some(path) => log::to_file(path, args.verbose)?,
            None => log::to_syslog(args.verbose),
        }
    } else {
        log::to_terminal(args.verbose);
    }
    serve(args, options, targets, &mountpoint.canonicalize()?)
}

/// Errors: files are to be opened without requests, and nothing would check permissions then.
fn check_no_open(options: &Options) -> Result<()> {
    if options.formats.btrfs.fs.stateless_open && !mount_options_of(options).may_skip_open() {
        bail!("no_open needs permission checks by the kernel: add allow_other or default_permissions");
    }
    Ok(())
}

fn check_mountpoint(mountpoint: &Path) -> Result<()> {
    let meta = std::fs::metadata(mountpoint).with_context(|| format!("mount point {}", mountpoint.display()))?;
    if !meta.is_dir() {
        bail!("mount point {} is not a directory", mountpoint.display());
    }
    Ok(())
}

fn serve(args: &MountArgs, options: Options, targets: &[PathBuf], mountpoint: &Path) -> Result<u8> {
    memory::share_one_heap();
    // The process that serves the mount has another working directory, and names its devices to
    // callers.
    let whole = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
    let paths: Vec<_> = targets.iter().chain(&options.devices).map(whole).collect();
    let paths = match options.formats.btrfs.open.degraded {
        true => paths,
        false => with_others(&paths),
    };
    if let Asked::Joined(joined) = ask(args, &options, &paths, mountpoint)? {
        return stay_with(args, &joined);
    }
    let devices = match devices::open_to_mount(&paths, &options) {
        Ok(devices) => devices,
        Err(busy) if is_busy(&busy) => {
            // A process that was just opening it.
            return match ask(args, &options, &paths, mountpoint)? {
                Asked::Joined(joined) => stay_with(args, &joined),
                Asked::Alone => Err(busy),
            };
        }
        Err(error) => return Err(error),
    };
    // Mounts that are asked for from here on wait until this one answers.
    let listener = Listener::new(&paths, &options);
    let views = devices::open_volume(&paths, devices, &options)?;
    let sessions = Sessions::new(views, options.clone(), &paths, receive::serve);
    let seat = sessions.seat().context("no session has ended yet")?;
    let session = first_session(&sessions, &options, &targets[0], mountpoint)?;
    tracing::info!("{}", transport_text(&session.transport()));
    handle_signals(&sessions)?;
    if let Some(listener) = &listener
        && let Err(error) = sessions.listen(listener)
    {
        tracing::warn!("further mounts of this volume will be refused: {error:#}");
    }
    let ready = || if args.daemon { daemon::say_ready() } else { Ok(()) };
    let served = sessions.run(&seat, session, ready);
    drop(seat);
    sessions.wait();
    // The last session has called `destroy`; closing again is harmless.
    let volume = sessions.volume();
    let closed = volume.close();
    let was_aborted = volume.is_aborted();
    drop((listener, volume, sessions));
    served?;
    if was_aborted {
        bail!("the volume became read-only after an error; it is as after its last commit");
    }
    closed.context("the last commit of the mount")?;
    Ok(0)
}

fn is_busy(error: &anyhow::Error) -> bool {
    let is_busy = |cause: &cowshed_device::Error| matches!(cause, cowshed_device::Error::Busy { .. });
    error.chain().any(|cause| cause.downcast_ref().is_some_and(is_busy))
}

fn ask(args: &MountArgs, options: &Options, paths: &[PathBuf], mountpoint: &Path) -> Result<Asked> {
    let asked = join::ask((paths, mountpoint), (&args.options, options));
    asked.with_context(|| paths.first().map(|path| path.display().to_string()).unwrap_or_default())
}

/// The mount is served by another process.
fn stay_with(args: &MountArgs, joined: &Joined) -> Result<u8> {
    tracing::info!("served by process {}, which has the volume", joined.process);
    if args.daemon {
        daemon::say_ready()?;
        return Ok(0);
    }
    let mountpoint = joined.mountpoint.clone();
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new()
        .name("cowshed-signals".into())
        .spawn(move || {
            if signals.forever().next().is_none() {
                return;
            }
            if mountpoint.unmount(false).is_err() {
                if let Err(error) = mountpoint.unmount(true) {
                    tracing::error!("unmounting: {error}");
                }
                // Its users keep it, and the process that serves it.
                std::process::exit(0);
            }
        })?;
    joined.wait()?;
    Ok(0)
}

/// Mounts the view that the volume was opened with.
fn first_session(sessions: &Sessions, options: &Options, target: &Path, mountpoint: &Path) -> Result<Session> {
    let volume = sessions.volume();
    let front = Arc::new(Front::new(volume.clone(), Arc::new(SystemEnv)));
    // From here to its release nothing returns: an attached loop device would stay.
    let source = Source::choose(target, options, true);
    let mut how = session_options(options, &volume);
    source.fill(&mut how.mount, options);
    how.mount.block_bytes = volume.info().block_bytes;
    let session = Session::mount(front.clone(), mountpoint, how);
    // With the mount in place the device stays until it ends; without, it goes now.
    source.release_when_unmounted();
    let session = session.with_context(|| format!("mounting on {}", mountpoint.display()))?;
    front.set_caches(session.caches());
    Ok(session)
}

fn transport_text(transport: &TransportUsed) -> String {
    match transport {
        TransportUsed::Uring => "requests come over io_uring".into(),
        TransportUsed::Dev(None) => "requests come by /dev/fuse, as transport=dev says".into(),
        TransportUsed::Dev(Some(why)) => format!("requests come by /dev/fuse, not over io_uring: {why}"),
    }
}

/// What users of a busy mount are left after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// On SIGTERM, SIGINT and SIGHUP: commit and exit, also where mounts are busy. These are then
/// detached from the tree, and served for [`GRACE`]; a second signal exits at once.
fn handle_signals(sessions: &Arc<Sessions>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let sessions = Arc::downgrade(sessions);
    let volume = Arc::downgrade(&sessions.upgrade().context("the sessions")?.volume());
    std::thread::Builder::new()
        .name("cowshed-signals".into())
        .spawn(move || {
            let mut signals = signals.forever();
            let Some(signal) = signals.next() else { return };
            tracing::info!("signal {signal}: unmounting");
            if let Some(volume) = volume.upgrade()
                && let Err(error) = volume.sync()
            {
                tracing::error!("commit before leaving: {error}");
            }
            let unmounters = sessions.upgrade().map(|sessions| sessions.end());
            // All of them, whatever becomes of one.
            let stay = unmounters.unwrap_or_default().iter().filter(|one| stays(one)).count();
            if stay > 0 {
                let for_grace = volume.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(GRACE);
                    leave(&for_grace);
                });
            }
            if signals.next().is_some() {
                leave(&volume);
            }
        })?;
    Ok(())
}

/// Unmounts. True: the session goes on for now, for users of the mount, or because the mount is in
/// another name space.
fn stays(unmounter: &Unmounter) -> bool {
    if !unmounter.mountpoint().is_mounted() {
        return true;
    }
    if unmounter.unmount(false).is_ok() {
        return false;
    }
    if let Err(error) = unmounter.unmount(true) {
        tracing::error!("unmounting: {error}");
    }
    true
}

/// Ends the process although the mount is still in use: its users are disconnected.
fn leave(volume: &Weak<dyn Volume>) {
    // Gone: the session has ended by itself, and the process is about to.
    let Some(volume) = volume.upgrade() else { return };
    tracing::warn!("the mount is still in use: leaving it");
    let code = match volume.close() {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!("the last commit of the mount failed: {error}");
            2
        }
    };
    std::process::exit(code);
}
