//! Roots of earlier commits: found beside the stock command, and used to get files back that were
//! deleted, or whose roots are lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use btrfs_format::block::{HEADER_BYTES, Header, ITEM_HEADER_BYTES, ItemHeader};
use btrfs_format::features::block_group;
use btrfs_format::items::{ChunkHead, Stripe};
use btrfs_format::superblock::{CSUM_FIELD_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use btrfs_format::{DiskKey, Key, KeyType, TreeId};
use cowshed_device::{FileDevice, OpenMode};
use cowshed_harness::{KernelVolume, VolumeOptions, need, shell};
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::mount::{Guard, can_mount, unmount};
use crate::support::{COWSHED, run};

/// Between two commits files come and go. The names that are gone at the end are `gone-*`.
const ROUNDS: &str = "mkdir d; seq 1 100000 > gone-1; echo a > d/kept; sync -f .
    seq 2 70000 > d/gone-2; echo small > gone-3; for i in $(seq 400); do echo $i > d/gone-few-$i; done; sync -f .
    rm gone-1 gone-3; sync -f .
    rm d/gone-*; echo b > later; sync -f .";

/// The volume is neither mounted nor written by these tests after it is made.
pub struct Unchanged<'a>(&'a Path, Vec<u8>);

impl<'a> Unchanged<'a> {
    pub fn new(image: &'a Path) -> Self {
        Unchanged(image, fs::read(image).unwrap())
    }
}

impl Drop for Unchanged<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(fs::read(self.0).unwrap() == self.1, "{} was changed", self.0.display());
        }
    }
}

/// A volume of the kernel's in which files were deleted.
pub fn kernel_volume() -> KernelVolume {
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    volume.with_mount(|root| shell(root, ROUNDS)).unwrap();
    volume
}

/// The same of our own, without discard.
pub fn own_volume(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(&source).unwrap();
    shell(
        &source,
        "mkdir d; seq 1 100000 > gone-1; echo a > d/kept; seq 2 70000 > d/gone-2",
    )
    .unwrap();
    let image = dir.join("own.img");
    run("build {} --from {} --nodesize 4096 -q", &[&image, &source]).ok();
    change(
        &image,
        &[
            &|volume| volume.write("early", "b\n"),
            &|volume| volume.remove_file("gone-1"),
            &|volume| volume.write("later", "b\n"),
            &|volume| volume.remove_file("d/gone-2"),
        ],
    );
    image
}

pub const LETTER: &[u8] = b"a letter of many lines\n";

/// A volume with a directory of letters that was deleted.
pub fn volume_with_deleted(dir: &Path, name: &str) -> PathBuf {
    let image = dir.join(name);
    run("mkfs -q -b 256m {}", &[&image]).ok();
    change(
        &image,
        &[
            &|volume| volume.create_dir("letters"),
            &|volume| volume.write("letters/one", LETTER.repeat(1000)),
            &|volume| volume.remove_dir_all("letters"),
            &|volume| volume.write("later", "later\n"),
        ],
    );
    image
}

pub type Change<'a> = &'a dyn Fn(&cowshed::Volume) -> cowshed::Result<()>;

/// Changes a volume, with a commit after each step.
pub fn change(image: &Path, steps: &[Change<'_>]) {
    let volume = cowshed::Volume::open_image(image, &cowshed::OpenOptions::new()).unwrap();
    for step in steps {
        step(&volume).and_then(|()| volume.sync()).unwrap();
    }
    volume.close().unwrap();
}

/// What a program prints that is called by the name of the stock one.
fn called(name: &str, program: &str, line: &str) -> String {
    cowshed_harness::run("bash", &["-c", &format!("exec -a {name} {program} {line}")]).unwrap()
}

/// Addresses of candidates of the root tree, the newest first.
pub fn candidates(image: &Path) -> Vec<u64> {
    let list = run("inspect find-root --json {}", &[image]).ok().json();
    let all = list.as_array().unwrap().iter();
    all.map(|root| root["address"].as_u64().unwrap()).collect()
}

/// Contents by path.
pub fn contents(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let list = shell(dir, "find . -type f").unwrap();
    list.lines()
        .map(|path| (path.to_owned(), fs::read(dir.join(path)).unwrap()))
        .collect()
}

/// Offers each tree block of a volume, all copies and those of the past, to be changed; what was
/// gets its checksum. Returns how many were.
pub fn change_blocks(image: &Path, mut change: impl FnMut(&Header, &mut [u8]) -> bool) -> usize {
    let mut bytes = fs::read(image).unwrap();
    let at = usize::try_from(SUPERBLOCK_OFFSETS[0]).unwrap();
    let superblock = Superblock::read_from_prefix(&bytes[at..]).unwrap().0;
    let (fsid, nodesize) = (superblock.metadata_fsid(), superblock.nodesize.get() as usize);
    let mut changed = 0;
    for at in (0..bytes.len() - nodesize).step_by(4096) {
        let block = &mut bytes[at..at + nodesize];
        let header = Header::read_from_prefix(block).unwrap().0;
        let is_block = header.fsid == fsid && header.bytenr.get() % 4096 == 0;
        if is_block && change(&header, block) {
            let (sum, body) = block.split_at_mut(CSUM_FIELD_BYTES);
            sum.copy_from_slice(&superblock.checksum_type().unwrap().compute(body));
            changed += 1;
        }
    }
    fs::write(image, bytes).unwrap();
    changed
}

/// Overwrites the tree blocks of which `is_lost` says so. Returns how many.
fn destroy(image: &Path, is_lost: impl Fn(&Header) -> bool) -> usize {
    change_blocks(image, |header, block| {
        let is_lost = is_lost(header);
        if is_lost {
            block.fill(0xa5);
        }
        is_lost
    })
}

pub fn is_root_tree(header: &Header) -> bool {
    TreeId::from(header.owner) == TreeId::ROOT
}

#[test]
fn candidates_are_those_of_the_stock_command() {
    let Some(()) = need::kernel_btrfs() else { return };
    let Some(()) = need::tool("btrfs-find-root") else {
        return;
    };
    let volume = kernel_volume();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let own = own_volume(dir.path());
    for image in [volume.image(), &own] {
        let _unchanged = Unchanged::new(image);
        for flags in [
            "",
            "-a",
            "-g 7",
            "-l 1",
            "-o 5",
            "-o 5 -l 1",
            "-a -o 2",
            "-o 3",
            "-o 7 -g 8",
        ] {
            let line = format!("{flags} {}", image.display());
            let stock = called("btrfs-find-root", "btrfs-find-root", &line);
            assert_eq!(called("btrfs-find-root", COWSHED, &line), stock, "{flags}");
        }
        let text = run("inspect find-root {}", &[image]).ok().text();
        assert!(text.lines().nth(1).unwrap().ends_with("current"), "{text}");
        assert!(text.contains("backup"), "{text}");
        // Of the newest generation alone.
        let list = run("inspect find-root --json {}", &[image]).ok().json();
        let newest = list[0]["generation"].as_u64().unwrap();
        let since = run(&format!("inspect find-root -g {newest} {{}}"), &[image])
            .ok()
            .text();
        assert!(
            since.lines().skip(1).all(|line| line.contains(&newest.to_string())),
            "{since}"
        );
        run(&format!("inspect find-root -g {} {{}}", newest + 1), &[image]).fails_with(1, &["no root of tree"]);
    }
    run("inspect find-root /etc/passwd", &[]).code(2);
}

#[test]
fn deleted_files_are_restored_by_older_roots_as_by_the_stock_command() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = kernel_volume();
    let own_dir = cowshed_harness::scratch_dir().unwrap();
    let own = own_volume(own_dir.path());
    let dir = cowshed_harness::scratch_dir().unwrap();
    for (number, (image, gone)) in [(volume.image(), 3), (&own, 2)].into_iter().enumerate() {
        let _unchanged = Unchanged::new(image);
        let mut saved: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for addr in candidates(image) {
            let [stock, ours] = ["stock", "ours"].map(|name| dir.path().join(format!("{number}-{addr}-{name}")));
            fs::create_dir(&stock).unwrap();
            fs::create_dir(&ours).unwrap();
            let image = image.display();
            // Where it finds nothing it fails.
            let script = format!("btrfs restore -t {addr} {image} {} || true", stock.display());
            shell(dir.path(), &script).unwrap();
            let script = format!("{COWSHED} btrfs restore -t {addr} {image} {} || true", ours.display());
            shell(dir.path(), &script).unwrap();
            let (stock, ours) = (contents(&stock), contents(&ours));
            for (path, bytes) in stock {
                assert!(
                    ours.get(&path) == Some(&bytes),
                    "{path} by the root at {addr} of {image}"
                );
            }
            saved.extend(ours);
        }
        let numbers = |first: u32, last: u32| (first..=last).map(|n| format!("{n}\n")).collect::<String>();
        let expected = [
            ("./gone-1", numbers(1, 100_000)),
            ("./d/gone-2", numbers(2, 70_000)),
            ("./gone-3", "small\n".to_owned()),
        ];
        for (path, bytes) in expected.iter().take(gone) {
            assert!(
                saved.get(*path).is_some_and(|found| found == bytes.as_bytes()),
                "{path}"
            );
        }
    }
}

#[test]
fn volume_of_an_earlier_commit_is_mounted() {
    let Some(()) = can_mount() else { return };
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = volume_with_deleted(dir.path(), "deleted.img");
    let _unchanged = Unchanged::new(&image);
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let _guard = Guard(&at);
    let mut seen = 0;
    for root in candidates(&image) {
        let options = format!("rescue=root={root}");
        run(&format!("mount -o {options} {{}} {{}}"), &[&image, &at]).fails(&["read-only"]);
        run(&format!("mount -o ro,{options} {{}} {{}}"), &[&image, &at]).ok();
        if let Ok(letter) = fs::read(at.join("letters/one")) {
            assert_eq!(letter, LETTER.repeat(1000));
            seen += 1;
        }
        assert!(fs::write(at.join("new"), "").is_err());
        unmount(&at);
    }
    assert!(seen > 0, "no root has the letter");
}

/// With their checksums, and by each of the commands that read.
#[test]
fn older_roots_are_an_option_of_all_that_read() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = own_volume(dir.path());
    let _unchanged = Unchanged::new(&image);
    let oldest = *candidates(&image).last().unwrap();
    let gone: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    let by_root = |command: &str, paths: &[&Path]| {
        run(
            &command.replace("ROOT", &format!("-o rescue=root={oldest}:salvage")),
            paths,
        )
    };
    let inside = |path: &str| PathBuf::from(format!("{}:{path}", image.display()));
    assert!(by_root("ls ROOT {}", &[&image]).ok().text().contains("gone-1"));
    assert_eq!(by_root("cat ROOT {} /gone-1", &[&image]).ok().text(), gone);
    let out = dir.path().join("out");
    by_root("extract ROOT {} {}", &[&image, &out]).ok();
    assert_eq!(fs::read_to_string(out.join("gone-1")).unwrap(), gone);
    by_root("export tar ROOT {} {}", &[&image, &dir.path().join("out.tar")]).ok();
    shell(
        dir.path(),
        "mkdir tar; tar -C tar -xf out.tar; cmp tar/gone-1 out/gone-1",
    )
    .unwrap();
    by_root("extract ROOT {} {}", &[&inside("/d"), &dir.path().join("d")]).ok();
    assert!(dir.path().join("d/gone-2").exists());
    let to = dir.path().join("copied");
    by_root("cp ROOT {} {}", &[&inside("/gone-1"), &to]).ok();
    assert_eq!(fs::read_to_string(&to).unwrap(), gone);
    // Into another image, which is written.
    let other = dir.path().join("other.img");
    run("mkfs -q -b 256m {}", &[&other]).ok();
    let there = PathBuf::from(format!("{}:/", other.display()));
    by_root("cp -a ROOT {} {}", &[&inside("/d"), &there]).ok();
    assert!(run("cat {} /d/gone-2", &[&other]).ok().text().ends_with("70000\n"));
    // As it is, the file is not there; and what is no root is named.
    run("cat {} /gone-1", &[&image]).code(2);
    let out = dir.path().join("none");
    run("extract -o rescue=root=4096 {} {}", &[&image, &out]).fails_with(1, &["4096"]);
    let wrong = format!("extract -o rescue=root={} {{}} {{}}", oldest + 4096 * 1024);
    run(&wrong, &[&image, &out]).code(1);
    let chunk_root = run("inspect find-root -o chunk --json {}", &[&image]).ok().json()[0]["address"].clone();
    run(
        &format!("extract -o rescue=root={chunk_root} {{}} {{}}"),
        &[&image, &out],
    )
    .fails_with(1, &["a block of tree 3 in tree 1"]);
    // Such a volume is not written.
    let options = cowshed::OpenOptions::new().rescue(cowshed::Rescue {
        tree_root: Some(oldest),
        ..cowshed::Rescue::default()
    });
    let refused = cowshed::Volume::open_image(&image, &options).unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    let volume = cowshed::Volume::open_image(&image, &options.read_only(true)).unwrap();
    assert_eq!(volume.read("gone-1").unwrap(), gone.as_bytes());
}

#[test]
fn list_of_roots_and_paths_are_those_of_the_stock_command() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = kernel_volume();
    let image = volume.image();
    let _unchanged = Unchanged::new(image);
    let roots = candidates(image).into_iter().map(|addr| format!("-t {addr}"));
    for flags in std::iter::once(String::new()).chain(roots) {
        let line = format!("restore -l {flags} {}", image.display());
        assert_eq!(
            called("btrfs", COWSHED, &line),
            called("btrfs", "btrfs", &line),
            "{flags}"
        );
    }
    let dir = volume.dir();
    let oldest_fs = run("inspect find-root -o fs --json -l 1 {}", &[image]).ok().json()[0]["address"].clone();
    let flags = [
        "--path-regex ^/(|d(|/.*))$".to_owned(),
        "--path-regex ^/(|D(|/.*))$".to_owned(),
        "-c --path-regex ^/(|D(|/.*))$".to_owned(),
        format!("-f {oldest_fs}"),
    ];
    for (number, flags) in flags.iter().enumerate() {
        let out = ["btrfs", COWSHED].map(|program| {
            let out = dir.join(format!("paths-{number}-{}", program.len()));
            fs::create_dir(&out).unwrap();
            let mut args: Vec<&str> = vec!["-c", "exec -a btrfs \"$0\" restore \"$@\"", program];
            args.extend(flags.split(' '));
            args.extend([image.to_str().unwrap(), out.to_str().unwrap()]);
            cowshed_harness::run("bash", &args).unwrap();
            contents(&out)
        });
        assert_eq!(
            out[0].keys().collect::<Vec<_>>(),
            out[1].keys().collect::<Vec<_>>(),
            "{flags}"
        );
        assert!(out[0] == out[1], "{flags}");
    }
    let out = dir.join("none");
    run("btrfs restore --path-regex ( {} {}", &[image, &out]).fails_with(1, &["regex compilation failed"]);
    run("btrfs restore -t 12345 {} {}", &[image, &out]).fails_with(1, &["12345"]);
    run("btrfs restore -f 12345 {} {}", &[image, &out]).fails_with(1, &["12345"]);
}

/// The superblock's root and its backups are overwritten on all copies.
#[test]
fn salvage_searches_where_no_root_of_the_superblock_can_be_read() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = own_volume(dir.path());
    let list = run("inspect find-root --json {}", &[&image]).ok().json();
    let generation = |at: usize| list[at]["generation"].as_u64().unwrap();
    let count = list.as_array().unwrap().len();
    assert!(count >= 3, "{list}");
    // All but the oldest.
    let oldest = generation(count - 1);
    let lost = destroy(&image, |header| {
        is_root_tree(header) && header.generation.get() > oldest
    });
    assert!(lost >= 4, "{lost}");
    let unchanged = Unchanged::new(&image);
    let out = dir.path().join("out");
    run("extract {} {}", &[&image, &out]).code(1);
    run("extract -o rescue=all {} {}", &[&image, &out]).code(1);
    let ran = run("extract -o rescue=salvage {} {}", &[&image, &out]).ok();
    assert!(
        ran.err.contains("opened at an older root") || ran.err.contains("newest root that was found"),
        "{}",
        ran.err
    );
    let gone: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(fs::read_to_string(out.join("gone-1")).unwrap(), gone);
    let listed = run("btrfs restore -l {}", &[&image]).ok().text();
    assert!(listed.contains("FS_TREE ROOT_ITEM"), "{listed}");
    drop(unchanged);
    // With the pointers of the superblock gone as well, a search is what is left.
    lose_roots(&image, false);
    let out = dir.path().join("found");
    let unchanged = Unchanged::new(&image);
    let ran = run("extract -o rescue=salvage {} {}", &[&image, &out]).ok();
    assert!(
        ran.err.contains("opened by the newest root that was found"),
        "{}",
        ran.err
    );
    assert_eq!(fs::read_to_string(out.join("gone-1")).unwrap(), gone);
    assert_eq!(fs::read_to_string(out.join("d/kept")).unwrap(), "a\n");
    let ran = run("btrfs restore {} {}", &[&image, &dir.path().join("restored")]).ok();
    assert!(ran.err.contains("opened by the newest root"), "{}", ran.err);
    drop(unchanged);
    // Without any root, the error is that of the first.
    assert!(destroy(&image, is_root_tree) > 0);
    run("extract -o rescue=salvage {} {}", &[&image, &out]).code(1);
}

/// Superblocks that name no root of the root tree, in none of their backups.
pub fn lose_roots(image: &Path, is_chunk_tree_lost: bool) {
    change_superblocks(image, |superblock| {
        superblock.root = (1 << 40).into();
        for backup in &mut superblock.super_roots {
            backup.tree_root = 0.into();
            if is_chunk_tree_lost {
                backup.chunk_root = 0.into();
            }
        }
        if is_chunk_tree_lost {
            superblock.chunk_root = (1 << 40).into();
        }
    });
}

fn change_superblocks(image: &Path, change: impl Fn(&mut Superblock)) {
    let mut bytes = fs::read(image).unwrap();
    for offset in SUPERBLOCK_OFFSETS {
        let at = usize::try_from(offset).unwrap();
        let Some(place) = bytes.get_mut(at..at + size_of::<Superblock>()) else {
            continue;
        };
        let mut superblock = Superblock::read_from_bytes(place).unwrap();
        change(&mut superblock);
        place.copy_from_slice(superblock.as_bytes());
        let (sum, body) = place.split_at_mut(CSUM_FIELD_BYTES);
        sum.copy_from_slice(&superblock.checksum_type().unwrap().compute(body));
    }
    fs::write(image, bytes).unwrap();
}

/// Damages the first chunk of data in leaves of a generation. False: there is none.
fn spoil_data_chunk(image: &Path, generation: u64) -> bool {
    let spoiled = change_blocks(image, |header, block| {
        let is_leaf = TreeId::from(header.owner) == TreeId::CHUNK && header.level == 0;
        let count = header.nritems.get() as usize;
        let mut slots = 0..if is_leaf { count } else { 0 };
        header.generation.get() == generation
            && slots.any(|slot| {
                let item = &block[HEADER_BYTES + slot * ITEM_HEADER_BYTES..];
                let item = ItemHeader::read_from_prefix(item).unwrap().0;
                let data = &mut block[HEADER_BYTES + item.offset.get() as usize..];
                let chunk = ChunkHead::mut_from_prefix(data).unwrap().0;
                let is_chunk = Key::from(item.key).ty == KeyType::CHUNK_ITEM;
                let is_wanted = is_chunk && chunk.ty.get() & block_group::DATA != 0;
                if is_wanted {
                    chunk.stripe_len = 0.into();
                }
                is_wanted
            })
    });
    spoiled > 0
}

/// By their names in `wanted`, all there and sound.
fn assert_salvaged(image: &Path, out: &Path, wanted: &BTreeMap<String, Vec<u8>>, message: &str) {
    let _unchanged = Unchanged::new(image);
    let none = out.with_extension("none");
    run("extract {} {}", &[image, &none]).code(1);
    let ran = run("extract -o rescue=salvage {} {}", &[image, out]).ok();
    assert!(ran.err.contains(message), "{}", ran.err);
    assert!(contents(out) == *wanted, "{}", out.display());
}

#[test]
fn lost_chunk_tree_is_made_up_of_its_leaves() {
    let Some(()) = need::kernel_btrfs() else { return };
    let kernel = kernel_volume();
    let dir = cowshed_harness::scratch_dir().unwrap();
    let own = own_volume(dir.path());
    let mut made_up = 0;
    for (number, sound) in [kernel.image(), &own].into_iter().enumerate() {
        let path = |name: &str| dir.path().join(format!("{number}-{name}"));
        run("extract {} {}", &[sound, &path("sound")]).ok();
        let wanted = contents(&path("sound"));
        assert!(wanted.len() >= 2);
        let image = path("image");
        let fresh = || fs::copy(sound, &image).unwrap();
        // Nothing names the root of the chunk tree, nor that of the root tree.
        fresh();
        lose_roots(&image, true);
        assert_salvaged(
            &image,
            &path("pointers"),
            &wanted,
            "leaves of the chunk tree that were found",
        );
        // The newest blocks of the chunk tree are overwritten.
        fresh();
        let list = run("inspect find-root -o chunk --json {}", &[&image]).ok().json();
        let newest = list[0]["generation"].as_u64().unwrap();
        let is_chunk_tree = |header: &Header| TreeId::from(header.owner) == TreeId::CHUNK;
        if list[1]["generation"].is_u64() {
            let is_newest = |header: &Header| is_chunk_tree(header) && header.generation.get() == newest;
            assert!(destroy(&image, is_newest) > 0);
            let out = path("older");
            run("extract -o rescue=salvage {} {}", &[&image, &out]).ok();
            assert!(contents(&out) == wanted);
        }
        // An item of the newest one is damaged, which older ones have, too.
        fresh();
        if spoil_data_chunk(&image, newest) && list[1]["generation"].is_u64() {
            made_up += 1;
            assert_salvaged(
                &image,
                &path("item"),
                &wanted,
                "leaves of the chunk tree that were found",
            );
        }
        // The superblock says wrongly where the chunks of the chunk tree are.
        fresh();
        change_superblocks(&image, |superblock| {
            let (key, stripe) = (size_of::<DiskKey>(), size_of::<ChunkHead>());
            let used = superblock.sys_chunk_array_size.get() as usize;
            let mut rest = &mut superblock.sys_chunk_array[key + stripe..used];
            while let Ok((stripe, more)) = Stripe::mut_from_prefix(rest) {
                stripe.offset = (stripe.offset.get() + (32 << 20)).into();
                rest = more;
            }
        });
        assert_salvaged(&image, &path("array"), &wanted, "the devices are read for them");
        // Roots are found by its chunks, too, where none is named.
        lose_roots(&image, true);
        assert_salvaged(
            &image,
            &path("both"),
            &wanted,
            "opened by the newest root that was found",
        );
        // With no leaf left, it says what is lost.
        assert!(destroy(&image, is_chunk_tree) > 0);
        run("extract -o rescue=salvage {} {}", &[&image, &path("none")]).fails_with(1, &["mapped by no chunk"]);
    }
    assert!(made_up > 0, "no volume has an older leaf");
}

/// A block with a later generation than its pointer was overwritten since, or its pointer was lost.
/// By the current root it is used, by an older one it is not.
#[test]
fn blocks_of_a_later_generation_are_used_by_the_current_root_alone() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = own_volume(dir.path());
    let roots = candidates(&image);
    let top_levels = run("inspect find-root -o fs --json {}", &[&image]).ok().json();
    for (number, name) in [(0, "later"), (1, "d/gone-2")] {
        let (top_level, root) = (&top_levels[number], roots[number]);
        let changed = change_blocks(&image, |header, block| {
            let is_wanted = header.bytenr.get() == top_level["address"];
            if is_wanted {
                let header = Header::mut_from_prefix(block).unwrap().0;
                header.generation = (header.generation.get() + 1).into();
            }
            is_wanted
        });
        assert_eq!(changed, 2, "both copies");
        let out = dir.path().join(format!("out-{number}"));
        let line = format!("extract -o rescue=root={root} {{}} {{}}");
        run(&line, &[&image, &out]).code(1);
        let line = format!("extract -o rescue=salvage:root={root} {{}} {{}}");
        let ran = run(&line, &[&image, &out]);
        assert_eq!(out.join(name).exists(), number == 0, "{}", ran.err);
        ran.code(i32::from(number > 0));
    }
}

/// Roots and chunks are found on all devices of a volume.
#[test]
fn lost_trees_of_a_volume_of_several_devices_are_found() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let paths = ["a.img", "b.img", "c.img"].map(|name| dir.path().join(name));
    for path in &paths {
        fs::File::create(path).unwrap().set_len(300 << 20).unwrap();
    }
    let [a, b, c] = paths.each_ref().map(PathBuf::as_path);
    for (number, profiles) in ["-d raid0 -m raid0", "-d raid1 -m raid1c3"].iter().enumerate() {
        run(&format!("mkfs -q -f {profiles} {{}} {{}} {{}}"), &[a, b, c]).ok();
        let open = |path: &Path| -> Arc<dyn cowshed_device::BlockDevice> {
            Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap())
        };
        let volume = cowshed::Volume::open([a, b, c].map(open), &cowshed::OpenOptions::new()).unwrap();
        volume.create_dir("letters").unwrap();
        volume.write("letters/one", LETTER.repeat(100_000)).unwrap();
        volume.sync().unwrap();
        volume.remove_dir_all("letters").unwrap();
        volume.write("later", LETTER.repeat(50_000)).unwrap();
        volume.close().unwrap();
        let roots = run("inspect find-root --json {} {} {}", &[a, b, c]).ok().json();
        let older = roots[1]["address"].clone();
        [a, b, c].into_iter().for_each(|path| lose_roots(path, true));
        let out = dir.path().join(format!("out-{number}"));
        run("extract -o rescue=salvage -D {} -D {} {} {}", &[b, c, a, &out]).ok();
        assert!(
            fs::read(out.join("later")).unwrap() == LETTER.repeat(50_000),
            "{profiles}"
        );
        // And by a root that the caller names.
        let out = dir.path().join(format!("older-{number}"));
        let line = format!("extract -o rescue=salvage:root={older} -D {{}} -D {{}} {{}} {{}}");
        run(&line, &[c, a, b, &out]).ok();
        let letter = fs::read(out.join("letters/one")).unwrap();
        assert!(letter == LETTER.repeat(100_000), "{profiles}");
    }
}

/// Blocks of the older tree that were overwritten are errors, and salvage goes around them.
#[test]
fn overwritten_blocks_of_an_older_tree_are_gone_around() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let source = dir.path().join("source/d");
    fs::create_dir_all(&source).unwrap();
    for number in 0..3000 {
        fs::write(source.join(format!("file-{number:04}")), number.to_string().repeat(20)).unwrap();
    }
    let image = dir.path().join("own.img");
    let source = dir.path().join("source");
    run("build {} --from {} --nodesize 4096 -q", &[&image, &source]).ok();
    change(
        &image,
        &[&|volume| volume.remove_dir_all("d"), &|volume| volume.create_dir("e")],
    );
    let oldest = *candidates(&image).last().unwrap();
    let option = format!("rescue=root={oldest}");
    let whole = dir.path().join("whole");
    run(&format!("extract -o {option} {{}} {{}}"), &[&image, &whole]).ok();
    assert_eq!(contents(&whole).len(), 3000);
    // Each tenth leaf, not that of the top directory.
    let lost = destroy(&image, |header| {
        let number = header.bytenr.get() / 4096;
        TreeId::from(header.owner) == TreeId::FS && header.level == 0 && number % 10 == 7
    });
    assert!(lost > 20, "{lost}");
    let _unchanged = Unchanged::new(&image);
    let partly = dir.path().join("partly");
    run(&format!("extract -o {option}:salvage {{}} {{}}"), &[&image, &partly]);
    let saved = contents(&partly);
    assert!((1500..3000).contains(&saved.len()), "{}", saved.len());
    let all = contents(&whole);
    for (path, bytes) in &saved {
        let expected = &all[path];
        assert!(bytes == expected || bytes.iter().all(|byte| *byte == 0), "{path}");
    }
}
