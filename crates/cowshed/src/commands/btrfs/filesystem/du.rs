//! `filesystem du`: what files take, how much of that no other file refers to, and how much extents
//! take that the files of an argument share with others.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Result as IoResult, Write as _};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use cowshed::Extent;
use cowshed_vfs::FileKind;

use super::super::place::{Found, Images, Place};
use super::super::say::{error, print, reason, warning};
use super::super::units::{LongUnits, Style};
use crate::commands::extents::kernel::fiemap;
use crate::commands::extents::maps::{self, Line, flag};
use crate::commands::mount_table;
use crate::commands::offline::Node;
use crate::people::printable;
use crate::sys;

#[derive(Args, Debug)]
pub struct DuArgs {
    /// Only a line for each argument
    #[arg(short, long)]
    summarize: bool,
    #[command(flatten)]
    units: LongUnits,
    /// Files and directories
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

/// Ranges of the volume, none touching another.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, mut start: u64, mut end: u64) {
        while let Some((&from, &to)) = self.0.range(..=end).next_back() {
            if to < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.0.remove(&from);
        }
        self.0.insert(start, end);
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }
}

/// One run over an argument.
struct Run<'a> {
    args: &'a DuArgs,
    style: Style,
    out: std::io::BufWriter<std::io::StdoutLock<'static>>,
    shared: Ranges,
    /// Files with several names that were counted: subvolume, or device, and inode.
    seen: HashSet<(u64, u64)>,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    total: u64,
    exclusive: u64,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        self.total += other.total;
        self.exclusive += other.exclusive;
    }
}

/// What holds no data of its own on disk, or none yet.
const NOT_COUNTED: u32 = flag::UNKNOWN | flag::DELALLOC | flag::INLINE;

pub fn run(args: &DuArgs) -> Result<u8> {
    let style = args.units.style();
    print(format_args!(
        "{:>10}  {:>10}  {:>10}  Filename",
        "Total", "Exclusive", "Set shared"
    ))?;
    let (mut code, mut images) = (0, Images::to_read());
    for path in &args.paths {
        let mut run = Run {
            args,
            style,
            out: std::io::BufWriter::new(std::io::stdout().lock()),
            shared: Ranges::default(),
            seen: HashSet::new(),
        };
        let done = match images.found(path)? {
            Err(failed) => Err(failed),
            Ok(Found::Elsewhere { .. }) => Err(std::io::Error::from_raw_os_error(libc::ENOTTY)),
            Ok(Found::Place(Place::Image(node))) => run.offline(&node, path, true),
            Ok(Found::Place(Place::Kernel(file) | Place::Ours(file))) => run.mounted(&file, path, true),
        };
        run.out.flush()?;
        drop(run);
        match done {
            Ok(_) => {}
            Err(failed) => {
                error(format_args!(
                    "cannot check space of '{}': {}",
                    path.display(),
                    reason(&failed)
                ));
                code = 1;
            }
        }
    }
    Ok(code)
}

impl Run<'_> {
    fn print(&mut self, sum: Sum, path: &Path, is_top: bool) -> IoResult<()> {
        if !is_top && self.args.summarize {
            return Ok(());
        }
        let set = if is_top {
            self.style.text(self.shared.bytes())
        } else {
            "-".to_owned()
        };
        let (total, exclusive) = (self.style.text(sum.total), self.style.text(sum.exclusive));
        let shown = printable(path);
        writeln!(self.out, "{total:>10}  {exclusive:>10}  {set:>10}  {shown}")
    }

    fn count(&mut self, sum: &mut Sum, physical: u64, len_bytes: u64, flags: u32) {
        if flags & NOT_COUNTED != 0 {
            return;
        }
        sum.total += len_bytes;
        match flags & flag::SHARED {
            0 => sum.exclusive += len_bytes,
            _ => self.shared.add(physical, physical + len_bytes),
        }
    }

    fn mounted(&mut self, file: &File, path: &Path, is_top: bool) -> IoResult<Sum> {
        let meta = file.metadata()?;
        let mut sum = Sum::default();
        if meta.is_dir() {
            for entry in std::fs::read_dir(path)? {
                let entry = entry?;
                let Ok(kind) = entry.file_type() else { continue };
                let below = entry.path();
                if !(kind.is_dir() || kind.is_file()) {
                    continue;
                }
                let opened = File::options()
                    .read(true)
                    .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
                    .open(&below);
                match opened.and_then(|file| self.below(file, &below)) {
                    Ok(of) => sum += of,
                    Err(failed) => {
                        error(format_args!(
                            "cannot check space of '{}': {}",
                            below.display(),
                            reason(&failed)
                        ));
                        return Err(failed);
                    }
                }
            }
        } else if meta.is_file() {
            if meta.nlink() > 1 && !self.seen.insert((meta.dev(), meta.ino())) {
                return Ok(sum);
            }
            let is_ours = maps::each(file, true, &mut |extent| self.extent(&mut sum, extent))?;
            if !is_ours {
                fiemap(file, 0, &mut |extent| {
                    self.count(&mut sum, extent.physical, extent.len_bytes, extent.flags);
                })?;
            }
        }
        self.print(sum, path, is_top)?;
        Ok(sum)
    }

    /// What is mounted below is left out, also where it is the same volume.
    fn below(&mut self, file: File, path: &Path) -> IoResult<Sum> {
        let Some(Place::Kernel(file) | Place::Ours(file)) = Place::on_mount(file)? else {
            let name = path.file_name().unwrap_or_default().display();
            warning(format_args!("cannot access '{name}': Inappropriate ioctl for device\n"));
            return Ok(Sum::default());
        };
        match is_mount_point(&file, path)? {
            true => Ok(Sum::default()),
            false => self.mounted(&file, path, false),
        }
    }

    fn extent(&mut self, sum: &mut Sum, extent: &Extent) {
        let line = Line::of(extent);
        self.count(sum, line.physical, line.len_bytes, line.flags);
    }

    fn offline(&mut self, node: &Node, path: &Path, is_top: bool) -> IoResult<Sum> {
        let mut sum = Sum::default();
        match node.attr.kind {
            FileKind::Directory => {
                for name in node.names()? {
                    let below = node.child(&name)?;
                    if matches!(below.attr.kind, FileKind::Directory | FileKind::Regular) {
                        sum += self.offline(&below, &path.join(OsStr::from_bytes(&name)), false)?;
                    }
                }
            }
            FileKind::Regular => {
                let tree = node.engine.volume.subvolume_of(node.id)?.id;
                if node.attr.nlink > 1 && !self.seen.insert((tree, node.attr.ino)) {
                    return Ok(sum);
                }
                node.engine
                    .volume
                    .map_extents(node.id, 0..u64::MAX, true, &mut |extent| {
                        self.extent(&mut sum, extent);
                        ControlFlow::Continue(())
                    })?;
            }
            _ => {}
        }
        self.print(sum, path, is_top)?;
        Ok(sum)
    }
}

/// Is a directory the root of a mount?
fn is_mount_point(file: &File, path: &Path) -> IoResult<bool> {
    if !file.metadata()?.is_dir() {
        return Ok(false);
    }
    match sys::is_mount_root(file)? {
        Some(answer) => Ok(answer),
        None => Ok(mount_table::on(&path.canonicalize()?)?.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_or_overlap_are_one() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (20, 30), (15, 35), (0, 5), (100, 101)] {
            ranges.add(start, end);
        }
        assert_eq!(ranges.0.into_iter().collect::<Vec<_>>(), [(0, 5), (10, 40), (100, 101)]);
    }
}
