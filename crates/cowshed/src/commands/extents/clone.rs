//! `cowshed clone`: a copy that shares the extents of its source.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use cowshed_btrfs::block::BLOCK_BYTES;

use super::{RangeArg, clone_tree, open_file, open_to_read, open_to_write, remap};
use crate::sys;

#[derive(Args, Debug)]
#[command(after_help = "\
Without --range, DEST is made or emptied, and holds what SOURCE holds; it may be a directory to put the copy into. Both
lie on one mount. Offsets are multiples of 4096, and so is the length, unless it ends with SOURCE; 0: to its end.

With -r, SOURCE is a directory of a mount of cowshed. Its copy shares all extents, and keeps what cp -a keeps: owners
(for root), modes, times, extended attributes, access lists, hard links within the tree, special files. DEST must not
exist, or be a directory to put the copy into. Exit code 1: some entries could not be read, and were left out.")]
pub struct CloneArgs {
    /// The file to share, or with -r the directory
    source: PathBuf,
    /// The copy
    dest: PathBuf,
    /// Only this range, into a file that exists: SRC_OFFSET:LENGTH:DST_OFFSET, with k, m or g; may
    /// be repeated
    #[arg(long = "range", value_name = "RANGE")]
    ranges: Vec<RangeArg>,
    /// Clone a directory with all that is in it
    #[arg(short, long, conflicts_with = "ranges")]
    recursive: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
    /// Fail if DEST exists
    #[arg(short = 'n', long, conflicts_with = "ranges")]
    no_clobber: bool,
}

pub fn run(args: &CloneArgs) -> Result<u8> {
    if args.recursive && args.source.is_dir() {
        return clone_tree::run(&args.source, &args.dest, args.quiet);
    }
    let src = open_to_read(&args.source)?;
    let what = || format!("cloning {} to {}", args.source.display(), args.dest.display());
    if args.ranges.is_empty() {
        whole(&src, args)?;
        return Ok(0);
    }
    let dst = open_to_write(&args.dest)?;
    for range in &args.ranges {
        remap::clone_range(&src, range.src_offset, &dst, range.dst_offset, range.len_bytes).with_context(what)?;
    }
    Ok(0)
}

fn whole(src: &File, args: &CloneArgs) -> Result<()> {
    let meta = src.metadata()?;
    let dest = match (args.dest.is_dir(), args.source.file_name()) {
        (true, Some(name)) => args.dest.join(name),
        _ => args.dest.clone(),
    };
    let existed = std::fs::metadata(&dest).ok();
    if existed
        .as_ref()
        .is_some_and(|other| (other.dev(), other.ino()) == (meta.dev(), meta.ino()))
    {
        bail!("{} and {} are the same file", args.source.display(), dest.display());
    }
    let mut open = File::options();
    // Not for others before it is what it shall be.
    open.write(true).mode(meta.mode() & 0o700);
    if args.no_clobber {
        open.create_new(true);
    } else {
        open.create(true).truncate(false);
    }
    let dst = open_file(&mut open, &dest)?;
    let cloned = fill(src, &dst, existed.is_none(), meta.mode());
    if cloned.is_err() && existed.is_none() {
        let _ = std::fs::remove_file(&dest);
    }
    cloned.with_context(|| format!("cloning {} to {}", args.source.display(), Path::new(&dest).display()))
}

fn fill(src: &File, dst: &File, is_new: bool, mode: u32) -> std::io::Result<()> {
    // Nothing of the old content goes before it is known that the new one can come.
    let size = src.metadata()?.len();
    let shared = match size {
        0 => Ok(()),
        _ => remap::clone_range(src, 0, dst, 0, 0),
    };
    match shared {
        Err(error) if error.kind() == ErrorKind::InvalidInput && dst.metadata()?.len() > size => {
            over_longer(src, dst, size)?;
        }
        shared => {
            shared?;
            dst.set_len(size)?;
        }
    }
    if is_new {
        dst.set_permissions(Permissions::from_mode(mode & 0o777 & !sys::umask()))?;
    }
    Ok(())
}

/// Over a file that is longer than the source, in which no part of a block can be shared: the last
/// one is copied before the file is cut, and shared after it. That the files can share at all is
/// known: else the first try had failed in another way.
fn over_longer(src: &File, dst: &File, size: u64) -> std::io::Result<()> {
    let whole = size - size % u64::from(BLOCK_BYTES);
    if whole > 0 {
        remap::clone_range(src, 0, dst, 0, whole)?;
    }
    let mut rest = vec![0; (size - whole) as usize];
    src.read_exact_at(&mut rest, whole)?;
    dst.write_all_at(&rest, whole)?;
    dst.set_len(size)?;
    if rest.is_empty() {
        return Ok(());
    }
    match remap::clone_range(src, whole, dst, whole, 0) {
        // The content is there already.
        Err(error) if error.kind() == ErrorKind::StorageFull => Ok(()),
        shared => shared,
    }
}
