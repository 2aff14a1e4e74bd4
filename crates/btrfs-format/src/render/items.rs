//! What each item says, line by line.

use super::value::{Lines, Val, block_group_text, names_text};
use crate::features::{extent_flags, inode_flags, root_flags};
use crate::ids::ObjectId;
use crate::items::{
    BlockGroupItem, DevExtent, DevItem, DevStats, DirLogItem, FileExtentHead, FreeSpaceHeader, FreeSpaceInfo,
    InodeItem, compression, file_extent_type, file_type,
};
use crate::key::{Key, KeyType};
use crate::view::{self, BackRef, FileExtentView};
use crate::{U32, U64};
use cowshed_layout::len_u64;

fn num(n: U64) -> Val {
    Val::Num(n.get())
}
fn num32(n: U32) -> Val {
    Val::Num(n.get().into())
}
fn small(n: impl Into<u64>) -> Val {
    Val::Num(n.into())
}

/// Describes an item. One that is shorter than it says is described as far as it goes.
pub(super) fn describe(key: &Key, data: &[u8]) -> Lines {
    let mut out = Lines::default();
    // An item too short to be described has said what it can.
    let _ = match key.ty {
        KeyType::INODE_ITEM => view::fixed(data).map(|inode| inode_item(&mut out, inode)),
        KeyType::INODE_REF | KeyType::INODE_EXTREF => {
            inode_refs(&mut out, key, data);
            Some(())
        }
        KeyType::DIR_ITEM | KeyType::DIR_INDEX | KeyType::XATTR_ITEM => {
            dir_entries(&mut out, data);
            Some(())
        }
        KeyType::DIR_LOG_ITEM | KeyType::DIR_LOG_INDEX => {
            view::fixed(data).map(|log: &DirLogItem| out.line("dir log", vec![("end", num(log.end))]))
        }
        KeyType::ORPHAN_ITEM => {
            out.line("orphan item", vec![]);
            Some(())
        }
        KeyType::ROOT_ITEM => root_item(&mut out, data),
        KeyType::ROOT_REF => root_ref(&mut out, "root ref key", data),
        KeyType::ROOT_BACKREF => root_ref(&mut out, "root backref key", data),
        KeyType::EXTENT_DATA => file_extent(&mut out, data),
        KeyType::EXTENT_ITEM | KeyType::METADATA_ITEM => extent_item(&mut out, key, data),
        KeyType::TREE_BLOCK_REF => {
            out.line("tree block backref", vec![]);
            Some(())
        }
        KeyType::SHARED_BLOCK_REF => {
            out.line("shared block backref", vec![]);
            Some(())
        }
        KeyType::EXTENT_DATA_REF => view::keyed_back_ref(key, data).map(|found| back_ref(&mut out, found)),
        KeyType::SHARED_DATA_REF => match view::keyed_back_ref(key, data) {
            Some(BackRef::SharedData { count, .. }) => {
                out.line("shared data backref", vec![("count", small(count))]);
                Some(())
            }
            _ => None,
        },
        _ => volume_item(&mut out, key, data),
    };
    out
}

/// Items of the trees that hold the volume together.
fn volume_item(out: &mut Lines, key: &Key, data: &[u8]) -> Option<()> {
    match key.ty {
        KeyType::BLOCK_GROUP_ITEM => view::fixed(data).map(|group| block_group(out, group)),
        KeyType::FREE_SPACE_INFO => view::fixed(data).map(|info: &FreeSpaceInfo| {
            let fields = vec![("extent count", num32(info.extent_count)), ("flags", num32(info.flags))];
            out.line("free space info", fields);
        }),
        KeyType::FREE_SPACE_EXTENT => {
            out.line("free space extent", vec![]);
            Some(())
        }
        KeyType::FREE_SPACE_BITMAP => {
            out.line("free space bitmap", vec![]);
            Some(())
        }
        KeyType::CHUNK_ITEM => chunk(out, data),
        KeyType::DEV_ITEM => view::fixed(data).map(|dev| dev_item(out, dev)),
        KeyType::DEV_EXTENT => view::fixed(data).map(|extent| dev_extent(out, extent)),
        KeyType::PERSISTENT_ITEM => persistent(out, key, data),
        KeyType::EXTENT_CSUM => {
            csum(out, key, data);
            Some(())
        }
        KeyType::UUID_SUBVOL | KeyType::UUID_RECEIVED_SUBVOL => {
            uuid_subvolumes(out, data);
            Some(())
        }
        KeyType::QGROUP_STATUS | KeyType::QGROUP_INFO | KeyType::QGROUP_LIMIT => qgroup(out, key, data),
        KeyType::QGROUP_RELATION => Some(()),
        KeyType::UNTYPED if key.objectid == ObjectId::FREE_SPACE => view::fixed(data).map(|h| space_cache(out, h)),
        _ => {
            out.line("", vec![("unknown item, size", Val::Num(len_u64(data)))]);
            None
        }
    }
}

fn inode_item(out: &mut Lines, inode: &InodeItem) {
    out.line(
        "",
        vec![
            ("generation", num(inode.generation)),
            ("transid", num(inode.transid)),
            ("size", num(inode.size)),
            ("nbytes", num(inode.nbytes)),
        ],
    );
    out.line(
        "",
        vec![
            ("block group", num(inode.block_group)),
            ("mode", Val::Octal(inode.mode.get())),
            ("links", num32(inode.nlink)),
            ("uid", num32(inode.uid)),
            ("gid", num32(inode.gid)),
            ("rdev", num(inode.rdev)),
        ],
    );
    out.line(
        "",
        vec![
            ("sequence", num(inode.sequence)),
            ("flags", Val::Flags(inode.flags.get(), inode_flags::NAMES)),
        ],
    );
    for (name, time) in [
        ("atime", inode.atime),
        ("ctime", inode.ctime),
        ("mtime", inode.mtime),
        ("otime", inode.otime),
    ] {
        out.line("", vec![(name, Val::Time(time))]);
    }
}

fn inode_refs(out: &mut Lines, key: &Key, data: &[u8]) {
    if key.ty == KeyType::INODE_REF {
        for (index, name) in view::inode_refs(data) {
            out.element("refs", "", named(vec![("index", Val::Num(index))], name));
        }
    } else {
        for (head, name) in view::inode_extrefs(data) {
            let fields = vec![("index", num(head.index)), ("parent", num(head.parent_objectid))];
            out.element("refs", "", named(fields, name));
        }
    }
}

fn named(mut fields: Vec<(&'static str, Val)>, name: &[u8]) -> Vec<(&'static str, Val)> {
    fields.push(("namelen", Val::Num(len_u64(name))));
    fields.push(("name:", Val::Bytes(name.to_vec())));
    fields
}

fn file_type_name(ty: u8) -> &'static str {
    match ty {
        file_type::REG_FILE => "FILE",
        file_type::DIR => "DIR",
        file_type::CHRDEV => "CHRDEV",
        file_type::BLKDEV => "BLKDEV",
        file_type::FIFO => "FIFO",
        file_type::SOCK => "SOCK",
        file_type::SYMLINK => "SYMLINK",
        file_type::XATTR => "XATTR",
        _ => "UNKNOWN",
    }
}

fn dir_entries(out: &mut Lines, data: &[u8]) {
    for entry in view::dir_entries(data) {
        let head = entry.head;
        let location = Key::from(head.location);
        let fields = vec![
            ("location key", Val::Key(location)),
            ("type", Val::Word(file_type_name(head.ty))),
        ];
        out.element("entries", "", fields);
        let fields = vec![
            ("transid", num(head.transid)),
            ("data_len", small(head.data_len.get())),
            ("name_len", small(head.name_len.get())),
        ];
        out.element_more("entries", fields);
        out.element_more("entries", vec![("name:", Val::Bytes(entry.name.to_vec()))]);
        if !entry.data.is_empty() {
            out.element_more("entries", vec![("data", Val::Bytes(entry.data.to_vec()))]);
        }
    }
}

fn root_item(out: &mut Lines, data: &[u8]) -> Option<()> {
    let root = view::root_item(data)?;
    out.line(
        "",
        vec![
            ("generation", num(root.generation)),
            ("root_dirid", num(root.root_dirid)),
            ("bytenr", num(root.bytenr)),
            ("byte_limit", num(root.byte_limit)),
            ("bytes_used", num(root.bytes_used)),
        ],
    );
    out.line(
        "",
        vec![
            ("last_snapshot", num(root.last_snapshot)),
            ("flags", Val::Flags(root.flags.get(), root_flags::NAMES)),
            ("refs", num32(root.refs)),
        ],
    );
    out.line(
        "",
        vec![
            ("drop_progress key", Val::Key(root.drop_progress.into())),
            ("drop_level", small(root.drop_level)),
        ],
    );
    out.line(
        "",
        vec![("level", small(root.level)), ("generation_v2", num(root.generation_v2))],
    );
    // An old kernel leaves the second half as it was.
    if root.generation != root.generation_v2 {
        return Some(());
    }
    out.line("", vec![("uuid", Val::Uuid(root.uuid))]);
    out.line("", vec![("parent_uuid", Val::Uuid(root.parent_uuid))]);
    out.line("", vec![("received_uuid", Val::Uuid(root.received_uuid))]);
    out.line(
        "",
        vec![
            ("ctransid", num(root.ctransid)),
            ("otransid", num(root.otransid)),
            ("stransid", num(root.stransid)),
            ("rtransid", num(root.rtransid)),
        ],
    );
    for (name, time) in [
        ("ctime", root.ctime),
        ("otime", root.otime),
        ("stime", root.stime),
        ("rtime", root.rtime),
    ] {
        out.line("", vec![(name, Val::Time(time))]);
    }
    Some(())
}

fn root_ref(out: &mut Lines, head: &'static str, data: &[u8]) -> Option<()> {
    let (raw, name) = view::root_ref(data)?;
    let fields = vec![
        ("dirid", num(raw.dirid)),
        ("sequence", num(raw.sequence)),
        ("name", Val::Bytes(name.to_vec())),
    ];
    out.line(head, fields);
    Some(())
}

fn compression_val(raw: u8) -> Val {
    let name = match raw {
        compression::NONE => "none",
        compression::ZLIB => "zlib",
        compression::LZO => "lzo",
        compression::ZSTD => "zstd",
        _ => "unknown",
    };
    Val::Named(raw.into(), name)
}

fn file_extent(out: &mut Lines, data: &[u8]) -> Option<()> {
    let (head, _) = zerocopy::FromBytes::ref_from_prefix(data).ok()?;
    let head: &FileExtentHead = head;
    let ty = match head.ty {
        file_extent_type::INLINE => "inline",
        file_extent_type::REG => "regular",
        file_extent_type::PREALLOC => "prealloc",
        _ => "unknown",
    };
    let fields = vec![
        ("generation", num(head.generation)),
        ("type", Val::Named(head.ty.into(), ty)),
    ];
    out.line("", fields);
    match view::file_extent(data)? {
        FileExtentView::Inline { head, data } => {
            let fields = vec![
                ("size", Val::Num(len_u64(data))),
                ("ram_bytes", num(head.ram_bytes)),
                ("compression", compression_val(head.compression)),
            ];
            out.line("inline extent data", fields);
        }
        FileExtentView::Regular(extent) => {
            let prealloc = extent.ty == file_extent_type::PREALLOC;
            let word = if prealloc { "prealloc data" } else { "extent data" };
            out.line(
                word,
                vec![
                    ("disk byte|disk_bytenr", num(extent.disk_bytenr)),
                    ("nr|disk_num_bytes", num(extent.disk_num_bytes)),
                ],
            );
            let mut fields = vec![("offset", num(extent.offset)), ("nr|num_bytes", num(extent.num_bytes))];
            if !prealloc {
                fields.push(("ram|ram_bytes", num(extent.ram_bytes)));
            }
            out.line(word, fields);
            if !prealloc {
                out.line("extent", vec![("compression", compression_val(extent.compression))]);
            }
        }
    }
    Some(())
}

fn extent_item(out: &mut Lines, key: &Key, data: &[u8]) -> Option<()> {
    let extent = view::ExtentView::new(key, data)?;
    let flags = extent.head.flags.get();
    out.line(
        "",
        vec![
            ("refs", num(extent.head.refs)),
            ("gen|generation", num(extent.head.generation)),
            ("flags", Val::Names(names_text(flags, extent_flags::NAMES, "none"))),
        ],
    );
    if let Some(info) = extent.block_info {
        let fields = vec![("key", Val::Key(info.key.into())), ("level", small(info.level))];
        out.line("tree block", fields);
    } else if key.ty == KeyType::METADATA_ITEM {
        out.line("tree block skinny", vec![("level", Val::Num(key.offset))]);
    }
    for found in extent.inline_refs() {
        back_ref(out, found);
    }
    Some(())
}

fn back_ref(out: &mut Lines, found: BackRef) {
    let (head, fields) = match found {
        BackRef::TreeBlock { root } => ("tree block backref", vec![("root", Val::Object(root))]),
        BackRef::SharedBlock { parent } => ("shared block backref", vec![("parent", Val::Num(parent))]),
        BackRef::ExtentData {
            root,
            objectid,
            offset,
            count,
        } => (
            "extent data backref",
            vec![
                ("root", Val::Object(root)),
                ("objectid", Val::Num(objectid)),
                ("offset", Val::Signed(offset.cast_signed())),
                ("count", small(count)),
            ],
        ),
        BackRef::SharedData { parent, count } => (
            "shared data backref",
            vec![("parent", Val::Num(parent)), ("count", small(count))],
        ),
        BackRef::Owner { root } => ("extent owner", vec![("root", Val::Object(root))]),
    };
    out.element("backrefs", head, fields);
}

fn block_group(out: &mut Lines, group: &BlockGroupItem) {
    let fields = vec![
        ("used", num(group.used)),
        ("chunk_objectid", num(group.chunk_objectid)),
        ("flags", Val::Names(block_group_text(group.flags.get()))),
    ];
    out.line("block group", fields);
}

/// A chunk, of a tree or of the superblock.
pub(super) fn chunk(out: &mut Lines, data: &[u8]) -> Option<()> {
    let (head, stripes) = view::chunk(data)?;
    out.line(
        "",
        vec![
            ("length", num(head.length)),
            ("owner", num(head.owner)),
            ("stripe_len", num(head.stripe_len)),
            ("type", Val::Names(block_group_text(head.ty.get()))),
        ],
    );
    out.line(
        "",
        vec![
            ("io_align", num32(head.io_align)),
            ("io_width", num32(head.io_width)),
            ("sector_size", num32(head.sector_size)),
        ],
    );
    out.line(
        "",
        vec![
            ("num_stripes", small(head.num_stripes.get())),
            ("sub_stripes", small(head.sub_stripes.get())),
        ],
    );
    for (stripe, n) in stripes.iter().zip(0_u64..) {
        let fields = vec![
            ("stripe", Val::Num(n)),
            ("devid", num(stripe.devid)),
            ("offset", num(stripe.offset)),
        ];
        out.push("", 1, Some(("stripes", true)), fields);
        let fields = vec![("dev_uuid", Val::Uuid(stripe.dev_uuid))];
        out.push("", 1, Some(("stripes", false)), fields);
    }
    Some(())
}

fn dev_item(out: &mut Lines, dev: &DevItem) {
    out.line(
        "",
        vec![
            ("devid", num(dev.devid)),
            ("total_bytes", num(dev.total_bytes)),
            ("bytes_used", num(dev.bytes_used)),
        ],
    );
    out.line(
        "",
        vec![
            ("io_align", num32(dev.io_align)),
            ("io_width", num32(dev.io_width)),
            ("sector_size", num32(dev.sector_size)),
            ("type", num(dev.ty)),
        ],
    );
    out.line(
        "",
        vec![
            ("generation", num(dev.generation)),
            ("start_offset", num(dev.start_offset)),
            ("dev_group", num32(dev.dev_group)),
        ],
    );
    out.line(
        "",
        vec![
            ("seek_speed", small(dev.seek_speed)),
            ("bandwidth", small(dev.bandwidth)),
        ],
    );
    out.line("", vec![("uuid", Val::Uuid(dev.uuid))]);
    out.line("", vec![("fsid", Val::Uuid(dev.fsid))]);
}

fn dev_extent(out: &mut Lines, extent: &DevExtent) {
    out.line("dev extent", vec![("chunk_tree", num(extent.chunk_tree))]);
    out.line(
        "",
        vec![
            ("chunk_objectid", num(extent.chunk_objectid)),
            ("chunk_offset", num(extent.chunk_offset)),
            ("length", num(extent.length)),
        ],
    );
    out.line("", vec![("chunk_tree_uuid", Val::Uuid(extent.chunk_tree_uuid))]);
}

fn persistent(out: &mut Lines, key: &Key, data: &[u8]) -> Option<()> {
    if key.objectid != ObjectId::DEV_STATS {
        return None;
    }
    out.line(
        "persistent item",
        vec![("objectid", Val::Word("DEV_STATS")), ("offset", Val::Num(key.offset))],
    );
    out.line("device stats", vec![]);
    let stats: &DevStats = view::fixed(data)?;
    let [write, read, flush, corruption, generation] = stats.values;
    out.line(
        "",
        vec![
            ("write_errs", num(write)),
            ("read_errs", num(read)),
            ("flush_errs", num(flush)),
            ("corruption_errs", num(corruption)),
            ("generation", num(generation)),
        ],
    );
    Some(())
}

/// The checksums' type is not known here: as for four bytes each in 4 KiB sectors, the usual ones.
fn csum(out: &mut Lines, key: &Key, data: &[u8]) {
    let length = (len_u64(data) / 4).saturating_mul(4096);
    let end = key.offset.saturating_add(length);
    out.line(
        "range",
        vec![
            ("start", Val::Num(key.offset)),
            ("end", Val::Num(end)),
            ("length", Val::Num(length)),
        ],
    );
}

fn uuid_subvolumes(out: &mut Lines, data: &[u8]) {
    let (ids, _) = data.as_chunks::<8>();
    for id in ids {
        out.element("subvolumes", "", vec![("subvol_id", Val::Num(u64::from_le_bytes(*id)))]);
    }
}

fn qgroup(out: &mut Lines, key: &Key, data: &[u8]) -> Option<()> {
    let (words, _) = data.as_chunks::<8>();
    let word = |n: usize| words.get(n).map(|w| Val::Num(u64::from_le_bytes(*w)));
    match key.ty {
        KeyType::QGROUP_STATUS => {
            const NAMES: &[(u64, &str)] = &[(1, "ON"), (2, "SCANNING"), (4, "INCONSISTENT"), (8, "SIMPLE_MODE")];
            let flags = words.get(2).map(|w| u64::from_le_bytes(*w))?;
            let flags = Val::Names(names_text(flags, NAMES, "OFF"));
            out.line(
                "",
                vec![
                    ("version", word(0)?),
                    ("generation", word(1)?),
                    ("flags", flags),
                    ("scan", word(3)?),
                ],
            );
        }
        KeyType::QGROUP_INFO => {
            out.line("", vec![("generation", word(0)?)]);
            out.line("", vec![("referenced", word(1)?), ("referenced_compressed", word(2)?)]);
            out.line("", vec![("exclusive", word(3)?), ("exclusive_compressed", word(4)?)]);
        }
        _ => {
            out.line("", vec![("flags", word(0)?)]);
            out.line("", vec![("max_referenced", word(1)?), ("max_exclusive", word(2)?)]);
            out.line("", vec![("rsv_referenced", word(3)?), ("rsv_exclusive", word(4)?)]);
        }
    }
    Some(())
}

fn space_cache(out: &mut Lines, head: &FreeSpaceHeader) {
    out.line("", vec![("location key", Val::Key(head.location.into()))]);
    out.line(
        "cache",
        vec![
            ("generation", num(head.generation)),
            ("entries", num(head.num_entries)),
            ("bitmaps", num(head.num_bitmaps)),
        ],
    );
}
