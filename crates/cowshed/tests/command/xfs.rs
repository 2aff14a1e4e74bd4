//! XFS volumes that Linux made: mounted through FUSE, and looked at by the commands.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cowshed::{BlockDevice, FileDevice, OpenMode};
use cowshed_device_sim::{CountingDevice, ReadCounts};
use cowshed_harness::need;
use cowshed_harness::tree::{Compare, Tree, snapshot};
use cowshed_harness::xfs::{Fill, XfsOptions, XfsVolume, fill};

use crate::mount::{Guard, can_mount, unmount};
use crate::support::{Scratch, run};

fn made(options: &XfsOptions, what: &Fill) -> XfsVolume {
    let volume = XfsVolume::make(options).unwrap_or_else(|e| panic!("{e:#}"));
    let filled = volume.with_mount(|root| fill(root, what));
    filled.unwrap_or_else(|e| panic!("{e:#}"));
    volume
}

/// A volume of defaults.
fn volume() -> Option<XfsVolume> {
    need::kernel_xfs()?;
    Some(made(&XfsOptions::new(""), &Fill::small(1)))
}

fn mountpoint(volume: &XfsVolume, name: &str) -> PathBuf {
    let dir = volume.dir().join(name);
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn look(root: &Path) -> Tree {
    snapshot(root).unwrap_or_else(|e| panic!("{e:#}"))
}

fn by_kernel(volume: &XfsVolume) -> Tree {
    volume
        .with_mount_untouched(snapshot)
        .unwrap_or_else(|e| panic!("{e:#}"))
}

#[track_caller]
fn assert_same(kernels: &Tree, ours: &Tree) {
    assert!(kernels.len() > 4000, "{} entries", kernels.len());
    kernels.diff(ours, &Compare::same_volume()).assert_none();
}

#[test]
fn xfs_mount_shows_what_linux_shows_and_refuses_changes() {
    let Some(()) = can_mount() else { return };
    let Some(volume) = volume() else { return };
    let kernels = by_kernel(&volume);
    let dir = mountpoint(&volume, "mnt");
    let _guard = Guard(&dir);
    let ran = run("mount {} {}", &[volume.image(), &dir]).ok();
    assert!(ran.err.contains("XFS") && ran.err.contains("read-only"), "{}", ran.err);
    assert_same(&kernels, &look(&dir));
    let refused = fs::write(dir.join("new"), b"x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    let shown = rustix::fs::statvfs(&dir).unwrap();
    let kernels = volume
        .with_mount_untouched(|root| Ok(rustix::fs::statvfs(root)?))
        .unwrap();
    assert_eq!(
        (
            shown.f_blocks,
            shown.f_bfree,
            shown.f_bavail,
            shown.f_files,
            shown.f_ffree
        ),
        (
            kernels.f_blocks,
            kernels.f_bfree,
            kernels.f_bavail,
            kernels.f_files,
            kernels.f_ffree
        )
    );
    assert_eq!((shown.f_bsize, shown.f_namemax), (kernels.f_bsize, kernels.f_namemax));
    // Again, at another place: the process that has it serves both.
    let second = mountpoint(&volume, "second");
    let _second = Guard(&second);
    run("mount -o ro {} {}", &[volume.image(), &second]).ok();
    assert_eq!(fs::read(second.join("linked/first")).unwrap(), vec![3; 300_000]);
    unmount(&dir);
    assert_eq!(
        fs::read_link(second.join("symlink")).unwrap(),
        Path::new(&"b".repeat(200))
    );
    unmount(&second);
}

#[test]
fn xfs_mounts_with_blocks_of_1k_and_64k() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::kernel_xfs() else { return };
    for (mkfs, block_bytes, size_bytes) in [
        ("-b size=1k -n size=8k -m rmapbt=1", 1024, 400 << 20),
        ("-b size=64k -s size=4k -m reflink=0", 65536, 1200 << 20),
    ] {
        let options = XfsOptions {
            size_bytes,
            ..XfsOptions::new(mkfs)
        };
        let what = Fill {
            block_bytes,
            reflink: !mkfs.contains("reflink=0"),
            ..Fill::small(2)
        };
        let volume = made(&options, &what);
        let kernels = by_kernel(&volume);
        let dir = mountpoint(&volume, "mnt");
        let _guard = Guard(&dir);
        run("mount -r {} {}", &[volume.image(), &dir]).ok();
        assert_same(&kernels, &look(&dir));
        unmount(&dir);
    }
}

#[test]
fn xfs_external_log_is_named_by_logdev() {
    let Some(()) = can_mount() else { return };
    let Some(()) = need::kernel_xfs() else { return };
    let options = XfsOptions {
        log_bytes: Some(64 << 20),
        ..XfsOptions::new("")
    };
    let volume = made(&options, &Fill::small(3));
    let kernels = by_kernel(&volume);
    let dir = mountpoint(&volume, "mnt");
    let _guard = Guard(&dir);
    run("mount -r {} {}", &[volume.image(), &dir]).fails(&["logdev="]);
    let log = volume.log().unwrap();
    let with = format!("mount -r -o logdev={} {{}} {{}}", log.display());
    run(&with, &[volume.image(), &dir]).ok();
    assert_same(&kernels, &look(&dir));
    unmount(&dir);
    // Without the log's device, as far as that can be trusted.
    run("ls -o norecovery {}", &[volume.image()]).ok();
    let records = run(
        &format!("inspect log --json --logdev {} {{}}", log.display()),
        &[volume.image()],
    );
    assert!(!records.ok().json().as_array().unwrap().is_empty());
}

#[test]
fn xfs_files_are_listed_printed_and_described() {
    let Some(volume) = volume() else { return };
    let image = volume.image();
    let listed = run("ls {} linked", &[image]).ok().text();
    assert_eq!(listed.lines().count(), 301);
    let all = run("ls -R --json {}", &[image]).ok().json();
    assert!(all.as_array().unwrap().len() > 10);
    assert_eq!(run("cat {} linked/first", &[image]).ok().out, vec![3; 300_000]);
    let stat = run("stat --json {} linked/first", &[image]).ok().json();
    let ino = stat[0]["inode"].as_u64().unwrap_or_else(|| panic!("{stat:#}"));
    let kernels = volume
        .with_mount_untouched(|root| {
            Ok(std::os::unix::fs::MetadataExt::ino(&fs::metadata(
                root.join("linked/first"),
            )?))
        })
        .unwrap();
    assert_eq!(ino, kernels);
    let text = run("stat {} short%20attributes", &[image]);
    assert_eq!(text.code, 2, "no such name");
    let map = run("fiemap --json -i {} pieces", &[image]).ok().json();
    let extents = map[0]["extents"].as_array().unwrap();
    assert_eq!(extents.len(), 2000, "as many as were made");
    let flags = |n: usize| extents[n]["flags"].to_string();
    assert!(flags(7).contains("unwritten") && !flags(6).contains("unwritten"));
    assert!(flags(6).contains("shared"), "{}", flags(6));
}

#[test]
fn what_is_not_for_xfs_says_so_by_name() {
    let Some(volume) = volume() else { return };
    let image = volume.image();
    run("check --check-data-csum {}", &[image]).fails(&["XFS", "no checksums of data"]);
    for view in ["tree", "chunk", "extent 0", "block 0"] {
        let line = format!("inspect {view} {{}}");
        run(&line, &[image]).fails(&["a volume of XFS", "is for btrfs alone"]);
    }
    run("ls -o subvol=a {}", &[image]).fails(&["\"subvol\" is one of btrfs"]);
    run("ls -o compress=zstd {}", &[image]).fails(&["\"compress\" is one of btrfs"]);
    run("ls -o rescue=ibadroots {}", &[image]).fails(&["rescue=ibadroots"]);
    let inside = format!("{}:/", image.display());
    run(&format!("send {inside}"), &[]).fails(&["a volume of XFS"]);
    run("ls {} {}", &[image, Path::new("/none")]).fails(&["none"]);
    let btrfs = Scratch::new();
    for view in [
        "agf {}",
        "agi {}",
        "agfl {}",
        "btree -t bno {}",
        "inode {} 5",
        "dir {} 5",
        "attr {} 5",
        "log {}",
    ] {
        run(&format!("inspect {view}"), &[&btrfs.image]).fails(&["a volume of btrfs", "is for XFS alone"]);
    }
    run("ls -o logdev=/dev/null {}", &[&btrfs.image]).fails(&["\"logdev\" is one of XFS"]);
    if can_mount().is_some() {
        let dir = mountpoint(&volume, "refused");
        run("mount -o ro,subvolid=5 {} {}", &[image, &dir]).fails(&["\"subvolid\" is one of btrfs"]);
        run("mount -o ro,rtdev=/dev/null {} {}", &[image, &dir]).fails(&["\"rtdev\" of xfs(5)"]);
    }
}

#[test]
fn library_opens_xfs_volumes_for_reading_alone() {
    let Some(volume) = volume() else { return };
    let refused = cowshed::Volume::open_image(volume.image(), &cowshed::OpenOptions::new()).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let options = cowshed::OpenOptions::new().read_only(true);
    let opened = cowshed::Volume::open_image(volume.image(), &options).unwrap();
    assert_eq!(opened.format(), "xfs");
    assert_eq!(opened.read("linked/first").unwrap(), vec![3; 300_000]);
    assert_eq!(opened.read_dir("linked").unwrap().count(), 301);
    assert_eq!(opened.get_xattr("short attributes", "user.a").unwrap().unwrap(), b"b");
    let refused = opened.write("new", b"x").unwrap_err();
    assert_eq!(refused.errno(), libc::EROFS);
    opened.close().unwrap();
    let subvolume = options.subvolume(cowshed::Subvolume::Path(b"a".to_vec()));
    let refused = cowshed::Volume::open_image(volume.image(), &subvolume).unwrap_err();
    assert!(refused.to_string().contains("a subvolume does not apply"), "{refused}");
}

#[test]
fn dirty_log_is_refused_unless_it_is_left_alone() {
    let Some(()) = need::kernel_xfs() else { return };
    let volume = XfsVolume::make(&XfsOptions::new("")).unwrap();
    let mounted = volume.mount_with("").unwrap();
    for n in 0..500 {
        fs::write(mounted.dir().join(format!("new {n}")), vec![1; 9000]).unwrap();
    }
    cowshed_harness::run("sync", &["-f".as_ref(), mounted.dir().as_os_str()]).unwrap();
    fs::write(mounted.dir().join("last"), b"x").unwrap();
    let dir = mounted.dir().display().to_string();
    cowshed_harness::run("xfs_io", &["-x", "-c", "shutdown -f", &dir]).unwrap();
    mounted.unmount().unwrap();
    let kernels = volume
        .with_mount_untouched(|root| Ok(rustix::fs::statvfs(root)?))
        .unwrap();
    let options = cowshed::OpenOptions::new().read_only(true).rescue(cowshed::Rescue {
        no_log_replay: true,
        ..cowshed::Rescue::default()
    });
    let ours = cowshed::Volume::open_image(volume.image(), &options)
        .unwrap()
        .stat()
        .unwrap();
    assert_eq!(
        (ours.blocks_free, ours.files, ours.files_free),
        (kernels.f_bfree, kernels.f_files, kernels.f_ffree)
    );
    let before = fs::read(volume.image()).unwrap();
    let listed = run("ls {}", &[volume.image()]).ok().text();
    assert!(listed.contains("last") && listed.contains("new 499"), "{listed}");
    assert!(
        fs::read(volume.image()).unwrap() == before,
        "the log was recovered on the device"
    );
    let listed = run("ls -o norecovery {}", &[volume.image()]).ok();
    assert!(listed.err.contains("not replayed"), "{}", listed.err);
    run("ls -o rescue=norecovery {}", &[volume.image()]).ok();
    run("ls -o rescue=all {}", &[volume.image()]).ok();
}

#[test]
fn xfs_structures_are_shown_as_text_and_json() {
    let Some(volume) = volume() else { return };
    let image = volume.image();
    let json = |line: &str| run(&format!("inspect {line} --json"), &[image]).ok().json();
    let super_block = json("super {}");
    assert_eq!(super_block[0]["fields"]["magicnum"], 0x5846_5342);
    let groups = super_block[0]["fields"]["agcount"].as_u64().unwrap() as usize;
    assert_eq!(json("super -a {}").as_array().unwrap().len(), groups);
    for header in ["agf", "agi", "agfl"] {
        let all = json(&format!("{header} {{}}"));
        assert_eq!(all.as_array().unwrap().len(), groups, "{header}");
        assert_eq!(json(&format!("{header} -g 1 {{}}"))[0]["group"], 1);
    }
    for tree in ["bno", "cnt", "ino", "fino", "refc"] {
        let blocks = json(&format!("btree -g 0 -t {tree} {{}}"));
        assert!(!blocks.as_array().unwrap().is_empty(), "{tree}");
    }
    run("inspect btree -t rmap {}", &[image]).fails(&["rmapbt"]);
    run("inspect agf -g 99 {}", &[image]).fails(&["no group 99"]);
    let pieces = json("btree -i /pieces {}");
    let records: usize = pieces
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|block| block["fields"]["recs"].as_array().map(Vec::len))
        .sum();
    assert_eq!(records, 2000);
    let inode = json("inode {} /linked/first");
    assert_eq!(inode[0]["fields"]["nlink"], 301);
    let number = inode[0]["number"].to_string();
    assert_eq!(json(&format!("inode {{}} {number}")), inode);
    let names = |path: &str| {
        let blocks = run("inspect dir {} {} --json", &[image, Path::new(path)]).ok().json();
        let kinds: Vec<String> = blocks
            .as_array()
            .unwrap()
            .iter()
            .map(|block| block["structure"].as_str().unwrap().to_owned())
            .collect();
        kinds
    };
    assert_eq!(names("/short form"), ["short form"]);
    assert_eq!(names("/block form"), ["block form"]);
    assert!(names("/leaf form").contains(&"leaf".to_owned()));
    let node = names("/node form");
    for kind in ["data", "node", "leaf of several", "free index"] {
        assert!(node.iter().any(|found| found == kind), "{kind} in {node:?}");
    }
    let attrs = |path: &str| run("inspect attr {} {}", &[image, Path::new(path)]).ok().text();
    assert!(attrs("/short attributes").contains("[short form"));
    assert!(attrs("/leaf of attributes").contains("user") || attrs("/leaf of attributes").contains("attribute_7"));
    assert!(attrs("/nodes of attributes").contains("[node, block 0"));
    assert!(attrs("/remote values").contains("[remote value"));
    let log = json("log {}");
    let last = log.as_array().unwrap().last().unwrap();
    assert_eq!(last["structure"], "record");
    assert!(run("inspect log -o {}", &[image]).ok().text().contains("operations"));
    run("inspect inode {} 5", &[image]).code(1);
    run("inspect dir {} /linked/first", &[image]).fails(&["no directory"]);
}

#[test]
fn check_recognises_xfs_and_tells_by_its_exit_code() {
    let Some(volume) = volume() else { return };
    let image = volume.image();
    let ran = run("check {}", &[image]).ok();
    assert!(
        ran.text().contains("no error found") && ran.text().contains("inodes"),
        "{}",
        ran.text()
    );
    assert_eq!(run("check --quiet {}", &[image]).ok().text(), "");
    // A counter of the superblock; xfs_db sets the checksum right.
    let args = ["-x", "-c", "sb 0", "-c", "write -d fdblocks 5"].map(std::ffi::OsStr::new);
    cowshed_harness::run("xfs_db", &[&args[..], &[image.as_os_str()]].concat()).unwrap();
    let ran = run("check {}", &[image]);
    assert_eq!(ran.code, 1, "{}", ran.text());
    assert!(
        ran.text()
            .contains("error: super-counters: group 0: fdblocks is 5, expected "),
        "{}",
        ran.text()
    );
    let json = run("check --json {}", &[image]);
    let json: serde_json::Value = serde_json::from_str(&json.text()).unwrap();
    assert_eq!(json["clean"], false);
    assert_eq!(json["findings"][0]["id"], "super-counters");
    assert_eq!(json["counts"]["super-counters"], 1);
    // No superblock, and nothing to check.
    fs::OpenOptions::new()
        .write(true)
        .open(image)
        .unwrap()
        .set_len(1000)
        .unwrap();
    assert_eq!(run("check {}", &[image]).code, 2);
}

#[test]
fn check_of_a_dirty_log_judges_the_state_after_it() {
    let Some(()) = need::kernel_xfs() else { return };
    let volume = XfsVolume::make(&XfsOptions::new("")).unwrap();
    let mounted = volume.mount_with("").unwrap();
    for n in 0..500 {
        fs::write(mounted.dir().join(format!("file {n}")), [1; 5000]).unwrap();
    }
    let dir = mounted.dir().to_path_buf();
    cowshed_harness::run(
        "xfs_io",
        &["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), dir.as_os_str()],
    )
    .unwrap();
    mounted.unmount().unwrap();
    let image = volume.image();
    let before = fs::read(image).unwrap();
    let ran = run("check {}", &[image]).ok();
    assert!(
        ran.text().contains("note: log-dirty") && ran.text().contains("the state after it"),
        "{}",
        ran.text()
    );
    assert!(ran.text().contains("total entries: 500\n"), "{}", ran.text());
    let raw = run("check --no-replay {}", &[image]).ok();
    assert!(raw.text().contains("checked without it"), "{}", raw.text());
    assert!(raw.text().contains("total entries: 0\n"), "{}", raw.text());
    assert!(fs::read(image).unwrap() == before, "nothing is written");
}

/// Opens a volume and looks at it; what was read meanwhile. Times are the business of `cargo xtask
/// bench xfs`: reads are what they come from, and do not depend on what else the machine does.
fn reads_of(image: &Path, look: impl FnOnce(&cowshed::Volume)) -> ReadCounts {
    let file = FileDevice::open(image, OpenMode::ReadOnly).unwrap();
    let device = Arc::new(CountingDevice::new(Arc::new(file)));
    let options = cowshed::OpenOptions::new().read_only(true);
    let volume = cowshed::Volume::open([device.clone() as Arc<dyn BlockDevice>], &options);
    look(&volume.unwrap_or_else(|e| panic!("{e}")));
    device.take()
}

#[test]
fn sparse_volume_of_100_tib_opens_with_few_reads() {
    let Some(()) = need::tool("mkfs.xfs") else { return };
    let volume = XfsVolume::make(&XfsOptions {
        size_bytes: 100 << 40,
        ..XfsOptions::new("-l size=64m")
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
    let found = reads_of(volume.image(), |opened| {
        let stat = opened.stat().unwrap();
        assert!(stat.blocks * u64::from(stat.frsize) > 99 << 40, "{}", stat.blocks);
    });
    // Two sectors of each of 100 groups for statfs, and a search by halves for the log's head.
    assert!((100..400).contains(&found.reads), "{found:?}");
    assert!(found.bytes < 8 << 20, "{found:?}");
}

#[test]
fn log_of_30000_new_files_is_recovered_with_reads_of_its_size() {
    let Some(()) = need::kernel_xfs() else { return };
    let volume = XfsVolume::make(&XfsOptions {
        size_bytes: 2 << 30,
        ..XfsOptions::new("-l size=64m")
    })
    .unwrap_or_else(|e| panic!("{e:#}"));
    let mounted = volume.mount_with("").unwrap_or_else(|e| panic!("{e:#}"));
    let dir = mounted.dir().to_path_buf();
    // 9 MiB of log, for builds of every kind; `cargo xtask bench xfs` has a full one.
    std::thread::scope(|scope| {
        for part in 0..2 {
            let dir = dir.join(format!("part {part}"));
            scope.spawn(move || {
                fs::create_dir(&dir).unwrap();
                for n in 0..15_000 {
                    fs::File::create_new(dir.join(format!("file {n}"))).unwrap();
                }
            });
        }
    });
    cowshed_harness::run(
        "xfs_io",
        &["-x".as_ref(), "-c".as_ref(), "shutdown -f".as_ref(), dir.as_os_str()],
    )
    .unwrap_or_else(|e| panic!("{e:#}"));
    mounted.unmount().unwrap();
    let found = reads_of(volume.image(), |opened| {
        let names = opened.read_dir("part 1").unwrap().count();
        assert_eq!(names, 15_000);
    });
    // An inode item reads its inode at most once, and a changed page once, where 30,000 inodes have
    // 16 MB; each record of the log is read a few times.
    assert!((10_000..50_000).contains(&found.reads), "{found:?}");
    assert!(found.bytes < 100 << 20, "{found:?}");
}

#[test]
fn copies_stand_in_for_a_damaged_superblock_where_that_is_asked_for() {
    let Some(volume) = volume() else { return };
    let image = volume.image();
    let free = |options: &cowshed::OpenOptions| {
        let opened = cowshed::Volume::open_image(image, options).unwrap();
        let stat = opened.stat().unwrap();
        (stat.blocks, stat.blocks_free, stat.files, stat.files_free)
    };
    let options = cowshed::OpenOptions::new().read_only(true);
    let expected = free(&options);
    let by_copy = options.rescue(cowshed::Rescue {
        use_superblock_copy: true,
        ..cowshed::Rescue::default()
    });
    assert_eq!(free(&by_copy), expected, "the first one is intact");
    let by_kernel = by_kernel(&volume);
    let file = fs::File::options().write(true).open(image).unwrap();
    // A counter, which the checksum covers; then all of it.
    file.write_all_at(&[0xaa; 8], 136).unwrap();
    run("ls {}", &[image]).fails(&["bad checksum", "the copy of group", "rescue=usebackupsuper"]);
    assert_eq!(free(&by_copy), expected);
    run("ls -o rescue=all {}", &[image]).ok();
    file.write_all_at(&[0; 512], 0).unwrap();
    run("ls {}", &[image]).code(2);
    assert_eq!(free(&by_copy), expected);
    let before = fs::read(image).unwrap();
    let listed = run("ls -o rescue=usebackupsuper {}", &[image]).ok().text();
    assert!(listed.contains("linked"), "{listed}");
    run("inspect super {}", &[image]).code(1);
    if can_mount().is_some() {
        let dir = mountpoint(&volume, "mnt");
        let _guard = Guard(&dir);
        let ran = run("mount -o rescue=usebackupsuper {} {}", &[image, &dir]).ok();
        assert!(ran.err.contains("mounted read-only"), "{}", ran.err);
        assert_same(&by_kernel, &look(&dir));
        unmount(&dir);
    }
    assert!(fs::read(image).unwrap() == before, "nothing is written");
}

#[test]
fn dirty_log_is_recovered_by_a_copy_of_the_superblock() {
    let Some(()) = need::kernel_xfs() else { return };
    let volume = XfsVolume::make(&XfsOptions::new("")).unwrap();
    let mounted = volume.mount_with("").unwrap();
    for n in 0..500 {
        fs::write(mounted.dir().join(format!("new {n}")), vec![1; 9000]).unwrap();
    }
    // Data is on disk, and so are the records of the log; the metadata is in the log alone.
    cowshed_harness::run("sync", &["-f".as_ref(), mounted.dir().as_os_str()]).unwrap();
    let dir = mounted.dir().display().to_string();
    cowshed_harness::run("xfs_io", &["-x", "-c", "shutdown -f", &dir]).unwrap();
    mounted.unmount().unwrap();
    let found = |by_copy: bool| {
        let options = cowshed::OpenOptions::new().read_only(true).rescue(cowshed::Rescue {
            use_superblock_copy: by_copy,
            ..cowshed::Rescue::default()
        });
        let opened = cowshed::Volume::open_image(volume.image(), &options).unwrap_or_else(|e| panic!("{e}"));
        let contents = opened.read("new 499").unwrap();
        let stat = opened.stat().unwrap();
        (
            opened.read_dir("").unwrap().count(),
            contents,
            stat.blocks_free,
            stat.files_free,
        )
    };
    let expected = found(false);
    assert_eq!((expected.0, &expected.1), (500, &vec![1; 9000]));
    let file = fs::File::options().write(true).open(volume.image()).unwrap();
    for bytes in [&[0xaa; 8][..], &[0; 512]] {
        let at = if bytes.len() == 8 { 136 } else { 0 };
        file.write_all_at(bytes, at).unwrap();
        run("ls {}", &[volume.image()]).code(2);
        assert!(found(true) == expected, "{at}");
    }
}
