//! Atomic groups that stay open, spread over the operations of a run: they begin, are staged into
//! and end in any order, several at a time, and what the run does to their files and to others goes
//! on in between.

use cowshed_device_sim::Rng;
use cowshed_model::script::{Op, Prealloc};

use crate::draw::{self};

const GROUPS: usize = 3;
const FILES_MAX: usize = 3;
/// Paths that were written to lately: these files are likely to be there.
const RECENT: usize = 6;
const OFFSET_BYTES_MAX: u64 = 120 << 10;
const WRITE_BYTES_MAX: u64 = 20_000;

/// The groups as they are where all operations succeed: their files.
struct World<'r> {
    rng: &'r mut Rng,
    open: [Option<Vec<String>>; GROUPS],
    recent: Vec<String>,
    ops: Vec<Op>,
}

/// Puts groups into the run. The dice are others than those that chose it.
pub(crate) fn spread(ops: Vec<Op>, seed: u64) -> Vec<Op> {
    const KIND: u64 = 0x0067_726f_7570_7300;
    let mut rng = Rng::new(seed ^ KIND);
    let mut world = World {
        rng: &mut rng,
        open: Default::default(),
        recent: Vec::new(),
        ops: Vec::new(),
    };
    let end = ops.len().saturating_sub(1);
    for (n, op) in ops.into_iter().enumerate() {
        // A run ends with a sync: in half of them groups are open then.
        if n == end && world.rng.one_in(2) {
            (0..GROUPS).for_each(|group| world.end(group));
        }
        world.note(&op);
        world.ops.push(op);
        while n != end && world.rng.one_in(2) {
            world.step();
        }
    }
    world.ops
}

impl World<'_> {
    fn note(&mut self, op: &Op) {
        if let Op::Unlink { path } | Op::Rename { from: path, .. } = op {
            self.recent.retain(|other| other != path);
        }
        if let Op::Write { path, .. } | Op::Temporary { to: path, .. } = op {
            self.recent.retain(|other| other != path);
            self.recent.push(path.clone());
            let from = self.recent.len().saturating_sub(RECENT);
            self.recent.drain(..from);
        }
    }

    fn step(&mut self) {
        let group = self.rng.index(GROUPS);
        if self.open[group].is_none() {
            return self.begin(group);
        }
        match self.rng.below(10) {
            0 | 1 => self.end(group),
            2 => self.beside(group),
            // Asked for while it is open, or by another handle.
            3 if self.rng.one_in(4) => self.begin(group),
            _ => self.stage(group),
        }
    }

    fn begin(&mut self, group: usize) {
        let held: Vec<String> = self.open.iter().flatten().flatten().cloned().collect();
        let by_handle = self.rng.one_in(2);
        let files = if by_handle { 1 } else { 1 + self.rng.index(FILES_MAX) };
        let mut paths: Vec<String> = Vec::new();
        for _ in 0..files {
            let from = if self.rng.one_in(4) { &held } else { &self.recent };
            if from.is_empty() {
                continue;
            }
            let path = from[self.rng.index(from.len())].clone();
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        if paths.is_empty() {
            return;
        }
        // Most of them are made with it.
        for path in &paths {
            if !self.rng.one_in(4) {
                self.ops.push(Op::write(
                    path.clone(),
                    0,
                    1 + self.rng.below(WRITE_BYTES_MAX) as usize,
                    self.rng.next_u64(),
                ));
            }
        }
        self.ops.push(Op::begin(by_handle, group as u8, paths.clone()));
        if self.open[group].is_none() {
            self.open[group] = Some(paths);
            self.stage(group);
        }
    }

    fn stage(&mut self, group: usize) {
        let files = self.open[group].as_ref().map_or(0, Vec::len);
        for _ in 0..1 + self.rng.below(3) {
            self.ops.push(Op::stage(
                group as u8,
                self.rng.index(files.max(1)) as u8,
                match self.rng.one_in(3) {
                    true => 0,
                    false => self.rng.below(OFFSET_BYTES_MAX),
                },
                1 + self.rng.below(WRITE_BYTES_MAX) as usize,
                self.rng.next_u64(),
            ));
        }
    }

    fn end(&mut self, group: usize) {
        if self.open[group].take().is_some() {
            self.ops.push(Op::end(group as u8, !self.rng.one_in(4)));
        }
    }

    /// A call outside the group does something to a file of the group.
    fn beside(&mut self, group: usize) {
        let Some(files) = &self.open[group] else { return };
        let path = files[self.rng.index(files.len())].clone();
        let (offset, len) = (self.rng.below(OFFSET_BYTES_MAX), 1 + self.rng.below(WRITE_BYTES_MAX));
        let other = draw::path(self.rng);
        let clone = |from: String, to: String| Op::CloneRange {
            from,
            from_offset: 0,
            to,
            to_offset: 0,
            len: 0,
        };
        let op = match self.rng.below(12) {
            0 | 1 => Op::truncate(path, offset),
            2 => clone(path, other),
            3 => clone(other, path),
            4 => Op::unlink(path),
            5 => Op::rename(path, other),
            6 => Op::rename(other, path),
            7 => Op::fsync(path),
            8 => Op::fallocate(Prealloc::Punch, path, offset, len),
            9 => draw::defrag(self.rng, path),
            10 => Op::link(path, other),
            _ => Op::write(path, offset, len as usize, self.rng.next_u64()),
        };
        self.ops.push(op);
    }
}
