//! `inspect super`: superblocks as they lie on the devices, valid or not.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Result, bail};
use btrfs_format::Superblock;
use btrfs_format::render::{superblock_json, superblock_text};
use btrfs_format::superblock::{MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use clap::Args;
use cowshed_device::{BlockDevice, Locking};
use serde_json::{Value, json};

use super::super::targets::Targets;
use crate::devices;

#[derive(Args, Debug)]
pub struct SuperArgs {
    #[command(flatten)]
    targets: Targets,
    /// All copies, not only the first
    #[arg(short, long)]
    all: bool,
    /// btrfs: the system chunks and the older roots, too
    #[arg(short, long)]
    full: bool,
    /// Show a copy although it does not look like a superblock
    #[arg(short = 'F', long)]
    force: bool,
    /// This copy: 0, 1 or 2; of XFS, that of a group
    #[arg(short, long = "super", value_name = "COPY", conflicts_with = "all")]
    super_copy: Option<usize>,
}

impl SuperArgs {
    pub fn targets(&self) -> &[PathBuf] {
        &self.targets.targets
    }
    pub fn target(&self) -> Option<&PathBuf> {
        self.targets.targets.first()
    }
    pub fn is_json(&self) -> bool {
        self.targets.json
    }
    pub fn shows_all(&self) -> bool {
        self.all
    }
    /// The copy that was asked for: of XFS, that of a group.
    pub fn copy(&self) -> Option<u32> {
        self.super_copy.and_then(|copy| u32::try_from(copy).ok())
    }
}

pub fn run(args: &SuperArgs) -> Result<u8> {
    let devices = devices::open_to_read(&args.targets.targets, Locking::Unlocked)?;
    let mut out = std::io::stdout().lock();
    let (mut all, mut code) = (Vec::new(), 0);
    for device in &devices {
        for (copy, value, text) in copies(args, device.as_ref(), &mut code)? {
            if args.targets.json {
                all.push(json!({ "device": device.name(), "copy": copy, "superblock": value }));
            } else {
                let line = "-".repeat(57);
                writeln!(
                    out,
                    "superblock: bytenr={}, device={}\n{line}",
                    SUPERBLOCK_OFFSETS[copy],
                    device.name()
                )?;
                writeln!(out, "{text}")?;
            }
        }
    }
    if args.targets.json {
        writeln!(out, "{:#}", Value::Array(all))?;
    }
    out.flush()?;
    Ok(code)
}

type Shown = (usize, Value, String);

fn copies(args: &SuperArgs, device: &dyn BlockDevice, code: &mut u8) -> Result<Vec<Shown>> {
    let wanted = match args.super_copy {
        Some(copy) if copy < SUPERBLOCK_OFFSETS.len() => copy..copy + 1,
        Some(copy) => bail!("there is no copy {copy}: 0, 1 or 2"),
        None if args.all => 0..SUPERBLOCK_OFFSETS.len(),
        None => 0..1,
    };
    let mut shown = Vec::new();
    for copy in wanted {
        let offset = SUPERBLOCK_OFFSETS[copy];
        let end = offset + SUPERBLOCK_BYTES as u64;
        if end > device.size_bytes() {
            if !args.all {
                bail!("{}: too small for copy {copy} of the superblock", device.name());
            }
            continue;
        }
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        device.read_at(offset, &mut bytes)?;
        let Some(sb) = btrfs_format::view::fixed::<Superblock>(&bytes) else {
            continue;
        };
        if sb.magic != MAGIC && !args.force {
            let name = device.name();
            crate::people::warn(format_args!(
                "cowshed: {name}: no btrfs superblock at byte {offset} (-F shows what is there)"
            ));
            *code = 1;
            continue;
        }
        let full = superblock_text(sb);
        let text = match full.find("sys_chunk_array[") {
            Some(end) if !args.full => full[..end].to_owned(),
            _ => full,
        };
        shown.push((copy, superblock_json(sb), text));
    }
    Ok(shown)
}
