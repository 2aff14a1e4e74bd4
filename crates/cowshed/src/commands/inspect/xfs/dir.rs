//! `inspect dir`: the blocks of a directory: entries, index by hash, free index.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use xfs_format::da::DirNodeBlock;
use xfs_format::dir::{DirBlock, DirDataBlock, DirFreeBlock, DirLeaf1Block, DirLeafNBlock};
use xfs_format::inode::{Fork, ForkKind, mode};
use xfs_format::render::{Report, Val, da_node_report, dir_free_report, dir_leaf_report, dir_report, inode_report};
use xfs_format::{DaBlock, Expect, Extent, Ino};

use super::printer::Printer;
use super::reader::Reader;

#[derive(Args, Debug)]
pub struct DirArgs {
    /// Image file or block device
    pub target: PathBuf,
    /// The directory, by the number of its inode or by its absolute path
    #[arg(value_name = "INODE")]
    inode: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DirArgs) -> Result<u8> {
    let reader = Reader::open(&args.target)?;
    let ino = reader.number(&args.target, &args.inode)?;
    let (_, inode) = reader.inode(ino)?;
    if inode.core().file_type() != mode::DIR {
        bail!("inode {ino} is no directory");
    }
    let mut printer = Printer::new(args.json)?;
    if let Some(Fork::Local(_)) = inode.fork(ForkKind::Data) {
        let report = inode_report(&inode, &reader.geometry);
        if let Some(Val::Report(short)) = report.get("data") {
            printer.show("short form", &[("inode", ino.get())], short)?;
        }
        return printer.finish();
    }
    let extents = reader.extents(ino, &inode, ForkKind::Data)?;
    for block in dir_blocks(&reader, &extents) {
        match one(&reader, ino, &extents, block) {
            Ok((name, daddr, report)) => {
                printer.show(name, &[("block", block), ("daddr", daddr)], &report)?;
            }
            Err(error) => printer.bad(&error.context(format!("block {block} of directory {ino}"))),
        }
    }
    printer.finish()
}

/// The first blocks of all directory blocks.
fn dir_blocks(reader: &Reader, extents: &[Extent]) -> Vec<u64> {
    let step = 1_u64 << reader.geometry.dir_block_log;
    let mut blocks: Vec<u64> = extents
        .iter()
        .flat_map(|extent| extent.offset.get()..extent.end().get())
        .map(|block| block / step * step)
        .collect();
    blocks.dedup();
    blocks
}

fn one(reader: &Reader, ino: Ino, extents: &[Extent], block: u64) -> Result<(&'static str, u64, Report)> {
    let geometry = &reader.geometry;
    let found = reader.fork_blocks(extents, block, 1 << geometry.dir_block_log)?;
    let (daddr, bytes) = found.context("a part of it is missing")?;
    let expect = Expect::of_inode(geometry, daddr, ino);
    let (name, report) = if block >= geometry.dir_free_block().get().into() {
        let free = DirFreeBlock::verify(bytes, &expect)?;
        ("free index", dir_free_report(&free))
    } else if block >= geometry.dir_leaf_block().get().into() {
        index(bytes, &expect)?
    } else if has_magic(&bytes, [b"XD2B", b"XDB3"]) {
        let whole = DirBlock::verify(bytes, &expect)?;
        let mut report = dir_report(whole.items(geometry));
        let leaf = dir_leaf_report((DaBlock(0), DaBlock(0)), whole.leaf_entries(), &[]);
        if let Some(entries) = leaf.get("ents") {
            report.set("ents", entries.clone());
        }
        ("block form", report)
    } else {
        let data = DirDataBlock::verify(bytes, &expect)?;
        ("data", dir_report(data.items(geometry)))
    };
    Ok((name, daddr.get(), report))
}

fn has_magic(bytes: &[u8], magics: [&[u8; 4]; 2]) -> bool {
    magics.iter().any(|magic| bytes.starts_with(*magic))
}

/// A block of the index by hash.
fn index(bytes: Vec<u8>, expect: &Expect<'_>) -> Result<(&'static str, Report)> {
    Ok(match bytes.get(8..10) {
        Some([0xd2, 0xf1] | [0x3d, 0xf1]) => {
            let leaf = DirLeaf1Block::verify(bytes, expect)?;
            let none = (DaBlock(0), DaBlock(0));
            ("leaf", dir_leaf_report(none, leaf.entries(), leaf.bests()))
        }
        Some([0xfe, 0xbe] | [0x3e, 0xbe]) => {
            let node = DirNodeBlock::verify(bytes, expect)?;
            ("node", da_node_report(node.level(), node.siblings(), node.entries()))
        }
        _ => {
            let leaf = DirLeafNBlock::verify(bytes, expect)?;
            ("leaf of several", dir_leaf_report(leaf.siblings(), leaf.entries(), &[]))
        }
    })
}
