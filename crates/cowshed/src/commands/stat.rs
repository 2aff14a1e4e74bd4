//! `cowshed stat`: what is known of a file of a volume that is not mounted, laid out as stat(1)
//! does.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use cowshed::{FileKind, Metadata, Volume};
use serde_json::Value;

use super::files::Base;
use super::named::named;
use crate::devices::ReadArgs;
use crate::people;
use crate::people::{Names, kind_name, mode_text, printable, time_text};

#[derive(Args, Debug)]
pub struct StatArgs {
    /// IMAGE:/PATH, or an image file or block device
    target: PathBuf,
    /// More of them, or files in the volume
    paths: Vec<PathBuf>,
    /// Follow a symbolic link at the end of a path
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    read: ReadArgs,
}

pub fn run(args: &StatArgs, base: &Base) -> Result<u8> {
    let mut out = std::io::stdout().lock();
    let names = Names::load();
    let (mut code, mut all) = (0, Vec::new());
    for named in named(base, &args.target, &args.paths, &[])? {
        if named.paths.is_empty() {
            bail!("no file is named: IMAGE:/PATH, or paths behind the image");
        }
        let volume = named.open(&args.read)?;
        for path in &named.paths {
            match one(&volume, path, &named.shown(path), args, &names) {
                Ok((_, value)) if args.json => all.push(value),
                Ok((text, _)) => out.write_all(text.as_bytes())?,
                Err(error) => {
                    named.complain("stat", "stat", path, &error);
                    code = named.failure_code();
                }
            }
        }
    }
    if args.json {
        writeln!(out, "{:#}", Value::Array(all))?;
    }
    out.flush()?;
    Ok(code)
}

fn one(volume: &Volume, path: &Path, shown: &Path, args: &StatArgs, names: &Names) -> cowshed::Result<(String, Value)> {
    let meta = if args.dereference {
        volume.metadata(path)?
    } else {
        volume.symlink_metadata(path)?
    };
    let target = match meta.kind() {
        FileKind::Symlink => Some(volume.read_link(path)?),
        _ => None,
    };
    let mut xattrs = Vec::new();
    for name in volume.list_xattrs(path)? {
        let name = String::from_utf8_lossy(&name).into_owned();
        if let Some(value) = volume.get_xattr(path, &name)? {
            xattrs.push((name, value));
        }
    }
    let value = people::metadata_json(shown, &meta, target.as_deref(), &xattrs);
    Ok((text(shown, &meta, target.as_deref(), &xattrs, names), value))
}

fn text(path: &Path, meta: &Metadata, target: Option<&Path>, xattrs: &[(String, Vec<u8>)], names: &Names) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(out, "  File: {}", printable(path));
    if let Some(target) = target {
        let _ = write!(out, " -> {}", printable(target));
    }
    let kind = kind_name(meta.kind());
    let _ = writeln!(
        out,
        "\n  Size: {:<15}\tBlocks: {:<10} IO Block: {:<6} {kind}",
        meta.len(),
        meta.blocks(),
        meta.blksize()
    );
    let _ = write!(out, "Inode: {:<15}\tLinks: {}", meta.ino(), meta.nlink());
    if matches!(meta.kind(), FileKind::BlockDevice | FileKind::CharDevice) {
        let (major, minor) = meta.device();
        let _ = write!(out, "     Device type: {major},{minor}");
    }
    let _ = writeln!(
        out,
        "\nAccess: ({:04o}/{})  Uid: ({:>5}/{:>8})   Gid: ({:>5}/{:>8})",
        meta.mode() & 0o7777,
        mode_text(meta.mode()),
        meta.uid(),
        names.user(meta.uid()),
        meta.gid(),
        names.group(meta.gid())
    );
    let times = meta.timestamps();
    for (name, time) in ["Access", "Modify", "Change", " Birth"].iter().zip(times) {
        let _ = writeln!(out, "{name}: {} +0000", time_text(time, true));
    }
    for (name, value) in xattrs {
        let _ = writeln!(out, " Xattr: {name}=\"{}\"", value.escape_ascii());
    }
    out
}
