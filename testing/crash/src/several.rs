//! Several threads, each in a directory of its own: what each was promised must hold whatever the
//! others did.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, anyhow, bail};
use cowshed_device_sim::{Log, Rng};
use cowshed_model::script::{Counts, Desk, Op};
use cowshed_model::tree::{self, Tree};
use cowshed_vfs::{Error, FileSystem as _, Lookup, NodeId};

use crate::full;
use crate::noted::{promise, unseen};
use crate::open_groups;
use crate::promise::History;
use crate::rig::Player;
use crate::rig::{Fs, ROOT};
use crate::run::{DONE_MARK, Run};
use crate::workload::{self};

const THREADS_MIN: u64 = 2;
const THREADS_MAX: u64 = 8;
/// Directories are made before anything else.
const OPS_MIN: usize = 12;
const THREAD_SHIFT: u32 = 32;

fn dir(thread: usize) -> String {
    format!("thread-{thread}")
}

/// The mark that a thread's operation which led to this state has returned.
pub(crate) fn mark(thread: usize, index: usize) -> u64 {
    DONE_MARK | (thread as u64) << THREAD_SHIFT | index as u64
}

/// The last state whose operation had returned.
pub(crate) fn done(marks: &[u64], thread: usize) -> usize {
    let first = mark(thread, 0);
    let of_thread = |mark: &&u64| **mark >> THREAD_SHIFT == first >> THREAD_SHIFT;
    marks
        .iter()
        .rev()
        .find(of_thread)
        .map_or(0, |mark| (mark - first) as usize)
}

/// What a thread's directory holds.
pub(crate) fn below(tree: &Tree, thread: usize) -> Tree {
    let dir = dir(thread);
    let inner = |path: &str| match path.strip_prefix(&dir)? {
        "" => Some(String::new()),
        rest => rest.strip_prefix('/').map(str::to_owned),
    };
    tree.iter()
        .filter_map(|(path, node)| Some((inner(path)?, node.clone())))
        .collect()
}

/// How many work, which follows from the seed, and with how many operations each.
pub(crate) fn threads(run: &Run) -> (usize, usize) {
    const KIND: u64 = 0x7468_7265_6164_7300;
    let count = (THREADS_MIN + Rng::new(run.seed ^ KIND).below(THREADS_MAX - THREADS_MIN + 1)) as usize;
    (count, (run.ops / count).max(OPS_MIN))
}

/// Makes the directories.
pub(crate) fn prepare(fs: &Fs, run: &Run) -> Result<()> {
    for thread in 0..threads(run).0 {
        match Player::new(fs).apply(&Op::mkdir(dir(thread))) {
            // It may be a subvolume.
            Ok(()) | Err(Error::Exists) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Lets all threads work; gives what each did.
/// Also, how many operations found no space, and what became of atomic groups.
pub(crate) fn play(fs: &Fs, rng: &mut Rng, run: &Run, log: &Log) -> Result<(Vec<History>, usize, Counts)> {
    let (in_place, is_full) = (run.may_write_in_place(), run.is_full());
    let refused = AtomicUsize::new(0);
    let refused = is_full.then_some(&refused);
    let (threads, ops_of_each) = threads(run);
    let runs: Vec<Vec<Op>> = (0..threads)
        .map(|thread| {
            let mut ops = workload::choose(rng, run.mix, ops_of_each);
            ops.retain(|op| in_place || !op.makes_in_place());
            open_groups::spread(ops, run.seed.wrapping_add(thread as u64))
        })
        .collect();
    std::thread::scope(|scope| {
        let workers: Vec<_> = runs
            .iter()
            .enumerate()
            .map(|(thread, ops)| scope.spawn(move || play_one(fs, thread, ops, log, refused)))
            .collect();
        let join =
            |worker: std::thread::ScopedJoinHandle<'_, _>| worker.join().map_err(|_| anyhow!("a thread panicked"))?;
        let (mut histories, mut groups) = (Vec::new(), Counts::default());
        for worker in workers {
            let (history, counts) = join(worker)?;
            histories.push(history);
            groups += counts;
        }
        Ok((
            histories,
            refused.map_or(0, |count| count.load(Ordering::Relaxed)),
            groups,
        ))
    })
}

/// `refused` counts what finds no space; without it that is a fault.
fn play_one(fs: &Fs, thread: usize, ops: &[Op], log: &Log, refused: Option<&AtomicUsize>) -> Result<(History, Counts)> {
    let root: NodeId = match fs.lookup(&ROOT, NodeId::ROOT, dir(thread).as_bytes())? {
        Lookup::Found(entry) => entry.node,
        Lookup::Absent { .. } => bail!("{} is missing", dir(thread)),
    };
    let desk = Desk::default();
    let player = Player::with_desk(fs, &desk).below(root);
    let first = tree::take_below(fs, root, "")?;
    let ino = first[""].ino;
    let mut history = History::new(&first);
    for op in ops {
        let result = player.apply(op);
        if let (Err(Error::NoSpace), Some(count)) = (result, refused)
            && full::may_fail(op)
        {
            count.fetch_add(1, Ordering::Relaxed);
        } else if let Err(error) = result
            && !workload::is_outcome(error)
        {
            bail!("`{op}` in {} on a healthy device: {error}", dir(thread));
        }
        let state = tree::take_below(fs, root, "").with_context(|| format!("after `{op}`"))?;
        let index = history.note(&state, None);
        unseen(op, &history, index, ino)?;
        promise(op, result.is_ok(), &mut history, index, ino);
        log.mark(mark(thread, index));
    }
    fs.forget(root, 1);
    Ok((history, desk.counts()))
}
