//! The log: records, operations and items as `xfs_logprint` prints them, of logs that Linux left dirty.
//! A field that it prints and that is not compared is a failure, but for the contents of buffers, which
//! other tests compare where they lie on the volume.
//!
//! Kinds that are not here: QUOTAOFF, which Linux has not written since 5.15; items of the realtime
//! device, which need Linux 6.14 with realtime groups. `xfs_logprint` 6.1 prints nothing of XMI, XMD, and
//! ATTRI of more than one value (replaced parent pointers), and loses its way behind them: their
//! headers are compared, and nothing behind them in their record.
//!
//! Skips with a line without root, loop devices or xfsprogs.

mod common;

use std::collections::BTreeMap;

use common::fields::Facts;
use common::judge::{Judge, uuid_text};
use common::lab::{Lab, need_kernel, need_progs};
use common::log::{Log, Regions, Role};
use common::logprint::{self, PrintedOperation, colons, extents, pairs, titled};
use cowshed_harness::need;
use xfs_format::U64;
use xfs_format::dquot::DiskDquot;
use xfs_format::features::incompat;
use xfs_format::inode::{InodeCore, InodeCoreV2};
use xfs_format::log::{
    BufLogHead, ByteOrder, Intent, IntentHead, ItemType, LogFormat, LogItem, MapOp, MappedExtent, Operation,
    PhysExtent, RecordHeader, TransHeader, UNMOUNT_MAGIC, UnmountRecord, client, inode_fields, op_flags,
};
use zerocopy::{FromBytes, IntoBytes};

/// Work that leaves intents.
const INTENTS: &str = include_str!("data/intents.py");

fn flags_text(flags: u8) -> String {
    let names = op_flags::NAMES.iter().filter(|(bit, _)| u64::from(flags) & bit != 0);
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(" ")
    }
}

fn record_facts(header: &RecordHeader) -> Facts {
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

fn operation_facts(operation: &Operation<'_>) -> Facts {
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

/// A number of `ItemType`'s as xfs_logprint heads its line.
fn title(ty: ItemType) -> &'static str {
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
fn head_facts(item: &LogItem<'_>, regions: &Regions) -> Facts {
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

/// The first 32 bits of a time as it lies in the log, which is what xfs_logprint takes for the seconds
/// of all times: with BIGTIME they are the lower half of the nanoseconds since 1901.
fn time_word(core: &InodeCore, raw: U64) -> i32 {
    let time = core.time(raw);
    if !core.is_bigtime() {
        return i32::try_from(time.sec).unwrap();
    }
    let sec = u64::try_from(time.sec + (1 << 31)).unwrap();
    (sec * 1_000_000_000 + u64::from(time.nsec)) as i32
}

fn core_facts(core: &InodeCore) -> Facts {
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
fn fork_titles(fields: u32) -> Vec<String> {
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

/// xfs_logprint 6.1 does not know these, and loses its way behind them.
fn is_unknown_to_logprint(regions: &Regions) -> bool {
    match regions.ty {
        ItemType::Xmi | ItemType::Xmd => true,
        ItemType::Attri => regions.regions.len() > 3,
        _ => false,
    }
}

const LEFT_OVER: &str = "Left over region from split log item";

/// A log, and where each item begins.
struct Compared {
    judge: Judge,
    log: Log,
    /// The record in which an item begins.
    begins: BTreeMap<usize, usize>,
    /// The last record with an item that xfs_logprint does not know: at the next one's start it still
    /// takes regions for what is left of a split item.
    lost_in: Option<usize>,
}

impl Compared {
    fn new(lab: Lab) -> Self {
        let judge = Judge::new(lab);
        let log = Log::read(&judge.volume);
        let mut begins = BTreeMap::new();
        for (n, record) in log.records.iter().enumerate() {
            for (role, operation) in record.roles.iter().zip(record.operations()) {
                if let Role::Region { item, .. } | Role::Part { item: Some(item) } = role {
                    let is_continued = operation.has_flag(op_flags::WAS_CONT);
                    begins.entry(*item).or_insert(n - usize::from(is_continued));
                }
            }
        }
        Self {
            judge,
            log,
            begins,
            lost_in: None,
        }
    }

    /// The view of records.
    fn records(&mut self) {
        let theirs = logprint::records(&self.judge.lab);
        let log = std::mem::replace(&mut self.log, Log::empty());
        assert_eq!(theirs.len(), log.records.len(), "records");
        for (n, (ours, theirs)) in log.records.iter().zip(&theirs).enumerate() {
            let what = format!("record {n}");
            record_facts(&ours.record.header).compare(&what, &theirs.header, &[]);
            self.judge.note("log record");
            let operations = ours.operations();
            let mut compared = 0;
            for (at, ((operation, role), theirs)) in
                operations.iter().zip(&ours.roles).zip(&theirs.operations).enumerate()
            {
                let what = format!("{what}, operation {at}");
                let item = match role {
                    Role::Region { item, .. } | Role::Part { item: Some(item) } => Some(&log.items[*item]),
                    _ => None,
                };
                let is_lost = item.is_some_and(is_unknown_to_logprint);
                if is_lost {
                    self.lost_in = Some(n);
                }
                if is_lost && at == 0 {
                    // It lost its way in the record before.
                    compared = operations.len();
                    break;
                }
                operation_facts(operation).compare(&what, &theirs.header, &[]);
                self.judge.note("log operation");
                if is_lost {
                    self.judge.note("item that xfs_logprint does not know");
                    compared = operations.len();
                    break;
                }
                self.data(&what, &log, n, *role, operation, theirs);
                compared += 1;
            }
            assert_eq!(compared, operations.len(), "{what}: operations");
        }
        self.log = log;
    }

    fn data(&mut self, what: &str, log: &Log, n: usize, role: Role, ours: &Operation<'_>, theirs: &PrintedOperation) {
        let lines = &theirs.lines;
        let first = lines.first().map_or("", String::as_str);
        match role {
            Role::Mark => self.judge.note("start or commit"),
            Role::Unmount => {
                // Linux 6.1 gives the operation no length.
                if !ours.data.is_empty() {
                    let record = UnmountRecord::read_from_prefix(ours.data).unwrap().0;
                    assert_eq!(record.magic.get(ByteOrder::Little), UNMOUNT_MAGIC);
                    assert_eq!(first, "Unmount filesystem", "{what}");
                }
                self.judge.note("unmount record");
            }
            Role::Trans => {
                let header = TransHeader::read_from_bytes(ours.data).unwrap();
                let mut facts = Facts::default();
                facts.text("tid", format!("{:x}", header.tid.get(ByteOrder::Little)));
                facts.num("num_items", header.num_items.get(ByteOrder::Little));
                let (title, fields) = titled(first);
                assert_eq!(title, "TRAN", "{what}");
                facts.compare(what, &fields, &[]);
                self.judge.note("transaction header");
            }
            Role::Part { .. } => self.judge.note("part of a region"),
            // Of the regions of an ATTRI that are in the next record nothing is printed at all.
            Role::Region { item, .. }
                if first == LEFT_OVER || (lines.is_empty() && log.items[item].ty == ItemType::Attri) =>
            {
                assert!(
                    self.begins[&item] < n || self.lost_in.is_some_and(|lost| lost + 1 == n),
                    "{what}: begins in this record"
                );
                self.judge.note("region behind a split one");
            }
            Role::Region { item, region: 0 } => {
                let regions = &log.items[item];
                let item = regions.decode();
                let fields = if regions.ty == ItemType::Dquot {
                    colons(first)
                } else {
                    let (name, fields) = titled(first);
                    assert_eq!(name, title(regions.ty), "{what}");
                    fields
                };
                let more: String = lines[1..]
                    .iter()
                    .filter(|line| !line.contains('('))
                    .map(|line| colons(line))
                    .collect();
                let fields = fields + &more + &extents(lines);
                head_facts(&item, regions).compare(what, &fields, &[]);
                self.judge.note(regions.ty.name());
            }
            Role::Region { item, region } => {
                let regions = &log.items[item];
                self.region(what, &regions.decode(), region, ours, lines);
            }
        }
    }

    /// A region behind the first one.
    fn region(&mut self, what: &str, item: &LogItem<'_>, region: usize, ours: &Operation<'_>, lines: &[String]) {
        let first = lines.first().map_or("", String::as_str);
        match item {
            LogItem::Inode(inode) if region == 1 => {
                assert_eq!(first, "INODE CORE", "{what}");
                let core = inode.core.expect("a core").to_disk();
                let fields = lines[1..].iter().filter(|line| !line.contains(':'));
                core_facts(&core).compare(what, &fields.map(|line| pairs(line)).collect::<String>(), &[]);
                let is_device = lines.iter().any(|line| line.starts_with("DEV inode"));
                assert_eq!(is_device, inode.format.fields & inode_fields::DEV != 0, "{what}");
                self.judge.note(if core.version >= 3 {
                    "core of an inode"
                } else {
                    "core of an inode of V4"
                });
            }
            LogItem::Inode(inode) => {
                assert_eq!(first, fork_titles(inode.format.fields)[region - 2], "{what}");
                // Said of attributes, too, with the size of the directory.
                let size = lines
                    .iter()
                    .find_map(|line| line.strip_prefix("SHORTFORM DIRECTORY size "));
                if let Some(size) = size.filter(|_| first == "LOCAL inode data") {
                    assert_eq!(inode.data.map(<[u8]>::len), size.parse().ok(), "{what}");
                }
                self.judge.note("fork of an inode");
            }
            LogItem::Dquot { dquot, .. } => {
                let text = format!("DQUOT: magic {:#x} flags 0{:o}", dquot.magic.get(), dquot.quota_type);
                assert_eq!(first, text, "{what}");
                self.judge.note("logged dquot");
            }
            LogItem::Intent(Intent::Attr(_)) => {
                // With the padding; the line of the item has the length of the name.
                let name = if region == 1 { "name len" } else { "value len" };
                let mut facts = Facts::default();
                facts.num(name, ours.data.len() as i128);
                facts.compare(what, &titled(first).1, &[]);
                self.judge.note("region of an attribute");
            }
            LogItem::Buf(_) => {
                assert!(first == "BUF DATA" || first.contains("Buffer"), "{what}: {first}");
                self.judge.note("region of a buffer");
            }
            other => panic!("{what}: {other:?}"),
        }
    }

    /// The transactional view: what recovery would see, with split regions whole again.
    fn transactions(&mut self) {
        let theirs = logprint::transactions(&self.judge.lab);
        assert!(!theirs.is_empty(), "no transactions");
        let log = std::mem::replace(&mut self.log, Log::empty());
        for theirs in &theirs {
            let what = format!("transaction {:x}", theirs.tid);
            let ours = log
                .transactions
                .iter()
                .rfind(|ours| ours.tid == theirs.tid)
                .expect("a transaction");
            let mut facts = Facts::default();
            facts.num("tid", ours.tid);
            facts.num("#items", ours.header.num_items.get(ByteOrder::Little));
            facts.num("trans", ours.header.tid.get(ByteOrder::Little));
            facts.compare(&what, &theirs.head, &[]);
            assert_eq!(theirs.items.len(), ours.items.len(), "{what}: items");
            for (at, theirs) in ours.items.iter().zip(&theirs.items) {
                let regions = &log.items[*at];
                let what = format!("{what}, item {at}");
                let name = match regions.ty {
                    ItemType::Inode => "INO",
                    ItemType::Dquot => "DQ",
                    other => title(other),
                };
                assert_eq!(theirs.name, name, "{what}");
                let mut facts = Facts::default();
                facts.num("cnt", regions.regions.len() as i128);
                facts.num("total", regions.regions.len() as i128);
                facts.compare(&what, &theirs.head, &[]);
                assert_eq!(
                    theirs.lens,
                    regions.regions.iter().map(Vec::len).collect::<Vec<_>>(),
                    "{what}"
                );
                self.whole_item(&what, regions, &theirs.lines);
            }
            self.judge.note("transaction");
        }
        self.log = log;
    }

    /// What the transactional view says more of than the view of records.
    fn whole_item(&mut self, what: &str, regions: &Regions, lines: &[String]) {
        match regions.decode() {
            LogItem::Dquot { format, dquot } => {
                let mut facts = Facts::default();
                facts.num("#regs", 2);
                facts.num("blkno", format.blkno.get(regions.order));
                facts.num("boffset", format.boffset.get(regions.order));
                facts.num("id", format.id.get(regions.order).cast_signed());
                dquot_facts(&mut facts, &dquot);
                let rest: String = lines[1..].iter().map(|line| pairs(line)).collect();
                facts.compare(what, &(titled(&lines[0]).1 + &rest), &[]);
                self.judge.note("whole dquot");
            }
            LogItem::Inode(inode) => {
                let core = inode.core.expect("a core");
                let disk = core.to_disk();
                let mut facts = core_facts(&disk);
                facts.text("magic", "IN");
                facts.text("mode", format!("{:#x}", disk.mode.get()));
                facts.rename(&[
                    ("version", "ver"),
                    ("nblocks", "nblks"),
                    ("extsize", "exsize"),
                    ("naextents", "anextents"),
                ]);
                facts.num("projid", disk.project_id());
                for (name, raw) in [("atime", disk.atime), ("mtime", disk.mtime), ("ctime", disk.ctime)] {
                    facts.num(name, time_word(&disk, raw));
                }
                let at = lines.iter().position(|line| line == "CORE inode:").expect("a core");
                let known = lines[at + 1..].iter().filter(|line| !line.ends_with("data:"));
                let known: String = known
                    .map(|line| {
                        if line.starts_with("flags2") {
                            pairs(line)
                        } else {
                            colons(line)
                        }
                    })
                    .collect();
                if disk.version < 3 {
                    let old = InodeCoreV2::read_from_prefix(disk.as_bytes()).unwrap().0;
                    facts.num("flushiter", old.flushiter.get());
                }
                // V5 has another field in the place of the counter. With V4, this view takes what lies behind
                // the core for flags that say where the numbers of extents are; the view of records does not.
                let ignored: &[&str] = if disk.version < 3 {
                    &["nextents"]
                } else {
                    &["flushiter"]
                };
                if disk.version < 3 {
                    facts.forget(&["nextents", "anextents"]);
                }
                facts.compare(what, &known, ignored);
                self.judge.note("whole inode");
            }
            _ => {}
        }
    }
}

fn dquot_facts(facts: &mut Facts, dquot: &DiskDquot) {
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

/// Makes logs until each kind was compared: what is forced when, no seed decides.
fn judge_intents(mkfs: &str, bits: u64, arguments: &str, kinds: &[&str]) {
    const ROUNDS_MAX: usize = 8;
    let mut found = BTreeMap::<&str, usize>::new();
    for _ in 0..ROUNDS_MAX {
        let lab = Lab::new(
            &format!("--unsupported -d size=300m,agcount=4 -l size=64m {mkfs} 2>/dev/null"),
            300,
        );
        lab.set_incompat(bits);
        lab.leave_dirty("", &format!("python3 - {arguments} <<'END'\n{INTENTS}\nEND"));
        lab.clear_incompat(bits);
        let mut compared = Compared::new(lab);
        compared.records();
        // xfs_logprint 6.1 crashes in this view where it does not know an item.
        if !compared.log.items.iter().any(is_unknown_to_logprint) {
            compared.transactions();
        }
        for (kind, count) in compared.judge.compared {
            *found.entry(kind).or_default() += count;
        }
        if kinds.iter().all(|kind| found.contains_key(kind)) {
            println!("{mkfs}: {found:?}");
            return;
        }
    }
    panic!("not all of {kinds:?}: {found:?}");
}

const ALWAYS: [&str; 12] = [
    "log record",
    "log operation",
    "transaction header",
    "start or commit",
    "unmount record",
    "part of a region",
    "BUF",
    "region of a buffer",
    "INODE",
    "core of an inode",
    "fork of an inode",
    "EFI",
];

#[test]
fn each_field_of_log_items_is_the_one_of_xfs_logprint() {
    let Some(()) = need_kernel() else { return };
    let Some(()) = need::tool("xfs_logprint") else { return };
    let rest = [
        "EFD",
        "RUI",
        "RUD",
        "CUI",
        "CUD",
        "BUI",
        "BUD",
        "ICREATE",
        "transaction",
        "whole inode",
    ];
    judge_intents("-m rmapbt=1,reflink=1", 0, "renames", &[&ALWAYS[..], &rest].concat());
}

#[test]
fn each_field_of_attribute_intents_is_the_one_of_xfs_logprint() {
    let Some(()) = need_kernel() else { return };
    let Some(()) = need::tool("xfs_logprint") else { return };
    let rest = ["ATTRI", "ATTRD", "region of an attribute", "transaction", "whole inode"];
    let mkfs = "-m rmapbt=1,reflink=1 -i nrext64=1";
    judge_intents(mkfs, incompat::PARENT, "", &[&ALWAYS[..], &rest].concat());
}

/// What lies around items that xfs_logprint 6.1 does not know.
#[test]
fn log_operations_beside_unknown_items_are_those_of_xfs_logprint() {
    let Some(()) = need_kernel() else { return };
    let Some(()) = need::tool("xfs_logprint") else { return };
    let kinds = [&ALWAYS[..], &["item that xfs_logprint does not know"]].concat();
    let bits = incompat::PARENT | incompat::EXCHRANGE;
    judge_intents("-m rmapbt=1,reflink=1", bits, "renames exchange", &kinds);
}

/// Logs of Linux 6.1, one of them of version 1.
#[test]
fn each_field_of_logged_dquots_is_the_one_of_xfs_logprint() {
    let Some(()) = need_progs() else { return };
    let Some(()) = need::tool("xfs_logprint").and_then(|()| need::tool("xz")) else {
        return;
    };
    for (name, core) in [
        ("quota-v5", "core of an inode"),
        ("quota-v5-32", "core of an inode"),
        ("quota-v4", "core of an inode of V4"),
        ("quota-v4p", "core of an inode of V4"),
    ] {
        let mut compared = Compared::new(Lab::stored(name));
        compared.records();
        compared.transactions();
        println!("{name}: {:?}", compared.judge.compared);
        compared.judge.need(&[
            "log record",
            "DQUOT",
            "logged dquot",
            "whole dquot",
            "whole inode",
            core,
        ]);
    }
}
