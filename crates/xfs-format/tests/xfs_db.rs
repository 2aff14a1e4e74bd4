//! Each field that `xfs_db` prints is the one that is decoded here.
//!
//! Skips with a line without root, loop devices or xfsprogs.

mod common;

use common::Volume;
use common::db::{lines, number, rows};
use common::lab::{Lab, POPULATE, SHARE, need_kernel};
use xfs_format::ag::{AgfSector, AgflSector, AgiSector};
use xfs_format::btree::{Bno, BtreeBlock, Cnt, Finobt, Inobt, Refcount, Rmap, RmapOwner, TreeKind, rmap_offset};
use xfs_format::dir::{DataItem, DirBlock, DirDataBlock};
use xfs_format::features::{inode_flags, inode_flags2};
use xfs_format::inode::{Fork, ForkKind, mode};
use xfs_format::render::{self, Report, Val};
use xfs_format::{AgBlock, AgNumber, Expect, Geometry, Inode};

fn ours(value: &Val) -> Option<i128> {
    match value {
        Val::Num(n) | Val::Hex(n) | Val::Octal(n) | Val::Named(n, _) | Val::Flags(n, _) => Some((*n).into()),
        Val::Signed(n) => Some((*n).into()),
        Val::Null => Some(-1),
        _ => None,
    }
}

/// Compares each line of xfs_db with the report's field of that name: it has one. Gives how many
/// there were.
fn compare(what: &str, report: &Report, theirs: &str) -> usize {
    let mut compared = 0;
    for (name, value) in lines(theirs) {
        // Lists are compared by themselves.
        if name.contains('[') {
            continue;
        }
        let found = report.get(name);
        let found = found.unwrap_or_else(|| panic!("{what}: xfs_db has a field {name} = {value}"));
        let same = match found {
            Val::Text(text) => text == value,
            Val::Bytes(_) => true,
            _ => {
                // A bitmap of one word is a number there, too.
                let (a, b) = (ours(found), number(value));
                a.is_none() || b.is_none() || a == b
            }
        };
        assert!(same, "{what}: {name} is {found}, xfs_db says {value}");
        compared += 1;
    }
    compared
}

fn lab() -> (Lab, Volume) {
    let lab = Lab::new("-m rmapbt=1,reflink=1,bigtime=1,inobtcount=1 -i nrext64=1", 400);
    lab.run("", &format!("{POPULATE}{SHARE}"));
    let volume = Volume::open(&lab.image);
    (lab, volume)
}

fn record_rows<K: TreeKind>(block: &BtreeBlock<K>, row: impl Fn(&K::Record) -> Vec<i128>) -> Vec<Vec<i128>> {
    block.records().iter().map(row).collect()
}

/// Compares a tree down its first child, level by level.
fn compare_tree<K: TreeKind<Ptr = xfs_format::U32>>(
    (lab, volume): (&Lab, &Volume),
    (header, root): (&str, &str),
    mut at: u32,
    row: impl Fn(&K::Record, &Geometry) -> Vec<i128>,
) {
    let g = &volume.geometry;
    let mut path = vec![format!("{header} 0"), format!("addr {root}")];
    loop {
        let daddr = g.ag_daddr(AgNumber(0), AgBlock(at));
        let expect = Expect::in_ag(g, daddr, AgNumber(0));
        let block = BtreeBlock::<K>::verify(volume.read(daddr, g.block_bytes), &expect, None).unwrap();
        let mut commands: Vec<&str> = path.iter().map(String::as_str).collect();
        commands.push("p");
        let theirs = lab.db(&commands);
        let fields = lines(&theirs);
        assert_eq!(number(fields["level"]), Some(block.level().into()), "{root}");
        assert_eq!(number(fields["numrecs"]), Some(block.len() as i128), "{root}");
        if block.is_leaf() {
            assert_eq!(rows(&theirs, "recs"), record_rows(&block, |r| row(r, g)), "{root}");
            return;
        }
        let pointers: Vec<_> = block.pointers().iter().map(|p| vec![i128::from(p.get())]).collect();
        assert_eq!(rows(&theirs, "ptrs"), pointers, "{root}");
        at = block.pointers()[0].get();
        path.push("addr ptrs[1]".to_owned());
    }
}

#[test]
fn headers_and_trees_read_as_xfs_db_prints_them() {
    let Some(()) = need_kernel() else { return };
    let (lab, volume) = lab();
    let g = &volume.geometry;
    let report = render::superblock_report(&volume.superblock);
    // Flags and version are numbers there; the crc has a word behind it.
    assert!(compare("superblock", &report, &lab.db(&["sb 0", "p"])) > 50);
    for group in 0..g.ag_count {
        let daddr = |n| g.header_daddr(AgNumber(group), n);
        let sector = |n| volume.read(daddr(n), g.sector_bytes);
        let expect = |n| Expect::in_ag(g, daddr(n), AgNumber(group));
        let agf = AgfSector::verify(sector(1), &expect(1)).unwrap();
        let theirs = lab.db(&[&format!("agf {group}"), "p"]);
        assert!(compare("AGF", &render::agf_report(&agf), &theirs) > 20);
        let agi = AgiSector::verify(sector(2), &expect(2)).unwrap();
        let theirs = lab.db(&[&format!("agi {group}"), "p"]);
        assert!(compare("AGI", &render::agi_report(&agi), &theirs) > 14);
        let agfl = AgflSector::verify(sector(3), &expect(3)).unwrap();
        let theirs = lab.db(&[&format!("agfl {group}"), "p"]);
        assert!(compare("AGFL", &render::agfl_report(&agfl), &theirs) > 4);
        let slots: Vec<_> = agfl
            .slots()
            .iter()
            .map(|slot| vec![if slot.get() == u32::MAX { -1 } else { slot.get().into() }])
            .collect();
        assert_eq!(rows(&theirs, "bno"), slots);
        if group > 0 {
            continue;
        }
        let (agf, agi) = (*agf.agf(), *agi.agi());
        let (on, alloc) = ((&lab, &volume), |r: &xfs_format::btree::AllocRecord, _: &Geometry| {
            vec![r.startblock.get().into(), r.blockcount.get().into()]
        });
        compare_tree::<Bno>(on, ("agf", "bnoroot"), agf.bnoroot.get(), alloc);
        compare_tree::<Cnt>(on, ("agf", "cntroot"), agf.cntroot.get(), alloc);
        compare_tree::<Refcount>(on, ("agf", "refcntroot"), agf.refcntroot.get(), |r, _| {
            let start = r.start().get().into();
            vec![
                start,
                r.blockcount.get().into(),
                r.refcount.get().into(),
                r.is_cow_staging().into(),
            ]
        });
        compare_tree::<Rmap>(on, ("agf", "rmaproot"), agf.rmaproot.get(), |r, _| {
            let offset = r.offset.get();
            let bit = |bit: u64| i128::from(offset & bit != 0);
            assert!(RmapOwner::from_raw(r.owner.get()).is_some());
            vec![
                r.startblock.get().into(),
                r.blockcount.get().into(),
                r.owner.get().cast_signed().into(),
                (offset & rmap_offset::OFFSET_MASK).into(),
                bit(rmap_offset::UNWRITTEN),
                bit(rmap_offset::ATTR_FORK),
                bit(rmap_offset::BMBT_BLOCK),
            ]
        });
        let chunk = |r: &xfs_format::btree::InobtRecord, g: &Geometry| {
            vec![
                r.startino.get().into(),
                r.holemask(g).into(),
                r.count(g).into(),
                r.freecount(g).into(),
                r.free.get().into(),
            ]
        };
        compare_tree::<Inobt>(on, ("agi", "root"), agi.root.get(), chunk);
        compare_tree::<Finobt>(on, ("agi", "free_root"), agi.free_root.get(), chunk);
    }
}

fn extents_of(inode: &Inode, kind: ForkKind) -> Vec<Vec<i128>> {
    match inode.fork(kind) {
        Some(Fork::Extents(records)) => records
            .iter()
            .map(|record| {
                let e = record.extent();
                let (offset, start) = (e.offset.get().into(), e.start.get().into());
                vec![offset, start, e.blocks.into(), e.is_unwritten.into()]
            })
            .collect(),
        _ => Vec::new(),
    }
}

fn compare_inode(ino: u64, inode: &Inode, theirs: &str) {
    let core = inode.core();
    let fields = lines(theirs);
    let mode = u32::from_str_radix(fields["core.mode"], 8).unwrap();
    assert_eq!(mode, u32::from(core.mode.get()), "{ino}");
    let numbers: &[(&str, u64)] = &[
        ("core.magic", core.magic.get().into()),
        ("core.version", core.version.into()),
        ("core.format", core.format.into()),
        ("core.uid", core.uid.get().into()),
        ("core.gid", core.gid.get().into()),
        ("core.nlinkv2", core.link_count().into()),
        ("core.projid_lo", core.projid_lo.get().into()),
        ("core.projid_hi", core.projid_hi.get().into()),
        ("core.size", core.size.get()),
        ("core.nblocks", core.nblocks.get()),
        ("core.extsize", core.extsize.get().into()),
        ("core.nextents", core.data_extents()),
        ("core.naextents", core.attr_extents().into()),
        ("core.forkoff", core.forkoff.into()),
        ("core.aformat", core.aformat.into()),
        ("core.gen", core.generation.get().into()),
        ("core.atime.nsec", core.time(core.atime).nsec.into()),
        ("core.mtime.nsec", core.time(core.mtime).nsec.into()),
        ("core.ctime.nsec", core.time(core.ctime).nsec.into()),
        ("v3.crtime.nsec", core.time(core.crtime).nsec.into()),
        ("v3.change_count", core.changecount.get()),
        ("v3.flags2", core.flags2.get()),
        ("v3.cowextsize", core.cowextsize.get().into()),
        ("v3.inumber", core.ino.get()),
        ("v3.lsn", core.lsn.get()),
        ("core.prealloc", core.has_flag(inode_flags::PREALLOC).into()),
        ("core.immutable", core.has_flag(inode_flags::IMMUTABLE).into()),
        ("core.append", core.has_flag(inode_flags::APPEND).into()),
        ("core.nodump", core.has_flag(inode_flags::NODUMP).into()),
        ("v3.reflink", core.has_flag2(inode_flags2::REFLINK).into()),
        ("v3.bigtime", core.has_flag2(inode_flags2::BIGTIME).into()),
        ("v3.nrext64", core.has_flag2(inode_flags2::NREXT64).into()),
    ];
    for (name, value) in numbers {
        assert_eq!(number(fields[name]), Some(i128::from(*value)), "inode {ino}: {name}");
    }
    for (name, raw) in [
        ("core.atime", core.atime),
        ("core.mtime", core.mtime),
        ("v3.crtime", core.crtime),
    ] {
        // `Tue Nov 24 04:14:34 2026` and `2026-11-24 04:14:34`.
        let time = cowshed_time(core.time(raw).sec);
        let theirs = fields[format!("{name}.sec").as_str()];
        assert!(theirs.ends_with(&time), "inode {ino}: {name} {theirs}, {time}");
    }
    let next = core.next_unlinked.get();
    let next = if next == u32::MAX { -1 } else { next.into() };
    assert_eq!(number(fields["next_unlinked"]), Some(next));
    assert_eq!(rows(theirs, "u3.bmx"), extents_of(inode, ForkKind::Data), "inode {ino}");
    assert_eq!(rows(theirs, "a.bmx"), extents_of(inode, ForkKind::Attr), "inode {ino}");
}

/// `04:14:34 2026`.
fn cowshed_time(sec: i64) -> String {
    let text = common::lab::sh(&format!("TZ=UTC date -d @{sec} '+%H:%M:%S %Y'"));
    text.trim().to_owned()
}

#[test]
fn inodes_and_directories_read_as_xfs_db_prints_them() {
    let Some(()) = need_kernel() else { return };
    let (lab, volume) = lab();
    let found = volume.walk();
    // The first ones are of all kinds, most others are empty files.
    let step = 1 + found.inodes.len() / 60;
    let sample: Vec<_> = found
        .inodes
        .iter()
        .enumerate()
        .filter(|(at, (_, inode))| *at < 80 || at % step == 0 || inode.core().file_type() != mode::REGULAR)
        .map(|(_, inode)| inode)
        .collect();
    for part in sample.chunks(40) {
        let commands: Vec<String> = part
            .iter()
            .flat_map(|(ino, _)| [format!("inode {ino}"), "p".to_owned()])
            .collect();
        let text = lab.db(&commands.iter().map(String::as_str).collect::<Vec<_>>());
        let texts: Vec<&str> = text.split("core.magic = ").skip(1).collect();
        assert_eq!(texts.len(), part.len());
        for ((ino, inode), text) in part.iter().zip(texts) {
            compare_inode(ino.get(), inode, &format!("core.magic = {text}"));
        }
    }
    let mut compared = 0;
    for (ino, inode) in &found.inodes {
        let core = inode.core();
        if core.file_type() != mode::DIR || !matches!(inode.fork(ForkKind::Data), Some(Fork::Extents(_))) {
            continue;
        }
        let g = &volume.geometry;
        let extents = volume.extents(*ino, inode, ForkKind::Data, &mut common::Found::default());
        let (daddr, bytes) = volume.read_file(&extents, 0, 1);
        let expect = Expect::of_inode(g, daddr, *ino);
        let items: Vec<(u64, u32)> = match DirBlock::verify(bytes.clone(), &expect) {
            Ok(block) => entries(block.items(g)),
            Err(_) => entries(DirDataBlock::verify(bytes, &expect).unwrap().items(g)),
        };
        let text = lab.db(&[&format!("inode {ino}"), "dblock 0", "p"]);
        let all = |suffix: &str| -> Vec<i128> {
            let named = text.lines().filter_map(|line| line.split_once(" = "));
            named
                .filter(|(name, _)| name.ends_with(suffix))
                .filter_map(|(_, value)| number(value))
                .collect()
        };
        assert_eq!(
            all("].inumber"),
            items.iter().map(|(ino, _)| i128::from(*ino)).collect::<Vec<_>>()
        );
        let tags = all("].tag");
        assert!(
            items.iter().all(|(_, at)| tags.contains(&i128::from(*at))),
            "directory {ino}"
        );
        compared += 1;
    }
    assert!(compared >= 4, "{compared} directories");
}

fn entries<'a>(items: impl Iterator<Item = DataItem<'a>>) -> Vec<(u64, u32)> {
    items
        .filter_map(|item| match item {
            DataItem::Entry(entry) => Some((entry.ino.get(), entry.offset_bytes)),
            DataItem::Free { .. } => None,
        })
        .collect()
}
