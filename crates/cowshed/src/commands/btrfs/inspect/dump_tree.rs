//! `inspect-internal dump-tree`.

use std::io::{BufWriter, StdoutLock, Write};
use std::path::PathBuf;

use anyhow::{Result, bail};
use btrfs_format::render::{block_text, key_text, uuid_text};
use btrfs_format::superblock::RootBackup;
use btrfs_format::{TreeBlock, TreeId};
use clap::Args;

use super::super::say::{LIKE_VERSION, error, number, reason, refuse};
use crate::commands::inspect::btrfs::reader::Reader;
use crate::commands::inspect::btrfs::tree::tree_id;

#[derive(Args, Debug)]
pub struct DumpTreeArgs {
    /// Only the trees of extents and devices
    #[arg(short, long)]
    extents: bool,
    /// Only the trees of roots, chunks and devices
    #[arg(short, long)]
    device: bool,
    /// Only where the roots of trees are
    #[arg(short, long)]
    roots: bool,
    /// As -r, and the backups of roots
    #[arg(short = 'R', long)]
    backups: bool,
    /// Only the tree of uuids
    #[arg(short, long)]
    uuid: bool,
    /// Only the block at this address; may be given several times
    #[arg(short, long, value_name = "ADDRESS")]
    block: Vec<String>,
    /// Only this tree: a number or a name
    #[arg(short, long, value_name = "TREE")]
    tree: Option<String>,
    /// With -b: what hangs below the block, too
    #[arg(long)]
    follow: bool,
    /// Accepted: only the devices that are named are used in any case
    #[arg(long)]
    noscan: bool,
    /// Level by level: the default
    #[arg(long)]
    bfs: bool,
    /// Each block before those below it
    #[arg(long)]
    dfs: bool,
    /// Leave names out: not implemented yet
    #[arg(long, hide = true)]
    hide_names: bool,
    /// Show checksums of blocks: not implemented yet
    #[arg(long, hide = true)]
    csum_headers: bool,
    /// Show checksums of data: not implemented yet
    #[arg(long, hide = true)]
    csum_items: bool,
    /// The devices and images of one volume
    #[arg(required = true)]
    devices: Vec<PathBuf>,
}

pub fn run(args: &DumpTreeArgs) -> Result<u8> {
    for (is_asked, option) in [
        (args.hide_names, "--hide-names"),
        (args.csum_headers, "--csum-headers"),
        (args.csum_items, "--csum-items"),
    ] {
        if is_asked {
            return refuse(&format!("inspect-internal dump-tree {option}"));
        }
    }
    let wanted = match &args.tree {
        None if args.uuid => Some(TreeId::UUID),
        None => None,
        Some(name) => match tree_id(name) {
            Ok(tree) => Some(tree),
            Err(_) => bail!("unrecognized tree id: {name}"),
        },
    };
    for device in &args.devices {
        if let Err(error) = device.metadata() {
            bail!("invalid argument {}: {}", device.display(), reason(&error));
        }
    }
    let out = &mut BufWriter::new(std::io::stdout().lock());
    let reader = match Reader::open(&args.devices) {
        Ok(reader) => reader,
        Err(failed) => bail!("unable to open {}: {failed:#}", args.devices[0].display()),
    };
    writeln!(out, "{LIKE_VERSION}")?;
    let code = 0;
    let mut dump = Dump {
        args,
        reader,
        out,
        code,
    };
    match &args.block[..] {
        [] => dump.trees(wanted)?,
        blocks => {
            for block in blocks {
                dump.block_at(number(block)?)?;
            }
        }
    }
    dump.out.flush()?;
    Ok(dump.code)
}

struct Dump<'a> {
    args: &'a DumpTreeArgs,
    reader: Reader,
    out: &'a mut BufWriter<StdoutLock<'static>>,
    code: u8,
}

/// What a tree is called before its root's key.
fn name_of(tree: TreeId) -> &'static str {
    match tree {
        TreeId::ROOT => "root",
        TreeId::EXTENT => "extent",
        TreeId::CHUNK => "chunk",
        TreeId::DEV => "device",
        TreeId::FS => "fs",
        TreeId::CSUM => "checksum",
        TreeId::QUOTA => "quota",
        TreeId::UUID => "uuid",
        TreeId::FREE_SPACE => "free space",
        TreeId::BLOCK_GROUP => "block group",
        TreeId::TREE_LOG => "log",
        TreeId::TREE_RELOC => "reloc",
        TreeId::DATA_RELOC => "data reloc",
        _ => "file",
    }
}

impl Dump<'_> {
    fn block_at(&mut self, address: u64) -> Result<()> {
        let sectorsize = self.reader.volume.sectorsize_bytes();
        if !address.is_multiple_of(sectorsize.into()) {
            bail!("tree block bytenr {address} is not aligned to sectorsize {sectorsize}");
        }
        let Ok(block) = self.reader.block(address) else {
            bail!("failed to read tree block {address}");
        };
        match self.args.follow {
            true => self.walk(&block),
            false => Ok(write!(self.out, "{}", block_text(&block))?),
        }
    }

    /// A block and what hangs below it. A bad block is named; the rest is still worth seeing.
    fn walk(&mut self, root: &TreeBlock) -> Result<()> {
        write!(self.out, "{}", block_text(root))?;
        match self.args.dfs {
            true => self.depth_first(root),
            false => (0..root.level()).rev().try_for_each(|level| self.level(root, level)),
        }
    }

    /// All blocks of one level.
    fn level(&mut self, above: &TreeBlock, level: u8) -> Result<()> {
        for slot in 0..above.len() {
            match self.reader.child(above, slot) {
                Ok(child) if child.level() == level => write!(self.out, "{}", block_text(&child))?,
                Ok(child) => self.level(&child, level)?,
                // Named once, where it is printed itself.
                Err(failed) if above.level() == level + 1 => self.bad(&failed),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn depth_first(&mut self, above: &TreeBlock) -> Result<()> {
        for slot in 0..if above.is_leaf() { 0 } else { above.len() } {
            match self.reader.child(above, slot) {
                Ok(child) => {
                    write!(self.out, "{}", block_text(&child))?;
                    self.depth_first(&child)?;
                }
                Err(failed) => self.bad(&failed),
            }
        }
        Ok(())
    }

    fn bad(&mut self, failed: &anyhow::Error) {
        error(format_args!("{failed:#}"));
        self.code = 1;
    }

    fn walk_from(&mut self, address: u64) -> Result<()> {
        match self.reader.block(address) {
            Ok(block) => self.walk(&block),
            Err(failed) => {
                self.bad(&failed);
                Ok(())
            }
        }
    }

    fn trees(&mut self, wanted: Option<TreeId>) -> Result<()> {
        let sb = self.reader.volume.superblock();
        let roots_only = self.args.roots || self.args.backups;
        let heads = [
            (TreeId::ROOT, sb.root.get(), sb.root_level),
            (TreeId::CHUNK, sb.chunk_root.get(), sb.chunk_root_level),
        ];
        for (tree, address, level) in heads {
            let is_wanted = match wanted {
                Some(wanted) => wanted == tree,
                None => !self.args.extents,
            };
            if !is_wanted {
                continue;
            }
            match roots_only {
                true => writeln!(self.out, "{} tree: {address} level {level}", name_of(tree))?,
                false => {
                    writeln!(self.out, "{} tree", name_of(tree))?;
                    self.walk_from(address)?;
                }
            }
            if wanted.is_some() {
                return Ok(());
            }
        }
        for (key, address, level) in self.reader.roots()? {
            let tree = key.objectid.tree_id();
            let is_wanted = match wanted {
                Some(wanted) => wanted == tree,
                None if self.args.extents => tree == TreeId::EXTENT || tree == TreeId::DEV,
                None if self.args.device => tree == TreeId::DEV,
                None => true,
            };
            if !is_wanted {
                continue;
            }
            let (name, key) = (name_of(tree), key_text(&key));
            match roots_only {
                true => writeln!(self.out, "{name} tree key {key} {address} level {level}")?,
                false => {
                    // btrfs(8) leaves a blank at the end, but not with -e.
                    let blank = if self.args.extents { "" } else { " " };
                    writeln!(self.out, "{name} tree key {key}{blank}")?;
                    self.walk_from(address)?;
                }
            }
        }
        if wanted.is_none() && sb.log_root.get() != 0 && !self.args.extents && !self.args.device {
            match roots_only {
                true => writeln!(self.out, "log root tree: {} level {}", sb.log_root, sb.log_root_level)?,
                false => {
                    writeln!(self.out, "log root tree")?;
                    self.walk_from(sb.log_root.get())?;
                }
            }
        }
        if self.args.extents || self.args.device || self.args.uuid {
            return Ok(());
        }
        if self.args.backups {
            for (slot, backup) in sb.super_roots.iter().enumerate() {
                write_backup(self.out, slot, backup)?;
            }
        }
        writeln!(self.out, "total bytes {}", sb.total_bytes)?;
        writeln!(self.out, "bytes used {}", sb.bytes_used)?;
        writeln!(self.out, "uuid {}", uuid_text(&sb.fsid))?;
        Ok(())
    }
}

fn write_backup(out: &mut impl Write, slot: usize, backup: &RootBackup) -> Result<()> {
    writeln!(out, "btrfs root backup slot {slot}")?;
    writeln!(
        out,
        "\ttree root gen {} block {}",
        backup.tree_root_gen, backup.tree_root
    )?;
    for (name, generation, block) in [
        ("extent", backup.extent_root_gen, backup.extent_root),
        ("chunk", backup.chunk_root_gen, backup.chunk_root),
        ("device", backup.dev_root_gen, backup.dev_root),
        ("csum", backup.csum_root_gen, backup.csum_root),
        ("fs", backup.fs_root_gen, backup.fs_root),
    ] {
        writeln!(out, "\t\t{name} root gen {generation} block {block}")?;
    }
    let (used, total, devices) = (backup.bytes_used, backup.total_bytes, backup.num_devices);
    writeln!(out, "\t\t{used} used {total} total {devices} devices")?;
    Ok(())
}
