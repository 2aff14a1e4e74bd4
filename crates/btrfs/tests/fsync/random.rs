//! Random operations and random fsyncs, cut off right after an fsync now and then: what the kernel
//! finds must be what the fsyncs since the last commit promised, and nothing that they did not
//! touch may be lost.
//!
//! `COWSHED_FSYNC_SEED` runs one seed, `COWSHED_FSYNC_SEEDS` more of them.

use std::collections::{BTreeMap, BTreeSet};

use cowshed_harness::KernelVolume;
use cowshed_vfs::{FallocateFlags, FileSystem, Handle, RenameFlags, SetAttr};

use crate::dice::{Dice, for_each_seed};
use crate::rig::{ROOT, Rig, kernel_can};
use crate::seen::{Content, Inode, Seen, after_crash};

/// Operations per seed; about every eighth is an fsync, every third fsync is cut off.
const OPS: usize = 240;
const SEEDS_IN_CI: u64 = 3;

/// Our own mount's view.
fn ours(rig: &Rig) -> Seen {
    let mut seen = Seen::new();
    let root = note(rig, "", &mut seen);
    walk(rig, "", root, &mut seen);
    seen
}

fn walk(rig: &Rig, dir: &str, ino: u64, seen: &mut Seen) {
    for name in rig.names(dir) {
        let path = if dir.is_empty() {
            name.clone()
        } else {
            format!("{dir}/{name}")
        };
        let child = note(rig, &path, seen);
        seen.get_mut(&child).unwrap().names.push((ino, name.clone()));
        seen.get_mut(&ino).unwrap().entries.insert(name, child);
        if seen[&child].mode & 0o170_000 == 0o040_000 {
            walk(rig, &path, child, seen);
        }
    }
}

fn note(rig: &Rig, path: &str, seen: &mut Seen) -> u64 {
    let attr = rig.attr(path).unwrap();
    let inode = seen.entry(attr.ino).or_default();
    inode.mode = attr.kind.mode_bits() | attr.perm;
    inode.nlink = attr.nlink.into();
    inode.size = attr.size_bytes;
    inode.mtime = (attr.mtime.secs, attr.mtime.nanos.into());
    if attr.kind == cowshed_vfs::FileKind::Regular {
        inode.blocks = attr.blocks_512;
        inode.content = Content(rig.read(path));
        for name in rig.xattr_names(path) {
            let value = rig.xattr(path, &name).unwrap();
            let hex: String = value.iter().map(|b| format!("{b:02x}")).collect();
            inode.xattrs.insert(name.into(), format!("0x{hex}").into());
        }
    }
    if attr.kind == cowshed_vfs::FileKind::Symlink {
        let node = rig.node(path).unwrap();
        inode.content = Content(rig.fs.readlink(&ROOT, node).unwrap());
    }
    attr.ino
}

struct World {
    rig: Rig,
    dice: Dice,
    files: Vec<String>,
    dirs: Vec<String>,
    next_name: usize,
    /// Alive at the last commit.
    committed: BTreeSet<u64>,
    /// As they were when they were synced after it.
    synced: BTreeMap<u64, Inode>,
    commits: u64,
    history: Vec<String>,
}

impl World {
    fn new(seed: u64) -> World {
        let rig = Rig::new();
        let mut world = World {
            rig,
            dice: Dice::new(seed),
            files: Vec::new(),
            dirs: Vec::new(),
            next_name: 0,
            committed: BTreeSet::new(),
            synced: BTreeMap::new(),
            commits: 0,
            history: vec![format!("seed {seed}")],
        };
        for _ in 0..40 {
            world.operation();
        }
        world.commit();
        world
    }

    fn look(&mut self) {
        self.files.clear();
        self.dirs = vec![String::new()];
        let mut at = 0;
        while at < self.dirs.len() {
            let dir = self.dirs[at].clone();
            for name in self.rig.names(&dir) {
                let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                match self.rig.attr(&path).unwrap().kind {
                    cowshed_vfs::FileKind::Directory => self.dirs.push(path),
                    _ => self.files.push(path),
                }
            }
            at += 1;
        }
    }

    fn commit(&mut self) {
        self.history.push("sync".into());
        self.rig.commit();
        self.note_commit();
    }

    fn note_commit(&mut self) {
        self.committed = ours(&self.rig).into_keys().collect();
        self.synced.clear();
    }

    /// A name: often one that was in use before, so that names are taken over.
    fn name(&mut self) -> String {
        let dirs = self.dirs.clone();
        let dir = self.dice.pick(&dirs).unwrap().clone();
        self.next_name += 1;
        let name = match self.dice.below(3) {
            0 => format!("n{}", self.next_name),
            _ => format!("f{}", self.dice.below(6)),
        };
        if dir.is_empty() { name } else { format!("{dir}/{name}") }
    }

    /// One operation; what it refuses is fine.
    fn operation(&mut self) {
        self.look();
        let (files, dirs) = (self.files.clone(), self.dirs.clone());
        let new = self.name();
        let file = self.dice.pick(&files).cloned().unwrap_or_default();
        let dir = self.dice.pick(&dirs).cloned().unwrap();
        let other = self.dice.pick(&files).cloned().unwrap_or_default();
        let (a, b) = (self.dice.below(60_000) as u64, self.dice.below(30_000) as u64 + 1);
        let kind = self.dice.below(22);
        self.history.push(format!(
            "{kind}: file {file:?} other {other:?} dir {dir:?} new {new:?} {a} {b}"
        ));
        let rig = &self.rig;
        let is_regular = rig
            .attr(&file)
            .is_ok_and(|attr| attr.kind == cowshed_vfs::FileKind::Regular);
        match kind {
            0..=3 => {
                let created = rig.create(&new);
                if created.is_ok() {
                    rig.write(&new, 0, &vec![a as u8 | 1; b as usize / 3]);
                }
            }
            4 => _ = rig.mkdir(&new),
            5 => _ = rig.symlink(&new, b"target"),
            6..=9 if is_regular => rig.write(&file, a, &vec![b as u8 | 1; b as usize]),
            10 if is_regular => {
                let set = SetAttr {
                    size_bytes: Some(a),
                    ..SetAttr::default()
                };
                let _ = rig.setattr(&file, &set);
            }
            11 if is_regular => {
                let mode = match b % 3 {
                    0 => FallocateFlags::empty(),
                    1 => FallocateFlags::KEEP_SIZE,
                    _ => FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE,
                };
                let _ = rig
                    .fs
                    .fallocate(&ROOT, rig.node(&file).unwrap(), Handle::NONE, a, b, mode);
            }
            12 => {
                let perm = Some(0o600 | (a as u32 & 0o77));
                let _ = rig.setattr(
                    &file,
                    &SetAttr {
                        perm,
                        ..SetAttr::default()
                    },
                );
            }
            13 if is_regular => _ = rig.set_xattr(&file, &format!("user.{}", a % 3), &[b as u8; 5]),
            14 if is_regular => {
                let name = format!("user.{}", a % 3);
                let _ = rig.fs.removexattr(&ROOT, rig.node(&file).unwrap(), name.as_bytes());
            }
            15 => _ = rig.unlink(&file),
            16 => _ = rig.rename(&file, &new, RenameFlags::empty()),
            17 => _ = rig.rename(&file, &other, RenameFlags::empty()),
            18 => _ = rig.rename(&file, &other, RenameFlags::EXCHANGE),
            19 => _ = rig.link(&file, &new),
            20 => match a % 3 {
                0 => _ = rig.rename(&dir, &new, RenameFlags::empty()),
                _ => _ = rig.rmdir(&dir),
            },
            21 if is_regular && other != file => {
                let (from, to) = (rig.node(&file).unwrap(), rig.node(&other).unwrap());
                let (src, dst) = ((from, Handle::NONE, a & !4095), (to, Handle::NONE, b & !4095));
                let _ = rig.fs.copy_file_range(&ROOT, src, dst, 16384);
            }
            _ => {}
        }
    }

    fn fsync(&mut self, cut: bool) {
        self.look();
        let all: Vec<_> = self.files.iter().chain(&self.dirs).cloned().collect();
        let path = self.dice.pick(&all).unwrap().clone();
        self.history.push(format!("fsync {path:?}"));
        self.rig.fsync(&path);
        let commits = self.rig.fs.mount().log_stats().commits;
        let now = ours(&self.rig);
        if commits > self.commits {
            self.commits = commits;
            self.history.push("(a commit)".into());
            self.note_commit();
        }
        let ino = self.rig.attr(&path).unwrap().ino;
        self.synced.insert(ino, now[&ino].clone());
        if cut {
            let cut = KernelVolume::copy_of(&[self.rig.image()]).unwrap();
            let seen = after_crash(self.rig.image());
            if let Err(what) = self.judge(ino, &now, &seen) {
                panic!("{}\n{what}", self.history.join("\n"));
            }
            let again = Rig::on(cut);
            let mut replayed = ours(&again);
            for (ino, inode) in &mut replayed {
                inode.names.sort();
                let kernel = seen.get(ino).map(|found| {
                    let mut found = found.clone();
                    found.names.sort();
                    if inode.mode & 0o170_000 == 0o040_000 {
                        // Sizes of directories are judged by the checker; the kernel stamps those
                        // that it changes.
                        (found.mtime, found.size) = (inode.mtime, inode.size);
                    }
                    found
                });
                if kernel.as_ref() != Some(&*inode) {
                    let history = self.history.join("\n");
                    panic!("{history}\ninode {ino}: we replay\n{inode:?}\nthe kernel\n{kernel:?}");
                }
            }
            assert_eq!(replayed.len(), seen.len(), "{}", self.history.join("\n"));
            again.finish();
        }
    }

    fn judge(&self, target: u64, now: &Seen, seen: &Seen) -> Result<(), String> {
        let sorted = |inode: &Inode| {
            let mut names = inode.names.clone();
            names.sort();
            names
        };
        for (ino, was) in &self.synced {
            let Some(is) = now.get(ino) else { continue };
            let Some(found) = seen.get(ino) else {
                return Err(format!("inode {ino} was synced and is lost: {was:?}"));
            };
            let is_dir = was.mode & 0o170_000 == 0o040_000;
            if is_dir && was.entries == is.entries && found.entries != is.entries {
                return Err(format!("entries of {ino}: {:?}, not {:?}", found.entries, is.entries));
            }
            let same = |i: &Inode| (i.mode, i.size, i.blocks, i.mtime, i.content.clone(), i.xattrs.clone());
            if !is_dir && same(was) == same(is) && same(found) != same(was) {
                return Err(format!("inode {ino}:\n{found:?}\nnot\n{was:?}"));
            }
            if *ino == target && !is_dir && (sorted(found), found.nlink) != (sorted(is), is.nlink) {
                return Err(format!("names of {ino}: {:?}, not {:?}", found.names, is.names));
            }
        }
        for ino in self.committed.iter().filter(|ino| now.contains_key(ino)) {
            if !seen.contains_key(ino) {
                return Err(format!("inode {ino} was committed and is lost: {:?}", now[ino]));
            }
        }
        for ino in seen.keys() {
            if !now.contains_key(ino) && !self.committed.contains(ino) {
                return Err(format!("inode {ino} is back: {:?}", seen[ino]));
            }
        }
        Ok(())
    }
}

fn run(seed: u64) -> (u64, u64) {
    let mut world = World::new(seed);
    for _ in 0..OPS {
        match world.dice.below(40) {
            0 => world.commit(),
            1..=6 => {
                let cut = world.dice.below(3) == 0;
                world.fsync(cut);
            }
            _ => world.operation(),
        }
    }
    let stats = world.rig.fs.mount().log_stats();
    assert_eq!(stats.failed, 0, "a log that could not be written on a healthy device");
    world.rig.finish();
    (stats.syncs, stats.commits)
}

#[test]
fn fsync_keeps_its_promises() {
    if !kernel_can() {
        return;
    }
    let (logs, commits) = for_each_seed("FSYNC", SEEDS_IN_CI, run);
    assert!(logs > commits, "{logs} logs and {commits} commits");
}
