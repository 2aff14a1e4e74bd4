//! Quotas: every field that `xfs_db` prints of them, on volumes that Linux wrote, with timers of
//! both kinds, and on V4. A field that is not compared is a failure.
//!
//! Linux leaves warnings and realtime usage at zero: `xfs_db` then writes another value into each
//! field, and we must read it.
//!
//! The volumes are stored in `data`, of a kernel that has quotas and V4. Where this kernel has
//! quotas, it makes volumes, too (root). Skips with a line without xfsprogs or xz.

mod common;

use std::path::Path;

use common::fields::{Facts, asctime};
use common::judge::{Judge, crc, uuid_text};
use common::lab::{Lab, need_kernel, need_progs, sh};
use cowshed_harness::need;
use xfs_format::dquot::{DquotBlock, dquot_type, dquots_per_block};
use xfs_format::inode::ForkKind;
use xfs_format::{Expect, Ino};

/// Sets usage and limits; `data/README.md` says which volumes are made with it.
const SET: &str = include_str!("data/quota-set.sh");
/// Above 32 bits with a sign, and in a block far behind the others.
const LARGE_ID: u32 = 4_000_000_000;
/// An inode in the group, and an id that the script gives limits.
const USER: (&str, u8, u32) = ("-u", dquot_type::USER, 1000);
const GROUP: (&str, u8, u32) = ("-g", dquot_type::GROUP, 1001);
const PROJECT: (&str, u8, u32) = ("-p", dquot_type::PROJECT, 1002);

type Which = (&'static str, u8, u32);

trait Quotas {
    fn quota_inode(&self, which: Which) -> Ino;
    fn quota(&self, which: Which, id: u32) -> DquotBlock;
    fn compare(&mut self, which: Which, id: u32) -> DquotBlock;
}

impl Quotas for Judge {
    fn quota_inode(&self, which: Which) -> Ino {
        let sb = &self.volume.superblock;
        let is_v5 = self.volume.geometry.is_v5();
        Ino(match which.1 {
            dquot_type::USER => sb.uquotino.get(),
            // V4 has one inode for groups or projects.
            dquot_type::PROJECT if is_v5 => sb.pquotino.get(),
            _ => sb.gquotino.get(),
        })
    }

    fn quota(&self, which: Which, id: u32) -> DquotBlock {
        let g = &self.volume.geometry;
        let ino = self.quota_inode(which);
        let mut found = self.volume.walk();
        let at = found.inodes.iter().position(|(other, _)| *other == ino);
        let (_, inode) = found.inodes.swap_remove(at.expect("the inode of quotas"));
        let extents = self.volume.extents(ino, &inode, ForkKind::Data, &mut found);
        let per_block = dquots_per_block(g);
        let (daddr, bytes) = self.volume.read_file(&extents, id / per_block, 1);
        let at = size_of::<DquotBlock>() * (id % per_block) as usize;
        let expect = Expect::of_inode(g, daddr, ino);
        DquotBlock::verify(&bytes[at..at + size_of::<DquotBlock>()], &expect, Some(id))
            .unwrap_or_else(|e| panic!("{which:?} {id}: {e}"))
    }

    fn compare(&mut self, which: Which, id: u32) -> DquotBlock {
        let ours = self.quota(which, id);
        let dquot = &ours.diskdq;
        assert_eq!(dquot.quota_type & !dquot_type::BIGTIME, which.1, "{which:?} {id}");
        let mut facts = Facts::default();
        facts.num("diskdq.magic", dquot.magic.get());
        facts.num("diskdq.version", dquot.version);
        facts.num("diskdq.type", dquot.quota_type);
        // A number with a sign to xfs_db.
        facts.num("diskdq.id", dquot.id.get().cast_signed());
        for (name, value) in [
            ("blk_hardlimit", dquot.blk_hardlimit),
            ("blk_softlimit", dquot.blk_softlimit),
            ("ino_hardlimit", dquot.ino_hardlimit),
            ("ino_softlimit", dquot.ino_softlimit),
            ("bcount", dquot.bcount),
            ("icount", dquot.icount),
            ("rtb_hardlimit", dquot.rtb_hardlimit),
            ("rtb_softlimit", dquot.rtb_softlimit),
            ("rtbcount", dquot.rtbcount),
        ] {
            facts.num(format!("diskdq.{name}"), value.get());
        }
        for (name, timer) in [
            ("itimer", dquot.itimer),
            ("btimer", dquot.btimer),
            ("rtbtimer", dquot.rtbtimer),
        ] {
            let sec = match dquot.quota_type & dquot_type::BIGTIME {
                0 => i64::from(timer.get()),
                _ => i64::from(timer.get()) << 2,
            };
            let name = format!("diskdq.{name}");
            // Those of id 0 are seconds of grace.
            if id == 0 || sec == 0 {
                facts.num(name, sec);
            } else {
                facts.text(name, asctime(sec));
            }
        }
        for (name, warnings) in [
            ("iwarns", dquot.iwarns),
            ("bwarns", dquot.bwarns),
            ("rtbwarns", dquot.rtbwarns),
        ] {
            facts.num(format!("diskdq.{name}"), warnings.get());
        }
        facts.num("crc", crc(ours.crc));
        facts.num("lsn", ours.lsn.get());
        facts.text("uuid", uuid_text(&ours.uuid));
        let theirs = self.lab.db(&[&format!("dquot {} {id}", which.0), "p"]);
        facts.compare(&format!("dquot {} {id}", which.0), &theirs, &[]);
        self.note("dquot");
        ours
    }
}

fn judge_quotas(what: &str, mut judge: Judge, types: &[Which], has_bigtime: bool) {
    for which in types.iter().copied() {
        let limited = judge.compare(which, which.2).diskdq;
        assert_eq!(
            limited.quota_type & dquot_type::BIGTIME != 0,
            has_bigtime,
            "{what}: {which:?}"
        );
        assert!(
            limited.btimer.get() > 0 && limited.itimer.get() > 0,
            "{what}: timers of {which:?} run"
        );
        assert!(
            limited.bcount.get() > 0 && limited.icount.get() > 1,
            "{what}: {which:?}"
        );
        let default = judge.compare(which, 0).diskdq;
        assert!(default.ino_hardlimit.get() == 3001 && default.btimer.get() == 3 * 86_400);
        let large = judge.compare(which, LARGE_ID).diskdq;
        assert!(large.ino_softlimit.get() == 5_000_000_000 && large.bcount.get() == 2);
        // Beside one that is in use.
        judge.compare(which, which.2 + 9);
        written_by_xfs_db(&mut judge, which);
    }
    println!("{what}: {:?}", judge.compared);
}

/// `xfs_db` writes values of its own into each field of a quota, no two the same.
fn written_by_xfs_db(judge: &mut Judge, which: Which) {
    const WIDE: [&str; 9] = [
        "blk_hardlimit",
        "blk_softlimit",
        "ino_hardlimit",
        "ino_softlimit",
        "bcount",
        "icount",
        "rtb_hardlimit",
        "rtb_softlimit",
        "rtbcount",
    ];
    let wide = WIDE
        .iter()
        .zip(0_u64..)
        .map(|(name, n)| (*name, 0x0102_0304_0506_0700 + n));
    let rest = [
        ("itimer", 0x0a0b_0c01),
        ("btimer", 0x1a1b_1c02),
        ("rtbtimer", 0x2a2b_2c03),
        ("iwarns", 0x3a01),
        ("bwarns", 0x3b02),
        ("rtbwarns", 0x3c03),
    ];
    let fields: Vec<_> = wide.chain(rest).collect();
    // With a checksum, where there is one.
    let flag = if judge.volume.geometry.is_v5() { "-d" } else { "" };
    let writes: String = fields
        .iter()
        .map(|(name, value)| format!(" -c 'write {flag} diskdq.{name} {value}'"))
        .collect();
    let image = judge.lab.image.display();
    sh(&format!(
        "xfs_db -x -c 'dquot {} {}' {writes} {image}",
        which.0, which.2
    ));
    let dquot = judge.compare(which, which.2).diskdq;
    for (name, value) in fields {
        let ours = match name {
            "blk_hardlimit" => dquot.blk_hardlimit.get(),
            "blk_softlimit" => dquot.blk_softlimit.get(),
            "ino_hardlimit" => dquot.ino_hardlimit.get(),
            "ino_softlimit" => dquot.ino_softlimit.get(),
            "bcount" => dquot.bcount.get(),
            "icount" => dquot.icount.get(),
            "rtb_hardlimit" => dquot.rtb_hardlimit.get(),
            "rtb_softlimit" => dquot.rtb_softlimit.get(),
            "rtbcount" => dquot.rtbcount.get(),
            "itimer" => dquot.itimer.get().into(),
            "btimer" => dquot.btimer.get().into(),
            "rtbtimer" => dquot.rtbtimer.get().into(),
            "iwarns" => dquot.iwarns.get().into(),
            "bwarns" => dquot.bwarns.get().into(),
            _ => dquot.rtbwarns.get().into(),
        };
        assert_eq!(ours, value, "{which:?}: {name}");
    }
    judge.note("dquot with a value in each field");
}

#[test]
fn each_field_of_dquots_is_the_one_of_xfs_db() {
    let Some(()) = need_progs() else { return };
    let Some(()) = need::tool("xz") else { return };
    let stored = |name| Judge::new(Lab::stored(name));
    let all = [USER, GROUP, PROJECT];
    judge_quotas("bigtime", stored("quota-v5"), &all, true);
    judge_quotas("timers of 32 bits", stored("quota-v5-32"), &all, false);
    judge_quotas("V4 with groups", stored("quota-v4"), &[USER, GROUP], false);
    judge_quotas("V4 with projects", stored("quota-v4p"), &[USER, PROJECT], false);
    // The stored ones are of a kernel that has quotas, which this one need not have.
    if !Path::new("/proc/fs/xfs/xqmstat").exists() {
        println!("this kernel has no quotas of XFS: stored volumes alone");
        return;
    }
    let Some(()) = need_kernel() else { return };
    for (mkfs, has_bigtime) in [("", true), ("-m bigtime=0", false)] {
        let lab = Lab::new(mkfs, 320);
        lab.run("uquota,gquota,pquota", SET);
        judge_quotas("this kernel", Judge::new(lab), &all, has_bigtime);
    }
}
