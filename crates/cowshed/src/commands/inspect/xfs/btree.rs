//! `inspect btree`: the blocks of a B-tree, from its root down.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use xfs_format::ag::{AgfSector, AgiSector};
use xfs_format::btree::{BlockPtr, Bmap, Bno, BtreeBlock, Cnt, Finobt, Inobt, Refcount, Rmap, TreeKind};
use xfs_format::inode::{Fork, ForkKind};
use xfs_format::render::btree_report;
use xfs_format::{AgBlock, AgNumber, Daddr, Expect, Ino, Layout, U32};

use super::printer::Printer;
use super::reader::Reader;

#[derive(Args, Debug)]
pub struct BtreeArgs {
    /// Image file or block device
    pub target: PathBuf,
    /// This tree of an allocation group
    #[arg(short, long, value_name = "TREE", required_unless_present = "inode")]
    tree: Option<Named>,
    /// The group of the tree; without one: of all groups
    #[arg(short, long, value_name = "NUMBER")]
    group: Option<u32>,
    /// The map of the data of this inode, by number or absolute path
    #[arg(short, long, value_name = "INODE", conflicts_with_all = ["tree", "group"])]
    inode: Option<String>,
    /// With -i: the map of its attributes
    #[arg(long, requires = "inode")]
    attr: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A tree of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Named {
    /// Free space by place
    Bno,
    /// Free space by size
    Cnt,
    /// Chunks of inodes
    Ino,
    /// Chunks with free inodes
    Fino,
    /// Owners of blocks
    Rmap,
    /// Shared blocks
    Refc,
}

pub fn run(args: &BtreeArgs) -> Result<u8> {
    let reader = Reader::open(&args.target)?;
    let mut printer = Printer::new(args.json)?;
    match (&args.inode, args.tree) {
        (Some(inode), _) => {
            let kind = if args.attr { ForkKind::Attr } else { ForkKind::Data };
            map(&reader, &mut printer, reader.number(&args.target, inode)?, kind)?;
        }
        (None, Some(tree)) => {
            for group in reader.groups(args.group)? {
                of_group(&reader, &mut printer, AgNumber(group), tree)?;
            }
        }
        (None, None) => bail!("which tree?"),
    }
    printer.finish()
}

fn of_group(reader: &Reader, printer: &mut Printer, group: AgNumber, tree: Named) -> Result<()> {
    let agf = || -> Result<_> {
        let (bytes, expect) = reader.header(group, 1)?;
        Ok(*AgfSector::verify(bytes, &expect)?.agf())
    };
    let agi = || -> Result<_> {
        let (bytes, expect) = reader.header(group, 2)?;
        Ok(*AgiSector::verify(bytes, &expect)?.agi())
    };
    match tree {
        Named::Bno => agf().and_then(|agf| walk::<Bno>(reader, printer, group, (agf.bnoroot, agf.bnolevel))),
        Named::Cnt => agf().and_then(|agf| walk::<Cnt>(reader, printer, group, (agf.cntroot, agf.cntlevel))),
        Named::Rmap => agf().and_then(|agf| walk::<Rmap>(reader, printer, group, (agf.rmaproot, agf.rmaplevel))),
        Named::Refc => {
            agf().and_then(|agf| walk::<Refcount>(reader, printer, group, (agf.refcntroot, agf.refcntlevel)))
        }
        Named::Ino => agi().and_then(|agi| walk::<Inobt>(reader, printer, group, (agi.root, agi.level))),
        Named::Fino => agi().and_then(|agi| walk::<Finobt>(reader, printer, group, (agi.free_root, agi.free_level))),
    }
    .with_context(|| format!("group {group}"))
}

fn walk<K: TreeKind<Ptr = U32>>(
    reader: &Reader,
    printer: &mut Printer,
    group: AgNumber,
    (root, levels): (U32, U32),
) -> Result<()>
where
    K::Record: Layout,
    K::Key: Layout,
{
    let Some(level) = levels.get().checked_sub(1) else {
        bail!("the volume has no {}", K::TREE.name());
    };
    let mut seen = HashSet::new();
    blocks::<K>(reader, printer, group, (root.get(), u8::try_from(level)?), &mut seen)
}

/// Shows a block and those below it, in the order of keys.
fn blocks<K: TreeKind<Ptr = U32>>(
    reader: &Reader,
    printer: &mut Printer,
    group: AgNumber,
    (at, level): (u32, u8),
    seen: &mut HashSet<u32>,
) -> Result<()>
where
    K::Record: Layout,
    K::Key: Layout,
{
    let read = || -> Result<(Daddr, BtreeBlock<K>)> {
        let geometry = &reader.geometry;
        let daddr = geometry.ag_daddr(group, AgBlock(at));
        let bytes = reader.read(daddr, geometry.block_bytes)?;
        let expect = Expect::in_ag(geometry, daddr, group);
        Ok((daddr, BtreeBlock::verify(bytes, &expect, Some(level))?))
    };
    let name = K::TREE.name();
    if !seen.insert(at) {
        printer.bad(&anyhow::anyhow!(
            "{name}: block {at} of group {group} is in the tree twice"
        ));
        return Ok(());
    }
    match read() {
        Ok((daddr, block)) => {
            let which = [
                ("group", group.get().into()),
                ("agblock", at.into()),
                ("daddr", daddr.get()),
            ];
            printer.show(name, &which, &btree_report(&block))?;
            block
                .pointers()
                .iter()
                .try_for_each(|child| blocks::<K>(reader, printer, group, (child.get(), level.saturating_sub(1)), seen))
        }
        Err(error) => {
            printer.bad(&error.context(format!("{name}: block {at} of group {group}")));
            Ok(())
        }
    }
}

/// The map of a fork: below the root, which `inspect inode` shows.
fn map(reader: &Reader, printer: &mut Printer, ino: Ino, kind: ForkKind) -> Result<()> {
    let (_, inode) = reader.inode(ino)?;
    let Some(Fork::Btree(root)) = inode.fork(kind) else {
        bail!("this fork of inode {ino} has no tree: `cowshed inspect inode` shows all of it");
    };
    let mut seen = HashSet::new();
    root.pointers.iter().try_for_each(|child| {
        let below = (child.number(), root.level.saturating_sub(1));
        map_blocks(reader, printer, ino, below, &mut seen)
    })
}

fn map_blocks(
    reader: &Reader,
    printer: &mut Printer,
    ino: Ino,
    (at, level): (u64, u8),
    seen: &mut HashSet<u64>,
) -> Result<()> {
    if !seen.insert(at) {
        printer.bad(&anyhow::anyhow!("block {at} is in the map of inode {ino} twice"));
        return Ok(());
    }
    match reader.map_block(ino, at, level) {
        Ok((daddr, block)) => {
            let which = [("inode", ino.get()), ("fsblock", at), ("daddr", daddr.get())];
            printer.show(Bmap::TREE.name(), &which, &btree_report(&block))?;
            block
                .pointers()
                .iter()
                .try_for_each(|child| map_blocks(reader, printer, ino, (child.number(), level.saturating_sub(1)), seen))
        }
        Err(error) => {
            printer.bad(&error.context(format!("block {at} of the map of inode {ino}")));
            Ok(())
        }
    }
}
