//! Records, operations and items of a log as we decode them, by the names that xfs_logprint gives
//! their fields.

use xfs_format::U64;
use xfs_format::dquot::DiskDquot;
use xfs_format::inode::InodeCore;
use xfs_format::log::{
    BufLogHead, Intent, IntentHead, ItemType, LogFormat, LogItem, MapOp, MappedExtent, Operation, PhysExtent,
    RecordHeader, client, inode_fields, op_flags,
};
use zerocopy::FromBytes;

use super::fields::Facts;
use super::judge::uuid_text;
use super::log::Regions;

fn flags_text(flags: u8) -> String {
    let names = op_flags::NAMES.iter().filter(|(bit, _)| u64::from(flags) & bit != 0);
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" ")
    }
}

pub fn record_facts(header: &RecordHeader) -> Facts {
    let mut facts = Facts::default();
    facts.num("cycle", header.cycle.get());
    facts.num("version", header.version.get());
    for (name, lsn) in [("lsn", header.lsn()), ("tail_lsn", header.tail_lsn())] {
        facts.text(name, format!("{},{}", lsn.cycle(), lsn.block()));
    }
    facts.num("length of Log Record", header.len.get());
    facts.num("prev offset", header.prev_block.get().cast_signed());
    facts.num("num ops", header.num_logops.get());
    facts.text("uuid", uuid_text(&header.fs_uuid));
    facts.text(
        "format",
        if header.format() == LogFormat::LinuxLittle {
            "little"
        } else {
            "other"
        },
    );
    facts.num("h_size", header.size.get());
    facts
}

pub fn operation_facts(operation: &Operation<'_>) -> Facts {
    let mut facts = Facts::default();
    let header = operation.header;
    facts.text("tid", format!("{:x}", header.tid.get()));
    facts.num("len", header.len.get());
    facts.text(
        "clientid",
        match header.clientid {
            client::TRANSACTION => "TRANS",
            client::LOG => "LOG",
            _ => "VOLUME",
        },
    );
    facts.text("flags", flags_text(header.flags));
    facts
}

/// What xfs_logprint heads the line of an item with.
pub fn title(ty: ItemType) -> &'static str {
    match ty {
        ItemType::Icreate => "ICR",
        other => other.name(),
    }
}

fn mapped(facts: &mut Facts, extents: &[MappedExtent], number: impl Fn(MapOp) -> u32) {
    for (n, extent) in extents.iter().enumerate() {
        facts.num(format!("{n}.s"), extent.start.get());
        facts.num(format!("{n}.l"), extent.blocks);
        facts.num(format!("{n}.own"), extent.owner.cast_signed());
        facts.num(format!("{n}.off"), extent.offset.get());
        facts.num(format!("{n}.f"), extent.flags | number(extent.op));
    }
}

fn physical(facts: &mut Facts, extents: &[PhysExtent], has_flags: bool) {
    for (n, extent) in extents.iter().enumerate() {
        facts.num(format!("{n}.s"), extent.start.get());
        facts.num(format!("{n}.l"), extent.blocks);
        if has_flags {
            facts.num(format!("{n}.f"), extent.op);
        }
    }
}

fn intent_facts(facts: &mut Facts, intent: &Intent<'_>) {
    facts.num("id", intent.id());
    match intent {
        Intent::Free { extents, .. } => {
            facts.num("num_extents", extents.len() as i128);
            physical(facts, extents, false);
        }
        Intent::Refcount { extents, .. } => {
            facts.num("num_extents", extents.len() as i128);
            physical(facts, extents, true);
        }
        Intent::Rmap { extents, .. } => {
            facts.num("num_extents", extents.len() as i128);
            mapped(facts, extents, |op| op as u32 + 1);
        }
        Intent::Bmap { extents, .. } => {
            facts.num("num_extents", extents.len() as i128);
            mapped(facts, extents, |op| if op == MapOp::Map { 1 } else { 2 });
        }
        Intent::Attr(attr) => {
            facts.num("name_len", attr.name.len() as i128);
            facts.num("value_len", attr.value.len() as i128);
        }
        Intent::Exchange { .. } => panic!("xfs_logprint 6.1 does not know it"),
    }
}

/// The fields of the first region of an item, as the view of records prints them.
pub fn head_facts(item: &LogItem<'_>, regions: &Regions) -> Facts {
    let mut facts = Facts::default();
    if !matches!(item, LogItem::Icreate(_)) {
        facts.num("#regs", regions.regions.len() as i128);
    }
    match item {
        LogItem::Buf(buf) => {
            let head = BufLogHead::read_from_prefix(&regions.regions[0]).unwrap().0;
            facts.num("start blkno", buf.format.daddr.get());
            facts.num("len", buf.format.len_bytes / 512);
            facts.num("bmap size", head.map_size.get(regions.order));
            let ty = buf.format.ty.expect("a type").to_raw();
            facts.num("flags", buf.format.flags | ty << 11);
        }
        LogItem::Inode(inode) => {
            facts.num("ino", inode.format.ino.get());
            facts.num("flags", inode.format.fields);
            facts.num("dsize", inode.format.data_bytes);
            facts.num("blkno", inode.format.daddr.get());
            facts.num("len", inode.format.len_bytes / 512);
            facts.num("boff", inode.format.offset_bytes);
        }
        LogItem::Dquot { format, .. } => {
            facts.num("id", format.id.get(regions.order));
            facts.num("blkno", format.blkno.get(regions.order));
            facts.num("len", format.len.get(regions.order));
            facts.num("boff", format.boffset.get(regions.order));
        }
        LogItem::Icreate(create) => {
            facts.num("#ag", create.ag.get());
            facts.num("agbno", create.agbno.get());
            facts.num("len", create.length.get());
            facts.num("cnt", create.count.get());
            facts.num("isize", create.isize.get());
            facts.num("gen", create.generation.get());
        }
        LogItem::Intent(intent) => intent_facts(&mut facts, intent),
        LogItem::Done { ty, id } => {
            facts.num("id", *id);
            if *ty == ItemType::Efd {
                let head = IntentHead::read_from_prefix(&regions.regions[0]).unwrap().0;
                facts.num("num_extents", head.nextents.get(regions.order));
            }
        }
        LogItem::Quotaoff(_) | LogItem::Unused(_) => panic!("no kernel here writes {:?}", item.ty()),
    }
    facts
}

/// The first 32 bits of a time as it lies in the log, which xfs_logprint takes for the seconds of
/// all times: with BIGTIME they are the lower half of the nanoseconds since 1901.
pub fn time_word(core: &InodeCore, raw: U64) -> i32 {
    let time = core.time(raw);
    if !core.is_bigtime() {
        return i32::try_from(time.sec).unwrap();
    }
    let sec = u64::try_from(time.sec + (1 << 31)).unwrap();
    (sec * 1_000_000_000 + u64::from(time.nsec)) as i32
}

pub fn core_facts(core: &InodeCore) -> Facts {
    let mut facts = Facts::default();
    facts.num("magic", core.magic.get());
    facts.text("mode", format!("0{:o}", core.mode.get()));
    facts.num("version", core.version);
    facts.num("format", core.format);
    facts.num("nlink", core.link_count());
    facts.num("uid", core.uid.get().cast_signed());
    facts.num("gid", core.gid.get().cast_signed());
    for (name, raw) in [("atime", core.atime), ("mtime", core.mtime), ("ctime", core.ctime)] {
        // In 64 bits, with its sign.
        facts.num(name, i64::from(time_word(core, raw)).cast_unsigned());
    }
    facts.num("size", core.size.get());
    facts.num("nblocks", core.nblocks.get());
    facts.num("extsize", core.extsize.get());
    facts.num("nextents", core.data_extents());
    facts.num("naextents", core.attr_extents());
    facts.num("forkoff", core.forkoff);
    facts.num("dmevmask", core.dmevmask.get());
    facts.num("dmstate", core.dmstate.get());
    facts.num("flags", core.flags.get());
    facts.num("gen", core.generation.get());
    if core.version >= 3 {
        facts.num("flags2", core.flags2.get());
        facts.num("cowextsize", core.cowextsize.get());
    }
    facts
}

/// What xfs_logprint heads the regions behind the core with.
pub fn fork_titles(fields: u32) -> Vec<String> {
    let form = |local, extents, root| {
        [(local, "LOCAL"), (extents, "EXTENTS"), (root, "BTREE")]
            .into_iter()
            .find(|(bit, _)| fields & bit != 0)
            .map(|(_, form)| form)
    };
    let data = form(inode_fields::DDATA, inode_fields::DEXT, inode_fields::DBROOT);
    let attr = form(inode_fields::ADATA, inode_fields::AEXT, inode_fields::ABROOT);
    let data = data.map(|form| format!("{form} inode data"));
    data.into_iter()
        .chain(attr.map(|form| format!("{form} attr data")))
        .collect()
}

pub fn dquot_facts(facts: &mut Facts, dquot: &DiskDquot) {
    facts.num("magic", dquot.magic.get());
    facts.num("version", dquot.version);
    facts.num("ID", dquot.id.get());
    facts.num("blk_hard", dquot.blk_hardlimit.get());
    facts.num("blk_soft", dquot.blk_softlimit.get());
    facts.num("ino_hard", dquot.ino_hardlimit.get());
    facts.num("ino_soft", dquot.ino_softlimit.get());
    facts.num("bcount", dquot.bcount.get());
    facts.num("icount", dquot.icount.get());
    facts.num("btimer", dquot.btimer.get());
    facts.num("itimer", dquot.itimer.get());
}
