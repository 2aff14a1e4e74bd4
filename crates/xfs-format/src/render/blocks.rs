//! The structures of a volume.

use super::value::{Report, Val};
use crate::Geometry;
use crate::ag::{AgfSector, AgflSector, AgiSector};
use crate::attr::{AttrEntryView, AttrLeafBlock, AttrValueView, ShortformAttr, attr_flags, shortform_entries};
use crate::btree::{BlockPtr, BmapRecord, BtreeBlock, TreeKind};
use crate::da::DaNodeEntry;
use crate::dir::{DataItem, DirEntry, DirFreeBlock, DirLeafEntry, NULL_BEST, ShortformDir};
use crate::dquot::{DiskDquot, dquot_type};
use crate::features::{
    features2, incompat, inode_flags, inode_flags2, log_incompat, quota, ro_compat, super_flags, version,
};
use crate::ids::DaBlock;
use crate::inode::{Fork, ForkFormat, ForkKind, Inode, mode};
use crate::superblock::Superblock;
use cowshed_layout::Layout;
use zerocopy::{Immutable, IntoBytes};

/// A superblock.
pub fn superblock_report(sb: &Superblock) -> Report {
    let mut report = Report::of(sb);
    let bits = u64::from(sb.versionnum.get()) & !version::NUMBER_MASK;
    report.set("version", Val::Num(sb.version().into()));
    report.set("version_features", Val::flags(bits, version::NAMES));
    report.set("features2", Val::flags(sb.features2.get(), features2::NAMES));
    report.set(
        "features_ro_compat",
        Val::flags(sb.features_ro_compat.get(), ro_compat::NAMES),
    );
    report.set(
        "features_incompat",
        Val::flags(sb.features_incompat.get(), incompat::NAMES),
    );
    report.set(
        "features_log_incompat",
        Val::flags(sb.features_log_incompat.get(), log_incompat::NAMES),
    );
    report.set("qflags", Val::flags(sb.qflags.get(), quota::NAMES));
    report.set("flags", Val::flags(sb.flags, super_flags::NAMES));
    report
}

/// The header of free space.
pub fn agf_report(agf: &AgfSector) -> Report {
    Report::of(agf.agf())
}

/// The header of inodes.
pub fn agi_report(agi: &AgiSector) -> Report {
    Report::of(agi.agi())
}

/// The list of spare blocks, all slots of it.
pub fn agfl_report(agfl: &AgflSector) -> Report {
    let mut report = agfl.header().map(Report::of).unwrap_or_default();
    let slots = agfl.slots().iter().map(|slot| match slot.get() {
        crate::AgBlock::NULL => Val::Null,
        block => Val::Num(block.into()),
    });
    report.set("bno", Val::List(slots.collect()));
    report
}

fn structures<T: Layout + IntoBytes + Immutable>(values: &[T]) -> Val {
    Val::List(values.iter().map(|value| Val::Report(Report::of(value))).collect())
}

fn extent(record: &BmapRecord) -> Val {
    let extent = record.extent();
    let mut report = Report::default();
    report.set("startoff", Val::Num(extent.offset.get()));
    report.set("startblock", Val::Num(extent.start.get()));
    report.set("blockcount", Val::Num(extent.blocks.into()));
    report.set("extentflag", Val::Num(extent.is_unwritten.into()));
    Val::Report(report)
}

/// A block of a tree: header, then records, or keys and pointers.
pub fn btree_report<K: TreeKind>(block: &BtreeBlock<K>) -> Report
where
    K::Record: Layout,
    K::Key: Layout,
{
    let mut report = match (K::TREE.is_long(), block.is_v5()) {
        (false, false) => header::<crate::btree::ShortHeader>(block.bytes()),
        (false, true) => header::<crate::btree::ShortHeaderV5>(block.bytes()),
        (true, false) => header::<crate::btree::LongHeader>(block.bytes()),
        (true, true) => header::<crate::btree::LongHeaderV5>(block.bytes()),
    };
    if block.is_leaf() {
        let records = block.records();
        let list = if K::TREE == crate::Tree::Bmap {
            let packed = records
                .iter()
                .filter_map(|r| zerocopy::FromBytes::read_from_bytes(r.as_bytes()).ok());
            Val::List(packed.map(|record: BmapRecord| extent(&record)).collect())
        } else {
            structures(records)
        };
        report.set("recs", list);
        return report;
    }
    let keys: Vec<K::Key> = block.keys().iter().map(K::low).collect();
    report.set("keys", structures(&keys));
    let pointers = block.pointers().iter().map(|ptr| Val::Num(ptr.number()));
    report.set("ptrs", Val::List(pointers.collect()));
    report
}

fn header<T: Layout + zerocopy::FromBytes + zerocopy::KnownLayout + Immutable + IntoBytes + zerocopy::Unaligned>(
    bytes: &[u8],
) -> Report {
    crate::view::at::<T>(bytes, 0).map(Report::of).unwrap_or_default()
}

/// An inode: core, then both forks.
pub fn inode_report(inode: &Inode, geometry: &Geometry) -> Report {
    let core = inode.core();
    let mut report = Report::of(&core);
    report.set("mode", Val::Octal(core.mode.get().into()));
    for (name, raw) in [
        ("atime", core.atime),
        ("mtime", core.mtime),
        ("ctime", core.ctime),
        ("crtime", core.crtime),
    ] {
        report.set(name, Val::Time(core.time(raw)));
    }
    for (name, raw) in [("format", core.format), ("aformat", core.aformat)] {
        let word = ForkFormat::from_raw(raw).map_or("unknown", ForkFormat::name);
        report.set(name, Val::Named(raw.into(), word));
    }
    report.set("nlink", Val::Num(core.link_count().into()));
    report.set("nextents", Val::Num(core.data_extents()));
    report.set("naextents", Val::Num(core.attr_extents().into()));
    report.set("projid", Val::Num(core.project_id().into()));
    report.set("flags", Val::flags(core.flags.get(), inode_flags::NAMES));
    report.set("flags2", Val::flags(core.flags2.get(), inode_flags2::NAMES));
    let mut report = report.without(&["onlink", "projid_lo", "projid_hi", "big_nextents", "anextents"]);
    if !inode.is_v5() {
        report = report.without(&[
            "crc",
            "changecount",
            "lsn",
            "flags2",
            "cowextsize",
            "crtime",
            "ino",
            "uuid",
        ]);
    }
    for (kind, name) in [(ForkKind::Data, "data"), (ForkKind::Attr, "attr")] {
        if let Some(fork) = inode.fork(kind) {
            let is_dir = core.file_type() == mode::DIR && kind == ForkKind::Data;
            report.set(name, Val::Report(fork_report(&fork, kind, is_dir, geometry)));
        }
    }
    report
}

fn fork_report(fork: &Fork<'_>, kind: ForkKind, is_dir: bool, geometry: &Geometry) -> Report {
    let mut report = Report::default();
    match fork {
        Fork::Dev(device) => report.set("dev", Val::Hex((*device).into())),
        Fork::Local(bytes) if is_dir => {
            if let Some(dir) = ShortformDir::read(bytes, geometry) {
                report.set("parent", Val::Num(dir.parent.get()));
                let entries = dir.entries().map(|entry| Val::Report(entry_report(&entry)));
                report.set("entries", Val::List(entries.collect()));
            }
        }
        Fork::Local(bytes) if kind == ForkKind::Attr => {
            let attrs = shortform_entries(bytes).map(|attr| Val::Report(short_attr(&attr)));
            report.set("attrs", Val::List(attrs.collect()));
        }
        Fork::Local(bytes) => report.set("target", Val::Bytes(bytes.to_vec())),
        Fork::Extents(records) => report.set("extents", Val::List(records.iter().map(extent).collect())),
        Fork::Btree(root) => {
            report.set("level", Val::Num(root.level.into()));
            let keys = root.keys.iter().map(|key| Val::Num(key.startoff.get()));
            report.set("keys", Val::List(keys.collect()));
            let pointers = root.pointers.iter().map(|ptr| Val::Num(ptr.get()));
            report.set("ptrs", Val::List(pointers.collect()));
        }
    }
    report
}

fn entry_report(entry: &DirEntry<'_>) -> Report {
    let mut report = Report::default();
    report.set("offset", Val::Num(entry.offset_bytes.into()));
    report.set("name", Val::Bytes(entry.name.to_vec()));
    report.set("inumber", Val::Num(entry.ino.get()));
    if let Some(ty) = entry.file_type {
        report.set("filetype", Val::Num(ty.to_raw().into()));
    }
    report
}

/// What a data block of a directory holds.
pub fn dir_report<'a>(items: impl Iterator<Item = DataItem<'a>>) -> Report {
    let items = items.map(|item| {
        Val::Report(match item {
            DataItem::Entry(entry) => entry_report(&entry),
            DataItem::Free {
                offset_bytes,
                len_bytes,
            } => {
                let mut report = Report::default();
                report.set("offset", Val::Num(offset_bytes.into()));
                report.set("free_bytes", Val::Num(len_bytes.into()));
                report
            }
        })
    });
    let mut report = Report::default();
    report.set("items", Val::List(items.collect()));
    report
}

fn siblings((back, forw): (DaBlock, DaBlock), report: &mut Report) {
    report.set("forw", Val::Num(forw.get().into()));
    report.set("back", Val::Num(back.get().into()));
}

/// A node of a hash tree: of a directory, or of attributes.
pub fn da_node_report(level: u8, neighbours: (DaBlock, DaBlock), entries: &[DaNodeEntry]) -> Report {
    let mut report = Report::default();
    siblings(neighbours, &mut report);
    report.set("level", Val::Num(level.into()));
    report.set("btree", structures(entries));
    report
}

fn bests(values: &[crate::U16]) -> Val {
    let best = |best: &crate::U16| match best.get() {
        NULL_BEST => Val::Null,
        best => Val::Num(best.into()),
    };
    Val::List(values.iter().map(best).collect())
}

/// A leaf of a directory's hash index; free spans are those of the only leaf.
pub fn dir_leaf_report(neighbours: (DaBlock, DaBlock), entries: &[DirLeafEntry], free: &[crate::U16]) -> Report {
    let mut report = Report::default();
    siblings(neighbours, &mut report);
    report.set("ents", structures(entries));
    if !free.is_empty() {
        report.set("bests", bests(free));
    }
    report
}

/// A block of a directory's free index.
pub fn dir_free_report(block: &DirFreeBlock) -> Report {
    let mut report = Report::default();
    report.set("firstdb", Val::Num(block.first_data_block().into()));
    report.set("bests", bests(block.bests()));
    report
}

fn attr_name(flags: u8, name: &[u8]) -> Report {
    let mut report = Report::default();
    report.set("flags", Val::flags(flags, attr_flags::NAMES));
    report.set("name", Val::Bytes(name.to_vec()));
    report
}

fn short_attr(attr: &ShortformAttr<'_>) -> Report {
    let mut report = attr_name(attr.flags, attr.name);
    report.set("value", Val::Bytes(attr.value.to_vec()));
    report
}

/// The attributes of a leaf.
pub fn attr_leaf_report(leaf: &AttrLeafBlock) -> Report {
    let entry = |entry: AttrEntryView<'_>| {
        let mut report = attr_name(entry.flags, entry.name);
        report.set("hashval", Val::Hex(entry.hash.into()));
        match entry.value {
            AttrValueView::Local(value) => report.set("value", Val::Bytes(value.to_vec())),
            AttrValueView::Remote { block, len_bytes } => {
                report.set("valueblk", Val::Num(block.get().into()));
                report.set("valuelen", Val::Num(len_bytes.into()));
            }
        }
        Val::Report(report)
    };
    let mut report = Report::default();
    siblings(leaf.siblings(), &mut report);
    report.set("entries", Val::List(leaf.entries().map(entry).collect()));
    report
}

/// A quota.
pub fn dquot_report(dquot: &DiskDquot) -> Report {
    let mut report = Report::of(dquot);
    let word = match dquot.quota_type & !dquot_type::BIGTIME {
        dquot_type::USER => "user",
        dquot_type::PROJECT => "project",
        dquot_type::GROUP => "group",
        _ => "none",
    };
    report.set("quota_type", Val::Named(dquot.quota_type.into(), word));
    report
}
