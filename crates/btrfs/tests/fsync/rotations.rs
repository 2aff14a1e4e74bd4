//! Few names and many inodes for them: files and directories that take names from each other, one
//! of them synced, cut off, replayed. No file is lost, no name is missing that was there all the
//! time, nothing has a name that it never had.
//!
//! In memory, replayed by ourselves; now and then by the kernel as well. `COWSHED_ROTATION_SEED`
//! runs one seed, `COWSHED_ROTATION_SEEDS` more of them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use btrfs_check::{CheckOptions, check};
use btrfs_image::{MkfsOptions, mkfs};
use btrfs_store::volume::{OpenOptions, Volume};
use cowshed_btrfs::fs::{Fs, MountOptions};
use cowshed_btrfs::{EngineOptions, Mount};
use cowshed_device::{BlockDevice, MemDevice};
use cowshed_runtime::SystemEnv;
use cowshed_vfs::{
    DirEntry, FileKind, FileSystem, Handle, InitInfo, Lookup, NodeId, OpenFlags, OpenRequest, RenameFlags, WriteFlags,
};

use crate::dice::{Dice, for_each_seed};
use crate::rig::{ROOT, kernel_can};
use crate::seen::after_crash;

const SEEDS_IN_CI: u64 = 60;
const OPS: usize = 60;
/// Of the cuts, one in so many is shown to the kernel.
const KERNEL_STEP: u64 = 20;
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const DIRS_MAX: usize = 4;

/// (directory, name) to what it leads to.
type Names = BTreeMap<(u64, String), Leads>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leads {
    ino: u64,
    is_dir: bool,
}

pub fn mount(device: Arc<dyn BlockDevice>) -> Fs {
    let opened = Volume::open(vec![device], &OpenOptions::default()).expect("the volume opens");
    let options = EngineOptions {
        commit_interval_s: 0,
        tree_log: true,
        ..EngineOptions::default()
    };
    let engine = Mount::open(opened, Arc::new(SystemEnv), options).expect("the log is replayed");
    let fs = Fs::new(engine, MountOptions::default()).expect("mounts");
    fs.init(&InitInfo::TRUSTED).expect("init");
    fs
}

/// Everything that has a name, and the nodes of the directories.
fn look(fs: &Fs) -> (Names, Vec<(u64, NodeId)>) {
    let root = fs.getattr(&ROOT, NodeId::ROOT, None).unwrap().ino;
    let (mut names, mut dirs) = (Names::new(), vec![(root, NodeId::ROOT)]);
    let mut at = 0;
    while at < dirs.len() {
        let (dir, node) = dirs[at];
        at += 1;
        let mut found = Vec::new();
        let mut sink = |entry: DirEntry<'_>| {
            found.push(String::from_utf8(entry.name.to_vec()).unwrap());
            ControlFlow::Continue(())
        };
        fs.readdir(&ROOT, node, Handle::NONE, 0, &mut sink).unwrap();
        for name in found.into_iter().filter(|name| name != "." && name != "..") {
            let Lookup::Found(entry) = fs.lookup(&ROOT, node, name.as_bytes()).unwrap() else {
                panic!("{name} is listed and not there");
            };
            let is_dir = entry.attr.kind == FileKind::Directory;
            if is_dir {
                dirs.push((entry.attr.ino, entry.node));
            }
            names.insert(
                (dir, name),
                Leads {
                    ino: entry.attr.ino,
                    is_dir,
                },
            );
        }
    }
    (names, dirs)
}

fn inos(names: &Names) -> BTreeSet<u64> {
    names.values().map(|leads| leads.ino).collect()
}

struct World {
    device: Arc<MemDevice>,
    fs: Fs,
    dice: Dice,
    now: Names,
    dirs: Vec<(u64, NodeId)>,
    /// Alive at the last commit, or when they were synced after it.
    durable: BTreeSet<u64>,
    /// Names that led to something at the last commit and ever since.
    always: BTreeSet<(u64, String)>,
    /// What names led to at the last commit or since.
    held: BTreeMap<(u64, String), BTreeSet<u64>>,
    commits: u64,
    cuts: u64,
    history: Vec<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let device = Arc::new(MemDevice::new("memory", 256 << 20));
        let blocks: Arc<dyn BlockDevice> = device.clone();
        mkfs(std::slice::from_ref(&blocks), &MkfsOptions::new([0x5a; 16])).unwrap();
        let mut world = World {
            fs: mount(blocks),
            device,
            dice: Dice::new(seed),
            now: Names::new(),
            dirs: Vec::new(),
            durable: BTreeSet::new(),
            always: BTreeSet::new(),
            held: BTreeMap::new(),
            commits: 0,
            cuts: seed,
            history: vec![format!("seed {seed}")],
        };
        world.look();
        for _ in 0..20 {
            world.operation();
        }
        world.commit();
        world
    }

    fn look(&mut self) {
        (self.now, self.dirs) = look(&self.fs);
        let now = &self.now;
        self.always.retain(|name| now.contains_key(name));
        for (name, leads) in now {
            self.held.entry(name.clone()).or_default().insert(leads.ino);
        }
    }

    fn commit(&mut self) {
        self.history.push("commit".into());
        self.fs.mount().sync().unwrap();
        self.note_commit();
    }

    fn note_commit(&mut self) {
        self.durable = inos(&self.now);
        self.always = self.now.keys().cloned().collect();
        self.held.clear();
        self.look();
    }

    /// A directory, and a name that may be in it.
    fn place(&mut self) -> (u64, NodeId, &'static str) {
        let (ino, node) = self.dirs[self.dice.below(self.dirs.len())];
        (ino, node, NAMES[self.dice.below(NAMES.len())])
    }

    /// One operation; what it refuses is fine.
    fn operation(&mut self) {
        let (from, to) = (self.place(), self.place());
        let kind = self.dice.below(20);
        let (fs, name, new_name) = (&self.fs, from.2.as_bytes(), to.2.as_bytes());
        let rename = |flags| fs.rename(&ROOT, from.1, name, to.1, new_name, flags).is_ok();
        let (what, done) = match kind {
            0..=3 => ("create", self.create(to.1, to.2)),
            4 => {
                let has_room = self.dirs.len() < DIRS_MAX;
                ("mkdir", has_room && fs.mkdir(&ROOT, to.1, new_name, 0o755).is_ok())
            }
            5..=11 => ("rename", rename(RenameFlags::empty())),
            12..=14 => ("exchange", rename(RenameFlags::EXCHANGE)),
            15..=17 => match fs.lookup(&ROOT, from.1, name) {
                Ok(Lookup::Found(entry)) => ("link", fs.link(&ROOT, entry.node, to.1, new_name).is_ok()),
                _ => ("link", false),
            },
            18 => ("unlink", fs.unlink(&ROOT, from.1, name).is_ok()),
            _ => ("rmdir", fs.rmdir(&ROOT, from.1, name).is_ok()),
        };
        if done {
            let line = format!("{what} {}/{} {}/{}", from.0, from.2, to.0, to.2);
            self.history.push(line);
            self.look();
        }
    }

    fn create(&self, dir: NodeId, name: &str) -> bool {
        let request = OpenRequest {
            flags: OpenFlags::WRITE | OpenFlags::CREATE | OpenFlags::EXCLUSIVE,
            kill_suidgid: false,
        };
        let Ok((entry, opened)) = self.fs.create(&ROOT, dir, name.as_bytes(), 0o644, &request) else {
            return false;
        };
        let data = entry.attr.ino.to_le_bytes();
        let flags = WriteFlags::empty();
        self.fs
            .write(&ROOT, entry.node, opened.handle, 0, &data, flags)
            .unwrap();
        self.fs.release(entry.node, opened.handle);
        true
    }

    fn fsync(&mut self) {
        let all: Vec<_> = self.now.iter().map(|(name, leads)| (name.clone(), *leads)).collect();
        let (node, synced) = match all.get(self.dice.below(all.len() + 1)) {
            None => (
                NodeId::ROOT,
                Leads {
                    ino: self.dirs[0].0,
                    is_dir: true,
                },
            ),
            Some(((dir, name), leads)) => {
                let node = self.dirs.iter().find(|(ino, _)| ino == dir).unwrap().1;
                let Ok(Lookup::Found(entry)) = self.fs.lookup(&ROOT, node, name.as_bytes()) else {
                    panic!("{name} in {dir} is gone");
                };
                (entry.node, *leads)
            }
        };
        self.fs.fsync(&ROOT, node, Handle::NONE, false).unwrap();
        self.history.push(format!("fsync {}", synced.ino));
        let commits = self.fs.mount().log_stats().commits;
        if commits > self.commits {
            self.commits = commits;
            self.history.push("(a commit)".into());
            return self.note_commit();
        }
        if synced.ino != self.dirs[0].0 {
            self.durable.insert(synced.ino);
        }
        if self.dice.below(2) == 0 {
            self.cut(synced);
        }
    }

    /// What a crash now leaves.
    fn cut(&mut self, synced: Leads) {
        let device = self.device.snapshot();
        self.cuts += 1;
        if self.cuts.is_multiple_of(KERNEL_STEP) && kernel_can() {
            let image = tempfile::NamedTempFile::new().unwrap();
            device.save(image.path()).unwrap();
            let mut found = Names::new();
            for (ino, inode) in after_crash(image.path()) {
                let is_dir = inode.mode & 0o170_000 == 0o040_000;
                for (dir, name) in inode.names {
                    found.insert((dir, name), Leads { ino, is_dir });
                }
            }
            self.judge("the kernel", synced, &found);
        }
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        let fs = mount(device.clone());
        let (found, _) = look(&fs);
        fs.destroy();
        drop(fs);
        let report = check(&[device], &CheckOptions::default());
        assert!(report.is_clean(), "{}\n{report}", self.history.join("\n"));
        self.judge("we", synced, &found);
    }

    fn judge(&self, who: &str, synced: Leads, found: &Names) {
        let fail = |what: String| {
            let history = self.history.join("\n");
            panic!(
                "{history}\n{who} find {what}\nthere is {found:?}\nthere was {:?}",
                self.now
            );
        };
        let (alive, seen) = (inos(&self.now), inos(found));
        let mine = |names: &Names| -> Names {
            let mine = names.iter().filter(|((dir, _), leads)| match synced.is_dir {
                true => *dir == synced.ino,
                false => leads.ino == synced.ino,
            });
            mine.map(|(name, leads)| (name.clone(), *leads)).collect()
        };
        if mine(found) != mine(&self.now) {
            fail(format!("other names than those of the synced inode {}", synced.ino));
        }
        if let Some(ino) = self.durable.intersection(&alive).find(|ino| !seen.contains(ino)) {
            fail(format!("no inode {ino}"));
        }
        if let Some(ino) = seen.difference(&alive).find(|ino| !self.durable.contains(ino)) {
            fail(format!("inode {ino}, which should be gone"));
        }
        if let Some((dir, name)) = self.always.iter().find(|name| !found.contains_key(name)) {
            fail(format!("no {name:?} in {dir}, which was always there"));
        }
        let was_held = |(name, leads): &(&(u64, String), &Leads)| {
            let held = self.held.get(*name);
            held.is_some_and(|held| held.contains(&leads.ino))
        };
        if let Some((name, leads)) = found.iter().find(|entry| !was_held(entry)) {
            fail(format!("{name:?} leading to {}", leads.ino));
        }
    }
}

#[test]
fn names_that_go_round() {
    for_each_seed("ROTATION", SEEDS_IN_CI, |seed| {
        let mut world = World::new(seed);
        for _ in 0..OPS {
            match world.dice.below(30) {
                0 => world.commit(),
                1..=6 => world.fsync(),
                _ => world.operation(),
            }
        }
        let stats = world.fs.mount().log_stats();
        assert_eq!(stats.failed, 0, "a log that could not be written on a healthy device");
        world.fs.destroy();
        (stats.syncs, stats.commits)
    });
}
