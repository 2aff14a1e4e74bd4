//! Random scripts about few names in few directories: hard links, moves, names used again, and
//! fsyncs of what took part or of its neighbours.
//!
//! The names are kept as they are where each operation succeeds, so that most do.

use std::collections::BTreeMap;

use cowshed_device_sim::Rng;
use cowshed_model::script::{Data, How, Kind, Op, Prealloc};

/// Directories of the setup, each below those before it.
const DIRS: [&str; 5] = ["x", "y", "x/z", "y/w", "x/z/v"];
const NEW_DIRS: [&str; 3] = ["d", "e", "z"];
const NAMES: [&str; 7] = ["foo", "bar", "a", "b", "c", "g", "h"];
const XATTRS: [&str; 3] = ["user.a", "user.b", "user.long"];
/// Top-level directories that are subvolumes, in some sequences.
pub(crate) const SUBVOLUMES: [&str; 2] = ["s", "t"];
const SUBVOLUMES_ONE_IN: u64 = 10;
/// Operations between the setup and the last fsync.
const STEPS_MIN: u64 = 3;
const STEPS_MAX: u64 = 14;
const BLOCK: u64 = 4096;
const SLOT: &str = "@1";
/// Longer than an inline extent of a small file, shorter than a leaf.
const LONG_XATTR_BYTES: usize = 1500;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Dir,
    /// The root of one: it stays where it is.
    Subvolume,
    /// With its size.
    File(u64),
    /// A symbolic link or a special file: nothing can be synced through it.
    Other,
}

/// A script: a tree, a `sync`, operations with fsyncs among them, the last of which ends it.
pub(crate) fn script(rng: &mut Rng) -> Vec<Op> {
    let mut world = World {
        rng,
        names: BTreeMap::new(),
        inodes: Vec::new(),
        letter: 0,
        recent: Vec::new(),
        ops: Vec::new(),
    };
    world.prepare();
    let steps = STEPS_MIN + world.rng.below(STEPS_MAX - STEPS_MIN + 1);
    for _ in 0..steps {
        let before = world.ops.len();
        while world.ops.len() == before {
            world.step();
        }
        if world.rng.one_in(4) {
            world.fsync();
        }
    }
    if !world.ops.last().is_some_and(|op| op.is_promise() && *op != Op::Sync) {
        world.fsync();
    }
    world.ops
}

struct World<'r> {
    rng: &'r mut Rng,
    /// The inode behind each path.
    names: BTreeMap<String, usize>,
    inodes: Vec<Is>,
    letter: u8,
    /// Paths of the last operations, and their directories.
    recent: Vec<String>,
    ops: Vec<Op>,
}

fn is_dir(is: Is) -> bool {
    matches!(is, Is::Dir | Is::Subvolume)
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or(".", |(dir, _)| dir)
}

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

/// The subvolume that a path is in: names of an inode, and what is moved, stay in one.
fn subvolume(path: &str) -> &str {
    let top = path.split('/').next().unwrap_or_default();
    if SUBVOLUMES.contains(&top) && top != path {
        top
    } else {
        ""
    }
}

fn is_in_one_subvolume(one: &str, other: &str) -> bool {
    subvolume(one) == subvolume(other)
}

impl World<'_> {
    fn prepare(&mut self) {
        if self.rng.one_in(SUBVOLUMES_ONE_IN) {
            for path in &SUBVOLUMES[..1 + self.rng.index(SUBVOLUMES.len())] {
                self.add(path, Is::Subvolume);
                self.ops.push(Op::subvolume((*path).to_owned()));
            }
        }
        let dirs = 1 + self.rng.index(DIRS.len());
        for dir in &DIRS[..dirs] {
            self.mkdir((*dir).to_owned());
        }
        for _ in 0..2 + self.rng.below(5) {
            if let Some(path) = self.free_name() {
                self.write(path);
            }
        }
        for _ in 0..self.rng.below(4) {
            self.link();
        }
        for _ in 0..self.rng.below(3) {
            self.set_xattr();
        }
        self.ops.push(Op::Sync);
        self.recent.clear();
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..=9 => self.write_some(),
            10..=14 => {
                if let Some(path) = self.free_name() {
                    self.create(path);
                }
            }
            15..=32 => self.link(),
            33..=48 => self.rename(),
            49..=54 => self.move_dir(),
            55..=58 => self.exchange(),
            59..=60 => self.whiteout(),
            61..=71 => self.unlink(),
            72..=76 => self.new_dir(),
            77..=79 => self.rmdir(),
            80..=82 => self.other(),
            83..=87 => self.set_xattr(),
            88..=91 => self.remove_xattr(),
            92..=93 => self.attributes(),
            94..=97 => self.shape(),
            98 => self.tmpfile(),
            // Rare: one makes all before it durable, the other one takes time.
            _ => match self.rng.below(6) {
                0 => self.ops.push(Op::Sync),
                1 => self.ops.push(Op::Drop),
                _ => self.clone_range(),
            },
        }
    }

    /// What was touched lately, a neighbour of it, or anything.
    fn fsync(&mut self) {
        let path = match self.rng.below(8) {
            0..=3 => self.a_recent(),
            4..=6 => self.any(|is| matches!(is, Is::File(_))),
            _ => self.any(is_dir).or(Some(".".into())),
        };
        let path = path.filter(|path| path == "." || self.is(path) != Some(Is::Other));
        let Some(path) = path.or_else(|| self.any(|is| is != Is::Other)) else {
            return self.ops.push(Op::fsync("."));
        };
        self.ops.push(match self.rng.below(8) {
            0 => Op::fdatasync(path),
            _ => Op::fsync(path),
        });
    }

    fn is(&self, path: &str) -> Option<Is> {
        self.names.get(path).map(|inode| self.inodes[*inode])
    }

    fn a_recent(&mut self) -> Option<String> {
        let there: Vec<String> = self
            .recent
            .iter()
            .filter(|path| path.as_str() == "." || self.names.contains_key(*path))
            .cloned()
            .collect();
        (!there.is_empty()).then(|| there[self.rng.index(there.len())].clone())
    }

    fn any(&mut self, wanted: impl Fn(Is) -> bool) -> Option<String> {
        let found: Vec<&String> = self
            .names
            .iter()
            .filter(|(_, inode)| wanted(self.inodes[**inode]))
            .map(|(path, _)| path)
            .collect();
        (!found.is_empty()).then(|| found[self.rng.index(found.len())].clone())
    }

    /// With a preference for what was touched lately.
    fn some(&mut self, wanted: impl Fn(Is) -> bool) -> Option<String> {
        let recent = if self.rng.one_in(2) { self.a_recent() } else { None };
        match recent.filter(|path| self.is(path).is_some_and(&wanted)) {
            Some(path) => Some(path),
            None => self.any(wanted),
        }
    }

    fn a_file(&mut self) -> Option<String> {
        self.some(|is| matches!(is, Is::File(_)))
    }

    fn dir(&mut self) -> String {
        match self.rng.below(6) {
            0 => ".".into(),
            _ => self.any(is_dir).unwrap_or_else(|| ".".into()),
        }
    }

    fn name_in(&mut self, names: &[&str]) -> String {
        let dir = self.dir();
        let name = names[self.rng.index(names.len())];
        match dir.as_str() {
            "." => name.to_owned(),
            dir => format!("{dir}/{name}"),
        }
    }

    fn free_name(&mut self) -> Option<String> {
        let path = self.name_in(&NAMES);
        (!self.names.contains_key(&path)).then_some(path)
    }

    fn push(&mut self, op: Op, touched: &[&str]) {
        const RECENT: usize = 8;
        for path in touched {
            self.recent.extend([(*path).to_owned(), parent(path).to_owned()]);
        }
        self.recent.drain(..self.recent.len().saturating_sub(RECENT));
        self.ops.push(op);
    }

    fn add(&mut self, path: &str, is: Is) {
        self.names.insert(path.to_owned(), self.inodes.len());
        self.inodes.push(is);
    }

    fn data(&mut self, len: u64) -> Data {
        self.letter = (self.letter + 1) % 26;
        Data::Bytes(vec![b'a' + self.letter; len as usize])
    }

    fn size(&mut self) -> u64 {
        [100, BLOCK, 2 * BLOCK, 6000][self.rng.index(4)]
    }

    fn create(&mut self, path: String) {
        self.add(&path, Is::File(0));
        self.push(Op::create(path.clone()), &[&path]);
    }

    /// A new file, or the beginning of an old one.
    fn write(&mut self, path: String) {
        let len = self.size();
        self.write_at(path, 0, len);
    }

    fn write_at(&mut self, path: String, at: u64, len: u64) {
        let data = self.data(len);
        if !self.names.contains_key(&path) {
            self.add(&path, Is::File(0));
        }
        self.grow(&path, at + len);
        let how = match self.rng.below(24) {
            0 => How::Sync,
            1 => How::DataSync,
            _ => How::Plain,
        };
        self.push(Op::write_how(how, path.clone(), at, data), &[&path]);
    }

    fn grow(&mut self, path: &str, end: u64) {
        if let Some(Is::File(size)) = self.names.get(path).map(|inode| &mut self.inodes[*inode]) {
            *size = end.max(*size);
        }
    }

    fn write_some(&mut self) {
        let Some(path) = self.a_file() else { return };
        let size = match self.is(&path) {
            Some(Is::File(size)) => size,
            _ => 0,
        };
        let at = [0, 0, BLOCK, size, size / BLOCK * BLOCK][self.rng.index(5)].min(size);
        let len = self.size();
        self.write_at(path, at, len);
    }

    fn mkdir(&mut self, path: String) {
        self.add(&path, Is::Dir);
        self.push(Op::mkdir(path.clone()), &[&path]);
    }

    fn new_dir(&mut self) {
        let path = self.name_in(&NEW_DIRS);
        if !self.names.contains_key(&path) {
            self.mkdir(path);
        }
    }

    fn link(&mut self) {
        let from = match self.rng.below(8) {
            0 => self.some(|is| !is_dir(is)),
            _ => self.a_file(),
        };
        if let (Some(from), Some(to)) = (from, self.free_name())
            && is_in_one_subvolume(&from, &to)
        {
            let inode = self.names[&from];
            self.names.insert(to.clone(), inode);
            self.push(Op::link(from.clone(), to.clone()), &[&from, &to]);
        }
    }

    fn rename(&mut self) {
        let Some(from) = self.some(|is| !is_dir(is)) else {
            return;
        };
        let to = match self.rng.below(5) {
            0 | 1 => self.any(|is| !is_dir(is)),
            _ => self.free_name(),
        };
        // Renaming onto another name of the same inode does nothing.
        let to = to.filter(|to| self.names.get(to) != self.names.get(&from));
        if let Some(to) = to.filter(|to| is_in_one_subvolume(&from, to)) {
            self.moved(&from, &to);
            self.push(Op::rename(from.clone(), to.clone()), &[&from, &to]);
        }
    }

    fn moved(&mut self, from: &str, to: &str) {
        let below: Vec<String> = self.names.keys().filter(|path| is_below(path, from)).cloned().collect();
        let whole = below.into_iter().chain([from.to_owned()]);
        for path in whole {
            if let Some(inode) = self.names.remove(&path) {
                self.names.insert(format!("{to}{}", &path[from.len()..]), inode);
            }
        }
    }

    fn move_dir(&mut self) {
        let Some(from) = self.some(|is| is == Is::Dir) else {
            return;
        };
        let to = match self.rng.below(4) {
            0 => self.any(|is| is == Is::Dir).unwrap_or_default(),
            _ => self.name_in(&NEW_DIRS),
        };
        let is_empty = !self.names.keys().any(|path| is_below(path, &to));
        let is_free = self
            .names
            .get(&to)
            .is_none_or(|inode| self.inodes[*inode] == Is::Dir && is_empty);
        if is_free && from != to && !to.is_empty() && !is_below(&to, &from) && is_in_one_subvolume(&from, &to) {
            self.moved(&from, &to);
            self.push(Op::rename(from.clone(), to.clone()), &[&from, &to]);
        }
    }

    fn exchange(&mut self) {
        let (Some(one), Some(other)) = (self.some(|is| is != Is::Subvolume), self.any(|is| is != Is::Subvolume)) else {
            return;
        };
        if one == other || is_below(&one, &other) || is_below(&other, &one) || self.names[&one] == self.names[&other] {
            return;
        }
        if !is_in_one_subvolume(&one, &other) {
            return;
        }
        let aside = "\u{0}aside".to_owned();
        self.moved(&one, &aside);
        self.moved(&other, &one);
        self.moved(&aside, &other);
        self.push(Op::exchange(one.clone(), other.clone()), &[&one, &other]);
    }

    fn whiteout(&mut self) {
        if let (Some(from), Some(to)) = (self.some(|is| !is_dir(is)), self.free_name())
            && is_in_one_subvolume(&from, &to)
        {
            self.moved(&from, &to);
            self.add(&from, Is::Other);
            self.push(Op::whiteout(from.clone(), to.clone()), &[&from, &to]);
        }
    }

    fn unlink(&mut self) {
        if let Some(path) = self.some(|is| !is_dir(is)) {
            self.names.remove(&path);
            self.push(Op::unlink(path.clone()), &[&path]);
        }
    }

    fn rmdir(&mut self) {
        let empty = self.any(|is| is == Is::Dir);
        let empty = empty.filter(|dir| !self.names.keys().any(|path| is_below(path, dir)));
        if let Some(path) = empty {
            self.names.remove(&path);
            self.push(Op::rmdir(path.clone()), &[&path]);
        }
    }

    fn other(&mut self) {
        let Some(path) = self.free_name() else { return };
        self.add(&path, Is::Other);
        let op = match self.rng.below(3) {
            0 => Op::mknod(Kind::Fifo, path.clone()),
            1 => Op::mknod(Kind::Char, path.clone()),
            _ => Op::symlink("target", path.clone()),
        };
        self.push(op, &[&path]);
    }

    fn an_xattr(&mut self) -> (Option<String>, String) {
        let path = self.some(|is| is != Is::Other);
        (path, XATTRS[self.rng.index(XATTRS.len())].to_owned())
    }

    fn set_xattr(&mut self) {
        if let (Some(path), name) = self.an_xattr() {
            let len = if name == "user.long" { LONG_XATTR_BYTES } else { 3 };
            let value = self.data(len as u64);
            self.push(Op::set_xattr(path.clone(), name, value), &[&path]);
        }
    }

    /// Fails where there is none: most are set, in the end.
    fn remove_xattr(&mut self) {
        let set: Vec<(String, String)> = self
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::SetXattr { path, name, .. } => Some((path.clone(), name.clone())),
                _ => None,
            })
            .filter(|(path, _)| self.names.contains_key(path))
            .collect();
        if !set.is_empty() {
            let (path, name) = set[self.rng.index(set.len())].clone();
            self.push(Op::remove_xattr(path.clone(), name), &[&path]);
        }
    }

    fn attributes(&mut self) {
        let Some(path) = self.some(|is| is != Is::Other) else {
            return;
        };
        let op = match self.rng.below(3) {
            0 => Op::chown(path.clone(), 1000 + self.rng.below(3) as u32),
            1 => Op::utime(path.clone(), 1_000_000 + self.rng.below(1000) as u32),
            _ => Op::chmod(path.clone(), [0o600, 0o640, 0o700, 0o711][self.rng.index(4)]),
        };
        self.push(op, &[&path]);
    }

    fn shape(&mut self) {
        let Some(path) = self.a_file() else { return };
        let at = self.rng.below(3) * BLOCK;
        let len = (1 + self.rng.below(3)) * BLOCK;
        let op = match self.rng.below(5) {
            0 | 1 => {
                let size = [0, 50, BLOCK, 5000, 4 * BLOCK][self.rng.index(5)];
                let inode = self.names[&path];
                self.inodes[inode] = Is::File(size);
                Op::truncate(path.clone(), size)
            }
            2 => Op::fallocate(Prealloc::KeepSize, path.clone(), at, len),
            3 => {
                self.grow(&path, at + len);
                Op::fallocate(Prealloc::Extend, path.clone(), at, len)
            }
            _ => Op::fallocate(Prealloc::Punch, path.clone(), at, len),
        };
        self.push(op, &[&path]);
    }

    fn clone_range(&mut self) {
        let whole = |is| matches!(is, Is::File(size) if size >= BLOCK);
        if let (Some(from), Some(to)) = (self.some(whole), self.a_file()) {
            if self.names[&from] == self.names[&to] {
                return;
            }
            let at = self.rng.below(2) * BLOCK;
            self.grow(&to, at + BLOCK);
            self.push(Op::copy(from.clone(), 0, to.clone(), at, BLOCK), &[&from, &to]);
        }
    }

    fn tmpfile(&mut self) {
        let Some(to) = self.free_name() else { return };
        let len = self.size();
        let data = self.data(len);
        self.ops.push(Op::tmpfile(SLOT, parent(&to).to_owned()));
        self.ops.push(Op::write_how(How::Plain, SLOT, 0, data));
        if self.rng.one_in(3) {
            self.ops.push(Op::fsync(SLOT));
        }
        self.add(&to, Is::File(len));
        self.push(Op::link(SLOT, to.clone()), &[&to]);
        self.ops.push(Op::close(SLOT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_script() {
        for seed in 0..200 {
            let ops = script(&mut Rng::new(seed));
            assert_eq!(ops, script(&mut Rng::new(seed)));
            assert!(
                ops.contains(&Op::Sync) && ops.last().is_some_and(Op::is_promise),
                "{seed}"
            );
        }
    }
}
