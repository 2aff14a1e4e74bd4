//! `inspect attr`: the blocks of an inode's attributes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use xfs_format::attr::{AttrLeafBlock, AttrRemoteBlock, AttrValueView, remote_blocks};
use xfs_format::da::AttrNodeBlock;
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::render::{Report, Val, attr_leaf_report, da_node_report, inode_report};
use xfs_format::{Expect, Extent, Ino};

use super::printer::Printer;
use super::reader::Reader;

#[derive(Args, Debug)]
pub struct AttrArgs {
    /// Image file or block device
    pub target: PathBuf,
    /// The number of the inode, or its absolute path
    #[arg(value_name = "INODE")]
    inode: String,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &AttrArgs) -> Result<u8> {
    let reader = Reader::open(&args.target)?;
    let ino = reader.number(&args.target, &args.inode)?;
    let (_, inode) = reader.inode(ino)?;
    let mut printer = Printer::new(args.json)?;
    match inode.fork(ForkKind::Attr) {
        None | Some(Fork::Dev(_)) => {}
        Some(Fork::Local(_)) => {
            let report = inode_report(&inode, &reader.geometry);
            if let Some(Val::Report(short)) = report.get("attr") {
                printer.show("short form", &[("inode", ino.get())], short)?;
            }
        }
        Some(Fork::Extents(_) | Fork::Btree(_)) => {
            let extents = reader.extents(ino, &inode, ForkKind::Attr)?;
            blocks(&reader, &mut printer, ino, &extents)?;
        }
    }
    printer.finish()
}

/// Shows blocks in the order of the fork. Those of remote values have a header on V5 alone, so they
/// are known by the leaves that lead to them, which are read first.
fn blocks(reader: &Reader, printer: &mut Printer, ino: Ino, extents: &[Extent]) -> Result<()> {
    let all: Vec<u64> = extents
        .iter()
        .flat_map(|extent| extent.offset.get()..extent.end().get())
        .collect();
    let mut remote = BTreeSet::new();
    for block in &all {
        if let Ok((_, Block::Leaf(leaf))) = read(reader, ino, extents, *block) {
            for entry in leaf.entries() {
                if let AttrValueView::Remote { block, len_bytes } = entry.value {
                    let first = u64::from(block.get());
                    remote.extend(first..first + u64::from(remote_blocks(len_bytes, &reader.geometry)));
                }
            }
        }
    }
    for block in all {
        let shown = if remote.contains(&block) {
            remote_block(reader, ino, extents, block)
        } else {
            read(reader, ino, extents, block).map(|(daddr, found)| match found {
                Block::Leaf(leaf) => ("leaf", daddr, attr_leaf_report(&leaf)),
                Block::Node(node) => {
                    let report = da_node_report(node.level(), node.siblings(), node.entries());
                    ("node", daddr, report)
                }
            })
        };
        match shown {
            Ok((name, daddr, report)) => printer.show(name, &[("block", block), ("daddr", daddr)], &report)?,
            Err(error) => printer.bad(&error.context(format!("attribute block {block} of inode {ino}"))),
        }
    }
    Ok(())
}

enum Block {
    Leaf(AttrLeafBlock),
    Node(AttrNodeBlock),
}

fn read(reader: &Reader, ino: Ino, extents: &[Extent], block: u64) -> Result<(u64, Block)> {
    let (daddr, bytes) = reader.fork_blocks(extents, block, 1)?.context("it is missing")?;
    let expect = Expect::of_inode(&reader.geometry, daddr, ino);
    let found = match bytes.get(8..10) {
        Some([0xfe, 0xbe] | [0x3e, 0xbe]) => Block::Node(AttrNodeBlock::verify(bytes, &expect)?),
        _ => Block::Leaf(AttrLeafBlock::verify(bytes, &expect)?),
    };
    Ok((daddr.get(), found))
}

fn remote_block(reader: &Reader, ino: Ino, extents: &[Extent], block: u64) -> Result<(&'static str, u64, Report)> {
    let (daddr, bytes) = reader.fork_blocks(extents, block, 1)?.context("it is missing")?;
    let part = AttrRemoteBlock::verify(bytes, &Expect::of_inode(&reader.geometry, daddr, ino))?;
    let mut report = Report::default();
    if let Some(offset) = part.offset_bytes() {
        report.set("offset", Val::Num(offset.into()));
    }
    report.set("bytes", Val::Num(part.part().len() as u64));
    Ok(("remote value", daddr.get(), report))
}
