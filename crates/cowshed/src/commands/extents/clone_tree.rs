//! `cowshed clone -r`: a whole tree, cloned by the process that serves the mount.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, IsTerminal as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cowshed_vfs_ioctl::wire::trees::{self, CloneTree, op, state};
use indicatif::{ProgressBar, ProgressStyle};
use zerocopy::FromZeros;

use super::remap;
use crate::ioctl;
use crate::people::{printable, size_text};
use crate::sys;

/// Where the copy goes: into `dest` under the source's name where that is a directory, as cp(1) has
/// it.
fn place<'a>(source: &'a Path, dest: &'a Path) -> Result<(PathBuf, &'a OsStr)> {
    if dest.is_dir() {
        let name = source.file_name();
        let name = name.with_context(|| format!("{}: has no name of its own", source.display()))?;
        return Ok((dest.into(), name));
    }
    let name = dest.file_name();
    let name = name.with_context(|| format!("{}: is no name for a copy", dest.display()))?;
    match dest.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => Ok((parent.into(), name)),
        _ => Ok((".".into(), name)),
    }
}

fn open_dir(path: &Path) -> Result<File> {
    let opened = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path);
    opened.with_context(|| path.display().to_string())
}

/// Clones a directory with all that is below it. 0: all of it; 1: some entries were left out.
pub fn run(source: &Path, dest: &Path, is_quiet: bool) -> Result<u8> {
    let src = open_dir(source)?;
    let (parent, name) = place(source, dest)?;
    let dir = open_dir(&parent)?;
    let what = || format!("cloning {} to {}", source.display(), parent.join(name).display());
    // Linux keeps what programs stored into mapped files until it is asked for it.
    sys::sync_file_system(&src)?;
    let Some(token) = remap::lend(&src)? else {
        bail!(
            "{}: not on a mount of cowshed; on a file system of the kernel that shares extents, cp -a --reflink=always \
             clones trees",
            source.display()
        );
    };
    if remap::lend(&dir)?.is_none() {
        return Err(Error::from_raw_os_error(libc::EXDEV)).with_context(what);
    }
    let mut call = CloneTree::new_zeroed();
    call.token = token;
    let room = call.name.get_mut(..name.len());
    let room = room
        .ok_or_else(|| Error::from_raw_os_error(libc::ENAMETOOLONG))
        .with_context(what)?;
    room.copy_from_slice(name.as_bytes());
    call.name_bytes = u32::try_from(name.len()).unwrap_or(u32::MAX).into();
    call.op = op::BEGIN.into();
    ioctl::call(&dir, trees::CLONE_TREE, &mut call).with_context(what)?;
    let bar = (!is_quiet && std::io::stderr().is_terminal()).then(bar);
    go_on(&dir, source, &mut call, bar.as_ref()).with_context(what)
}

fn go_on(dir: &File, source: &Path, call: &mut CloneTree, bar: Option<&ProgressBar>) -> Result<u8> {
    let mut code = 0;
    call.op = op::GO_ON.into();
    while call.state.get() == state::MORE {
        ioctl::call(dir, trees::CLONE_TREE, call)?;
        let path = source.join(OsStr::from_bytes(call.path()));
        if let Some(bar) = bar {
            bar.set_position(call.entries.get());
            bar.set_message(format!("{} {}", size_text(call.bytes.get()), printable(&path)));
        }
        if call.errno.get() == 0 {
            continue;
        }
        let error = Error::from_raw_os_error(call.errno.get().cast_signed());
        if call.state.get() == state::FAILED {
            return Err(error).with_context(|| format!("at {}", path.display()));
        }
        let line = format!("cowshed: {}: {error}", printable(&path));
        match bar {
            Some(bar) => bar.suspend(|| crate::people::warn(&line)),
            None => crate::people::warn(&line),
        }
        code = 1;
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(code)
}

fn bar() -> ProgressBar {
    let template = "{spinner} {pos} entries {per_sec} {msg}";
    // The template is ours and right; were it not, the default would do.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}
