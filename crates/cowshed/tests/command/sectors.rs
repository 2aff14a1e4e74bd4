//! Volumes with sectors of more than 4 KiB, as machines with larger pages make them: read, and not
//! written.

use std::fs;
use std::path::{Path, PathBuf};

use cowshed_harness::tree::{Compare, Tree, snapshot};
use cowshed_harness::{KernelVolume, VolumeOptions, need, shell};

use crate::mount::{Guard, unmount};
use crate::support::{Scratch, run};

/// What Linux with pages of 16 KiB left, and what it showed: tests/data/sectors-16k.sh.
struct Kept {
    dir: tempfile::TempDir,
}

impl Kept {
    fn unpack() -> Option<Self> {
        need::tool("xz")?;
        let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/sectors-16k.tar.xz");
        let dir = cowshed_harness::scratch_dir().unwrap();
        let args = ["-xJf".into(), archive.into_os_string(), "-C".into(), dir.path().into()];
        cowshed_harness::run("tar", &args).unwrap();
        Some(Self { dir })
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("volume.img")
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap()
    }
}

#[track_caller]
fn assert_same(wanted: &Tree, found: &Tree, what: &str) {
    let differences = wanted.diff(found, &Compare::copy());
    assert!(differences.is_empty(), "{what}: {differences}");
}

#[test]
fn volume_with_sectors_of_16_kib_is_as_linux_showed_it() {
    let Some(kept) = Kept::unpack() else { return };
    let Some(()) = need::fuse() else { return };
    run("check --check-data-csum {}", &[&kept.image()]).ok();
    let scratch = Scratch::new();
    let mnt = scratch.mountpoint();
    run("mount -o ro {} {}", &[&kept.image(), &mnt]).ok();
    let _guard = Guard(&mnt);
    let found = |line: &str| shell(&mnt, line).unwrap();
    // What waits in the log is there, too.
    let names = found("find . -mindepth 1 -printf '%P %y %s %b %n %m\\n' | LC_ALL=C sort");
    assert_eq!(names, kept.text("names.txt"));
    let sums = found("find . -type f | LC_ALL=C sort | xargs sha256sum");
    assert_eq!(sums, kept.text("sums.txt"));
    assert_eq!(found("getfattr --only-values -n user.note s/lzo/small"), "sixteen");
    assert_eq!(found("stat -c %o s/link; stat -f -c %S ."), "16384\n16384\n");
    unmount(&mnt);

    let content = || shell(kept.dir.path(), "sha256sum volume.img").unwrap();
    let before = content();
    run("mount {} {}", &[&kept.image(), &mnt]).fails_with(2, &["sector size 16384", "open read-only"]);
    let file = PathBuf::from(format!("{}:/new", kept.image().display()));
    run("touch {}", &[&file]).fails_with(1, &["sector size 16384"]);
    assert_eq!(content(), before);
}

/// Full and incremental, with the data as it lies (LZO's frame depends on the sector) and without:
/// onto a volume with sectors of 4 KiB.
#[test]
fn subvolumes_of_volumes_with_sectors_of_16_kib_are_sent() {
    let Some(kept) = Kept::unpack() else { return };
    if need::kernel_btrfs().is_none() || need::fuse().is_none() {
        return;
    }
    let scratch = Scratch::new();
    let mnt = scratch.mountpoint();
    run("mount -o ro,rescue=nologreplay {} {}", &[&kept.image(), &mnt]).ok();
    let _guard = Guard(&mnt);
    let wanted = ["before", "after"].map(|name| snapshot(&mnt.join(name)).unwrap());
    for how in ["--proto 2 --compressed-data", "--proto 2", "--proto 1"] {
        let streams = ["1", "2"].map(|n| kept.dir.path().join(n));
        run(
            &format!("send -q {how} -f {{}} {{}}"),
            &[&streams[0], &mnt.join("before")],
        )
        .ok();
        run(
            &format!("send -q {how} -f {{}} -p {{}} {{}}"),
            &[&streams[1], &mnt.join("before"), &mnt.join("after")],
        )
        .ok();
        let taking = KernelVolume::make(&VolumeOptions::default()).unwrap();
        let found = taking.with_mount(|root| {
            for stream in &streams {
                let args = [
                    "receive".into(),
                    "-q".into(),
                    "-f".into(),
                    stream.into(),
                    root.as_os_str().to_owned(),
                ];
                cowshed_harness::run("btrfs", &args)?;
            }
            Ok([snapshot(&root.join("before"))?, snapshot(&root.join("after"))?])
        });
        let found = found.unwrap();
        found
            .iter()
            .zip(&wanted)
            .for_each(|(found, wanted)| assert_same(wanted, found, how));
        taking.assert_clean();
        // And by our own hands.
        let ours = Scratch::filled();
        let inside = |name: &str| PathBuf::from(format!("{}:/{name}", ours.image.display()));
        for stream in &streams {
            run("receive -q -f {} {}", &[stream, &inside("")]).ok();
        }
        let out = ours.mountpoint();
        run("mount -o ro {} {}", &[&ours.image, &out]).ok();
        let _guard = Guard(&out);
        for (name, wanted) in ["before", "after"].iter().zip(&wanted) {
            assert_same(wanted, &snapshot(&out.join(name)).unwrap(), how);
        }
        unmount(&out);
    }
    unmount(&mnt);
}

/// mkfs.btrfs makes them on every machine, filled.
#[test]
fn volumes_of_all_sector_sizes_are_read() {
    let Some(()) = need::tool("mkfs.btrfs") else { return };
    let scratch = Scratch::new();
    let source = scratch.path("source");
    fs::create_dir_all(source.join("d")).unwrap();
    let text: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let lens = [0, 1, 3_000, 4_096, 20_000, 70_000, text.len()];
    for len in lens {
        fs::write(source.join(format!("d/{len}")), &text[..len]).unwrap();
    }
    for kib in [8, 16, 32, 64] {
        let options = VolumeOptions {
            sector_bytes: Some(kib << 10),
            node_bytes: Some((kib << 10).max(16 << 10)),
            root_dir: Some(source.clone()),
            ..VolumeOptions::default()
        };
        let volume = KernelVolume::make(&options).unwrap();
        run("check --check-data-csum {}", &[volume.image()]).ok();
        let out = scratch.path(&format!("out{kib}"));
        let from = PathBuf::from(format!("{}:/", volume.image().display()));
        run("extract {} {}", &[&from, &out]).ok();
        for len in lens {
            let found = fs::read(out.join(format!("d/{len}"))).unwrap();
            assert!(found == text[..len], "{len} bytes in sectors of {kib} KiB");
        }
    }
}
