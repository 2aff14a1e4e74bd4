//! Files off damaged volumes: docs/rescue.md as it stands, and what goes on beside a file that
//! cannot be read.

use std::fs;
use std::path::{Path, PathBuf};

use cowshed_harness::{KernelVolume, VolumeOptions, need, shell};

use crate::roots;
use crate::support::{COWSHED, commands_of, run};

const PAGE: &str = include_str!("../../../../docs/rescue.md");
/// Names with what the flags restore, and contents. The stock command makes copies of hard links.
const LIST: &str = "find . -mindepth 1 -printf '%P %y %l' \\( -type f -printf ' %s' -o -printf ' -' \\) -printf '\\n' | sort; \
                    find . -type f | sort | xargs sha256sum; getfattr -Rd .";
/// Of those that `-m` restores.
const META: &str = "find . -mindepth 1 -printf '%P %m %U %G %T@\\n' | sort";

/// Contents that are found in an image.
const DATA: &[u8; 16] = b"data to be found";
const NAME: &[u8] = b"name-to-be-found";

/// A volume with a few files of which one has [`DATA`], and 300 in another directory, of which one
/// is [`NAME`]. Its items are in other blocks: between them are those of a third directory.
fn volume(dir: &Path) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(source.join("few")).unwrap();
    fs::write(source.join("few/alpha"), "alpha").unwrap();
    fs::write(source.join("few/beta"), DATA.repeat(1024)).unwrap();
    fs::write(source.join("few/gamma"), "gamma").unwrap();
    for (dir, count) in [("filler", 100), ("many", 300)] {
        fs::create_dir_all(source.join(dir)).unwrap();
        for number in 0..count {
            fs::write(source.join(format!("{dir}/file-{number}")), [b'x'; 100]).unwrap();
        }
    }
    fs::write(source.join("many").join(std::str::from_utf8(NAME).unwrap()), "named").unwrap();
    let image = dir.join("broken.img");
    run("build {} --from {} --nodesize 4096 -q", &[&image, &source]).ok();
    image
}

/// Changes a byte of each place where these bytes lie. Returns how many there are.
fn damage(image: &Path, wanted: &[u8]) -> usize {
    let mut bytes = fs::read(image).unwrap();
    let places: Vec<usize> = (0..bytes.len() - wanted.len())
        .filter(|&at| bytes[at..].starts_with(wanted))
        .collect();
    for at in &places {
        bytes[at + wanted.len() / 2] ^= 1;
    }
    fs::write(image, bytes).unwrap();
    places.len()
}

fn names(dir: &Path) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

#[test]
fn file_that_cannot_be_read_costs_itself_alone() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = volume(dir.path());
    assert_eq!(damage(&image, &DATA.repeat(2)), 1023);
    let out = dir.path().join("out");
    let ran = run("extract {} {}", &[&image, &out]).code(1);
    assert!(ran.err.contains("few/beta': Input/output error"), "{}", ran.err);
    assert_eq!(fs::read(out.join("few/alpha")).unwrap(), b"alpha");
    assert_eq!(fs::read(out.join("few/gamma")).unwrap(), b"gamma");
    assert_eq!(names(&out.join("many")), 301);
    // The same by cp, and into an image, which is committed with the others.
    let other = dir.path().join("other.img");
    run("mkfs -q -b 256m {}", &[&other]).ok();
    let from = format!("{}:/few", image.display());
    let to = format!("{}:/", other.display());
    run("cp -a {} {}", &[from.as_ref(), to.as_ref()]).code(1);
    assert_eq!(run("cat {} /few/gamma", &[&other]).ok().text(), "gamma");
    // As it is, where that is asked for.
    let unverified = dir.path().join("unverified");
    run("extract -o rescue=ignoredatacsums {} {}", &[&image, &unverified]).ok();
    assert_eq!(fs::read(unverified.join("few/beta")).unwrap().len(), 16 << 10);
    run("extract -o rescue=wobble {} {}", &[&image, &out]).fails_with(1, &["wobble", "salvage"]);
    run("extract -o nonsense {} {}", &[&image, &out]).fails_with(1, &["nonsense"]);
}

/// So many leaves in a row are damaged that nothing below a node can be read, in the midst of a
/// directory.
#[test]
fn names_behind_a_node_of_which_nothing_is_left_are_listed() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let source = dir.path().join("source/d");
    fs::create_dir_all(&source).unwrap();
    let name = std::str::from_utf8(NAME).unwrap();
    for (prefix, count) in [("a", 500), (name, 16_000), ("z", 500)] {
        for number in 0..count {
            fs::write(source.join(format!("{prefix}-{number:05}")), "").unwrap();
        }
    }
    let image = dir.path().join("broken.img");
    run(
        "build {} --from {} --nodesize 4096 -q",
        &[&image, &dir.path().join("source")],
    )
    .ok();
    // Blocks with these names alone: almost all are of the items by which the directory is listed.
    let mut bytes = fs::read(&image).unwrap();
    let count = |block: &[u8], wanted: &[u8]| block.windows(wanted.len()).filter(|part| *part == wanted).count();
    let mut damaged = 0;
    for block in bytes.chunks_mut(4096) {
        if count(block, NAME) >= 40 && count(block, b"a-00") + count(block, b"z-00") == 0 {
            block[2000] ^= 1;
            damaged += 1;
        }
    }
    fs::write(&image, bytes).unwrap();
    assert!(
        damaged > 2 * 2 * 121,
        "{damaged} blocks are more than two nodes have, in two copies"
    );
    let out = dir.path().join("out");
    run("extract -o rescue=salvage {} {}", &[&image, &out]);
    let saved: Vec<String> = fs::read_dir(out.join("d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let with = |prefix: &str| saved.iter().filter(|name| name.starts_with(prefix)).count();
    // Some share a block with those that are lost.
    assert!(
        with("a-") > 400 && with("z-") > 400,
        "{} and {}",
        with("a-"),
        with("z-")
    );
    assert!(with(name) < 200, "{}", with(name));
}

#[test]
fn volumes_of_several_devices_are_extracted() {
    let dir = cowshed_harness::scratch_dir().unwrap();
    let paths = ["a.img", "b.img"].map(|name| dir.path().join(name));
    for path in &paths {
        fs::File::create(path).unwrap().set_len(256 << 20).unwrap();
    }
    let devices = paths.each_ref().map(PathBuf::as_path);
    run("mkfs -q -d raid0 -m raid1 {} {}", &devices).ok();
    let out = dir.path().join("out");
    let missing = run("extract {} {}", &[&paths[0], &out]).code(1);
    assert!(missing.err.contains("missing"), "{}", missing.err);
    run("extract -D {} {} {}", &[&paths[1], &paths[0], &out]).ok();
    let archive = dir.path().join("out.tar");
    run("export tar -D {} {} {}", &[&paths[1], &paths[0], &archive]).ok();
    assert!(archive.exists());
}

#[test]
fn rescue_is_as_the_page_says() {
    let Some(()) = need::tool("cp") else { return };
    let dir = cowshed_harness::scratch_dir().unwrap();
    let image = volume(dir.path());
    damage(&image, &DATA.repeat(2));
    // In its items of the directory and its inode, each in two copies.
    let places = damage(&image, NAME);
    assert!(places >= 4, "{places}");
    let deleted = roots::volume_with_deleted(dir.path(), "deleted.img");
    fs::copy(deleted, dir.path().join("no-root.img")).unwrap();
    roots::lose_roots(&dir.path().join("no-root.img"), false);
    let commands = commands_of(PAGE);
    assert_eq!(commands.matches("cowshed extract").count(), 4, "{commands}");
    let script = format!("set -eu; mkdir bin; ln -s {COWSHED} bin/cowshed; PATH=$PWD/bin:$PATH\n{commands}");
    shell(dir.path(), &script).unwrap();
    let (sound, rest) = (dir.path().join("sound"), dir.path().join("rest"));
    // Inodes of the first files share a block with the last name.
    assert!((80..100).contains(&names(&sound.join("filler"))));
    assert!(names(&sound.join("many")) < 301);
    assert_eq!(names(&rest.join("filler")), 100);
    assert_eq!(fs::read(rest.join("few/alpha")).unwrap(), b"alpha");
    assert_eq!(fs::read(rest.join("few/beta")).unwrap().len(), 16 << 10);
    let saved = names(&rest.join("many"));
    assert!((300..=301).contains(&saved), "{saved} of 301 names");
    for dir in ["letters", "restored/letters"].map(|name| dir.path().join(name)) {
        assert_eq!(
            fs::read(dir.join("one")).unwrap(),
            roots::LETTER.repeat(1000),
            "{}",
            dir.display()
        );
    }
    let found = dir.path().join("found");
    assert!(!found.join("letters").exists() && found.join("later").exists());
}

#[test]
fn restore_gives_what_the_stock_command_restores() {
    let Some(()) = need::kernel_btrfs() else { return };
    let volume = KernelVolume::make(&VolumeOptions::default()).unwrap();
    let fill = "mkdir d; seq 1 100000 > d/large; echo small > d/small; ln d/small link; ln -s d/small symlink
        setfattr -n user.a -v b d/large; chmod 640 d/small; chown 1000:1000 d/large; touch -d @1000000000 d/large
        btrfs -q subvolume create sub; echo inside > sub/file; btrfs -q subvolume snapshot -r sub snap
        mkdir packed; btrfs property set packed compression zstd; seq 100000 > packed/file; truncate -s 1M d/hole; sync -f .";
    volume.with_mount(|root| shell(root, fill)).unwrap();
    let image = volume.image().to_str().unwrap();
    let dir = volume.dir();
    for (number, flags) in ["", "-s", "-sx", "-smxS", "-S", "-mr 256"].iter().enumerate() {
        let trees = ["btrfs", COWSHED].map(|program| {
            let out = dir.join(format!("out-{number}-{}", program.len()));
            fs::create_dir(&out).unwrap();
            let script = format!("exec -a btrfs {program} restore {flags} {image} {}", out.display());
            cowshed_harness::run("bash", &["-c", &script]).unwrap();
            let list = shell(&out, LIST).unwrap();
            let meta = flags.contains('m').then(|| shell(&out, META).unwrap());
            (list, meta)
        });
        assert_eq!(trees[1], trees[0], "{flags}");
    }
    let out = dir.join("again");
    let restore = |flags: &str| run(&format!("btrfs restore {flags} {{}} {{}}"), &[volume.image(), &out]);
    restore("").ok();
    fs::write(out.join("d/small"), "kept").unwrap();
    restore("").ok();
    assert_eq!(fs::read_to_string(out.join("d/small")).unwrap(), "kept");
    restore("-o").ok();
    assert_eq!(fs::read_to_string(out.join("d/small")).unwrap(), "small\n");
    let at = dir.join("not-made");
    run("btrfs --dry-run restore {} {}", &[volume.image(), &at]).ok();
    assert!(!at.exists());
    let named = restore("-D").ok().text();
    assert!(
        named.starts_with("This is a dry-run") && named.contains("again/d/large\n"),
        "{named}"
    );
    assert!(named.contains("sub/file") && !named.contains("snap"), "{named}");
    run("btrfs restore {}", &[volume.image()]).code(1);
    run("btrfs restore /etc/passwd {}", &[&out]).code(1);
}
