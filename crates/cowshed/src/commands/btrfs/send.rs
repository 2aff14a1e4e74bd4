//! `btrfs send`: by our own sender from mounts of ours and images, by the kernel's from its mounts.

use std::fs::File;
use std::io::{Error, IsTerminal as _, Result as IoResult, stdout};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use zerocopy::little_endian::{I64, U32, U64};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::place::{Images, Place};
use super::roots::{Root, Roots};
use super::say::{Voice, reason};
use crate::commands::offline::image_of;
use crate::commands::send::{self, SendArgs};
use crate::ioctl;

pub fn run(args: &SendArgs, voice: Voice) -> Result<u8> {
    let args = args.with_quiet(voice.is_quiet);
    let is_kernel = args.subvolumes.first().is_some_and(|path| is_on_kernel(path));
    match is_kernel {
        true => by_kernel(&args),
        false => send::run(&args),
    }
}

fn is_on_kernel(path: &Path) -> bool {
    image_of(path).is_none() && matches!(Images::to_read().anything(path), Ok(Place::Kernel(_)))
}

/// `BTRFS_IOC_SEND`
const SEND: u32 = 0x4048_9426;
mod flag {
    pub const NO_FILE_DATA: u64 = 1;
    pub const OMIT_STREAM_HEADER: u64 = 2;
    pub const OMIT_END_CMD: u64 = 4;
    pub const VERSION: u64 = 8;
    pub const COMPRESSED: u64 = 16;
}

/// `struct btrfs_ioctl_send_args`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Call {
    send_fd: I64,
    clone_sources_count: U64,
    clone_sources: U64,
    parent_root: U64,
    flags: U64,
    version: U32,
    reserved: [u8; 28],
}

/// A read-only subvolume on a mount of the kernel's.
struct Source {
    root: File,
    id: u64,
}

impl Source {
    fn open(images: &mut Images, path: &Path) -> Result<Source> {
        let shown = path.display();
        let (place, id) = images.subvolume(path)?;
        let is_read_only = place
            .is_read_only()
            .map_err(|error| anyhow!("{shown}: {}", reason(&error)))?;
        if !is_read_only {
            bail!("subvolume {shown} is not read-only");
        }
        match place {
            Place::Kernel(root) => Ok(Source { root, id }),
            Place::Ours(_) | Place::Image(_) => bail!("{shown}: lies on another volume"),
        }
    }
}

fn by_kernel(args: &SendArgs) -> Result<u8> {
    let mut images = Images::to_read();
    let mut open = |paths: &[PathBuf]| {
        let opened = paths.iter().map(|path| Source::open(&mut images, path));
        opened.collect::<Result<Vec<_>>>()
    };
    if args.compressed_data && args.version() == 1 {
        bail!("--compressed-data needs --proto 2");
    }
    let wanted = open(&args.subvolumes)?;
    let clones = open(&args.clone_sources)?;
    let parent = open(args.parent.as_slice())?;
    let output = match &args.file {
        Some(path) => File::create(path).with_context(|| path.display().to_string())?,
        None if stdout().is_terminal() => bail!("not dumping send stream into a terminal, redirect it into a file"),
        None => File::from(stdout().as_fd().try_clone_to_owned()?),
    };
    let mut had: Vec<u64> = clones.iter().chain(&parent).map(|source| source.id).collect();
    let mut parent = parent.first().map(|source| source.id);
    let is_incremental = parent.is_some() || !clones.is_empty();
    for (n, (path, source)) in args.subvolumes.iter().zip(&wanted).enumerate() {
        if !args.quiet {
            crate::people::warn(format_args!("At subvol {}", path.display()));
        }
        if is_incremental && parent.is_none() {
            parent = nearest(source, &had)
                .with_context(|| format!("{}: no parent among the clone sources", path.display()))?;
        }
        let (is_first, is_last) = (n == 0, n + 1 == wanted.len());
        let mut flags = if args.no_data { flag::NO_FILE_DATA } else { 0 };
        if args.no_end_between {
            flags |= if is_first { 0 } else { flag::OMIT_STREAM_HEADER };
            flags |= if is_last { 0 } else { flag::OMIT_END_CMD };
        }
        let sent = through_pipe(&output, |output| call(source, output, (parent, &had), flags, args))?;
        sent.map_err(|error| {
            anyhow!(
                "send ioctl failed with {}: {}",
                -error.raw_os_error().unwrap_or(0),
                reason(&error)
            )
        })?;
        had.push(source.id);
        if is_incremental {
            parent = args.parent.as_ref().map(|_| source.id);
        }
    }
    Ok(0)
}

/// The kernel writes to files and pipes alone: for others, such as `/dev/null`, through a pipe that
/// a thread empties.
fn through_pipe(output: &File, send: impl FnOnce(&File) -> IoResult<()>) -> Result<IoResult<()>> {
    let kind = output.metadata()?.file_type();
    if kind.is_file() || kind.is_fifo() {
        return Ok(send(output));
    }
    let (mut reader, writer) = std::io::pipe()?;
    let writer = File::from(OwnedFd::from(writer));
    let mut output = output;
    std::thread::scope(|scope| {
        let copied = scope.spawn(move || std::io::copy(&mut reader, &mut output));
        let sent = send(&writer);
        drop(writer);
        match copied.join().expect("copying does not panic") {
            Ok(_) => Ok(sent),
            // It ended because nothing read the pipe any more.
            Err(error) => Err(error.into()),
        }
    })
}

fn call(
    source: &Source,
    output: &File,
    (parent, had): (Option<u64>, &[u64]),
    mut flags: u64,
    args: &SendArgs,
) -> IoResult<()> {
    let mut call = Call::new_zeroed();
    let version = args.version();
    if version != 1 {
        flags |= flag::VERSION;
        call.version = version.into();
    }
    if args.compressed_data {
        flags |= flag::COMPRESSED;
    }
    call.send_fd = i64::from(output.as_raw_fd()).into();
    call.parent_root = parent.unwrap_or(0).into();
    call.flags = flags.into();
    call.clone_sources_count = (had.len() as u64).into();
    let mut numbers: Vec<u8> = had.iter().flat_map(|id| id.to_ne_bytes()).collect();
    ioctl::call_with_buffer(&source.root, SEND, &mut call, &mut numbers, |call, address| {
        call.clone_sources = address.into();
    })
    .map(drop)
}

/// The source that a subvolume was made of, or that was made of the same: the youngest that is not
/// younger.
fn nearest(source: &Source, had: &[u64]) -> Result<Option<u64>> {
    let place = Place::Kernel(source.root.try_clone()?);
    let roots = Roots::load(&place)?;
    let Some(of) = roots.find(source.id) else {
        return Err(Error::from_raw_os_error(libc::ENOENT).into());
    };
    let is_akin = |other: &&Root| {
        let parent = of.item.parent_uuid;
        parent != [0; 16] && (other.item.parent_uuid == parent || other.item.uuid == parent)
    };
    let candidates = had.iter().filter_map(|id| roots.find(*id)).filter(is_akin);
    let older = candidates.filter(|other| other.item.otransid.get() <= of.item.otransid.get());
    Ok(older
        .max_by_key(|other| other.item.ctransid.get())
        .map(|other| other.id))
}
