//! `inspect tree` and `inspect block`: tree blocks as text or JSON.

use std::io::{BufWriter, StdoutLock, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use btrfs_format::render::{block_json, block_text, key_text, tree_text};
use btrfs_format::{Key, KeyType, ObjectId, TreeBlock, TreeId};
use clap::Args;

use super::super::targets::{Targets, address};
use super::reader::Reader;

#[derive(Args, Debug)]
pub struct TreeArgs {
    #[command(flatten)]
    targets: Targets,
    /// This tree only: a number, or root, extent, chunk, dev, fs, csum, quota, uuid, free-space,
    /// block-group, log, data-reloc
    #[arg(short, long, value_name = "TREE", value_parser = tree_id)]
    tree: Option<TreeId>,
    /// The block at this logical address only
    #[arg(short, long, value_name = "ADDRESS", value_parser = address, conflicts_with = "tree")]
    block: Option<u64>,
    /// With -b: what hangs below it, too
    #[arg(long, requires = "block")]
    follow: bool,
    /// Only the trees' ids and root blocks
    #[arg(short, long, conflicts_with_all = ["tree", "block"])]
    roots: bool,
}

#[derive(Args, Debug)]
pub struct BlockArgs {
    /// The block's logical address
    #[arg(value_parser = address)]
    address: u64,
    #[command(flatten)]
    targets: Targets,
}

impl TreeArgs {
    pub fn targets(&self) -> &[PathBuf] {
        &self.targets.targets
    }
}

impl BlockArgs {
    pub fn targets(&self) -> &[PathBuf] {
        &self.targets.targets
    }
}

pub fn tree_id(text: &str) -> Result<TreeId> {
    let name = text.to_lowercase().replace('_', "-");
    Ok(match name.trim_end_matches("-tree") {
        "root" => TreeId::ROOT,
        "extent" => TreeId::EXTENT,
        "chunk" => TreeId::CHUNK,
        "dev" | "device" => TreeId::DEV,
        "fs" => TreeId::FS,
        "csum" | "checksum" => TreeId::CSUM,
        "quota" => TreeId::QUOTA,
        "uuid" => TreeId::UUID,
        "free-space" => TreeId::FREE_SPACE,
        "block-group" => TreeId::BLOCK_GROUP,
        "log" | "tree-log" => TreeId::TREE_LOG,
        "data-reloc" => TreeId::DATA_RELOC,
        number => match number.parse::<i64>() {
            // Negative: the reserved ids, as btrfs(8) writes them.
            Ok(id) => TreeId(id.cast_unsigned()),
            Err(_) => match number.parse() {
                Ok(id) => TreeId(id),
                Err(_) => bail!("{text:?} is no tree"),
            },
        },
    })
}

/// Prints blocks one after the other.
struct Printer {
    out: BufWriter<StdoutLock<'static>>,
    json: bool,
    count: u64,
    failed: bool,
}

impl Printer {
    fn new(json: bool) -> Result<Printer> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        if json {
            write!(out, "[")?;
        }
        Ok(Printer {
            out,
            json,
            count: 0,
            failed: false,
        })
    }

    fn heading(&mut self, text: &str) -> Result<()> {
        if !self.json {
            writeln!(self.out, "{text}")?;
        }
        Ok(())
    }

    fn block(&mut self, block: &TreeBlock) -> Result<()> {
        if self.json {
            let comma = if self.count == 0 { "\n" } else { ",\n" };
            write!(self.out, "{comma}{}", block_json(block))?;
        } else {
            write!(self.out, "{}", block_text(block))?;
        }
        self.count += 1;
        Ok(())
    }

    /// A bad block is named; the rest is still worth seeing.
    fn bad(&mut self, error: &anyhow::Error) {
        crate::people::warn(format_args!("cowshed: {error:#}"));
        self.failed = true;
    }

    /// A block and what hangs below it, in the order of keys.
    fn walk(&mut self, reader: &Reader, block: &TreeBlock) -> Result<()> {
        self.block(block)?;
        if block.is_leaf() {
            return Ok(());
        }
        for slot in 0..block.len() {
            match reader.child(block, slot) {
                Ok(child) => self.walk(reader, &child)?,
                Err(error) => self.bad(&error),
            }
        }
        Ok(())
    }

    fn walk_from(&mut self, reader: &Reader, addr: u64) -> Result<()> {
        match reader.block(addr) {
            Ok(block) => self.walk(reader, &block),
            Err(error) => {
                self.bad(&error);
                Ok(())
            }
        }
    }

    fn finish(mut self) -> Result<u8> {
        if self.json {
            writeln!(self.out, "\n]")?;
        }
        self.out.flush()?;
        Ok(u8::from(self.failed))
    }
}

pub fn run(args: &TreeArgs) -> Result<u8> {
    let reader = Reader::open(&args.targets.targets)?;
    if args.roots {
        return print_roots(&reader, args.targets.json);
    }
    let root = match (args.block, args.tree) {
        (Some(addr), _) => Some(addr),
        (None, Some(tree)) => {
            let root = reader.root(tree)?;
            Some(root.with_context(|| format!("there is no tree {}", tree_text(tree)))?)
        }
        (None, None) => None,
    };
    let mut printer = Printer::new(args.targets.json)?;
    match root {
        Some(addr) if args.block.is_some() && !args.follow => printer.block(&reader.block(addr)?)?,
        Some(addr) => printer.walk_from(&reader, addr)?,
        None => all_trees(&reader, &mut printer)?,
    }
    printer.finish()
}

/// The root tree, the chunk tree, and every tree that the root tree names.
fn all_trees(reader: &Reader, printer: &mut Printer) -> Result<()> {
    let sb = reader.volume.superblock();
    printer.heading("root tree")?;
    printer.walk_from(reader, sb.root.get())?;
    printer.heading("chunk tree")?;
    printer.walk_from(reader, sb.chunk_root.get())?;
    for (key, addr, _) in reader.roots()? {
        printer.heading(&format!("tree key {}", key_text(&key)))?;
        printer.walk_from(reader, addr)?;
    }
    if sb.log_root.get() != 0 {
        printer.heading("log root tree")?;
        printer.walk_from(reader, sb.log_root.get())?;
    }
    Ok(())
}

fn print_roots(reader: &Reader, json: bool) -> Result<u8> {
    let sb = reader.volume.superblock();
    let at = |tree: TreeId| Key::new(tree.object_id(), KeyType::ROOT_ITEM, 0);
    let mut all = vec![
        (at(TreeId::ROOT), sb.root.get(), sb.root_level),
        (at(TreeId::CHUNK), sb.chunk_root.get(), sb.chunk_root_level),
    ];
    all.extend(reader.roots()?);
    let mut out = std::io::stdout().lock();
    if json {
        let name = |id: ObjectId| tree_text(id.tree_id());
        let list: Vec<_> = all
            .iter()
            .map(|(key, addr, level)| {
                serde_json::json!({
                    "tree": key.objectid.get(), "name": name(key.objectid), "block": addr, "level": level,
                })
            })
            .collect();
        writeln!(out, "{:#}", serde_json::Value::Array(list))?;
    } else {
        for (key, addr, level) in all {
            writeln!(out, "tree {} {addr} level {level}", key_text(&key))?;
        }
    }
    out.flush()?;
    Ok(0)
}

pub fn run_block(args: &BlockArgs) -> Result<u8> {
    let reader = Reader::open(&args.targets.targets)?;
    let block = reader.block(args.address)?;
    let mut printer = Printer::new(args.targets.json)?;
    printer.block(&block)?;
    printer.finish()
}
