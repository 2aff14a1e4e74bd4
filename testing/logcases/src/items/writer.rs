//! Random operations with fsyncs, by seed.
//!
//! The names come from a small space, so that renames over something, hard links and reused names
//! happen all the time. An operation that fails (no such name, not empty) is one that did nothing.

use cowshed_device_sim::Rng;
use cowshed_model::script::{BLOCK_BYTES, Data, How, Kind, Op, Prealloc};

const DIRS: [&str; 5] = ["", "a", "b", "a/c", "a/c/d"];
const NAMES: u64 = 10;
/// Files are up to this long.
const BLOCKS: u64 = 64;

/// Draws operations.
#[derive(Debug)]
pub struct Writer {
    rng: Rng,
    /// Subvolumes beside the top level, as directories of it.
    pub roots: Vec<&'static str>,
}

fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

impl Writer {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            roots: vec![""],
        }
    }

    /// The directories of all roots.
    pub fn directories(&self) -> Vec<Op> {
        let of_root = |root: &&str| DIRS[1..].iter().map(|dir| join(root, dir)).collect::<Vec<_>>();
        let paths = self.roots.iter().flat_map(of_root);
        paths.map(|path| Op::Mkdir { path }).collect()
    }

    fn directory(&mut self) -> String {
        let root = self.roots[self.rng.index(self.roots.len())];
        match DIRS[self.rng.index(DIRS.len())] {
            "" => root.to_owned(),
            dir => join(root, dir),
        }
    }

    fn name(&mut self) -> String {
        let n = self.rng.below(NAMES);
        join(&self.directory(), &format!("n{n}"))
    }

    /// A name in the same subvolume as `other`, more often than not in the same directory.
    fn name_near(&mut self, other: &str) -> String {
        if self.rng.one_in(2) {
            return self.name();
        }
        let n = self.rng.below(NAMES);
        join(parent(other), &format!("n{n}"))
    }

    fn range(&mut self) -> (u64, u64) {
        let offset = self.rng.below(BLOCKS) * BLOCK_BYTES;
        let len = (1 + self.rng.below(12)) * BLOCK_BYTES;
        if self.rng.one_in(2) {
            return (offset, len);
        }
        (offset + self.rng.below(BLOCK_BYTES), 1 + self.rng.below(len))
    }

    /// One operation, or some that belong together.
    pub fn step(&mut self) -> Vec<Op> {
        let path = self.name();
        let one = match self.rng.below(100) {
            0..24 => return self.write(path),
            24..30 => return self.create(path),
            30..37 => Op::unlink(path),
            37..41 => Op::mkdir(path),
            41..43 => Op::rmdir(path),
            43..54 => {
                let to = self.name_near(&path);
                Op::rename(path, to)
            }
            54..60 => {
                let to = self.name_near(&path);
                Op::link(path, to)
            }
            60..63 => Op::symlink("to/somewhere", path),
            63..68 => {
                let (size, _) = self.range();
                let size_bytes = if self.rng.one_in(4) { 0 } else { size };
                Op::truncate(path, size_bytes)
            }
            68..74 => self.fallocate(path),
            74..78 => self.xattr(path),
            78..80 => Op::chmod(path, 0o400 | self.rng.below(0o400) as u32),
            80..83 => self.clone_range(path),
            83..85 => Op::temporary(
                parent(&path).to_owned(),
                path,
                Data::Fill {
                    len: 5000,
                    fill: self.rng.next_u64(),
                },
                false,
            ),
            _ => self.fsync(path),
        };
        vec![one]
    }

    /// What is fsynced: a name, or a directory.
    fn fsync(&mut self, path: String) -> Op {
        match self.rng.one_in(4) {
            true => Op::fsync(self.directory()),
            false => Op::fsync(path),
        }
    }

    fn write(&mut self, path: String) -> Vec<Op> {
        let (offset, len) = self.range();
        let fill = self.rng.next_u64();
        let mut ops = vec![Op::write(path.clone(), offset, len as usize, fill)];
        // Often on disk before an fsync finds it.
        if fill.is_multiple_of(3) {
            ops.push(Op::fdatasync(path));
        }
        ops
    }

    /// A device, or a file that is written anew.
    fn create(&mut self, path: String) -> Vec<Op> {
        if self.rng.one_in(5) {
            return vec![Op::mknod(Kind::Char, path)];
        }
        let len = self.rng.below(3000) as usize;
        let cut = Op::truncate(path.clone(), 0);
        let data = Data::Fill { len, fill: len as u64 };
        let write = Op::write_how(How::Plain, path, 0, data);
        vec![cut, write]
    }

    fn fallocate(&mut self, path: String) -> Op {
        let (offset, len) = self.range();
        let modes = [Prealloc::Extend, Prealloc::KeepSize, Prealloc::Punch, Prealloc::Zero];
        let how = modes[self.rng.index(modes.len())];
        Op::fallocate(how, path, offset, len)
    }

    fn xattr(&mut self, path: String) -> Op {
        let name = format!("user.x{}", self.rng.below(4));
        if self.rng.one_in(3) {
            return Op::remove_xattr(path, name);
        }
        let (fill, len) = (self.rng.next_u64(), self.rng.below(200) as usize);
        let value = Data::Fill { len, fill };
        Op::set_xattr(path, name, value)
    }

    /// Whole blocks, which are shared.
    fn clone_range(&mut self, to: String) -> Op {
        let from = self.name();
        let (offset, len) = self.range();
        Op::copy(
            from,
            offset / BLOCK_BYTES * BLOCK_BYTES,
            to,
            self.rng.below(BLOCKS) * BLOCK_BYTES,
            len.next_multiple_of(BLOCK_BYTES),
        )
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}
