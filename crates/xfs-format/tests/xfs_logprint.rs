//! The log: records, operations and items as `xfs_logprint` prints them, of logs that Linux left
//! dirty. A field that it prints and that is not compared is a failure, but for the contents of
//! buffers, which other tests compare where they lie on the volume.
//!
//! What xfs_logprint 6.1 does not tell:
//! - the attribute bytes of an inode item (`asize`); inode, operation and namespace of an ATTRI;
//!   the extents of an EFD;
//! - anything of XMI, XMD and an ATTRI of more than two regions behind the first one (a replaced
//!   parent pointer). It loses its way behind them, and crashes in the transactional view: the
//!   header of their operation is compared, and nothing behind it in their record.
//!
//! Kinds that are not here: QUOTAOFF, which Linux has not written since 5.15; items of the realtime
//! device, which need Linux 6.14 and realtime groups.
//!
//! Skips with a line without root, loop devices, xfsprogs or xz.

mod common;

use std::collections::BTreeMap;

use common::fields::Facts;
use common::judge::Judge;
use common::kinds;
use common::lab::{Lab, need_kernel, need_progs};
use common::log::{Log, Regions, Role};
use common::log_facts::{
    core_facts, dquot_facts, fork_titles, head_facts, operation_facts, record_facts, time_word, title,
};
use common::logprint::{self, PrintedOperation, colons, extents, pairs, titled};
use cowshed_harness::need;
use xfs_format::features::incompat;
use xfs_format::inode::InodeCoreV2;
use xfs_format::log::{
    ByteOrder, Intent, ItemType, LogItem, Operation, TransHeader, UNMOUNT_MAGIC, UnmountRecord, inode_fields, op_flags,
};
use zerocopy::{FromBytes, IntoBytes};

/// Work that leaves intents.
const INTENTS: &str = include_str!("data/intents.py");

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
    /// The last record with an item that xfs_logprint does not know: at the next one's start it
    /// still takes regions for what is left of a split item.
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
                // V5 has another field in the place of the counter. With V4, this view takes what
                // lies behind the core for flags, and the wrong bytes for the numbers of extents;
                // the view of records does not.
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
    let listed = kinds::of("each_field_of_log_items_is_the_one_of_xfs_logprint");
    let all = [&ALWAYS[..], listed, &["transaction", "whole inode"]].concat();
    judge_intents("-m rmapbt=1,reflink=1", 0, "renames", &all);
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
