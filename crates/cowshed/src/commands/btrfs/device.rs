//! `btrfs device`: counters of errors, and the use of each device.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};

use super::filesystem::usage::Usage;
use super::place::{Images, Place};
use super::say::{Voice, error, json_object, reason, refuse};
use super::table::Table;
use super::units::Units;
use super::unknown::Words;
use crate::block_devices;
use crate::commands::mount_table;

#[derive(Args, Debug)]
#[command(infer_subcommands = true, disable_help_subcommand = true)]
pub struct DeviceArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand, Debug)]
enum What {
    /// Show how many errors devices had
    Stats(StatsArgs),
    /// Show how the space of devices is used
    Usage(UsageArgs),
    /// Add devices to a volume: not implemented yet
    #[command(hide = true)]
    Add(Words),
    /// Remove devices from a volume: not implemented yet
    #[command(hide = true)]
    Delete(Words),
    /// Remove devices from a volume: not implemented yet
    #[command(hide = true)]
    Remove(Words),
    /// Replace a device: not implemented yet
    #[command(hide = true)]
    Replace(Words),
    /// Tell the kernel's btrfs which devices have volumes, or to forget them
    Scan(ScanArgs),
    /// Exit with 0 if the kernel's btrfs knows all devices of a volume
    Ready(ReadyArgs),
}

#[derive(Args, Debug)]
struct ScanArgs {
    /// All devices; so without an argument, too
    #[arg(short = 'd', long)]
    all_devices: bool,
    /// Forget the devices, or all that are in no mounted volume
    #[arg(short = 'u', long)]
    forget: bool,
    /// Block devices
    devices: Vec<PathBuf>,
}

#[derive(Args, Debug)]
struct ReadyArgs {
    /// A device of the volume
    device: PathBuf,
}

#[derive(Args, Debug)]
struct StatsArgs {
    /// Exit with 64 where a counter is not zero
    #[arg(short, long)]
    check: bool,
    /// Set the counters to zero
    #[arg(short = 'z', long)]
    reset: bool,
    /// As a table
    #[arg(short = 'T')]
    table: bool,
    /// A directory on the volume, or a device of it that is mounted
    path: PathBuf,
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
struct UsageArgs {
    #[command(flatten)]
    units: Units,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Directories on volumes
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

pub fn run(args: &DeviceArgs, voice: Voice) -> Result<u8> {
    match &args.what {
        What::Stats(args) => stats(args, voice),
        What::Usage(args) => usage(args),
        What::Add(_) => refuse("device add"),
        What::Delete(_) => refuse("device delete"),
        What::Remove(_) => refuse("device remove"),
        What::Replace(_) => refuse("device replace"),
        What::Scan(args) => scan(args, voice),
        What::Ready(args) => ready(args),
    }
}

fn usage(args: &UsageArgs) -> Result<u8> {
    let mut images = Images::to_read();
    for (n, path) in args.paths.iter().enumerate() {
        let place = images.directory(path)?;
        let usage = Usage::load(&place)?;
        let mut text = usage.by_device(args.units.style());
        if n + 1 < args.paths.len() {
            text.push('\n');
        }
        std::io::stdout().write_all(text.as_bytes())?;
        usage.warn_of_profiles();
    }
    Ok(0)
}

const NAMES: [&str; 5] = [
    "write_io_errs",
    "read_io_errs",
    "flush_io_errs",
    "corruption_errs",
    "generation_errs",
];
const HEADINGS: [&str; 7] = [
    "Id",
    "Path",
    "Write errors",
    "Read errors",
    "Flush errors",
    "Corruption errors",
    "Generation errors",
];
/// Exit code of `--check` where a counter is not zero.
const HAD_ERRORS: u8 = 64;

/// Devices of the volume that a path names, by number.
fn devices_of(images: &mut Images, path: &Path) -> Result<(Place, Option<PathBuf>)> {
    if !images.has(path)? {
        error(format_args!(
            "cannot check {}: No such file or directory",
            path.display()
        ));
        bail!("'{}' is not a mounted btrfs device", path.display());
    }
    if !path.is_dir() && Images::is_device(path) {
        use std::os::unix::fs::FileTypeExt as _;
        if !path.metadata()?.file_type().is_block_device() {
            bail!("not a directory: {}", path.display());
        }
        let whole = path.canonicalize()?;
        let mounts = mount_table::all()?;
        let of_btrfs = mounts.iter().filter(|mount| mount.kind == "btrfs" || mount.is_ours());
        let Some(mount) = of_btrfs.into_iter().find(|mount| mount.source == whole) else {
            bail!("'{}' is not a mounted btrfs device", path.display());
        };
        return Ok((images.directory(&mount.target)?, Some(whole)));
    }
    Ok((images.directory(path)?, None))
}

fn scan(args: &ScanArgs, voice: Voice) -> Result<u8> {
    if args.forget && args.devices.is_empty() {
        block_devices::forget(Path::new(""))
            .map_err(|failed| anyhow!("cannot unregister devices: {}", reason(&failed)))?;
        return Ok(0);
    }
    if args.all_devices || args.devices.is_empty() {
        voice.line("Scanning for Btrfs filesystems");
        let mut code = 0;
        for device in block_devices::all() {
            if block_devices::superblock(&device).is_none() {
                continue;
            }
            match register(&device) {
                Ok(()) => voice.line(format_args!("registered: {}", device.display())),
                Err(failed) => {
                    error(failed);
                    code = 1;
                }
            }
        }
        return Ok(code);
    }
    for device in &args.devices {
        let device = known_device(device)?;
        if args.forget {
            let forgotten = block_devices::forget(&device);
            forgotten
                .map_err(|failed| anyhow!("cannot unregister device '{}': {}", device.display(), reason(&failed)))?;
        } else {
            voice.line(format_args!("Scanning for btrfs filesystems on '{}'", device.display()));
            register(&device)?;
        }
    }
    Ok(0)
}

fn known_device(path: &Path) -> Result<PathBuf> {
    if !block_devices::is_block_device(path) {
        bail!("not a block device: {}", path.display());
    }
    Ok(path.canonicalize()?)
}

fn register(device: &Path) -> Result<()> {
    let registered = block_devices::register(device);
    registered.map_err(|failed| anyhow!("device scan failed on '{}': {}", device.display(), reason(&failed)))
}

fn ready(args: &ReadyArgs) -> Result<u8> {
    let device = known_device(&args.device)?;
    match block_devices::is_ready(&device) {
        Ok(is_ready) => Ok(u8::from(!is_ready)),
        Err(failed) => bail!(
            "unable to determine if the device '{}' is ready for mounting: {}",
            device.display(),
            reason(&failed)
        ),
    }
}

fn stats(args: &StatsArgs, voice: Voice) -> Result<u8> {
    let mut images = Images::to_read();
    let (place, only) = devices_of(&mut images, &args.path)?;
    let failed = |error| {
        anyhow!(
            "getting device info for {} failed: {}",
            args.path.display(),
            reason(&error)
        )
    };
    let mut rows = Vec::new();
    for device in place.devices().map_err(failed)? {
        let path = device.name.unwrap_or_else(|| format!("devid:{}", device.id));
        if only.as_ref().is_some_and(|only| *only != Path::new(&path)) {
            continue;
        }
        let faults = place.device_faults(device.id, args.reset);
        let faults = faults.map_err(|error| anyhow!("device stats ioctl failed on {path}: {}", reason(&error)))?;
        rows.push((device.id, path, faults));
    }
    let text = match (voice.is_json, args.table) {
        (true, _) => json(&rows),
        (_, true) => table(&rows),
        _ => rows.iter().map(|(_, path, faults)| lines(path, faults)).collect(),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    let had_errors = rows.iter().any(|(.., faults)| *faults != [0; 5]);
    Ok(if args.check && had_errors { HAD_ERRORS } else { 0 })
}

type Row = (u64, String, [u64; 5]);

fn lines(path: &str, faults: &[u64; 5]) -> String {
    let line = |(name, count): (&str, &u64)| format!("[{path}].{name:<16} {count}\n");
    NAMES.into_iter().zip(faults).map(line).collect()
}

fn table(rows: &[Row]) -> String {
    let mut table = Table::new(HEADINGS.len());
    table.heading(HEADINGS.map(str::to_owned).to_vec());
    table.rule();
    for (id, path, faults) in rows {
        let cells = [id.to_string(), path.clone()];
        table.row(cells.into_iter().chain(faults.iter().map(u64::to_string)).collect());
    }
    table.text(&[])
}

fn json(rows: &[Row]) -> String {
    let object = |(id, path, faults): &Row| {
        let head = [("device", path.clone()), ("devid", id.to_string())];
        let counts = NAMES
            .into_iter()
            .zip(faults)
            .map(|(name, count)| (name, count.to_string()));
        head.into_iter().chain(counts).collect::<Vec<_>>()
    };
    json_object("device-stats", &rows.iter().map(object).collect::<Vec<_>>())
}
