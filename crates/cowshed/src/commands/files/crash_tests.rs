//! The power fails at each write of one command, or a device at one: the image is as before the
//! command, or as after.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use btrfs_check::{CheckOptions, Finding, FindingId, Severity};
use btrfs_image::{MkfsOptions, mkfs};
use clap::Parser;
use cowshed::{OpenOptions, Volume};
use cowshed_device::{BlockDevice, MemDevice, OpenMode};
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_device_sim::{Fault, FaultPlan, FaultyDevice, Log, On, Rng};

use super::rm::{Removal, remove_tree};
use super::session::{Base, Session};
use super::{FileCommand, run_in};

const DISK: &str = "no-such-file.img";

#[derive(Parser)]
#[command(multicall = true)]
struct Line {
    #[command(subcommand)]
    command: FileCommand,
}

/// What is known of each file: mode, owner, links and contents or target.
type State = BTreeMap<PathBuf, (u32, u32, u32, Vec<u8>)>;

fn state(device: &MemDevice) -> State {
    let device: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let volume = Volume::open([device], &OpenOptions::new()).unwrap();
    let mut found = State::new();
    let mut todo = vec![PathBuf::from("/")];
    while let Some(path) = todo.pop() {
        let known = volume.symlink_metadata(&path).unwrap();
        let contents = match (known.is_file(), known.is_symlink()) {
            (true, _) => volume.read(&path).unwrap(),
            (_, true) => volume.read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
            _ => Vec::new(),
        };
        if known.is_dir() {
            let entries = volume.read_dir(&path).unwrap();
            todo.extend(entries.map(|entry| path.join(entry.unwrap().name())));
        }
        found.insert(path, (known.mode(), known.uid(), known.nlink(), contents));
    }
    found
}

fn filled() -> MemDevice {
    let device = MemDevice::new("disk", 128 << 20);
    let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let mut options = MkfsOptions::new([7; 16]);
    options.discard = false;
    mkfs(std::slice::from_ref(&shared), &options).unwrap();
    let volume = Volume::open([shared.clone()], &OpenOptions::new()).unwrap();
    let mut data = vec![0; 300_000];
    Rng::new(1).fill(&mut data);
    volume.create_dir_all("dir/sub").unwrap();
    for n in 0..30 {
        volume.write(format!("dir/file-{n}"), &data[..n * 10_000]).unwrap();
        volume.write(format!("dir/sub/small-{n}"), "small").unwrap();
    }
    volume.hard_link("dir/file-3", "dir/sub/linked").unwrap();
    volume.symlink("file-1", "dir/link").unwrap();
    volume.close().unwrap();
    device.restore(&MemDevice::copy_of("disk", &*shared).unwrap());
    device
}

fn crashes_of(line: &str, base: &MemDevice, source: &Path) -> usize {
    let log = Log::new();
    let disk: Arc<dyn BlockDevice> = Arc::new(log.record(Arc::new(base.snapshot())));
    let words = line.split_whitespace().map(|word| {
        word.replace("I:", &format!("{DISK}:"))
            .replace("SRC", source.to_str().unwrap())
    });
    let line_of = Line::try_parse_from(words).unwrap();
    let host = Base::Host;
    let session = Session::new(line_of.command.name(), &host).with_disk(DISK, disk.clone());
    assert_eq!(run_in(&line_of.command, session).unwrap(), 0, "{line}");
    let (before, after) = (state(base), state(&MemDevice::copy_of("after", &*disk).unwrap()));
    assert_ne!(before, after, "{line}");
    let events = log.take();
    let options = Options {
        exhaustive_images_max: 32,
        prefix_images_max: 24,
        sampled_images: 12,
        torn_images: 6,
        ..Options::default()
    };
    let (mut olds, mut news) = (0, 0);
    for image in CrashImages::new(std::slice::from_ref(base), &events, options) {
        let found = state(&image.devices[0]);
        match (found == before, found == after) {
            (true, _) => olds += 1,
            (_, true) => news += 1,
            _ => panic!("{line}: {image}: neither before nor after"),
        }
        let devices: Vec<Arc<dyn BlockDevice>> = vec![Arc::new(image.devices[0].snapshot())];
        let report = btrfs_check::check(&devices, &CheckOptions::default());
        // A crash may tear a copy of the superblock.
        let may_be = |f: &Finding| f.severity == Severity::Note || f.id == FindingId::SuperMirror;
        assert!(report.findings.iter().all(may_be), "{line}: {image}: {report}");
    }
    assert!(olds > 0 && news > 0, "{line}: {olds} as before, {news} as after");
    olds + news
}

#[test]
fn crash_at_any_write_of_a_command_leaves_all_of_it_or_nothing() {
    let base = filled();
    let source = tempfile::tempdir().unwrap();
    for n in 0..10 {
        std::fs::write(
            source.path().join(format!("host-{n}")),
            vec![n; 40_000 * usize::from(n)],
        )
        .unwrap();
    }
    let mut images = 0;
    for line in [
        "cp -a SRC I:/copied",
        "cp -a I:/dir I:/again",
        "rm -r I:/dir",
        "mv I:/dir/sub I:/moved",
        "chmod -R 700 I:/",
        "truncate -s 5000 I:/dir/file-9 I:/dir/file-20 I:/dir/sub/linked",
    ] {
        images += crashes_of(line, &base, source.path());
    }
    assert!(images > 200, "{images} images");
}

fn parsed(line: &str) -> FileCommand {
    Line::try_parse_from(line.split_whitespace()).unwrap().command
}

/// One of two images fails at its commit. What is moved is in one of them at least.
#[test]
fn move_between_images_whose_commits_fail_loses_nothing() {
    let (from, to) = (filled(), filled());
    let moved = Path::new("/dir/file-3");
    let all = state(&from)[moved].3.clone();
    for broken in ["from.img", "to.img"] {
        let (source, target) = (Arc::new(from.snapshot()), Arc::new(to.snapshot()));
        let plan = FaultPlan::new();
        let faulty = |name: &str, disk: &Arc<MemDevice>| -> Arc<dyn BlockDevice> {
            match name == broken {
                true => Arc::new(FaultyDevice::new(disk.clone(), plan.clone())),
                false => disk.clone(),
            }
        };
        let host = Base::Host;
        let session = Session::new("mv", &host)
            .with_disk("from.img", faulty("from.img", &source))
            .with_disk("to.img", faulty("to.img", &target));
        plan.add(Fault::error(On::Write, 1).forever());
        let code = run_in(&parsed("mv from.img:/dir/file-3 to.img:/new"), session).unwrap();
        assert_eq!(code, 1, "{broken}");
        let (left, came) = (state(&source), state(&target));
        let came = came.get(Path::new("/new")).map(|file| file.3.clone());
        assert_eq!(left[moved].3, all, "{broken}: the original stays");
        let expected = (broken == "from.img").then_some(all.clone());
        assert_eq!(came, expected, "{broken}");
    }
}

#[test]
fn command_that_panics_changes_nothing() {
    let device = Arc::new(filled());
    let before = state(&device);
    let host = Base::Host;
    let session = Session::new("rm", &host).with_disk(DISK, device.clone());
    let (_, place) = session
        .in_image(Path::new("no-such-file.img:/dir/sub"), OpenMode::ReadWrite)
        .unwrap();
    assert!(remove_tree(&session, &place, Removal::default()));
    drop(place);
    drop(session);
    assert_eq!(state(&device), before);
}
