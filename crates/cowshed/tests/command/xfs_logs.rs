//! Logs of XFS that are not what they should be, and volumes that are refused: each says place and
//! value, the exit code is 2, and nothing is written.

use std::fs;
use std::mem::offset_of;
use std::path::{Path, PathBuf};

use cowshed_harness::xfs::{XfsOptions, XfsVolume};
use cowshed_harness::{need, run as run_tool};
use xfs_format::log::{LOG_MAGIC, RecordHeader};
use xfs_format::{Geometry, Superblock, crc};

use crate::support::{Ran, run};

const BLOCK: usize = 512;

/// The image of a volume, and where its log lies.
struct Image {
    path: PathBuf,
    bytes: Vec<u8>,
    log: std::ops::Range<usize>,
    _volume: XfsVolume,
}

/// A record of the log: its place in the image.
#[derive(Clone, Copy, Debug)]
struct Record {
    at: usize,
    lsn: u64,
    tail: u64,
}

impl Image {
    fn of(volume: XfsVolume) -> Self {
        let path = volume.image().to_path_buf();
        let bytes = fs::read(&path).unwrap();
        let geometry = Geometry::new(&Superblock::verify(&bytes).unwrap()).unwrap();
        let start = geometry.log_start.and_then(|start| geometry.daddr(start)).unwrap();
        let start = start.checked_bytes().unwrap() as usize;
        let end = start + geometry.log_blocks as usize * geometry.block_bytes as usize;
        Self {
            path,
            bytes,
            log: start..end,
            _volume: volume,
        }
    }

    /// A volume with many records in its log, and files "file 0" to "file 39".
    fn dirty() -> Option<Self> {
        need::kernel_xfs()?;
        let volume = XfsVolume::make(&XfsOptions::new("")).unwrap();
        let mounted = volume.mount_with("").unwrap();
        let dir = mounted.dir().to_path_buf();
        for number in 0..40 {
            let file = fs::File::create(dir.join(format!("file {number}"))).unwrap();
            file.sync_all().unwrap();
        }
        shut_down(&dir);
        mounted.unmount().unwrap();
        Some(Self::of(volume))
    }

    /// A clean volume with a directory of one block.
    fn clean() -> Option<Self> {
        need::kernel_xfs()?;
        let volume = XfsVolume::make(&XfsOptions::new("")).unwrap();
        let made = volume.with_mount(|dir| {
            fs::create_dir(dir.join("dir"))?;
            (0..30).try_for_each(|number| Ok(fs::write(dir.join(format!("dir/a name {number}")), b"x")?))
        });
        made.unwrap();
        Some(Self::of(volume))
    }

    fn word(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes[at..at + 8].try_into().unwrap())
    }

    /// The live records, the oldest one first.
    fn records(&self) -> Vec<Record> {
        let is_header = |at: &usize| self.bytes[*at..].starts_with(&LOG_MAGIC.to_be_bytes());
        let mut records: Vec<Record> = self
            .log
            .clone()
            .step_by(BLOCK)
            .filter(is_header)
            .map(|at| Record {
                at,
                lsn: self.word(at + offset_of!(RecordHeader, lsn)),
                tail: self.word(at + offset_of!(RecordHeader, tail_lsn)),
            })
            .collect();
        records.sort_by_key(|record| record.lsn);
        let tail = records.last().unwrap().tail;
        records.retain(|record| record.lsn >= tail);
        assert!(records.len() > 20, "{} records", records.len());
        records
    }

    /// The record states no checksum: what it holds is read.
    fn drop_checksum(&mut self, record: Record) {
        let at = record.at + offset_of!(RecordHeader, crc);
        self.bytes[at..at + 4].fill(0);
    }

    /// Writes the image, and lists its root. Nothing may change.
    fn list(&self) -> Ran {
        fs::write(&self.path, &self.bytes).unwrap();
        let ran = run("ls {}", &[&self.path]);
        assert!(fs::read(&self.path).unwrap() == self.bytes, "the image changed");
        ran
    }

    /// As [`Self::list`]; it must fail, and name the block of the log and these words.
    #[track_caller]
    fn fails_at(&self, record: Record, words: &[&str]) {
        let block = format!("log, block {}:", (record.at - self.log.start) / BLOCK);
        self.list().fails(&[&[block.as_str()], words].concat());
    }

    /// Changes the superblock of the first group.
    fn change_superblock(&mut self, change: impl FnOnce(&mut Superblock)) {
        let mut sb = Superblock::verify(&self.bytes).unwrap();
        change(&mut sb);
        let sealed = sb.seal().unwrap();
        self.bytes[..sealed.len()].copy_from_slice(&sealed);
    }
}

fn shut_down(dir: &Path) {
    let args = ["-x".as_ref(), "-c".as_ref(), "shutdown".as_ref(), dir.as_os_str()];
    run_tool("xfs_io", &args).unwrap();
}

#[test]
fn corrupt_record_behind_those_in_flight_is_an_error() {
    let Some(mut image) = Image::dirty() else { return };
    let records = image.records();
    let old = records[records.len() - 12];
    image.bytes[old.at + 3 * BLOCK + 100] ^= 0x10;
    image.fails_at(old, &["log record", "bad checksum", "stored", "computed"]);
    let ran = run("ls -o norecovery {}", &[&image.path]).ok();
    assert!(ran.err.contains("not replayed"), "{}", ran.err);
}

#[test]
fn torn_record_at_the_tail_is_an_error_and_one_at_the_head_was_never_written() {
    let Some(mut image) = Image::dirty() else { return };
    let records = image.records();
    let whole = image.bytes.clone();
    let tail = records[0];
    // A block of another cycle: the write of the record was torn. Its checksum says so, too.
    image.bytes[tail.at + 2 * BLOCK..][..4].copy_from_slice(&7_u32.to_be_bytes());
    image.fails_at(tail, &["log record", "bad checksum"]);
    image.drop_checksum(tail);
    image.fails_at(tail, &["cycle", "7"]);
    image.bytes = whole;
    let ran = image.list().ok();
    assert!(ran.text().contains("file 38"), "{}", ran.text());
    let last = records[records.len() - 3];
    image.bytes[last.at + BLOCK + 60] ^= 1;
    let shown = image.list().ok().text();
    assert!(shown.contains("file 30\n") && !shown.contains("file 39\n"), "{shown}");
}

#[test]
fn log_of_another_volume_is_an_error() {
    let Some(mut image) = Image::dirty() else { return };
    let last = *image.records().last().unwrap();
    for record in image.records() {
        let at = record.at + offset_of!(RecordHeader, fs_uuid);
        image.bytes[at..at + 16].fill(0xab);
        image.drop_checksum(record);
    }
    image.fails_at(last, &["h_fs_uuid", "abababab-abab-abab-abab-abababababab", "expected"]);
}

#[test]
fn unknown_item_in_the_log_is_an_error() {
    let Some(mut image) = Image::dirty() else { return };
    let record = image.records()[1];
    // Operations: start, head of the transaction, first item, whose type is a word of the machine.
    let item = record.at + BLOCK + 3 * 12 + 16;
    let found = u16::from_le_bytes(image.bytes[item..item + 2].try_into().unwrap());
    assert!((0x1236..0x1250).contains(&found), "{found:#x}");
    image.bytes[item..item + 2].copy_from_slice(&0x12ff_u16.to_le_bytes());
    image.drop_checksum(record);
    image.fails_at(record, &["0x12ff"]);
}

#[test]
fn block_newer_than_the_log_is_an_error() {
    let Some(mut image) = Image::clean() else { return };
    let block = 4096;
    let mut blocks = (0..image.bytes.len()).step_by(block);
    let at = blocks.find(|at| image.bytes[*at..].starts_with(b"XDB3")).unwrap();
    image.bytes[at + 16..at + 24].copy_from_slice(&0x0000_0063_0000_0010_u64.to_be_bytes());
    crc::store(&mut image.bytes[at..at + block], 4);
    fs::write(&image.path, &image.bytes).unwrap();
    let ran = run("ls {} dir", &[&image.path]);
    let place = format!("{}", at / BLOCK);
    ran.fails(&["lsn", "99:16", &place]);
    assert!(fs::read(&image.path).unwrap() == image.bytes, "the image changed");
}

#[test]
fn features_that_are_unknown_or_ask_for_repair_are_refused_by_name() {
    use xfs_format::features::incompat;
    let Some(mut image) = Image::clean() else { return };
    let whole = image.bytes.clone();
    image.change_superblock(|sb| {
        let bits = sb.features_incompat.get() | incompat::NEEDSREPAIR as u32;
        sb.features_incompat.set(bits);
    });
    image.list().fails(&["NEEDSREPAIR"]);
    let ran = run("ls -o rescue=all {}", &[&image.path]).ok();
    assert!(ran.text().contains("dir"), "{}", ran.text());
    image.bytes = whole.clone();
    image.change_superblock(|sb| sb.features_incompat.set(sb.features_incompat.get() | 1 << 27));
    image.list().fails(&["0x8000000"]);
    image.bytes = whole;
    image.change_superblock(|sb| sb.features_ro_compat.set(sb.features_ro_compat.get() | 1 << 27));
    assert!(image.list().ok().text().contains("dir"), "unknown, and fit for reading");
}

#[test]
fn dirty_log_with_an_unknown_feature_is_refused_and_a_clean_one_is_not() {
    let unknown = |sb: &mut Superblock| sb.features_log_incompat.set(1 << 9);
    let Some(mut image) = Image::dirty() else { return };
    image.change_superblock(unknown);
    image.list().fails(&["log", "0x200"]);
    let Some(mut image) = Image::clean() else { return };
    image.change_superblock(unknown);
    image.list().ok();
}

#[test]
fn device_that_is_too_short_is_refused_with_both_sizes() {
    let Some(mut image) = Image::clean() else { return };
    let (whole, short) = (image.bytes.len(), image.bytes.len() - 4096);
    image.bytes.truncate(short);
    image.list().fails(&[&short.to_string(), &whole.to_string()]);
}

/// Linux 6.18 refuses this log: it seals each part of a block by itself. So what it showed before
/// the shutdown is the judge.
#[test]
fn directory_blocks_in_several_extents_are_whole_after_recovery() {
    const FILL: &str = r#"
import ctypes, os, sys
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None)
def fallocate(fd, mode, at, length): return libc.fallocate(fd, mode, ctypes.c_long(at), ctypes.c_long(length))
os.mkdir("d")
early = lambda i: "d/an_early_name_so_long_that_few_fit_a_block_%d" % i
name = lambda i: "d/a_name_so_long_that_few_of_them_fit_a_block_%d" % i
for i in range(400): open(early(i), "w").close()
fd = os.open("big", os.O_CREAT | os.O_WRONLY)
at, size = 0, 16 << 20
while size >= 4096:
    if fallocate(fd, 0, at, size) == 0: at += size
    else: size //= 2
for hole in range(0, at, 16384): fallocate(fd, 3, hole, 4096)
os.sync()
for i in range(3600): os.link(early(i % 400), name(i))
os.sync()
for i in range(0, 3600, 3): os.unlink(name(i))
for i in range(100): os.link(early(i), "d/another_%d" % i)
"#;
    let Some(()) = need::kernel_xfs() else { return };
    if need::tool("python3").is_none() {
        return;
    }
    let options = XfsOptions {
        size_bytes: 160 << 20,
        ..XfsOptions::new(
            "--unsupported -d agcount=2 -l size=16m -n size=64k -m rmapbt=0,reflink=0,finobt=0,inobtcount=0",
        )
    };
    let volume = XfsVolume::make(&options).unwrap();
    let mounted = volume.mount_with("").unwrap();
    let dir = mounted.dir().to_path_buf();
    let path = dir.display().to_string();
    run_tool("xfs_io", &["-x", "-c", "resblks 0", &path]).unwrap();
    run_tool("python3", &["-c", FILL, &path]).unwrap();
    let map = run_tool("xfs_bmap", &[dir.join("d")]).unwrap();
    assert!(map.lines().count() > 40, "the directory has few extents:\n{map}");
    let listed = fs::read_dir(dir.join("d")).unwrap();
    let mut expected: Vec<String> = listed
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    expected.sort();
    assert_eq!(expected.len(), 2900);
    run_tool("xfs_io", &["-x", "-c", "shutdown -f", &path]).unwrap();
    mounted.unmount().unwrap();
    let before = fs::read(volume.image()).unwrap();
    let mut found: Vec<String> = run("ls {} d", &[volume.image()])
        .ok()
        .text()
        .lines()
        .map(str::to_owned)
        .collect();
    found.sort();
    assert_eq!(found, expected);
    // All blocks of the directory, the hash index too.
    let ran = run("check {}", &[volume.image()]).ok();
    assert!(ran.text().contains("no error found"), "{}", ran.text());
    assert!(fs::read(volume.image()).unwrap() == before, "the image changed");
}

#[test]
fn dirty_external_log_is_recovered_and_one_of_another_volume_is_an_error() {
    let Some(()) = need::kernel_xfs() else { return };
    let options = XfsOptions {
        log_bytes: Some(64 << 20),
        ..XfsOptions::new("-m rmapbt=1")
    };
    let make = || {
        let volume = XfsVolume::make(&options).unwrap();
        let mounted = volume.mount_with("").unwrap();
        let dir = mounted.dir().to_path_buf();
        for number in 0..300 {
            fs::write(dir.join(format!("file {number}")), vec![number as u8; 7000]).unwrap();
        }
        fs::remove_file(dir.join("file 7")).unwrap();
        fs::File::open(&dir).unwrap().sync_all().unwrap();
        shut_down(&dir);
        mounted.unmount().unwrap();
        volume
    };
    let (volume, other) = (make(), make());
    let (image, log) = (volume.image(), volume.log().unwrap());
    let before = (fs::read(image).unwrap(), fs::read(log).unwrap());
    let with = |what: &str, log: &Path| run(&format!("{what} -o logdev={} {{}}", log.display()), &[image]);
    let names = |text: &str| -> Vec<String> {
        let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
        names.sort();
        names
    };
    let ours = names(&with("ls", log).ok().text());
    assert!(ours.len() > 290, "{} names", ours.len());
    with("ls", other.log().unwrap()).fails(&["log, block", "h_fs_uuid", "expected"]);
    run("ls {}", &[image]).fails(&["an external log without logdev="]);
    let short = volume.dir().join("short");
    fs::write(&short, &before.1[..1 << 20]).unwrap();
    with("ls", &short).fails(&["1048576", "67108864"]);
    assert!((fs::read(image).unwrap(), fs::read(log).unwrap()) == before, "changed");
    let kernels = volume
        .with_mount(|dir| {
            let listed = fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name().into_string().unwrap()));
            Ok(listed.collect::<std::io::Result<Vec<_>>>()?)
        })
        .unwrap();
    assert_eq!(ours, names(&kernels.join("\n")));
}

/// V4, which new kernels have no code for: mkfs.xfs copies the tree that is the judge.
#[test]
fn volumes_of_version_4_show_the_tree_that_mkfs_copied() {
    if need::tool("mkfs.xfs").is_none() {
        return;
    }
    for mkfs in [
        "-m crc=0",
        "-m crc=0,finobt=0 -n ftype=0,size=8k -i size=512 -b size=1k",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let content = |number: usize| vec![number as u8; number * 97 % 30_000];
        let mut list = String::from("/\n0 0\nd--755 0 0\nsub d-g750 5 6\n");
        for number in 0..400 {
            let path = dir.path().join(format!("{number}"));
            fs::write(&path, content(number)).unwrap();
            list.push_str(&format!(
                "name_{number} ---6{}4 {number} 2 {}\n",
                number % 8,
                path.display()
            ));
        }
        let target = "t".repeat(700);
        list.push_str(&format!(
            "$\nl l--777 3 4 {target}\nshort l--777 3 4 to\nnull c--666 0 0 1 3\nfifo p--600 0 0\n$\n"
        ));
        fs::write(dir.path().join("list"), list).unwrap();
        let volume = XfsVolume::make(&XfsOptions::new(format!("{mkfs} -p {}/list", dir.path().display()))).unwrap();
        let options = cowshed::OpenOptions::new().read_only(true);
        let opened = cowshed::Volume::open_image(volume.image(), &options).unwrap();
        assert_eq!(opened.read_dir("sub").unwrap().count(), 400);
        for number in 0..400 {
            let name = format!("sub/name_{number}");
            assert!(opened.read(&name).unwrap() == content(number), "{name} differs");
            let found = opened.symlink_metadata(&name).unwrap();
            let mode = 0o100_604 + (number as u32 % 8) * 8;
            assert_eq!((found.mode(), found.uid(), found.gid()), (mode, number as u32, 2));
            assert_eq!((found.len(), found.nlink()), (content(number).len() as u64, 1));
        }
        assert_eq!(opened.read_link("l").unwrap(), Path::new(&target));
        assert_eq!(opened.read_link("short").unwrap(), Path::new("to"));
        assert_eq!(opened.symlink_metadata("null").unwrap().device(), (1, 3));
        let sub = opened.metadata("sub").unwrap();
        assert_eq!((sub.mode(), sub.uid(), sub.gid(), sub.nlink()), (0o042_750, 5, 6, 2));
        opened.close().unwrap();
        run("check {}", &[volume.image()]).ok();
    }
}
