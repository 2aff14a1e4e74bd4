//! `cowshed mount`: opens the volume, mounts it, serves it until it is unmounted.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed_fuse::{Permissions, Session, SessionOptions, TransportUsed, Unmounter};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::Volume;
use cowshed_vfs_ioctl::Front;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::mount_help;
use crate::mount_options::{self, Options};
use crate::{daemon, devices, log};

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

pub fn run(args: &MountArgs) -> Result<u8> {
    let mut options = mount_options::parse(&args.options)?;
    if args.read_only {
        options.formats.set_read_only(true);
        options.fuse.read_only = true;
    }
    let Some((mountpoint, targets)) = args.paths.split_last() else {
        bail!("a target and a mount point are needed")
    };
    check_mountpoint(mountpoint)?;
    if !args.foreground && !args.daemon {
        return daemon::start_and_wait();
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

fn check_mountpoint(mountpoint: &Path) -> Result<()> {
    let meta = std::fs::metadata(mountpoint).with_context(|| format!("mount point {}", mountpoint.display()))?;
    if !meta.is_dir() {
        bail!("mount point {} is not a directory", mountpoint.display());
    }
    Ok(())
}

fn serve(args: &MountArgs, options: Options, targets: &[PathBuf], mountpoint: &Path) -> Result<u8> {
    let devices: Vec<_> = targets.iter().chain(&options.devices).cloned().collect();
    let volume = devices::open_volume(&devices, &options)?;
    let front = Arc::new(Front::new(volume.clone(), Arc::new(SystemEnv)));
    // From here to its release nothing returns: an attached loop device would stay.
    let source = Source::choose(&targets[0], &options);
    let session = Session::mount(front.clone(), mountpoint, session_options(&options, &source, &volume));
    // With the mount in place the device stays until it ends; without, it goes now.
    source.release_when_unmounted();
    let session = session.with_context(|| format!("mounting on {}", mountpoint.display()))?;
    front.set_caches(session.caches());
    tracing::info!("{}", transport_text(&session.transport()));
    drop(front);
    handle_signals(session.unmounter(), &volume)?;
    if args.daemon {
        daemon::say_ready()?;
    }
    let served = session.run();
    // The session has called `destroy`; closing again is harmless and tells whether all of it is on
    // disk.
    let was_aborted = volume.is_aborted();
    drop(volume);
    served.context("serving the mount")?;
    if was_aborted {
        bail!("the volume became read-only after an error; it is as after its last commit");
    }
    Ok(0)
}

fn transport_text(transport: &TransportUsed) -> String {
    match transport {
        TransportUsed::Uring => "requests come over io_uring".into(),
        TransportUsed::Dev(None) => "requests come by /dev/fuse, as transport=dev says".into(),
        TransportUsed::Dev(Some(why)) => format!("requests come by /dev/fuse, not over io_uring: {why}"),
    }
}

fn session_options(options: &Options, source: &Source, volume: &Arc<dyn Volume>) -> SessionOptions {
    let is_root = rustix::process::geteuid().is_root();
    let mut fuse = options.fuse.clone();
    fuse.source = source.name(options);
    fuse.block_device = source.block_device();
    fuse.block_bytes = volume.info().block_bytes;
    fuse.allow_other = options.allow_other.unwrap_or(is_root);
    let permissions = if options.default_permissions {
        Permissions::Kernel
    } else {
        Permissions::Auto
    };
    let for_panic = Arc::downgrade(volume);
    SessionOptions {
        mount: fuse,
        permissions,
        transport: options.transport,
        on_panic: Some(Arc::new(move |what: &str| {
            if let Some(volume) = for_panic.upgrade() {
                volume.abort(&format!("panic: {what}"));
            }
        })),
        ..SessionOptions::default()
    }
}

/// What users of a busy mount are left after a signal.
const GRACE: Duration = Duration::from_secs(5);

/// On SIGTERM, SIGINT and SIGHUP: commit and exit, also where the mount is busy. It is then
/// detached from the tree, and served for [`GRACE`]; a second signal exits at once.
fn handle_signals(unmounter: Unmounter, volume: &Arc<dyn Volume>) -> Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let volume = Arc::downgrade(volume);
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
            if unmounter.unmount(false).is_err() {
                if let Err(error) = unmounter.unmount(true) {
                    tracing::error!("unmounting: {error}");
                }
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

/// What the kernel is told as the source of the mount.
enum Source {
    /// A path, for show.
    Name(PathBuf),
    /// A block device of the user's.
    Device(PathBuf),
    /// A loop device on the user's image, which makes a block device mount of it: `sync` then
    /// reaches us and `umount` waits.
    Loop { image: PathBuf, device: PathBuf },
}

impl Source {
    fn choose(target: &Path, options: &Options) -> Self {
        use std::os::unix::fs::FileTypeExt as _;
        let path = target.canonicalize().unwrap_or_else(|_| target.into());
        let Ok(meta) = std::fs::metadata(&path) else {
            return Self::Name(path);
        };
        if !rustix::process::geteuid().is_root() {
            return Self::Name(path);
        }
        if meta.file_type().is_block_device() {
            return Self::Device(path);
        }
        if options.no_loop {
            return Self::Name(path);
        }
        match attach_loop(&path, options.formats.open.read_only) {
            Ok(device) => Self::Loop { image: path, device },
            Err(error) => {
                tracing::info!(
                    "no loop device for {}: {error:#}; a plain FUSE mount it is",
                    path.display()
                );
                Self::Name(path)
            }
        }
    }

    fn name(&self, options: &Options) -> String {
        match (&options.source, self) {
            (Some(name), _) => name.clone(),
            (None, Self::Name(path) | Self::Device(path) | Self::Loop { image: path, .. }) => {
                path.display().to_string()
            }
        }
    }

    fn block_device(&self) -> Option<PathBuf> {
        match self {
            Self::Name(_) => None,
            Self::Device(device) | Self::Loop { device, .. } => Some(device.clone()),
        }
    }

    /// The loop device goes with its last user, the mount.
    fn release_when_unmounted(&self) {
        if let Self::Loop { device, .. } = self
            && let Err(error) = losetup(&["--detach".as_ref(), device.as_os_str()])
        {
            tracing::warn!("loop device {} stays: {error:#}", device.display());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it hangs only where the kernel does, and a user watches"
)]
fn losetup(args: &[&std::ffi::OsStr]) -> Result<String> {
    let out = Command::new("losetup").args(args).output().context("running losetup")?;
    if !out.status.success() {
        bail!("losetup: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn attach_loop(image: &Path, read_only: bool) -> Result<PathBuf> {
    let mut args: Vec<&std::ffi::OsStr> = vec!["--find".as_ref(), "--show".as_ref()];
    if read_only {
        args.push("--read-only".as_ref());
    }
    args.push(image.as_os_str());
    Ok(PathBuf::from(losetup(&args)?))
}
