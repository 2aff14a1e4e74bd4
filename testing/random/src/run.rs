//! One run from a seed.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cowshed_model::{Answer, At, BLOCK_BYTES, Body, Generator, Id, Mix, Model, Op, Outcome, Rng};
use cowshed_vfs::{Error, FallocateFlags, FileSystem as _, Timestamp};

use crate::atomic::{self, Cases};
use crate::compare::{self, Depth, Numbers};
use crate::judge;
use crate::subject::{Setup, Subject};

/// An operation that takes longer than this hangs.
const STUCK: Duration = Duration::from_secs(120);

/// What to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub seed: u64,
    pub operations: usize,
    pub setup: Setup,
    pub mix: Mix,
    /// The volume is small: `NoSpace` is an answer, as long as it changes nothing.
    pub may_fill: bool,
    /// `btrfs check` and the kernel at the end.
    pub btrfs_check: bool,
    /// Our own checker once in so many commits.
    pub check_one_in: u64,
    /// How long a failing run may be cut shorter for.
    pub shrink: Duration,
    /// Says now and then how far it is.
    pub progress: bool,
}

impl Config {
    pub fn new(seed: u64, operations: usize) -> Config {
        Config {
            seed,
            operations,
            setup: Setup::default(),
            mix: Mix::default(),
            may_fill: false,
            btrfs_check: false,
            check_one_in: 3,
            shrink: Duration::from_secs(20),
            progress: false,
        }
    }
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub operations: usize,
    pub succeeded: usize,
    pub full: usize,
    pub commits: usize,
    pub remounts: usize,
    pub crashes: usize,
    pub nodes: usize,
    /// Cases of atomic groups.
    pub groups: Cases,
}

/// A difference, and the operations that lead to it.
#[derive(Debug)]
pub struct Failure {
    pub seed: u64,
    pub operations: Vec<Op>,
    pub error: anyhow::Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        let skipped = self.operations.len().saturating_sub(SHOWN);
        writeln!(f, "seed {}: after {} operations:", self.seed, self.operations.len())?;
        if skipped > 0 {
            writeln!(f, "  ({skipped} operations not shown)")?;
        }
        for (n, op) in self.operations.iter().enumerate().skip(skipped) {
            writeln!(f, "  {n:6} {op:?}")?;
        }
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for Failure {}

/// Runs; a failure is cut short.
pub fn run(config: &Config) -> Result<Summary, Box<Failure>> {
    let mut ops = Vec::new();
    match guarded(config, None, &mut ops) {
        Ok(summary) => Ok(summary),
        Err(error) => {
            eprintln!(
                "seed {}: operation {}: {error:#}\ncutting it short ...",
                config.seed,
                ops.len()
            );
            let (operations, error) = shrink(config, ops, error);
            Err(Box::new(Failure {
                seed: config.seed,
                operations,
                error,
            }))
        }
    }
}

/// Runs given operations.
pub fn replay(config: &Config, given: &[Op]) -> Result<Summary> {
    guarded(config, Some(given), &mut Vec::new())
}

fn guarded(config: &Config, given: Option<&[Op]>, ops: &mut Vec<Op>) -> Result<Summary> {
    let result = catch_unwind(AssertUnwindSafe(|| Run::new(config)?.go(given, ops)));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).into()));
        Err(anyhow!("panic: {}", text.unwrap_or_default()))
    })
}

/// Do two failures look like one? Numbers in them may differ.
fn is_alike(a: &anyhow::Error, b: &anyhow::Error) -> bool {
    let letters = |e: &anyhow::Error| {
        let text = e.root_cause().to_string();
        text.chars().filter(|c| c.is_alphabetic()).take(24).collect::<String>()
    };
    letters(a) == letters(b)
}

/// Leaves out pieces as long as it still fails in the same way.
fn shrink(config: &Config, mut ops: Vec<Op>, mut error: anyhow::Error) -> (Vec<Op>, anyhow::Error) {
    let deadline = Instant::now() + config.shrink;
    let quiet = Config {
        progress: false,
        btrfs_check: false,
        ..config.clone()
    };
    std::panic::set_hook(Box::new(|_| {}));
    let mut piece = ops.len().div_ceil(2).max(1);
    'again: while Instant::now() < deadline {
        let mut from = 0;
        let mut shorter = false;
        while from < ops.len() {
            if Instant::now() >= deadline {
                break 'again;
            }
            let to = (from + piece).min(ops.len());
            let rest: Vec<Op> = ops[..from].iter().chain(&ops[to..]).cloned().collect();
            let mut done = Vec::new();
            match guarded(&quiet, Some(&rest), &mut done) {
                Err(new) if is_alike(&new, &error) => (ops, error, shorter) = (done, new, true),
                _ => from = to,
            }
        }
        if piece == 1 && !shorter {
            break;
        }
        piece = if shorter && piece == 1 { 1 } else { (piece / 2).max(1) };
    }
    let _ = std::panic::take_hook();
    (ops, error)
}

struct Run<'a> {
    config: &'a Config,
    subject: Subject,
    model: Model,
    numbers: Numbers,
    /// As it was at the last `Sync`, with nothing committed since.
    durable: Option<Model>,
    dice: Rng,
    /// Of given operations each is judged.
    is_replay: bool,
    summary: Summary,
}

impl<'a> Run<'a> {
    fn new(config: &'a Config) -> Result<Run<'a>> {
        let subject = Subject::new(&config.setup)?;
        let model = subject.model()?;
        Ok(Run {
            config,
            subject,
            durable: None,
            model,
            numbers: Numbers::new(),
            dice: Rng::new(!config.seed),
            is_replay: false,
            summary: Summary::default(),
        })
    }

    fn go(&mut self, given: Option<&[Op]>, ops: &mut Vec<Op>) -> Result<Summary> {
        let watch = Watch::start(self.config.seed);
        // A list that was cut short must not depend on where the dice fall.
        self.is_replay = given.is_some();
        let mut generator = Generator::new(self.config.seed, self.config.mix);
        let count = given.map_or(self.config.operations, <[Op]>::len);
        let started = Instant::now();
        for n in 0..count {
            let op = given.map_or_else(|| generator.draw(&self.model), |g| g[n].clone());
            watch.note(n, &op);
            ops.push(op.clone());
            self.step(&op).with_context(|| format!("operation {n}: {op:?}"))?;
            if self.config.progress && n % 10_000 == 9_999 {
                let nodes = self.model.node_count();
                eprintln!(
                    "{} operations in {:.0} s, {nodes} nodes, {} full",
                    n + 1,
                    started.elapsed().as_secs_f64(),
                    self.summary.full
                );
            }
        }
        watch.note(count, &Op::Sync);
        self.step(&Op::Remount).context("at the end")?;
        self.verify().context("at the end")?;
        judge::own_check(&self.subject.devices).context("at the end")?;
        if self.config.btrfs_check {
            self.subject.fs.destroy();
            judge::btrfs_check(&self.subject.devices)?;
        }
        self.summary.nodes = self.model.node_count();
        Ok(self.summary.clone())
    }

    fn step(&mut self, op: &Op) -> Result<()> {
        let now = self.subject.clock.advance();
        let logged = self.synced_by(op);
        let found = self.subject.apply(op)?;
        self.summary.operations += 1;
        if self.config.may_fill && found == Err(Error::NoSpace) {
            self.summary.full += 1;
            ensure!(
                !matches!(op, Op::Unlink { .. } | Op::Rmdir { .. }),
                "a full volume must be able to delete"
            );
            self.without_space(op, now);
            if self.dice.one_in(self.config.check_one_in * 4) {
                self.verify().context("after it failed for want of space")?;
            }
            return Ok(());
        }
        let op = &shortened(op, &found);
        atomic::note(&mut self.summary.groups, &self.model, op, &found);
        let hole = self.perhaps_hole(op);
        let expected = self.model.apply(op, now);
        same_answer(op, &found, &expected, &self.model)?;
        if let Some((id, at, times)) = hole.filter(|_| found.is_ok())
            && self.subject.with(&at, |node| Ok(self.subject.attr(node)?.mtime))? == times.0
        {
            self.model.set_changed(id, times);
        }
        self.summary.succeeded += usize::from(found.is_ok());
        compare::attributes(&self.subject, &self.model, op).context("after it")?;
        let logs = found.is_ok() && self.config.setup.tree_log;
        if !logged.is_empty() && logs && (self.dice.one_in(4) || self.is_replay) {
            self.crash_after_fsync(&logged)?;
        }
        self.after(op)
    }

    /// What found no space has changed nothing; but a group whose end failed is gone, and one whose
    /// first write failed has its handle.
    fn without_space(&mut self, op: &Op, now: Timestamp) {
        match op {
            Op::EndGroup { group, .. } => self.model.drop_group(*group),
            Op::Stage { group, at, .. } if Op::is_of_handle(*group) => {
                let begin = Op::stage(*group, at.clone(), 0, 0, 0);
                let _ = self.model.apply(&begin, now);
            }
            _ => {}
        }
    }

    /// Punching a hole where one is changes nothing, times neither. The model does not know which
    /// zeros are holes: the file whose zeros are punched, and its times before.
    fn perhaps_hole(&self, op: &Op) -> Option<(Id, At, (Timestamp, Timestamp))> {
        let Op::Fallocate { at, mode, offset, len } = op else {
            return None;
        };
        if !mode.contains(FallocateFlags::PUNCH_HOLE) {
            return None;
        }
        let id = self.model.resolve(at).ok()?;
        let node = self.model.node(id);
        let Body::File(content) = &node.body else { return None };
        let start = offset / BLOCK_BYTES * BLOCK_BYTES;
        let end = offset.checked_add(*len)?.checked_next_multiple_of(BLOCK_BYTES)?;
        content
            .is_zero(start, end)
            .then(|| (id, at.clone(), (node.mtime, node.ctime)))
    }

    /// The nodes that the operation makes durable.
    fn synced_by(&self, op: &Op) -> Vec<Id> {
        match op {
            Op::Fsync { at } => self.model.resolve(at).into_iter().collect(),
            Op::EndGroup { group, commit: true } => self.model.staged_files(*group),
            _ => Vec::new(),
        }
    }

    /// A crash at this moment leaves the nodes that were just synced as they are, under all of
    /// their names. The directories on the way to them are known by their numbers: where one was
    /// moved, only an fsync of its own makes that durable.
    fn crash_after_fsync(&mut self, ids: &[Id]) -> Result<()> {
        self.summary.crashes += 1;
        if self.model.open_groups().next().is_some() {
            atomic::count(
                &mut self.summary.groups,
                "a crash after a sync of a file beside a group",
            );
        }
        let other = Subject::on(self.subject.snapshot(), &self.config.setup).context("a crash after an fsync")?;
        let dirs = compare::directories(&other)?;
        // What a group wrote to may be gone with its end.
        let lasting = ids.iter().filter(|id| self.model.exists(**id));
        let paths = lasting.flat_map(|id| self.model.paths(*id).into_iter().map(move |path| (*id, path)));
        for (id, path) in paths {
            let found = match path.split_last() {
                None => path.clone(),
                Some((name, parent)) => {
                    let parent = At::Path(parent.to_vec());
                    let ino = self.subject.with(&parent, |node| Ok(self.subject.attr(node)?.ino))?;
                    let parent = dirs
                        .get(&ino)
                        .ok_or_else(|| anyhow!("a crash after an fsync: {parent:?} is lost"))?;
                    [&parent[..], &[*name]].concat()
                }
            };
            compare::one(&other, &found, &self.model, id).context("a crash after an fsync")?;
        }
        other.fs.destroy();
        judge::own_check(&other.devices).context("a crash after an fsync, and a mount")
    }

    fn after(&mut self, op: &Op) -> Result<()> {
        match op {
            Op::Commit | Op::Sync | Op::Cool | Op::Fsync { .. } | Op::EndGroup { commit: true, .. } | Op::Remount => {}
            _ if self.durable.is_some() && self.dice.one_in(150) => return self.crash(),
            _ => return Ok(()),
        }
        self.durable = None;
        self.summary.commits += 1;
        match op {
            Op::Commit if self.dice.one_in(self.config.check_one_in) => judge::own_check(&self.subject.snapshot())?,
            Op::Sync | Op::Cool | Op::Remount => {
                self.verify()?;
                if self.dice.one_in(self.config.check_one_in) {
                    judge::own_check(&self.subject.snapshot())?;
                }
                self.summary.remounts += usize::from(matches!(op, Op::Remount));
                self.durable = Some(self.model.clone());
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything is as the model says.
    fn verify(&mut self) -> Result<()> {
        compare::everything(&self.subject, &self.model, &mut self.numbers, Depth::All)
    }

    /// What a crash at this moment leaves is what the last sync made durable: a private copy is
    /// mounted and compared.
    fn crash(&mut self) -> Result<()> {
        let Some(durable) = &self.durable else { return Ok(()) };
        if self.config.may_fill || self.config.setup.commit_interval_s != 0 {
            return Ok(());
        }
        self.summary.crashes += 1;
        if self.model.open_groups().count() > 1 {
            atomic::count(&mut self.summary.groups, "a crash beside two groups");
        }
        let copy = self.subject.snapshot();
        judge::own_check(&copy).context("after a crash")?;
        let mut model = durable.clone();
        model.close_all();
        let other = Subject::on(copy, &self.config.setup).context("after a crash")?;
        let mut numbers = self.numbers.clone();
        numbers.retain(|id, _| model.exists(*id));
        compare::everything(&other, &model, &mut Numbers::new(), Depth::Crashed).context("after a crash")?;
        other.fs.destroy();
        judge::own_check(&other.devices).context("after a crash and a mount")
    }
}

/// The operation as far as it went: writes and copies may be short.
pub fn shortened(op: &Op, found: &Outcome) -> Op {
    match (op, found) {
        (
            Op::Write {
                at,
                offset,
                len,
                fill,
                append,
            },
            Ok(Answer::Count(n)),
        ) if *n > 0 && *n < u64::from(*len) => Op::write(at.clone(), *offset, *n as u32, *fill, *append),
        (
            Op::Copy {
                src,
                src_offset,
                dst,
                dst_offset,
                len,
            },
            Ok(Answer::Count(n)),
        ) if *n > 0 && n < len => Op::copy(src.clone(), *src_offset, dst.clone(), *dst_offset, *n),
        _ => op.clone(),
    }
}

/// The answers agree; where data is, a file system may say more.
pub(crate) fn same_answer(op: &Op, found: &Outcome, expected: &Outcome, model: &Model) -> Result<()> {
    use cowshed_model::SeekFrom;
    if let Op::Seek { at, offset, what } = op {
        let end = model.resolve(at).map(|id| model.node(id).size_bytes()).unwrap_or(0);
        match (what, found, expected) {
            (SeekFrom::Data, Ok(Answer::Count(n)), Ok(Answer::Count(latest))) if offset <= n && n <= latest => {
                return Ok(());
            }
            (SeekFrom::Data, Ok(Answer::Count(n)), Err(Error::NoSuchDevice)) if offset <= n && *n < end => {
                return Ok(());
            }
            (SeekFrom::Hole, Ok(Answer::Count(n)), Ok(_)) if offset <= n && *n <= end => return Ok(()),
            _ => {}
        }
    }
    if let (Ok(Answer::Blocks(found)), Ok(Answer::Blocks(held))) = (found, expected) {
        let missing: Vec<_> = held
            .iter()
            .filter(|block| found.binary_search(block).is_err())
            .collect();
        ensure!(missing.is_empty(), "the map shows no data in blocks {missing:?}");
        return Ok(());
    }
    if let (Ok(Answer::Bytes(a)), Ok(Answer::Bytes(b))) = (found, expected) {
        let first = a.iter().zip(b).position(|(a, b)| a != b);
        if a.len() != b.len() || first.is_some() {
            bail!(
                "read {} bytes, expected {}, first difference at {first:?}",
                a.len(),
                b.len()
            );
        }
        return Ok(());
    }
    ensure!(found == expected, "answered {found:?}, expected {expected:?}");
    Ok(())
}

/// Ends the process where an operation hangs: a hanging test would say nothing at all.
struct Watch {
    steps: Arc<AtomicU64>,
    now: Arc<std::sync::Mutex<String>>,
}

impl Watch {
    fn start(seed: u64) -> Watch {
        let steps = Arc::new(AtomicU64::new(0));
        let now = Arc::new(std::sync::Mutex::new(String::new()));
        let (weak, text) = (Arc::downgrade(&steps), now.clone());
        std::thread::spawn(move || {
            let (mut last, mut since) = (u64::MAX, Instant::now());
            while let Some(steps) = weak.upgrade() {
                let step = steps.load(Ordering::Relaxed);
                drop(steps);
                if step != last {
                    (last, since) = (step, Instant::now());
                } else if since.elapsed() > STUCK {
                    let text = text.lock().map(|t| t.clone()).unwrap_or_default();
                    eprintln!("seed {seed}: stuck in operation {step}: {text}");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        Watch { steps, now }
    }

    fn note(&self, n: usize, op: &Op) {
        self.steps.store(n as u64, Ordering::Relaxed);
        if let Ok(mut now) = self.now.lock() {
            *now = format!("{op:?}");
        }
    }
}
