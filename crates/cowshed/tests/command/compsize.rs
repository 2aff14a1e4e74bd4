//! `compsize` on our mounts beside compsize(8) on the kernel's, of the same volume.

use std::collections::BTreeMap;
use std::path::Path;

use cowshed_harness::{KernelVolume, need, shell};

use crate::extents::{Mounted, can_compare, mounted};
use crate::mount::{Guard, unmount};
use crate::support::{COWSHED, run};

/// Lines as both print them: numbers of files, extents, references and inline ones; then sizes by
/// type.
fn numbers(text: &str) -> (String, BTreeMap<String, Vec<u64>>) {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let head: Vec<_> = head
        .split(|c: char| !c.is_ascii_digit())
        .filter(|n| !n.is_empty())
        .collect();
    let rows = lines.filter_map(|line| {
        let mut words = line.split_whitespace();
        let (name, _percent) = (words.next()?, words.next()?);
        let sizes: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        (sizes.len() == 3).then(|| (name.to_owned(), sizes))
    });
    (head.join(" "), rows.collect())
}

#[test]
fn sizes_are_those_of_compsize() {
    let (Some(()), Some(()), Some(())) = (can_compare(), need::tool("compsize"), need::tool("setfattr")) else {
        return;
    };
    let Some(Mounted { scratch, mnt }) = mounted() else {
        return;
    };
    let _guard = Guard(&mnt);
    let script = format!(
        "clone() {{ touch $3; {COWSHED} clone --range $2 $1 $3; }}
         for c in lzo zlib zstd none; do
             mkdir $c; cd $c; setfattr -n btrfs.compression -v $c .
             yes abcdefgh | head -c 1000000 > text; yes xyz | head -c 1500 > small; yes uvw | head -c 4000 > block
             fallocate -l 300k allocated; touch empty; truncate -s 1M hole
             sync -f .
             clone text 128k:256k:0 part; clone text 0:4k:1m behind; clone part 0:64k:512k part
             dd if=/dev/urandom of=text bs=4k seek=3 count=40 conv=notrunc status=none
             dd if=/dev/zero of=part bs=4k seek=5 count=2 conv=notrunc status=none
             dd if=/dev/zero of=allocated bs=4k seek=5 count=9 conv=notrunc status=none
             fallocate -p -o 40960 -l 200000 text; head -c 300000 /dev/urandom > noise; sync -f .; cd ..
         done
         clone lzo/text 0:512k:0 elsewhere; clone zstd/text 0:256k:512k elsewhere; sync -f ."
    );
    shell(&mnt, &script).unwrap();
    let ours: Vec<_> = ["", "zlib", "none", "elsewhere"]
        .iter()
        .map(|below| run("compsize -b {}", &[&mnt.join(below)]).ok().text())
        .collect();
    unmount(&mnt);
    scratch.assert_clean();
    let compsize = |root: &Path| {
        let each = ["", "zlib", "none", "elsewhere"].map(|below| {
            let below = root.join(below);
            cowshed_harness::run("compsize", &["-b".as_ref(), below.as_os_str()]).unwrap()
        });
        Ok(each)
    };
    let theirs = KernelVolume::copy_of(&[&scratch.image])
        .unwrap()
        .with_mount(compsize)
        .unwrap();
    assert_eq!(numbers(&ours[0]).1.len(), 6, "{}", ours[0]);
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(numbers(ours), numbers(theirs), "ours:\n{ours}theirs:\n{theirs}");
    }
}
