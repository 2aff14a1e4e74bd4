//! Inodes with their forks, and directories and attributes with their contents: every field that
//! `xfs_db` prints, on V5 and V4. A field that is not compared is a failure.
//!
//! Which test compares which kind of structure: [`KINDS`].
//!
//! Skips with a line without root, loop devices or xfsprogs.

mod common;

use common::Found;
use common::db::lines;
use common::fields::{Facts, asctime};
use common::judge::{Judge, crc, head, uuid_text};
use common::kinds::{self, KINDS};
use common::lab::{Lab, POPULATE, SHARE, need_kernel, need_progs, sh};
use xfs_format::attr::{
    AttrLeafBlock, AttrLeafHeader, AttrLeafHeaderV5, AttrShortformHead, AttrValueView, attr_flags, shortform_entries,
};
use xfs_format::btree::BlockPtr;
use xfs_format::dir::{
    DataItem, DataItems, DirBestFree, DirBlock, DirBlockTail, DirDataBlock, DirDataHeader, DirDataHeaderV5, FileType,
    ShortformDir, ShortformHead,
};
use xfs_format::features::{inode_flags as flag, inode_flags2 as flag2};
use xfs_format::inode::{Fork, ForkKind, InodeCore, InodeCoreV2, mode};
use xfs_format::{Expect, Extent, Ino, Inode};

fn core_facts(facts: &mut Facts, inode: &Inode) {
    let core = inode.core();
    let is_v5 = core.version >= 3;
    let wide = core.is_nrext64();
    facts.num("core.magic", core.magic.get());
    // An octal number to xfs_db.
    facts.text("core.mode", format!("0{:o}", core.mode.get()));
    facts.num("core.version", core.version);
    facts.num("core.format", core.format);
    facts.num("core.onlink", core.onlink.get());
    facts.num("core.uid", core.uid.get());
    facts.num("core.gid", core.gid.get());
    facts.num("core.nlinkv2", core.link_count());
    facts.num("core.projid_lo", core.projid_lo.get());
    facts.num("core.projid_hi", core.projid_hi.get());
    for (name, raw) in [("atime", core.atime), ("mtime", core.mtime), ("ctime", core.ctime)] {
        let time = core.time(raw);
        facts.text(format!("core.{name}.sec"), asctime(time.sec));
        facts.num(format!("core.{name}.nsec"), time.nsec);
    }
    facts.num("core.size", core.size.get());
    facts.num("core.nblocks", core.nblocks.get());
    facts.num("core.extsize", core.extsize.get());
    facts.num("core.nextents", core.data_extents());
    facts.num("core.naextents", core.attr_extents());
    facts.num("core.forkoff", core.forkoff);
    facts.num("core.aformat", core.aformat);
    facts.num("core.dmevmask", core.dmevmask.get());
    facts.num("core.dmstate", core.dmstate.get());
    facts.num("core.gen", core.generation.get());
    for (name, bit) in [
        ("newrtbm", flag::NEWRTBM),
        ("prealloc", flag::PREALLOC),
        ("realtime", flag::REALTIME),
        ("immutable", flag::IMMUTABLE),
        ("append", flag::APPEND),
        ("sync", flag::SYNC),
        ("noatime", flag::NOATIME),
        ("nodump", flag::NODUMP),
        ("rtinherit", flag::RTINHERIT),
        ("projinherit", flag::PROJINHERIT),
        ("nosymlinks", flag::NOSYMLINKS),
        ("extsz", flag::EXTSIZE),
        ("extszinherit", flag::EXTSZINHERIT),
        ("nodefrag", flag::NODEFRAG),
        ("filestream", flag::FILESTREAM),
    ] {
        facts.num(format!("core.{name}"), i128::from(core.has_flag(bit)));
    }
    let next = core.next_unlinked.get();
    facts.num("next_unlinked", if next == u32::MAX { -1 } else { i128::from(next) });
    if is_v5 {
        v3_facts(facts, &core);
    } else {
        facts.num("core.flushiter", head::<InodeCoreV2>(inode.bytes()).flushiter.get());
    }
    assert!(!wide || is_v5, "wide counts of V4");
}

fn v3_facts(facts: &mut Facts, core: &InodeCore) {
    facts.num("v3.crc", crc(core.crc));
    facts.num("v3.change_count", core.changecount.get());
    facts.num("v3.lsn", core.lsn.get());
    facts.num("v3.flags2", core.flags2.get());
    facts.num("v3.cowextsize", core.cowextsize.get());
    let born = core.time(core.crtime);
    facts.text("v3.crtime.sec", asctime(born.sec));
    facts.num("v3.crtime.nsec", born.nsec);
    facts.num("v3.inumber", core.ino.get());
    facts.text("v3.uuid", uuid_text(&core.uuid));
    for (name, bit) in [
        ("reflink", flag2::REFLINK),
        ("cowextsz", flag2::COWEXTSIZE),
        ("dax", flag2::DAX),
        ("bigtime", flag2::BIGTIME),
        ("nrext64", flag2::NREXT64),
    ] {
        facts.num(format!("v3.{name}"), i128::from(core.has_flag2(bit)));
    }
}

fn extent_rows<'a>(records: impl Iterator<Item = &'a xfs_format::btree::BmapRecord>) -> Vec<Vec<i128>> {
    records
        .map(|record| {
            let e = record.extent();
            let (offset, start) = (e.offset.get().into(), e.start.get().into());
            vec![offset, start, e.blocks.into(), e.is_unwritten.into()]
        })
        .collect()
}

impl Judge {
    fn has_ftype(&self) -> bool {
        self.volume.geometry.has_ftype()
    }

    fn type_fact(&self, facts: &mut Facts, name: String, file_type: Option<FileType>) {
        if self.has_ftype() {
            facts.num(name, file_type.expect("a type").to_raw());
        }
    }

    fn inode(&mut self, ino: Ino, inode: &Inode, theirs: &str) {
        let mut facts = Facts::default();
        core_facts(&mut facts, inode);
        self.note("inode core");
        let is_v5 = self.volume.geometry.is_v5();
        let u = if is_v5 { "u3" } else { "u" };
        match inode.fork(ForkKind::Data).expect("a data fork") {
            Fork::Dev(number) => {
                facts.num(format!("{u}.dev"), number);
                self.note("device");
            }
            Fork::Local(bytes) if inode.core().file_type() == mode::DIR => {
                self.shortform(&mut facts, u, ino, bytes);
            }
            Fork::Local(target) => {
                facts.bytes(format!("{u}.symlink"), target);
                self.note("short symlink");
            }
            Fork::Extents([]) => {
                facts.text(u, "(empty)");
                self.note("no data");
            }
            Fork::Extents(records) => {
                facts.list(format!("{u}.bmx"), extent_rows(records.iter()));
                self.note("extents of data");
            }
            Fork::Btree(root) => {
                facts.num(format!("{u}.bmbt.level"), root.level);
                facts.num(format!("{u}.bmbt.numrecs"), root.keys.len() as i128);
                let keys = root.keys.iter().map(|key| vec![key.startoff.get().into()]);
                facts.list(format!("{u}.bmbt.keys"), keys.collect());
                let pointers = root.pointers.iter().map(|ptr| vec![ptr.number().into()]);
                facts.list(format!("{u}.bmbt.ptrs"), pointers.collect());
                self.note("root of the map");
            }
        }
        match inode.fork(ForkKind::Attr) {
            None if lines(theirs).contains_key("a") => facts.text("a", "(empty)"),
            None => {}
            Some(Fork::Local(bytes)) => self.short_attrs(&mut facts, bytes),
            Some(Fork::Extents([])) => facts.text("a", "(empty)"),
            Some(Fork::Extents(records)) => {
                facts.list("a.bmx", extent_rows(records.iter()));
                self.note("extents of attributes");
            }
            Some(other) => panic!("attributes of {ino}: {other:?}"),
        }
        facts.compare(&format!("inode {ino}"), theirs, &[]);
    }

    fn shortform(&mut self, facts: &mut Facts, u: &str, ino: Ino, bytes: &[u8]) {
        let dir = ShortformDir::verify(bytes, &self.volume.geometry, ino).unwrap();
        // Without types it is the form of old.
        let name = if self.has_ftype() { "sfdir3" } else { "sfdir2" };
        let width = if dir.is_wide() { "i8" } else { "i4" };
        let header: &ShortformHead = head(bytes);
        facts.num(format!("{u}.{name}.hdr.count"), dir.len() as i128);
        facts.num(format!("{u}.{name}.hdr.i8count"), header.i8count);
        facts.num(format!("{u}.{name}.hdr.parent.{width}"), dir.parent.get());
        for (n, entry) in dir.entries().enumerate() {
            let at = |field: &str| format!("{u}.{name}.list[{n}].{field}");
            facts.num(at("namelen"), entry.name.len() as i128);
            facts.num(at("offset"), entry.offset_bytes);
            facts.bytes(at("name"), entry.name);
            facts.num(at(&format!("inumber.{width}")), entry.ino.get());
            self.type_fact(facts, at("filetype"), entry.file_type);
        }
        self.note("shortform directory");
    }

    fn short_attrs(&mut self, facts: &mut Facts, bytes: &[u8]) {
        let header: &AttrShortformHead = head(bytes);
        facts.num("a.sfattr.hdr.totsize", header.totsize.get());
        facts.num("a.sfattr.hdr.count", header.count);
        for (n, attr) in shortform_entries(bytes).enumerate() {
            let at = |field: &str| format!("a.sfattr.list[{n}].{field}");
            facts.num(at("namelen"), attr.name.len() as i128);
            facts.num(at("valuelen"), attr.value.len() as i128);
            facts.num(at("root"), i128::from(attr.flags & attr_flags::ROOT != 0));
            facts.num(at("secure"), i128::from(attr.flags & attr_flags::SECURE != 0));
            facts.bytes(at("name"), attr.name);
            if !attr.value.is_empty() {
                facts.bytes(at("value"), attr.value);
            }
        }
        self.note("shortform attributes");
    }

    /// Header and entries of a block of a directory. `names`: of header and list.
    fn items(
        &self,
        facts: &mut Facts,
        (header, list): (&str, &str),
        bytes: &[u8],
        best: &[DirBestFree],
        items: DataItems<'_>,
    ) {
        if self.volume.geometry.is_v5() {
            let raw: &DirDataHeaderV5 = head(bytes);
            let at = |field: &str| format!("{header}.hdr.{field}");
            facts.num(at("magic"), raw.magic.get());
            facts.num(at("crc"), crc(raw.crc));
            facts.num(at("bno"), raw.blkno.get());
            facts.num(at("lsn"), raw.lsn.get());
            facts.text(at("uuid"), uuid_text(&raw.uuid));
            facts.num(at("owner"), raw.owner.get());
        } else {
            facts.num(format!("{header}.magic"), head::<DirDataHeader>(bytes).magic.get());
        }
        for (n, span) in best.iter().enumerate() {
            facts.num(format!("{header}.bestfree[{n}].offset"), span.offset.get());
            facts.num(format!("{header}.bestfree[{n}].length"), span.length.get());
        }
        for (n, item) in items.enumerate() {
            let at = |field: &str| format!("{list}[{n}].{field}");
            match item {
                DataItem::Entry(entry) => {
                    facts.num(at("inumber"), entry.ino.get());
                    facts.num(at("namelen"), entry.name.len() as i128);
                    facts.bytes(at("name"), entry.name);
                    // Of V4 xfs_db shows the types in shortforms alone.
                    if self.volume.geometry.is_v5() {
                        self.type_fact(facts, at("filetype"), entry.file_type);
                    }
                    facts.num(at("tag"), entry.offset_bytes);
                }
                DataItem::Free {
                    offset_bytes,
                    len_bytes,
                } => {
                    facts.num(at("freetag"), 0xffff);
                    facts.num(at("length"), len_bytes);
                    facts.num(at("tag"), offset_bytes);
                }
            }
        }
    }

    /// Free spans have no type, but xfs_db prints one.
    fn free_types(theirs: &str) -> Vec<String> {
        let free = theirs.lines().filter_map(|line| line.split_once(".freetag = "));
        free.map(|(name, _)| format!("{name}.filetype")).collect()
    }

    fn dir(&mut self, ino: Ino, inode: &Inode, extents: &[Extent]) {
        let g = self.volume.geometry;
        let leaf = u64::from(g.dir_leaf_block().get());
        let is_block_form = extents.iter().all(|extent| extent.end().get() <= leaf)
            && inode.core().size.get() == u64::from(g.dir_block_bytes);
        let per_block = 1_u32 << g.dir_block_log;
        for number in [0, 1] {
            let at = number * per_block;
            if !extents
                .iter()
                .any(|e| e.offset.get() <= at.into() && e.end().get() > at.into())
            {
                continue;
            }
            let theirs = self.lab.db(&[&format!("inode {ino}"), &format!("dblock {at}"), "p"]);
            let (daddr, bytes) = self.volume.read_file(extents, at, per_block);
            let expect = Expect::of_inode(&g, daddr, ino);
            let mut facts = Facts::default();
            if is_block_form {
                let block = DirBlock::verify(bytes.clone(), &expect).unwrap();
                self.items(&mut facts, ("bhdr", "bu"), &bytes, block.best_free(), block.items(&g));
                for (n, entry) in block.leaf_entries().iter().enumerate() {
                    facts.num(format!("bleaf[{n}].hashval"), entry.hashval.get());
                    facts.num(format!("bleaf[{n}].address"), entry.address.get());
                }
                let tail: &DirBlockTail = head(&bytes[bytes.len() - size_of::<DirBlockTail>()..]);
                facts.num("btail.count", tail.count.get());
                facts.num("btail.stale", tail.stale.get());
                self.note("block directory");
            } else {
                let block = DirDataBlock::verify(bytes.clone(), &expect).unwrap();
                self.items(&mut facts, ("dhdr", "du"), &bytes, block.best_free(), block.items(&g));
                self.note("data block");
            }
            let ignored = Self::free_types(&theirs);
            let ignored: Vec<&str> = ignored.iter().map(String::as_str).collect();
            facts.compare(&format!("block {at} of directory {ino}"), &theirs, &ignored);
        }
    }

    /// The first leaf's contents, which the heads of its entries lead to.
    fn attr_leaf(&mut self, ino: Ino, extents: &[Extent]) {
        let g = self.volume.geometry;
        let (daddr, bytes) = self.volume.read_file(extents, 0, 1);
        let Ok(leaf) = AttrLeafBlock::verify(bytes.clone(), &Expect::of_inode(&g, daddr, ino)) else {
            return;
        };
        let theirs = self.lab.db(&[&format!("inode {ino}"), "ablock 0", "p"]);
        let mut facts = Facts::default();
        let used = if g.is_v5() {
            let raw: &AttrLeafHeaderV5 = head(&bytes);
            let info = [
                ("back", i128::from(raw.info.back.get())),
                ("forw", raw.info.forw.get().into()),
                ("magic", raw.info.magic.get().into()),
            ];
            for (name, value) in info {
                facts.num(format!("hdr.info.hdr.{name}"), value);
            }
            facts.num("hdr.info.crc", crc(raw.info.crc));
            facts.num("hdr.info.bno", raw.info.blkno.get());
            facts.num("hdr.info.lsn", raw.info.lsn.get());
            facts.num("hdr.info.owner", raw.info.owner.get());
            facts.text("hdr.info.uuid", uuid_text(&raw.info.uuid));
            raw.usedbytes.get()
        } else {
            let raw: &AttrLeafHeader = head(&bytes);
            facts.num("hdr.info.forw", raw.info.forw.get());
            facts.num("hdr.info.back", raw.info.back.get());
            facts.num("hdr.info.magic", raw.info.magic.get());
            raw.usedbytes.get()
        };
        facts.num("hdr.count", leaf.heads().len() as i128);
        facts.num("hdr.usedbytes", used);
        facts.num("hdr.firstused", leaf.first_used());
        facts.num("hdr.holes", i128::from(leaf.has_holes()));
        let spans = leaf.free_spans();
        let spans = spans.iter().map(|s| vec![s.base.get().into(), s.size.get().into()]);
        facts.list("hdr.freemap", spans.collect());
        let entries = leaf.heads().iter().map(|entry| {
            let bit = |bit: u8| i128::from(entry.flags & bit != 0);
            vec![
                entry.hashval.get().into(),
                entry.nameidx.get().into(),
                bit(attr_flags::INCOMPLETE),
                bit(attr_flags::ROOT),
                bit(attr_flags::SECURE),
                bit(attr_flags::LOCAL),
            ]
        });
        facts.list("entries", entries.collect());
        for (n, entry) in leaf.entries().enumerate() {
            let at = |field: &str| format!("nvlist[{n}].{field}");
            facts.num(at("namelen"), entry.name.len() as i128);
            facts.bytes(at("name"), entry.name);
            match entry.value {
                AttrValueView::Local(value) => {
                    facts.num(at("valuelen"), value.len() as i128);
                    if !value.is_empty() {
                        facts.bytes(at("value"), value);
                    }
                }
                AttrValueView::Remote { block, len_bytes } => {
                    facts.num(at("valueblk"), block.get());
                    facts.num(at("valuelen"), len_bytes);
                }
            }
        }
        facts.compare(&format!("attributes of inode {ino}"), &theirs, &[]);
        self.note("contents of an attribute leaf");
    }

    /// All inodes that are not just another empty file, with their blocks.
    fn all(&mut self) {
        let found = self.volume.walk();
        let step = 1 + found.inodes.len() / 60;
        let is_taken = |at: usize, inode: &Inode| {
            at < 80 || at.is_multiple_of(step) || inode.core().file_type() != mode::REGULAR || inode.core().forkoff != 0
        };
        let inodes = found.inodes.iter().enumerate();
        let sample: Vec<_> = inodes
            .filter(|(at, (_, inode))| is_taken(*at, inode))
            .map(|(_, inode)| inode)
            .collect();
        for part in sample.chunks(40) {
            let commands: Vec<String> = part
                .iter()
                .flat_map(|(ino, _)| [format!("inode {ino}"), "p".to_owned()])
                .collect();
            let text = self.lab.db(&commands.iter().map(String::as_str).collect::<Vec<_>>());
            let texts: Vec<&str> = text.split("core.magic = ").skip(1).collect();
            assert_eq!(texts.len(), part.len());
            for ((ino, inode), text) in part.iter().zip(texts) {
                self.inode(*ino, inode, &format!("core.magic = {text}"));
            }
        }
        let mut ignored = Found::default();
        for (ino, inode) in &found.inodes {
            let in_blocks = |kind| matches!(inode.fork(kind), Some(Fork::Extents([_, ..]) | Fork::Btree(_)));
            if inode.core().file_type() == mode::DIR && in_blocks(ForkKind::Data) {
                let extents = self.volume.extents(*ino, inode, ForkKind::Data, &mut ignored);
                self.dir(*ino, inode, &extents);
            }
            if in_blocks(ForkKind::Attr) {
                let extents = self.volume.extents(*ino, inode, ForkKind::Attr, &mut ignored);
                self.attr_leaf(*ino, &extents);
            }
        }
    }
}

#[test]
fn each_field_of_inodes_directories_and_attributes_is_the_one_of_xfs_db() {
    let Some(()) = need_kernel() else { return };
    let lab = Lab::new("-m rmapbt=1,reflink=1,bigtime=1,inobtcount=1 -i nrext64=1", 400);
    lab.run("", &format!("{POPULATE}{SHARE}"));
    let mut judge = Judge::new(lab);
    judge.all();
    let here = kinds::of("each_field_of_inodes_directories_and_attributes_is_the_one_of_xfs_db");
    judge.need(here);
    for kind in judge.compared.keys() {
        assert!(here.contains(kind), "{kind} is not in the list");
    }
}

/// New kernels have no V4: mkfs.xfs fills the volume from a list.
#[test]
fn each_field_of_version_4_is_the_one_of_xfs_db() {
    let Some(()) = need_progs() else { return };
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let script = format!(
        "cd {}; D=$PWD; echo some > data; head -c 70000 /dev/urandom > large\n\
         {{ echo /; echo 0 0; echo d--755 0 0; echo f ---644 3 4 $D/data; echo large -u-750 3 4 $D/large\n\
         echo l l--777 0 0 target; echo far l--777 0 0 $(printf 'a%.0s' $(seq 1 900)); echo c c--600 0 0 1 3\n\
         echo block d--755 0 0; for i in $(seq 1 30); do echo x$i ---644 0 0 $D/data; done; echo '$'\n\
         echo leaf d-g755 0 0; for i in $(seq 1 300); do echo a_long_name_$i ---644 0 0 $D/data; done; echo '$'\n\
         echo '$'; }} > list",
        dir.path().display()
    );
    sh(&script);
    for mkfs in [
        "-m crc=0 -n ftype=0",
        "-m crc=0 -n ftype=1",
        "-m crc=0,finobt=0 -n version=ci",
    ] {
        let lab = Lab::new(&format!("{mkfs} -p {}", list.display()), 400);
        let mut judge = Judge::new(lab);
        judge.all();
        judge.need(&[
            "inode core",
            "shortform directory",
            "short symlink",
            "device",
            "extents of data",
            "block directory",
            "data block",
        ]);
    }
}

/// Each kind is named once, by a test that is there.
#[test]
fn list_of_kinds_names_tests_that_exist() {
    let sources = concat!(
        include_str!("xfs_db.rs"),
        include_str!("xfs_db_index.rs"),
        include_str!("xfs_db_kinds.rs"),
        include_str!("xfs_db_quota.rs"),
        include_str!("xfs_logprint.rs")
    );
    let mut all: Vec<&str> = Vec::new();
    for (test, kinds) in KINDS {
        assert!(sources.contains(&format!("fn {test}()")), "{test}");
        all.extend(*kinds);
    }
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "a kind is named twice");
}
