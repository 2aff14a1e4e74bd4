//! Several threads in the same directories, on the same files: some sync while the others work.
//!
//! Operations go one after the other, each with its state noted; syncs do not: they begin at a
//! state, run beside operations and other syncs, half of them told later (as the mount has it), and
//! promise the state at which they began from the moment at which they are known to be done.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use cowshed_device_sim::{Log, Rng};
use cowshed_model::script::{Op, Scope};
use cowshed_model::tree::{self, Tree};
use cowshed_vfs::{Error, FileSystem as _, Handle, NodeId};

use crate::beside;
use crate::noted::{promise, unseen};
use crate::promise::{History, Promise};
use crate::rig::Player;
use crate::rig::{Fs, ROOT};
use crate::run::{Run, SYNC_MARK};
use crate::several;
use crate::snapshots;
use crate::workload::{self};

/// A sync takes no longer.
const TOLD_MAX: Duration = Duration::from_secs(120);
/// What all threads sync.
const SHARED: [&str; 4] = ["", "p", "a", "p/a"];

/// What has happened.
pub(crate) struct Noted {
    pub(crate) names: beside::History,
    pub(crate) promised: History,
    /// Operations are under way whose state is not noted yet.
    pub(crate) is_between: bool,
}

pub(crate) struct Work<'w> {
    pub(crate) fs: &'w Fs,
    log: &'w Log,
    pub(crate) root: u64,
    noted: Mutex<Noted>,
    /// What a path leads to may go while it is looked up.
    races: bool,
}

/// A sync that was told: from which state on, what, and with which outcome.
pub(crate) struct Told {
    floor: usize,
    what: Promise,
    result: cowshed_vfs::Result<()>,
}

impl<'w> Work<'w> {
    /// Work that begins with this state.
    pub(crate) fn new(fs: &'w Fs, log: &'w Log, first: Tree, races: bool) -> Self {
        let root = first.get("").map_or(0, |node| node.ino);
        let mut names = beside::History::default();
        let promised = History::new(&first);
        names.note(first);
        Self {
            fs,
            log,
            root,
            noted: Mutex::new(Noted {
                names,
                promised,
                is_between: false,
            }),
            races,
        }
    }

    pub(crate) fn into_noted(self) -> Noted {
        self.noted.into_inner().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn is_outcome(&self, error: Error) -> bool {
        workload::is_outcome(error) || (self.races && error == Error::Stale)
    }

    /// Notes the state that there is; gives its index.
    pub(crate) fn note(&self, noted: &mut Noted) -> Result<usize> {
        let state = tree::take(self.fs)?;
        let index = noted.promised.note(&state, None);
        noted.names.note(state);
        Ok(index)
    }

    /// What led to this state has returned.
    pub(crate) fn mark(&self, index: usize) {
        self.log.mark(several::mark(0, index));
    }

    /// The size of a file as it is noted.
    pub(crate) fn size_of(&self, path: &str) -> u64 {
        let noted = self.noted();
        let ino = noted.promised.newest_ino(self.root, path);
        ino.and_then(|ino| noted.promised.newest_node(ino))
            .map_or(0, |node| node.size_bytes)
    }

    /// Alone among the operations, and beside syncs.
    fn operation(&self, op: &Op) -> Result<()> {
        let mut noted = self.noted();
        let result = Player::new(self.fs).apply(op);
        if let Err(error) = result
            && !workload::is_outcome(error)
        {
            bail!("`{op}` on a healthy device: {error}");
        }
        let index = self.note(&mut noted)?;
        unseen(op, &noted.promised, index, self.root)?;
        promise(op, result.is_ok(), &mut noted.promised, index, self.root);
        self.mark(index);
        Ok(())
    }

    pub(crate) fn sync_all(&self) -> Result<()> {
        let (floor, names) = {
            let noted = self.noted();
            (noted.promised.newest(), noted.names.names.len() as u64 - 1)
        };
        self.fs.syncfs(&ROOT, NodeId::ROOT)?;
        let mut noted = self.noted();
        let is_between = noted.is_between;
        let index = noted.promised.promise_late(floor, Promise::Volume, is_between);
        self.log.mark(SYNC_MARK + names);
        self.mark(index);
        Ok(())
    }

    /// An fsync, after which the node is to be forgotten.
    pub(crate) fn sync_one(&self, path: &str, scope: Scope, told: Option<&Sender<Told>>) -> Result<Option<NodeId>> {
        let (floor, kept) = {
            let noted = self.noted();
            (noted.promised.newest(), Player::new(self.fs).keep(path))
        };
        let (node, ino) = match kept {
            Ok(kept) => kept,
            Err(error) if self.is_outcome(error) => return Ok(None),
            Err(error) => bail!("{path:?} on a healthy device: {error}"),
        };
        let (what, data_only) = match scope {
            Scope::All => (Promise::Inode(ino), false),
            Scope::Data => (Promise::Data(ino), true),
        };
        let tell = move |result| Told { floor, what, result };
        match told.cloned() {
            // The callback must not wait for anything: the thread that calls it serves others.
            Some(told) => {
                let done = Box::new(move |result| drop(told.send(tell(result))));
                self.fs.fsync_later(&ROOT, node, Handle::NONE, data_only, &|| {}, done);
            }
            None => self.is_done(&tell(self.fs.fsync(&ROOT, node, Handle::NONE, data_only)))?,
        }
        Ok(Some(node))
    }

    fn is_done(&self, told: &Told) -> Result<()> {
        match told.result {
            Ok(()) => {
                let mut noted = self.noted();
                let is_between = noted.is_between;
                let index = noted.promised.promise_late(told.floor, told.what, is_between);
                self.mark(index);
                Ok(())
            }
            Err(error) if self.is_outcome(error) => Ok(()),
            Err(error) => bail!("fsync on a healthy device: {error}"),
        }
    }

    /// Notes outcomes of syncs until all that were begun have one.
    fn replies(&self, told: &Receiver<Told>) -> Result<()> {
        loop {
            match told.recv_timeout(TOLD_MAX) {
                Ok(told) => self.is_done(&told)?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => bail!("an fsync was not told for {TOLD_MAX:?}"),
            }
        }
    }

    /// Does `work`, which is given whom to tell of syncs, and notes what is told until all are
    /// done.
    pub(crate) fn told_of<T>(&self, work: impl FnOnce(&Sender<Told>) -> Result<T>) -> Result<T> {
        std::thread::scope(|scope| {
            let (told, replies) = channel();
            let replier = scope.spawn(move || self.replies(&replies));
            let worked = work(&told);
            drop(told);
            let noted = replier
                .join()
                .map_err(|_| anyhow!("the thread that is told panicked"))?;
            let value = worked?;
            noted?;
            Ok(value)
        })
    }

    /// Gives the nodes that are to be forgotten when all syncs are done.
    fn thread(&self, ops: &[Op], mut rng: Rng, told: &Sender<Told>) -> Result<Vec<NodeId>> {
        let mut kept = Vec::new();
        for op in ops {
            let later = rng.one_in(2).then_some(told);
            match (op, op.synced()) {
                (Op::Sync, _) => self.sync_all()?,
                (Op::Fsync { .. } | Op::Fdatasync { .. }, Some((path, scope))) => {
                    kept.extend(self.sync_one(path, scope, later)?);
                }
                _ => self.operation(op)?,
            }
            if rng.one_in(2) {
                let path = SHARED[rng.index(SHARED.len())];
                let scope = if rng.one_in(4) { Scope::Data } else { Scope::All };
                kept.extend(self.sync_one(path, scope, later)?);
            }
        }
        Ok(kept)
    }
}

/// Lets all threads work; gives what happened.
pub(crate) fn play(fs: &Fs, rng: &mut Rng, run: &Run, log: &Log) -> Result<(beside::History, History)> {
    let work = Work::new(fs, log, tree::take(fs)?, false);
    let (threads, ops_of_each) = several::threads(run);
    let runs: Vec<(Vec<Op>, Rng)> = (0..threads)
        .map(|_| {
            let mut ops = workload::choose(rng, run.mix, ops_of_each);
            ops.retain(|op| run.may_write_in_place() || !op.makes_in_place());
            if run.snapshots {
                snapshots::spread(&mut ops, rng);
            }
            (ops, Rng::new(rng.next_u64()))
        })
        .collect();
    let kept = work.told_of(|told| {
        std::thread::scope(|scope| {
            let workers: Vec<_> = runs
                .into_iter()
                .map(|(ops, rng)| {
                    let (told, work) = (told.clone(), &work);
                    scope.spawn(move || work.thread(&ops, rng, &told))
                })
                .collect();
            let mut kept = Vec::new();
            for worker in workers {
                kept.extend(worker.join().map_err(|_| anyhow!("a thread panicked"))??);
            }
            Ok(kept)
        })
    })?;
    let kept = kept.into_iter().filter(|node| *node != NodeId::ROOT);
    kept.for_each(|node| fs.forget(node, 1));
    let noted = work.into_noted();
    Ok((noted.names, noted.promised))
}
