//! File trees: inodes, names, extents, each subvolume on its own.
//!
//! Items come in key order, thus all items of an inode come together. What ties inodes to each
//! other (a name is said three times: directory item, directory index, inode reference) is kept per
//! inode as a hash sum that falls to zero, and is forgotten then: 48 bytes per inode whose names
//! are not balanced yet. Where something is left at the end, [`crate::names`] looks closer.

use std::collections::{BTreeSet, HashMap};

use btrfs_format::features::{incompat, inode_flags};
use btrfs_format::hash::{extref_hash, name_hash};
use btrfs_format::items::{FileExtent, InodeItem, compression, file_extent_type, file_type};
use btrfs_format::view::{DirEntry, FileExtentView, dir_entries, file_extent, fixed, inode_extrefs, inode_refs};
use btrfs_format::{Key, KeyType, ObjectId, TreeId};

use crate::block::Block;
use crate::compressed::decompress;
use crate::csums::CsumMap;
use crate::file_items::{
    INDICES, NAME_BYTES_MAX, ROOT_DIR, check_xattr, judge_entry, judge_extent, judge_inline, judge_inode, type_of_mode,
};
use crate::finding::{FindingId as Id, Site};
use crate::noted::Packed;
use crate::roots::Roots;
use crate::util::{SetHash, round_up};
use crate::walk::{Cx, Root, Shared, item_site, len_bytes};
use crate::written;

/// How many inodes are looked at closer, per tree.
const WATCH_MAX: usize = 1000;

/// Names of an inode that do not balance yet.
#[derive(Default)]
struct Link {
    sum: u128,
    /// One bit per file type that directory entries claim.
    entry_types: u16,
    /// The inode's own type; 0 while it has not been seen.
    inode_type: u8,
}

/// The inode whose items are being read.
struct Inode {
    ino: u64,
    item: Option<InodeItem>,
    names: u64,
    dir_bytes: u64,
    dir_sum: u128,
    nbytes: u64,
    extent_end: u64,
    gap: Option<u64>,
    dir_items: bool,
    extents: u64,
    /// Length of inline data, and whether that ends with a zero byte, as btrfs-convert and old
    /// kernels end the target of a symbolic link.
    inline: Option<(u64, bool)>,
}

impl Inode {
    fn new(ino: u64) -> Self {
        Self {
            ino,
            item: None,
            names: 0,
            dir_bytes: 0,
            dir_sum: 0,
            nbytes: 0,
            extent_end: 0,
            gap: None,
            dir_items: false,
            extents: 0,
            inline: None,
        }
    }
    fn has_flag(&self, flag: u64) -> bool {
        self.item.is_some_and(|item| item.flags.get() & flag != 0)
    }
}

/// The check of one file tree.
struct FsCheck<'c> {
    tree: TreeId,
    csums: Option<&'c CsumMap>,
    roots: &'c mut Roots,
    no_holes: bool,
    is_snapshot: bool,
    current: Option<Inode>,
    links: HashMap<u64, Link>,
    nameless: Vec<u64>,
    orphans: BTreeSet<u64>,
    watch: BTreeSet<u64>,
    root_dir_seen: bool,
}

fn name_sum(dir: u64, index: u64, name: &[u8]) -> u128 {
    SetHash::new().word(dir).word(index).bytes(name).sum()
}

fn entry_sum(entry: &DirEntry<'_>) -> u128 {
    let at = Key::from(entry.head.location);
    SetHash::new()
        .word(at.objectid.get())
        .word(at.ty.0.into())
        .word(entry.head.ty.into())
        .bytes(entry.name)
        .sum()
}

/// Checks one file tree. Returns false when it could not be walked whole.
pub(crate) fn check(cx: &mut Cx<'_>, root: &Root, roots: &mut Roots, csums: &CsumMap) -> bool {
    let is_snapshot = roots.get(root.tree).is_some_and(|tree| tree.is_snapshot);
    let mut fs = FsCheck {
        tree: root.tree,
        csums: (root.tree != TreeId::DATA_RELOC).then_some(csums),
        roots,
        no_holes: cx.vol.has_incompat(incompat::NO_HOLES),
        is_snapshot,
        current: None,
        links: HashMap::new(),
        nameless: Vec::new(),
        orphans: BTreeSet::new(),
        watch: BTreeSet::new(),
        root_dir_seen: false,
    };
    let whole = cx.walk(root, Shared::Enter, &mut |cx, leaf, first| {
        for (key, data) in leaf.items() {
            fs.item(cx, leaf, key, data, first);
        }
    });
    fs.finish_inode(cx);
    if whole {
        fs.finish_tree(cx, root);
    }
    whole
}

impl FsCheck<'_> {
    fn inode_site(&self, ino: u64) -> Site {
        Site::inode(self.tree, ino)
    }

    fn item(&mut self, cx: &mut Cx<'_>, leaf: &Block, key: Key, data: &[u8], first: bool) {
        let site = Site {
            inode: Some(key.objectid.get()),
            ..item_site(self.tree, leaf, key)
        };
        if key.objectid == ObjectId::ORPHAN && key.ty == KeyType::ORPHAN_ITEM {
            self.orphans.insert(key.offset);
            return;
        }
        if key.objectid > ObjectId::LAST_FREE {
            return;
        }
        if key.objectid < ObjectId::FIRST_FREE {
            if first {
                cx.sink.add(Id::ItemForeign, site, "does not belong in a file tree");
            }
            return;
        }
        let ino = key.objectid.get();
        if self.current.as_ref().is_none_or(|inode| inode.ino != ino) {
            self.finish_inode(cx);
            self.current = Some(Inode::new(ino));
        }
        match key.ty {
            KeyType::INODE_ITEM => self.inode_item(cx, site, key, data, first),
            KeyType::INODE_REF => self.inode_ref(cx, site, key, data, first),
            KeyType::INODE_EXTREF => self.inode_extref(cx, site, key, data, first),
            KeyType::DIR_ITEM => self.dir_item(cx, site, key, data, first),
            KeyType::DIR_INDEX => self.dir_index(cx, site, key, data, first),
            KeyType::XATTR_ITEM if first => check_xattr(cx, site, key, data),
            KeyType::EXTENT_DATA => self.extent_data(cx, site, key, data, first),
            KeyType::XATTR_ITEM | KeyType::VERITY_DESC_ITEM | KeyType::VERITY_MERKLE_ITEM => {}
            _ if first => cx.sink.add(Id::ItemForeign, site, "does not belong in a file tree"),
            _ => {}
        }
    }

    fn inode_item(&mut self, cx: &mut Cx<'_>, site: Site, key: Key, data: &[u8], first: bool) {
        let Some(item) = fixed::<InodeItem>(data).filter(|_| key.offset == 0) else {
            cx.sink.add(Id::InodeMode, site, "too short, or a wrong key");
            return;
        };
        cx.stats.inodes = cx.stats.inodes.saturating_add(1);
        if let Some(inode) = &mut self.current {
            inode.item = Some(*item);
        }
        if first {
            judge_inode(cx, site, item);
        }
        if key.objectid.get() == ROOT_DIR {
            self.root_dir_seen = true;
            if type_of_mode(item.mode.get()) != file_type::DIR {
                let what = format!("mode {:o}", item.mode);
                cx.sink.add(Id::RootDirInvalid, self.inode_site(ROOT_DIR), what);
            }
        }
    }

    fn count_name(&mut self, ino: u64, parent: u64, index: u64, name: &[u8]) {
        if let Some(inode) = &mut self.current {
            inode.names = inode.names.saturating_add(1);
        }
        if ino == ROOT_DIR && parent == ROOT_DIR {
            return;
        }
        let link = self.links.entry(ino).or_default();
        link.sum = link.sum.wrapping_sub(name_sum(parent, index, name));
    }

    fn inode_ref(&mut self, cx: &mut Cx<'_>, site: Site, key: Key, data: &[u8], first: bool) {
        let mut taken = 0u64;
        let mut bad = false;
        for (index, name) in inode_refs(data) {
            taken = taken.saturating_add(10).saturating_add(len_bytes(name));
            bad |= name.is_empty() || name.len() > NAME_BYTES_MAX;
            self.count_name(key.objectid.get(), key.offset, index, name);
        }
        if first && (bad || taken != len_bytes(data)) {
            cx.sink.add(Id::InodeRefInvalid, site, "a malformed name");
        }
    }

    fn inode_extref(&mut self, cx: &mut Cx<'_>, site: Site, key: Key, data: &[u8], first: bool) {
        let mut taken = 0u64;
        let mut bad = false;
        for (head, name) in inode_extrefs(data) {
            taken = taken.saturating_add(18).saturating_add(len_bytes(name));
            bad |= name.is_empty() || name.len() > NAME_BYTES_MAX;
            let parent = head.parent_objectid.get();
            if first && extref_hash(ObjectId(parent), name) != key.offset {
                let what = format!("the hash of {:?} is another", String::from_utf8_lossy(name));
                cx.sink.add(Id::InodeExtrefHash, site.clone(), what);
            }
            self.count_name(key.objectid.get(), parent, head.index.get(), name);
        }
        if first && (bad || taken != len_bytes(data)) {
            cx.sink.add(Id::InodeRefInvalid, site, "a malformed name");
        }
    }

    fn dir_item(&mut self, cx: &mut Cx<'_>, site: Site, key: Key, data: &[u8], first: bool) {
        let mut taken = 0u64;
        for entry in dir_entries(data) {
            taken = taken
                .saturating_add(30)
                .saturating_add(len_bytes(entry.name))
                .saturating_add(len_bytes(entry.data));
            if first {
                judge_entry(cx, site.clone(), &entry);
                if name_hash(entry.name) != key.offset {
                    let what = format!("the hash of {:?} is another", String::from_utf8_lossy(entry.name));
                    cx.sink.add(Id::DirEntryHash, site.clone(), what);
                }
            }
            if let Some(inode) = &mut self.current {
                inode.dir_items = true;
                inode.dir_bytes = inode.dir_bytes.saturating_add(len_bytes(entry.name));
                inode.dir_sum = inode.dir_sum.wrapping_add(entry_sum(&entry));
            }
            self.subvolume_entry(cx, &site, key, &entry, None);
        }
        if first && (taken != len_bytes(data) || data.is_empty()) {
            cx.sink.add(Id::DirEntryInvalid, site, "malformed");
        }
    }

    fn dir_index(&mut self, cx: &mut Cx<'_>, site: Site, key: Key, data: &[u8], first: bool) {
        let mut entries = dir_entries(data);
        let Some(entry) = entries.next() else {
            cx.sink.add(Id::DirEntryInvalid, site, "malformed");
            return;
        };
        if first {
            judge_entry(cx, site.clone(), &entry);
            if !INDICES.contains(&key.offset) {
                cx.sink
                    .add(Id::DirEntryInvalid, site.clone(), "no listing has this index");
            }
            if entries.next().is_some() {
                cx.sink
                    .add(Id::DirEntryInvalid, site.clone(), "more than one entry under one index");
            }
        }
        if let Some(inode) = &mut self.current {
            inode.dir_items = true;
            inode.dir_bytes = inode.dir_bytes.saturating_add(len_bytes(entry.name));
            inode.dir_sum = inode.dir_sum.wrapping_sub(entry_sum(&entry));
        }
        self.subvolume_entry(cx, &site, key, &entry, Some(key.offset));
        let at = Key::from(entry.head.location);
        if at.ty != KeyType::INODE_ITEM {
            return;
        }
        let target = at.objectid.get();
        let link = self.links.entry(target).or_default();
        link.sum = link
            .sum
            .wrapping_add(name_sum(key.objectid.get(), key.offset, entry.name));
        link.entry_types |= 1u16.checked_shl(entry.head.ty.into()).unwrap_or(0);
        self.settle(target);
    }

    /// Notes that a directory holds a subvolume; `index` where it is the index that says so.
    fn subvolume_entry(&mut self, cx: &mut Cx<'_>, site: &Site, key: Key, entry: &DirEntry<'_>, index: Option<u64>) {
        let at = Key::from(entry.head.location);
        if at.ty != KeyType::ROOT_ITEM {
            return;
        }
        let link = self.roots.links.get_mut(&(self.tree.get(), at.objectid.get()));
        let hook = link
            .as_ref()
            .and_then(|link| link.forward.as_ref().or(link.back.as_ref()))
            .filter(|hook| hook.dirid == key.objectid.get() && hook.name == entry.name)
            .filter(|hook| index.is_none_or(|index| index == hook.index))
            .is_some();
        match (link, hook) {
            (Some(link), true) if index.is_some() => link.index_seen = true,
            (Some(link), true) => link.item_seen = true,
            // A snapshot inherits the entries of subvolumes, not the subvolumes.
            _ if self.is_snapshot || !self.roots.whole => {}
            _ => {
                let what = format!("holds subvolume {}, which is not hooked here", at.objectid);
                cx.sink.add(Id::RootDirEntryStale, site.clone(), what);
            }
        }
    }

    /// Forgets the names of an inode when they balance.
    fn settle(&mut self, ino: u64) {
        if let Some(link) = self.links.get(&ino)
            && link.sum == 0
            && link.inode_type != 0
            && link.entry_types & !1u16.checked_shl(link.inode_type.into()).unwrap_or(0) == 0
        {
            self.links.remove(&ino);
        }
    }

    fn extent_data(&mut self, cx: &mut Cx<'_>, site: Site, key: Key, data: &[u8], first: bool) {
        let Some(inode) = &mut self.current else { return };
        inode.extents = inode.extents.saturating_add(1);
        let view = file_extent(data);
        let (len, fault) = match view {
            None => (0, Some("too short".to_owned())),
            Some(FileExtentView::Inline { head, data }) => {
                inode.inline = Some((len_bytes(data), data.ends_with(&[0])));
                let ram_bytes = head.ram_bytes.get();
                inode.nbytes = inode.nbytes.saturating_add(ram_bytes);
                let fault = judge_inline(head, data, key, cx.vol.sectorsize).err();
                if first
                    && cx.opts.data_csums
                    && fault.is_none()
                    && head.compression != compression::NONE
                    && let Err(what) = decompress(head.compression, data, ram_bytes, cx.vol.sectorsize)
                {
                    cx.sink.add(Id::DataUndecodable, site.clone(), what);
                }
                (round_up(ram_bytes, cx.vol.sectorsize), fault)
            }
            Some(FileExtentView::Regular(extent)) => {
                if extent.disk_bytenr.get() != 0 {
                    cx.note_quota(self.tree, extent.disk_bytenr.get());
                    inode.nbytes = inode.nbytes.saturating_add(extent.num_bytes.get());
                }
                let fault = judge_extent(extent, data.len(), key, cx.vol.sectorsize).err();
                (extent.num_bytes.get(), fault)
            }
        };
        if key.offset < inode.extent_end {
            let what = format!("begins before the end of the extent before it, {}", inode.extent_end);
            cx.sink.add(Id::FileExtentOverlap, site.clone(), what);
        } else if key.offset > inode.extent_end {
            inode.gap = inode.gap.or(Some(inode.extent_end));
        }
        inode.extent_end = inode.extent_end.max(key.offset.saturating_add(len));
        let nodatasum = inode.has_flag(inode_flags::NODATASUM);
        if !first {
            return;
        }
        let sound = fault.is_none();
        if let Some(what) = fault {
            cx.sink.add(Id::FileExtentInvalid, site.clone(), what);
        }
        if let (Some(FileExtentView::Regular(extent)), true) = (view, sound) {
            self.check_csums(cx, site, extent, nodatasum);
            if extent.compression != compression::NONE && extent.disk_bytenr.get() != 0 {
                cx.note_packed(&Packed {
                    addr: extent.disk_bytenr.get(),
                    len_bytes: extent.disk_num_bytes.get(),
                    ram_bytes: extent.ram_bytes.get(),
                    compression: extent.compression,
                });
            }
        }
    }

    fn check_csums(&self, cx: &mut Cx<'_>, site: Site, extent: &FileExtent, nodatasum: bool) {
        let Some(csums) = self.csums else { return };
        let disk = extent.disk_bytenr.get();
        if disk == 0 {
            return;
        }
        let (start, end) = if extent.compression == compression::NONE {
            let start = disk.saturating_add(extent.offset.get());
            (start, start.saturating_add(extent.num_bytes.get()))
        } else {
            (disk, disk.saturating_add(extent.disk_num_bytes.get()))
        };
        let covered = csums.covered_bytes(start, end);
        let len = end.saturating_sub(start);
        let prealloc = extent.ty == file_extent_type::PREALLOC;
        if nodatasum && extent.compression != compression::NONE {
            let what = format!("the extent at {disk} is compressed, and the inode is nodatasum");
            cx.sink.add(Id::CompressedUnsummed, site.clone(), what);
        }
        if nodatasum && covered > 0 {
            let what = format!("{covered} bytes at {start} have checksums, but the extent is nodatasum");
            cx.sink.add(Id::CsumUnexpected, site, what);
        } else if prealloc && covered > 0 {
            written::suspect(cx, (start, end), site);
        } else if !prealloc && !nodatasum && covered < len && csums.whole {
            let what = format!(
                "{} of {len} bytes at {start} have no checksums",
                len.saturating_sub(covered)
            );
            cx.sink.add(Id::CsumMissing, site, what);
        }
    }

    fn finish_inode(&mut self, cx: &mut Cx<'_>) {
        let Some(inode) = self.current.take() else { return };
        let ino = inode.ino;
        let site = self.inode_site(ino);
        let Some(item) = inode.item else {
            cx.sink.add(Id::InodeMissing, site, "has items, but no inode item");
            return;
        };
        let ty = type_of_mode(item.mode.get());
        if let Some(link) = self.links.get_mut(&ino) {
            link.inode_type = ty;
        }
        self.settle(ino);
        let nlink = u64::from(item.nlink.get());
        if nlink == 0 {
            self.nameless.push(ino);
        }
        if nlink != inode.names {
            let what = format!("{nlink} links, {} names", inode.names);
            cx.sink.add(Id::InodeNlink, site.clone(), what);
        } else if ty == file_type::DIR && nlink > 1 {
            cx.sink
                .add(Id::InodeNlink, site.clone(), format!("a directory with {nlink} links"));
        }
        if ty == file_type::DIR {
            self.finish_dir(cx, &inode, &item, site);
        } else {
            self.finish_file(cx, &inode, &item, ty, site);
        }
    }

    fn finish_dir(&mut self, cx: &mut Cx<'_>, inode: &Inode, item: &InodeItem, site: Site) {
        if inode.dir_bytes != item.size.get() {
            let what = format!("size {}, its names give {}", item.size, inode.dir_bytes);
            cx.sink.add(Id::DirSize, site.clone(), what);
        }
        if inode.dir_sum != 0 && self.watch.len() < WATCH_MAX {
            self.watch.insert(inode.ino);
        }
        if inode.extents > 0 {
            cx.sink.add(Id::InodeItemForeign, site, "a directory with file extents");
        }
    }

    fn finish_file(&mut self, cx: &mut Cx<'_>, inode: &Inode, item: &InodeItem, ty: u8, site: Site) {
        if inode.dir_items {
            cx.sink.add(
                Id::InodeItemForeign,
                site.clone(),
                "directory items on what is no directory",
            );
        }
        let has_data = ty == file_type::REG_FILE || ty == file_type::SYMLINK;
        if !has_data {
            if inode.extents > 0 {
                cx.sink
                    .add(Id::InodeItemForeign, site, "file extents on what is no file");
            }
            return;
        }
        // Linux writes no inode item while it drops the extents of a deleted file, in several
        // transactions if there are many.
        if inode.nbytes != item.nbytes.get() && item.nlink.get() > 0 {
            let what = format!("{} bytes, its extents have {}", item.nbytes, inode.nbytes);
            cx.sink.add(Id::FileNbytes, site.clone(), what);
        }
        if ty == file_type::SYMLINK {
            // Old kernels end targets with a zero byte, and the oldest ones count it.
            let (len, is_ended) = inode.inline.unwrap_or((0, false));
            let without = len.saturating_sub(u64::from(is_ended));
            if len == 0 || ![len, without].contains(&item.size.get()) {
                let what = format!("size {}, target of {without} bytes", item.size);
                cx.sink.add(Id::SymlinkInvalid, site.clone(), what);
            }
        }
        let size = item.size.get();
        if !self.no_holes && item.nlink.get() > 0 && size > 0 {
            let gap = inode.gap.or((inode.extent_end < size).then_some(inode.extent_end));
            if let Some(gap) = gap.filter(|&gap| gap < size) {
                cx.sink
                    .add(Id::FileExtentHole, site, format!("no extent at {gap}, size {size}"));
            }
        }
    }

    fn finish_tree(&mut self, cx: &mut Cx<'_>, root: &Root) {
        if !self.root_dir_seen {
            cx.sink
                .add(Id::RootDirMissing, Site::tree(self.tree), "no root directory");
        }
        for ino in std::mem::take(&mut self.nameless) {
            if !self.orphans.contains(&ino) {
                cx.sink.add(
                    Id::InodeOrphanMissing,
                    self.inode_site(ino),
                    "no name and no orphan item",
                );
            }
        }
        let mut left: Vec<u64> = self.links.keys().copied().collect();
        left.sort_unstable();
        for ino in left {
            if self.watch.len() < WATCH_MAX {
                self.watch.insert(ino);
            }
        }
        if !self.watch.is_empty() {
            crate::names::check(cx, root, &self.watch);
        }
    }
}
