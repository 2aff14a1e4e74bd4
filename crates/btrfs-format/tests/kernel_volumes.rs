//! What Linux and btrfs-progs write is accepted, block by block: volumes made by mkfs.btrfs, filled
//! by the kernel.
//!
//! Needs root, loop devices and btrfs-progs:
//! `cargo test -p btrfs-format --test kernel_volumes -- --ignored`.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use btrfs_format::{Access, KeyType, render};
use common::{Found, Volume};
use cowshed_harness::run_raw;

/// Runs a shell script; its failure is the test's.
fn sh(script: &str) -> String {
    cowshed_harness::run("bash", &["-euc", script]).unwrap_or_else(|e| panic!("{e:#}"))
}

/// Images in memory, attached and mounted for a while, gone with the value.
struct Lab {
    dir: tempfile::TempDir,
    images: Vec<PathBuf>,
    loops: Vec<String>,
}

impl Lab {
    fn new(mkfs: &str, sizes_mib: &[u32]) -> Self {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let mut lab = Self {
            images: Vec::new(),
            loops: Vec::new(),
            dir,
        };
        for (n, size) in sizes_mib.iter().enumerate() {
            let image = lab.dir.path().join(format!("dev{n}.img"));
            sh(&format!("truncate -s {size}M {}", image.display()));
            lab.loops
                .push(sh(&format!("losetup --show -f {}", image.display())).trim().to_owned());
            lab.images.push(image);
        }
        sh(&format!("mkfs.btrfs -q -f {mkfs} {}", lab.loops.join(" ")));
        lab
    }

    fn mnt(&self) -> PathBuf {
        self.dir.path().join("mnt")
    }

    /// Mounts, runs the script in the mount with `$M`, unmounts.
    fn run(&self, options: &str, script: &str) {
        let (mnt, dev) = (self.mnt(), &self.loops[0]);
        let m = mnt.display();
        sh(&format!(
            "mkdir -p {m}; btrfs device scan {} >/dev/null; mount -o '{options}' {dev} {m}; export M={m}; cd $M; {script}\ncd /; sync -f {m}; umount {m}",
            self.loops.join(" ")
        ));
    }

    /// The image of a mounted volume, copied between two writes: with a log, as after a crash.
    fn crash_copy(&self, script: &str) -> PathBuf {
        let (mnt, dev) = (self.mnt(), &self.loops[0]);
        let (m, copy) = (mnt.display(), self.dir.path().join("crash.img"));
        sh(&format!(
            "mkdir -p {m}; mount -o commit=300 {dev} {m}; export M={m}; cd $M; {script}\ncp --sparse=always {} {}; exec 9<&-; cd /; umount {m}",
            self.images[0].display(),
            copy.display()
        ));
        copy
    }

    fn verify(&self) -> Found {
        let paths: Vec<&Path> = self.images.iter().map(PathBuf::as_path).collect();
        let volume = Volume::open(&paths);
        assert_ne!(
            std::mem::discriminant(&volume.superblock.access()),
            std::mem::discriminant(&Access::Refused {
                why: btrfs_format::UnsupportedFeature { name: String::new() }
            })
        );
        volume.walk_all()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = run_raw("umount", &[self.mnt()]);
        for dev in &self.loops {
            let _ = run_raw("losetup", &["-d", dev]);
        }
    }
}

/// Files of all kinds: inline, holes, prealloc, compressed, links in numbers, xattrs, special
/// files, collisions.
const POPULATE: &str = r#"
mkdir -p d/e; for i in $(seq 1 400); do echo $i > d/file$i; done
head -c 300000 /dev/urandom > big; cp --reflink=always big clone; head -c 3000000 /dev/zero > zeros
echo hi > inline; : > empty; truncate -s 10M sparse; echo x | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
fallocate -l 1M prealloc; dd if=/dev/urandom of=prealloc bs=4096 seek=7 count=3 conv=notrunc status=none
fallocate -p -o 8192 -l 65536 big || true
python3 -c 'import os
try:
    for i in range(300): os.link("inline", f"d/hard_link_with_a_rather_long_name_to_fill_the_item_{i}")
except OSError: pass'
for i in $(seq 1 20); do ln sparse d/e/$i; done
ln -s target link; ln -s $(printf 'a%.0s' $(seq 1 1000)) longlink; mkfifo fifo; mknod null c 1 3; mknod blk b 7 0
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("sock")'
setfattr -n user.a -v b inline; setfattr -n user.big -v $(printf 'v%.0s' $(seq 1 2000)) inline; setfattr -n trusted.t -v 1 d
touch -d 1960-01-01T00:00:00.123456789 old; touch -d 2100-01-01 future; chattr +C d/e; chattr +i empty; chattr +a old
touch $(printf 'n%.0s' $(seq 1 255)); touch 'Ümläut' $'new\nline'
for i in $(seq 1 2000); do : > c$i; done; rm $(seq -f c%g 1 3 2000)
rm -f d/file1*; sync -f $M
btrfs -q subvolume create sub >/dev/null 2>&1 || btrfs subvolume create sub >/dev/null
cp big sub/; btrfs subvolume snapshot . snap >/dev/null; btrfs subvolume snapshot -r sub rosnap >/dev/null
echo changed > inline; dd if=/dev/urandom of=big bs=4096 seek=20 count=2 conv=notrunc status=none; sync -f $M
btrfs subvolume snapshot snap snap2 >/dev/null; rm -rf d; for i in $(seq 1 50); do cp --reflink=always big r$i; done; sync -f $M
btrfs subvolume delete snap >/dev/null; btrfs quota enable . ; sync -f $M
"#;

/// Every kind of item that the script leaves on each volume.
const TYPES: &[KeyType] = &[
    KeyType::INODE_ITEM,
    KeyType::INODE_REF,
    KeyType::XATTR_ITEM,
    KeyType::DIR_ITEM,
    KeyType::DIR_INDEX,
    KeyType::EXTENT_DATA,
    KeyType::EXTENT_CSUM,
    KeyType::ROOT_ITEM,
    KeyType::ROOT_REF,
    KeyType::ROOT_BACKREF,
    KeyType::EXTENT_ITEM,
    KeyType::BLOCK_GROUP_ITEM,
    KeyType::DEV_EXTENT,
    KeyType::DEV_ITEM,
    KeyType::CHUNK_ITEM,
    KeyType::PERSISTENT_ITEM,
    KeyType::UUID_SUBVOL,
    KeyType::QGROUP_STATUS,
    KeyType::QGROUP_INFO,
    KeyType::QGROUP_LIMIT,
];

fn populate_and_verify(mkfs: &str, options: &str, sizes_mib: &[u32], also: &[KeyType]) {
    let lab = Lab::new(mkfs, sizes_mib);
    lab.verify();
    lab.run(options, POPULATE);
    let found = lab.verify();
    for ty in TYPES.iter().chain(also) {
        assert!(found.has(*ty), "{mkfs}: no {ty} was there to be judged");
    }
    lab.run(
        "",
        "btrfs balance start --full-balance $M >/dev/null 2>&1 || true; rm -f r? r??; btrfs subvolume delete $M/rosnap >/dev/null; sync -f $M",
    );
    lab.verify();
}

#[test]
#[ignore = "needs root, loop devices and btrfs-progs"]
fn blocks_of_all_node_sizes_are_accepted() {
    populate_and_verify(
        "-n 4k",
        "",
        &[400],
        &[KeyType::METADATA_ITEM, KeyType::FREE_SPACE_EXTENT],
    );
    populate_and_verify(
        "-n 16k --csum xxhash",
        "compress-force=zstd",
        &[400],
        &[KeyType::METADATA_ITEM, KeyType::INODE_EXTREF],
    );
    populate_and_verify("-n 64k --csum blake2", "compress-force=lzo", &[400], &[]);
}

#[test]
#[ignore = "needs root, loop devices and btrfs-progs"]
fn volumes_without_newer_features_are_accepted() {
    let old = "-O ^no-holes,^skinny-metadata,^extref -R ^free-space-tree -n 4k";
    populate_and_verify(old, "space_cache=v1", &[2400], &[KeyType::UNTYPED]);
    populate_and_verify(
        "-O ^no-holes,^skinny-metadata -R ^free-space-tree -n 16k",
        "nospace_cache",
        &[400],
        &[],
    );
    populate_and_verify("--mixed -n 4k --csum sha256", "compress-force=zlib", &[300], &[]);
}

#[test]
#[ignore = "needs root, loop devices and btrfs-progs"]
fn volumes_of_several_devices_are_accepted() {
    populate_and_verify("-d raid0 -m raid1", "", &[300, 300], &[]);
    populate_and_verify("-d raid10 -m raid10", "", &[300, 300, 300, 300], &[]);
    populate_and_verify("-d raid1c3 -m raid1c4", "", &[300, 300, 300, 300], &[]);
    populate_and_verify("-d single -m dup", "", &[500], &[]);
}

/// A copy of a volume with a log and an orphan, as after a crash.
fn with_log(lab: &Lab) -> PathBuf {
    lab.run(
        "",
        "mkdir -p logged; for i in $(seq 1 500); do echo $i > logged/f$i; done; sync -f $M",
    );
    lab.crash_copy(
        r#"exec 9<logged/f7; rm logged/f7; sync -f $M; cd logged
        for i in 3 5 9; do echo more >> f$i; rm -f f2$i; mv f1$i g1$i; sync f$i; done
        head -c 200000 /dev/urandom > new; setfattr -n user.x -v y new; sync new; touch after; sync ."#,
    )
}

#[test]
#[ignore = "needs root, loop devices and btrfs-progs"]
fn log_and_orphans_are_accepted() {
    let lab = Lab::new("-n 4k", &[300]);
    let volume = Volume::open(&[&with_log(&lab)]);
    assert_ne!(volume.superblock.log_root.get(), 0, "the copy has a log");
    let found = volume.walk_all();
    for ty in [KeyType::DIR_LOG_INDEX, KeyType::ORPHAN_ITEM, KeyType::EXTENT_CSUM] {
        assert!(found.has(ty), "no {ty} was there to be judged");
    }
}

/// Every other block of data is free.
const FRAGMENT: &str = "x=$(printf 'x%.0s' {1..4096}); for i in $(seq 1 6000); do printf %s $x > f$i; done; sync -f $M
rm $(seq -f f%g 1 2 6000); sync -f $M";

#[test]
#[ignore = "needs root, loop devices and btrfs-progs"]
fn free_space_bitmaps_are_accepted() {
    let lab = Lab::new("-n 4k", &[600]);
    lab.run("", FRAGMENT);
    let found = lab.verify();
    assert!(
        found.has(KeyType::FREE_SPACE_BITMAP),
        "no bitmap was there to be judged"
    );
}

#[test]
#[ignore = "needs root, loop devices and btrfs-progs"]
fn replaced_devices_and_received_subvolumes_are_accepted() {
    let lab = Lab::new("-m raid1 -d raid1", &[300, 300]);
    let spare = lab.dir.path().join("spare.img");
    let dev = sh(&format!("truncate -s 300M {0}; losetup --show -f {0}", spare.display()));
    let dev = dev.trim();
    lab.run(
        "",
        &format!(
            "btrfs subvolume create s >/dev/null; head -c 100000 /dev/urandom > s/f; btrfs subvolume snapshot -r s r >/dev/null
            mkdir in; btrfs send -q r | btrfs receive -q in; btrfs replace start -Bf 2 {dev} $M; sync -f $M"
        ),
    );
    sh(&format!("losetup -d {dev}"));
    let found = Volume::open(&[&lab.images[0], &spare]).walk_all();
    for ty in [KeyType::DEV_REPLACE, KeyType::UUID_RECEIVED_SUBVOL] {
        assert!(found.has(ty), "no {ty} was there to be judged");
    }
}

/// Notes the first lines that differ.
fn compare(differences: &mut Vec<String>, what: &str, ours: &str, theirs: &str) {
    let (ours, theirs) = (ours.trim_end(), theirs.trim_end());
    if ours == theirs {
        return;
    }
    let mut lines = ours.lines().zip(theirs.lines()).filter(|(a, b)| {
        // btrfs-progs cuts long values, and its older versions have no name for dead roots.
        a != b && !a.starts_with("\t\tdata ") && !a.contains("(DEAD)")
    });
    match lines.next() {
        Some((a, b)) => differences.push(format!("{what}\n  ours   {a:?}\n  theirs {b:?}")),
        None if ours.lines().count() == theirs.lines().count() => {}
        None => differences.push(format!(
            "{what}: {} lines, {}",
            ours.lines().count(),
            theirs.lines().count()
        )),
    }
}

#[test]
#[ignore = "needs root, loop devices and btrfs-progs"]
fn blocks_read_like_those_of_dump_tree() {
    let mut differences = Vec::new();
    for mkfs in ["-n 16k", "-n 4k -O ^no-holes,^skinny-metadata -R ^free-space-tree"] {
        let lab = Lab::new(mkfs, &[400]);
        lab.run("compress=zstd", POPULATE);
        let image = lab.images[0].display();
        let volume = Volume::open(&[&lab.images[0]]);
        let theirs = sh(&format!("btrfs inspect-internal dump-super -f {image} | tail -n +3"));
        compare(
            &mut differences,
            "superblock",
            &render::superblock_text(&volume.superblock),
            &theirs,
        );
        let found = volume.walk_all();
        // Large trees are many blocks of the same kind.
        for block in found.blocks.iter().take(400).step_by(1 + found.blocks.len() / 100) {
            let addr = block.addr();
            let theirs = sh(&format!(
                "TZ=UTC btrfs inspect-internal dump-tree -b {addr} {image} | tail -n +2"
            ));
            compare(
                &mut differences,
                &format!("{mkfs}, block {addr}"),
                &render::block_text(block),
                &theirs,
            );
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Writes `tests/corpus/`: blocks of small nodes, a few for every type of item. For a new kernel,
/// or new items.
#[test]
#[ignore = "writes the corpus of the mutation test; needs root, loop devices and btrfs-progs"]
fn write_corpus() {
    let mut corpus = Vec::new();
    let mut seen: BTreeMap<KeyType, usize> = BTreeMap::new();
    let mut take = |found: &Found| {
        for block in &found.blocks {
            let types: BTreeSet<KeyType> = block.item_headers().iter().map(|head| head.key.ty).collect();
            let is_new = |ty: &KeyType| seen.get(ty).is_none_or(|count| *count < 2);
            if types.iter().any(is_new) || (!block.is_leaf() && corpus.len() < 4096) {
                for ty in types {
                    *seen.entry(ty).or_default() += 1;
                }
                corpus.extend_from_slice(block.bytes());
            }
        }
    };
    let lab = Lab::new("-n 4k", &[400]);
    lab.run("compress=zstd", POPULATE);
    let superblock = Volume::open(&[&lab.images[0]]).superblock;
    take(&lab.verify());
    lab.run(
        "",
        "btrfs balance start --full-balance $M >/dev/null 2>&1 || true; sync -f $M",
    );
    take(&lab.verify());
    drop(lab);
    let lab = Lab::new("-n 4k -O ^no-holes,^skinny-metadata -R ^free-space-tree", &[2400]);
    lab.run("space_cache=v1", POPULATE);
    take(&lab.verify());
    take(&Volume::open(&[&with_log(&lab)]).walk_all());
    drop(lab);
    let lab = Lab::new("-n 4k", &[600]);
    lab.run("", FRAGMENT);
    take(&lab.verify());
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("blocks.bin"), corpus).unwrap();
    std::fs::write(dir.join("superblock.bin"), zerocopy::IntoBytes::as_bytes(&superblock)).unwrap();
}
