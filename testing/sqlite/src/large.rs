//! Transactions that are larger than an atomic group may be: SQLite makes a rollback journal for
//! them after all.
//!
//! With a large cache SQLite begins a group with the commit, is refused a write into it (`EFBIG`),
//! gives the group up, and only then makes the journal; with its usual cache it makes one before. A
//! round: such transactions run; at a random moment, often when the journal is there, a process is
//! killed. The next program finds what was there before the transaction, or all of it.
//!
//! The groups of a volume are bounded together. Where the transactions are not huge, a file of ours
//! has a group that leaves little of that, so that small transactions are too large.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cowshed_harness::start_atomic_write;
use cowshed_kill9::daemon::Daemon;
use cowshed_model::Rng;

use crate::database::{self, HUGE, Journal, Shape, WHOLE};
use crate::place::{Place, Rounds};
use crate::victim::{Tally, Victim};
use crate::worker::{Next, Said, Worker, say};

/// MiB that all groups of a volume may hold together, docs/design/data.md#atomic-groups.
const GROUPS_MIB: usize = 256;
/// What is left of them for SQLite: less than its transaction.
const LEFT_MIB: usize = 1;
/// One of so many rounds runs with SQLite's usual cache.
const SMALL_CACHE_ONE_IN: u64 = 4;
/// How often the journal is looked for.
const LOOK: Duration = Duration::from_millis(1);
/// What a transaction may take.
const STUCK: Duration = Duration::from_secs(120);

/// What all rounds together did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    pub rounds: u64,
    pub killed: Tally,
    /// Transactions that were acknowledged.
    pub transactions: i64,
    /// Kills while there was a journal.
    pub with_journal: u64,
    /// Rounds after which the transaction that was not acknowledged was there.
    pub ahead: u64,
}

/// The worker: commits until a process is killed.
pub fn work(database: &Path, from: i64, is_huge: bool, is_cache_small: bool) -> Result<()> {
    let mut connection = database::open(database, Journal::Delete)?;
    // The removal of a journal is durable with this only.
    connection.execute_batch("pragma synchronous=extra;")?;
    if !is_cache_small {
        connection.execute_batch("pragma cache_size=-2000000; pragma cache_spill=off;")?;
    }
    say(Said::Ready)?;
    for n in from.. {
        let transaction = shape(is_huge).prepare(&mut connection, n)?;
        say(Said::Begins(n))?;
        transaction.commit()?;
        // Where the directory cannot be opened any more, SQLite does not sync the removal of its
        // journal, and says that all is well. The mount was there then if it is there now.
        rustix::fs::statvfs(database)?;
        say(Said::Done(n))?;
    }
    Ok(())
}

fn shape(is_huge: bool) -> Shape {
    if is_huge { HUGE } else { WHOLE }
}

/// A group that leaves little to others.
struct Hog(#[expect(dead_code, reason = "is closed with the value")] File);

impl Hog {
    fn new(dir: &Path) -> Result<Hog> {
        let mut file = File::create(dir.join("hog"))?;
        start_atomic_write(&file)?;
        let piece = vec![0; 1 << 20];
        (0..GROUPS_MIB - LEFT_MIB).try_for_each(|_| file.write_all(&piece))?;
        Ok(Hog(file))
    }
}

/// The mount, and what is open on it.
struct Mount {
    daemon: Daemon,
    hog: Option<Hog>,
}

impl Mount {
    fn new(place: &Place, is_huge: bool) -> Result<Mount> {
        let daemon = place.mount()?;
        let hog = (!is_huge).then(|| Hog::new(&place.mounted())).transpose()?;
        Ok(Mount { daemon, hog })
    }
}

/// Runs all rounds. Huge transactions are too large by themselves, and take 3 GiB of memory.
pub fn run(rounds: &Rounds, is_huge: bool) -> Result<Summary> {
    let (shape, image_mib) = (shape(is_huge), if is_huge { 4096 } else { 1024 });
    let place = Place::new(&rounds.programs, image_mib)?;
    let daemon = place.mount()?;
    shape.fill(&mut database::open(&place.database(), Journal::Delete)?)?;
    daemon.stop()?;
    let (mut summary, mut dice) = (Summary::default(), Rng::new(rounds.seed));
    let mut mounted = Some(Mount::new(&place, is_huge)?);
    let mut done = 0;
    let judge = |connection: &_| shape.verify(connection);
    for round in 0..rounds.count {
        let mount = match mounted.take() {
            Some(mount) => mount,
            None => Mount::new(&place, is_huge)?,
        };
        let victim = Victim::by(&mut dice);
        let is_cache_small = dice.one_in(SMALL_CACHE_ONE_IN);
        let context = || format!("large transactions, round {round}, {victim:?} killed, usual cache: {is_cache_small}");
        let mut killed = Killed::new(&place, mount, done, is_cache_small).with_context(context)?;
        killed.kill(&place, victim, &mut dice).with_context(context)?;
        let mut look = || {
            // The first to look rolls back, in the old mount or a new one.
            match killed.lives.take() {
                Some(mount) => {
                    let found = place.look(judge)?;
                    mounted = Some(mount);
                    Ok(found)
                }
                None => place.by_ourselves(judge),
            }
        };
        let found = look().with_context(context)?;
        ensure!(
            (killed.acknowledged..=killed.begun).contains(&found),
            "{}: transaction {} was acknowledged, {} begun, {found} is there",
            context(),
            killed.acknowledged,
            killed.begun
        );
        victim.note(&mut summary.killed);
        summary.with_journal += u64::from(killed.had_journal);
        summary.ahead += u64::from(found > killed.acknowledged);
        summary.rounds += 1;
        done = found;
        if rounds.progress {
            eprintln!("{}: {done} transactions, journal: {}", context(), killed.had_journal);
        }
    }
    if let Some(Mount { daemon, hog }) = mounted {
        drop(hog);
        daemon.stop()?;
    }
    ensure!(place.by_kernel(judge)? == done, "the kernel finds another state");
    summary.transactions = done;
    Ok(summary)
}

/// A round: one transaction, and others until the kill.
struct Killed {
    running: Option<(Mount, Worker)>,
    /// What the first transaction took in all, and until there was a journal.
    took: Duration,
    until_journal: Duration,
    begun: i64,
    acknowledged: i64,
    had_journal: bool,
    lives: Option<Mount>,
}

impl Killed {
    /// Starts SQLite and waits for its first transaction, which has had a journal.
    fn new(place: &Place, mount: Mount, done: i64, is_cache_small: bool) -> Result<Killed> {
        let from = (done + 1).to_string();
        let mut args = vec!["large", "--from", &from];
        args.extend(mount.hog.is_none().then_some("--huge"));
        args.extend(is_cache_small.then_some("--small-cache"));
        let worker = Worker::start(&place.programs.this, &args, &place.database(), place.path("errors"))?;
        let mut killed = Killed {
            running: Some((mount, worker)),
            took: Duration::ZERO,
            until_journal: Duration::ZERO,
            begun: done,
            acknowledged: done,
            had_journal: false,
            lives: None,
        };
        let started = Instant::now();
        while killed.acknowledged == done {
            ensure!(started.elapsed() < STUCK, "a transaction takes too long");
            if killed.until_journal.is_zero() && place.has_hot_journal() {
                killed.until_journal = started.elapsed();
            }
            killed.listen(Instant::now() + LOOK)?;
        }
        killed.took = started.elapsed();
        ensure!(!killed.until_journal.is_zero(), "SQLite has made no journal");
        Ok(killed)
    }

    /// Hears what SQLite says until then.
    fn listen(&mut self, until: Instant) -> Result<()> {
        let (mount, worker) = self.running.as_mut().context("nothing runs")?;
        while Instant::now() < until {
            match worker.next(Some(until))? {
                Next::Late => break,
                Next::Over => bail!("SQLite failed: {}\n{}", worker.complaint(), mount.daemon.said()),
                Next::Said(said) => note(said, &mut self.begun, &mut self.acknowledged)?,
            }
        }
        Ok(())
    }

    /// At any moment of the next transactions, or when there is a journal.
    fn kill(&mut self, place: &Place, victim: Victim, dice: &mut Rng) -> Result<()> {
        let part = |whole: Duration, dice: &mut Rng| whole.mul_f64(dice.below(1000) as f64 / 1000.0);
        if dice.one_in(3) {
            self.listen(Instant::now() + part(self.took, dice))?;
        } else {
            let started = Instant::now();
            while !place.has_hot_journal() {
                ensure!(started.elapsed() < STUCK, "SQLite makes no journal any more");
                self.listen(Instant::now() + LOOK)?;
            }
            self.listen(Instant::now() + part(self.took.saturating_sub(self.until_journal), dice))?;
        }
        let (mount, worker) = self.running.take().context("nothing runs")?;
        self.had_journal = place.has_hot_journal();
        let (lives, rest) = victim.kill(mount.daemon, worker)?;
        for said in rest {
            note(said, &mut self.begun, &mut self.acknowledged)?;
        }
        self.lives = lives.map(|daemon| Mount { daemon, hog: mount.hog });
        Ok(())
    }
}

fn note(said: Said, begun: &mut i64, acknowledged: &mut i64) -> Result<()> {
    match said {
        Said::Begins(n) => *begun = n,
        Said::Done(n) => *acknowledged = n,
        other => bail!("SQLite said {other:?}"),
    }
    Ok(())
}
