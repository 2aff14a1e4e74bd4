//! `filesystem defragment`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use cowshed_vfs::{Compression, Defrag, FileKind};
use cowshed_vfs_ioctl::wire::{self, DefragRange, defrag};

use super::super::place::{Found, Images, Place};
use super::super::say::{Voice, error, print, reason, warning};
use crate::commands::extents::defrag::number_of;
use crate::commands::extents::parse_size;
use crate::commands::offline::Node;
use crate::ioctl;
use crate::people::printable;

#[derive(Args, Debug)]
pub struct DefragmentArgs {
    /// All files below directories
    #[arg(short)]
    recursive: bool,
    /// Compress what is rewritten: zlib, lzo or zstd; the letter alone is zlib
    #[arg(short, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "zlib")]
    compress: Option<String>,
    /// Write to disk after each file
    #[arg(short)]
    flush: bool,
    /// Only from this byte on
    #[arg(short, value_name = "START")]
    start: Option<String>,
    /// Only so many bytes
    #[arg(short, value_name = "LEN")]
    len: Option<String>,
    /// Extents of this size and larger stay as they are
    #[arg(short, value_name = "SIZE")]
    target: Option<String>,
    /// Name each file
    #[arg(short)]
    verbose: bool,
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Target size of extents where none is given.
const TARGET_BYTES: u64 = 32 << 20;

struct Run {
    how: DefragRange,
    compress: Option<Compression>,
    flushes: bool,
    names_files: bool,
    is_recursive: bool,
    failures: u64,
}

pub fn run(args: &DefragmentArgs, voice: Voice) -> Result<u8> {
    let compress = match &args.compress {
        None => None,
        Some(name) => match name.parse::<Compression>() {
            Ok(how) => Some(how),
            Err(_) => bail!("unknown compression type: {name}"),
        },
    };
    let (flags, number) = compress.map_or((0, 0), number_of);
    let size = |text: &Option<String>, default| text.as_deref().map_or(Ok(default), size);
    let start_io = if args.flush { defrag::START_IO } else { 0 };
    let how = DefragRange {
        start: size(&args.start, 0)?.into(),
        len_bytes: size(&args.len, u64::MAX)?.into(),
        extent_bytes_max: u32::try_from(size(&args.target, TARGET_BYTES)?)
            .unwrap_or(u32::MAX)
            .into(),
        flags: (flags | start_io).into(),
        compress: number.into(),
        ..DefragRange::default()
    };
    let mut run = Run {
        how,
        compress,
        flushes: args.flush,
        names_files: args.verbose || voice.is_verbose,
        is_recursive: args.recursive,
        failures: 0,
    };
    let mut images = Images::to_write();
    for path in &args.paths {
        run.one(&mut images, path)?;
    }
    images.close()?;
    if run.failures > 0 {
        crate::people::warn(format_args!("total {} failures", run.failures));
    }
    Ok(u8::from(run.failures > 0))
}

fn size(text: &str) -> Result<u64> {
    match parse_size(text) {
        Ok(bytes) => Ok(bytes),
        Err(_) => bail!("size value '{text}' is invalid"),
    }
}

impl Run {
    fn failed(&mut self, why: impl std::fmt::Display) {
        error(why);
        self.failures += 1;
    }

    fn one(&mut self, images: &mut Images, path: &Path) -> Result<()> {
        let found = images.found(path)?;
        let is_dir = found.as_ref().is_ok_and(Found::is_dir);
        if is_dir && !self.is_recursive {
            warn_of_directory(path);
        }
        match found {
            Err(error) => self.failed(format_args!("cannot open {}: {}", path.display(), reason(&error))),
            Ok(Found::Place(Place::Image(node))) => self.offline(&node, path)?,
            Ok(_) => self.mounted(path, is_dir)?,
        }
        Ok(())
    }

    /// Files at and below a path on a mount, or one directory itself: of that the kernel rewrites
    /// the trees, and we have nothing to do.
    fn mounted(&mut self, path: &Path, is_dir: bool) -> Result<()> {
        if is_dir && self.is_recursive {
            let device = path.metadata()?.dev();
            return self.below(path, device);
        }
        let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) => {
                self.failed(format_args!("cannot open {}: {}", path.display(), reason(&error)));
                return Ok(());
            }
        };
        self.file(path, &file, is_dir);
        Ok(())
    }

    /// Symbolic links and other file systems are left out; a subvolume below has another number.
    fn below(&mut self, dir: &Path, device: u64) -> Result<()> {
        let mut entries = std::fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            // One that is gone meanwhile is no matter.
            let Ok(meta) = entry.metadata() else { continue };
            let path = entry.path();
            if meta.is_dir() && meta.dev() == device {
                self.below(&path, device)?;
            } else if meta.is_file() {
                let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
                match opened {
                    Ok(file) => self.file(&path, &file, false),
                    Err(error) => self.failed(format_args!("cannot open {}: {}", path.display(), reason(&error))),
                }
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, file: &File, is_dir: bool) {
        if self.names_files {
            name(path);
        }
        let mut how = self.how;
        match ioctl::call(file, wire::DEFRAG_RANGE, &mut how) {
            Ok(_) => {}
            Err(error) if is_dir && error.raw_os_error() != Some(libc::ENOTTY) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                self.failed("defrag range ioctl not supported in this kernel version, 2.6.33 and newer is required")
            }
            Err(error) => self.failed(format_args!("defrag failed on {}: {}", path.display(), reason(&error))),
        }
        if self.flushes && file.sync_all().is_err() {
            self.failed(format_args!("failed to sync {}", path.display()));
        }
    }

    fn offline(&mut self, node: &Node, path: &Path) -> Result<()> {
        match node.attr.kind {
            FileKind::Directory if self.is_recursive => {
                let mut names = node.names()?;
                names.sort_unstable();
                for name in names {
                    self.offline(&node.child(&name)?, &path.join(OsStr::from_bytes(&name)))?;
                }
            }
            FileKind::Regular => {
                if self.names_files {
                    name(path);
                }
                let start = self.how.start.get();
                let range = start..start.saturating_add(self.how.len_bytes.get());
                let what = Defrag {
                    target_bytes: self.how.extent_bytes_max.get().into(),
                    compress: self.compress,
                };
                if let Err(error) = node.engine.volume.defragment(node.id, range, &what) {
                    self.failed(format_args!(
                        "defrag failed on {}: {}",
                        path.display(),
                        reason(&error.into())
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The reader of the output may be gone; the work is done all the same.
fn name(path: &Path) {
    let _ = print(printable(path));
}

fn warn_of_directory(path: &Path) {
    let path = path.display();
    warning(format_args!(
        "directory specified but recursive mode not requested: {path}"
    ));
    warning(
        "a directory passed to the defrag ioctl will not process the files\nrecursively but will defragment the \
         subvolume tree and the extent tree.\nIf this is not intended, please use option -r .",
    );
}
