//! Many names of few files, of which a log has some and the last commit others: long ones, whose
//! references outgrow an item and go on in extended ones; names that share their hashes; names that
//! other inodes take over; directories that are emptied, removed and made again under their names.
//! In between, one of these inodes is synced.

use std::collections::BTreeMap;

use cowshed_device_sim::Rng;
use cowshed_harness::tree::colliding_names;
use cowshed_model::script::Op;

use crate::habits;

/// The ones that come and go are below those that stay.
const DIRS: [&str; 6] = ["", "p/", "q/", "p/r/", "p/again/", "q/again/"];
/// How many of [`DIRS`] stay.
const LASTING: usize = 4;
const FILES: u64 = 4;
/// Names for each family and directory.
const LONG_NAMES: u64 = 70;
/// All of one hash, in one item of a directory, and more than a leaf of 4 KiB holds when they are
/// long.
const COLLIDING_NAMES: usize = 24;
const COLLIDING_BYTES_MAX: u64 = 190;
/// Each name reads the whole file.
const FILE_BYTES_MAX: u64 = 12_000;

/// A step is several operations, and some are many.
const OPS_PER_STEP: usize = 3;

/// A run that is as long as other ones of `count` operations, or some three times as long.
pub(crate) fn choose(rng: &mut Rng, count: usize) -> Vec<Op> {
    let mut world = World {
        long_bytes: 100 + rng.below(150) as usize,
        colliding: colliding_names(COLLIDING_NAMES),
        colliding_bytes: 8 + rng.below(COLLIDING_BYTES_MAX - 7) as usize,
        names: BTreeMap::new(),
        files: 0,
        ops: Vec::new(),
        rng,
    };
    world.prepare();
    for _ in 0..count.div_ceil(OPS_PER_STEP) {
        world.step();
    }
    world.ops
}

/// The names as they are where all operations succeed.
struct World<'r> {
    rng: &'r mut Rng,
    long_bytes: usize,
    colliding: Vec<String>,
    colliding_bytes: usize,
    /// What each leads to: files by number.
    names: BTreeMap<String, u64>,
    files: u64,
    ops: Vec<Op>,
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

impl World<'_> {
    fn prepare(&mut self) {
        for dir in &DIRS[1..] {
            self.mkdir(dir);
        }
        for n in 0..FILES {
            let path = format!("{}f{n}", DIRS[self.rng.index(LASTING)]);
            self.write(&path);
        }
        if self.rng.one_in(2) {
            self.many();
        }
        self.ops.push(Op::Sync);
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..=3 => self.some(),
            4 | 5 => self.many(),
            6..=8 => self.thin(),
            9..=12 => self.take_over(),
            13 | 14 => self.rename(),
            15 => self.exchange(),
            16 | 17 => self.kill(),
            18..=20 => self.again(),
            21 => {
                if let Some(path) = self.a_name() {
                    self.write(&path);
                    self.sync_some(&[path]);
                }
            }
            22 => self.ops.push(Op::Sync),
            _ => {
                let ops = habits::one(self.rng);
                self.ops.extend(ops);
            }
        }
    }

    fn a_dir(&mut self) -> &'static str {
        DIRS[self.rng.index(DIRS.len())]
    }

    /// Of the given directory, free or not.
    fn name_in(&mut self, dir: &str) -> String {
        match self.rng.below(8) {
            0 => format!("{dir}{}", char::from(b'a' + self.rng.below(6) as u8)),
            1..=3 => {
                let tail = &self.colliding[self.rng.index(COLLIDING_NAMES)];
                format!("{dir}{tail:0>len$}", len = self.colliding_bytes)
            }
            _ => {
                let n = self.rng.below(LONG_NAMES);
                self.long(dir, n)
            }
        }
    }

    fn long(&self, dir: &str, n: u64) -> String {
        format!("{dir}{n:0>len$}", len = self.long_bytes)
    }

    /// One that leads to a file.
    fn a_name(&mut self) -> Option<String> {
        let at = self.rng.index(self.names.len().max(1));
        self.names.keys().nth(at).cloned()
    }

    /// A file, by its number.
    fn a_file(&mut self) -> Option<u64> {
        let name = self.a_name()?;
        self.names.get(&name).copied()
    }

    fn names_of(&self, file: u64) -> Vec<String> {
        let is_of = |(name, of): (&String, &u64)| (*of == file).then(|| name.clone());
        self.names.iter().filter_map(is_of).collect()
    }

    /// A file's name, if it has one.
    fn name_of(&mut self, file: u64) -> Option<String> {
        let names = self.names_of(file);
        let at = self.rng.index(names.len().max(1));
        names.get(at).cloned()
    }

    fn write(&mut self, path: &str) {
        let len = 1 + self.rng.below(FILE_BYTES_MAX) as usize;
        self.ops.push(Op::write(path, 0, len, self.rng.next_u64()));
        if !self.names.contains_key(path) {
            self.names.insert(path.into(), self.files);
            self.files += 1;
        }
    }

    fn mkdir(&mut self, dir: &str) {
        let path = dir.trim_end_matches('/').to_owned();
        self.ops.push(Op::mkdir(path));
    }

    /// One more name of a file, where it is free.
    fn link(&mut self, file: u64, to: &str) {
        if let Some(from) = self.name_of(file)
            && !self.names.contains_key(to)
        {
            self.names.insert(to.into(), file);
            self.ops.push(Op::link(from, to));
        }
    }

    fn unlink(&mut self, path: &str) {
        self.names.remove(path);
        self.ops.push(Op::unlink(path));
    }

    /// Perhaps an fsync: of one of these, of another name of it, of a directory above, or of
    /// something else.
    fn sync_some(&mut self, paths: &[String]) {
        let at = self.rng.index(paths.len().max(1));
        let path = match (self.rng.below(8), paths.get(at)) {
            (0 | 1, _) | (_, None) => return,
            (2 | 3, Some(path)) => parent(path).to_owned(),
            (4, Some(path)) => match self.names.get(path).copied() {
                Some(file) => self.name_of(file).unwrap_or_default(),
                None => path.clone(),
            },
            (5, _) => self.a_name().unwrap_or_default(),
            (_, Some(path)) => path.clone(),
        };
        self.ops.push(match self.rng.one_in(8) {
            true => Op::fdatasync(path),
            false => Op::fsync(path),
        });
    }

    /// A few more names of a file.
    fn some(&mut self) {
        let (Some(file), dir) = (self.a_file(), self.a_dir()) else {
            return;
        };
        let mut made = Vec::new();
        for _ in 0..1 + self.rng.below(5) {
            let to = self.name_in(dir);
            self.link(file, &to);
            made.push(to);
        }
        self.sync_some(&made);
    }

    /// So many in one directory that an item of references may not hold them.
    fn many(&mut self) {
        let (Some(file), dir) = (self.a_file(), self.a_dir()) else {
            return;
        };
        let (first, count) = (self.rng.below(20), 6 + self.rng.below(LONG_NAMES - 26));
        for n in first..first + count {
            let to = self.long(dir, n);
            self.link(file, &to);
        }
        if self.rng.one_in(2) {
            self.some();
        }
        // The first ones are in the plain item: with few left there a log is short enough to be
        // written.
        if !self.rng.one_in(3) {
            self.unlink_some(file, dir);
        }
        let last = self.long(dir, first + count - 1);
        self.sync_some(&[last]);
    }

    /// Takes many names of a file away, the first or any.
    fn thin(&mut self) {
        let Some(name) = self.a_name() else { return };
        let (Some(file), dir) = (self.names.get(&name).copied(), parent(&name).to_owned()) else {
            return;
        };
        let dir = if dir.is_empty() { dir } else { format!("{dir}/") };
        self.unlink_some(file, &dir);
        self.sync_some(&[name]);
    }

    fn unlink_some(&mut self, file: u64, dir: &str) {
        let mut names = self.names_of(file);
        names.retain(|name| format!("{}/", parent(name)).trim_start_matches('/') == dir);
        if self.rng.one_in(4) {
            self.rng.shuffle(&mut names);
        }
        let count = self.rng.index(names.len() + 1);
        for name in &names[..count] {
            self.unlink(name);
        }
    }

    /// A name is another inode's: by a link, a new file, a directory, or a rename over it.
    fn take_over(&mut self) {
        let (Some(name), Some(other)) = (self.a_name(), self.a_file()) else {
            return;
        };
        let loser = self.names.get(&name).copied();
        match self.rng.below(4) {
            0 => {
                self.unlink(&name);
                self.link(other, &name);
            }
            1 => {
                self.unlink(&name);
                self.write(&name);
            }
            2 => {
                self.unlink(&name);
                self.ops.push(Op::mkdir(name.clone()));
                self.sync_some(std::slice::from_ref(&name));
                self.ops.push(Op::rmdir(name.clone()));
                if self.rng.one_in(2) {
                    self.link(other, &name);
                }
            }
            _ => {
                if let Some(from) = self.name_of(other) {
                    self.rename_to(&from, &name);
                }
            }
        }
        let mut concerned = vec![name];
        concerned.extend(loser.and_then(|file| self.name_of(file)));
        self.sync_some(&concerned);
    }

    fn rename_to(&mut self, from: &str, to: &str) {
        let (from, to) = (from.to_owned(), to.to_owned());
        // Two names of one file are left as they are.
        if self.names.get(&from) != self.names.get(&to)
            && let Some(file) = self.names.remove(&from)
        {
            self.names.insert(to.clone(), file);
        }
        self.ops.push(Op::rename(from, to));
    }

    fn rename(&mut self) {
        let Some(from) = self.a_name() else { return };
        let dir = match self.rng.one_in(2) {
            true => self.a_dir().to_owned(),
            false => format!("{}/", parent(&from)).trim_start_matches('/').to_owned(),
        };
        let to = self.name_in(&dir);
        self.rename_to(&from, &to);
        self.sync_some(&[to, from]);
    }

    fn exchange(&mut self) {
        let (Some(from), Some(to)) = (self.a_name(), self.a_name()) else {
            return;
        };
        let (one, other) = (self.names[&from], self.names[&to]);
        self.names.insert(from.clone(), other);
        self.names.insert(to.clone(), one);
        let (a, b) = (from.clone(), to.clone());
        self.ops.push(Op::exchange(from, to));
        self.sync_some(&[a, b]);
    }

    /// All names of a file go, and some of them are used again.
    fn kill(&mut self) {
        let Some(file) = self.a_file() else { return };
        let mut names = self.names_of(file);
        self.rng.shuffle(&mut names);
        for name in &names {
            self.unlink(name);
        }
        let used = self.rng.index(names.len().min(3) + 1);
        for name in names.iter().rev().take(used) {
            match (self.rng.one_in(2), self.a_file()) {
                (true, Some(other)) => self.link(other, name),
                _ => self.write(name),
            }
        }
        self.sync_some(&names);
    }

    /// A directory is emptied, by unlinks and moves, removed, and made again; some names in it are
    /// those that it had.
    fn again(&mut self) {
        let dir = DIRS[LASTING + self.rng.index(DIRS.len() - LASTING)];
        let inner: Vec<String> = self
            .names
            .range(dir.to_owned()..)
            .map(|(name, _)| name.clone())
            .collect();
        let inner: Vec<String> = inner.into_iter().take_while(|name| name.starts_with(dir)).collect();
        let moves = self.rng.one_in(3);
        // See `habits::made_again`.
        self.unlink(&format!("{dir}f"));
        for name in &inner {
            if moves && self.rng.one_in(4) {
                let to = self.a_dir();
                let to = self.name_in(to);
                self.rename_to(name, &to);
            }
            if self.names.contains_key(name) {
                self.unlink(name);
            }
        }
        if self.rng.one_in(3) {
            self.sync_some(&inner);
        }
        self.ops.push(Op::rmdir(dir.trim_end_matches('/')));
        if self.rng.one_in(4) {
            self.sync_some(&[dir.trim_end_matches('/').into()]);
        }
        self.mkdir(dir);
        let mut made = vec![dir.trim_end_matches('/').to_owned()];
        for _ in 0..self.rng.below(4) {
            let name = match self.rng.index(inner.len() + 1) {
                at if at < inner.len() => inner[at].clone(),
                _ => self.name_in(dir),
            };
            match (self.rng.one_in(3), self.a_file()) {
                (false, Some(file)) => self.link(file, &name),
                _ => self.write(&name),
            }
            made.push(name);
        }
        self.sync_some(&made);
    }
}
