//! Quotas: every field that `xfs_db` prints, on V5 and V4.
//!
//! Many kernels have XFS without quotas, so these are our own: sealed by this crate, in files that
//! the superblock names as those of users, groups and projects. What their fields mean is
//! `xfs_db`'s word.
//!
//! Skips with a line without root, loop devices or xfsprogs.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use common::db::lines;
use common::fields::{Facts, asctime};
use common::judge::{crc, uuid_text};
use common::lab::{Lab, need_kernel, need_progs, sh};
use common::{Found, Volume};
use xfs_format::dquot::{DQUOT_MAGIC, DiskDquot, DquotBlock, QuotaTime, dquot_type, dquots_per_block};
use xfs_format::features::{quota, version};
use xfs_format::inode::ForkKind;
use xfs_format::{AgNumber, Daddr, Expect, FileBlock, Ino, Inode, Lsn, Superblock};
use zerocopy::FromZeros as _;

/// The first, one in each part of a block, in another block, and one of which the file has a hole
/// before.
const IDS: &[u32] = &[0, 7, 29, 31, 470];
const FAR_ID: u32 = 4_000_000_000;

/// The letter of `xfs_db`, and the type.
const KINDS: [(&str, u8); 3] = [
    ("u", dquot_type::USER),
    ("g", dquot_type::GROUP),
    ("p", dquot_type::PROJECT),
];

/// A quota whose fields all differ.
fn quota_of(id: u32, kind: u8, has_bigtime: bool) -> DiskDquot {
    let mut quota = DiskDquot::new_zeroed();
    let n = u64::from(id) % 1000 + u64::from(kind) * 1000;
    quota.magic.set(DQUOT_MAGIC);
    quota.version = 1;
    // The first has the limits and times of all others, no times of its own.
    let bigtime = if has_bigtime && id != 0 { dquot_type::BIGTIME } else { 0 };
    quota.quota_type = kind | bigtime;
    quota.id.set(id);
    quota.blk_hardlimit.set(n + 0x1_0000_0001);
    quota.blk_softlimit.set(n + 0x1_0000_0002);
    quota.ino_hardlimit.set(n + 0x1_0000_0003);
    quota.ino_softlimit.set(n + 0x1_0000_0004);
    quota.bcount.set(n + 0x1_0000_0005);
    quota.icount.set(n + 0x1_0000_0006);
    quota.itimer.set(n as u32 + 0x2000_0001);
    quota.btimer.set(n as u32 + 0x2000_0002);
    quota.iwarns.set(n as u16 + 3);
    quota.bwarns.set(n as u16 + 4);
    quota.rtb_hardlimit.set(n + 0x1_0000_0007);
    quota.rtb_softlimit.set(n + 0x1_0000_0008);
    quota.rtbcount.set(n + 0x1_0000_0009);
    quota.rtbtimer.set(n as u32 + 0x2000_0005);
    quota.rtbwarns.set(n as u16 + 6);
    quota
}

/// Makes the files those of the quotas, and fills them.
fn fill(lab: &Lab, inodes: &[Ino], ids: &[u32], has_bigtime: bool) {
    let volume = Volume::open(&lab.image);
    let geometry = volume.geometry;
    let found = volume.walk();
    let file = File::options().read(true).write(true).open(&lab.image).unwrap();
    for ((_, kind), ino) in KINDS.iter().zip(inodes) {
        let (_, inode) = found.inodes.iter().find(|(at, _)| at == ino).unwrap();
        let per_block = dquots_per_block(&geometry);
        // All of each block: xfs_db verifies it as a whole.
        for id in ids
            .iter()
            .flat_map(|id| (0..per_block).map(move |n| id / per_block * per_block + n))
        {
            let (daddr, offset) = place(&volume, *ino, inode, id);
            let expect = Expect::of_inode(&geometry, daddr, *ino);
            let lsn = Lsn(u64::from(id) + 5);
            let bytes = DquotBlock::seal(&quota_of(id, *kind, has_bigtime), &expect, lsn).unwrap();
            file.write_all_at(&bytes, daddr.checked_bytes().unwrap() + offset)
                .unwrap();
        }
    }
    for group in 0..geometry.ag_count {
        let at = geometry.header_daddr(AgNumber(group), 0).checked_bytes().unwrap();
        let mut sector = vec![0; geometry.sector_bytes as usize];
        file.read_exact_at(&mut sector, at).unwrap();
        let mut sb = Superblock::verify_copy(&sector).unwrap();
        sb.versionnum.set(sb.versionnum.get() | version::QUOTA as u16);
        sb.qflags.set((quota::UQUOTA_ACCT | quota::GQUOTA_ACCT) as u16);
        sb.uquotino.set(inodes[0].get());
        sb.gquotino.set(inodes[1].get());
        if geometry.is_v5() {
            sb.qflags.set(sb.qflags.get() | quota::PQUOTA_ACCT as u16);
            sb.pquotino.set(inodes[2].get());
        }
        file.write_all_at(&sb.seal().unwrap(), at).unwrap();
    }
}

/// The block of a quota, and the bytes before it there.
fn place(volume: &Volume, ino: Ino, inode: &Inode, id: u32) -> (Daddr, u64) {
    let per_block = dquots_per_block(&volume.geometry);
    let block = FileBlock(u64::from(id / per_block));
    let extents = volume.extents(ino, inode, ForkKind::Data, &mut Found::default());
    let extent = extents
        .iter()
        .find(|e| (e.offset.get()..e.offset.get() + u64::from(e.blocks)).contains(&block.get()))
        .unwrap();
    let start = volume.geometry.daddr(extent.start).unwrap().checked_bytes().unwrap();
    let within = (block.get() - extent.offset.get()) * u64::from(volume.geometry.block_bytes);
    let daddr = Daddr((start + within) / 512);
    (daddr, u64::from(id % per_block) * size_of::<DquotBlock>() as u64)
}

/// Compares each quota; returns how many.
fn compare(lab: &Lab, inodes: &[Ino], ids: &[u32]) -> usize {
    let volume = Volume::open(&lab.image);
    let found = volume.walk();
    let mut compared = 0;
    for ((letter, kind), ino) in KINDS.iter().zip(inodes) {
        let (_, inode) = found.inodes.iter().find(|(at, _)| at == ino).unwrap();
        for &id in ids {
            let (daddr, offset) = place(&volume, *ino, inode, id);
            let block = volume.read(daddr, volume.geometry.block_bytes);
            let bytes = &block[offset as usize..][..size_of::<DquotBlock>()];
            let expect = Expect::of_inode(&volume.geometry, daddr, *ino);
            let quota = DquotBlock::verify(bytes, &expect, Some(id)).unwrap();
            assert_eq!(quota.diskdq.quota_type & 7, *kind);
            let theirs = lab.db(&[&format!("dquot -{letter} {id}"), "p"]);
            if volume.geometry.is_v5() {
                let sum = lines(&theirs).get("crc").copied().unwrap_or_default();
                assert!(sum.ends_with(" (correct)"), "{theirs}");
            }
            facts_of(&quota).compare(&format!("quota -{letter} {id}"), &theirs, &[]);
            compared += 1;
        }
    }
    compared
}

fn facts_of(quota: &DquotBlock) -> Facts {
    let disk = &quota.diskdq;
    let mut facts = Facts::default();
    for (name, value) in [
        ("magic", u64::from(disk.magic.get())),
        ("version", disk.version.into()),
        ("type", disk.quota_type.into()),
        ("blk_hardlimit", disk.blk_hardlimit.get()),
        ("blk_softlimit", disk.blk_softlimit.get()),
        ("ino_hardlimit", disk.ino_hardlimit.get()),
        ("ino_softlimit", disk.ino_softlimit.get()),
        ("bcount", disk.bcount.get()),
        ("icount", disk.icount.get()),
        ("iwarns", disk.iwarns.get().into()),
        ("bwarns", disk.bwarns.get().into()),
        ("rtb_hardlimit", disk.rtb_hardlimit.get()),
        ("rtb_softlimit", disk.rtb_softlimit.get()),
        ("rtbcount", disk.rtbcount.get()),
        ("rtbwarns", disk.rtbwarns.get().into()),
    ] {
        facts.num(format!("diskdq.{name}"), value);
    }
    // With a sign, to xfs_db.
    facts.num("diskdq.id", disk.id.get().cast_signed());
    for (name, timer) in [
        ("itimer", disk.itimer),
        ("btimer", disk.btimer),
        ("rtbtimer", disk.rtbtimer),
    ] {
        let name = format!("diskdq.{name}");
        match disk.time(timer) {
            QuotaTime::Grace(seconds) => facts.num(name, seconds),
            QuotaTime::Until(time) => facts.text(name, asctime(time)),
        }
    }
    // V4 has zeros there.
    facts.num("crc", crc(quota.crc));
    facts.num("lsn", quota.lsn.get());
    facts.text("uuid", uuid_text(&quota.uuid));
    facts
}

/// The inodes of the files `u`, `g` and `p` at the top.
fn inodes_of(lab: &Lab) -> Vec<Ino> {
    let mut commands = Vec::new();
    for (letter, _) in KINDS {
        commands.extend([format!("path /{letter}"), "inode".to_owned()]);
    }
    let text = lab.db(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    let numbers = text
        .lines()
        .filter_map(|line| line.strip_prefix("current inode number is "));
    numbers.map(|ino| Ino(ino.parse().unwrap())).collect()
}

#[test]
fn each_field_of_quotas_is_the_one_of_xfs_db() {
    let Some(()) = need_kernel() else { return };
    for has_bigtime in [true, false] {
        let lab = Lab::new(&format!("-m bigtime={}", u8::from(has_bigtime)), 400);
        let far = FAR_ID / dquots_per_block(&Volume::open(&lab.image).geometry);
        lab.run(
            "",
            &format!(
                "for f in u g p; do dd if=/dev/zero of=$f bs=4096 count=16 status=none\n\
                 dd if=/dev/zero of=$f bs=4096 seek={far} count=1 conv=notrunc status=none; done"
            ),
        );
        let ids: Vec<u32> = IDS.iter().copied().chain([FAR_ID]).collect();
        let inodes = inodes_of(&lab);
        fill(&lab, &inodes, &ids, has_bigtime);
        assert_eq!(compare(&lab, &inodes, &ids), 3 * ids.len());
    }
}

/// Users and groups, or users and projects: V4 has one file for the two.
#[test]
fn each_field_of_quotas_of_version_4_is_the_one_of_xfs_db() {
    let Some(()) = need_progs() else { return };
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    sh(&format!(
        "cd {}; head -c 65536 /dev/zero > zeros\n\
         {{ echo /; echo 0 0; echo d--755 0 0; for f in u g p; do echo $f ---644 0 0 $PWD/zeros; done; echo '$'; }} > list",
        dir.path().display()
    ));
    let lab = Lab::new(&format!("-m crc=0 -p {}", list.display()), 400);
    let inodes = inodes_of(&lab);
    fill(&lab, &inodes, IDS, false);
    assert_eq!(compare(&lab, &inodes[..2], IDS), 2 * IDS.len());
}
