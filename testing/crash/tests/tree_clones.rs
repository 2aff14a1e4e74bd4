//! The power fails while a tree is cloned, with commits and fsyncs between the steps: what is left
//! is a sound volume, its source is as it was, and each file of the copy has its whole content.

use std::sync::Arc;

use cowshed_btrfs::fs::MountOptions;
use cowshed_crash::rig::{self, Fs, Layout, Player, ROOT};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_device_sim::Log;
use cowshed_device_sim::crash::{CrashImages, Options};
use cowshed_model::script::{self, Op};
use cowshed_vfs::{FileKind, FileSystem, Handle, Lookup, NodeId, TreeCloneStep, Volume};

const DIRS: u64 = 3;
const FILES: u64 = 150;

/// Inline, one extent, several blocks; and one that takes more extents than a batch.
fn size_of(file: u64) -> usize {
    [300, 5000, 20_000][file as usize % 3]
}

fn find(fs: &Fs, path: &str) -> Option<(NodeId, FileKind, u64)> {
    let mut at = (NodeId::ROOT, FileKind::Directory, 0);
    for name in path.split('/') {
        match fs.lookup(&ROOT, at.0, name.as_bytes()).expect("a lookup") {
            Lookup::Found(entry) => at = (entry.node, entry.attr.kind, entry.attr.size_bytes),
            Lookup::Absent { .. } => return None,
        }
    }
    Some(at)
}

fn read(fs: &Fs, path: &str) -> Option<Vec<u8>> {
    let (node, kind, size) = find(fs, path)?;
    assert_eq!(kind, FileKind::Regular, "{path}");
    let mut content = vec![0; size as usize];
    let mut done = 0;
    while done < content.len() {
        let got = fs.read(&ROOT, node, Handle::NONE, done as u64, &mut content[done..]);
        let got = got.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(got > 0, "{path} ends early");
        done += got;
    }
    Some(content)
}

fn paths() -> impl Iterator<Item = (String, u64)> {
    let all = (0..DIRS).flat_map(|dir| (0..FILES).map(move |file| (format!("d{dir}/f{file}"), dir * FILES + file)));
    all.chain([("d0/again".to_owned(), 1)])
}

fn many() -> Vec<u8> {
    let mut content = vec![0; 600 * 8192];
    for n in 0..600 {
        content[n * 8192..][..4096].copy_from_slice(&script::bytes(n as u64, 4096));
    }
    content
}

fn fill(fs: &Fs) {
    fs.mkdir(&ROOT, NodeId::ROOT, b"src", 0o755).expect("a directory");
    let top = find(fs, "src").expect("it is there").0;
    for dir in 0..DIRS {
        fs.mkdir(&ROOT, top, format!("d{dir}").as_bytes(), 0o755)
            .expect("a directory");
    }
    for (path, n) in paths().filter(|(path, _)| !path.ends_with("again")) {
        let op = Op::write(format!("src/{path}"), 0, size_of(n), n);
        Player::new(fs).apply(&op).expect("a write");
    }
    let first = find(fs, "src/d0/f1").expect("it is there").0;
    fs.link(&ROOT, first, find(fs, "src/d0").expect("it is there").0, b"again")
        .expect("a link");
    for n in 0..600 {
        let op = Op::write("src/many", n * 8192, 4096, n);
        Player::new(fs).apply(&op).expect("a write");
    }
    fs.sync().expect("a sync");
}

/// How many files of a copy are there, each of them whole.
fn whole_files(fs: &Fs, top: &str, name: &str) -> u64 {
    let mut there = 0;
    for (path, n) in paths() {
        if let Some(content) = read(fs, &format!("{top}/{path}")) {
            assert!(
                content == script::bytes(n, size_of(n)),
                "{name}: {top}/{path} has {} bytes",
                content.len()
            );
            there += 1;
        }
    }
    if let Some(content) = read(fs, &format!("{top}/many")) {
        let end = content.len();
        assert!(
            content == many()[..end] && end > 599 * 8192,
            "{name}: {top}/many has {end} bytes"
        );
        there += 1;
    }
    there
}

#[test]
fn power_fails_while_a_tree_is_cloned() {
    for (seed, tree_log) in [(1, true), (2, false)] {
        let devices = rig::make_as(Layout::Single, 4096, rig::uuid_of(seed)).expect("mkfs");
        let fs = rig::mount(rig::shared(&devices)).expect("mounts");
        fill(&fs);
        fs.destroy();
        drop(fs);
        let bases: Vec<MemDevice> = devices.iter().map(|device| device.snapshot()).collect();
        let log = Log::new();
        let recorded = rig::shared(&devices).into_iter();
        let recorded = recorded.map(|device| Arc::new(log.record(device)) as Arc<dyn BlockDevice>);
        let fs = rig::mount_with(recorded.collect(), tree_log).expect("mounts");
        fs.mount().background().stop();
        let src = find(&fs, "src").expect("it is there").0;
        let mut walk = fs
            .volume()
            .clone()
            .clone_tree(&ROOT, src, NodeId::ROOT, b"dst")
            .expect("begins");
        for step in 0.. {
            match walk.step(&ROOT).expect("a step") {
                TreeCloneStep::Done => break,
                TreeCloneStep::More if step % 3 == 2 => fs.sync().expect("a sync"),
                TreeCloneStep::More => {
                    // A file of those that were made just now goes into a log.
                    for path in ["dst/d0/f2", "dst/d1/f100", "dst/d2/f149", "dst/d0/again", "dst/many"] {
                        if let Some((node, ..)) = find(&fs, path) {
                            fs.fsync(&ROOT, node, Handle::NONE, false).expect("an fsync");
                        }
                    }
                }
                TreeCloneStep::Without(entry) => panic!("{entry:?}"),
            }
        }
        drop(walk);
        fs.sync().expect("a sync");
        let events = log.take();
        rig::abandon(fs);
        let options = Options {
            seed,
            exhaustive_images_max: 4,
            prefix_images_max: 4,
            sampled_images: 2,
            torn_images: 1,
            tear_bytes: 4096,
        };
        let all = DIRS * FILES + 2;
        let (mut none, mut half, mut whole) = (0, 0, 0);
        for image in CrashImages::new(&bases, &events, options) {
            let name = format!("seed {seed}, {image}");
            let devices: rig::Devices = image.devices.into_iter().map(Arc::new).collect();
            rig::check_clean(&rig::shared(&devices)).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            let fs = rig::mount_as(rig::shared(&devices), true, MountOptions::default()).expect("mounts");
            assert_eq!(whole_files(&fs, "src", &name), all, "{name}");
            match whole_files(&fs, "dst", &name) {
                0 => none += 1,
                there if there == all => whole += 1,
                _ => half += 1,
            }
            fs.destroy();
            drop(fs);
            rig::check_clean(&rig::shared(&devices)).unwrap_or_else(|error| panic!("{name}, mounted: {error:#}"));
        }
        println!("seed {seed}: {none} images without files, {half} with some, {whole} with all");
        assert!(none > 0 && half > 5 && whole > 0, "{none}, {half}, {whole}");
    }
}
