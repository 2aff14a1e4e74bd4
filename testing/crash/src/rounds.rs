//! Threads whose operations really run beside each other, in rounds: each changes files of its own
//! in directories that they share, or its own blocks of one file; others sync and commit meanwhile.
//!
//! What is noted is the state after each round. That is enough for the judge, which looks at each
//! inode, each name and each block alone: in one round no two threads change the same one, so that
//! whatever a crash finds of it is as before the round or as after it. Syncs begin and end when
//! they like. What ends in the midst of a round is known in a state *between*, which is as the one
//! before the round, and the end of the round may be found as well
//! ([`crate::promise::History::promise_late`]).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use cowshed_device_sim::{Log, Rng};
use cowshed_harness::threads::SetOnDrop;
use cowshed_model::script::{Op, Prealloc, Scope};
use cowshed_model::tree::{self, NOCOW};
use cowshed_vfs::{FileSystem as _, NodeId};

use crate::draw::{self};
use crate::noted::promise;
use crate::promise::History;
use crate::rig::Fs;
use crate::rig::Player;
use crate::run::Run;
use crate::shared::{Told, Work};
use crate::workload::{self};

const THREADS: usize = 3;
/// Threads that sync.
const SYNCERS: usize = 2;
/// The file that all change, each in blocks of its own; the last thread behind them.
const SHARED: &str = "shared";
const BLOCK_BYTES: u64 = 4096;
const OWN_BLOCKS: u64 = 12;
const TAIL_FROM: u64 = (THREADS as u64 - 1) * OWN_BLOCKS * BLOCK_BYTES;
const TAIL_BYTES_MAX: u64 = 40 * BLOCK_BYTES;
/// Of the names of [`workload`], as many for each thread.
const LETTERS: usize = 6 / THREADS;

/// The names of files, and of their temporary ones, as those of a thread: none of them is
/// another's. `None` where the operation is about something else, a directory say.
fn as_own(op: &Op, thread: usize) -> Option<Op> {
    let mut op = op.clone();
    for path in op.paths_mut() {
        let at = path.rfind('/').map_or(0, |slash| slash + 1);
        let (dir, name) = path.split_at(at);
        let (letter, rest) = (name.bytes().next()?, name.get(1..)?);
        if !(b'a'..b'a' + (THREADS * LETTERS) as u8).contains(&letter) || !(rest.is_empty() || rest == ".tmp") {
            return None;
        }
        let own = usize::from(letter - b'a') % LETTERS + thread * LETTERS;
        *path = format!("{dir}{}{rest}", char::from(b'a' + own as u8));
    }
    Some(op)
}

/// A change of the shared file that is the thread's alone. `size` is what it is before the round.
fn on_shared(rng: &mut Rng, thread: usize, size: u64) -> Op {
    let path = SHARED.to_owned();
    let is_last = thread + 1 == THREADS;
    let (from, bytes) = match is_last {
        true => (TAIL_FROM, TAIL_BYTES_MAX),
        false => (thread as u64 * OWN_BLOCKS * BLOCK_BYTES, OWN_BLOCKS * BLOCK_BYTES),
    };
    let at = rng.below(bytes);
    let (offset, len) = (from + at, 1 + rng.below(bytes - at));
    let fill = rng.next_u64();
    let chance = rng.below(10);
    match (is_last, chance) {
        (true, 0..=4) if size < TAIL_FROM + TAIL_BYTES_MAX => {
            Op::write(path, size, 1 + rng.below(5 * BLOCK_BYTES) as usize, fill)
        }
        (true, 0..=6) => Op::truncate(path, offset),
        (true, 7) => Op::Fallocate {
            path,
            offset: offset & !(BLOCK_BYTES - 1),
            len,
            how: if rng.one_in(2) {
                Prealloc::KeepSize
            } else {
                Prealloc::Extend
            },
        },
        (_, 8) => Op::fallocate(Prealloc::Punch, path, offset, len),
        (false, 7) => Op::fallocate(Prealloc::Zero, path, offset, len),
        _ => Op::write(path, offset, len as usize, fill),
    }
}

/// The operations of a round, each for a thread.
fn next_round(rng: &mut Rng, queues: &mut [Vec<Op>], size: u64) -> Vec<Op> {
    if rng.one_in(3) {
        return (0..THREADS).map(|thread| on_shared(rng, thread, size)).collect();
    }
    let mut round = Vec::new();
    for (thread, queue) in queues.iter_mut().enumerate() {
        let Some(op) = queue.last() else { continue };
        match as_own(op, thread) {
            Some(own) => {
                queue.pop();
                round.push(own);
            }
            // Alone, when its turn comes first.
            None if round.is_empty() => return queue.pop().into_iter().collect(),
            None => {}
        }
    }
    round
}

/// The inodes of a round that belong to operations of which nothing may be seen, and to no other
/// ones: links from before the run may make one file of two threads' names. `history` is as it was
/// before the round.
fn quiet<'o>(ops: &'o [Op], history: &History, root: u64) -> Vec<(&'o Op, u64)> {
    let inos = |op: &Op| -> Vec<u64> {
        let paths = op.paths();
        paths.iter().filter_map(|path| history.newest_ino(root, path)).collect()
    };
    let loud: BTreeSet<u64> = ops.iter().filter(|op| !op.is_unseen()).flat_map(inos).collect();
    let unseen = ops.iter().filter(|op| op.is_unseen());
    let all = unseen.flat_map(|op| inos(op).into_iter().map(move |ino| (op, ino)));
    all.filter(|(_, ino)| !loud.contains(ino)).collect()
}

impl Work<'_> {
    fn one(&self, op: &Op) -> Result<bool> {
        match (op, op.synced()) {
            (Op::Sync, _) => self.sync_all().map(|()| false),
            (Op::Fsync { .. } | Op::Fdatasync { .. }, Some((path, scope))) => {
                let kept = self.sync_one(path, scope, None)?;
                self.forget(kept);
                Ok(false)
            }
            _ => match Player::new(self.fs).apply(op) {
                Ok(()) => Ok(true),
                Err(error) if workload::is_outcome(error) => Ok(false),
                Err(error) => bail!("`{op}` on a healthy device: {error}"),
            },
        }
    }

    fn forget(&self, node: Option<NodeId>) {
        if let Some(node) = node.filter(|node| *node != NodeId::ROOT) {
            self.fs.forget(node, 1);
        }
    }

    fn round(&self, ops: &[Op]) -> Result<()> {
        self.noted().is_between = true;
        let done: Vec<bool> = std::thread::scope(|scope| {
            let workers: Vec<_> = ops.iter().map(|op| scope.spawn(|| self.one(op))).collect();
            let join = |worker: std::thread::ScopedJoinHandle<'_, _>| {
                worker.join().map_err(|_| anyhow!("a thread panicked"))?
            };
            workers.into_iter().map(join).collect::<Result<_>>()
        })?;
        let mut noted = self.noted();
        noted.is_between = false;
        let quiet = quiet(ops, &noted.promised, self.root);
        let index = self.note(&mut noted)?;
        for (op, ino) in quiet {
            ensure!(
                noted.promised.is_unchanged(ino, index),
                "`{op}`: inode {ino} is another one than before"
            );
        }
        for (op, is_done) in ops.iter().zip(done) {
            promise(op, is_done, &mut noted.promised, index, self.root);
        }
        self.mark(index);
        Ok(())
    }

    /// Syncs this and that until the others are done.
    fn syncer(&self, mut rng: Rng, is_over: &AtomicBool, told: &Sender<Told>) -> Result<Vec<NodeId>> {
        let mut kept = Vec::new();
        while !is_over.load(Ordering::Acquire) {
            let path = match rng.below(4) {
                0 | 1 => SHARED.to_owned(),
                2 => ["", "p", "q"][rng.index(3)].to_owned(),
                _ => draw::path(&mut rng),
            };
            match rng.below(12) {
                0 => self.sync_all()?,
                1 => self.fs.mount().commit()?,
                n => {
                    let scope = if n < 5 { Scope::Data } else { Scope::All };
                    kept.extend(self.sync_one(&path, scope, rng.one_in(2).then_some(told))?);
                }
            }
            std::thread::sleep(Duration::from_micros(rng.below(400)));
        }
        Ok(kept)
    }
}

/// Makes the file that all threads change.
pub(crate) fn prepare(fs: &Fs, rng: &mut Rng, run: &Run) -> Result<()> {
    let path = || SHARED.to_owned();
    let write = |len: u64, fill: u64| Op::write(path(), 0, len as usize, fill);
    let mut ops = vec![write(TAIL_FROM + 3 * BLOCK_BYTES + 700, rng.next_u64())];
    if run.may_write_in_place() && rng.one_in(3) {
        let flags = Op::flags(path(), NOCOW);
        // A file must be empty for that.
        ops.splice(..0, [write(0, 0), flags]);
    }
    let player = Player::new(fs);
    Ok(ops.iter().try_for_each(|op| player.apply(op))?)
}

/// Lets all threads work; gives what happened.
pub(crate) fn play(fs: &Fs, rng: &mut Rng, run: &Run, log: &Log) -> Result<History> {
    let work = Work::new(fs, log, tree::take(fs)?, true);
    let mut queues: Vec<Vec<Op>> = (0..THREADS)
        .map(|_| {
            let mut ops = workload::choose(rng, run.mix, run.ops / THREADS);
            ops.retain(|op| run.may_write_in_place() || !op.makes_in_place());
            ops.reverse();
            ops
        })
        .collect();
    let is_over = AtomicBool::new(false);
    let kept = work.told_of(|told| {
        std::thread::scope(|scope| {
            let syncers: Vec<_> = (0..SYNCERS)
                .map(|_| {
                    let (rng, told, work, is_over) = (Rng::new(rng.next_u64()), told.clone(), &work, &is_over);
                    scope.spawn(move || work.syncer(rng, is_over, &told))
                })
                .collect();
            // The syncers end with a panic here, too.
            let over = SetOnDrop(&is_over);
            let mut rounds = || {
                while queues.iter().any(|queue| !queue.is_empty()) {
                    let size = work.size_of(SHARED);
                    let ops = next_round(rng, &mut queues, size);
                    work.round(&ops)?;
                }
                Ok(())
            };
            let worked: Result<()> = rounds();
            drop(over);
            let mut kept = Vec::new();
            for syncer in syncers {
                kept.extend(syncer.join().map_err(|_| anyhow!("a thread panicked"))??);
            }
            worked?;
            Ok(kept)
        })
    })?;
    kept.into_iter().for_each(|node| work.forget(Some(node)));
    Ok(work.into_noted().promised)
}
