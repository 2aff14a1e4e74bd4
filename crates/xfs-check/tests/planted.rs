//! One fault of each kind, planted with xfs_db into a volume that Linux filled: it is found under
//! its id, by a line that says where.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cowshed_device::{FileDevice, Locking, MemDevice, OpenMode};
use cowshed_harness::xfs::{Fill, XfsOptions, XfsVolume, fill};
use cowshed_harness::{need, run, run_raw};
use xfs_check::{CheckOptions, FindingId, Report, check};

fn judge(path: &Path, options: &CheckOptions<'_>) -> Result<Report> {
    let device = FileDevice::open_with(path, OpenMode::ReadOnly, Locking::Unlocked)?;
    Ok(check(Arc::new(device), options))
}

/// A volume with inodes under short names, and a file that is gone.
struct Base {
    volume: XfsVolume,
    content: MemDevice,
    work: PathBuf,
    gone: u64,
    file: u64,
    dir: u64,
    short: u64,
}

impl Base {
    fn make() -> Result<Base> {
        let volume = XfsVolume::make(&XfsOptions::new("-m rmapbt=1,reflink=1"))?;
        let what = Fill {
            entries: 20,
            names: 1500,
            extents: 200,
            links: 20,
            ..Fill::small(3)
        };
        let numbers = volume.with_mount(|root| {
            fill(root, &what)?;
            for (from, to) in [
                ("short form", "short"),
                ("block form", "block"),
                ("leaf form", "leaf"),
                ("node form", "node"),
                ("clone 0", "clone"),
                ("longest symlink", "longest"),
                ("leaf of attributes", "attrleaf"),
                ("nodes of attributes", "attrnode"),
                ("remote values", "remote"),
            ] {
                fs::rename(root.join(from), root.join(to))?;
            }
            run("mkfifo", &[root.join("fifo")])?;
            fs::write(root.join("file"), [1; 9000])?;
            fs::write(root.join("gone"), [])?;
            let ino = |name: &str| Ok::<_, anyhow::Error>(fs::symlink_metadata(root.join(name))?.ino());
            let numbers = [ino("gone")?, ino("file")?, ino("block")?, ino("short/e1")?];
            fs::remove_file(root.join("gone"))?;
            Ok(numbers)
        })?;
        let image = FileDevice::open_with(volume.image(), OpenMode::ReadOnly, Locking::Unlocked)?;
        let content = MemDevice::copy_of("volume", &image)?;
        let work = volume.dir().join("planted.img");
        let [gone, file, dir, short] = numbers;
        Ok(Base {
            volume,
            content,
            work,
            gone,
            file,
            dir,
            short,
        })
    }

    /// A copy of the volume after these commands of xfs_db.
    fn plant(&self, commands: &[String]) -> Result<String> {
        self.content.save(&self.work)?;
        let mut args = vec!["-x".to_owned()];
        for command in commands {
            args.extend(["-c".to_owned(), command.clone()]);
        }
        args.push(self.work.display().to_string());
        let output = run_raw("xfs_db", &args)?;
        let said = [output.stdout, output.stderr].concat();
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    fn db(&self, commands: &[&str]) -> Result<String> {
        self.volume.db(commands)
    }
}

/// Places first, then what is written there. `{gone}` and others stand for numbers of inodes.
const PLANTS: &[(FindingId, &[&str])] = &[
    (FindingId::SuperInvalid, &["sb 0", "write -d blocksize 4095"]),
    (
        FindingId::UnsupportedFeature,
        &["sb 0", "write -d features_incompat 0x800b"],
    ),
    (FindingId::NeedsRepair, &["sb 0", "write -d features_incompat 0x1b"]),
    (FindingId::SuperCopy, &["sb 1", "write -d agblocks 99999"]),
    (FindingId::SuperCounters, &["sb 0", "write -d fdblocks 5"]),
    (FindingId::SuperInode, &["sb 0", "write -d rbmino 128"]),
    (FindingId::BlockMagic, &["agf 0", "addr bnoroot", "write -d magic 0"]),
    (FindingId::BlockCrc, &["agf 1", "write -c freeblks 1"]),
    (FindingId::Incomplete, &["agf 1", "write -c freeblks 1"]),
    (FindingId::BlockIdentity, &["agf 0", "addr bnoroot", "write -d owner 7"]),
    (
        FindingId::BlockLsn,
        &["agf 0", "addr bnoroot", "write -d lsn 0x7000000000"],
    ),
    (
        FindingId::BlockTwice,
        &["path /file", "write -d u3.bmx[0].startblock 16"],
    ),
    (
        FindingId::BlockLost,
        &["agf 2", "addr bnoroot", "write -d recs[1].blockcount 5"],
    ),
    (FindingId::AgfInvalid, &["agf 0", "write -d flfirst 9999"]),
    (FindingId::AgfCount, &["agf 0", "write -d longest 3"]),
    (FindingId::AgfCount, &["agf 0", "write -d btreeblks 3"]),
    (FindingId::AgfCount, &["agf 0", "write -d rmapblocks 1"]),
    (FindingId::AgiInvalid, &["agi 0", "write -d level 77"]),
    (FindingId::AgiCount, &["agi 0", "write -d freecount 1"]),
    (FindingId::AgflInvalid, &["agf 0", "write -d flcount 1"]),
    (
        FindingId::BtreeInvalid,
        &["agf 2", "addr bnoroot", "write -d recs[1].startblock 0xffffff0"],
    ),
    (
        FindingId::BtreeSiblings,
        &["path /pieces", "addr u3.bmbt.ptrs[1]", "write -d leftsib 12345"],
    ),
    (
        FindingId::BtreeKeys,
        &["path /pieces", "write -d u3.bmbt.keys[1].startoff 1"],
    ),
    (
        FindingId::BtreeUnderfull,
        &["agf 0", "addr rmaproot", "addr ptrs[1]", "write -d numrecs 3"],
    ),
    (
        FindingId::FreeSpaceMismatch,
        &["agf 2", "addr cntroot", "write -d recs[1].blockcount 7"],
    ),
    (
        FindingId::FreeSpaceInUse,
        &["agf 2", "addr bnoroot", "write -d recs[1].startblock 4"],
    ),
    (
        FindingId::ChunkInvalid,
        &["agi 0", "addr root", "write -d recs[1].startino 136"],
    ),
    (
        FindingId::FinobtMismatch,
        &["agi 0", "addr free_root", "write -d recs[1].startino 64000"],
    ),
    (
        FindingId::RmapMissing,
        &["agf 2", "addr rmaproot", "write -d recs[2].blockcount 1"],
    ),
    (
        FindingId::RmapStale,
        &["agf 2", "addr rmaproot", "write -d recs[2].blockcount 9"],
    ),
    (
        FindingId::RefcountWrong,
        &["agf 0", "addr refcntroot", "write -d recs[1].refcount 9"],
    ),
    (
        FindingId::CowStaging,
        &[
            "agf 0",
            "addr refcntroot",
            "write -d recs[{last}].refcount 1",
            "write -d recs[{last}].cowflag 1",
        ],
    ),
    (FindingId::InodeInvalid, &["path /fifo", "write -d core.size 5"]),
    (FindingId::InodeNotFree, &["inode {gone}", "write -d core.mode 0100644"]),
    (FindingId::InodeMissing, &["path /file", "write -d core.mode 0"]),
    (FindingId::InodeBlocks, &["path /file", "write -d core.nblocks 99"]),
    (FindingId::InodeExtents, &["path /pieces", "write -d core.nextents 190"]),
    (FindingId::InodeReflink, &["path /clone", "write -d v3.reflink 0"]),
    (FindingId::InodeNlink, &["path /file", "write -d core.nlinkv2 7"]),
    (
        FindingId::InodeDisconnected,
        &["path /short", "write -d u3.sfdir3.list[0].inumber.i4 {file}"],
    ),
    (
        FindingId::ExtentInvalid,
        &["path /block", "write -d u3.bmx[0].extentflag 1"],
    ),
    (FindingId::UnlinkedList, &["agi 0", "write -d unlinked[5] 128"]),
    (
        FindingId::UnlinkedMissing,
        &[
            "path /short",
            "write -d u3.sfdir3.list[0].inumber.i4 {file}",
            "inode {short}",
            "write -d core.nlinkv2 0",
        ],
    ),
    (FindingId::SymlinkInvalid, &["path /longest", "write -d core.size 1000"]),
    (
        FindingId::DirInvalid,
        &["path /block", "dblock 0", "write -d bhdr.bestfree[0].length 8"],
    ),
    (
        FindingId::DirHash,
        &["path /leaf", "dblock 8388608", "write -d lents[3].address 0x5"],
    ),
    (
        FindingId::DirFree,
        &["path /leaf", "dblock 8388608", "write -d lbests[0] 8"],
    ),
    (FindingId::DirSize, &["path /leaf", "write -d core.size 65536"]),
    (
        FindingId::DirDots,
        &["path /block", "dblock 0", "write -d bu[0].inumber 128"],
    ),
    (
        FindingId::DirNameTwice,
        &["path /short", "write -d u3.sfdir3.list[1].name \"e1\""],
    ),
    (
        FindingId::DirEntryDangling,
        &["path /short", "write -d u3.sfdir3.list[0].inumber.i4 {gone}"],
    ),
    (
        FindingId::DirEntryType,
        &["path /short", "write -d u3.sfdir3.list[0].filetype 2"],
    ),
    (
        FindingId::DirParent,
        &["path /short", "write -d u3.sfdir3.hdr.parent.i4 {dir}"],
    ),
    (
        FindingId::DirLinks,
        &[
            "path /short",
            "write -d u3.sfdir3.list[0].inumber.i4 {dir}",
            "write -d u3.sfdir3.list[0].filetype 2",
        ],
    ),
    (
        FindingId::AttrInvalid,
        &["path /attrleaf", "ablock 0", "write -d hdr.usedbytes 1"],
    ),
    (
        FindingId::AttrHash,
        &["path /attrnode", "ablock 0", "write -d btree[0].hashval 1"],
    ),
    (
        FindingId::AttrValue,
        &["path /remote", "ablock 1", "write -d hdr.bytes 5"],
    ),
    (FindingId::BlockLsn, &["sb 0", "write -d lsn 0x8100000100000001"]),
];

/// Planted by tests of their own, below, of the command or in `counted.rs`, or not planted: no
/// device fails.
const ELSEWHERE: &[FindingId] = &[
    FindingId::DeviceShort,
    FindingId::LogDirty,
    FindingId::LogInvalid,
    FindingId::LogMissing,
    FindingId::BlockUnreadable,
    FindingId::AclInvalid,
    FindingId::ParentMismatch,
    FindingId::QuotaInvalid,
    FindingId::QuotaCount,
];

#[test]
fn each_planted_fault_is_found_under_its_id() -> Result<()> {
    let Some(()) = need::kernel_xfs() else { return Ok(()) };
    let base = Base::make()?;
    let clean = judge(base.volume.image(), &CheckOptions::default())?;
    assert!(clean.findings.is_empty(), "{clean}");
    let count = base.db(&["agf 0", "addr refcntroot", "print numrecs"])?;
    let last = count.trim().rsplit(' ').next().unwrap_or_default().to_owned();
    let mut missed = Vec::new();
    let mut found: BTreeSet<FindingId> = ELSEWHERE.iter().copied().collect();
    for (id, commands) in PLANTS {
        let commands: Vec<String> = commands
            .iter()
            .map(|command| {
                command
                    .replace("{gone}", &base.gone.to_string())
                    .replace("{file}", &base.file.to_string())
                    .replace("{dir}", &base.dir.to_string())
                    .replace("{short}", &base.short.to_string())
                    .replace("{last}", &last)
            })
            .collect();
        let said = base.plant(&commands)?;
        let report = judge(&base.work, &CheckOptions::default())?;
        // Lists in a temporary file, and groups in slices, make no difference.
        let in_little = CheckOptions {
            memory_bytes: 64 << 10,
            ..CheckOptions::default()
        };
        let ids = |report: &Report| report.counts.keys().copied().collect::<Vec<_>>();
        assert_eq!(ids(&judge(&base.work, &in_little)?), ids(&report), "{id}");
        let finding = report.findings.iter().find(|finding| finding.id == *id);
        match finding {
            Some(finding) => {
                let site = &finding.site;
                let is_placed = site.group.is_some() || site.inode.is_some() || *id == FindingId::Incomplete;
                assert!(is_placed, "{finding}");
                found.insert(*id);
            }
            None => missed.push(format!("{id}: {commands:?}\nxfs_db: {said}\n{report}")),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    let without: Vec<_> = FindingId::ALL.iter().filter(|id| !found.contains(id)).collect();
    assert!(without.is_empty(), "no fault is planted for {without:?}");
    // A device that ends early.
    base.content.save(&base.work)?;
    OpenOptions::new().write(true).open(&base.work)?.set_len(100 << 20)?;
    let report = judge(&base.work, &CheckOptions::default())?;
    assert!(
        report.has(FindingId::DeviceShort) && !report.statistics.was_checked,
        "{report}"
    );
    Ok(())
}

fn list_of(count: u32, entries: &[(u32, u32, u16)]) -> Vec<u8> {
    let mut value = count.to_be_bytes().to_vec();
    for (tag, id, perm) in entries {
        value.extend(tag.to_be_bytes());
        value.extend(id.to_be_bytes());
        value.extend(perm.to_be_bytes());
        value.extend([0; 2]);
    }
    value
}

/// Values of access lists, and whether they are sound.
fn lists() -> Vec<(Vec<u8>, bool)> {
    let whole = |entries: &[(u32, u32, u16)]| list_of(entries.len() as u32, entries);
    let [owner, group, mask, other] = [1, 4, 16, 32].map(|tag| (tag, u32::MAX, 5));
    let many: Vec<_> = (0..400).map(|n| (2, 1000 + n, 4)).collect();
    let many = |last| [&[owner], &many[..], &[group, mask, last]].concat();
    let plain = [owner, group, other];
    vec![
        (whole(&plain), true),
        (whole(&[owner, (2, 7, 6), group, (8, 7, 6), mask, other]), true),
        (whole(&many(other)), true),
        (whole(&many((0x40, u32::MAX, 5))), false),
        (whole(&[owner, (2, 7, 6), group, other]), false),
        (whole(&[owner, (2, 7, 6), (2, 7, 5), group, mask, other]), false),
        (whole(&[owner, group, (0x2bc_0010, 0, 5), other]), false),
        (whole(&[owner, group, (0x40, 0, 5), other]), false),
        (whole(&[owner, group, (32, u32::MAX, 8)]), false),
        (whole(&[owner, owner, group, other]), false),
        (whole(&[owner, group]), false),
        (whole(&[]), false),
        (list_of(4, &plain), false),
        (list_of(u32::MAX, &plain), false),
        (b"abc".to_vec(), false),
    ]
}

#[test]
fn access_lists_are_judged_as_xfs_repair_does() -> Result<()> {
    let Some(()) = need::kernel_xfs() else { return Ok(()) };
    let volume = XfsVolume::make(&XfsOptions::new(""))?;
    let inodes = volume.with_mount(|root| {
        let mut inodes = Vec::new();
        for (n, (value, is_sound)) in lists().iter().enumerate() {
            let path = root.join(format!("{n}"));
            fs::write(&path, [])?;
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, c"trusted.SGI_ACL_FILE", value, flags)?;
            inodes.push((fs::metadata(&path)?.ino(), n, *is_sound));
        }
        Ok(inodes)
    })?;
    let report = judge(volume.image(), &CheckOptions::default())?;
    let judged = run_raw(
        "xfs_repair",
        &["-n".as_ref(), "-f".as_ref(), volume.image().as_os_str()],
    )?;
    let stock = String::from_utf8_lossy(&judged.stdout).into_owned() + &String::from_utf8_lossy(&judged.stderr);
    for (ino, n, is_sound) in inodes {
        let mut found = report
            .findings
            .iter()
            .filter(|finding| finding.id == FindingId::AclInvalid);
        let is_found = found.any(|finding| finding.site.inode.is_some_and(|inode| inode.get() == ino));
        assert_eq!(is_found, !is_sound, "list {n}: {report}");
        let stock_finds = stock.lines().any(|line| line.ends_with(&format!("for inode {ino}")));
        println!("list {n}: sound {is_sound}, xfs_repair finds a fault: {stock_finds}");
        assert!(is_found || !stock_finds, "list {n}: {stock}");
    }
    assert!(stock.contains("for inode"), "{stock}");
    Ok(())
}

#[test]
fn faults_of_the_log_are_found() -> Result<()> {
    let Some(()) = need::kernel_xfs() else { return Ok(()) };
    let volume = XfsVolume::make(&XfsOptions::new(""))?;
    let mounted = volume.mount_with("")?;
    fs::write(mounted.dir().join("file"), [1; 9000])?;
    let dir = mounted.dir().to_path_buf();
    run(
        "xfs_io",
        &["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), dir.as_os_str()],
    )?;
    mounted.unmount()?;
    let report = judge(volume.image(), &CheckOptions::default())?;
    assert!(report.has(FindingId::LogDirty), "{report}");
    let replay = || Err("no".to_owned());
    let options = CheckOptions {
        replay: Some(&replay),
        ..CheckOptions::default()
    };
    let report = judge(volume.image(), &options)?;
    assert!(
        report.to_string().contains("the log cannot be replayed: no"),
        "{report}"
    );
    // Each record is of another volume.
    const FS_UUID_AT: usize = 304;
    let mut bytes = fs::read(volume.image())?;
    for block in bytes
        .chunks_mut(512)
        .filter(|block| block.starts_with(&[0xfe, 0xed, 0xba, 0xbe]))
    {
        block[FS_UUID_AT..FS_UUID_AT + 16].fill(0xaa);
    }
    fs::write(volume.image(), bytes)?;
    let report = judge(volume.image(), &CheckOptions::default())?;
    let finding = report
        .findings
        .iter()
        .find(|finding| finding.id == FindingId::LogInvalid);
    assert!(
        finding.is_some_and(|finding| finding.message.contains("h_fs_uuid is aaaa")),
        "{report}"
    );
    let external = XfsVolume::make(&XfsOptions {
        log_bytes: Some(64 << 20),
        ..XfsOptions::new("")
    })?;
    let report = judge(external.image(), &CheckOptions::default())?;
    assert!(report.has(FindingId::LogMissing) && report.is_clean(), "{report}");
    Ok(())
}

/// `docs/CHECK.md` lists every id with its severity and meaning. `COWSHED_BLESS=1` rewrites it.
#[test]
fn document_lists_every_id() -> Result<()> {
    const START: &str = "| finding | severity | meaning |\n|---|---|---|\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CHECK.md");
    let text = fs::read_to_string(&path)?;
    let (head, rest) = text.split_once(START).context("the table of XFS")?;
    let (_, tail) = rest.split_once("\n\n").context("the end of the table")?;
    let rows: Vec<String> = FindingId::ALL
        .iter()
        .map(|id| format!("| `{id}` | {} | {} |", id.severity(), id.meaning()))
        .collect();
    let wanted = format!("{head}{START}{}\n\n{tail}", rows.join("\n"));
    if std::env::var_os("COWSHED_BLESS").is_some() {
        fs::write(&path, &wanted)?;
    }
    let is_same = fs::read_to_string(&path)? == wanted;
    assert!(is_same, "docs/CHECK.md is out of date: run with COWSHED_BLESS=1");
    Ok(())
}
