//! The fsync log: whatever is wrong with it, the next mount fails, or makes it part of the volume.

mod inodes;

use std::collections::BTreeSet;

use btrfs_format::features::{block_group, inode_flags};
use btrfs_format::items::{InodeItem, compression, file_extent_type};
use btrfs_format::view::{FileExtentView, dir_entries, file_extent, fixed, inode_extrefs, inode_refs, root_item};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};

use crate::block::Block;
use crate::compressed::decompress;
use crate::csums::{self, CsumMap, Sums};
use crate::file_items::{
    INDICES, NAME_BYTES_MAX, ROOT_DIR, is_dots_or_slashed, judge_entry, judge_extent, judge_inline,
};
use crate::finding::{FindingId as Id, Site};
use crate::noted::Packed;
use crate::roots::Roots;
use crate::util::round_up;
use crate::walk::{Cx, Root, Shared, item_site, len_bytes};
use inodes::{Inodes, say};

/// Checksums of a log that are kept, in bytes: those of 4 GiB of data. Of larger logs the rest is
/// not compared.
const SUMS_BYTES_MAX: u64 = 32 << 20;

/// What all logs lead to.
#[derive(Default)]
struct Found {
    /// Data whose checksums replay takes from the log, where it has them: start and end.
    data: BTreeSet<(u64, u64)>,
    /// Of these, what must have checksums: the log, or the volume, has them.
    summed: Vec<(u64, u64)>,
    /// What may have none.
    unsummed: Vec<(u64, u64)>,
    /// Of each log. They are not put together: items of two logs may overlap, where data was cloned
    /// between subvolumes.
    sums: Vec<Sums>,
    sums_bytes: u64,
    /// The last inode item with a name: its number, and whether its data has checksums.
    inode: Option<(u64, bool)>,
    /// The last file extent: its inode, and where it ends.
    last: Option<(u64, u64)>,
}

impl Found {
    /// For an inode that was not logged, the volume has the flag; it is not judged here.
    fn note_data(&mut self, range: (u64, u64), has_sums: Option<bool>) {
        self.data.insert(range);
        match has_sums {
            Some(true) => self.summed.push(range),
            Some(false) => self.unsummed.push(range),
            None => {}
        }
    }
}

/// Reads the log tree and the logs of all subvolumes. Returns the data that they lead to, unless it
/// is not known whole.
pub(crate) fn check(cx: &mut Cx<'_>, roots: &Roots, volume: &CsumMap) -> Option<CsumMap> {
    let addr = cx.vol.sb.log_root.get();
    if addr == 0 {
        return Some(CsumMap::default());
    }
    let root = Root {
        tree: TreeId::TREE_LOG,
        addr,
        level: cx.vol.sb.log_root_level,
        generation: cx.vol.sb.generation.get().saturating_add(1),
        drop: None,
        is_dead: false,
        log: true,
        last_snapshot: None,
    };
    cx.sink.add(
        Id::LogPresent,
        root.site(),
        "a log waits to be replayed at the next mount",
    );
    let mut logs = Vec::new();
    let mut whole = cx.walk(&root, Shared::Skip, &mut |cx, leaf, _| {
        for (key, data) in leaf.items() {
            let item = root_item(data).filter(|_| key.ty == KeyType::ROOT_ITEM && TreeId(key.offset).is_subvolume());
            match item {
                Some(item) => logs.push((key.offset, item)),
                None => say(cx, leaf, key, "names no log of a subvolume".into()),
            }
        }
    });
    let mut found = Found::default();
    for (subvolume, item) in logs {
        let log = Root {
            addr: item.bytenr.get(),
            level: item.level,
            generation: item.generation.get(),
            ..root.clone()
        };
        (found.last, found.inode) = (None, None);
        found.sums.push(Sums::new());
        let mut inodes = Inodes::default();
        let is_whole = cx.walk(&log, Shared::Skip, &mut |cx, leaf, _| {
            inodes.note(leaf);
            for (key, data) in leaf.items() {
                read_item(cx, &mut found, leaf, key, data);
            }
        });
        if !is_whole {
            let what = format!("the log of tree {subvolume} cannot be read whole");
            cx.sink.add(Id::LogInvalid, log.site(), what);
            whole = false;
        }
        // The log of a subvolume that is being deleted goes with it.
        if let Some(tree) = roots.get(TreeId(subvolume)).filter(|tree| is_whole && tree.refs > 0) {
            cx.quiet_walk = true;
            cx.walk(&log, Shared::Enter, &mut |cx, leaf, _| {
                inodes.judge(cx, &tree.root, leaf)
            });
            cx.quiet_walk = false;
            inodes.judge_ways_up(cx, &tree.root);
        }
    }
    if !whole {
        cx.sink.add(Id::LogInvalid, root.site(), "the log cannot be read whole");
    }
    let data = csums::ranges_of(&found.data);
    if cx.opts.data_csums {
        for sums in &found.sums {
            csums::verify_ranges(cx, &data, sums);
        }
        if whole && volume.whole && found.sums_bytes <= SUMS_BYTES_MAX {
            check_covered(cx, &found, volume);
        }
    }
    whole.then_some(data)
}

/// Data of the log has checksums where its inode says so, there or in the volume, and else none:
/// without them it cannot be read after the replay; with them, the replayed volume would be
/// damaged.
fn check_covered(cx: &mut Cx<'_>, found: &Found, volume: &CsumMap) {
    let in_log = csums::runs_of(&found.sums, cx.vol.csum.size_bytes(), cx.vol.sectorsize);
    for &(start, end) in &found.summed {
        let mut missing = 0u64;
        for (from, to) in in_log.gaps(start, end) {
            let here = volume.covered_bytes(from, to);
            missing = missing.saturating_add(to.saturating_sub(from).saturating_sub(here));
        }
        if missing > 0 {
            let what = format!("{missing} bytes of logged data from {start} to {end} have no checksums");
            cx.sink.add(Id::LogInvalid, Site::addr(start), what);
        }
    }
    for &(start, end) in &found.unsummed {
        if in_log.covered_bytes(start, end) > 0 || volume.covered_bytes(start, end) > 0 {
            let what = format!("logged data from {start} to {end} has checksums, and its inode says that it has none");
            cx.sink.add(Id::LogInvalid, Site::addr(start), what);
        }
    }
}

fn read_item(cx: &mut Cx<'_>, found: &mut Found, leaf: &Block, key: Key, data: &[u8]) {
    if key.ty == KeyType::EXTENT_CSUM && key.objectid == ObjectId::EXTENT_CSUM {
        found.sums_bytes = found.sums_bytes.saturating_add(len_bytes(data));
        if cx.opts.data_csums
            && found.sums_bytes <= SUMS_BYTES_MAX
            && let Some(sums) = found.sums.last_mut()
        {
            sums.insert(key.offset, data.to_vec());
        }
        return;
    }
    if key.ty == KeyType::INODE_ITEM
        && let Some(inode) = fixed::<InodeItem>(data)
    {
        let has_sums = inode.flags.get() & inode_flags::NODATASUM == 0;
        found.inode = (inode.nlink.get() > 0).then_some((key.objectid.get(), has_sums));
    }
    let is_inode = (ObjectId::FIRST_FREE..=ObjectId::LAST_FREE).contains(&key.objectid);
    match key.ty {
        _ if !is_inode => say(cx, leaf, key, "does not belong in a log".into()),
        KeyType::DIR_INDEX => {
            for entry in dir_entries(data) {
                judge_entry(cx, item_site(TreeId::TREE_LOG, leaf, key), &entry);
                judge_name(cx, leaf, key, (key.offset, entry.name));
            }
        }
        // The root directory calls itself its parent.
        KeyType::INODE_REF if key.objectid.get() == ROOT_DIR && key.offset == ROOT_DIR => {}
        KeyType::INODE_REF => inode_refs(data).for_each(|name| judge_name(cx, leaf, key, name)),
        KeyType::INODE_EXTREF => {
            let names = inode_extrefs(data).map(|(head, name)| (head.index.get(), name));
            names.for_each(|name| judge_name(cx, leaf, key, name));
        }
        KeyType::EXTENT_DATA => read_extent(cx, found, leaf, key, data),
        KeyType::INODE_ITEM
        | KeyType::XATTR_ITEM
        | KeyType::VERITY_DESC_ITEM
        | KeyType::VERITY_MERKLE_ITEM
        | KeyType::DIR_ITEM
        | KeyType::DIR_LOG_ITEM
        | KeyType::DIR_LOG_INDEX => {}
        _ => say(cx, leaf, key, "does not belong in a log".into()),
    }
}

/// An index and a name.
fn judge_name(cx: &mut Cx<'_>, leaf: &Block, key: Key, (index, name): (u64, &[u8])) {
    if !INDICES.contains(&index) {
        say(cx, leaf, key, format!("a name with index {index}"));
    }
    if name.is_empty() || name.len() > NAME_BYTES_MAX || is_dots_or_slashed(name) {
        let shown = String::from_utf8_lossy(name);
        say(cx, leaf, key, format!("{shown:?} is no name"));
    }
}

fn read_extent(cx: &mut Cx<'_>, found: &mut Found, leaf: &Block, key: Key, data: &[u8]) {
    let sectorsize = cx.vol.sectorsize;
    let ino = key.objectid.get();
    let (len, fault) = match file_extent(data) {
        None => (0, Some("too short".to_owned())),
        Some(FileExtentView::Inline { head, data }) => {
            let mut fault = judge_inline(head, data, key, sectorsize).err();
            if fault.is_none() && cx.opts.data_csums && head.compression != compression::NONE {
                fault = decompress(head.compression, data, head.ram_bytes.get(), sectorsize).err();
            }
            (round_up(head.ram_bytes.get(), sectorsize), fault)
        }
        Some(FileExtentView::Regular(extent)) => {
            let (addr, disk_len) = (extent.disk_bytenr.get(), extent.disk_num_bytes.get());
            let fault = judge_extent(extent, data.len(), key, sectorsize).err();
            let end = addr.saturating_add(disk_len);
            if fault.is_none() && addr != 0 {
                let is_other = |e: &&crate::references::Extent| !e.is_data() || e.addr != addr || e.end() != end;
                let other = cx.extents.overlapping(addr, end).find(is_other).map(|e| e.addr);
                if let Some(other) = other {
                    say(cx, leaf, key, format!("its data lies on the extent at {other}"));
                }
                if cx
                    .vol
                    .chunks
                    .at(addr)
                    .is_none_or(|chunk| chunk.ty & block_group::DATA == 0)
                {
                    say(cx, leaf, key, format!("its data at {addr} lies in no chunk of data"));
                }
                let inode = found.inode.filter(|(last, _)| *last == ino);
                let has_sums = inode.map(|(_, has_sums)| has_sums);
                if extent.compression != compression::NONE {
                    found.note_data((addr, end), has_sums);
                    cx.note_packed(&Packed {
                        addr,
                        len_bytes: disk_len,
                        ram_bytes: extent.ram_bytes.get(),
                        compression: extent.compression,
                    });
                } else if extent.ty == file_extent_type::REG {
                    let start = addr.saturating_add(extent.offset.get());
                    found.note_data((start, start.saturating_add(extent.num_bytes.get())), has_sums);
                }
            }
            (extent.num_bytes.get(), fault)
        }
    };
    if let Some(what) = fault {
        say(cx, leaf, key, what);
    }
    if let Some((_, end)) = found.last.filter(|(last, end)| *last == ino && *end > key.offset) {
        say(
            cx,
            leaf,
            key,
            format!("begins before the end of the extent before it, {end}"),
        );
    }
    found.last = Some((ino, key.offset.saturating_add(len)));
}
