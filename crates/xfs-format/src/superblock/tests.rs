//! Each rule of the superblock is broken once.

use cowshed_layout::Rule;
use zerocopy::FromZeros;

use super::*;
use crate::corrupt::CorruptKind;
use crate::features::{incompat, log_incompat, ro_compat};

/// As mkfs.xfs makes it for 320 MiB.
pub(crate) fn superblock() -> Superblock {
    let mut sb = Superblock::new_zeroed();
    sb.magicnum.set(MAGIC);
    sb.blocksize.set(4096);
    sb.dblocks.set(81920);
    sb.uuid = [7; 16];
    sb.logstart.set(65543);
    sb.rootino.set(128);
    sb.rbmino.set(129);
    sb.rsumino.set(130);
    sb.rextsize.set(1);
    sb.agblocks.set(20480);
    sb.agcount.set(4);
    sb.logblocks.set(16384);
    sb.versionnum.set(0xb4a5);
    sb.sectsize.set(512);
    sb.inodesize.set(512);
    sb.inopblock.set(8);
    (sb.blocklog, sb.sectlog, sb.inodelog, sb.inopblog, sb.agblklog) = (12, 9, 9, 3, 15);
    sb.imax_pct = 25;
    sb.icount.set(64);
    sb.ifree.set(61);
    sb.fdblocks.set(65500);
    sb.inoalignmt.set(8);
    sb.logsunit.set(1);
    sb.features2.set(0x18a);
    sb.bad_features2.set(0x18a);
    sb.features_ro_compat.set(0xf);
    sb.features_incompat.set(0x2b);
    sb.spino_align.set(4);
    sb
}

/// As `mkfs.xfs -m crc=0` makes it.
pub(crate) fn superblock_v4() -> Superblock {
    let mut sb = superblock();
    sb.versionnum.set(0xb4a4);
    sb.features2.set(0x8a);
    sb.bad_features2.set(0x8a);
    sb.features_ro_compat.set(0);
    sb.features_incompat.set(0);
    sb.inodesize.set(256);
    sb.inopblock.set(16);
    (sb.inodelog, sb.inopblog) = (8, 4);
    sb.spino_align.set(0);
    sb
}

#[test]
fn a_sealed_superblock_is_accepted_and_comes_back() {
    for sb in [superblock(), superblock_v4()] {
        let sector = sb.seal().unwrap();
        assert_eq!(sector.len(), 512);
        let read = Superblock::verify(&sector).unwrap();
        assert_eq!(Superblock { crc: sb.crc, ..read }, sb);
        assert_eq!(read.access(ReadLimit::Kernel) == Access::ReadWrite, sb.is_v5());
    }
}

#[test]
fn other_bytes_are_refused() {
    assert_eq!(Superblock::verify(&[0; 511]), Err(SuperblockError::Magic));
    assert_eq!(Superblock::verify(&[0; 9]), Err(SuperblockError::Short { found: 9 }));
    let mut sector = superblock().seal().unwrap();
    assert_eq!(
        Superblock::verify(&sector[..400]),
        Err(SuperblockError::Short { found: 400 })
    );
    let mut sb = superblock();
    sb.inprogress = 1;
    let copy = sb.seal().unwrap();
    assert!(Superblock::verify_copy(&copy).is_ok() && Superblock::verify(&copy).is_err());
    sector[500] ^= 1;
    assert!(matches!(Superblock::verify(&sector), Err(SuperblockError::Crc { .. })));
}

fn broken(change: impl FnOnce(&mut Superblock)) -> String {
    let mut sb = superblock();
    change(&mut sb);
    match sb.seal() {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn each_field_has_its_bounds() {
    let field = |field, found, rule| SuperblockError::Corrupt(CorruptKind::Field { field, found, rule }).to_string();
    type Case = (&'static str, u64, Rule, fn(&mut Superblock));
    let cases: &[Case] = &[
        ("sectsize", 768, Rule::PowerOfTwo, |sb| sb.sectsize.set(768)),
        ("sectsize", 256, Rule::Between(512, 32768), |sb| sb.sectsize.set(256)),
        ("sectlog", 10, Rule::Equal(9), |sb| sb.sectlog = 10),
        ("blocksize", 4095, Rule::PowerOfTwo, |sb| sb.blocksize.set(4095)),
        ("blocksize", 131_072, Rule::Between(512, 65536), |sb| {
            sb.blocksize.set(131_072)
        }),
        ("blocksize", 512, Rule::AtLeast(1024), |sb| {
            sb.blocksize.set(512);
            sb.blocklog = 9;
        }),
        ("blocklog", 13, Rule::Equal(12), |sb| sb.blocklog = 13),
        ("inodesize", 513, Rule::PowerOfTwo, |sb| sb.inodesize.set(513)),
        ("inodesize", 4096, Rule::Between(256, 2048), |sb| sb.inodesize.set(4096)),
        ("inodesize", 256, Rule::AtLeast(512), |sb| sb.inodesize.set(256)),
        ("inodelog", 8, Rule::Equal(9), |sb| sb.inodelog = 8),
        ("inopblock", 4, Rule::Equal(8), |sb| sb.inopblock.set(4)),
        ("inopblog", 4, Rule::Equal(3), |sb| sb.inopblog = 4),
        ("dirblklog", 17, Rule::AtMost(16), |sb| sb.dirblklog = 5),
        ("inprogress", 2, Rule::AtMost(1), |sb| sb.inprogress = 2),
        ("imax_pct", 101, Rule::AtMost(100), |sb| sb.imax_pct = 101),
        ("agcount", 0, Rule::NonZero, |sb| sb.agcount.set(0)),
        ("agblocks", 63, Rule::AtLeast(64), |sb| sb.agblocks.set(63)),
        ("agblklog", 14, Rule::Equal(15), |sb| sb.agblklog = 14),
        ("dblocks", 81921, Rule::Between(61504, 81920), |sb| {
            sb.dblocks.set(81921)
        }),
        ("dblocks", 61503, Rule::Between(61504, 81920), |sb| {
            sb.dblocks.set(61503)
        }),
        ("logblocks", 0, Rule::NonZero, |sb| sb.logblocks.set(0)),
        ("logblocks", 20481, Rule::AtMost(20480), |sb| sb.logblocks.set(20474)),
        ("logsectsize", 100, Rule::PowerOfTwo, |sb| sb.logsectsize.set(100)),
        ("logsectlog", 3, Rule::Equal(0), |sb| sb.logsectlog = 3),
        ("logsunit", 300_000, Rule::AtMost(262_144), |sb| {
            sb.logsunit.set(300_000)
        }),
        ("logsunit", 4097, Rule::MultipleOf(4096), |sb| sb.logsunit.set(4097)),
        ("unit", 4, Rule::Equal(0), |sb| sb.unit.set(4)),
        ("width", 4, Rule::Equal(0), |sb| sb.width.set(4)),
        ("width", 9, Rule::MultipleOf(4), |sb| {
            sb.versionnum.set(0xb5a5);
            sb.unit.set(4);
            sb.width.set(9);
        }),
        ("rextsize", 0, Rule::Between(4096, 1 << 30), |sb| sb.rextsize.set(0)),
        ("rextents", 5, Rule::Equal(0), |sb| sb.rextents.set(5)),
        ("rbmblocks", 5, Rule::Equal(0), |sb| sb.rbmblocks.set(5)),
        ("spino_align", 9, Rule::Between(1, 8), |sb| sb.spino_align.set(9)),
        ("fdblocks", 81921, Rule::AtMost(81920), |sb| sb.fdblocks.set(81921)),
        ("ifree", 65, Rule::AtMost(64), |sb| sb.ifree.set(65)),
        ("icount", 655_361, Rule::AtMost(655_360), |sb| sb.icount.set(655_361)),
    ];
    for (name, found, rule, change) in cases {
        let text = broken(change);
        assert_eq!(text, field(name, *found, *rule));
    }
}

#[test]
fn addresses_lie_on_the_volume() {
    for (text, change) in [
        ("rootino is 1", (|sb| sb.rootino.set(1)) as fn(&mut Superblock)),
        ("rbmino is 5", |sb| sb.rbmino.set(5)),
        ("logstart is 20480", |sb| sb.logstart.set(20480)),
    ] {
        assert!(broken(change).contains(text), "{}", broken(change));
    }
    assert_eq!(
        broken(|sb| sb.features2.set(0x108)),
        "superblock: version 5 without LAZYSBCOUNT, PROJID32"
    );
    assert_eq!(
        broken(|sb| sb.versionnum.set(0xb4a3)),
        "superblock: version 3, expected 4 or 5"
    );
    assert!(broken(|sb| sb.features_ro_compat.set(8)).contains("INOBTCNT without FINOBT"));
}

fn access(change: impl FnOnce(&mut Superblock), limit: ReadLimit) -> String {
    let mut sb = superblock();
    change(&mut sb);
    match sb.access(limit) {
        Access::ReadWrite => "rw".to_owned(),
        Access::ReadOnly { why } => format!("ro {}", why.name),
        Access::Refused { why } => format!("no {}", why.name),
    }
}

#[test]
fn features_decide_by_name() {
    use ReadLimit::{Kernel, Rescue};
    assert_eq!(access(|_| (), Kernel), "rw");
    let with = |bits: u64| move |sb: &mut Superblock| sb.features_incompat.set(bits as u32);
    assert_eq!(access(with(0xff & !incompat::NEEDSREPAIR), Kernel), "rw");
    assert_eq!(access(with(incompat::NEEDSREPAIR), Kernel), "no NEEDSREPAIR");
    assert_eq!(access(with(incompat::NEEDSREPAIR), Rescue), "ro NEEDSREPAIR");
    assert_eq!(access(with(incompat::METADIR), Kernel), "ro METADIR");
    assert_eq!(access(with(incompat::ZONED | 1 << 20), Kernel), "no ZONED, 0x100000");
    assert_eq!(
        access(
            |sb| sb.features_ro_compat.set(ro_compat::FINOBT as u32 | 1 << 9),
            Kernel
        ),
        "ro 0x200"
    );
    assert_eq!(access(|sb| sb.rblocks.set(9), Kernel), "ro realtime device");
    assert_eq!(access(|sb| sb.versionnum.set(0xf4a5), Kernel), "ro ASCII_CI");
    assert_eq!(
        access(|sb| sb.versionnum.set(0x9484), Kernel),
        "no directories of version 1"
    );
    assert_eq!(superblock().unsupported_log_features(), None);
    let mut sb = superblock();
    sb.features_log_incompat.set(log_incompat::XATTRS as u32 | 4);
    assert_eq!(sb.unsupported_log_features().unwrap().name, "0x4");
}

#[test]
fn metadata_carries_the_uuid_of_its_feature() {
    let mut sb = superblock();
    sb.meta_uuid = [9; 16];
    assert_eq!(sb.metadata_uuid(), [7; 16]);
    sb.features_incompat.set(incompat::META_UUID as u32);
    assert_eq!(sb.metadata_uuid(), [9; 16]);
    sb.fname = *b"label\0\0\0\0\0\0\0";
    assert_eq!(sb.label(), b"label");
}
