//! `inspect-internal dump-super`.

use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use btrfs_format::Superblock;
use btrfs_format::render::superblock_text;
use btrfs_format::superblock::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use clap::Args;

use super::super::say::{number, reason, warning};

#[derive(Args, Debug)]
pub struct DumpSuperArgs {
    /// Backups of roots and the system chunks, too
    #[arg(short, long)]
    full: bool,
    /// All copies
    #[arg(short, long)]
    all: bool,
    /// This copy: 0, 1 or 2
    #[arg(short, long = "super", value_name = "COPY")]
    super_copy: Option<String>,
    /// As -s
    #[arg(short = 'i', value_name = "COPY", hide = true)]
    old_copy: Option<String>,
    /// What is there, whatever it looks like
    #[arg(short = 'F', long)]
    force: bool,
    /// What is at this byte
    #[arg(long, value_name = "OFFSET")]
    bytenr: Option<String>,
    /// Devices and images
    #[arg(required = true)]
    devices: Vec<PathBuf>,
}

pub fn run(args: &DumpSuperArgs) -> Result<u8> {
    let wanted = offsets(args)?;
    let mut code = 0;
    for path in &args.devices {
        if let Err(failed) = dump(args, path, &wanted) {
            super::super::say::error(format_args!("{failed:#}"));
            code = 1;
        }
    }
    Ok(code)
}

fn offsets(args: &DumpSuperArgs) -> Result<Vec<u64>> {
    if args.old_copy.is_some() {
        warning("option -i is deprecated, please use -s or --super");
    }
    if args.all {
        return Ok(SUPERBLOCK_OFFSETS.to_vec());
    }
    if let Some(offset) = &args.bytenr {
        return Ok(vec![number(offset)?]);
    }
    let Some(copy) = args.super_copy.as_ref().or(args.old_copy.as_ref()) else {
        return Ok(SUPERBLOCK_OFFSETS[..1].to_vec());
    };
    let copy = number(copy)?;
    let known = usize::try_from(copy).ok().and_then(|copy| SUPERBLOCK_OFFSETS.get(copy));
    match known {
        Some(offset) => Ok(vec![*offset]),
        None if args.old_copy.is_some() => bail!("super mirror too big: {copy} >= {}", SUPERBLOCK_OFFSETS.len()),
        None => {
            warning(format_args!(
                "deprecated use of -s <bytenr> with {copy}, assuming --bytenr"
            ));
            Ok(vec![copy])
        }
    }
}

fn dump(args: &DumpSuperArgs, path: &Path, wanted: &[u64]) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) => bail!("cannot open {}: {}", path.display(), reason(&error)),
    };
    let mut out = std::io::stdout().lock();
    for offset in wanted {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        match file.read_exact_at(&mut bytes, *offset) {
            Ok(()) => {}
            // Behind the end of a small device there is none.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                writeln!(out)?;
                continue;
            }
            Err(error) => bail!(
                "failed to read the superblock on {} at {offset}: {}",
                path.display(),
                reason(&error)
            ),
        }
        let Some(sb) = btrfs_format::view::fixed::<Superblock>(&bytes) else {
            continue;
        };
        writeln!(
            out,
            "superblock: bytenr={offset}, device={}\n{}",
            path.display(),
            "-".repeat(57)
        )?;
        if sb.magic != MAGIC && !args.force {
            bail!(
                "bad magic on superblock on {} at {offset} (use --force to dump it anyway)",
                path.display()
            );
        }
        let full = superblock_text(sb);
        match full.find("sys_chunk_array[") {
            Some(end) if !args.full => writeln!(out, "{}", &full[..end])?,
            _ => writeln!(out, "{full}")?,
        }
    }
    out.flush()?;
    Ok(())
}
