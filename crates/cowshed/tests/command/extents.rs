//! `clone`, `dedupe`, `exchange`, `fiemap`, `compsize`, `defrag`: on our mounts, beside the
//! kernel's.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use cowshed_harness::{KernelVolume, VolumeOptions, limit, need, run_in, shell};
use rustix::fs::{FallocateFlags as Flags, XattrFlags, fallocate, setxattr};

use crate::mount::{Guard, unmount};
use crate::seek::assert_same_data;
use crate::support::{Scratch, cowshed, run};

pub fn can_compare() -> Option<()> {
    need::root()?;
    need::fuse()?;
    need::tool("filefrag")?;
    need::kernel_btrfs()
}

/// What filefrag says, without the line about the file system.
pub fn filefrag(dir: &Path, name: &str) -> String {
    let text = run_in(dir, "filefrag", &["-v", name]).unwrap();
    text.lines()
        .filter(|l| !l.starts_with("Filesystem type"))
        .map(|l| format!("{}\n", l.trim_end()))
        .collect()
}

/// The same from us, with the name as filefrag got it.
pub fn fiemap(args: &[&Path], path: &Path) -> String {
    let text = cowshed(
        ["fiemap".as_ref()]
            .into_iter()
            .chain(args.iter().copied())
            .chain([path]),
    )
    .ok()
    .text();
    let name = path.file_name().unwrap().to_str().unwrap();
    let text = text.replace(path.to_str().unwrap(), name);
    text.lines().map(|l| format!("{}\n", l.trim_end())).collect()
}

#[test]
fn maps_are_those_of_filefrag() {
    let Some(()) = can_compare() else { return };
    let options = VolumeOptions {
        mount_options: "compress=no",
        ..VolumeOptions::default()
    };
    let volume = KernelVolume::make(&options).unwrap();
    let names = [
        "prealloc", "data", "inline", "clone", "self", "hole", "lzo", "zstd", "beyond", "empty", "snapped",
    ];
    let mut expected = Vec::new();
    let fill = |dir: &Path| {
        shell(
            dir,
            "fallocate -l 1M prealloc; dd if=/dev/urandom of=prealloc bs=4k count=3 seek=5 conv=notrunc
             dd if=/dev/urandom of=data bs=64k count=3; sync -f .
             dd if=/dev/urandom of=data bs=4k count=1 conv=notrunc; dd if=/dev/urandom of=data bs=4k seek=100 count=1
             echo hi > inline; cp --reflink=always data clone; truncate -s 1M hole; touch empty
             dd if=/dev/urandom of=self bs=4k count=4;
             for c in lzo zstd; do
                 touch $c; btrfs property set $c compression $c; yes abcdefgh | head -c 700000 > $c
             done
             dd if=/dev/urandom of=beyond bs=5000 count=1; fallocate -n -l 1M beyond
             dd if=/dev/urandom of=snapped bs=64k count=1; btrfs subvolume snapshot . snap
             dd if=/dev/urandom of=snapped bs=4k seek=4 count=1 conv=notrunc; sync -f .",
        )?;
        run("clone --range 0:8k:32k {} {}", &[&dir.join("self"), &dir.join("self")]).ok();
        shell(dir, "sync -f .")?;
        for name in names {
            let theirs = filefrag(dir, name);
            assert_eq!(fiemap(&[], &dir.join(name)), theirs, "the kernel's ioctl through us");
            expected.push(theirs);
        }
        Ok(())
    };
    volume.with_mount(fill).unwrap();
    for (name, theirs) in names.iter().zip(&expected) {
        let image: [&Path; 2] = ["-i".as_ref(), volume.image()];
        assert_eq!(fiemap(&image, Path::new(name)), *theirs, "{name}, in the image");
    }
    let dir = cowshed_harness::scratch_dir().unwrap();
    let _guard = Guard(dir.path());
    run("mount {} {}", &[volume.image(), dir.path()]).ok();
    for (name, theirs) in names.iter().zip(&expected) {
        assert_eq!(fiemap(&[], &dir.path().join(name)), *theirs, "{name}, on our mount");
    }
    unmount(dir.path());
}

pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A call on a file. Offsets and lengths in bytes.
#[derive(Debug)]
pub enum Change {
    Truncate(u64),
    Punch(u64, u64),
    /// Beyond the end, too, which stays where it is.
    Allocate(u64, u64),
}

impl Change {
    /// A file that is not there is made.
    pub fn apply(&self, path: &Path) {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .unwrap();
        match *self {
            Change::Truncate(size) => file.set_len(size).unwrap(),
            Change::Punch(at, len) => fallocate(&file, Flags::PUNCH_HOLE | Flags::KEEP_SIZE, at, len).unwrap(),
            Change::Allocate(at, len) => fallocate(&file, Flags::KEEP_SIZE, at, len).unwrap(),
        }
    }
}

/// One step for both sides, as arguments of the command or as a write.
#[derive(Debug)]
enum Step {
    Write { file: u64, at: u64, len: u64, byte: u8 },
    Change { file: u64, how: Change },
    Clone { src: u64, dst: u64, range: [u64; 3] },
    Dedupe { src: u64, dst: u64, range: [u64; 3] },
}

fn step(dice: &mut Dice) -> Step {
    let (src, dst) = (dice.below(3), dice.below(3));
    let mut number = |max: u64| {
        let n = dice.below(max);
        if n.is_multiple_of(8) { n } else { n & !4095 }
    };
    let range = [number(80_000), number(40_000), number(80_000)];
    let kind = dice.below(10);
    match kind {
        0..=2 => Step::Write {
            file: dst,
            at: range[0],
            len: 1 + range[1],
            byte: 1 + dice.below(3) as u8,
        },
        3..=5 => Step::Change {
            file: dst,
            how: match kind {
                3 => Change::Truncate(range[2]),
                4 => Change::Allocate(range[0], 1 + range[1]),
                _ => Change::Punch(range[0], 1 + range[1]),
            },
        },
        6 | 7 => Step::Clone { src, dst, range },
        _ => Step::Dedupe { src, dst, range },
    }
}

/// Applies it; what there is to compare: code, words, sizes.
fn apply(dir: &Path, step: &Step) -> String {
    let path = |n: u64| dir.join(format!("f{n}"));
    let command = |name: &str, src: u64, dst: u64, [from, len, to]: [u64; 3]| {
        let range = format!("{from}:{len}:{to}");
        let args = [
            name.into(),
            "--range".into(),
            range.into(),
            path(src).into_os_string(),
            path(dst).into_os_string(),
        ];
        let ran = cowshed(args);
        format!("{} {} {}", ran.code, ran.text(), ran.err).replace(dir.to_str().unwrap(), "")
    };
    match step {
        Step::Write { file, at, len, byte } => {
            let open = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path(*file))
                .unwrap();
            open.write_all_at(&vec![*byte; *len as usize], *at).unwrap();
            String::new()
        }
        Step::Change { file, how } => {
            how.apply(&path(*file));
            String::new()
        }
        Step::Clone { src, dst, range } => command("clone", *src, *dst, *range),
        Step::Dedupe { src, dst, range } => command("dedupe", *src, *dst, *range),
    }
}

/// Of three files, how each is marked before anything is in it.
const MARKS: [[&str; 3]; 4] = [
    ["", "", ""],
    ["zstd", "zstd", ""],
    ["", "zstd", "nodatasum"],
    ["nodatasum", "lzo", "nodatasum"],
];

/// An empty file of this mark in place of what is there.
fn make_anew(path: &Path, mark: &str) {
    let _ = fs::remove_file(path);
    fs::write(path, b"").unwrap();
    match mark {
        "" => {}
        // Without checksums, too.
        "nodatasum" => drop(cowshed_harness::run("chattr", &["+C".as_ref(), path.as_os_str()]).unwrap()),
        algorithm => setxattr(path, "btrfs.compression", algorithm.as_bytes(), XattrFlags::empty()).unwrap(),
    }
}

/// What a block is where it is no hole.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Block {
    Data,
    /// Allocated for zeros.
    Zeros,
    Unwritten,
}

fn blocks(dir: &Path, name: &str) -> BTreeMap<u64, Block> {
    let content = fs::read(dir.join(name)).unwrap();
    let map = cowshed(["fiemap".into(), "--json".into(), dir.join(name).into_os_string()])
        .ok()
        .json();
    let mut found = BTreeMap::new();
    for extent in map[0]["extents"].as_array().unwrap() {
        let (start, len) = (extent["logical"].as_u64().unwrap(), extent["length"].as_u64().unwrap());
        let unwritten = extent["flags"].as_array().unwrap().iter().any(|f| f == "unwritten");
        for block in start / 4096..(start + len) / 4096 {
            let bytes = content.get(block as usize * 4096..).unwrap_or(&[]);
            let is_zero = bytes.iter().take(4096).all(|b| *b == 0);
            let kind = match (unwritten, is_zero) {
                (true, _) => Block::Unwritten,
                (false, true) => Block::Zeros,
                (false, false) => Block::Data,
            };
            found.insert(block, kind);
        }
    }
    found
}

/// The kernel writes zeros here and there where we leave a hole, or what is preallocated, as it is.
fn assert_same_map(us: &BTreeMap<u64, Block>, kernel: &BTreeMap<u64, Block>, what: &str) {
    let strip = |map: &BTreeMap<u64, Block>| {
        let mut map = map.clone();
        map.retain(|block, kind| *kind != Block::Zeros && kernel.get(block) != Some(&Block::Zeros));
        map
    };
    assert_eq!(strip(us), strip(kernel), "{what}");
}

#[test]
fn clones_and_dedupes_end_as_on_the_kernels_mount() {
    let Some(()) = can_compare() else { return };
    let ours = Scratch::new();
    let mnt = ours.mountpoint();
    let _guard = Guard(&mnt);
    run("mount {} {}", &[&ours.image, &mnt]).ok();
    let theirs = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let compare = |dir: &Path| {
        for seed in 0..8 {
            let mut dice = Dice(seed);
            for (n, mark) in MARKS[seed as usize % MARKS.len()].iter().enumerate() {
                for dir in [dir, &mnt] {
                    make_anew(&dir.join(format!("f{n}")), mark);
                }
            }
            for number in 0..80 {
                let step = step(&mut dice);
                let (kernel, us) = (apply(dir, &step), apply(&mnt, &step));
                // The kernel counts a piece at the end that is no whole block, which it does not
                // share, to what it shared.
                if us.contains("no whole block") {
                    assert!(
                        kernel.starts_with("0 "),
                        "seed {seed}, step {number}: {step:?}: {kernel}"
                    );
                } else {
                    assert_eq!(us, kernel, "seed {seed}, step {number}: {step:?}");
                }
                for n in 0..3 {
                    let name = format!("f{n}");
                    let same = fs::read(dir.join(&name))? == fs::read(mnt.join(&name))?;
                    assert!(same, "seed {seed}, step {number}: {step:?}: {name} differs");
                    let what = format!("seed {seed}, step {number}: {step:?}: data in {name}");
                    assert_same_data(&mnt, dir, &name, &what);
                }
                if number % 16 == 15 {
                    shell(dir, "sync -f .")?;
                    shell(&mnt, "sync -f .")?;
                    for n in 0..3 {
                        let name = format!("f{n}");
                        let what = format!("seed {seed}, step {number}: {step:?}: the map of {name}");
                        assert_same_map(&blocks(&mnt, &name), &blocks(dir, &name), &what);
                    }
                }
            }
        }
        Ok(())
    };
    theirs.with_mount(compare).unwrap();
    unmount(&mnt);
    ours.assert_clean();
    KernelVolume::copy_of(&[&ours.image]).unwrap().assert_clean();
}

/// A mounted volume of ours.
pub struct Mounted {
    pub scratch: Scratch,
    pub mnt: PathBuf,
}

pub fn mounted() -> Option<Mounted> {
    need::root()?;
    need::fuse()?;
    let scratch = Scratch::new();
    let mnt = scratch.mountpoint();
    // No commit of its own accord.
    run("mount -o commit=300 {} {}", &[&scratch.image, &mnt]).ok();
    Some(Mounted { scratch, mnt })
}

#[test]
fn whole_files_are_cloned_and_exchanged_and_readers_see_it_at_once() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let [a, b, c] = ["a", "b", "c"].map(|name| mnt.join(name));
    let (large, small) = (vec![7; 300_001], vec![8; 100]);
    fs::write(&a, &large).unwrap();
    fs::write(&b, &small).unwrap();
    fs::write(&c, [9; 50_000]).unwrap();
    // What the kernel remembers of them must go.
    for path in [&a, &b, &c] {
        fs::read(path).unwrap();
    }
    run("clone {} {}", &[&a, &c]).ok();
    assert!(fs::read(&c).unwrap() == large);
    assert_eq!(fs::metadata(&c).unwrap().len(), 300_001);
    run("exchange --dry-run {} {}", &[&a, &b]).ok();
    assert!(fs::read(&a).unwrap() == large);
    run("exchange {} {}", &[&a, &b]).ok();
    assert!(fs::read(&a).unwrap() == small && fs::read(&b).unwrap() == large);
    run("exchange --range 0:4k:8k {} {}", &[&b, &c]).ok();
    assert!(fs::read(&b).unwrap() == large, "the same on both sides");
    fs::create_dir(mnt.join("dir")).unwrap();
    run("clone {} {}", &[&a, &mnt.join("dir")]).ok();
    assert_eq!(fs::read(mnt.join("dir/a")).unwrap(), small);

    run("clone {} {}", &[&a, &a]).fails(&["the same file"]);
    run("clone -n {} {}", &[&a, &b]).fails(&["exists"]);
    run("clone {} {}", &[&mnt.join("dir"), &b]).fails(&["not a regular file"]);
    run("clone --range 1:4k:0 {} {}", &[&b, &c]).fails(&["Invalid argument"]);
    run("clone --range 0:4k {} {}", &[&b, &c]).fails(&["SRC_OFFSET:LENGTH:DST_OFFSET"]);
    run("exchange --range 0:4k:0 {} {}", &[&a, &b]).fails(&["Invalid argument"]);
    let outside = scratch.path("outside");
    run("clone {} {}", &[&a, &outside]).fails(&["ross-device"]);
    assert!(!outside.exists(), "nothing is left behind");
    fs::write(&outside, [3; 200]).unwrap();
    run("clone {} {}", &[&a, &outside]).fails(&["ross-device"]);
    assert!(fs::read(&outside).unwrap() == [3; 200], "nothing is lost");
    run("dedupe {} {}", &[&b, &c]).ok();
    fs::write(&a, [8; 5000]).unwrap();
    run("dedupe {} {}", &[&a, &b]).code(1);
    unmount(&mnt);
    scratch.assert_clean();
}

/// Linux writes what a mapping holds to the file before it looks at extents, but not before an
/// ioctl that it passes on.
#[test]
fn what_was_stored_through_a_mapping_is_cloned_and_exchanged() {
    let Some(Mounted { scratch: _scratch, mnt }) = mounted() else {
        return;
    };
    let Some(()) = need::tool("python3") else { return };
    let _guard = Guard(&mnt);
    let script = format!(
        r#"
import mmap, os, subprocess
def cowshed(*words):
    subprocess.run(["{}", *words], check=True)
def mapped(name):
    with open(name, "w+b") as file:
        file.write(name.encode() * 65536)
        file.flush()
        return mmap.mmap(file.fileno(), 65536)
def content(name):
    with open(name, "rb") as file:
        return file.read()
a, b = mapped("a"), mapped("b")
a[0:4] = b"AAAA"
cowshed("clone", "--range", "0:16k:0", "a", "b")
assert content("b")[:5] == b"AAAAa", "the store is in the clone"
b[8192:8196] = b"BBBB"
cowshed("clone", "--range", "16k:16k:0", "a", "b")
assert content("b")[:16384] == b"a" * 16384, "the clone comes after the store"
a[5:6], b[5:6] = b"X", b"Y"
cowshed("exchange", "--range", "0:4k:0", "a", "b")
assert (content("a")[5:6], content("b")[5:6]) == (b"Y", b"X")
with open("grown", "w+b") as grown, open("copy", "wb") as copy:
    cowshed("clone", "--range", "0:64k:0", "a", "grown")
    assert os.copy_file_range(grown.fileno(), copy.fileno(), 8192, 4096) == 8192, "the new size is known"
"#,
        crate::support::COWSHED
    );
    run_in(&mnt, "python3", &["-c", &script]).unwrap_or_else(|e| panic!("{e:#}"));
    unmount(&mnt);
}

#[test]
fn an_exchange_waits_for_the_disk_and_looks_for_changes_if_asked() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let [a, b] = ["a", "b"].map(|name| mnt.join(name));
    let stamp = || {
        let said = run_in(&mnt, "stat", &["-c", "%i %.9Y %.9Z", "b"]).unwrap();
        said.trim().to_owned()
    };
    let exchange = |stamp: &str| {
        cowshed([
            "exchange".as_ref(),
            "--fsync".as_ref(),
            "--if-fresh".as_ref(),
            stamp.as_ref(),
            a.as_os_str(),
            b.as_os_str(),
        ])
    };
    fs::write(&a, [1; 5000]).unwrap();
    fs::write(&b, [2; 9000]).unwrap();
    let seen = stamp();
    fs::write(&b, [3; 9000]).unwrap();
    exchange(&seen).fails(&["busy"]);
    assert_eq!(fs::read(&a).unwrap(), [1; 5000]);
    exchange(&stamp()).ok();
    assert_eq!(
        (fs::read(&a).unwrap(), fs::read(&b).unwrap()),
        (vec![3; 9000], vec![1; 5000])
    );
    exchange("yesterday").fails(&["stat -c"]);
    // As after a crash: what is on the disk now.
    let copy = scratch.path("copy");
    fs::copy(&scratch.image, &copy).unwrap();
    assert_eq!(run("cat {} b", &[&copy]).ok().out, [1; 5000]);
    unmount(&mnt);
}

#[test]
fn a_descriptor_must_be_open_for_what_is_asked() {
    let Some(Mounted { scratch: _scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let [a, b] = ["a", "b"].map(|name| mnt.join(name));
    for path in [&a, &b] {
        fs::write(path, [1; 8192]).unwrap();
        shell(&mnt, &format!("chmod 644 {}", path.display())).unwrap();
    }
    let as_user = |args: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid",
                "65534",
                "--regid",
                "65534",
                "--clear-groups",
                crate::support::COWSHED,
            ])
            .args(args);
        let done = limit::output(command.args([&a, &b])).unwrap();
        (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    assert_eq!(as_user(&["clone"]).0, Some(2));
    let (code, words) = as_user(&["dedupe"]);
    assert!(code == Some(2) && words.contains("not permitted"), "{words}");
    shell(&mnt, "chattr +i b").unwrap();
    run("clone --range 0:4k:0 {} {}", &[&a, &b]).fails(&["not permitted"]);
    shell(&mnt, "chattr -i b").unwrap();
    assert_eq!(fs::read(&b).unwrap(), [1; 8192]);
    unmount(&mnt);
}

#[test]
fn fragments_become_few_and_sizes_are_told() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let path = mnt.join("fragmented");
    let file = File::create(&path).unwrap();
    let content: Vec<u8> = (0..64 * 4096).map(|i| (i / 4096) as u8).collect();
    for block in (0..64).step_by(2).chain((1..64).step_by(2)) {
        file.write_all_at(&content[block * 4096..][..4096], block as u64 * 4096)
            .unwrap();
        shell(&mnt, "sync -f .").unwrap();
    }
    let extents = || {
        cowshed(["fiemap".into(), "--json".into(), path.clone().into_os_string()])
            .ok()
            .json()
    };
    let count = |map: serde_json::Value| map[0]["extents"].as_array().unwrap().len();
    drop(file);
    assert!(count(extents()) > 10);
    let before = fs::metadata(&path).unwrap().mtime_nsec();
    run("defrag -r -t 1m {}", &[&mnt]).ok();
    run("defrag {}", &[&mnt]).fails(&["-r"]);
    assert_eq!(count(extents()), 1);
    assert!(fs::read(&path).unwrap() == content);
    assert_eq!(fs::metadata(&path).unwrap().mtime_nsec(), before);
    run("defrag -c zstd:9 {}", &[&path]).ok();
    let packed = run("compsize --json {}", &[&path]).ok().json();
    assert_eq!(packed["types"]["zstd"]["referenced"], 64 * 4096);
    assert!(packed["types"]["none"].is_null() && fs::read(&path).unwrap() == content);
    run("defrag -c lzma {}", &[&path]).fails(&["lzma"]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, &content).unwrap();

    run("clone {} {}", &[&path, &mnt.join("clone")]).ok();
    fs::write(mnt.join("inline"), [5; 100]).unwrap();
    shell(&mnt, "fallocate -l 1M prealloc; sync -f .").unwrap();
    let sizes = run("compsize --json {}", &[&mnt]).ok().json();
    assert_eq!(
        (
            &sizes["files"],
            &sizes["extents"],
            &sizes["references"],
            &sizes["inline"]
        ),
        (&4.into(), &2.into(), &3.into(), &1.into())
    );
    assert_eq!(sizes["types"]["none"]["disk_usage"], 64 * 4096 + 100);
    assert_eq!(sizes["types"]["none"]["referenced"], 2 * 64 * 4096 + 100);
    assert_eq!(sizes["types"]["prealloc"]["disk_usage"], 1 << 20);
    let text = run("compsize {}", &[&mnt]).ok().text();
    assert!(
        text.starts_with("Processed 4 files, 2 regular extents (3 refs), 1 inline.\n"),
        "{text}"
    );
    assert!(
        text.contains("TOTAL      100%     1.3M         1.3M         1.5M"),
        "{text}"
    );
    run("compsize {}", &[&scratch.image]).fails(&["not on a mount of ours"]);
    unmount(&mnt);
    scratch.assert_clean();
}

#[test]
fn cp_shares_extents() {
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    fs::write(mnt.join("packed"), b"").unwrap();
    setxattr(mnt.join("packed"), "btrfs.compression", b"zstd", XattrFlags::empty()).unwrap();
    shell(
        &mnt,
        "head -c 3000000 /dev/urandom > synced; head -c 1M /dev/urandom > blocks; seq 300000 > packed; sync -f .
         head -c 1M /dev/urandom > dirty; head -c 300001 /dev/urandom > dirty-tail
         head -c 9000 /dev/urandom | dd of=blocks bs=4k seek=10 conv=notrunc status=none",
    )
    .unwrap();
    let usage = |paths: &[&Path]| {
        let words = ["compsize".as_ref(), "--json".as_ref()].into_iter();
        let sizes = cowshed(words.chain(paths.iter().map(|p| p.as_os_str()))).ok().json();
        (sizes["total"]["disk_usage"].as_u64().unwrap(), sizes["types"].clone())
    };
    let all_shared = |path: &Path| {
        let map = run("fiemap --json {}", &[path]).ok().json();
        let extents = map[0]["extents"].as_array().unwrap().clone();
        let is_shared = |e: &serde_json::Value| e["flags"].as_array().unwrap().iter().any(|f| f == "shared");
        assert!(!extents.is_empty() && extents.iter().all(is_shared), "{map}");
    };
    for name in ["synced", "blocks", "packed", "dirty", "dirty-tail"] {
        let is_on_disk = ["synced", "packed"].contains(&name);
        let [file, auto, plain] = ["", ".auto", ".plain"].map(|end| mnt.join(format!("{name}{end}")));
        let before = usage(&[&file]);
        shell(
            &mnt,
            &format!("cp --reflink=auto {name} {name}.auto; cp {name} {name}.plain; sync -f ."),
        )
        .unwrap();
        let alone = usage(&[&file]);
        assert!(
            !is_on_disk || before == alone,
            "{name}: {before:?} before, {alone:?} after"
        );
        let (alone_bytes, all_bytes) = (alone.0, usage(&[&file, &auto, &plain]).0);
        assert_eq!(all_bytes, alone_bytes, "{name}: its copies take nothing");
        let content = fs::read(&file).unwrap();
        for path in [&file, &auto, &plain] {
            all_shared(path);
            assert!(fs::read(path).unwrap() == content, "{}", path.display());
        }
    }
    assert!(
        usage(&[&mnt.join("packed.plain")]).1["zstd"].is_object(),
        "as it was compressed"
    );
    // Of a file with holes this cp copies what is between them, and the copy has the holes.
    shell(
        &mnt,
        "head -c 1M /dev/urandom > holes; truncate -s 8M holes; head -c 1M /dev/urandom >> holes; sync -f .
         cp --reflink=auto holes holes.auto; cp holes holes.plain; sync -f .",
    )
    .unwrap();
    let [file, copy] = ["holes", "holes.auto"].map(|name| mnt.join(name));
    assert!(fs::read(&file).unwrap() == fs::read(&copy).unwrap());
    let each = [&file, &copy].map(|path| usage(&[path]).0);
    assert_eq!(each, [2 << 20; 2], "the data, and no hole");
    unmount(&mnt);
    scratch.assert_clean();
    let Some(()) = need::kernel_btrfs() else { return };
    let same = |dir: &Path| {
        shell(
            dir,
            "for f in *.auto; do cmp $f ${f%.auto}; cmp $f ${f%.auto}.plain; done",
        )
    };
    KernelVolume::copy_of(&[&scratch.image])
        .unwrap()
        .with_mount(same)
        .unwrap();
}

#[test]
fn what_compresses_is_counted_as_it_lies() {
    let Some(()) = can_compare() else { return };
    let options = VolumeOptions {
        mount_options: "compress-force=zstd",
        ..VolumeOptions::default()
    };
    let volume = KernelVolume::make(&options).unwrap();
    let fill = |dir: &Path| shell(dir, "yes abcdefgh | head -c 1310720 > z; sync -f .");
    volume.with_mount(fill).unwrap();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let _guard = Guard(dir.path());
    run("mount {} {}", &[volume.image(), dir.path()]).ok();
    let sizes = run("compsize --json {}", &[dir.path()]).ok().json();
    assert_eq!(sizes["types"]["zstd"]["uncompressed"], 1_310_720);
    assert_eq!(
        sizes["types"]["zstd"]["disk_usage"],
        10 * 4096,
        "ten extents of a block each"
    );
    unmount(dir.path());
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let Some(()) = can_compare() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount {} {}", &[&volume.image, &dir]).ok();
    shell(&dir, "mkfifo pipe; mkdir dir; echo x > file").unwrap();
    let (pipe, sub, file) = (dir.join("pipe"), dir.join("dir"), dir.join("file"));
    for odd in [&pipe, &sub] {
        for line in ["clone {} {}", "dedupe {} {}", "exchange {} {}"] {
            run(line, &[odd, &file]).code(2);
        }
        run("fiemap {}", &[odd]).fails(&["not a regular file"]);
    }
    run("clone {} {}", &[&file, &pipe]).code(2);
    run("dedupe {} {}", &[&file, &pipe]).fails(&["not a regular file"]);
    unmount(&dir);
}

#[test]
fn dedupe_tells_what_could_not_be_shared() {
    let Some(()) = can_compare() else { return };
    let volume = Scratch::new();
    let dir = volume.mountpoint();
    let _guard = Guard(&dir);
    run("mount {} {}", &[&volume.image, &dir]).ok();
    let (long, short) = (dir.join("long"), dir.join("short"));
    fs::write(&long, vec![7; 10_000]).unwrap();
    fs::write(&short, vec![7; 9_000]).unwrap();
    let said = run("dedupe {} {}", &[&long, &short]).code(1).text();
    assert!(
        said.ends_with("8192 bytes shared, 808 at the end are no whole block\n"),
        "{said}"
    );
    unmount(&dir);
}
