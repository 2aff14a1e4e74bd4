//! SEEK_DATA, SEEK_HOLE and the map of files with dirty data: on our mounts, beside the kernel's,
//! before anything is synced and after.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::OnceLock;

use cowshed_harness::{KernelVolume, VolumeOptions, need, shell};
use rustix::fs::{SeekFrom, seek};

use crate::extents::{Mounted, can_compare, fiemap, filefrag, mounted};
use crate::mount::{Guard, unmount};
use crate::support::without_whole_sync;

const BLOCK: u64 = 4096;

/// Borders found from the beginning on; then what both calls say in each block, at its start and
/// one byte further.
fn answers(path: &Path) -> (Vec<u64>, Vec<String>) {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let ask = |what: SeekFrom| seek(&file, what);
    let (mut borders, mut at, mut wants_data) = (Vec::new(), 0, true);
    while let Ok(next) = ask(if wants_data {
        SeekFrom::Data(at)
    } else {
        SeekFrom::Hole(at)
    }) {
        borders.push(next);
        if next >= size {
            break;
        }
        (at, wants_data) = (next, !wants_data);
    }
    let places = (0..=size.div_ceil(BLOCK)).flat_map(|block| [block * BLOCK, block * BLOCK + 1]);
    let each = places.map(|at| {
        format!(
            "{at}: data {:?}, hole {:?}",
            ask(SeekFrom::Data(at)),
            ask(SeekFrom::Hole(at))
        )
    });
    (borders, each.collect())
}

/// Blocks that are data, with whether they hold anything but zeros.
fn data(dir: &Path, name: &str) -> BTreeMap<u64, bool> {
    let content = fs::read(dir.join(name)).unwrap();
    let file = File::open(dir.join(name)).unwrap();
    let mut found = BTreeMap::new();
    let mut at = 0;
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start)).unwrap();
        assert!(at > start, "{name}: data at {start} has no end");
        for block in start / BLOCK..at.div_ceil(BLOCK) {
            let bytes = content.get(block as usize * 4096..).unwrap_or(&[]);
            found.insert(block, bytes.iter().take(4096).any(|b| *b != 0));
        }
    }
    found
}

/// Both see the same data. The kernel writes zeros here and there where we leave a hole, or what is
/// preallocated, as it is.
pub fn assert_same_data(us: &Path, kernel: &Path, name: &str, what: &str) {
    let [us, kernel] = [data(us, name), data(kernel, name)];
    let same = |block: &u64| match (us.get(block), kernel.get(block)) {
        (None, Some(holds)) => !holds,
        (ours, theirs) => ours.is_some() == theirs.is_some(),
    };
    let other: Vec<_> = us.keys().chain(kernel.keys()).filter(|block| !same(block)).collect();
    assert!(other.is_empty(), "{what}: blocks {other:?}");
}

/// Left out is where Linux 6.18 contradicts itself or writes more than was asked for: of a clone
/// without holes that has preallocated parts its SEEK_HOLE finds none of those that its SEEK_DATA
/// passes over; and a last block that is there in part is written anew when the file becomes
/// longer.
///
/// A file, how it is made, and what is done to it after a sync.
const FILES: &[(&str, &str, &str)] = &[
    ("empty", "touch empty", ":"),
    ("hole", "truncate -s 100000 hole", ":"),
    (
        "holes",
        "w holes 3 1; w holes 9 2; truncate -s 100000 holes",
        "w holes 5 1; w holes 20 2; p holes 9 1",
    ),
    ("data", "w data 0 16", "w data 3 2; w data 15 3; p data 8 2"),
    ("behind", "w behind 0 2", "w behind 40 2"),
    (
        "prealloc",
        "fallocate -l 256k prealloc",
        "w prealloc 4 3; w prealloc 30 1",
    ),
    (
        "written",
        "fallocate -l 256k written; w written 4 3",
        "w written 6 4; w written 20 1",
    ),
    ("fresh", ":", "fallocate -l 128k fresh; w fresh 2 3"),
    ("kept", "w kept 0 3; fallocate -n -o 8192 -l 200000 kept", "w kept 5 1"),
    (
        "cut",
        "w cut 0 20; fallocate -n -o 81920 -l 100k cut",
        "truncate -s 50000 cut; truncate -s 90000 cut",
    ),
    (
        "shrunk",
        "fallocate -l 100k shrunk; w shrunk 3 2",
        "truncate -s 30000 shrunk",
    ),
    (
        "zeroed",
        "w zeroed 0 16",
        "fallocate -z -o 8192 -l 16384 zeroed; w zeroed 3 1",
    ),
    (
        "clone",
        "w original 0 16; clone original 0:32k:16k clone",
        "w clone 5 1; clone original 0:8k:80k clone",
    ),
    (
        "cloned-prealloc",
        "fallocate -l 64k pre; w pre 2 2; clone pre 0:64k:4k cloned-prealloc",
        "w cloned-prealloc 8 1; w pre 12 1",
    ),
    ("cloned-dirty", ":", "w dirt 1 3; clone dirt 0:16k:4k cloned-dirty"),
    ("inline", "printf hello > inline", ":"),
    ("inline-longer", "printf hello > inline-longer", "w inline-longer 2 1"),
    ("inline-dirty", ":", "printf hello > inline-dirty"),
    (
        "lzo",
        "touch lzo; setfattr -n btrfs.compression -v lzo lzo; yes abcdefgh | head -c 299008 >> lzo",
        "w lzo 10 1; w lzo 100 1; p lzo 20 40",
    ),
    (
        "zstd",
        "touch zstd; setfattr -n btrfs.compression -v zstd zstd; truncate -s 2000000 zstd; yes abcdefgh | head -c 200704 | dd of=zstd bs=4k seek=100 conv=notrunc",
        "fallocate -o 4096 -l 65536 zstd; w zstd 5 1",
    ),
];

/// `w FILE BLOCK BLOCKS` writes, `p FILE BLOCK BLOCKS` punches, `clone SOURCE RANGE TARGET` clones.
fn do_all(dir: &Path, which: impl Fn(&(&str, &str, &str)) -> String) {
    let head = format!(
        "w() {{ dd if=/dev/urandom of=$1 bs=4k seek=$2 count=$3 conv=notrunc status=none; }}
         p() {{ fallocate -p -o $(($2 * 4096)) -l $(($3 * 4096)) $1; }}
         clone() {{ touch $3; {} clone --range $2 $1 $3; }}",
        crate::support::COWSHED
    );
    let lines: String = FILES.iter().map(|file| format!("{}\n", which(file))).collect();
    shell(dir, &format!("{head}\n{lines}")).unwrap();
}

/// What a file showed at some moment: on our side, and on the kernel's.
struct Seen {
    what: String,
    answers: [(Vec<u64>, Vec<String>); 2],
    maps: [String; 2],
}

/// What all files showed, at all moments. Both tests look at the same volumes.
fn seen() -> Option<&'static [Seen]> {
    static SEEN: OnceLock<Vec<Seen>> = OnceLock::new();
    can_compare()?;
    need::tool("setfattr")?;
    Some(SEEN.get_or_init(beside_the_kernel))
}

fn beside_the_kernel() -> Vec<Seen> {
    let Mounted { scratch, mnt } = mounted().expect("there is all that is needed");
    let _guard = Guard(&mnt);
    let options = VolumeOptions {
        // No commit of its own accord.
        mount_options: "commit=300",
        ..VolumeOptions::default()
    };
    let volume = KernelVolume::make(&options).unwrap();
    let mut seen = Vec::new();
    let both = |kernel: &Path| {
        let mut look = |when: &str| {
            let names = FILES.iter().map(|file| file.0);
            let names: Vec<_> = names.filter(|name| kernel.join(name).exists()).collect();
            // First what no map was asked of.
            let of = |name: &&str| [&mnt, kernel].map(|dir| answers(&dir.join(name)));
            let answers: Vec<_> = names.iter().map(of).collect();
            seen.extend(names.iter().zip(answers).map(|(name, answers)| Seen {
                what: format!("{name}, {when}"),
                answers,
                maps: [fiemap(&[], &mnt.join(name)), filefrag(kernel, name)],
            }));
        };
        let _quiet = without_whole_sync();
        for dir in [kernel, &mnt] {
            do_all(dir, |file| file.1.into());
        }
        look("new and dirty");
        for dir in [kernel, &mnt] {
            shell(dir, "sync -f .")?;
        }
        look("new, on disk");
        for dir in [kernel, &mnt] {
            do_all(dir, |file| file.2.into());
        }
        look("changed and dirty");
        for dir in [kernel, &mnt] {
            shell(dir, "sync -f .")?;
        }
        look("changed, on disk");
        Ok(())
    };
    volume.with_mount(both).unwrap();
    unmount(&mnt);
    scratch.assert_clean();
    seen
}

#[test]
fn data_and_holes_are_where_the_kernel_finds_them() {
    for Seen { what, answers, .. } in seen().unwrap_or_default() {
        assert_eq!(answers[0], answers[1], "{what}");
    }
}

/// By block: how the map shows it; and how its last line ends.
fn flags(text: &str) -> (BTreeMap<u64, String>, String) {
    let mut found = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        // "  0:   0..   2:   3328..   3330:   3:   3333: last,shared,eof"
        let columns: Vec<_> = line.split(':').map(str::trim).collect();
        let Some((first, end)) = columns.get(1).and_then(|range| range.split_once("..")) else {
            continue;
        };
        let (first, end): (u64, u64) = (first.trim().parse().unwrap(), end.trim().parse().unwrap());
        last = (*columns.last().unwrap()).into();
        let words: Vec<_> = last
            .split(',')
            .filter(|word| !["last", "eof", "merged"].contains(word))
            .collect();
        found.extend((first..=end).map(|block| (block, words.join(","))));
    }
    (found, last)
}

#[test]
fn maps_of_dirty_files_are_those_of_filefrag() {
    for Seen { what, maps, .. } in seen().unwrap_or_default() {
        assert_eq!(flags(&maps[0]), flags(&maps[1]), "{what}:\n{}{}", maps[0], maps[1]);
    }
}
